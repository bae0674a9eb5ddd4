//! The configuration of an accepting end, which follows its files: whoever renews a certificate puts the new files in place and tells nobody.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustls::ServerConfig;

use super::{Authority, Clients, Error, HTTP_2, Identity, Judge, Validity, server};

/// Where it all lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Files {
    /// The certificate and what leads from there to an authority.
    pub(crate) certificate: PathBuf,
    /// Its key.
    pub(crate) key: PathBuf,
    /// The authorities of clients.
    pub(crate) clients: PathBuf,
}

impl Files {
    /// Reads them.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) fn read(&self, judge: Judge) -> Result<Arc<ServerConfig>, Error> {
        let identity = Identity::read(&self.certificate, &self.key)?;
        let authority = Authority::read(&self.clients)?;
        server(&identity, &Clients { authority, judge, anonymous: false }, &[HTTP_2])
    }

    /// When the certificate is good; none where that cannot be read.
    pub(crate) fn validity(&self) -> Option<Validity> {
        Identity::read(&self.certificate, &self.key).ok()?.validity()
    }

    fn stamps(&self) -> [Stamp; 3] {
        [stamp(&self.certificate), stamp(&self.key), stamp(&self.clients)]
    }
}

/// What a file is told by from what it was; none where it is not there.
type Stamp = Option<[i128; 6]>;

fn stamp(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    let numbers = [meta.mtime(), meta.mtime_nsec(), meta.ctime_nsec()].map(i128::from);
    let [seconds, nanos, changed] = numbers;
    Some([meta.dev().into(), meta.ino().into(), meta.size().into(), seconds, nanos, changed])
}

/// A configuration and what it was read from.
#[derive(Debug)]
pub(crate) struct Kept {
    files: Files,
    judge: Judge,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    /// As the files were before they were read the last time, whatever came of it.
    stamps: [Stamp; 3],
    config: Arc<ServerConfig>,
}

impl Kept {
    /// Reads the files.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) fn open(files: Files, judge: Judge) -> Result<Self, Error> {
        let stamps = files.stamps();
        let config = files.read(Arc::clone(&judge))?;
        Ok(Self { files, judge, last: Mutex::new(Last { stamps, config }) })
    }

    /// The configuration for the next connection: read anew where a file is another one than before. Files that make none, as in the middle of a
    /// renewal, leave the one that there is.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        // ORDER: looked at before they are read, so that what changes meanwhile is seen the next time.
        let stamps = self.files.stamps();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.stamps != stamps {
            match self.files.read(Arc::clone(&self.judge)) {
                Ok(config) => {
                    last.config = config;
                    tracing::info!(certificate = %self.files.certificate.display(), "read the files of TLS anew");
                }
                Err(error) => {
                    tracing::error!(%error, "the files of TLS changed and cannot be used; what was read before stays in use");
                }
            }
            last.stamps = stamps;
        }
        Arc::clone(&last.config)
    }
}
