//! What Codex supports, and what is switched off in it (R-CAP-1, R-CAP-2).

use super::{KIND, Settings};
use crate::harness::{
    AcceptedValues, Availability,
    Capability::{
        self, EnvironmentNone, ExecutionControls, FunctionResultImages, FunctionTools, HomeRemoval, LocalEnvironment,
        McpHttpBearerAuth, McpHttpRequired, McpHttpTools, MessageImages, MessageObservation, NativeSessionRecovery,
        ParallelFunctionCalls, SessionResume, Steering, StrictCalls, StructuredOutput, Usage,
    },
    ContextSize, Declaration, FunctionNames, JsonFidelity, Limits, McpKind, McpLimits, McpOrigin, ModelProtocol,
    Proved, Row, SearchLimits, TextVerbosity, WebSearchMode,
};
use crate::probe::Found;

/// The version on which everything here was proved (R-CAP-5).
pub(super) const QUALIFIED: &str = "0.171.0";

/// Native rule for names of functions.
pub(super) use crate::admission::NAME_PATTERN;
/// Native limit for names of functions.
pub(super) const NAME_BYTES: usize = 128;

/// Names that Codex keeps: the tools of its namespaces, as scripts see them.
pub(super) const RESERVED_PREFIXES: &[&str] = &["clock__", "collaboration__", "mcp__", "multi_agent_v1__", "web__"];

/// Names of Codex's own tools, over all bundled models, with code mode and with what the bridge switches off. A function of the same name
/// fails the Turn, or vanishes from what the model is offered (`shell_command` does for every model).
pub(super) const RESERVED: &[&str] = &[
    "apply_patch",
    "create_goal",
    "exec",
    "exec_command",
    "get_goal",
    "list_mcp_resource_templates",
    "list_mcp_resources",
    "literature_search_query",
    "local_shell",
    "read_mcp_resource",
    "request_user_input",
    "request_user_input_async",
    "send_message_to_user_async",
    "send_user_message_async",
    "shell",
    "shell_command",
    "tool_search",
    "update_goal",
    "update_plan",
    "view_image",
    "wait",
    "web_search",
    "write_stdin",
];

/// What the start-up file switches off beyond what phones home.
pub(super) const SWITCHED_OFF: &[&str] =
    &["agents", "apps", "goals", "memories", "plugins", "shell_snapshot", "skill_instructions", "user_questions"];

/// Every capability that is declared, with what proved it.
pub(super) const PROVED: &[Row] = &[
    (EnvironmentNone, Some("placement_none::none_offers"), None),
    (LocalEnvironment, None, Some("turns_tools::tool_command")),
    (FunctionTools, Some("placement_none::none_functions"), Some("turns_functions::function_call")),
    (ParallelFunctionCalls, Some("placement_none::none_functions"), Some("turns_functions::function_parallel")),
    (Steering, Some("placement_none::none_steer"), Some("turns_steer::steer_stream")),
    (FunctionResultImages, Some("placement_none::none_images"), Some("functions_results::function_images")),
    (MessageImages, Some("placement_none::none_images"), Some("messages_images::message_images")),
    (StructuredOutput, Some("output_schema::output_schema_nowhere"), Some("output_schema::output_schema_sent")),
    (SessionResume, Some("placement_none::none_resume"), Some("resume_cold::resume_restart")),
    (
        NativeSessionRecovery,
        Some("resume_reconciled::reconciled_nowhere"),
        Some("resume_reconciled::reconciled_completed"),
    ),
    (MessageObservation, Some("placement_none::none_text"), Some("turns_text::text_streams")),
    (Usage, Some("placement_none::none_text"), Some("turns_text::text_next_turn")),
    (McpHttpTools, Some("mcp_http::mcp_nowhere"), Some("mcp_http::mcp_tools")),
    (McpHttpRequired, Some("mcp_http::mcp_nowhere"), Some("mcp_required::mcp_required")),
    (McpHttpBearerAuth, Some("mcp_http::mcp_nowhere"), Some("mcp_http::mcp_bearer")),
    (StrictCalls, Some("strict_calls::strict_nowhere"), Some("strict_calls::strict_withheld")),
    (ExecutionControls, Some("controls::controls_none"), Some("controls::controls_workspace")),
    (Capability::TextVerbosity, Some("controls::settings_none"), Some("controls::settings_workspace")),
    (HomeRemoval, Some("placement_none::none_release"), Some("turns_release::release_home")),
];

/// The declaration for what was found on this machine.
pub(super) fn declare(settings: &Settings, found: Found) -> Declaration {
    let Found { program, version, trouble } = found;
    let availability = trouble.map_or(Availability::Available, |reason| Availability::Unavailable { reason });
    Declaration {
        kind: KIND,
        qualified: availability == Availability::Available && version.as_deref() == Some(QUALIFIED),
        version,
        availability,
        none: Proved::under_none(PROVED, settings),
        workspace: Proved::on_a_workspace(PROVED, settings),
        limits: Limits {
            function_names: FunctionNames {
                pattern: NAME_PATTERN,
                max_bytes: NAME_BYTES,
                reserved: RESERVED,
                reserved_prefixes: RESERVED_PREFIXES,
            },
            model_protocols: vec![ModelProtocol::Responses],
            needs_token_limits: false,
            argument_fidelity: JsonFidelity::Value,
            schema_fidelity: JsonFidelity::LossySchema,
            integer_64: true,
            // A call that nobody answers holds the Turn for ever.
            native_call_timeout: None,
            binary64: false,
            description_characters: None,
            failed_result_images: true,
            web_search: SearchLimits {
                modes: &[WebSearchMode::Disabled, WebSearchMode::Cached, WebSearchMode::Live],
                context_sizes: &[ContextSize::Low, ContextSize::Medium, ContextSize::High],
                domains: true,
                location: true,
            },
            programmatic_tool_calling: &[false, true],
            text_verbosities: &[TextVerbosity::Low, TextVerbosity::Medium, TextVerbosity::High],
            // `ultra`, which models list too, has Codex start agents and asks the provider for another effort.
            reasoning_efforts: AcceptedValues {
                values: &["high", "low", "max", "medium", "minimal", "none", "xhigh"],
                by_model: true,
            },
            reasoning_summaries: AcceptedValues { values: &["auto", "concise", "detailed", "none"], by_model: false },
            // `default` is natively one too, and asks the provider for none.
            service_tiers: AcceptedValues { values: &["auto", "fast", "flex", "priority"], by_model: true },
            mcp: McpLimits {
                transports: &[McpKind::Http, McpKind::Stdio],
                origins: &[McpOrigin::Service, McpOrigin::Environment],
                allowed_tools: &[McpKind::Http, McpKind::Stdio],
                label_pattern: "^[a-zA-Z0-9_:@/.-]+$",
                reserved_labels: &["codex_apps"],
                refuses_expansions: false,
                stdio_in_workspace: false,
            },
            refuses_blank_messages: false,
            result_characters: None,
            input_rewrites: Vec::new(),
        },
        switched_off: SWITCHED_OFF.to_vec(),
        isolation: settings.isolation,
        trust_workspace: settings.trust_workspace,
        program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_for_look_up_and_for_readers() {
        for list in [RESERVED, RESERVED_PREFIXES, SWITCHED_OFF] {
            assert!(list.is_sorted(), "{list:?}");
        }
    }
}
