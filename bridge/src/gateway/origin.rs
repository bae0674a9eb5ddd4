//! Origins as an operator writes them and as a request has them: scheme, host and port, compared exactly (R-SEC-4).

use std::{fmt, str::FromStr};

use http::Uri;

/// Scheme, host and port of a URL, in small letters and with the port spelled out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    is_https: bool,
    host: String,
    port: u16,
}

impl Origin {
    /// The origin of a URL; none where it has none, or credentials.
    pub(crate) fn of(url: &Uri) -> Option<Self> {
        let is_https = match url.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = url.authority()?;
        // What stands behind the host is a port or nothing: a port that is none is an error of the operator, or of Core.
        let rest = authority.as_str().strip_prefix(authority.host())?;
        let port = match rest.strip_prefix(':') {
            Some(digits) => digits.parse().ok().filter(|port| *port != 0)?,
            None if rest.is_empty() => {
                if is_https {
                    443
                } else {
                    80
                }
            }
            None => return None,
        };
        if authority.host().is_empty() {
            return None;
        }
        Some(Self { is_https, host: authority.host().to_ascii_lowercase(), port })
    }

    pub(super) fn is_https(&self) -> bool {
        self.is_https
    }

    /// The host, an IPv6 address in brackets.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The host as a resolver takes it.
    pub(super) fn name(&self) -> &str {
        self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

/// The text is no origin.
#[derive(Debug, thiserror::Error)]
#[error(
    "it is a scheme, a host and a port where it is not the usual one, such as `http://127.0.0.1:8080`, without a path"
)]
pub(crate) struct Malformed;

impl FromStr for Origin {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let url: Uri = text.parse().map_err(|_| Malformed)?;
        if !matches!(url.path(), "" | "/") || url.query().is_some() || text.contains(['#', '*']) {
            return Err(Malformed);
        }
        Self::of(&url).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        for (given, want) in [
            ("https://API.example.com", Some("https://api.example.com:443")),
            ("http://h", Some("http://h:80")),
            ("http://127.0.0.1:8080/", Some("http://127.0.0.1:8080")),
            ("https://[2001:DB8::1]:444", Some("https://[2001:db8::1]:444")),
            ("https://h/v1", None),
            ("https://h?x", None),
            ("https://h#x", None),
            ("https://a:b@h", None),
            ("https://*.example.com", None),
            ("https://h:0", None),
            ("https://h:70000", None),
            ("https://h:", None),
            ("ftp://h", None),
            ("h:80", None),
            ("", None),
        ] {
            let read = given.parse::<Origin>().ok().map(|origin| origin.to_string());
            assert_eq!(read.as_deref(), want, "{given:?}");
        }
    }
}
