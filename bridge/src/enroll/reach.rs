//! The way to a relay: TCP, a proxy on the way where one is named, and TLS. It knows nothing of what is spoken inside.

use std::{fmt, io, str::FromStr, sync::Arc, time::Duration};

use http::Uri;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::link::{self, tls};

/// How long each step may take: to connect, to be let through, to shake hands.
const STEP: Duration = Duration::from_secs(10);
/// Longest answer of a proxy.
const MAX_ANSWER: usize = 16 << 10;
/// The port of a relay whose URL names none. `token::url` asks for one, so it never counts.
const NO_PORT: u16 = 443;

/// A relay, and how to get there.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    url: Uri,
    proxy: Option<Proxy>,
    config: Arc<ClientConfig>,
}

/// A proxy that is asked with CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    host: String,
    port: u16,
}

/// The relay was not reached.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {why}")]
pub(crate) struct Error {
    step: String,
    why: String,
}

impl FromStr for Proxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "a proxy is http://HOST:PORT, without a user".to_owned();
        let url: Uri = text.parse().map_err(|_| form())?;
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none();
        match (url.scheme_str(), url.authority()) {
            (Some("http"), Some(authority)) if is_bare && !authority.as_str().contains('@') => {
                let port = authority.port_u16().ok_or_else(form)?;
                Ok(Self { host: authority.host().to_owned(), port })
            }
            _ => Err(form()),
        }
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

impl Reach {
    pub(crate) fn new(url: Uri, proxy: Option<Proxy>, config: Arc<ClientConfig>) -> Self {
        Self { url, proxy, config }
    }

    /// Where it leads.
    pub(crate) fn url(&self) -> &Uri {
        &self.url
    }

    /// A connection.
    ///
    /// # Errors
    /// How far it came, and why not farther.
    pub(crate) async fn connect(&self) -> Result<TlsStream<TcpStream>, Error> {
        let (host, port) = (self.url.host().unwrap_or_default(), self.url.port_u16().unwrap_or(NO_PORT));
        let (host_to, port_to) = self.proxy.as_ref().map_or((host, port), |proxy| (&proxy.host, proxy.port));
        let mut stream =
            step(format!("connect to {host_to}:{port_to}"), TcpStream::connect((bare(host_to), port_to))).await?;
        link::at_once(&stream);
        if let Some(proxy) = &self.proxy {
            step(format!("get through the proxy {proxy} to {host}:{port}"), pass(&mut stream, host, port)).await?;
        }
        let name = ServerName::try_from(bare(host).to_owned());
        let name = name.map_err(|error| Error { step: format!("use the host {host}"), why: error.to_string() })?;
        let shaken = time::timeout(STEP, TlsConnector::from(Arc::clone(&self.config)).connect(name, stream)).await;
        let failed = |why| Error { step: format!("shake hands with the relay at {host}:{port}"), why };
        match shaken {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(failed(tls::why(&error))),
            Err(_late) => Err(failed(late())),
        }
    }
}

/// An address of version 6 stands in brackets in a URL and nowhere else.
fn bare(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

fn late() -> String {
    format!("there was no answer within {} s", STEP.as_secs())
}

async fn step<T>(step: String, work: impl Future<Output = io::Result<T>>) -> Result<T, Error> {
    match time::timeout(STEP, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Error { step, why: error.to_string() }),
        Err(_late) => Err(Error { step, why: late() }),
    }
}

/// Asks a proxy for the way, and reads its answer and nothing behind it.
async fn pass(
    stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    host: &str,
    port: u16,
) -> io::Result<()> {
    stream.write_all(format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n").as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() == MAX_ANSWER {
            return Err(io::Error::other("its answer is too long"));
        }
        answer.push(stream.read_u8().await?);
    }
    let first = String::from_utf8_lossy(answer.split(|b| *b == b'\r').next().unwrap_or_default()).into_owned();
    let mut words = first.split_whitespace();
    match (words.next(), words.next()) {
        (Some(version), Some(code)) if version.starts_with("HTTP/1.") && code.len() == 3 && code.starts_with('2') => {
            Ok(())
        }
        (Some(version), Some(_)) if version.starts_with("HTTP/1.") => {
            Err(io::Error::other(format!("it answers {:?}", crate::refusal::excerpt(&first))))
        }
        _ => Err(io::Error::other("it does not answer as a proxy does")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_has_one_form() {
        assert_eq!("http://gate.example:3128".parse::<Proxy>().unwrap().to_string(), "http://gate.example:3128");
        for wrong in [
            "",
            "gate.example:3128",
            "https://gate.example:1",
            "http://gate.example",
            "http://u:p@gate.example:1",
            "http://p:1/x",
        ] {
            assert!(wrong.parse::<Proxy>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_proxy_is_asked_once_and_nothing_behind_its_answer_is_read() {
        for (answer, want) in [
            ("HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n", None),
            ("HTTP/1.0 200 OK\r\n\r\n", None),
            ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", Some("407 Proxy")),
            ("SSH-2.0-x\r\n\r\n", Some("as a proxy does")),
        ] {
            let (mut near, mut far) = tokio::io::duplex(1 << 10);
            far.write_all(answer.as_bytes()).await.unwrap();
            if want.is_none() {
                far.write_all(b"x").await.unwrap();
            }
            let (mut far_read, far_write) = tokio::io::split(far);
            drop(far_write);
            let asked = async {
                let passed = pass(&mut near, "relay.test", 7443).await;
                if passed.is_ok() {
                    assert_eq!(near.read_u8().await.unwrap(), b'x');
                }
                drop(near);
                passed
            };
            let heard = async {
                let mut heard = String::new();
                far_read.read_to_string(&mut heard).await.unwrap();
                heard
            };
            let (passed, heard) = tokio::join!(asked, heard);
            assert_eq!(heard, "CONNECT relay.test:7443 HTTP/1.1\r\nHost: relay.test:7443\r\n\r\n");
            let told = passed.err().map(|error| error.to_string());
            assert_eq!(told.is_some(), want.is_some(), "{told:?}");
            assert!(want.is_none_or(|want| told.is_some_and(|told| told.contains(want))));
        }
    }
}
