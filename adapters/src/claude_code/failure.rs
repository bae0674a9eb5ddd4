//! The end of a native turn → how the Turn ended, and the class of its failure (R-EVT-3, R-EVT-5). Structured fields classify, prose never: texts are
//! only cut and passed on. A failure of the provider is a `result` of the subtype `success`, so `is_error` counts first.

use super::wire::{Assistant, NativeResult, Retry};
use crate::{
    cleaner::Cleaner,
    harness::{Failure, FailureCode, Finish, NativeEnd, RetryOf},
};

/// The provider has no room; not a status of HTTP's own.
const OVERLOADED: u16 = 529;

/// The errors that Claude told in the model's place during one Turn.
#[derive(Debug, Default)]
pub(super) struct Errors {
    /// The class of the last one.
    class: Option<String>,
    /// Why the provider refused to answer.
    refusal: Option<String>,
    /// Which limit cut the answer.
    cut: Option<String>,
}

/// What beside the `result` decides how a Turn ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    /// We asked for an interrupt.
    pub(super) interrupted: bool,
    /// Neither a message nor a tool was shown.
    pub(super) bare: bool,
}

impl Errors {
    /// An `assistant` line. What the model says shows that an error before it was got over.
    pub(super) fn told(&mut self, line: &Assistant) {
        if line.parent.is_none() {
            self.class.clone_from(&line.error);
            self.refusal.clone_from(&line.refusal);
            self.cut.clone_from(&line.cut);
        }
    }

    /// `result`, as the end of the Turn.
    pub(super) fn end(&self, result: &NativeResult, of: Surroundings, cleaner: &Cleaner) -> NativeEnd {
        let reason = result.terminal_reason.as_deref().unwrap_or_default();
        if reason.starts_with("aborted_") {
            return if of.interrupted { NativeEnd::Interrupted { at: None } } else { by_itself() };
        }
        if !result.is_error && result.subtype == "success" {
            return NativeEnd::Completed { finish: finish(result, of.bare), at: None };
        }
        let errors = || Some(result.errors.join("; ")).filter(|errors| !errors.is_empty());
        let message = result.result.clone().or_else(errors).unwrap_or_else(|| result.subtype.clone());
        let failure = Failure {
            code: self.code(result, reason),
            message: cleaner.clean(&message),
            http_status: result.api_error_status,
            exit: None,
        };
        NativeEnd::Failed { failure, finish: failed_finish(result), at: None }
    }

    fn code(&self, result: &NativeResult, reason: &str) -> FailureCode {
        let class = self.class.as_deref().unwrap_or_default();
        match reason {
            "prompt_too_long" | "blocking_limit" => return FailureCode::ContextLengthExceeded,
            "structured_output_retry_exhausted" => return FailureCode::StructuredOutputMissing,
            "budget_exhausted" => return FailureCode::UsageLimitExceeded,
            "max_turns" => return FailureCode::InvalidRequest,
            _ => {}
        }
        if class == "billing_error" {
            return FailureCode::UsageLimitExceeded;
        }
        if let Some(status) = result.api_error_status {
            return of_status(status);
        }
        // An error in the middle of a stream has a type and no status.
        if let Some(code) = result.api_error_type.as_deref().and_then(of_type) {
            return code;
        }
        match result.api_error.as_deref() {
            Some("connection_failed") => FailureCode::ConnectionFailed,
            Some("max_output_tokens") if self.cut.as_deref() == Some("context_window") => {
                FailureCode::ContextLengthExceeded
            }
            // The provider took the request, and the answer is none: longer than it may be, or refused.
            Some("max_output_tokens") => FailureCode::InvalidRequest,
            _ if is_refusal(result) && self.refusal.is_some() => FailureCode::CyberPolicy,
            _ if is_refusal(result) => FailureCode::InvalidRequest,
            _ => of_class(class),
        }
    }
}

/// `system/api_retry`.
pub(super) fn retried(retry: &Retry) -> RetryOf {
    let Retry { attempt, max_retries, error_status, error } = retry;
    let code = match error_status {
        Some(status) => of_status(*status),
        None => FailureCode::ConnectionFailed,
    };
    let message = match error_status {
        Some(_) => format!("{error}, try {attempt} of {max_retries}"),
        None => format!("the connection broke, try {attempt} of {max_retries}"),
    };
    RetryOf { code, http_status: *error_status, message }
}

fn of_status(status: u16) -> FailureCode {
    if status == OVERLOADED { FailureCode::ServerOverloaded } else { FailureCode::of_status(status) }
}

/// The types of error that the Messages API has. The set is open.
fn of_type(kind: &str) -> Option<FailureCode> {
    Some(match kind {
        "authentication_error" | "permission_error" => FailureCode::AuthenticationError,
        "billing_error" => FailureCode::UsageLimitExceeded,
        "invalid_request_error" | "request_too_large" => FailureCode::InvalidRequest,
        "not_found_error" => FailureCode::ResourceNotFound,
        "overloaded_error" => FailureCode::ServerOverloaded,
        "rate_limit_error" => FailureCode::RateLimitExceeded,
        "timeout_error" => FailureCode::RequestTimeout,
        "api_error" => FailureCode::ServerError,
        _ => return None,
    })
}

/// The class of an error without a status. The set is open.
fn of_class(class: &str) -> FailureCode {
    match class {
        "authentication_failed" | "oauth_org_not_allowed" => FailureCode::AuthenticationError,
        "rate_limit" => FailureCode::RateLimitExceeded,
        "overloaded" => FailureCode::ServerOverloaded,
        "model_not_found" => FailureCode::ResourceNotFound,
        "invalid_request" | "max_output_tokens" => FailureCode::InvalidRequest,
        _ => FailureCode::ServerError,
    }
}

fn is_refusal(result: &NativeResult) -> bool {
    result.stop_reason.as_deref() == Some("refusal")
}

/// How the answer of a Turn that completed ended.
fn finish(result: &NativeResult, bare: bool) -> Option<Finish> {
    if bare {
        return Some(Finish::NoOutput);
    }
    match result.stop_reason.as_deref()? {
        "end_turn" | "stop_sequence" => Some(Finish::Stop),
        "refusal" => Some(Finish::Refused),
        // The call of a structured answer ends it, whatever the provider says of the rest.
        _ if result.structured_output.is_some() => Some(Finish::Stop),
        "max_tokens" | "model_context_window_exceeded" => Some(Finish::Incomplete),
        _ => None,
    }
}

/// How the answer of a Turn that failed ended. Claude itself goes on after an answer that was too long, and fails only when all of them were.
fn failed_finish(result: &NativeResult) -> Option<Finish> {
    if is_refusal(result) {
        return Some(Finish::Refused);
    }
    (result.api_error.as_deref() == Some("max_output_tokens")).then_some(Finish::Incomplete)
}

fn by_itself() -> NativeEnd {
    let message = "claude interrupted the Turn by itself".into();
    let failure = Failure { code: FailureCode::HarnessProtocolError, message, http_status: None, exit: None };
    NativeEnd::Failed { failure, finish: None, at: None }
}

#[cfg(test)]
mod tests;
