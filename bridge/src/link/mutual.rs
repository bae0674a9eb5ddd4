//! The listener with mutual TLS: a caller is who its certificate says, and nobody is heard who shows none that is allowed (R-SEC-1, R-ASG-5).

use std::{collections::BTreeSet, io, net::SocketAddr, sync::Arc};

use futures_util::{
    Stream, StreamExt as _,
    stream::{self, FuturesUnordered},
};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    time,
};
use tokio_rustls::TlsAcceptor;

use super::{
    BindError, Connection, Limits, Peer,
    tls::{self, Files, HTTP_2, Judge, Kept, Refused, Shown},
};
use crate::{clock, config::Listen};

/// Handshakes at once. The next connection waits until one of them is over, which each is within its deadline.
const HANDSHAKES: usize = 256;

/// A listener whose callers prove who they are.
#[derive(Debug)]
pub(crate) struct MutualListener {
    listener: TcpListener,
    kept: Kept,
    operators: BTreeSet<String>,
    limits: Limits,
}

/// Where the files of a listener lie.
fn files(settings: &Listen) -> Files {
    let Listen { certificate, key, client_ca, .. } = settings;
    Files { certificate: certificate.clone(), key: key.clone(), clients: client_ca.clone() }
}

/// Looks at the files of a listener as it would use them, and tells what an operator has to know.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn examine(settings: &Listen) -> Result<String, String> {
    let files = files(settings);
    files.read(allowed(&settings.allow)).map_err(|error| format!("could not {error}"))?;
    let validity = files.validity().ok_or("the certificate's dates cannot be read")?;
    validity.told(clock::now())
}

fn allowed(names: &BTreeSet<String>) -> Judge {
    let names = names.clone();
    Arc::new(move |shown: Shown<'_>| match names.contains(shown.name) {
        true => Ok(()),
        false => Err(Refused::Because("is not on the list `allow` of this listener".into())),
    })
}

impl MutualListener {
    /// Listens.
    pub(crate) async fn bind(settings: &Listen, limits: Limits) -> Result<Self, BindError> {
        let address = settings.address;
        let kept = Kept::open(files(settings), allowed(&settings.allow));
        let kept = kept.map_err(|source| BindError::Tls { address, source })?;
        let listener = TcpListener::bind(address).await.map_err(|source| BindError::Tcp { address, source })?;
        Ok(Self { listener, kept, operators: settings.operators.clone(), limits })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The connections whose handshake is done, for ever. Handshakes run beside each other: a slow one holds up nobody.
    pub(crate) fn connections(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        let begun = (self, FuturesUnordered::new());
        stream::unfold(begun, |(listener, mut handshakes)| async move {
            loop {
                tokio::select! {
                    Some(done) = handshakes.next() => {
                        if let Some(connection) = done {
                            return Some((Ok(connection), (listener, handshakes)));
                        }
                    }
                    accepted = listener.listener.accept(), if handshakes.len() < HANDSHAKES => match accepted {
                        // The files are looked at for each connection, so that a renewed certificate holds from the next one on.
                        Ok((stream, from)) => handshakes.push(handshake(
                            stream,
                            from,
                            listener.kept.current(),
                            listener.operators.clone(),
                            listener.limits,
                        )),
                        Err(error) => super::refused_by_system(&error).await,
                    },
                }
            }
        })
    }
}

/// Does the handshake; none where it fails, and then the log has the reason: with TLS 1.3 the other side may not learn it.
async fn handshake(
    stream: TcpStream,
    from: SocketAddr,
    config: Arc<ServerConfig>,
    operators: BTreeSet<String>,
    limits: Limits,
) -> Option<Connection> {
    let done = time::timeout(limits.handshake, accept(stream, config)).await.unwrap_or_else(|_| {
        Err(format!("the handshake was not done within {:?} (`limits.handshake_ms`)", limits.handshake))
    });
    match done {
        Ok((stream, principal)) => {
            tracing::debug!(%from, principal, "a caller connected over TLS");
            let operator = operators.contains(&principal);
            let peer = Peer { principal, bearer: None, operator, is_relay: false };
            Some(Connection::new(stream, peer, limits.opening))
        }
        Err(why) => {
            tracing::warn!(%from, why, "a TLS connection was refused");
            None
        }
    }
}

type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

async fn accept(stream: TcpStream, config: Arc<ServerConfig>) -> Result<(TlsStream, String), String> {
    super::at_once(&stream);
    let stream = TlsAcceptor::from(config).accept(stream).await.map_err(|error| tls::why(&error))?;
    let session = stream.get_ref().1;
    if session.alpn_protocol() != Some(HTTP_2) {
        return Err("it does not offer HTTP/2 (ALPN `h2`), which gRPC is spoken over".into());
    }
    let shown = session.peer_certificates().and_then(|chain| chain.first()).ok_or("it shows no certificate")?;
    let principal = tls::holder(shown)?;
    Ok((stream, principal))
}
