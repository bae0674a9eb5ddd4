//! What an agent tells of a prompt → neutral reports. It knows which items are open and nothing of processes; calls are in [`super::functions`].
//!
//! ACP has no starts and ends of messages: a message ends where another one, a thought or a tool begins, and at the end of the prompt (R-EVT-2).

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    functions::{self, Calls, Ended},
    profile::{Agent, FUNCTIONS, McpResult, prefix},
    wire::{Chunk, ToolCall},
};
use crate::harness::{
    Configuration, FileEdit, FileEditKind, FunctionTool, McpCall, ReasoningText, Report, Tool, ToolEnd, ToolStatus,
};

/// The servers and functions of a Session by the names that the agent gives their tools.
#[derive(Debug)]
pub(super) struct Names {
    /// Functions, by their native names.
    functions: BTreeMap<String, String>,
    /// What the native names of the tools of a server begin with, and its label; the longest first.
    servers: Vec<(String, String)>,
}

/// What a native name stands for.
enum Named<'a> {
    Function(&'a str),
    Mcp(McpCall),
    Native,
}

impl Names {
    pub(super) fn of(agent: &dyn Agent, configuration: &Configuration) -> Self {
        let spellings = agent.profile().mcp_names;
        let of_function = |function: &FunctionTool| {
            spellings.iter().map(|name| (name(FUNCTIONS, &function.name), function.name.clone())).collect::<Vec<_>>()
        };
        let functions = configuration.functions.iter().flat_map(of_function).collect();
        let labels = configuration.mcp_servers.iter().map(|server| &*server.label).chain([FUNCTIONS]);
        let of_server =
            |label: &str| spellings.iter().map(|name| (prefix(*name, label), label.to_owned())).collect::<Vec<_>>();
        let mut servers: Vec<_> = labels.flat_map(of_server).collect();
        servers.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Self { functions, servers }
    }

    fn named(&self, native: &str) -> Named<'_> {
        if let Some(function) = self.functions.get(native) {
            return Named::Function(function);
        }
        let of = self.servers.iter().find_map(|(prefix, label)| Some((label, native.strip_prefix(&**prefix)?)));
        match of {
            Some((label, tool)) => {
                Named::Mcp(McpCall { server: label.clone(), tool: tool.to_owned(), ..McpCall::default() })
            }
            None => Named::Native,
        }
    }
}

/// The items of one Turn.
#[derive(Debug)]
pub(super) struct Items {
    agent: Arc<dyn Agent>,
    names: Arc<Names>,
    /// The text that is open.
    text: Option<Text>,
    /// Native ids of texts, with how often one was begun.
    ids: BTreeMap<String, u32>,
    tools: BTreeMap<String, Running>,
    /// There was something of the model, be it a thought.
    begun: bool,
    /// There was something that the model said or did.
    shown: bool,
}

/// A text that is open.
#[derive(Debug)]
struct Text {
    kind: Kind,
    /// The agent's id, where it has one.
    native: Option<String>,
    /// The item.
    id: String,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Thought,
}

/// The kind of tools that run a command.
const EXECUTE: &str = "execute";

/// A tool, as far as it was told.
#[derive(Debug, Default)]
struct Running {
    name: String,
    kind: String,
    arguments: Option<String>,
    /// It was not begun, by the agent's last word.
    pending: bool,
    edits: Vec<FileEdit>,
    reported: bool,
    ended: bool,
}

impl Items {
    pub(super) fn new(agent: Arc<dyn Agent>, names: Arc<Names>) -> Self {
        Self { agent, names, text: None, ids: BTreeMap::new(), tools: BTreeMap::new(), begun: false, shown: false }
    }

    /// The same, without any item.
    pub(super) fn begin(&mut self) {
        *self = Self::new(Arc::clone(&self.agent), Arc::clone(&self.names));
    }

    /// Whether nothing was said or done.
    pub(super) fn are_bare(&self) -> bool {
        !self.shown
    }

    /// Whether the model has begun: the prompt runs for certain.
    pub(super) fn are_begun(&self) -> bool {
        self.begun || self.shown
    }

    /// Something could not be read, and may have been a message.
    pub(super) fn unread(&mut self) {
        self.shown = true;
    }

    /// A function was called.
    pub(super) fn called(&mut self, out: &mut Vec<Report>) {
        self.shown = true;
        self.close_text(out);
    }

    /// Whether a tool has not ended, be it a call or one that was not told yet.
    pub(super) fn are_unended(&self) -> bool {
        self.tools.values().any(|tool| !tool.ended)
    }

    pub(super) fn message(&mut self, chunk: &Chunk<'_>, out: &mut Vec<Report>) {
        self.grows(Kind::Message, chunk, out);
    }

    pub(super) fn thought(&mut self, chunk: &Chunk<'_>, out: &mut Vec<Report>) {
        self.grows(Kind::Thought, chunk, out);
    }

    fn grows(&mut self, kind: Kind, chunk: &Chunk<'_>, out: &mut Vec<Report>) {
        let Some(text) = chunk.content.text.as_deref().filter(|text| !text.is_empty()) else { return };
        let native = chunk.message_id.as_deref();
        let goes_on = self.text.as_ref().is_some_and(|open| open.kind == kind && open.native.as_deref() == native);
        if !goes_on {
            self.close_text(out);
            let id = self.item_id(kind, native);
            out.push(match kind {
                Kind::Message => Report::MessageStarted { id: id.clone() },
                Kind::Thought => Report::ReasoningStarted { id: id.clone() },
            });
            self.text = Some(Text { kind, native: native.map(str::to_owned), id, text: String::new() });
        }
        self.begun = true;
        self.shown |= kind == Kind::Message;
        let Some(open) = &mut self.text else { return };
        open.text.push_str(text);
        let (id, text) = (open.id.clone(), text.to_owned());
        out.push(match kind {
            Kind::Message => Report::MessageDelta { id, text },
            Kind::Thought => Report::ReasoningDelta { id, kind: ReasoningText::Raw, index: 0, text },
        });
    }

    /// The id of an item: the agent's, and a number where it comes again behind its end, or where there is none.
    fn item_id(&mut self, kind: Kind, native: Option<&str>) -> String {
        let base = native.unwrap_or(match kind {
            Kind::Message => "message",
            Kind::Thought => "thought",
        });
        let times = self.ids.entry(base.to_owned()).or_default();
        *times += 1;
        match (native, *times) {
            (Some(_), 1) => base.to_owned(),
            (_, times) => format!("{base}#{times}"),
        }
    }

    /// What comes now is no part of the text that is open.
    fn close_text(&mut self, out: &mut Vec<Report>) {
        let Some(Text { kind, id, text, .. }) = self.text.take() else { return };
        out.push(match kind {
            Kind::Message => Report::MessageCompleted { id, text, phase: None },
            Kind::Thought => Report::ReasoningCompleted { id, summary: Vec::new(), raw: vec![text] },
        });
    }

    /// The prompt went well: what is open is whole.
    pub(super) fn end(&mut self, out: &mut Vec<Report>) {
        self.close_text(out);
    }

    /// `tool_call` or `tool_call_update`; `stopped` says that we have cancelled the Turn.
    pub(super) fn tool(&mut self, told: &ToolCall<'_>, calls: &mut Calls, stopped: bool, out: &mut Vec<Report>) {
        let reading = self.agent.profile().tools;
        let id = &*told.tool_call_id;
        let known = self.tools.get(id);
        if known.is_some_and(|tool| tool.ended) {
            return;
        }
        // A text with an id goes on beside a tool that was there before it; of one without nothing else tells where the next begins.
        if known.is_none() || self.text.as_ref().is_some_and(|text| text.native.is_none()) {
            self.close_text(out);
        }
        self.shown = true;
        let tool = self.tools.entry(id.to_owned()).or_default();
        if tool.name.is_empty()
            && let Some(name) = (reading.name)(told)
        {
            tool.name = name;
        }
        if let Some(kind) = &told.kind {
            tool.kind = kind.clone().into_owned();
        }
        if let Some(status) = &told.status {
            tool.pending = status == "pending";
        }
        // An empty object stands for arguments that are still on their way, where the tool is said to be pending with it. An update that brings it
        // without a status means it.
        let pending = told.status.as_deref() == Some("pending");
        let is_placeholder = |raw: &RawValue| raw.get() == "{}" && (pending || tool.arguments.is_some());
        if let Some(input) = told.raw_input.filter(|raw| !is_placeholder(raw)) {
            tool.arguments = Some(input.get().to_owned());
        }
        if let Some(content) = told.content {
            let edits = edits_of(content);
            if !edits.is_empty() {
                tool.edits = edits;
            }
        }
        tool.ended = told.ended().is_some();
        let result = || (reading.mcp_result)(told);
        let named = self.names.named(&tool.name);
        if let Named::Function(function) = named {
            calls.told(id, function, tool.arguments.as_deref());
            let Some(went_well) = told.ended() else { return };
            match calls.ended(id, went_well, result().as_ref(), output(told).as_deref(), stopped) {
                Ended::Call(reports) => out.extend(reports),
                Ended::NoCall => {
                    let call =
                        McpCall { server: FUNCTIONS.to_owned(), tool: function.to_owned(), ..McpCall::default() };
                    let shown = mcp_tool(call, tool.arguments.as_deref(), told, result());
                    out.push(Report::ToolStarted { id: id.to_owned(), tool: shown.clone() });
                    out.push(Report::ToolCompleted {
                        id: id.to_owned(),
                        end: end(functions::status(went_well, stopped), shown, told),
                    });
                }
            }
            return;
        }
        let ended = told.ended();
        let shown = match named {
            Named::Mcp(call) => {
                let result = ended.and_then(|_| result());
                mcp_tool(call, tool.arguments.as_deref(), told, result)
            }
            Named::Function(_) | Named::Native => native_tool(tool, reading.command),
        };
        // It is shown with its arguments, which may come later; of a command the first ones may lack its line.
        let is_command_to_be = tool.pending && tool.kind == EXECUTE && matches!(shown, Tool::Other { .. });
        let is_whole = ended.is_some() || (tool.arguments.is_some() && !is_command_to_be);
        if !tool.reported && is_whole {
            tool.reported = true;
            out.push(Report::ToolStarted { id: id.to_owned(), tool: shown.clone() });
        }
        if let Some(went_well) = ended {
            let failed = !went_well || (reading.mcp_result)(told).is_some_and(|result| result.is_error == Some(true));
            let status = match (failed, stopped) {
                // What ends behind our cancel was stopped by it (R-EVT-9).
                (_, true) => ToolStatus::Incomplete,
                (true, false) => ToolStatus::Failed,
                (false, false) => ToolStatus::Completed,
            };
            out.push(Report::ToolCompleted { id: id.to_owned(), end: end(status, shown, told) });
        }
    }
}

/// A call with what came of it. The name that the server gives the tool takes the place of the one that was read out of the native name (R-MCP-5).
fn mcp_tool(mut call: McpCall, arguments: Option<&str>, told: &ToolCall<'_>, result: Option<McpResult>) -> Tool {
    let failed = told.ended() == Some(false) && result.is_none();
    let error = if failed { output(told).unwrap_or_default() } else { String::new() };
    let result = result.map(|McpResult { json, tool, .. }| {
        call.tool = tool.unwrap_or_else(|| std::mem::take(&mut call.tool));
        json
    });
    Tool::Mcp(McpCall { arguments: arguments.unwrap_or_default().to_owned(), result, error, ..call })
}

fn native_tool(tool: &Running, command: fn(&str, &RawValue) -> Option<String>) -> Tool {
    #[derive(Deserialize)]
    struct Place {
        #[serde(default)]
        cwd: Option<String>,
    }
    if !tool.edits.is_empty() {
        return Tool::FileChange { edits: tool.edits.clone() };
    }
    let arguments = tool.arguments.as_deref().and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
    match arguments.and_then(|arguments| Some((command(&tool.name, arguments)?, arguments))) {
        Some((command, arguments)) => {
            let place = serde_json::from_str::<Place>(arguments.get()).ok().and_then(|place| place.cwd);
            Tool::Command { command, directory: place.unwrap_or_default() }
        }
        None => {
            let name = if tool.name.is_empty() { &tool.kind } else { &tool.name };
            Tool::Other { name: name.clone() }
        }
    }
}

fn end(status: ToolStatus, tool: Tool, told: &ToolCall<'_>) -> ToolEnd {
    let is_command = matches!(tool, Tool::Command { .. });
    let exit_code = told.raw_output.filter(|_| is_command && status != ToolStatus::Incomplete).and_then(exit_of);
    let output = if matches!(tool, Tool::Mcp(_)) { None } else { output(told) };
    // An agent may call a command completed that has failed.
    let failed = status == ToolStatus::Completed && exit_code.is_some_and(|code| code != 0);
    let status = if failed { ToolStatus::Failed } else { status };
    ToolEnd { status, tool, output, exit_code, duration: None }
}

/// The texts of the content, or else of the output.
fn output(told: &ToolCall<'_>) -> Option<String> {
    #[derive(Deserialize)]
    struct Entry<'a> {
        #[serde(borrow, default)]
        content: Option<Inner<'a>>,
    }
    #[derive(Deserialize)]
    struct Inner<'a> {
        #[serde(borrow, default)]
        text: Option<Cow<'a, str>>,
    }
    #[derive(Deserialize)]
    struct Output<'a> {
        #[serde(borrow, default)]
        output: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        error: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        content: Vec<Inner<'a>>,
    }
    let raw = told.raw_output.map(RawValue::get).unwrap_or_default();
    if let Ok(text) = serde_json::from_str::<String>(raw) {
        return Some(text);
    }
    if let Ok(Output { output, error, content }) = serde_json::from_str(raw) {
        if let Some(text) = output.or(error) {
            return Some(text.into_owned());
        }
        let texts: Vec<_> = content.into_iter().filter_map(|inner| inner.text).collect();
        if !texts.is_empty() {
            return Some(texts.join("\n"));
        }
    }
    let entries: Vec<Entry<'_>> = serde_json::from_str(told.content?.get()).ok()?;
    let texts: Vec<_> = entries.into_iter().filter_map(|entry| entry.content?.text).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// The exit code of a command, where an agent tells it in one of the two known places.
fn exit_of(raw: &RawValue) -> Option<i32> {
    #[derive(Deserialize)]
    struct Output {
        #[serde(default)]
        metadata: Option<Metadata>,
        #[serde(default)]
        details: Option<Details>,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default)]
        exit: Option<i32>,
    }
    #[derive(Deserialize)]
    struct Details {
        #[serde(default)]
        execution: Option<Execution>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Execution {
        #[serde(default)]
        exit_code: Option<i32>,
    }
    let Output { metadata, details } = serde_json::from_str(raw.get()).ok()?;
    let executed = details.and_then(|details| details.execution).and_then(|execution| execution.exit_code);
    executed.or(metadata.and_then(|metadata| metadata.exit))
}

/// Changes to files; the agent tells what stood there and what stands there, which goes on as it is.
fn edits_of(content: &RawValue) -> Vec<FileEdit> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Entry<'a> {
        #[serde(borrow, rename = "type", default)]
        kind: Cow<'a, str>,
        #[serde(default)]
        path: Option<String>,
        #[serde(borrow, default)]
        old_text: Option<&'a RawValue>,
    }
    let entries: Vec<&RawValue> = serde_json::from_str(content.get()).unwrap_or_default();
    let edit = |raw: &RawValue| {
        let entry: Entry<'_> = serde_json::from_str(raw.get()).ok()?;
        let path = entry.path.filter(|_| entry.kind == "diff")?;
        let is_new = entry.old_text.is_none_or(|old| old.get() == "null");
        let kind = if is_new { FileEditKind::Add } else { FileEditKind::Update };
        Some(FileEdit { path, kind, diff: raw.get().to_owned(), moved_to: None })
    };
    entries.into_iter().filter_map(edit).collect()
}

#[cfg(test)]
mod tests;
