//! Declared MCP servers (R-MCP-1 to R-MCP-6). Claude Code connects to them, lists their tools and calls them; the bridge names the servers through its
//! input, looks what came of it, and says which tools may be used.
//!
//! - They are named by `mcp_set_servers`, which waits for the connections: nothing of them is in an argument or a file, and it puts no value of a
//!   variable in place of `${…}` in what starts a process.
//! - Which tools may be used is said by rules of permission: a tool that is denied is not offered either.
//! - A process is started by the keeper's program, which takes Claude Code's own variables away (see [`stdio_server`]).

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::wire::{SERVER, lossy_option};
use crate::{
    admission::refused,
    cleaner::Cleaner,
    harness::{Launch, McpCall, McpServer, McpTransport, NotAdmitted, Report, Tool, ToolEnd, ToolStatus},
    native::stdio_server,
};

/// What the names of all MCP tools begin with.
const PREFIX: &str = "mcp__";
/// What stands between the name of a server and that of its tool.
const BETWEEN: &str = "__";

/// LIMIT: tools that came later and are taken from the model. A server has a few; one that always has others makes neither the rules nor the Turn longer
/// than that.
const GROWN: usize = 1024;

/// The callback that decides about calls of MCP tools.
pub(super) const CALLBACK: &str = "mcp";

/// The name of a server's tool as Claude Code spells it: it takes a `_` for every UTF-16 unit that is not allowed in one.
pub(super) fn spelled(tool: &str) -> String {
    let allowed = |unit: u16| {
        let one = u8::try_from(unit).ok().map(char::from);
        one.filter(|one| one.is_ascii_alphanumeric() || matches!(one, '_' | '-')).unwrap_or('_')
    };
    tool.encode_utf16().map(allowed).collect()
}

/// The name of a tool as the model has it.
fn native_name(label: &str, tool: &str) -> String {
    format!("{PREFIX}{label}{BETWEEN}{}", spelled(tool))
}

/// Checks that the tools of no two servers could be taken for each other's, whatever they are called: Claude Code tells a tool's server by what its
/// name begins with.
pub(super) fn labels(servers: &[McpServer]) -> Result<(), NotAdmitted> {
    let mut sorted: Vec<_> = servers.iter().map(|server| server.label.as_str()).enumerate().collect();
    sorted.push((servers.len(), SERVER));
    sorted.sort_unstable_by_key(|(_, label)| *label);
    // In this order a label stands behind all that it begins with, and they are the only ones that are kept: however many labels there are and however
    // long they are, nothing is looked at for each pair of them.
    let (mut beginnings, mut first) = (Vec::<&str>::new(), None);
    for (index, label) in sorted {
        while beginnings.last().is_some_and(|beginning| !label.starts_with(beginning)) {
            beginnings.pop();
        }
        let is_below = |other: &&&str| label.get(other.len()..).is_some_and(|rest| rest.starts_with(BETWEEN));
        if let Some(other) = beginnings.iter().find(is_below)
            && index < servers.len()
            && first.is_none_or(|(first, _)| index < first)
        {
            first = Some((index, *other));
        }
        beginnings.push(label);
    }
    let Some((index, other)) = first else { return Ok(()) };
    let message =
        format!("begins with the label {other} and {BETWEEN}, so claude_code could not tell their tools apart");
    Err(refused(format!("tools.mcp_servers[{index}].label"), message))
}

/// The request `mcp_set_servers`. It has secrets in it, so it cannot be shown.
#[derive(Serialize)]
pub(super) struct SetServers<'a> {
    subtype: &'static str,
    servers: BTreeMap<&'a str, Server<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Server<'a> {
    Http { url: &'a str, headers: BTreeMap<&'a str, Cow<'a, str>> },
    Stdio { command: &'a str, args: [&'static str; 1], env: BTreeMap<String, String> },
    Sdk { name: &'static str },
}

/// The text that Claude Code would put something else in place of.
const EXPANSION: &str = "${";

/// Names the servers of a launch to Claude Code, but those that are `absent`.
///
/// # Errors
/// A text for a person where one cannot be named.
pub(super) fn set_servers<'a>(
    launch: &'a Launch,
    keeper: &'a Path,
    absent: &[Absent],
) -> Result<SetServers<'a>, String> {
    let mut servers = BTreeMap::new();
    for server in &launch.configuration.mcp_servers {
        let label = server.label.as_str();
        if absent.iter().any(|absent| absent.label == label) {
            continue;
        }
        let named = match &server.transport {
            McpTransport::Http { url, headers, .. } => http(launch, label, url, headers)?,
            McpTransport::Stdio { command, args, env_vars, .. } => Server::Stdio {
                command: keeper.to_str().ok_or("the path of the keeper is not UTF-8")?,
                args: [stdio_server::MODE],
                env: stdio_server::environment(label, command, args, env_vars, &launch.mcp_variables)?,
            },
        };
        servers.insert(label, named);
    }
    // What is not named again is taken away, and the functions of the Session are a server too.
    if !launch.configuration.functions.is_empty() {
        servers.insert(SERVER, Server::Sdk { name: SERVER });
    }
    Ok(SetServers { subtype: "mcp_set_servers", servers })
}

fn http<'a>(
    launch: &'a Launch,
    label: &str,
    url: &'a str,
    headers: &'a [(String, String)],
) -> Result<Server<'a>, String> {
    let mut sent: BTreeMap<&str, Cow<'_, str>> =
        headers.iter().map(|(name, value)| (name.as_str(), value.into())).collect();
    // A blank one keeps Claude Code from looking for a login of its own (R-MCP-6).
    let authorization = match launch.mcp_bearers.get(label) {
        Some(bearer) => format!("Bearer {}", bearer.expose_secret()).into(),
        None => "".into(),
    };
    sent.insert("Authorization", authorization);
    // An admission refuses it in what it sees; a bearer it does not see.
    if url.contains(EXPANSION) || sent.values().any(|value| value.contains(EXPANSION)) {
        return Err(format!(
            "the MCP server `{label}` has {EXPANSION} in its address, a header or its bearer, which claude_code would replace"
        ));
    }
    Ok(Server::Http { url, headers: sent })
}

/// The request `mcp_status`. Its answer has headers and variables in it, so nothing of it is told but what [`Status`] reads.
#[derive(Serialize)]
pub(super) struct AskStatus {
    subtype: &'static str,
}

/// How the servers stand.
pub(super) const ASK_STATUS: AskStatus = AskStatus { subtype: "mcp_status" };

/// The answer to `mcp_status`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    mcp_servers: Vec<ServerStatus>,
}

#[derive(Debug, Deserialize)]
struct ServerStatus {
    name: String,
    status: String,
    #[serde(default, deserialize_with = "lossy_option")]
    error: Option<String>,
    #[serde(default)]
    tools: Vec<NamedTool>,
}

#[derive(Debug, Deserialize)]
struct NamedTool {
    name: String,
}

/// A server that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Absent {
    /// Its label.
    pub(super) label: String,
    /// Claude Code's own text, as it came.
    pub(super) why: String,
}

/// What Claude Code writes before the body of an answer that it did not like.
const ANSWERED: &str = "Error POSTing to endpoint";

impl Absent {
    fn new(label: &str, status: Option<&ServerStatus>) -> Self {
        let why = match status {
            Some(ServerStatus { error: Some(error), .. }) if error.starts_with(ANSWERED) => {
                "it refused the request".to_owned()
            }
            Some(ServerStatus { error: Some(error), .. }) => error.clone(),
            Some(ServerStatus { status, .. }) => format!("it is {status}"),
            None => "claude does not know it".to_owned(),
        };
        Self { label: label.to_owned(), why }
    }
}

/// The declared servers of a conversation.
#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) tools: Arc<Tools>,
    /// Those that are not there.
    pub(super) absent: Vec<Absent>,
}

/// The tools of the declared servers, as they were when the process got ready: whatever becomes of a server's list, no other tool is used (R-MCP-5).
#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    labels: Vec<String>,
    /// By the name that the model has.
    known: BTreeMap<String, Known>,
    /// Names of tools that came later.
    grown: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Known {
    label: String,
    tool: String,
    is_allowed: bool,
}

impl Tools {
    /// What came of naming the servers, with those that are not there.
    ///
    /// # Errors
    /// A text for a person where a required server is not there (R-PRE-5), or where two tools have one native name (R-MCP-5).
    pub(super) fn of(servers: &[McpServer], told: &Status) -> Result<(Self, Vec<Absent>), String> {
        let mut tools = Self::default();
        let mut absent = Vec::new();
        for server in servers {
            let label = &server.label;
            tools.labels.push(label.clone());
            let status = told.mcp_servers.iter().find(|status| status.name == *label);
            let Some(status) = status.filter(|status| status.status == "connected") else {
                let missing = Absent::new(label, status);
                if server.required {
                    return Err(format!("the required MCP server `{label}` is not there: {}", missing.why));
                }
                absent.push(missing);
                continue;
            };
            for NamedTool { name: tool } in &status.tools {
                let is_allowed = server.allowed_tools.as_ref().is_none_or(|allowed| allowed.contains(tool));
                let native = native_name(label, tool);
                let known = Known { label: label.clone(), tool: tool.clone(), is_allowed };
                if let Some(other) = tools.known.insert(native.clone(), known) {
                    return Err(format!(
                        "the tools {:?} and {tool:?} of the MCP server `{label}` have one name for the model, {native}",
                        other.tool
                    ));
                }
            }
        }
        Ok((tools, absent))
    }

    /// Whether a tool of this name is of a declared server.
    pub(super) fn has(&self, native: &str) -> bool {
        self.server_of(native).is_some()
    }

    /// Whether the model may use the tool.
    pub(super) fn allows(&self, native: &str) -> bool {
        self.known.get(native).is_some_and(|known| known.is_allowed)
    }

    /// Those of these tools that came later and were not noted yet. What finds no room any more is not among them: each call of one is refused all the
    /// same.
    pub(super) fn news<'a>(&self, told: impl IntoIterator<Item = &'a String>) -> BTreeSet<String> {
        let room = GROWN - self.grown.len();
        let is_new = |tool: &&String| {
            self.has(tool) && !self.known.contains_key(tool.as_str()) && !self.grown.contains(tool.as_str())
        };
        told.into_iter().filter(is_new).take(room).cloned().collect()
    }

    /// Takes note of tools that came later.
    pub(super) fn grow(&mut self, mut news: BTreeSet<String>) {
        self.grown.append(&mut news);
    }

    /// The request that says which tools may be used. It takes the place of the one before.
    pub(super) fn rules(&self) -> ApplySettings<'_> {
        let names = |allowed| {
            let these = self.known.iter().filter(move |(_, known)| known.is_allowed == allowed);
            these.map(|(name, _)| name.as_str())
        };
        let (allow, deny) =
            (names(true).collect(), names(false).chain(self.grown.iter().map(String::as_str)).collect());
        let settings = Settings { permissions: Permissions { allow, deny } };
        ApplySettings { subtype: "apply_flag_settings", settings }
    }

    /// What decides about calls, for `initialize`: what the names of the tools begin with.
    pub(super) fn matcher(servers: &[McpServer]) -> String {
        let labels: Vec<_> = servers.iter().map(|server| server.label.as_str()).collect();
        format!("{PREFIX}({}){BETWEEN}.*", labels.join("|"))
    }

    /// A call under its original names; none when it is of no declared server.
    pub(super) fn call(&self, native: &str, arguments: Option<&RawValue>) -> Option<McpCall> {
        let (server, rest) = self.server_of(native)?;
        let tool = self.known.get(native).map_or(rest, |known| &known.tool);
        let arguments = arguments.map(|raw| raw.get().to_owned()).unwrap_or_default();
        Some(McpCall {
            server: server.to_owned(),
            tool: tool.to_owned(),
            arguments,
            result: None,
            error: String::new(),
        })
    }

    fn server_of<'a>(&'a self, native: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = native.strip_prefix(PREFIX)?;
        let of = |label: &'a String| Some((label.as_str(), rest.strip_prefix(label.as_str())?.strip_prefix(BETWEEN)?));
        self.known
            .get(native)
            .map(|known| (known.label.as_str(), known.tool.as_str()))
            .or_else(|| self.labels.iter().find_map(of))
    }
}

/// The request `apply_flag_settings`, with rules of permission.
#[derive(Serialize)]
pub(super) struct ApplySettings<'a> {
    subtype: &'static str,
    settings: Settings<'a>,
}

#[derive(Serialize)]
struct Settings<'a> {
    permissions: Permissions<'a>,
}

#[derive(Serialize)]
struct Permissions<'a> {
    allow: Vec<&'a str>,
    deny: Vec<&'a str>,
}

/// The result of a call as JSON: what Claude Code tells beside what its model reads, where it tells it.
pub(super) fn result(raw: Option<&RawValue>, content: Option<&RawValue>, is_error: bool) -> Option<String> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Wrapped<'a> {
        content: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
    }
    // Of a failure it tells a text of its own.
    if let Some(raw) = raw.filter(|raw| !is_error && raw.get().starts_with('{')) {
        return Some(raw.get().to_owned());
    }
    let content = raw.filter(|raw| !is_error && raw.get().starts_with('[')).or(content)?;
    serde_json::to_string(&Wrapped { content, is_error: is_error.then_some(true) }).ok()
}

/// Cleans the result of a call that failed.
pub(super) fn clean(report: &mut Report, cleaner: &Cleaner) {
    if let Report::ToolCompleted { end: ToolEnd { status: ToolStatus::Failed, tool: Tool::Mcp(call), .. }, .. } = report
        && let Some(result) = call.result.as_deref().and_then(|result| cleaned(result, cleaner))
    {
        call.result = Some(result);
    }
}

/// The result of a call that failed, without secrets: what Claude Code says itself of a call that broke off stands where the server's own failure would. One
/// text is without addresses as well, and where it begins an answer that Claude Code did not like, without that answer. None where nothing is to be cut.
fn cleaned(result: &str, cleaner: &Cleaner) -> Option<String> {
    let mut told: Value = serde_json::from_str(result).ok()?;
    let content = told.get_mut("content")?;
    let own = |text: &str| {
        if text.contains(ANSWERED) { cleaner.clean(text) } else { cleaner.cut_addresses(text) }
    };
    let changed = match content {
        Value::String(text) => change(text, own),
        Value::Array(parts) => match &mut parts[..] {
            [Value::Object(part)] => match part.get_mut("text") {
                Some(Value::String(text)) => change(text, own),
                _ => cut_all(content, cleaner),
            },
            _ => cut_all(content, cleaner),
        },
        _ => cut_all(content, cleaner),
    };
    changed.then(|| told.to_string())
}

/// Cuts secrets out of every text.
fn cut_all(value: &mut Value, cleaner: &Cleaner) -> bool {
    match value {
        Value::String(text) => change(text, |text| cleaner.cut(text)),
        Value::Array(items) => items.iter_mut().fold(false, |changed, item| cut_all(item, cleaner) | changed),
        Value::Object(members) => members.values_mut().fold(false, |changed, item| cut_all(item, cleaner) | changed),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn change(text: &mut String, to: impl Fn(&str) -> String) -> bool {
    let changed = to(text);
    let is_other = changed != *text;
    *text = changed;
    is_other
}

#[cfg(test)]
mod tests;
