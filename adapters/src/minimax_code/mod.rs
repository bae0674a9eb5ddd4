//! MiniMax Code, driven through `mcode acp` (kind `minimax_code`): the engine is that of every agent that speaks ACP, and what is its own is here: how it is found and set
//! up, what it takes, and how it says things.

mod admission;
mod config;
mod declaration;
mod names;
mod probe;
mod profile;
mod start;

use std::sync::Arc;

use crate::{
    acp::{
        AcpHarness,
        profile::{Agent, Profile, SetUp},
    },
    harness::{BoxFuture, Configuration, Declaration, Launch, NotAdmitted, PrepareError},
    probe::{Found, Looks},
};

pub use crate::harness::Settings;

pub(crate) use admission::built;

/// The kind of this Harness.
pub const KIND: &str = "minimax_code";

/// The MiniMax Code Harness of this machine. Starts nothing.
#[must_use]
pub fn harness(settings: Settings) -> AcpHarness {
    AcpHarness::new(settings.clone(), Arc::new(Mcode::new(settings)))
}

/// MiniMax Code as an agent.
#[derive(Debug)]
struct Mcode {
    settings: Settings,
    profile: Profile,
    /// What was found last of the program.
    looks: Looks,
    /// And of the Node that runs it.
    nodes: Looks,
}

impl Mcode {
    /// MiniMax Code with these settings. Starts nothing.
    fn new(settings: Settings) -> Self {
        Self { settings, profile: profile::profile(), looks: Looks::default(), nodes: Looks::default() }
    }

    async fn found(&self) -> Found {
        let (start, program) = match probe::find(self.settings.program.as_deref()) {
            Ok(start) => (Some(start.clone()), Ok(start.mcode)),
            Err(trouble) => (None, Err(trouble)),
        };
        if let Some(node) = start.as_ref().and_then(|start| start.node.clone()) {
            let node = self.nodes.look(Ok(node), |node| probe::probe_node(&self.settings, node)).await;
            if let Some(trouble) = node.trouble {
                return Found { program: program.ok(), version: None, trouble: Some(trouble) };
            }
        }
        self.looks
            .look(program, async |mcode| {
                let node = start.and_then(|start| start.node);
                probe::probe(&self.settings, &probe::Start { mcode, node }).await
            })
            .await
    }
}

impl Agent for Mcode {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn built(&self) -> crate::admission::built::Built {
        built()
    }

    fn look(&self) -> BoxFuture<'_, Found> {
        Box::pin(self.found())
    }

    fn declare(&self, settings: &Settings, found: &Found) -> Declaration {
        declaration::declare(settings, found)
    }

    fn admit(&self, declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
        admission::check(declaration, configuration)
    }

    fn set_up<'a>(
        &'a self,
        settings: &'a Settings,
        _found: &'a Found,
        launch: &'a Launch,
    ) -> BoxFuture<'a, Result<SetUp, PrepareError>> {
        Box::pin(start::set_up(settings, launch))
    }
}
