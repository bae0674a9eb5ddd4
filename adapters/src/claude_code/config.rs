//! What Claude Code is told: its arguments, its environment, and the request `initialize`. The arguments can be read by everybody on the machine,
//! so schemas and prompts go through its input.

use std::{ffi::OsString, path::Path, time::Duration};

use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    admission,
    functions::RESULT_TEXT,
    inventory::Inventory,
    mcp::{self, CALLBACK},
    probe::HOME,
    wire::SERVER,
};
use crate::{
    admission::{OUTPUT_SCHEMA, refused},
    harness::{Configuration, NotAdmitted, Placement},
    native::{environment::Environment, process::ExitStatus},
};

/// Arguments that every process gets.
///
/// - `--setting-sources=` and `--strict-mcp-config` keep out what the workspace configures: its hooks and servers would be run without a question.
/// - Without `--system-prompt-snapshot=off` a resumed conversation has the instructions of its start (R-PRE-6).
const ARGUMENTS: &[&str] = &[
    "--input-format=stream-json",
    "--output-format=stream-json",
    "--verbose",
    "--include-partial-messages",
    "--strict-mcp-config",
    "--setting-sources=",
    "--system-prompt-snapshot=off",
];

/// What the model may do without a question; nobody is there to be asked (R-PLC-1). Claude Code tells it again at the start of a native turn.
///
/// On a workspace every tool is allowed everywhere, since somebody else isolates it: with a list of allowed tools, writing to a repository's `.git`,
/// to `.claude` or to a start-up file of a shell would be denied still. Elsewhere what is not on the list is denied.
pub(super) fn permission_mode(placement: &Placement) -> &'static str {
    match placement {
        Placement::Workspace { .. } => "bypassPermissions",
        Placement::None => "dontAsk",
    }
}

/// How long a call may take natively, in milliseconds: 24 days, the most that can be set.
const CALL_TIMEOUT_MS: u32 = 2_147_483_647;

/// Variables that every process gets, beside the base, its folders and its provider.
///
/// - `CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC` leaves the model's provider as the only address; the next three say the same once more.
/// - Without background tasks the end of a native turn is the end of its work, and a command that takes too long is ended.
/// - `CLAUDE_CODE_MAX_MCP_DESCRIPTION_LENGTH` is no limit of ours: what an admission lets through is never cut, whatever becomes of its characters.
/// - `CLAUDE_CODE_MAX_RETRIES` bounds the tries after a failure of the provider, which would take three minutes; each shows (R-EVT-10).
/// - `CLAUDE_CODE_DISABLE_LEGACY_MODEL_REMAP` leaves the model's name as it was asked for.
/// - `XDG_RUNTIME_DIR` is where nobody can make a folder, so Claude Code opens no socket on which other sessions of the same user would find it.
///   Elsewhere it opens one there, or in a folder of `/tmp` that all share where the path is too long for a socket.
const VARIABLES: &[(&str, &str)] = &[
    ("BUN_ENABLE_CRASH_REPORTING", "0"),
    ("CLAUDE_AGENT_SDK_DISABLE_BUILTIN_AGENTS", "1"),
    ("CLAUDE_CODE_DISABLE_AUTO_MEMORY", "1"),
    ("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1"),
    ("CLAUDE_CODE_DISABLE_CRON", "1"),
    ("CLAUDE_CODE_DISABLE_FILE_MENTIONS", "1"),
    ("CLAUDE_CODE_DISABLE_LEGACY_MODEL_REMAP", "1"),
    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ("CLAUDE_CODE_DISABLE_WORKFLOWS", "1"),
    ("CLAUDE_CODE_MAX_MCP_DESCRIPTION_LENGTH", "65536"),
    ("CLAUDE_CODE_MAX_RETRIES", "4"),
    ("CLAUDE_CODE_MCP_AUTO_BACKGROUND_MS", "0"),
    ("CLAUDE_CODE_SDK_READS_SESSION_STATE", "1"),
    ("CLAUDE_CODE_SKIP_MCP_DEBUG_LOG_FILES", "1"),
    ("DISABLE_AUTOUPDATER", "1"),
    ("DISABLE_TELEMETRY", "1"),
    ("XDG_RUNTIME_DIR", "/proc"),
];

/// The conversation of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conversation<'a> {
    /// A new one of this id, which is a UUID.
    New(&'a str),
    /// The one of this id, and no other (R-PRE-4).
    Resumed(&'a str),
}

/// The arguments of a process.
pub(super) fn arguments(configuration: &Configuration, inventory: &Inventory, of: Conversation<'_>) -> Vec<OsString> {
    let conversation = match of {
        Conversation::New(id) => format!("--session-id={id}"),
        Conversation::Resumed(id) => format!("--resume={id}"),
    };
    // With a blank between them, a list would swallow the arguments behind it.
    let own = [
        format!("--permission-mode={}", permission_mode(&configuration.placement)),
        match configuration.placement {
            Placement::Workspace { .. } => "--allow-dangerously-skip-permissions".to_owned(),
            Placement::None => format!("--allowedTools={}", inventory.allowed()),
        },
        format!("--tools={}", inventory.tools()),
        format!("--model={}", configuration.model),
        conversation,
    ];
    // The other controls have no value here that changes anything.
    let effort = configuration.controls.reasoning_effort.as_ref().map(|effort| format!("--effort={effort}"));
    ARGUMENTS.iter().map(OsString::from).chain(own.into_iter().chain(effort).map(OsString::from)).collect()
}

/// Folders of a process, all private to the Session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folders<'a> {
    /// Where programs that it starts are at home.
    pub(super) user: &'a Path,
    /// Where its state and its history are.
    pub(super) state: &'a Path,
    /// For temporary files.
    pub(super) temporary: &'a Path,
}

/// The variables of a process (R-SEC-2).
pub(super) fn environment(
    configuration: &Configuration,
    inventory: &Inventory,
    folders: Folders<'_>,
    mcp_start: Duration,
    model_key: Option<&SecretString>,
) -> Environment {
    let mut environment = Environment::base(folders.user, folders.temporary)
        .set(HOME, folders.state)
        .set("CLAUDE_CODE_TMPDIR", folders.temporary)
        .set("ANTHROPIC_BASE_URL", &configuration.provider.base_url)
        .set("MCP_TOOL_TIMEOUT", CALL_TIMEOUT_MS.to_string())
        .set("CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT", CALL_TIMEOUT_MS.to_string())
        .set("ENABLE_TOOL_SEARCH", if inventory.searches() { "true" } else { "false" });
    for (name, value) in VARIABLES {
        environment = environment.set(name, value);
    }
    environment = match configuration.placement {
        // Else it looks for a repository around a directory that is none of the Session's.
        Placement::None => environment.set("CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS", "1"),
        // The operator's word that somebody isolates it; without it root is not allowed to allow everything.
        Placement::Workspace { .. } => environment.set("IS_SANDBOX", "1"),
    };
    if !configuration.mcp_servers.is_empty() {
        // Each has its own time, so none waits for others to be given theirs.
        let servers = configuration.mcp_servers.len().to_string();
        environment = environment
            .set("MCP_TIMEOUT", mcp_start.as_millis().to_string())
            .set("MCP_SERVER_CONNECTION_BATCH_SIZE", &servers)
            .set("MCP_REMOTE_SERVER_CONNECTION_BATCH_SIZE", &servers);
    }
    match model_key {
        Some(key) => environment.set("ANTHROPIC_API_KEY", key.expose_secret()),
        None => environment,
    }
}

/// What the bridge sets beside the configuration, as a text that differs when one of it does.
pub(super) fn settings(placement: &Placement) -> String {
    format!("{} {} {VARIABLES:?} call={CALL_TIMEOUT_MS}", ARGUMENTS.join(" "), permission_mode(placement))
}

/// The request `initialize`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialize<'a> {
    subtype: &'static str,
    /// Takes the place of the native text.
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: Option<[String; 1]>,
    /// Stands behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    append_system_prompt: Option<&'a str>,
    /// The text as Core gave it (R-API-3).
    #[serde(skip_serializing_if = "Option::is_none")]
    json_schema: Option<Box<RawValue>>,
    /// Asks before each call of a tool of a declared server.
    #[serde(skip_serializing_if = "Option::is_none")]
    hooks: Option<Hooks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sdk_mcp_servers: Option<[&'static str; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sdk_mcp_server_configs: Option<OfServer<ServerConfig>>,
    /// What the server would answer: only calls are then asked of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    sdk_mcp_server_manifests: Option<OfServer<Manifest<'a>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Hooks {
    pre_tool_use: [Hook; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    matcher: String,
    hook_callback_ids: [&'static str; 1],
}

/// Something of the one server.
#[derive(Serialize)]
struct OfServer<T> {
    functions: T,
}

#[derive(Serialize)]
struct ServerConfig {
    timeout: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a> {
    initialize_result: InitializeResult,
    tools_list_result: ToolsList<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InitializeResult {
    protocol_version: &'static str,
    capabilities: Capabilities,
    server_info: ServerInfo,
}

#[derive(Serialize)]
struct Capabilities {
    tools: Empty,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct ServerInfo {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
struct ToolsList<'a> {
    tools: Vec<Tool<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: Box<RawValue>,
    annotations: Annotations,
    #[serde(rename = "_meta")]
    meta: Meta,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    /// Else calls are made one by one; it is no leave to be called.
    read_only_hint: bool,
}

#[derive(Serialize)]
struct Meta {
    /// Else the model learns of it by a search only.
    #[serde(rename = "anthropic/alwaysLoad")]
    always_load: bool,
    /// Else a long result is written to a file; this is the most that can be set.
    #[serde(rename = "anthropic/maxResultSizeChars")]
    max_result_size_chars: usize,
}

/// The version of MCP that Claude Code speaks; it takes no manifest of another.
const MCP_VERSION: &str = "2025-11-25";

/// The request `initialize` for a configuration. Instructions are added to the native text, or to what replaces it (R-PRE-6).
///
/// # Errors
/// What an admission would have refused.
pub(super) fn initialize(configuration: &Configuration) -> Result<Initialize<'_>, NotAdmitted> {
    let native = admission::harness_config(&configuration.harness_config)?;
    let tools = configuration.functions.iter().enumerate().map(|(index, function)| {
        Ok(Tool {
            name: &function.name,
            description: &function.description,
            input_schema: admission::parameters(index, &function.parameters)?,
            annotations: Annotations { read_only_hint: true },
            meta: Meta { always_load: !function.defer_loading, max_result_size_chars: RESULT_TEXT },
        })
    });
    let tools = tools.collect::<Result<Vec<_>, _>>()?;
    let declared = !tools.is_empty();
    let manifest = || Manifest {
        initialize_result: InitializeResult {
            protocol_version: MCP_VERSION,
            capabilities: Capabilities { tools: Empty {} },
            server_info: ServerInfo { name: SERVER, version: env!("CARGO_PKG_VERSION") },
        },
        tools_list_result: ToolsList { tools },
    };
    Ok(Initialize {
        subtype: "initialize",
        system_prompt: native.system_prompt.map(|text| [text]),
        append_system_prompt: Some(configuration.instructions.as_str()).filter(|text| !text.is_empty()),
        json_schema: configuration.controls.output_schema.as_deref().map(admission::output_schema).transpose()?,
        hooks: (!configuration.mcp_servers.is_empty()).then(|| Hooks {
            pre_tool_use: [Hook {
                matcher: mcp::Tools::matcher(&configuration.mcp_servers),
                hook_callback_ids: [CALLBACK],
            }],
        }),
        sdk_mcp_servers: declared.then_some([SERVER]),
        sdk_mcp_server_configs: declared.then_some(OfServer { functions: ServerConfig { timeout: CALL_TIMEOUT_MS } }),
        sdk_mcp_server_manifests: declared.then(|| OfServer { functions: manifest() }),
    })
}

/// The request `initialize` once more. It changes nothing, and its answer has the state of the session.
pub(super) fn again() -> Initialize<'static> {
    Initialize {
        subtype: "initialize",
        system_prompt: None,
        append_system_prompt: None,
        json_schema: None,
        hooks: None,
        sdk_mcp_servers: None,
        sdk_mcp_server_configs: None,
        sdk_mcp_server_manifests: None,
    }
}

/// The request for the settings that hold: the effort is in its answer, which depends on the model as well.
pub(super) fn get_settings() -> impl Serialize {
    #[derive(Serialize)]
    struct GetSettings {
        subtype: &'static str,
    }
    GetSettings { subtype: "get_settings" }
}

/// The longest argument of a process in bytes, with the NUL behind it.
const LONGEST_ARGUMENT: usize = 128 << 10;

/// What the check of a schema says when it refuses it.
const NO_SCHEMA: &str = "Error: --json-schema ";

/// The most characters of a reason that are told: it may repeat what was submitted (R-API-4).
const REASON: usize = 240;

/// The arguments of a process that does nothing but look at a schema of final answers: `initialize` passes over one that Claude Code does not
/// take, the argument of the same content is refused at once. It ends as soon as its input is closed. None where the schema is too long for an
/// argument; whether Claude Code takes it is then seen in the first inventory.
pub(super) fn schema_check(schema: &RawValue) -> Option<Vec<OsString>> {
    let argument = format!("--json-schema={}", schema.get());
    if argument.len() >= LONGEST_ARGUMENT {
        return None;
    }
    let rest = ["--tools=".to_owned(), "--no-session-persistence".to_owned(), argument];
    Some(ARGUMENTS.iter().map(OsString::from).chain(rest.into_iter().map(OsString::from)).collect())
}

/// What the check of a schema found, by how its process ended and what it said.
///
/// # Errors
/// Either that Claude Code does not take the schema, or that the check itself failed.
pub(super) fn schema_checked(status: ExitStatus, said: &str) -> Result<(), Unchecked> {
    if status == ExitStatus::Code(0) {
        return Ok(());
    }
    match said.lines().find_map(|line| line.strip_prefix(NO_SCHEMA)) {
        Some(reason) => {
            let reason: String = reason.chars().filter(|one| !one.is_control()).take(REASON).collect();
            Err(Unchecked::Refused(refused(OUTPUT_SCHEMA, format!("is refused by claude_code: it {reason}"))))
        }
        None => Err(Unchecked::Failed(status)),
    }
}

/// A schema of final answers was not found to be sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unchecked {
    /// Claude Code does not take it.
    Refused(NotAdmitted),
    /// The check ended otherwise.
    Failed(ExitStatus),
}

#[cfg(test)]
mod tests;
