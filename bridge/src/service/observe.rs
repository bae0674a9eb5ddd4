//! The events of a Turn as the answers of `ObserveTurn` (R-EVT-1, R-EVT-11).

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use proto::{raw, v1};
use tonic::Status;

use super::{
    status,
    streams::{Source, fenced},
};
use crate::{
    clock,
    refusal::{Reason, Refusal},
    turn::log::{Next, Omission, Reader, Why},
};

/// One observation.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) reader: Reader,
    pub(super) turn_id: String,
    /// How long the stream may be silent.
    pub(super) keep_alive: Duration,
}

impl Source for Observation {
    type Answer = raw::ObserveTurnResponse;

    fn turn_id(&self) -> &str {
        &self.turn_id
    }

    async fn next(&mut self) -> Option<Result<Self::Answer, Status>> {
        answer(self.reader.next(self.keep_alive).await, &self.turn_id)
    }
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
        Next::Fenced { epoch, by } => Some(Err(fenced(epoch, by))),
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
        Why::Unwritten => v1::OmissionReason::Storage,
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
