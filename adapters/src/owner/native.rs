//! What an owner asks of the side that speaks with one kind of Harness.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use bytes::Bytes;
use tokio::{process::ChildStdout, sync::mpsc, time::Instant};
use tokio_util::task::TaskTracker;

use super::{Manner, Owner};
use crate::{
    cleaner::Cleaner,
    harness::{FunctionResult, Order, Proof, ProvedInputs, Report, Timing},
    native::{lines::LineReader, lock::Lock, process::Control, rpc::Writer},
};

/// The side of an owner that speaks with one kind of Harness: it knows its lines and keeps what they tell.
pub(crate) trait Native: Sized + Send + 'static {
    /// Helper programs of the Harness, as the kernel has their names (15 bytes): they stay between Turns.
    const HELPERS: &'static [&'static str];

    /// What comes to it on another way than in a line of the process.
    type Beside: Send;

    /// What differs in how a Turn runs.
    fn manner(&self) -> Manner;
    /// Waits for the next thing that comes on another way; for ever where there is none. Cancel safe.
    fn beside(&mut self) -> impl Future<Output = Self::Beside> + Send;
    /// It came.
    fn came(owner: &mut Owner<Self>, what: Self::Beside) -> impl Future<Output = ()> + Send;
    /// A Turn begins.
    fn begin(&mut self);
    /// The Turn is settled: what was asked for it needs no answer any more.
    fn settled(&mut self);
    /// History shows that an input was read of which the process did not live to tell.
    fn read_more(&mut self);
    /// Writes the input of the Turn.
    fn submit(owner: &mut Owner<Self>);
    /// Writes an interrupt of the native turn.
    fn interrupt(owner: &mut Owner<Self>, native: &str);
    /// Has commands ended that an interrupt leaves running.
    fn clean(owner: &mut Owner<Self>);
    /// Writes the next input that was added, where there is one and the Harness can take it.
    fn write_input(owner: &mut Owner<Self>);
    /// The lines of a result. The first one tells that the result was written; where there is none, it goes to the Harness on another way, which tells that.
    fn answer(&mut self, call_id: &str, result: &FunctionResult) -> Vec<Bytes>;
    /// The result of a call was written to the end.
    fn answer_written(&mut self, call_id: &str) -> Option<Report>;
    /// Asks how the Turn stands.
    fn ask(owner: &mut Owner<Self>);
    /// When it wants to be woken.
    fn next_due(&self) -> Option<Instant>;
    /// That moment may have come.
    fn due(owner: &mut Owner<Self>, now: Instant) -> impl Future<Output = ()> + Send;
    /// A line was read.
    fn message(owner: &mut Owner<Self>, line: &[u8]) -> impl Future<Output = ()> + Send;
    /// What native history has of the inputs of a native turn; the process is gone.
    fn inputs_read(&self, native: &str) -> impl Future<Output = Option<ProvedInputs>> + Send;
    /// How the native turn ended by native history; the process is gone. A history that lacks an input that was `shown` as read is older than its end.
    fn ending(&self, native: &str, shown: &[String], cleaner: &Cleaner) -> impl Future<Output = Option<Proof>> + Send;
    /// Reports what the process did not live to tell.
    fn missed(&mut self, proof: Proof, out: &mut Vec<Report>);
}

/// What an owner is made of.
pub(crate) struct Parts<N> {
    pub(crate) native: N,
    pub(crate) timing: Timing,
    pub(crate) writer: Writer,
    pub(crate) writers: TaskTracker,
    pub(crate) lines: LineReader<ChildStdout>,
    pub(crate) control: Control,
    pub(crate) cleaner: Cleaner,
    /// Held as long as the process may write to the history.
    pub(crate) lock: Lock,
    /// The folder of the program and its helpers.
    pub(crate) package: PathBuf,
    /// Labels of the declared MCP servers that are processes.
    pub(crate) servers: Arc<BTreeSet<String>>,
    pub(crate) orders: mpsc::Receiver<Order>,
    pub(crate) reports: mpsc::Sender<Report>,
}

/// Lines that were read and led to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Skipped {
    /// Not JSON, not UTF-8, or not what the method needs.
    pub(crate) malformed: u64,
    /// Of a kind that the adapter does not know.
    pub(crate) unknown: u64,
    /// Of another conversation.
    pub(crate) foreign: u64,
    /// Of a native turn that is over, or that does not fit the state (R-EVT-6).
    pub(crate) late: u64,
}
