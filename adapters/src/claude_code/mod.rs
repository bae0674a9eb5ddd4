//! Claude Code, driven through its bidirectional stream of JSON lines: one process and one conversation for each Executor (kind `claude_code`).

#![expect(dead_code, reason = "what starts and drives the process joins these rooms next")]

mod admission;
mod config;
mod declaration;
#[allow(dead_code, unused_imports)]
mod functions;
mod inventory;
mod probe;
mod schema;
#[allow(dead_code, unused_imports)]
mod wire;

use std::path::PathBuf;

use crate::{
    harness::{Isolation, Timing},
    native::lines::Room,
};

/// The kind of this Harness.
pub const KIND: &str = "claude_code";

/// How Claude Code is run on this machine; the operator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The program, or what npm puts in its place; none looks for `claude` on `PATH`.
    pub program: Option<PathBuf>,
    /// The keeper's program.
    pub keeper: PathBuf,
    /// Who isolates it (R-PLC-1). It has no sandbox of its own.
    pub isolation: Isolation,
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
    /// The usual settings with this keeper: `claude` on `PATH`, lines of up to 64 MiB.
    #[must_use]
    pub fn new(keeper: PathBuf, isolation: Isolation) -> Self {
        Self {
            program: None,
            keeper,
            isolation,
            max_line_bytes: 64 << 20,
            spool_bytes: 1 << 20,
            long_lines: Room::new(LONG_LINES),
            limits: Timing::default(),
        }
    }
}
