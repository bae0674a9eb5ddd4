//! What Codex is told: the start-up file of its home, and the parameters of `thread/start`. Nothing is read here but the folders above the
//! directory that it works in.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{admission, servers::Server};
use crate::{
    harness::{Configuration, Isolation},
    native::environment::{MARK_VARIABLE, Mark},
};

/// The provider's name in Codex. It is in no file, since a definition of the same name there would be merged into ours.
pub(super) const PROVIDER: &str = "runtime-bridge";

/// How often Codex asks a provider again after a failure. Each try shows in an `error` notification, which is why the requests' own silent
/// tries (`request_max_retries`) are off (R-EVT-10).
pub(super) const STREAM_RETRIES: u32 = 4;

/// How long the stream of an answer may bring nothing, before it counts as broken off (R-EVT-10).
pub(super) const STREAM_IDLE: Duration = Duration::from_secs(300);

/// The start-up file. What it switches off is listed in [`super::declaration::SWITCHED_OFF`].
///
/// - `plugins`, `apps`, the update check, analytics and feedback are what phones home.
/// - A shell snapshot writes the shell's environment to disk.
/// - Without `unbounded_connection_retries = false` a refused connection never ends a Turn.
/// - A function with the name of a native tool would vanish without a word, were it not for `error_on_tool_collisions`.
/// - What a login at an MCP server got would be in the machine's keyring, and so in every Session, were it not in a file of this home (R-MCP-2).
/// - Commands get a core environment and the mark, by which they are known as ours (R-SEC-1, R-DUR-2).
///
/// Under the placement `none` Codex's own tools are off as well (R-CTL-4); what stays of them is a matter of the model's entry in the catalogue
/// (see [`super::catalogue`]).
pub(super) fn start_up_file(mark: &Mark, nowhere: bool) -> String {
    let tools = if nowhere { "shell_tool = false\nsleep_tool = false\nview_image = false\n" } else { "" };
    format!(
        r#"check_for_update_on_startup = false
include_apps_instructions = false
mcp_oauth_credentials_store = "file"

[features]
apps = false
goals = false
memories = false
plugins = false
shell_snapshot = false
unbounded_connection_retries = false
{tools}
[features.tool_registry]
error_on_tool_collisions = true

[agents]
enabled = false

[tools]
experimental_request_user_input = {{ enabled = false }}

[skills]
include_instructions = false

[skills.bundled]
enabled = false

[analytics]
enabled = false

[feedback]
enabled = false

[shell_environment_policy]
inherit = "core"
ignore_default_excludes = false

[shell_environment_policy.set]
{MARK_VARIABLE} = {}
"#,
        quoted(mark.as_str())
    )
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for one in text.chars() {
        match one {
            '"' | '\\' => out.extend(['\\', one]),
            one if one.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(one))),
            one => out.push(one),
        }
    }
    out.push('"');
    out
}

/// Parameters of `initialize`. Dynamic tools and the cleaning of terminals need the experimental interface.
pub(super) fn initialize() -> impl Serialize {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Initialize {
        client_info: ClientInfo,
        capabilities: Capabilities,
    }
    #[derive(Serialize)]
    struct ClientInfo {
        name: &'static str,
        title: &'static str,
        version: &'static str,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Capabilities {
        experimental_api: bool,
        opt_out_notification_methods: [&'static str; 5],
    }
    Initialize {
        client_info: ClientInfo { name: "runtime-bridge", title: "Runtime bridge", version: env!("CARGO_PKG_VERSION") },
        capabilities: Capabilities {
            experimental_api: true,
            // Never used, and the diff of a Turn can be as long as a workspace.
            opt_out_notification_methods: [
                "account/rateLimits/updated",
                "rawResponse/completed",
                "thread/readState/changed",
                "thread/status/changed",
                "turn/diff/updated",
            ],
        },
    }
}

/// Parameters of `thread/start`, and of `thread/resume`: a resumed thread forgets some of them, so it is given all (R-PRE-4).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThreadStart<'a> {
    /// The thread to be resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<&'a str>,
    /// Without it the whole history is in the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    exclude_turns: Option<bool>,
    cwd: &'a Path,
    model: &'a str,
    model_provider: &'static str,
    approval_policy: &'static str,
    sandbox: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_instructions: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    developer_instructions: Option<&'a str>,
    /// A resumed thread has those of its start, and takes no others.
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_tools: Option<Vec<DynamicTool<'a>>>,
    /// None at all; a resumed thread takes it with each Turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    environments: Option<NoEnvironments>,
    /// The items of the provider's answers as they came: the arguments of a call are there in the model's own text (R-FN-2). A resumed thread does
    /// not tell them.
    #[serde(skip_serializing_if = "Option::is_none")]
    experimental_raw_events: Option<bool>,
    config: ThreadConfig<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DynamicTool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: &'a str,
    description: &'a str,
    /// The text as Core gave it (R-API-3).
    input_schema: Box<RawValue>,
}

/// Settings of this thread alone; the names are those of the start-up file.
#[derive(Serialize)]
struct ThreadConfig<'a> {
    model_providers: BTreeMap<&'static str, Provider<'a>>,
    projects: BTreeMap<PathBuf, Project>,
    /// Replaces the bundled catalogue of models.
    #[serde(skip_serializing_if = "Option::is_none")]
    model_catalog_json: Option<&'a Path>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    mcp_servers: BTreeMap<&'a str, Server<'a>>,
}

#[derive(Serialize)]
struct Provider<'a> {
    name: &'static str,
    base_url: &'a str,
    wire_api: &'static str,
    request_max_retries: u32,
    stream_max_retries: u32,
    stream_idle_timeout_ms: u128,
    /// Held in memory and written to no file; a variable could be read by what the model runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    experimental_bearer_token: Option<&'a str>,
}

#[derive(Serialize)]
struct Project {
    trust_level: &'static str,
}

/// An empty list of environments: without it a thread has the machine's own.
pub(super) type NoEnvironments = [&'static str; 0];

/// Where a thread works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// On this workspace.
    Workspace(&'a Path),
    /// On no environment: a private, empty directory stands where Codex wants one.
    Nowhere {
        /// The directory.
        directory: &'a Path,
        /// The catalogue of models without native tools, where the bundled one names the model.
        catalogue: Option<&'a Path>,
    },
}

impl<'a> Place<'a> {
    pub(super) fn directory(self) -> &'a Path {
        match self {
            Self::Workspace(directory) | Self::Nowhere { directory, .. } => directory,
        }
    }

    pub(super) fn is_nowhere(self) -> bool {
        matches!(self, Self::Nowhere { .. })
    }
}

/// What `thread/start` depends on beside the configuration.
pub(super) struct Surroundings<'a> {
    pub(super) place: Place<'a>,
    pub(super) isolation: Isolation,
    pub(super) trust_workspace: bool,
    pub(super) model_key: Option<&'a SecretString>,
    /// MCP servers, by their labels. A resumed thread has none but these.
    pub(super) servers: BTreeMap<&'a str, Server<'a>>,
    /// The thread to be resumed; none starts one.
    pub(super) resume: Option<&'a str>,
}

/// What the bridge and its operator set beside the configuration, as a text that differs when one of it does.
pub(super) fn settings(isolation: Isolation, trust_workspace: bool, nowhere: bool) -> String {
    let (_, sandbox) = sandbox(isolation, nowhere);
    let file = start_up_file(&Mark::new("-", "-"), nowhere);
    format!(
        "{file}\n{sandbox} {APPROVAL_POLICY} trust={} retries={STREAM_RETRIES} idle={}",
        trust_workspace && !nowhere,
        STREAM_IDLE.as_secs()
    )
}

/// The parameters of `thread/start` or `thread/resume` for a configuration.
///
/// # Errors
/// What an admission would have refused.
pub(super) fn thread_start<'a>(
    configuration: &'a Configuration,
    surroundings: Surroundings<'a>,
) -> Result<ThreadStart<'a>, crate::harness::NotAdmitted> {
    let native = admission::harness_config(&configuration.harness_config)?;
    let functions = configuration.functions.iter().enumerate().map(|(index, function)| {
        let input_schema = admission::parameters(index, &function.parameters)?;
        Ok(DynamicTool { kind: "function", name: &function.name, description: &function.description, input_schema })
    });
    let provider = Provider {
        name: PROVIDER,
        base_url: &configuration.provider.base_url,
        wire_api: "responses",
        request_max_retries: 0,
        stream_max_retries: STREAM_RETRIES,
        stream_idle_timeout_ms: STREAM_IDLE.as_millis(),
        experimental_bearer_token: surroundings.model_key.map(ExposeSecret::expose_secret),
    };
    let place = surroundings.place;
    let (directory, nowhere) = (place.directory(), place.is_nowhere());
    let trust_level = if surroundings.trust_workspace && !nowhere { "trusted" } else { "untrusted" };
    let projects = trust_keys(directory).into_iter().map(|path| (path, Project { trust_level }));
    let dynamic_tools = functions.collect::<Result<Vec<_>, _>>()?;
    Ok(ThreadStart {
        thread_id: surroundings.resume,
        exclude_turns: surroundings.resume.map(|_| true),
        cwd: directory,
        model: &configuration.model,
        model_provider: PROVIDER,
        approval_policy: APPROVAL_POLICY,
        sandbox: sandbox(surroundings.isolation, nowhere).0,
        base_instructions: native.base_instructions,
        developer_instructions: Some(configuration.instructions.as_str()).filter(|text| !text.is_empty()),
        experimental_raw_events: (surroundings.resume.is_none() && !dynamic_tools.is_empty()).then_some(true),
        dynamic_tools: surroundings.resume.is_none().then_some(dynamic_tools),
        environments: (nowhere && surroundings.resume.is_none()).then_some([]),
        config: ThreadConfig {
            model_providers: BTreeMap::from([(PROVIDER, provider)]),
            projects: projects.collect(),
            model_catalog_json: match place {
                Place::Workspace(_) => None,
                Place::Nowhere { catalogue, .. } => catalogue,
            },
            mcp_servers: surroundings.servers,
        },
    })
}

/// Parameters of `thread/inject_items`: a text of the developer behind what the history has. A resumed thread goes on with the instructions
/// that stand in its history, whatever it is given (R-PRE-6).
pub(super) fn instructions<'a>(thread_id: &'a str, text: &'a str) -> impl Serialize + 'a {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct InjectItems<'a> {
        thread_id: &'a str,
        items: [Message<'a>; 1],
    }
    #[derive(Serialize)]
    struct Message<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        role: &'static str,
        content: [Text<'a>; 1],
    }
    #[derive(Serialize)]
    struct Text<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        text: &'a str,
    }
    let content = [Text { kind: "input_text", text }];
    InjectItems { thread_id, items: [Message { kind: "message", role: "developer", content }] }
}

/// The only policy: nobody is there to be asked (R-PLC-1).
pub(super) const APPROVAL_POLICY: &str = "never";

/// The sandbox as it is asked for, and as `thread/start` answers its type. Under the placement `none` nothing runs in it, and it is the narrowest.
pub(super) fn sandbox(isolation: Isolation, nowhere: bool) -> (&'static str, &'static str) {
    match isolation {
        _ if nowhere => ("read-only", "readOnly"),
        Isolation::Outer => ("danger-full-access", "dangerFullAccess"),
        Isolation::Native => ("workspace-write", "workspaceWrite"),
    }
}

/// Every folder under which Codex may look up the trust of a directory: itself, each folder above it that holds a repository, and the main
/// repository of a linked work tree. Without an entry a writable sandbox makes Codex trust the repository and run what its configuration says.
fn trust_keys(directory: &Path) -> Vec<PathBuf> {
    let mut keys = vec![directory.to_owned()];
    for folder in directory.ancestors() {
        let git = folder.join(".git");
        if git.symlink_metadata().is_err() {
            continue;
        }
        keys.push(folder.to_owned());
        // A linked work tree has a file: "gitdir: <main>/.git/worktrees/<name>".
        let main = fs::read_to_string(&git).ok().and_then(|text| {
            let gitdir = folder.join(text.strip_prefix("gitdir:")?.trim());
            let root =
                gitdir.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == ".git"))?.parent()?;
            root.canonicalize().ok()
        });
        keys.extend(main);
    }
    keys.sort();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests;
