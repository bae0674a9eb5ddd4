//! Why a model provider or an MCP server could not be connected to, in words for whoever reads of the failed Turn. They name neither host nor address, and hold nothing that
//! the other side said: it goes to Core.

use std::{error::Error, io};

use rustls::CertificateError;

use super::relay::chain;

/// What a certificate of an operator's own authority needs.
const AUTHORITY: &str = "add the authority to the certificates of this machine, or to a file that `SSL_CERT_FILE` names in the daemon's environment";

/// The reason; none where it was connected to.
pub(super) fn reason(whom: &str, error: &hyper_util::client::legacy::Error) -> Option<String> {
    let cause = error.source().filter(|_| error.is_connect())?;
    Some(format!("{whom} cannot be connected to: {}", told(cause)))
}

fn told(cause: &(dyn Error + 'static)) -> String {
    match of_tls(cause) {
        Some(rustls::Error::InvalidCertificate(flaw)) => match flaw {
            CertificateError::UnknownIssuer => {
                format!("its TLS certificate is of an authority that this machine does not know; {AUTHORITY}")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its TLS certificate is for another name; check the base address".into()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its TLS certificate is expired; check also the clock of this machine".into()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its TLS certificate is not valid yet; check also the clock of this machine".into()
            }
            other => format!("its TLS certificate is not trusted ({other:?})"),
        },
        Some(error) => format!("TLS failed: {error}"),
        None => chain(cause),
    }
}

/// The error of TLS in an error of a connection, where it stands in one or two of the system's.
fn of_tls<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(cause);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        // The source of such an error is that of what it holds.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(held) => Some(held as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: rustls::Error, want: &str) {
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
        let text = told(&wrapped);
        assert!(text.contains(want), "{text}");
        assert!(!text.contains("secret.example"), "{text}");
    }

    #[test]
    fn a_flaw_of_a_certificate_is_told_with_what_to_do() {
        let name = || rustls::pki_types::ServerName::try_from("secret.example").unwrap();
        let flaw = rustls::Error::InvalidCertificate;
        check(flaw(CertificateError::UnknownIssuer), "`SSL_CERT_FILE`");
        check(flaw(CertificateError::Expired), "is expired");
        check(flaw(CertificateError::NotValidYet), "not valid yet");
        let presented = vec!["DnsName(\"secret.example\")".to_owned()];
        check(flaw(CertificateError::NotValidForNameContext { expected: name(), presented }), "for another name");
        check(flaw(CertificateError::BadSignature), "not trusted (BadSignature)");
        check(rustls::Error::AlertReceived(rustls::AlertDescription::HandshakeFailure), "HandshakeFailure");
        let refused = io::Error::from_raw_os_error(111);
        assert!(told(&refused).contains("refused"), "{}", told(&refused));
    }
}
