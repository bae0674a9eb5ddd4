//! What can happen in a Turn, as the Session tells it (contract, section 5). The wire has types of its own.

use std::time::SystemTime;

use adapters::harness::{
    AbandonReason, Failure, Finish, InputEvidence, MessagePhase, ReasoningText, RetryOf, Tool, ToolEnd, Usage,
};
use bytes::Bytes;

use super::tool_errors::{Failed, ToolError};
use crate::refusal::Reason;

/// One event, before it has a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    TurnStarted { native: Native },
    MessageStarted { item: String, native: String },
    MessageDelta { item: String, text: String },
    MessageCompleted { item: String, text: String, phase: Option<MessagePhase> },
    MessageDiscarded { item: String, reason: Discard },
    ReasoningStarted { item: String, native: String },
    ReasoningDelta { item: String, kind: ReasoningText, index: u32, text: String },
    ReasoningCompleted { item: String, summary: Vec<String>, raw: Vec<String>, incomplete: bool },
    ToolStarted { item: String, native: String, tool: Tool },
    ToolOutput { item: String, text: String },
    ToolCompleted { item: String, end: ToolEnd },
    FunctionCall { call: Call },
    FunctionResultApplied { call_id: String, evidence: &'static str, success: bool },
    FunctionCallAbandoned { call_id: String, reason: AbandonReason },
    FunctionProgress { call_id: String, number: u64, message: String },
    InputWritten { input_id: String },
    InputAccepted { input_id: String, evidence: InputEvidence, native: String },
    InputRefused { input_id: String, reason: Reason, message: String },
    InputOutcomeUnknown { input_id: String },
    ProviderRetry(RetryOf),
    Usage(Usage),
    Notice { code: &'static str, message: String },
    EventsOmitted { first: u64, last: u64, why: Omitted },
    TurnEnded(End),
}

/// Why events are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Omitted {
    /// They may have been given out by an earlier process, and are not to be had any more.
    BridgeRestarted,
    /// The storage did not take them.
    Storage,
    /// The Turn's file is full.
    LogLimit,
}

/// Native identity of a Turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Native {
    /// The native conversation.
    pub(crate) session_id: String,
    /// The native turn.
    pub(crate) turn_id: String,
}

/// A function call (R-FN-2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Unique in the Turn.
    pub(crate) call_id: String,
    /// The function.
    pub(crate) name: String,
    /// JSON text.
    pub(crate) arguments: String,
    /// Whether the arguments are the model's own text.
    pub(crate) exact: bool,
    /// Whether the bridge made the id, since the Harness has none.
    pub(crate) named_by_bridge: bool,
    /// Stable for the call.
    pub(crate) idempotency_key: String,
    /// Where the model provider asked for it, where that is known (R-FN-10).
    pub(crate) place: Option<CallPlace>,
}

/// Where a model provider asked for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallPlace {
    /// What the provider calls the answer, where it says so.
    pub(crate) batch_id: Option<String>,
    /// The place among all calls of that answer, from 0.
    pub(crate) position: u32,
}

/// A call that waits for its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// The call; its arguments are empty where they are not in memory.
    pub(crate) call: Call,
    /// Arguments that are not in memory.
    pub(crate) large: Option<Large>,
}

/// A text that is not in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Large {
    /// Bytes.
    pub(crate) size: u64,
    /// SHA-256 of the bytes.
    pub(crate) sha256: [u8; 32],
}

/// Why a message is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discard {
    Interrupted,
    Retried,
    Steered,
    TurnEnded,
}

/// How a Turn ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    /// Status, with its cause or failure.
    pub(crate) status: Status,
    /// How the answer ended.
    pub(crate) finish: Option<Finish>,
    /// When the Harness reported its end.
    pub(crate) native_at: Option<SystemTime>,
    /// Usage of the whole Turn.
    pub(crate) usage: Option<Usage>,
    /// Whether native history tells the end, and nothing else did (R-EVT-7).
    pub(crate) reconciled: bool,
    /// Calls that did not succeed, in order; only of a completed Turn.
    pub(crate) tool_errors: Vec<ToolError>,
    /// Whether the final answer fits the schema that was asked for, where that was judged (R-CTL-3).
    pub(crate) output_matches: Option<bool>,
}

/// Status of an ended Turn (R-EVT-3).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Status {
    Completed,
    Failed(Failure),
    Cancelled(CancelCause),
    Unknown(UnknownCause),
}

impl Status {
    /// The name that the journal keeps.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled(_) => "cancelled",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// Why a Turn was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelCause {
    Requested,
    BridgeStopped,
    Released,
}

/// Why nobody knows how a Turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownCause {
    Stalled,
    ExecutionLost,
    Unsettled,
}

/// An event in the form in which it is stored and sent.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The event.
    pub(crate) bytes: Bytes,
    /// Parts that were too large for it, in order (R-API-7).
    pub(crate) payloads: Vec<Vec<u8>>,
}

/// Turns events into the form in which they are stored and sent. The service implements it, so that this room knows no wire.
pub(crate) trait Codec: Send + Sync + std::fmt::Debug {
    /// Encodes one event.
    fn encode(&self, turn_id: &str, sequence: u64, at: SystemTime, event: &Event) -> Encoded;

    /// Encodes the usage of a Turn for the journal.
    fn encode_usage(&self, usage: &Usage) -> Vec<u8>;

    /// Reads in a stored result whether it says that its call failed.
    fn failed(&self, result: &[u8]) -> Option<Failed>;

    /// Reads what an earlier process stored, event by event.
    fn recovery(&self) -> Box<dyn Recovery>;
}

/// Finds out what the events of an earlier process leave open. It keeps no event.
pub(crate) trait Recovery: Send {
    /// Takes the next event.
    fn take(&mut self, event: &Bytes);

    /// What was found.
    fn end(self: Box<Self>) -> Recovered;
}

/// What the events of an earlier process leave open.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Whether `turn_started` is among them.
    pub(crate) is_started: bool,
    /// Closing events for the open items, in the order in which they were opened.
    pub(crate) closing: Vec<Event>,
    /// Calls that were shown and have neither a receipt nor an abandonment.
    pub(crate) open_calls: Vec<String>,
    /// Whether observers may have seen events that are not found.
    pub(crate) is_lacking: bool,
    /// The messages, in the order in which they began.
    pub(crate) messages: Vec<SeenMessage>,
    /// The last usage.
    pub(crate) usage: Option<Usage>,
    /// The inputs that were told of.
    pub(crate) inputs: Vec<SeenInput>,
    /// Status and encoded event of an end that is there already.
    pub(crate) ended: Option<(String, Bytes)>,
}

/// A message that Core may have seen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SeenMessage {
    /// Its id in the Turn.
    pub(crate) item: String,
    /// The Harness's own id.
    pub(crate) native: String,
    /// How far it came.
    pub(crate) state: Seen,
}

/// An input that Core may have heard of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SeenInput {
    /// Core's id.
    pub(crate) input_id: String,
    /// What it came to.
    pub(crate) end: Option<super::inputs::Phase>,
}

/// How far a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Open,
    Completed,
    Discarded,
}
