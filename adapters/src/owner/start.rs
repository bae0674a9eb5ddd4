//! What every adapter does on the way to a ready Executor.

use std::{
    io,
    path::{Path, PathBuf},
    process as own,
    time::Duration,
};

use tokio::time::{self, Instant};

use crate::{
    harness::{McpKind, McpServer, Settings},
    native::{
        lock::{Lock, LockError},
        process::Control,
        tree::{self, ProcessId},
        user,
    },
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
/// bound. The user of the Harness must be able to work there (R-SEC-1); what it may write is between it and the workspace.
pub(crate) async fn still_there(workspace: &Path, settings: &Settings) -> Result<(), String> {
    match workspace.canonicalize() {
        Ok(now) if now != workspace => return Err("a link has taken the place of the workspace".to_owned()),
        Ok(now) if !now.is_dir() => return Err("the workspace is not a directory any more".to_owned()),
        Ok(_) => {}
        Err(error) => return Err(format!("the workspace cannot be reached: {error}")),
    }
    match &settings.user {
        Some(user) => user.enter(&settings.keeper, workspace).await,
        None => Ok(()),
    }
}

/// The keeper's program as a Harness starts it for MCP servers that are processes, where it has any. The user of the Harness must be able to execute it: what a
/// Harness says of a server whose program it cannot start names neither the program nor the user, if it says anything.
pub(crate) async fn keeper_of_servers(
    servers: &[McpServer],
    settings: &Settings,
    kind: &str,
) -> Result<PathBuf, String> {
    let keeper = std::path::absolute(&settings.keeper).map_err(|error| error.to_string())?;
    if let Some(user) = &settings.user
        && servers.iter().any(|server| server.transport.kind() == McpKind::Stdio)
    {
        let told = |why| format!("{why}; {kind} starts MCP servers by it, so install it where that user can reach it");
        user.execute(&keeper).await.map_err(told)?;
    }
    Ok(keeper)
}

/// Makes private folders of the Harness, and those above them.
pub(crate) async fn make_folders(paths: impl IntoIterator<Item = &Path>, settings: &Settings) -> io::Result<()> {
    let paths: Vec<_> = paths.into_iter().map(Path::to_owned).collect();
    let user = settings.user.clone();
    let work = move || paths.iter().try_for_each(|path| user::make_own(path, user.as_ref()));
    // One that is handed over may hold much.
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(io::Error::other("the folders were not made")))
}

/// The keeper as a process that cannot be mistaken for a later one of the same number (R-SEC-1). None when it is gone.
pub(crate) async fn keeper(of: &Control) -> Option<ProcessId> {
    let pid = of.keeper_pid();
    let children = tokio::task::spawn_blocking(|| tree::descendants(own::id())).await.unwrap_or_default();
    children.into_iter().find(|child| child.pid == pid)
}
