//! Native items and deltas of one Turn → neutral reports. It knows which items are open and nothing of processes; calls are in
//! [`super::functions`].

use std::{collections::BTreeMap, time::Duration};

use super::wire;
use crate::harness::{
    FileEdit, FileEditKind, McpCall, MessagePhase, ProvedMessage, ReasoningText, Report, Tool, ToolEnd, ToolStatus,
    Usage,
};

/// The items of one Turn.
#[derive(Debug, Default)]
pub(super) struct Items {
    open: BTreeMap<String, Open>,
    /// What still runs is stopped by us.
    stopping: bool,
    /// Tokens of the thread before this Turn.
    before: wire::Tokens,
    total: wire::Tokens,
    /// The last message that was completed.
    last_message: Option<String>,
    /// There was more than the input and reasoning, or something that nobody could read.
    shown: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Message,
    Reasoning,
    /// Runs on this machine: must have ended before the Turn is settled.
    Work,
    /// Runs at the provider, as a part of its answer.
    Hosted,
    Tool,
}

impl Items {
    /// Items of a Turn on a thread that had used `before`.
    pub(super) fn new(before: wire::Tokens) -> Self {
        Self { open: BTreeMap::new(), stopping: false, before, total: before, last_message: None, shown: false }
    }

    /// Tokens of the thread so far.
    pub(super) fn total(&self) -> wire::Tokens {
        self.total
    }

    /// How many commands and changes of files are open.
    pub(super) fn open_work(&self) -> usize {
        self.open.values().filter(|open| **open == Open::Work).count()
    }

    /// Work that ends from here on was stopped, whatever Codex calls it (R-EVT-9).
    pub(super) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether the Turn has neither a message nor a tool so far.
    pub(super) fn are_bare(&self) -> bool {
        !self.shown
    }

    /// Something could not be read, and may have been a message.
    pub(super) fn unread(&mut self) {
        self.shown = true;
    }

    /// `item/started`. False when it says nothing new.
    pub(super) fn started(&mut self, item: wire::Item, out: &mut Vec<Report>) -> bool {
        self.shown |= is_shown(&item);
        let (id, open, report) = match item {
            wire::Item::UserMessage(_) | wire::Item::Call(_) => return true,
            wire::Item::Message(item) => (item.id.clone(), Open::Message, Report::MessageStarted { id: item.id }),
            wire::Item::Reasoning(item) => (item.id.clone(), Open::Reasoning, Report::ReasoningStarted { id: item.id }),
            wire::Item::Command(item) => {
                let id = item.id.clone();
                (id.clone(), Open::Work, Report::ToolStarted { id, tool: command(&item) })
            }
            wire::Item::FileChange(item) => {
                let id = item.id.clone();
                (id.clone(), Open::Work, Report::ToolStarted { id, tool: file_change(item.changes) })
            }
            wire::Item::WebSearch(item) => {
                let id = item.id.clone();
                (id.clone(), Open::Hosted, Report::ToolStarted { id, tool: item.into_tool() })
            }
            wire::Item::Mcp(item) => {
                let id = item.id.clone();
                (id.clone(), Open::Tool, Report::ToolStarted { id, tool: Tool::Mcp(item.call()) })
            }
            wire::Item::Other(item) => {
                let id = item.id.clone();
                (id.clone(), Open::Tool, Report::ToolStarted { id, tool: Tool::Other { name: item.kind } })
            }
        };
        if id.is_empty() || self.open.contains_key(&id) {
            return false;
        }
        self.open.insert(id, open);
        out.push(report);
        true
    }

    /// `item/completed`. An item that was never started is started first.
    pub(super) fn completed(&mut self, item: wire::Item, out: &mut Vec<Report>) -> bool {
        self.shown |= is_shown(&item);
        let (id, started, completed) = match item {
            wire::Item::UserMessage(_) | wire::Item::Call(_) => return true,
            wire::Item::Message(wire::MessageItem { id, text, phase }) => {
                let phase = phase.and_then(|phase| message_phase(&phase));
                self.last_message = Some(id.clone());
                let started = Report::MessageStarted { id: id.clone() };
                (id.clone(), started, Report::MessageCompleted { id, text, phase })
            }
            wire::Item::Reasoning(wire::ReasoningItem { id, summary, content }) => {
                let started = Report::ReasoningStarted { id: id.clone() };
                (id.clone(), started, Report::ReasoningCompleted { id, summary, raw: content })
            }
            wire::Item::Command(item) => {
                let tool = command(&item);
                let end = ToolEnd {
                    status: self.work_status(&item.status),
                    tool: tool.clone(),
                    output: item.aggregated_output,
                    // A command that was stopped has -1, or 128 and the signal; neither is an exit code of its own.
                    exit_code: item.exit_code.filter(|code| *code >= 0 && !self.stopping),
                    duration: item.duration_ms.map(Duration::from_millis),
                };
                ended(item.id, tool, end)
            }
            wire::Item::FileChange(item) => {
                let status = self.work_status(&item.status);
                ended_bare(item.id, file_change(item.changes), status)
            }
            // It has no status of its own: that one failed is not told.
            wire::Item::WebSearch(item) => ended_bare(item.id.clone(), item.into_tool(), ToolStatus::Completed),
            wire::Item::Mcp(item) => {
                let tool = Tool::Mcp(item.call());
                let begun = Tool::Mcp(McpCall { result: None, error: String::new(), ..item.call() });
                let status = tool_status(Some(&item.status));
                let duration = item.duration_ms.map(Duration::from_millis);
                ended(item.id, begun, ToolEnd { status, tool, output: None, exit_code: None, duration })
            }
            wire::Item::Other(item) => {
                let status = tool_status(item.status.as_deref());
                ended_bare(item.id, Tool::Other { name: item.kind }, status)
            }
        };
        if id.is_empty() {
            return false;
        }
        if self.open.remove(&id).is_none() {
            out.push(started);
        }
        out.push(completed);
        true
    }

    /// `item/agentMessage/delta`.
    pub(super) fn message_delta(&self, delta: wire::Delta, out: &mut Vec<Report>) -> bool {
        let known = self.is_open(&delta.item_id, Open::Message);
        if known {
            out.push(Report::MessageDelta { id: delta.item_id, text: delta.delta });
        }
        known
    }

    /// `item/reasoning/…Delta`.
    pub(super) fn reasoning_delta(&self, kind: ReasoningText, delta: wire::Delta, out: &mut Vec<Report>) -> bool {
        let known = self.is_open(&delta.item_id, Open::Reasoning);
        if known {
            let index = delta.summary_index;
            out.push(Report::ReasoningDelta { id: delta.item_id, kind, index, text: delta.delta });
        }
        known
    }

    /// `item/commandExecution/outputDelta`. The first piece is normally missing; only the output at the end is whole.
    pub(super) fn command_output(&self, delta: wire::Delta, out: &mut Vec<Report>) -> bool {
        let known = self.is_open(&delta.item_id, Open::Work);
        if known {
            out.push(Report::ToolOutput { id: delta.item_id, text: delta.delta });
        }
        known
    }

    /// The provider's answer broke off. What it was saying is never completed; the next try says it in new items.
    pub(super) fn broken(&mut self, out: &mut Vec<Report>) {
        self.void(Report::AnswerBroken, out);
    }

    /// Codex broke the provider's answer off for an input that was added.
    pub(super) fn steered(&mut self, out: &mut Vec<Report>) {
        self.void(Report::AnswerSteered, out);
    }

    fn void(&mut self, why: Report, out: &mut Vec<Report>) {
        let before = self.open.len();
        self.open.retain(|_, open| !matches!(open, Open::Message | Open::Reasoning | Open::Hosted));
        if self.open.len() < before {
            out.push(why);
        }
    }

    /// `thread/tokenUsage/updated`; true when an answer was added. Codex tells it again, unchanged, when a try breaks off, so adding up its
    /// `last` counts the answer before twice. The thread's total less the total before this Turn is right for any number of answers.
    pub(super) fn used(&mut self, total: wire::Tokens, out: &mut Vec<Report>) -> bool {
        if total == self.total {
            return false;
        }
        self.total = total;
        out.push(Report::Usage(self.since_before()));
        true
    }

    fn since_before(&self) -> Usage {
        let since = |now: Option<u64>, before: Option<u64>| now.map(|now| now.saturating_sub(before.unwrap_or(0)));
        let (total, before) = (self.total, self.before);
        Usage {
            input: since(total.input_tokens, before.input_tokens),
            cached_input: since(total.cached_input_tokens, before.cached_input_tokens),
            output: since(total.output_tokens, before.output_tokens),
            reasoning_output: since(total.reasoning_output_tokens, before.reasoning_output_tokens),
            total: since(total.total_tokens, before.total_tokens),
        }
    }

    /// Tokens of the thread before this Turn, told late.
    pub(super) fn used_before(&mut self, total: wire::Tokens) {
        (self.before, self.total) = (total, total);
    }

    /// What history has of this Turn and was not told: its last message, and its usage.
    pub(super) fn missed(&mut self, message: Option<ProvedMessage>, usage: Option<Usage>, out: &mut Vec<Report>) {
        if let Some(ProvedMessage { id, text, phase }) = message
            && self.last_message.as_ref() != Some(&id)
        {
            self.open.remove(&id);
            out.push(Report::MessageCompleted { id, text, phase });
        }
        let told = self.since_before();
        out.extend(usage.filter(|usage| *usage != told && usage.total >= told.total).map(Report::Usage));
    }

    fn work_status(&self, status: &str) -> ToolStatus {
        if self.stopping { ToolStatus::Incomplete } else { tool_status(Some(status)) }
    }

    fn is_open(&self, id: &str, kind: Open) -> bool {
        self.open.get(id) == Some(&kind)
    }
}

fn is_shown(item: &wire::Item) -> bool {
    !matches!(item, wire::Item::UserMessage(_) | wire::Item::Reasoning(_))
}

fn ended(id: String, tool: Tool, end: ToolEnd) -> (String, Report, Report) {
    (id.clone(), Report::ToolStarted { id: id.clone(), tool }, Report::ToolCompleted { id, end })
}

/// The end of a tool of which nothing is told but that it is over.
fn ended_bare(id: String, tool: Tool, status: ToolStatus) -> (String, Report, Report) {
    ended(id, tool.clone(), ToolEnd { status, tool, output: None, exit_code: None, duration: None })
}

fn command(item: &wire::CommandItem) -> Tool {
    Tool::Command { command: item.command.clone(), directory: item.cwd.clone() }
}

fn file_change(changes: Vec<wire::Change>) -> Tool {
    let edit = |change: wire::Change| FileEdit {
        path: change.path,
        kind: match change.kind.kind.as_str() {
            "add" => FileEditKind::Add,
            "delete" => FileEditKind::Delete,
            "update" => FileEditKind::Update,
            _ => FileEditKind::Other,
        },
        diff: change.diff,
        moved_to: change.kind.move_path,
    };
    Tool::FileChange { edits: changes.into_iter().map(edit).collect() }
}

pub(super) fn message_phase(phase: &str) -> Option<MessagePhase> {
    match phase {
        "commentary" => Some(MessagePhase::Commentary),
        "partial_answer" => Some(MessagePhase::PartialAnswer),
        "final_answer" => Some(MessagePhase::FinalAnswer),
        _ => None,
    }
}

/// The status of a completed item. Items without one have none that could be bad.
fn tool_status(status: Option<&str>) -> ToolStatus {
    match status {
        None | Some("completed") => ToolStatus::Completed,
        Some("failed") => ToolStatus::Failed,
        Some("declined") => ToolStatus::Declined,
        Some(_) => ToolStatus::Other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn item(text: &str) -> wire::Item {
        wire::Item::read(&RawValue::from_string(text.into()).unwrap()).unwrap()
    }

    fn delta(id: &str, text: &str) -> wire::Delta {
        let (thread_id, turn_id) = ("T".into(), "U".into());
        wire::Delta { thread_id, turn_id, item_id: id.into(), delta: text.into(), summary_index: 1 }
    }

    fn tokens(total: u64) -> wire::Tokens {
        wire::Tokens { total_tokens: Some(total), input_tokens: Some(total - 1), ..wire::Tokens::default() }
    }

    #[track_caller]
    fn check(out: &[Report], want: &[&str]) {
        let got: Vec<String> = out.iter().map(|report| format!("{report:?}")).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn a_message_is_started_grows_and_is_completed() {
        let (mut items, mut out) = (Items::default(), Vec::new());
        assert!(items.started(item(r#"{"type":"agentMessage","id":"m","text":"","phase":null}"#), &mut out));
        assert!(items.message_delta(delta("m", "Hel"), &mut out));
        assert!(
            items
                .completed(item(r#"{"type":"agentMessage","id":"m","text":"Hello","phase":"final_answer"}"#), &mut out)
        );
        check(
            &out,
            &[
                r#"MessageStarted { id: "m" }"#,
                r#"MessageDelta { id: "m", text: "Hel" }"#,
                r#"MessageCompleted { id: "m", text: "Hello", phase: Some(FinalAnswer) }"#,
            ],
        );
    }

    #[test]
    fn what_history_has_and_was_not_told_is_told() {
        let usage = |total| Some(Usage { total: Some(total), ..Usage::default() });
        let message = |id: &str| Some(ProvedMessage { id: id.into(), text: "all".into(), phase: None });
        let (mut items, mut out) = (Items::default(), Vec::new());
        items.started(item(r#"{"type":"agentMessage","id":"m"}"#), &mut out);
        out.clear();
        items.missed(message("m"), usage(7), &mut out);
        let said = r#"MessageCompleted { id: "m", text: "all", phase: None }"#;
        let used =
            "Usage(Usage { input: None, cached_input: None, output: None, reasoning_output: None, total: Some(7) })";
        check(&out, &[said, used]);
        // What was told is not told again.
        let (mut items, mut out) = (Items::default(), Vec::new());
        items.completed(item(r#"{"type":"agentMessage","id":"m","text":"all"}"#), &mut out);
        items.used(tokens(7), &mut out);
        out.clear();
        let told = Usage { total: Some(7), input: Some(6), ..Usage::default() };
        items.missed(message("m"), Some(told), &mut out);
        items.missed(None, usage(6), &mut out);
        check(&out, &[]);
    }

    #[test]
    fn tokens_of_before_are_not_of_this_turn() {
        let (mut items, mut out) = (Items::new(tokens(10)), Vec::new());
        items.used_before(tokens(100));
        items.used(tokens(130), &mut out);
        let used = Usage { total: Some(30), input: Some(30), ..Usage::default() };
        assert_eq!(out, [Report::Usage(used)]);
    }

    #[test]
    fn only_the_input_and_reasoning_are_no_output() {
        let is_bare = |text: &str| {
            let mut items = Items::default();
            items.completed(item(text), &mut Vec::new());
            items.are_bare()
        };
        assert!(Items::default().are_bare());
        for (kind, want) in [
            ("userMessage", true),
            ("reasoning", true),
            ("agentMessage", false),
            ("commandExecution", false),
            ("webSearch", false),
            ("hologram", false),
        ] {
            assert_eq!(is_bare(&format!(r#"{{"type":"{kind}","id":"i"}}"#)), want, "{kind}");
        }
        let mut items = Items::default();
        items.unread();
        assert!(!items.are_bare());
    }

    #[test]
    fn a_message_that_was_never_started_is_started_first() {
        let (mut items, mut out) = (Items::default(), Vec::new());
        items.completed(item(r#"{"type":"agentMessage","id":"m","text":"x","phase":"odd"}"#), &mut out);
        check(&out, &[r#"MessageStarted { id: "m" }"#, r#"MessageCompleted { id: "m", text: "x", phase: None }"#]);
    }

    #[test]
    fn deltas_of_what_is_not_open_are_nothing() {
        let (mut items, mut out) = (Items::default(), Vec::new());
        items.started(item(r#"{"type":"reasoning","id":"r","summary":[],"content":[]}"#), &mut out);
        out.clear();
        assert!(!items.message_delta(delta("m", "x"), &mut out));
        assert!(!items.message_delta(delta("r", "x"), &mut out));
        assert!(!items.command_output(delta("r", "x"), &mut out));
        assert!(!items.started(item(r#"{"type":"reasoning","id":"r"}"#), &mut out));
        check(&out, &[]);
        assert!(items.reasoning_delta(ReasoningText::Raw, delta("r", "x"), &mut out));
        check(&out, &[r#"ReasoningDelta { id: "r", kind: Raw, index: 1, text: "x" }"#]);
    }

    #[test]
    fn a_broken_answer_voids_messages_and_reasoning_and_leaves_work() {
        let (mut items, mut out) = (Items::default(), Vec::new());
        items.broken(&mut out);
        check(&out, &[]);
        items.started(item(r#"{"type":"agentMessage","id":"m"}"#), &mut out);
        items.started(item(r#"{"type":"reasoning","id":"r"}"#), &mut out);
        items.started(item(r#"{"type":"commandExecution","id":"e","command":"ls","cwd":"/w"}"#), &mut out);
        out.clear();
        items.broken(&mut out);
        check(&out, &["AnswerBroken"]);
        assert_eq!(items.open_work(), 1);
        assert!(!items.message_delta(delta("m", "x"), &mut out));
    }

    #[test]
    fn a_command_carries_its_whole_output_at_the_end() {
        let (mut items, mut out) = (Items::default(), Vec::new());
        items.started(
            item(r#"{"type":"commandExecution","id":"e","command":"ls","cwd":"/w","status":"inProgress"}"#),
            &mut out,
        );
        items.command_output(delta("e", "b\n"), &mut out);
        let end = r#"{"type":"commandExecution","id":"e","command":"ls","cwd":"/w","status":"failed","aggregatedOutput":"a\nb\n","exitCode":3,"durationMs":12}"#;
        items.completed(item(end), &mut out);
        check(
            &out,
            &[
                r#"ToolStarted { id: "e", tool: Command { command: "ls", directory: "/w" } }"#,
                r#"ToolOutput { id: "e", text: "b\n" }"#,
                r#"ToolCompleted { id: "e", end: ToolEnd { status: Failed, tool: Command { command: "ls", directory: "/w" }, output: Some("a\nb\n"), exit_code: Some(3), duration: Some(12ms) } }"#,
            ],
        );
        assert_eq!(items.open_work(), 0);
    }

    #[test]
    fn work_that_was_stopped_is_incomplete() {
        let (mut items, mut out) = (Items::default(), Vec::new());
        items.started(item(r#"{"type":"commandExecution","id":"e","command":"ls","cwd":"/w"}"#), &mut out);
        items.stop();
        for code in [-1, 137] {
            let end =
                r#"{"type":"commandExecution","id":"e","command":"ls","cwd":"/w","status":"failed","exitCode":CODE}"#;
            items.completed(item(&end.replace("CODE", &code.to_string())), &mut out);
            let Some(Report::ToolCompleted { end, .. }) = out.pop() else { panic!("no end") };
            assert_eq!((end.status, end.exit_code), (ToolStatus::Incomplete, None));
        }
    }

    #[test]
    fn file_changes_keep_paths_kinds_and_moves() {
        let (mut items, mut out) = (Items::default(), Vec::new());
        let changes = r#"{"type":"fileChange","id":"p","status":"completed","changes":[
            {"path":"/w/a","kind":{"type":"update","move_path":"/w/b"},"diff":"d"},{"path":"/w/c","kind":{"type":"warp"},"diff":""}]}"#;
        items.completed(item(changes), &mut out);
        let Some(Report::ToolCompleted { end: ToolEnd { tool: Tool::FileChange { edits }, .. }, .. }) = out.pop()
        else {
            panic!("no change")
        };
        assert_eq!(edits[0].moved_to.as_deref(), Some("/w/b"));
        assert_eq!((edits[0].kind, edits[1].kind), (FileEditKind::Update, FileEditKind::Other));
    }

    #[test]
    fn items_of_other_types_are_tools_by_their_name_or_nothing() {
        let (mut items, mut out) = (Items::default(), Vec::new());
        items.started(item(r#"{"type":"hologram","id":"h"}"#), &mut out);
        items.completed(item(r#"{"type":"hologram","id":"h","status":"paused"}"#), &mut out);
        assert!(!items.completed(item(r#"{"type":"hologram"}"#), &mut out));
        assert!(items.started(item(r#"{"type":"userMessage","id":"u","content":[]}"#), &mut out));
        check(
            &out,
            &[
                r#"ToolStarted { id: "h", tool: Other { name: "hologram" } }"#,
                r#"ToolCompleted { id: "h", end: ToolEnd { status: Other, tool: Other { name: "hologram" }, output: None, exit_code: None, duration: None } }"#,
            ],
        );
    }

    #[test]
    fn usage_is_of_this_turn_and_a_repeated_report_adds_nothing() {
        let (mut items, mut out) = (Items::new(tokens(100)), Vec::new());
        assert!(!items.used(tokens(100), &mut out));
        assert!(items.used(tokens(112), &mut out));
        assert!(!items.used(tokens(112), &mut out));
        assert!(items.used(tokens(134), &mut out));
        let totals: Vec<_> = out
            .iter()
            .map(|report| match report {
                Report::Usage(usage) => (usage.total, usage.input, usage.output),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(totals, [(Some(12), Some(12), None), (Some(34), Some(34), None)]);
        assert_eq!(items.total(), tokens(134));
    }
}
