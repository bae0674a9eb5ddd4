//! Reading one large part of an event, piece by piece (R-API-7).

use std::{io, mem, sync::Arc};

use bytes::Bytes;
use tokio::task;

use super::{
    file::{self, Head, Kind, PART_BYTES, Scan},
    tail::Shared,
};

/// Bytes that are read and given out at once, so that a reader holds no more than that.
const PIECE_BYTES: usize = 1 << 20;

/// Gives out the bytes of one part in order.
#[derive(Debug)]
pub(crate) struct Payload {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nobody has looked for it yet.
    Sought { shared: Arc<Shared>, sequence: u64, part: u16 },
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
    pub(super) fn of(shared: Arc<Shared>, sequence: u64, part: u16) -> Self {
        Self { state: State::Sought { shared, sequence, part } }
    }

    /// Bytes that are at hand.
    pub(crate) fn here(bytes: Bytes) -> Self {
        Self { state: State::Memory(bytes) }
    }

    /// The next bytes, at most 1 MiB; `None` behind the last. A part that is empty gives `None` at once.
    ///
    /// # Errors
    ///
    /// `NotFound` for a part that the event does not have; `InvalidData` when the part is damaged, which its last piece
    /// shows; else what the system says about the file.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        match mem::replace(&mut self.state, State::Over) {
            State::Over => Ok(None),
            State::Memory(bytes) if bytes.is_empty() => Ok(None),
            State::Memory(mut bytes) => {
                let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
                self.state = State::Memory(bytes);
                Ok(Some(piece))
            }
            State::Sought { shared, sequence, part } => {
                let memory = shared.part(sequence, part);
                self.state = match memory {
                    Some(bytes) => State::Memory(bytes),
                    // What a dropped call leaves behind is one walk through a file, which nobody needs to wait for.
                    None => State::File(Box::new(blocking(move || find(shared, sequence, part)).await?)),
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

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn find(shared: Arc<Shared>, sequence: u64, part: u16) -> io::Result<InFile> {
    let absent = || io::Error::new(io::ErrorKind::NotFound, "the event has no such part");
    let Some((_, file)) = &shared.file else { return Err(absent()) };
    if sequence > shared.mark.borrow().published {
        return Err(absent());
    }
    let mut scan = Scan::new(file, shared.before(sequence).offset)?;
    while let Some(head) = scan.next()? {
        // Parts of an event stand before it.
        if head.sequence > sequence || (head.sequence == sequence && head.kind.is_event()) {
            break;
        }
        if head.kind == Kind::Payload && head.sequence == sequence && scan.part(&head)? == Some(part) {
            let mut hasher = head.hasher();
            hasher.update(&part.to_le_bytes());
            let at = head.content_at() + PART_BYTES as u64;
            return Ok(InFile { shared: Arc::clone(&shared), head, at, hasher });
        }
    }
    Err(absent())
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
