//! Lines that the adapter writes.

use base64::Engine as _;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Asked, ControlRequest};
use crate::{
    harness::{Image, InputPart, OutputPart},
    native::rpc::{self, EncodeError},
};

/// JSON-RPC: the method is not known.
const UNKNOWN_METHOD: i64 = -32601;

/// An input. `client_composed` keeps Claude from reading commands and file names in it.
pub(in crate::claude_code) fn user(uuid: &str, parts: &[InputPart]) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct User<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        uuid: &'a str,
        message: Message<'a>,
        parent_tool_use_id: Option<&'a str>,
        session_id: &'static str,
        client_composed: bool,
        priority: &'static str,
    }
    #[derive(Serialize)]
    struct Message<'a> {
        role: &'static str,
        content: Vec<InputBlock<'a>>,
    }
    let content = parts.iter().map(InputBlock::of).collect();
    rpc::line(&User {
        kind: "user",
        uuid,
        message: Message { role: "user", content },
        parent_tool_use_id: None,
        session_id: "",
        client_composed: true,
        priority: "next",
    })
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum InputBlock<'a> {
    Text { text: &'a str },
    Image { source: Source },
}

#[derive(Serialize)]
struct Source {
    #[serde(rename = "type")]
    kind: &'static str,
    media_type: &'static str,
    data: String,
}

impl<'a> InputBlock<'a> {
    fn of(part: &'a InputPart) -> Self {
        match part {
            InputPart::Text(text) => Self::Text { text },
            InputPart::Image(image) => Self::Image {
                source: Source { kind: "base64", media_type: image.media_type.name(), data: base64(image) },
            },
        }
    }
}

/// The bytes of an image as Claude writes them.
pub(in crate::claude_code) fn base64(image: &Image) -> String {
    base64::prelude::BASE64_STANDARD.encode(&image.data)
}

/// A request of ours; `request` has its `subtype` in it.
pub(in crate::claude_code) fn request(
    request_id: &str,
    request: &(impl Serialize + ?Sized),
) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Line<'a, R: ?Sized> {
        #[serde(rename = "type")]
        kind: &'static str,
        request_id: &'a str,
        request: &'a R,
    }
    rpc::line(&Line { kind: "control_request", request_id, request })
}

/// `interrupt`. Inputs that wait are withdrawn with it, so that none of them begins another native turn.
pub(in crate::claude_code) fn interrupt(request_id: &str) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Interrupt {
        subtype: &'static str,
        cancel_queued: bool,
    }
    request(request_id, &Interrupt { subtype: "interrupt", cancel_queued: true })
}

/// The result of `tools/call`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::claude_code) struct CallResult {
    content: Vec<Part>,
    is_error: bool,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Part {
    Text {
        text: String,
    },
    Image {
        data: String,
        #[serde(rename = "mimeType")]
        media_type: &'static str,
    },
}

impl CallResult {
    pub(in crate::claude_code) fn new(success: bool, parts: &[OutputPart]) -> Self {
        let part = |part: &OutputPart| match part {
            OutputPart::Text(text) => Part::Text { text: text.clone() },
            OutputPart::Image(image) => Part::Image { data: base64(image), media_type: image.media_type.name() },
        };
        Self { content: parts.iter().map(part).collect(), is_error: !success }
    }
}

/// The answer to a JSON-RPC request of an `mcp_message`.
pub(in crate::claude_code) fn mcp_result(
    request_id: &str,
    id: &RawValue,
    result: &impl Serialize,
) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Rpc<'a, R> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        result: &'a R,
    }
    mcp(request_id, &Rpc { jsonrpc: "2.0", id, result })
}

/// The refusal of a JSON-RPC request of an `mcp_message`. The model reads the text.
pub(in crate::claude_code) fn mcp_error(
    request_id: &str,
    id: &RawValue,
    code: i64,
    message: &str,
) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Rpc<'a> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        error: Error<'a>,
    }
    #[derive(Serialize)]
    struct Error<'a> {
        code: i64,
        message: &'a str,
    }
    mcp(request_id, &Rpc { jsonrpc: "2.0", id, error: Error { code, message } })
}

/// The refusal of a JSON-RPC request with a method that our server does not have.
pub(in crate::claude_code) fn mcp_unknown(request_id: &str, id: &RawValue) -> Result<Bytes, EncodeError> {
    mcp_error(request_id, id, UNKNOWN_METHOD, "no such method")
}

/// What answers a JSON-RPC notification: Claude waits for a reply to it as well.
pub(in crate::claude_code) fn mcp_noted(request_id: &str) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Rpc {
        jsonrpc: &'static str,
        id: u8,
        result: Empty,
    }
    mcp(request_id, &Rpc { jsonrpc: "2.0", id: 0, result: Empty {} })
}

#[derive(Serialize)]
struct Empty {}

fn mcp(request_id: &str, message: &impl Serialize) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Reply<'a, M> {
        mcp_response: &'a M,
    }
    response(request_id, &Reply { mcp_response: message })
}

/// Answers what Claude asks for beside calls (R-PLC-1: nobody is there to be asked). Everything must be answered: an elicitation would wait for ever.
pub(in crate::claude_code) fn decline(asked: &ControlRequest) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Deny {
        behavior: &'static str,
        message: &'static str,
    }
    #[derive(Serialize)]
    struct Action {
        action: &'static str,
    }
    let request_id = &asked.request_id;
    match &asked.kind {
        Asked::Permission => response(
            request_id,
            &Deny { behavior: "deny", message: "Permission was not granted: nobody can be asked." },
        ),
        Asked::Elicitation => response(request_id, &Action { action: "decline" }),
        Asked::Hook(_) => response(request_id, &Empty {}),
        Asked::Mcp(message) => match &message.id {
            Some(id) => mcp_unknown(request_id, id),
            None => mcp_noted(request_id),
        },
        Asked::Other(_) => error(request_id, "not supported by this client"),
    }
}

/// Refuses the call that a hook asks about. The model reads the text.
pub(in crate::claude_code) fn refuse_call(request_id: &str, why: &'static str) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Refusal {
        hook_specific_output: Decision,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Decision {
        hook_event_name: &'static str,
        permission_decision: &'static str,
        permission_decision_reason: &'static str,
    }
    let decision =
        Decision { hook_event_name: "PreToolUse", permission_decision: "deny", permission_decision_reason: why };
    response(request_id, &Refusal { hook_specific_output: decision })
}

/// Lets the call that a hook asks about go on.
pub(in crate::claude_code) fn let_call(request_id: &str) -> Result<Bytes, EncodeError> {
    response(request_id, &Empty {})
}

fn response(request_id: &str, response: &impl Serialize) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Success<'a, R> {
        subtype: &'static str,
        request_id: &'a str,
        response: &'a R,
    }
    answer(&Success { subtype: "success", request_id, response })
}

fn error(request_id: &str, text: &str) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Error<'a> {
        subtype: &'static str,
        request_id: &'a str,
        error: &'a str,
    }
    answer(&Error { subtype: "error", request_id, error: text })
}

fn answer(response: &impl Serialize) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Line<'a, R> {
        #[serde(rename = "type")]
        kind: &'static str,
        response: &'a R,
    }
    rpc::line(&Line { kind: "control_response", response })
}
