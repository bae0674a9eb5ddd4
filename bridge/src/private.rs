//! Files with secrets: only one that is what it seems is read, no link, ours, and for nobody else to read.

use std::{
    fs::File,
    io,
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
