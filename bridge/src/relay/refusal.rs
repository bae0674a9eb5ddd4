//! Why a call of the enrollment protocol had no effect, and what that is as a gRPC status.

use std::collections::HashMap;

use proto::{
    ERROR_DOMAIN, REASON_TRAILER,
    enrollment::{RELAY_REASON_TRAILER, v1::EnrollmentReason as Reason},
};
use tonic::{Code, Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::journal;

/// A call had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    /// For people; never holds a token.
    pub(super) text: String,
    /// Path of the field at fault.
    pub(super) field: Option<&'static str>,
    /// More for programs.
    pub(super) metadata: Vec<(&'static str, String)>,
}

impl Refusal {
    pub(super) fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), field: None, metadata: Vec::new() }
    }

    pub(super) fn at(mut self, field: &'static str) -> Self {
        self.field = Some(field);
        self
    }

    pub(super) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.metadata.push((name, value.to_string()));
        self
    }
}

/// The records do not take it. The log has what nobody else is told.
impl From<journal::Error> for Refusal {
    fn from(error: journal::Error) -> Self {
        tracing::error!(%error, "the relay's records do not answer");
        if error.is_storage() {
            Self::new(Reason::StorageUnavailable, "the relay's records cannot be written now; try again later")
        } else {
            Self::new(Reason::Internal, "the relay's records do not fit together; its log has the details")
        }
    }
}

/// The status of a refusal.
impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let name = name(refusal.reason);
        let mut details = ErrorDetails::new();
        if let Some(field) = refusal.field {
            details.add_bad_request_violation(field, refusal.text.clone());
        }
        let metadata: HashMap<String, String> =
            refusal.metadata.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        details.set_error_info(name, ERROR_DOMAIN, metadata);
        let mut status = Self::with_error_details(code(refusal.reason), refusal.text, details);
        status.metadata_mut().insert(REASON_TRAILER, MetadataValue::from_static(name));
        status
    }
}

/// The status of a call that was to be passed on. It is never taken for one of the bridge.
pub(super) fn of_passing(reason: Option<Reason>, code: Code, text: impl Into<String>) -> Status {
    let mut status = Status::new(code, text);
    if let Some(reason) = reason {
        status.metadata_mut().insert(RELAY_REASON_TRAILER, MetadataValue::from_static(name(reason)));
    }
    status
}

/// Name of a reason on the wire.
pub(super) fn name(reason: Reason) -> &'static str {
    reason.as_str_name().trim_start_matches("ENROLLMENT_REASON_")
}

/// gRPC code of a reason; the table of the protocol's `EnrollmentReason`.
pub(super) fn code(reason: Reason) -> Code {
    match reason {
        Reason::IncompatibleVersion => Code::FailedPrecondition,
        Reason::InvalidRequest | Reason::TokenMalformed | Reason::RequestMalformed => Code::InvalidArgument,
        Reason::NotAuthorized
        | Reason::TokenForeign
        | Reason::TokenExpired
        | Reason::TokenUsed
        | Reason::ForeignEnvironment
        | Reason::Revoked
        | Reason::NotEnrolled => Code::PermissionDenied,
        Reason::EnvironmentEnrolled | Reason::DuplicateIdentity => Code::AlreadyExists,
        Reason::NotConnected | Reason::StorageUnavailable | Reason::Overloaded => Code::Unavailable,
        Reason::NotFound => Code::NotFound,
        Reason::Internal | Reason::Unspecified => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The comments of the protocol's `EnrollmentReason` begin with the code; this holds them to the table.
    #[test]
    fn the_code_of_every_reason_is_the_one_that_the_protocol_names() {
        let manual = include_str!("../../../proto/runtime_bridge/enrollment/v1/enrollment.proto");
        let (mut comment, mut seen) = (String::new(), 0);
        for line in manual.lines().map(str::trim) {
            match line.strip_prefix("// ") {
                Some(text) if comment.is_empty() => comment = text.to_owned(),
                Some(_) => {}
                None => {
                    let entry = line.split_once(" = ").filter(|(name, _)| name.starts_with("ENROLLMENT_REASON_"));
                    if let Some(reason) = entry.and_then(|(name, _)| Reason::from_str_name(name))
                        && reason != Reason::Unspecified
                    {
                        let want = comment.split('.').next().unwrap().replace('_', "").to_lowercase();
                        assert_eq!(format!("{:?}", code(reason)).to_lowercase(), want, "{reason:?}");
                        seen += 1;
                    }
                    comment.clear();
                }
            }
        }
        assert_eq!(seen, 18);
    }

    #[test]
    fn a_status_carries_the_reason_and_its_field() {
        let status = Status::from(Refusal::new(Reason::TokenExpired, "no").at("token").with("expired", 3));
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status.metadata().get(REASON_TRAILER).unwrap(), "TOKEN_EXPIRED");
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().metadata["expired"], "3");
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "token");
        let passing = of_passing(Some(Reason::NotConnected), Code::Unavailable, "no");
        assert!(!passing.metadata().contains_key(REASON_TRAILER));
    }
}
