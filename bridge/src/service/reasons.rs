//! Gives a reason to what the gRPC library refuses before a handler sees it (R-API-4): a request that is too large, one that cannot be decoded,
//! a path that is none of ours.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use proto::REASON_TRAILER;
use tonic::{Code, Status, body::Body, codegen::Service, server::NamedService};

use super::{MAX_REQUEST, status};
use crate::refusal::{Reason, Refusal, excerpt};

/// A service whose refusals all have a reason.
#[derive(Clone, Debug)]
pub(crate) struct Reasons<S>(S);

impl<S> Reasons<S> {
    pub(super) fn over(service: S) -> Self {
        Self(service)
    }
}

impl<S: NamedService> NamedService for Reasons<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Reasons<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(match refused(answer.headers()) {
                Some(refusal) => status(refusal).into_http(),
                None => answer,
            })
        })
    }
}

/// What the library refused. A refusal is an answer of headers alone; one of ours has its reason, and a status that only says that somebody
/// stopped waiting proves nothing and gets none (R-API-5).
fn refused(headers: &http::HeaderMap) -> Option<Refusal> {
    if headers.contains_key(REASON_TRAILER) {
        return None;
    }
    let told = Status::from_header_map(headers)?;
    let text = excerpt(told.message());
    match told.code() {
        Code::OutOfRange => Some(
            Refusal::new(Reason::PayloadTooLarge, format!("a request has at most {MAX_REQUEST} bytes"))
                .with("max_request_bytes", MAX_REQUEST)
                .with("http_status", 413),
        ),
        Code::Internal | Code::InvalidArgument => {
            Some(Refusal::new(Reason::InvalidRequest, format!("the request cannot be read: {text}")))
        }
        Code::Unimplemented => {
            let text = if text.is_empty() { "the bridge has no such RPC".to_owned() } else { text };
            Some(Refusal::new(Reason::Unsupported, text))
        }
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => None,
    }
}
