//! One request on its way through: found by its path, given the key, passed on and answered as the provider answers, piece by piece.

use std::{
    error::Error as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version,
    header::{self, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{Either, Full};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::client::legacy::Client;

use super::{
    connect::Connector,
    guard::Refused,
    routes::{Route, Routes},
};

/// What an answer is made of: the provider's own, or a text of the gateway.
pub(super) type Body = Either<Passing, Full<Bytes>>;

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

/// Headers that are the gateway's to set: the placeholder stands in one of them.
const OF_THE_GATEWAY: [HeaderName; 4] =
    [header::HOST, header::EXPECT, AUTHORIZATION, HeaderName::from_static("x-api-key")];

/// An answer of a provider, as it comes.
#[derive(Debug)]
pub(super) struct Passing {
    body: Incoming,
    /// The provider broke off.
    broken: Option<hyper::Error>,
}

impl hyper::body::Body for Passing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(Some(Err(broken)));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Err(broken))) => {
                // ORDER: what came before it goes out first. An error makes hyper drop what it has not written yet, a pause makes it write.
                self.broken = Some(broken);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            frame => frame,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The provider is not there, or broke off: so does the gateway, and the Harness sees what it would have seen.
#[derive(Debug, thiserror::Error)]
#[error("the model provider did not answer")]
pub(super) struct Broken;

/// Passes a request on. A dropped future, and a dropped body, drop the request to the provider.
pub(super) async fn pass(routes: Arc<Routes>, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
    let Some((route, rest)) = routes.find(request.uri().path()) else { return Ok(nothing()) };
    let Some(target) = route.target(rest, request.uri().query()) else { return Ok(nothing()) };
    let (mut head, body) = request.into_parts();
    head.uri = target;
    // Of the connection to the Harness; the other one has its own.
    head.version = Version::HTTP_11;
    head.extensions.clear();
    strip(&mut head.headers);
    for name in OF_THE_GATEWAY {
        head.headers.remove(name);
    }
    if let Some((name, value)) = route.credential() {
        head.headers.insert(name, value);
    }
    match route.upstream().request(Request::from_parts(head, body)).await {
        Ok(answer) if answer.status().is_redirection() && answer.status() != StatusCode::NOT_MODIFIED => {
            let text = format!(
                "the model provider answered with a redirect ({}), which is not followed",
                answer.status().as_u16()
            );
            Ok(own(&route, StatusCode::BAD_GATEWAY, "api_error", text))
        }
        Ok(answer) => {
            route.note(None);
            let (mut head, body) = answer.into_parts();
            strip(&mut head.headers);
            head.version = Version::HTTP_11;
            Ok(Response::from_parts(head, Either::Left(Passing { body, broken: None })))
        }
        Err(error) => match refused(&error) {
            // No repetition makes it right, so it gets a status that no Harness tries again.
            Some(refused) => {
                let text = format!("the bridge's outbound guard refused the model provider: {refused}");
                Ok(own(&route, StatusCode::BAD_REQUEST, "invalid_request_error", text))
            }
            None => {
                let text = chain(&error);
                tracing::warn!(provider = %route.origin(), error = text, "a request did not reach the model provider");
                route.note(None);
                Err(Broken)
            }
        },
    }
}

/// An unknown path is told nothing.
fn nothing() -> Response<Body> {
    let mut answer = Response::new(Either::Right(Full::default()));
    *answer.status_mut() = StatusCode::NOT_FOUND;
    answer
}

/// An answer of the gateway itself, in the form of errors that both protocols have.
fn own(route: &Route, status: StatusCode, kind: &str, text: String) -> Response<Body> {
    tracing::warn!(provider = %route.origin(), text, "a request was not passed on");
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
fn chain(error: &dyn std::error::Error) -> String {
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
