//! Servers of the Model Context Protocol for scenarios, on the official Rust SDK: over streamable HTTP in the test's own process, and over
//! standard input and output as a program. They have the same tools. What the SDK does not let a server do wrong is done in front of it, where
//! every request is recorded too. They know nothing of the bridge.
//!
//! | tool | what it does |
//! | --- | --- |
//! | `echo {text}` | gives the text |
//! | `environment` | tells as JSON how the process was started: `argv`, `cwd`, `env`, `pid` |
//! | `headers` | tells as JSON the headers of the request that called it; over HTTP only |
//! | `picture` | gives [`RED_PNG`](crate::rig::RED_PNG) |
//! | `structured` | gives `structuredContent`, and the same as a text |
//! | `failing` | fails in the way that the model is told of |
//! | `broken` | answers with an error of the protocol |
//! | `slow` | sets the mark `slow`, waits until the gate `slow` opens, and says `released`; when it is cancelled, it sets the mark `cancelled` |
//! | `large {bytes}` | gives a text of so many bytes |
//! | `grow` | adds the tool `late`, and says so to the client that called |
//! | `ask` | asks the user for a name, and tells what came of it: `accept`, `decline`, `cancel`, or an error |
//! | `erase` | does nothing, and has the hint that it destroys |
//! | `die` | the process ends at once; over HTTP, see [`Fault`] |
//!
//! Any other name on the list echoes.

mod http;
mod peer;
mod stdio;
mod tools;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use peer::{Peer, Sdk};
pub use stdio::{Gate, StdioArgs, serve as serve_stdio};

use crate::provider::Signals;

/// The longest wait of a test for something at a server.
const WAIT: Duration = Duration::from_secs(30);

/// How a server over HTTP behaves. The default is well-behaved, open to everyone, and speaks as the client likes.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// The bearer token that every request has to carry; 401 where one does not.
    pub bearer: Option<String>,
    /// Answers are plain JSON and there are no sessions; else they are streams of events.
    pub json: bool,
    /// The newest version of the protocol is 2025-11-25, the last one with sessions.
    pub sessions: bool,
    /// Names of more tools.
    pub more: Vec<String>,
    /// How many tools are on one page of the list; all of them when unset.
    pub page: Option<usize>,
    /// What goes wrong from the start (see [`Server::fail`]).
    pub faults: Vec<(Option<&'static str>, Fault)>,
}

impl Script {
    /// The same with this going wrong at every request of a JSON-RPC method, such as `tools/call`.
    #[must_use]
    pub fn at(mut self, method: &'static str, fault: Fault) -> Self {
        self.faults.push((Some(method), fault));
        self
    }

    /// The same with this going wrong at every request that comes.
    #[must_use]
    pub fn always(mut self, fault: Fault) -> Self {
        self.faults.push((None, fault));
        self
    }
}

/// What goes wrong with a request. It is recorded before.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It waits until the test opens this gate, and gets its ordinary answer then.
    Held(&'static str),
    /// The connection closes without an answer.
    Dropped,
    /// The answer begins as a stream of events, and breaks off.
    BrokenOff,
    /// The answer has this status and a text.
    Status(u16),
    /// The answer sends the client to this address (307).
    Redirected(String),
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// The HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The headers in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; what is not UTF-8 is replaced.
    pub body: String,
}

impl Request {
    /// The first header of this name (in lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The bearer token.
    #[must_use]
    pub fn bearer(&self) -> Option<&str> {
        self.header("authorization")?.strip_prefix("Bearer ")
    }

    /// The message in the body, `null` when there is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// The JSON-RPC method, such as `tools/list`.
    #[must_use]
    pub fn asks(&self) -> Option<String> {
        self.json()["method"].as_str().map(str::to_owned)
    }

    /// The tool that is called.
    #[must_use]
    pub fn tool(&self) -> Option<String> {
        let json = self.json();
        let called = json["params"]["name"].as_str().filter(|_| json["method"] == "tools/call");
        called.map(str::to_owned)
    }
}

/// A running server over HTTP. Dropping it ends its connections.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    bearer: Option<String>,
    faults: Mutex<Vec<(Option<&'static str>, Fault)>>,
    requests: watch::Sender<Vec<Request>>,
    signals: Arc<Signals>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    /// Starts a server on a port of loopback that the system picks.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(script: Script) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(http::LOOPBACK).await.context("listen on loopback")?;
        let address = listener.local_addr().context("read the port")?;
        let shared = Arc::new(Shared {
            bearer: script.bearer.clone(),
            faults: Mutex::new(script.faults.clone()),
            requests: watch::Sender::default(),
            signals: Arc::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let sdk = tools::Http::new(&script, shared.signals.clone(), shared.stop.clone());
        shared.tasks.spawn(http::accept(shared.clone(), Arc::new(sdk), listener));
        Ok(Self { shared, address })
    }

    /// Its address, `http://127.0.0.1:PORT/mcp`. It answers below every other path as well.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}/mcp", self.origin())
    }

    /// Scheme, host and port.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far, in the order in which they came.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.borrow().clone()
    }

    /// The tools that were called, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.requests().iter().filter_map(Request::tool).collect()
    }

    /// Waits until the requests satisfy a condition, and gives them.
    ///
    /// # Errors
    /// When they do not within 30 s.
    pub async fn wait_for(&self, condition: impl Fn(&[Request]) -> bool) -> anyhow::Result<Vec<Request>> {
        let mut changes = self.shared.requests.subscribe();
        let fit = time::timeout(WAIT, changes.wait_for(|requests| condition(requests))).await;
        let fit = fit.with_context(|| format!("the MCP server saw only {:?}", self.requests()))?;
        Ok(fit.context("the server is gone")?.clone())
    }

    /// Waits until something has set this mark.
    ///
    /// # Errors
    /// When nothing does within 30 s.
    pub async fn wait_for_mark(&self, mark: &str) -> anyhow::Result<()> {
        let marked = self.shared.signals.marked(mark);
        time::timeout(WAIT, marked).await.with_context(|| format!("the MCP server did not reach the mark {mark:?}"))
    }

    /// Opens a gate, for good.
    pub fn open_gate(&self, gate: &str) {
        self.shared.signals.open(gate);
    }

    /// Lets something go wrong from now on at requests of this JSON-RPC method, or at all; the one that was said last counts.
    pub fn fail(&self, method: Option<&'static str>, fault: Fault) {
        self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner).insert(0, (method, fault));
    }

    /// Lets nothing go wrong from now on.
    pub fn heal(&self) {
        self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Ends all connections and listens no more.
    pub async fn stop(self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    /// What goes wrong with a request of this method.
    fn fault(&self, asks: Option<&str>) -> Option<Fault> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |method: &Option<&str>| method.is_none_or(|method| asks == Some(method));
        faults.iter().find(|(method, _)| fits(method)).map(|(_, fault)| fault.clone())
    }
}

/// An address that refuses connections for as long as this lives: the port is taken, and nobody listens.
#[derive(Debug)]
pub struct Refusing {
    // Held for its port alone.
    _socket: TcpSocket,
    address: SocketAddr,
}

impl Refusing {
    /// Takes a port.
    ///
    /// # Errors
    /// When none can be had.
    pub fn start() -> anyhow::Result<Self> {
        let socket = TcpSocket::new_v4().context("make a socket")?;
        socket.bind(http::LOOPBACK).context("take a port of loopback")?;
        let address = socket.local_addr().context("read the port")?;
        Ok(Self { _socket: socket, address })
    }

    /// Where nobody answers.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

#[cfg(test)]
mod tests;
