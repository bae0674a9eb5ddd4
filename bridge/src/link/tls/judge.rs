//! Who a client is by its certificate, whether it is taken, and what a handshake that failed means.

use std::{fmt, io, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

/// What a client shows, once its certificate is known to be good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    /// The one URI name in it (R-ASG-5).
    pub(crate) name: &'a str,
    /// The certificate's number at its authority.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for who keeps a list of what was revoked; the relay tells it as an answer")
    )]
    pub(crate) serial: &'a [u8],
}

/// Why a client with a good certificate is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Its certificate was revoked, and it is told so.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for who keeps a list of what was revoked; the relay tells it as an answer")
    )]
    Revoked,
    /// Anything else. The text goes on behind its name.
    Because(String),
}

/// Says who is taken. Asked in the middle of a handshake, so it waits for nothing.
pub(crate) type Judge = Arc<dyn Verdict>;

/// What a [`Judge`] does; a closure does.
pub(crate) trait Verdict: Send + Sync {
    /// Whether a client is taken.
    fn judge(&self, shown: Shown<'_>) -> Result<(), Refused>;
}

impl<F> Verdict for F
where
    F: Fn(Shown<'_>) -> Result<(), Refused> + Send + Sync,
{
    fn judge(&self, shown: Shown<'_>) -> Result<(), Refused> {
        self(shown)
    }
}

impl fmt::Debug for dyn Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judge(..)")
    }
}

/// The holder of a certificate: the one URI name in it.
///
/// # Errors
/// Why it names nobody.
pub(crate) fn holder(certificate: &CertificateDer<'_>) -> Result<String, String> {
    shown(certificate, |shown| Ok(shown.name.to_owned()))
}

fn shown<T>(certificate: &CertificateDer<'_>, then: impl FnOnce(Shown<'_>) -> Result<T, String>) -> Result<T, String> {
    let read = webpki::EndEntityCert::try_from(certificate).map_err(|error| format!("it cannot be read: {error}"))?;
    let mut names = read.valid_uri_names();
    match (names.next(), names.next()) {
        (Some(name), None) => then(Shown { name, serial: read.serial() }),
        (None, _) => Err("it has no URI name, which tells whose it is".into()),
        (Some(_), Some(_)) => Err("it has more than one URI name".into()),
    }
}

/// Takes clients whose certificate is good, and of those the ones that the judge takes.
#[derive(Debug)]
pub(super) struct Judged {
    good: Arc<dyn ClientCertVerifier>,
    judge: Judge,
}

/// Goes through rustls and comes back in the error of the handshake.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Told(String);

impl Judged {
    pub(super) fn new(good: Arc<dyn ClientCertVerifier>, judge: Judge) -> Self {
        Self { good, judge }
    }
}

impl ClientCertVerifier for Judged {
    fn client_auth_mandatory(&self) -> bool {
        self.good.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.good.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.good.verify_client_cert(end_entity, intermediates, now)?;
        let told = |text: String| CertificateError::Other(OtherError(Arc::new(Told(text))));
        let judged = shown(end_entity, |shown| {
            Ok(self.judge.judge(shown).map_err(|refused| match refused {
                Refused::Revoked => CertificateError::Revoked,
                Refused::Because(text) => told(format!("{:?} {text}", shown.name)),
            }))
        });
        match judged {
            Ok(Ok(())) => Ok(verified),
            Ok(Err(error)) => Err(error.into()),
            Err(text) => Err(told(text).into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.good.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.good.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.good.supported_verify_schemes()
    }
}

/// Whether the other end refuses this end's certificate as one that has ended, or not begun.
pub(crate) fn is_refused_as_expired(error: &io::Error) -> bool {
    use rustls::{AlertDescription::CertificateExpired, Error};
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(error, Some(Error::AlertReceived(CertificateExpired)))
}

/// Why a handshake failed, for a person: of an accepting end, or of a connecting one.
pub(crate) fn why(error: &io::Error) -> String {
    use rustls::{AlertDescription as Alert, Error, PeerIncompatible};
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "the other side ended the connection in the middle of the handshake".into(),
            _ => format!("the connection broke: {error}"),
        };
    };
    match error {
        Error::InvalidCertificate(error) => certificate(error),
        Error::NoCertificatesPresented => "it shows no certificate".into(),
        Error::NoApplicationProtocol | Error::AlertReceived(Alert::NoApplicationProtocol) => {
            "the two sides do not agree on what to speak: neither offers what the other speaks by ALPN (`h2` is HTTP/2)"
                .into()
        }
        Error::InvalidMessage(_) => format!("it does not speak TLS: {error}"),
        Error::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired | PeerIncompatible::Tls12NotOfferedOrEnabled,
        )
        | Error::AlertReceived(Alert::ProtocolVersion) => "the two sides do not agree on TLS 1.3".into(),
        Error::AlertReceived(Alert::CertificateRequired) => "the other side asks for a certificate".into(),
        Error::AlertReceived(Alert::CertificateRevoked) => {
            "the other side says that this side's certificate was revoked".into()
        }
        Error::AlertReceived(Alert::CertificateExpired) => {
            "the other side says that this side's certificate is not valid now; renew it, or set the clocks".into()
        }
        Error::AlertReceived(Alert::UnknownCA) => {
            "the other side does not know the authority of this side's certificate".into()
        }
        Error::AlertReceived(alert) => format!("the other side refuses: {alert:?}"),
        other => other.to_string(),
    }
}

fn certificate(error: &CertificateError) -> String {
    let away = |from: UnixTime, to: UnixTime| format!("{} s", from.as_secs().abs_diff(to.as_secs()));
    match error {
        CertificateError::ExpiredContext { time, not_after } => format!(
            "its certificate is expired since {}, as this machine's clock says; renew it, or set the clock",
            away(*time, *not_after)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "its certificate is not valid for another {}, as this machine's clock says; set the clocks of both",
            away(*time, *not_before)
        ),
        CertificateError::UnknownIssuer => "its certificate is of an authority that is not trusted here".into(),
        CertificateError::BadSignature => "its certificate is not signed by the authority that it names".into(),
        CertificateError::Revoked => "its certificate was revoked".into(),
        CertificateError::InvalidPurposeContext { .. } | CertificateError::InvalidPurpose => {
            format!("its certificate is for another purpose: {error}")
        }
        CertificateError::NotValidForNameContext { .. } | CertificateError::NotValidForName => {
            format!("its certificate is for another name: {error}")
        }
        CertificateError::Other(OtherError(told)) => format!("its certificate is not taken: {told}"),
        other => format!("its certificate is not good: {other}"),
    }
}
