//! The events of one Turn: an append-only file, a tail of it in memory, and the observers that read both.
//!
//! The Session's task appends; what it published, any number of readers give out, each at its own pace and from where
//! it wants (R-EVT-1, R-EVT-8, R-EVT-11). Nothing here decodes an event or knows a clock, and no reader can hold up
//! the writer: the one lock is held to copy handles, never across I/O or an await.
//!
//! A write reaches the system before it is published, so that it outlives this process. It is not flushed to the disk:
//! after a power loss the file may be shorter than what observers saw. What the system does not take is held in memory
//! and given out from there, until the file takes it (R-DUR-4).

mod append;
mod file;
mod front;
mod payload;
mod reader;
mod tail;

#[cfg(test)]
mod tests;

use bytes::Bytes;

pub(crate) use self::{
    append::{Kept, Log, Record, Recovered},
    file::{let_go, put_aside},
    front::{Front, Terminal, Trace},
    payload::{Payload, Unread},
    reader::{Next, Omission, Reader, Why},
    tail::FencedBy,
};

/// Sizes of one log. The defaults are what the daemon uses; tests make them small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of the newest events that stay in memory.
    pub(crate) memory_bytes: usize,
    /// Bytes of events that a reader gives out at once, unless a single event has more.
    pub(crate) batch_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_bytes: 1 << 20, batch_bytes: 256 << 10 }
    }
}

/// What a message adds to each event that it carries, at most: a field's tag and its length.
const FRAMING_BYTES: usize = 8;

/// Events in one batch, at most: it bounds how long the lock is held for copying their handles.
const BATCH_EVENTS: usize = 1024;

/// Events that add up to no more than one message may hold (R-EVT-11).
#[derive(Debug)]
struct Batch {
    events: Vec<(u64, Bytes)>,
    bytes: usize,
    limit: usize,
}

impl Batch {
    fn new(limit: usize) -> Self {
        Self { events: Vec::new(), bytes: 0, limit }
    }

    /// Adds an event if there is room. An empty batch has room for any.
    fn offer(&mut self, sequence: u64, event: &Bytes) -> bool {
        let bytes = self.bytes + event.len() + FRAMING_BYTES;
        if !self.events.is_empty() && (bytes > self.limit || self.events.len() == BATCH_EVENTS) {
            return false;
        }
        self.bytes = bytes;
        self.events.push((sequence, event.clone()));
        true
    }
}
