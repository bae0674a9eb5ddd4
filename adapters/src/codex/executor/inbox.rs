//! What an owner does with a message: answers go to what was asked, notifications are routed by thread and native turn (R-EVT-6), requests are
//! always answered (R-PLC-1).

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{Asked, Thread, rpc, wire};
use crate::{
    codex::{functions, start::METHOD_NOT_FOUND},
    harness::{Failure, FailureCode, Finish, NativeEnd, ReasoningText, Report},
    native::rpc::{Message, RpcError},
    owner::{Event, Owner, Turn},
};

/// `Server overloaded; retry later.`
pub(super) const OVERLOADED: i64 = -32001;
/// Most client errors; too large an input has −32602.
const INVALID: [i64; 2] = [-32600, -32602];

impl Owner<Thread> {
    pub(super) async fn told(&mut self, line: &[u8]) {
        match rpc::parse(line) {
            Ok(Message::Notification { method, params }) => match wire::Notification::read(&method, params) {
                Ok(Some(notification)) => self.notified(notification).await,
                Ok(None) => self.skipped.unknown += 1,
                Err(error) => {
                    self.missed_one();
                    tracing::debug!(%method, column = error.column(), "skipped a notification that does not fit");
                }
            },
            Ok(Message::Request { id, method, params }) => self.requested(id, &method, params).await,
            Ok(Message::Response { id, outcome }) => match self.native.asked.remove(&id) {
                Some(asked) => self.answered(asked, outcome).await,
                None => self.skipped.late += 1,
            },
            Err(malformed) => {
                self.missed_one();
                tracing::debug!(%malformed, "skipped a line");
            }
        }
    }

    /// Something could not be read: it may have been a message, or the evidence for an input (R-STE-3).
    fn missed_one(&mut self) {
        self.unread();
        self.native.items.unread();
    }

    async fn answered(&mut self, asked: Asked, outcome: Result<&RawValue, RpcError>) {
        let event = match (asked, outcome) {
            (Asked::Start, Ok(answer)) => {
                // The id may be missing; `turn/started` has it too (B-018).
                let accepted: wire::TurnAccepted = serde_json::from_str(answer.get()).unwrap_or_default();
                self.input = None;
                Event::Accepted { native: accepted.turn.and_then(|turn| turn.id) }
            }
            (Asked::Start, Err(error)) => {
                let code = if INVALID.contains(&error.code) {
                    FailureCode::InvalidRequest
                } else if error.code == OVERLOADED {
                    FailureCode::ServerOverloaded
                } else {
                    FailureCode::HarnessProtocolError
                };
                let message = format!("codex refused the input: {}", self.cleaner.clean(&error.message));
                let failure = Failure { code, message, http_status: None, exit: None };
                Event::Refused { failure, overloaded: error.code == OVERLOADED }
            }
            (Asked::Interrupt, Ok(_)) => return,
            (Asked::Interrupt, Err(error)) => {
                tracing::debug!(code = error.code, "an interrupt was refused");
                Event::InterruptRefused
            }
            (Asked::Steer, outcome) => return self.steered(outcome).await,
            (Asked::Clean, _) => Event::Cleaned,
            (Asked::Standing, outcome) => return self.stands(outcome).await,
        };
        self.feed(event).await;
    }

    async fn notified(&mut self, notification: wire::Notification) {
        let (thread, turn) = notification.place();
        if thread.is_some_and(|thread| thread != self.native.id) {
            self.skipped.foreign += 1;
            return;
        }
        let is_boundary =
            matches!(notification, wire::Notification::TurnStarted(_) | wire::Notification::TurnCompleted(_));
        if let Some(turn) = turn
            && !self.is_current(turn, is_boundary)
        {
            self.skipped.late += 1;
            if let wire::Notification::TokenUsage(notice) = notification {
                // Not of a running Turn, and neither that one nor the next may count it as its own. A resumed thread tells it behind its answer,
                // where the input of a Turn may be on its way already.
                let total = notice.token_usage.total;
                match &self.turn {
                    Some(turn) if turn.has_started() => drop(self.native.items.used(total, &mut Vec::new())),
                    Some(_) | None => self.native.items.used_before(total),
                }
            }
            return;
        }
        if let Some(turn) = turn.filter(|_| !is_boundary) {
            self.begun(turn).await;
        }
        self.take(notification).await;
    }

    /// Whether a native turn is the one of the running Turn. Before its id is known only its boundaries are taken, and none of a turn that is over.
    fn is_current(&self, told: &str, is_boundary: bool) -> bool {
        let Some(turn) = &self.turn else { return false };
        match turn.native() {
            Some(native) => native == told,
            None => is_boundary && !self.is_past(told),
        }
    }

    async fn take(&mut self, notification: wire::Notification) {
        let mut reports = Vec::new();
        let known = match notification {
            wire::Notification::TurnStarted(notice) => {
                self.feed(Event::Started { native: notice.turn.id }).await;
                return self.tell_absent_servers().await;
            }
            wire::Notification::TurnCompleted(notice) => {
                self.refuse_unread(&notice.turn.id).await;
                return self.completed(notice.turn).await;
            }
            wire::Notification::ItemStarted(notice) => match wire::Item::read(&notice.item) {
                Ok(item) => self.native.items.started(item, &mut reports),
                Err(_) => return self.unread(),
            },
            wire::Notification::ItemCompleted(notice) => match wire::Item::read(&notice.item) {
                Ok(wire::Item::Call(item)) => {
                    reports = self.native.calls.completed(item);
                    true
                }
                Ok(wire::Item::UserMessage(item)) => {
                    self.input_read(item, &mut reports);
                    true
                }
                Ok(mut item) => {
                    if let wire::Item::Mcp(wire::servers::CallItem { error: Some(error), .. }) = &mut item {
                        error.message = self.cleaner.clean(&error.message);
                    }
                    self.native.items.completed(item, &mut reports)
                }
                Err(_) => return self.unread(),
            },
            wire::Notification::Raw(notice) => {
                reports.extend(self.native.calls.told(notice.item));
                true
            }
            wire::Notification::MessageDelta(delta) => self.native.items.message_delta(delta, &mut reports),
            wire::Notification::SummaryDelta(delta) => {
                self.native.items.reasoning_delta(ReasoningText::Summary, delta, &mut reports)
            }
            wire::Notification::ReasoningDelta(delta) => {
                self.native.items.reasoning_delta(ReasoningText::Raw, delta, &mut reports)
            }
            wire::Notification::CommandOutput(delta) => self.native.items.command_output(delta, &mut reports),
            wire::Notification::Error(notice) if notice.will_retry => {
                self.native.items.broken(&mut reports);
                reports.push(Report::ProviderRetry(self.native.errors.retried(&notice.error, &self.cleaner)));
                true
            }
            wire::Notification::Error(notice) => {
                self.native.final_error = Some(self.native.errors.last(&notice.error, &self.cleaner));
                true
            }
            wire::Notification::TokenUsage(notice) => {
                if self.native.items.used(notice.token_usage.total, &mut reports) {
                    self.native.errors.answered();
                }
                true
            }
            wire::Notification::Server(notice) => {
                if self.native.servers.told(notice) && self.turn.as_ref().is_some_and(Turn::has_started) {
                    self.tell_absent_servers().await;
                }
                true
            }
            wire::Notification::Warning(notice) => {
                let message = self.cleaner.clean(&notice.message);
                self.tell(Report::Notice { code: "harness_warning", message }).await;
                true
            }
        };
        if !known {
            self.skipped.malformed += 1;
        }
        for report in reports {
            self.emit(report).await;
        }
        if self.turn.as_ref().is_some_and(|turn| !turn.is_open()) {
            self.feed(Event::Work { open: self.native.items.open_work() }).await;
        }
    }

    /// The model has no tools of these in this Turn (R-PRE-5).
    async fn tell_absent_servers(&mut self) {
        for notice in self.native.servers.notices(&self.cleaner) {
            self.tell(notice).await;
        }
    }

    pub(super) async fn completed(&mut self, turn: wire::Turn) {
        let at = turn.completed_at.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        let failed = |code, message: &str| Failure { code, message: message.to_owned(), http_status: None, exit: None };
        let end = match turn.status.as_str() {
            // Codex has no field that tells how an answer ended. Only that there is none can be seen from its items; else it stays absent (R-EVT-3).
            "completed" => {
                NativeEnd::Completed { finish: self.native.items.are_bare().then_some(Finish::NoOutput), at }
            }
            "interrupted" => NativeEnd::Interrupted { at },
            "failed" => {
                let told = turn.error.as_ref().map(|error| self.native.errors.last(error, &self.cleaner));
                let failure = told
                    .or_else(|| self.native.final_error.take())
                    .unwrap_or_else(|| failed(FailureCode::ServerError, "the Turn failed without an error"));
                NativeEnd::Failed { failure, finish: None, at }
            }
            _ => {
                let what = "codex ended the Turn with an unknown status";
                NativeEnd::Failed { failure: failed(FailureCode::HarnessProtocolError, what), finish: None, at }
            }
        };
        let open_work = self.native.items.open_work();
        self.feed(Event::Completed { native: turn.id, end, open_work }).await;
    }

    async fn requested(&mut self, id: &RawValue, method: &str, params: Option<&RawValue>) {
        if method == "item/tool/call" {
            return self.called(id, params).await;
        }
        let (line, declined) = decline(id, method);
        self.write(line, None);
        tracing::warn!(%method, "codex asked for something that nobody answers");
        let open = self.turn.as_ref().is_some_and(|turn| turn.is_open() && turn.has_started());
        if open {
            let message = format!("codex asked for {declined}, which was declined");
            self.emit(Report::Notice { code: "request_declined", message }).await;
        }
    }

    async fn called(&mut self, id: &RawValue, params: Option<&RawValue>) {
        let params = params.and_then(|params| serde_json::from_str::<wire::calls::CallParams>(params.get()).ok());
        let ours = params.filter(|params| {
            params.thread_id == self.native.id
                && self.turn.as_ref().is_some_and(|turn| turn.is_open() && turn.native() == Some(&*params.turn_id))
        });
        let Some(params) = ours else {
            self.skipped.foreign += 1;
            self.write(functions::foreign(id), None);
            return;
        };
        self.begun(&params.turn_id).await;
        let step = self.native.calls.requested(id, params);
        for line in step.lines {
            self.write(line, None);
        }
        for report in step.reports {
            self.emit(report).await;
        }
    }
}

/// A deliberate answer for each kind of request (R-PLC-1, B-071): the refusal in the words of that method, an error only where there is none.
fn decline(id: &RawValue, method: &str) -> (Bytes, &'static str) {
    let (answer, what) = match method {
        "item/commandExecution/requestApproval" => (r#"{"decision":"decline"}"#, "the approval of a command"),
        "item/fileChange/requestApproval" => (r#"{"decision":"decline"}"#, "the approval of a change"),
        "execCommandApproval" => (r#"{"decision":"denied"}"#, "the approval of a command"),
        "applyPatchApproval" => (r#"{"decision":"denied"}"#, "the approval of a change"),
        "item/permissions/requestApproval" => (r#"{"permissions":{},"scope":"turn"}"#, "more permissions"),
        "item/tool/requestUserInput" => (r#"{"answers":{}}"#, "an answer of a person"),
        "mcpServer/elicitation/request" => {
            (r#"{"action":"decline","content":null,"_meta":null}"#, "an answer of a person")
        }
        "account/chatgptAuthTokens/refresh" | "attestation/generate" => ("", "a credential"),
        _ => ("", "something that the bridge does not know"),
    };
    let answer = serde_json::from_str::<&RawValue>(answer).ok().and_then(|answer| rpc::answer(id, answer).ok());
    (answer.unwrap_or_else(|| rpc::refusal(id, METHOD_NOT_FOUND, "not supported")), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_request_has_its_answer() {
        let id = RawValue::from_string("7".into()).unwrap();
        let refusal = r#"{"id":7,"error":{"code":-32601,"message":"not supported"}}"#;
        for (method, want) in [
            ("item/commandExecution/requestApproval", r#"{"id":7,"result":{"decision":"decline"}}"#),
            ("item/fileChange/requestApproval", r#"{"id":7,"result":{"decision":"decline"}}"#),
            ("execCommandApproval", r#"{"id":7,"result":{"decision":"denied"}}"#),
            ("applyPatchApproval", r#"{"id":7,"result":{"decision":"denied"}}"#),
            ("item/permissions/requestApproval", r#"{"id":7,"result":{"permissions":{},"scope":"turn"}}"#),
            ("item/tool/requestUserInput", r#"{"id":7,"result":{"answers":{}}}"#),
            ("mcpServer/elicitation/request", r#"{"id":7,"result":{"action":"decline","content":null,"_meta":null}}"#),
            ("account/chatgptAuthTokens/refresh", refusal),
            ("attestation/generate", refusal),
            ("turn/teleport", refusal),
        ] {
            let (line, _) = decline(&id, method);
            assert_eq!(std::str::from_utf8(&line).unwrap().trim_end(), want, "{method}");
        }
    }
}
