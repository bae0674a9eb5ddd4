//! The stream of an observer (R-EVT-1, R-EVT-11). It is polled by the connection; nothing waits for it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use prost::Message as _;
use proto::{raw, v1};
use tonic::Status;

use super::{Stream, status};
use crate::{
    clock,
    refusal::{Reason, Refusal},
    turn::log::{FencedBy, Next, Omission, Reader, Why},
};

/// The stream of one observation.
pub(super) fn stream(reader: Reader, turn_id: String, keep_alive: Duration) -> Stream<raw::ObserveTurnResponse> {
    Box::pin(stream::unfold(Some(reader), move |reader| {
        let turn_id = turn_id.clone();
        async move {
            let mut reader = reader?;
            let next = reader.next(keep_alive).await;
            answer(next, &turn_id).map(|answer| {
                let goes_on = answer.is_ok();
                (answer, goes_on.then_some(reader))
            })
        }
    }))
}

fn answer(next: Next, turn_id: &str) -> Option<Result<raw::ObserveTurnResponse, Status>> {
    let lost = |reason, text: &str| Some(Err(status(Refusal::new(reason, text))));
    match next {
        Next::Events { omitted, mut events, last_sequence } => {
            if let Some(omission) = omitted {
                events.insert(0, omitted_event(turn_id, omission));
            }
            Some(Ok(raw::ObserveTurnResponse { events, last_sequence }))
        }
        Next::Idle { last_sequence } => Some(Ok(raw::ObserveTurnResponse { events: Vec::new(), last_sequence })),
        Next::Ended => None,
        Next::Fenced { epoch, by } => {
            let (text, state) = match by {
                FencedBy::TakeOver => ("a higher epoch holds the Session", "bound"),
                FencedBy::Release => ("the assignment is released", "released"),
            };
            let refusal = Refusal::new(Reason::AssignmentStale, text);
            Some(Err(status(refusal.at("assignment").with("epoch", epoch).with("state", state))))
        }
        Next::Lost => lost(Reason::Draining, "the stream is lost; observe again"),
        Next::Failed(error) => {
            tracing::error!(turn_id, %error, "the events of a Turn cannot be read");
            lost(Reason::StorageUnavailable, "the events of the Turn cannot be read; observe again")
        }
    }
}

/// What is dropped is said: the statement stands at the last sequence of its range (R-EVT-1).
fn omitted_event(turn_id: &str, omission: Omission) -> Bytes {
    let reason = match omission.why {
        Why::Acknowledged => v1::OmissionReason::Acknowledged,
        Why::Gone => v1::OmissionReason::BridgeRestarted,
    };
    let omitted = v1::EventsOmitted { first: omission.first, last: omission.last, reason: reason.into() };
    let event = v1::Event {
        turn_id: turn_id.to_owned(),
        sequence: omission.last,
        time: Some(clock::now().into()),
        kind: Some(v1::event::Kind::EventsOmitted(omitted)),
    };
    Bytes::from(event.encode_to_vec())
}
