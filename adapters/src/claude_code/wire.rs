//! Lines of `claude` in stream-json mode, as far as the adapter reads them; [`write`] has those that it writes. Members and values that nobody
//! here knows are skipped; the envelope is read first and what it holds after it.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::value::RawValue;

mod message;
mod text;
pub(super) mod write;

pub(super) use message::{Assistant, Block, Delta, Event, Shown, ShownPart, Stream, Tokens, ToolResult, User};
pub(super) use text::lossy_option;
use text::{lenient, lossy};

/// The in-process server that holds the declared functions.
pub(super) const SERVER: &str = "functions";

/// A line that the adapter acts upon.
#[derive(Debug)]
pub(super) enum Line {
    /// `system/init`, at the start of every native turn.
    Init(Init),
    /// `system/session_state_changed`.
    State(SessionState),
    /// `command_lifecycle`: how an input stands.
    Lifecycle(Lifecycle),
    /// `system/api_retry`.
    Retry(Retry),
    /// `system/compact_boundary`.
    Compacted,
    /// `system/permission_denied`.
    Denied(Denied),
    /// `stream_event`.
    Stream(Stream),
    /// `assistant`.
    Assistant(Assistant),
    /// `user`.
    User(User),
    /// `result`.
    Result(Box<NativeResult>),
    /// `control_request`: waits for an answer.
    Request(ControlRequest),
    /// `control_response`: the answer to one of ours.
    Response(ControlResponse),
    /// `control_cancel_request`: a request that waits for no answer any more.
    Withdrawn,
    /// `tool_progress`: a tool is still at work.
    Heartbeat,
}

/// `system/init`.
#[derive(Debug, Deserialize)]
pub(super) struct Init {
    #[serde(default)]
    pub(super) session_id: String,
    #[serde(default)]
    pub(super) tools: Vec<String>,
}

/// State of the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionState {
    /// Nothing runs, and no input waits.
    Idle,
    /// A native turn runs.
    Running,
    /// It waits for an answer of ours.
    RequiresAction,
    /// One that nobody here knows.
    Other,
}

/// `command_lifecycle`.
#[derive(Debug, Deserialize)]
pub(super) struct Lifecycle {
    pub(super) command_uuid: String,
    #[serde(rename = "state", deserialize_with = "input_state")]
    pub(super) state: InputState,
}

/// How an input stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputState {
    /// Taken into the queue.
    Queued,
    /// Read by a native turn.
    Started,
    /// The native turn that read it ended well.
    Completed,
    /// Withdrawn, or its native turn did not end well.
    Cancelled,
    /// One that nobody here knows.
    Other,
}

fn input_state<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<InputState, D::Error> {
    Ok(match Cow::<str>::deserialize(deserializer)?.as_ref() {
        "queued" => InputState::Queued,
        "started" => InputState::Started,
        "completed" => InputState::Completed,
        "cancelled" => InputState::Cancelled,
        _ => InputState::Other,
    })
}

/// `system/api_retry`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Retry {
    #[serde(default)]
    pub(super) attempt: u32,
    #[serde(default)]
    pub(super) max_retries: u32,
    pub(super) error_status: Option<u16>,
    /// The class of the error.
    #[serde(default)]
    pub(super) error: String,
}

/// `system/permission_denied`.
#[derive(Debug, Deserialize)]
pub(super) struct Denied {
    #[serde(default)]
    pub(super) tool_use_id: String,
}

/// `result`: the end of a native turn.
#[derive(Debug, Default, Deserialize)]
pub(super) struct NativeResult {
    #[serde(default)]
    pub(super) subtype: String,
    #[serde(default)]
    pub(super) is_error: bool,
    /// The last text, or the structured answer, or the text of an error.
    #[serde(default, deserialize_with = "lossy_option")]
    pub(super) result: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) errors: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) stop_reason: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) terminal_reason: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) api_error_status: Option<u16>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) api_error_type: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) api_error: Option<String>,
    pub(super) structured_output: Option<Box<RawValue>>,
    /// Counters of each model since the last `result`; empty when nothing was measured.
    #[serde(default, deserialize_with = "lenient")]
    pub(super) model_usage_since_last_result: BTreeMap<String, ModelUsage>,
}

/// Counters of one model.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ModelUsage {
    pub(super) input_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
    pub(super) cache_read_input_tokens: Option<u64>,
    pub(super) cache_creation_input_tokens: Option<u64>,
    pub(super) thinking_tokens: Option<u64>,
}

/// `control_request`.
#[derive(Debug)]
pub(super) struct ControlRequest {
    pub(super) request_id: String,
    pub(super) kind: Asked,
}

/// What the process asks for.
#[derive(Debug)]
pub(super) enum Asked {
    /// `mcp_message`: a JSON-RPC message to the server of the functions.
    Mcp(McpMessage),
    /// `can_use_tool`.
    Permission,
    /// `hook_callback`, about a tool of this name.
    Hook(String),
    /// `elicitation`: an MCP server asks the user.
    Elicitation,
    /// Anything else, by its name.
    Other(String),
}

/// A JSON-RPC message to our server.
#[derive(Debug)]
pub(super) struct McpMessage {
    pub(super) server: String,
    /// None in a notification.
    pub(super) id: Option<Box<RawValue>>,
    pub(super) content: McpContent,
}

/// What a JSON-RPC message says.
#[derive(Debug)]
pub(super) enum McpContent {
    /// `tools/call`.
    Call(ToolCall),
    /// `notifications/cancelled`: the request with this id waits for no answer any more.
    Cancelled(Box<RawValue>),
    /// Another one.
    Other,
}

/// Parameters of `tools/call`.
#[derive(Debug, Deserialize)]
pub(super) struct ToolCall {
    pub(super) name: String,
    /// As it came; the numbers in it went through JavaScript.
    pub(super) arguments: Option<Box<RawValue>>,
    #[serde(default, rename = "_meta")]
    pub(super) meta: CallMeta,
}

/// What stands beside a call.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CallMeta {
    /// The native call id.
    #[serde(rename = "claudecode/toolUseId")]
    pub(super) tool_use_id: Option<String>,
}

/// `control_response`.
#[derive(Debug, Deserialize)]
pub(super) struct ControlResponse {
    pub(super) request_id: String,
    #[serde(rename = "subtype", deserialize_with = "is_success")]
    pub(super) success: bool,
    pub(super) response: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "lossy_option")]
    pub(super) error: Option<String>,
}

fn is_success<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Cow::<str>::deserialize(deserializer)? == "success")
}

/// The envelope. What is in it stays the text it came as until its kind is known.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    subtype: Option<Cow<'a, str>>,
    #[serde(borrow)]
    state: Option<&'a RawValue>,
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    parent_tool_use_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    request_id: Option<&'a RawValue>,
    #[serde(borrow)]
    abandoned_blocks: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_use_result: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_result_meta: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    api_error_params: Option<&'a RawValue>,
    #[serde(default)]
    aborted: bool,
    #[serde(default, rename = "isReplay")]
    is_replay: bool,
}

impl Envelope<'_> {
    /// It names another conversation than this one. What a native turn begins with is looked at all the same: a process that runs another
    /// conversation is of no use.
    fn is_foreign(&self, session: &str) -> bool {
        let named = self.session_id.map(RawValue::get).and_then(|id| id.strip_prefix('"')?.strip_suffix('"'));
        named.is_some_and(|id| !id.is_empty() && id != session) && self.subtype.as_deref() != Some("init")
    }
}

/// Kinds of lines, and of `system` lines, that the adapter acts upon.
const READ: [&str; 10] = [
    "command_lifecycle",
    "stream_event",
    "assistant",
    "user",
    "result",
    "control_request",
    "control_response",
    "control_cancel_request",
    "tool_progress",
    "system",
];
const READ_SYSTEM: [&str; 5] = ["init", "session_state_changed", "api_retry", "compact_boundary", "permission_denied"];

/// Whether the adapter reads a line that begins so. Only what is surely none of its lines is not: one that begins with another kind.
pub(super) fn is_read(beginning: &[u8]) -> bool {
    let Some((kind, rest)) = beginning.strip_prefix(br#"{"type":""#).and_then(name) else { return true };
    if kind != b"system" {
        return READ.iter().any(|known| known.as_bytes() == kind);
    }
    let Some((subtype, _)) = rest.strip_prefix(br#","subtype":""#).and_then(name) else { return true };
    READ_SYSTEM.iter().any(|known| known.as_bytes() == subtype)
}

/// A string that is all there and has no escapes, and what follows it.
fn name(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    (text[end] == b'"').then(|| (&text[..end], &text[end + 1..]))
}

/// A line of the process of one conversation.
#[derive(Debug)]
pub(super) enum Heard {
    /// One that the adapter acts upon.
    Line(Line),
    /// One of another conversation (R-EVT-6).
    Foreign,
    /// One of a kind that the adapter does not act upon.
    Unknown,
}

/// Reads a line of the process of this conversation.
///
/// # Errors
/// When it is no line, or one of a known kind that does not fit it.
pub(super) fn hear(line: &[u8], session: &str) -> Result<Heard, serde_json::Error> {
    let envelope: Envelope<'_> = serde_json::from_slice(line)?;
    if envelope.is_foreign(session) {
        return Ok(Heard::Foreign);
    }
    Ok(known(&envelope, line)?.map_or(Heard::Unknown, Heard::Line))
}

/// Reads a line. `None` when it is of a kind that the adapter does not act upon.
///
/// # Errors
/// When it is no line, or one of a known kind that does not fit it.
pub(super) fn read(line: &[u8]) -> Result<Option<Line>, serde_json::Error> {
    known(&serde_json::from_slice(line)?, line)
}

fn known(envelope: &Envelope<'_>, line: &[u8]) -> Result<Option<Line>, serde_json::Error> {
    Ok(Some(match (&*envelope.kind, envelope.subtype.as_deref()) {
        ("stream_event", _) => match message::stream(envelope)? {
            Some(stream) => Line::Stream(stream),
            None => return Ok(None),
        },
        ("assistant", _) => Line::Assistant(message::assistant(envelope)?),
        ("user", _) => Line::User(message::user(envelope)?),
        ("result", _) => Line::Result(serde_json::from_slice(line)?),
        ("control_request", _) => Line::Request(request(envelope)?),
        ("control_response", _) => Line::Response(typed(envelope.response)?),
        ("control_cancel_request", _) => Line::Withdrawn,
        ("command_lifecycle", _) => Line::Lifecycle(serde_json::from_slice(line)?),
        ("tool_progress", _) => Line::Heartbeat,
        ("system", Some("init")) => Line::Init(serde_json::from_slice(line)?),
        ("system", Some("session_state_changed")) => Line::State(match envelope.state.map(RawValue::get) {
            Some("\"idle\"") => SessionState::Idle,
            Some("\"running\"") => SessionState::Running,
            Some("\"requires_action\"") => SessionState::RequiresAction,
            _ => SessionState::Other,
        }),
        ("system", Some("api_retry")) => Line::Retry(serde_json::from_slice(line)?),
        ("system", Some("compact_boundary")) => Line::Compacted,
        ("system", Some("permission_denied")) => Line::Denied(serde_json::from_slice(line)?),
        _ => return Ok(None),
    }))
}

/// A member of the envelope, read as what it must be.
fn typed<T: for<'de> Deserialize<'de>>(member: Option<&RawValue>) -> Result<T, serde_json::Error> {
    serde_json::from_str(member.map_or("null", RawValue::get))
}

fn request(envelope: &Envelope<'_>) -> Result<ControlRequest, serde_json::Error> {
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        subtype: Cow<'a, str>,
        #[serde(borrow)]
        server_name: Option<Cow<'a, str>>,
        #[serde(borrow)]
        message: Option<&'a RawValue>,
        input: Option<HookInput>,
    }
    #[derive(Deserialize)]
    struct HookInput {
        #[serde(default)]
        tool_name: String,
    }
    #[derive(Deserialize)]
    struct Rpc<'a> {
        #[serde(borrow)]
        method: Option<Cow<'a, str>>,
        id: Option<Box<RawValue>>,
        #[serde(borrow)]
        params: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Cancelled {
        request_id: Box<RawValue>,
    }
    let request_id = typed(envelope.request_id)?;
    let text = envelope.request.map_or("null", RawValue::get);
    let Ok(request) = serde_json::from_str::<Request<'_>>(text) else {
        return Ok(ControlRequest { request_id, kind: Asked::Other(String::new()) });
    };
    let kind = match &*request.subtype {
        "mcp_message" => {
            let Rpc { method, id, params } = serde_json::from_str(request.message.map_or("null", RawValue::get))?;
            let content = match method.as_deref() {
                // What does not fit is refused like a method that is not known: everything is answered.
                Some("tools/call") => typed(params).map_or(McpContent::Other, McpContent::Call),
                Some("notifications/cancelled") => typed::<Cancelled>(params)
                    .map_or(McpContent::Other, |cancelled| McpContent::Cancelled(cancelled.request_id)),
                _ => McpContent::Other,
            };
            Asked::Mcp(McpMessage { server: request.server_name.unwrap_or_default().into_owned(), id, content })
        }
        "can_use_tool" => Asked::Permission,
        "hook_callback" => Asked::Hook(request.input.map(|input| input.tool_name).unwrap_or_default()),
        "elicitation" => Asked::Elicitation,
        other => Asked::Other(other.to_owned()),
    };
    Ok(ControlRequest { request_id, kind })
}

#[cfg(test)]
mod tests;
