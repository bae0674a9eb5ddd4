//! Calls of declared functions within one Turn: which are open, what was written for them, and what Claude Code showed of it (R-FN-2 to R-FN-7).
//! Pure: it takes lines and gives reports and lines to write.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::value::RawValue;

use super::wire::{Assistant, Block, Delta, Event, ToolCall, ToolResult, write};
use crate::{
    call::{Phase, Told},
    harness::{FunctionResult, Report, render},
    native::rpc::EncodeError,
};

mod rendering;

use rendering::Answer;
pub(super) use rendering::tool_name;

/// The native message that shows a result as taken over (R-FN-6).
pub(super) const EVIDENCE: &str = "user/tool_result";

/// The most UTF-16 units in the texts of a successful result; Claude writes a longer one to a file and shows its path. It holds for functions that
/// are listed with `anthropic/maxResultSizeChars` of this value, the largest that there is.
pub(super) const RESULT_TEXT: usize = 500_000;

/// JSON-RPC: parameters are wrong. The model reads the text beside it.
const INVALID_PARAMS: i64 = -32602;

/// The calls of one Turn.
#[derive(Debug)]
pub(super) struct Calls {
    declared: BTreeSet<String>,
    calls: BTreeMap<String, Call>,
    told: Told,
    /// Inputs of calls that the provider is telling, by the index of their block.
    streamed: BTreeMap<u32, Streamed>,
    /// Calls of subagents, which are none of this Turn.
    children: BTreeSet<String>,
}

#[derive(Debug)]
struct Streamed {
    call_id: String,
    arguments: String,
}

#[derive(Debug)]
struct Call {
    name: String,
    arguments: String,
    /// Native requests for it. A model may give one id to two calls; Claude runs both, and both get the same result.
    requests: Vec<Request>,
    /// Requests under this id that were refused: each is shown with a result of the same id, which tells nothing of this call.
    refused: u32,
    phase: Phase<Answer>,
}

/// A native request: the line that carried it, and the JSON-RPC id in it.
#[derive(Debug)]
struct Request {
    request_id: String,
    id: Box<RawValue>,
}

/// What to do about a native request.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) reports: Vec<Report>,
    /// To be written as they are.
    pub(super) lines: Vec<Bytes>,
}

/// Whether a tool of this name is a function of ours.
pub(super) fn is_function(tool: &str) -> bool {
    function_of(tool).is_some()
}

/// The function of ours that a tool of this name is.
pub(super) fn function_of(tool: &str) -> Option<&str> {
    tool.strip_prefix(&tool_name(""))
}

impl Calls {
    pub(super) fn new(declared: impl IntoIterator<Item = String>) -> Self {
        Self {
            declared: declared.into_iter().collect(),
            calls: BTreeMap::new(),
            told: Told::default(),
            streamed: BTreeMap::new(),
            children: BTreeSet::new(),
        }
    }

    /// Forgets everything of the last Turn.
    pub(super) fn begin(&mut self) {
        self.calls.clear();
        self.told.clear();
        self.streamed.clear();
        self.children.clear();
    }

    /// An event of the provider's stream: the model's own text of arguments is only there.
    pub(super) fn streamed(&mut self, event: &Event) {
        match event {
            Event::MessageStart { .. } | Event::MessageStop { .. } => self.streamed.clear(),
            Event::BlockStart { index, block: Block::ToolUse { id, name, .. } } if is_function(name) => {
                let streamed = Streamed { call_id: id.clone(), arguments: String::new() };
                self.streamed.insert(*index, streamed);
            }
            Event::BlockDelta { index, delta: Delta::Input(text) } => {
                if let Some(streamed) = self.streamed.get_mut(index) {
                    streamed.arguments.push_str(text);
                }
            }
            Event::BlockStop { index } => {
                // What is no JSON is never asked for.
                if let Some(Streamed { call_id, arguments }) = self.streamed.remove(index)
                    && is_whole(&arguments)
                    && !self.calls.contains_key(&call_id)
                {
                    self.told.tell(call_id, arguments);
                }
            }
            Event::BlockStart { .. } | Event::BlockDelta { .. } | Event::MessageDelta { .. } => {}
        }
    }

    /// An `assistant` line: it comes before the calls in it, and only it says whose they are.
    pub(super) fn told(&mut self, line: &Assistant) {
        if line.parent.is_some() {
            let calls = line.blocks.iter().filter_map(|block| match block {
                Block::ToolUse { id, name, .. } if is_function(name) => Some(id.clone()),
                Block::ToolUse { .. } | Block::Text(_) | Block::Thinking(_) | Block::Other => None,
            });
            self.children.extend(calls);
        }
    }

    /// `tools/call` of the running Turn.
    pub(super) fn requested(&mut self, request_id: String, id: Box<RawValue>, call: ToolCall) -> Step {
        let request = Request { request_id, id };
        let ToolCall { name, arguments, meta } = call;
        let arguments = arguments.map_or_else(|| "{}".to_owned(), |raw| raw.get().to_owned());
        if !self.declared.contains(&name) {
            return refuse(&request, "no such function", Some("call_refused"));
        }
        let Some(call_id) = meta.tool_use_id else {
            return refuse(&request, "the call has no id", Some("call_refused"));
        };
        if self.children.contains(&call_id) {
            return refuse(&request, "subagents have no functions", Some("call_refused"));
        }
        let Some(call) = self.calls.get_mut(&call_id) else {
            let told = self.told.take(&call_id).or_else(|| self.half_told(&call_id));
            let (exact, shown) = (told.is_some(), told.unwrap_or_else(|| arguments.clone()));
            let report = Report::Call {
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: shown,
                exact,
                named_by_bridge: false,
            };
            let call = Call { name, arguments, requests: vec![request], refused: 0, phase: Phase::Pending };
            self.calls.insert(call_id, call);
            return Step { reports: vec![report], lines: Vec::new() };
        };
        if call.name != name || call.arguments != arguments {
            call.refused += 1;
            return refuse(&request, "another call has this id", Some("call_id_reused"));
        }
        match &call.phase {
            Phase::Pending => {
                call.requests.push(request);
                Step::default()
            }
            Phase::Answered { answer, .. } | Phase::Applied { answer } => {
                let lines = answer_line(&request, answer).into_iter().collect();
                Step { reports: Vec::new(), lines }
            }
            Phase::Abandoned => {
                call.refused += 1;
                refuse(&request, "the call was abandoned", None)
            }
        }
    }

    /// The arguments of a call whose block has not ended. All of them were told before the call; only a text that ends by itself shows that.
    fn half_told(&self, call_id: &str) -> Option<String> {
        let mut told = self.streamed.values().filter(|streamed| streamed.call_id == call_id);
        let (first, None) = (told.next()?, told.next()) else { return None };
        let arguments = &first.arguments;
        let ends = arguments.trim_ascii_start().starts_with(['{', '[']) && is_whole(arguments);
        ends.then(|| arguments.clone())
    }

    /// `notifications/cancelled`: the native request is not waited for any more.
    pub(super) fn cancelled(&mut self, id: &RawValue) -> Option<Report> {
        let is_it = |request: &Request| request.id.get() == id.get();
        let (call_id, call) = self.calls.iter_mut().find(|(_, call)| call.requests.iter().any(is_it))?;
        call.requests.retain(|request| !is_it(request));
        if call.requests.is_empty() { call.phase.cancelled(call_id) } else { None }
    }

    /// The result of the application; gives the lines to write. The first one tells that the result was written.
    pub(super) fn answered(&mut self, call_id: &str, result: &FunctionResult) -> Vec<Bytes> {
        let Some(call) = self.calls.get_mut(call_id) else { return Vec::new() };
        if !matches!(call.phase, Phase::Pending) {
            return Vec::new();
        }
        let answer = Answer { success: result.success, name: call.name.clone(), parts: render(result, true) };
        let lines = call.requests.iter().filter_map(|request| answer_line(request, &answer)).collect();
        call.phase = Phase::Answered { answer, written: false };
        lines
    }

    /// The result was written to the end.
    pub(super) fn written(&mut self, call_id: &str) -> Option<Report> {
        self.calls.get_mut(call_id)?.phase.written(call_id)
    }

    /// A result in a live `user` line of the root: the evidence (R-FN-6).
    pub(super) fn seen(&mut self, result: &ToolResult) -> Vec<Report> {
        let call_id = &result.tool_use_id;
        let Some(call) = self.calls.get_mut(call_id) else { return Vec::new() };
        let shown = result.shown().ok();
        let applies = |answer: &Answer| shown.as_ref().is_some_and(|shown| answer.is_shown(result.is_error, shown));
        match &call.phase {
            Phase::Pending if call.refused > 0 => {
                call.refused -= 1;
                return Vec::new();
            }
            Phase::Answered { answer, .. } if call.refused > 0 && !applies(answer) => {
                call.refused -= 1;
                return Vec::new();
            }
            // An interrupt: the result, if there is one on its way, is not read.
            Phase::Pending | Phase::Answered { .. } if result.not_run.is_some() => {
                if call.requests.len() > 1 {
                    call.requests.pop();
                    return Vec::new();
                }
                return call.phase.cancelled(call_id).into_iter().collect();
            }
            Phase::Pending | Phase::Answered { .. } | Phase::Applied { .. } | Phase::Abandoned => {}
        }
        call.phase.seen(call_id, EVIDENCE, !result.is_error, applies)
    }
}

/// The refusal of a call outside of a Turn.
pub(super) fn foreign(request_id: &str, id: &RawValue) -> Option<Bytes> {
    logged(write::mcp_error(request_id, id, INVALID_PARAMS, "no Turn is running"))
}

/// Whether a text is the model's own. Half a character at the end of a piece was replaced, and then it is not.
fn is_whole(arguments: &str) -> bool {
    !arguments.contains(char::REPLACEMENT_CHARACTER) && serde_json::from_str::<&RawValue>(arguments).is_ok()
}

fn refuse(Request { request_id, id }: &Request, why: &str, notice: Option<&'static str>) -> Step {
    let reports = notice.map(|code| Report::Notice { code, message: format!("a call was refused: {why}") });
    let line = logged(write::mcp_error(request_id, id, INVALID_PARAMS, why));
    Step { reports: reports.into_iter().collect(), lines: line.into_iter().collect() }
}

fn answer_line(Request { request_id, id }: &Request, answer: &Answer) -> Option<Bytes> {
    let result = write::CallResult::new(answer.success, &answer.parts);
    logged(write::mcp_result(request_id, id, &result))
}

fn logged(line: Result<Bytes, EncodeError>) -> Option<Bytes> {
    line.inspect_err(|error| tracing::error!(%error, "a result could not be written as JSON")).ok()
}

#[cfg(test)]
mod tests;
