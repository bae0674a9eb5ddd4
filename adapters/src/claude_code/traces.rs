//! What the real binary wrote (2.1.332, against a scripted provider; ids, paths and what nobody reads are shortened), read by the pure machines of one
//! Turn together. The files beside hold one Turn, or the Turns of one process, below each `# name`.

use std::fmt::Write as _;

use super::{
    events::Items,
    failure::{self, Errors, Surroundings},
    functions::Calls,
    structured::{self, Structured},
    wire::{self, Asked, Line, McpContent, NativeResult, SessionState, Shown, ShownPart, User},
};
use crate::{
    cleaner::Cleaner,
    harness::{FunctionOutput, FunctionResult, Presence, Report},
};

/// The machines of one Turn.
struct Machines {
    items: Items,
    calls: Calls,
    errors: Errors,
    structured: Structured,
    is_structured: bool,
    interrupted: bool,
    result: Option<Box<NativeResult>>,
}

impl Machines {
    fn new(is_structured: bool) -> Self {
        Self {
            items: Items::default(),
            calls: Calls::new(["lookup".to_owned()]),
            errors: Errors::default(),
            structured: Structured::default(),
            is_structured,
            interrupted: false,
            result: None,
        }
    }

    /// Takes a line; true when it ends the Turn. The answer to a call is the one that its result shows, if there is one.
    fn take(&mut self, line: Line, answers: &[(String, String)], out: &mut Vec<Report>) -> bool {
        match line {
            Line::Stream(stream) => {
                self.calls.streamed(&stream.event);
                assert!(self.items.streamed(stream, out));
            }
            Line::Assistant(line) => {
                self.calls.told(&line);
                self.errors.told(&line);
                self.structured.called(&line);
                assert!(self.items.told(line, out));
            }
            Line::User(line) => {
                self.structured.seen(&line);
                for result in &line.results {
                    out.extend(self.calls.seen(result));
                }
                assert!(self.items.ended(&line, out));
            }
            Line::Retry(retry) => self.items.retried(failure::retried(&retry), out),
            Line::Denied(denied) => self.items.denied(&denied.tool_use_id),
            Line::Result(result) => {
                self.items.turn_ended(&result, out);
                self.structured.turn_ended(&result);
                self.result = Some(result);
            }
            Line::Request(request) => self.asked(request, answers, out),
            // Only interrupts are answered in these files.
            Line::Response(_) => {
                self.interrupted = true;
                self.items.stop();
            }
            Line::State(SessionState::Idle) => {
                let of = Surroundings { interrupted: self.interrupted, bare: self.items.are_bare() };
                let end = self.errors.end(&self.result.take().unwrap(), of, &Cleaner::default());
                let (end, answer) = if self.is_structured { self.structured.end(end) } else { (end, None) };
                if let Some(answer) = answer {
                    structured::publish(answer, out);
                }
                assert_eq!(self.items.open_work(), 0);
                out.push(Report::Ended(end));
                return true;
            }
            Line::State(_) | Line::Init(_) | Line::Lifecycle(_) | Line::Compacted | Line::Withdrawn => {}
            Line::Heartbeat => {}
        }
        false
    }

    fn asked(&mut self, request: wire::ControlRequest, answers: &[(String, String)], out: &mut Vec<Report>) {
        let Asked::Mcp(message) = request.kind else { panic!("{request:?}") };
        match message.content {
            McpContent::Call(call) => {
                let call_id = call.meta.tool_use_id.clone().unwrap();
                out.extend(self.calls.requested(request.request_id, message.id.unwrap(), call).reports);
                if let Some((_, text)) = answers.iter().find(|(id, _)| *id == call_id) {
                    let output = Presence::Value(FunctionOutput::Text(text.clone()));
                    let result = FunctionResult { success: true, error: Presence::Absent, output, disposition: None };
                    self.calls.answered(&call_id, &result);
                }
            }
            McpContent::Cancelled(id) => {
                self.interrupted = true;
                self.items.stop();
                out.extend(self.calls.cancelled(&id));
            }
            McpContent::Other => panic!("another method"),
        }
    }
}

fn answers(line: &Line) -> Vec<(String, String)> {
    let Line::User(User { results, .. }) = line else { return Vec::new() };
    let text = |result: &wire::ToolResult| match result.shown().unwrap() {
        Shown::Parts(parts) if !result.is_error => match parts.into_iter().next() {
            Some(ShownPart::Text(text)) => Some((result.tool_use_id.clone(), text)),
            _ => None,
        },
        _ => None,
    };
    results.iter().filter_map(text).collect()
}

fn told(traces: &str, is_structured: bool) -> String {
    let mut told = String::new();
    for trace in format!("\n{traces}").split("\n# ").skip(1) {
        let (name, lines) = trace.split_once('\n').unwrap();
        writeln!(told, "# {name}").unwrap();
        let read = |line: &str| wire::read(line.as_bytes()).unwrap();
        let answers: Vec<_> = lines.lines().filter_map(read).flat_map(|line| answers(&line)).collect();
        let mut machines = Machines::new(is_structured);
        for line in lines.lines().filter_map(read) {
            let mut out = Vec::new();
            if machines.take(line, &answers, &mut out) {
                machines = Machines::new(is_structured);
            }
            for report in out {
                writeln!(told, "{report:?}").unwrap();
            }
        }
    }
    told
}

#[test]
fn texts_are_told_as_they_were_said() {
    insta::assert_snapshot!(told(include_str!("traces/texts.txt"), false));
}

#[test]
fn answers_that_break_off_are_void_where_they_broke() {
    insta::assert_snapshot!(told(include_str!("traces/broken.txt"), false));
}

#[test]
fn an_interrupt_leaves_open_what_it_cut() {
    insta::assert_snapshot!(told(include_str!("traces/interrupts.txt"), false));
}

#[test]
fn calls_are_told_with_the_models_own_arguments() {
    insta::assert_snapshot!(told(include_str!("traces/functions.txt"), false));
}

#[test]
fn tools_are_told_with_what_they_did() {
    insta::assert_snapshot!(told(include_str!("traces/tools.txt"), false));
}

#[test]
fn a_structured_answer_takes_both_its_proofs() {
    insta::assert_snapshot!(told(include_str!("traces/structured.txt"), true));
}

#[test]
fn failures_have_their_classes() {
    insta::assert_snapshot!(told(include_str!("traces/failures.txt"), false));
}
