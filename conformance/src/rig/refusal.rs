//! Looks at a refusal the way a Core reads it: reason, gRPC code, field path, text, metadata (R-API-4).

use std::fmt::Debug;

use proto::client::{Code, Error, Refusal};
use proto::v1::Reason;

/// The longest text of a refusal in characters; what was submitted is never repeated beyond 256 of them.
const LONGEST: usize = 512;

/// A refusal with the reason that was due. Its methods check one more thing each, and panic with the refusal when it is otherwise.
#[derive(Debug)]
pub struct Refused(Refusal);

/// Takes an answer that must be a refusal for this reason, with the gRPC code of the protocol's table.
///
/// # Panics
/// When it is anything else, or when its text is empty or longer than any text should be.
#[track_caller]
pub fn refusal<T: Debug, E: Into<anyhow::Error>>(answer: Result<T, E>, reason: Reason) -> Refused {
    let error = match answer {
        Ok(answer) => panic!("{reason:?} was due, and the answer is {answer:?}"),
        Err(error) => error.into(),
    };
    let Some(error) = error.downcast_ref::<Error>() else { panic!("{reason:?} was due, and there is {error:?}") };
    let Some(refusal) = error.refusal() else { panic!("{reason:?} was due, and the call ended so: {error:?}") };
    assert_eq!(refusal.reason, Some(reason), "{error}");
    assert_eq!(refusal.code, code(reason), "{error}");
    let length = refusal.message.chars().count();
    assert!((1..=LONGEST).contains(&length), "a text of {length} characters: {error}");
    Refused(refusal.clone())
}

impl Refused {
    /// The field at fault has this path.
    #[track_caller]
    pub fn at(self, path: &str) -> Self {
        let fields: Vec<_> = self.0.fields.iter().map(|field| field.path.as_str()).collect();
        assert_eq!(fields, [path], "{}", self.0);
        self
    }

    /// No field is at fault.
    #[track_caller]
    pub fn nowhere(self) -> Self {
        assert_eq!(self.0.fields, [], "{}", self.0);
        self
    }

    /// The text holds this.
    #[track_caller]
    pub fn says(self, part: &str) -> Self {
        assert!(self.0.message.contains(part), "{:?} is not in: {}", part, self.0);
        self
    }

    /// Neither text nor metadata hold this.
    #[track_caller]
    pub fn hides(self, secret: &str) -> Self {
        assert!(!format!("{:?}", self.0).contains(secret), "{:?} is in: {:?}", secret, self.0);
        self
    }

    /// The metadata have this entry.
    #[track_caller]
    pub fn with(self, key: &str, value: &str) -> Self {
        assert_eq!(self.0.metadata.get(key).map(String::as_str), Some(value), "{key} of {:?}", self.0);
        self
    }

    /// The public API has this outcome for it.
    #[track_caller]
    pub fn public(self, status: u16, code: &str) -> Self {
        self.with("http_status", &status.to_string()).with("public_code", code)
    }

    /// The refusal itself.
    #[must_use]
    pub fn into_inner(self) -> Refusal {
        self.0
    }
}

/// The table that stands in the comments of the protocol's `Reason`.
fn code(reason: Reason) -> Code {
    use Reason::*;
    match reason {
        InvalidRequest | UnsupportedConfiguration | UnknownCall | InvalidResult => Code::InvalidArgument,
        NotFound | HandleUnknown => Code::NotFound,
        NotAuthorized => Code::PermissionDenied,
        PreparationConflict | TurnConflict | InputConflict | ResultConflict => Code::AlreadyExists,
        PreparationCapacity | InputBusy | InputLimit | Overloaded | ObserverTooSlow => Code::ResourceExhausted,
        PayloadTooLarge | EventsGone => Code::OutOfRange,
        Unsupported => Code::Unimplemented,
        HarnessUnavailable | StorageUnavailable | Draining => Code::Unavailable,
        IncompatibleVersion
        | AssignmentConflict
        | AssignmentStale
        | ConfigurationConflict
        | PreparationFailed
        | NativeHistoryUnavailable
        | HandleExpired
        | SessionBusy
        | TurnEnded
        | TurnCancelled
        | CallAbandoned
        | CleanupUnconfirmed => Code::FailedPrecondition,
        Internal | Unspecified => Code::Internal,
    }
}
