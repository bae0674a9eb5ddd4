//! What a call can end with, decoded from a status and its details (R-API-4).

use std::{collections::BTreeMap, error, fmt, sync::Arc, time::Duration};

use tonic::Status;
use tonic_types::StatusExt as _;

use crate::{ERROR_DOMAIN, REASON_TRAILER, v1};

/// Why a call or a stream has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bridge refused: the call had no effect (R-API-5).
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The connection or the stream is lost. It proves nothing: the call may have had its effect.
    #[error("the bridge cannot be reached: {message}")]
    Transport {
        /// What was seen, with its causes.
        message: String,
        /// The error of the layer below.
        #[source]
        source: Option<Arc<dyn error::Error + Send + Sync>>,
    },
    /// The bytes of a large part are not those that its reference tells of (R-API-7).
    #[error("payload {payload_id} of the Turn is not what its reference tells: {bytes} bytes came")]
    Payload {
        /// The part.
        payload_id: String,
        /// How many bytes came.
        bytes: usize,
    },
    /// The events of a Turn do not count 1, 2, 3 (R-EVT-1).
    #[error("event {found} of the Turn came where {expected} was due")]
    Sequence {
        /// The sequence that was due.
        expected: u64,
        /// The sequence that came.
        found: u64,
    },
}

impl Error {
    /// The reason that the bridge gave, where this client knows it.
    pub fn reason(&self) -> Option<v1::Reason> {
        self.refusal().and_then(|refusal| refusal.reason)
    }

    /// What the bridge answered, where it answered.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Transport { .. } | Self::Payload { .. } | Self::Sequence { .. } => None,
        }
    }

    /// Whether nothing is proved, so that the same call may be sent again. An observer that was too slow has lost nothing but its stream.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Transport { .. }) || self.reason() == Some(v1::Reason::ObserverTooSlow)
    }

    /// A stream that the peer ended without what had to come.
    pub(super) fn ended_early(message: &str) -> Self {
        Self::Transport { message: message.into(), source: None }
    }

    pub(super) fn transport(source: impl error::Error + Send + Sync + 'static) -> Self {
        Self::Transport { message: chain(&source), source: Some(Arc::new(source)) }
    }

    pub(super) fn from_status(status: &Status) -> Self {
        let refusal = Refusal::from_status(status);
        // Without a reason the status is not the bridge's own. With a cause, or with one of these codes, it is the connection's.
        let of_the_connection = error::Error::source(status).is_some()
            || matches!(refusal.code, Code::Unavailable | Code::Cancelled | Code::Unknown);
        if refusal.reason_text.is_empty() && of_the_connection {
            Self::Transport { message: chain(status), source: Some(Arc::new(status.clone())) }
        } else {
            Self::Refused(Box::new(refusal))
        }
    }
}

/// The texts of an error and of its causes, each once.
fn chain(error: &dyn error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}

/// An error that the bridge answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The gRPC code.
    pub code: Code,
    /// The reason; `None` when there is none, or when this client does not know it.
    pub reason: Option<v1::Reason>,
    /// The reason as it came, without a prefix, such as `TURN_CONFLICT`; empty when there is none.
    pub reason_text: String,
    /// The text for a person.
    pub message: String,
    /// The fields at fault.
    pub fields: Vec<Field>,
    /// More on the reason, by key, such as `epoch`.
    pub metadata: BTreeMap<String, String>,
    /// When the same request may be sent again; `None` when the bridge does not say.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    fn from_status(status: &Status) -> Self {
        let details = status.get_error_details();
        let mut reason_text = String::new();
        let mut metadata = BTreeMap::new();
        if let Some(info) = details.error_info().filter(|info| info.domain == ERROR_DOMAIN) {
            reason_text.clone_from(&info.reason);
            metadata.extend(info.metadata.clone());
        } else if let Some(plain) = status.metadata().get(REASON_TRAILER).and_then(|value| value.to_str().ok()) {
            plain.clone_into(&mut reason_text);
        }
        let fields = details.bad_request().map(|bad| bad.field_violations.as_slice()).unwrap_or_default();
        Self {
            code: Code::from_number(status.code() as i32),
            reason: v1::Reason::from_str_name(&format!("REASON_{reason_text}")),
            reason_text,
            message: status.message().into(),
            fields: fields
                .iter()
                .map(|field| Field { path: field.field.clone(), description: field.description.clone() })
                .collect(),
            metadata,
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.reason_text.is_empty() { self.code.name() } else { &self.reason_text };
        write!(f, "{name}: {}", self.message)?;
        for field in &self.fields {
            // A description that the message has already is not said twice.
            if self.message.contains(&field.description) {
                write!(f, " ({})", field.path)?;
            } else {
                write!(f, " ({}: {})", field.path, field.description)?;
            }
        }
        Ok(())
    }
}

/// A field that is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Path of the field in the request, such as `results[1].success`.
    pub path: String,
    /// What is wrong with it.
    pub description: String,
}

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// A gRPC status code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = concat!("`", $text, "`.")] $name = $number,)*
        }

        impl Code {
            /// The name as gRPC writes it, such as `FAILED_PRECONDITION`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            fn from_number(number: i32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    _ => Self::Unknown,
                }
            }
        }
    };
}

codes! {
    Ok = 0, "OK";
    Cancelled = 1, "CANCELLED";
    Unknown = 2, "UNKNOWN";
    InvalidArgument = 3, "INVALID_ARGUMENT";
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    NotFound = 5, "NOT_FOUND";
    AlreadyExists = 6, "ALREADY_EXISTS";
    PermissionDenied = 7, "PERMISSION_DENIED";
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    Aborted = 10, "ABORTED";
    OutOfRange = 11, "OUT_OF_RANGE";
    Unimplemented = 12, "UNIMPLEMENTED";
    Internal = 13, "INTERNAL";
    Unavailable = 14, "UNAVAILABLE";
    DataLoss = 15, "DATA_LOSS";
    Unauthenticated = 16, "UNAUTHENTICATED";
}

impl Code {
    /// The number on the wire, 0 to 16.
    pub fn number(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, io};

    use tonic_types::ErrorDetails;

    use super::*;

    fn over_the_wire(status: Status) -> Error {
        let headers = status.into_http::<()>().headers().clone();
        Error::from_status(&Status::from_header_map(&headers).unwrap())
    }

    #[test]
    fn details_are_read_back_whole() {
        let mut details = ErrorDetails::with_error_info(
            "ASSIGNMENT_STALE",
            ERROR_DOMAIN,
            HashMap::from([("epoch".to_owned(), "4".to_owned()), ("state".to_owned(), "released".to_owned())]),
        );
        details.add_bad_request_violation("assignment.epoch", "must be 4 or more");
        details.set_retry_info(Some(Duration::from_millis(1500)));
        let status = Status::with_error_details(tonic::Code::FailedPrecondition, "a higher epoch is recorded", details);
        let error = over_the_wire(status);
        assert_eq!(error.reason(), Some(v1::Reason::AssignmentStale));
        let refusal = error.refusal().unwrap();
        assert_eq!((refusal.code.name(), refusal.code.number()), ("FAILED_PRECONDITION", 9));
        assert_eq!(refusal.metadata["epoch"], "4");
        assert_eq!(
            refusal.fields,
            [Field { path: "assignment.epoch".into(), description: "must be 4 or more".into() }]
        );
        assert_eq!(refusal.retry_after, Some(Duration::from_millis(1500)));
        assert_eq!(
            error.to_string(),
            "ASSIGNMENT_STALE: a higher epoch is recorded (assignment.epoch: must be 4 or more)"
        );
    }

    #[test]
    fn the_plain_trailer_is_enough() {
        let mut status = Status::unavailable("stopping");
        status.metadata_mut().insert(REASON_TRAILER, "DRAINING".parse().unwrap());
        assert_eq!(over_the_wire(status).reason(), Some(v1::Reason::Draining));
    }

    #[test]
    fn an_unknown_reason_is_a_reason() {
        let mut status = Status::unavailable("later");
        status.metadata_mut().insert(REASON_TRAILER, "MOON_PHASE".parse().unwrap());
        let error = over_the_wire(status);
        assert_eq!(error.refusal().map(|refusal| refusal.reason_text.as_str()), Some("MOON_PHASE"));
        assert_eq!(error.reason(), None);
        assert!(!error.is_lost());
    }

    #[test]
    fn a_foreign_domain_is_not_a_reason() {
        let details = ErrorDetails::with_error_info("NOT_FOUND", "elsewhere", HashMap::new());
        let error = over_the_wire(Status::with_error_details(tonic::Code::NotFound, "no", details));
        assert_eq!(error.refusal().map(|refusal| (refusal.code, refusal.reason)), Some((Code::NotFound, None)));
    }

    #[test]
    fn what_the_connection_says_proves_nothing() {
        let broken = Status::from_error(Box::new(io::Error::new(io::ErrorKind::BrokenPipe, "broken pipe")));
        for (status, lost) in [
            (Status::unavailable("connection refused"), true),
            (Status::cancelled("reset"), true),
            (broken, true),
            (Status::unimplemented("no such method"), false),
            (Status::internal("a bridge without a reason"), false),
            (Status::out_of_range("too large"), false),
        ] {
            assert_eq!(Error::from_status(&status).is_lost(), lost, "{status:?}");
        }
    }

    #[test]
    fn every_code_keeps_its_number() {
        for number in 0..=16 {
            assert_eq!(i32::from(Code::from_number(number).number()), number);
        }
        assert_eq!(Code::from_number(99), Code::Unknown);
    }
}
