//! Built-in tools → neutral ones. What a tool returned stands twice in its line: as the model reads it, and as the tool itself gave it.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    claude_code::mcp::{self, Tools},
    claude_code::wire::{Shown, ShownPart, ToolResult, lossy_option},
    harness::{FileEdit, FileEditKind, McpCall, Tool, ToolEnd, ToolStatus, WebAction},
};

/// An interrupt kept the tool from running, or stopped it.
const REJECTED: &str = "user-rejected";

/// A tool as it begins.
pub(super) fn begun(name: String, input: Option<&RawValue>, servers: &Tools) -> Tool {
    if let Some(call) = servers.call(&name, input) {
        return Tool::Mcp(call);
    }
    #[derive(Default, Deserialize)]
    struct Input {
        #[serde(default, deserialize_with = "lossy_option")]
        command: Option<String>,
        file_path: Option<String>,
        notebook_path: Option<String>,
        #[serde(default, deserialize_with = "lossy_option")]
        query: Option<String>,
        url: Option<String>,
    }
    // The model may call a tool with anything; Claude refuses then.
    let input: Input = input.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    let file = |path: Option<String>, kind| {
        let edit = FileEdit { path: path.unwrap_or_default(), kind, diff: String::new(), moved_to: None };
        Tool::FileChange { edits: vec![edit] }
    };
    match name.as_str() {
        // The directory is the shell's own, which Claude does not tell.
        "Bash" => Tool::Command { command: input.command.unwrap_or_default(), directory: String::new() },
        "Edit" => file(input.file_path, FileEditKind::Update),
        "NotebookEdit" => file(input.notebook_path, FileEditKind::Update),
        // Whether the file is there is told at the end.
        "Write" => file(input.file_path, FileEditKind::Other),
        "WebSearch" => {
            let query = input.query.unwrap_or_default();
            Tool::WebSearch { query: query.clone(), action: Some(WebAction::Search { queries: vec![query] }) }
        }
        "WebFetch" => {
            let action = WebAction::OpenPage { url: input.url.unwrap_or_default() };
            Tool::WebSearch { query: String::new(), action: Some(action) }
        }
        _ => Tool::Other { name },
    }
}

/// A tool as it ended.
pub(super) fn ended(tool: Tool, result: &ToolResult, raw: Option<&RawValue>, denied: bool, stopping: bool) -> ToolEnd {
    let status = match result.not_run.as_deref() {
        _ if stopping => ToolStatus::Incomplete,
        Some(REJECTED) => ToolStatus::Incomplete,
        Some(_) => ToolStatus::Declined,
        None if denied => ToolStatus::Declined,
        None if result.is_error => ToolStatus::Failed,
        None => ToolStatus::Completed,
    };
    let output = match (status, &tool) {
        // Of a change that was made, the model reads only that it was.
        (ToolStatus::Completed, Tool::FileChange { .. }) => None,
        // It is in the call.
        (_, Tool::Mcp(_)) => None,
        (ToolStatus::Completed | ToolStatus::Failed, _) => command_output(&tool, raw).or_else(|| text(result)),
        (ToolStatus::Declined | ToolStatus::Incomplete | ToolStatus::Other, _) => None,
    };
    let tool = match (tool, raw) {
        (Tool::FileChange { edits }, Some(raw)) if status == ToolStatus::Completed => {
            Tool::FileChange { edits: edits.into_iter().map(|edit| changed(edit, raw)).collect() }
        }
        (Tool::Mcp(call), raw) => Tool::Mcp(called(call, result, raw, status)),
        (tool, _) => tool,
    };
    // An exit code stands only in prose, and how long a tool ran nowhere.
    ToolEnd { status, tool, output, exit_code: None, duration: None }
}

/// A call with what came of it.
fn called(call: McpCall, result: &ToolResult, raw: Option<&RawValue>, status: ToolStatus) -> McpCall {
    match status {
        ToolStatus::Completed | ToolStatus::Failed => {
            McpCall { result: mcp::result(raw, result.content(), result.is_error), ..call }
        }
        ToolStatus::Declined => McpCall { error: "the call is not allowed; it was not made".to_owned(), ..call },
        ToolStatus::Incomplete | ToolStatus::Other => call,
    }
}

/// All that a command wrote, which the model may see only a part of.
fn command_output(tool: &Tool, raw: Option<&RawValue>) -> Option<String> {
    #[derive(Deserialize)]
    struct Output {
        #[serde(default, deserialize_with = "lossy_option")]
        stdout: Option<String>,
        #[serde(default, deserialize_with = "lossy_option")]
        stderr: Option<String>,
    }
    let (Tool::Command { .. }, Some(raw)) = (tool, raw) else { return None };
    let Output { stdout, stderr } = serde_json::from_str(raw.get()).ok()?;
    let (mut stdout, stderr) = (stdout?, stderr.unwrap_or_default());
    if !stdout.is_empty() && !stderr.is_empty() {
        stdout.push('\n');
    }
    stdout.push_str(&stderr);
    Some(stdout)
}

/// What the model reads, as far as it is text.
fn text(result: &ToolResult) -> Option<String> {
    match result.shown().ok()? {
        Shown::Text(text) => Some(text),
        Shown::Parts(parts) => {
            let texts = parts.into_iter().filter_map(|part| match part {
                ShownPart::Text(text) => Some(text),
                ShownPart::Image { .. } | ShownPart::Other => None,
            });
            texts.reduce(|text, more| format!("{text}\n{more}"))
        }
    }
}

/// An edit with what the tool tells of it.
fn changed(edit: FileEdit, raw: &RawValue) -> FileEdit {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Change {
        #[serde(rename = "type")]
        kind: Option<String>,
        file_path: Option<String>,
        #[serde(default, deserialize_with = "lossy_option")]
        content: Option<String>,
        #[serde(default)]
        structured_patch: Vec<Hunk>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Hunk {
        old_start: u64,
        old_lines: u64,
        new_start: u64,
        new_lines: u64,
        lines: Vec<String>,
    }
    let Ok(change) = serde_json::from_str::<Change>(raw.get()) else { return edit };
    let kind = match change.kind.as_deref() {
        Some("create") => FileEditKind::Add,
        Some("update") => FileEditKind::Update,
        Some(_) | None => edit.kind,
    };
    let hunk = |Hunk { old_start, old_lines, new_start, new_lines, lines }: &Hunk| {
        format!("@@ -{old_start},{old_lines} +{new_start},{new_lines} @@\n{}\n", lines.join("\n"))
    };
    let diff = match (kind, change.content) {
        // A new file has no hunks.
        (FileEditKind::Add, Some(content)) => content,
        _ => change.structured_patch.iter().map(hunk).collect(),
    };
    FileEdit { path: change.file_path.unwrap_or(edit.path), kind, diff, moved_to: edit.moved_to }
}
