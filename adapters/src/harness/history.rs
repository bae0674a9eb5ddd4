//! Native history: what a Session goes on with, and what it proves about a Turn whose end nobody saw (R-PRE-4, R-EVT-7, R-DUR-2).

use std::fmt;

use super::{MessagePhase, NativeEnd, Usage};

/// The native history that an Executor goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The native conversation.
    pub native_session_id: String,
    /// A native turn that is known to be in it; a history without it is not the one that is meant.
    pub last_turn: Option<String>,
    /// The instructions are, or may be, others than those that the history was given last: they have to be given anew (R-PRE-6).
    pub instructions_changed: bool,
}

/// Why a native history is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryFault {
    /// There is none of that name.
    Missing,
    /// What stands under the name is another conversation.
    Foreign,
    /// It cannot be read, or lacks what must be in it.
    Corrupt,
    /// Another process holds it.
    Locked,
}

impl HistoryFault {
    /// A stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Foreign => "foreign",
            Self::Corrupt => "corrupt",
            Self::Locked => "locked",
        }
    }
}

impl fmt::Display for HistoryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the native history is not there",
            Self::Foreign => "the native history is that of another conversation",
            Self::Corrupt => "the native history is damaged",
            Self::Locked => "another process holds the native history",
        })
    }
}

/// What native history proves about a native turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Proof {
    /// How it ended.
    pub end: NativeEnd,
    /// Its last message, when it has one.
    pub message: Option<ProvedMessage>,
    /// Its usage, when that stands there.
    pub usage: Option<Usage>,
}

/// A message that stands complete in native history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvedMessage {
    /// Native id.
    pub id: String,
    /// The whole text.
    pub text: String,
    /// What it is, where the Harness says so.
    pub phase: Option<MessagePhase>,
}

/// What native history has of the inputs of a native turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProvedInputs {
    /// Those that stand in it.
    pub read: Vec<ProvedInput>,
    /// Whether the turn's end stands in it too: then what is not among them was never read.
    pub is_over: bool,
}

impl ProvedInputs {
    /// Whether the input with this id of ours stands in it.
    #[must_use]
    pub fn has(&self, client_id: &str) -> bool {
        self.read.iter().any(|input| input.client_id == client_id)
    }
}

/// An input that stands in native history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvedInput {
    /// What stood beside it when it was written.
    pub client_id: String,
    /// The native message.
    pub native_id: String,
}
