//! Connections to model providers and MCP servers: the name is resolved here, the guard judges each address, and one of those that it admits is connected to (R-SEC-4).

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use tokio::{
    net::{TcpStream, lookup_host},
    sync::OnceCell,
    time,
};
use tower_service::Service;

use super::{
    guard::{Guard, Refused},
    origin::Origin,
};

/// How long one address may take; the next one is tried after it.
const ADDRESS: Duration = Duration::from_secs(10);
/// How long a connection may take in all, with its TLS.
const WHOLE: Duration = Duration::from_secs(30);

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Connects to model providers and MCP servers.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    guard: Arc<Guard>,
    /// Made for the first provider that wants it: reading the system's roots takes time, and memory.
    tls: Arc<OnceCell<Arc<ClientConfig>>>,
}

impl Connector {
    pub(super) fn new(guard: Guard) -> Self {
        Self { guard: Arc::new(guard), tls: Arc::default() }
    }

    /// One with another guard, and the same roots.
    pub(super) fn guarded_by(&self, guard: Guard) -> Self {
        Self { guard: Arc::new(guard), tls: Arc::clone(&self.tls) }
    }

    async fn connect(self, uri: Uri) -> Result<MaybeHttpsStream<TokioIo<TcpStream>>, Error> {
        let tcp = Tcp { guard: self.guard };
        if uri.scheme() != Some(&http::uri::Scheme::HTTPS) {
            return Ok(MaybeHttpsStream::Http(tcp.connect(uri).await?));
        }
        let tls = self.tls.get_or_try_init(|| async { tokio::task::spawn_blocking(tls).await? }).await?;
        HttpsConnector::from((tcp, Arc::clone(tls))).call(uri).await
    }
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            match time::timeout(WHOLE, connector.connect(uri)).await {
                Ok(connected) => connected,
                Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, late).into()),
            }
        })
    }
}

/// What trusts the roots of the system's store, so that an operator's own CA works.
fn tls() -> Result<Arc<ClientConfig>, Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (taken, left) = roots.add_parsable_certificates(found.certs);
    tracing::debug!(taken, left, errors = found.errors.len(), "read the system's roots");
    if roots.is_empty() {
        return Err(
            "this system has no certificates of authorities; install them (often a package `ca-certificates`)".into()
        );
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Connects to what the guard admits.
#[derive(Clone, Debug)]
struct Tcp {
    guard: Arc<Guard>,
}

impl Tcp {
    async fn connect(self, uri: Uri) -> Result<TokioIo<TcpStream>, Error> {
        let origin = Origin::of(&uri).ok_or_else(|| Refused("the address has no host".into()))?;
        let found = lookup_host((origin.name(), origin.port())).await?;
        Ok(TokioIo::new(connect(&self.guard, &origin, found).await?))
    }
}

/// Tries the addresses in their order, those that may be.
async fn connect(
    guard: &Guard,
    origin: &Origin,
    addresses: impl Iterator<Item = SocketAddr>,
) -> Result<TcpStream, Error> {
    let mut last: Error = io::Error::new(io::ErrorKind::NotFound, "the host has no address").into();
    let mut tried = false;
    for address in addresses {
        if let Err(refused) = guard.admits(origin, address.ip()) {
            tracing::warn!(%origin, %address, "the outbound guard refused an address");
            // What really went wrong with an address that may be says more.
            if !tried {
                last = refused.into();
            }
            continue;
        }
        tried = true;
        match time::timeout(ADDRESS, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // An event, or the end of a request, is not held back to be sent with what comes next.
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error.into(),
            Err(late) => last = io::Error::new(io::ErrorKind::TimedOut, late).into(),
        }
    }
    Err(last)
}

impl Service<Uri> for Tcp {
    type Response = TokioIo<TcpStream>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A name that stands for addresses of both kinds is connected to where that may be; the text of it decides nothing.
    #[tokio::test]
    async fn only_an_admitted_address_is_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let named: Origin = "https://models.example".parse().unwrap();
        let refused = connect(&Guard::default(), &named, [here].into_iter()).await.unwrap_err();
        assert_eq!(refused.to_string(), "its host stands for a loopback address");
        assert!(refused.downcast_ref::<Refused>().is_some());
        let guard = Guard::new([named.clone()]);
        let connected = connect(&guard, &named, [here].into_iter()).await.unwrap();
        assert!(connected.nodelay().unwrap());
        let none = connect(&guard, &named, std::iter::empty()).await.unwrap_err();
        assert_eq!(none.to_string(), "the host has no address");
    }

    #[tokio::test]
    async fn a_name_of_this_machine_is_resolved_and_refused() {
        let uri: Uri = "http://localhost:9/v1".parse().unwrap();
        let refused = Connector::new(Guard::default()).connect(uri).await.unwrap_err();
        assert!(refused.downcast_ref::<Refused>().is_some(), "{refused}");
    }
}
