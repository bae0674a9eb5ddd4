//! The enrollment of this machine: what lies in the state of a bridge that belongs to a relay, and how it came there (R-ENR-1, R-ENR-3).
//!
//! `enrollment/` in the state directory has the key (made here, it never leaves), the certificate, the authority's certificate, and a record of where the relay
//! is. All of it is 0600 in a folder of 0700.

pub(crate) mod calls;
mod reach;
pub(crate) mod standing;
pub(crate) mod token;

use std::{
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use http::Uri;
use proto::enrollment::{ENVIRONMENT_NAME, LINK_PROTOCOL, v1};
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    clock,
    link::tls::{self, HTTP_2, Trust},
    private::{self, Unfit},
};

pub(crate) use reach::{Proxy, Reach};

/// Version of the record's form.
const FORM: u32 = 1;
/// Largest file that is read.
const MAX_FILE: u64 = 64 << 10;

/// The machine's enrollment cannot be used, or not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file is not private, or cannot be read.
    #[error("use the enrollment: {} {unfit}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        unfit: Unfit,
    },
    /// The record says something else than it should.
    #[error("use the enrollment: {} cannot be understood ({text}); `runtime-bridge unenroll --offline` removes it, the relay's operator has to revoke the Environment, then enroll with a new token", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        text: String,
    },
    /// Key, certificate and authority do not make one end of TLS.
    #[error("use the enrollment: {0}")]
    Tls(#[from] tls::Error),
    /// A file cannot be written.
    #[error("write the enrollment to {}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The key cannot be made or used.
    #[error("use the machine's key: {0}")]
    Key(#[from] rcgen::Error),
    /// The relay sent something that is no certificate for this machine.
    #[error("take the relay's answer: {0}")]
    Answer(String),
    /// This machine has an enrollment.
    #[error(
        "enroll: this machine is enrolled already, as {environment_id:?} at {url}; give that up first with `runtime-bridge unenroll`"
    )]
    Enrolled {
        /// As what.
        environment_id: String,
        /// Where.
        url: String,
    },
}

/// The record as it is written.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    form: u32,
    url: String,
    environment_id: String,
    proxy: Option<String>,
    /// When the certificate came, as this machine's clock said, in milliseconds of Unix time.
    received_ms: i64,
    /// How long after that it is to be renewed. Clocks of relay and machine may differ, so it is no moment.
    renew_in_ms: i64,
    /// Until when it is good.
    not_after_ms: i64,
}

/// The enrollment of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Enrollment {
    folder: PathBuf,
    record: Record,
    url: Uri,
    proxy: Option<Proxy>,
    identity: tls::Identity,
    trust: Trust,
    /// Digest of the file of the key.
    key: [u8; 32],
}

/// The files in the folder.
fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(name)
}

const RECORD: &str = "enrollment.json";
const KEY: &str = "key.pem";
const CERTIFICATE: &str = "certificate.pem";
const AUTHORITY: &str = "authority.pem";

impl Enrollment {
    /// The folder in a state directory.
    pub(crate) fn folder(state: &Path) -> PathBuf {
        state.join("enrollment")
    }

    /// The enrollment in a state directory, where there is one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn load(state: &Path) -> Result<Option<Self>, Error> {
        let folder = Self::folder(state);
        if !file(&folder, RECORD).exists() {
            return Ok(None);
        }
        let record = read_record(&folder)?;
        let bad = |text: String| Error::Record { path: file(&folder, RECORD), text };
        let url = token::url(&record.url).map_err(|text| bad(format!("`url`: {text}")))?;
        let proxy = record.proxy.as_deref().map(str::parse::<Proxy>).transpose().map_err(bad)?;
        let identity = tls::Identity::read(&file(&folder, CERTIFICATE), &file(&folder, KEY))?;
        let trust = Trust::Authority(tls::Authority::read(&file(&folder, AUTHORITY))?);
        let key = digest_of_key(&folder).ok_or_else(|| bad("its key is gone".into()))?;
        Ok(Some(Self { folder, record, url, proxy, identity, trust, key }))
    }

    /// As which Environment.
    pub(crate) fn environment_id(&self) -> &str {
        &self.record.environment_id
    }

    /// Where the relay is.
    pub(crate) fn url(&self) -> &str {
        &self.record.url
    }

    /// The proxy on the way there, as it was named.
    pub(crate) fn proxy(&self) -> Option<&str> {
        self.record.proxy.as_deref()
    }

    /// How long after it came its certificate is to be renewed.
    pub(crate) fn renew_in(&self) -> Duration {
        Duration::from_millis(self.record.renew_in_ms.max(0).unsigned_abs())
    }

    /// How long ago its certificate came, as the wall clock says; none where that was set back behind it.
    pub(crate) fn age(&self) -> Option<Duration> {
        clock::now().duration_since(clock::from_millis(self.record.received_ms)).ok()
    }

    /// Whether its certificate has ended, as this machine's clock says.
    pub(crate) fn is_expired(&self) -> bool {
        is_over(&self.record)
    }

    /// Whether it is still what lies in its folder: it may have been given up, and the machine enrolled anew with another key.
    pub(crate) fn is_there(&self) -> bool {
        file(&self.folder, RECORD).exists() && digest_of_key(&self.folder).is_some_and(|key| key == self.key)
    }

    /// When its certificate is good, as that itself tells; none where it cannot be read.
    pub(crate) fn validity(&self) -> Option<tls::Validity> {
        self.identity.validity()
    }

    /// Until when its certificate is good.
    pub(crate) fn not_after(&self) -> SystemTime {
        clock::from_millis(self.record.not_after_ms)
    }

    /// The way to the relay for a connection on which this bridge serves.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub(crate) fn link(&self) -> Result<Reach, Error> {
        self.reach(LINK_PROTOCOL)
    }

    /// The way to the relay for calls of this bridge.
    fn calls(&self) -> Result<Reach, Error> {
        self.reach(HTTP_2)
    }

    fn reach(&self, protocol: &[u8]) -> Result<Reach, Error> {
        let config = tls::client(Some(&self.identity), &self.trust, protocol)?;
        Ok(Reach::new(self.url.clone(), self.proxy.clone(), config))
    }

    /// Asks for a fresh certificate and keeps it.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn renew(&mut self) -> Result<(), calls::Error> {
        let request = request(&read_key(&self.folder)?, self.environment_id())?;
        let certificate = calls::renew(&self.calls()?, request).await?;
        self.record = keep(&self.folder, &self.record, &certificate)?;
        self.identity =
            tls::Identity::read(&file(&self.folder, CERTIFICATE), &file(&self.folder, KEY)).map_err(Error::Tls)?;
        Ok(())
    }

    /// Tells the relay that the enrollment is given up.
    ///
    /// # Errors
    /// Why the relay does not know it.
    pub(crate) async fn give_up(&self) -> Result<(), calls::Error> {
        calls::unenroll(&self.calls()?).await
    }
}

/// Removes the enrollment of a state directory; whether there was one.
///
/// # Errors
/// What the system says.
pub(crate) fn remove(state: &Path) -> Result<bool, Error> {
    let folder = Enrollment::folder(state);
    // ORDER: out of the way first. A daemon that runs tells how its link stands in a file there, also in the middle of this.
    let away = state.join(format!("enrollment.{}", uuid::Uuid::now_v7().simple()));
    match std::fs::rename(&folder, &away) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(Error::Write { path: folder, source }),
    }
    std::fs::remove_dir_all(&away).map_err(|source| Error::Write { path: away, source })?;
    Ok(true)
}

/// Enrolls this machine. When it is asked again after an answer that was lost, the same key is used, and the same token works.
///
/// # Errors
/// Why it is not enrolled.
pub(crate) async fn enroll(
    state: &Path,
    token_file: &token::TokenFile,
    proxy: Option<Proxy>,
) -> Result<Enrollment, calls::Error> {
    let folder = Enrollment::folder(state);
    if file(&folder, RECORD).exists() {
        let record = read_record(&folder)?;
        // One whose certificate has ended is enrolled again, with the key that it has: the relay knows that one (R-ENR-3).
        if !is_over(&record) || record.environment_id != token_file.environment_id {
            return Err(Error::Enrolled { environment_id: record.environment_id, url: record.url }.into());
        }
    }
    let written = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Write { path, source }
    };
    for made in [state, &folder] {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(made).map_err(written(made))?;
    }
    if !file(&folder, KEY).exists() {
        make_key(&folder)?;
    }
    let config = tls::client(None, &Trust::Digest(token_file.authority_sha256), HTTP_2).map_err(Error::Tls)?;
    let reach = Reach::new(token_file.url.clone(), proxy.clone(), config);
    let asked = request(&read_key(&folder)?, &token_file.environment_id)?;
    let (environment_id, certificate) = match calls::enroll(&reach, &token_file.token, asked).await {
        // A key that an earlier attempt or an enrollment left here. The refusal has not used the token up.
        Err(calls::Error::Refused { reason: v1::EnrollmentReason::Revoked, .. }) => {
            make_key(&folder)?;
            let asked = request(&read_key(&folder)?, &token_file.environment_id)?;
            calls::enroll(&reach, &token_file.token, asked).await?
        }
        answered => answered?,
    };
    if environment_id != token_file.environment_id {
        let text = format!("it enrolled another Environment, {environment_id:?}");
        return Err(Error::Answer(text).into());
    }
    if <[u8; 32]>::from(Sha256::digest(&certificate.authority)) != token_file.authority_sha256 {
        return Err(Error::Answer("its authority is not the one whose digest the token file has".into()).into());
    }
    let record = Record {
        form: FORM,
        url: token_file.url.to_string().trim_end_matches('/').to_owned(),
        environment_id,
        proxy: proxy.map(|proxy| proxy.to_string()),
        received_ms: 0,
        renew_in_ms: 0,
        not_after_ms: 0,
    };
    let authority = pem(&certificate.authority);
    private::put(&file(&folder, AUTHORITY), authority.as_bytes(), 0o600).map_err(written(&folder))?;
    keep(&folder, &record, &certificate)?;
    let made = Enrollment::load(state)?;
    made.ok_or_else(|| Error::Answer("what was written is not there".into()).into())
}

/// Keeps a certificate, and then the record that tells of it.
fn keep(folder: &Path, record: &Record, certificate: &v1::Certificate) -> Result<Record, Error> {
    let stamp = |stamp: Option<&prost_types::Timestamp>| {
        let at = stamp.and_then(|stamp| SystemTime::try_from(*stamp).ok());
        at.map(clock::millis).ok_or_else(|| Error::Answer("it does not say how long the certificate is good".into()))
    };
    let (renew_after, not_after) = (stamp(certificate.renew_after.as_ref())?, stamp(certificate.not_after.as_ref())?);
    let record = Record {
        received_ms: clock::millis(clock::now()),
        renew_in_ms: renew_in(renew_after, not_after),
        not_after_ms: not_after,
        ..record.clone()
    };
    let name = tls::holder(&CertificateDer::from(certificate.certificate.as_slice())).map_err(Error::Answer)?;
    if name != format!("{ENVIRONMENT_NAME}{}", record.environment_id) {
        return Err(Error::Answer(format!("its certificate is for another name, {name:?}")));
    }
    let put = |name: &str, text: &str| {
        let path = file(folder, name);
        private::put(&path, text.as_bytes(), 0o600).map_err(|source| Error::Write { path, source })
    };
    put(CERTIFICATE, &pem(&certificate.certificate))?;
    let text = serde_json::to_string_pretty(&record).map_err(|error| Error::Answer(error.to_string()))?;
    put(RECORD, &text)?;
    Ok(record)
}

/// How long to wait: the third that is left then tells how long two thirds are, whatever the clocks say.
fn renew_in(renew_after_ms: i64, not_after_ms: i64) -> i64 {
    not_after_ms.saturating_sub(renew_after_ms).max(0).saturating_mul(2)
}

fn is_over(record: &Record) -> bool {
    clock::from_millis(record.not_after_ms) <= clock::now()
}

/// Makes a key, in the place of one that is there.
fn make_key(folder: &Path) -> Result<(), Error> {
    let path = file(folder, KEY);
    let pair = KeyPair::generate()?;
    private::put(&path, pair.serialize_pem().as_bytes(), 0o600).map_err(|source| Error::Write { path, source })
}

fn digest_of_key(folder: &Path) -> Option<[u8; 32]> {
    let text = secrecy::SecretString::from(read(&file(folder, KEY)).ok()?);
    Some(Sha256::digest(secrecy::ExposeSecret::expose_secret(&text)).into())
}

fn pem(der: &[u8]) -> String {
    let text = base64(der);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    let body = lines.fold(String::new(), |body, line| body + &line + "\n");
    format!("-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n")
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn read_record(folder: &Path) -> Result<Record, Error> {
    let path = file(folder, RECORD);
    let text = read(&path)?;
    let record: Record =
        serde_json::from_str(&text).map_err(|error| Error::Record { path: path.clone(), text: error.to_string() })?;
    if record.form != FORM {
        return Err(Error::Record { path, text: format!("it has the form {}", record.form) });
    }
    Ok(record)
}

fn read_key(folder: &Path) -> Result<KeyPair, Error> {
    use secrecy::{ExposeSecret as _, SecretString};
    let text = SecretString::from(read(&file(folder, KEY))?);
    Ok(KeyPair::from_pem(text.expose_secret())?)
}

fn read(path: &Path) -> Result<String, Error> {
    use std::io::Read as _;
    let unfit = |unfit| Error::Unfit { path: path.to_owned(), unfit };
    let mut text = String::new();
    let file = private::open(path).map_err(unfit)?;
    file.take(MAX_FILE).read_to_string(&mut text).map_err(|error| unfit(error.into()))?;
    Ok(text)
}

/// A request for a certificate, signed by the machine's key.
fn request(key: &KeyPair, environment_id: &str) -> Result<Vec<u8>, Error> {
    let mut params = CertificateParams::default();
    let uri = format!("{ENVIRONMENT_NAME}{environment_id}");
    params.subject_alt_names = vec![SanType::URI(uri.try_into()?)];
    Ok(params.serialize_request(key)?.der().to_vec())
}

/// The longest time between two looks at whether to renew.
pub(crate) const LOOK: Duration = Duration::from_hours(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_due_by_the_length_of_the_term_whatever_the_clocks_say() {
        assert_eq!(renew_in(20_000, 30_000), 20_000);
        for (renew_after, not_after) in [(30_000, 20_000), (i64::MAX, i64::MIN), (0, 0)] {
            assert_eq!(renew_in(renew_after, not_after), 0);
        }
    }
}
