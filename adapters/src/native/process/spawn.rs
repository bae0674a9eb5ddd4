//! From a launch to a running process: what can be known before the start is checked first, so that each error has its
//! own name.

use std::{
    fs, io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf, absolute},
    process::Stdio,
};

use rustix::{
    fs::{Access, access},
    io::{FdFlags, fcntl_setfd},
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
};
use tokio::process::Command;
use tokio_util::task::TaskTracker;

use super::{Control, End, Launch, Process, SpawnError, stderr::Kept};
use crate::native::environment::MARK_VARIABLE;

/// The size that the pipe of stdout is given; it can double the rate of large lines.
const STDOUT_PIPE: usize = 1 << 20;

/// Starts a native process through the keeper, with an environment from nothing, pipes on all three of its standard
/// streams, and a process group of its own for the keeper and another for the process. Needs a tokio runtime.
///
/// # Errors
/// [`SpawnError`]; a program that is there but turns out not to run (a missing interpreter) is started and ends with
/// code 126 or 127 and a line on standard error.
pub fn spawn(launch: Launch) -> Result<Process, SpawnError> {
    let failed = |source| SpawnError::Io { path: launch.program.clone(), source };
    if let Some(name) = launch.environment.unusable() {
        let why = format!("environment variable {name:?} cannot be given to a process");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    // The keeper runs elsewhere, so nothing may be relative to where we are.
    let launch = Launch {
        keeper: absolute(&launch.keeper).map_err(failed)?,
        directory: absolute(&launch.directory).map_err(failed)?,
        ..launch
    };
    let failed = |source| SpawnError::Io { path: launch.program.clone(), source };
    if !launch.directory.is_dir() {
        return Err(SpawnError::DirectoryMissing { path: launch.directory });
    }
    if !launch.keeper.is_file() {
        return Err(SpawnError::KeeperMissing { path: launch.keeper });
    }
    let program = find(&launch)?;

    // The daemon alone holds the write end. The read end goes to the keeper under its own number: that needs no code
    // between fork and exec, which would make the spawn of a large daemon slow. A process that is spawned meanwhile may
    // get a copy of the read end, which does no harm.
    let (life_read, life_write) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    fcntl_setfd(&life_read, FdFlags::empty()).map_err(|error| failed(error.into()))?;

    let mut command = Command::new(&launch.keeper);
    command.arg(life_read.as_raw_fd().to_string()).arg(launch.grace.as_millis().to_string());
    if let Some(user) = &launch.user {
        // The keeper's child gives up our user, enters the directory under the new one, and becomes the program.
        command.arg(&launch.keeper).arg("as").arg(user.to_string()).arg(&launch.directory);
    }
    command
        .arg(&program)
        .args(&launch.args)
        .current_dir(&launch.directory)
        .env_clear()
        .envs(launch.environment.entries())
        .env(MARK_VARIABLE, launch.mark.as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A Ctrl-C in the daemon's terminal must not reach the keeper.
        .process_group(0);
    let mut keeper = command.spawn().map_err(failed)?;
    drop(life_read);

    let missing = || failed(io::Error::other("a pipe of the new process is missing"));
    let keeper_pid = keeper.id().ok_or_else(missing)?;
    let stdin = keeper.stdin.take().ok_or_else(missing)?;
    let stdout = keeper.stdout.take().ok_or_else(missing)?;
    let stderr = keeper.stderr.take().ok_or_else(missing)?;
    // Best effort: the system has a limit for each user.
    let _ = fcntl_setpipe_size(&stdout, STDOUT_PIPE);

    let tasks = TaskTracker::new();
    let kept = Kept::default();
    let drain = tasks.spawn(kept.clone().drain(stderr));
    let control = Control {
        keeper,
        keeper_pid,
        mark: launch.mark,
        life: Some(life_write.into()),
        stderr: kept,
        tasks,
        end: End::Running { stderr: drain, asked: false },
    };
    Ok(Process { stdin, stdout, control })
}

/// The program's path as the keeper is to use it.
fn find(launch: &Launch) -> Result<PathBuf, SpawnError> {
    let missing = || SpawnError::ProgramMissing { path: launch.program.clone() };
    if launch.program.components().count() > 1 || launch.program.is_absolute() {
        let path = launch.directory.join(&launch.program);
        return if !path.try_exists().unwrap_or(true) {
            Err(missing())
        } else if is_executable(&path) {
            Ok(path)
        } else {
            Err(SpawnError::NotExecutable { path: launch.program.clone() })
        };
    }
    let path = launch.environment.value("PATH").ok_or_else(missing)?;
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(&launch.program))
        .find(|path| is_executable(path))
        .ok_or_else(missing)
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file()) && access(path, Access::EXEC_OK).is_ok()
}
