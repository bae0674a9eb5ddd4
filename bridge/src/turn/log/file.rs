//! The file's format, and reading it by position.
//!
//! ```text
//! header   "RBTL" | version u16 | 10 bytes of zero
//! record   length u32 | CRC-32 u32 | kind u8 | sequence u64 | bytes
//! ```
//!
//! Numbers are little-endian. The length counts what follows the CRC; the CRC is of the same bytes. Kind 1 is an event.
//! Kind 2 is a payload of the event that comes next: it bears that event's sequence, and its bytes begin with the
//! part's number, u16. A payload whose event is not in the file is no part of it. Kind 3, since version 2, is an event
//! that says that events are omitted: it stands at the last sequence of its range, so that the sequences from the event
//! before it up to its own have no record.

use std::{
    fs::{self, File},
    io,
    ops::RangeInclusive,
    os::unix::fs::FileExt as _,
    path::Path,
};

use bytes::Bytes;
use crc32fast::Hasher;

/// Where the first record stands.
pub(super) const HEADER_BYTES: u64 = 16;

/// Length and CRC.
const FRAME_BYTES: usize = 8;

/// Length, CRC, kind and sequence.
pub(super) const HEAD_BYTES: usize = FRAME_BYTES + BODY_HEAD_BYTES;

/// What every record has of its counted bytes: kind and sequence.
const BODY_HEAD_BYTES: usize = 9;

/// A part's number.
pub(super) const PART_BYTES: usize = size_of::<u16>();

/// What one read asks the system for, unless a single record is larger.
const WINDOW_BYTES: usize = 256 << 10;

const MAGIC: [u8; 4] = *b"RBTL";
const VERSION: u16 = 2;

/// Versions that can be read: what a newer one added does not stand in a file of an older one.
const READABLE: RangeInclusive<u16> = 1..=VERSION;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Event,
    Payload,
    Omission,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Event => 1,
            Self::Payload => 2,
            Self::Omission => 3,
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Event),
            2 => Some(Self::Payload),
            3 => Some(Self::Omission),
            _ => None,
        }
    }

    /// Whether it is given out to observers.
    pub(super) const fn is_event(self) -> bool {
        matches!(self, Self::Event | Self::Omission)
    }
}

/// The file's first bytes.
pub(super) fn header() -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// Whether the file has a whole header. A shorter file is one whose making was interrupted.
///
/// # Errors
///
/// `InvalidData` for a file that is no Turn's log, or one of a later version.
pub(super) fn has_header(file: &File) -> io::Result<bool> {
    let mut found = [0; HEADER_BYTES as usize];
    match file.read_exact_at(&mut found, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error),
    }
    if found[..4] != MAGIC {
        return Err(invalid("not a log of a Turn".to_owned()));
    }
    let version = u16::from_le_bytes([found[4], found[5]]);
    if !READABLE.contains(&version) {
        return Err(invalid(format!("a log of version {version}: this daemon knows versions up to {VERSION}")));
    }
    Ok(true)
}

/// Removes the file of a Turn whose events nobody needs any more. What is no log of ours is put aside instead.
///
/// # Errors
///
/// What the system says; a file that is not there is none.
pub(crate) fn let_go(path: &Path) -> io::Result<()> {
    match File::open(path).and_then(|file| has_header(&file)) {
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => put_aside(path, &error),
        Err(error) => Err(error),
    }
}

/// Puts aside what cannot be read as a Turn's log, so that nothing overwrites or removes it.
///
/// # Errors
///
/// What the system says.
pub(crate) fn put_aside(path: &Path, why: &io::Error) -> io::Result<()> {
    tracing::warn!(path = %path.display(), error = %why, "the events of a Turn are lost");
    fs::rename(path, path.with_extension("unreadable"))
}

pub(super) fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The bytes of a record in front of `parts`, which are its content in order.
///
/// # Errors
///
/// `InvalidInput` when the content does not fit the length's 32 bits.
pub(super) fn head(kind: Kind, sequence: u64, parts: &[&[u8]]) -> io::Result<[u8; HEAD_BYTES]> {
    let content: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(BODY_HEAD_BYTES + content)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a record of 4 GiB or more"))?;
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[FRAME_BYTES] = kind.byte();
    head[FRAME_BYTES + 1..].copy_from_slice(&sequence.to_le_bytes());
    let mut hasher = Hasher::new();
    hasher.update(&head[FRAME_BYTES..]);
    for part in parts {
        hasher.update(part);
    }
    head[4..FRAME_BYTES].copy_from_slice(&hasher.finalize().to_le_bytes());
    Ok(head)
}

/// A record's place and what its head says. Its CRC is not checked yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) sequence: u64,
    /// Where the record begins.
    pub(super) offset: u64,
    /// Where the next one does.
    pub(super) end: u64,
    crc: u32,
}

impl Head {
    /// Where the content begins.
    pub(super) fn content_at(&self) -> u64 {
        self.offset + HEAD_BYTES as u64
    }

    /// A checksum that has taken the counted bytes in front of the content.
    pub(super) fn hasher(&self) -> Hasher {
        let mut hasher = Hasher::new();
        hasher.update(&[self.kind.byte()]);
        hasher.update(&self.sequence.to_le_bytes());
        hasher
    }

    /// Whether a checksum that has taken the content too is the one of the record.
    pub(super) fn fits(&self, hasher: Hasher) -> bool {
        hasher.finalize() == self.crc
    }
}

/// Walks the records of a file from one of their places on.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    file: &'a File,
    /// The file's length when the walk began.
    length: u64,
    /// Where the next record begins.
    pub(super) at: u64,
    window: Bytes,
    window_at: u64,
}

impl<'a> Scan<'a> {
    pub(super) fn new(file: &'a File, at: u64) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self { file, length, at, window: Bytes::new(), window_at: 0 })
    }

    /// The head of the next record and steps over it. `None` when no whole, possible record begins here.
    pub(super) fn next(&mut self) -> io::Result<Option<Head>> {
        let offset = self.at;
        let Some(head) = self.bytes(offset, HEAD_BYTES)? else { return Ok(None) };
        let length = u64::from(u32::from_le_bytes([head[0], head[1], head[2], head[3]]));
        let crc = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let Some(kind) = Kind::of(head[FRAME_BYTES]) else { return Ok(None) };
        let mut sequence = [0; 8];
        sequence.copy_from_slice(&head[FRAME_BYTES + 1..HEAD_BYTES]);
        let sequence = u64::from_le_bytes(sequence);
        let end = offset + FRAME_BYTES as u64 + length;
        if length < BODY_HEAD_BYTES as u64 || end > self.length {
            return Ok(None);
        }
        self.at = end;
        Ok(Some(Head { kind, sequence, offset, end, crc }))
    }

    /// The content of a record. `None` when its CRC does not fit.
    pub(super) fn content(&mut self, head: &Head) -> io::Result<Option<Bytes>> {
        let from = head.offset + FRAME_BYTES as u64;
        let Ok(length) = usize::try_from(head.end - from) else { return Ok(None) };
        let Some(counted) = self.bytes(from, length)? else { return Ok(None) };
        Ok((crc32fast::hash(&counted) == head.crc).then(|| counted.slice(BODY_HEAD_BYTES..)))
    }

    /// The part's number at the beginning of a payload. `None` for a payload that is too short for one.
    pub(super) fn part(&mut self, head: &Head) -> io::Result<Option<u16>> {
        if head.end < head.content_at() + PART_BYTES as u64 {
            return Ok(None);
        }
        let number = self.bytes(head.content_at(), PART_BYTES)?;
        Ok(number.map(|number| u16::from_le_bytes([number[0], number[1]])))
    }

    /// Whether the content of a record is at hand without asking the system.
    pub(super) fn is_at_hand(&self, head: &Head) -> bool {
        head.offset >= self.window_at && head.end <= self.window_at + self.window.len() as u64
    }

    /// `length` bytes from `from`. `None` when the file ends before.
    fn bytes(&mut self, from: u64, length: usize) -> io::Result<Option<Bytes>> {
        let Some(rest) = self.length.checked_sub(from).filter(|rest| *rest >= length as u64) else { return Ok(None) };
        let at_hand = from >= self.window_at && from + length as u64 <= self.window_at + self.window.len() as u64;
        if !at_hand {
            let ask = usize::try_from(rest).unwrap_or(usize::MAX).min(WINDOW_BYTES.max(length));
            self.window = read(self.file, from, ask)?;
            self.window_at = from;
            // Behind the published events the file may have become shorter since.
            if self.window.len() < length {
                return Ok(None);
            }
        }
        let start = usize::try_from(from - self.window_at).map_err(io::Error::other)?;
        Ok(Some(self.window.slice(start..start + length)))
    }
}

/// `length` bytes from `from`, or fewer when the file ends before.
pub(super) fn read(file: &File, from: u64, length: usize) -> io::Result<Bytes> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], from + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(Bytes::from(bytes))
}
