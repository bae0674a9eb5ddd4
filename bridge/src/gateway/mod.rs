//! The credential gateway (R-SEC-3): a loopback address at which a Harness finds its model provider and its MCP servers, and which puts the key in on the
//! way out.
//!
//! Each Executor has a route, a path that nobody guesses, for as long as it lives; who asks under another one is told nothing. What passes is not
//! kept; an answer is counted as it passes, and cut off where it is more than its limits (R-SEC-5). Nothing is held back but calls, where that is asked
//! for (R-FN-10). It knows neither Sessions
//! nor the protocol of Core.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use adapters::{
    harness::{McpOrigin, ModelProvider},
    native::loopback::Loopback,
};
use http::Uri;
use hyper::rt::Executor;
use hyper_util::{client::legacy::Client, rt::TokioTimer};
use secrecy::SecretString;
use tokio::{net::TcpListener, time};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{link, tasks};
use connect::Connector;
use relay::Upstream;
use routes::{Judging, Name, Route, Routes};

mod connect;
mod guard;
mod judged;
mod origin;
mod relay;
mod routes;
mod stream;
mod unreachable;

pub(crate) use connect::Limits as ConnectLimits;
pub(crate) use guard::{Guard, Guards};
pub(crate) use origin::{Malformed as MalformedOrigin, Origin};
pub(crate) use stream::{Batch, Breach, Called, Limits as StreamLimits};

/// What a Harness is given for a key. It opens nothing anywhere.
pub(crate) const PLACEHOLDER: &str = "runtime-bridge-placeholder";

/// Connections that may be open at once, or half as many as the daemon may have open files where that is less; the next ones wait. A Harness has a few, and
/// one for each MCP server that stays open.
const CONNECTIONS: usize = 8192;
/// Connections of one route that are kept for later, and for how long.
const IDLE: usize = 8;
const IDLE_LIFE: Duration = Duration::from_secs(60);
/// How long what still goes on may take to end once the gateway closes.
const LAST: Duration = Duration::from_secs(2);

/// A gateway that listens.
#[derive(Debug)]
pub(crate) struct Gateway {
    routes: Arc<Routes>,
    address: SocketAddr,
    connector: Connector,
    /// For MCP servers that the Environment reaches.
    environment: Connector,
    limits: StreamLimits,
    /// The most bytes of an answer of an MCP server.
    mcp_bytes: u64,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A route. It is gone when this is dropped.
pub(crate) struct Lease {
    routes: Arc<Routes>,
    route: Arc<Route>,
    name: Name,
    base_url: String,
}

/// The base address has the name of the route.
impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.route).finish()
    }
}

impl Gateway {
    /// Begins to listen, on a port that the system picks.
    pub(crate) async fn open(
        guards: Guards,
        connect: ConnectLimits,
        limits: StreamLimits,
        mcp_bytes: u64,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (routes, tasks, stop) = (Arc::new(Routes::default()), TaskTracker::new(), CancellationToken::new());
        let loopback = Loopback::new(listener, link::room(CONNECTIONS));
        let listening = listen(loopback, Arc::clone(&routes), tasks.clone(), stop.clone());
        drop(tasks::spawn(&tasks, tasks::Kind::Gateway, listening));
        let connector = Connector::new(guards.service, connect);
        let environment = connector.guarded_by(guards.environment);
        Ok(Self { routes, address, connector, environment, limits, mcp_bytes, tasks, stop })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A route to a provider, whose base address was checked. The key is put in where there is one. With `strict_calls` the calls of an answer are held back
    /// until they may run (R-FN-10).
    pub(crate) fn lease(
        &self,
        provider: &ModelProvider,
        key: Option<SecretString>,
        strict_calls: bool,
    ) -> io::Result<Lease> {
        let base = url(&provider.base_url)?;
        let judging = Judging { limits: self.limits, strict_calls };
        let route = Route::to_provider(provider.protocol, &base, key, self.upstream(&self.connector), judging);
        self.give(route.ok_or_else(no_url)?)
    }

    /// A route to an MCP server, whose address was checked, and to nothing beside it. The bearer is put in where there is one.
    pub(crate) fn lease_server(
        &self,
        address: &str,
        origin: McpOrigin,
        bearer: Option<SecretString>,
    ) -> io::Result<Lease> {
        let connector = match origin {
            McpOrigin::Service => &self.connector,
            McpOrigin::Environment => &self.environment,
        };
        let route = Route::to_server(&url(address)?, bearer, self.upstream(connector), self.mcp_bytes);
        self.give(route.ok_or_else(no_url)?)
    }

    /// Each route has connections of its own, which end with it: no Session shares one with another.
    fn upstream(&self, connector: &Connector) -> Upstream {
        Client::builder(Tracked(self.tasks.clone()))
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIFE)
            .pool_max_idle_per_host(IDLE)
            .build(connector.clone())
    }

    fn give(&self, route: Route) -> io::Result<Lease> {
        let route = Arc::new(route);
        let name = self.routes.add(Arc::clone(&route))?;
        let base_url = format!("http://{}/{}", self.address, name.as_str());
        Ok(Lease { routes: Arc::clone(&self.routes), route, name, base_url })
    }

    /// Ends the listener and everything that still passes.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        if time::timeout(LAST, self.tasks.wait()).await.is_err() {
            tracing::warn!("connections to model providers or MCP servers are left behind");
        }
    }
}

impl Lease {
    /// The address that the Harness is given in place of the real one.
    pub(crate) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Takes another key for the requests that come from now on.
    pub(crate) fn swap(&self, key: Option<SecretString>) {
        self.route.swap(key);
    }

    /// What an answer did that it may not, once.
    pub(crate) fn take_breach(&self) -> Option<Breach> {
        self.route.take_breach()
    }

    /// The calls that went on since this was asked last, each batch before the Harness could know of it.
    pub(crate) fn take_batches(&self) -> impl Iterator<Item = Batch> + use<> {
        self.route.take_batches().into_iter()
    }

    /// Waits until an answer may have done what it may not. Cancel safe.
    pub(crate) async fn breached(&self) {
        self.route.breached().await;
    }

    /// Why the gateway itself did not pass the last request on, if it did not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.route.trouble()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.routes.remove(&self.name);
    }
}

fn url(text: &str) -> io::Result<Uri> {
    text.parse().map_err(|_| no_url())
}

fn no_url() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the address of a provider or server is no URL")
}

/// Takes connections until it is told to stop.
async fn listen(loopback: Loopback, routes: Arc<Routes>, tasks: TaskTracker, stop: CancellationToken) {
    while let Some(taken) = loopback.next(&stop).await {
        let (routes, stop) = (Arc::clone(&routes), stop.clone());
        let connection = async move { taken.serve(&stop, |request| relay::pass(Arc::clone(&routes), request)).await };
        drop(tasks::spawn(&tasks, tasks::Kind::Gateway, connection));
    }
}

/// Starts the tasks of connections to providers, so that the gateway can wait for them.
#[derive(Clone, Debug)]
struct Tracked(TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tracked {
    fn execute(&self, task: F) {
        drop(tasks::spawn(&self.0, tasks::Kind::Gateway, task));
    }
}

#[cfg(test)]
mod tests;
