//! MCP servers of a session: which entries are taken, discovery at the start of a Turn, and calls with their limits.

mod link;
mod names;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time;
use tokio_util::sync::CancellationToken;

use super::faults::Faults;
use super::history::{Call, Outcome};
use super::model::Offer;
use super::note;
use super::wire::raw;
use link::Link;

/// How many calls of one server go at once.
const AT_ONCE: usize = 5;

/// How long the discovery of a server over HTTP may take.
const DISCOVERY: Duration = Duration::from_secs(2);

/// How long that of one over standard input and output may take.
const DISCOVERY_STDIO: Duration = Duration::from_secs(15);

/// How long a call may take where nothing says another time, in milliseconds.
const CALL_MS: u64 = 120_000;

/// How a server is reached.
#[derive(Debug, Clone)]
pub(super) enum Way {
    Http {
        url: String,
        headers: Vec<(String, String)>,
    },
    /// Served by nobody any more; it is taken and gives no tools.
    Sse,
    Stdio {
        command: String,
        args: Vec<String>,
        env: Vec<(String, String)>,
    },
}

/// A server of a session.
#[derive(Debug)]
pub(super) struct Server {
    name: String,
    way: Way,
    timeout_ms: Option<u64>,
    permits: Semaphore,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
}

/// A tool that was found, and where.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) offer: Offer,
    raw: String,
    server: Arc<Server>,
}

/// The entries of `mcpServers` that are complete. Others are dropped without a word. A doubled name is an error.
pub(super) fn parse(entries: &Value) -> Result<Vec<Arc<Server>>, String> {
    let servers: Vec<_> = entries.as_array().into_iter().flatten().filter_map(entry).collect();
    let mut names = BTreeSet::new();
    for server in &servers {
        if !names.insert(server.name.clone()) {
            return Err(format!("duplicate MCP server name: {}", server.name));
        }
    }
    Ok(servers)
}

fn entry(entry: &Value) -> Option<Arc<Server>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let pairs = |list: &Value| -> Option<Vec<_>> {
        list.as_array()?.iter().map(|pair| Some((text(&pair["name"])?, text(&pair["value"])?))).collect()
    };
    let name = text(&entry["name"])?;
    let way = match entry.get("type").map(|kind| kind.as_str()) {
        Some(Some("http")) => Way::Http { url: text(&entry["url"])?, headers: pairs(&entry["headers"])? },
        Some(Some("sse")) => {
            text(&entry["url"])?;
            pairs(&entry["headers"])?;
            Way::Sse
        }
        None | Some(Some("stdio")) => {
            let args: Option<Vec<_>> = entry["args"].as_array()?.iter().map(text).collect();
            Way::Stdio { command: text(&entry["command"])?, args: args?, env: pairs(&entry["env"])? }
        }
        Some(_) => return None,
    };
    Some(server(name, way, None))
}

fn server(name: String, way: Way, timeout_ms: Option<u64>) -> Arc<Server> {
    Arc::new(Server { name, way, timeout_ms, permits: Semaphore::new(AT_ONCE), link: tokio::sync::Mutex::default() })
}

/// The servers of a file such as `mcp.json`.
pub(super) fn configured(path: &Path) -> Vec<Arc<Server>> {
    let read = std::fs::read(path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let read = read.unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let pairs = |of: &Value| -> Vec<_> {
        of.as_object().into_iter().flatten().filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
    };
    let one = |(name, of): (&String, &Value)| {
        let way = match (text(&of["command"]), text(&of["url"])) {
            (Some(command), _) => {
                let args = of["args"].as_array().into_iter().flatten().filter_map(text).collect();
                Way::Stdio { command, args, env: pairs(&of["env"]) }
            }
            (None, Some(url)) => Way::Http { url, headers: pairs(&of["headers"]) },
            (None, None) => return None,
        };
        (of["enabled"] != false).then(|| server(name.clone(), way, of["timeout"].as_u64()))
    };
    read["mcpServers"].as_object().into_iter().flatten().filter_map(one).collect()
}

/// Asks every server for its tools, in the time that there is; those that are late have none in this Turn. The names stand in the file before
/// anybody sees them.
pub(super) async fn discover(
    servers: &[Arc<Server>],
    data: &Path,
    faults: &Faults,
    file: &Mutex<()>,
) -> anyhow::Result<Vec<Found>> {
    let lists = future::join_all(servers.iter().map(|server| server.discover(faults))).await;
    let _writing = file.lock().unwrap_or_else(PoisonError::into_inner);
    let mut registry = names::Registry::read(data);
    let mut found = Vec::new();
    for (server, tools) in servers.iter().zip(lists) {
        for tool in tools {
            let raw = tool["name"].as_str().unwrap_or_default().to_owned();
            let description = tool["description"].as_str().unwrap_or_default().to_owned();
            let name = registry.name(&server.name, &raw);
            let offer = Offer { name, description, schema: tool["inputSchema"].clone() };
            found.push(Found { offer, raw, server: server.clone() });
        }
    }
    if !found.is_empty() {
        registry.write(data)?;
    }
    Ok(found)
}

impl Server {
    async fn discover(&self, faults: &Faults) -> Vec<Value> {
        let usual = if matches!(self.way, Way::Stdio { .. }) { DISCOVERY_STDIO } else { DISCOVERY };
        let limit = faults.discovery_ms.map_or(usual, Duration::from_millis);
        let limit = self.timeout_ms.map_or(limit, |own| limit.min(Duration::from_millis(own)));
        let ask = async {
            time::sleep(Duration::from_millis(faults.discovery_delay_ms)).await;
            self.link().await?.tools().await
        };
        match time::timeout(limit, ask).await {
            Ok(Ok(tools)) => tools,
            Ok(Err(error)) => {
                note(&format!("MCP server {}: {error:#}", self.name));
                Vec::new()
            }
            Err(_) => {
                note(&format!("MCP server {}: discovery took too long", self.name));
                Vec::new()
            }
        }
    }

    /// The connection, made now where there is none that works.
    async fn link(&self) -> anyhow::Result<Arc<Link>> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| link.works()) {
            return Ok(link.clone());
        }
        let made = Arc::new(Link::open(&self.way).await?);
        *link = Some(made.clone());
        Ok(made)
    }
}

impl Found {
    /// Calls the tool.
    pub(super) async fn call(&self, call: &Call, faults: &Faults, cancel: &CancellationToken) -> Outcome {
        let waiting = async { self.server.permits.acquire().await.ok() };
        // The wait for a place is outside of the limit.
        let permit = tokio::select! {
            permit = waiting => permit,
            () = cancel.cancelled() => None,
        };
        if permit.is_none() {
            return Outcome::failed(call, "aborted");
        }
        let limit_ms = faults.call_ms.or(self.server.timeout_ms).unwrap_or(CALL_MS);
        let late = || format!("MCP tool {} timed out after {limit_ms}ms", self.offer.name);
        let link = tokio::select! {
            link = time::timeout(Duration::from_millis(limit_ms), self.server.link()) => link,
            () = cancel.cancelled() => return Outcome::failed(call, "aborted"),
        };
        let link = match link {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return Outcome::failed(call, &format!("{error:#}")),
            Err(_) => return Outcome::failed(call, &late()),
        };
        let arguments = raw(&call.arguments);
        let params = serde_json::to_string(&Params { name: &self.raw, arguments: &arguments }).unwrap_or_default();
        let stopped = async {
            tokio::select! {
                () = time::sleep(Duration::from_millis(limit_ms)) => late(),
                () = cancel.cancelled() => "aborted".into(),
            }
        };
        match link.call("tools/call", &params, stopped).await {
            Ok(result) => self.outcome(call, &result),
            Err(error) => Outcome::failed(call, &format!("{error:#}")),
        }
    }

    fn outcome(&self, call: &Call, result: &RawValue) -> Outcome {
        let read: Value = serde_json::from_str(result.get()).unwrap_or_default();
        let is_error = read["isError"] == true;
        let content = if read["content"].is_array() { read["content"].clone() } else { json!([]) };
        let result = result.get();
        let details = format!(
            r#"{{"server":{},"tool":{},"is_error":{is_error},"mcp":{result}}}"#,
            json!(self.server.name),
            json!(self.raw)
        );
        let raw_output = format!(r#"{{"content":{content},"details":{details}}}"#);
        // The status says that it was carried out, not that it went well.
        let (id, name, status) = (call.id.clone(), call.name.clone(), "completed".into());
        Outcome { id, name, status, content, is_error, raw_output }
    }
}

#[derive(serde::Serialize)]
struct Params<'a> {
    name: &'a str,
    arguments: &'a RawValue,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_entries_are_dropped_without_a_word() {
        let pair = json!([{"name": "k", "value": "v"}]);
        let entries = json!([
            {"type": "http", "name": "a", "url": "http://x", "headers": pair},
            {"type": "http", "name": "b", "url": "http://x"},
            {"type": "http", "name": "c", "url": "http://x", "headers": {"k": "v"}},
            {"name": "d", "command": "x", "args": [], "env": []},
            {"type": "stdio", "name": "e", "command": "x", "args": ["1"], "env": pair},
            {"name": "f", "command": "x", "env": []},
            {"name": "g", "command": "x", "args": [], "env": {}},
            {"type": "carrier-pigeon", "name": "h", "url": "http://x", "headers": []},
            {"type": "sse", "name": "i", "url": "http://x", "headers": []},
        ]);
        let names: Vec<_> = parse(&entries).unwrap().iter().map(|server| server.name.clone()).collect();
        assert_eq!(names, ["a", "d", "e", "i"]);
        let double = json!([entries[0], entries[0]]);
        assert!(parse(&double).unwrap_err().contains("duplicate"));
    }
}
