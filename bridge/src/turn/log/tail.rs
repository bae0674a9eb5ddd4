//! What the writer and the readers of one log share.

use std::{
    collections::VecDeque,
    fs::File,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::sync::watch;

use super::{Batch, Limits, file::HEADER_BYTES};

/// Bytes of the file between two entries of the index, at the least: what a reader that joins has to read in vain, at
/// the most. The index of a file of 1 GiB then takes 256 KiB.
const INDEX_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Shared {
    /// Absent when the file was deleted.
    pub(super) file: Option<(PathBuf, File)>,
    pub(super) limits: Limits,
    /// Set for the file of a Turn that ended earlier: what is missing in it is gone for good, while in a file that this
    /// process writes it is a failure. From this sequence on, because the storage did not take it.
    pub(super) sealed: Option<u64>,
    tail: Mutex<Tail>,
    pub(super) mark: watch::Sender<Mark>,
}

/// What ends the readers of lower epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FencedBy {
    /// A higher epoch of the same assignment.
    #[default]
    TakeOver,
    /// The end of the assignment.
    Release,
}

/// What readers wait for a change of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The last sequence that may be given out.
    pub(super) published: u64,
    /// Up to which sequence Core has stored the events.
    pub(super) acknowledged: u64,
    /// Readers of a lower epoch end.
    pub(super) fence: u64,
    /// Why they do.
    pub(super) fenced_by: FencedBy,
    /// The last published event is the Turn's terminal.
    pub(super) is_ended: bool,
    /// Nothing more will be published.
    pub(super) is_closed: bool,
}

/// The newest events, and where older ones are found.
#[derive(Debug)]
struct Tail {
    newest: VecDeque<(u64, Bytes)>,
    newest_bytes: usize,
    /// Up to this sequence events are in the file only; all behind it are in memory.
    file_only: u64,
    /// Parts of events that the file has not taken: sequence, number, bytes.
    parts: Vec<(u64, u16, Bytes)>,
    index: Vec<Place>,
}

/// Where an event stands, or where to begin looking for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The first event that is found at or after `offset`.
    pub(super) sequence: u64,
    pub(super) offset: u64,
}

/// Where the events after a sequence are.
#[derive(Debug)]
pub(super) enum Found {
    /// Here they are.
    Memory(Batch),
    /// To be read from the file from this place, up to and with `last`.
    File { from: Place, last: u64 },
}

impl Shared {
    pub(super) fn new(file: Option<(PathBuf, File)>, limits: Limits, sealed: Option<u64>, mark: Mark) -> Self {
        let index = vec![Place { sequence: 1, offset: HEADER_BYTES }];
        let tail = Tail { newest: VecDeque::new(), newest_bytes: 0, file_only: 0, parts: Vec::new(), index };
        Self { file, limits, sealed, tail: Mutex::new(tail), mark: watch::Sender::new(mark) }
    }

    fn lock(&self) -> MutexGuard<'_, Tail> {
        // The tail is whole between any two statements that change it, so a panic elsewhere does not spoil it.
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where an event stands in the file.
    pub(super) fn note(&self, place: Place) {
        let index = &mut self.lock().index;
        if index.last().is_none_or(|last| place.offset >= last.offset + INDEX_BYTES) {
            index.push(place);
        }
    }

    /// Says that the events up to a sequence are found in the file and nowhere else.
    pub(super) fn begin_behind(&self, sequence: u64) {
        self.lock().file_only = sequence;
    }

    /// Adds an event to the newest, and lets go of the oldest of them that are over the bound. What the file does not have is not let go.
    pub(super) fn keep(&self, sequence: u64, event: Bytes, stored: u64) {
        let mut tail = self.lock();
        tail.newest_bytes += cost(&event);
        tail.newest.push_back((sequence, event));
        tail.let_go(self.limits.memory_bytes, stored);
    }

    /// Adds a part of an event that the file did not take.
    pub(super) fn keep_part(&self, sequence: u64, part: u16, bytes: Bytes) {
        self.lock().parts.push((sequence, part, bytes));
    }

    /// Says that the file has taken the events up to a sequence.
    pub(super) fn stored(&self, stored: u64) {
        let mut tail = self.lock();
        tail.parts.clear();
        tail.let_go(self.limits.memory_bytes, stored);
    }

    /// A part of an event that the file has not taken.
    pub(super) fn part(&self, sequence: u64, part: u16) -> Option<Bytes> {
        let tail = self.lock();
        tail.parts.iter().find(|(at, number, _)| (*at, *number) == (sequence, part)).map(|(.., bytes)| bytes.clone())
    }

    /// Where to begin looking for the parts of an event: they stand before it.
    pub(super) fn before(&self, sequence: u64) -> Place {
        let tail = self.lock();
        let after = tail.index.partition_point(|place| place.sequence < sequence);
        tail.index.get(after.saturating_sub(1)).copied().unwrap_or(Place { sequence: 1, offset: HEADER_BYTES })
    }

    /// Events from sequence `from` to `published`; there must be one. A reader tells the place that it knows.
    pub(super) fn find(&self, from: u64, published: u64, known: Option<Place>) -> Found {
        let tail = self.lock();
        let start = tail.newest.partition_point(|(sequence, _)| *sequence < from);
        match tail.file_only {
            file_only if file_only < from => {
                let mut batch = Batch::new(self.limits.batch_bytes);
                for (sequence, event) in tail.newest.range(start..) {
                    if *sequence > published || !batch.offer(*sequence, event) {
                        break;
                    }
                }
                Found::Memory(batch)
            }
            file_only => {
                let last = published.min(file_only);
                let after = tail.index.partition_point(|place| place.sequence <= from);
                let indexed = tail.index.get(after.saturating_sub(1)).copied();
                let from = [indexed, known.filter(|place| place.sequence <= from)]
                    .into_iter()
                    .flatten()
                    .max_by_key(|place| place.offset)
                    .unwrap_or(Place { sequence: 1, offset: HEADER_BYTES });
                Found::File { from, last }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn newest_bytes(&self) -> usize {
        self.lock().newest_bytes
    }
}

impl Tail {
    fn let_go(&mut self, bound: usize, stored: u64) {
        while self.newest_bytes > bound
            && self.newest.front().is_some_and(|(sequence, _)| *sequence <= stored)
            && let Some((sequence, oldest)) = self.newest.pop_front()
        {
            self.newest_bytes -= cost(&oldest);
            self.file_only = sequence;
        }
    }
}

/// What an event takes in memory.
fn cost(event: &Bytes) -> usize {
    event.len() + size_of::<(u64, Bytes)>()
}
