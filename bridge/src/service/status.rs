//! Refusals to gRPC statuses, in one place (R-API-4).

use std::{collections::HashMap, time::Duration};

use proto::{ERROR_DOMAIN, REASON_TRAILER, v1};
use tonic::{Code, Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::refusal::{Reason, Refusal};

/// Longest text of an error in bytes, so that its details stay under 4 KiB: beside a field it stands there twice.
const MAX_TEXT: usize = 1024;

/// The status of a refusal.
pub(crate) fn status(refusal: Refusal) -> Status {
    let (code, reason) = of(refusal.reason);
    let name = reason.as_str_name().trim_start_matches("REASON_");
    let text = refusal.text[..refusal.text.floor_char_boundary(MAX_TEXT)].to_owned();
    let metadata: HashMap<String, String> =
        refusal.metadata.iter().map(|(name, value)| ((*name).to_owned(), value.chars().take(256).collect())).collect();
    let mut details = ErrorDetails::new();
    if let Some(field) = refusal.field {
        details.add_bad_request_violation(field, text.clone());
    }
    if let Some(Ok(millis)) = metadata.get("retry_ms").map(|millis| millis.parse()) {
        details.set_retry_info(Some(Duration::from_millis(millis)));
    }
    details.set_error_info(name, ERROR_DOMAIN, metadata);
    let mut status = Status::with_error_details(code, text, details);
    status.metadata_mut().insert(REASON_TRAILER, MetadataValue::from_static(name));
    status
}

/// Wire name of a reason.
pub(crate) fn reason(of: Reason) -> v1::Reason {
    self::of(of).1
}

/// gRPC code and wire name of a reason; the table of the protocol's `Reason`.
fn of(reason: Reason) -> (Code, v1::Reason) {
    match reason {
        Reason::AssignmentConflict => (Code::FailedPrecondition, v1::Reason::AssignmentConflict),
        Reason::AssignmentStale => (Code::FailedPrecondition, v1::Reason::AssignmentStale),
        Reason::CallAbandoned => (Code::FailedPrecondition, v1::Reason::CallAbandoned),
        Reason::CleanupUnconfirmed => (Code::FailedPrecondition, v1::Reason::CleanupUnconfirmed),
        Reason::ConfigurationConflict => (Code::FailedPrecondition, v1::Reason::ConfigurationConflict),
        Reason::Draining => (Code::Unavailable, v1::Reason::Draining),
        Reason::EventsGone => (Code::OutOfRange, v1::Reason::EventsGone),
        Reason::HandleExpired => (Code::FailedPrecondition, v1::Reason::HandleExpired),
        Reason::HandleUnknown => (Code::NotFound, v1::Reason::HandleUnknown),
        Reason::HarnessUnavailable => (Code::Unavailable, v1::Reason::HarnessUnavailable),
        Reason::IncompatibleVersion => (Code::FailedPrecondition, v1::Reason::IncompatibleVersion),
        Reason::InputBusy => (Code::ResourceExhausted, v1::Reason::InputBusy),
        Reason::InputConflict => (Code::AlreadyExists, v1::Reason::InputConflict),
        Reason::InputLimit => (Code::ResourceExhausted, v1::Reason::InputLimit),
        Reason::Internal => (Code::Internal, v1::Reason::Internal),
        Reason::InvalidRequest => (Code::InvalidArgument, v1::Reason::InvalidRequest),
        Reason::InvalidResult => (Code::InvalidArgument, v1::Reason::InvalidResult),
        Reason::NativeHistoryUnavailable => (Code::FailedPrecondition, v1::Reason::NativeHistoryUnavailable),
        Reason::NotAuthorized => (Code::PermissionDenied, v1::Reason::NotAuthorized),
        Reason::NotFound => (Code::NotFound, v1::Reason::NotFound),
        Reason::ObserverTooSlow => (Code::ResourceExhausted, v1::Reason::ObserverTooSlow),
        Reason::PayloadTooLarge => (Code::OutOfRange, v1::Reason::PayloadTooLarge),
        Reason::Unsupported => (Code::Unimplemented, v1::Reason::Unsupported),
        Reason::Overloaded => (Code::ResourceExhausted, v1::Reason::Overloaded),
        Reason::PreparationCapacity => (Code::ResourceExhausted, v1::Reason::PreparationCapacity),
        Reason::PreparationConflict => (Code::AlreadyExists, v1::Reason::PreparationConflict),
        Reason::PreparationFailed => (Code::FailedPrecondition, v1::Reason::PreparationFailed),
        Reason::ResultConflict => (Code::AlreadyExists, v1::Reason::ResultConflict),
        Reason::SessionBusy => (Code::FailedPrecondition, v1::Reason::SessionBusy),
        Reason::StorageUnavailable => (Code::Unavailable, v1::Reason::StorageUnavailable),
        Reason::TurnCancelled => (Code::FailedPrecondition, v1::Reason::TurnCancelled),
        Reason::TurnConflict => (Code::AlreadyExists, v1::Reason::TurnConflict),
        Reason::TurnEnded => (Code::FailedPrecondition, v1::Reason::TurnEnded),
        Reason::UnknownCall => (Code::InvalidArgument, v1::Reason::UnknownCall),
        Reason::UnsupportedConfiguration => (Code::InvalidArgument, v1::Reason::UnsupportedConfiguration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_carries_the_reason_twice_and_its_field() {
        let refusal = Refusal::invalid("a.b", "no").with("retry_ms", 100).with("index", 3);
        let status = status(refusal);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.metadata().get(REASON_TRAILER).unwrap(), "INVALID_REQUEST");
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("INVALID_REQUEST", ERROR_DOMAIN));
        assert_eq!(info.metadata["index"], "3");
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "a.b");
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_millis(100)));
    }

    #[test]
    fn details_stay_under_4_kib_whatever_is_refused() {
        let refusal = Refusal::new(Reason::PreparationFailed, "€".repeat(10_000)).with("step", "€".repeat(10_000));
        assert!(status(refusal.at("a.b")).details().len() < 4096);
    }

    /// The comments of the protocol's `Reason` begin with the code; this holds them to the table.
    #[test]
    fn the_code_of_every_reason_is_the_one_that_the_protocol_names() {
        let manual = include_str!("../../../proto/runtime_bridge/v1/error.proto");
        let mut lines = manual.lines().map(str::trim).peekable();
        let mut named = HashMap::new();
        let mut comment = String::new();
        for line in lines.by_ref() {
            match line.strip_prefix("// ") {
                Some(text) if comment.is_empty() => comment = text.to_owned(),
                Some(_) => {}
                None => {
                    if let Some((name, _)) = line.split_once(" = ").filter(|(name, _)| name.starts_with("REASON_")) {
                        let code = comment.split('.').next().unwrap_or_default().to_owned();
                        named.insert(name.to_owned(), code);
                    }
                    comment.clear();
                }
            }
        }
        for reason in ALL {
            let (code, wire) = of(reason);
            let want = named[wire.as_str_name()].replace('_', "").to_lowercase();
            assert_eq!(format!("{code:?}").to_lowercase(), want, "{reason:?}");
        }
        assert_eq!(named.len(), ALL.len() + 1, "a reason of the protocol is never given, or missing in this test");
    }

    const ALL: [Reason; 35] = [
        Reason::AssignmentConflict,
        Reason::AssignmentStale,
        Reason::CallAbandoned,
        Reason::CleanupUnconfirmed,
        Reason::ConfigurationConflict,
        Reason::Draining,
        Reason::EventsGone,
        Reason::HandleExpired,
        Reason::HandleUnknown,
        Reason::HarnessUnavailable,
        Reason::IncompatibleVersion,
        Reason::InputBusy,
        Reason::InputConflict,
        Reason::InputLimit,
        Reason::Internal,
        Reason::InvalidRequest,
        Reason::InvalidResult,
        Reason::NativeHistoryUnavailable,
        Reason::NotAuthorized,
        Reason::NotFound,
        Reason::ObserverTooSlow,
        Reason::PayloadTooLarge,
        Reason::Unsupported,
        Reason::Overloaded,
        Reason::PreparationCapacity,
        Reason::PreparationConflict,
        Reason::PreparationFailed,
        Reason::ResultConflict,
        Reason::SessionBusy,
        Reason::StorageUnavailable,
        Reason::TurnCancelled,
        Reason::TurnConflict,
        Reason::TurnEnded,
        Reason::UnknownCall,
        Reason::UnsupportedConfiguration,
    ];
}
