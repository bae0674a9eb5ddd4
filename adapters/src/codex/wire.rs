//! Native messages of `codex app-server`, as far as the adapter reads and writes them. Members and values that nobody here knows are skipped;
//! the tag of an item is read before the item.

use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::config::NoEnvironments;
use crate::harness::{Image, InputPart};

pub(super) mod calls;
pub(super) mod servers;
mod steering;
mod stored;
pub(super) mod web;

pub(super) use steering::{TurnSteer, UserItem};
pub(super) use stored::{StoredError, StoredTokens};

/// A notification that the adapter acts upon.
#[derive(Debug)]
pub(super) enum Notification {
    /// `turn/started`.
    TurnStarted(TurnNotice),
    /// `turn/completed`.
    TurnCompleted(TurnNotice),
    /// `item/started`.
    ItemStarted(ItemNotice),
    /// `item/completed`.
    ItemCompleted(ItemNotice),
    /// `rawResponseItem/completed`, where it is of use.
    Raw(calls::RawNotice),
    /// `item/agentMessage/delta`.
    MessageDelta(Delta),
    /// `item/reasoning/summaryTextDelta`.
    SummaryDelta(Delta),
    /// `item/reasoning/textDelta`.
    ReasoningDelta(Delta),
    /// `item/commandExecution/outputDelta`.
    CommandOutput(Delta),
    /// `error`.
    Error(ErrorNotice),
    /// `thread/tokenUsage/updated`.
    TokenUsage(UsageNotice),
    /// `mcpServer/startupStatus/updated`.
    Server(servers::StatusNotice),
    /// `warning`.
    Warning(WarningNotice),
}

/// A notification about a turn.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnNotice {
    pub(super) thread_id: String,
    pub(super) turn: Turn,
}

/// A turn, at its start or end.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Turn {
    pub(super) id: String,
    #[serde(default)]
    pub(super) status: String,
    pub(super) error: Option<TurnError>,
    /// Seconds since 1970.
    pub(super) completed_at: Option<u64>,
}

/// What went wrong in a turn.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TurnError {
    #[serde(default)]
    pub(super) message: String,
    #[serde(rename = "codexErrorInfo")]
    pub(super) info: Option<Box<RawValue>>,
    #[serde(rename = "additionalDetails")]
    pub(super) details: Option<String>,
}

/// A notification about an item.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ItemNotice {
    pub(super) thread_id: String,
    pub(super) turn_id: String,
    pub(super) item: Box<RawValue>,
}

/// More text of an item.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Delta {
    pub(super) thread_id: String,
    pub(super) turn_id: String,
    pub(super) item_id: String,
    pub(super) delta: String,
    #[serde(default, alias = "contentIndex")]
    pub(super) summary_index: u32,
}

/// `error`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ErrorNotice {
    pub(super) thread_id: String,
    pub(super) turn_id: String,
    #[serde(default)]
    pub(super) will_retry: bool,
    pub(super) error: TurnError,
}

/// `thread/tokenUsage/updated`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsageNotice {
    pub(super) thread_id: String,
    pub(super) turn_id: String,
    pub(super) token_usage: TokenUsage,
}

/// Tokens of the thread.
#[derive(Debug, Deserialize)]
pub(super) struct TokenUsage {
    /// Since the thread began.
    pub(super) total: Tokens,
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tokens {
    pub(super) total_tokens: Option<u64>,
    pub(super) input_tokens: Option<u64>,
    pub(super) cached_input_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
    pub(super) reasoning_output_tokens: Option<u64>,
}

/// `warning`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WarningNotice {
    pub(super) thread_id: Option<String>,
    #[serde(default)]
    pub(super) message: String,
}

/// Methods of the notifications that the adapter acts upon.
const READ: [&str; 13] = [
    "turn/started",
    "turn/completed",
    "item/started",
    "item/completed",
    calls::RAW_ITEM,
    "item/agentMessage/delta",
    "item/reasoning/summaryTextDelta",
    "item/reasoning/textDelta",
    "item/commandExecution/outputDelta",
    "error",
    "thread/tokenUsage/updated",
    servers::STATUS,
    "warning",
];

/// Whether the adapter reads a message that begins so. Only what is surely none of its messages is not: a notification, which Codex begins with its
/// method and goes on with its parameters, where a request has its id in between.
pub(super) fn is_read(beginning: &[u8]) -> bool {
    let Some(rest) = beginning.strip_prefix(br#"{"method":""#) else { return true };
    let Some(end) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) else { return true };
    let (method, rest) = rest.split_at(end);
    let Some(params) = rest.strip_prefix(br#"","params":"#) else { return true };
    if method == calls::RAW_ITEM.as_bytes() {
        return calls::is_of_use(params);
    }
    READ.iter().any(|known| known.as_bytes() == method)
}

impl Notification {
    /// Reads a notification. `None` when the method is none that the adapter acts upon.
    ///
    /// # Errors
    /// When the parameters of a known method do not fit.
    pub(super) fn read(method: &str, params: Option<&RawValue>) -> Result<Option<Self>, serde_json::Error> {
        let text = params.map_or("{}", RawValue::get);
        Ok(Some(match method {
            "turn/started" => Self::TurnStarted(serde_json::from_str(text)?),
            "turn/completed" => Self::TurnCompleted(serde_json::from_str(text)?),
            "item/started" => Self::ItemStarted(serde_json::from_str(text)?),
            "item/completed" => Self::ItemCompleted(serde_json::from_str(text)?),
            calls::RAW_ITEM if !calls::is_of_use(text.as_bytes()) => return Ok(None),
            calls::RAW_ITEM => Self::Raw(serde_json::from_str(text)?),
            "item/agentMessage/delta" => Self::MessageDelta(serde_json::from_str(text)?),
            "item/reasoning/summaryTextDelta" => Self::SummaryDelta(serde_json::from_str(text)?),
            "item/reasoning/textDelta" => Self::ReasoningDelta(serde_json::from_str(text)?),
            "item/commandExecution/outputDelta" => Self::CommandOutput(serde_json::from_str(text)?),
            "error" => Self::Error(serde_json::from_str(text)?),
            "thread/tokenUsage/updated" => Self::TokenUsage(serde_json::from_str(text)?),
            servers::STATUS => Self::Server(serde_json::from_str(text)?),
            "warning" => Self::Warning(serde_json::from_str(text)?),
            _ => return Ok(None),
        }))
    }

    /// The thread and the turn that it belongs to, where it names them.
    pub(super) fn place(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::TurnStarted(of) | Self::TurnCompleted(of) => (Some(&of.thread_id), Some(&of.turn.id)),
            Self::ItemStarted(of) | Self::ItemCompleted(of) => (Some(&of.thread_id), Some(&of.turn_id)),
            Self::Raw(of) => (Some(&of.thread_id), Some(&of.turn_id)),
            Self::MessageDelta(of) | Self::SummaryDelta(of) | Self::ReasoningDelta(of) | Self::CommandOutput(of) => {
                (Some(&of.thread_id), Some(&of.turn_id))
            }
            Self::Error(of) => (Some(&of.thread_id), Some(&of.turn_id)),
            Self::TokenUsage(of) => (Some(&of.thread_id), Some(&of.turn_id)),
            Self::Server(of) => (of.thread_id.as_deref(), None),
            Self::Warning(of) => (of.thread_id.as_deref(), None),
        }
    }
}

/// An item of a turn.
#[derive(Debug)]
pub(super) enum Item {
    /// What the user said: ours.
    UserMessage(UserItem),
    /// `agentMessage`.
    Message(MessageItem),
    /// `reasoning`.
    Reasoning(ReasoningItem),
    /// `commandExecution`.
    Command(CommandItem),
    /// `fileChange`.
    FileChange(FileChangeItem),
    /// `webSearch`.
    WebSearch(web::SearchItem),
    /// `mcpToolCall`.
    Mcp(servers::CallItem),
    /// `dynamicToolCall`.
    Call(calls::CallItem),
    /// Any other.
    Other(OtherItem),
}

/// `agentMessage`.
#[derive(Debug, Deserialize)]
pub(super) struct MessageItem {
    pub(super) id: String,
    #[serde(default)]
    pub(super) text: String,
    pub(super) phase: Option<String>,
}

/// `reasoning`.
#[derive(Debug, Deserialize)]
pub(super) struct ReasoningItem {
    pub(super) id: String,
    #[serde(default)]
    pub(super) summary: Vec<String>,
    #[serde(default)]
    pub(super) content: Vec<String>,
}

/// `commandExecution`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommandItem {
    pub(super) id: String,
    #[serde(default)]
    pub(super) command: String,
    #[serde(default)]
    pub(super) cwd: String,
    #[serde(default)]
    pub(super) status: String,
    pub(super) aggregated_output: Option<String>,
    pub(super) exit_code: Option<i32>,
    pub(super) duration_ms: Option<u64>,
}

/// `fileChange`.
#[derive(Debug, Deserialize)]
pub(super) struct FileChangeItem {
    pub(super) id: String,
    #[serde(default)]
    pub(super) changes: Vec<Change>,
    #[serde(default)]
    pub(super) status: String,
}

/// A change to a file.
#[derive(Debug, Deserialize)]
pub(super) struct Change {
    #[serde(default)]
    pub(super) path: String,
    #[serde(default)]
    pub(super) kind: ChangeKind,
    #[serde(default)]
    pub(super) diff: String,
}

/// The kind of a change.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ChangeKind {
    #[serde(default, rename = "type")]
    pub(super) kind: String,
    pub(super) move_path: Option<String>,
}

/// An item that has no type of its own here.
#[derive(Debug, Deserialize)]
pub(super) struct OtherItem {
    #[serde(default)]
    pub(super) id: String,
    #[serde(default, rename = "type")]
    pub(super) kind: String,
    pub(super) status: Option<String>,
}

impl Item {
    /// Reads an item, its tag first.
    ///
    /// # Errors
    /// When it has no tag, or does not fit it.
    pub(super) fn read(raw: &RawValue) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Tag {
            #[serde(rename = "type")]
            kind: String,
        }
        let tag: Tag = serde_json::from_str(raw.get())?;
        Ok(match tag.kind.as_str() {
            "userMessage" => Self::UserMessage(serde_json::from_str(raw.get())?),
            "agentMessage" => Self::Message(serde_json::from_str(raw.get())?),
            "reasoning" => Self::Reasoning(serde_json::from_str(raw.get())?),
            "commandExecution" => Self::Command(serde_json::from_str(raw.get())?),
            "fileChange" => Self::FileChange(serde_json::from_str(raw.get())?),
            "webSearch" => Self::WebSearch(serde_json::from_str(raw.get())?),
            "mcpToolCall" => Self::Mcp(serde_json::from_str(raw.get())?),
            "dynamicToolCall" => Self::Call(serde_json::from_str(raw.get())?),
            _ => Self::Other(serde_json::from_str(raw.get())?),
        })
    }
}

/// The answer to `initialize`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialized {
    #[serde(default)]
    pub(super) user_agent: String,
}

/// The answer to `thread/start`: what holds, so that it can be compared with what was asked for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThreadStarted {
    pub(super) thread: ThreadIdentity,
    pub(super) model: Option<String>,
    pub(super) model_provider: Option<String>,
    pub(super) cwd: Option<std::path::PathBuf>,
    pub(super) approval_policy: Option<Box<RawValue>>,
    pub(super) sandbox: Option<SandboxState>,
}

/// A thread, as far as it is needed.
#[derive(Debug, Deserialize)]
pub(super) struct ThreadIdentity {
    pub(super) id: String,
}

/// The sandbox of a thread.
#[derive(Debug, Deserialize)]
pub(super) struct SandboxState {
    #[serde(default, rename = "type")]
    pub(super) kind: String,
}

/// The answer to `turn/start`. The id may be missing: `turn/started` has it as well (B-018).
#[derive(Debug, Default, Deserialize)]
pub(super) struct TurnAccepted {
    pub(super) turn: Option<TurnIdentity>,
}

/// A turn, as far as it is needed.
#[derive(Debug, Deserialize)]
pub(super) struct TurnIdentity {
    pub(super) id: Option<String>,
}

/// Parameters of `turn/start`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnStart<'a> {
    pub(super) thread_id: &'a str,
    pub(super) client_user_message_id: &'a str,
    pub(super) input: Vec<UserInput<'a>>,
    /// Holds for this turn alone, so every turn has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_schema: Option<&'a RawValue>,
    /// None at all, said with each Turn: a resumed thread has forgotten it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) environments: Option<NoEnvironments>,
}

/// A part of the input.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(super) enum UserInput<'a> {
    Text { text: &'a str },
    Image { url: String },
}

impl<'a> UserInput<'a> {
    pub(super) fn of(part: &'a InputPart) -> Self {
        match part {
            InputPart::Text(text) => Self::Text { text },
            InputPart::Image(image) => Self::Image { url: data_url(image) },
        }
    }
}

/// An image as a data URL, the only form in which Codex takes one.
pub(super) fn data_url(image: &Image) -> String {
    let mut url = format!("data:{};base64,", image.media_type.name());
    base64::prelude::BASE64_STANDARD.encode_string(&image.data, &mut url);
    url
}

/// Parameters of `turn/interrupt`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnInterrupt<'a> {
    pub(super) thread_id: &'a str,
    pub(super) turn_id: &'a str,
}

/// Parameters of `thread/backgroundTerminals/clean`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThreadRef<'a> {
    pub(super) thread_id: &'a str,
}

/// Parameters of `thread/turns/list` that ask for the newest turn.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewestTurn<'a> {
    pub(super) thread_id: &'a str,
    pub(super) limit: u32,
    pub(super) items_view: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_notifications_that_nobody_reads_are_passed_over() {
        for (beginning, want) in [
            (r#"{"method":"turn/diff/updated","params":{"threadId":"t"#, false),
            (r#"{"method":"turn/plan/updated","params":{"#, false),
            (r#"{"method":"rawResponseItem/completed","params":{"#, true),
            (r#"{"method":"rawResponseItem/completed","params":{"turnId":"u","item":{"type":"message","id":""#, false),
            (
                r#"{"method":"rawResponseItem/completed","params":{"turnId":"u","item":{"type":"function_call","id""#,
                true,
            ),
            (
                r#"{"method":"rawResponseItem/completed","params":{"item":{"type":"function_call_output","output":"t"#,
                false,
            ),
            (
                r#"{"method":"rawResponseItem/completed","params":{"item":{"type":"function_call_output","output":[{"#,
                true,
            ),
            (r#"{"method":"item/completed","params":{"item""#, true),
            (r#"{"method":"applyPatchApproval","id":3,"params":{"#, true),
            (r#"{"id":3,"method":"turn/diff/updated","params":{"#, true),
            (r#"{"id":7,"result":{"thread":{"#, true),
            (r#"{ "method":"x","params":{"#, true),
            (r#"{"method":"turn\/diff","params":{"#, true),
            (r#"{"method":"xxxxxxxxxxxxxxx"#, true),
            ("", true),
        ] {
            assert_eq!(is_read(beginning.as_bytes()), want, "{beginning}");
        }
        for method in READ {
            let text = format!(r#"{{"method":"{method}","params":{{"#);
            assert!(is_read(text.as_bytes()));
            // A method of the list is one that `read` knows: it refuses these parameters or takes them, and never says that it is unknown.
            assert!(!matches!(Notification::read(method, None), Ok(None)), "{method}");
        }
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.into()).unwrap()
    }

    fn read(method: &str, params: &str) -> Result<Option<Notification>, serde_json::Error> {
        Notification::read(method, Some(&raw(params)))
    }

    #[test]
    fn unknown_members_and_values_are_skipped() {
        let Some(Notification::TurnCompleted(notice)) = read(
            "turn/completed",
            r#"{"threadId":"T","turn":{"id":"U","status":"paused","error":null,"items":[{"type":"hologram"}],"new":{"a":1},"completedAt":17},"z":[]}"#,
        )
        .unwrap() else {
            panic!("not a turn's end")
        };
        assert_eq!((notice.turn.status.as_str(), notice.turn.completed_at), ("paused", Some(17)));
        assert!(read("turn/teleported", "{}").unwrap().is_none());
        assert!(Notification::read("turn/teleported", None).unwrap().is_none());
    }

    #[test]
    fn parameters_that_do_not_fit_are_an_error_of_that_line_only() {
        assert!(read("turn/completed", r#"{"threadId":"T"}"#).is_err());
        assert!(read("item/agentMessage/delta", r#"{"threadId":"T","turnId":"U","itemId":"i","delta":7}"#).is_err());
        assert!(Notification::read("item/started", None).is_err());
    }

    #[test]
    fn an_item_of_an_unknown_type_is_an_item() {
        let Item::Other(item) = Item::read(&raw(r#"{"type":"hologram","id":"h","status":"paused"}"#)).unwrap() else {
            panic!("known")
        };
        assert_eq!((item.kind.as_str(), item.id.as_str(), item.status.as_deref()), ("hologram", "h", Some("paused")));
        assert!(Item::read(&raw(r#"{"id":"h"}"#)).is_err());
        assert!(Item::read(&raw(r#"{"type":"agentMessage"}"#)).is_err());
    }

    #[test]
    fn arguments_keep_their_text() {
        let given = r#"{"threadId":"T","turnId":"U","callId":"c","namespace":null,"tool":"f","arguments":{"z":1.0, "a":12345678901234567890123,"u":"\u00e9"}}"#;
        let params: calls::CallParams = serde_json::from_str(given).unwrap();
        assert_eq!(params.arguments.unwrap().get(), r#"{"z":1.0, "a":12345678901234567890123,"u":"\u00e9"}"#);
    }

    #[test]
    fn both_kinds_of_reasoning_have_their_index() {
        let place = r#""threadId":"T","turnId":"U","itemId":"r","delta":"d""#;
        let Some(Notification::SummaryDelta(summary)) =
            read("item/reasoning/summaryTextDelta", &format!("{{{place},\"summaryIndex\":2}}")).unwrap()
        else {
            panic!("no summary")
        };
        let Some(Notification::ReasoningDelta(raw)) =
            read("item/reasoning/textDelta", &format!("{{{place},\"contentIndex\":3}}")).unwrap()
        else {
            panic!("no reasoning")
        };
        assert_eq!((summary.summary_index, raw.summary_index), (2, 3));
    }

    #[test]
    fn an_answer_to_a_start_may_lack_the_id() {
        let id = |text: &str| serde_json::from_str::<TurnAccepted>(text).unwrap().turn.and_then(|turn| turn.id);
        assert_eq!(id(r#"{"turn":{"id":"U","items":[]}}"#).as_deref(), Some("U"));
        assert_eq!(id(r#"{"turn":{}}"#), None);
        assert_eq!(id("{}"), None);
    }
}
