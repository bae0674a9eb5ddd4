//! The provider's part of a script: one step answers one request.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// How one request for a response of the model is answered, in the words of the API that was asked. The first step of the
/// queue that matches is taken.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Only a request whose body holds this text takes the step. Absent: every request.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// Only a request whose newest input is this takes the step. Absent: every request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<After>,
    /// How many requests the step answers, 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// The step is never used up. Not beside `times`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub always: bool,
    /// Milliseconds to wait before each event: a slow stream.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub event_delay_ms: u64,
    /// After this many events the connection is closed without the end of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_after_events: Option<u64>,
    /// What is done, in order. Without an ending action the response completes.
    pub play: Vec<Action>,
}

/// What the newest input of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum After {
    /// A user's message.
    User,
    /// The outputs of calls.
    Outputs,
}

/// One action of a step.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A message (Responses) or a text block (Messages), streamed in chunks.
    Text(Text),
    /// A reasoning item, or a thinking block with its signature.
    Reasoning(Reasoning),
    /// One or several calls of functions or tools, each an item of its own, in order.
    Calls(Vec<Call>),
    /// A command for the shell tool that the request offers.
    Shell(Shell),
    /// A call of a custom (free text) tool.
    CustomCall(CustomCall),
    /// The text of a patch for the custom tool `apply_patch`.
    Patch(String),
    /// A web search: the provider's own, or a call of the Harness's tool where the request lets the provider search not.
    Search(Search),
    /// Any output item or content block, sent as it stands.
    Item(Box<RawValue>),
    /// Any server-sent event, its data as it stands.
    Event(Event),
    /// Bytes of the stream as they stand; counts as no event.
    Raw(String),
    /// What the provider does without a script.
    Mock,
    /// Sends the response headers now; else they go with the first event.
    Headers,
    /// Waits this many milliseconds.
    PauseMs(u64),
    /// Waits until the test opens the gate of this name. A gate stays open.
    Gate(String),
    /// Tells the test that this place was reached.
    Mark(String),
    /// Ending: the answer is whole.
    Complete(Complete),
    /// Ending: `response.failed`, or the event `error`.
    Failed(Failed),
    /// Ending: `response.incomplete`, or another reason to stop.
    Incomplete(Incomplete),
    /// Ending: an HTTP answer that is no stream. Only as the first action that sends anything.
    Http(Http),
    /// Ending: the body ends properly, without a terminal event.
    Close,
    /// Ending: the connection is closed without the end of the body; before any event, without an answer.
    Drop,
    /// Ending: the connection is reset.
    Reset,
    /// Ending: nothing more is sent and the connection is held. As the only action: no headers, ever.
    Hang,
}

/// A message, or a text block, which has neither phase nor id.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// The pieces, one delta each.
    pub chunks: Vec<String>,
    /// Milliseconds before each delta.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
    /// `commentary` or `final_answer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The item's id; a fresh one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The item is begun and streamed but never done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub open: bool,
}

/// A reasoning item, or a thinking block: one text, of the parts of the summary, else of the raw reasoning.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    /// The parts of the summary, streamed word by word.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub summary: Vec<String>,
    /// The raw reasoning, where the model shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
}

/// A call of a function or a tool.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The function's name.
    pub name: String,
    /// Its namespace; when absent, that in which the request declares the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The arguments, byte for byte, JSON or not.
    pub arguments: String,
    /// The call's id; a fresh one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// A shell command, for whichever shell tool the request offers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shell {
    /// The command line.
    pub command: String,
    /// After how many milliseconds the tool should answer although the command still runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yield_ms: Option<u64>,
    /// The call's id; a fresh one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// A call of a custom tool.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomCall {
    /// The tool's name.
    pub name: String,
    /// The input, free text.
    pub input: String,
    /// The call's id; a fresh one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// A web search.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// What is searched for.
    pub query: String,
    /// What was found, where the answer tells it: titles with addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<(String, String)>,
    /// The call's id, where it is a call; a fresh one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// A server-sent event.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The event's name; absent: only data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The data; each of its lines becomes one `data:` line.
    pub data: String,
}

/// The end of a whole answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Complete {
    /// The token counts; a fixed one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Leaves the counts out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_usage: bool,
}

/// Token counts of one response.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Input tokens, the cached ones included.
    pub input: u64,
    /// Cached input tokens.
    pub cached: u64,
    /// Output tokens, reasoning included.
    pub output: u64,
    /// Reasoning tokens.
    pub reasoning: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self { input: 100, cached: 10, output: 20, reasoning: 5 }
    }
}

/// The end of an answer that failed. The Messages API gets the type of error that means the same.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failed {
    /// The error's code, for example `server_error`.
    pub code: String,
    /// The error's text.
    #[serde(default)]
    pub message: String,
}

/// The end of an answer that is not whole.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incomplete {
    /// The reason. `max_output_tokens` and `content_filter` are `max_tokens` and `refusal` in the Messages API.
    pub reason: String,
}

/// An HTTP answer that is no stream.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// The status code.
    pub status: u16,
    /// Headers beside `content-type: application/json`, which they may replace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body as it stands. Absent: the API's error object, made of the next three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The error's code; the Messages API has none, and words the one that a Harness acts on, `context_length_exceeded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The error's type; in the Messages API that of the status when absent.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The error's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Reads a list of steps, as it stands in a script.
///
/// # Errors
/// When the text is no list of steps.
pub fn steps(text: &str) -> anyhow::Result<Vec<Step>> {
    let steps: Vec<Step> = serde_json::from_str(text).context("not a list of steps")?;
    for step in &steps {
        step.check()?;
    }
    Ok(steps)
}

impl Step {
    /// A step that plays these actions once.
    #[must_use]
    pub fn new(play: Vec<Action>) -> Self {
        Self { play, ..Self::default() }
    }

    /// A step that answers with one text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        let chunks = text.split_inclusive(' ').map(str::to_owned).collect();
        Self::new(vec![Action::Text(Text { chunks, phase: Some("final_answer".into()), ..Text::default() })])
    }

    /// A step that calls one function.
    #[must_use]
    pub fn call(name: &str, arguments: &str) -> Self {
        let call = Call { name: name.into(), arguments: arguments.into(), ..Call::default() };
        Self::new(vec![Action::Calls(vec![call])])
    }

    /// A step that runs one command.
    #[must_use]
    pub fn shell(command: &str, yield_ms: Option<u64>) -> Self {
        Self::new(vec![Action::Shell(Shell { command: command.into(), yield_ms, call_id: None })])
    }

    /// A step that answers with an HTTP error.
    #[must_use]
    pub fn http(status: u16, code: Option<&str>) -> Self {
        Self::new(vec![Action::Http(Http { status, code: code.map(Into::into), ..Http::default() })])
    }

    /// The same step for requests that hold this text.
    #[must_use]
    pub fn matching(self, text: &str) -> Self {
        Self { matches: Some(text.into()), ..self }
    }

    /// The same step for requests whose newest input is this.
    #[must_use]
    pub fn after(self, newest: After) -> Self {
        Self { after: Some(newest), ..self }
    }

    /// The same step for this many requests.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    /// The same step for every request from now on.
    #[must_use]
    pub fn always(self) -> Self {
        Self { always: true, times: None, ..self }
    }

    pub(crate) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!(self.always && self.times.is_some()), "times and always exclude each other");
        anyhow::ensure!(self.times != Some(0), "times is at least 1");
        let mut sent = false;
        for (index, action) in self.play.iter().enumerate() {
            if action.ends() {
                anyhow::ensure!(index + 1 == self.play.len(), "action {index} ends the answer, and more follows");
            }
            if let Action::Http(http) = action {
                anyhow::ensure!(!sent, "http stands behind something that was sent");
                anyhow::ensure!((200..=599).contains(&http.status), "{} is no HTTP status of an answer", http.status);
            }
            sent |= !matches!(action, Action::PauseMs(_) | Action::Gate(_) | Action::Mark(_));
        }
        Ok(())
    }
}

impl Action {
    /// Whether nothing can follow.
    #[must_use]
    pub(crate) fn ends(&self) -> bool {
        matches!(
            self,
            Self::Complete(_)
                | Self::Failed(_)
                | Self::Incomplete(_)
                | Self::Http(_)
                | Self::Close
                | Self::Drop
                | Self::Reset
                | Self::Hang
        )
    }
}

pub(super) fn is_false(value: &bool) -> bool {
    !*value
}

pub(super) fn is_zero(value: &u64) -> bool {
    *value == 0
}
