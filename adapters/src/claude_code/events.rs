//! Native messages and tools of one Turn → neutral reports. It knows which items are open and nothing of processes; calls are in
//! [`super::functions`], structured answers in [`super::structured`].
//!
//! A block is streamed, and told whole by an `assistant` line just before its stream ends. Where the provider's stream broke off too often, Claude
//! asks for the answer in one piece and tells its blocks without any stream.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    functions,
    mcp::Tools,
    structured,
    wire::{Assistant, Block, Delta, Event, NativeResult, Stream, User},
};
use crate::harness::{FailureCode, ProvedMessage, ReasoningText, Report, RetryOf, Tool, Usage};

mod tools;
mod usage;

use usage::Counts;

/// The items of one Turn.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// Of declared servers.
    servers: Arc<Tools>,
    /// The message that is streamed.
    message: Option<Message>,
    /// The message that is told without a stream, or behind it.
    untold: Option<Untold>,
    tools: BTreeMap<String, Running>,
    /// What still runs is stopped by us.
    stopping: bool,
    /// A stream broke off, and nothing says yet that Claude goes on.
    cut: bool,
    /// There was a message, a tool or a call, or something that nobody could read.
    shown: bool,
    /// Tokens of the native turns that ended.
    ended: Counts,
    /// Tokens of the answers of the native turn that runs.
    running: Counts,
    /// As it was told last.
    usage: Usage,
    /// The message that was completed last.
    last: Option<String>,
}

/// A message that is streamed.
#[derive(Debug)]
struct Message {
    id: String,
    /// Blocks that were not told whole, by the provider's index.
    open: BTreeMap<u32, Piece>,
    /// The block that is streamed.
    current: Option<u32>,
    /// Index of the next block that is told: Claude tells none of nothing but white space.
    next: u32,
}

/// A message without a stream.
#[derive(Debug)]
struct Untold {
    id: String,
    /// Index of the next block.
    next: u32,
}

/// A block that is streamed.
#[derive(Clone, Debug, Default)]
struct Piece {
    /// What it was reported as, and its index.
    reported: Option<(Kind, u32)>,
    /// White space before the first word of a text.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
}

/// A tool at work.
#[derive(Debug)]
struct Running {
    tool: Tool,
    denied: bool,
    /// The Session has taken it for a part of an answer that broke off.
    void: bool,
}

impl Items {
    /// Without any item yet.
    pub(super) fn of(servers: Arc<Tools>) -> Self {
        Self { servers, ..Self::default() }
    }

    /// How many tools are open that run on this machine.
    pub(super) fn open_work(&self) -> usize {
        self.tools.values().filter(|running| !is_hosted(&running.tool)).count()
    }

    /// Tools that end from here on were stopped (R-EVT-9), and texts that end were cut short: the Session closes them.
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

    /// `stream_event`. False when it is of a subagent.
    pub(super) fn streamed(&mut self, Stream { parent, event }: Stream, out: &mut Vec<Report>) -> bool {
        if parent.is_some() {
            return false;
        }
        match event {
            Event::MessageStart { id } => {
                self.void(out);
                self.goes_on(out);
                self.message = Some(Message { id, open: BTreeMap::new(), current: None, next: 0 });
            }
            Event::BlockStart { index, block } => {
                if let Some(message) = &mut self.message {
                    message.open.insert(index, Piece::default());
                    message.current = Some(index);
                }
                match block {
                    Block::Text(text) => self.grows(index, Kind::Message, text, out),
                    Block::Thinking(text) => self.grows(index, Kind::Reasoning, text, out),
                    Block::ToolUse { .. } | Block::Other => {}
                }
            }
            Event::BlockDelta { index, delta } => match delta {
                Delta::Text(text) => self.grows(index, Kind::Message, text, out),
                Delta::Thinking(text) => self.grows(index, Kind::Reasoning, text, out),
                Delta::Input(_) | Delta::Other => {}
            },
            // What was not reported is nothing but white space.
            Event::BlockStop { index } => {
                if let Some(message) = &mut self.message {
                    message.current = None;
                    if message.open.get(&index).is_some_and(|piece| piece.reported.is_none()) {
                        message.open.remove(&index);
                    }
                }
            }
            // Without a reason the answer did not end; what it took is then in the counters of the `result` only.
            Event::MessageDelta { stop_reason, usage } => {
                if let (Some(_), Some(tokens)) = (stop_reason, usage) {
                    self.running.add(tokens.into());
                    self.used(out);
                }
            }
            // Blocks that were told whole stay (R-EVT-2). All others are in the part that Claude gives up.
            Event::MessageStop { abandoned_from } => {
                self.cut |= abandoned_from.is_some() && !self.stopping;
                self.void(out);
                self.untold = self.message.take().map(|Message { id, next, .. }| Untold { id, next });
            }
        }
        true
    }

    /// More text of a block; the first word begins its item.
    fn grows(&mut self, index: u32, kind: Kind, text: String, out: &mut Vec<Report>) {
        let Some(message) = &mut self.message else { return };
        let Some(piece) = message.open.get_mut(&index) else { return };
        if text.is_empty() || piece.reported.is_some_and(|(reported, _)| reported != kind) {
            return;
        }
        let (at, text) = match piece.reported {
            Some((_, at)) => (at, text),
            None if kind == Kind::Message && text.trim_ascii().is_empty() => {
                piece.held.push_str(&text);
                return;
            }
            None => {
                piece.reported = Some((kind, message.next));
                out.push(started(kind, item_id(&message.id, message.next)));
                (message.next, std::mem::take(&mut piece.held) + &text)
            }
        };
        let id = item_id(&message.id, at);
        out.push(match kind {
            Kind::Message => Report::MessageDelta { id, text },
            // The provider calls it thinking, and does not tell whether it was shortened.
            Kind::Reasoning => Report::ReasoningDelta { id, kind: ReasoningText::Raw, index: 0, text },
        });
    }

    /// `assistant`. False when it is of a subagent.
    pub(super) fn told(&mut self, line: Assistant, out: &mut Vec<Report>) -> bool {
        if line.parent.is_some() {
            return false;
        }
        // What Claude says in the model's place, and texts that an interrupt cut short, are no messages.
        if line.is_synthetic || line.aborted {
            return true;
        }
        if self.message.as_ref().is_none_or(|message| message.id != line.id) {
            self.goes_on(out);
        }
        for block in line.blocks {
            let (index, piece) = self.place(&line.id);
            let id = item_id(&line.id, index);
            match block {
                Block::Text(text) => self.whole(id, Kind::Message, piece, text, out),
                Block::Thinking(text) => self.whole(id, Kind::Reasoning, piece, text, out),
                Block::ToolUse { id, name, input } => {
                    self.shown = true;
                    if !functions::is_function(&name) && name != structured::TOOL && !self.tools.contains_key(&id) {
                        let tool = tools::begun(name, input.as_deref(), &self.servers);
                        out.push(Report::ToolStarted { id: id.clone(), tool: tool.clone() });
                        self.tools.insert(id, Running { tool, denied: false, void: false });
                    }
                }
                Block::Other => {}
            }
        }
        true
    }

    /// Which block of its message an `assistant` line tells: the one that is streamed, without a stream the next one.
    fn place(&mut self, id: &str) -> (u32, Piece) {
        if let Some(message) = self.message.as_mut().filter(|message| message.id == id) {
            let piece = message.current.and_then(|current| message.open.remove(&current)).unwrap_or_default();
            let at = piece.reported.map_or(message.next, |(_, at)| at);
            message.next += 1;
            return (at, piece);
        }
        match &mut self.untold {
            Some(untold) if untold.id == id => {
                untold.next += 1;
                (untold.next - 1, Piece::default())
            }
            untold => {
                *untold = Some(Untold { id: id.to_owned(), next: 1 });
                (0, Piece::default())
            }
        }
    }

    fn whole(&mut self, id: String, kind: Kind, piece: Piece, text: String, out: &mut Vec<Report>) {
        self.shown |= kind == Kind::Message && !text.is_empty();
        if piece.reported.map(|(reported, _)| reported) != Some(kind) {
            if text.is_empty() {
                return;
            }
            out.push(started(kind, id.clone()));
        }
        if kind == Kind::Message {
            self.last = Some(id.clone());
        }
        out.push(match kind {
            Kind::Message => Report::MessageCompleted { id, text, phase: None },
            Kind::Reasoning => Report::ReasoningCompleted { id, summary: Vec::new(), raw: vec![text] },
        });
    }

    /// The last message stands in history, which the process did not live to tell.
    pub(super) fn missed(&mut self, ProvedMessage { id, text, phase }: ProvedMessage, out: &mut Vec<Report>) {
        if self.last.as_ref() == Some(&id) {
            return;
        }
        let streamed = |message: &Message| {
            let reported = message.open.values().filter_map(|piece| piece.reported);
            reported.filter(|(kind, _)| *kind == Kind::Message).any(|(_, at)| item_id(&message.id, at) == id)
        };
        if !self.message.as_ref().is_some_and(streamed) {
            out.push(started(Kind::Message, id.clone()));
        }
        out.push(Report::MessageCompleted { id, text, phase });
    }

    /// `user`: results of tools. False when it is of a subagent.
    pub(super) fn ended(&mut self, line: &User, out: &mut Vec<Report>) -> bool {
        if line.parent.is_some() {
            return false;
        }
        for result in &line.results {
            if let Some(Running { tool, denied, void }) = self.tools.remove(&result.tool_use_id) {
                let id = result.tool_use_id.clone();
                if void {
                    out.push(Report::ToolStarted { id: id.clone(), tool: tool.clone() });
                }
                let end = tools::ended(tool, result, line.raw.as_deref(), denied, self.stopping);
                out.push(Report::ToolCompleted { id, end });
            }
        }
        true
    }

    /// `system/permission_denied`.
    pub(super) fn denied(&mut self, tool_use_id: &str) {
        if let Some(running) = self.tools.get_mut(tool_use_id) {
            running.denied = true;
        }
    }

    /// `system/api_retry`.
    pub(super) fn retried(&mut self, retry: RetryOf, out: &mut Vec<Report>) {
        self.void(out);
        self.cut = false;
        out.push(Report::ProviderRetry(retry));
    }

    /// `result`: the end of a native turn, with what all of it took.
    pub(super) fn turn_ended(&mut self, result: &NativeResult, out: &mut Vec<Report>) {
        self.cut = false;
        let mut measured = Counts::default();
        for usage in result.model_usage_since_last_result.values() {
            measured.add((*usage).into());
        }
        let running = std::mem::take(&mut self.running);
        // They have also what no answer told: streams that broke off, and requests of tools.
        self.ended.add(if measured == Counts::default() { running } else { measured });
        self.used(out);
    }

    /// Tokens of the Turn so far.
    fn used(&mut self, out: &mut Vec<Report>) {
        let mut counts = self.ended;
        counts.add(self.running);
        let usage = counts.usage();
        if usage != self.usage {
            self.usage = usage;
            out.push(Report::Usage(usage));
        }
    }

    /// What was said of an answer that broke off is void. At an interrupt it stays as it is: the Session closes it.
    fn void(&mut self, out: &mut Vec<Report>) {
        let Some(message) = &mut self.message else { return };
        let open = std::mem::take(&mut message.open);
        if !self.stopping && open.values().any(|piece| piece.reported.is_some()) {
            out.push(Report::AnswerBroken);
            // Searches of the web are void with it, as far as the Session knows. Here they go on, and are told again at their end.
            for running in self.tools.values_mut().filter(|running| is_hosted(&running.tool)) {
                running.void = true;
            }
        }
    }

    /// Claude goes on where a stream broke off. It says so only when it begins anew.
    fn goes_on(&mut self, out: &mut Vec<Report>) {
        if std::mem::take(&mut self.cut) {
            out.push(Report::ProviderRetry(RetryOf {
                code: FailureCode::ConnectionFailed,
                http_status: None,
                message: "the provider's answer broke off".into(),
            }));
        }
    }
}

/// A block has no native id of its own.
pub(super) fn item_id(message: &str, index: u32) -> String {
    format!("{message}:{index}")
}

fn started(kind: Kind, id: String) -> Report {
    match kind {
        Kind::Message => Report::MessageStarted { id },
        Kind::Reasoning => Report::ReasoningStarted { id },
    }
}

/// Whether a tool runs elsewhere.
fn is_hosted(tool: &Tool) -> bool {
    match tool {
        Tool::WebSearch { .. } => true,
        Tool::Command { .. } | Tool::FileChange { .. } | Tool::Mcp(_) | Tool::Other { .. } => false,
    }
}

#[cfg(test)]
mod tests;
