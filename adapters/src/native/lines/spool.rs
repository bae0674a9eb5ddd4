//! Long lines (R-EVT-12). While one comes in it lies in a file without a name; it is read back once it is whole and there is room for it. One
//! that nobody reads is only counted.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::harness::BoxFuture;

/// How much of a line is shown to those who decide whether they want it.
pub(super) const HEAD: usize = 1024;
/// The smallest part of the room.
const UNIT: usize = 1024;

/// Room for the long lines of all processes that are looked at. A line that is longer than the whole takes all of it.
#[derive(Clone, Debug)]
pub struct Room {
    units: Arc<Semaphore>,
    all: u32,
}

/// Room that a line takes until it is dropped.
pub(super) type Taken = Arc<OwnedSemaphorePermit>;

impl Room {
    /// Room for so many bytes of lines.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let most = Semaphore::MAX_PERMITS.min(u32::MAX as usize);
        let all = bytes.div_ceil(UNIT).clamp(1, most);
        Self { units: Arc::new(Semaphore::new(all)), all: u32::try_from(all).unwrap_or(u32::MAX) }
    }

    fn take(&self, bytes: usize) -> BoxFuture<'static, Option<Taken>> {
        let wanted = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.all);
        let units = Arc::clone(&self.units);
        // The semaphore is never closed; without it a line would only be read without its bound.
        Box::pin(async move { units.acquire_many_owned(wanted).await.ok().map(Arc::new) })
    }
}

impl PartialEq for Room {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.units, &other.units)
    }
}

impl Eq for Room {}

/// What is done with long lines.
#[derive(Clone, Debug)]
pub struct Spooling {
    /// A private folder.
    pub folder: PathBuf,
    /// A line above this is long.
    pub above: usize,
    /// Room for those that are whole.
    pub room: Room,
    /// Whether somebody reads a line that begins so; the first 1024 bytes are shown. One that nobody reads is dropped.
    pub is_read: fn(&[u8]) -> bool,
}

/// A long line.
pub(super) struct Spool {
    /// None when nobody reads it.
    file: Option<File>,
    length: usize,
    /// Set when it is whole: whether the stream ended before it did, and its turn for the room.
    whole: Option<(bool, BoxFuture<'static, Option<Taken>>)>,
}

impl Spool {
    /// The line that begins with these bytes.
    pub(super) fn begin(spooling: &Spooling, beginning: &[u8]) -> io::Result<Self> {
        let is_read = (spooling.is_read)(&beginning[..beginning.len().min(HEAD)]);
        let file = is_read.then(|| unnamed(&spooling.folder)).transpose()?;
        let mut spool = Self { file, length: 0, whole: None };
        spool.append(beginning)?;
        Ok(spool)
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // It goes into the page cache, as the events of a Turn do.
        if let Some(file) = &mut self.file {
            file.write_all(bytes)?;
        }
        self.length += bytes.len();
        Ok(())
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn is_read(&self) -> bool {
        self.file.is_some()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// Nothing of the line follows.
    pub(super) fn end(&mut self, room: &Room, truncated: bool) {
        self.whole = Some((truncated, room.take(self.length)));
    }

    /// Waits for room and reads the line back. Cancel safe: its place in the queue is kept.
    pub(super) async fn read_back(&mut self) -> io::Result<(Bytes, bool, Option<Taken>)> {
        let (truncated, taken) = match &mut self.whole {
            Some((truncated, room)) => (*truncated, room.await),
            None => (true, None),
        };
        let mut bytes = Vec::with_capacity(self.length);
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::Start(0))?;
            file.read_to_end(&mut bytes)?;
        }
        Ok((bytes.into(), truncated, taken))
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool").field("length", &self.length).field("whole", &self.is_whole()).finish_non_exhaustive()
    }
}

/// A file that is gone with its descriptor.
fn unnamed(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("line-{}", Uuid::now_v7().simple()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
