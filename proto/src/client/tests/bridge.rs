//! A bridge that answers by script and remembers what it was asked.

use std::{
    collections::VecDeque,
    env, fs,
    net::Shutdown,
    os::{
        fd::AsFd as _,
        unix::{fs::DirBuilderExt as _, net::UnixStream},
    },
    path::PathBuf,
    pin::Pin,
    process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use prost::Message as _;
use tokio::{net::UnixListener, task::JoinSet};
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream};
use tonic::{Request, Response, Status, transport::Server};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::{
    ERROR_DOMAIN, raw,
    server::runtime_server::{Runtime, RuntimeServer},
    v1::{self, event::Kind},
    version,
};

/// A running scripted bridge with its socket in a folder of its own.
pub(super) struct Bridge {
    folder: PathBuf,
    script: Arc<Script>,
    tasks: JoinSet<()>,
}

#[derive(Default)]
struct Script {
    connections: Mutex<Vec<UnixStream>>,
    observations: Mutex<VecDeque<Observation>>,
    asked: Mutex<Vec<u64>>,
    versions: Mutex<Vec<Option<String>>>,
    preparations: Mutex<Vec<String>>,
    starts: Mutex<u32>,
    released: Mutex<Vec<u64>>,
}

/// What one `ObserveTurn` is answered with.
pub(super) struct Observation {
    refusal: Option<Status>,
    messages: Vec<Result<raw::ObserveTurnResponse, Status>>,
    stays: bool,
}

impl Observation {
    pub(super) fn answers<const N: usize>(messages: [Vec<v1::Event>; N]) -> Self {
        let encode = |events: Vec<v1::Event>| {
            Ok(raw::ObserveTurnResponse {
                events: events.iter().map(|event| event.encode_to_vec().into()).collect(),
                last_sequence: 0,
            })
        };
        Self { refusal: None, messages: messages.into_iter().map(encode).collect(), stays: false }
    }

    pub(super) fn refused(status: Status) -> Self {
        Self { refusal: Some(status), messages: Vec::new(), stays: false }
    }

    /// Ends the stream with a status.
    pub(super) fn then(mut self, status: Status) -> Self {
        self.messages.push(Err(status));
        self
    }

    /// Leaves the stream open behind its last message.
    pub(super) fn and_stays(mut self) -> Self {
        self.stays = true;
        self
    }
}

impl Bridge {
    pub(super) async fn start() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("rb-proto-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let mut bridge = Self { folder, script: Arc::default(), tasks: JoinSet::new() };
        bridge.serve();
        bridge
    }

    /// Breaks every connection and listens anew, as after a crash.
    pub(super) async fn restart(&mut self) {
        self.tasks.shutdown().await;
        for connection in self.script.connections.lock().unwrap().drain(..) {
            connection.shutdown(Shutdown::Both).unwrap();
        }
        fs::remove_file(self.socket()).unwrap();
        self.serve();
    }

    fn serve(&mut self) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let script = self.script.clone();
        // The server's connections are tasks that it does not give out, so a second descriptor of each is kept to break it.
        let accepted = UnixListenerStream::new(listener).map(move |connection| {
            let second = connection.as_ref().unwrap().as_fd().try_clone_to_owned().unwrap();
            script.connections.lock().unwrap().push(UnixStream::from(second));
            connection
        });
        let served = Server::builder()
            .add_service(RuntimeServer::new(Scripted(self.script.clone())))
            .serve_with_incoming(accepted);
        self.tasks.spawn(async move { served.await.unwrap() });
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("s")
    }

    pub(super) fn will_show<const N: usize>(&self, observations: [Observation; N]) {
        self.script.observations.lock().unwrap().extend(observations);
    }

    /// `after_sequence` of each `ObserveTurn`.
    pub(super) fn asked(&self) -> Vec<u64> {
        self.script.asked.lock().unwrap().clone()
    }

    /// The version header of each `GetTurn`.
    pub(super) fn versions(&self) -> Vec<Option<String>> {
        self.script.versions.lock().unwrap().clone()
    }

    /// The id of each `PrepareExecution`.
    pub(super) fn preparations(&self) -> Vec<String> {
        self.script.preparations.lock().unwrap().clone()
    }

    /// The epoch of each `ReleaseAssignment`.
    pub(super) fn released(&self) -> Vec<u64> {
        self.script.released.lock().unwrap().clone()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn event(sequence: u64) -> v1::Event {
    v1::Event { turn_id: "t".into(), sequence, ..Default::default() }
}

pub(super) fn ended(sequence: u64) -> v1::Event {
    v1::Event { kind: Some(Kind::TurnEnded(v1::TurnEnded::default())), ..event(sequence) }
}

pub(super) fn omitted(first: u64, last: u64) -> v1::Event {
    let reason = v1::OmissionReason::Acknowledged.into();
    v1::Event { kind: Some(Kind::EventsOmitted(v1::EventsOmitted { first, last, reason })), ..event(last) }
}

pub(super) fn refusal(code: tonic::Code, reason: &str, message: &str, fields: &[(&str, &str)]) -> Status {
    let mut details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, []);
    for (path, description) in fields {
        details.add_bad_request_violation(*path, *description);
    }
    Status::with_error_details(code, message, details)
}

struct Scripted(Arc<Script>);

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Runtime for Scripted {
    type PrepareExecutionStream = Answers<v1::PrepareExecutionResponse>;
    type ObserveTurnStream = Answers<raw::ObserveTurnResponse>;
    type WatchRuntimeStream = Answers<v1::WatchRuntimeResponse>;
    type ReadPayloadStream = Answers<v1::ReadPayloadResponse>;

    async fn get_runtime_info(&self, _: Request<v1::GetRuntimeInfoRequest>) -> Answer<v1::GetRuntimeInfoResponse> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn admit(&self, _: Request<v1::AdmitRequest>) -> Answer<v1::AdmitResponse> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn bind_assignment(&self, _: Request<v1::BindAssignmentRequest>) -> Answer<v1::BindAssignmentResponse> {
        let bound = v1::BindAssignmentResponse { epoch: 3, directory: "/canonical".into(), took_over: false };
        Ok(Response::new(bound))
    }

    async fn release_assignment(
        &self,
        request: Request<v1::ReleaseAssignmentRequest>,
    ) -> Answer<v1::ReleaseAssignmentResponse> {
        self.0.released.lock().unwrap().push(request.into_inner().assignment.unwrap().epoch);
        Ok(Response::new(Default::default()))
    }

    /// The first stream ends before `ready`; the later ones do not.
    async fn prepare_execution(
        &self,
        request: Request<v1::PrepareExecutionRequest>,
    ) -> Answer<Self::PrepareExecutionStream> {
        let mut preparations = self.0.preparations.lock().unwrap();
        preparations.push(request.into_inner().preparation_id);
        let preparing = v1::prepare_execution_response::Progress::Preparing(v1::Preparing::default());
        let ready = v1::Ready { handle: "h".into(), ..Default::default() };
        let ready = v1::prepare_execution_response::Progress::Ready(ready);
        let kept = if preparations.len() == 1 { 1 } else { 2 };
        let messages = [preparing, ready]
            .into_iter()
            .take(kept)
            .map(|progress| Ok(v1::PrepareExecutionResponse { progress: Some(progress) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    async fn update_credential(&self, _: Request<v1::UpdateCredentialRequest>) -> Answer<v1::UpdateCredentialResponse> {
        Ok(Response::new(Default::default()))
    }

    async fn release_preparation(
        &self,
        _: Request<v1::ReleasePreparationRequest>,
    ) -> Answer<v1::ReleasePreparationResponse> {
        Ok(Response::new(Default::default()))
    }

    /// The first answer is lost.
    async fn start_turn(&self, _: Request<v1::StartTurnRequest>) -> Answer<v1::StartTurnResponse> {
        let mut starts = self.0.starts.lock().unwrap();
        *starts += 1;
        if *starts == 1 {
            return Err(Status::unavailable("the answer is lost"));
        }
        Ok(Response::new(v1::StartTurnResponse { turn: None, duplicate: true }))
    }

    async fn observe_turn(&self, request: Request<v1::ObserveTurnRequest>) -> Answer<Self::ObserveTurnStream> {
        self.0.asked.lock().unwrap().push(request.into_inner().after_sequence);
        let next = self.0.observations.lock().unwrap().pop_front();
        let observation = next.ok_or_else(|| Status::unimplemented("the script is over"))?;
        if let Some(status) = observation.refusal {
            return Err(status);
        }
        let messages = tokio_stream::iter(observation.messages);
        Ok(Response::new(match observation.stays {
            true => Box::pin(messages.chain(tokio_stream::pending())),
            false => Box::pin(messages),
        }))
    }

    async fn acknowledge_events(
        &self,
        request: Request<v1::AcknowledgeEventsRequest>,
    ) -> Answer<v1::AcknowledgeEventsResponse> {
        let through_sequence = request.into_inner().through_sequence;
        Ok(Response::new(v1::AcknowledgeEventsResponse { through_sequence }))
    }

    /// `abc` in two pieces; under the id `moved` the second stands elsewhere.
    async fn read_payload(&self, request: Request<v1::ReadPayloadRequest>) -> Answer<Self::ReadPayloadStream> {
        let second = if request.into_inner().payload_id == "moved" { 3 } else { 2 };
        let piece = |data: &str, offset| Ok(v1::ReadPayloadResponse { data: data.into(), offset });
        Ok(Response::new(Box::pin(tokio_stream::iter([piece("ab", 0), piece("c", second)]))))
    }

    async fn submit_function_results(
        &self,
        request: Request<v1::SubmitFunctionResultsRequest>,
    ) -> Answer<v1::SubmitFunctionResultsResponse> {
        let outcomes = request.into_inner().results.iter().map(|_| v1::FunctionResultOutcome::default()).collect();
        Ok(Response::new(v1::SubmitFunctionResultsResponse { outcomes }))
    }

    async fn cancel_turn(&self, _: Request<v1::CancelTurnRequest>) -> Answer<v1::CancelTurnResponse> {
        Err(refusal(tonic::Code::InvalidArgument, "INVALID_REQUEST", "no Turn", &[("turn_id", "is empty")]))
    }

    async fn get_turn(&self, request: Request<v1::GetTurnRequest>) -> Answer<v1::GetTurnResponse> {
        let version = request.metadata().get(version::HEADER).map(|value| value.to_str().unwrap().to_owned());
        self.0.versions.lock().unwrap().push(version);
        Ok(Response::new(Default::default()))
    }

    async fn steer_turn(&self, _: Request<v1::SteerTurnRequest>) -> Answer<v1::SteerTurnResponse> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn report_function_progress(
        &self,
        _: Request<v1::ReportFunctionProgressRequest>,
    ) -> Answer<v1::ReportFunctionProgressResponse> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn list_turns(&self, _: Request<v1::ListTurnsRequest>) -> Answer<v1::ListTurnsResponse> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn list_sessions(&self, _: Request<v1::ListSessionsRequest>) -> Answer<v1::ListSessionsResponse> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn watch_runtime(&self, _: Request<v1::WatchRuntimeRequest>) -> Answer<Self::WatchRuntimeStream> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn drain(&self, _: Request<v1::DrainRequest>) -> Answer<v1::DrainResponse> {
        Err(Status::unimplemented("not in the script"))
    }
}
