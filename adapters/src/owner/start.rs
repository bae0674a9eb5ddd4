//! What every adapter does on the way to a ready Executor.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
    process as own,
    time::Duration,
};

use tokio::time::{self, Instant};

use crate::native::{
    lock::{Lock, LockError},
    process::Control,
    tree::{self, ProcessId},
};

/// LIMIT: how long an earlier holder may take to let go of it.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Between two tries to take it.
const LOCK_AGAIN: Duration = Duration::from_millis(20);
/// Takes the lock of the Session's history. An Executor that is being ended may hold it for a moment.
pub(crate) async fn lock(path: &Path) -> Result<Lock, LockError> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match Lock::take(path) {
            Err(LockError::Held { .. }) if Instant::now() < until => time::sleep(LOCK_AGAIN).await,
            taken => return taken,
        }
    }
}

/// A workspace is a canonical path, resolved once (R-ASG-3): where a link has taken the place of one of its parts, what is there now was never
/// bound.
pub(crate) fn still_there(workspace: &Path) -> Result<(), String> {
    match workspace.canonicalize() {
        Ok(now) if now != workspace => Err("a link has taken the place of the workspace".to_owned()),
        Ok(now) if !now.is_dir() => Err("the workspace is not a directory any more".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the workspace cannot be reached: {error}")),
    }
}

/// Makes a private folder and those above it.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).recursive(true).create(path)
}

/// Writes a private file in one piece.
pub(crate) fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_added_extension("new");
    let mut options = fs::File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    fs::rename(fresh, path)
}

/// The keeper as a process that cannot be mistaken for a later one of the same number (R-SEC-1). None when it is gone.
pub(crate) async fn keeper(of: &Control) -> Option<ProcessId> {
    let pid = of.keeper_pid();
    let children = tokio::task::spawn_blocking(|| tree::descendants(own::id())).await.unwrap_or_default();
    children.into_iter().find(|child| child.pid == pid)
}
