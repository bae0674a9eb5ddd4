//! The HTTP side of a server of functions: who comes in, and how long an exchange lasts. It reads nothing of a request but its head.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONNECTION, WWW_AUTHENTICATE},
};
use http_body_util::{BodyExt as _, Empty, combinators::BoxBody};
use hyper::body::{Body, Frame, Incoming};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService,
    session::{SessionManager as _, local::LocalSessionManager},
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    served::Served,
    sessions::{Sessions, Use},
};
use crate::native::loopback::Loopback;

/// Names the MCP session of a request, and in the answer to `initialize` the one that begins.
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// LIMIT: connections that are open at once; the next ones wait. A Harness has one for each call, and one that stands.
pub(super) const CONNECTIONS: usize = 256;
/// LIMIT: bytes of a request, as many as of a native line.
pub(super) const BODY_BYTES: usize = 64 << 20;
/// Between two comments on a stream that says nothing else.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Lets in who knows the path and the bearer.
pub(super) struct Door {
    path: SecretString,
    bearer: SecretString,
    served: Served,
    service: StreamableHttpService<Served, LocalSessionManager>,
    manager: Arc<LocalSessionManager>,
    sessions: Sessions,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

/// One request and its answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Exchange {
    /// The answer has gone to the connection, to its end.
    pub(super) ended: CancellationToken,
    /// Nobody waits for it any more.
    pub(super) dropped: CancellationToken,
}

impl Door {
    pub(super) fn new(
        path: SecretString,
        bearer: SecretString,
        served: Served,
        sessions: Sessions,
        stop: CancellationToken,
    ) -> Self {
        let mut manager = LocalSessionManager::default();
        // A silent client is no reason to end a session and the calls in it, and neither is a slow one (R-FN-8).
        manager.session_config.keep_alive = None;
        manager.session_config.init_timeout = None;
        // No stream is taken up again: who drops one has given up.
        manager.session_config.sse_retry = None;
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stop)
            .with_max_request_body_bytes(BODY_BYTES)
            .with_sse_keep_alive(Some(KEEP_ALIVE))
            .with_sse_retry(None);
        let manager = Arc::new(manager);
        let of = served.clone();
        let service = StreamableHttpService::new(move || Ok(of.of_session()), Arc::clone(&manager), config);
        Self { path: format!("/{}", path.expose_secret()).into(), bearer, served, service, manager, sessions }
    }

    async fn answered(&self, request: Request<Incoming>) -> Result<Response<Watched>, Infallible> {
        Ok(self.answer(request).await)
    }

    /// Answers a request. Nobody else is told anything, and nothing of his request is read.
    async fn answer(&self, mut request: Request<Incoming>) -> Response<Watched> {
        if !same(request.uri().path().as_bytes(), self.path.expose_secret().as_bytes()) {
            return refusal(StatusCode::NOT_FOUND);
        }
        if !self.knows(request.headers()) {
            let mut refusal = refusal(StatusCode::UNAUTHORIZED);
            refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return refusal;
        }
        // Without a length the SDK counts.
        if request.body().size_hint().lower() > BODY_BYTES as u64 {
            return refusal(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let exchange = Exchange::default();
        // These are dropped with the connection, wherever the exchange is then.
        let dropped = exchange.dropped.clone().drop_guard();
        let within = session(request.headers()).and_then(|id| self.sessions.enter(id));
        let ended = exchange.ended.clone();
        request.extensions_mut().insert(exchange);
        let begins = !request.headers().contains_key(SESSION);
        let (method, of) = (request.method().clone(), session(request.headers()).map(str::to_owned));
        let response = self.service.handle(request).await;
        let stands = match (method, of) {
            (Method::GET, Some(id)) if response.status().is_success() => {
                if self.sessions.back(&id) {
                    self.served.are_listed().await;
                }
                Some(Stands { sessions: self.sessions.clone(), id })
            }
            (Method::DELETE, Some(id)) => {
                self.sessions.leave(&id);
                None
            }
            _ => None,
        };
        if begins
            && let Some(surplus) = session(response.headers()).and_then(|id| self.sessions.begin(id))
            && let Err(error) = self.manager.close_session(&surplus.into()).await
        {
            tracing::debug!(%error, "an MCP session had ended before");
        }
        response.map(|body| Watched {
            body,
            watch: Some(Watch { ended, _dropped: dropped, _within: within, _stands: stands }),
        })
    }

    /// Whether a request has the bearer, once.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else { return false };
        let Some((scheme, bearer)) = given.as_bytes().split_at_checked(b"Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && same(bearer, self.bearer.expose_secret().as_bytes())
    }
}

pub(super) fn session(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION)?.to_str().ok()
}

/// Compares in a time that tells nothing but the lengths.
fn same(given: &[u8], secret: &[u8]) -> bool {
    let differences = given.iter().zip(secret).fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    given.len() == secret.len() && differences == 0
}

/// An answer that says nothing, and the last one of its connection.
fn refusal(status: StatusCode) -> Response<Watched> {
    let mut response = Response::new(Watched { body: Empty::new().boxed(), watch: None });
    *response.status_mut() = status;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The body of an answer, which tells when it has ended and when it is dropped.
#[derive(Debug)]
struct Watched {
    body: BoxBody<Bytes, Infallible>,
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Watch {
    ended: CancellationToken,
    _dropped: DropGuard,
    _within: Option<Use>,
    _stands: Option<Stands>,
}

/// The stream that a client keeps open. Without it the client has left.
#[derive(Debug)]
struct Stands {
    sessions: Sessions,
    id: String,
}

impl Drop for Stands {
    fn drop(&mut self) {
        self.sessions.leave(&self.id);
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Poll::Ready(None), Some(watch)) = (&polled, &self.watch) {
            watch.ended.cancel();
        }
        polled
    }

    /// A body that says in advance that it is at its end is not asked for it, so that one which is watched never says so.
    fn is_end_stream(&self) -> bool {
        self.watch.is_none() && self.body.is_end_stream()
    }
}

/// Takes connections until it is told to stop.
pub(super) async fn listen(loopback: Loopback, door: Arc<Door>, tasks: TaskTracker, stop: CancellationToken) {
    while let Some(taken) = loopback.next(&stop).await {
        let (door, stop) = (Arc::clone(&door), stop.clone());
        tasks.spawn(async move { taken.serve(&stop, |request| door.answered(request)).await });
    }
}
