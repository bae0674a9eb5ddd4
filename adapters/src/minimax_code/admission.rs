//! Checks a configuration against what MiniMax Code takes, before any native effect (R-PRE-1). The first thing that does not fit is the answer.

use super::{KIND, declaration, names};
use crate::{
    acp::profile::FUNCTIONS,
    admission::{self, NAME_PATTERN, Native, Taker, built::Built, refused},
    harness::{Configuration, Declaration, Isolation, NotAdmitted, Placement, Proved},
};

/// The most bytes of its global instructions, which those of a Session are.
const INSTRUCTIONS: usize = 32 << 10;

/// What only this adapter minds.
const NATIVE: Native =
    Native { tools: native_tools, format: |_| Ok(()), settings: |text| admission::no_harness_config(KIND, text) };

/// What `Admit` judges by, without MiniMax Code.
pub(crate) fn built() -> Built {
    Built {
        kind: KIND,
        limits: declaration::limits(),
        protocols: &["messages", "responses", "chat_completions"],
        capabilities: |placement| Proved::ever(declaration::PROVED, placement),
        native: NATIVE,
    }
}

/// Checks a whole configuration against what is declared for its placement (R-CAP-6).
pub(super) fn check(declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
    if declaration.isolation == Isolation::Native && configuration.placement != Placement::None {
        return Err(refused(
            "placement",
            "the sandbox of minimax_code was never shown to hold, so it is not run on a workspace; set isolation = \"outer\" where the \
             container or machine around the bridge isolates it",
        ));
    }
    let taker = Taker::declared(declaration, &configuration.placement);
    admission::declared(&taker, NATIVE, configuration)?;
    admission::selection(&taker, configuration)?;
    instructions(&configuration.instructions)
}

/// They are a file that is read up to a limit; what is longer is refused, never cut.
fn instructions(text: &str) -> Result<(), NotAdmitted> {
    match text.len() <= INSTRUCTIONS {
        true => Ok(()),
        false => Err(refused("instructions", format!("is longer than the {INSTRUCTIONS} bytes that {KIND} reads"))),
    }
}

fn native_tools(configuration: &Configuration) -> Result<(), NotAdmitted> {
    let (functions, servers) = (&configuration.functions, &configuration.mcp_servers);
    for (index, function) in functions.iter().enumerate() {
        admission::name(index, &function.name, names::FUNCTION_BYTES, NAME_PATTERN)?;
    }
    admission::alike(KIND, functions.iter().map(|function| &*function.name), names::spelled, |index| {
        format!("tools.functions[{index}].name")
    })?;
    for (index, server) in servers.iter().enumerate() {
        let field = || format!("tools.mcp_servers[{index}].label");
        // Functions are served under it.
        if server.label == FUNCTIONS && !functions.is_empty() {
            let message =
                format!("is the label under which {KIND} is served the functions; without functions it is free");
            return Err(refused(field(), message));
        }
        if !names::is_own(&server.label) {
            let message = format!(
                "is spelled in another way by {KIND}; it takes at most {} letters, digits, - and _, with no _ at its ends and no two of \
                 them together",
                names::LABEL_BYTES
            );
            return Err(refused(field(), message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
