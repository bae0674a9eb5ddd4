//! What an agent supports of which nothing is known but what it says (R-CAP-1, R-CAP-2).

use super::{Said, needs_token_limits, protocols};
use crate::{
    acp::{configured::Configured, declared, profile::FUNCTIONS},
    harness::{
        Availability,
        Capability::{
            self, ExecutionControls, FunctionTools, HomeRemoval, LocalEnvironment, McpHttpBearerAuth, McpHttpTools,
            MessageObservation,
        },
        Declaration, Isolation, Limits, McpLimits, Proved, Row, SearchLimits, Settings,
    },
    probe::Found,
};

/// The longest name of a tool that providers take.
const NAME_BYTES: usize = 64;
/// The longest name of a function: `mcp__functions__` stands before it.
pub(super) const FUNCTION_BYTES: usize = NAME_BYTES - FUNCTIONS.len() - "mcp____".len();

/// What the bridge adds to a message that the agent could take for a command.
const REWRITES: &[(&str, &str)] = &[("before a first text that begins with /, behind white space or not", "\u{200b}")];

/// Every capability that is declared where the agent says that it is there, with the scenario that showed it with this profile, on an agent that says so. Without a workspace there is none:
/// that an agent offers no tool of its own cannot be seen from what it says.
pub(super) const PROVED: &[Row] = &[
    (LocalEnvironment, None, Some("acp_generic::acp_generic_tools")),
    (FunctionTools, None, Some("acp_generic::acp_generic")),
    (MessageObservation, None, Some("acp_generic::acp_generic")),
    (McpHttpTools, None, Some("acp_generic::acp_generic_tools")),
    (McpHttpBearerAuth, None, Some("acp_generic::acp_generic_tools")),
    (ExecutionControls, None, Some("acp_generic::acp_generic_tools")),
    (HomeRemoval, None, Some("acp_generic::acp_generic_tools")),
];

/// The declaration for what was found on this machine. A workspace is supported only where something around the bridge isolates the agent, and the operator trusts what is in
/// it: what an agent loads from there is not known (R-PLC-1).
pub(super) fn declare(
    kind: &'static str,
    configured: &Configured,
    said: Said,
    settings: &Settings,
    found: &Found,
) -> Declaration {
    let Found { program, version, trouble } = found.clone();
    let availability = trouble.map_or(Availability::Available, |reason| Availability::Unavailable { reason });
    let takes_workspace = settings.isolation == Isolation::Outer && settings.trust_workspace;
    let mut workspace = if takes_workspace { Proved::on_a_workspace(PROVED, settings) } else { Vec::new() };
    workspace.retain(|proved| said.mcp_http || !needs_mcp(proved.capability()));
    Declaration {
        kind,
        // Nothing was shown of any version.
        qualified: false,
        version,
        availability,
        none: Vec::new(),
        workspace,
        limits: limits(configured),
        switched_off: Vec::new(),
        isolation: settings.isolation,
        trust_workspace: settings.trust_workspace,
        program,
    }
}

fn needs_mcp(capability: Capability) -> bool {
    matches!(capability, FunctionTools | McpHttpTools | McpHttpBearerAuth)
}

/// Limits, whatever was found.
pub(super) fn limits(configured: &Configured) -> Limits {
    let common = declared::limits(protocols(configured), FUNCTION_BYTES);
    Limits {
        needs_token_limits: needs_token_limits(configured),
        // Whether it searches is not known.
        web_search: SearchLimits { modes: &[], ..common.web_search },
        mcp: McpLimits { reserved_labels: &[FUNCTIONS], refuses_expansions: true, ..common.mcp },
        input_rewrites: REWRITES.to_vec(),
        ..common
    }
}
