//! How a prompt ended: by the reason in its answer, or by an error. Structured fields classify, prose never (R-EVT-5).

use serde::Deserialize;

use super::{
    profile::Profile,
    wire::{AUTH_REQUIRED, INVALID_PARAMS},
};
use crate::{
    cleaner::Cleaner,
    harness::{Failure, FailureCode, Finish, NativeEnd},
    native::rpc::RpcError,
};

/// The end by an answer; `bare` says that the model has said and done nothing, whatever it thought.
pub(super) fn end(profile: &Profile, reason: &str, bare: bool) -> NativeEnd {
    let failed = |code, message: String| NativeEnd::Failed { failure: failure(code, message), finish: None, at: None };
    match reason {
        "cancelled" => NativeEnd::Interrupted { at: None },
        // Agents end a prompt so whose provider has failed, and say nothing of it.
        "end_turn" if bare => failed(
            FailureCode::ServerError,
            format!(
                "{} ended the prompt without a message or a tool of its model, as agents do whose provider has failed",
                profile.name
            ),
        ),
        "end_turn" => NativeEnd::Completed { finish: None, at: None },
        "max_tokens" => NativeEnd::Completed { finish: Some(Finish::Incomplete), at: None },
        "refusal" => NativeEnd::Completed { finish: Some(Finish::Refused), at: None },
        "max_turn_requests" => failed(
            FailureCode::StreamLimitExceeded,
            format!("{} ended the prompt at its own limit of requests to the model", profile.name),
        ),
        other => {
            let other: String = other.chars().take(64).flat_map(char::escape_debug).collect();
            failed(
                FailureCode::HarnessProtocolError,
                format!("{} ended the prompt for a reason that the bridge does not know: {other}", profile.name),
            )
        }
    }
}

/// What an error says beside its text.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Data {
    status_code: Option<u16>,
    status: Option<u16>,
    error_name: Option<String>,
}

impl Data {
    fn of(error: &RpcError) -> Self {
        error.data.as_ref().and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or_default()
    }

    fn status(&self) -> Option<u16> {
        self.status_code.or(self.status).filter(|status| (400..600).contains(status))
    }

    /// The class by the name that an agent has for it.
    fn named(&self) -> Option<FailureCode> {
        match self.error_name.as_deref() {
            Some("APIError") => Some(FailureCode::ServerError),
            Some("ContextOverflowError") => Some(FailureCode::ContextLengthExceeded),
            Some("ProviderAuthError") => Some(FailureCode::AuthenticationError),
            Some(_) | None => None,
        }
    }
}

/// The class of an error, where one of its fields says it.
fn class(error: &RpcError, data: &Data) -> Option<FailureCode> {
    let by_code = match error.code {
        AUTH_REQUIRED => Some(FailureCode::AuthenticationError),
        INVALID_PARAMS => Some(FailureCode::InvalidRequest),
        _ => None,
    };
    data.status().map(FailureCode::of_status).or(by_code).or(data.named())
}

/// Whether an error says what failed; else it may be all that an agent says of a cancel.
pub(super) fn is_classified(error: &RpcError) -> bool {
    class(error, &Data::of(error)).is_some()
}

/// The end by an error.
pub(super) fn error(profile: &Profile, error: &RpcError, cleaner: &Cleaner) -> NativeEnd {
    let data = Data::of(error);
    let code = class(error, &data).unwrap_or(FailureCode::ServerError);
    let message = format!("{} failed: {}", profile.name, cleaner.clean(&error.message));
    let failure = Failure { http_status: data.status(), ..failure(code, message) };
    NativeEnd::Failed { failure, finish: None, at: None }
}

pub(super) fn failure(code: FailureCode, message: String) -> Failure {
    Failure { code, message, http_status: None, exit: None }
}

#[cfg(test)]
mod tests;
