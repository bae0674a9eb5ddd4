//! Passes a Core's call to the bridge that it names and the answer back, as they come: no message is decoded, and nobody is read faster than the other side
//! takes it. What it adds is the name of the Core that the relay authenticated (R-ENR-4).

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use hyper::body::{Body as HttpBody, Frame, Incoming};
use proto::enrollment::{PRINCIPAL_HEADER, v1::EnrollmentReason as Reason};
use tonic::{Code, Status, body::Body};

use super::{Caller, links::Links, names, refusal};

/// Passes a call on.
pub(super) async fn pass(links: &Links, domain: &str, caller: &Caller, request: Request<Incoming>) -> Response<Body> {
    match try_pass(links, domain, caller, request).await {
        Ok(answer) => answer.map(|body| Body::new(Passed(Some(body)))),
        Err(status) => status.into_http(),
    }
}

async fn try_pass(
    links: &Links,
    domain: &str,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<Response<Incoming>, Status> {
    let refused = |reason, code, text: &str| refusal::of_passing(Some(reason), code, text);
    let denied = |text: &str| refused(Reason::NotAuthorized, Code::PermissionDenied, text);
    let name = match caller {
        Caller::Core(name) => {
            HeaderValue::from_str(name).map_err(|_| denied("the name in the certificate does not fit in a header"))?
        }
        Caller::Stranger(name) => {
            return Err(denied(&format!("{name:?} is not among the Cores that this relay takes")));
        }
        Caller::Environment { .. } => return Err(denied("a bridge calls no other one")),
        Caller::Nobody => return Err(denied("a Core shows a certificate")),
    };
    let (mut head, body) = request.into_parts();
    let host = head.uri.host().unwrap_or_default();
    let label = names::label_of(host, domain).ok_or_else(|| {
        let text = format!("the host of a call is the one that presence names for the Environment, below {domain}");
        refused(Reason::NotFound, Code::NotFound, &text)
    })?;
    let away =
        || refused(Reason::NotConnected, Code::Unavailable, "the Environment has no connection to the relay now");
    let mut sender = links.find(&label.to_ascii_lowercase()).ok_or_else(away)?;
    sender.ready().await.map_err(|_gone| away())?;
    while head.headers.remove(PRINCIPAL_HEADER).is_some() {}
    head.headers.insert(PRINCIPAL_HEADER, name);
    head.version = Version::HTTP_2;
    head.extensions.clear();
    sender.send_request(Request::from_parts(head, body)).await.map_err(|error| {
        tracing::debug!(%error, "a call was lost with its link");
        refusal::of_passing(None, Code::Unavailable, LOST)
    })
}

const LOST: &str = "the connection to the Environment was lost; what became of the call is not known";

/// The body of an answer. Where the link breaks in the middle of it, it ends with the status that tells so.
struct Passed(Option<Incoming>);

impl HttpBody for Passed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        match std::task::ready!(Pin::new(body).poll_frame(cx)) {
            Some(Ok(frame)) => Poll::Ready(Some(Ok(frame))),
            None => Poll::Ready(None),
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer was lost with its link");
                self.0 = None;
                Poll::Ready(Some(Ok(Frame::trailers(lost()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(HttpBody::is_end_stream)
    }
}

fn lost() -> HeaderMap {
    Status::new(Code::Unavailable, LOST).into_http::<()>().into_parts().0.headers
}
