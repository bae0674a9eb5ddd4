//! Codex's errors → classes of failures (R-EVT-5). Structured fields classify, prose never: texts are only cut and passed on.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{config::STREAM_RETRIES, wire};
use crate::{
    cleaner::Cleaner,
    harness::{Failure, FailureCode, RetryOf},
};

/// `codexErrorInfo`: a name, or an object whose only member is one. The set is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ErrorInfo {
    name: String,
    http_status: Option<u16>,
}

impl ErrorInfo {
    pub(super) fn read(raw: &RawValue) -> Self {
        #[derive(Deserialize)]
        struct Detail {
            #[serde(rename = "httpStatusCode", alias = "http_status_code")]
            http_status: Option<u16>,
        }
        if let Ok(name) = serde_json::from_str::<String>(raw.get()) {
            return Self { name: camel(&name), http_status: None };
        }
        let object: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(raw.get()).unwrap_or_default();
        let Some((name, detail)) = object.into_iter().next() else { return Self::default() };
        let http_status = serde_json::from_str(detail.get()).ok().and_then(|detail: Detail| detail.http_status);
        Self { name: camel(&name), http_status }
    }
}

/// History spells the same names with underscores.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut name, word| {
        let mut letters = word.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name.push_str(letters.as_str());
        name
    })
}

/// The provider errors of one Turn, as far as they are needed to classify the last one.
///
/// A failure that Codex thinks worth another try ends, once the tries are used up, as `other` without any detail where the connection broke
/// (the tries before it carried `responseStreamDisconnected`), and so does a request that the provider refused (no try before it). What tells
/// the two apart is how many tries there were since the last answer that was counted in `thread/tokenUsage/updated`: the bridge sets how many
/// Codex makes.
#[derive(Debug, Default)]
pub(super) struct Errors {
    /// Nobody knows how many tries there were.
    unseen: bool,
    retries: u32,
    last_retry: Option<ErrorInfo>,
}

impl Errors {
    /// The errors of a Turn that another process has seen.
    pub(super) fn unseen() -> Self {
        Self { unseen: true, ..Self::default() }
    }

    /// An answer of the provider was taken in whole: the next failure belongs to another request.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// `error` with `willRetry`.
    pub(super) fn retried(&mut self, error: &wire::TurnError, cleaner: &Cleaner) -> RetryOf {
        let info = error.info.as_deref().map(ErrorInfo::read).unwrap_or_default();
        let (code, http_status) = classify(&info);
        // The message counts the tries ("Reconnecting... 1/4"); the details say what happened.
        let message = cleaner.clean(error.details.as_deref().unwrap_or(&error.message));
        self.retries += 1;
        self.last_retry = Some(info);
        RetryOf { code, http_status, message }
    }

    /// The error of a failed Turn.
    pub(super) fn last(&self, error: &wire::TurnError, cleaner: &Cleaner) -> Failure {
        let info = error.info.as_deref().map(ErrorInfo::read).unwrap_or_default();
        let (mut code, mut http_status) = classify(&info);
        if info.name == "other" && self.unseen {
            code = FailureCode::ServerError;
        } else if info.name == "other" && self.retries >= STREAM_RETRIES {
            let last = self.last_retry.clone().unwrap_or_default();
            (code, http_status) = classify(&last);
        }
        Failure { code, message: cleaner.clean(&error.message), http_status, exit: None }
    }
}

fn classify(info: &ErrorInfo) -> (FailureCode, Option<u16>) {
    let code = match info.name.as_str() {
        "contextWindowExceeded" => FailureCode::ContextLengthExceeded,
        "usageLimitExceeded" | "sessionBudgetExceeded" => FailureCode::UsageLimitExceeded,
        "rateLimitExceeded" => FailureCode::RateLimitExceeded,
        "serverOverloaded" | "flexUnavailable" | "policyCapacityUnavailable" => FailureCode::ServerOverloaded,
        "modelNotFound" => FailureCode::ResourceNotFound,
        "cyberPolicy" | "bioPolicy" | "misalignmentPolicyViolation" => FailureCode::CyberPolicy,
        "internalServerError" => FailureCode::ServerError,
        "unauthorized" => FailureCode::AuthenticationError,
        "httpConnectionFailed"
        | "responseStreamConnectionFailed"
        | "responseStreamDisconnected"
        | "responseTooManyFailedAttempts" => {
            info.http_status.map_or(FailureCode::ConnectionFailed, FailureCode::of_status)
        }
        // `other` without a try before it: the provider refused the request (400), the answer was cut short, a name was taken twice.
        "other"
        | "badRequest"
        | "inferenceHookDenied"
        | "tooManyDenials"
        | "threadRollbackFailed"
        | "sandboxError"
        | "activeTurnNotSteerable" => FailureCode::InvalidRequest,
        // None, or one that is newer than this list.
        _ => FailureCode::ServerError,
    };
    (code, info.http_status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(info: &str, message: &str) -> wire::TurnError {
        wire::TurnError {
            message: message.into(),
            info: Some(RawValue::from_string(info.into()).unwrap()),
            details: None,
        }
    }

    fn disconnected(status: Option<u16>) -> String {
        let status = status.map_or("null".into(), |status| status.to_string());
        format!(r#"{{"responseStreamDisconnected":{{"httpStatusCode":{status}}}}}"#)
    }

    #[track_caller]
    fn check(retries: u32, retry: &str, last: &str, want: FailureCode, status: Option<u16>) {
        let cleaner = Cleaner::default();
        let mut errors = Errors::default();
        for _ in 0..retries {
            errors.retried(&error(retry, "Reconnecting..."), &cleaner);
        }
        let failure = errors.last(&error(last, "m"), &cleaner);
        assert_eq!((failure.code, failure.http_status), (want, status), "{last} after {retries} × {retry}");
    }

    #[test]
    fn every_known_error_has_its_class() {
        use FailureCode::*;
        let http = |name: &str, status: &str| format!(r#"{{"{name}":{{"httpStatusCode":{status}}}}}"#);
        let none = disconnected(None);
        for (last, want, status) in [
            (r#""contextWindowExceeded""#.into(), ContextLengthExceeded, None),
            (r#""sessionBudgetExceeded""#.into(), UsageLimitExceeded, None),
            (r#""usageLimitExceeded""#.into(), UsageLimitExceeded, None),
            (r#""rateLimitExceeded""#.into(), RateLimitExceeded, None),
            (r#""flexUnavailable""#.into(), ServerOverloaded, None),
            (r#""serverOverloaded""#.into(), ServerOverloaded, None),
            (r#""policyCapacityUnavailable""#.into(), ServerOverloaded, None),
            (r#""modelNotFound""#.into(), ResourceNotFound, None),
            (r#""inferenceHookDenied""#.into(), InvalidRequest, None),
            (r#""cyberPolicy""#.into(), CyberPolicy, None),
            (r#""bioPolicy""#.into(), CyberPolicy, None),
            (r#""misalignmentPolicyViolation""#.into(), CyberPolicy, None),
            (r#""tooManyDenials""#.into(), InvalidRequest, None),
            (r#""internalServerError""#.into(), ServerError, None),
            (r#""unauthorized""#.into(), AuthenticationError, None),
            (r#""badRequest""#.into(), InvalidRequest, None),
            (r#""threadRollbackFailed""#.into(), InvalidRequest, None),
            (r#""sandboxError""#.into(), InvalidRequest, None),
            (r#""other""#.into(), InvalidRequest, None),
            (r#"{"activeTurnNotSteerable":{"turnKind":"compact"}}"#.into(), InvalidRequest, None),
            (http("httpConnectionFailed", "null"), ConnectionFailed, None),
            (http("httpConnectionFailed", "401"), AuthenticationError, Some(401)),
            (http("httpConnectionFailed", "402"), InvalidRequest, Some(402)),
            (http("httpConnectionFailed", "403"), AuthenticationError, Some(403)),
            (http("httpConnectionFailed", "404"), ResourceNotFound, Some(404)),
            (http("httpConnectionFailed", "408"), RequestTimeout, Some(408)),
            (http("httpConnectionFailed", "422"), InvalidRequest, Some(422)),
            (http("httpConnectionFailed", "502"), ServerError, Some(502)),
            (http("httpConnectionFailed", "529"), ServerError, Some(529)),
            (http("responseStreamConnectionFailed", "503"), ServerError, Some(503)),
            (http("responseStreamConnectionFailed", "null"), ConnectionFailed, None),
            (http("responseTooManyFailedAttempts", "429"), RateLimitExceeded, Some(429)),
            (http("responseStreamDisconnected", "null"), ConnectionFailed, None),
            (r#""somethingNew""#.into(), ServerError, None),
            (r#"{"somethingNew":{"a":1}}"#.into(), ServerError, None),
            (r#"{"httpConnectionFailed":null}"#.into(), ConnectionFailed, None),
            ("null".into(), ServerError, None),
            ("{}".into(), ServerError, None),
            ("[1]".into(), ServerError, None),
        ] {
            check(0, &none, &last, want, status);
        }
    }

    #[test]
    fn errors_in_history_have_the_same_classes() {
        let none = disconnected(None);
        check(0, &none, r#""context_window_exceeded""#, FailureCode::ContextLengthExceeded, None);
        check(0, &none, r#""usage_limit_exceeded""#, FailureCode::UsageLimitExceeded, None);
        let http = r#"{"http_connection_failed":{"http_status_code":401}}"#;
        check(0, &none, http, FailureCode::AuthenticationError, Some(401));
        let attempts = r#"{"response_too_many_failed_attempts":{"http_status_code":429}}"#;
        check(0, &none, attempts, FailureCode::RateLimitExceeded, Some(429));
    }

    #[test]
    fn an_error_without_detail_is_what_the_used_up_tries_were() {
        let none = disconnected(None);
        check(STREAM_RETRIES, &none, r#""other""#, FailureCode::ConnectionFailed, None);
        check(STREAM_RETRIES, &disconnected(Some(502)), r#""other""#, FailureCode::ServerError, Some(502));
        // Fewer tries: the last request was refused at once.
        check(STREAM_RETRIES - 1, &none, r#""other""#, FailureCode::InvalidRequest, None);
        // A detail of its own counts more than the tries.
        check(STREAM_RETRIES, &none, r#""rateLimitExceeded""#, FailureCode::RateLimitExceeded, None);
    }

    #[test]
    fn tries_of_an_earlier_request_do_not_classify() {
        let cleaner = Cleaner::default();
        let mut errors = Errors::default();
        for _ in 0..STREAM_RETRIES {
            errors.retried(&error(&disconnected(None), "m"), &cleaner);
        }
        errors.answered();
        assert_eq!(errors.last(&error(r#""other""#, "m"), &cleaner).code, FailureCode::InvalidRequest);
        // Without knowing of the tries, nothing is explained.
        assert_eq!(Errors::unseen().last(&error(r#""other""#, "m"), &cleaner).code, FailureCode::ServerError);
    }
}
