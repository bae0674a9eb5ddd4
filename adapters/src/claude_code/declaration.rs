//! What Claude Code supports, and what is switched off in it (R-CAP-1, R-CAP-2).

use super::{KIND, Settings, functions, schema};
use crate::{
    harness::{
        AcceptedValues, Availability,
        Capability::{
            EnvironmentNone, ExecutionControls, FunctionResultImages, FunctionTools, HomeRemoval, LocalEnvironment,
            McpHttpBearerAuth, McpHttpRequired, McpHttpTools, MessageImages, MessageObservation, NativeSessionRecovery,
            ParallelFunctionCalls, SessionResume, Steering, StrictCalls, StructuredOutput, ToolSearch, Usage,
        },
        ContextSize, Declaration, FunctionNames, Isolation, JsonFidelity, Limits, McpKind, McpLimits, McpOrigin,
        ModelProtocol, Proved, Row, SearchLimits, TextVerbosity, WebSearchMode,
    },
    probe::Found,
};

/// The version on which everything here was proved (R-CAP-5).
pub(super) const QUALIFIED: &str = "2.1.332";

/// Native rule for names of functions: other characters become `_` in what the model reads.
pub(super) use crate::admission::NAME_PATTERN;

/// Native limit for names of functions: a tool's name has at most 128 bytes, and Claude Code puts `mcp__functions__` before it. It drops
/// a function with a longer name without a word.
pub(super) const NAME_BYTES: usize = 112;

/// Native limit for descriptions of functions, in UTF-16 code units; what is longer is cut.
pub(super) const DESCRIPTION: usize = 4096;

/// Names of Claude Code's own tools, with what the bridge does not offer and with those that it needs itself. A function of the same name would
/// not be lost, but the two could not be told apart by the people who read them.
pub(super) const RESERVED: &[&str] = &[
    "Agent",
    "Artifact",
    "AskUserQuestion",
    "Bash",
    "CronCreate",
    "CronDelete",
    "CronList",
    "DeferredToolPlaceholder",
    "Edit",
    "EnterPlanMode",
    "EnterWorktree",
    "ExitPlanMode",
    "ExitWorktree",
    "Glob",
    "Grep",
    "LSP",
    "ListAgents",
    "ListMcpResourcesTool",
    "Monitor",
    "NotebookEdit",
    "PushNotification",
    "Read",
    "ReadMcpResourceDirTool",
    "ReadMcpResourceTool",
    "RemoteTrigger",
    "ReportFindings",
    "ScheduleWakeup",
    "SendMessage",
    "Skill",
    "StructuredOutput",
    "Task",
    "TaskCreate",
    "TaskGet",
    "TaskList",
    "TaskStop",
    "TaskUpdate",
    "TodoWrite",
    "ToolSearch",
    "WebFetch",
    "WebSearch",
    "Workflow",
    "Write",
];

/// What the arguments, the environment and the list of tools switch off beyond what phones home.
pub(super) const SWITCHED_OFF: &[&str] = &[
    "agents",
    "background_tasks",
    "memories",
    "peers",
    "plan_mode",
    "project_settings",
    "schedules",
    "user_questions",
    "workflows",
];

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
    (ToolSearch, Some("claude_tool_search::tool_search_none"), Some("claude_tool_search::tool_search_workspace")),
    (McpHttpTools, Some("claude_mcp::claude_servers_nowhere"), Some("claude_mcp::claude_servers")),
    (McpHttpRequired, Some("claude_mcp::claude_servers_nowhere"), Some("claude_mcp::claude_required")),
    (McpHttpBearerAuth, Some("claude_mcp::claude_bearer_nowhere"), Some("claude_mcp::claude_bearer")),
    (SessionResume, Some("placement_none::none_resume"), Some("resume_cold::resume_restart")),
    (
        NativeSessionRecovery,
        Some("resume_reconciled::reconciled_nowhere"),
        Some("resume_reconciled::reconciled_completed"),
    ),
    (MessageObservation, Some("placement_none::none_text"), Some("turns_text::text_streams")),
    (Usage, Some("placement_none::none_text"), Some("turns_text::text_next_turn")),
    (StrictCalls, Some("strict_calls::strict_nowhere"), Some("strict_calls::strict_withheld")),
    (ExecutionControls, Some("controls::controls_none"), Some("controls::controls_workspace")),
    (HomeRemoval, Some("placement_none::none_release"), Some("turns_release::release_home")),
];

/// The declaration for what was found on this machine. Claude Code has no sandbox of its own, so it supports a workspace only where something
/// around the bridge isolates it (R-PLC-1).
pub(super) fn declare(settings: &Settings, found: Found) -> Declaration {
    let Found { program, version, trouble } = found;
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
        limits: Limits {
            function_names: FunctionNames {
                pattern: NAME_PATTERN,
                max_bytes: NAME_BYTES,
                reserved: RESERVED,
                reserved_prefixes: &[],
            },
            model_protocols: vec![ModelProtocol::Messages],
            needs_token_limits: false,
            // A call says where its arguments are the model's own text.
            argument_fidelity: JsonFidelity::Binary64,
            // Branches at the root are merged into one object, names that are integers go first.
            schema_fidelity: JsonFidelity::LossySchema,
            integer_64: false,
            // Its own limit is as far as it can be set: 24 days.
            native_call_timeout: None,
            binary64: true,
            description_characters: Some(DESCRIPTION),
            failed_result_images: false,
            web_search: SearchLimits {
                modes: &[WebSearchMode::Disabled, WebSearchMode::Live],
                context_sizes: &[ContextSize::Medium],
                domains: false,
                location: false,
            },
            programmatic_tool_calling: &[false],
            text_verbosities: &[TextVerbosity::Medium],
            // For a model that has it not Claude Code takes another one, and says so.
            reasoning_efforts: AcceptedValues { values: &["high", "low", "max", "medium", "xhigh"], by_model: true },
            reasoning_summaries: AcceptedValues { values: &["auto"], by_model: false },
            service_tiers: AcceptedValues { values: &["auto"], by_model: false },
            mcp: McpLimits {
                transports: &[McpKind::Http, McpKind::Stdio],
                origins: &[McpOrigin::Service, McpOrigin::Environment],
                allowed_tools: &[McpKind::Http],
                label_pattern: NAME_PATTERN,
                // Claude Code hides the tools of `ide`, and `computer-use` it does not connect to.
                reserved_labels: &["computer-use", "functions", "ide"],
                refuses_expansions: true,
                stdio_in_workspace: true,
            },
            // It leaves such a text out, and asks the model nothing.
            refuses_blank_messages: true,
            result_characters: Some(functions::RESULT_TEXT),
            input_rewrites: schema::REWRITES.to_vec(),
        },
        switched_off: SWITCHED_OFF.to_vec(),
        isolation: settings.isolation,
        // It reads no settings of a project.
        trust_workspace: false,
        program,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::claude_code::functions::tool_name;

    fn declared(isolation: Isolation, version: &str, trouble: Option<&str>) -> Declaration {
        let settings = Settings::new(PathBuf::from("/keeper"), isolation);
        let program = Some(PathBuf::from("/claude"));
        declare(&settings, Found { program, version: Some(version.into()), trouble: trouble.map(Into::into) })
    }

    #[test]
    fn lists_are_sorted_for_look_up_and_for_readers() {
        for list in [RESERVED, SWITCHED_OFF] {
            assert!(list.is_sorted(), "{list:?}");
        }
    }

    #[test]
    fn the_longest_name_is_that_of_a_tool_less_what_stands_before_it() {
        assert_eq!(tool_name(&"x".repeat(NAME_BYTES)).len(), 128);
    }

    #[test]
    fn only_the_proved_version_is_qualified() {
        assert!(declared(Isolation::Outer, QUALIFIED, None).qualified);
        let newer = declared(Isolation::Outer, "2.2.0", None);
        assert!(!newer.qualified && newer.availability == Availability::Available);
        assert!(!declared(Isolation::Outer, QUALIFIED, Some("no luck")).qualified);
    }

    #[test]
    fn calls_are_held_back_where_there_is_a_gateway() {
        for gateway in [false, true] {
            let settings = Settings { gateway, ..Settings::new(PathBuf::from("/keeper"), Isolation::Outer) };
            let declared = declare(&settings, Found { program: None, version: None, trouble: None });
            for rows in [declared.none, declared.workspace] {
                assert_eq!(rows.iter().any(|row| row.capability() == StrictCalls), gateway);
            }
        }
    }

    #[test]
    fn a_workspace_needs_somebody_else_to_isolate_it() {
        let native = declared(Isolation::Native, QUALIFIED, None);
        assert!(native.workspace.is_empty() && native.availability == Availability::Available);
        assert_eq!(native.none, declared(Isolation::Outer, QUALIFIED, None).none);
    }
}
