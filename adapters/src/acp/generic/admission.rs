//! Checks a configuration against what such an agent takes, before any native effect (R-PRE-1). The first thing that does not fit is the answer.

use super::{declaration, protocols};
use crate::{
    acp::{
        configured::{Configured, Placeholder},
        declared,
    },
    admission::{self, NAME_PATTERN, Native, Taker, built::Built, refused},
    harness::{Configuration, Declaration, Isolation, ModelProtocol, NotAdmitted, Placement, Proved},
};

/// What only this adapter minds.
const NATIVE: Native = Native {
    tools: native_tools,
    format: |_| Ok(()),
    settings: |text| admission::no_harness_config("an agent of the profile generic", text),
};

/// What `Admit` judges by, without the agent.
pub(in crate::acp) fn built(kind: &'static str, configured: &Configured) -> Built {
    Built {
        kind,
        limits: declaration::limits(configured),
        protocols: named(&protocols(configured)),
        capabilities: |placement| Proved::ever(declaration::PROVED, placement),
        native: NATIVE,
    }
}

/// The names of some protocols, which live as long as the daemon.
fn named(protocols: &[ModelProtocol]) -> &'static [&'static str] {
    let has = |protocol| protocols.contains(&protocol);
    match (has(ModelProtocol::ChatCompletions), has(ModelProtocol::Messages), has(ModelProtocol::Responses)) {
        (false, false, false) => &[],
        (true, false, false) => &["chat_completions"],
        (false, true, false) => &["messages"],
        (false, false, true) => &["responses"],
        (true, true, false) => &["chat_completions", "messages"],
        (true, false, true) => &["chat_completions", "responses"],
        (false, true, true) => &["messages", "responses"],
        (true, true, true) => &["chat_completions", "messages", "responses"],
    }
}

/// Checks a whole configuration against what is declared for its placement (R-CAP-6).
pub(super) fn check(
    configured: &Configured,
    declaration: &Declaration,
    configuration: &Configuration,
) -> Result<(), NotAdmitted> {
    let kind = declaration.kind;
    if configuration.placement == Placement::None {
        let message = format!("that {kind} offers no tool of its own cannot be shown, so it runs on a workspace only");
        return Err(refused("placement", message));
    }
    if declaration.isolation == Isolation::Native || !declaration.trust_workspace {
        let message = format!(
            "what {kind} does with a workspace and loads from it is not known; set isolation = \"outer\" where the container or machine \
             around the bridge isolates it, and trust_workspace = true"
        );
        return Err(refused("placement", message));
    }
    let taker = Taker::declared(declaration, &configuration.placement);
    admission::declared(&taker, NATIVE, configuration)?;
    admission::selection(&taker, configuration)?;
    for (field, text) in [("model", &configuration.model), ("provider.base_url", &configuration.provider.base_url)] {
        if !is_plain(text) {
            return Err(refused(
                field,
                format!("has quotes, \\ or control characters, which the files of {kind} cannot have"),
            ));
        }
    }
    if !configuration.instructions.is_empty() && !configured.uses(Placeholder::InstructionsFile) {
        let message = format!("{kind} is told none: its configuration has no {{instructions_file}}");
        return Err(refused("instructions", message));
    }
    Ok(())
}

/// Whether a text stands for itself between the quotes of a file, whatever its format is.
pub(super) fn is_plain(text: &str) -> bool {
    !text.chars().any(|one| matches!(one, '"' | '\'' | '\\' | '`' | '$') || one.is_control())
}

fn native_tools(configuration: &Configuration) -> Result<(), NotAdmitted> {
    for (index, function) in configuration.functions.iter().enumerate() {
        admission::name(index, &function.name, declaration::FUNCTION_BYTES, NAME_PATTERN)?;
    }
    for (index, server) in configuration.mcp_servers.iter().enumerate() {
        // Such names are spelled in one way or another, and a server of one is not told from another one's tool.
        if server.label.contains("__") || server.label.starts_with("functions_") {
            let message = "must not have two _ together, and must not begin with functions_";
            return Err(refused(format!("tools.mcp_servers[{index}].label"), message));
        }
    }
    declared::labels_are_apart(configuration)
}
