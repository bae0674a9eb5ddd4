//! The provider behind TLS: an authority of its own, a certificate that is right or wrong on purpose, HTTP/2 or HTTP/1.1.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::authority::Authority;

/// The name in the certificate. It stands for loopback everywhere.
pub(super) const NAME: &str = "localhost";

/// Which HTTP a provider behind TLS offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/1.1 alone, and no word of it in the handshake, as an old server.
    Http1,
    /// HTTP/2 alone.
    Http2,
}

/// What a provider behind TLS shows to whoever connects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shows {
    /// A certificate for its name by its authority.
    #[default]
    Good,
    /// One of another authority.
    OtherAuthority,
    /// One for another name.
    OtherName,
    /// One that is expired.
    Expired,
    /// Nothing: the handshake is never answered.
    Nothing,
}

/// What all connections of a provider behind TLS share.
#[derive(Debug)]
pub(super) struct Tls {
    authority: Authority,
    speaks: Speaks,
    shows: Mutex<Shows>,
    connections: watch::Sender<Connections>,
    hang_up: Mutex<CancellationToken>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Connections {
    begun: usize,
    open: usize,
}

/// A connection with TLS that counts as open until it is dropped.
pub(super) struct Connection {
    tls: Arc<Tls>,
    hang_up: CancellationToken,
}

impl Tls {
    pub(super) fn new(speaks: Speaks) -> anyhow::Result<Self> {
        let authority = Authority::new("the authority of a test").context("make an authority")?;
        let (shows, hang_up) = (Mutex::default(), Mutex::default());
        Ok(Self { authority, speaks, shows, connections: watch::Sender::default(), hang_up })
    }

    pub(super) fn pem(&self) -> &str {
        self.authority.pem()
    }

    pub(super) fn speaks(&self) -> Speaks {
        self.speaks
    }

    pub(super) fn show(&self, shows: Shows) {
        *self.shows.lock().unwrap_or_else(PoisonError::into_inner) = shows;
    }

    /// How many connections there were whose handshake was done.
    pub(super) fn connections(&self) -> usize {
        self.connections.borrow().begun
    }

    /// Asks all connections to end once nothing is under way on them, and waits for it.
    pub(super) async fn hang_up(&self) {
        let next = CancellationToken::new();
        std::mem::replace(&mut *self.hang_up.lock().unwrap_or_else(PoisonError::into_inner), next).cancel();
        // The sender is ours, so the wait cannot fail.
        _ = self.connections.subscribe().wait_for(|connections| connections.open == 0).await;
    }

    /// Does the handshake; none where it fails, or is never answered.
    pub(super) async fn accept(self: Arc<Self>, tcp: TcpStream) -> Option<(TlsStream<TcpStream>, Connection)> {
        let shows = *self.shows.lock().unwrap_or_else(PoisonError::into_inner);
        if shows == Shows::Nothing {
            // Until the provider stops.
            let () = std::future::pending().await;
            drop(tcp);
            return None;
        }
        let stream = TlsAcceptor::from(Arc::new(self.config(shows).ok()?)).accept(tcp).await.ok()?;
        let hang_up = self.hang_up.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.connections.send_modify(|connections| {
            connections.begun += 1;
            connections.open += 1;
        });
        Some((stream, Connection { tls: self, hang_up }))
    }

    fn config(&self, shows: Shows) -> anyhow::Result<ServerConfig> {
        let name = if shows == Shows::OtherName { "models.example" } else { NAME };
        let other = Authority::new("another authority")?;
        let authority = if shows == Shows::OtherAuthority { &other } else { &self.authority };
        let certificate = authority.sign(|params| {
            *params = CertificateParams::new([name.to_owned()])?;
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            if shows == Shows::Expired {
                params.not_after = rcgen::date_time_ymd(2020, 1, 1);
            }
            Ok(())
        })?;
        let (chain, key) = certificate.der()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        if self.speaks == Speaks::Http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        Ok(config)
    }
}

impl Connection {
    /// Waits until the provider wants to end it.
    pub(super) async fn hung_up(&self) {
        self.hang_up.cancelled().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tls.connections.send_modify(|connections| connections.open -= 1);
    }
}
