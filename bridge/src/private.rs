//! Files with secrets: only one that is what it seems is read, no link, ours, and for nobody else to read.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::{fs::OFlags, io::Errno};

/// Why a file is not read. The text goes on behind its name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    /// It is a link.
    #[error("is a symbolic link; name the file itself")]
    Link,
    /// It is something else.
    #[error("is not a file")]
    NoFile,
    /// Another user could have written it.
    #[error("belongs to another user")]
    Foreign,
    /// It is no secret.
    #[error("can be read by others; give it mode 0600")]
    Shown,
    /// The system does not give it.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Opens such a file.
///
/// # Errors
/// Why it is not one.
pub(crate) fn open(path: &Path) -> Result<File, Unfit> {
    let no_link = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(no_link).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => Unfit::Link,
        Some(_) | None => Unfit::Io(error),
    })?;
    // Asked of the open file, so that nothing can be put in its place meanwhile.
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(Unfit::NoFile);
    }
    if meta.uid() != rustix::process::getuid().as_raw() {
        return Err(Unfit::Foreign);
    }
    if meta.mode() & 0o077 != 0 {
        return Err(Unfit::Shown);
    }
    Ok(file)
}

/// Writes a file as a whole: who reads it finds what was there before, or all of this, also after a power loss.
///
/// # Errors
/// What the system says.
pub(crate) fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", uuid::Uuid::now_v7().simple()));
    let beside = Path::new(&beside);
    let write = || {
        let mut file = File::options().write(true).create_new(true).mode(mode).open(beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(beside, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(beside)))
}
