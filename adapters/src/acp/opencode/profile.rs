//! How opencode speaks ACP: where it differs from other agents.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::config;
use crate::acp::{
    profile::{Listing, McpResult, Profile, Slash, ToolReading},
    wire::ToolCall,
};

/// JSON-RPC: something went wrong. It says so of a conversation that it does not know.
const INTERNAL_ERROR: i64 = -32603;
/// What it shows of a failure without a text.
const NO_TEXT: &str = "MCP tool returned an error";

/// What is known of it.
pub(super) fn profile(kind: &'static str) -> Profile {
    Profile {
        kind,
        name: "opencode",
        slash: Slash::ZeroWidthSpace,
        mcp_names: &[tool],
        tools: ToolReading { name, command, mcp_result },
        steer: None,
        // That the prompt was cancelled says nothing of the processes that it has started.
        reusable_after_cancel: false,
        // It refuses an id that it does not know.
        resumes: true,
        unknown_session: &[INTERNAL_ERROR],
        // `session/new` and `session/resume` wait for the list, up to 30 s; later the tools are missing, and nothing says so.
        listing: Listing::AtOpening,
    }
}

/// The native name of a tool of a server.
fn tool(server: &str, tool: &str) -> String {
    format!("{}_{}", config::spelled(server), config::spelled(tool))
}

/// It is the title of the first report; later the title is a description.
fn name(call: &ToolCall<'_>) -> Option<String> {
    call.title.as_ref().map(|title| title.clone().into_owned())
}

fn command(name: &str, arguments: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Bash {
        command: String,
    }
    let is_command = name == "bash";
    is_command.then(|| serde_json::from_str::<Bash>(arguments.get()).ok()).flatten().map(|bash| bash.command)
}

/// The texts of a result, in one: `{"output": text}`, or `{"error": text}` where the server called it an error. What opencode aborted is no result.
fn mcp_result(call: &ToolCall<'_>) -> Option<McpResult> {
    #[derive(Deserialize)]
    struct Output {
        output: Option<String>,
        error: Option<String>,
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    struct Metadata {
        #[serde(default)]
        interrupted: bool,
    }
    let raw = call.raw_output?.get();
    let read: Output = serde_json::from_str(raw).ok()?;
    if read.metadata.interrupted {
        return None;
    }
    let (text, is_error) = match (read.output, read.error) {
        (Some(output), None) => (output, false),
        (None, Some(error)) => (error, true),
        (Some(_), Some(_)) | (None, None) => return None,
    };
    let for_none = is_error && text == NO_TEXT;
    Some(McpResult { json: raw.to_owned(), is_error: Some(is_error), texts: vec![text], tool: None, for_none })
}

#[cfg(test)]
mod tests;
