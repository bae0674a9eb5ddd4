//! The daemon's settings: flags over `RUNTIME_BRIDGE_*` over the configuration file over defaults.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use adapters::{
    acp::Configured,
    harness::{Isolation, ModelProvider},
    native::user::User,
};
use secrecy::SecretString;

use crate::{
    gateway::{ConnectLimits, Guard, Guards, Origin, StreamLimits},
    link,
};

mod file;
mod listen;
mod logs;
mod loopback;
mod places;
mod user;

pub(crate) use listen::Listen;
pub(crate) use logs::LogFormat;
pub(crate) use loopback::{Asked as AskedLoopback, Loopback};
pub(crate) use places::{config_file as default_file, relay_state};

/// Everything that an operator decides.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// State directory.
    pub(crate) state: PathBuf,
    /// Unix socket.
    pub(crate) socket: PathBuf,
    /// Uids that may connect.
    pub(crate) allowed_uids: Vec<u32>,
    /// Uids whose callers are operators (R-ASG-5).
    pub(crate) operator_uids: Vec<u32>,
    /// Whether a peer that descends from a Harness is refused (R-SEC-1).
    pub(crate) refuse_tools: bool,
    /// Whom Harnesses run under, as it was asked for; none is the daemon's own user.
    pub(crate) harness_user: Option<String>,
    /// Directories below which a workspace may lie.
    pub(crate) workspace_roots: Vec<PathBuf>,
    /// Who isolates a Harness; `None` decides by whether this is a container.
    pub(crate) isolation: Option<Isolation>,
    /// Whether a Harness loads the project's own configuration; `None` decides by what that could do.
    pub(crate) trust_workspace: Option<bool>,
    /// The keeper's program; `None` looks beside the daemon.
    pub(crate) keeper: Option<PathBuf>,
    /// Filter of the logs.
    pub(crate) log: String,
    /// Form of the logs; `None` decides by whether standard error is a terminal.
    pub(crate) log_format: Option<LogFormat>,
    /// The plain listener on loopback, as it was asked for.
    pub(crate) loopback: AskedLoopback,
    /// Listeners with mutual TLS.
    pub(crate) listen: Vec<Listen>,
    /// Executors that may exist at once; `None` decides by the machine (R-PRE-3).
    pub(crate) max_executors: Option<u32>,
    /// The Codex program; `None` looks on `PATH`.
    pub(crate) codex: Option<PathBuf>,
    /// The Claude Code program; `None` looks on `PATH`.
    pub(crate) claude_code: Option<PathBuf>,
    /// The MiniMax Code program; `None` looks on `PATH`.
    pub(crate) minimax_code: Option<PathBuf>,
    /// Agents behind ACP that the operator names, each with a kind of its own.
    pub(crate) agents: Vec<Configured>,
    /// Model providers that Core may name.
    pub(crate) providers: Providers,
    /// Whether the gateway keeps model keys away from Harnesses (R-SEC-3).
    pub(crate) gateway: bool,
    /// Origins that the outbound guard lets through, whatever they are (R-SEC-4).
    pub(crate) allow_origins: Vec<Origin>,
    /// Whether the guard judges MCP servers that the Environment reaches, too (R-MCP-7).
    pub(crate) guard_environment: bool,
    /// Limits of waiting and size.
    pub(crate) limits: Limits,
}

/// Limits of waiting and size; each is configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) handle_life: Duration,
    pub(crate) result_evidence: Duration,
    pub(crate) input_write: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) harness_probe: Duration,
    pub(crate) harness_start: Duration,
    pub(crate) interrupt: Duration,
    pub(crate) settlement: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) idle: Duration,
    pub(crate) watch: Duration,
    pub(crate) max_line_bytes: usize,
    pub(crate) spool_bytes: usize,
    pub(crate) turn_memory_bytes: usize,
    pub(crate) quiet: Duration,
    pub(crate) retry: Duration,
    pub(crate) observer: Duration,
    pub(crate) turn_log_bytes: usize,
    pub(crate) turn_held_bytes: usize,
    pub(crate) unstored_call: Duration,
    pub(crate) retention: Duration,
    pub(crate) retention_check: Duration,
    pub(crate) state_bytes: usize,
    pub(crate) connect_address: Duration,
    pub(crate) connect: Duration,
    /// Of one answer of a model provider.
    pub(crate) stream: StreamLimits,
    /// Of one answer of an MCP server, or of one event of an answer that is a stream.
    pub(crate) mcp_bytes: u64,
    /// For an MCP server to be there.
    pub(crate) mcp_start: Duration,
    /// For the functions to be listed by a Harness that asks for them in the Turn.
    pub(crate) functions_listed: Duration,
    /// For the handshake of TLS of a caller.
    pub(crate) handshake: Duration,
    /// For a caller to begin with HTTP/2.
    pub(crate) opening: Duration,
}

impl Limits {
    /// Of one connection to a model provider.
    pub(crate) fn connect(&self) -> ConnectLimits {
        ConnectLimits { address: self.connect_address, whole: self.connect }
    }

    /// Of one connection of a caller.
    pub(crate) fn link(&self) -> link::Limits {
        link::Limits { handshake: self.handshake, opening: self.opening }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handle_life: Duration::from_secs(300),
            result_evidence: Duration::from_secs(10),
            input_write: Duration::from_secs(10),
            keep_alive: Duration::from_secs(15),
            harness_probe: Duration::from_secs(10),
            harness_start: Duration::from_secs(20),
            interrupt: Duration::from_secs(2),
            settlement: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(25),
            idle: Duration::from_secs(30 * 60),
            watch: Duration::from_secs(15),
            max_line_bytes: 64 << 20,
            spool_bytes: 1 << 20,
            turn_memory_bytes: 1 << 20,
            quiet: Duration::from_secs(600),
            retry: Duration::from_secs(600),
            observer: Duration::from_secs(10),
            turn_log_bytes: 1 << 30,
            turn_held_bytes: 8 << 20,
            unstored_call: Duration::from_secs(30),
            retention: Duration::from_hours(7 * 24),
            retention_check: Duration::from_mins(10),
            state_bytes: 10 << 30,
            connect_address: Duration::from_secs(10),
            connect: Duration::from_secs(30),
            stream: StreamLimits::default(),
            mcp_bytes: 64 << 20,
            mcp_start: Duration::from_secs(10),
            functions_listed: Duration::from_secs(2),
            handshake: Duration::from_secs(10),
            opening: Duration::from_secs(10),
        }
    }
}

/// Model providers of the operator, by name.
pub(crate) type Providers = BTreeMap<String, Provider>;

/// A model provider of the operator.
#[derive(Clone, Debug)]
pub(crate) struct Provider {
    pub(crate) provider: ModelProvider,
    pub(crate) key: Option<SecretString>,
}

/// What the command line and the environment say; it stands over the file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Overrides {
    /// Configuration file [default: /etc/runtime-bridge/config.toml or $XDG_CONFIG_HOME/runtime-bridge/config.toml].
    #[arg(long, env = "RUNTIME_BRIDGE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// State directory.
    #[arg(long, env = "RUNTIME_BRIDGE_STATE", value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Unix socket to listen on.
    #[arg(long, env = "RUNTIME_BRIDGE_SOCKET", value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Directory below which workspaces may lie; may be repeated.
    #[arg(long = "workspace-root", env = "RUNTIME_BRIDGE_WORKSPACE_ROOTS", value_delimiter = ':', value_name = "DIR")]
    pub(crate) workspace_roots: Vec<PathBuf>,
    /// User under whom Harnesses run, by name, by number or as `uid:gid`; the daemon must be root [default: the daemon's own].
    #[arg(long, env = "RUNTIME_BRIDGE_HARNESS_USER", value_name = "USER")]
    pub(crate) harness_user: Option<String>,
    /// Who isolates Harnesses: `outer` or `native`.
    #[arg(long, env = "RUNTIME_BRIDGE_ISOLATION", value_name = "WHO")]
    pub(crate) isolation: Option<String>,
    /// The Codex program.
    #[arg(long, env = "RUNTIME_BRIDGE_CODEX", value_name = "PROGRAM")]
    pub(crate) codex: Option<PathBuf>,
    /// The Claude Code program.
    #[arg(long = "claude", env = "RUNTIME_BRIDGE_CLAUDE", value_name = "PROGRAM")]
    pub(crate) claude_code: Option<PathBuf>,
    /// The MiniMax Code program.
    #[arg(long, env = "RUNTIME_BRIDGE_MINIMAX_CODE", value_name = "PROGRAM")]
    pub(crate) minimax_code: Option<PathBuf>,
    /// Without the gateway that keeps model keys away from Harnesses: each holds its key itself.
    #[arg(long, env = "RUNTIME_BRIDGE_NO_GATEWAY")]
    pub(crate) no_gateway: bool,
    /// Origin of a model provider that may be reached although it is plain or not public, such as `http://127.0.0.1:8080`; may be repeated.
    #[arg(long = "allow-origin", env = "RUNTIME_BRIDGE_ALLOW_ORIGINS", value_delimiter = ',', value_name = "ORIGIN")]
    pub(crate) allow_origins: Vec<String>,
    /// The keeper's program.
    #[arg(long, env = "RUNTIME_BRIDGE_KEEPER", value_name = "PROGRAM")]
    pub(crate) keeper: Option<PathBuf>,
    /// Filter of the logs, such as `info` or `bridge=debug`.
    #[arg(long, env = "RUNTIME_BRIDGE_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Form of the logs: `json` or `text` [default: `text` on a terminal].
    #[arg(long, env = "RUNTIME_BRIDGE_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    /// Listen on plain TCP too, on a loopback address; every process of this machine that reads the bearer file can call.
    #[arg(long, env = "RUNTIME_BRIDGE_INSECURE_LOOPBACK", value_name = "ADDRESS:PORT")]
    pub(crate) insecure_loopback: Option<String>,
    /// File with the bearer of the loopback listener, mode 0600.
    #[arg(long, env = "RUNTIME_BRIDGE_BEARER_FILE", value_name = "FILE")]
    pub(crate) bearer_file: Option<PathBuf>,
    /// The loopback listener is meant although tools that a model runs can call it.
    #[arg(long)]
    pub(crate) yes_tools_can_call: bool,
}

/// The settings are wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file cannot be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The configuration file is not what it should be.
    #[error("understand {}: {text}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what was expected.
        text: String,
    },
    /// A value is wrong.
    #[error("use `{key}`: {text}")]
    Value {
        /// The key or flag.
        key: String,
        /// What is wrong.
        text: String,
    },
}

impl Settings {
    /// Reads the settings.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, with its key.
    pub(crate) fn load(overrides: Overrides) -> Result<Self, Error> {
        let (path, file) = match &overrides.config {
            Some(path) => (path.clone(), file::read(path)?),
            None => match default_file() {
                Some(path) if path.exists() => (path.clone(), file::read(&path)?),
                Some(_) | None => (PathBuf::new(), file::File::default()),
            },
        };
        let settings = file.settle(&path)?;
        settings.over(overrides)
    }

    fn over(mut self, overrides: Overrides) -> Result<Self, Error> {
        let Overrides {
            config: _,
            state,
            socket,
            workspace_roots,
            harness_user,
            isolation,
            codex,
            claude_code,
            minimax_code,
            no_gateway,
            allow_origins,
            keeper,
            log,
            log_format,
            insecure_loopback,
            bearer_file,
            yes_tools_can_call,
        } = overrides;
        if let Some(state) = state {
            self.state = state;
        }
        if let Some(socket) = socket {
            self.socket = socket;
        }
        if !workspace_roots.is_empty() {
            self.workspace_roots = workspace_roots;
        }
        self.harness_user = harness_user.or(self.harness_user);
        if let Some(text) = isolation {
            self.isolation = Some(isolation_of(&text)?);
        }
        self.codex = codex.or(self.codex);
        self.claude_code = claude_code.or(self.claude_code);
        self.minimax_code = minimax_code.or(self.minimax_code);
        self.gateway &= !no_gateway;
        if !allow_origins.is_empty() {
            self.allow_origins = origins(&allow_origins)?;
        }
        self.keeper = keeper.or(self.keeper);
        self.log = log.unwrap_or(self.log);
        if let Some(text) = log_format {
            self.log_format = Some(LogFormat::parse(&text)?);
        }
        self.loopback.address = insecure_loopback.or(self.loopback.address);
        self.loopback.bearer_file = bearer_file.or(self.loopback.bearer_file);
        self.loopback.yes_tools_can_call |= yes_tools_can_call;
        self.loopback()?;
        for (key, path) in [("state", &self.state), ("socket", &self.socket)] {
            if path.as_os_str().is_empty() {
                return Err(value(key, "no place for it is known: neither HOME nor XDG variables are set; name it"));
            }
        }
        Ok(self)
    }

    /// Who isolates Harnesses on this machine.
    pub(crate) fn isolation(&self) -> Isolation {
        self.isolation.unwrap_or_else(|| if places::is_container() { Isolation::Outer } else { Isolation::Native })
    }

    /// The user under whom Harnesses run, where it is another one than the daemon's. The system is asked anew.
    ///
    /// # Errors
    ///
    /// Why it may not be.
    pub(crate) fn harness_user(&self) -> Result<Option<User>, Error> {
        self.harness_user.as_deref().map(user::resolve).transpose()
    }

    /// Whether a Harness loads the project's own configuration: where it holds no key that such a configuration could send elsewhere, and somebody
    /// else keeps it apart (R-PLC-1).
    pub(crate) fn trusts_workspace(&self) -> bool {
        self.trust_workspace.unwrap_or(self.gateway && self.isolation() == Isolation::Outer)
    }

    /// The plain listener on loopback, where one is asked for. The bearer is read anew.
    ///
    /// # Errors
    ///
    /// Why it may not be.
    pub(crate) fn loopback(&self) -> Result<Option<Loopback>, Error> {
        self.loopback.settle(self.isolation(), self.harness_user.as_deref())
    }

    /// Where requests to model providers may go. The operator's own providers are the operator's word.
    pub(crate) fn guard(&self) -> Guard {
        let own = self.providers.values().filter_map(|of| Origin::of(&of.provider.base_url.parse().ok()?));
        Guard::new(self.allow_origins.iter().cloned().chain(own))
    }

    /// The same, and where requests to MCP servers may go.
    pub(crate) fn guards(&self) -> Guards {
        Guards::new(self.guard(), self.guard_environment)
    }

    /// Executors that may exist at once: at most four a core and one for each 512 MiB, at least two (R-PRE-3).
    pub(crate) fn max_executors(&self) -> u32 {
        self.max_executors.unwrap_or_else(|| {
            let cores = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
            let by_memory = places::memory_bytes() / (512 << 20);
            cores.saturating_mul(4).min(u32::try_from(by_memory).unwrap_or(u32::MAX)).max(2)
        })
    }
}

fn origins(of: &[String]) -> Result<Vec<Origin>, Error> {
    let read = |(index, text): (usize, &String)| {
        text.parse().map_err(|error: crate::gateway::MalformedOrigin| {
            value(&format!("allow_origins[{index}]"), error.to_string())
        })
    };
    of.iter().enumerate().map(read).collect()
}

fn isolation_of(text: &str) -> Result<Isolation, Error> {
    match text {
        "outer" => Ok(Isolation::Outer),
        "native" => Ok(Isolation::Native),
        _ => Err(value("isolation", "it is `outer` or `native`")),
    }
}

fn value(key: &str, text: impl Into<String>) -> Error {
    Error::Value { key: key.into(), text: text.into() }
}

/// Reads a secret from a file that nobody else may read.
pub(crate) fn secret(path: &Path, key: &str) -> Result<SecretString, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(read)?.mode();
    if mode & 0o077 != 0 {
        return Err(value(key, format!("{} can be read by others; give it mode 0600", path.display())));
    }
    let text = fs::read_to_string(path).map_err(read)?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(value(key, format!("{} holds no secret, or more than one line", path.display())));
    }
    Ok(SecretString::from(text))
}
