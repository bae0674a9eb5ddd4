//! A lock file: one holder at a time, freed by the kernel however the holder ends. The holder's pid stands in it for
//! the error message of the next one.

use std::{
    fs::{File, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process,
};

use thiserror::Error;

/// An exclusive advisory lock (`flock`), held until it is dropped or the process is gone. The file stays where it is:
/// removing it would let two holders lock two files of one name.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    path: PathBuf,
}

/// Why a lock was not taken.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process holds it, or this one does already.
    #[error("lock {path}: held by {}", by.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}")))]
    Held {
        /// The file.
        path: PathBuf,
        /// The pid that the holder wrote, where it can be read.
        by: Option<u32>,
    },
    /// The file cannot be opened, locked or written.
    #[error("lock {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl Lock {
    /// Takes the lock at `path`, making the file (mode 0600) where there is none. It never waits.
    ///
    /// # Errors
    /// [`LockError::Held`] while somebody holds it, [`LockError::Io`] when the file cannot be used.
    pub fn take(path: impl AsRef<Path>) -> Result<Self, LockError> {
        let path = path.as_ref();
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LockError::Held { path: path.to_owned(), by: holder(&file) }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", process::id()).map_err(failed)?;
        Ok(Self { _file: file, path: path.to_owned() })
    }

    /// The lock's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn holder(file: &File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

    fn fresh(name: &str) -> PathBuf {
        let directory = env::current_exe().unwrap().parent().unwrap().join("native_lock");
        fs::create_dir_all(&directory).unwrap();
        directory.join(name)
    }

    #[test]
    fn a_second_holder_is_refused_and_told_who_holds_it() {
        let path = fresh("second");
        let lock = Lock::take(&path).unwrap();
        let refused = Lock::take(&path).unwrap_err();
        assert!(matches!(refused, LockError::Held { by: Some(pid), .. } if pid == process::id()), "{refused}");
        assert_eq!(refused.to_string(), format!("lock {}: held by process {}", path.display(), process::id()));
        drop(lock);
        assert_eq!(Lock::take(&path).unwrap().path(), path);
    }

    #[test]
    fn an_older_and_longer_text_is_replaced() {
        let path = fresh("older");
        fs::write(&path, "99999999999\nnoise").unwrap();
        let _lock = Lock::take(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", process::id()));
    }

    #[test]
    fn a_missing_folder_is_an_error_of_its_own() {
        let path = fresh("none").join("lock");
        assert!(matches!(Lock::take(path), Err(LockError::Io { .. })));
    }
}
