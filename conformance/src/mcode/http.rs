//! A client of HTTP/1.1 without TLS: one connection for a request, the answer whole or as server-sent events.

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::lines::Lines;

/// The head of an answer, and the rest of it to be read. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
    read: Lines,
    // Held for its end alone: it drives the connection.
    _connection: JoinSet<()>,
}

/// Sends a request and waits for the head of the answer.
pub(super) async fn send(
    method: Method,
    url: &str,
    headers: &[(String, String)],
    body: String,
) -> anyhow::Result<Answer> {
    let uri: Uri = url.parse().with_context(|| format!("the address {url}"))?;
    anyhow::ensure!(uri.scheme_str() == Some("http"), "{url}: the double speaks no TLS");
    let host = uri.host().context("an address without a host")?.trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await;
    let stream = stream.with_context(|| format!("connect to {url}"))?;
    _ = stream.set_nodelay(true);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context("greet the server")?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // What breaks it is told to who waits for the answer.
        _ = connection.await;
    });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = uri.authority().map_or(host, |authority| authority.as_str());
    let mut request = Request::builder().method(method).uri(path).header(HOST, authority);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(body))).context("make the request")?;
    let answer = sender.send_request(request).await.with_context(|| format!("no answer from {url}"))?;
    let (parts, body) = answer.into_parts();
    Ok(Answer { status: parts.status, headers: parts.headers, body, read: Lines::default(), _connection: driver })
}

impl Answer {
    /// Whether the answer is a stream of events.
    pub(super) fn streams(&self) -> bool {
        let kind = self.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    /// All of the body; what is not UTF-8 is replaced.
    pub(super) async fn whole(mut self) -> anyhow::Result<String> {
        while self.more().await? {}
        Ok(String::from_utf8_lossy(&self.read.rest()).into_owned())
    }

    /// The data of the next event, nothing at the end.
    pub(super) async fn event(&mut self) -> anyhow::Result<Option<String>> {
        let mut data: Vec<String> = Vec::new();
        loop {
            while let Some(line) = self.read.next() {
                let line = String::from_utf8_lossy(&line);
                let line = line.trim_end_matches(['\r', '\n']);
                if line.is_empty() && !data.is_empty() {
                    return Ok(Some(data.join("\n")));
                }
                if let Some(rest) = line.strip_prefix("data:") {
                    data.push(rest.strip_prefix(' ').unwrap_or(rest).to_owned());
                }
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    async fn more(&mut self) -> anyhow::Result<bool> {
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        let frame = frame.context("the answer broke off")?;
        self.read.add(frame.data_ref().map_or(&[][..], |data| data));
        Ok(true)
    }
}
