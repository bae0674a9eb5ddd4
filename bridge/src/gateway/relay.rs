//! One request on its way through: found by its path, given the key, passed on and answered as the provider answers, piece by piece.

use std::{error::Error as _, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version,
    header::{self, CONTENT_TYPE},
};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use tokio::time::{self, Instant};

use super::{
    connect::Connector,
    guard::Refused,
    judged::Judged,
    routes::{OPEN, Route, Routes},
    stream::Breach,
    unreachable,
};

/// What an answer is made of: the provider's own, or a text of the gateway.
pub(super) type Body = Either<Judged, Full<Bytes>>;

/// The requests of one route. They share connections with those of no other.
pub(super) type Upstream = Client<Connector, Incoming>;

/// Headers that concern one connection and not the message, beside those that `connection` names.
const OF_THE_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Who was asked is not there, or broke off: so does the gateway, and the Harness sees what it would have seen.
#[derive(Debug, thiserror::Error)]
#[error("who was asked did not answer")]
pub(super) struct Broken;

/// Passes a request on. A dropped future, and a dropped body, drop the request to the provider.
pub(super) async fn pass(routes: Arc<Routes>, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
    let Some((route, rest)) = routes.find(request.uri().path()) else { return Ok(nothing()) };
    let Some(target) = route.target(rest, request.uri().query()) else { return Ok(nothing()) };
    let Some(seat) = route.seat() else {
        let text = format!("the bridge passes at most {OPEN} requests of one process to {} at once", route.whom());
        return Ok(own(&route, StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", text));
    };
    let (mut head, body) = request.into_parts();
    head.uri = target;
    // Of the connection to the Harness; the other one has its own.
    head.version = Version::HTTP_11;
    head.extensions.clear();
    strip(&mut head.headers);
    for name in route.stripped() {
        head.headers.remove(name);
    }
    if let Some((name, value)) = route.credential() {
        head.headers.insert(name, value);
    }
    let path = head.uri.path().to_owned();
    let limit = route.first_byte().map(|limit| (limit, Instant::now() + limit));
    let asking = route.upstream().request(Request::from_parts(head, body));
    let answered = match limit {
        None => asking.await,
        Some((limit, by)) => match time::timeout_at(by, asking).await {
            Ok(answered) => answered,
            Err(_late) => {
                route.breach(Breach::FirstByte(limit));
                return Err(Broken);
            }
        },
    };
    let whom = route.whom();
    match answered {
        Ok(answer) if answer.status().is_redirection() && answer.status() != StatusCode::NOT_MODIFIED => {
            let text = format!("{whom} answered with a redirect ({}), which is not followed", answer.status().as_u16());
            Ok(own(&route, StatusCode::BAD_GATEWAY, "api_error", text))
        }
        Ok(answer) if is_packed(answer.headers()) => {
            let text = format!("{whom} packs its answer although it was not asked to, so it cannot be counted");
            Ok(own(&route, StatusCode::BAD_GATEWAY, "api_error", text))
        }
        Ok(answer) => {
            route.note(None);
            let (mut head, body) = answer.into_parts();
            strip(&mut head.headers);
            head.version = Version::HTTP_11;
            let judge = route.judge(&path, is_stream(&head.headers));
            if judge.holds_back() {
                head.headers.remove(header::CONTENT_LENGTH);
            }
            let by = limit.map(|(_, by)| by);
            Ok(Response::from_parts(head, Either::Left(Judged::new(body, judge, route, by, seat))))
        }
        Err(error) => match refused(&error) {
            // No repetition makes it right, so it gets a status that no Harness tries again.
            Some(refused) => {
                let text = format!("the bridge's outbound guard refused {whom}: {refused}");
                Ok(own(&route, StatusCode::BAD_REQUEST, "invalid_request_error", text))
            }
            // The Harness decides whether it asks again; whoever reads of the failed Turn is told what it cannot know.
            None => {
                let text = chain(&error);
                tracing::warn!(of = whom, origin = %route.origin(), error = text, "a request did not get there");
                route.note(unreachable::reason(whom, &error));
                Err(Broken)
            }
        },
    }
}

/// Whether an answer is a stream of events.
fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}

/// Whether the bytes of an answer are not the text itself.
fn is_packed(headers: &HeaderMap) -> bool {
    let ways = headers.get_all(header::CONTENT_ENCODING).iter();
    ways.map(HeaderValue::as_bytes).any(|way| !way.is_empty() && !way.eq_ignore_ascii_case(b"identity"))
}

/// An unknown path is told nothing, and keeps no connection.
fn nothing() -> Response<Body> {
    let mut answer = Response::new(Either::Right(Full::default()));
    *answer.status_mut() = StatusCode::NOT_FOUND;
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// An answer of the gateway itself, in the form of errors that both protocols have.
fn own(route: &Route, status: StatusCode, kind: &str, text: String) -> Response<Body> {
    tracing::warn!(origin = %route.origin(), text, "a request was not passed on");
    let body =
        serde_json::json!({"type": "error", "error": {"type": kind, "code": "runtime_bridge", "message": &text}});
    route.note(Some(text));
    let mut answer = Response::new(Either::Right(Full::from(body.to_string())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// Takes out what concerns the connection that a message came over.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in OF_THE_CONNECTION.iter().chain(&named) {
        headers.remove(name);
    }
}

/// The guard's refusal in an error of the client.
fn refused(error: &hyper_util::client::legacy::Error) -> Option<&Refused> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        source = error.source();
    }
    None
}

/// An error with what it came from; hyper's own say little.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_one_connection_stays_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, x-own"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("x-own", "1"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "Basic x"),
            ("accept", "text/event-stream"),
            ("content-length", "3"),
            ("x-request-id", "r"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "content-length", "x-request-id"]);
    }
}
