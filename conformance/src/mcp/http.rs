//! What stands before the SDK over HTTP: the record, the bearer, and what goes wrong.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::tools::{Answer, Http};
use super::{Fault, Request, Shared};
use crate::provider::{AnyBody, BrokenOff, Piece, Played, whole};

/// Any port of loopback.
pub(super) const LOOPBACK: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

type Body = Either<Answer, AnyBody>;

/// Takes connections until the server stops.
pub(super) async fn accept(shared: Arc<Shared>, sdk: Arc<Http>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.stop.cancelled() => return,
        };
        // A connection that went away while it was accepted is no reason to stop.
        if let Ok((stream, _)) = accepted {
            shared.tasks.spawn(serve(shared.clone(), sdk.clone(), stream));
        }
    }
}

async fn serve(shared: Arc<Shared>, sdk: Arc<Http>, stream: TcpStream) {
    // Without it an event would wait for the acknowledgement of the one before.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let service = {
        let shared = shared.clone();
        service_fn(move |request| answer(shared.clone(), sdk.clone(), request))
    };
    let connection = hyper::server::conn::http1::Builder::new()
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // A broken connection is what faults are for.
        _ = connection => {}
        () = shared.stop.cancelled() => {}
    }
}

/// An answer, or the wish to have none.
async fn answer(
    shared: Arc<Shared>,
    sdk: Arc<Http>,
    request: hyper::Request<Incoming>,
) -> Result<Response<Body>, BrokenOff> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| BrokenOff)?.to_bytes();
    let headers = parts
        .headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    let recorded = Request {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: headers.collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let fault = shared.fault(recorded.asks().as_deref());
    let welcome = shared.bearer.as_deref().is_none_or(|bearer| recorded.bearer() == Some(bearer));
    shared.requests.send_modify(|requests| requests.push(recorded));
    match fault {
        None => {}
        Some(Fault::Held(gate)) => shared.signals.opened(gate).await,
        Some(Fault::Dropped) => return Err(BrokenOff),
        Some(Fault::BrokenOff) => return Ok(broken_off().await),
        Some(Fault::Status(status)) => {
            let status = StatusCode::from_u16(status).map_err(|_| BrokenOff)?;
            return Ok(plain(status, "the server was told to answer so"));
        }
        Some(Fault::Redirected(address)) => {
            let mut response = plain(StatusCode::TEMPORARY_REDIRECT, "elsewhere");
            response.headers_mut().insert(LOCATION, HeaderValue::try_from(address).map_err(|_| BrokenOff)?);
            return Ok(response);
        }
    }
    if !welcome {
        return Ok(plain(StatusCode::UNAUTHORIZED, "no such token"));
    }
    let answer = sdk.handle(hyper::Request::from_parts(parts, Full::new(body))).await;
    Ok(answer.map(Either::Left))
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Either::Right(whole(text)));
    *response.status_mut() = status;
    response
}

/// A stream of events that ends within the first one.
async fn broken_off() -> Response<Body> {
    let (pieces, played) = mpsc::channel(2);
    for piece in [Piece::Bytes(Bytes::from_static(b"event: message\ndata: {\"json")), Piece::Broken] {
        // There is room for both.
        _ = pieces.send(piece).await;
    }
    let mut response = Response::new(Either::Right(AnyBody::Right(Played::new(played))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}
