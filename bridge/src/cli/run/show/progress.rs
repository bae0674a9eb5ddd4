//! Events that are not the answer, as one line each.

use std::borrow::Cow;

use proto::v1::{self, content::Place, event::Kind, tool};

/// Longest text in a line, in characters.
const MAX_CHARACTERS: usize = 160;

/// What a person may want to know of an event while the Turn runs. Text of messages and of reasoning is not in it.
pub(super) fn lines(event: &v1::Event) -> Vec<String> {
    let line = match &event.kind {
        Some(Kind::ToolStarted(started)) => started.tool.as_ref().and_then(tool_line),
        Some(Kind::ToolCompleted(completed)) => return tool_end(completed),
        Some(Kind::FunctionCall(call)) => {
            Some(format!("{}({})", one_line(&call.name), one_line(&text_of(call.arguments.as_ref()))))
        }
        Some(Kind::FunctionResultApplied(applied)) => {
            let how = if applied.success { "the Harness has the result" } else { "the Harness has the failed result" };
            Some(format!("{}: {how}", one_line(&applied.call_id)))
        }
        Some(Kind::FunctionCallAbandoned(abandoned)) => {
            let why = name(abandoned.reason().as_str_name(), "ABANDON_REASON_");
            Some(format!("{}: abandoned ({why})", one_line(&abandoned.call_id)))
        }
        Some(Kind::FunctionProgress(progress)) => {
            Some(format!("{}: at work{}", one_line(&progress.call_id), text_after(&progress.message)))
        }
        Some(Kind::InputWritten(input)) => Some(format!("{}: written", one_line(&input.input_id))),
        Some(Kind::InputAccepted(input)) => {
            let what = match input.evidence() {
                v1::InputEvidence::Consumed => "it stands in the Turn's history",
                v1::InputEvidence::Admitted | v1::InputEvidence::Unspecified => "the Harness has it",
            };
            Some(format!("{}: {what}", one_line(&input.input_id)))
        }
        Some(Kind::InputRefused(input)) => {
            let why = name(input.reason().as_str_name(), "REASON_");
            Some(format!("{}: not taken ({why}){}", one_line(&input.input_id), text_after(&input.message)))
        }
        Some(Kind::InputOutcomeUnknown(input)) => {
            Some(format!("{}: nobody knows whether it took part", one_line(&input.input_id)))
        }
        Some(Kind::TurnEnded(ended)) => return turn_end(ended),
        Some(Kind::ProviderRetry(retry)) => {
            let what = name(retry.code().as_str_name(), "FAILURE_CODE_");
            Some(format!("the provider is asked again: {what}{}", text_after(&retry.message)))
        }
        Some(Kind::Notice(notice)) => Some(format!("{}{}", one_line(&notice.code), text_after(&notice.message))),
        Some(Kind::EventsOmitted(omitted)) => {
            Some(format!("events {} to {} are not there any more", omitted.first, omitted.last))
        }
        _ => None,
    };
    line.into_iter().collect()
}

/// What its end tells beside the status.
fn turn_end(ended: &v1::TurnEnded) -> Vec<String> {
    let failed = |error: &v1::ToolError| {
        let code = name(error.code().as_str_name(), "TOOL_ERROR_CODE_");
        format!("{} ({}): {code}{}", one_line(&error.name), one_line(&error.call_id), text_after(&error.message))
    };
    let mut lines: Vec<_> = ended.tool_errors.iter().map(failed).collect();
    lines.extend(match ended.finish() {
        v1::Finish::Incomplete => Some("the answer was cut short".to_owned()),
        v1::Finish::Refused => Some("the model refused to answer".to_owned()),
        v1::Finish::NoOutput => Some("there is no answer".to_owned()),
        v1::Finish::Stop | v1::Finish::Unspecified => None,
    });
    lines.extend(ended.output_matches_schema.map(|matches| match matches {
        true => "the answer fits the schema".to_owned(),
        false => "the answer does not fit the schema".to_owned(),
    }));
    lines
}

/// How the Turn ended, unless it completed.
pub(super) fn end(event: &v1::Event) -> Option<String> {
    let Some(Kind::TurnEnded(ended)) = &event.kind else { return None };
    let cause = |word: &str| match ended.cause {
        Some(_) => format!("{word} ({})", name(ended.cause().as_str_name(), "END_CAUSE_")),
        None => word.to_owned(),
    };
    match ended.status() {
        v1::TurnStatus::Completed => None,
        v1::TurnStatus::Cancelled => Some(cause("the Turn was cancelled")),
        v1::TurnStatus::Unknown | v1::TurnStatus::Unspecified => Some(cause("nobody knows how the Turn ended")),
        v1::TurnStatus::Failed => {
            let failure = ended.failure.clone().unwrap_or_default();
            let mut text = format!("the Turn failed: {}", name(failure.code().as_str_name(), "FAILURE_CODE_"));
            if let Some(status) = failure.http_status {
                text.push_str(&format!(" (HTTP {status})"));
            }
            text.push_str(&text_after(&failure.message));
            Some(text)
        }
    }
}

/// The text of a content, or what stands for a part that is too large.
pub(super) fn text_of(content: Option<&v1::Content>) -> Cow<'_, str> {
    match content.and_then(|content| content.place.as_ref()) {
        Some(Place::Text(text)) => Cow::Borrowed(text),
        Some(Place::Payload(part)) => Cow::Owned(format!("[a text of {} bytes]", part.size)),
        None => Cow::Borrowed(""),
    }
}

/// The first line of a text, cut, without what could steer a terminal.
pub(super) fn one_line(text: &str) -> String {
    let trimmed = text.trim();
    let first = trimmed.lines().next().unwrap_or_default();
    let mut shown: String = first.chars().filter(|c| !c.is_control()).take(MAX_CHARACTERS).collect();
    if first.chars().count() > MAX_CHARACTERS || first.len() < trimmed.len() {
        shown.push('…');
    }
    shown
}

/// The name of a value of an enum, without the enum's own.
pub(super) fn name(value: &str, prefix: &str) -> String {
    value.strip_prefix(prefix).unwrap_or(value).to_ascii_lowercase()
}

fn text_after(text: &str) -> String {
    match one_line(text) {
        text if text.is_empty() => text,
        text => format!(": {text}"),
    }
}

fn tool_line(tool: &v1::Tool) -> Option<String> {
    match tool.kind.as_ref()? {
        tool::Kind::Command(command) => Some(format!("$ {}", one_line(&text_of(command.command.as_ref())))),
        tool::Kind::McpCall(call) => Some(format!("tool {} of {}", one_line(&call.tool), one_line(&call.server))),
        tool::Kind::WebSearch(search) => Some(format!("web search{}", text_after(&text_of(search.query.as_ref())))),
        tool::Kind::Other(other) => Some(format!("tool {}", one_line(&other.name))),
        // Its edits are told when it is done.
        tool::Kind::FileChange(_) => None,
    }
}

fn tool_end(completed: &v1::ToolCompleted) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(tool::Kind::FileChange(change)) = completed.tool.as_ref().and_then(|tool| tool.kind.as_ref()) {
        lines.extend(change.edits.iter().map(edit_line));
    }
    match (completed.status(), completed.exit_code) {
        (v1::ToolStatus::Completed | v1::ToolStatus::Unspecified, _) => {}
        (v1::ToolStatus::Failed, Some(code)) => lines.push(format!("exit code {code}")),
        (status, _) => lines.push(name(status.as_str_name(), "TOOL_STATUS_")),
    }
    lines
}

fn edit_line(edit: &v1::FileEdit) -> String {
    let path = one_line(&edit.path);
    let sign = match edit.kind() {
        v1::FileEditKind::Add => '+',
        v1::FileEditKind::Delete => '-',
        v1::FileEditKind::Update | v1::FileEditKind::Unspecified => '~',
    };
    match edit.moved_to.as_str() {
        "" => format!("{sign} {path}"),
        to => format!("{sign} {path} -> {}", one_line(to)),
    }
}
