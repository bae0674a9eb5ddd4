//! What adapters are built for, whatever this machine has (R-CAP-1): for `Admit`, which needs no Harness. A declaration says what of it works here.

use super::{Native, Taker, declared, refused};
use crate::{
    claude_code, codex,
    harness::{Capability, Configuration, Limits, NotAdmitted, Placement},
    minimax_code,
};

/// The kinds of Harnesses that are known, sorted.
pub const KINDS: [&str; 3] = [claude_code::KIND, codex::KIND, minimax_code::KIND];

/// What an adapter is built for.
#[derive(Debug)]
pub struct Built {
    /// Kind of the Harness.
    pub kind: &'static str,
    /// Native limits.
    pub limits: Limits,
    /// Names of the protocols to model providers that the Harness speaks.
    pub protocols: &'static [&'static str],
    pub(crate) capabilities: fn(&Placement) -> Vec<Capability>,
    pub(crate) native: Native,
}

impl Built {
    /// What the adapter of this kind is built for; none where there is no such kind.
    #[must_use]
    pub fn of(kind: &str) -> Option<Self> {
        match kind {
            claude_code::KIND => Some(claude_code::built()),
            codex::KIND => Some(codex::built()),
            minimax_code::KIND => Some(minimax_code::built()),
            _ => None,
        }
    }

    /// Checks tools and controls as a preparation does, but for what may be missing here. Model, provider and instructions are not looked at.
    ///
    /// # Errors
    /// The first that does not fit.
    pub fn admit(&self, configuration: &Configuration) -> Result<(), NotAdmitted> {
        let capabilities = (self.capabilities)(&configuration.placement);
        let taker = Taker { kind: self.kind, limits: &self.limits, capabilities };
        declared(&taker, self.native, configuration)
    }

    /// Checks what is said of the model provider: its protocol, and whether its token limits are told.
    ///
    /// # Errors
    /// What does not fit.
    pub fn provided(&self, protocol: &str, has_token_limits: bool) -> Result<(), NotAdmitted> {
        if !self.protocols.contains(&protocol) {
            let message = format!("{} speaks {} only", self.kind, self.protocols.join(", "));
            return Err(refused("model_provider.protocol", message));
        }
        if self.limits.needs_token_limits && !has_token_limits {
            return Err(super::needs_token_limits("model_provider", self.kind));
        }
        Ok(())
    }
}
