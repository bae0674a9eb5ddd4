//! What the declarations and the admissions of agents behind ACP have in common.

use super::profile::FUNCTIONS;
use crate::{
    admission::{NAME_PATTERN, refused},
    harness::{
        AcceptedValues, Availability, Configuration, ContextSize, Declaration, FunctionNames, Isolation, JsonFidelity,
        Limits, McpKind, McpLimits, McpOrigin, ModelProtocol, NotAdmitted, Proved, Row, SearchLimits, Settings,
        TextVerbosity, WebSearchMode,
    },
    probe::Found,
};

/// The declaration of an agent of this version for what was found on this machine. It supports a workspace only where something around the bridge isolates it: that a sandbox
/// of its own holds was never shown (R-PLC-1).
pub(crate) fn declaration(
    kind: &'static str,
    qualified: &str,
    (proved, switched_off): (&[Row], &[&'static str]),
    limits: Limits,
    settings: &Settings,
    found: &Found,
) -> Declaration {
    let Found { program, version, trouble } = found.clone();
    let availability = trouble.map_or(Availability::Available, |reason| Availability::Unavailable { reason });
    Declaration {
        kind,
        qualified: availability == Availability::Available && version.as_deref() == Some(qualified),
        version,
        availability,
        none: Proved::under_none(proved, settings),
        workspace: match settings.isolation {
            Isolation::Outer => Proved::on_a_workspace(proved, settings),
            Isolation::Native => Vec::new(),
        },
        limits,
        switched_off: switched_off.to_vec(),
        isolation: settings.isolation,
        trust_workspace: settings.trust_workspace,
        program,
    }
}

/// Limits of an agent that takes these protocols, and functions with names of at most so many bytes; what differs stands in its own declaration. Its own search, where it has
/// one, is one of somebody else's service.
pub(crate) fn limits(protocols: Vec<ModelProtocol>, function_bytes: usize) -> Limits {
    const NONE: AcceptedValues = AcceptedValues { values: &[], by_model: false };
    Limits {
        function_names: FunctionNames {
            pattern: NAME_PATTERN,
            max_bytes: function_bytes,
            reserved: &[],
            reserved_prefixes: &[],
        },
        model_protocols: protocols,
        needs_token_limits: true,
        argument_fidelity: JsonFidelity::Binary64,
        schema_fidelity: JsonFidelity::LossySchema,
        integer_64: false,
        native_call_timeout: None,
        binary64: false,
        description_characters: None,
        failed_result_images: false,
        // A resolved control always has a size.
        web_search: SearchLimits {
            modes: &[WebSearchMode::Disabled],
            context_sizes: &[ContextSize::Medium],
            domains: false,
            location: false,
        },
        programmatic_tool_calling: &[false],
        text_verbosities: &[TextVerbosity::Medium],
        reasoning_efforts: NONE,
        reasoning_summaries: NONE,
        service_tiers: NONE,
        mcp: McpLimits {
            transports: &[McpKind::Http, McpKind::Stdio],
            origins: &[McpOrigin::Environment],
            allowed_tools: &[],
            label_pattern: NAME_PATTERN,
            reserved_labels: &[],
            refuses_expansions: false,
            stdio_in_workspace: true,
        },
        refuses_blank_messages: true,
        result_characters: None,
        input_rewrites: Vec::new(),
    }
}

/// Checks that the tools of the servers can be told apart where each is named by its server's label, `_` and its own name: one label with its `_` must not begin another one's.
pub(crate) fn labels_are_apart(configuration: &Configuration) -> Result<(), NotAdmitted> {
    let begins =
        |one: &str, other: &str| one == other || other.strip_prefix(one).is_some_and(|rest| rest.starts_with('_'));
    let servers = &configuration.mcp_servers;
    for (index, server) in servers.iter().enumerate() {
        let label = &*server.label;
        let functions = (!configuration.functions.is_empty()).then_some(FUNCTIONS);
        let mut others = servers[..index].iter().map(|server| &*server.label).chain(functions);
        if let Some(other) = others.find(|other| begins(other, label) || begins(label, other)) {
            let message = format!(
                "cannot be told from the label {other} in the names of tools, where _ stands between label and tool"
            );
            return Err(refused(format!("tools.mcp_servers[{index}].label"), message));
        }
    }
    Ok(())
}
