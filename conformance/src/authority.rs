//! Authorities of certificates that only a test knows, and what they sign: right, or wrong on purpose.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority. Whoever trusts it trusts what it signs.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate with its key, both in PEM form.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub pem: String,
    /// Its key.
    pub key: String,
}

impl Authority {
    /// An authority of this name.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Its own certificate.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The certificate of a server with this name, which may be an address.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn server(&self, names: &[&str]) -> anyhow::Result<Certificate> {
        self.sign(|params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params.subject_alt_names =
                CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?.subject_alt_names;
            Ok(())
        })
    }

    /// The certificate of a client with this URI name.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn client(&self, uri: &str) -> anyhow::Result<Certificate> {
        self.sign(|params| of_client(params, uri))
    }

    /// A certificate that is as `change` wants it.
    ///
    /// # Errors
    /// When it cannot be signed, and those of `change`.
    pub fn sign(
        &self,
        change: impl FnOnce(&mut CertificateParams) -> anyhow::Result<()>,
    ) -> anyhow::Result<Certificate> {
        let mut params = CertificateParams::default();
        change(&mut params)?;
        let key = KeyPair::generate()?;
        Ok(Certificate { pem: params.signed_by(&key, &self.issuer)?.pem(), key: key.serialize_pem() })
    }
}

/// Makes of parameters those of a client with this URI name.
///
/// # Errors
/// When it is no URI.
pub fn of_client(params: &mut CertificateParams, uri: &str) -> anyhow::Result<()> {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names.push(SanType::URI(uri.try_into()?));
    Ok(())
}

impl Certificate {
    /// The certificate and its key, as rustls takes them.
    ///
    /// # Errors
    /// When it is no PEM.
    pub fn der(&self) -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let chain = CertificateDer::pem_slice_iter(self.pem.as_bytes()).collect::<Result<_, _>>()?;
        Ok((chain, PrivateKeyDer::from_pem_slice(self.key.as_bytes())?))
    }
}
