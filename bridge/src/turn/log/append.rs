//! The writing end: it belongs to the Session's task.

use std::{
    fs::{File, OpenOptions},
    io, mem,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    sync::Arc,
};

#[cfg(failpoints)]
use adapters::failpoint::{self, When};
use bytes::Bytes;

use super::{
    Front, Limits,
    file::{self, HEAD_BYTES, HEADER_BYTES, Kind, Scan},
    tail::{Mark, Place, Shared},
};

/// Content up to this size is copied into one buffer with its neighbours; a larger one is written from where it is.
const COPY_BYTES: usize = 256 << 10;

/// One thing to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// An encoded event. It gets the next sequence.
    Event {
        /// The event as it will be given out.
        bytes: Bytes,
    },
    /// A part of the event that follows in the same batch, too large to stand in it (R-API-7).
    Payload {
        /// The number under which the event names it.
        part: u16,
        /// The part.
        bytes: Bytes,
    },
}

/// The log of one Turn, open for writing. Appending blocks for as long as the system needs to take the bytes into its
/// cache. A log that is dropped before [`Log::end`] ends its readers as lost.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    file: File,
    /// Up to where the file is good.
    length: u64,
    /// Whether there may be bytes behind `length`.
    is_ragged: bool,
    last_sequence: u64,
    buffer: Vec<u8>,
}

/// A log that was found.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The log; it goes on after the last event found, all of which count as published.
    pub(crate) log: Log,
    /// Bytes at the end that were no whole record and were cut off.
    pub(crate) cut_bytes: u64,
}

impl Log {
    /// Makes the log of a new Turn, readable by this user only.
    ///
    /// # Errors
    ///
    /// What the system says; `AlreadyExists` when there is a file.
    pub(crate) fn create(path: &Path, limits: Limits) -> io::Result<Self> {
        #[cfg(failpoints)]
        failpoint::pass("log.create", When::Before)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all_at(&file::header(), 0)?;
        #[cfg(failpoints)]
        failpoint::pass("log.create", When::After)?;
        Self::over(path, file, HEADER_BYTES, limits)
    }

    /// Opens the log that an earlier process left, cuts off a torn end, and shows `each` event in order.
    ///
    /// # Errors
    ///
    /// What the system says; `InvalidData` when the file is no log or one of a later version, which leaves it alone.
    pub(crate) fn recover(path: &Path, limits: Limits, mut each: impl FnMut(u64, Bytes)) -> io::Result<Recovered> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let found = file.metadata()?.len();
        if !file::has_header(&file)? {
            file.set_len(0)?;
            file.write_all_at(&file::header(), 0)?;
            return Ok(Recovered { log: Self::over(path, file, HEADER_BYTES, limits)?, cut_bytes: found });
        }
        let mut log = Self::over(path, file, HEADER_BYTES, limits)?;
        let mut scan = Scan::new(&log.file, HEADER_BYTES)?;
        while let Some(head) = scan.next()? {
            // A payload counts with its event: both bear the sequence after that of the event before.
            let Some(content) = scan.content(&head)?.filter(|_| head.sequence == log.last_sequence + 1) else { break };
            if head.kind == Kind::Event {
                log.shared.note(Place { sequence: head.sequence, offset: head.offset });
                log.length = head.end;
                log.last_sequence = head.sequence;
                each(head.sequence, content);
            }
        }
        log.file.set_len(log.length)?;
        log.publish();
        let cut_bytes = found.saturating_sub(log.length);
        Ok(Recovered { log, cut_bytes })
    }

    fn over(path: &Path, file: File, length: u64, limits: Limits) -> io::Result<Self> {
        let readable = Some((path.to_owned(), file.try_clone()?));
        let shared = Arc::new(Shared::new(readable, limits, false, Mark::default()));
        Ok(Self { shared, file, length, is_ragged: false, last_sequence: 0, buffer: Vec::new() })
    }

    /// The sequence of the next event: 1, 2, 3, … (R-EVT-1).
    pub(crate) fn next_sequence(&self) -> u64 {
        self.last_sequence + 1
    }

    /// The sequence of the last event that was appended; 0 before the first.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// The front that observers are opened from.
    pub(crate) fn reader(&self) -> Front {
        Front::over(Arc::clone(&self.shared))
    }

    /// Writes a batch. It is given out by the next [`Log::publish`].
    ///
    /// # Errors
    ///
    /// What the system says, a full disk among it: then nothing of the batch is in the log and the next append may
    /// succeed. `InvalidInput` when the batch ends with a payload, whose event is then missing, and after
    /// [`Log::end`]: nothing follows the terminal (R-EVT-2).
    pub(crate) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        if let Some(Record::Payload { .. }) = records.last() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a payload without its event"));
        }
        if self.shared.mark.borrow().is_ended {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an event after the terminal"));
        }
        self.trim()?;
        match self.write(records) {
            Ok(end) => {
                self.admit(records, end);
                Ok(())
            }
            Err(error) => {
                self.is_ragged = true;
                // If this fails, it is tried again before the next write.
                let _trimmed = self.trim();
                Err(error)
            }
        }
    }

    /// Gives out what was appended, and wakes the readers once.
    pub(crate) fn publish(&self) {
        let last = self.last_sequence;
        self.shared.mark.send_if_modified(|mark| mem::replace(&mut mark.published, last) != last);
    }

    /// Says that the last event that was published is the terminal: readers end once they have given it out.
    pub(crate) fn end(&mut self) {
        self.shared.mark.send_modify(|mark| mark.is_ended = true);
    }

    /// Says that Core has stored the events up to `through`: from now on they are given as an omission.
    pub(crate) fn acknowledge(&self, through: u64) {
        self.shared.mark.send_modify(|mark| mark.acknowledged = mark.acknowledged.max(through.min(mark.published)));
    }

    /// Cuts off what a failed write may have left. A record of it that outlived a later, shorter one would come back
    /// to life at the next opening.
    fn trim(&mut self) -> io::Result<()> {
        if self.is_ragged {
            self.file.set_len(self.length)?;
            self.is_ragged = false;
        }
        Ok(())
    }

    /// Writes the records behind the good part of the file, in one call unless one of them is large, and gives the
    /// new end.
    fn write(&mut self, records: &[Record]) -> io::Result<u64> {
        #[cfg(failpoints)]
        failpoint::pass("log.append", When::Before)?;
        let mut buffer = mem::take(&mut self.buffer);
        buffer.clear();
        let mut at = self.length;
        let mut sequence = self.next_sequence();
        for record in records {
            let number;
            let (kind, parts) = match record {
                Record::Event { bytes } => (Kind::Event, [&[][..], bytes]),
                Record::Payload { part, bytes } => {
                    number = part.to_le_bytes();
                    (Kind::Payload, [&number[..], bytes])
                }
            };
            let [number, content] = parts;
            buffer.extend_from_slice(&file::head(kind, sequence, &parts)?);
            buffer.extend_from_slice(number);
            if content.len() > COPY_BYTES {
                self.file.write_all_at(&buffer, at)?;
                self.file.write_all_at(content, at + buffer.len() as u64)?;
                at += (buffer.len() + content.len()) as u64;
                buffer.clear();
            } else {
                buffer.extend_from_slice(content);
            }
            if kind == Kind::Event {
                sequence += 1;
            }
        }
        #[cfg(failpoints)]
        {
            self.file.write_all_at(&buffer[..buffer.len() / 2], at)?;
            failpoint::pass("log.append", When::Within)?;
        }
        self.file.write_all_at(&buffer, at)?;
        #[cfg(failpoints)]
        failpoint::pass("log.append", When::After)?;
        at += buffer.len() as u64;
        if buffer.capacity() <= 2 * COPY_BYTES {
            self.buffer = buffer;
        }
        Ok(at)
    }

    /// Takes over a batch that is in the file.
    fn admit(&mut self, records: &[Record], end: u64) {
        let mut offset = self.length;
        for record in records {
            match record {
                Record::Event { bytes } => {
                    self.last_sequence += 1;
                    self.shared.note(Place { sequence: self.last_sequence, offset });
                    self.shared.keep(self.last_sequence, bytes.clone());
                    offset += (HEAD_BYTES + bytes.len()) as u64;
                }
                Record::Payload { part, bytes } => {
                    offset += (HEAD_BYTES + size_of_val(part) + bytes.len()) as u64;
                }
            }
        }
        debug_assert_eq!(offset, end, "the records' sizes add up");
        self.length = end;
    }
}

#[cfg(test)]
impl Log {
    /// Leaves the file as a write that failed after `records` does when the file could not be cut either.
    pub(super) fn fail_after(&mut self, records: &[Record]) {
        self.write(records).unwrap();
        self.is_ragged = true;
    }

    /// Lets every later write fail.
    pub(super) fn refuse_writes(&mut self, path: &Path) {
        self.file = File::open(path).unwrap();
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.mark.send_modify(|mark| mark.is_closed = true);
    }
}
