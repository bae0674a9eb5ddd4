//! A fake of the OpenAI Responses API, of the Anthropic Messages API and of the OpenAI Chat Completions API on loopback. It
//! answers all of them by the same script, else as the mock; it records every request. It knows nothing of the bridge.

mod body;
mod events;
mod mock;
mod play;
mod protocol;
mod read;
mod record;
mod request;
mod server;
mod signals;
mod tls;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use body::{AnyBody, BrokenOff, Piece, Played, whole};
pub use protocol::Protocol;
pub use record::{End, Recorded};
pub(crate) use signals::Signals;
pub use tls::{Shows, Speaks};

use crate::script::provider::{After, Step, steps};
use request::{Newest, Request};

/// The longest wait of a test for something at the provider.
const WAIT: Duration = Duration::from_secs(30);

/// A running provider. Dropping it ends its connections.
#[derive(Debug)]
pub struct Provider {
    shared: Arc<Shared>,
    address: SocketAddr,
}

/// What all connections share.
#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<VecDeque<Step>>,
    record: record::Record,
    signals: Signals,
    tls: Option<Arc<tls::Tls>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Provider {
    /// Starts a provider on a port that the system picks, with these steps in its queue.
    ///
    /// # Errors
    /// When it cannot listen on loopback.
    pub async fn start(steps: Vec<Step>) -> anyhow::Result<Self> {
        Self::start_on(0, steps).await
    }

    /// Starts a provider on this port of loopback.
    ///
    /// # Errors
    /// When the port cannot be had.
    pub async fn start_on(port: u16, steps: Vec<Step>) -> anyhow::Result<Self> {
        Self::listen(port, steps, None).await
    }

    /// Starts a provider behind TLS, for `https://localhost`, with a certificate of an authority of its own.
    ///
    /// # Errors
    /// When it cannot listen on loopback, or make its certificates.
    pub async fn start_tls(steps: Vec<Step>, speaks: Speaks) -> anyhow::Result<Self> {
        Self::listen(0, steps, Some(Arc::new(tls::Tls::new(speaks)?))).await
    }

    async fn listen(port: u16, steps: Vec<Step>, tls: Option<Arc<tls::Tls>>) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind(server::address(port)).await.with_context(|| format!("listen on port {port}"))?;
        let address = listener.local_addr().context("read the port")?;
        let shared = Arc::new(Shared { tls, ..Shared::default() });
        shared.push(steps);
        shared.tasks.spawn(server::accept(shared.clone(), listener));
        Ok(Self { shared, address })
    }

    /// The base URL for a Harness that speaks the Responses API: `http://127.0.0.1:PORT/v1`.
    #[must_use]
    pub fn base_url(&self) -> String {
        self.base_url_for(Protocol::Responses)
    }

    /// The base URL for a Harness that speaks this API; the Messages API counts its version as part of the path.
    #[must_use]
    pub fn base_url_for(&self, protocol: Protocol) -> String {
        let origin = match self.shared.tls {
            None => format!("http://{}", self.address),
            Some(_) => format!("https://{}:{}", tls::NAME, self.address.port()),
        };
        match protocol {
            Protocol::Responses | Protocol::ChatCompletions => format!("{origin}/v1"),
            Protocol::Messages => origin,
        }
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate of the authority of a provider behind TLS, as PEM.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        self.shared.tls.as_ref().map(|tls| tls.pem())
    }

    /// What a provider behind TLS shows from the next connection on.
    pub fn show(&self, shows: Shows) {
        self.shared.tls.iter().for_each(|tls| tls.show(shows));
    }

    /// How many connections with TLS there were so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.tls.as_ref().map_or(0, |tls| tls.connections())
    }

    /// Ends the connections of a provider behind TLS, those with an answer under way once it is sent, and waits for it.
    ///
    /// # Errors
    /// When one is open after 30 s.
    pub async fn hang_up(&self) -> anyhow::Result<()> {
        let Some(tls) = &self.shared.tls else { return Ok(()) };
        time::timeout(WAIT, tls.hang_up()).await.context("connections of the provider do not end")
    }

    /// Adds a step at the end of the queue.
    pub fn push(&self, step: Step) {
        self.shared.push([step]);
    }

    /// Adds the steps of this text at the end of the queue.
    ///
    /// # Errors
    /// When the text is no list of steps.
    pub fn script(&self, text: &str) -> anyhow::Result<()> {
        self.shared.push(steps(text)?);
        Ok(())
    }

    /// Opens a gate, for good.
    pub fn open_gate(&self, gate: &str) {
        self.shared.signals.open(gate);
    }

    /// Waits until a script has reached a mark.
    ///
    /// # Errors
    /// When it is not reached within 30 s.
    pub async fn wait_for_mark(&self, mark: &str) -> anyhow::Result<()> {
        let marked = self.shared.signals.marked(mark);
        time::timeout(WAIT, marked).await.with_context(|| format!("the provider did not reach the mark {mark:?}"))
    }

    /// All requests so far, in the order in which they came.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.record.all()
    }

    /// The requests for a response of the model.
    #[must_use]
    pub fn model_requests(&self) -> Vec<Recorded> {
        self.requests().into_iter().filter(Recorded::asks_the_model).collect()
    }

    /// Waits until the requests satisfy a condition, and gives them.
    ///
    /// # Errors
    /// When they do not within 30 s.
    pub async fn wait_for(&self, condition: impl Fn(&[Recorded]) -> bool) -> anyhow::Result<Vec<Recorded>> {
        let mut changes = self.shared.record.changes();
        let wait = async {
            loop {
                changes.mark_unchanged();
                let requests = self.requests();
                if condition(&requests) {
                    return requests;
                }
                // The sender is ours, so the wait cannot fail.
                _ = changes.changed().await;
            }
        };
        time::timeout(WAIT, wait).await.with_context(|| format!("the provider saw only {:?}", self.requests()))
    }

    /// Forgets requests, steps, gates and marks. Answers under way go on.
    pub fn reset(&self) {
        self.shared.reset();
    }

    /// Ends all connections and waits for their tasks.
    pub async fn stop(self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    fn push(&self, steps: impl IntoIterator<Item = Step>) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).extend(steps);
    }

    /// Takes the first step that matches a request, or leaves it where it answers several requests. A request that only
    /// searches the web is one more behind the scenes: it takes no step that does not ask for it.
    fn next_step(&self, request: &Request, body: &str) -> Option<Step> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = request.newest();
        let fits = |step: &Step| {
            let text = step.matches.as_ref();
            let after = match step.after {
                None => true,
                Some(After::User) => matches!(newest, Newest::User(_)),
                Some(After::Outputs) => matches!(newest, Newest::Outputs(_)),
            };
            after && text.map_or(!request.searches, |text| body.contains(text))
        };
        let place = queue.iter().position(fits)?;
        let step = queue.get_mut(place)?;
        if step.always {
            return Some(step.clone());
        }
        match step.times.unwrap_or(1) {
            0 | 1 => queue.remove(place),
            times => {
                step.times = Some(times - 1);
                Some(step.clone())
            }
        }
    }

    fn reset(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.record.clear();
        self.signals.clear();
    }
}

#[cfg(test)]
mod tests;
