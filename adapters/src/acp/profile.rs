//! What differs between agents that speak the Agent Client Protocol: data, and pure functions of what an agent says. The engine ([`super`]) is the same for all of
//! them; a profile starts no process and writes no file but in [`Agent::set_up`].

use std::{ffi::OsString, fmt, path::PathBuf, time::Duration};

use serde_json::value::RawValue;

use crate::{
    acp::wire::ToolCall,
    admission::built::Built,
    harness::{BoxFuture, Configuration, Declaration, Launch, NotAdmitted, Placement, PrepareError, Settings},
    native::environment::Environment,
    probe::Found,
};

/// An agent: what it is, how it is found, and how it is set up for one Session.
pub(crate) trait Agent: fmt::Debug + Send + Sync + 'static {
    /// What is known of it.
    fn profile(&self) -> &Profile;

    /// What `Admit` judges by.
    fn built(&self) -> Built;

    /// Looks for the program on this machine and at what it says of itself.
    fn look(&self) -> BoxFuture<'_, Found>;

    /// What it supports here, by what was found.
    fn declare(&self, settings: &Settings, found: &Found) -> Declaration;

    /// Checks a configuration as [`Harness::admit`](crate::harness::Harness::admit) does.
    fn admit(&self, declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted>;

    /// Checks that it may hold a model key by itself, as [`Harness::admit_key`](crate::harness::Harness::admit_key) does.
    fn admit_key(&self, declaration: &Declaration, placement: &Placement) -> Result<(), NotAdmitted> {
        let _ = (declaration, placement);
        Ok(())
    }

    /// Writes the files of a Session's home (0600, folders 0700, under the user of the Harness), anew with each start, and says how the process is started. Nothing is
    /// started here.
    fn set_up<'a>(
        &'a self,
        settings: &'a Settings,
        found: &'a Found,
        launch: &'a Launch,
    ) -> BoxFuture<'a, Result<SetUp, PrepareError>>;
}

/// How the process of a Session is started, and what it is told once it speaks.
#[derive(Debug)]
pub(crate) struct SetUp {
    /// The program.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// All of its variables.
    pub(crate) environment: Environment,
    /// Where it starts, and the `cwd` of the conversation.
    pub(crate) directory: PathBuf,
    /// Folder of the program and its helpers.
    pub(crate) package: PathBuf,
    /// The native settings that the bridge and its operator chose, as a text to be compared (no secrets, nothing of the configuration).
    pub(crate) settings: String,
    /// Config options that are set before the first prompt: the option's id and its value. The agent must advertise both, else the preparation fails.
    pub(crate) options: Vec<(String, String)>,
}

/// What is known of an agent.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Kind of the Harness, as the protocol names it.
    pub(crate) kind: &'static str,
    /// Name of the program, for people.
    pub(crate) name: &'static str,
    /// How a text that begins with `/` is kept from being taken for a command of the agent (a declared input rewrite, R-CTL-1).
    pub(crate) slash: Slash,
    /// How the agent may name the tools of MCP servers.
    pub(crate) mcp_names: &'static [McpName],
    /// Where the name of a tool stands, what it does, and how its result reads.
    pub(crate) tools: ToolReading,
    /// The method that adds input to a prompt that runs, where there is one.
    pub(crate) steer: Option<Steer>,
    /// Whether a process may take another prompt after one that was cancelled. False retires it; the next Turn resumes the same history.
    pub(crate) reusable_after_cancel: bool,
    /// Whether the identity of a conversation that is gone on with is proved (R-PRE-4): by `session/resume` where the agent has it, else by `session/load`, whose replay is told to
    /// nobody.
    pub(crate) resumes: bool,
    /// Codes by which it refuses a conversation that it does not know, beside ACP's own (R-PRE-4).
    pub(crate) unknown_session: &'static [i64],
    /// When the tools of MCP servers are listed: functions that are not listed by then fail what waits for them, before a call is possible.
    pub(crate) listing: Listing,
}

/// The native name of a tool, by its server's label and its own name.
pub(crate) type McpName = fn(server: &str, tool: &str) -> String;

/// What stands before the name of a tool of this server, whatever that is.
pub(crate) fn prefix(name: McpName, server: &str) -> String {
    name(server, "x").strip_suffix('x').unwrap_or_default().to_owned()
}

/// How a text that begins with `/` reaches the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slash {
    /// An empty text block follows it.
    EmptyBlock,
    /// U+200B stands before it.
    ZeroWidthSpace,
}

/// When an agent lists the tools of MCP servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    /// When the conversation is opened, which waits for it.
    AtOpening,
    /// In the Turn, which is given this long for it, or [`Timing::functions_listed`](crate::harness::Timing::functions_listed) where that is longer.
    InTurn(Duration),
}

/// A native method that adds input to a prompt that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steer {
    /// The method; its parameters are `{sessionId, text, clientRequestId}`.
    pub(crate) method: &'static str,
}

/// How tools are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolReading {
    /// The native name of a tool, by its first report.
    pub(crate) name: fn(&ToolCall<'_>) -> Option<String>,
    /// The command line of a native tool that runs one, by its name and arguments.
    pub(crate) command: fn(name: &str, arguments: &RawValue) -> Option<String>,
    /// The end of a call of an MCP tool: its native result as JSON text, whether it is an error, and the texts that a model reads. None where this is no such result.
    pub(crate) mcp_result: fn(&ToolCall<'_>) -> Option<McpResult>,
}

/// A result of an MCP tool, as the agent shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct McpResult {
    /// The result as JSON text.
    pub(crate) json: String,
    /// Whether the server called it an error; none where the agent does not say.
    pub(crate) is_error: Option<bool>,
    /// Its texts, in order.
    pub(crate) texts: Vec<String>,
    /// The tool as its server calls it, where the agent says that.
    pub(crate) tool: Option<String>,
    /// The texts are what the agent shows where the result had none.
    pub(crate) for_none: bool,
}

/// Label of the bridge's own server of functions.
pub(crate) const FUNCTIONS: &str = "functions";
