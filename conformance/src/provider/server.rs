//! The HTTP side: one connection after the other, with or without TLS, the routes, and the control paths that begin with `/__`.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Either};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::Shared;
use super::body::{AnyBody, BrokenOff, Played, whole};
use super::play::{self, Head};
use super::protocol::{Protocol, counts_tokens};
use super::record::{End, Recorded, now_ms};
use super::request::Request as Asked;
use super::tls::Speaks;
use crate::script::provider::{Action, Step};

/// How long `GET /__marks/NAME` waits.
const MARK_WAIT: Duration = Duration::from_secs(30);

/// How many bytes of a request are counted as one token.
const BYTES_OF_A_TOKEN: usize = 4;

/// Takes connections until the provider stops.
pub(super) async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.stop.cancelled() => return,
        };
        // A connection that went away while it was accepted is no reason to stop.
        if let Ok((stream, _)) = accepted {
            shared.tasks.spawn(serve(shared.clone(), stream));
        }
    }
}

/// Where to listen: loopback only, since the provider asks for no key.
pub(super) fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    // Without it an event would wait for the acknowledgement of the one before.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    // A second descriptor of the socket reaches its options while the server owns the first.
    let Ok(socket) = stream.as_fd().try_clone_to_owned() else { return };
    let reset = Arc::new(AtomicBool::new(false));
    let serving = async {
        let Some(tls) = shared.tls.clone() else {
            return answers(&shared, &reset, stream, std::future::pending()).await;
        };
        let speaks = tls.speaks();
        let Some((stream, open)) = tls.accept(stream).await else { return };
        match speaks {
            Speaks::Http1 => answers(&shared, &reset, stream, open.hung_up()).await,
            Speaks::Http2 => answers_at_once(&shared, &reset, stream, open.hung_up()).await,
        }
    };
    tokio::select! {
        () = serving => {}
        () = shared.stop.cancelled() => {}
    }
    if reset.load(Ordering::Relaxed) {
        linger_not(&socket);
    }
}

/// Answers one request after the other over HTTP/1.1, until the connection breaks, which is what scripts are for, or is hung up.
async fn answers(
    shared: &Arc<Shared>,
    reset: &Arc<AtomicBool>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    hung_up: impl Future<Output = ()>,
) {
    let service = service_fn(|request| answer(shared.clone(), reset.clone(), request));
    let connection = hyper::server::conn::http1::Builder::new()
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = hung_up => {}
    }
    connection.as_mut().graceful_shutdown();
    _ = connection.await;
}

/// The same with all requests at once, over HTTP/2.
async fn answers_at_once(
    shared: &Arc<Shared>,
    reset: &Arc<AtomicBool>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    hung_up: impl Future<Output = ()>,
) {
    let service = service_fn(|request| answer(shared.clone(), reset.clone(), request));
    let tracked = Tracked(shared.tasks.clone());
    let connection = hyper::server::conn::http2::Builder::new(tracked).serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = hung_up => {}
    }
    connection.as_mut().graceful_shutdown();
    _ = connection.await;
}

/// Starts the tasks of a connection, so that the provider waits for them.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tracked {
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

/// Makes the close that follows a reset.
fn linger_not(socket: &OwnedFd) {
    // A socket that cannot be set is closed anyway.
    _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// An answer, or the wish to have none.
async fn answer(
    shared: Arc<Shared>,
    reset: Arc<AtomicBool>,
    request: Request<Incoming>,
) -> Result<Response<AnyBody>, BrokenOff> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| BrokenOff)?.to_bytes();
    if let Some(control) = parts.uri.path().strip_prefix("/__") {
        return Ok(control_answer(&shared, &parts.method, control, &body).await);
    }
    let posted = parts.method == Method::POST;
    let body = String::from_utf8_lossy(&body).into_owned();
    let protocol = Protocol::of(parts.uri.path()).filter(|_| posted);
    let asked = protocol.map(|protocol| Asked::parse(protocol, &body));
    let step = asked.as_ref().map(|asked| shared.next_step(asked, &body));
    let counts = posted && counts_tokens(parts.uri.path());
    let answered_by = match &step {
        Some(Some(_)) => "script",
        Some(None) => "mock",
        None if counts => "count",
        None => "none",
    };
    let headers = parts
        .headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    let number = shared.record.add(Recorded {
        number: 0,
        at_ms: now_ms(),
        method: parts.method.to_string(),
        version: format!("{:?}", parts.version),
        path: parts.uri.path_and_query().map_or_else(|| parts.uri.to_string(), ToString::to_string),
        headers: headers.collect(),
        body: body.clone(),
        answered_by: answered_by.into(),
        status: None,
        events: 0,
        end: None,
        ended_at_ms: None,
    });
    let (Some(step), Some(asked)) = (step, asked) else {
        let (status, answer) = if counts {
            (StatusCode::OK, format!(r#"{{"input_tokens":{}}}"#, body.len() / BYTES_OF_A_TOKEN))
        } else {
            (StatusCode::NOT_FOUND, r#"{"error":{"message":"not found","code":null}}"#.to_owned())
        };
        shared.record.change(number, |request| request.status = Some(status.as_u16()));
        shared.record.end(number, End::Sent);
        return Ok(json_answer(status, answer));
    };
    let step = step.unwrap_or_else(|| Step::new(vec![Action::Mock]));
    let (head, beginning) = oneshot::channel();
    let task = {
        let (shared, reset) = (shared.clone(), reset.clone());
        async move {
            let playing = play::play(&shared, number, &step, &asked, head, &reset);
            tokio::select! {
                () = playing => {}
                () = shared.stop.cancelled() => {}
            }
        }
    };
    shared.tasks.spawn(task);
    // A task that ended without a head was stopped with the provider.
    match beginning.await.map_err(|_| BrokenOff)? {
        Head::Stream(pieces) => {
            let mut response = Response::new(Either::Right(Played::new(pieces)));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            Ok(response)
        }
        Head::Whole { status, headers, body } => {
            let mut response = Response::new(whole(body));
            *response.status_mut() = status;
            for (name, value) in headers {
                response.headers_mut().insert(name, value);
            }
            Ok(response)
        }
        Head::Nothing => Err(BrokenOff),
    }
}

fn json_answer(status: StatusCode, body: impl Into<Bytes>) -> Response<AnyBody> {
    let mut response = Response::new(whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The control paths, for tests in another process: `GET /__requests`, `POST /__script` (a script file),
/// `POST /__gates/NAME` (opens), `GET /__marks/NAME` (waits), `POST /__reset` (forgets requests, steps, gates, marks).
async fn control_answer(shared: &Shared, method: &Method, path: &str, body: &Bytes) -> Response<AnyBody> {
    let done = || json_answer(StatusCode::OK, "{}");
    let refused = |status, text: &str| json_answer(status, serde_json::json!({ "error": text }).to_string());
    match (method.as_str(), path.split_once('/').unwrap_or((path, ""))) {
        ("GET", ("requests", "")) => match serde_json::to_vec(&shared.record.all()) {
            Ok(requests) => json_answer(StatusCode::OK, requests),
            Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        ("POST", ("script", "")) => {
            match std::str::from_utf8(body).map_err(Into::into).and_then(crate::script::Script::parse) {
                Ok(script) => {
                    shared.push(script.provider);
                    done()
                }
                Err(error) => refused(StatusCode::BAD_REQUEST, &format!("{error:#}")),
            }
        }
        ("POST", ("gates", gate)) => {
            shared.signals.open(gate);
            done()
        }
        ("GET", ("marks", mark)) => match tokio::time::timeout(MARK_WAIT, shared.signals.marked(mark)).await {
            Ok(()) => done(),
            Err(_) => refused(StatusCode::REQUEST_TIMEOUT, "the mark was not reached"),
        },
        ("POST", ("reset", "")) => {
            shared.reset();
            done()
        }
        _ => refused(StatusCode::NOT_FOUND, "no such control path"),
    }
}
