//! The lines of ACP: out in one order, and the answers to what the client is asked.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

use super::faults::Faults;

/// Lines that wait for the pipe. Who has more to say waits too.
const WAITING: usize = 256;

/// The id of a session that does not exist.
const FOREIGN: &str = "mvs_of_somebody_else";

/// An error of JSON-RPC.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn params(text: &str) -> Self {
        Self { code: -32602, message: format!("Invalid params: {text}") }
    }

    pub(super) fn unknown(id: &str) -> Self {
        Self { code: -32002, message: format!("Resource not found: {id}") }
    }

    pub(super) fn internal(text: &str) -> Self {
        Self { code: -32603, message: format!("Internal error: {text}") }
    }

    pub(super) fn method(method: &str) -> Self {
        Self { code: -32601, message: format!("\"Method not found\": {method}") }
    }
}

enum Out {
    Line(Bytes),
    Flush(oneshot::Sender<()>),
}

/// The way to the client.
#[derive(Debug)]
pub(super) struct Wire {
    out: mpsc::Sender<Out>,
    asked: Mutex<Asked>,
    junk: bool,
    foreign: bool,
}

#[derive(Debug, Default)]
struct Asked {
    last: u64,
    open: HashMap<u64, oneshot::Sender<Value>>,
}

/// A state of a tool, as an update has it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolUpdate<'a> {
    pub(super) session_update: &'static str,
    pub(super) tool_call_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) raw_input: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) raw_output: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locations: Option<Value>,
}

impl Wire {
    /// The way to the client, and the task that writes.
    pub(super) fn new(faults: &Faults) -> (Self, impl Future<Output = ()> + use<>) {
        let (out, lines) = mpsc::channel(WAITING);
        let wire = Self { out, asked: Mutex::default(), junk: faults.junk_lines, foreign: faults.foreign_session };
        (wire, write(lines))
    }

    /// Answers a request.
    pub(super) async fn answer(&self, id: &Value, answer: Result<Value, Refusal>) {
        if self.junk {
            for junk in ["\u{1b}[33mwarning:\u{1b}[0m this is no message", "5", "{\"jsonrpc\":", "{}"] {
                self.line(junk.to_owned()).await;
            }
            self.put(Bytes::from_static(b"\xff\xfe\n")).await;
        }
        let answer = match answer {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(Refusal { code, message }) => {
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
            }
        };
        self.line(answer.to_string()).await;
    }

    /// Tells the client something.
    pub(super) async fn notify(&self, method: &str, params: Value) {
        self.line(json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
    }

    /// Sends an update of a session.
    pub(super) async fn update<T: Serialize + ?Sized>(&self, session: &str, update: &T) {
        let Ok(update) = serde_json::to_string(update) else { return };
        let line = |session: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{},"update":{update}}}}}"#,
                json!(session)
            )
        };
        self.line(line(session)).await;
        if self.foreign {
            self.line(line(FOREIGN)).await;
        }
    }

    /// Asks the client, and waits for its answer for as long as it takes: the result, or nothing for an error.
    pub(super) async fn ask(&self, method: &str, params: Value) -> Option<Value> {
        let (answered, answer) = oneshot::channel();
        let id = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.last += 1;
            let id = asked.last;
            asked.open.insert(id, answered);
            id
        };
        self.line(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await;
        answer.await.ok()?.get("result").cloned()
    }

    /// Takes an answer of the client. One that nobody waits for is nothing.
    pub(super) fn answered(&self, message: Value) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waits) = message["id"].as_u64().and_then(|id| asked.open.remove(&id)) {
            _ = waits.send(message);
        }
    }

    /// Waits until everything that was said is written.
    pub(super) async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.out.send(Out::Flush(done)).await.is_ok() {
            _ = written.await;
        }
    }

    /// A line that is JSON without line breaks outside of its strings, or junk.
    async fn line(&self, mut line: String) {
        line.push('\n');
        self.put(Bytes::from(line)).await;
    }

    async fn put(&self, bytes: Bytes) {
        // A client that is gone hears nothing; the end of standard input tells.
        _ = self.out.send(Out::Line(bytes)).await;
    }
}

async fn write(mut lines: mpsc::Receiver<Out>) {
    let mut stdout = tokio::io::stdout();
    while let Some(out) = lines.recv().await {
        match out {
            Out::Line(line) => {
                if stdout.write_all(&line).await.is_err() || stdout.flush().await.is_err() {
                    lines.close();
                }
            }
            Out::Flush(done) => _ = done.send(()),
        }
    }
}

/// A text of JSON as a value that goes out as it stands, on one line. What is none is `null`.
pub(super) fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.replace(['\n', '\r'], " ")).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
