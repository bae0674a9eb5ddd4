//! The relay's one port: TLS, then what the two sides agreed to speak says what a connection is for.

use std::{
    convert::Infallible,
    io,
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
    sync::Semaphore,
    time::{self, Instant},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::{body::Body, service::Routes};
use tower_service::Service as _;

use super::{
    Caller, Relay, Settings, StartError,
    authority::{self, Authority},
    pass,
    service::Service,
    socket::Tracked,
};
use crate::{
    link::{self, tls},
    tasks,
};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection without a certificate may last: enrolling takes one call.
const ANONYMOUS: Duration = Duration::from_secs(30);
/// Connections at once, handshakes included. Whoever comes then waits in the system's queue.
const CONNECTIONS: usize = 4096;
/// Largest message of the enrollment protocol.
const MAX_MESSAGE: usize = 128 << 10;
/// How old the relay's own certificate may become before it makes another one.
const FRESH: Duration = Duration::from_hours(30 * 24);
/// Paths of the enrollment protocol begin so.
const ENROLLMENT: &str = "/runtime_bridge.enrollment.v1.";

/// The accepting end of TLS, whose certificate is made anew now and then.
#[derive(Debug)]
pub(super) struct Keys {
    clients: tls::Clients,
    names: Vec<String>,
    state: std::path::PathBuf,
    current: Mutex<(Instant, Arc<ServerConfig>)>,
}

impl Keys {
    pub(super) fn open(authority: &Authority, settings: &Settings) -> Result<Self, StartError> {
        let mut trusted = vec![authority.certificate().clone()];
        if let Some(path) = &settings.core_authority {
            let content = |text: String| tls::Error::Content { path: path.clone(), text };
            let more = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            trusted.extend(more.map_err(|error| content(error.to_string()))?);
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

/// A configuration with a certificate that is made now; its files are in the state for whoever wants to look.
fn make(
    authority: &Authority,
    clients: &tls::Clients,
    names: &[String],
    state: &std::path::Path,
) -> Result<Arc<ServerConfig>, StartError> {
    let (certificate, key) = authority.make_server(names)?;
    let (certificate_file, key_file) = (state.join("relay.pem"), state.join("relay.key"));
    authority::put(&key_file, &key, 0o600)?;
    authority::put(&certificate_file, &certificate, 0o644)?;
    let identity = tls::Identity::read(&certificate_file, &key_file)?;
    Ok(tls::server(&identity, clients, &[tls::HTTP_2, LINK_PROTOCOL])?)
}

/// Accepts until the relay stops.
pub(super) async fn accept(relay: Arc<Relay>, listener: TcpListener, keys: Keys) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    let routes = Routes::new(EnrollmentServer::new(Service(Arc::clone(&relay))).max_decoding_message_size(MAX_MESSAGE))
        .add_service(PresenceServer::new(Service(Arc::clone(&relay))).max_decoding_message_size(MAX_MESSAGE));
    loop {
        let next = async {
            // It is never closed.
            let seat = Arc::clone(&seats).acquire_owned().await.ok()?;
            Some((seat, listener.accept().await))
        };
        let (seat, stream) = tokio::select! {
            () = relay.stop.cancelled() => return,
            next = next => match next {
                Some((seat, Ok((stream, _)))) => (seat, stream),
                Some((_, Err(error))) => {
                    link::refused_by_system(&error).await;
                    continue;
                }
                None => return,
            },
        };
        let (config, served, routes) = (keys.current(&relay.authority), Arc::clone(&relay), routes.clone());
        let connection = async move {
            let _seat = seat;
            if let Err(error) = serve(&served, config, routes, stream).await {
                tracing::info!(why = tls::why(&error), "a connection was not taken");
            }
        };
        drop(tasks::spawn(&relay.tracker, tasks::Kind::Relay, connection));
    }
}

async fn serve(relay: &Arc<Relay>, config: Arc<ServerConfig>, routes: Routes, stream: TcpStream) -> io::Result<()> {
    link::at_once(&stream);
    let shaken = TlsAcceptor::from(config).accept(stream);
    let stream = tokio::select! {
        () = relay.stop.cancelled() => return Ok(()),
        shaken = time::timeout(HANDSHAKE, shaken) => {
            shaken.map_err(|_late| io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long"))??
        }
    };
    let caller = relay.caller(&stream);
    if stream.get_ref().1.alpn_protocol() == Some(LINK_PROTOCOL) {
        match caller {
            Caller::Environment { id, key } => relay.links.serve(stream, &id, key).await,
            Caller::Nobody | Caller::Core(_) | Caller::Stranger(_) => {
                tracing::warn!(?caller, "a link needs the certificate of an Environment");
            }
        }
        return Ok(());
    }
    let limit = (caller == Caller::Nobody).then_some(ANONYMOUS);
    let calls = serve_calls(relay, caller, routes, stream);
    match limit {
        None => calls.await,
        Some(limit) => drop(time::timeout(limit, calls).await),
    }
    Ok(())
}

/// Serves the calls of one connection.
async fn serve_calls(relay: &Arc<Relay>, caller: Caller, routes: Routes, stream: TlsStream<TcpStream>) {
    let service = service_fn(|request: Request<Incoming>| {
        let (relay, caller, routes) = (Arc::clone(relay), caller.clone(), routes.clone());
        async move { answer(&relay, caller, routes, request).await }
    });
    let connection = http2::Builder::new(Tracked(relay.tracker.clone()))
        .timer(TokioTimer::new())
        .initial_stream_window_size(link::STREAM_WINDOW)
        .initial_connection_window_size(link::CONNECTION_WINDOW)
        .max_concurrent_streams(link::MAX_STREAMS)
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
    Ok(pass::pass(&relay.links, &relay.domain, &caller, request).await)
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
