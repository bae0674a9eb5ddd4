//! The listener with mutual TLS: a caller is who its certificate says, and nobody is heard who shows none that is allowed (R-SEC-1, R-ASG-5).

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    net::SocketAddr,
    sync::Arc,
};

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
use tokio_util::sync::CancellationToken;

use super::{
    BindError, Connection, Limits, Peer,
    tls::{self, Files, HTTP_2, Judge, Kept, Refused, Shown},
};
use crate::{clock, config::Listen};

/// Handshakes at once. The next connection takes the place of the one that began first: whoever means it is done by then.
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
        let begun = (Arc::new(self), FuturesUnordered::new(), VecDeque::new());
        stream::unfold(begun, |(listener, mut handshakes, mut places)| async move {
            loop {
                tokio::select! {
                    Some(done) = handshakes.next() => {
                        if let Some(connection) = done {
                            return Some((Ok(connection), (listener, handshakes, places)));
                        }
                    }
                    accepted = listener.listener.accept() => match accepted {
                        Ok((stream, from)) => {
                            let place = place(&mut places);
                            handshakes.push(Arc::clone(&listener).handshake(stream, from, place));
                        }
                        Err(error) => super::refused_by_system(&error).await,
                    },
                }
            }
        })
    }

    /// Does the handshake; none where it fails, and then the log has the reason: with TLS 1.3 the other side may not learn it.
    async fn handshake(
        self: Arc<Self>,
        stream: TcpStream,
        from: SocketAddr,
        place: CancellationToken,
    ) -> Option<Connection> {
        // Its end makes room.
        let _place = place.clone().drop_guard();
        let limit = self.limits.handshake;
        // The files are looked at for each connection, so that a renewed certificate holds from the next one on.
        let done = tokio::select! {
            done = time::timeout(limit, accept(stream, self.kept.current())) => {
                done.unwrap_or_else(|_| Err(format!("the handshake was not done within {limit:?} (`limits.handshake_ms`)")))
            }
            () = place.cancelled() => Err(format!("the handshake made room for a newer one; {HANDSHAKES} were under way")),
        };
        match done {
            Ok((stream, principal)) => {
                tracing::debug!(%from, principal, "a caller connected over TLS");
                let operator = self.operators.contains(&principal);
                let peer = Peer { principal, bearer: None, operator, is_relay: false };
                Some(Connection::new(stream, peer, self.limits.opening))
            }
            Err(why) => {
                tracing::warn!(%from, why, "a TLS connection was refused");
                None
            }
        }
    }
}

/// The place of a new handshake among those that are under way.
fn place(places: &mut VecDeque<CancellationToken>) -> CancellationToken {
    places.retain(|place| !place.is_cancelled());
    if places.len() >= HANDSHAKES
        && let Some(oldest) = places.pop_front()
    {
        oldest.cancel();
    }
    let place = CancellationToken::new();
    places.push_back(place.clone());
    place
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_handshake_makes_room_where_there_are_too_many() {
        let mut places = VecDeque::new();
        let all: Vec<_> = (0..HANDSHAKES).map(|_| place(&mut places)).collect();
        assert!(all.iter().all(|place| !place.is_cancelled()));
        // One that is over has made room already.
        all[7].cancel();
        let next = place(&mut places);
        assert!(!all[0].is_cancelled() && places.len() == HANDSHAKES);
        let newest = place(&mut places);
        assert!(all[0].is_cancelled() && !all[1].is_cancelled() && !next.is_cancelled() && !newest.is_cancelled());
        assert_eq!(places.len(), HANDSHAKES);
    }
}
