//! Calls of functions that an agent makes at the server of the bridge: joined with what the agent shows of them on its own wire (R-FN-2 to R-FN-7). Pure: it takes what
//! happens on either way, and gives reports and answers.
//!
//! A request at the server has no id of the agent's. So the bridge makes the id of a call, and joins a request with a tool by the function's name and the arguments, in the order
//! in which they come. Calls that are equal in both are told apart by what is shown of their results.

use serde_json::Value;

use super::profile::McpResult;
use crate::{
    call::Phase,
    function_server::{Answer, RequestId},
    harness::{AbandonReason, FunctionResult, OutputPart, Report, ToolStatus, render},
};

/// The native message that shows a result as taken over (R-FN-6).
pub(super) const EVIDENCE: &str = "session/update";

/// What an agent says, in some sentence, of a call that it has given up at its own limit.
const TIMED_OUT: &str = "timed out";

/// The calls of one Turn.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Makes ids unique over the Turns of a Session.
    turn: String,
    made: u32,
    calls: Vec<Call>,
    tools: Vec<Shown>,
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

    /// The agent shows that a tool of a function has ended, with this result or what it says in its place; `stopped` says that we have cancelled the Turn.
    pub(super) fn ended(
        &mut self,
        id: &str,
        went_well: bool,
        result: Option<&McpResult>,
        said: Option<&str>,
        stopped: bool,
    ) -> Ended {
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
        self.join_as_shown(id, went_well, result);
        let Some(call) = self.calls.iter_mut().find(|call| call.tool.as_deref() == Some(id)) else {
            return Ended::NoCall;
        };
        let call_id = call.call_id.clone();
        // What the agent shows as failed without a result it has given up, at the very moment at which it was answered perhaps.
        let given_up = !went_well && result.is_none() && matches!(call.phase, Phase::Answered { .. });
        if given_up || matches!(call.phase, Phase::Pending) {
            call.phase = Phase::Abandoned;
            return Ended::Call(vec![Report::CallAbandoned { call_id, reason: reason(said, stopped) }]);
        }
        let success = succeeded(went_well, result);
        let applied = |answer: &Answer| result.is_some_and(|result| is_shown(answer, success, result));
        Ended::Call(call.phase.seen(&call_id, EVIDENCE, success, applied))
    }

    /// Of calls that are equal in name and arguments, the one that was answered so is the one that has ended, or without a result the one that was given up: nobody knows which of
    /// them is which tool.
    fn join_as_shown(&mut self, id: &str, went_well: bool, result: Option<&McpResult>) {
        let Some(held) = self.calls.iter().position(|call| call.tool.as_deref() == Some(id)) else { return };
        let success = succeeded(went_well, result);
        let shows = |call: &Call| match &call.phase {
            Phase::Answered { answer, .. } => result.is_some_and(|result| is_shown(answer, success, result)),
            Phase::Abandoned => result.is_none() && !went_well,
            Phase::Pending | Phase::Applied { .. } => false,
        };
        if shows(&self.calls[held]) {
            return;
        }
        let alike = |call: &&Call| call.name == self.calls[held].name && call.arguments == self.calls[held].arguments;
        let found = self.calls.iter().filter(alike).find(|call| shows(call)).map(|call| call.request);
        let Some(other) = self.calls.iter().position(|call| Some(call.request) == found) else { return };
        let tool = self.calls[other].tool.take();
        self.calls[other].tool = std::mem::replace(&mut self.calls[held].tool, tool);
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

    /// Whether a request waits for its result.
    pub(super) fn is_pending(&self, request: RequestId) -> bool {
        self.calls.iter().any(|call| call.request == request && matches!(call.phase, Phase::Pending))
    }

    /// Who asked has given up, and said so or this.
    pub(super) fn given_up(&mut self, request: RequestId, said: Option<&str>, stopped: bool) -> Option<Report> {
        let call = self.calls.iter_mut().find(|call| call.request == request)?;
        match call.phase {
            // What was answered may have been taken: the agent's own wire tells.
            Phase::Pending => {
                call.phase = Phase::Abandoned;
                Some(Report::CallAbandoned { call_id: call.call_id.clone(), reason: reason(said, stopped) })
            }
            Phase::Answered { .. } | Phase::Applied { .. } | Phase::Abandoned => None,
        }
    }
}

/// Why a call is given up that has no result: at the agent's own limit where it says so, unless we have cancelled the Turn. No agent has a field for it.
fn reason(said: Option<&str>, stopped: bool) -> AbandonReason {
    match said {
        Some(said) if !stopped && said.contains(TIMED_OUT) => AbandonReason::NativeTimeout,
        Some(_) | None => AbandonReason::NativeCancelled,
    }
}

/// Whether a call succeeded, by its server where the agent shows that.
fn succeeded(went_well: bool, result: Option<&McpResult>) -> bool {
    result.and_then(|result| result.is_error).map_or(went_well, |is_error| !is_error)
}

/// Whether a native result is this answer: the same flag, and the texts of its parts, in order, one by one or in one text.
fn is_shown(answer: &Answer, success: bool, shown: &McpResult) -> bool {
    let texts: Vec<&str> = answer.parts.iter().filter_map(text).collect();
    success == answer.success
        && (shown.texts == texts
            || (texts.is_empty() && shown.for_none)
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
pub(super) fn status(went_well: bool, stopped: bool) -> ToolStatus {
    match (went_well, stopped) {
        // What ends behind our cancel was stopped by it (R-EVT-9).
        (_, true) => ToolStatus::Incomplete,
        (true, false) => ToolStatus::Completed,
        (false, false) => ToolStatus::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{FunctionOutput, Presence};

    fn calls() -> Calls {
        Calls { turn: "t".into(), ..Calls::default() }
    }

    fn ask(calls: &mut Calls, request: u64, arguments: &str) -> String {
        match calls.asked(RequestId(request), "f".into(), arguments.into()) {
            Report::Call { call_id, named_by_bridge: true, exact: false, .. } => call_id,
            other => panic!("{other:?}"),
        }
    }

    fn text(text: &str) -> FunctionResult {
        let output = Presence::Value(FunctionOutput::Text(text.into()));
        FunctionResult { success: true, error: Presence::Absent, output, disposition: None }
    }

    fn shown(text: &str) -> McpResult {
        McpResult { json: "{}".into(), is_error: Some(false), texts: vec![text.into()], ..McpResult::default() }
    }

    fn reports(ended: Ended) -> Vec<Report> {
        match ended {
            Ended::Call(reports) => reports,
            Ended::NoCall => panic!("it is a call"),
        }
    }

    #[test]
    fn of_equal_calls_the_one_that_was_answered_so_has_ended() {
        let mut calls = calls();
        for id in ["a", "b"] {
            calls.told(id, "f", Some("{}"));
        }
        let ids = [ask(&mut calls, 1, "{}"), ask(&mut calls, 2, "{}")];
        // The second tool ends first, with what the first call was answered.
        assert!(calls.answered(&ids[0], &text("one")).is_some());
        let told = reports(calls.ended("b", true, Some(&shown("one")), None, false));
        let applied = Report::AnswerApplied { call_id: ids[0].clone(), evidence: EVIDENCE, success: true };
        assert_eq!(told.last(), Some(&applied), "{told:?}");
        assert!(calls.answered(&ids[1], &text("two")).is_some());
        let told = reports(calls.ended("a", true, Some(&shown("two")), None, false));
        let applied = Report::AnswerApplied { call_id: ids[1].clone(), evidence: EVIDENCE, success: true };
        assert_eq!(told.last(), Some(&applied), "{told:?}");
    }

    #[test]
    fn what_is_given_up_is_abandoned_also_behind_its_answer() {
        let mut calls = calls();
        calls.told("a", "f", Some("{}"));
        let id = ask(&mut calls, 1, "{}");
        let abandoned = |call_id: &str, reason| Report::CallAbandoned { call_id: call_id.into(), reason };
        assert!(calls.answered(&id, &text("late")).is_some());
        assert_eq!(calls.given_up(RequestId(1), None, false), None, "the agent's own wire tells");
        assert_eq!(
            reports(calls.ended("a", false, None, Some("it timed out after 5 ms"), false)),
            [abandoned(&id, AbandonReason::NativeTimeout)],
            "no result was taken"
        );
        let id = ask(&mut calls, 2, r#"{"n":1}"#);
        assert_eq!(
            calls.given_up(RequestId(2), Some("timed out"), true),
            Some(abandoned(&id, AbandonReason::NativeCancelled))
        );
        assert_eq!(calls.given_up(RequestId(2), None, false), None, "once");
        assert!(calls.answered(&id, &text("late")).is_none());
    }

    #[test]
    fn of_equal_calls_the_one_that_was_given_up_has_failed() {
        let mut calls = calls();
        for id in ["a", "b"] {
            calls.told(id, "f", Some("{}"));
        }
        let ids = [ask(&mut calls, 1, "{}"), ask(&mut calls, 2, "{}")];
        let reason = AbandonReason::NativeTimeout;
        let abandoned = Report::CallAbandoned { call_id: ids[1].clone(), reason };
        assert_eq!(calls.given_up(RequestId(2), Some("Error: timed out"), false), Some(abandoned));
        // It is shown as the other tool.
        assert_eq!(reports(calls.ended("a", false, None, None, false)), []);
        assert!(calls.answered(&ids[0], &text("one")).is_some(), "the other call still waits");
        let told = reports(calls.ended("b", true, Some(&shown("one")), None, false));
        assert!(matches!(told.last(), Some(Report::AnswerApplied { .. })), "{told:?}");
    }

    #[test]
    fn a_failure_without_a_text_is_shown_as_what_the_agent_has_for_none() {
        let mut calls = calls();
        calls.told("a", "f", Some("{}"));
        let id = ask(&mut calls, 1, "{}");
        let nothing =
            FunctionResult { success: false, error: Presence::Absent, output: Presence::Absent, disposition: None };
        let (_, answer) = calls.answered(&id, &nothing).unwrap();
        assert_eq!(answer.parts, []);
        let shown = McpResult { is_error: Some(true), for_none: true, ..shown("It failed") };
        let told = reports(calls.ended("a", false, Some(&shown), None, false));
        assert!(matches!(told.last(), Some(Report::AnswerApplied { success: false, .. })), "{told:?}");
    }

    #[test]
    fn another_content_is_told_and_another_tool_is_no_call() {
        let mut calls = calls();
        calls.told("a", "f", Some("{}"));
        let id = ask(&mut calls, 1, "{}");
        assert!(calls.answered(&id, &text("one")).is_some());
        let told = reports(calls.ended("a", true, Some(&shown("other")), None, false));
        assert_eq!(told.last(), Some(&Report::AnswerDiffers { call_id: id }), "{told:?}");
        calls.told("b", "f", Some("[]"));
        assert!(matches!(calls.ended("b", false, None, None, false), Ended::NoCall));
    }
}
