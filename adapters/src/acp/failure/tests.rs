use super::*;
use crate::{
    acp::{
        profile::{Listing, Slash, ToolReading},
        wire::{METHOD_NOT_FOUND, Prompted},
    },
    harness::Secrets,
    native::rpc::{self, Message},
};

fn profile() -> Profile {
    Profile {
        kind: "acp:test",
        name: "agent",
        slash: Slash::EmptyBlock,
        mcp_names: &[|server, tool| format!("{server}_{tool}")],
        tools: ToolReading { name: |_| None, command: |_, _| None, mcp_result: |_| None },
        steer: None,
        reusable_after_cancel: false,
        resumes: false,
        unknown_session: &[],
        listing: Listing::AtOpening,
    }
}

/// The end that an answer to a prompt is, as the agent wrote it.
fn ended(line: &str, bare: bool) -> NativeEnd {
    let Ok(Message::Response { outcome, .. }) = rpc::parse(line.as_bytes()) else { panic!("{line}") };
    match outcome {
        Ok(answer) => {
            let Prompted { stop_reason } = serde_json::from_str(answer.get()).unwrap();
            end(&profile(), &stop_reason, bare)
        }
        Err(refused) => {
            let secret = "sk-secret".into();
            let secrets: Secrets = Some(&secret).into_iter().collect();
            error(&profile(), &refused, &Cleaner::new(secrets, "https://models.example/v1"))
        }
    }
}

#[test]
fn a_reason_is_an_end() {
    let told = |reason: &str, bare| {
        let usage = r#""usage":{"inputTokens":120,"outputTokens":7,"totalTokens":127},"_meta":{}"#;
        ended(&format!(r#"{{"jsonrpc":"2.0","id":3,"result":{{"stopReason":"{reason}",{usage}}}}}"#), bare)
    };
    assert_eq!(told("end_turn", false), NativeEnd::Completed { finish: None, at: None });
    for bare in [false, true] {
        assert_eq!(told("cancelled", bare), NativeEnd::Interrupted { at: None });
        let finish = Some(Finish::Incomplete);
        assert_eq!(told("max_tokens", bare), NativeEnd::Completed { finish, at: None });
        let finish = Some(Finish::Refused);
        assert_eq!(told("refusal", bare), NativeEnd::Completed { finish, at: None });
    }
    for (reason, bare, want) in [
        ("end_turn", true, FailureCode::ServerError),
        ("max_turn_requests", false, FailureCode::StreamLimitExceeded),
        ("paused", false, FailureCode::HarnessProtocolError),
    ] {
        match told(reason, bare) {
            NativeEnd::Failed { failure, .. } => assert_eq!(failure.code, want, "{reason}"),
            end => panic!("{reason}: {end:?}"),
        }
    }
}

#[test]
fn what_is_not_known_is_told_short_and_without_a_line_break() {
    let reason = format!(r"a\nb{}", "x".repeat(500));
    let line = format!(r#"{{"jsonrpc":"2.0","id":3,"result":{{"stopReason":"{reason}"}}}}"#);
    match ended(&line, false) {
        NativeEnd::Failed { failure, .. } => {
            assert!(failure.message.ends_with(&format!(r"a\nb{}", "x".repeat(61))), "{}", failure.message);
        }
        end => panic!("{end:?}"),
    }
}

#[test]
fn structured_fields_of_an_error_classify_and_prose_does_not() {
    for (code, data, want, status) in [
        // opencode, for whatever its provider said.
        (-32603, r#"{"service":"session","errorName":"APIError"}"#, FailureCode::ServerError, None),
        (-32603, r#"{"statusCode":429}"#, FailureCode::RateLimitExceeded, Some(429)),
        (-32603, r#"{"status":401}"#, FailureCode::AuthenticationError, Some(401)),
        (-32603, r#"{"statusCode":404,"status":500}"#, FailureCode::ResourceNotFound, Some(404)),
        // None that a provider failed with, and fields of another form.
        (-32603, r#"{"statusCode":200}"#, FailureCode::ServerError, None),
        (-32603, r#"{"statusCode":"429"}"#, FailureCode::ServerError, None),
        (-32603, "429", FailureCode::ServerError, None),
        (AUTH_REQUIRED, "null", FailureCode::AuthenticationError, None),
        (AUTH_REQUIRED, r#"{"statusCode":503}"#, FailureCode::ServerError, Some(503)),
        (INVALID_PARAMS, "{}", FailureCode::InvalidRequest, None),
        (METHOD_NOT_FOUND, "{}", FailureCode::ServerError, None),
    ] {
        let text = "Internal error: 429 Too Many Requests, invalid key sk-secret";
        let line = format!(r#"{{"jsonrpc":"2.0","id":3,"error":{{"code":{code},"message":"{text}","data":{data}}}}}"#);
        match ended(&line, false) {
            NativeEnd::Failed { failure, .. } => {
                assert_eq!((failure.code, failure.http_status), (want, status), "{data}");
                assert!(!failure.message.contains("sk-secret"), "{}", failure.message);
                assert!(failure.message.starts_with("agent failed: Internal error"), "{}", failure.message);
            }
            end => panic!("{data}: {end:?}"),
        }
    }
}
