//! What `run` asks of the daemon that it hosts in its own process, and what it gets.

use std::{fmt, path::PathBuf};

use clap::ValueEnum;
use futures_util::future::BoxFuture;

/// Starts a daemon in this process; the error is a text for a person.
pub(crate) type Host = Box<dyn FnOnce(Hosting) -> BoxFuture<'static, Result<Daemon, String>> + Send>;

/// What a hosted daemon is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosting {
    /// Its state, an existing folder (0700) of this run alone.
    pub(crate) state_dir: PathBuf,
    /// Where it listens, in a fresh folder (0700).
    pub(crate) socket: PathBuf,
    /// The one workspace root, where there is a workspace.
    pub(crate) workspace_root: Option<PathBuf>,
    /// How the Harness is isolated (R-PLC-1); `None` leaves it to the daemon.
    pub(crate) isolation: Option<Isolation>,
    /// Whether the project's own Harness configuration is loaded (R-PLC-1).
    pub(crate) trust_workspace: bool,
    /// Base address of the model provider: whoever names it on a command line is the operator, so it is reached wherever it is (R-SEC-4).
    pub(crate) provider: String,
    /// The Codex program; `None` leaves it to the daemon.
    pub(crate) codex: Option<PathBuf>,
    /// The Claude Code program; `None` leaves it to the daemon.
    pub(crate) claude_code: Option<PathBuf>,
    /// The MiniMax Code program; `None` leaves it to the daemon.
    pub(crate) minimax_code: Option<PathBuf>,
}

/// A daemon that listens.
pub(crate) struct Daemon {
    /// Its socket.
    pub(crate) socket: PathBuf,
    /// Settles what runs and ends it.
    pub(crate) stop: BoxFuture<'static, ()>,
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Daemon").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Values of `--isolation` (R-PLC-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Isolation {
    /// The container or machine around the daemon keeps the Harness apart: it has full access here.
    Outer,
    /// The Harness's own sandbox does.
    Native,
}
