//! Claude Code, driven through its bidirectional stream of JSON lines: one process and one conversation for each Executor (kind `claude_code`).
//!
//! Everything is private but [`ClaudeCode`] and its settings; the daemon sees the Harness contract only.

mod admission;
mod config;
mod declaration;
mod events;
mod executor;
mod failure;
mod functions;
mod history;
mod inventory;
mod mcp;
mod probe;
mod schema;
mod start;
mod structured;
#[cfg(test)]
mod traces;
mod wire;

use std::path::Path;

use tokio_util::task::TaskTracker;

use crate::harness::{
    BoxFuture, Configuration, Declaration, Executor, Harness, HistoryFault, Launch, NotAdmitted, PrepareError, Proof,
    ProvedInputs, Resume,
};
use crate::probe::{Found, Looks};

pub use crate::harness::Settings;

pub(crate) use admission::built;

/// The kind of this Harness.
pub const KIND: &str = "claude_code";

/// The Claude Code Harness of this machine.
#[derive(Debug)]
pub struct ClaudeCode {
    settings: Settings,
    /// What was found last.
    looks: Looks,
    /// The owner tasks of all Executors. Each ends with its Executor.
    tasks: TaskTracker,
}

impl ClaudeCode {
    /// Claude Code with these settings. Starts nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, looks: Looks::default(), tasks: TaskTracker::new() }
    }

    /// Waits until every Executor that was prepared is gone. For the end of a daemon that has closed or dropped them.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// What there is of Claude Code on this machine.
    async fn look(&self) -> Found {
        let program = probe::find(self.settings.program.as_deref());
        self.looks.look(program, |program| probe::probe(&self.settings, program)).await
    }
}

impl Harness for ClaudeCode {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn declare(&self) -> BoxFuture<'_, Declaration> {
        Box::pin(async { declaration::declare(&self.settings, self.look().await) })
    }

    fn admit(&self, declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
        admission::check(declaration, configuration)
    }

    fn keeps_instructions(&self) -> bool {
        // They are given with each start of the program, and its history has none of them (`--system-prompt-snapshot=off`).
        false
    }

    fn function_of<'a>(&self, tool: &'a str) -> Option<&'a str> {
        functions::function_of(tool)
    }

    fn check_history(&self, home: &Path, resume: &Resume) -> BoxFuture<'_, Result<(), HistoryFault>> {
        let (home, resume) = (start::state(home), resume.clone());
        Box::pin(async move {
            let checked = tokio::task::spawn_blocking(move || history::check(&home, &resume)).await;
            checked.unwrap_or(Err(HistoryFault::Corrupt))
        })
    }

    fn reconcile(&self, home: &Path, native_session_id: &str, native_turn_id: &str) -> BoxFuture<'_, Option<Proof>> {
        let home = start::state(home);
        let (session, turn) = (native_session_id.to_owned(), native_turn_id.to_owned());
        Box::pin(async move {
            tokio::task::spawn_blocking(move || history::ending(&home, &session, &turn, &[])).await.unwrap_or_default()
        })
    }

    fn inputs_read(
        &self,
        home: &Path,
        native_session_id: &str,
        native_turn_id: &str,
    ) -> BoxFuture<'_, Option<ProvedInputs>> {
        let home = start::state(home);
        let (session, turn) = (native_session_id.to_owned(), native_turn_id.to_owned());
        Box::pin(async move {
            tokio::task::spawn_blocking(move || history::inputs(&home, &session, &turn)).await.unwrap_or_default()
        })
    }

    fn prepare(&self, launch: Launch) -> BoxFuture<'_, Result<Executor, PrepareError>> {
        Box::pin(async { start::prepare(&self.settings, self.look().await, launch, &self.tasks).await })
    }
}
