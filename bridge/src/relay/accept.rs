//! The relay's one port: TLS, then what the two sides agreed to speak says what a connection is for.

use std::{
    convert::Infallible,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Request;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::enrollment::{
    ENVIRONMENT_NAME, LINK_PROTOCOL,
    v1::{enrollment_server::EnrollmentServer, presence_server::PresenceServer},
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{self, Instant},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, service::Routes};
use tower_service::Service as _;

use super::{
    Caller, Relay, Settings, StartError,
    authority::{self, Authority},
    links::Bridge,
    pass,
    places::{NO_PLACE, Places},
    service::Service,
    socket::Tracked,
};
use crate::{
    link::{self, Connection, Peer, tls},
    tasks,
};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long whoever shows a good certificate may take to begin with HTTP/2.
const OPENING: Duration = Duration::from_secs(10);
/// How long a connection may last that is neither a Core's nor a link: to enroll and to renew takes one call.
const BRIEF: Duration = Duration::from_secs(30);
/// Connections of Cores and links at once, or half as many as the relay may have open files where that is less.
pub(super) const CONNECTIONS: usize = 4096;
/// Largest message of the enrollment protocol.
const MAX_MESSAGE: usize = 128 << 10;
/// How old the relay's own certificate may become before it makes another one.
const FRESH: Duration = Duration::from_hours(30 * 24);
/// What a connection may hold of the relay: its streams, and the windows of a stream and of all together.
struct Room {
    streams: u32,
    stream: u32,
    connection: u32,
}

const OF_A_CORE: Room =
    Room { streams: link::MAX_STREAMS, stream: link::STREAM_WINDOW, connection: link::CONNECTION_WINDOW };
/// For whoever makes one call, and nobody knows who it is.
const OF_OTHERS: Room = Room { streams: 4, stream: 64 << 10, connection: 64 << 10 };
/// Paths of the enrollment protocol begin so.
const ENROLLMENT: &str = "/runtime_bridge.enrollment.v1.";

/// The accepting end of TLS, whose certificate is made anew now and then.
#[derive(Debug)]
pub(super) struct Keys {
    clients: tls::Clients,
    names: Vec<String>,
    state: PathBuf,
    current: Mutex<(Instant, Arc<ServerConfig>)>,
}

impl Keys {
    pub(super) fn open(authority: &Authority, settings: &Settings) -> Result<Self, StartError> {
        let mut trusted = vec![authority.certificate().clone()];
        if let Some(path) = &settings.core_authority {
            trusted.extend(authorities(path)?);
        }
        let clients = tls::Clients {
            authority: tls::Authority::of(trusted).map_err(tls::Error::Setup)?,
            // Who is taken depends on what is asked for, and is told as an answer that has a reason.
            judge: Arc::new(|_: tls::Shown<'_>| Ok(())),
            anonymous: true,
        };
        let mut names = vec![format!("*.{}", settings.domain)];
        names.extend(settings.url.host().map(|host| host.trim_matches(['[', ']']).to_owned()));
        let state = settings.state.clone();
        let config = make(authority, &clients, &names, &state)?;
        Ok(Self { clients, names, state, current: Mutex::new((Instant::now(), config)) })
    }

    fn current(&self, authority: &Authority) -> Arc<ServerConfig> {
        // Both are replaced together.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0.elapsed() > FRESH {
            current.0 = Instant::now();
            match make(authority, &self.clients, &self.names, &self.state) {
                Ok(config) => current.1 = config,
                Err(error) => tracing::error!(%error, "the relay's own certificate could not be made anew"),
            }
        }
        Arc::clone(&current.1)
    }
}

/// The certificates in a file, of which there is one at least: a Core whose authority is missing would be refused without a reason.
fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, tls::Error> {
    let content = |text: String| tls::Error::Content { path: path.to_owned(), text };
    let text = fs::read(path).map_err(|source| tls::Error::Read { path: path.to_owned(), source })?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| content(error.to_string()))?;
    if found.is_empty() {
        return Err(content("it holds no `CERTIFICATE` in PEM form".into()));
    }
    Ok(found)
}

/// A configuration with a certificate that is made now; its files are in the state for whoever wants to look.
fn make(
    authority: &Authority,
    clients: &tls::Clients,
    names: &[String],
    state: &Path,
) -> Result<Arc<ServerConfig>, StartError> {
    let (certificate, key) = authority.make_server(names)?;
    let (certificate_file, key_file) = (state.join("relay.pem"), state.join("relay.key"));
    authority::put(&key_file, &key, 0o600)?;
    authority::put(&certificate_file, &certificate, 0o644)?;
    let identity = tls::Identity::read(&certificate_file, &key_file)?;
    Ok(tls::server(&identity, clients, &[tls::HTTP_2, LINK_PROTOCOL])?)
}

/// Accepts until the relay stops. Nobody waits for those who have not said who they are.
pub(super) async fn accept(relay: Arc<Relay>, listener: TcpListener, keys: Keys) {
    let mut places = Places::default();
    let routes = Routes::new(EnrollmentServer::new(Service(Arc::clone(&relay))).max_decoding_message_size(MAX_MESSAGE))
        .add_service(PresenceServer::new(Service(Arc::clone(&relay))).max_decoding_message_size(MAX_MESSAGE));
    loop {
        let (stream, from) = tokio::select! {
            () = relay.stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    link::refused_by_system(&error).await;
                    continue;
                }
            },
        };
        let place = places.take(from.ip());
        let (config, served, routes) = (keys.current(&relay.authority), Arc::clone(&relay), routes.clone());
        let connection = async move {
            // Its end makes room.
            let _place = place.clone().drop_guard();
            if let Err(error) = serve(&served, config, routes, (stream, from), place).await {
                tracing::info!(%from, why = tls::why(&error), "a connection was not taken");
            }
        };
        drop(tasks::spawn(&relay.tracker, tasks::Kind::Relay, connection));
    }
}

async fn serve(
    relay: &Arc<Relay>,
    config: Arc<ServerConfig>,
    routes: Routes,
    (stream, from): (TcpStream, SocketAddr),
    place: CancellationToken,
) -> io::Result<()> {
    link::at_once(&stream);
    let late = |text| io::Error::new(io::ErrorKind::TimedOut, text);
    let shaken = TlsAcceptor::from(config).accept(stream);
    let stream = tokio::select! {
        () = relay.stop.cancelled() => return Ok(()),
        () = place.cancelled() => return Err(io::Error::other(NO_PLACE)),
        shaken = time::timeout(HANDSHAKE, shaken) => shaken.map_err(|_| late("the handshake took too long"))??,
    };
    let caller = relay.caller(&stream);
    if stream.get_ref().1.alpn_protocol() == Some(LINK_PROTOCOL) {
        match caller {
            Caller::Environment { id, key } => relay.links.serve(stream, Bridge { id: &id, key, from }, place).await,
            Caller::Nobody | Caller::Core(_) | Caller::Stranger(_) => {
                tracing::warn!(%from, ?caller, "a link needs the certificate of an Environment");
            }
        }
        return Ok(());
    }
    if let Caller::Core(name) = &caller {
        let Ok(_seat) = Arc::clone(&relay.seats).try_acquire_owned() else {
            tracing::error!(%from, name, "a Core was let go: the relay has as many connections as it may have");
            return Ok(());
        };
        place.cancel();
        serve_calls(relay, caller, routes, stream).await;
        return Ok(());
    }
    tokio::select! {
        () = place.cancelled() => Err(io::Error::other(NO_PLACE)),
        served = time::timeout(BRIEF, serve_calls(relay, caller, routes, stream)) => {
            served.map_err(|_| late("it was neither a Core's nor a link, and lasted too long"))
        }
    }
}

/// Serves the calls of one connection.
async fn serve_calls(relay: &Arc<Relay>, caller: Caller, routes: Routes, stream: TlsStream<TcpStream>) {
    let (principal, room) = match &caller {
        Caller::Core(name) => (name.clone(), OF_A_CORE),
        Caller::Nobody | Caller::Environment { .. } | Caller::Stranger(_) => (String::new(), OF_OTHERS),
    };
    let peer = Peer { principal, bearer: None, operator: false, is_relay: false };
    let stream = Connection::new(stream, peer, OPENING);
    let service = service_fn(|request: Request<Incoming>| {
        let (relay, caller, routes) = (Arc::clone(relay), caller.clone(), routes.clone());
        async move { answer(&relay, caller, routes, request).await }
    });
    let connection = http2::Builder::new(Tracked(relay.tracker.clone()))
        .timer(TokioTimer::new())
        .initial_stream_window_size(room.stream)
        .initial_connection_window_size(room.connection)
        .max_concurrent_streams(room.streams)
        .keep_alive_interval(link::PING.0)
        .keep_alive_timeout(link::PING.1)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        ended = connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended");
            }
        }
        () = relay.stop.cancelled() => {}
    }
}

async fn answer(
    relay: &Relay,
    caller: Caller,
    mut routes: Routes,
    mut request: Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    if request.uri().path().starts_with(ENROLLMENT) {
        request.extensions_mut().insert(caller);
        return routes.call(request).await;
    }
    Ok(pass::pass(&relay.links, &relay.domain, &relay.tracker, &caller, request).await)
}

impl Relay {
    /// Who is at the other end; the certificate was checked in the handshake.
    fn caller(&self, stream: &TlsStream<TcpStream>) -> Caller {
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let Some(certificate) = shown else { return Caller::Nobody };
        let Ok(name) = tls::holder(certificate) else { return Caller::Stranger(String::new()) };
        match (name.strip_prefix(ENVIRONMENT_NAME), authority::key_of(certificate)) {
            (Some(id), Some(key)) => Caller::Environment { id: id.to_owned(), key },
            (Some(_), None) => Caller::Stranger(name),
            (None, _) if self.cores.contains(&name) => Caller::Core(name),
            (None, _) => Caller::Stranger(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_authorities_holds_one_at_least() {
        let folder = std::env::temp_dir().join(format!("rb-authorities-{}", uuid::Uuid::now_v7().simple()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("cores.pem");
        let told = |path: &Path| authorities(path).unwrap_err().to_string();
        assert!(told(&path).starts_with("read "));
        for text in ["", "no certificate\n"] {
            fs::write(&path, text).unwrap();
            assert!(told(&path).contains("holds no `CERTIFICATE`"), "{}", told(&path));
        }
        let pair = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        fs::write(&path, pair.cert.pem()).unwrap();
        assert_eq!(authorities(&path).unwrap().len(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
