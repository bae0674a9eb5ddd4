//! Whether the journal's files are still where they were opened. What is written to a file that was moved away or deleted is on no
//! disk that a later start looks at, so nothing may be acknowledged for it (R-DUR-1, R-DUR-4).

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{Error, Result};

/// The files of one opened journal.
#[derive(Debug)]
pub(super) struct Place {
    files: Vec<(PathBuf, Identity)>,
}

/// Device and number of a file.
type Identity = (u64, u64);

impl Place {
    /// Notes the files of a journal that is open: the database and its write-ahead log.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let files = [path.to_owned(), log.into()].into_iter();
        let files = files.map(|path| identity(&path).map(|identity| (path, identity)));
        Ok(Self { files: files.collect::<io::Result<_>>()? })
    }

    /// Checks that they are still there.
    ///
    /// # Errors
    ///
    /// [`Error::Moved`] when one is not, or is another file.
    pub(super) fn check(&self) -> Result<()> {
        let moved = self.files.iter().find(|(path, noted)| identity(path).ok() != Some(*noted));
        moved.map_or(Ok(()), |(path, _)| Err(Error::Moved { path: path.clone() }))
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}
