//! What must survive `kill -9`: assignments, Executors, Turns, calls, results, inputs, native ids and process marks (R-DUR-1).
//!
//! One SQLite file, one connection, one thread that owns it. Operations that wait together are committed together, so
//! that many Sessions share one flush of the disk. An operation is on disk when its method returns. The journal
//! decides nothing about a Turn or a call, reads no clock, and never decodes the bytes that it is given to keep.

mod calls;
mod enrollments;
mod error;
mod executors;
#[cfg(failpoints)]
mod failpoint;
mod inputs;
mod meta;
mod place;
mod records;
mod retention;
mod schema;
mod sessions;
mod turns;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use rusqlite::Connection;
use tokio::sync::{mpsc, watch};

pub(crate) use self::{
    enrollments::{Enrolled, Enrollments, Renewed, Standing},
    error::Error,
    records::{
        CallRecord, EndRecord, ExecutorRecord, HistoryRecord, InputRecord, LastTurn, NewCall, NewTurn, Placement,
        ResultRecord, SessionRecord, SessionRow, StoredResult, TurnRecord, TurnRow,
    },
    retention::{EndedEvents, SessionName},
    turns::RESERVED,
};

/// What every operation of the journal answers with.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Operations that may wait for the writer. A Session's owner task has one operation under way, so this is far more
/// than are ever wanted; a caller that finds it full waits for its place.
const WAITING: usize = 1024;

/// The front of the journal. Clones share the connection.
///
/// An operation that has begun is carried out even when the future that asked for it is dropped.
#[derive(Clone)]
pub(crate) struct Journal {
    shared: Arc<Shared>,
}

struct Shared {
    state_id: String,
    operations: mpsc::Sender<writer::Message>,
    /// Ends (its sender is dropped) once the connection is closed.
    ended: watch::Receiver<()>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    #[cfg(test)]
    commits: Arc<std::sync::atomic::AtomicU64>,
}

impl Journal {
    /// Opens the journal at `path` or makes it, brings its schema up to date and locks the file for this process.
    /// Blocks; it is meant for the start of the daemon. The folder must exist.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] when another process has the file open, [`Error::NewerSchema`] when a later version of the
    /// daemon wrote it, [`Error::Corrupt`] when it is damaged or no journal, [`Error::Open`] for everything else.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, &schema::BRIDGE)
    }

    fn open_as(path: &Path, schema: &schema::Schema) -> Result<Self> {
        let (connection, state_id) = schema::open(path, schema)?;
        let place = place::Place::of(path);
        let place = place.map_err(|source| Error::Open { path: path.to_owned(), source: Arc::new(source) })?;
        let (operations, waiting) = mpsc::channel(WAITING);
        let (ends, ended) = watch::channel(());
        let commits = Arc::default();
        let writer = writer::Writer::new(connection, place, Arc::clone(&commits));
        let thread = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || {
                writer.run(waiting);
                drop(ends);
            })
            .map_err(|source| Error::Open { path: path.to_owned(), source: Arc::new(source) })?;
        Ok(Self {
            shared: Arc::new(Shared {
                state_id,
                operations,
                ended,
                thread: Mutex::new(Some(thread)),
                #[cfg(test)]
                commits,
            }),
        })
    }

    /// A uuid that was made when this journal was, and that it keeps for good.
    pub(crate) fn state_id(&self) -> &str {
        &self.shared.state_id
    }

    /// Carries out what already waits, closes the file and ends the thread. Operations that other clones ask for
    /// afterwards answer [`Error::Closed`].
    pub(crate) async fn close(self) {
        // A send that fails says that the writer is gone already.
        drop(self.shared.operations.send(writer::Message::Close).await);
        // An error is what is waited for: the writer has dropped its end, after the connection.
        let _ended = self.shared.ended.clone().changed().await;
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the journal's thread ended by a panic");
        }
    }

    /// Hands `work` to the writer and waits until it is on disk.
    async fn run<T, F>(&self, work: F) -> Result<T>
    where
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        #[cfg(failpoints)]
        let (work, point) = failpoint::guarded(work);
        let (operation, answer) = writer::operation(work);
        self.shared.operations.send(operation).await.map_err(|_| Error::Closed)?;
        let answer = answer.await.map_err(|_| Error::Closed)?;
        #[cfg(failpoints)]
        if answer.is_ok() {
            failpoint::passed(&point);
        }
        answer
    }

    /// How many transactions were committed since the opening.
    #[cfg(test)]
    fn commits(&self) -> u64 {
        self.shared.commits.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("state_id", &self.shared.state_id).finish_non_exhaustive()
    }
}
