//! Listeners with mutual TLS: what the operator asks for, and what of it may be (R-SEC-1).

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{Error, value};

/// Longest name of a caller in bytes.
const MAX_NAME: usize = 2048;

/// One `[[listen]]`, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    address: String,
    certificate: PathBuf,
    key: PathBuf,
    client_ca: PathBuf,
    allow: Vec<String>,
    #[serde(default)]
    operators: Vec<String>,
}

/// A listener with mutual TLS that may be, as far as its words tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The file of its certificate.
    pub(crate) certificate: PathBuf,
    /// The file of the certificate's key.
    pub(crate) key: PathBuf,
    /// The file of the authorities whose certificates callers have.
    pub(crate) client_ca: PathBuf,
    /// The URI names of callers, which are their principals (R-ASG-5).
    pub(crate) allow: BTreeSet<String>,
    /// Those of them that have the role of an operator.
    pub(crate) operators: BTreeSet<String>,
}

impl Asked {
    /// The listener with this number. Files are named from the folder of the configuration file.
    pub(super) fn settle(self, index: usize, folder: &Path) -> Result<Listen, Error> {
        let key = |member: &str| format!("listen[{index}].{member}");
        let address = self.address.parse();
        let address: SocketAddr =
            address.map_err(|_| value(&key("address"), "it is an address and a port, such as 0.0.0.0:7443"))?;
        if self.allow.is_empty() {
            return Err(value(&key("allow"), "it names nobody; name the URI in the certificate of each caller"));
        }
        for (index, name) in self.allow.iter().enumerate() {
            check(name).map_err(|text| value(&key(&format!("allow[{index}]")), text))?;
        }
        let allow: BTreeSet<_> = self.allow.into_iter().collect();
        if let Some(index) = self.operators.iter().position(|name| !allow.contains(name)) {
            return Err(value(&key(&format!("operators[{index}]")), "it is not among `allow`; an operator calls, too"));
        }
        Ok(Listen {
            address,
            certificate: folder.join(self.certificate),
            key: folder.join(self.key),
            client_ca: folder.join(self.client_ca),
            allow,
            operators: self.operators.into_iter().collect(),
        })
    }
}

/// A name of a caller is a URI, so it is never that of a loopback listener; nor is it that of a uid.
fn check(name: &str) -> Result<(), &'static str> {
    let scheme = name.split_once(':').map_or("", |(scheme, _)| scheme);
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    if !is_scheme || name.len() > MAX_NAME || !name.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("it is a URI of at most 2048 visible ASCII characters, such as spiffe://example.org/core");
    }
    if scheme.eq_ignore_ascii_case("uid") {
        return Err("names that begin with `uid:` are those of callers on the socket");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(address: &str, allow: &[&str], operators: &[&str]) -> Asked {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Asked {
            address: address.into(),
            certificate: "tls.pem".into(),
            key: "/keys/tls.key".into(),
            client_ca: "ca.pem".into(),
            allow: list(allow),
            operators: list(operators),
        }
    }

    #[track_caller]
    fn refused(asked: Asked, want: &str) {
        let error = asked.settle(1, Path::new("/etc/bridge")).unwrap_err().to_string();
        assert!(error.contains(want) && error.contains("listen[1]."), "{error}");
    }

    #[test]
    fn what_may_not_be_is_named() {
        let core = "spiffe://example.org/core";
        for address in ["localhost:1", "127.0.0.1", "", "[::1]"] {
            refused(asked(address, &[core], &[]), "listen[1].address");
        }
        refused(asked("0.0.0.0:1", &[], &[]), "names nobody");
        let long = format!("a:{}", "x".repeat(2047));
        for name in ["", "core", ":x", "1a:x", "a b:x", "a:b c", "a:é", &long, "://"] {
            refused(asked("0.0.0.0:1", &[core, name], &[]), "listen[1].allow[1]");
        }
        for name in ["uid:0", "UID:1000"] {
            refused(asked("0.0.0.0:1", &[name], &[]), "callers on the socket");
        }
        refused(asked("0.0.0.0:1", &[core], &["spiffe://example.org/else"]), "listen[1].operators[0]");
    }

    #[test]
    fn files_lie_beside_the_configuration() {
        let names = ["spiffe://example.org/core", "urn:core:2", "https://example.org/core"];
        let listen = asked("[::]:7443", &names, &["urn:core:2"]).settle(0, Path::new("/etc/bridge")).unwrap();
        assert_eq!(listen.certificate, Path::new("/etc/bridge/tls.pem"));
        assert_eq!(listen.key, Path::new("/keys/tls.key"));
        assert_eq!((listen.allow.len(), listen.operators.len()), (3, 1));
    }
}
