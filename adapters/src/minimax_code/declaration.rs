//! What MiniMax Code supports, and what is switched off in it (R-CAP-1, R-CAP-2).

use super::{KIND, Settings, names};
use crate::{
    admission::NAME_PATTERN,
    harness::{
        AcceptedValues, Availability,
        Capability::{
            EnvironmentNone, ExecutionControls, FunctionTools, HomeRemoval, LocalEnvironment, McpHttpBearerAuth,
            McpHttpTools, MessageObservation, ParallelFunctionCalls, SessionResume, Steering,
        },
        ContextSize, Declaration, FunctionNames, Isolation, JsonFidelity, Limits, McpKind, McpLimits, McpOrigin,
        ModelProtocol, Proved, Row, SearchLimits, TextVerbosity, WebSearchMode,
    },
    probe::Found,
};

/// The version that everything here was read of (R-CAP-5).
pub(super) const QUALIFIED: &str = "0.4.12";

/// It gives up a call by itself, and nothing that ACP carries makes it wait longer.
pub(super) const CALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);

/// What the bridge adds to a message that MiniMax Code would take for a command: an empty block behind it, which is joined to the text in this way.
pub(super) const REWRITES: &[(&str, &str)] = &[("behind a message of one text that begins with /", "\n\n")];

/// What the files of the home switch off beyond what phones home.
pub(super) const SWITCHED_OFF: &[&str] = &[
    "agents",
    "browser",
    "goals",
    "media_tools",
    "memories",
    "skills",
    "user_questions",
    "web_search",
    "website_deploy",
];

/// Every capability that is declared, with the scenario that showed it. The program of these scenarios is a double: the real one was never there to be run.
pub(super) const PROVED: &[Row] = &[
    (EnvironmentNone, Some("acp_sessions::acp_nowhere"), None),
    (LocalEnvironment, None, Some("turns_tools::tool_exit_code")),
    (FunctionTools, Some("acp_sessions::acp_nowhere"), Some("acp_functions::acp_call")),
    (ParallelFunctionCalls, Some("acp_sessions::acp_nowhere"), Some("acp_functions::acp_parallel")),
    (Steering, Some("acp_turns::acp_steer_nowhere"), Some("acp_turns::acp_steer")),
    (SessionResume, Some("acp_sessions::acp_nowhere"), Some("acp_sessions::acp_restart")),
    (MessageObservation, Some("acp_sessions::acp_nowhere"), Some("acp_turns::acp_items")),
    // Without a workspace no server can be declared: from the service it connects to none.
    (McpHttpTools, None, Some("acp_mcp::acp_mcp")),
    (McpHttpBearerAuth, None, Some("acp_mcp::acp_mcp")),
    (ExecutionControls, Some("acp_controls::acp_controls_none"), Some("acp_controls::acp_controls_workspace")),
    (HomeRemoval, Some("acp_sessions::acp_nowhere"), Some("acp_sessions::acp_home")),
];

/// The declaration for what was found on this machine. Whether its own sandbox holds was never shown, so it supports a workspace only where something around the bridge
/// isolates it (R-PLC-1).
pub(super) fn declare(settings: &Settings, found: &Found) -> Declaration {
    let Found { program, version, trouble } = found.clone();
    let availability = trouble.map_or(Availability::Available, |reason| Availability::Unavailable { reason });
    Declaration {
        kind: KIND,
        qualified: availability == Availability::Available && version.as_deref() == Some(QUALIFIED),
        version,
        availability,
        none: Proved::under_none(PROVED, settings),
        workspace: match settings.isolation {
            Isolation::Outer => Proved::on_a_workspace(PROVED, settings),
            Isolation::Native => Vec::new(),
        },
        limits: limits(),
        switched_off: SWITCHED_OFF.to_vec(),
        isolation: settings.isolation,
        trust_workspace: settings.trust_workspace,
        program,
    }
}

/// Native limits, whatever was found.
pub(super) fn limits() -> Limits {
    const NONE: AcceptedValues = AcceptedValues { values: &[], by_model: false };
    Limits {
        function_names: FunctionNames {
            pattern: NAME_PATTERN,
            max_bytes: names::FUNCTION_BYTES,
            reserved: &[],
            reserved_prefixes: &[],
        },
        model_protocols: vec![ModelProtocol::Messages, ModelProtocol::Responses, ModelProtocol::ChatCompletions],
        needs_token_limits: true,
        argument_fidelity: JsonFidelity::Binary64,
        schema_fidelity: JsonFidelity::Value,
        integer_64: false,
        native_call_timeout: Some(CALL_TIMEOUT),
        binary64: false,
        description_characters: None,
        failed_result_images: false,
        // Its own search needs an account of its maker, which a provider of one's own does not give. A resolved control always has a size.
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
            transports: &[McpKind::Http],
            origins: &[McpOrigin::Environment],
            allowed_tools: &[],
            label_pattern: NAME_PATTERN,
            reserved_labels: &["oac_workspace"],
            refuses_expansions: false,
            stdio_in_workspace: false,
        },
        refuses_blank_messages: true,
        result_characters: None,
        input_rewrites: REWRITES.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::harness::Capability;

    fn declared(isolation: Isolation, version: &str, trouble: Option<&str>) -> Declaration {
        let settings = Settings::new(PathBuf::from("/keeper"), isolation);
        let program = Some(PathBuf::from("/mcode"));
        declare(&settings, &Found { program, version: Some(version.into()), trouble: trouble.map(Into::into) })
    }

    #[test]
    fn names_are_sorted_for_readers() {
        assert!(SWITCHED_OFF.is_sorted());
    }

    #[test]
    fn only_the_version_that_was_read_is_qualified() {
        assert!(declared(Isolation::Outer, QUALIFIED, None).qualified);
        let newer = declared(Isolation::Outer, "0.5.0", None);
        assert!(!newer.qualified && newer.availability == Availability::Available);
        assert!(!declared(Isolation::Outer, QUALIFIED, Some("no luck")).qualified);
    }

    #[test]
    fn a_workspace_needs_somebody_else_to_isolate_it() {
        let native = declared(Isolation::Native, QUALIFIED, None);
        assert!(native.workspace.is_empty() && native.availability == Availability::Available);
        assert_eq!(native.none, declared(Isolation::Outer, QUALIFIED, None).none);
    }

    #[test]
    fn what_was_never_shown_is_not_declared() {
        for capability in [
            Capability::StructuredOutput,
            Capability::Usage,
            Capability::ToolSearch,
            Capability::MessageImages,
            Capability::FunctionResultImages,
            Capability::TextVerbosity,
            Capability::McpHttpRequired,
            Capability::NativeSessionRecovery,
            Capability::StrictCalls,
        ] {
            assert!(PROVED.iter().all(|(declared, ..)| *declared != capability), "{capability:?}");
        }
    }
}
