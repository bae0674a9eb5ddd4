//! A folder of a Harness, read and removed by somebody who may do more than the Harness: no link in it is followed, nothing but a file is opened, and
//! however deep it is, since what a model runs may have put anything there (R-SEC-1).

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::AsFd,
        unix::{ffi::OsStringExt as _, fs::OpenOptionsExt as _},
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, fchmod, openat, renameat, unlinkat},
    io::Errno,
    path::Arg,
};
use uuid::Uuid;

/// How deep a removal goes at once; what lies deeper is moved up and is next. Each level holds a descriptor and a piece of the stack.
const AT_ONCE: usize = 64;

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

/// Removes a folder with all that is in it, or a link in its place; one that is not there is removed already. The standard library goes down level by
/// level, and a tree of some thousand levels ends the process.
///
/// # Errors
/// What the system says. What was removed by then is gone.
pub fn remove_all(path: &Path) -> io::Result<()> {
    let top = match Folder::open(path) {
        Ok(top) => top,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory && path.is_symlink() => {
            return fs::remove_file(path);
        }
        Err(error) => return Err(error),
    };
    while clear(&top, &top, AT_ONCE)? {}
    fs::remove_dir(path)
}

/// Removes what is in a folder; true when something was too deep and was moved to the top.
fn clear(folder: &Folder, top: &Folder, depth: usize) -> io::Result<bool> {
    // A daemon that is not root removes nothing from a folder that its owner made read-only. What it cannot change, it cannot remove either.
    let _ = fchmod(&folder.0, Mode::RWXU);
    let mut moved = false;
    for name in folder.names()? {
        match unlinkat(&folder.0, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        if depth == 0 {
            renameat(&folder.0, &name, &top.0, Uuid::now_v7().simple().to_string())?;
            moved = true;
            continue;
        }
        moved |= clear(&folder.folder(&name)?, top, depth - 1)?;
        unlinkat(&folder.0, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(moved)
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
    use std::{
        env,
        os::unix::fs::{PermissionsExt, symlink},
        process, thread,
    };

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn however_deep_a_folder_is_it_is_removed_and_nothing_behind_its_links() {
        let path = env::temp_dir().join(format!("adapters-deep-{}", process::id()));
        let kept = env::temp_dir().join(format!("adapters-deep-kept-{}", process::id()));
        let (top, other) = (path.clone(), kept.clone());
        // More than the stack of this thread would hold.
        let work = move || {
            fs::create_dir_all(&other).unwrap();
            fs::write(other.join("file"), "").unwrap();
            fs::create_dir_all(&top).unwrap();
            let mut at = Folder::open(&top).unwrap();
            for level in 0..3000 {
                mkdirat(&at.0, "d", Mode::from_raw_mode(0o700)).unwrap();
                if level % 100 == 0 {
                    rustix::fs::symlinkat(&other, &at.0, "link").unwrap();
                }
                at = at.folder("d").unwrap();
            }
            remove_all(&top).unwrap();
            // Again, and a link in its place.
            remove_all(&top).unwrap();
            symlink(&other, &top).unwrap();
            remove_all(&top).unwrap();
        };
        thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
        assert!(fs::symlink_metadata(&path).is_err() && kept.join("file").is_file());
        fs::remove_dir_all(kept).unwrap();
    }

    #[test]
    fn what_is_removed_is_made_writable_first() {
        let path = env::temp_dir().join(format!("adapters-read-only-{}", process::id()));
        fs::create_dir_all(path.join("in/deep")).unwrap();
        fs::write(path.join("in/deep/file"), "").unwrap();
        let read_only = |path: &Path| fs::set_permissions(path, PermissionsExt::from_mode(0o500)).unwrap();
        [&*path.join("in/deep"), &*path.join("in"), &*path].into_iter().for_each(read_only);
        let top = Folder::open(&path).unwrap();
        assert!(!clear(&top, &top, AT_ONCE).unwrap());
        // Root would have been let in anyway; the mode tells that nobody else is kept out either.
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        remove_all(&path).unwrap();
    }

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
