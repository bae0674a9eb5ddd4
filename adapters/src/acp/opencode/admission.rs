//! Checks a configuration against what opencode takes, before any native effect (R-PRE-1). The first thing that does not fit is the answer.

use super::{config, declaration};
use crate::{
    acp::declared,
    admission::{self, NAME_PATTERN, Native, Taker, built::Built, refused},
    harness::{Configuration, Declaration, Isolation, NotAdmitted, Placement, Proved},
};

/// What only this adapter minds.
const NATIVE: Native =
    Native { tools: native_tools, format: |_| Ok(()), settings: |text| admission::no_harness_config("opencode", text) };

/// What `Admit` judges by, without opencode.
pub(in crate::acp) fn built(kind: &'static str) -> Built {
    Built {
        kind,
        limits: declaration::limits(),
        protocols: &["chat_completions"],
        capabilities: |placement| Proved::ever(declaration::PROVED, placement),
        native: NATIVE,
    }
}

/// Checks a whole configuration against what is declared for its placement (R-CAP-6).
pub(super) fn check(declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
    if declaration.isolation == Isolation::Native && configuration.placement != Placement::None {
        return Err(refused(
            "placement",
            "opencode has no sandbox, so it is not run on a workspace; set isolation = \"outer\" where the container or machine around the \
             bridge isolates it",
        ));
    }
    let taker = Taker::declared(declaration, &configuration.placement);
    admission::declared(&taker, NATIVE, configuration)?;
    admission::selection(&taker, configuration)?;
    for (field, text) in [("model", &configuration.model), ("provider.base_url", &configuration.provider.base_url)] {
        if config::is_expanded(text) {
            return Err(refused(field, "has {env:, {file: or ${, in whose place opencode puts something else"));
        }
    }
    Ok(())
}

fn native_tools(configuration: &Configuration) -> Result<(), NotAdmitted> {
    for (index, function) in configuration.functions.iter().enumerate() {
        admission::name(index, &function.name, declaration::FUNCTION_BYTES, NAME_PATTERN)?;
    }
    for (index, server) in configuration.mcp_servers.iter().enumerate() {
        let label = &*server.label;
        if config::spelled(label) != label {
            let message = "is spelled in another way by opencode; it takes letters, digits, - and _";
            return Err(refused(format!("tools.mcp_servers[{index}].label"), message));
        }
    }
    declared::labels_are_apart(configuration)
}

#[cfg(test)]
mod tests;
