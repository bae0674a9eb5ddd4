//! From a launch to a ready Executor: the home, the functions, the process, `initialize`, `session/new` or the one that goes on with a history (R-PRE-1, R-PRE-2, R-PRE-4). No model
//! input is sent. Whatever fails ends the process before it is reported; a dropped preparation ends it as well, by dropping it.

use std::{
    borrow::Cow,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::sync::mpsc::error::TryRecvError;
use tokio_util::task::TaskTracker;

use super::{
    events::Names,
    executor::{Conversation, Functions, Opened},
    profile::{Agent, FUNCTIONS, Listing, Profile, SetUp},
    wire::{self, Http, MCP_HTTP, McpEntry, NOT_FOUND, Pair},
};
use crate::{
    function_server::{Address, FunctionServer, Happening},
    harness::{
        Executor, HistoryFault, Launch, McpKind, McpServer, McpTransport, Placement, PrepareError, Resume, Settings,
    },
    native::{
        lock::LockError,
        process,
        rpc::{self, Message, RpcError},
        stdio_server,
    },
    owner::{Opening, Step, Trouble, start, unstarted},
    probe::Found,
};

/// Held while a process has the Session's native history (R-PRE-4).
const LOCK: &str = "acp.lock";
/// What is known of the conversation of a Session.
const RECORD: &str = "acp-session.json";

/// Prepares an Executor.
pub(super) async fn prepare(
    agent: &Arc<dyn Agent>,
    settings: &Settings,
    found: Found,
    launch: Launch,
    tasks: &TaskTracker,
) -> Result<Executor, PrepareError> {
    let profile = agent.profile();
    if let Some(trouble) = found.trouble {
        return Err(unstarted("spawn", trouble));
    }
    if launch.resume.is_some() && !profile.resumes {
        let message = format!("{} does not prove which history it goes on with", profile.name);
        return Err(PrepareError { history: Some(HistoryFault::Foreign), ..unstarted("session", message) });
    }
    if let Placement::Workspace { directory, .. } = &launch.configuration.placement {
        let workspace = launch.workspace.as_deref().unwrap_or(directory);
        start::still_there(workspace, settings).await.map_err(|message| unstarted("workspace", message))?;
    }
    let servers = &launch.configuration.mcp_servers;
    let keeper =
        start::keeper_of_servers(servers, settings, profile.kind).await.map_err(|why| unstarted("mcp", why))?;
    // ORDER: what an agent has is not written while another one may use it.
    let lock = start::lock(&launch.home.join(LOCK)).await.map_err(|error| PrepareError {
        history: matches!(error, LockError::Held { .. }).then_some(HistoryFault::Locked),
        ..unstarted("session", error.to_string())
    })?;
    let set_up = agent.set_up(settings, &found, &launch).await?;
    let functions = match launch.configuration.functions.is_empty() {
        true => None,
        false => {
            let served = FunctionServer::start(&launch.configuration.functions, tasks).await;
            let (server, happenings) =
                served.map_err(|error| unstarted("functions", format!("serve the functions: {error}")))?;
            Some(Functions {
                server,
                happenings,
                listed: false,
                patience: match profile.listing {
                    Listing::AtOpening => Duration::ZERO,
                    Listing::InTurn(within) => settings.limits.functions_listed.max(within),
                },
            })
        }
    };
    let SetUp { program, arguments, environment, directory, package, settings: native_settings, options } = set_up;
    let process = process::Launch {
        keeper: settings.keeper.clone(),
        program,
        args: arguments,
        directory: directory.clone(),
        environment,
        mark: launch.mark.clone(),
        grace: settings.limits.term_grace,
        user: settings.user.clone(),
    };
    let mut opening = Opening::start(profile.name, settings, &launch, process, |_| true)
        .await
        .map_err(|error| unstarted("spawn", error.to_string()))?;
    if let Some(functions) = &functions {
        opening.cleaner.hide(functions.server.address().bearer.clone());
    }
    let mut talk = Talk { opening, next_id: 1, profile, functions, keeper: &keeper };
    let (id, version) = match talk.open(&launch, &directory, &options).await {
        Ok(opened) => opened,
        Err((step, trouble)) => return Err(talk.opening.fail(step, trouble).await),
    };
    let Talk { opening, next_id, functions, .. } = talk;
    let model = options.into_iter().find(|(option, _)| option == "model");
    let names = Names::of(&**agent, &launch.configuration);
    // One without a prompt is no history: nobody is told its id (R-PRE-4).
    let unrecorded = launch.resume.is_none().then(|| launch.home.clone());
    let opened = Opened { agent: Arc::clone(agent), id: id.clone(), next_id, names, functions, model, unrecorded };
    let native = Conversation::new(opened);
    let (orders, reports, keeper) = opening.own(native, lock, package, tasks).await?;
    let version = version.or(found.version).unwrap_or_default();
    Ok(Executor { orders, reports, version, native_session_id: id, settings: native_settings, keeper })
}

/// Which conversation a home has, and of which Harness: all that speak ACP write such a record.
#[derive(Deserialize, Serialize)]
struct Record<'a> {
    harness: Cow<'a, str>,
    session: Cow<'a, str>,
}

fn record_path(home: &Path) -> PathBuf {
    home.join(RECORD)
}

/// Writes down which conversation the Session's home has.
pub(super) fn record(kind: &str, home: &Path, id: &str) -> io::Result<()> {
    let text = serde_json::to_string(&Record { harness: kind.into(), session: id.into() })?;
    crate::native::user::write_own(&record_path(home), &text, None)
}

/// Whether the home has the conversation that is meant: by what the bridge wrote down, since the agent's own history is not read (R-PRE-4).
pub(super) fn check_history(kind: &str, home: &Path, resume: &Resume) -> Result<(), HistoryFault> {
    let text = match std::fs::read_to_string(record_path(home)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(HistoryFault::Missing),
        Err(_) => return Err(HistoryFault::Corrupt),
    };
    match serde_json::from_str::<Record<'_>>(&text) {
        Ok(record) if record.harness != kind => Err(HistoryFault::Missing),
        Ok(record) if record.session == resume.native_session_id => Ok(()),
        Ok(_) => Err(HistoryFault::Foreign),
        Err(_) => Err(HistoryFault::Corrupt),
    }
}

/// A process that is being talked into a conversation.
struct Talk<'a> {
    opening: Opening,
    next_id: u64,
    profile: &'a Profile,
    functions: Option<Functions>,
    /// The program that becomes a server that is a process.
    keeper: &'a Path,
}

/// Why there is no answer.
enum Refusal {
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

impl Talk<'_> {
    /// Gives the conversation and the version that the agent says it has.
    async fn open(
        &mut self,
        launch: &Launch,
        directory: &Path,
        options: &[(String, String)],
    ) -> Result<(String, Option<String>), (Step, Trouble)> {
        let at = |step: Step| move |trouble: Trouble| (step, trouble);
        let initialized = self.initialize().await.map_err(at("initialize"))?;
        if let Some(lacks) = lacks(self.profile, &initialized, launch) {
            return Err(at("initialize")(Trouble::Unfit(lacks)));
        }
        let servers = self.servers(launch).map_err(at("mcp"))?;
        let opened = self.converse(launch, directory, &servers, &initialized).await.map_err(at("session"))?;
        let (id, mut standing) = opened;
        for (option, value) in options {
            standing = self.set(&id, option, value, standing).await.map_err(at("options"))?;
        }
        if self.profile.listing == Listing::AtOpening {
            self.await_functions().await.map_err(at("functions"))?;
        }
        Ok((id, initialized.version().map(str::to_owned)))
    }

    async fn initialize(&mut self) -> Result<wire::Initialized, Trouble> {
        let initialized: wire::Initialized = self.asked("initialize", &wire::initialize()).await?;
        let name = self.profile.name;
        initialized.fits().map_err(|why| Trouble::Unfit(format!("{name} does not fit: {why}")))?;
        Ok(initialized)
    }

    /// The servers as the agent is told of them.
    fn servers(&self, launch: &Launch) -> Result<Vec<McpEntry>, Trouble> {
        let header = |name: &str, value: &str| Pair { name: name.to_owned(), value: value.to_owned() };
        let bearer =
            |token: &secrecy::SecretString| header("Authorization", &format!("Bearer {}", token.expose_secret()));
        let http = |name: &str, url: &str, headers| McpEntry::Http {
            kind: Http::Http,
            name: name.to_owned(),
            url: url.to_owned(),
            headers,
        };
        let declared = launch.configuration.mcp_servers.iter().map(|server| match &server.transport {
            McpTransport::Http { url, headers, bearer: wants_bearer } => {
                let own = headers.iter().map(|(name, value)| header(name, value));
                let token = launch.mcp_bearers.get(&server.label).filter(|_| *wants_bearer).map(bearer);
                Ok(http(&server.label, url, own.chain(token).collect()))
            }
            McpTransport::Stdio { command, args, env_vars, .. } => {
                let keeper = self.keeper.to_str().ok_or("the path of the keeper is not UTF-8")?;
                let variables =
                    stdio_server::environment(&server.label, command, args, env_vars, &launch.mcp_variables)?;
                Ok(McpEntry::Stdio {
                    name: server.label.clone(),
                    command: keeper.to_owned(),
                    args: [stdio_server::MODE],
                    env: variables.into_iter().map(|(name, value)| Pair { name, value }).collect(),
                })
            }
        });
        let functions = self.functions.as_ref().map(|functions| {
            let Address { url, bearer: token } = functions.server.address();
            Ok(http(FUNCTIONS, url, vec![bearer(token)]))
        });
        functions.into_iter().chain(declared).collect::<Result<_, String>>().map_err(Trouble::Unfit)
    }

    /// Opens the conversation, or goes on with this one and no other (R-PRE-4). What is told before the answer is a replay.
    async fn converse(
        &mut self,
        launch: &Launch,
        cwd: &Path,
        mcp_servers: &[McpEntry],
        told: &wire::Initialized,
    ) -> Result<(String, Vec<wire::ConfigOption>), Trouble> {
        let Some(resume) = &launch.resume else {
            let opened: wire::Opened =
                self.asked("session/new", &wire::Open { session_id: None, cwd, mcp_servers }).await?;
            let id = opened.session_id.filter(|id| !id.is_empty());
            let id = id.ok_or_else(|| Trouble::Broken("the session has no id".to_owned()))?;
            return Ok((id, opened.config_options));
        };
        // Without a replay where the agent can.
        let methods = [("/sessionCapabilities/resume", "session/resume"), ("/loadSession", "session/load")];
        let method = methods.into_iter().find(|(pointer, _)| told.can(pointer));
        let Some((_, method)) = method else {
            return Err(Trouble::Unfit(format!("{} does not say that it goes on with a session", self.profile.name)));
        };
        let id = &resume.native_session_id;
        let params = wire::Open { session_id: Some(id), cwd, mcp_servers };
        let unknown = |code: i64| code == NOT_FOUND || self.profile.unknown_session.contains(&code);
        let answer = self.ask(method, &params).await.map_err(|refusal| match refusal {
            Refusal::By(error) if unknown(error.code) => Trouble::NoHistory(HistoryFault::Missing, error.message),
            refusal => refusal.into(),
        })?;
        // The answer need not name it; where it does, it is this one. It may be `null`.
        let opened: Option<wire::Opened> = read(&answer)?;
        let opened = opened.unwrap_or_default();
        if opened.session_id.is_some_and(|told| told != *id) {
            return Err(Trouble::Other);
        }
        Ok((id.clone(), opened.config_options))
    }

    /// Sets an option, unless it has the value; the answer must show it.
    async fn set(
        &mut self,
        id: &str,
        option: &str,
        value: &str,
        standing: Vec<wire::ConfigOption>,
    ) -> Result<Vec<wire::ConfigOption>, Trouble> {
        let has = |options: &[wire::ConfigOption]| {
            let of = options.iter().find(|one| one.id == option).and_then(|one| one.current_value.as_ref());
            of.is_some_and(|current| current.as_str() == Some(value))
        };
        if has(&standing) {
            return Ok(standing);
        }
        let params = wire::SetOption { session_id: id, config_id: option, value };
        let now: wire::Opened = self.asked("session/set_config_option", &params).await?;
        match has(&now.config_options) {
            true => Ok(now.config_options),
            false => Err(Trouble::Unfit(format!("{} did not take {value} for its option {option}", self.profile.name))),
        }
    }

    /// The functions are listed when the conversation is opened: without that the model would not have them.
    async fn await_functions(&mut self) -> Result<(), Trouble> {
        let Some(functions) = &mut self.functions else { return Ok(()) };
        while !functions.listed {
            match functions.happenings.try_recv() {
                Ok(happening) => functions.listed |= matches!(happening, Happening::Listed),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    let name = self.profile.name;
                    return Err(Trouble::Unfit(format!(
                        "{name} did not ask for the functions, so that its model would not have them"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The answer to a request, as it is to be read.
    async fn asked<T: DeserializeOwned>(&mut self, method: &str, params: &impl Serialize) -> Result<T, Trouble> {
        let answer = self.ask(method, params).await?;
        read(&answer)
    }

    /// Writes a request and reads up to its answer. What the agent asks meanwhile is declined, what it tells is skipped.
    async fn ask(&mut self, method: &str, params: &impl Serialize) -> Result<Box<RawValue>, Refusal> {
        let id = self.next_id;
        self.next_id += 1;
        self.opening.write(wire::request(id, method, params))?;
        loop {
            let line = self.opening.line().await?;
            match rpc::parse(&line) {
                Ok(Message::Response { id: told, outcome }) if told == id => {
                    return outcome.map(ToOwned::to_owned).map_err(Refusal::By);
                }
                Ok(Message::Request { id, method, .. }) => self.opening.write(wire::decline(id, &method))?,
                Ok(Message::Notification { .. } | Message::Response { .. }) => {}
                Err(malformed) => tracing::debug!(%malformed, "skipped a line"),
            }
        }
    }
}

/// What this launch needs and the agent says that it has not: else it would be without it, and nothing would say so.
fn lacks(profile: &Profile, told: &wire::Initialized, launch: &Launch) -> Option<String> {
    let configuration = &launch.configuration;
    let is_http = |server: &McpServer| server.transport.kind() == McpKind::Http;
    let is_needed = !configuration.functions.is_empty() || configuration.mcp_servers.iter().any(is_http);
    (is_needed && !told.can(MCP_HTTP)).then(|| {
        format!("{} does not say that it connects to servers over HTTP (agentCapabilities{MCP_HTTP})", profile.name)
    })
}

fn read<T: DeserializeOwned>(answer: &RawValue) -> Result<T, Trouble> {
    serde_json::from_str(answer.get())
        .map_err(|error| Trouble::Broken(format!("unexpected answer, column {}", error.column())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resume(id: &str) -> Resume {
        Resume { native_session_id: id.to_owned(), last_turn: None, instructions_changed: false }
    }

    #[test]
    fn a_history_is_the_one_that_was_written_down() {
        let home = std::env::current_exe().unwrap().with_file_name(format!("acp-start-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&home);
        std::fs::create_dir_all(&home).unwrap();
        assert_eq!(check_history("oc", &home, &resume("a")), Err(HistoryFault::Missing));
        record("oc", &home, "a").unwrap();
        assert_eq!(check_history("oc", &home, &resume("a")), Ok(()));
        assert_eq!(check_history("oc", &home, &resume("b")), Err(HistoryFault::Foreign));
        assert_eq!(check_history("other", &home, &resume("a")), Err(HistoryFault::Missing));
        std::fs::write(record_path(&home), "{\"session\":").unwrap();
        assert_eq!(check_history("oc", &home, &resume("a")), Err(HistoryFault::Corrupt));
        std::fs::remove_dir_all(&home).unwrap();
    }
}
