//! The Harnesses that the daemon hosts, each as this machine's operator wants it.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use adapters::{
    acp::AcpHarness,
    claude_code::ClaudeCode,
    codex::Codex,
    harness::{self, Harness},
    minimax_code,
    native::user::User,
};

use crate::config::Settings;

/// Every Harness that the daemon knows; whether it can be used here, its declaration tells.
#[derive(Clone, Debug)]
pub(crate) struct Harnesses {
    codex: Arc<Codex>,
    claude_code: Arc<ClaudeCode>,
    /// MiniMax Code, and the agents that the operator names.
    agents: Vec<Arc<AcpHarness>>,
}

impl Harnesses {
    /// All of them, as the operator wants them, under this user. Starts nothing.
    pub(crate) fn new(settings: &Settings, keeper: PathBuf, user: Option<User>) -> Self {
        let usual = harness::Settings { user, ..usual(settings, keeper) };
        let with = |program: &Option<PathBuf>| harness::Settings { program: program.clone(), ..usual.clone() };
        let minimax_code = minimax_code::harness(with(&settings.minimax_code));
        let named = settings.agents.iter().map(|agent| AcpHarness::configured(agent.clone(), usual.clone()));
        Self {
            codex: Arc::new(Codex::new(with(&settings.codex))),
            claude_code: Arc::new(ClaudeCode::new(with(&settings.claude_code))),
            agents: [minimax_code].into_iter().chain(named).map(Arc::new).collect(),
        }
    }

    /// Each by its kind.
    pub(crate) fn by_kind(&self) -> BTreeMap<&'static str, Arc<dyn Harness>> {
        let built: [Arc<dyn Harness>; 2] = [Arc::clone(&self.codex) as _, Arc::clone(&self.claude_code) as _];
        let agents = self.agents.iter().map(|agent| Arc::clone(agent) as Arc<dyn Harness>);
        built.into_iter().chain(agents).map(|harness| (harness.kind(), harness)).collect()
    }

    /// Waits until every Executor that was prepared is gone.
    pub(crate) async fn drained(&self) {
        self.codex.drained().await;
        self.claude_code.drained().await;
        for agent in &self.agents {
            agent.drained().await;
        }
    }
}

/// How every Harness is run on this machine; they have one room for long lines together.
fn usual(settings: &Settings, keeper: PathBuf) -> harness::Settings {
    let mut usual = harness::Settings::new(keeper, settings.isolation());
    usual.trust_workspace = settings.trusts_workspace();
    usual.gateway = settings.gateway;
    usual.max_line_bytes = settings.limits.max_line_bytes;
    usual.spool_bytes = settings.limits.spool_bytes;
    usual.limits.probe = settings.limits.harness_probe;
    usual.limits.interrupt = settings.limits.interrupt;
    usual.limits.start = settings.limits.harness_start;
    usual.limits.mcp_start = settings.limits.mcp_start;
    usual.limits.functions_listed = settings.limits.functions_listed;
    usual.limits.settlement = settings.limits.settlement;
    usual
}
