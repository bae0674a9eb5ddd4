//! Any other agent that speaks ACP: what it supports is what it says of itself, and no more than every such agent is known to hold.

mod admission;
mod declaration;
mod probe;
mod profile;
mod start;

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use super::{
    configured::{Configured, Placeholder},
    profile::{Agent, Profile, SetUp},
};
use crate::{
    admission::refused,
    harness::{
        BoxFuture, Configuration, Declaration, Launch, ModelProtocol, NotAdmitted, Placement, PrepareError, Settings,
    },
    probe::{Found, Looks, on_path},
};

pub(super) use admission::built;

/// An agent of which nothing is known but what it says.
#[derive(Debug)]
pub(crate) struct Generic {
    configured: Configured,
    settings: Settings,
    profile: Profile,
    /// What was found last.
    looks: Looks,
    /// What it said then.
    said: Mutex<Said>,
}

/// What an agent says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    /// It connects to MCP servers over HTTP.
    mcp_http: bool,
}

impl Generic {
    /// The agent of this kind. Starts nothing.
    pub(super) fn new(kind: &'static str, configured: Configured, settings: Settings) -> Self {
        let profile = profile::profile(kind);
        Self { configured, settings, profile, looks: Looks::default(), said: Mutex::default() }
    }

    fn said(&self) -> Said {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the program what it is, and keeps that.
    async fn probe(&self, program: PathBuf) -> Found {
        let asked = probe::ask(&self.settings, &self.configured, &program).await;
        let said = asked.as_ref().map(|(said, _)| *said).unwrap_or_default();
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
        let program = Some(program);
        match asked {
            Ok((_, version)) => Found { program, version, trouble: None },
            Err(trouble) => {
                let trouble = format!("{}: {trouble}; correct its command, or what it needs", self.configured.shown());
                Found { program, version: None, trouble: Some(trouble) }
            }
        }
    }
}

impl Agent for Generic {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn built(&self) -> crate::admission::built::Built {
        built(self.profile.kind, &self.configured)
    }

    fn look(&self) -> BoxFuture<'_, Found> {
        Box::pin(self.looks.look(find(&self.configured), |program| self.probe(program)))
    }

    fn declare(&self, settings: &Settings, found: &Found) -> Declaration {
        declaration::declare(self.profile.kind, &self.configured, self.said(), settings, found)
    }

    fn admit(&self, declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
        admission::check(&self.configured, declaration, configuration)
    }

    fn admit_key(&self, _declaration: &Declaration, _placement: &Placement) -> Result<(), NotAdmitted> {
        Err(refused("placement", start::holds_none(&self.configured.shown())))
    }

    fn set_up<'a>(
        &'a self,
        settings: &'a Settings,
        found: &'a Found,
        launch: &'a Launch,
    ) -> BoxFuture<'a, Result<SetUp, PrepareError>> {
        Box::pin(start::set_up(&self.configured, settings, found, launch))
    }
}

/// The program, without starting it.
fn find(configured: &Configured) -> Result<PathBuf, String> {
    let named = configured.command.first().map(String::as_str).unwrap_or_default();
    let shown = configured.shown();
    let path = match Path::new(named).is_absolute() {
        true => PathBuf::from(named),
        false => on_path(named).ok_or_else(|| {
            format!("{shown}: no program `{named}` on PATH; install it, or name it by its whole path")
        })?,
    };
    match path.metadata() {
        Ok(file) if file.is_file() => Ok(path),
        Ok(_) => Err(format!("{shown}: {named} is not a file")),
        Err(error) => Err(format!("{shown}: {named} cannot be read: {error}")),
    }
}

/// The protocols that it speaks.
fn protocols(configured: &Configured) -> Vec<ModelProtocol> {
    match &*configured.protocols {
        [] => vec![ModelProtocol::ChatCompletions],
        protocols => protocols.to_vec(),
    }
}

/// Whether it is told how many tokens there are.
fn needs_token_limits(configured: &Configured) -> bool {
    configured.uses(Placeholder::Context) || configured.uses(Placeholder::Output)
}

#[cfg(test)]
mod tests;
