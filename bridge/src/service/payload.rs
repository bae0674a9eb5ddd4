//! `ReadPayload`: the names of large parts, and the stream of their bytes (R-API-7).

use proto::v1;
use tonic::Status;

use super::{
    status,
    streams::{Source, fenced},
};
use crate::{
    refusal::{Reason, Refusal},
    session::{PartOf, events_gone},
    turn::log::{Payload, Unread},
};

/// What the name of a call's arguments begins with; the rest is the call's id.
const CALL: &str = "call.";

/// The name of a part of an event.
pub(super) fn of_event(sequence: u64, part: usize) -> String {
    format!("{sequence}.{part}")
}

/// The name of a call's arguments.
pub(super) fn of_call(call_id: &str) -> String {
    format!("{CALL}{call_id}")
}

/// What a name stands for.
pub(super) fn named(payload_id: &str) -> Result<PartOf, Refusal> {
    if let Some(call_id) = payload_id.strip_prefix(CALL) {
        return Ok(PartOf::Call(call_id.to_owned()));
    }
    let numbers = payload_id.split_once('.').and_then(|(sequence, part)| {
        let part = PartOf::Event(sequence.parse().ok()?, part.parse().ok()?);
        // One name for one part: no signs, no leading zeros.
        matches!(part, PartOf::Event(s, p) if payload_id == of_event(s, usize::from(p))).then_some(part)
    });
    numbers.ok_or_else(unknown)
}

/// The bytes of one part, piece by piece.
#[derive(Debug)]
pub(super) struct Part {
    payload: Payload,
    turn_id: String,
    /// Bytes that were given out.
    offset: u64,
}

impl Source for Part {
    type Answer = v1::ReadPayloadResponse;

    fn turn_id(&self) -> &str {
        &self.turn_id
    }

    async fn next(&mut self) -> Option<Result<Self::Answer, Status>> {
        match self.payload.next().await {
            Ok(data) => data.map(|data| {
                let offset = self.offset;
                self.offset += data.len() as u64;
                Ok(v1::ReadPayloadResponse { data: data.into(), offset })
            }),
            Err(unread) => Some(Err(self.failed(unread))),
        }
    }
}

impl Part {
    /// A part that nobody has read yet.
    pub(super) fn new(payload: Payload, turn_id: String) -> Self {
        Self { payload, turn_id, offset: 0 }
    }

    fn failed(&self, unread: Unread) -> Status {
        match unread {
            Unread::Absent => status(unknown()),
            Unread::Gone { first_available } => status(events_gone(first_available)),
            Unread::Fenced { epoch, by } => fenced(epoch, by),
            Unread::Failed(error) => {
                tracing::error!(turn_id = self.turn_id, %error, "a part of an event cannot be read");
                status(Refusal::new(Reason::StorageUnavailable, "the part cannot be read"))
            }
        }
    }
}

fn unknown() -> Refusal {
    Refusal::new(Reason::NotFound, "the Turn has no such part").at("payload_id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_one_part() {
        assert_eq!(named(&of_event(12, 3)), Ok(PartOf::Event(12, 3)));
        assert_eq!(named(&of_call("c.1")), Ok(PartOf::Call("c.1".into())));
        for other in ["", "1", "1.", ".1", "01.2", "+1.2", "1.65536", "1.2.3", "1.2 ", "-1.0"] {
            assert!(named(other).is_err(), "{other}");
        }
    }
}
