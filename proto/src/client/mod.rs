//! A client of the Runtime protocol.
//!
//! It connects, says which version its calls are written in, follows a preparation to its end, and observes again where a stream was
//! lost. It holds no Session state beyond what a caller gives it, decides nothing for Core, and shows no type of its gRPC library.

mod backoff;
mod error;
mod events;
mod messages;
mod payload;
mod session;
#[cfg(test)]
mod tests;

use std::{fmt, io, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
    transport::{self, Channel, Uri},
};

use crate::{
    v1::{self, runtime_client::RuntimeClient},
    version,
};
use backoff::Backoff;
pub use error::{Code, Error, Field, Refusal};
pub use events::TurnEvents;
pub use messages::Messages;
pub use session::{Session, text_input};

/// Largest request in bytes that is sent, what a bridge takes (R-API-7).
const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;
/// Largest answer in bytes that is read: above the 3.5 MiB that a bridge sends at most (R-API-7).
const MAX_RESPONSE_BYTES: usize = 4 * 1024 * 1024;
/// HTTP/2 window of one stream. Small against the connection's, so that many observers who do not read cannot block a control.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// HTTP/2 window of the connection: room for 64 streams that are not read.
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// How long a lost stream is looked for again, unless [`Client::with_patience`] says otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a bridge listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// Plain TCP on loopback; its calls need [`Client::with_bearer`].
    Tcp(SocketAddr),
}

/// The text names no endpoint that this client can reach.
#[derive(Debug, thiserror::Error)]
#[error("an endpoint is written unix:PATH or http://ADDRESS:PORT")]
pub struct MalformedEndpoint;

impl FromStr for Endpoint {
    type Err = MalformedEndpoint;

    /// Reads `unix:PATH`, `unix:///PATH` with an absolute path, or `http://ADDRESS:PORT` with an address in numbers.
    fn from_str(text: &str) -> Result<Self, MalformedEndpoint> {
        if let Some(address) = text.strip_prefix("http://") {
            return address.parse().map(Self::Tcp).map_err(|_| MalformedEndpoint);
        }
        let path = text.strip_prefix("unix:").ok_or(MalformedEndpoint)?;
        let path = match path.strip_prefix("//") {
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) => return Err(MalformedEndpoint),
            None => path,
        };
        if path.is_empty() { Err(MalformedEndpoint) } else { Ok(Self::Unix(path.into())) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "http://{address}"),
        }
    }
}

/// A connection to one bridge. Clones share it; it is made again by itself when it is lost.
///
/// Its methods are the RPCs, one request each: no retry, no deadline. [`Client::prepare`] and [`Client::observe`] follow a stream
/// to its end instead, and [`Session`] keeps the fence of one Session.
#[derive(Clone, Debug)]
pub struct Client {
    inner: RuntimeClient<Channel>,
    version: Option<MetadataValue<Ascii>>,
    bearer: Option<MetadataValue<Ascii>>,
    patience: Duration,
}

impl Client {
    /// Connects to a bridge.
    ///
    /// # Errors
    /// [`Error::Transport`] when nobody listens there.
    pub async fn connect(endpoint: Endpoint) -> Result<Self, Error> {
        match endpoint {
            Endpoint::Unix(path) => Self::over(move || UnixStream::connect(path.clone())).await,
            Endpoint::Tcp(address) => {
                let dial = move || async move {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Ok(stream)
                };
                Self::over(dial).await
            }
        }
    }

    /// Connects to a bridge over what `dial` makes, such as a connection with TLS. It is called again whenever a connection is lost.
    ///
    /// # Errors
    /// [`Error::Transport`] when there is no connection.
    pub async fn over<D, F, S>(dial: D) -> Result<Self, Error>
    where
        D: Fn() -> F + Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self::over_named("runtime-bridge", dial).await
    }

    /// The same for a bridge that a relay knows under this host name (R-ENR-4).
    ///
    /// # Errors
    /// [`Error::Transport`] when there is no connection, or the name is none.
    pub async fn over_named<D, F, S>(host: &str, dial: D) -> Result<Self, Error>
    where
        D: Fn() -> F + Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let dial = tower::service_fn(move |_: Uri| {
            let dialled = dial();
            async move { dialled.await.map(TokioIo::new) }
        });
        // The address only fills the `:authority` of the requests; the connector alone knows where the bridge is.
        let channel = transport::Endpoint::from_shared(format!("http://{host}"))
            .map_err(Error::transport)?
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .connect_with_connector(dial)
            .await
            .map_err(Error::transport)?;
        let inner = RuntimeClient::new(channel)
            .max_encoding_message_size(MAX_REQUEST_BYTES)
            .max_decoding_message_size(MAX_RESPONSE_BYTES);
        Ok(Self { inner, version: version::CURRENT.to_string().parse().ok(), bearer: None, patience: PATIENCE })
    }

    /// The same connection with calls that claim to be written in another version, or that claim none (R-API-1). A text that no header
    /// can hold counts as none.
    pub fn claiming_version(mut self, version: Option<&str>) -> Self {
        self.version = version.and_then(|text| text.parse().ok());
        self
    }

    /// The same connection with calls that carry this bearer. A text that no header can hold counts as none.
    pub fn with_bearer(mut self, bearer: &str) -> Self {
        self.bearer = format!("Bearer {bearer}").parse().ok().map(|mut value: MetadataValue<Ascii>| {
            value.set_sensitive(true);
            value
        });
        self
    }

    /// The same connection, looking for a lost stream for another time than 30 s. Zero means that a lost stream is an error at once.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Prepares an Executor and waits until it is ready. A lost stream is attached to again by the same preparation id (R-PRE-7).
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`] when the stream stayed lost.
    pub async fn prepare(&self, request: v1::PrepareExecutionRequest) -> Result<v1::Ready, Error> {
        let mut backoff = Backoff::new(self.patience);
        loop {
            let lost = match self.follow_preparation(&request, &mut backoff).await {
                Ok(Some(ready)) => return Ok(ready),
                Ok(None) => Error::ended_early("the stream of the preparation ended before `ready`"),
                Err(error) => error,
            };
            backoff.wait_after(lost).await?;
        }
    }

    async fn follow_preparation(
        &self,
        request: &v1::PrepareExecutionRequest,
        backoff: &mut Backoff,
    ) -> Result<Option<v1::Ready>, Error> {
        let mut stream = self.prepare_execution(request.clone()).await?;
        while let Some(message) = stream.next().await? {
            backoff.heard();
            if let Some(v1::prepare_execution_response::Progress::Ready(ready)) = message.progress {
                return Ok(Some(ready));
            }
        }
        Ok(None)
    }

    /// Observes one Turn behind the sequence `after`, to its end. Nothing is sent before the first [`TurnEvents::next`].
    pub fn observe(&self, assignment: v1::AssignmentRef, turn_id: impl Into<String>, after: u64) -> TurnEvents {
        let request =
            v1::ObserveTurnRequest { assignment: Some(assignment), turn_id: turn_id.into(), after_sequence: after };
        TurnEvents::new(self.clone(), request)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(version) = &self.version {
            request.metadata_mut().insert(version::HEADER, version.clone());
        }
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        request
    }
}

/// Unary calls: the method of the generated client, named as the RPC.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $response:ident;)*) => {
        impl Client {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// What the bridge refused, or [`Error::Transport`], which proves nothing.
            pub async fn $name(&self, request: v1::$request) -> Result<v1::$response, Error> {
                let answer = self.inner.clone().$name(self.request(request)).await;
                Ok(answer.map_err(|status| Error::from_status(&status))?.into_inner())
            }
        )*}
    };
}

unary! {
    /// Asks who the bridge is and what it supports.
    get_runtime_info(GetRuntimeInfoRequest) -> GetRuntimeInfoResponse;
    /// Judges the public JSON of an application.
    admit(AdmitRequest) -> AdmitResponse;
    /// Binds a Session, or takes it over with a higher epoch (R-ASG-2).
    bind_assignment(BindAssignmentRequest) -> BindAssignmentResponse;
    /// Releases a Session under a higher epoch (R-ASG-4).
    release_assignment(ReleaseAssignmentRequest) -> ReleaseAssignmentResponse;
    /// Gives an unused handle back.
    release_preparation(ReleasePreparationRequest) -> ReleasePreparationResponse;
    /// Gives a Session a fresh credential (R-PRE-6).
    update_credential(UpdateCredentialRequest) -> UpdateCredentialResponse;
    /// Starts a Turn (R-STA-1).
    start_turn(StartTurnRequest) -> StartTurnResponse;
    /// Lets the bridge drop events that Core has stored.
    acknowledge_events(AcknowledgeEventsRequest) -> AcknowledgeEventsResponse;
    /// Hands in an atomic batch of function results (R-FN-5).
    submit_function_results(SubmitFunctionResultsRequest) -> SubmitFunctionResultsResponse;
    /// Adds one input to a Turn that runs (R-STE-1).
    steer_turn(SteerTurnRequest) -> SteerTurnResponse;
    /// Says that the application still works on a call (R-FN-8).
    report_function_progress(ReportFunctionProgressRequest) -> ReportFunctionProgressResponse;
    /// Cancels a Turn and waits for its settlement (R-CAN-1).
    cancel_turn(CancelTurnRequest) -> CancelTurnResponse;
    /// Asks for the state of a Turn.
    get_turn(GetTurnRequest) -> GetTurnResponse;
    /// Lists the Turns of a Session, newest first.
    list_turns(ListTurnsRequest) -> ListTurnsResponse;
    /// Lists Sessions (R-ASG-5).
    list_sessions(ListSessionsRequest) -> ListSessionsResponse;
    /// Drains the bridge (R-DUR-3).
    drain(DrainRequest) -> DrainResponse;
}

/// Streaming calls, one stream each: it is not made again when it is lost.
macro_rules! streaming {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $response:ident;)*) => {
        impl Client {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// What the bridge refused, or [`Error::Transport`].
            pub async fn $name(&self, request: v1::$request) -> Result<Messages<v1::$response>, Error> {
                let answer = self.inner.clone().$name(self.request(request)).await;
                Ok(Messages::new(answer.map_err(|status| Error::from_status(&status))?.into_inner()))
            }
        )*}
    };
}

streaming! {
    /// The raw stream of a preparation; [`Client::prepare`] follows it to the end.
    prepare_execution(PrepareExecutionRequest) -> PrepareExecutionResponse;
    /// The raw stream of an observation; [`Client::observe`] goes on where it is lost.
    observe_turn(ObserveTurnRequest) -> ObserveTurnResponse;
    /// News of the bridge itself.
    watch_runtime(WatchRuntimeRequest) -> WatchRuntimeResponse;
    /// The raw stream of a large part; [`Session::payload`] puts it together.
    read_payload(ReadPayloadRequest) -> ReadPayloadResponse;
}
