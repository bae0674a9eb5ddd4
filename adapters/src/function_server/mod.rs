//! Functions of the application for a Harness that can only take them from an MCP server: a server of the bridge's own on loopback, one for each Executor, with a
//! bearer of its own. It knows the functions and who asks for them, and nothing of Turns.

use std::{
    collections::HashMap,
    io,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    harness::{FunctionTool, OutputPart},
    native::loopback::{self, Loopback},
};
use door::Door;
use served::Served;
use sessions::Sessions;

mod door;
mod served;
mod sessions;
#[cfg(test)]
mod tests;

/// LIMIT: happenings that wait for the owner; the requests behind them wait as well, and nothing is lost.
const HAPPENINGS: usize = 64;

/// A server that listens. Dropping it ends it, and whoever still asks gets no answer.
#[derive(Debug)]
pub(crate) struct FunctionServer {
    address: Address,
    open: Arc<Open>,
    sessions: Sessions,
    _stop: DropGuard,
}

/// Names a request for a function among those of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub(crate) u64);

/// What happens at a server, in order.
#[derive(Debug)]
pub(crate) enum Happening {
    /// The functions were listed.
    Listed,
    /// A function is asked for; it waits for [`FunctionServer::answer`], as long as it takes (R-FN-8).
    Asked {
        /// Names the request.
        request: RequestId,
        /// Name of the function: one of those that are declared.
        name: String,
        /// Arguments as JSON text, as the SDK read and wrote them: keys are sorted, of equal keys the last one counts, and a number that is no 64-bit integer is a
        /// float.
        arguments: String,
    },
    /// The answer has been handed to the connection.
    Written {
        /// The request.
        request: RequestId,
    },
    /// Who asked has given up.
    GivenUp {
        /// The request.
        request: RequestId,
        /// How that is known.
        how: Gone,
    },
}

/// How it is known that who asked has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// By `notifications/cancelled`, with the reason in it.
    Told(Option<String>),
    /// The request was ended; its client may be gone.
    Dropped,
}

/// How a Harness comes to a server.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// `http://127.0.0.1:PORT/PATH`, of no use without the bearer.
    pub(crate) url: String,
    /// What every request carries as `Authorization: Bearer`.
    pub(crate) bearer: SecretString,
}

/// What a function returned, as it is rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Whether it succeeded: a failure is a result with `isError`.
    pub(crate) success: bool,
    /// Its parts in order.
    pub(crate) parts: Vec<OutputPart>,
}

impl FunctionServer {
    /// Begins to listen, on a port that the system picks. Everything that it does is done by `tasks`.
    pub(crate) async fn start(
        functions: &[FunctionTool],
        tasks: &TaskTracker,
    ) -> io::Result<(Self, mpsc::Receiver<Happening>)> {
        let (path, bearer) = (loopback::unguessable()?, loopback::unguessable()?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = Address {
            url: format!("http://{}/{}", listener.local_addr()?, path.expose_secret()),
            bearer: bearer.clone(),
        };
        let (happenings, happened) = mpsc::channel(HAPPENINGS);
        let (open, stop) = (Arc::new(Open::default()), CancellationToken::new());
        let sessions = Sessions::default();
        let served =
            Served::new(functions, sessions.clone(), happenings, Arc::clone(&open), tasks.clone(), stop.clone())?;
        let door = Door::new(path, bearer, served, sessions.clone(), stop.clone());
        tasks.spawn(door::listen(
            Loopback::new(listener, door::CONNECTIONS),
            Arc::new(door),
            tasks.clone(),
            stop.clone(),
        ));
        Ok((Self { address, open, sessions, _stop: stop.drop_guard() }, happened))
    }

    /// Whether a client that is there has listed the functions. One that has left lists them again when it comes back.
    pub(crate) fn is_listed(&self) -> bool {
        self.sessions.are_listed()
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Answers a request. One that is not open, because it was answered or has given up, is left as it is.
    pub(crate) fn answer(&self, request: RequestId, answer: Answer) {
        self.open.answer(request, answer);
    }

    /// Answers every request that is open with a failure of this text.
    pub(crate) fn close_open(&self, text: &str) {
        for waiting in self.open.take_all() {
            // Who has given up meanwhile needs none.
            _ = waiting.send(Answer { success: false, parts: vec![OutputPart::Text(text.to_owned())] });
        }
    }
}

/// The requests that wait for an answer.
#[derive(Debug, Default)]
struct Open(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    requests: u64,
    answers: HashMap<RequestId, oneshot::Sender<Answer>>,
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self) -> (RequestId, oneshot::Receiver<Answer>) {
        let (give, answer) = oneshot::channel();
        let mut waiting = self.lock();
        waiting.requests += 1;
        let request = RequestId(waiting.requests);
        waiting.answers.insert(request, give);
        (request, answer)
    }

    fn remove(&self, request: RequestId) {
        self.lock().answers.remove(&request);
    }

    fn answer(&self, request: RequestId, answer: Answer) {
        let waiting = self.lock().answers.remove(&request);
        if let Some(waiting) = waiting {
            // Who has given up meanwhile needs none.
            _ = waiting.send(answer);
        }
    }

    fn take_all(&self) -> impl Iterator<Item = oneshot::Sender<Answer>> + use<> {
        std::mem::take(&mut self.lock().answers).into_values()
    }
}
