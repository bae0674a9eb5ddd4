//! From a launch to a ready Executor: the folders, the look at a schema, the process, `initialize` (R-PRE-1, R-PRE-2, R-PRE-4). No model input is
//! sent. Whatever fails ends the process before it is reported; a dropped preparation ends it as well, by dropping it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::time;
use tokio_util::task::TaskTracker;

use super::{
    Settings, admission,
    config::{self, Folders, Unchecked},
    declaration,
    executor::{Conversation, Opened},
    inventory::Inventory,
    mcp::{self, Servers},
    wire::{self, Line, write},
};
use crate::{
    harness::{Executor, HistoryFault, Launch, Placement, PrepareError},
    native::{
        environment::Environment,
        folder,
        lock::LockError,
        process::{self, ExitStatus},
    },
    owner::{END_MARGIN, Opening, Trouble, start, unstarted},
    probe::Found,
};

/// Held while a process has the Session's native history (R-PRE-4).
const LOCK: &str = "claude.lock";
/// The step of the declared MCP servers.
const MCP: &str = "mcp";
/// Said of a process that has no key and would want a login.
const NO_KEY: &str = "it has no key for its model provider and would ask for a login; give it the credential `model`";

/// Of the native refusal to allow everything to root outside of a sandbox.
const NOT_AS_ROOT: &str = "cannot be used with root/sudo privileges";
/// What is told in its place. The proved version takes the word of the operator for a sandbox, which it gets as `IS_SANDBOX`.
const ROOT: &str = "claude refuses to work on a workspace as root, and does not take the bridge's word (IS_SANDBOX=1) that a sandbox is around it; run \
     the bridge as another user, or install the proved version";

/// Where Claude Code keeps its state within the home of a Session.
pub(super) fn state(home: &Path) -> PathBuf {
    home.join("claude")
}

/// Prepares an Executor.
pub(super) async fn prepare(
    settings: &Settings,
    found: Found,
    launch: Launch,
    tasks: &TaskTracker,
) -> Result<Executor, PrepareError> {
    let Found { program: Some(program), version, trouble: None } = found else {
        let trouble = found.trouble.unwrap_or_else(|| "claude was not found".to_owned());
        return Err(unstarted("spawn", trouble));
    };
    let configuration = &*launch.configuration;
    let empty = launch.home.join("empty");
    let directory = match &configuration.placement {
        Placement::Workspace { directory, .. } => launch.workspace.as_deref().unwrap_or(directory),
        Placement::None => &empty,
    };
    let inventory = Inventory::of(configuration);
    let request =
        config::initialize(configuration).map_err(|refused| unstarted("configuration", refused.to_string()))?;
    if directory != empty {
        start::still_there(directory, settings).await.map_err(|message| unstarted("workspace", message))?;
    }
    let (user, state) = (launch.home.join("user"), state(&launch.home));
    let folders = Folders { user: &user, state: &state, temporary: &launch.temporary };
    start::make_folders([&*user, &*state, &*empty], settings)
        .await
        .map_err(|error| unstarted("spawn", format!("make the folders of claude: {error}")))?;
    let lock = start::lock(&launch.home.join(LOCK)).await.map_err(|error| PrepareError {
        history: matches!(error, LockError::Held { .. }).then_some(HistoryFault::Locked),
        ..unstarted("session", error.to_string())
    })?;

    let process = |args, directory: &Path, environment: Environment| process::Launch {
        keeper: settings.keeper.clone(),
        program: program.clone(),
        args,
        directory: directory.to_owned(),
        environment,
        mark: launch.mark.clone(),
        grace: settings.limits.term_grace,
        user: settings.user.clone(),
    };
    if let Some(schema) = &configuration.controls.output_schema {
        let schema =
            admission::output_schema(schema).map_err(|refused| unstarted("configuration", refused.to_string()))?;
        if let Some(arguments) = config::schema_check(&schema) {
            let apart = launch.home.join("schema");
            start::make_folders([&*apart], settings).await.map_err(|error| unstarted("schema", error.to_string()))?;
            let folders = Folders { state: &apart, ..folders };
            let environment = config::environment(configuration, &inventory, folders, settings.limits.mcp_start, None);
            let looked = look_at_schema(process(arguments, &empty, environment), settings).await;
            // What it has left there nobody needs; the Session's end removes what stays.
            let _ = folder::remove_all(&apart);
            looked?;
        }
    }

    let id = match &launch.resume {
        Some(resume) => resume.native_session_id.clone(),
        None => uuid::Uuid::now_v7().to_string(),
    };
    let conversation = match &launch.resume {
        Some(_) => config::Conversation::Resumed(&id),
        None => config::Conversation::New(&id),
    };
    let arguments = config::arguments(configuration, &inventory, conversation);
    let mcp_start = settings.limits.mcp_start;
    let environment = config::environment(configuration, &inventory, folders, mcp_start, launch.model_key.as_ref());
    let package = program.parent().and_then(|folder| folder.canonicalize().ok()).unwrap_or_else(|| program.clone());
    let process = process(arguments, directory, environment);
    let mut opening = Opening::start("claude", settings, &launch, process, wire::is_read)
        .await
        .map_err(|error| unstarted("spawn", error.to_string()))?;
    let told = match initialize(&mut opening, &request).await {
        Ok(told) => told,
        Err(trouble) => return Err(as_root(opening.fail("initialize", trouble).await)),
    };
    if let Some(effort) = &configuration.controls.reasoning_effort
        && let Err(trouble) = check_effort(&mut opening, effort, &configuration.model).await
    {
        return Err(opening.fail("effort", trouble).await);
    }
    let mcp = match connect(&mut opening, &launch, settings).await {
        Ok(mcp) => mcp,
        Err(trouble) => return Err(opening.fail(MCP, trouble).await),
    };
    let native = Conversation::new(Opened {
        mcp,
        id: id.clone(),
        home: state.clone(),
        inventory,
        functions: configuration.functions.iter().map(|function| function.name.clone()).collect(),
        is_structured: configuration.controls.output_schema.is_some(),
    });
    let (orders, reports, keeper) = opening.own(native, lock, package, tasks).await?;
    let version = told.or(version).unwrap_or_default();
    Ok(Executor {
        orders,
        reports,
        version,
        native_session_id: id,
        settings: config::settings(&configuration.placement),
        keeper,
    })
}

/// By what Claude Code is known to its provider.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Account {
    api_key_source: Option<String>,
    token_source: Option<String>,
}

impl Account {
    /// It says that it has nothing. Every Turn would end with its wish for a login, for which nobody is there.
    fn is_anonymous(&self) -> bool {
        self.api_key_source.is_none() && self.token_source.as_deref() == Some("none")
    }
}

/// The failure with a text of its own where Claude Code would not work as root.
fn as_root(failed: PrepareError) -> PrepareError {
    match failed.message.contains(NOT_AS_ROOT) {
        true => PrepareError { message: format!("{ROOT} {}", declaration::QUALIFIED), ..failed },
        false => failed,
    }
}

/// Has Claude Code itself look at a schema of final answers, in a process that does nothing else.
async fn look_at_schema(process: process::Launch, settings: &Settings) -> Result<(), PrepareError> {
    let step = "schema";
    let process::Process { stdin, stdout, mut control } =
        process::spawn(process).map_err(|error| unstarted(step, error.to_string()))?;
    // It has nothing to do, and leaves once it has looked. What it writes nobody reads; it is less than a pipe holds.
    drop(stdin);
    let ended = time::timeout(settings.limits.start, control.exited()).await;
    drop(stdout);
    let Ok(exit) = ended else {
        control.end();
        let clean = time::timeout(settings.limits.term_grace + END_MARGIN, control.exited()).await.is_ok();
        let limit = settings.limits.start.as_millis();
        let late = unstarted(step, format!("claude did not look at the schema within {limit} ms"));
        return Err(PrepareError { clean, ..late });
    };
    // A refusal repeats what it is about, so its line may be longer than a tail.
    match config::schema_checked(exit.status, &control.stderr()) {
        Ok(()) => Ok(()),
        Err(Unchecked::Refused(refused)) => Err(unstarted(step, refused.to_string())),
        Err(Unchecked::Failed(status)) => {
            let how = match status {
                ExitStatus::Code(code) => format!("exit code {code}"),
                ExitStatus::Signal(signal) => format!("signal {signal}"),
            };
            Err(unstarted(step, format!("claude ended with {how} when it was to look at the schema")))
        }
    }
}

/// `initialize`; gives the version that the process says it has.
async fn initialize(opening: &mut Opening, request: &config::Initialize<'_>) -> Result<Option<String>, Trouble> {
    #[derive(Deserialize)]
    struct Initialized {
        claude_code_version: Option<String>,
        account: Option<Box<RawValue>>,
    }
    let told = ask(opening, "initialize", request).await?;
    let Some(Initialized { claude_code_version, account }) = told else { return Ok(None) };
    // One of another form says nothing (R-CAP-5).
    let account = account.and_then(|account| serde_json::from_str::<Account>(account.get()).ok());
    if account.is_some_and(|account| account.is_anonymous()) {
        return Err(Trouble::Refused(NO_KEY.to_owned()));
    }
    Ok(claude_code_version)
}

/// Whether the model will be asked for this effort: Claude Code takes a lower one for a model that has it not, or none, and says so here alone (R-CTL-2).
async fn check_effort(opening: &mut Opening, asked: &str, model: &str) -> Result<(), Trouble> {
    #[derive(Default, Deserialize)]
    struct Settings {
        applied: Option<Applied>,
    }
    #[derive(Deserialize)]
    struct Applied {
        effort: Option<String>,
    }
    let told: Settings = ask(opening, "settings", &config::get_settings()).await?.unwrap_or_default();
    let Some(Applied { effort }) = told.applied else {
        return Err(Trouble::Broken("it does not say which effort it asks for".to_owned()));
    };
    let other = match effort.as_deref() {
        Some(effort) if effort == asked => return Ok(()),
        Some(lower) => format!("claude code takes {lower} in its place"),
        None => "it has none".to_owned(),
    };
    Err(Trouble::Refused(format!("reasoning_effort cannot be {asked} for the model {model}: {other}")))
}

/// Has Claude Code connect to the declared MCP servers, looks what came of it, and says which of their tools may be used (R-PRE-5, R-MCP-5).
async fn connect(opening: &mut Opening, launch: &Launch, settings: &Settings) -> Result<Servers, Trouble> {
    let declared = &launch.configuration.mcp_servers;
    if declared.is_empty() {
        return Ok(Servers::default());
    }
    let keeper = start::keeper_of_servers(declared, settings, "claude_code").await.map_err(Trouble::Unfit)?;
    let named = mcp::set_servers(launch, &keeper, &[]).map_err(Trouble::Unfit)?;
    told(opening, "mcp_set_servers", &named).await?;
    let status = told(opening, "mcp_status", &mcp::ASK_STATUS).await?;
    let status = status.ok_or_else(|| Trouble::Broken("no answer to mcp_status".to_owned()))?;
    // The text of the error could repeat what it is about.
    let status = serde_json::from_str(status.get())
        .map_err(|error| Trouble::Broken(format!("unexpected answer to mcp_status, column {}", error.column())))?;
    let (tools, absent) = mcp::Tools::of(declared, &status).map_err(Trouble::Unfit)?;
    if !absent.is_empty() {
        // Else one that comes later would bring its tools.
        let named = mcp::set_servers(launch, &keeper, &absent).map_err(Trouble::Unfit)?;
        told(opening, "mcp_set_servers", &named).await?;
    }
    told(opening, "apply_flag_settings", &tools.rules()).await?;
    Ok(Servers { tools: Arc::new(tools), absent })
}

/// The answer to a request, as it is to be read.
async fn ask<T: DeserializeOwned>(
    opening: &mut Opening,
    id: &str,
    request: &impl Serialize,
) -> Result<Option<T>, Trouble> {
    let answer = told(opening, id, request).await?.map(|answer| serde_json::from_str(answer.get()));
    answer.transpose().map_err(|error| Trouble::Broken(format!("unexpected answer: {error}")))
}

/// Writes a request and waits for its answer. What the process asks meanwhile is declined.
async fn told(
    opening: &mut Opening,
    id: &str,
    request: &(impl Serialize + ?Sized),
) -> Result<Option<Box<RawValue>>, Trouble> {
    opening.write(write::request(id, request))?;
    loop {
        let line = opening.line().await?;
        match wire::read(&line) {
            Ok(Some(Line::Response(response))) if response.request_id == id => {
                return match response.success {
                    true => Ok(response.response),
                    false => Err(Trouble::Refused(response.error.unwrap_or_default())),
                };
            }
            // A start that failed: the process says why, and leaves.
            Ok(Some(Line::Result(result))) => return Err(Trouble::Refused(result.errors.join("; "))),
            Ok(Some(Line::Request(request))) => opening.write(write::decline(&request))?,
            Ok(_) => {}
            Err(error) => tracing::debug!(column = error.column(), "skipped a line that does not fit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_nothing_to_be_known_by_is_told_from_those_that_have() {
        for (account, want) in [
            (r#"{"tokenSource":"none","apiProvider":"firstParty"}"#, true),
            (r#"{"tokenSource":"none","apiKeySource":"ANTHROPIC_API_KEY"}"#, false),
            (r#"{"tokenSource":"ANTHROPIC_AUTH_TOKEN"}"#, false),
            ("{}", false),
        ] {
            assert_eq!(serde_json::from_str::<Account>(account).unwrap().is_anonymous(), want, "{account}");
        }
    }
}
