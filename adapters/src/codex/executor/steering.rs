//! How an owner adds inputs to the turn that runs: with `turn/steer`, once Codex can take one, and one at a time (R-STE-1). Never with
//! `turn/start`, which on a busy thread does the same without naming the turn (R-STE-2).

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Asked, Thread, inbox::OVERLOADED, rpc, wire};
use crate::{
    harness::{InputRefusal, Report},
    native::rpc::RpcError,
    owner::{Answer, Carried, Owner},
};

/// Between two tries of an input that Codex cannot take at the moment.
const STEER_AGAIN: Duration = Duration::from_millis(100);

impl Owner<Thread> {
    /// Writes the next input, where there is one and Codex can take it.
    pub(super) fn steer_next(&mut self) {
        let Some(turn) = self.turn.as_ref().filter(|turn| turn.is_open() && turn.has_started()) else { return };
        if self.native.again_at.is_some() {
            return;
        }
        let Some((native, input)) = turn.native().zip(self.inputs.next()) else { return };
        let params = wire::TurnSteer {
            thread_id: &self.native.id,
            expected_turn_id: native,
            client_user_message_id: &input.client_id,
            input: input.parts.iter().map(wire::UserInput::of).collect(),
        };
        let carried = Carried::Input(input.input_id.clone());
        let line = rpc::request(self.native.next_id, "turn/steer", &params);
        self.ask_for(Asked::Steer, line, Some(carried));
    }

    /// Codex has answered `turn/steer`.
    pub(super) async fn steered(&mut self, outcome: Result<&RawValue, RpcError>) {
        let answer = match outcome {
            Ok(_) => Answer::Queued,
            Err(error) if error.code == OVERLOADED || is_not_steerable(&error) => {
                self.native.again_at = Some(Instant::now() + STEER_AGAIN);
                Answer::Later
            }
            Err(error) if is_over(&error) => Answer::Refused(InputRefusal::TurnEnded),
            Err(error) => {
                let message = format!("codex refused the input: {}", self.cleaner.clean(&error.message));
                Answer::Refused(InputRefusal::NotTaken { message })
            }
        };
        for report in self.inputs.answered(answer) {
            self.emit(report).await;
        }
        self.steer_next();
    }

    /// Codex shows a message of the user: the evidence for an input of ours. It has broken off what the model was saying.
    pub(super) fn input_read(&mut self, item: wire::UserItem, out: &mut Vec<Report>) {
        let Some(client_id) = item.client_id else { return };
        let read = self.inputs.read(&client_id, item.id);
        if !read.is_empty() {
            self.native.items.steered(out);
            out.extend(read);
        }
    }

    /// Codex tells that the native turn is over: what it has not read it never reads.
    pub(super) async fn refuse_unread(&mut self, native: &str) {
        if !self.inputs.are_open() {
            return;
        }
        self.begun(native).await;
        for report in self.inputs.ended() {
            self.emit(report).await;
        }
    }
}

/// Whether the turn is one that takes no input, as a structured field tells: it summarises the conversation, and ends by itself.
fn is_not_steerable(error: &RpcError) -> bool {
    #[derive(Deserialize)]
    struct Data<'a> {
        #[serde(borrow, rename = "codexErrorInfo")]
        info: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Info<'a> {
        #[serde(borrow, rename = "activeTurnNotSteerable")]
        _kind: &'a RawValue,
    }
    let data = error.data.as_ref().and_then(|data| serde_json::from_str::<Data<'_>>(data.get()).ok());
    data.and_then(|data| data.info).is_some_and(|info| serde_json::from_str::<Info<'_>>(info.get()).is_ok())
}

/// Whether the turn is over. Codex has only one code for this and for whatever else is wrong, so its words decide; where they change, the input
/// is still refused.
fn is_over(error: &RpcError) -> bool {
    ["no active turn to steer", "expected active turn id"].iter().any(|text| error.message.starts_with(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(message: &str, data: Option<&str>) -> RpcError {
        let data = data.map(|data| RawValue::from_string(data.into()).unwrap());
        RpcError { code: -32600, message: message.into(), data }
    }

    #[test]
    fn errors_are_told_apart() {
        assert!(is_over(&error("no active turn to steer", None)));
        assert!(is_over(&error("expected active turn id `x` but found `U`", None)));
        assert!(!is_over(&error("input must not be empty", None)));
        let compact = r#"{"codexErrorInfo":{"activeTurnNotSteerable":{"turnKind":"compact"}}}"#;
        assert!(is_not_steerable(&error("cannot steer a compact turn", Some(compact))));
        for data in [None, Some("null"), Some(r#"{"codexErrorInfo":"other"}"#), Some(r#"{"codexErrorInfo":null}"#)] {
            assert!(!is_not_steerable(&error("cannot steer a compact turn", data)));
        }
    }
}
