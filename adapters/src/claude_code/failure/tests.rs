use super::*;
use crate::claude_code::wire::{self, Line};

const OF: Surroundings = Surroundings { interrupted: false, bare: false };

fn end(class: &str, result: &str, of: Surroundings) -> NativeEnd {
    let mut errors = Errors::default();
    if !class.is_empty() {
        let line = format!(
            r#"{{"type":"assistant","message":{{"id":"s","model":"<synthetic>","content":[]}},"parent_tool_use_id":null,"error":"{class}"}}"#
        );
        let Some(Line::Assistant(line)) = wire::read(line.as_bytes()).unwrap() else { panic!("no message") };
        errors.told(&line);
    }
    let line = format!(r#"{{"type":"result",{result}}}"#);
    let Some(Line::Result(result)) = wire::read(line.as_bytes()).unwrap() else { panic!("no result") };
    errors.end(&result, of, &Cleaner::default())
}

#[track_caller]
fn failed(class: &str, result: &str, want: FailureCode, status: Option<u16>) {
    let NativeEnd::Failed { failure, .. } = end(class, result, OF) else { panic!("{result}") };
    assert_eq!((failure.code, failure.http_status), (want, status), "{class} {result}");
}

#[test]
fn every_failure_has_its_class() {
    use FailureCode::*;
    let api = |status: &str, kind: &str| {
        format!(
            r#""subtype":"success","is_error":true,"terminal_reason":"api_error","api_error_status":{status},"api_error_type":{kind},"result":"x""#
        )
    };
    for (class, status, kind, want) in [
        ("unknown", "400", "\"invalid_request_error\"", InvalidRequest),
        ("authentication_failed", "401", "\"authentication_error\"", AuthenticationError),
        ("unknown", "402", "\"billing_error\"", InvalidRequest),
        ("authentication_failed", "403", "\"permission_error\"", AuthenticationError),
        ("model_not_found", "404", "\"not_found_error\"", ResourceNotFound),
        ("unknown", "408", "\"timeout_error\"", RequestTimeout),
        ("invalid_request", "413", "\"request_too_large\"", InvalidRequest),
        ("rate_limit", "429", "\"rate_limit_error\"", RateLimitExceeded),
        ("server_error", "500", "\"api_error\"", ServerError),
        ("server_error", "529", "\"overloaded_error\"", ServerOverloaded),
        ("billing_error", "400", "\"invalid_request_error\"", UsageLimitExceeded),
        ("server_error", "503", "null", ServerError),
    ] {
        failed(class, &api(status, kind), want, status.parse().ok());
    }
    for (class, kind, want) in [
        ("authentication_failed", "null", AuthenticationError),
        ("rate_limit", "null", RateLimitExceeded),
        ("overloaded", "null", ServerOverloaded),
        ("server_error", "\"overloaded_error\"", ServerOverloaded),
        ("unknown", "\"invalid_request_error\"", InvalidRequest),
        ("unknown", "\"authentication_error\"", AuthenticationError),
        ("unknown", "\"rate_limit_error\"", RateLimitExceeded),
        ("unknown", "\"hologram_error\"", ServerError),
        ("model_not_found", "null", ResourceNotFound),
        ("invalid_request", "null", InvalidRequest),
        ("server_error", "null", ServerError),
        ("something_new", "null", ServerError),
        ("", "null", ServerError),
    ] {
        failed(class, &api("null", kind), want, None);
    }
    let local =
        |reason: &str, more: &str| format!(r#""subtype":"error","is_error":true,"terminal_reason":"{reason}"{more}"#);
    failed("", &local("prompt_too_long", r#","api_error_status":400"#), ContextLengthExceeded, Some(400));
    failed("", &local("blocking_limit", ""), ContextLengthExceeded, None);
    failed("", &local("structured_output_retry_exhausted", ""), StructuredOutputMissing, None);
    failed("", &local("budget_exhausted", ""), UsageLimitExceeded, None);
    failed("", &local("max_turns", ""), InvalidRequest, None);
    failed("server_error", &local("api_error", r#","api_error":"connection_failed""#), ConnectionFailed, None);
    failed("max_output_tokens", &local("api_error", r#","api_error":"max_output_tokens""#), InvalidRequest, None);
    failed("", r#""subtype":"error_during_execution","errors":["No conversation found"]"#, ServerError, None);
    failed("", r#""subtype":"hologram""#, ServerError, None);
}

#[test]
fn a_refusal_by_policy_has_its_class() {
    let refused = |details: &str| {
        let line = format!(
            r#"{{"type":"assistant","message":{{"id":"s","model":"<synthetic>","stop_details":{details},"stop_reason":"refusal","content":[]}},"parent_tool_use_id":null,"error":"invalid_request"}}"#
        );
        let Some(Line::Assistant(line)) = wire::read(line.as_bytes()).unwrap() else { panic!("no message") };
        let mut errors = Errors::default();
        errors.told(&line);
        let result = r#"{"type":"result","subtype":"success","is_error":true,"stop_reason":"refusal","terminal_reason":"api_error","api_error_status":null,"result":"x"}"#;
        let Some(Line::Result(result)) = wire::read(result.as_bytes()).unwrap() else { panic!("no result") };
        errors.end(&result, OF, &Cleaner::default())
    };
    for (details, want) in [
        ("null", FailureCode::InvalidRequest),
        (r#"{"type":"refusal","category":null}"#, FailureCode::InvalidRequest),
        (r#"{"type":"refusal","category":"cyber","explanation":"because"}"#, FailureCode::CyberPolicy),
        (r#"{"type":"refusal","category":"bio"}"#, FailureCode::CyberPolicy),
    ] {
        let NativeEnd::Failed { failure, finish, .. } = refused(details) else { panic!("{details}") };
        assert_eq!((failure.code, finish), (want, Some(Finish::Refused)), "{details}");
    }
}

#[test]
fn the_end_of_an_answer_is_told_by_its_fields() {
    let finish = |reason: &str, more: &str, bare| {
        let result = format!(r#""subtype":"success","is_error":false,"stop_reason":{reason}{more}"#);
        let NativeEnd::Completed { finish, .. } = end("", &result, Surroundings { bare, ..OF }) else {
            panic!("{result}")
        };
        finish
    };
    let output = r#","structured_output":{}"#;
    for (reason, more, bare, want) in [
        ("\"end_turn\"", "", false, Some(Finish::Stop)),
        ("\"stop_sequence\"", "", false, Some(Finish::Stop)),
        ("\"end_turn\"", "", true, Some(Finish::NoOutput)),
        ("\"max_tokens\"", "", false, Some(Finish::Incomplete)),
        ("\"model_context_window_exceeded\"", "", false, Some(Finish::Incomplete)),
        ("\"max_tokens\"", output, false, Some(Finish::Stop)),
        ("\"tool_use\"", output, false, Some(Finish::Stop)),
        ("\"tool_use\"", "", false, None),
        ("\"refusal\"", "", false, Some(Finish::Refused)),
        ("\"pause_turn\"", "", false, None),
        ("null", "", false, None),
    ] {
        assert_eq!(finish(reason, more, bare), want, "{reason} {more}");
    }
}

#[test]
fn an_interrupt_is_one_when_we_asked_for_it() {
    let asked = Surroundings { interrupted: true, ..OF };
    let aborted = r#""subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_tools","errors":["[ede_diagnostic]"]"#;
    assert_eq!(end("", aborted, asked), NativeEnd::Interrupted { at: None });
    let NativeEnd::Failed { failure, .. } = end("", aborted, OF) else { panic!("not failed") };
    assert_eq!(failure.code, FailureCode::HarnessProtocolError);
    // A completion on its way wins (R-CAN-5), and so does a failure.
    let completed = r#""subtype":"success","is_error":false,"terminal_reason":"completed","stop_reason":"end_turn""#;
    assert!(matches!(end("", completed, asked), NativeEnd::Completed { .. }));
    let failed = r#""subtype":"success","is_error":true,"terminal_reason":"api_error","api_error_status":500"#;
    assert!(matches!(end("", failed, asked), NativeEnd::Failed { .. }));
}

#[test]
fn texts_leave_without_addresses() {
    let result = r#""subtype":"success","is_error":true,"result":"API Error: refused\nLearn more: https://h.example/a","api_error_status":400"#;
    let NativeEnd::Failed { failure, .. } = end("", result, OF) else { panic!("not failed") };
    assert_eq!(failure.message, "API Error: refused Learn more: [address]");
}

#[test]
fn a_try_is_told_with_its_class() {
    let of =
        |error_status, error: &str| retried(&Retry { attempt: 1, max_retries: 4, error_status, error: error.into() });
    for (status, error, code, message) in [
        (Some(529), "overloaded", FailureCode::ServerOverloaded, "overloaded, try 1 of 4"),
        (Some(429), "rate_limit", FailureCode::RateLimitExceeded, "rate_limit, try 1 of 4"),
        (None, "unknown", FailureCode::ConnectionFailed, "the connection broke, try 1 of 4"),
    ] {
        let message = message.to_owned();
        assert_eq!(of(status, error), RetryOf { code, http_status: status, message });
    }
}
