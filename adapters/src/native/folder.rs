//! A folder of a Harness, read by somebody who may read more than the Harness: no link in it is followed, and nothing but a file is opened, since
//! what a model runs may have put anything there (R-SEC-1).

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read as _},
    os::{
        fd::AsFd,
        unix::{ffi::OsStringExt as _, fs::OpenOptionsExt as _},
    },
    path::Path,
};

use rustix::{
    fs::{CWD, Dir, Mode, OFlags, openat},
    path::Arg,
};

/// A folder that is held open.
#[derive(Debug)]
pub(crate) struct Folder(pub(super) File);

impl Folder {
    /// Opens a folder; the folders above it are the caller's word.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::below(CWD, path)
    }

    /// A folder in this one.
    pub(crate) fn folder(&self, name: impl Arg) -> io::Result<Self> {
        Self::below(&self.0, name)
    }

    /// A file in this folder.
    pub(crate) fn file(&self, name: impl Arg) -> io::Result<File> {
        // Without NONBLOCK a pipe that nobody writes to would be waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        only_file(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    /// The names of what is in it.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let names = Dir::read_from(&self.0)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
        let names = names.filter(|name| !matches!(name.as_deref(), Ok(b"." | b"..")));
        names.map(|name| name.map(OsString::from_vec)).collect()
    }

    pub(super) fn below(of: impl AsFd, name: impl Arg) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(openat(of, name, flags, Mode::empty())?.into()))
    }
}

/// The text of a small file anywhere, whatever leads to it; at most `most` bytes of it.
pub(crate) fn small_text(path: &Path, most: u64) -> io::Result<String> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = only_file(File::options().read(true).custom_flags(flags).open(path)?)?;
    let mut text = String::new();
    file.take(most).read_to_string(&mut text)?;
    Ok(text)
}

fn only_file(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")),
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, os::unix::fs::symlink, process};

    use super::*;

    #[test]
    fn neither_links_nor_pipes_are_opened() {
        let path = env::temp_dir().join(format!("adapters-folder-{}", process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("in")).unwrap();
        fs::write(path.join("in/file"), "text").unwrap();
        symlink(path.join("in"), path.join("link")).unwrap();
        symlink(path.join("in/file"), path.join("in/link")).unwrap();
        rustix::fs::mknodat(CWD, path.join("in/pipe"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        let folder = Folder::open(&path).unwrap();
        let inner = folder.folder("in").unwrap();
        let mut names = inner.names().unwrap();
        names.sort();
        assert_eq!(names, ["file", "link", "pipe"]);
        assert!(inner.file("file").is_ok() && inner.file("link").is_err() && inner.file("pipe").is_err());
        assert!(folder.folder("link").is_err() && folder.file("in").is_err());
        assert!(Folder::open(&path.join("link")).is_err());
        assert_eq!(small_text(&path.join("in/link"), 2).unwrap(), "te");
        assert!(small_text(&path.join("in/pipe"), 2).is_err());
        fs::remove_dir_all(path).unwrap();
    }
}
