//! The thread that owns the connection. It takes what waits, carries it out as one transaction, and answers everyone
//! after the commit. An operation that fails is undone by itself; the others of its transaction stand.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{Error, Result, place::Place};

/// Operations in one transaction, at most: enough to share a flush, few enough that the first waits no longer than a
/// few milliseconds for the last.
const BATCH: usize = 256;

/// Commits between two checkpoints. A busy one writes some twenty pages of 4 KiB.
const CHECKPOINT_COMMITS: u64 = 128;

/// What the thread is asked for.
pub(super) enum Message {
    /// Carry this out.
    Operation(Box<dyn Step>),
    /// Carry out what waits, then end.
    Close,
}

/// One operation with its caller.
pub(super) trait Step: Send {
    /// Does the work inside the transaction and keeps its outcome.
    ///
    /// # Errors
    ///
    /// What the work failed with; the caller undoes what it did.
    fn perform(&mut self, connection: &Connection) -> Result<()>;

    /// Tells the caller, after the commit.
    fn answer(self: Box<Self>, committed: Result<()>);
}

/// An operation for [`Writer::run`], and where its answer will come.
pub(super) fn operation<T, F>(work: F) -> (Message, oneshot::Receiver<Result<T>>)
where
    F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    T: Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    (Message::Operation(Box::new(Operation { state: State::Waiting(work), reply })), answer)
}

struct Operation<T, F> {
    state: State<T, F>,
    reply: oneshot::Sender<Result<T>>,
}

enum State<T, F> {
    Waiting(F),
    /// Its transaction failed before its turn came.
    Skipped,
    Done(Result<T>),
}

impl<T, F> Step for Operation<T, F>
where
    F: FnOnce(&Connection) -> Result<T> + Send,
    T: Send,
{
    fn perform(&mut self, connection: &Connection) -> Result<()> {
        if let State::Waiting(work) = mem::replace(&mut self.state, State::Skipped) {
            let outcome = work(connection);
            let told = outcome.as_ref().map(drop).map_err(Clone::clone);
            self.state = State::Done(outcome);
            return told;
        }
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let answer = match (self.state, committed) {
            (State::Done(outcome), Ok(())) => outcome,
            (State::Done(Err(own)), Err(_)) => Err(own),
            (State::Done(Ok(_)) | State::Waiting(_) | State::Skipped, Err(shared)) => Err(shared),
            // A transaction is committed only after every operation of it was performed.
            (State::Waiting(_) | State::Skipped, Ok(())) => Err(Error::Closed),
        };
        // A caller that is gone wants no answer.
        drop(self.reply.send(answer));
    }
}

/// The connection and what it has done.
pub(super) struct Writer {
    connection: Connection,
    place: Place,
    commits: Arc<AtomicU64>,
    /// The number of commits at the last checkpoint.
    checkpointed: u64,
}

impl Writer {
    pub(super) fn new(connection: Connection, place: Place, commits: Arc<AtomicU64>) -> Self {
        Self { connection, place, commits, checkpointed: 0 }
    }

    /// Serves until it is told to close, or until nobody can ask any more.
    pub(super) fn run(mut self, mut waiting: mpsc::Receiver<Message>) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(first) = waiting.blocking_recv() {
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Operation(step) => batch.push(step),
                    // What was sent before stays readable; nothing new comes in.
                    Message::Close => waiting.close(),
                }
                next = if batch.len() < BATCH { waiting.try_recv().ok() } else { None };
            }
            self.commit(&mut batch);
            self.checkpoint();
        }
        // Closing writes the log back into the file and removes it.
        if let Err((_, error)) = self.connection.close() {
            tracing::error!(%error, "could not close the journal; it will recover at the next opening");
        }
    }

    fn commit(&self, batch: &mut Vec<Box<dyn Step>>) {
        if batch.is_empty() {
            return;
        }
        let outcome = self.transact(batch);
        match &outcome {
            Ok(()) => {
                self.commits.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::error!(%error, operations = batch.len(), "could not commit to the journal");
                self.roll_back();
            }
        }
        for step in batch.drain(..) {
            step.answer(outcome.clone());
        }
    }

    /// Writes the log back into the file now and then: after the answers, so that no caller waits for it inside of a
    /// commit.
    fn checkpoint(&mut self) {
        let commits = self.commits.load(Ordering::Relaxed);
        if commits - self.checkpointed < CHECKPOINT_COMMITS {
            return;
        }
        self.checkpointed = commits;
        if let Err(error) = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(())) {
            tracing::warn!(%error, "could not write the journal's log back; it is tried again");
        }
    }

    fn transact(&self, batch: &mut [Box<dyn Step>]) -> Result<()> {
        self.roll_back();
        self.execute("BEGIN")?;
        for step in batch {
            self.execute("SAVEPOINT operation")?;
            if let Err(error) = step.perform(&self.connection) {
                // Some failures (a full disk among them) make SQLite end the whole transaction by itself: then
                // nothing of the operations before this one is left, and the next would stand outside of any.
                if self.connection.is_autocommit() {
                    return Err(error);
                }
                self.execute("ROLLBACK TO operation")?;
            }
            self.execute("RELEASE operation")?;
        }
        self.place.check()?;
        self.execute("COMMIT")
    }

    /// Leaves no transaction open.
    fn roll_back(&self) {
        if !self.connection.is_autocommit()
            && let Err(error) = self.execute("ROLLBACK")
        {
            tracing::error!(%error, "could not roll back in the journal");
        }
    }

    fn execute(&self, statement: &str) -> Result<()> {
        self.connection.prepare_cached(statement)?.execute(())?;
        Ok(())
    }
}
