//! TLS between Core, relay and bridge: both ends show a certificate, and each trusts the authority that it was given and no other. Knows no
//! Session and no listener.
//!
//! TLS 1.3 alone, no connection whose use is not agreed on in the handshake, and nothing is resumed: each connection proves anew who is at its other end.

mod files;
mod judge;
mod kept;
mod pinned;
#[cfg(test)]
mod tests;
mod validity;

use std::{io, path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, ServerConfig,
    client::Resumption,
    crypto::CryptoProvider,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::SingleCertAndKey,
    version::TLS13,
};

pub(crate) use files::{Authority, Identity};
pub(crate) use judge::{Judge, Refused, Shown, holder, is_refused_as_expired, why};
pub(crate) use kept::{Files, Kept};
pub(crate) use validity::Validity;

use crate::private::Unfit;

/// What is spoken inside, where nothing else is said.
pub(crate) const HTTP_2: &[u8] = b"h2";

/// One end of TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The file of the key is not private.
    #[error("the key file {} {unfit}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        unfit: Unfit,
    },
    /// A file cannot be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("understand {}: {text}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        text: String,
    },
    /// The key is another one's.
    #[error("the key in {} is not the one of the certificate in {}", key.display(), certificate.display())]
    Mismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// What was read does not make a configuration.
    #[error("set up TLS: {0}")]
    Setup(String),
}

/// Which clients a server takes.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    /// Who signs their certificates.
    pub(crate) authority: Authority,
    /// Who of them is taken, once the certificate is good.
    pub(crate) judge: Judge,
    /// Whether one without a certificate is taken, too; then [`holder`] tells none.
    pub(crate) anonymous: bool,
}

/// Whom a client trusts.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Servers with a certificate of this authority.
    Authority(Authority),
    /// Servers with a certificate of the authority whose own certificate has this SHA-256, and which they show (R-ENR-1).
    Digest([u8; 32]),
}

/// Who does the cryptography: the one that the gateway has, too. A second one would not fit into the size that the program may have.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The accepting end, which speaks these protocols (ALPN).
///
/// # Errors
/// What does not fit together.
pub(crate) fn server(identity: &Identity, clients: &Clients, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, Error> {
    let setup = |text: String| Error::Setup(text);
    let verifier = WebPkiClientVerifier::builder_with_provider(clients.authority.roots(), provider());
    let verifier = if clients.anonymous { verifier.allow_unauthenticated() } else { verifier };
    let verifier = verifier.build().map_err(|error| setup(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| setup(error.to_string()))?
        .with_client_cert_verifier(Arc::new(judge::Judged::new(verifier, Arc::clone(&clients.judge))))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified())));
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // What is resumed is not judged again: who was revoked meanwhile would come back.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The connecting end, which speaks this protocol (ALPN); without an identity it shows no certificate.
///
/// # Errors
/// What does not fit together.
pub(crate) fn client(identity: Option<&Identity>, trust: &Trust, protocol: &[u8]) -> Result<Arc<ClientConfig>, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| Error::Setup(error.to_string()))?;
    let builder = match trust {
        Trust::Authority(authority) => builder.with_root_certificates(authority.roots()),
        Trust::Digest(digest) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(pinned::Pinned::new(*digest)))
        }
    };
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified()))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
