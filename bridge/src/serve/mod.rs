//! A daemon from its start to its end.

use std::{
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use adapters::native::{
    lock::{Lock, LockError},
    user::{self, User},
};
use futures_util::{StreamExt as _, stream};
use listenfd::ListenFd;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{self, Settings},
    enroll::{self, Enrollment},
    gateway::Gateway,
    journal::{self, Journal},
    link::{self, Dialler, Gate, Listener, LoopbackListener, MutualListener, keep_renewed},
    service,
    session::{
        Bounds, Drain, IdleExecutors, Keepers, Limits, Registry, Shared, declaring, recovery,
        retention::{self, Retention},
    },
    tasks,
    turn::log,
};

mod harnesses;

pub(crate) use harnesses::Harnesses;

/// How long leftovers may take to end, at the start and at the stop.
const SWEEP: Duration = Duration::from_secs(5);
/// How long open streams may take once every Session is over.
const LAST_STREAMS: Duration = Duration::from_secs(2);

/// The daemon could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The state directory cannot be used.
    #[error("use the state directory {}: {source}", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another daemon has the state.
    #[error("use the state directory: {0}")]
    Locked(#[source] LockError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(journal::Error),
    /// The journal is gone, and what it told of is not.
    #[error("find the journal at {}: it is missing or empty, and there are Sessions in {}; move them away to begin anew", path.display(), sessions.display())]
    JournalLost {
        /// Where it should be.
        path: PathBuf,
        /// The folder of Sessions.
        sessions: PathBuf,
    },
    /// A workspace root cannot be used.
    #[error("use the workspace root {}: {source}", path.display())]
    WorkspaceRoot {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The keeper is not there.
    #[error("find the keeper at {}: install it beside the daemon or set `keeper`", path.display())]
    Keeper {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The loopback listener, or the user of the Harnesses, may not be.
    #[error(transparent)]
    Setting(config::Error),
    /// The user of the Harnesses cannot get to what it is to have.
    #[error("use `harness_user`: {text}; name another state directory with `state`")]
    Unreachable {
        /// What the user cannot do.
        text: String,
    },
    /// The gateway cannot listen.
    #[error("open the gateway on 127.0.0.1: {0}")]
    Gateway(#[source] io::Error),
    /// The enrollment of this machine cannot be used.
    #[error(transparent)]
    Enrollment(#[from] enroll::Error),
    /// The socket cannot be made.
    #[error(transparent)]
    Bind(#[from] link::BindError),
}

impl StartError {
    /// The exit code of the daemon: each failure has its own.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::State { .. } | Self::Locked(LockError::Io { .. }) => 11,
            Self::Locked(LockError::Held { .. }) => 12,
            Self::Journal(journal::Error::NewerSchema { .. }) => 14,
            Self::Journal(journal::Error::Full(_)) => 20,
            Self::Journal(_) | Self::JournalLost { .. } => 13,
            Self::WorkspaceRoot { .. } => 15,
            Self::Keeper { .. } => 16,
            Self::Bind(link::BindError::TooLong { .. }) => 17,
            Self::Bind(link::BindError::InUse { .. } | link::BindError::Occupied { .. }) => 18,
            Self::Bind(link::BindError::Tcp { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => 18,
            Self::Bind(link::BindError::Tcp { .. } | link::BindError::Io { .. } | link::BindError::Passed(_))
            | Self::Gateway(_) => 19,
            Self::Enrollment(_) => 21,
            Self::Setting(_) | Self::Unreachable { .. } | Self::Bind(link::BindError::Tls { .. }) => 10,
        }
    }
}

/// A daemon that serves.
#[derive(Debug)]
pub(crate) struct Running {
    registry: Arc<Registry>,
    harnesses: Harnesses,
    server: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
    streams: service::Streams,
    journal: Journal,
    _lock: Lock,
}

/// Starts a daemon. When this returns it answers.
pub(crate) async fn start(settings: Settings, sockets: ListenFd) -> Result<Running, StartError> {
    outlive_file_limits();
    let user = settings.harness_user().map_err(StartError::Setting)?;
    let state = state_directory(&settings.state, user.as_ref())
        .map_err(|source| StartError::State { path: settings.state.clone(), source })?;
    let lock = Lock::take(state.join("lock")).map_err(StartError::Locked)?;
    let workspace_roots = settings
        .workspace_roots
        .iter()
        .map(|path| path.canonicalize().map_err(|source| StartError::WorkspaceRoot { path: path.clone(), source }));
    let workspace_roots = workspace_roots.collect::<Result<Vec<_>, _>>()?;
    let keeper = keeper(&settings)?;
    if let Some(user) = &user {
        user.enter(&keeper, &state).await.map_err(|text| StartError::Unreachable { text })?;
        tracing::info!(user.uid, user.gid, "Harnesses have a user of their own");
    }
    let journal = state.join("journal.db");
    not_lost(&journal, &state.join("sessions"))?;
    let journal = Journal::open(&journal).map_err(StartError::Journal)?;

    let gateway = open_gateway(&settings).await?;
    let harnesses = Harnesses::new(&settings, keeper, user.clone());
    let max_executors = settings.max_executors();
    let shared = Arc::new(Shared {
        journal: journal.clone(),
        harnesses: harnesses.by_kind(),
        harness_user: user,
        codec: Arc::new(service::Protobuf),
        state,
        workspace_roots,
        limits: Limits {
            handle_life: settings.limits.handle_life,
            evidence: settings.limits.result_evidence,
            input_write: settings.limits.input_write,
            quiet: settings.limits.quiet,
            retry: settings.limits.retry,
            max_executors,
            idle: settings.limits.idle,
            watch: settings.limits.watch,
            log: log::Limits { memory_bytes: settings.limits.turn_memory_bytes, ..log::Limits::default() },
            bounds: Bounds {
                log_bytes: settings.limits.turn_log_bytes as u64,
                held_bytes: settings.limits.turn_held_bytes,
            },
            unstored_call: settings.limits.unstored_call,
        },
        capacity: Arc::new(Semaphore::new(
            usize::try_from(max_executors).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS),
        )),
        idle: Arc::new(IdleExecutors::default()),
        declared: declaring::Declared::default(),
        drain: Arc::new(Drain::new(settings.limits.drain_timeout, settings.limits.settlement)),
        keepers: Keepers::default(),
        guards: settings.guards(),
        gateway,
        tracker: TaskTracker::new(),
        stopping: CancellationToken::new(),
    });

    // ORDER: leftovers are ended before anything of theirs is recorded as ended, and that before anybody can ask (R-DUR-2).
    recovery::await_keepers(journal.state_id());
    recovery::sweep(journal.state_id(), SWEEP);
    let sessions = journal.sessions().await.map_err(StartError::Journal)?;
    let unconfirmed = recovery::settle(&shared, &sessions).await.map_err(StartError::Journal)?;

    let gate = Gate {
        uids: settings.allowed_uids.clone(),
        operators: settings.operator_uids.clone(),
        refuse_tools: settings.refuse_tools,
        keepers: shared.keepers.clone(),
        state_id: journal.state_id().to_owned(),
    };
    let listener = listen(&settings, sockets, gate)?;
    let loopback = listen_on_loopback(&settings).await?;
    let mutual = listen_with_tls(&settings).await?;
    let dialler = dialler(&settings, &journal)?;
    if let Some(dialler) = &dialler {
        let renewing = keep_renewed(dialler.shared(), shared.stopping.clone());
        drop(tasks::spawn(&shared.tracker, tasks::Kind::Renewal, renewing));
    }
    drop(tasks::spawn(&shared.tracker, tasks::Kind::Probe, declaring::keep_looking(Arc::clone(&shared))));
    let registry = Arc::new(Registry::new(shared, sessions, unconfirmed));
    let kept = Retention {
        life: settings.limits.retention,
        state_bytes: settings.limits.state_bytes as u64,
        every: settings.limits.retention_check,
    };
    let keeping = retention::keep(Arc::clone(&registry), kept);
    drop(tasks::spawn(&registry.shared().tracker, tasks::Kind::Retention, keeping));
    let stop = CancellationToken::new();
    let streams = service::Streams::new(settings.limits.keep_alive, settings.limits.observer);
    let guard = settings.guard();
    let served = link::Server {
        registry: Arc::clone(&registry),
        providers: settings.providers,
        guard,
        streams: streams.clone(),
    };
    let socket = listener.path().to_owned();
    let mut connections = vec![listener.connections().boxed()];
    connections.extend(loopback.map(|listener| listener.connections().boxed()));
    connections.extend(dialler.map(|dialler| dialler.connections().boxed()));
    connections.extend(mutual.into_iter().map(|listener| listener.connections().boxed()));
    let connections = stream::select_all(connections);
    let server_stop = stop.clone();
    let server = tasks::spawn(&TaskTracker::new(), tasks::Kind::Server, async move {
        if let Err(error) = link::serve(served, connections, server_stop.clone()).await {
            tracing::error!(%error, "the server broke");
        }
        server_stop.cancel();
    });
    tracing::info!(socket = %socket.display(), runtime_id = journal.state_id(), "listening");
    Ok(Running { registry, harnesses, server, stop, streams, journal, _lock: lock })
}

impl Running {
    /// Ends when the server broke.
    pub(crate) async fn broken(&self) {
        self.stop.cancelled().await;
    }

    /// Does not wait for Turns that still run when a stop is under way; false where nobody waits for them any more.
    pub(crate) fn hurrying(&self) -> impl Fn() -> bool + Send + use<> {
        let registry = Arc::clone(&self.registry);
        move || registry.hurry()
    }

    /// Stops: drains, then Executors are closed, streams ended, the journal closed (R-DUR-3).
    pub(crate) async fn stop(mut self) {
        self.registry.stop().await;
        self.harnesses.drained().await;
        if let Some(gateway) = &self.registry.shared().gateway {
            gateway.close().await;
        }
        // What a Harness started never outlives the bridge's stop, whatever became of its keeper (R-CAN-4).
        let state_id = self.journal.state_id().to_owned();
        drop(tokio::task::spawn_blocking(move || recovery::sweep(&state_id, SWEEP)).await);
        self.stop.cancel();
        if tokio::time::timeout(LAST_STREAMS, &mut self.server).await.is_err() {
            tracing::warn!("streams that nobody reads are cut");
            self.server.abort();
            drop((&mut self.server).await);
        }
        self.streams.cut().await;
        self.journal.close().await;
        tracing::info!("stopped");
    }
}

/// Opens the gateway, or says what it means that there is none.
async fn open_gateway(settings: &Settings) -> Result<Option<Arc<Gateway>>, StartError> {
    if !settings.gateway {
        tracing::warn!(
            "without the credential gateway: each Harness holds its model key itself, where tools that a model runs may read it, and the \
             addresses of model providers are not checked where they are connected to"
        );
        return Ok(None);
    }
    let limits = &settings.limits;
    let gateway = Gateway::open(settings.guards(), limits.connect(), limits.stream, limits.mcp_bytes)
        .await
        .map_err(StartError::Gateway)?;
    tracing::info!(address = %gateway.address(), "the gateway listens");
    Ok(Some(Arc::new(gateway)))
}

/// Listens on the socket that the daemon was started with, else on one of its own.
fn listen(settings: &Settings, mut sockets: ListenFd, gate: Gate) -> Result<Listener, link::BindError> {
    match sockets.len() {
        0 => {
            make_folder_of(&settings.socket);
            Listener::bind(&settings.socket, gate, settings.limits.link())
        }
        1 => Listener::passed(sockets.take_unix_listener(0), gate, settings.limits.link()),
        count => Err(link::BindError::Passed(format!("there are {count} of them; name one socket in the socket unit"))),
    }
}

/// Listens on loopback where the operator asks for it, and says what that means.
async fn listen_on_loopback(settings: &Settings) -> Result<Option<LoopbackListener>, StartError> {
    let Some(loopback) = settings.loopback().map_err(StartError::Setting)? else { return Ok(None) };
    let listener = LoopbackListener::bind(&loopback, settings.limits.link()).await?;
    if let Ok(address) = listener.address() {
        tracing::warn!(
            %address,
            principal = loopback.name,
            tools_included = settings.harness_user.is_none(),
            "listening on plain TCP: every process of this machine that can read the bearer file can call, a tool that a model runs included unless \
             Harnesses have a user of their own"
        );
    }
    Ok(Some(listener))
}

/// Listens for callers that prove who they are.
async fn listen_with_tls(settings: &Settings) -> Result<Vec<MutualListener>, StartError> {
    let mut listeners = Vec::new();
    for asked in &settings.listen {
        let listener = MutualListener::bind(asked, settings.limits.link()).await?;
        if let Ok(address) = listener.address() {
            tracing::info!(%address, callers = asked.allow.len(), "listening with mutual TLS");
        }
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Dials the relay where this machine is enrolled at one.
fn dialler(settings: &Settings, journal: &Journal) -> Result<Option<Dialler>, StartError> {
    let Some(enrollment) = Enrollment::load(&settings.state)? else { return Ok(None) };
    tracing::info!(environment_id = enrollment.environment_id(), relay = enrollment.url(), "this machine is enrolled");
    Ok(Some(Dialler::new(enrollment, &settings.state, journal.state_id(), settings.limits.link())))
}

/// A write beyond the limit of a file's size is an error like a full disk, and no reason to die. A handler is not handed on to children.
fn outlive_file_limits() {
    let limit = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    // It stays for as long as the process lives, whoever listens.
    if let Err(error) = signal(limit) {
        tracing::warn!(%error, "a limit on file sizes would end the daemon");
    }
}

/// What we hold in memory and were started with is nobody's business, also where somebody has our uid: the system then shows neither `environ` nor
/// `mem`, lets nobody attach, and writes no core (R-SEC-1, R-SEC-6). Root sees all the same. Not for a process that calls a daemon: it is examined by
/// that one.
pub(crate) fn keep_memory_private() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "processes of the same user can read the daemon's memory");
    }
}

/// A tool has our uid and can kill its keeper. What the keeper had then comes to us instead of to the first process of the machine, so that the
/// gate still knows where it comes from and a sweep ends it (R-SEC-1, R-CAN-4). Not for a process that has children of its own kind.
pub(crate) fn outlive_keepers() {
    adapters::native::tree::spare_children();
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        tracing::warn!(%error, "what a killed keeper leaves is not known as its");
    }
}

/// The keeper's program: as configured, else beside the daemon's own.
pub(crate) fn keeper(settings: &Settings) -> Result<PathBuf, StartError> {
    let beside = || {
        let daemon = std::env::current_exe().unwrap_or_default();
        daemon.parent().unwrap_or(Path::new("")).join("runtime-bridge-keeper")
    };
    let path = settings.keeper.clone().unwrap_or_else(beside);
    match path.metadata() {
        Ok(meta) if meta.is_file() && meta.mode() & 0o111 != 0 => Ok(path),
        Ok(_) | Err(_) => Err(StartError::Keeper { path }),
    }
}

/// A journal that was there once is not replaced by an empty one.
fn not_lost(journal: &Path, sessions: &Path) -> Result<(), StartError> {
    let is_empty = journal.metadata().map_or(true, |meta| meta.is_file() && meta.len() == 0);
    let any = std::fs::read_dir(sessions).is_ok_and(|mut entries| entries.next().is_some());
    if is_empty && any {
        return Err(StartError::JournalLost { path: journal.to_owned(), sessions: sessions.to_owned() });
    }
    Ok(())
}

/// The state is the daemon's alone; a user of the Harnesses may pass it to what is its own (R-SEC-1).
fn state_directory(path: &Path, user: Option<&User>) -> io::Result<PathBuf> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let path = path.canonicalize()?;
    let mode = path.metadata()?.mode();
    if user.is_some() {
        user::make_passable(&path, user)?;
    } else if mode & 0o077 != 0 {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(path)
}

/// The default socket lies in a folder that nobody else makes; what goes wrong here is told by the bind.
fn make_folder_of(socket: &Path) {
    if let Some(folder) = socket.parent()
        && !folder.exists()
        && let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)
    {
        tracing::debug!(folder = %folder.display(), %error, "the folder of the socket could not be made");
    }
}
