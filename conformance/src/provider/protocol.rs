//! Which of the model APIs a request speaks.

use serde_json::{Value, json};

use super::events::fresh;
use crate::script::provider::Http;

/// A model API that the provider serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The OpenAI Responses API: `POST …/responses`.
    #[default]
    Responses,
    /// The Anthropic Messages API: `POST …/messages`.
    Messages,
    /// The OpenAI Chat Completions API: `POST …/chat/completions`.
    ChatCompletions,
}

impl Protocol {
    /// The API that a path belongs to, where it asks for a response of the model.
    pub(super) fn of(path: &str) -> Option<Self> {
        let path = plain(path);
        let ends = [
            ("/responses", Self::Responses),
            ("/messages", Self::Messages),
            ("/chat/completions", Self::ChatCompletions),
        ];
        ends.into_iter().find(|(end, _)| path.ends_with(end)).map(|(_, protocol)| protocol)
    }

    /// The body of an HTTP error.
    pub(super) fn error_body(self, http: &Http) -> String {
        let message = http.message.as_deref();
        let body = match self {
            Self::Responses | Self::ChatCompletions => {
                let kind = http.kind.as_deref().unwrap_or("server_error");
                let message = message.unwrap_or("the script refuses");
                openai_error(kind, message, http.code.as_deref())
            }
            Self::Messages => {
                let kind = http.kind.as_deref().unwrap_or_else(|| error_kind(http.status));
                let told = http.code.as_deref().map_or_else(|| "the script refuses".into(), told);
                messages_error(kind, message.unwrap_or(&told))
            }
        };
        body.to_string()
    }
}

/// Whether a path counts the tokens of a request of the Messages API.
pub(super) fn counts_tokens(path: &str) -> bool {
    plain(path).ends_with("/messages/count_tokens")
}

fn plain(path: &str) -> &str {
    path.split('?').next().unwrap_or_default().trim_end_matches('/')
}

/// The error object of the APIs of OpenAI.
pub(super) fn openai_error(kind: &str, message: &str, code: Option<&str>) -> Value {
    json!({"error": {"message": message, "type": kind, "code": code, "param": null}})
}

/// The error object of the Messages API.
pub(super) fn messages_error(kind: &str, message: &str) -> Value {
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": fresh("req")})
}

/// The type of error that the Messages API has for a status.
fn error_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        500..=599 => "api_error",
        _ => "invalid_request_error",
    }
}

/// How the Messages API words what the Responses API has a code for.
pub(super) fn told(code: &str) -> String {
    match code {
        "context_length_exceeded" => "prompt is too long: 250000 tokens > 200000 maximum".into(),
        other => format!("the script refuses: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_tells_the_protocol() {
        assert_eq!(Protocol::of("/v1/responses"), Some(Protocol::Responses));
        assert_eq!(Protocol::of("/v1/messages?beta=true"), Some(Protocol::Messages));
        assert_eq!(Protocol::of("/v1/chat/completions"), Some(Protocol::ChatCompletions));
        assert_eq!(Protocol::of("/v1/messages/count_tokens?beta=true"), None);
        assert!(counts_tokens("/v1/messages/count_tokens?beta=true"));
        assert!(!counts_tokens("/v1/messages"));
    }

    #[test]
    fn an_error_has_the_form_of_its_protocol() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (529, "overloaded_error"),
        ] {
            let http = Http { status, ..Http::default() };
            let body: Value = serde_json::from_str(&Protocol::Messages.error_body(&http)).unwrap();
            assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)));
        }
        let long = Http { status: 400, code: Some("context_length_exceeded".into()), ..Http::default() };
        assert!(Protocol::Messages.error_body(&long).contains("prompt is too long"));
        for protocol in [Protocol::Responses, Protocol::ChatCompletions] {
            assert!(protocol.error_body(&long).contains(r#""code":"context_length_exceeded""#));
        }
    }
}
