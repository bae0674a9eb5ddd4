//! The writing end: it belongs to the Session's task.

use std::{
    fs::{File, OpenOptions, Permissions},
    io, mem,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
};

#[cfg(failpoints)]
use adapters::failpoint::{self, When};
use bytes::Bytes;

use super::{
    Front, Limits,
    file::{self, HEAD_BYTES, HEADER_BYTES, Kind, PART_BYTES, Scan},
    tail::{Mark, Place, Shared},
};

/// Content up to this size is copied into one buffer with its neighbours; a larger one is written from where it is.
const COPY_BYTES: usize = 256 << 10;

/// The mode of a Turn's file.
const MODE: u32 = 0o600;

/// Its mode while observers may have seen events that it does not have: a change of it needs no room on a disk that is full.
const MODE_LACKING: u32 = 0o700;

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
    /// An encoded event which says that all events since the one before, up to and with its own sequence, are omitted.
    Omission {
        /// Its sequence, the last of the range.
        last: u64,
        /// The event as it will be given out.
        bytes: Bytes,
    },
}

impl Record {
    /// The sequence that it bears when it stands behind the event `before`.
    fn sequence(&self, before: u64) -> u64 {
        match self {
            Self::Event { .. } | Self::Payload { .. } => before + 1,
            Self::Omission { last, .. } => *last,
        }
    }

    fn is_event(&self) -> bool {
        !matches!(self, Self::Payload { .. })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Event { bytes } | Self::Payload { bytes, .. } | Self::Omission { bytes, .. } => bytes.len(),
        }
    }
}

/// Where a batch is once it was appended.
#[derive(Debug)]
pub(crate) enum Kept {
    /// In the file.
    File,
    /// In memory, behind what the file did not take before.
    Memory,
    /// In memory, since the file refused it.
    Refused(io::Error),
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
    /// Of the last event that was appended.
    last_sequence: u64,
    /// Of the last event that the file has.
    stored_sequence: u64,
    /// What the file did not take, in order.
    unwritten: Vec<Record>,
    unwritten_bytes: usize,
    buffer: Vec<u8>,
}

/// A log that was found.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The log; it goes on after the last event found, all of which count as published.
    pub(crate) log: Log,
    /// Bytes at the end that were no whole record and were cut off.
    pub(crate) cut_bytes: u64,
    /// Whether the file did not take all events when the earlier process ended.
    pub(crate) is_lacking: bool,
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
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(path)?;
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
        let meta = file.metadata()?;
        let (found, is_lacking) = (meta.len(), meta.permissions().mode() & 0o777 == MODE_LACKING);
        if !file::has_header(&file)? {
            file.set_len(0)?;
            file.write_all_at(&file::header(), 0)?;
            return Ok(Recovered { log: Self::over(path, file, HEADER_BYTES, limits)?, cut_bytes: found, is_lacking });
        }
        // What is appended from now on may be of kinds that an older version does not know.
        file.write_all_at(&file::header(), 0)?;
        let mut log = Self::over(path, file, HEADER_BYTES, limits)?;
        let mut scan = Scan::new(&log.file, HEADER_BYTES)?;
        while let Some(head) = scan.next()? {
            // A payload counts with its event: both bear the sequence after that of the event before. An omission has a range.
            let next = log.last_sequence + 1;
            let fits = match head.kind {
                Kind::Event | Kind::Payload => head.sequence == next,
                Kind::Omission => head.sequence >= next,
            };
            let Some(content) = scan.content(&head)?.filter(|_| fits) else { break };
            if head.kind.is_event() {
                log.shared.note(Place { sequence: head.sequence, offset: head.offset });
                log.length = head.end;
                log.last_sequence = head.sequence;
                each(head.sequence, content);
            }
        }
        log.file.set_len(log.length)?;
        log.stored_sequence = log.last_sequence;
        log.shared.begin_behind(log.last_sequence);
        log.publish();
        let cut_bytes = found.saturating_sub(log.length);
        Ok(Recovered { log, cut_bytes, is_lacking })
    }

    fn over(path: &Path, file: File, length: u64, limits: Limits) -> io::Result<Self> {
        let readable = Some((path.to_owned(), file.try_clone()?));
        let shared = Arc::new(Shared::new(readable, limits, None, Mark::default()));
        Ok(Self {
            shared,
            file,
            length,
            is_ragged: false,
            last_sequence: 0,
            stored_sequence: 0,
            unwritten: Vec::new(),
            unwritten_bytes: 0,
            buffer: Vec::new(),
        })
    }

    /// The sequence of the next event: 1, 2, 3, … (R-EVT-1).
    #[cfg(test)]
    pub(crate) fn next_sequence(&self) -> u64 {
        self.last_sequence + 1
    }

    /// The sequence of the last event that was appended; 0 before the first.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// The sequence of the last event that the file has; 0 before the first.
    pub(crate) fn stored_sequence(&self) -> u64 {
        self.stored_sequence
    }

    /// Bytes that are held in memory since the file did not take them.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.unwritten_bytes
    }

    /// Bytes of the file, with those that it has not taken yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.length + self.unwritten_bytes as u64
    }

    /// The front that observers are opened from.
    pub(crate) fn reader(&self) -> Front {
        Front::over(Arc::clone(&self.shared))
    }

    /// Takes a batch. It is given out by the next [`Log::publish`]. What the system does not write, a full disk among the reasons, is
    /// held in memory; it is written by [`Log::store`], and until then nothing else is tried.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, where nothing is taken: when the batch ends with a payload, whose event is then missing, when an omission does
    /// not go on from the event before it, and after [`Log::end`]: nothing follows the terminal (R-EVT-2).
    pub(crate) fn append(&mut self, records: &[Record]) -> io::Result<Kept> {
        self.check(records)?;
        let kept = if self.unwritten.is_empty() {
            match self.put(records) {
                Ok(()) => Kept::File,
                Err(error) => Kept::Refused(error),
            }
        } else {
            Kept::Memory
        };
        if !matches!(kept, Kept::File) {
            if self.unwritten.is_empty() {
                // ORDER: before they are given out. The journal is told too, but may lie on the same full disk (R-DUR-2).
                self.mark(MODE_LACKING);
            }
            self.hold(records);
        }
        Ok(kept)
    }

    /// Writes what is held in memory.
    ///
    /// # Errors
    ///
    /// What the system says; then all of it is still held.
    pub(crate) fn store(&mut self) -> io::Result<()> {
        let records = mem::take(&mut self.unwritten);
        let offset = self.length;
        match self.write_or_trim(&records) {
            Ok(end) => {
                self.place(&records, offset);
                self.length = end;
                self.unwritten_bytes = 0;
                self.stored_sequence = self.last_sequence;
                self.shared.stored(self.stored_sequence);
                self.mark(MODE);
                Ok(())
            }
            Err(error) => {
                self.unwritten = records;
                Err(error)
            }
        }
    }

    /// Notes in the file itself whether it lacks events.
    fn mark(&self, mode: u32) {
        if let Err(error) = self.file.set_permissions(Permissions::from_mode(mode)) {
            tracing::error!(%error, "whether a Turn's file lacks events could not be noted");
        }
    }

    fn check(&self, records: &[Record]) -> io::Result<()> {
        let invalid = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if records.last().is_some_and(|record| !record.is_event()) {
            return invalid("a payload without its event");
        }
        if self.shared.mark.borrow().is_ended {
            return invalid("an event after the terminal");
        }
        let mut last = self.last_sequence;
        for record in records {
            let sequence = record.sequence(last);
            if sequence <= last {
                return invalid("an omission of events that are there");
            }
            if record.is_event() {
                last = sequence;
            }
        }
        Ok(())
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
        self.reader().acknowledge(through);
    }

    /// Writes a batch and takes it over.
    fn put(&mut self, records: &[Record]) -> io::Result<()> {
        let offset = self.length;
        let end = self.write_or_trim(records)?;
        self.place(records, offset);
        self.length = end;
        for record in records {
            let sequence = record.sequence(self.last_sequence);
            if let Record::Event { bytes } | Record::Omission { bytes, .. } = record {
                self.last_sequence = sequence;
                self.shared.keep(sequence, bytes.clone(), sequence);
            }
        }
        self.stored_sequence = self.last_sequence;
        Ok(())
    }

    /// Holds a batch in memory that the file does not take.
    fn hold(&mut self, records: &[Record]) {
        for record in records {
            let sequence = record.sequence(self.last_sequence);
            match record {
                Record::Event { bytes } | Record::Omission { bytes, .. } => {
                    self.last_sequence = sequence;
                    self.shared.keep(sequence, bytes.clone(), self.stored_sequence);
                }
                Record::Payload { part, bytes } => self.shared.keep_part(sequence, *part, bytes.clone()),
            }
            self.unwritten_bytes += record.bytes();
            self.unwritten.push(record.clone());
        }
    }

    /// Notes where the events of a batch stand that is in the file from `offset` on.
    fn place(&self, records: &[Record], mut offset: u64) {
        let mut last = self.stored_sequence;
        for record in records {
            let sequence = record.sequence(last);
            if record.is_event() {
                self.shared.note(Place { sequence, offset });
                last = sequence;
            }
            let number = if record.is_event() { 0 } else { PART_BYTES };
            offset += (HEAD_BYTES + number + record.bytes()) as u64;
        }
    }

    fn write_or_trim(&mut self, records: &[Record]) -> io::Result<u64> {
        self.trim()?;
        self.write(records).inspect_err(|_| {
            self.is_ragged = true;
            // If this fails, it is tried again before the next write.
            let _trimmed = self.trim();
        })
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
        let mut last = self.stored_sequence;
        for record in records {
            let number;
            let sequence = record.sequence(last);
            let (kind, parts) = match record {
                Record::Omission { bytes, .. } => (Kind::Omission, [&[][..], bytes]),
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
            if kind.is_event() {
                last = sequence;
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

    /// Lets every later write succeed again.
    pub(super) fn allow_writes(&mut self, path: &Path) {
        self.file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.mark.send_modify(|mark| mark.is_closed = true);
    }
}
