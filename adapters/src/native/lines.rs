//! Lines of a native process, as bytes: bounded, reassembled before anything is decoded, whatever the pieces are that
//! they arrive in (R-EVT-7, R-EVT-12). It knows nothing of JSON.

use std::{fmt, io, mem, ops::Deref};

use bytes::{Buf as _, Bytes, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _};

pub use self::spool::{Room, Spooling};
use self::spool::{Spool, Taken};

mod spool;

/// The room for one read. One call gives some dozens of lines; an idle Session does not hold more than this.
const CHUNK: usize = 32 << 10;
/// A buffer that a large line has blown up is given back above this size.
const KEEP: usize = 1 << 20;

/// Gives the lines of `R` one by one.
pub struct LineReader<R> {
    reader: R,
    limit: usize,
    buffer: BytesMut,
    /// How much of the buffer is known to hold no newline.
    searched: usize,
    /// The buffer's allocation has grown above [`KEEP`], whatever part of it the buffer shows now.
    is_large: bool,
    state: State,
    spooling: Option<Spooling>,
    /// The long line that is being read, or that waits to be read back.
    spool: Option<Spool>,
    /// Long lines that nobody reads.
    passed_over: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    /// The line was too long and was said to be; what is left of it is dropped.
    Skipping,
    Ended,
}

/// One line without its end. Cheap to clone; it holds on to the read buffer, so copy what is to be kept for long.
#[derive(Clone, Debug)]
pub struct Line {
    bytes: Bytes,
    /// What a long line takes of the room for such lines.
    _room: Option<Taken>,
    /// True when the stream ended before the line did.
    pub truncated: bool,
}

/// Why there is no line.
#[derive(Debug, Error)]
pub enum LineError {
    /// The line is longer than the limit. The rest of it is skipped: reading on gives the next line.
    #[error("line is longer than {limit} bytes")]
    TooLong {
        /// The limit, in bytes without the line's end.
        limit: usize,
    },
    /// A long line cannot be kept on disk. The rest of it is skipped.
    #[error("keep a long line on disk: {0}")]
    Spool(#[source] io::Error),
    /// The stream cannot be read.
    #[error("read line")]
    Io(#[from] io::Error),
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads lines of at most `max_line_bytes` bytes each, not counting the line's end.
    pub fn new(reader: R, max_line_bytes: usize) -> Self {
        Self {
            reader,
            limit: max_line_bytes,
            buffer: BytesMut::new(),
            searched: 0,
            is_large: false,
            state: State::Reading,
            spooling: None,
            spool: None,
            passed_over: 0,
        }
    }

    /// Keeps long lines on disk while they come in, so that half of one takes no memory.
    #[must_use]
    pub fn spooling(self, spooling: Spooling) -> Self {
        Self { spooling: Some(spooling), ..self }
    }

    /// How many long lines were dropped since nobody reads them.
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// The next line that is not empty, without its newline and one carriage return before it; nothing else is trimmed.
    /// `None` at the end of the stream; a last line without an end is given out as `truncated`. Cancel safe: what was
    /// read is kept.
    ///
    /// # Errors
    /// [`LineError::TooLong`] once for each line above the limit, [`LineError::Io`] when reading fails.
    pub async fn next(&mut self) -> Result<Option<Line>, LineError> {
        loop {
            if let Some(line) = self.take_spooled().await? {
                return Ok(Some(line));
            }
            if let Some(line) = self.take_buffered()? {
                return Ok(Some(line));
            }
            if self.spool.as_ref().is_some_and(Spool::is_whole) {
                continue;
            }
            if self.state == State::Ended {
                return Ok(None);
            }
            self.make_room();
            // CANCEL: read_buf takes nothing from the pipe unless it is ready, and then puts it into our buffer.
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                let skipping = self.state == State::Skipping;
                self.state = State::Ended;
                self.searched = 0;
                let rest = mem::take(&mut self.buffer).freeze();
                if self.spool.is_some() {
                    self.end_spool(&rest, true)?;
                } else if !skipping && let Some(line) = self.line(rest, true, None)? {
                    return Ok(Some(line));
                }
            }
        }
    }

    /// The long line that is whole, once there is room for it.
    async fn take_spooled(&mut self) -> Result<Option<Line>, LineError> {
        let Some(spool) = self.spool.as_mut().filter(|spool| spool.is_whole()) else { return Ok(None) };
        if !spool.is_read() {
            self.passed_over += 1;
            self.spool = None;
            return Ok(None);
        }
        // CANCEL: the spool stays where it is until it has given its line.
        let back = spool.read_back().await;
        self.spool = None;
        let (bytes, truncated, room) = back.map_err(LineError::Spool)?;
        self.line(bytes, truncated, room)
    }

    /// Puts the rest of a long line to what there is of it.
    fn end_spool(&mut self, rest: &[u8], truncated: bool) -> Result<(), LineError> {
        if let (Some(spool), Some(spooling)) = (&mut self.spool, &self.spooling) {
            if let Err(error) = spool.append(rest) {
                self.spool = None;
                return Err(LineError::Spool(error));
            }
            spool.end(&spooling.room, truncated);
        }
        Ok(())
    }

    /// Moves what there is of a long line to the disk.
    fn move_out(&mut self) -> Result<(), LineError> {
        let Some(spooling) = &self.spooling else { return Ok(()) };
        let moved = match &mut self.spool {
            Some(spool) => spool.append(&self.buffer),
            None if self.buffer.len() > spooling.above => {
                Spool::begin(spooling, &self.buffer).map(|spool| self.spool = Some(spool))
            }
            None => return Ok(()),
        };
        self.drop_buffer();
        moved.map_err(|error| {
            self.spool = None;
            self.state = State::Skipping;
            LineError::Spool(error)
        })
    }

    fn take_buffered(&mut self) -> Result<Option<Line>, LineError> {
        loop {
            let Some(found) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                return self.check_unfinished().map(|()| None);
            };
            let end = self.searched + found;
            self.searched = 0;
            if self.state == State::Skipping {
                self.buffer.advance(end + 1);
                self.state = State::Reading;
                continue;
            }
            let bytes = self.buffer.split_to(end).freeze();
            self.buffer.advance(1);
            if self.spool.is_some() {
                self.end_spool(&bytes, false)?;
                return Ok(None);
            }
            if let Some(line) = self.line(bytes, false, None)? {
                return Ok(Some(line));
            }
        }
    }

    /// The buffer holds no newline. One byte above the limit may still be a carriage return.
    fn check_unfinished(&mut self) -> Result<(), LineError> {
        let length = self.buffer.len() + self.spool.as_ref().map_or(0, Spool::length);
        if self.state == State::Reading && length > self.limit.saturating_add(1) {
            self.state = State::Skipping;
            self.spool = None;
            self.drop_buffer();
            return Err(LineError::TooLong { limit: self.limit });
        }
        if self.state == State::Reading {
            self.move_out()?;
        }
        if self.state == State::Skipping {
            self.drop_buffer();
        }
        Ok(())
    }

    fn drop_buffer(&mut self) {
        self.buffer.clear();
        self.searched = 0;
    }

    fn line(&self, mut bytes: Bytes, truncated: bool, room: Option<Taken>) -> Result<Option<Line>, LineError> {
        if bytes.last() == Some(&b'\r') {
            bytes.truncate(bytes.len() - 1);
        }
        if bytes.len() > self.limit {
            return Err(LineError::TooLong { limit: self.limit });
        }
        Ok((!bytes.is_empty()).then_some(Line { bytes, _room: room, truncated }))
    }

    fn make_room(&mut self) {
        if self.is_large && self.buffer.len() <= CHUNK {
            let mut small = BytesMut::with_capacity(2 * CHUNK);
            small.extend_from_slice(&self.buffer);
            self.buffer = small;
            self.is_large = false;
        }
        // Doubling, so that a large line is copied a few times and not once for every read; not beyond what is moved to the disk.
        let left =
            self.spooling.as_ref().map_or(usize::MAX, |spooling| spooling.above.saturating_sub(self.buffer.len()));
        self.buffer.reserve(CHUNK.max(self.buffer.len().min(left)));
        self.is_large |= self.buffer.capacity() > KEEP;
    }
}

impl<R> fmt::Debug for LineReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineReader")
            .field("limit", &self.limit)
            .field("buffered", &self.buffer.len())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Line {
    /// The bytes, without a copy.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl Deref for Line {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests;
