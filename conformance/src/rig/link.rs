//! How a rig's Core is connected to the daemon: over the socket, or with mutual TLS.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use proto::client::{Client, Endpoint, Error};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Relay, Rig};
use crate::authority::{Authority, Certificate};

/// The rig's Core, which is an operator as it is on the socket.
pub const CORE: &str = "spiffe://conformance.example/core";
/// Another Core, which is none.
pub const OTHER_CORE: &str = "spiffe://conformance.example/other-core";

/// The listener, for the daemon's configuration file.
pub(super) const LISTEN: &str = r#"
[[listen]]
address = "127.0.0.1:0"
certificate = "tls/server.pem"
key = "tls/server.key"
client_ca = "tls/clients.pem"
allow = ["spiffe://conformance.example/core", "spiffe://conformance.example/other-core"]
operators = ["spiffe://conformance.example/core"]
"#;

/// The variable that names the link of a run.
const VARIABLE: &str = "RUNTIME_BRIDGE_LINK";

/// What a Core is connected by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Link {
    /// The Unix socket.
    #[default]
    Unix,
    /// TCP with mutual TLS.
    Mtls,
    /// A relay, which the daemon has dialled.
    Relay,
}

impl Link {
    /// What this run was asked for with `RUNTIME_BRIDGE_LINK`: `unix`, `mtls` or `relay`.
    ///
    /// # Errors
    /// When it was asked for something else.
    pub fn of_run() -> anyhow::Result<Self> {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "unix") => Ok(Self::Unix),
            Ok("mtls") => Ok(Self::Mtls),
            Ok("relay") => Ok(Self::Relay),
            Ok(other) => anyhow::bail!("{VARIABLE} is `unix`, `mtls` or `relay`, not `{other}`"),
        }
    }
}

impl Rig {
    /// A new connection to the daemon.
    ///
    /// # Errors
    /// When it does not listen.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Ok(self.core().await?)
    }

    /// The same, with the client's own error.
    ///
    /// # Errors
    /// When it does not listen.
    pub async fn core(&self) -> Result<Client, Error> {
        match (&self.tls, &self.relay) {
            (Some(tls), _) => tls.core().await,
            (None, Some((relay, certificate))) => relay.answering(certificate).await,
            (None, None) => Client::connect(Endpoint::Unix(self.place.socket().to_owned())).await,
        }
    }

    /// Who the rig's Core is for the daemon (R-ASG-5).
    #[must_use]
    pub fn principal(&self) -> String {
        if self.tls.is_some() || self.relay.is_some() {
            return CORE.to_owned();
        }
        format!("uid:{}", rustix::process::getuid().as_raw())
    }

    /// The daemon's listener with TLS.
    ///
    /// # Errors
    /// When the setup has none.
    pub fn tls(&self) -> anyhow::Result<&Tls> {
        self.tls.as_ref().context("the setup has no listener with TLS")
    }

    /// The relay that the daemon dials.
    ///
    /// # Errors
    /// When the setup has none.
    pub fn relay(&self) -> anyhow::Result<&Relay> {
        Ok(&self.relay.as_ref().context("the setup has no relay")?.0)
    }

    /// The same to kill it or start it again.
    ///
    /// # Errors
    /// When the setup has none.
    pub fn relay_mut(&mut self) -> anyhow::Result<&mut Relay> {
        Ok(&mut self.relay.as_mut().context("the setup has no relay")?.0)
    }

    /// A new connection to the daemon's socket, however the rig's Core is connected.
    ///
    /// # Errors
    /// When it does not listen.
    pub async fn local_client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(Endpoint::Unix(self.place.socket().to_owned())).await?)
    }
}

/// The files of the daemon's listener, and how to reach it.
#[derive(Debug)]
pub struct Tls {
    authority: Authority,
    /// How the rig's Core sets TLS up.
    core: Arc<ClientConfig>,
    dir: PathBuf,
    log: PathBuf,
}

impl Tls {
    pub(super) fn make(root: &Path) -> anyhow::Result<Self> {
        let dir = root.join("tls");
        fs::create_dir(&dir).context("make the folder of TLS")?;
        let authority = Authority::new("the authority of both ends")?;
        let core = Arc::new(client_config(&authority, Some(&authority.client(CORE)?))?);
        let tls = Self { authority, core, dir, log: root.join("daemon.log") };
        tls.put(&tls.authority)?;
        Ok(tls)
    }

    /// Puts a new certificate of this authority in place, and the authority as that of clients: each file at once, as a renewal does.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn put(&self, authority: &Authority) -> anyhow::Result<()> {
        let server = authority.server(&["localhost", "127.0.0.1"])?;
        // The key first: until its certificate is there, too, the daemon has what it had.
        for (name, text) in
            [("server.key", &*server.key), ("clients.pem", authority.pem()), ("server.pem", &server.pem)]
        {
            self.replace(name, text)?;
        }
        Ok(())
    }

    /// Puts a file in the place of the one of this name, at once.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn replace(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let beside = self.dir.join("new");
        fs::write(&beside, text)?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))?;
        fs::rename(beside, self.file(name)).context("put a file of TLS in place")
    }

    /// One of the files: `server.pem`, `server.key` or `clients.pem`.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Who signs for both ends.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Where the newest daemon listens.
    ///
    /// # Errors
    /// When it says nothing of it.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(address(&self.log)?)
    }

    /// A new connection to the daemon of whoever has this name.
    ///
    /// # Errors
    /// When there is none.
    pub async fn client(&self, name: &str) -> anyhow::Result<Client> {
        self.client_with(&self.authority.client(name)?).await
    }

    /// A new connection to the daemon of whoever has this certificate.
    ///
    /// # Errors
    /// When there is none.
    pub async fn client_with(&self, certificate: &Certificate) -> anyhow::Result<Client> {
        Ok(self.over(Arc::new(client_config(&self.authority, Some(certificate))?)).await?)
    }

    /// A new connection of the rig's Core.
    pub(super) async fn core(&self) -> Result<Client, Error> {
        self.over(Arc::clone(&self.core)).await
    }

    async fn over(&self, config: Arc<ClientConfig>) -> Result<Client, Error> {
        let log = self.log.clone();
        let dial = move || {
            let (config, log) = (Arc::clone(&config), log.clone());
            // The next daemon has another port.
            async move { connect(address(&log)?, config).await }
        };
        Client::over(dial).await
    }

    /// A connection with TLS that is set up so, on which nothing was said yet. With TLS 1.3 a client that is refused learns of it when it reads.
    ///
    /// # Errors
    /// When there is none.
    pub async fn connect(&self, config: ClientConfig) -> anyhow::Result<TlsStream<TcpStream>> {
        Ok(connect(self.address()?, Arc::new(config)).await?)
    }
}

/// How a client that trusts this authority and shows this certificate sets TLS up.
///
/// # Errors
/// When the certificate is none.
pub fn client_config(authority: &Authority, certificate: Option<&Certificate>) -> anyhow::Result<ClientConfig> {
    config_trusting(authority.pem(), certificate)
}

/// The same for an authority of which there is the certificate alone.
pub(super) fn config_trusting(authority: &str, certificate: Option<&Certificate>) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match certificate {
        Some(certificate) => {
            let (chain, key) = certificate.der()?;
            builder.with_client_auth_cert(chain, key)?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

async fn connect(address: SocketAddr, config: Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    TlsConnector::from(config).connect(name, tcp).await
}

/// What the newest daemon says last.
fn address(log: &Path) -> io::Result<SocketAddr> {
    let text = fs::read(log)?;
    let lines = text.rsplit(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let said = lines.filter(|line| line["message"] == "listening with mutual TLS");
    let address = said.filter_map(|line| line["address"].as_str()?.parse().ok()).next();
    address.ok_or_else(|| io::Error::other("the daemon does not say where it listens with TLS"))
}
