//! Agents that speak the Agent Client Protocol (ACP), version 1: the engine that is the same for all of them. What differs is a [`profile`].

mod configured;
pub(crate) mod declared;
mod events;
mod executor;
mod failure;
mod functions;
mod generic;
mod opencode;
pub(crate) mod profile;
mod start;
pub(crate) mod wire;

use std::{path::Path, sync::Arc};

use tokio_util::task::TaskTracker;

use crate::harness::{
    BoxFuture, Configuration, Declaration, Executor, Harness, HistoryFault, Launch, NotAdmitted, Placement,
    PrepareError, Proof, ProvedInputs, Resume, Settings,
};

pub use configured::{Configured, Known, Misconfigured};

use profile::{Agent, FUNCTIONS, prefix};

/// A Harness that is an agent behind ACP.
#[derive(Debug)]
pub struct AcpHarness {
    settings: Settings,
    agent: Arc<dyn Agent>,
    /// The owner tasks of all Executors, and the servers of their functions. Each ends with its Executor.
    tasks: TaskTracker,
}

impl AcpHarness {
    /// The agent that the operator configures so. Starts nothing.
    #[must_use]
    pub fn configured(configured: Configured, settings: Settings) -> Self {
        Self::new(settings.clone(), configured.agent(settings))
    }

    /// This agent with these settings. Starts nothing.
    pub(crate) fn new(settings: Settings, agent: Arc<dyn Agent>) -> Self {
        Self { settings, agent, tasks: TaskTracker::new() }
    }

    /// Waits until every Executor that was prepared is gone. For the end of a daemon that has closed or dropped them.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Harness for AcpHarness {
    fn kind(&self) -> &'static str {
        self.agent.profile().kind
    }

    fn declare(&self) -> BoxFuture<'_, Declaration> {
        Box::pin(async {
            let found = self.agent.look().await;
            self.agent.declare(&self.settings, &found)
        })
    }

    fn admit(&self, declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
        self.agent.admit(declaration, configuration)
    }

    fn admit_key(&self, declaration: &Declaration, placement: &Placement) -> Result<(), NotAdmitted> {
        self.agent.admit_key(declaration, placement)
    }

    fn built(&self) -> Option<crate::admission::built::Built> {
        Some(self.agent.built())
    }

    fn keeps_instructions(&self) -> bool {
        // They are a file of the Session's home, written anew with each start.
        false
    }

    fn function_of<'a>(&self, tool: &'a str) -> Option<&'a str> {
        let spellings = self.agent.profile().mcp_names;
        spellings.iter().find_map(|name| tool.strip_prefix(&*prefix(*name, FUNCTIONS)))
    }

    fn check_history(&self, home: &Path, resume: &Resume) -> BoxFuture<'_, Result<(), HistoryFault>> {
        let (kind, home, resume) = (self.kind(), home.to_owned(), resume.clone());
        Box::pin(async move {
            let checked = tokio::task::spawn_blocking(move || start::check_history(kind, &home, &resume)).await;
            checked.unwrap_or(Err(HistoryFault::Corrupt))
        })
    }

    /// No native history is read.
    fn reconcile(&self, _home: &Path, _session: &str, _turn: &str) -> BoxFuture<'_, Option<Proof>> {
        Box::pin(async { None })
    }

    fn inputs_read(&self, _home: &Path, _session: &str, _turn: &str) -> BoxFuture<'_, Option<ProvedInputs>> {
        Box::pin(async { None })
    }

    fn prepare(&self, launch: Launch) -> BoxFuture<'_, Result<Executor, PrepareError>> {
        Box::pin(async {
            let found = self.agent.look().await;
            start::prepare(&self.agent, &self.settings, found, launch, &self.tasks).await
        })
    }
}
