//! The relay: enrolls bridges, takes the connections that they dial, and gives Cores an ordinary gRPC address for each of them (R-ENR-1 to R-ENR-5). It runs no
//! Harness, decodes no message of the Runtime protocol, and keeps nothing of a Turn: when it is started anew, bridges dial again and Cores observe again.

mod accept;
mod authority;
mod links;
mod names;
mod operator;
mod pass;
mod places;
mod presence;
mod refusal;
mod replaced;
mod service;
mod socket;

use std::{
    future::Future,
    io,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use adapters::native::lock::{Lock, LockError};
use http::Uri;
use proto::enrollment::v1;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{authority::Authority, links::Links, presence::Presence, refusal::Refusal};
use crate::{
    journal::{self, Enrollments},
    link::{self, Gate, Listener, tls},
    session::Keepers,
    tasks,
};

pub(crate) use authority::{Authority as CertificateAuthority, Error as AuthorityError, put};

/// What an operator's connection has to do in time.
const LIMITS: link::Limits = link::Limits { handshake: Duration::from_secs(10), opening: Duration::from_secs(10) };
/// How long connections may take to end at the stop.
const LAST_CALLS: Duration = Duration::from_secs(2);

/// What the operator of a relay decides.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// State directory.
    pub(crate) state: PathBuf,
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// Where bridges reach it, `https://HOST:PORT`.
    pub(crate) url: Uri,
    /// The domain of the host names of Environments.
    pub(crate) domain: String,
    /// URI names of the Cores that it takes.
    pub(crate) cores: Vec<String>,
    /// A file with certificates of more authorities of Cores.
    pub(crate) core_authority: Option<PathBuf>,
    /// How long a certificate of an Environment is good.
    pub(crate) certificate_life: Duration,
}

impl Settings {
    /// Where its operator reaches it.
    pub(crate) fn socket(state: &Path) -> PathBuf {
        state.join("relay.sock")
    }
}

/// The relay could not start.
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
    /// Another relay has the state.
    #[error("use the state directory: {0}")]
    Locked(#[source] LockError),
    /// The records cannot be opened.
    #[error(transparent)]
    Records(#[from] journal::Error),
    /// The authority cannot be used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// It cannot listen.
    #[error("listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Its socket cannot be made.
    #[error(transparent)]
    Socket(#[from] link::BindError),
}

/// What all connections of a relay share.
#[derive(Debug)]
pub(crate) struct Relay {
    records: Enrollments,
    authority: Authority,
    links: Links,
    /// For connections that last.
    seats: Arc<Semaphore>,
    presence: Arc<dyn Presence>,
    url: String,
    domain: String,
    cores: Vec<String>,
    certificate_life: Duration,
    tracker: TaskTracker,
    stop: CancellationToken,
}

/// Who is at the other end of a connection, by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// It shows none.
    Nobody,
    /// A bridge. Whether it is enrolled, the records tell.
    Environment {
        /// Its id.
        id: String,
        /// Digest of its key.
        key: [u8; 32],
    },
    /// A Core that the operator names.
    Core(String),
    /// Anybody else whose certificate is good.
    Stranger(String),
}

/// A relay that serves.
#[derive(Debug)]
pub(crate) struct Running {
    relay: Arc<Relay>,
    _lock: Lock,
}

/// Starts a relay. When this returns it answers.
pub(crate) async fn start(settings: Settings) -> Result<Running, StartError> {
    let state = &settings.state;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state);
    made.map_err(|source| StartError::State { path: state.clone(), source })?;
    let lock = Lock::take(state.join("lock")).map_err(StartError::Locked)?;
    let records = Enrollments::open(&state.join("relay.db"))?;
    let authority = Authority::open(state)?;
    let presence: Arc<dyn Presence> = Arc::new(presence::Local::default());
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let seats = Arc::new(Semaphore::new(link::room(accept::CONNECTIONS)));
    let (cores, on) = (settings.cores.len(), Arc::clone(&seats));
    let relay = Arc::new(Relay {
        links: Links::new(records.clone(), Arc::clone(&presence), cores, on, tracker.clone(), stop.clone()),
        seats,
        records,
        authority,
        presence,
        url: settings.url.to_string().trim_end_matches('/').to_owned(),
        domain: settings.domain.clone(),
        cores: settings.cores.clone(),
        certificate_life: settings.certificate_life,
        tracker,
        stop,
    });
    let keys = accept::Keys::open(&relay.authority, &settings)?;
    let uid = rustix::process::getuid().as_raw();
    let gate = Gate {
        uids: vec![uid],
        operators: vec![uid],
        refuse_tools: false,
        keepers: Keepers::default(),
        state_id: String::new(),
    };
    let socket = Listener::bind(&Settings::socket(state), gate, LIMITS)?;
    let listening = |source| StartError::Listen { address: settings.listen, source };
    let listener = TcpListener::bind(settings.listen).await.map_err(listening)?;
    let address = listener.local_addr().map_err(listening)?;
    let (operator, stop) = (operator::Operator(Arc::clone(&relay)), relay.stop.clone());
    let serving = tonic::transport::Server::builder()
        .add_service(v1::operator_server::OperatorServer::new(operator))
        .serve_with_incoming_shutdown(socket.connections(), stop.clone().cancelled_owned());
    let operators = async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the operator's socket broke");
        }
        stop.cancel();
    };
    drop(tasks::spawn(&relay.tracker, tasks::Kind::Server, operators));
    drop(tasks::spawn(&relay.tracker, tasks::Kind::Server, accept::accept(Arc::clone(&relay), listener, keys)));
    tracing::info!(%address, url = relay.url, domain = relay.domain, "the relay listens");
    Ok(Running { relay, _lock: lock })
}

impl Running {
    /// Ends when the server broke.
    pub(crate) async fn broken(&self) {
        self.relay.stop.cancelled().await;
    }

    /// Stops: nothing new is taken, links are closed, calls are cut. Bridges and Cores come again.
    pub(crate) async fn stop(self) {
        self.relay.stop.cancel();
        self.relay.tracker.close();
        if tokio::time::timeout(LAST_CALLS, self.relay.tracker.wait()).await.is_err() {
            tracing::warn!("connections are cut");
        }
        self.relay.records.clone().close().await;
        tracing::info!("stopped");
    }
}

impl Relay {
    /// Carries work out that goes on when its caller goes away (R-API-8).
    async fn detached<T>(&self, work: impl Future<Output = Result<T, Refusal>> + Send + 'static) -> Result<T, Refusal>
    where
        T: Send + 'static,
    {
        let done = tasks::spawn(&self.tracker, tasks::Kind::Enrollment, work).await;
        done.unwrap_or_else(|_panicked| {
            let text = "the relay broke in the middle of this; its log has the details";
            Err(Refusal::new(v1::EnrollmentReason::Internal, text))
        })
    }
}
