//! Any other agent that speaks ACP: what it supports is what it says of itself, and no more than every such agent is known to hold.

use super::{
    configured::Configured,
    profile::{Agent, Barrier, Profile, SetUp, Slash, ToolReading, UsageFrom},
};
use crate::{
    harness::{BoxFuture, Configuration, Declaration, Launch, NotAdmitted, PrepareError, Settings},
    probe::Found,
};

/// An agent of which nothing is known but what it says.
#[derive(Debug)]
pub(crate) struct Generic {
    configured: Configured,
    settings: Settings,
    profile: Profile,
}

impl Generic {
    /// The agent of this kind. Starts nothing.
    pub(crate) fn new(kind: &'static str, configured: Configured, settings: Settings) -> Self {
        let profile = Profile {
            kind,
            name: kind,
            slash: Slash::ZeroWidthSpace,
            mcp_name: |server, tool| format!("{server}_{tool}"),
            tools: ToolReading {
                name: |call| call.name.clone().map(Into::into),
                command: |_, _| None,
                mcp_result: |_| None,
            },
            steer: None,
            reusable_after_cancel: false,
            resume: None,
            barrier: Barrier::None,
            usage: UsageFrom::Nowhere,
            is_own_text: |_| false,
            call_timeout: None,
            listed_within: std::time::Duration::from_secs(30),
            lists_with_each_prompt: true,
            client_capabilities: "{}",
            needs: &[],
        };
        Self { configured, settings, profile }
    }
}

impl Agent for Generic {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn look(&self) -> BoxFuture<'_, Found> {
        Box::pin(async { Found { program: None, version: None, trouble: Some("not built yet".to_owned()) } })
    }

    fn declare(&self, _settings: &Settings, _found: &Found) -> Declaration {
        todo!()
    }

    fn admit(&self, _declaration: &Declaration, _configuration: &Configuration) -> Result<(), NotAdmitted> {
        todo!()
    }

    fn set_up<'a>(
        &'a self,
        _settings: &'a Settings,
        _found: &'a Found,
        _launch: &'a Launch,
    ) -> BoxFuture<'a, Result<SetUp, PrepareError>> {
        todo!()
    }
}
