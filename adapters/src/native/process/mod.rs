//! The one place where native processes are started, always through the keeper, and ended (R-CAN-4). It hands out the
//! pipes and reports the end; what is said over the pipes is no concern of its.

mod spawn;
mod stderr;

use std::{ffi::OsString, fmt, io, mem, os::unix::process::ExitStatusExt as _, path::PathBuf, process, time::Duration};

use rustix::process::Signal;
use thiserror::Error;
use tokio::{
    process::{Child, ChildStdin, ChildStdout},
    task::JoinHandle,
    time::{self, Instant},
};
use tokio_util::task::TaskTracker;

use self::stderr::Kept;
use super::{
    environment::{Environment, Mark},
    tree,
    user::User,
};

pub use self::spawn::spawn;

/// How long the end of a process waits for the rest of its standard error. A pipe that is still open then is held by
/// somebody who escaped the keeper.
const STDERR_WAIT: Duration = Duration::from_millis(250);
/// How long what a dead keeper left is killed again and again.
const SWEEP_LIMIT: Duration = Duration::from_secs(2);

/// What to start and how.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The keeper's program.
    pub keeper: PathBuf,
    /// The native program: a path, relative ones from `directory`, or a bare name to be found in the `PATH` of
    /// `environment`.
    pub program: PathBuf,
    /// Its arguments, without its name.
    pub args: Vec<OsString>,
    /// Where it runs.
    pub directory: PathBuf,
    /// All its variables but the mark (R-SEC-2).
    pub environment: Environment,
    /// Whose it is. Processes that run at the same time have different marks: when a keeper is killed, what carries the
    /// mark is ended.
    pub mark: Mark,
    /// What it has between TERM and KILL, to the millisecond.
    pub grace: Duration,
    /// The user that it runs under; none is our own. The keeper stays ours, so that the process can neither signal nor read it (R-SEC-1).
    pub user: Option<User>,
}

/// A native process with its pipes. Standard error is read from the beginning and to the end by a task of its own.
#[derive(Debug)]
pub struct Process {
    /// What the process reads.
    pub stdin: ChildStdin,
    /// What the process writes, through a pipe of 1 MiB where the system allows.
    pub stdout: ChildStdout,
    /// Its life.
    pub control: Control,
}

/// Why nothing was started. Nothing runs after one of these.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// There is no such program.
    #[error("start {}: no such program", path.display())]
    ProgramMissing {
        /// What was looked for.
        path: PathBuf,
    },
    /// The file is a directory, or its permissions do not let us run it.
    #[error("start {}: not executable", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// The keeper's program is not where it should be.
    #[error("start keeper {}: no such program", path.display())]
    KeeperMissing {
        /// What was looked for.
        path: PathBuf,
    },
    /// The working directory is not there, or is no directory.
    #[error("start in {}: no such directory", path.display())]
    DirectoryMissing {
        /// What was looked for.
        path: PathBuf,
    },
    /// The system refused.
    #[error("start {}", path.display())]
    Io {
        /// The program.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The life of a native process. Dropping it ends the process and all that it started, without a wait and without a
/// zombie.
#[derive(Debug)]
pub struct Control {
    keeper: Child,
    keeper_pid: u32,
    mark: Mark,
    /// The write end of the life line, until we ask for the end.
    life: Option<io::PipeWriter>,
    stderr: Kept,
    tasks: TaskTracker,
    end: End,
}

#[derive(Debug)]
enum End {
    Running {
        stderr: JoinHandle<()>,
        asked: bool,
    },
    /// The keeper is gone; the rest of its standard error is read and, if it died of a signal, what it left is ended.
    Settling {
        exit: Exit,
        /// Until it has ended, like `sweep`: a task that was waited for is never asked again.
        stderr: Option<JoinHandle<()>>,
        until: Instant,
        sweep: Option<JoinHandle<()>>,
    },
    Settled(Exit),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its status.
    pub status: ExitStatus,
    /// We had asked for the end before it was seen.
    pub asked: bool,
}

/// The status of a process, as its keeper took it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It ended by itself with this code.
    Code(i32),
    /// This signal ended it, or its keeper.
    Signal(i32),
}

impl Control {
    /// The pid of the keeper: the process and all that it starts are its descendants.
    #[must_use]
    pub fn keeper_pid(&self) -> u32 {
        self.keeper_pid
    }

    /// Waits until the process and everything that it started is gone, and standard error is read. Cancel safe; answers
    /// the same again afterwards.
    pub async fn exited(&mut self) -> Exit {
        loop {
            match &mut self.end {
                End::Running { .. } => {
                    // CANCEL: waiting for a child takes its status once and keeps it.
                    let status = self.keeper.wait().await.map(ExitStatus::of);
                    self.keeper_is_gone(status.unwrap_or(ExitStatus::Code(-1)));
                }
                End::Settling { exit, stderr, until, sweep } => {
                    // CANCEL: what was waited for is taken out without another wait in between.
                    if let Some(reading) = stderr {
                        let _ = time::timeout_at(*until, reading).await;
                        *stderr = None;
                    }
                    if let Some(running) = sweep {
                        let _ = running.await;
                        *sweep = None;
                    }
                    self.end = End::Settled(*exit);
                }
                End::Settled(exit) => return *exit,
            }
        }
    }

    /// Asks the keeper for the end: TERM to the process's group, the grace, KILL to what is left. Returns at once;
    /// [`exited`](Self::exited) tells when it is done.
    pub fn end(&mut self) {
        if let End::Running { asked, .. } = &mut self.end
            && self.life.is_some()
            && !matches!(self.keeper.try_wait(), Ok(Some(_)))
        {
            *asked = true;
        }
        if let Some(life) = self.life.take() {
            // The end-of-file says it too, unless a stray copy of the write end is open somewhere.
            let _ = io::Write::write(&mut &life, b"\n");
        }
    }

    /// The end of what the process wrote to standard error: at most 4 KiB, escape sequences and bytes that are no text
    /// replaced.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.stderr.tail()
    }

    /// The same up to 64 KiB, behind a beginning of 4 KiB where there was more.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.all()
    }

    /// The last rungs of the ladder (R-CAN-4), once the caller has closed stdin: waits `eof_wait` for the process to end
    /// by itself, then asks for the end and waits for it.
    pub async fn retire(&mut self, eof_wait: Duration) -> Exit {
        if let Ok(exit) = time::timeout(eof_wait, self.exited()).await {
            return exit;
        }
        self.end();
        self.exited().await
    }

    fn keeper_is_gone(&mut self, status: ExitStatus) {
        let End::Running { stderr, asked } = mem::replace(&mut self.end, End::Settled(Exit { status, asked: false }))
        else {
            return;
        };
        self.life = None;
        // A keeper that was killed itself could not end its descendants; the status does not tell it from one that
        // took over the signal of its agent.
        let sweep = matches!(status, ExitStatus::Signal(_)).then(|| {
            let mark = self.mark.clone();
            self.tasks.spawn_blocking(move || {
                let swept = tree::sweep_exactly(&mark, SWEEP_LIMIT);
                if swept.ended + swept.left > 0 {
                    tracing::warn!(%mark, swept.ended, swept.left, "the keeper died before its descendants");
                }
            })
        });
        let until = Instant::now() + STDERR_WAIT;
        self.end = End::Settling { exit: Exit { status, asked }, stderr: Some(stderr), until, sweep };
    }
}

impl Exit {
    /// True when a signal that we did not send ended the process: nobody had asked for the end, or the signal is neither
    /// TERM nor KILL. Such an end is a failure, never a cancel (R-CAN-6).
    #[must_use]
    pub fn is_foreign_signal(&self) -> bool {
        match self.status {
            ExitStatus::Signal(signal) => {
                !self.asked || (signal != Signal::TERM.as_raw() && signal != Signal::KILL.as_raw())
            }
            ExitStatus::Code(_) => false,
        }
    }
}

impl ExitStatus {
    fn of(status: process::ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(-1),
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
