//! Plain TCP on loopback, for those who ask for it (R-SEC-1). It cannot tell who connects: whoever has the bearer is the caller.

use std::{fmt, io, net::SocketAddr};

use futures_util::{Stream, stream};
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tonic::{Request, Status};

use super::{BindError, Connection, Peer, connection::Socket};
use crate::{
    config::Loopback,
    refusal::{Reason, Refusal},
    service,
};

/// The header with the bearer.
const HEADER: &str = "authorization";
/// How it begins.
const SCHEME: &str = "Bearer ";

/// What every call over a connection has to carry. It knows the bearer's digest only.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bearer([u8; 32]);

impl Bearer {
    fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Compares digests, each as a whole, so that the time tells nothing of the bearer.
    fn is(&self, offered: &str) -> bool {
        let Self(offered) = Self::of(offered);
        self.0.iter().zip(offered).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(..)")
    }
}

/// Refuses a call without the bearer that its connection asks for; health and reflection are calls like any other.
pub(super) fn check(request: Request<()>) -> Result<Request<()>, Status> {
    let Some(bearer) = request.extensions().get::<Peer>().and_then(|peer| peer.bearer.as_ref()) else {
        return Ok(request);
    };
    let mut offered = request.metadata().get_all(HEADER).iter();
    let told = offered.next().and_then(|value| value.to_str().ok()).and_then(|text| text.strip_prefix(SCHEME));
    if offered.next().is_none() && told.is_some_and(|told| bearer.is(told)) {
        return Ok(request);
    }
    let text = "every call over the loopback listener carries the metadata `authorization: Bearer ...` once, with the bearer of its file";
    Err(service::status(Refusal::new(Reason::NotAuthorized, text)))
}

/// A listener on loopback.
#[derive(Debug)]
pub(crate) struct LoopbackListener {
    listener: TcpListener,
    peer: Peer,
}

impl LoopbackListener {
    /// Listens.
    pub(crate) async fn bind(settings: &Loopback) -> Result<Self, BindError> {
        let address = settings.address;
        let listener = TcpListener::bind(address).await.map_err(|source| BindError::Tcp { address, source })?;
        let bearer = Some(Bearer::of(settings.bearer.expose_secret()));
        Ok(Self { listener, peer: Peer { principal: settings.name.clone(), bearer, operator: false } })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The connections, for ever.
    pub(crate) fn connections(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        stream::unfold(self, |listener| async move { Some((Ok(listener.accept().await), listener)) })
    }

    async fn accept(&self) -> Connection {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    at_once(&stream);
                    return Connection { socket: Socket::Tcp(stream), peer: self.peer.clone() };
                }
                Err(error) => super::refused_by_system(&error).await,
            }
        }
    }
}

/// An event is not held back to be sent with the next one.
fn at_once(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection collects what it sends");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(peer: Peer, headers: &[&str]) -> Result<(), String> {
        let mut request = Request::new(());
        request.extensions_mut().insert(peer);
        for header in headers {
            request.metadata_mut().append(HEADER, header.parse().unwrap());
        }
        check(request).map(drop).map_err(|status| {
            assert!(status.metadata().contains_key(proto::REASON_TRAILER));
            status.message().to_owned()
        })
    }

    #[test]
    fn the_bearer_is_asked_for_once_and_as_a_whole() {
        let peer = || Peer { principal: "core".into(), bearer: Some(Bearer::of("secret-1")), operator: false };
        assert_eq!(call(peer(), &["Bearer secret-1"]), Ok(()));
        for wrong in
            [&[][..], &["Bearer "], &["Bearer secret-2"], &["Bearer secret-11"], &["secret-1"], &["Basic secret-1"]]
        {
            let text = call(peer(), wrong).unwrap_err();
            assert!(!text.contains("secret"), "{text}");
        }
        call(peer(), &["Bearer secret-1", "Bearer secret-1"]).unwrap_err();
        // On the socket nobody is asked.
        assert_eq!(call(Peer { principal: "uid:0".into(), bearer: None, operator: false }, &[]), Ok(()));
        assert!(!format!("{:?}", peer()).contains("secret"));
    }
}
