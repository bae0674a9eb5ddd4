//! Why a call had no effect: one reason that a program can switch on, and one text that a person can act on (R-API-4).
//!
//! Every room below `service` refuses with this type; only `service::status` turns it into a gRPC status.

use std::fmt;

/// The reason of a refusal; the twin of the protocol's `Reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    AssignmentConflict,
    AssignmentStale,
    CallAbandoned,
    CleanupUnconfirmed,
    ConfigurationConflict,
    Draining,
    EventsGone,
    HandleExpired,
    HandleUnknown,
    HarnessUnavailable,
    IncompatibleVersion,
    InputBusy,
    InputConflict,
    InputLimit,
    Internal,
    InvalidRequest,
    InvalidResult,
    NativeHistoryUnavailable,
    NotAuthorized,
    NotFound,
    ObserverTooSlow,
    Overloaded,
    PayloadTooLarge,
    PreparationCapacity,
    PreparationConflict,
    PreparationFailed,
    ResultConflict,
    SessionBusy,
    StorageUnavailable,
    TurnCancelled,
    TurnConflict,
    TurnEnded,
    UnknownCall,
    Unsupported,
    UnsupportedConfiguration,
}

/// A call had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// For programs.
    pub(crate) reason: Reason,
    /// For people; never holds a secret or more than 256 characters of what was submitted.
    pub(crate) text: String,
    /// Path of the field at fault.
    pub(crate) field: Option<String>,
    /// More for programs, by stable names.
    pub(crate) metadata: Vec<(&'static str, String)>,
}

impl Refusal {
    /// A refusal without a field.
    pub(crate) fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), field: None, metadata: Vec::new() }
    }

    /// A field of the request is wrong.
    pub(crate) fn invalid(field: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Reason::InvalidRequest, text).at(field)
    }

    /// Adds the path of the field at fault.
    pub(crate) fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Adds a metadata entry.
    pub(crate) fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.metadata.push((name, value.to_string()));
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for Refusal {}

/// Text of a caller for an error message: at most 256 characters, nothing that does not print.
pub(crate) fn excerpt(text: &str) -> String {
    let mut short: String =
        text.chars().take(256).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if text.chars().nth(256).is_some() {
        short.pop();
        short.push('…');
    }
    short
}
