//! A proxy in front of a bridge, from one Unix socket to another, that breaks one promise: what a check must find
//! (`conformance::check`). It forwards every call as it is, known to it or not, and changes what its fault is about.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::{fmt, path::Path};

use anyhow::Context as _;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message;
use proto::v1::{self, event::Kind};
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Server};

/// Receipts that wait for an observer; one more than a scenario has calls is plenty.
const EARLY: usize = 64;

/// The bytes in front of a message: whether it is compressed, which it never is here, and its length.
const PREFIX: usize = 5;

/// What a proxy breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// One event is not given out, the first delta of a message (R-EVT-1).
    DropsAnEvent,
    /// `function_result_applied` is sent as soon as the result is accepted (R-FN-6).
    AppliesEarly,
    /// A result or a start that conflicts with what is stored is answered as a duplicate (R-FN-5, R-API-6).
    ForgetsConflicts,
}

/// A running proxy. Dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Proxy {
    /// Starts a proxy at the socket `front` of the bridge at the socket `behind`.
    ///
    /// # Errors
    /// When the bridge does not listen, or the socket cannot be made.
    pub async fn start(front: &Path, behind: &Path, planted: Option<Planted>) -> anyhow::Result<Self> {
        let address = format!("unix:{}", behind.to_str().context("the socket's path is not UTF-8")?);
        let channel = Endpoint::from_shared(address)?.connect().await.context("reach the bridge")?;
        let listener = UnixListener::bind(front).with_context(|| format!("listen at {}", front.display()))?;
        let (early, _) = broadcast::channel(EARLY);
        let shared = Arc::new(Shared { planted, early, has_dropped: AtomicBool::new(false) });
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let stopped = stop.clone().cancelled_owned();
        let connections = UnixListenerStream::new(listener);
        let serve = Server::builder().serve_with_incoming_shutdown(Forward { channel, shared }, connections, stopped);
        tasks.spawn(serve);
        Ok(Self { stop, tasks })
    }

    /// Ends it; streams that are open end by themselves.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[derive(Debug)]
struct Shared {
    planted: Option<Planted>,
    /// Results that were accepted a moment ago.
    early: broadcast::Sender<v1::FunctionResultOutcome>,
    has_dropped: AtomicBool,
}

/// The service that forwards.
#[derive(Clone)]
struct Forward {
    channel: Channel,
    shared: Arc<Shared>,
}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward").field("planted", &self.shared.planted).finish_non_exhaustive()
    }
}

impl Service<Request<Body>> for Forward {
    type Response = Response<Body>;
    type Error = tonic::codegen::StdError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { channel, shared } = self.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            match (shared.planted, &*method) {
                (Some(Planted::DropsAnEvent), "ObserveTurn") => observe(channel, request, shared).await,
                (Some(Planted::AppliesEarly), "ObserveTurn") => observe(channel, request, shared).await,
                (Some(Planted::AppliesEarly), "SubmitFunctionResults") => submit_early(channel, request, &shared).await,
                (Some(Planted::ForgetsConflicts), "SubmitFunctionResults") => {
                    forget(channel, request, "RESULT_CONFLICT", |request: v1::SubmitFunctionResultsRequest| {
                        let outcomes = request.results.into_iter().map(|result| v1::FunctionResultOutcome {
                            turn_id: result.turn_id,
                            call_id: result.call_id,
                            outcome: v1::ResultOutcome::Duplicate.into(),
                        });
                        v1::SubmitFunctionResultsResponse { outcomes: outcomes.collect() }
                    })
                    .await
                }
                (Some(Planted::ForgetsConflicts), "StartTurn") => {
                    forget(channel, request, "TURN_CONFLICT", |request: v1::StartTurnRequest| {
                        let turn = v1::Turn { turn_id: request.turn_id, ..v1::Turn::default() };
                        v1::StartTurnResponse { turn: Some(turn), duplicate: true }
                    })
                    .await
                }
                _ => forward(channel, request).await,
            }
        })
    }
}

async fn forward(mut channel: Channel, request: Request<Body>) -> Result<Response<Body>, tonic::codegen::StdError> {
    std::future::poll_fn(|context| channel.poll_ready(context)).await?;
    Ok(channel.call(request).await?)
}

/// Forwards a unary call, and answers OK where it was refused for this reason.
async fn forget<Q, A>(
    channel: Channel,
    request: Request<Body>,
    reason: &str,
    instead: impl FnOnce(Q) -> A,
) -> Result<Response<Body>, tonic::codegen::StdError>
where
    Q: Message + Default,
    A: Message,
{
    let (head, body) = request.into_parts();
    let asked = body.collect().await?.to_bytes();
    let response = forward(channel, Request::from_parts(head, Body::new(Full::new(asked.clone())))).await?;
    let told = response.headers().get(proto::REASON_TRAILER).and_then(|value| value.to_str().ok());
    if told != Some(reason) {
        return Ok(response);
    }
    let mut asked = BytesMut::from(&asked[..]);
    let message = cut(&mut asked).ok_or("a call without a message")?;
    Ok(answer(&instead(Q::decode(message)?)))
}

/// Forwards results, and tells observers of those that were accepted.
async fn submit_early(
    channel: Channel,
    request: Request<Body>,
    shared: &Shared,
) -> Result<Response<Body>, tonic::codegen::StdError> {
    let (head, body) = forward(channel, request).await?.into_parts();
    let whole = body.collect().await?;
    let trailers = whole.trailers().cloned();
    let bytes = whole.to_bytes();
    let mut told = BytesMut::from(&bytes[..]);
    if let Some(message) = cut(&mut told) {
        for outcome in v1::SubmitFunctionResultsResponse::decode(message)?.outcomes {
            if outcome.outcome() == v1::ResultOutcome::Accepted {
                // Without an observer there is nobody to mislead.
                _ = shared.early.send(outcome);
            }
        }
    }
    let body = Full::new(bytes).with_trailers(std::future::ready(trailers.map(Ok)));
    Ok(Response::from_parts(head, Body::new(body)))
}

/// Forwards an observation with its events changed.
async fn observe(
    channel: Channel,
    request: Request<Body>,
    shared: Arc<Shared>,
) -> Result<Response<Body>, tonic::codegen::StdError> {
    let (head, body) = request.into_parts();
    let asked = body.collect().await?.to_bytes();
    let message = cut(&mut BytesMut::from(&asked[..])).ok_or("an observation without a message")?;
    let v1::ObserveTurnRequest { turn_id, after_sequence, .. } = Message::decode(message)?;
    let early = shared.early.subscribe();
    let response = forward(channel, Request::from_parts(head, Body::new(Full::new(asked)))).await?;
    let (head, body) = response.into_parts();
    let observation = Observation {
        body,
        buffer: BytesMut::new(),
        shared,
        early,
        turn_id,
        last: after_sequence,
        owed: None,
        receipts: Vec::new(),
    };
    let frames = stream::unfold(Some(observation), |observation| async move {
        let mut observation = observation?;
        match observation.next().await {
            Ok(Some(frame)) => Some((Ok(frame), Some(observation))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Response::from_parts(head, Body::new(StreamBody::new(frames))))
}

/// An observation on its way.
struct Observation {
    body: Body,
    /// What came of a message that is not whole yet.
    buffer: BytesMut,
    shared: Arc<Shared>,
    early: broadcast::Receiver<v1::FunctionResultOutcome>,
    turn_id: String,
    /// The last sequence that was given out.
    last: u64,
    /// The call whose receipt was made up, until the real one comes.
    owed: Option<String>,
    /// The calls whose receipts came.
    receipts: Vec<String>,
}

impl Observation {
    async fn next(&mut self) -> Result<Option<Frame<Bytes>>, tonic::Status> {
        loop {
            // CANCEL: both arms keep what they have.
            let frame = tokio::select! {
                biased;
                Ok(accepted) = self.early.recv() => match self.apply(accepted) {
                    Some(message) => return Ok(Some(Frame::data(message))),
                    None => continue,
                },
                frame = self.body.frame() => frame,
            };
            let Some(frame) = frame else { return Ok(None) };
            let data = match frame?.into_data() {
                Ok(data) => data,
                Err(trailers) => return Ok(Some(trailers)),
            };
            self.buffer.put(data);
            let mut changed = BytesMut::new();
            while let Some(message) = cut(&mut self.buffer) {
                let mut response = v1::ObserveTurnResponse::decode(message).map_err(|error| broken(&error))?;
                self.change(&mut response);
                frame_into(&mut changed, &response);
            }
            if !changed.is_empty() {
                return Ok(Some(Frame::data(changed.freeze())));
            }
        }
    }

    /// A receipt that nothing proves.
    fn apply(&mut self, accepted: v1::FunctionResultOutcome) -> Option<Bytes> {
        if accepted.turn_id != self.turn_id || self.owed.is_some() || self.receipts.contains(&accepted.call_id) {
            return None;
        }
        self.last += 1;
        self.owed = Some(accepted.call_id.clone());
        let receipt =
            v1::FunctionResultApplied { call_id: accepted.call_id, evidence: "item/completed".into(), success: true };
        let event = v1::Event {
            turn_id: self.turn_id.clone(),
            sequence: self.last,
            time: Some(std::time::SystemTime::now().into()),
            kind: Some(Kind::FunctionResultApplied(receipt)),
        };
        let mut message = BytesMut::new();
        frame_into(&mut message, &v1::ObserveTurnResponse { events: vec![event], last_sequence: self.last });
        Some(message.freeze())
    }

    fn change(&mut self, response: &mut v1::ObserveTurnResponse) {
        let drops = self.shared.planted == Some(Planted::DropsAnEvent);
        response.events.retain_mut(|event| {
            let kind = event.kind.as_ref();
            if let Some(Kind::FunctionResultApplied(receipt)) = kind {
                if self.owed.as_ref() == Some(&receipt.call_id) {
                    self.owed = None;
                    return false;
                }
                self.receipts.push(receipt.call_id.clone());
            }
            if drops
                && matches!(kind, Some(Kind::MessageDelta(_)))
                && !self.shared.has_dropped.swap(true, Ordering::Relaxed)
            {
                return false;
            }
            // Behind a receipt that was made up, everything stands one later.
            event.sequence += u64::from(self.owed.is_some());
            self.last = event.sequence;
            true
        });
        response.last_sequence = response.last_sequence.max(self.last);
    }
}

/// The next whole message, without what stands in front of it.
fn cut(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = usize::try_from(u32::from_be_bytes(buffer.get(1..PREFIX)?.try_into().ok()?)).ok()?;
    if buffer.len() < PREFIX + length {
        return None;
    }
    buffer.advance(PREFIX);
    Some(buffer.split_to(length).freeze())
}

fn frame_into(buffer: &mut BytesMut, message: &impl Message) {
    let encoded = message.encode_to_vec();
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(encoded.len()).unwrap_or(u32::MAX));
    buffer.put_slice(&encoded);
}

/// A unary answer that is OK.
fn answer(message: &impl Message) -> Response<Body> {
    let mut bytes = BytesMut::new();
    frame_into(&mut bytes, message);
    let trailers =
        HeaderMap::from_iter([(hyper::http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let body = Full::new(bytes.freeze()).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn broken(error: &prost::DecodeError) -> tonic::Status {
    tonic::Status::internal(format!("the proxy cannot read the bridge: {error}"))
}
