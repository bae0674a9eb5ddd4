//! Events, wire to domain: what the start after a crash has to read.

use adapters::harness::{FileEdit, FileEditKind, InputEvidence, McpCall, Tool, Usage, WebAction};
use proto::v1;

use crate::refusal::Reason;

/// A tool, as its start told it.
pub(crate) fn tool(of: Option<v1::Tool>) -> Tool {
    match of.and_then(|tool| tool.kind) {
        Some(v1::tool::Kind::Command(command)) => {
            Tool::Command { command: text(command.command), directory: command.directory }
        }
        Some(v1::tool::Kind::FileChange(change)) => {
            Tool::FileChange { edits: change.edits.into_iter().map(edit).collect() }
        }
        Some(v1::tool::Kind::McpCall(call)) => Tool::Mcp(McpCall {
            server: call.server,
            tool: call.tool,
            arguments: text(call.arguments),
            result: call.result.map(|result| text(Some(result))),
            error: call.error,
        }),
        Some(v1::tool::Kind::WebSearch(search)) => {
            Tool::WebSearch { query: text(search.query), action: search.action.map(web_action) }
        }
        Some(v1::tool::Kind::Other(other)) => Tool::Other { name: other.name },
        None => Tool::Other { name: String::new() },
    }
}

fn web_action(of: v1::web_search::Action) -> WebAction {
    use v1::web_search::Action;
    match of {
        Action::Search(search) => {
            WebAction::Search { queries: search.queries.into_iter().map(|query| text(Some(query))).collect() }
        }
        Action::OpenPage(page) => WebAction::OpenPage { url: text(page.url) },
        Action::FindInPage(find) => WebAction::FindInPage { url: text(find.url), pattern: text(find.pattern) },
        Action::Other(other) => WebAction::Other { name: other.name },
    }
}

fn edit(of: v1::FileEdit) -> FileEdit {
    let kind = match of.kind() {
        v1::FileEditKind::Add => FileEditKind::Add,
        v1::FileEditKind::Delete => FileEditKind::Delete,
        v1::FileEditKind::Update => FileEditKind::Update,
        v1::FileEditKind::Unspecified => FileEditKind::Other,
    };
    let moved_to = Some(of.moved_to).filter(|path| !path.is_empty());
    FileEdit { path: of.path, kind, diff: text(of.diff), moved_to }
}

/// The text of a content. One that was too large for its event is left out: the event that closes an item need not repeat it.
fn text(of: Option<v1::Content>) -> String {
    match of.and_then(|content| content.place) {
        Some(v1::content::Place::Text(text)) => text,
        Some(v1::content::Place::Payload(_)) | None => String::new(),
    }
}

/// What is proved about an input.
pub(crate) fn input_evidence(of: v1::InputEvidence) -> InputEvidence {
    match of {
        v1::InputEvidence::Admitted => InputEvidence::Admitted,
        v1::InputEvidence::Consumed | v1::InputEvidence::Unspecified => InputEvidence::Consumed,
    }
}

/// Why an input was refused: what its event can have.
pub(crate) fn input_refusal(of: v1::Reason) -> Reason {
    if of == v1::Reason::TurnEnded { Reason::TurnEnded } else { Reason::Unsupported }
}

/// Usage of a Turn.
pub(crate) fn usage(of: &v1::Usage) -> Usage {
    Usage {
        input: of.input_tokens,
        cached_input: of.cached_input_tokens,
        output: of.output_tokens,
        reasoning_output: of.reasoning_output_tokens,
        total: of.total_tokens,
    }
}

/// The name that the journal keeps of a status.
pub(crate) fn status_name(status: v1::TurnStatus) -> &'static str {
    match status {
        v1::TurnStatus::Completed => "completed",
        v1::TurnStatus::Failed => "failed",
        v1::TurnStatus::Cancelled => "cancelled",
        v1::TurnStatus::Unknown | v1::TurnStatus::Unspecified => "unknown",
    }
}
