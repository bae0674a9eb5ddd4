//! The structured answer of a Turn (R-CTL-3). It takes two lines to confirm one: the live result of the model's `StructuredOutput` call, and a
//! successful `result` that carries a structured output. Calls that failed validation, and those that another call or another native turn replaced,
//! are never the answer.

use std::collections::BTreeSet;

use serde_json::{Value, value::RawValue};

use super::wire::{Assistant, Block, NativeResult, User};
use crate::harness::{Failure, FailureCode, MessagePhase, NativeEnd, ProvedMessage, Report};

/// The tool that Claude offers for the answer.
pub(super) const TOOL: &str = "StructuredOutput";

/// The structured answer of one Turn.
#[derive(Debug, Default)]
pub(super) struct Structured {
    /// Calls of the tool that have no result.
    calls: BTreeSet<String>,
    /// The last call of this native turn whose result was a success.
    candidate: Option<String>,
    answer: Option<Answer>,
}

/// A confirmed answer.
#[derive(Debug)]
struct Answer {
    tool_use_id: String,
    /// Claude's own text of it.
    text: String,
}

impl Structured {
    /// An `assistant` line.
    pub(super) fn called(&mut self, line: &Assistant) {
        if line.parent.is_some() {
            return;
        }
        for block in &line.blocks {
            if let Block::ToolUse { id, name, .. } = block
                && name == TOOL
            {
                self.calls.insert(id.clone());
            }
        }
    }

    /// A live `user` line.
    pub(super) fn seen(&mut self, line: &User) {
        if line.parent.is_some() || line.is_replay {
            return;
        }
        for result in &line.results {
            if self.calls.remove(&result.tool_use_id) && !result.is_error {
                self.candidate = Some(result.tool_use_id.clone());
            }
        }
    }

    /// `result`: the end of a native turn. A later one replaces the answer, or leaves the Turn without any.
    pub(super) fn turn_ended(&mut self, result: &NativeResult) {
        self.calls.clear();
        let candidate = self.candidate.take();
        let is_success = !result.is_error && result.subtype == "success";
        self.answer = match (candidate, &result.structured_output) {
            (Some(tool_use_id), Some(output)) if is_success => {
                Some(Answer { tool_use_id, text: native_text(result.result.as_deref(), output) })
            }
            _ => None,
        };
    }

    /// The native end of a Turn that was asked for a structured answer, with that answer: a success without one has failed.
    pub(super) fn end(&self, end: NativeEnd) -> (NativeEnd, Option<ProvedMessage>) {
        let NativeEnd::Completed { finish, at } = end else { return (end, None) };
        let Some(Answer { tool_use_id, text }) = &self.answer else {
            let message = "Claude Code ended the Turn without the structured answer".into();
            let code = FailureCode::StructuredOutputMissing;
            let failure = Failure { code, message, http_status: None, exit: None };
            return (NativeEnd::Failed { failure, finish, at }, None);
        };
        let (id, text, phase) = (tool_use_id.clone(), text.clone(), Some(MessagePhase::FinalAnswer));
        (NativeEnd::Completed { finish, at }, Some(ProvedMessage { id, text, phase }))
    }
}

/// A structured answer as a message, with one delta.
pub(super) fn publish(ProvedMessage { id, text, phase }: ProvedMessage, out: &mut Vec<Report>) {
    out.extend([
        Report::MessageStarted { id: id.clone() },
        Report::MessageDelta { id: id.clone(), text: text.clone() },
        Report::MessageCompleted { id, text, phase },
    ]);
}

/// Claude's own text of an answer. `result` is that of the last block, and so prose where the model said something behind its call.
fn native_text(result: Option<&str>, output: &RawValue) -> String {
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    let is_answer = |text: &&str| value(output.get()).is_some_and(|answer| value(text) == Some(answer));
    result.filter(is_answer).unwrap_or(output.get()).to_owned()
}

#[cfg(test)]
mod tests;
