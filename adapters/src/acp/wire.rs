//! The messages of the Agent Client Protocol, version 1, as they are read and written: tolerant, with what is unknown kept apart (R-CAP-5).

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    harness::InputPart,
    native::rpc::{self, EncodeError},
};

/// JSON-RPC: there is no such method.
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC: parameters are wrong.
pub(super) const INVALID_PARAMS: i64 = -32602;
/// ACP: a login is asked for.
pub(super) const AUTH_REQUIRED: i64 = -32000;
/// ACP: there is no such thing, as a conversation.
pub(super) const NOT_FOUND: i64 = -32002;
/// The version of the protocol.
const VERSION: u64 = 1;
/// In `agentCapabilities`: servers over HTTP, which functions are too.
pub(super) const MCP_HTTP: &str = "/mcpCapabilities/http";

/// A request with one of our ids. ACP asks for the member `jsonrpc`.
pub(super) fn request(id: u64, method: &str, params: &(impl Serialize + ?Sized)) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Request<'a, P: ?Sized> {
        jsonrpc: &'static str,
        id: u64,
        method: &'a str,
        params: &'a P,
    }
    rpc::line(&Request { jsonrpc: "2.0", id, method, params })
}

/// A notification.
pub(super) fn notification(method: &str, params: &(impl Serialize + ?Sized)) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Notification<'a, P: ?Sized> {
        jsonrpc: &'static str,
        method: &'a str,
        params: &'a P,
    }
    rpc::line(&Notification { jsonrpc: "2.0", method, params })
}

/// The answer to a request of the agent.
fn answer(id: &RawValue, result: &impl Serialize) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Answer<'a, R> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        result: &'a R,
    }
    rpc::line(&Answer { jsonrpc: "2.0", id, result })
}

/// A deliberate answer for each kind of request (R-PLC-1): what a person would be asked for is declined in the words of that method, an error only where there is none.
/// An offered permission is never picked by what it is called: questions may come in the form of permissions.
pub(super) fn decline(id: &RawValue, method: &str) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Outcome {
        outcome: Cancelled,
    }
    #[derive(Serialize)]
    struct Cancelled {
        outcome: &'static str,
    }
    #[derive(Serialize)]
    struct Action {
        action: &'static str,
    }
    #[derive(Serialize)]
    struct Refusal<'a> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        error: Error,
    }
    #[derive(Serialize)]
    struct Error {
        code: i64,
        message: &'static str,
    }
    match method {
        "session/request_permission" => answer(id, &Outcome { outcome: Cancelled { outcome: "cancelled" } }),
        "elicitation/create" => answer(id, &Action { action: "decline" }),
        _ => {
            let error = Error { code: METHOD_NOT_FOUND, message: "not supported" };
            rpc::line(&Refusal { jsonrpc: "2.0", id, error })
        }
    }
}

/// The answer to `initialize`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialized {
    protocol_version: u64,
    #[serde(default)]
    agent_capabilities: serde_json::Value,
    #[serde(default)]
    agent_info: Option<AgentInfo>,
}

impl Initialized {
    /// Checks that it speaks the bridge's version.
    ///
    /// # Errors
    /// What it speaks, for a person.
    pub(super) fn fits(&self) -> Result<(), String> {
        match self.protocol_version {
            VERSION => Ok(()),
            other => Err(format!("it speaks version {other} of ACP, and the bridge version {VERSION}")),
        }
    }

    /// Whether it says that it can do what stands there in its capabilities: by `true`, or by an object, which may be empty.
    pub(super) fn can(&self, pointer: &str) -> bool {
        let told = self.agent_capabilities.pointer(pointer);
        told.is_some_and(|told| !matches!(told, serde_json::Value::Null | serde_json::Value::Bool(false)))
    }

    /// The version that it says it has.
    pub(super) fn version(&self) -> Option<&str> {
        self.agent_info.as_ref()?.version.as_deref()
    }
}

/// The parameters of `initialize`. The bridge has nothing of what a client may have: an agent's tools are its own, and nobody is there to be asked (R-PLC-1).
pub(super) fn initialize() -> impl Serialize {
    serde_json::json!({
        "protocolVersion": VERSION,
        "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false},
        "clientInfo": {"name": "runtime-bridge", "version": env!("CARGO_PKG_VERSION")},
    })
}

/// What an agent says of itself.
#[derive(Debug, Deserialize)]
struct AgentInfo {
    #[serde(default)]
    version: Option<String>,
}

/// A reference to a conversation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionRef<'a> {
    pub(super) session_id: &'a str,
}

/// `session/new`, `session/load` and `session/resume`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Open<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session_id: Option<&'a str>,
    pub(super) cwd: &'a std::path::Path,
    pub(super) mcp_servers: &'a [McpEntry],
}

/// An MCP server, with every member: an agent may drop what lacks one without a word.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum McpEntry {
    Http {
        #[serde(rename = "type")]
        kind: Http,
        name: String,
        url: String,
        headers: Vec<Pair>,
    },
    /// A process, which is told by having no type.
    Stdio { name: String, command: String, args: [&'static str; 1], env: Vec<Pair> },
}

/// The type of a server over HTTP.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Http {
    Http,
}

impl std::fmt::Debug for McpEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A header may be a bearer, and a variable anything.
        let (Self::Http { name, .. } | Self::Stdio { name, .. }) = self;
        f.debug_struct("McpEntry").field("name", name).finish_non_exhaustive()
    }
}

/// A header of requests to an MCP server, or a variable of its process.
#[derive(Serialize)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) value: String,
}

/// The answer to one of these.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Opened {
    pub(super) session_id: Option<String>,
    pub(super) config_options: Vec<ConfigOption>,
}

/// An option of a conversation.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConfigOption {
    pub(super) id: String,
    #[serde(default)]
    pub(super) current_value: Option<serde_json::Value>,
}

/// `session/set_config_option`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SetOption<'a> {
    pub(super) session_id: &'a str,
    pub(super) config_id: &'a str,
    pub(super) value: &'a str,
}

/// `session/prompt`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Prompt<'a> {
    pub(super) session_id: &'a str,
    pub(super) prompt: Vec<Text<'a>>,
}

/// A block of text.
#[derive(Debug, Serialize)]
pub(super) struct Text<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) text: Cow<'a, str>,
}

impl<'a> Text<'a> {
    pub(super) fn of(text: impl Into<Cow<'a, str>>) -> Self {
        Self { kind: "text", text: text.into() }
    }
}

/// The texts of an input, in order. Images are none of an agent that declares none.
pub(super) fn texts(parts: &[InputPart]) -> impl Iterator<Item = &str> {
    parts.iter().filter_map(|part| match part {
        InputPart::Text(text) => Some(&**text),
        InputPart::Image(_) => None,
    })
}

/// Adds input to a prompt that runs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SteerParams<'a> {
    pub(super) session_id: &'a str,
    pub(super) text: &'a str,
    pub(super) client_request_id: &'a str,
}

/// The receipt of that.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Receipt {
    pub(super) turn_id: String,
}

/// The answer to a prompt.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Prompted<'a> {
    #[serde(borrow)]
    pub(super) stop_reason: Cow<'a, str>,
}

/// `session/update`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Updated<'a> {
    #[serde(borrow)]
    pub(super) session_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) update: &'a RawValue,
}

/// What is told.
#[derive(Debug)]
pub(super) enum Update<'a> {
    Message(Chunk<'a>),
    Thought(Chunk<'a>),
    Tool(ToolCall<'a>),
    /// Of no Turn: commands, modes, options, how full the context is.
    Beside,
    Unknown,
}

impl<'a> Update<'a> {
    /// Reads an update; an error where one of a known kind does not fit.
    pub(super) fn read(raw: &'a RawValue) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Kind<'a> {
            #[serde(borrow)]
            session_update: Cow<'a, str>,
        }
        let kind: Kind<'_> = serde_json::from_str(raw.get())?;
        Ok(match &*kind.session_update {
            "agent_message_chunk" => Self::Message(serde_json::from_str(raw.get())?),
            "agent_thought_chunk" => Self::Thought(serde_json::from_str(raw.get())?),
            "tool_call" | "tool_call_update" => Self::Tool(serde_json::from_str(raw.get())?),
            "available_commands_update"
            | "current_mode_update"
            | "config_option_update"
            | "session_info_update"
            | "usage_update"
            | "user_message_chunk"
            | "plan"
            | "plan_update"
            | "plan_removed" => Self::Beside,
            _ => Self::Unknown,
        })
    }
}

/// A piece of a message or a thought.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) message_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) content: Block<'a>,
}

/// A block of content.
#[derive(Debug, Deserialize)]
pub(super) struct Block<'a> {
    #[serde(borrow, default)]
    pub(super) text: Option<Cow<'a, str>>,
}

/// `tool_call` and `tool_call_update`: what an agent says of a tool. Each part may come late, or never.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ToolCall<'a> {
    /// Names the tool's run within its conversation.
    #[serde(borrow)]
    pub(crate) tool_call_id: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(crate) title: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) status: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) raw_input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) raw_output: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) content: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    pub(crate) meta: Option<&'a RawValue>,
}

impl ToolCall<'_> {
    /// Whether nothing more comes of it, and whether it went well.
    pub(super) fn ended(&self) -> Option<bool> {
        match self.status.as_deref() {
            Some("completed") => Some(true),
            Some("failed") => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_told_by_true_or_by_an_object() {
        let told = r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"mcpCapabilities":{"http":false,"sse":null},
            "sessionCapabilities":{"resume":{}}},"agentInfo":{"name":"a","version":"1.2"}}"#;
        let told: Initialized = serde_json::from_str(told).unwrap();
        assert_eq!((told.fits(), told.version()), (Ok(()), Some("1.2")));
        for (pointer, want) in [
            ("/loadSession", true),
            ("/sessionCapabilities/resume", true),
            ("/sessionCapabilities/fork", false),
            (MCP_HTTP, false),
            ("/mcpCapabilities/sse", false),
        ] {
            assert_eq!(told.can(pointer), want, "{pointer}");
        }
        let other: Initialized = serde_json::from_str(r#"{"protocolVersion":2}"#).unwrap();
        assert!(other.fits().unwrap_err().contains("version 2") && other.version().is_none());
    }

    #[test]
    fn a_server_is_told_with_every_member() {
        let pair = |name: &str| Pair { name: name.into(), value: "v".into() };
        let http =
            McpEntry::Http { kind: Http::Http, name: "a".into(), url: "http://h".into(), headers: vec![pair("H")] };
        let stdio = McpEntry::Stdio { name: "b".into(), command: "/k".into(), args: ["--serve"], env: vec![pair("E")] };
        let want = concat!(
            r#"[{"type":"http","name":"a","url":"http://h","headers":[{"name":"H","value":"v"}]},"#,
            r#"{"name":"b","command":"/k","args":["--serve"],"env":[{"name":"E","value":"v"}]}]"#
        );
        assert_eq!(serde_json::to_string(&[&http, &stdio]).unwrap(), want);
        assert!(!format!("{http:?} {stdio:?}").contains("value"));
    }
}
