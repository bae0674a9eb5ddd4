//! Events in the form in which they are stored and sent: encoded once, kept in the Turn's file, given to observers as they are.

use std::time::SystemTime;

use adapters::harness::{Tool, Usage};
use bytes::Bytes;
use prost::Message as _;
use proto::v1;
use sha2::{Digest as _, Sha256};

use super::{event_from, event_to, payload};
use crate::turn::{
    event::{Codec, Discard, Encoded, Event, Recovered, Recovery, Seen, SeenInput, SeenMessage},
    incomplete, inputs,
    tool_errors::Failed,
};

/// Bytes of text that stand in one event; what goes beyond is a payload (R-API-7).
pub(crate) const MAX_INLINE: usize = 1 << 20;

/// The codec of the daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protobuf;

impl Codec for Protobuf {
    fn encode(&self, turn_id: &str, sequence: u64, at: SystemTime, event: &Event) -> Encoded {
        let mut parts = Parts { sequence, room: MAX_INLINE, payloads: Vec::new() };
        let event = v1::Event {
            turn_id: turn_id.to_owned(),
            sequence,
            time: Some(at.into()),
            kind: Some(event_to::kind(turn_id, event, &mut parts)),
        };
        Encoded { bytes: Bytes::from(event.encode_to_vec()), payloads: parts.payloads }
    }

    fn encode_usage(&self, usage: &Usage) -> Vec<u8> {
        event_to::usage(usage).encode_to_vec()
    }

    fn failed(&self, result: &[u8]) -> Option<Failed> {
        super::result::stored(result).as_ref().and_then(Failed::of)
    }

    fn recovery(&self) -> Box<dyn Recovery> {
        Box::<Reading>::default()
    }
}

/// What was read so far of an earlier process.
#[derive(Default)]
struct Reading {
    found: Recovered,
    open: Vec<(String, Open)>,
}

impl Recovery for Reading {
    fn take(&mut self, bytes: &Bytes) {
        use v1::event::Kind;
        let Self { found, open } = self;
        // An event that does not parse was written by somebody else; what it opened cannot be known.
        let Ok(event) = v1::Event::decode(bytes.clone()) else { return };
        match event.kind {
            Some(Kind::MessageStarted(e)) => {
                let message = SeenMessage { item: e.item_id.clone(), native: e.native_id, state: Seen::Open };
                found.messages.push(message);
                open.push((e.item_id, Open::Message));
            }
            Some(Kind::MessageCompleted(e)) => {
                note(found, &e.item_id, Seen::Completed);
                close(open, &e.item_id);
            }
            Some(Kind::MessageDiscarded(e)) => {
                note(found, &e.item_id, Seen::Discarded);
                close(open, &e.item_id);
            }
            Some(Kind::ReasoningStarted(e)) => open.push((e.item_id, Open::Reasoning)),
            Some(Kind::ReasoningCompleted(e)) => close(open, &e.item_id),
            Some(Kind::ToolStarted(e)) => open.push((e.item_id, Open::Tool(event_from::tool(e.tool)))),
            Some(Kind::ToolCompleted(e)) => close(open, &e.item_id),
            Some(Kind::FunctionCall(e)) => found.open_calls.push(e.call_id),
            Some(Kind::FunctionResultApplied(e)) => found.open_calls.retain(|call| *call != e.call_id),
            Some(Kind::FunctionCallAbandoned(e)) => found.open_calls.retain(|call| *call != e.call_id),
            Some(Kind::Usage(usage)) => found.usage = Some(event_from::usage(&usage)),
            Some(Kind::TurnEnded(e)) => {
                found.ended = Some((event_from::status_name(e.status()).to_owned(), bytes.clone()));
            }
            Some(Kind::TurnStarted(_)) => found.is_started = true,
            Some(Kind::InputWritten(e)) => note_input(found, e.input_id, None),
            Some(Kind::InputAccepted(e)) => {
                let evidence = event_from::input_evidence(e.evidence());
                note_input(found, e.input_id, Some(inputs::Phase::Accepted(evidence)));
            }
            Some(Kind::InputRefused(e)) => {
                let reason = event_from::input_refusal(e.reason());
                note_input(found, e.input_id, Some(inputs::Phase::Refused(reason)));
            }
            Some(Kind::InputOutcomeUnknown(e)) => {
                note_input(found, e.input_id, Some(inputs::Phase::OutcomeUnknown));
            }
            Some(
                Kind::MessageDelta(_)
                | Kind::ReasoningDelta(_)
                | Kind::ToolOutput(_)
                | Kind::FunctionProgress(_)
                | Kind::ProviderRetry(_)
                | Kind::Notice(_)
                | Kind::EventsOmitted(_),
            )
            | None => {}
        }
    }

    fn end(self: Box<Self>) -> Recovered {
        let Self { mut found, open } = *self;
        found.closing = open.into_iter().map(|(item, open)| open.closing(item)).collect();
        found
    }
}

enum Open {
    Message,
    Reasoning,
    Tool(Tool),
}

impl Open {
    fn closing(self, item: String) -> Event {
        match self {
            Self::Message => Event::MessageDiscarded { item, reason: Discard::TurnEnded },
            Self::Reasoning => {
                Event::ReasoningCompleted { item, summary: Vec::new(), raw: Vec::new(), incomplete: true }
            }
            Self::Tool(tool) => Event::ToolCompleted { item, end: incomplete(tool) },
        }
    }
}

fn close(open: &mut Vec<(String, Open)>, item: &str) {
    open.retain(|(id, _)| id != item);
}

fn note(found: &mut Recovered, item: &str, state: Seen) {
    if let Some(message) = found.messages.iter_mut().rev().find(|message| message.item == item) {
        message.state = state;
    }
}

fn note_input(found: &mut Recovered, input_id: String, end: Option<inputs::Phase>) {
    match found.inputs.iter_mut().find(|input| input.input_id == input_id) {
        Some(input) => input.end = end,
        None => found.inputs.push(SeenInput { input_id, end }),
    }
}

/// The large parts of one event.
#[derive(Debug)]
pub(crate) struct Parts {
    sequence: u64,
    room: usize,
    payloads: Vec<Vec<u8>>,
}

impl Parts {
    /// The text itself while there is room in the event, else a reference to it.
    pub(crate) fn content(&mut self, text: &str) -> v1::Content {
        let place = if text.len() <= self.room || self.payloads.len() > usize::from(u16::MAX) {
            self.room = self.room.saturating_sub(text.len());
            v1::content::Place::Text(text.to_owned())
        } else {
            let payload_id = payload::of_event(self.sequence, self.payloads.len());
            self.payloads.push(text.as_bytes().to_vec());
            v1::content::Place::Payload(v1::PayloadRef {
                payload_id,
                size: text.len() as u64,
                sha256: Sha256::digest(text.as_bytes()).to_vec(),
            })
        };
        v1::Content { place: Some(place) }
    }
}

#[cfg(test)]
mod tests {
    use adapters::harness::{ToolEnd, ToolStatus};

    use super::*;
    use crate::turn::event::{Call, End, Status, UnknownCause};

    fn encode(events: &[Event]) -> Vec<Bytes> {
        (1u64..).zip(events).map(|(n, e)| Protobuf.encode("t", n, SystemTime::UNIX_EPOCH, e).bytes).collect()
    }

    fn recover(events: &[Bytes]) -> Recovered {
        let mut recovery = Protobuf.recovery();
        events.iter().for_each(|event| recovery.take(event));
        recovery.end()
    }

    #[test]
    fn what_an_earlier_run_left_open_is_found() {
        let tool = || Tool::Command { command: "sleep 60".into(), directory: "/".into() };
        let call = |id: &str| Event::FunctionCall {
            call: Call {
                call_id: id.into(),
                name: "f".into(),
                arguments: "{}".into(),
                exact: false,
                named_by_bridge: false,
                idempotency_key: "k".into(),
                place: None,
            },
        };
        let found = recover(&encode(&[
            Event::MessageStarted { item: "m".into(), native: "m".into() },
            Event::MessageStarted { item: "n".into(), native: "n".into() },
            Event::MessageCompleted { item: "n".into(), text: String::new(), phase: None },
            Event::ToolStarted { item: "t".into(), native: "t".into(), tool: tool() },
            call("c"),
            call("d"),
            Event::FunctionResultApplied { call_id: "d".into(), evidence: "e", success: true },
            Event::Usage(Usage { input: Some(3), ..Default::default() }),
        ]));
        assert_eq!(
            found.closing,
            [
                Event::MessageDiscarded { item: "m".into(), reason: Discard::TurnEnded },
                Event::ToolCompleted {
                    item: "t".into(),
                    end: ToolEnd {
                        status: ToolStatus::Incomplete,
                        tool: tool(),
                        output: None,
                        exit_code: None,
                        duration: None
                    }
                },
            ]
        );
        assert_eq!(found.open_calls, ["c"]);
        assert_eq!(found.usage.and_then(|u| u.input), Some(3));
        assert!(found.ended.is_none());
    }

    #[test]
    fn what_was_told_of_inputs_is_found() {
        use adapters::harness::InputEvidence;

        use crate::{refusal::Reason, turn::event::Native};

        let ended =
            |input_id: &str, reason| Event::InputRefused { input_id: input_id.into(), reason, message: String::new() };
        let (evidence, native) = (InputEvidence::Consumed, "n".into());
        let found = recover(&encode(&[
            Event::TurnStarted { native: Native { session_id: "s".into(), turn_id: "t".into() } },
            Event::InputWritten { input_id: "a".into() },
            Event::InputWritten { input_id: "b".into() },
            Event::InputAccepted { input_id: "b".into(), evidence, native },
            ended("c", Reason::TurnEnded),
            ended("d", Reason::Unsupported),
            Event::InputOutcomeUnknown { input_id: "e".into() },
        ]));
        let want = [
            ("a", None),
            ("b", Some(inputs::Phase::Accepted(evidence))),
            ("c", Some(inputs::Phase::Refused(Reason::TurnEnded))),
            ("d", Some(inputs::Phase::Refused(Reason::Unsupported))),
            ("e", Some(inputs::Phase::OutcomeUnknown)),
        ];
        let seen: Vec<_> = found.inputs.iter().map(|input| (input.input_id.as_str(), input.end)).collect();
        assert!(found.is_started && !recover(&[]).is_started);
        assert_eq!(seen, want);
    }

    #[test]
    fn an_end_that_is_there_is_found() {
        let end = End {
            status: Status::Unknown(UnknownCause::Unsettled),
            finish: None,
            native_at: None,
            usage: None,
            reconciled: false,
            tool_errors: Vec::new(),
            output_matches: None,
        };
        let events = encode(&[Event::TurnEnded(end)]);
        let (status, bytes) = recover(&events).ended.unwrap();
        assert_eq!((status.as_str(), bytes), ("unknown", events[0].clone()));
    }

    #[test]
    fn a_large_part_is_a_payload_with_its_size_and_digest() {
        let text = "x".repeat(MAX_INLINE + 1);
        let event = Event::MessageCompleted { item: "m".into(), text: text.clone(), phase: None };
        let encoded = Protobuf.encode("t", 7, SystemTime::UNIX_EPOCH, &event);
        assert!(encoded.bytes.len() < 1024);
        assert_eq!(encoded.payloads, [text.clone().into_bytes()]);
        let Some(v1::event::Kind::MessageCompleted(done)) = v1::Event::decode(encoded.bytes).unwrap().kind else {
            panic!("another kind")
        };
        let Some(v1::content::Place::Payload(payload)) = done.text.unwrap().place else { panic!("inline") };
        assert_eq!((payload.payload_id.as_str(), payload.size), ("7.0", text.len() as u64));
        assert_eq!(payload.sha256, Sha256::digest(&text).to_vec());
    }

    #[test]
    fn events_of_every_size_stay_under_the_limit() {
        let summary = vec!["x".repeat(MAX_INLINE / 2 + 1); 8];
        let event = Event::ReasoningCompleted { item: "r".into(), summary, raw: Vec::new(), incomplete: false };
        let encoded = Protobuf.encode("t", 1, SystemTime::UNIX_EPOCH, &event);
        assert!(encoded.bytes.len() < 3 << 20);
        assert_eq!(encoded.payloads.len(), 7);
    }
}
