//! Reading one large part of an event, piece by piece (R-API-7).

use std::{io, mem, sync::Arc};

use bytes::Bytes;
use tokio::task;

use super::{
    file::{self, Head, Kind, PART_BYTES, Scan},
    tail::{FencedBy, Shared},
};

/// Bytes that are read and given out at once, so that a reader holds few of them.
const PIECE_BYTES: usize = 256 << 10;

/// Gives out the bytes of one part in order.
#[derive(Debug)]
pub(crate) struct Payload {
    shared: Arc<Shared>,
    epoch: u64,
    state: State,
}

/// Why a part is not given out, or no further.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The event has no such part.
    Absent,
    /// The event is not kept any more.
    Gone {
        /// The next event that is.
        first_available: u64,
    },
    /// The caller's epoch is over.
    Fenced {
        /// The higher one.
        epoch: u64,
        /// What it did.
        by: FencedBy,
    },
    /// What the system says about the file; `InvalidData` when the part is damaged, which its last piece shows.
    Failed(io::Error),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

#[derive(Debug)]
enum State {
    /// Nobody has looked for it yet.
    Sought { sequence: u64, part: u16 },
    /// What is left of it, from memory.
    Memory(Bytes),
    /// What is left of it, in the file.
    File(Box<InFile>),
    /// All of it was given out.
    Over,
}

#[derive(Debug)]
struct InFile {
    shared: Arc<Shared>,
    head: Head,
    at: u64,
    hasher: crc32fast::Hasher,
}

impl Payload {
    pub(super) fn of(shared: Arc<Shared>, sequence: u64, part: u16, epoch: u64) -> Self {
        Self { shared, epoch, state: State::Sought { sequence, part } }
    }

    pub(super) fn here(shared: Arc<Shared>, bytes: Bytes, epoch: u64) -> Self {
        Self { shared, epoch, state: State::Memory(bytes) }
    }

    /// The next bytes, at most 256 KiB; `None` behind the last. A part that is empty gives `None` at once.
    ///
    /// # Errors
    ///
    /// Why there are none.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Unread> {
        let mark = *self.shared.mark.borrow();
        if mark.fence > self.epoch {
            return Err(Unread::Fenced { epoch: mark.fence, by: mark.fenced_by });
        }
        match mem::replace(&mut self.state, State::Over) {
            State::Over => Ok(None),
            State::Memory(bytes) if bytes.is_empty() => Ok(None),
            State::Memory(mut bytes) => {
                let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
                self.state = State::Memory(bytes);
                Ok(Some(piece))
            }
            State::Sought { sequence, part } => {
                self.state = match self.shared.part(sequence, part) {
                    Some(bytes) => State::Memory(bytes),
                    None => {
                        let shared = Arc::clone(&self.shared);
                        // What a dropped call leaves behind is one walk through a file, which nobody needs to wait for.
                        State::File(Box::new(blocking(move || find(shared, sequence, part)).await?))
                    }
                };
                Box::pin(self.next()).await
            }
            State::File(in_file) => {
                let (in_file, piece) = blocking(move || piece(in_file)).await?;
                if let Some(in_file) = in_file {
                    self.state = State::File(in_file);
                }
                Ok(piece)
            }
        }
    }
}

async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, Unread>
where
    T: Send + 'static,
    E: Into<Unread> + Send + 'static,
{
    task::spawn_blocking(work).await.map_err(io::Error::other)?.map_err(Into::into)
}

fn find(shared: Arc<Shared>, sequence: u64, part: u16) -> Result<InFile, Unread> {
    let published = shared.mark.borrow().published;
    // What a Turn of this process has is in its file or in memory, and the end of one that is over has no parts.
    let missing = |first_available| match shared.sealed {
        Some(_) if sequence < published => Unread::Gone { first_available },
        Some(_) | None => Unread::Absent,
    };
    let Some((_, file)) = &shared.file else { return Err(missing(published)) };
    if sequence > published {
        return Err(Unread::Absent);
    }
    let mut scan = Scan::new(file, shared.before(sequence).offset)?;
    while let Some(head) = scan.next()? {
        // Parts of an event stand before it.
        match head.kind {
            Kind::Event if head.sequence == sequence => return Err(Unread::Absent),
            Kind::Omission if head.sequence >= sequence => {
                return Err(Unread::Gone { first_available: head.sequence + 1 });
            }
            Kind::Event | Kind::Payload if head.sequence > sequence => return Err(missing(head.sequence)),
            Kind::Payload if head.sequence == sequence && scan.part(&head)? == Some(part) => {
                let mut hasher = head.hasher();
                hasher.update(&part.to_le_bytes());
                let at = head.content_at() + PART_BYTES as u64;
                return Ok(InFile { shared: Arc::clone(&shared), head, at, hasher });
            }
            Kind::Event | Kind::Omission | Kind::Payload => {}
        }
    }
    Err(missing(published))
}

/// The next piece, and what is left behind it.
fn piece(mut part: Box<InFile>) -> io::Result<(Option<Box<InFile>>, Option<Bytes>)> {
    let left = part.head.end.saturating_sub(part.at);
    let sequence = part.head.sequence;
    let damaged = || file::invalid(format!("a damaged part of event {sequence}"));
    if left == 0 {
        return if part.head.fits(part.hasher.clone()) { Ok((None, None)) } else { Err(damaged()) };
    }
    let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
    let Some((_, file)) = &part.shared.file else { return Err(damaged()) };
    let bytes = file::read(file, part.at, wanted)?;
    if bytes.len() < wanted {
        return Err(damaged());
    }
    part.hasher.update(&bytes);
    part.at += bytes.len() as u64;
    let is_over = part.at == part.head.end;
    if is_over && !part.head.fits(part.hasher.clone()) {
        return Err(damaged());
    }
    Ok(((!is_over).then_some(part), Some(bytes)))
}
