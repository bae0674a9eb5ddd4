//! From a launch to a ready Executor: the home, the process, `initialize`, `thread/start` or `thread/resume` (R-PRE-1, R-PRE-2, R-PRE-4). No model input is sent. Whatever
//! fails ends the process before it is reported; a dropped preparation ends it as well, by dropping it.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::value::RawValue;
use tokio_util::task::TaskTracker;

use super::{
    Catalogue, Settings, admission, catalogue,
    config::{self, Place},
    declaration,
    executor::{Opened, Thread},
    servers::{self, Standings},
    wire,
};
use crate::{
    harness::{Executor, HistoryFault, Launch, McpServer, Placement, PrepareError, Resume},
    native::{
        environment::Environment,
        lock::LockError,
        process::{self},
        rpc::{self, Message, RpcError},
    },
    owner::{Opening, Step, Trouble, start, unstarted},
    probe::Found,
};

/// A process with this variable has no environment that a Turn could name (R-CTL-4).
const EXEC_SERVER: (&str, &str) = ("CODEX_EXEC_SERVER_URL", "none");
/// The step that is about MCP servers.
const MCP: Step = "mcp";
/// Held while a process has the Session's native history (R-PRE-4).
const LOCK: &str = "codex.lock";
/// JSON-RPC: something went wrong inside, which for a resume is the reading of the history.
const INTERNAL_ERROR: i64 = -32603;
/// JSON-RPC: there is no such method.
pub(super) const METHOD_NOT_FOUND: i64 = -32601;

/// Prepares an Executor.
pub(super) async fn prepare(
    settings: &Settings,
    found: Found,
    bundled: Catalogue<'_>,
    launch: Launch,
    tasks: &TaskTracker,
) -> Result<Executor, PrepareError> {
    let Found { program: Some(program), version, trouble: None } = found else {
        let trouble = found.trouble.unwrap_or_else(|| "codex was not found".to_owned());
        return Err(unstarted("spawn", trouble));
    };
    let on_workspace = matches!(launch.configuration.placement, Placement::Workspace { .. });
    if settings.trust_workspace && on_workspace && launch.holds_key {
        return Err(unstarted("configuration", "the workspace cannot be trusted beside a model key".to_owned()));
    }
    let empty = launch.home.join("empty");
    let models = match on_workspace {
        true => None,
        false => models(&launch, bundled).await.map_err(|message| unstarted("models", message))?,
    };
    let place = match &launch.configuration.placement {
        Placement::Workspace { directory, .. } => Place::Workspace(launch.workspace.as_deref().unwrap_or(directory)),
        Placement::None => Place::Nowhere { directory: &empty, catalogue: models.as_deref() },
    };
    let surroundings = config::Surroundings {
        place,
        isolation: settings.isolation,
        trust_workspace: settings.trust_workspace,
        model_key: launch.model_key.as_ref(),
        servers: servers::of(&launch, settings.limits.mcp_start),
        resume: launch.resume.as_ref().map(|resume| &*resume.native_session_id),
    };
    let thread = config::thread_start(&launch.configuration, surroundings)
        .map_err(|refused| unstarted("configuration", refused.to_string()))?;
    let output_schema =
        launch.configuration.controls.output_schema.as_deref().map(admission::output_schema).transpose();
    let output_schema = output_schema.map_err(|refused| unstarted("configuration", refused.to_string()))?;
    if let Place::Workspace(workspace) = place {
        start::still_there(workspace).map_err(|message| unstarted("workspace", message))?;
    }
    if !launch.configuration.mcp_servers.is_empty() {
        check_stored(&launch.home).map_err(|message| unstarted(MCP, message))?;
    }
    let home =
        write_home(&launch, place).map_err(|error| unstarted("spawn", format!("write the home of codex: {error}")))?;
    let lock = start::lock(&launch.home.join(LOCK)).await.map_err(|error| PrepareError {
        history: matches!(error, LockError::Held { .. }).then_some(HistoryFault::Locked),
        ..unstarted("session", error.to_string())
    })?;

    let qualified = version.as_deref() == Some(declaration::QUALIFIED);
    let strict = qualified.then_some("--strict-config");
    let package = program.parent().and_then(|folder| folder.canonicalize().ok()).unwrap_or_else(|| program.clone());
    let environment = Environment::base(&launch.home.join("user"), &launch.temporary).set("CODEX_HOME", home);
    let environment = if place.is_nowhere() { environment.set(EXEC_SERVER.0, EXEC_SERVER.1) } else { environment };
    let process = process::Launch {
        keeper: settings.keeper.clone(),
        program,
        args: ["app-server"].into_iter().chain(strict).map(Into::into).collect(),
        directory: place.directory().to_owned(),
        environment,
        mark: launch.mark.clone(),
        grace: settings.limits.term_grace,
    };
    let opening = Opening::start("codex", settings, &launch, process, wire::is_read)
        .await
        .map_err(|error| unstarted("spawn", error.to_string()))?;
    let servers = Standings::new(&launch.configuration.mcp_servers);
    let mut talk = Talk { opening, next_id: 1, used: wire::Tokens::default(), servers };
    let (native_session_id, told) = match talk.open(&thread, &launch, place, settings).await {
        Ok(opened) => opened,
        Err((step, trouble)) => return Err(talk.opening.fail(step, trouble).await),
    };
    let thread = Thread::new(Opened {
        id: native_session_id.clone(),
        home: codex_home(&launch.home),
        nowhere: place.is_nowhere(),
        output_schema,
        next_id: talk.next_id,
        used: talk.used,
        functions: launch.configuration.functions.iter().map(|function| function.name.clone()).collect(),
        servers: talk.servers,
    });
    let (orders, reports, keeper) = talk.opening.own(thread, lock, package, tasks).await?;
    let settings = config::settings(settings.isolation, settings.trust_workspace, place.is_nowhere());
    let version = told.or(version).unwrap_or_default();
    Ok(Executor { orders, reports, version, native_session_id, settings, keeper })
}

/// Codex's home within that of a Session.
pub(super) fn codex_home(home: &Path) -> PathBuf {
    home.join("codex")
}

/// What a login at an MCP server got would go to whatever is declared under its name: the bridge knows of none (R-MCP-2, R-MCP-6).
fn check_stored(home: &Path) -> Result<(), String> {
    match codex_home(home).join(servers::STORED_CREDENTIALS).symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) | Err(_) => {
            let file = servers::STORED_CREDENTIALS;
            Err(format!("the Session's home has stored credentials of MCP servers (codex/{file}); remove that file"))
        }
    }
}

/// Makes the private folders and the start-up file. A file of an earlier start is replaced: Codex writes into it.
fn write_home(launch: &Launch, place: Place<'_>) -> io::Result<PathBuf> {
    let home = codex_home(&launch.home);
    start::make_folder(&home)?;
    start::make_folder(&launch.home.join("user"))?;
    if let Place::Nowhere { directory, .. } = place {
        start::make_folder(directory)?;
    }
    start::write_file(&home.join("config.toml"), &config::start_up_file(&launch.mark, place.is_nowhere()))?;
    Ok(home)
}

/// Writes the catalogue in which the Session's model has no native tools; none where the bundled one does not name it.
async fn models(launch: &Launch, bundled: Catalogue<'_>) -> Result<Option<PathBuf>, String> {
    let bundled = bundled.await?;
    let (model, home) = (launch.configuration.model.clone(), launch.home.clone());
    let work = move || {
        let changed = catalogue::without_tools(&bundled, &model)
            .map_err(|error| format!("the catalogue of models cannot be read: {error}"))?;
        let Some(text) = changed else { return Ok(None) };
        let path = home.join("models.json");
        start::write_file(&path, &text).map_err(|error| format!("write the catalogue of models: {error}"))?;
        Ok(Some(path))
    };
    // It is as long as a book.
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err("the catalogue of models was not written".to_owned()))
}

/// Why there is no answer.
enum Refusal {
    /// Codex refused.
    By(RpcError),
    Other(Trouble),
}

impl From<Trouble> for Refusal {
    fn from(trouble: Trouble) -> Self {
        Self::Other(trouble)
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::By(error) => Self::Refused(error.message),
            Refusal::Other(trouble) => trouble,
        }
    }
}

/// A process that is being talked into a thread.
struct Talk {
    opening: Opening,
    next_id: u64,
    /// Tokens that a resumed thread had used: what a Turn uses is counted from there (R-EVT-4).
    used: wire::Tokens,
    /// Which MCP servers are there.
    servers: Standings,
}

impl Talk {
    /// `initialize`, then `thread/start` or `thread/resume`; gives the thread and the version that the process says it has.
    async fn open(
        &mut self,
        thread: &config::ThreadStart<'_>,
        launch: &Launch,
        place: Place<'_>,
        settings: &Settings,
    ) -> Result<(String, Option<String>), (Step, Trouble)> {
        let at = |step: Step| move |trouble| (step, trouble);
        let answer =
            self.ask("initialize", &config::initialize()).await.map_err(Trouble::from).map_err(at("initialize"))?;
        let initialized: wire::Initialized = read(&answer).map_err(at("initialize"))?;
        let no_params = serde_json::Map::new();
        self.opening.write(rpc::notification("initialized", &no_params)).map_err(at("initialize"))?;

        let declared = &launch.configuration.mcp_servers;
        if !declared.is_empty() {
            let trusted = settings.trust_workspace && !place.is_nowhere();
            self.check_servers(declared, place.directory(), trusted).await.map_err(at(MCP))?;
        }
        let id = match &launch.resume {
            None => self.start(thread, place, settings).await,
            Some(resume) => self.resume(thread, resume, launch, place, settings).await,
        };
        let id = id.map_err(|trouble| match &trouble {
            Trouble::Refused(text) if servers::is_missing_one(text) => (MCP, trouble),
            _ => ("session", trouble),
        })?;
        self.await_servers().await.map_err(at(MCP))?;
        Ok((id, version(&initialized.user_agent)))
    }

    /// Refuses servers of the machine's or the project's own that would be merged with declared ones (R-MCP-2).
    async fn check_servers(&mut self, declared: &[McpServer], cwd: &Path, trusted: bool) -> Result<(), Trouble> {
        let answer = self.ask("config/read", &wire::servers::ReadConfig { include_layers: true, cwd }).await?;
        match servers::conflict(declared, &read(&answer)?, trusted) {
            Some(conflict) => Err(Trouble::Unfit(conflict)),
            None => Ok(()),
        }
    }

    /// Waits until it is known of each MCP server whether it is there: Codex gives each its time and then up, while the first request to the model would not
    /// wait for it, and go out without its tools (R-PRE-5).
    async fn await_servers(&mut self) -> Result<(), Trouble> {
        while !self.servers.are_known() {
            match self.opening.line().await {
                Ok(line) => drop(self.heard(&line, None)?),
                Err(Trouble::Late) => break,
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(())
    }

    async fn start(
        &mut self,
        thread: &config::ThreadStart<'_>,
        place: Place<'_>,
        settings: &Settings,
    ) -> Result<String, Trouble> {
        let answer = self.ask("thread/start", thread).await?;
        let started: wire::ThreadStarted = read(&answer)?;
        check_policy(&started, place, settings)?;
        if started.thread.id.is_empty() {
            return Err(Trouble::Broken("the thread has no id".to_owned()));
        }
        Ok(started.thread.id)
    }

    /// Resumes this thread and no other (R-PRE-4), and gives changed instructions (R-PRE-6). No model input is sent.
    async fn resume(
        &mut self,
        thread: &config::ThreadStart<'_>,
        resume: &Resume,
        launch: &Launch,
        place: Place<'_>,
        settings: &Settings,
    ) -> Result<String, Trouble> {
        let id = &resume.native_session_id;
        let answer = self.ask("thread/resume", thread).await.map_err(|refusal| match refusal {
            Refusal::By(error) if servers::is_missing_one(&error.message) => Trouble::Refused(error.message),
            Refusal::By(error) => match history_fault(&error) {
                Some(fault) => Trouble::NoHistory(fault, error.message),
                None => Trouble::Refused(error.message),
            },
            Refusal::Other(trouble) => trouble,
        })?;
        let resumed: wire::ThreadStarted = read(&answer)?;
        if resumed.thread.id != *id {
            return Err(Trouble::Other);
        }
        check_policy(&resumed, place, settings)?;
        check_taken(&resumed, launch)?;
        let instructions = &launch.configuration.instructions;
        if resume.instructions_changed && !instructions.is_empty() {
            self.opening.changed_history = true;
            self.ask("thread/inject_items", &config::instructions(id, instructions)).await?;
        }
        Ok(resumed.thread.id)
    }

    /// Writes a request and reads up to its answer. What Codex asks meanwhile is refused, what it tells is skipped.
    async fn ask(&mut self, method: &str, params: &impl Serialize) -> Result<Box<RawValue>, Refusal> {
        let id = self.next_id;
        self.next_id += 1;
        self.opening.write(rpc::request(id, method, params))?;
        loop {
            let line = self.opening.line().await?;
            if let Some(outcome) = self.heard(&line, Some(id))? {
                return outcome.map_err(Refusal::By);
            }
        }
    }

    /// Takes a line; gives the answer to what was asked, where it is that.
    fn heard(&mut self, line: &[u8], asked: Option<u64>) -> Result<Option<Result<Box<RawValue>, RpcError>>, Trouble> {
        match rpc::parse(line) {
            Ok(Message::Response { id, outcome }) if Some(id) == asked => {
                return Ok(Some(outcome.map(ToOwned::to_owned)));
            }
            Ok(Message::Request { id, .. }) => {
                self.opening.write(Ok(rpc::refusal(id, METHOD_NOT_FOUND, "not before the thread")))?;
            }
            Ok(Message::Notification { method, params }) => self.told(&method, params),
            Ok(Message::Response { .. }) => tracing::debug!("answer to nothing that was asked"),
            Err(malformed) => tracing::debug!(%malformed, "skipped a line"),
        }
        Ok(None)
    }

    /// Of what is told before the thread, only what it had used counts, and which MCP servers are there.
    fn told(&mut self, method: &str, params: Option<&RawValue>) {
        match wire::Notification::read(method, params) {
            Ok(Some(wire::Notification::TokenUsage(notice))) => self.used = notice.token_usage.total,
            Ok(Some(wire::Notification::Server(notice))) => drop(self.servers.told(notice)),
            Ok(_) | Err(_) => tracing::trace!(%method, "told before the thread"),
        }
    }
}

fn read<'a, T: serde::Deserialize<'a>>(answer: &'a RawValue) -> Result<T, Trouble> {
    serde_json::from_str(answer.get()).map_err(|error| Trouble::Broken(format!("unexpected answer: {error}")))
}

/// Managed requirements of the machine can replace what was asked for; a Session is never run with another policy than its own (R-PLC-1).
fn check_policy(started: &wire::ThreadStarted, place: Place<'_>, settings: &Settings) -> Result<(), Trouble> {
    let approval = started.approval_policy.as_deref().map(RawValue::get);
    let sandbox = started.sandbox.as_ref().map(|sandbox| sandbox.kind.as_str());
    let want_approval = config::APPROVAL_POLICY;
    let (_, want_sandbox) = config::sandbox(settings.isolation, place.is_nowhere());
    if approval.is_some_and(|told| told.trim_matches('"') != want_approval) {
        return Err(Trouble::Broken(format!("it did not take the approval policy {want_approval}")));
    }
    if sandbox.is_some_and(|told| told != want_sandbox) {
        return Err(Trouble::Broken(format!("it did not take the sandbox {want_sandbox}")));
    }
    Ok(())
}

/// What a refusal of `thread/resume` says of the history. Codex has one code for nearly everything, so its words tell the cases apart; what they
/// do not tell is no matter of the history.
fn history_fault(error: &RpcError) -> Option<HistoryFault> {
    let says = |text: &str| error.message.contains(text);
    if says("no rollout found") || says("invalid session id") || says("is archived") {
        Some(HistoryFault::Missing)
    } else if says("already has an active writer") {
        Some(HistoryFault::Locked)
    } else if says("belongs to thread") {
        Some(HistoryFault::Foreign)
    } else {
        (error.code == INTERNAL_ERROR).then_some(HistoryFault::Corrupt)
    }
}

/// A resumed thread must run as it was asked to, not as it was started (B-105).
fn check_taken(resumed: &wire::ThreadStarted, launch: &Launch) -> Result<(), Trouble> {
    let other = |what: &str| Err(Trouble::Broken(format!("the resumed thread did not take the {what}")));
    if resumed.model.as_ref().is_some_and(|told| *told != launch.configuration.model) {
        return other("model");
    }
    if resumed.model_provider.as_ref().is_some_and(|told| told != config::PROVIDER) {
        return other("model provider");
    }
    if resumed.cwd.as_ref().zip(launch.workspace.as_ref()).is_some_and(|(told, asked)| told != asked) {
        return other("directory");
    }
    Ok(())
}

/// The version in "runtime-bridge/0.171.0 (…)".
fn version(user_agent: &str) -> Option<String> {
    let version = user_agent.split_once('/')?.1.split_whitespace().next()?;
    version.starts_with(|first: char| first.is_ascii_digit()).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_stands_behind_our_name() {
        assert_eq!(version("runtime-bridge/0.171.0 (Linux; x86_64) unknown (x; 1)").as_deref(), Some("0.171.0"));
        for odd in ["", "runtime-bridge", "runtime-bridge/", "runtime-bridge/x"] {
            assert_eq!(version(odd), None, "{odd}");
        }
    }
}
