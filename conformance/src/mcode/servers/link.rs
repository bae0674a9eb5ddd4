//! One connection to an MCP server, over streamable HTTP or standard input and output. It offers the server nothing but its home directory.

use std::collections::HashMap;
use std::env;
use std::pin::pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use hyper::Method;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::Way;
use crate::mcode::http::{self, Answer};

/// The version that is asked for.
const VERSION: &str = "2025-06-18";

/// An open connection.
#[derive(Debug)]
pub(super) struct Link {
    way: Open,
    last: AtomicU64,
    broken: AtomicBool,
    tools: tokio::sync::Mutex<Option<Vec<Value>>>,
}

#[derive(Debug)]
enum Open {
    Http(Http),
    Stdio(Pipes),
}

#[derive(Debug)]
struct Http {
    url: String,
    headers: Vec<(String, String)>,
    // Held for its end alone: it listens to what the server says by itself.
    _listening: JoinSet<()>,
}

#[derive(Debug)]
struct Pipes {
    stdin: Arc<tokio::sync::Mutex<ChildStdin>>,
    open: Arc<Mutex<HashMap<u64, oneshot::Sender<String>>>>,
    // Held for their ends alone.
    _reading: JoinSet<()>,
    _child: Child,
}

/// An answer of JSON-RPC, its result as it stands.
#[derive(Deserialize)]
struct Answered {
    result: Option<Box<RawValue>>,
    error: Option<Value>,
}

impl Link {
    /// Connects and greets.
    pub(super) async fn open(way: &Way) -> anyhow::Result<Self> {
        let greeting = json!({"protocolVersion": VERSION, "capabilities": {"roots": {}},
            "clientInfo": {"name": "minimax-code", "version": "0.4.12"}});
        let way = match way {
            Way::Http { url, headers } => Open::Http(Http::open(url, headers, &greeting).await?),
            Way::Stdio { command, args, env } => {
                let pipes = Pipes::open(command, args, env)?;
                read(&pipes.request(0, "initialize", &greeting.to_string()).await?)?;
                Open::Stdio(pipes)
            }
            Way::Sse => anyhow::bail!("the double has no SSE transport"),
        };
        let link = Self { way, last: AtomicU64::new(1), broken: AtomicBool::new(false), tools: Default::default() };
        link.notify("notifications/initialized", "{}").await?;
        Ok(link)
    }

    /// Whether nothing has failed on it.
    pub(super) fn works(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }

    /// The tools; they are asked for once.
    pub(super) async fn tools(&self) -> anyhow::Result<Vec<Value>> {
        let mut known = self.tools.lock().await;
        if let Some(tools) = &*known {
            return Ok(tools.clone());
        }
        let (mut tools, mut params) = (Vec::new(), json!({}));
        loop {
            let page = self.call("tools/list", &params.to_string(), std::future::pending()).await?;
            let page: Value = serde_json::from_str(page.get())?;
            tools.extend(page["tools"].as_array().into_iter().flatten().cloned());
            match &page["nextCursor"] {
                Value::String(next) => params = json!({ "cursor": next }),
                _ => break,
            }
        }
        *known = Some(tools.clone());
        Ok(tools)
    }

    /// Asks, until `stopped` says why not any more: then the server is told, and that is the error.
    pub(super) async fn call(
        &self,
        method: &str,
        params: &str,
        stopped: impl Future<Output = String>,
    ) -> anyhow::Result<Box<RawValue>> {
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        let asking = async {
            match &self.way {
                Open::Http(http) => http.request(id, method, params).await,
                Open::Stdio(pipes) => pipes.request(id, method, params).await,
            }
        };
        // It lives until the server was told, so that the connection is not what tells.
        let mut asking = pin!(asking);
        let answer = tokio::select! {
            answer = asking.as_mut() => answer,
            why = stopped => {
                let params = json!({"requestId": id, "reason": why}).to_string();
                let told = self.notify("notifications/cancelled", &params).await;
                if told.is_err() {
                    self.broken.store(true, Ordering::Relaxed);
                }
                anyhow::bail!(why);
            }
        };
        match answer {
            Ok(answer) => read(&answer),
            Err(error) => {
                // The next one connects anew.
                self.broken.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    async fn notify(&self, method: &str, params: &str) -> anyhow::Result<()> {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        match &self.way {
            Open::Http(http) => http.post(line).await.map(drop),
            Open::Stdio(pipes) => pipes.write(line).await,
        }
    }
}

/// The result of an answer.
fn read(answer: &str) -> anyhow::Result<Box<RawValue>> {
    let answered: Answered = serde_json::from_str(answer).context("an answer that is none")?;
    if let Some(error) = answered.error {
        let told = error["message"].as_str().unwrap_or_default();
        anyhow::bail!("MCP error {}: {told}", error["code"]);
    }
    answered.result.context("an answer without a result")
}

fn request(id: u64, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// What a server that asks by itself is told, nothing for what is no request.
fn reply(message: &Value) -> Option<String> {
    let (id, method) = (message.get("id")?, message["method"].as_str()?);
    let home = env::var("HOME").unwrap_or_default();
    let result = match method {
        "roots/list" => json!({"roots": [{"uri": format!("file://{home}")}]}),
        "ping" => json!({}),
        _ => {
            let error = json!({"code": -32601, "message": "Method not found"});
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string());
        }
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
}

impl Http {
    async fn open(url: &str, headers: &[(String, String)], greeting: &Value) -> anyhow::Result<Self> {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut headers = headers.to_vec();
        headers.push(header("content-type", "application/json"));
        headers.push(header("accept", "application/json, text/event-stream"));
        let mut http = Self { url: url.to_owned(), headers, _listening: JoinSet::new() };
        let answer = http.post(request(0, "initialize", &greeting.to_string())).await?;
        let session = answer.headers.get("mcp-session-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let greeted: Value = serde_json::from_str(read(&http.answer(0, answer).await?)?.get())?;
        let version = greeted["protocolVersion"].as_str().unwrap_or(VERSION);
        http.headers.push(header("mcp-protocol-version", version));
        http.headers.extend(session.iter().map(|id| header("mcp-session-id", id)));
        let (url, headers) = (http.url.clone(), http.headers.clone());
        let headers: Vec<_> = headers.into_iter().filter(|(name, _)| name != "content-type").collect();
        http._listening.spawn(async move {
            // A server that has no such stream says so, and that is fine.
            let Ok(mut stream) = http::send(Method::GET, &url, &headers, String::new()).await else { return };
            while stream.status.is_success() && matches!(stream.event().await, Ok(Some(_))) {}
        });
        Ok(http)
    }

    async fn post(&self, body: String) -> anyhow::Result<Answer> {
        let answer = http::send(Method::POST, &self.url, &self.headers, body).await?;
        if !answer.status.is_success() {
            let status = answer.status;
            anyhow::bail!("HTTP {status}: {:.200}", answer.whole().await.unwrap_or_default());
        }
        Ok(answer)
    }

    async fn request(&self, id: u64, method: &str, params: &str) -> anyhow::Result<String> {
        let answer = self.post(request(id, method, params)).await?;
        self.answer(id, answer).await
    }

    /// The message with this id.
    async fn answer(&self, id: u64, mut answer: Answer) -> anyhow::Result<String> {
        if !answer.streams() {
            return answer.whole().await;
        }
        while let Some(data) = answer.event().await? {
            let Ok(message) = serde_json::from_str::<Value>(&data) else { continue };
            if let Some(reply) = reply(&message) {
                self.post(reply).await?;
            } else if message["id"] == id {
                return Ok(data);
            }
        }
        anyhow::bail!("the stream ended without an answer")
    }
}

impl Pipes {
    fn open(command: &str, args: &[String], env: &[(String, String)]) -> anyhow::Result<Self> {
        // It inherits everything, and it starts at home and not in the workspace.
        let mut process = Command::new(command);
        process.args(args).envs(env.iter().cloned()).kill_on_drop(true);
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(home) = env::var_os("HOME") {
            process.current_dir(home);
        }
        let mut child = process.spawn().with_context(|| format!("start {command}"))?;
        let stdin = Arc::new(tokio::sync::Mutex::new(child.stdin.take().context("no input")?));
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let open: Arc<Mutex<HashMap<u64, oneshot::Sender<String>>>> = Arc::default();
        let mut reading = JoinSet::new();
        let (waiting, writer) = (open.clone(), stdin.clone());
        reading.spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
                if let Some(reply) = reply(&message) {
                    _ = writer.lock().await.write_all(format!("{reply}\n").as_bytes()).await;
                } else if let Some(id) = message["id"].as_u64() {
                    let waits = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                    _ = waits.map(|waits| waits.send(line));
                }
            }
            // Those who still wait learn that nothing comes.
            waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        Ok(Self { stdin, open, _reading: reading, _child: child })
    }

    async fn request(&self, id: u64, method: &str, params: &str) -> anyhow::Result<String> {
        let (answered, answer) = oneshot::channel();
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answered);
        self.write(request(id, method, params)).await?;
        answer.await.context("the MCP server is gone")
    }

    async fn write(&self, line: String) -> anyhow::Result<()> {
        let line = format!("{line}\n");
        self.stdin.lock().await.write_all(line.as_bytes()).await.context("write to the MCP server")
    }
}
