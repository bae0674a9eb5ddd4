//! What opencode supports, and what is switched off in it (R-CAP-1, R-CAP-2).

use std::time::Duration;

use crate::{
    acp::{declared, profile::FUNCTIONS},
    harness::{
        Capability::{
            EnvironmentNone, ExecutionControls, FunctionTools, HomeRemoval, LocalEnvironment, McpHttpBearerAuth,
            McpHttpTools, MessageObservation, ParallelFunctionCalls, SessionResume,
        },
        Declaration, Limits, McpLimits, ModelProtocol, Row, Settings,
    },
    probe::Found,
};

/// The version that everything here was seen of (R-CAP-5).
pub(super) const QUALIFIED: &str = "1.18.33";

/// It gives up a call by itself. This is the longest that a timer of its runtime can be told, and what it is told: a longer one would fire at once.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_millis(2_147_483_647);

/// The longest name of a tool that providers of Chat Completions take.
const NAME_BYTES: usize = 64;
/// The longest name of a function: `functions_` stands before it.
pub(super) const FUNCTION_BYTES: usize = NAME_BYTES - FUNCTIONS.len() - 1;

/// The most UTF-16 code units of a result: each is at most three bytes, and two bytes stand between two texts. Longer ones it would cut.
pub(super) const RESULT_CHARACTERS: usize = 96_000;

/// What the bridge adds to a message that opencode would take for a command.
pub(super) const REWRITES: &[(&str, &str)] =
    &[("before a first text that begins with /, behind white space or not", "\u{200b}")];

/// What the files of the home and the variables switch off.
pub(super) const SWITCHED_OFF: &[&str] = &[
    "agents",
    "claude_code_files",
    "compaction",
    "default_plugins",
    "language_server_downloads",
    "project_configuration",
    "sharing",
    "skills",
    "snapshots",
    "titles",
    "updates",
    "user_questions",
    "web_search",
];

/// Every capability that is declared, with the scenario that showed it.
pub(super) const PROVED: &[Row] = &[
    (EnvironmentNone, Some("acp_sessions::acp_nowhere"), None),
    (LocalEnvironment, None, Some("turns_tools::tool_exit_code")),
    (FunctionTools, Some("acp_sessions::acp_nowhere"), Some("acp_functions::acp_call")),
    (ParallelFunctionCalls, Some("acp_sessions::acp_nowhere"), Some("acp_functions::acp_parallel")),
    (SessionResume, Some("acp_sessions::acp_nowhere"), Some("acp_sessions::acp_restart")),
    (MessageObservation, Some("acp_sessions::acp_nowhere"), Some("acp_turns::acp_items")),
    // Without a workspace no server can be declared: from the service it connects to none.
    (McpHttpTools, None, Some("acp_mcp::acp_mcp")),
    (McpHttpBearerAuth, None, Some("acp_mcp::acp_mcp")),
    (ExecutionControls, Some("acp_controls::acp_controls_none"), Some("acp_controls::acp_controls_workspace")),
    (HomeRemoval, Some("acp_sessions::acp_nowhere"), Some("acp_sessions::acp_home")),
];

/// The declaration for what was found on this machine.
pub(super) fn declare(kind: &'static str, settings: &Settings, found: &Found) -> Declaration {
    declared::declaration(kind, QUALIFIED, (PROVED, SWITCHED_OFF), limits(), settings, found)
}

/// Native limits, whatever was found.
pub(super) fn limits() -> Limits {
    let common = declared::limits(vec![ModelProtocol::ChatCompletions], FUNCTION_BYTES);
    Limits {
        native_call_timeout: Some(CALL_TIMEOUT),
        mcp: McpLimits {
            // With these a tool of a server could have the name of a native one.
            reserved_labels: &["apply", "plan"],
            ..common.mcp
        },
        refuses_blank_messages: false,
        result_characters: Some(RESULT_CHARACTERS),
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
        let program = Some(PathBuf::from("/opencode"));
        declare("oc", &settings, &Found { program, version: Some(version.into()), trouble: trouble.map(Into::into) })
    }

    #[test]
    fn only_the_version_that_was_seen_is_qualified() {
        assert!(declared(Isolation::Outer, QUALIFIED, None).qualified);
        let newer = declared(Isolation::Outer, "1.19.0", None);
        assert!(!newer.qualified && newer.availability == Availability::Available);
        assert!(!declared(Isolation::Outer, QUALIFIED, Some("no luck")).qualified);
    }

    #[test]
    fn a_workspace_needs_somebody_else_to_isolate_it() {
        let native = declared(Isolation::Native, QUALIFIED, None);
        assert!(native.workspace.is_empty() && !native.none.is_empty());
        assert_eq!(native.none, declared(Isolation::Outer, QUALIFIED, None).none);
    }

    #[test]
    fn what_was_never_shown_is_not_declared() {
        assert!(SWITCHED_OFF.is_sorted());
        for capability in [
            Capability::Steering,
            Capability::StructuredOutput,
            Capability::Usage,
            Capability::ToolSearch,
            Capability::MessageImages,
            Capability::FunctionResultImages,
            Capability::McpHttpRequired,
            Capability::NativeSessionRecovery,
            Capability::StrictCalls,
        ] {
            assert!(PROVED.iter().all(|(declared, ..)| *declared != capability), "{capability:?}");
        }
    }
}
