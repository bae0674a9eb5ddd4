//! What MiniMax Code supports, and what is switched off in it (R-CAP-1, R-CAP-2).

use super::{KIND, Settings, names};
use crate::{
    acp::declared,
    harness::{
        Capability::{
            EnvironmentNone, ExecutionControls, FunctionTools, HomeRemoval, LocalEnvironment, McpHttpBearerAuth,
            McpHttpTools, MessageObservation, ParallelFunctionCalls, SessionResume, Steering,
        },
        Declaration, JsonFidelity, Limits, McpKind, McpLimits, ModelProtocol, Row,
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

/// The declaration for what was found on this machine.
pub(super) fn declare(settings: &Settings, found: &Found) -> Declaration {
    declared::declaration(KIND, QUALIFIED, (PROVED, SWITCHED_OFF), limits(), settings, found)
}

/// Native limits, whatever was found.
pub(super) fn limits() -> Limits {
    let protocols = vec![ModelProtocol::Messages, ModelProtocol::Responses, ModelProtocol::ChatCompletions];
    let common = declared::limits(protocols, names::FUNCTION_BYTES);
    Limits {
        schema_fidelity: JsonFidelity::Value,
        native_call_timeout: Some(CALL_TIMEOUT),
        mcp: McpLimits {
            // A process it would start in the home of the Session.
            transports: &[McpKind::Http],
            reserved_labels: &["oac_workspace"],
            stdio_in_workspace: false,
            ..common.mcp
        },
        input_rewrites: REWRITES.to_vec(),
        ..common
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::harness::{Availability, Capability, Isolation};

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
