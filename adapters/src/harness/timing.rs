//! How long an adapter waits for its Harness.

use std::time::Duration;

/// How long is waited for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// For the program to say what it is: its version, what it knows and whether its sandbox works.
    pub probe: Duration,
    /// From the spawn to the ready thread.
    pub start: Duration,
    /// For an MCP server to be there, beside that (R-PRE-5).
    pub mcp_start: Duration,
    /// From the start of a Turn until the functions of the Session are listed, for a Harness that asks for them then; one that is known to wait longer has its own time.
    pub functions_listed: Duration,
    /// From an interrupt to the native end, before the process is ended (R-CAN-4).
    pub interrupt: Duration,
    /// For open work at a normal end (R-EVT-9).
    pub settle: Duration,
    /// From the native end to the proof that nothing is left (R-EVT-9).
    pub settlement: Duration,
    /// Between TERM and KILL (R-CAN-4).
    pub term_grace: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            probe: Duration::from_secs(10),
            start: Duration::from_secs(20),
            mcp_start: Duration::from_secs(10),
            functions_listed: Duration::from_secs(2),
            interrupt: Duration::from_secs(2),
            settle: Duration::from_secs(2),
            settlement: Duration::from_secs(60),
            term_grace: Duration::from_secs(3),
        }
    }
}
