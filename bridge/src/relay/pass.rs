//! Passes a Core's call to the bridge that it names and the answer back, as they come: no message is decoded, and nobody is read faster than the other side
//! takes it. What it adds is the name of the Core that the relay authenticated (R-ENR-4).

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use proto::enrollment::{PRINCIPAL_HEADER, v1::EnrollmentReason as Reason};
use tokio::sync::{
    OwnedSemaphorePermit,
    mpsc::{self, error::SendTimeoutError},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, Status, body::Body};

use super::{
    Caller,
    links::{Links, NoWay},
    names, refusal,
};
use crate::tasks;

/// How long a Core may take nothing of an answer that is there. Then the answer is given up, and with it what it holds of the link.
const UNREAD: Duration = Duration::from_secs(60);

/// Passes a call on.
pub(super) async fn pass(
    links: &Links,
    domain: &str,
    tracker: &TaskTracker,
    caller: &Caller,
    request: Request<Incoming>,
) -> Response<Body> {
    match try_pass(links, domain, caller, request).await {
        Ok((answer, seat)) => answer.map(|body| passed(tracker, body, seat)),
        Err(status) => status.into_http(),
    }
}

async fn try_pass(
    links: &Links,
    domain: &str,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<(Response<Incoming>, OwnedSemaphorePermit), Status> {
    let refused = |reason, code, text: &str| refusal::of_passing(Some(reason), code, text);
    let denied = |text: &str| refused(Reason::NotAuthorized, Code::PermissionDenied, text);
    let name = match caller {
        Caller::Core(name) => name,
        Caller::Stranger(name) => {
            return Err(denied(&format!("{name:?} is not among the Cores that this relay takes")));
        }
        Caller::Environment { .. } => return Err(denied("a bridge calls no other one")),
        Caller::Nobody => return Err(denied("a Core shows a certificate")),
    };
    let principal =
        HeaderValue::from_str(name).map_err(|_| denied("the name in the certificate does not fit in a header"))?;
    let (mut head, body) = request.into_parts();
    let host = head.uri.host().unwrap_or_default();
    let label = names::label_of(host, domain).ok_or_else(|| {
        let text = format!("the host of a call is the one that presence names for the Environment, below {domain}");
        refused(Reason::NotFound, Code::NotFound, &text)
    })?;
    let away =
        || refused(Reason::NotConnected, Code::Unavailable, "the Environment has no connection to the relay now");
    let (mut sender, seat) = links.find(&label.to_ascii_lowercase(), name).map_err(|no_way| match no_way {
        NoWay::Away => away(),
        NoWay::Taken { calls } => {
            let text =
                format!("{name:?} has {calls} calls to this Environment already; end some, then make this one again");
            refused(Reason::Overloaded, Code::Unavailable, &text)
        }
    })?;
    sender.ready().await.map_err(|_gone| away())?;
    while head.headers.remove(PRINCIPAL_HEADER).is_some() {}
    head.headers.insert(PRINCIPAL_HEADER, principal);
    head.version = Version::HTTP_2;
    head.extensions.clear();
    let answer = sender.send_request(Request::from_parts(head, body)).await.map_err(|error| {
        tracing::debug!(%error, "a call was lost with its link");
        refusal::of_passing(None, Code::Unavailable, LOST)
    })?;
    Ok((answer, seat))
}

const LOST: &str = "the connection to the Environment was lost; what became of the call is not known";
const LEFT: &str = "the answer was not read for a minute, and was given up; what became of the call is not known";

/// The body of an answer, which is read by a task of its own: the connection to a Core asks for no more while that Core reads nothing, and would never learn
/// how long it has not.
fn passed(tracker: &TaskTracker, body: Incoming, seat: OwnedSemaphorePermit) -> Body {
    if body.is_end_stream() {
        return Body::empty();
    }
    let (to, frames) = mpsc::channel(1);
    let left = CancellationToken::new();
    let reading = read(body, to, left.clone(), UNREAD);
    let task = async move {
        let _seat = seat;
        reading.await;
    };
    drop(tasks::spawn(tracker, tasks::Kind::Relay, task));
    Body::new(Passed { frames, left })
}

/// Reads a body for as long as somebody takes what it has, within `limit` each time.
async fn read(
    mut body: impl HttpBody<Data = Bytes, Error: fmt::Display> + Unpin,
    to: mpsc::Sender<Frame<Bytes>>,
    left: CancellationToken,
    limit: Duration,
) {
    loop {
        let next = tokio::select! {
            next = body.frame() => next,
            () = to.closed() => return,
        };
        let Some(next) = next else { return };
        let frame = next.unwrap_or_else(|error| {
            tracing::debug!(%error, "an answer was lost with its link");
            Frame::trailers(status(LOST))
        });
        let is_last = frame.is_trailers();
        match to.send_timeout(frame, limit).await {
            Ok(()) if is_last => return,
            Ok(()) => {}
            Err(SendTimeoutError::Closed(_)) => return,
            Err(SendTimeoutError::Timeout(_)) => {
                tracing::info!("a Core does not read an answer; it is given up");
                left.cancel();
                return;
            }
        }
    }
}

/// What a Core reads. Where the link breaks in the middle of it, or it is given up, it ends with the status that tells so.
#[derive(Debug)]
struct Passed {
    frames: mpsc::Receiver<Frame<Bytes>>,
    /// Set once it is given up.
    left: CancellationToken,
}

impl HttpBody for Passed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = ready!(self.frames.poll_recv(cx));
        if next.is_none() && self.left.is_cancelled() {
            self.left = CancellationToken::new();
            return Poll::Ready(Some(Ok(Frame::trailers(status(LEFT)))));
        }
        Poll::Ready(next.map(Ok))
    }
}

fn status(text: &str) -> HeaderMap {
    Status::new(Code::Unavailable, text).into_http::<()>().into_parts().0.headers
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future};

    use futures_util::stream;
    use http_body_util::StreamBody;
    use tokio::time;

    use super::*;

    /// Shorter than anybody takes to read on purpose.
    const LIMIT: Duration = Duration::from_millis(50);

    fn data() -> Result<Frame<Bytes>, Infallible> {
        Ok(Frame::data(Bytes::from_static(b"x")))
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_is_given_up_and_says_so() {
        let (to, frames) = mpsc::channel(1);
        let left = CancellationToken::new();
        let begun = time::Instant::now();
        read(StreamBody::new(stream::iter([data(), data(), data()])), to, left.clone(), LIMIT).await;
        assert!(begun.elapsed() >= LIMIT);
        let mut passed = Passed { frames, left };
        assert!(passed.frame().await.unwrap().unwrap().is_data());
        let trailers = passed.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "14");
        assert!(passed.frame().await.is_none());
    }

    #[tokio::test]
    async fn an_answer_may_be_silent_and_ends_as_it_ends() {
        let (to, frames) = mpsc::channel(1);
        let left = CancellationToken::new();
        let mut passed = Passed { frames, left: left.clone() };
        let quiet = Box::pin(stream::once(async {
            // Longer than it may wait for its reader.
            drop(time::timeout(LIMIT * 2, future::pending::<()>()).await);
            data()
        }));
        let reads = async {
            assert!(passed.frame().await.unwrap().unwrap().is_data());
            assert!(passed.frame().await.is_none());
        };
        tokio::join!(read(StreamBody::new(quiet), to, left, LIMIT), reads);
    }

    #[tokio::test]
    async fn who_goes_away_ends_the_reading_of_an_answer_that_says_nothing() {
        let (to, frames) = mpsc::channel(1);
        drop(frames);
        read(StreamBody::new(stream::pending::<Result<_, Infallible>>()), to, CancellationToken::new(), UNREAD).await;
    }
}
