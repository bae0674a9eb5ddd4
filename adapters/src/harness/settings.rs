//! How the operator has a Harness run.

use std::path::PathBuf;

use super::{Isolation, Timing};
use crate::native::{lines::Room, user::User};

/// How a Harness is run on this machine; the operator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The program, or the npm launcher beside it; none looks for it on `PATH`.
    pub program: Option<PathBuf>,
    /// The keeper's program.
    pub keeper: PathBuf,
    /// The user that it runs under; none is the daemon's own (R-SEC-1).
    pub user: Option<User>,
    /// Who isolates it (R-PLC-1).
    pub isolation: Isolation,
    /// Whether the project's own configuration is loaded (R-PLC-1). Refused for a Session whose Executor holds a model key.
    pub trust_workspace: bool,
    /// Whether the way to the model provider leads through the bridge, which can hold answers back there (R-FN-10).
    pub gateway: bool,
    /// The longest line that is read, in bytes (R-EVT-12).
    pub max_line_bytes: usize,
    /// A line above this is kept on disk until it is whole, in bytes (R-EVT-12).
    pub spool_bytes: usize,
    /// Room for long lines that are whole, of all Executors together.
    pub long_lines: Room,
    /// Limits of waiting.
    pub limits: Timing,
}

/// Room for long lines: a Harness repeats a result of Core or a file in one line, and a parsed line takes some times its length.
const LONG_LINES: usize = 64 << 20;

impl Settings {
    /// The usual settings with this keeper: the program on `PATH`, the workspace not trusted, no gateway, lines of up to 64 MiB.
    #[must_use]
    pub fn new(keeper: PathBuf, isolation: Isolation) -> Self {
        Self {
            program: None,
            keeper,
            user: None,
            isolation,
            trust_workspace: false,
            gateway: false,
            max_line_bytes: 64 << 20,
            spool_bytes: 1 << 20,
            long_lines: Room::new(LONG_LINES),
            limits: Timing::default(),
        }
    }
}
