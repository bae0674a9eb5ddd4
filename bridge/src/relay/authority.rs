//! The relay's certificate authority: it signs the certificates of Environments, of Cores, and the relay's own. Its key lies in the relay's state, mode
//! 0600, and is made at the first start. It knows no record: who may have a certificate is decided before it is asked.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use proto::enrollment::ENVIRONMENT_NAME;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};

use crate::{
    clock,
    private::{self, Unfit},
};

/// How far a certificate's beginning lies before its making: clocks of machines differ, and one that is two days behind still works.
const BEFORE: Duration = Duration::from_hours(3 * 24);
/// How long the authority itself is good.
const AUTHORITY_LIFE: Duration = Duration::from_hours(10 * 365 * 24);
/// How long the relay's own certificate and one of a Core are good.
pub(crate) const LEAF_LIFE: Duration = Duration::from_hours(365 * 24);
/// Largest file and request that is read.
const MAX_TEXT: u64 = 64 << 10;

/// The authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(..)")
    }
}

/// The authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file is not private.
    #[error("use the authority's key: {} {unfit}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        unfit: Unfit,
    },
    /// A file cannot be read or written.
    #[error("use the authority in {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// One of the two files is missing: a new pair would shut every enrolled bridge out.
    #[error("find {}: the other file of the authority is there; put it back, or move both away to begin anew", path.display())]
    Half {
        /// The file.
        path: PathBuf,
    },
    /// It does not sign.
    #[error("use the authority: {0}")]
    Sign(#[from] rcgen::Error),
}

/// What is wrong with a request for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// It is no request.
    #[error("the request for a certificate cannot be read, or has an algorithm that is not taken")]
    Unreadable,
    /// It is signed by another key than its own.
    #[error("the request for a certificate is not signed by its own key")]
    Signature,
    /// It does not name one Environment.
    #[error(
        "the request for a certificate has to have one URI name, `urn:runtime-bridge:environment:` and the Environment's id"
    )]
    Name,
}

/// A request for a certificate that was read: its key is proved, its name is only asked for.
pub(crate) struct Asked {
    request: CertificateSigningRequestParams,
    /// The Environment that it names.
    pub(crate) environment_id: String,
    /// Digest of its key.
    pub(crate) key: [u8; 32],
}

/// From when until when a certificate is good, and when to renew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// From when.
    pub(crate) not_before: SystemTime,
    /// Until when.
    pub(crate) not_after: SystemTime,
    /// When two thirds of it, counted from its making, are over.
    pub(crate) renew_after: SystemTime,
}

impl Term {
    /// Of a certificate that is made now.
    pub(crate) fn starting(now: SystemTime, life: Duration) -> Self {
        Self { not_before: now - BEFORE, not_after: now + life, renew_after: now + life / 3 * 2 }
    }
}

/// Reads a request for a certificate and checks that who made it has its key.
pub(crate) fn read_request(der: &[u8]) -> Result<Asked, Malformed> {
    if der.len() as u64 > MAX_TEXT {
        return Err(Malformed::Unreadable);
    }
    let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(der));
    let request = request.map_err(|error| match error {
        rcgen::Error::InvalidCertificationRequestSignature => Malformed::Signature,
        _ => Malformed::Unreadable,
    })?;
    let mut names = request.params.subject_alt_names.iter().filter_map(|name| match name {
        SanType::URI(uri) => Some(uri.as_str()),
        _ => None,
    });
    let (Some(name), None) = (names.next(), names.next()) else { return Err(Malformed::Name) };
    let environment_id = name.strip_prefix(ENVIRONMENT_NAME).filter(|id| is_id(id)).ok_or(Malformed::Name)?;
    let environment_id = environment_id.to_owned();
    let key = Sha256::digest(request.public_key.subject_public_key_info()).into();
    Ok(Asked { request, environment_id, key })
}

/// Whether a text may be the id of an Environment (R-API-9).
pub(crate) fn is_id(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    (1..=128).contains(&text.len()) && text.bytes().all(fits)
}

/// Digest of the key of a certificate that was checked.
pub(crate) fn key_of(certificate: &CertificateDer<'_>) -> Option<[u8; 32]> {
    let read = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(Sha256::digest(read.subject_public_key_info()).into())
}

impl Authority {
    /// Opens the authority in a folder, or makes one where there is none.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let (certificate, key) = (folder.join("authority.pem"), folder.join("authority.key"));
        match (certificate.exists(), key.exists()) {
            (false, false) => Self::make(&certificate, &key)?,
            (true, true) => {}
            (true, false) => return Err(Error::Half { path: key }),
            (false, true) => return Err(Error::Half { path: certificate }),
        }
        Self::read(&certificate, &key)
    }

    fn make(certificate: &Path, key: &Path) -> Result<(), Error> {
        let pair = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        let now = clock::now();
        set_term(&mut params, now - BEFORE, now + AUTHORITY_LIFE);
        // Two relays have two authorities, also by name, so that an error says which one it is about.
        let number = uuid::Uuid::now_v7();
        params.distinguished_name = named(&format!("runtime-bridge relay {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let pem = params.self_signed(&pair)?.pem();
        // ORDER: the key first; where its certificate is missing nothing was signed with it that anybody knows.
        put(key, &pair.serialize_pem(), 0o600)?;
        put(certificate, &pem, 0o644)
    }

    fn read(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let unfit = |unfit| Error::Unfit { path: key.to_owned(), unfit };
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        let mut text = String::new();
        private::open(key).map_err(unfit)?.take(MAX_TEXT).read_to_string(&mut text).map_err(io(key))?;
        let pair = KeyPair::from_pem(&text)?;
        let pem = std::fs::read_to_string(certificate).map_err(io(certificate))?;
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| Error::Io {
            path: certificate.to_owned(),
            source: io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
        })?;
        Ok(Self { issuer: Issuer::from_ca_cert_der(&der, pair)?, certificate: der, pem })
    }

    /// Its own certificate.
    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its own certificate, as PEM.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// SHA-256 of its own certificate.
    pub(crate) fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.certificate).into()
    }

    /// Signs the certificate of an Environment: for the key of the request, with the one name, and with nothing else that was asked for.
    pub(crate) fn sign_environment(&self, asked: &Asked, term: Term) -> Result<CertificateDer<'static>, Error> {
        let uri = format!("{ENVIRONMENT_NAME}{}", asked.environment_id);
        let params = leaf(&uri, vec![uri_name(&uri)?], ExtendedKeyUsagePurpose::ClientAuth, term);
        Ok(params.signed_by(&asked.request.public_key, &self.issuer)?.der().clone())
    }

    /// Makes a key and a certificate for a Core, as PEM.
    pub(crate) fn make_core(&self, name: &str) -> Result<(String, String), Error> {
        let term = Term::starting(clock::now(), LEAF_LIFE);
        self.make_leaf(leaf(name, vec![uri_name(name)?], ExtendedKeyUsagePurpose::ClientAuth, term))
    }

    /// Makes a key and a certificate for the relay itself, as PEM; the authority's certificate stands behind it, for those who know its digest alone.
    pub(crate) fn make_server(&self, names: &[String]) -> Result<(String, String), Error> {
        let term = Term::starting(clock::now(), LEAF_LIFE);
        // Hosts and addresses.
        let params = CertificateParams::new(names.to_vec())?;
        let names = params.subject_alt_names;
        let (certificate, key) =
            self.make_leaf(leaf("runtime-bridge relay", names, ExtendedKeyUsagePurpose::ServerAuth, term))?;
        Ok((certificate + &self.pem, key))
    }

    fn make_leaf(&self, params: CertificateParams) -> Result<(String, String), Error> {
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
    }
}

fn leaf(common: &str, names: Vec<SanType>, purpose: ExtendedKeyUsagePurpose, term: Term) -> CertificateParams {
    let mut params = CertificateParams::default();
    set_term(&mut params, term.not_before, term.not_after);
    // The name proper is in the alternative names; this one is for people and has a limit of 64 characters.
    params.distinguished_name = named(&common.chars().take(64).collect::<String>());
    params.subject_alt_names = names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    params
}

fn named(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

fn uri_name(uri: &str) -> Result<SanType, Error> {
    Ok(SanType::URI(uri.try_into()?))
}

/// Sets the term, to the second.
fn set_term(params: &mut CertificateParams, not_before: SystemTime, not_after: SystemTime) {
    let since =
        |at: SystemTime| Duration::from_secs(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs());
    let epoch = date_time_ymd(1970, 1, 1);
    (params.not_before, params.not_after) = (epoch + since(not_before), epoch + since(not_after));
}

/// Writes a file at once as a whole.
pub(crate) fn put(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    private::put(path, text.as_bytes(), mode).map_err(|source| Error::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("rb-authority-{}", uuid::Uuid::now_v7().simple()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    fn request(names: &[&str], key: &KeyPair) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.iter().map(|name| uri_name(name).unwrap()).collect();
        params.serialize_request(key).unwrap().der().to_vec()
    }

    #[test]
    fn a_request_names_one_environment_and_proves_its_key() {
        let key = KeyPair::generate().unwrap();
        let refused = |der: &[u8]| read_request(der).map(|asked| asked.environment_id).unwrap_err();
        let env = |id: &str| format!("{ENVIRONMENT_NAME}{id}");
        for names in [
            &[][..],
            &["spiffe://x/y"],
            &[&env("")],
            &[&env("a/b")],
            &[&env("a"), &env("b")],
            &[&env(&"x".repeat(129))],
        ] {
            assert_eq!(refused(&request(names, &key)), Malformed::Name, "{names:?}");
        }
        let good = request(&[&env("env-1.A:b_c")], &key);
        for wrong in [&b""[..], b"x", &good[..good.len() - 1], &vec![0; 1 << 20], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]]
        {
            assert_eq!(refused(wrong), Malformed::Unreadable);
        }
        let at = good.windows(5).position(|five| five == b"env-1").unwrap();
        let mut forged = good.clone();
        forged[at] = b'E';
        assert_eq!(refused(&forged), Malformed::Signature);
        let asked = read_request(&good).unwrap();
        assert_eq!(asked.environment_id, "env-1.A:b_c");
    }

    #[test]
    fn what_it_signs_has_the_key_and_the_name_of_the_request_and_is_of_this_authority() {
        let folder = Folder::new();
        let authority = Authority::open(&folder.0).unwrap();
        let key = KeyPair::generate().unwrap();
        let asked = read_request(&request(&[&format!("{ENVIRONMENT_NAME}e")], &key)).unwrap();
        let term = Term::starting(clock::now(), Duration::from_secs(90));
        let left = term.not_after.duration_since(term.renew_after).unwrap();
        assert_eq!(left, Duration::from_secs(30));
        let certificate = authority.sign_environment(&asked, term).unwrap();
        assert_eq!(key_of(&certificate), Some(asked.key));
        let read = webpki::EndEntityCert::try_from(&certificate).unwrap();
        assert_eq!(read.valid_uri_names().collect::<Vec<_>>(), [format!("{ENVIRONMENT_NAME}e")]);
        // It is the same one after a restart.
        assert_eq!(Authority::open(&folder.0).unwrap().digest(), authority.digest());
        assert_ne!(Authority::open(&Folder::new().0).unwrap().digest(), authority.digest());
    }

    #[test]
    fn half_an_authority_and_one_that_others_can_read_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = Folder::new();
        Authority::open(&folder.0).unwrap();
        let key = folder.0.join("authority.key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Authority::open(&folder.0).unwrap_err().to_string().contains("read by others"));
        std::fs::remove_file(&key).unwrap();
        assert!(matches!(Authority::open(&folder.0), Err(Error::Half { path }) if path == key));
    }
}
