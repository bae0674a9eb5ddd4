//! The reading end, as handlers hold it.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use bytes::Bytes;

use super::{
    Limits, Payload, Reader, file,
    tail::{FencedBy, Mark, Shared},
};

/// Opens readers of one Turn's events. Clones are cheap and share the log.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    shared: Arc<Shared>,
}

/// Finds a front again for as long as anybody has it or reads from it, so that a Turn that is over holds a file and memory for its observers
/// only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(Weak<Shared>);

impl Trace {
    /// Whether both find the same front.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// The front, while somebody has it.
    pub(crate) fn find(&self) -> Option<Front> {
        self.0.upgrade().map(Front::over)
    }
}

/// The last event of a Turn that ended, as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terminal {
    /// Its sequence, at least 1.
    pub(crate) sequence: u64,
    /// The encoded event.
    pub(crate) bytes: Bytes,
    /// From which sequence on the file never had the events, when it did not take them.
    pub(crate) unwritten: Option<u64>,
}

impl Front {
    pub(super) fn over(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The events of a Turn that ended, from its file. The terminal is not looked for there; and events before it that
    /// the file lacks (a power loss) are given as an omission, [`super::Why::Gone`].
    ///
    /// # Errors
    ///
    /// What the system says; `NotFound` when the file was deleted: then use [`Front::ended`]. `InvalidData` when it is
    /// no log or one of a later version.
    pub(crate) fn from_file(path: &Path, acknowledged: u64, terminal: Terminal, limits: Limits) -> io::Result<Self> {
        let file = File::open(path)?;
        file::has_header(&file)?;
        Ok(Self::sealed(Some((path.to_owned(), file)), acknowledged, terminal, limits))
    }

    /// What is left of a Turn that ended and whose file was deleted: its terminal.
    pub(crate) fn ended(acknowledged: u64, terminal: Terminal) -> Self {
        Self::sealed(None, acknowledged, terminal, Limits::default())
    }

    fn sealed(file: Option<(PathBuf, File)>, acknowledged: u64, terminal: Terminal, limits: Limits) -> Self {
        let Terminal { sequence, bytes, unwritten } = terminal;
        let mark = Mark {
            published: sequence,
            acknowledged: acknowledged.min(sequence),
            fence: 0,
            fenced_by: FencedBy::default(),
            is_ended: true,
            is_closed: true,
        };
        // The terminal must fit, whatever it takes.
        let limits = Limits { memory_bytes: usize::MAX, ..limits };
        let shared = Shared::new(file, limits, Some(unwritten.unwrap_or(u64::MAX)), mark);
        shared.begin_behind(sequence.saturating_sub(1));
        shared.keep(sequence, bytes, 0);
        Self { shared: Arc::new(shared) }
    }

    /// A reader of the events after sequence `after`, for a caller of this epoch. Events up to `after` never come, even
    /// when they are still to be written.
    pub(crate) fn open(&self, after: u64, epoch: u64) -> Reader {
        Reader::new(Arc::clone(&self.shared), after, epoch)
    }

    /// Ends the readers that were opened with an epoch below `epoch`, and tells them why (R-ASG-2).
    pub(crate) fn fence(&self, epoch: u64, by: FencedBy) {
        self.shared.mark.send_modify(|mark| {
            if epoch > mark.fence {
                (mark.fence, mark.fenced_by) = (epoch, by);
            }
        });
    }

    /// Says that Core has stored the events up to this sequence.
    pub(crate) fn acknowledge(&self, through: u64) {
        self.shared.mark.send_modify(|mark| mark.acknowledged = mark.acknowledged.max(through.min(mark.published)));
    }

    /// What finds this front again.
    pub(crate) fn trace(&self) -> Trace {
        Trace(Arc::downgrade(&self.shared))
    }

    /// A part of an event, for a caller of this epoch (R-API-7).
    pub(crate) fn payload(&self, sequence: u64, part: u16, epoch: u64) -> Payload {
        Payload::of(Arc::clone(&self.shared), sequence, part, epoch)
    }

    /// A part that is at hand, for a caller of this epoch.
    pub(crate) fn at_hand(&self, bytes: Bytes, epoch: u64) -> Payload {
        Payload::here(Arc::clone(&self.shared), bytes, epoch)
    }

    /// The sequence of the last event that was published; 0 before the first.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.shared.mark.borrow().published
    }

    /// The bytes of events that are held in memory.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.shared.newest_bytes()
    }
}
