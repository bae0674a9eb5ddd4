//! What lies in files: a certificate with its key, and the authorities that are trusted. All of it is PEM.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
    sync::Arc,
};

use rustls::{
    InconsistentKeys, RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    sign::CertifiedKey,
};
use secrecy::{ExposeSecret as _, SecretSlice};

use super::{Error, Validity, provider};
use crate::private::{self, Unfit};

/// Largest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Who one end is: its certificate, what leads from there to an authority, and its key.
#[derive(Clone, Debug)]
pub(crate) struct Identity(Arc<CertifiedKey>);

impl Identity {
    /// Reads both files. Nobody else may be able to read the key's.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub(crate) fn read(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let chain = certificates(certificate)?;
        let key_der = read_key(key)?;
        CertifiedKey::from_der(chain, key_der, &provider()).map(|certified| Self(Arc::new(certified))).map_err(
            |error| match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    Error::Mismatch { key: key.to_owned(), certificate: certificate.to_owned() }
                }
                other => content(key, format!("it is no key that can be used beside its certificate: {other}")),
            },
        )
    }

    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0)
    }

    /// Its own certificate.
    pub(crate) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.0.cert.first()
    }

    /// When its own certificate is good; none where that cannot be read.
    pub(crate) fn validity(&self) -> Option<Validity> {
        self.certificate().and_then(|certificate| Validity::of(certificate))
    }
}

/// Whose certificates are good.
#[derive(Clone, Debug)]
pub(crate) struct Authority(Arc<RootCertStore>);

impl Authority {
    /// Reads the certificates of one or more authorities.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        Self::of(certificates(path)?).map_err(|text| content(path, text))
    }

    /// The authorities with these certificates.
    ///
    /// # Errors
    /// Why one of them is none.
    pub(crate) fn of(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots
                .add(certificate)
                .map_err(|error| format!("a certificate in it is not one of an authority: {error}"))?;
        }
        if roots.is_empty() { Err("it holds no certificate".into()) } else { Ok(Self(Arc::new(roots))) }
    }

    pub(super) fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.0)
    }
}

fn content(path: &Path, text: String) -> Error {
    Error::Content { path: path.to_owned(), text }
}

/// All certificates of a file, as they stand there.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let text = bytes(File::open(path).map_err(read)?).map_err(read)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| content(path, not_pem(&error)))?;
    if found.is_empty() {
        return Err(content(path, "it holds no `CERTIFICATE` in PEM form".into()));
    }
    Ok(found)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let unfit = |unfit: Unfit| Error::Key { path: path.to_owned(), unfit };
    let text = private::open(path).and_then(|file| Ok(bytes(file)?)).map_err(unfit)?;
    let text = SecretSlice::from(text);
    // What is wrong is told without a word of what stands there.
    PrivateKeyDer::from_pem_slice(text.expose_secret()).map_err(|error| {
        let text = match error {
            pem::Error::NoItemsFound => "it holds no private key in PEM form that is not encrypted",
            _ => "it is not PEM",
        };
        content(path, text.into())
    })
}

fn not_pem(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "it is PEM that breaks off".into(),
        other => format!("it is not PEM: {other}"),
    }
}

/// A whole file that is no larger than it may be. One allocation holds it, so that nothing of a key stays behind.
fn bytes(file: File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB");
    if length > MAX_FILE {
        return Err(too_large());
    }
    let mut text = Vec::with_capacity(usize::try_from(length).unwrap_or_default() + 1);
    file.take(length).read_to_end(&mut text)?;
    Ok(text)
}
