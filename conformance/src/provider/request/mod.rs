//! What the provider reads out of a request, in words that all APIs share: the tools on offer and the input in its
//! order. It looks only; the recorded body stays the text that came.

pub(super) mod chat;
pub(super) mod messages;
pub(super) mod responses;

use serde_json::Value;

use super::protocol::Protocol;

/// What stands before the name of a server: in the name of a tool itself, or in its namespace.
pub(super) const FOREIGN: &str = "mcp__";

/// One request, as far as an answer or a test depends on it.
#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    pub(super) protocol: Protocol,
    pub(super) model: String,
    /// Whether the answer is a stream.
    pub(super) streams: bool,
    /// Whether a stream ends with the token counts; only the Chat Completions API has to be asked for them.
    pub(super) counts: bool,
    /// The request lets the provider search the web, and does nothing else: one that Claude Code makes for its tool.
    pub(super) searches: bool,
    /// The texts that stand above the conversation.
    pub(super) instructions: Vec<String>,
    pub(super) tools: Vec<Tool>,
    /// Tools that are not offered yet, by name, for the model to search for.
    pub(super) announced: Vec<String>,
    pub(super) inputs: Vec<Input>,
    /// The schema that the answer is to fit.
    pub(super) schema: Option<Value>,
}

/// A tool on offer.
#[derive(Debug, Clone)]
pub(super) struct Tool {
    /// The name without what a Harness puts before it.
    pub(super) name: String,
    /// Where it comes from, when not from the application's functions or the Harness itself.
    pub(super) namespace: Option<String>,
    /// The name as the request has it.
    pub(super) wire: String,
    /// `function`, `custom`, or a hosted tool's name.
    pub(super) kind: String,
    pub(super) description: String,
    pub(super) parameters: Value,
    /// The model does not see it until it was searched for.
    pub(super) deferred: bool,
}

/// A part of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    /// A user's message.
    User(String),
    /// The output of a call: a text, or a list of parts; and whether the model is told that it failed.
    Output { call_id: String, content: Value, failed: bool },
    /// What else there is: the model's own items, and what a Harness writes by itself.
    Other,
}

/// The newest input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Newest {
    /// Outputs of tools, in order.
    Outputs(Vec<String>),
    /// A user's message.
    User(String),
    #[default]
    Nothing,
}

impl Request {
    /// Reads a body; one that is no JSON offers nothing and asks nothing.
    pub(super) fn parse(protocol: Protocol, body: &str) -> Self {
        match protocol {
            Protocol::Responses => Self::responses(body),
            Protocol::Messages => Self::messages(body),
            Protocol::ChatCompletions => Self::chat_completions(body),
        }
    }

    /// The tool of this name, or of `namespace.name`, or of the name in the request.
    pub(super) fn tool(&self, name: &str) -> Option<&Tool> {
        let tools = || self.tools.iter();
        // Only the Responses API has every character for a name.
        let plain =
            |character: char| if character.is_ascii_alphanumeric() || character == '-' { character } else { '_' };
        let plain: String = name.chars().map(plain).collect();
        let own = |tool: &&Tool| tool.namespace.is_none();
        tools()
            .find(|tool| tool.name == name && tool.namespace.is_none())
            .or_else(|| tools().find(|tool| tool.name == name || tool.wire == name))
            .or_else(|| {
                let (namespace, name) = name.rsplit_once('.')?;
                tools().find(|tool| tool.name == name && tool.server() == Some(namespace))
            })
            .or_else(|| tools().filter(own).find(|tool| self.protocol != Protocol::Responses && tool.name == plain))
    }

    /// Server and tool of `server.tool`, where the request offers none of this name: a Harness may hide tools of servers until they are searched
    /// for, and run them all the same.
    pub(super) fn hidden<'a>(&self, name: &'a str) -> Option<(&'a str, &'a str)> {
        if self.tool(name).is_some() { None } else { name.split_once('.') }
    }

    /// The same for a function.
    pub(super) fn function(&self, name: &str) -> Option<&Tool> {
        self.tool(name).filter(|tool| tool.kind == "function")
    }

    /// The shell tool, whatever its name and form.
    pub(super) fn shell(&self) -> Option<&Tool> {
        const NAMES: [&str; 6] = ["exec_command", "shell_command", "shell", "local_shell", "Bash", "bash"];
        NAMES.iter().find_map(|name| self.tools.iter().find(|tool| tool.name == *name || tool.kind == *name))
    }

    /// The newest input: a user's message, or the outputs behind the newest calls.
    pub(super) fn newest(&self) -> Newest {
        let mut outputs = Vec::new();
        for input in self.inputs.iter().rev() {
            match input {
                Input::Output { content, .. } => outputs.push(text_of(content)),
                _ if !outputs.is_empty() => break,
                Input::User(text) => return Newest::User(text.clone()),
                Input::Other => {}
            }
        }
        outputs.reverse();
        if outputs.is_empty() { Newest::Nothing } else { Newest::Outputs(outputs) }
    }
}

impl Tool {
    /// Where it comes from, without what a Harness puts before the name of a server.
    fn server(&self) -> Option<&str> {
        self.namespace.as_deref().map(|namespace| namespace.strip_prefix(FOREIGN).unwrap_or(namespace))
    }

    /// The name that tells it from all others.
    pub(super) fn full_name(&self) -> String {
        match self.server() {
            Some(namespace) => format!("{namespace}.{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// The text of a content or an output: a string, or a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().map(|part| part["text"].as_str().unwrap_or("[no text]")).collect::<Vec<_>>().join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
