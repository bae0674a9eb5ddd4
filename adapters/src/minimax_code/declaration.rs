//! What MiniMax Code takes (R-CAP-1).

use super::KIND;
use crate::{
    admission::{self, NAME_PATTERN, Native, built::Built},
    harness::{
        AcceptedValues,
        Capability::{
            self, EnvironmentNone, ExecutionControls, FunctionTools, LocalEnvironment, McpHttpBearerAuth, McpHttpTools,
        },
        Configuration, ContextSize, FunctionNames, JsonFidelity, Limits, McpKind, McpLimits, McpOrigin, ModelProtocol,
        NotAdmitted, SearchLimits, TextVerbosity, WebSearchMode,
    },
};

/// Functions are served as an MCP server of this label, so no other one can have it while there are some.
const FUNCTIONS: &str = "functions";
/// Longest name of a function: a tool's name has at most 128 bytes, with `mcp__functions__` before it.
const NAME_BYTES: usize = 112;
/// It gives up a call by itself.
const CALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);

const CAPABILITIES: &[Capability] =
    &[EnvironmentNone, LocalEnvironment, FunctionTools, McpHttpTools, McpHttpBearerAuth, ExecutionControls];

/// What is known of it.
pub(crate) fn built() -> Built {
    Built {
        kind: KIND,
        limits: limits(),
        protocols: &["messages", "responses", "chat_completions"],
        capabilities: |_| CAPABILITIES.to_vec(),
        native: Native {
            tools: native_tools,
            format: |_| Ok(()),
            settings: |text| admission::no_harness_config(KIND, text),
        },
    }
}

fn limits() -> Limits {
    const NONE: AcceptedValues = AcceptedValues { values: &[], by_model: false };
    Limits {
        function_names: FunctionNames {
            pattern: NAME_PATTERN,
            max_bytes: NAME_BYTES,
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
        // Its own search needs an account of its maker. A resolved control always has a size.
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
            label_pattern: "",
            reserved_labels: &["oac_workspace"],
            refuses_expansions: false,
            stdio_in_workspace: false,
        },
        refuses_blank_messages: true,
        result_characters: None,
        input_rewrites: Vec::new(),
    }
}

fn native_tools(configuration: &Configuration) -> Result<(), NotAdmitted> {
    for (index, function) in configuration.functions.iter().enumerate() {
        admission::name(index, &function.name, NAME_BYTES, NAME_PATTERN)?;
    }
    admission::alike(KIND, configuration.functions.iter().map(|function| &*function.name), str::to_owned, |index| {
        format!("tools.functions[{index}].name")
    })?;
    let labelled = configuration.mcp_servers.iter().position(|server| server.label == FUNCTIONS);
    match labelled {
        Some(index) if !configuration.functions.is_empty() => Err(admission::refused(
            format!("tools.mcp_servers[{index}].label"),
            format!("is the label under which {KIND} is served the functions; without functions it is free"),
        )),
        Some(_) | None => Ok(()),
    }
}
