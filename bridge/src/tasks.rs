//! Every background task of the daemon starts here, under a tracker that its owner waits for.

use std::future::Future;

use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// What a task is for. Reading this list tells what runs in the process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Serves the listeners. Its end is the end of the daemon.
    Server,
    /// Owns one Session. A panic ends that Session's task; its callers get `INTERNAL`.
    Session,
    /// Prepares one Executor and hands it to its Session.
    Preparation,
    /// Waits for the judgement of a final answer, and for no longer than that may take.
    Judgement,
    /// Carries out the daemon's drain. Its end is the answer of everybody who asked for it.
    Drain,
    /// Looks at what a Harness supports.
    Probe,
    /// Reads a Turn's events, or a large part of one, for one stream. It ends with its stream.
    Reader,
    /// Listens for Harnesses, serves one of their connections, or drives one to a model provider. It ends with its connection, or with the gateway.
    Gateway,
    /// Serves one connection of the relay, or one link. It ends with its connection, or with the relay.
    Relay,
    /// Carries out what a bridge or an operator asked of the relay, also when nobody waits for it any more.
    Enrollment,
    /// Keeps the certificate for the relay good.
    Renewal,
    /// Removes a Session's native home.
    Removal,
    /// Removes what is kept no longer.
    Retention,
}

/// Starts a task of a kind. It ends by itself or when its owner tells it to; the tracker's owner waits for it.
#[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
pub(crate) fn spawn<F>(tracker: &TaskTracker, kind: Kind, task: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    tokio::spawn(tracker.track_future(task.instrument(tracing::debug_span!("task", ?kind))))
}
