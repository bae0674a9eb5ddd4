//! Calls of functions that an agent makes at the server of the bridge: joined with what the agent shows of them on its own wire (R-FN-2 to R-FN-7). Pure: it takes what
//! happens on either way, and gives reports and answers.
//!
//! A request at the server has no id of the agent's. So the bridge makes the id of a call, and joins a request with a tool by the function's name and the arguments, in the order
//! in which they come. Of calls that are equal in both, the first that ends counts for the first one.

use serde_json::Value;

use super::profile::{McpResult, Profile};
use crate::{
    call::Phase,
    function_server::{Answer, RequestId},
    harness::{AbandonReason, FunctionResult, OutputPart, Report, ToolStatus, render},
};

/// The native message that shows a result as taken over (R-FN-6).
pub(super) const EVIDENCE: &str = "session/update";

/// The calls of one Turn.
#[derive(Debug)]
pub(super) struct Calls {
    /// Makes ids unique over the Turns of a Session.
    turn: String,
    made: u32,
    calls: Vec<Call>,
    tools: Vec<Shown>,
    /// The agent gives a call up by itself after some time.
    gives_up: bool,
}

#[derive(Debug)]
struct Call {
    call_id: String,
    request: RequestId,
    name: String,
    arguments: Option<Value>,
    /// The tool that it is on the agent's wire.
    tool: Option<String>,
    phase: Phase<Answer>,
}

/// A tool of the label of the functions, as the agent shows it.
#[derive(Debug)]
struct Shown {
    id: String,
    name: String,
    arguments: Option<Value>,
}

/// What became of a tool that has ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// It was a call.
    Call(Vec<Report>),
    /// It never came to the server: the agent itself has ended it.
    NoCall,
}

impl Calls {
    pub(super) fn new(profile: &Profile) -> Self {
        let gives_up = profile.call_timeout.is_some();
        Self { turn: String::new(), made: 0, calls: Vec::new(), tools: Vec::new(), gives_up }
    }

    /// Forgets everything of the last Turn.
    pub(super) fn begin(&mut self) {
        self.turn = uuid::Uuid::now_v7().simple().to_string();
        self.made = 0;
        self.calls.clear();
        self.tools.clear();
    }

    /// A function is asked for at the server.
    pub(super) fn asked(&mut self, request: RequestId, name: String, arguments: String) -> Report {
        self.made += 1;
        let call_id = format!("call_{}_{}", self.turn, self.made);
        let value = serde_json::from_str(&arguments).ok();
        self.calls.push(Call {
            call_id: call_id.clone(),
            request,
            name: name.clone(),
            arguments: value,
            tool: None,
            phase: Phase::Pending,
        });
        self.join();
        Report::Call { call_id, name, arguments, exact: false, named_by_bridge: true }
    }

    /// The agent shows a tool of this function, with its arguments once they are known.
    pub(super) fn told(&mut self, id: &str, name: &str, arguments: Option<&str>) {
        let value = arguments.and_then(|text| serde_json::from_str(text).ok());
        match self.tools.iter_mut().find(|tool| tool.id == id) {
            Some(tool) if value.is_some() => tool.arguments = value,
            Some(_) => {}
            None => self.tools.push(Shown { id: id.to_owned(), name: name.to_owned(), arguments: value }),
        }
        self.join();
    }

    /// Joins each call with the first tool that it can be.
    fn join(&mut self) {
        for at in 0..self.calls.len() {
            let call = &self.calls[at];
            if call.tool.is_some() {
                continue;
            }
            let taken = |tool: &Shown| self.calls.iter().any(|call| call.tool.as_deref() == Some(&*tool.id));
            let fits = |tool: &&Shown| tool.name == call.name && tool.arguments == call.arguments && !taken(tool);
            let found = self.tools.iter().find(fits).map(|tool| tool.id.clone());
            self.calls[at].tool = found;
        }
    }

    /// The agent shows that a tool of a function has ended, with this result where there is one; `stopped` says that we have cancelled the Turn.
    pub(super) fn ended(&mut self, id: &str, went_well: bool, result: Option<&McpResult>, stopped: bool) -> Ended {
        if !self.calls.iter().any(|call| call.tool.as_deref() == Some(id)) {
            // Its arguments were shown otherwise than they came: the function alone has to do, where it leaves no choice.
            let Some(name) = self.tools.iter().find(|tool| tool.id == id).map(|tool| tool.name.clone()) else {
                return Ended::NoCall;
            };
            let is_joined = |tool: &Shown| self.calls.iter().any(|call| call.tool.as_deref() == Some(&*tool.id));
            let shown = self.tools.iter().filter(|tool| tool.name == name && !is_joined(tool)).count();
            let mut open = self.calls.iter_mut().filter(|call| call.tool.is_none() && call.name == name);
            match (open.next(), open.next(), shown) {
                (Some(call), None, 1) => call.tool = Some(id.to_owned()),
                _ => return Ended::NoCall,
            }
        }
        let reason = self.reason(stopped);
        let Some(call) = self.calls.iter_mut().find(|call| call.tool.as_deref() == Some(id)) else {
            return Ended::NoCall;
        };
        let call_id = call.call_id.clone();
        if matches!(call.phase, Phase::Pending) {
            call.phase = Phase::Abandoned;
            return Ended::Call(vec![Report::CallAbandoned { call_id, reason }]);
        }
        let success = result.and_then(|result| result.is_error).map_or(went_well, |is_error| !is_error);
        let applied = |answer: &Answer| result.is_some_and(|result| is_shown(answer, success, result));
        Ended::Call(call.phase.seen(&call_id, EVIDENCE, success, applied))
    }

    /// A result of Core: gives the request and its answer, once.
    pub(super) fn answered(&mut self, call_id: &str, result: &FunctionResult) -> Option<(RequestId, Answer)> {
        let call = self.calls.iter_mut().find(|call| call.call_id == call_id)?;
        if !matches!(call.phase, Phase::Pending) {
            return None;
        }
        let answer = Answer { success: result.success, parts: render(result, true) };
        call.phase = Phase::Answered { answer: answer.clone(), written: false };
        Some((call.request, answer))
    }

    /// The answer to a request is on its way.
    pub(super) fn written(&mut self, request: RequestId) -> Option<Report> {
        let call = self.calls.iter_mut().find(|call| call.request == request)?;
        let call_id = call.call_id.clone();
        call.phase.written(&call_id)
    }

    /// Who asked has given up.
    pub(super) fn given_up(&mut self, request: RequestId, stopped: bool) -> Option<Report> {
        let reason = self.reason(stopped);
        let call = self.calls.iter_mut().find(|call| call.request == request)?;
        match call.phase {
            // What was answered may have been taken: the agent's own wire tells.
            Phase::Pending => {
                call.phase = Phase::Abandoned;
                Some(Report::CallAbandoned { call_id: call.call_id.clone(), reason })
            }
            Phase::Answered { .. } | Phase::Applied { .. } | Phase::Abandoned => None,
        }
    }

    /// Why a call is given up that has no result: by the agent's own limit, unless we have cancelled the Turn.
    fn reason(&self, stopped: bool) -> AbandonReason {
        if self.gives_up && !stopped { AbandonReason::NativeTimeout } else { AbandonReason::NativeCancelled }
    }
}

/// Whether a native result is this answer: the same flag, and the texts of its parts, in order, one by one or in one text.
fn is_shown(answer: &Answer, success: bool, shown: &McpResult) -> bool {
    let texts: Vec<&str> = answer.parts.iter().filter_map(text).collect();
    success == answer.success
        && (shown.texts == texts
            || (shown.texts.len() <= 1 && {
                let shown = shown.texts.first().map_or("", |text| text.trim());
                ["\n", "\n\n", ""].iter().any(|between| texts.join(between).trim() == shown)
            }))
}

fn text(part: &OutputPart) -> Option<&str> {
    match part {
        OutputPart::Text(text) => Some(text),
        OutputPart::Image(_) => None,
    }
}

/// How a tool of a function ended that never came to the server.
pub(super) fn status(went_well: bool) -> ToolStatus {
    if went_well { ToolStatus::Completed } else { ToolStatus::Failed }
}
