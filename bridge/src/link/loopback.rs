//! Plain TCP on loopback, for those who ask for it (R-SEC-1). It cannot tell who connects: whoever has the bearer is the caller.

use std::{fmt, io, net::SocketAddr};

use futures_util::{Stream, stream};
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tonic::Request;

use super::{BindError, Connection, Limits, Peer};
use crate::config::Loopback;

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

/// Whether a call carries the bearer, once.
///
/// # Errors
/// What it should carry.
pub(super) fn carries(request: &Request<()>, bearer: &Bearer) -> Result<(), &'static str> {
    let mut offered = request.metadata().get_all(HEADER).iter();
    let told = offered.next().and_then(|value| value.to_str().ok()).and_then(|text| text.strip_prefix(SCHEME));
    if offered.next().is_none() && told.is_some_and(|told| bearer.is(told)) {
        return Ok(());
    }
    Err(
        "every call over the loopback listener carries the metadata `authorization: Bearer ...` once, with the bearer of its file",
    )
}

/// A listener on loopback.
#[derive(Debug)]
pub(crate) struct LoopbackListener {
    listener: TcpListener,
    peer: Peer,
    limits: Limits,
}

impl LoopbackListener {
    /// Listens.
    pub(crate) async fn bind(settings: &Loopback, limits: Limits) -> Result<Self, BindError> {
        let address = settings.address;
        let listener = TcpListener::bind(address).await.map_err(|source| BindError::Tcp { address, source })?;
        let bearer = Some(Bearer::of(settings.bearer.expose_secret()));
        Ok(Self {
            listener,
            peer: Peer { principal: settings.name.clone(), bearer, operator: false, is_relay: false },
            limits,
        })
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
                    super::at_once(&stream);
                    return Connection::new(stream, self.peer.clone(), self.limits.opening);
                }
                Err(error) => super::refused_by_system(&error).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(headers: &[&str]) -> Result<(), &'static str> {
        let mut request = Request::new(());
        for header in headers {
            request.metadata_mut().append(HEADER, header.parse().unwrap());
        }
        carries(&request, &Bearer::of("secret-1"))
    }

    #[test]
    fn the_bearer_is_asked_for_once_and_as_a_whole() {
        assert_eq!(call(&["Bearer secret-1"]), Ok(()));
        for wrong in
            [&[][..], &["Bearer "], &["Bearer secret-2"], &["Bearer secret-11"], &["secret-1"], &["Basic secret-1"]]
        {
            let text = call(wrong).unwrap_err();
            assert!(!text.contains("secret"), "{text}");
        }
        call(&["Bearer secret-1", "Bearer secret-1"]).unwrap_err();
        assert!(!format!("{:?}", Bearer::of("secret-1")).contains("secret"));
    }
}
