//! The Runtime service: wire to domain and back, and nothing else. A handler sends one message to the Session's owner and waits for
//! its reply (R-API-8).

use std::sync::Arc;

use proto::{
    raw,
    server::runtime_server::{Runtime, RuntimeServer},
    v1, version,
};
use tonic::{Request, Response, Status};

use crate::{
    config::Providers,
    gateway::Guard,
    link::Peer,
    refusal::{Reason, Refusal},
    session::{Command, Front, Key, Progress, Registry, Scope},
    tasks,
};

mod admit;
mod answer;
mod codec;
mod event_from;
mod event_to;
mod listing;
mod observe;
mod payload;
mod reasons;
mod request;
mod result;
mod seats;
mod status;
mod streams;
mod tools;
mod watch;

#[cfg(test)]
pub(crate) use admit::prepared;
pub(crate) use answer::capability;
pub(crate) use codec::{MAX_INLINE, Protobuf};
use observe::Observation;
use reasons::Reasons;
pub(crate) use request::base_url;
pub(crate) use status::status;
pub(crate) use streams::Streams;

/// Largest request that the bridge takes (R-API-7).
pub(crate) const MAX_REQUEST: usize = 64 << 20;
/// Largest message that the bridge sends (R-API-7).
pub(crate) const MAX_RESPONSE: usize = 7 << 19;

/// The service of a daemon.
#[derive(Debug)]
pub(crate) struct Service {
    registry: Arc<Registry>,
    providers: Providers,
    guard: Guard,
    streams: Streams,
    judges: admit::Judges,
}

/// The service, ready to be served.
pub(crate) fn server(
    registry: Arc<Registry>,
    providers: Providers,
    guard: Guard,
    streams: Streams,
) -> Reasons<RuntimeServer<Service>> {
    let service = RuntimeServer::new(Service { registry, providers, guard, streams, judges: admit::Judges::new() });
    Reasons::over(service.max_decoding_message_size(MAX_REQUEST).max_encoding_message_size(MAX_RESPONSE))
}

type Stream<T> = std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// Who calls, once the call's version is accepted (R-API-1, R-ASG-5).
    fn principal<T>(&self, request: &Request<T>) -> Result<String, Status> {
        Ok(self.caller(request)?.principal)
    }

    fn caller<T>(&self, request: &Request<T>) -> Result<Peer, Status> {
        check_version(request).map_err(status)?;
        let peer = request.extensions().get::<Peer>();
        let peer = peer.ok_or_else(|| status(Refusal::new(Reason::NotAuthorized, "the caller cannot be told")))?;
        Ok(peer.clone())
    }

    fn session(&self, principal: String, session_id: String) -> Result<Front, Status> {
        self.registry.find(&Key { principal, session_id }).map_err(status)
    }
}

/// What only an operator may do (R-ASG-5).
fn for_operators(caller: &Peer) -> Result<(), Status> {
    if caller.operator {
        return Ok(());
    }
    let text = "this needs the role of an operator, which `operator_uids` give on the bridge's socket, and `operators` of a listener with TLS";
    Err(status(Refusal::new(Reason::NotAuthorized, text)))
}

fn check_version<T>(request: &Request<T>) -> Result<(), Refusal> {
    let header = request.metadata().get(version::HEADER).ok_or_else(|| {
        Refusal::invalid(version::HEADER, format!("every call carries the metadata `{}`", version::HEADER))
    })?;
    if request.metadata().get_all(version::HEADER).iter().count() > 1 {
        return Err(Refusal::invalid(version::HEADER, "the version is given more than once"));
    }
    let asked: Option<version::Version> = header.to_str().ok().and_then(|text| text.parse().ok());
    let asked = asked.ok_or_else(|| Refusal::invalid(version::HEADER, "the version is not of the form MAJOR.MINOR"))?;
    if asked.is_accepted() {
        return Ok(());
    }
    let (current, oldest) = (version::CURRENT, version::OLDEST_ACCEPTED);
    let text = format!(
        "the call is written in {asked}; this bridge speaks {current} and accepts {oldest} and newer of its major"
    );
    Err(Refusal::new(Reason::IncompatibleVersion, text)
        .with("version", asked)
        .with("protocol_version", current)
        .with("oldest_accepted", oldest))
}

#[tonic::async_trait]
impl Runtime for Service {
    type PrepareExecutionStream = Stream<v1::PrepareExecutionResponse>;
    type ObserveTurnStream = Stream<raw::ObserveTurnResponse>;
    type WatchRuntimeStream = Stream<v1::WatchRuntimeResponse>;
    type ReadPayloadStream = Stream<v1::ReadPayloadResponse>;

    async fn get_runtime_info(
        &self,
        _request: Request<v1::GetRuntimeInfoRequest>,
    ) -> Result<Response<v1::GetRuntimeInfoResponse>, Status> {
        let shared = self.registry.shared();
        let mut harnesses = Vec::with_capacity(shared.harnesses.len());
        for harness in shared.harnesses.values() {
            // A probe starts programs, so it is not this handler's: it goes on when the caller goes away (R-API-8).
            let harness = Arc::clone(harness);
            let probe = tasks::spawn(&shared.tracker, tasks::Kind::Probe, async move { harness.declare().await });
            let declared = probe.await.map_err(|_panicked| {
                status(Refusal::new(Reason::Internal, "a probe broke; the log has the details"))
            })?;
            harnesses.push(answer::declaration(declared));
        }
        Ok(Response::new(v1::GetRuntimeInfoResponse {
            name: "runtime-bridge".into(),
            build: env!("CARGO_PKG_VERSION").into(),
            protocol_version: version::CURRENT.to_string(),
            oldest_accepted: version::OLDEST_ACCEPTED.to_string(),
            runtime_id: shared.journal.state_id().to_owned(),
            limits: Some(v1::RuntimeLimits {
                max_request_bytes: MAX_REQUEST as u64,
                max_response_bytes: MAX_RESPONSE as u64,
                max_inline_bytes: MAX_INLINE as u64,
                max_executors: shared.limits.max_executors,
                handle_seconds: u32::try_from(shared.limits.handle_life.as_secs()).unwrap_or(u32::MAX),
            }),
            harnesses,
        }))
    }

    async fn admit(&self, request: Request<v1::AdmitRequest>) -> Result<Response<v1::AdmitResponse>, Status> {
        self.caller(&request)?;
        let shared = self.registry.shared();
        let (wire, guards, hosted) = (request.into_inner(), shared.guards.clone(), shared.harnesses.clone());
        let judge = self.judges.take().await.map_err(status)?;
        // Long texts take their time, which a thread that serves has not. Whoever judges is free when it is done, even if nobody waits for it.
        let work = move || {
            let _judge = judge;
            admit::judge(&wire, &guards, &hosted)
        };
        let judged = tokio::task::spawn_blocking(work).await;
        let judged = judged.map_err(|_panicked| {
            status(Refusal::new(Reason::Internal, "an admission broke; the log has the details"))
        })?;
        judged.map(Response::new).map_err(status)
    }

    async fn bind_assignment(
        &self,
        request: Request<v1::BindAssignmentRequest>,
    ) -> Result<Response<v1::BindAssignmentResponse>, Status> {
        let principal = self.principal(&request)?;
        let wire = request.into_inner();
        let (session_id, fence) = request::assignment(wire.assignment).map_err(status)?;
        let placement = request::placement(wire.placement).map_err(status)?;
        let key = Key { principal, session_id };
        let front = self.registry.find_or_begin(key.clone(), &placement).await.map_err(status)?;
        let bound = front.ask(|reply| Command::Bind { fence, placement, reply }).await;
        if bound.is_err() {
            self.registry.drop_forgotten(&key);
        }
        let bound = bound.map_err(status)?;
        let directory = match bound.placement {
            adapters::harness::Placement::None => String::new(),
            adapters::harness::Placement::Workspace { directory, .. } => directory.to_string_lossy().into_owned(),
        };
        Ok(Response::new(v1::BindAssignmentResponse { epoch: bound.epoch, directory, took_over: bound.took_over }))
    }

    async fn release_assignment(
        &self,
        request: Request<v1::ReleaseAssignmentRequest>,
    ) -> Result<Response<v1::ReleaseAssignmentResponse>, Status> {
        let caller = self.caller(&request)?;
        let v1::ReleaseAssignmentRequest { assignment, remove_home, principal } = request.into_inner();
        let principal = principal.unwrap_or_else(|| caller.principal.clone());
        if principal != caller.principal {
            for_operators(&caller)?;
        }
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let front = self.session(principal, session_id)?;
        let done = front.ask(|reply| Command::Release { fence, remove_home, reply }).await.map_err(status)?;
        let outcome = match done.left {
            None => v1::ReleaseOutcome::Confirmed,
            Some(_) => v1::ReleaseOutcome::Unconfirmed,
        };
        Ok(Response::new(v1::ReleaseAssignmentResponse {
            outcome: outcome.into(),
            detail: done.left.unwrap_or_default(),
            home_removed: done.home_removed,
        }))
    }

    async fn prepare_execution(
        &self,
        request: Request<v1::PrepareExecutionRequest>,
    ) -> Result<Response<Self::PrepareExecutionStream>, Status> {
        let principal = self.principal(&request)?;
        let mut wire = request.into_inner();
        let (session_id, fence) = request::assignment(wire.assignment.take()).map_err(status)?;
        let request = request::prepare(wire, &self.providers, &self.guard).map_err(status)?;
        let front = self.session(principal, session_id)?;
        // A probe may take seconds, which the Session's owner has not: it finds what this one found (R-API-8).
        if let Some(harness) = self.registry.shared().harnesses.get(request.configuration.harness.as_str()).cloned() {
            let probe =
                tasks::spawn(
                    &self.registry.shared().tracker,
                    tasks::Kind::Probe,
                    async move { harness.declare().await },
                );
            drop(probe.await);
        }
        let progress =
            front.ask(|reply| Command::Prepare { fence, request: Box::new(request), reply }).await.map_err(status)?;
        Ok(Response::new(preparation(progress)))
    }

    async fn update_credential(
        &self,
        request: Request<v1::UpdateCredentialRequest>,
    ) -> Result<Response<v1::UpdateCredentialResponse>, Status> {
        let principal = self.principal(&request)?;
        let v1::UpdateCredentialRequest { assignment, credential } = request.into_inner();
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let fresh = request::credential(credential).map_err(status)?;
        let front = self.session(principal, session_id)?;
        let taken = front.ask(|reply| Command::UpdateCredential { fence, fresh, reply }).await.map_err(status)?;
        let outcome = if taken { v1::CredentialOutcome::InUse } else { v1::CredentialOutcome::NothingHeld };
        Ok(Response::new(v1::UpdateCredentialResponse { outcome: outcome.into() }))
    }

    async fn release_preparation(
        &self,
        request: Request<v1::ReleasePreparationRequest>,
    ) -> Result<Response<v1::ReleasePreparationResponse>, Status> {
        let principal = self.principal(&request)?;
        let v1::ReleasePreparationRequest { assignment, handle } = request.into_inner();
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let front = self.session(principal, session_id)?;
        front.ask(|reply| Command::ReleasePreparation { fence, handle, reply }).await.map_err(status)?;
        Ok(Response::new(v1::ReleasePreparationResponse {}))
    }

    async fn start_turn(
        &self,
        request: Request<v1::StartTurnRequest>,
    ) -> Result<Response<v1::StartTurnResponse>, Status> {
        let principal = self.principal(&request)?;
        let mut wire = request.into_inner();
        let (session_id, fence) = request::assignment(wire.assignment.take()).map_err(status)?;
        let request = request::start(wire).map_err(status)?;
        let front = self.session(principal, session_id)?;
        let (turn, duplicate) = front.ask(|reply| Command::Start { fence, request, reply }).await.map_err(status)?;
        Ok(Response::new(v1::StartTurnResponse { turn: Some(answer::turn(turn)), duplicate }))
    }

    async fn observe_turn(
        &self,
        request: Request<v1::ObserveTurnRequest>,
    ) -> Result<Response<Self::ObserveTurnStream>, Status> {
        let principal = self.principal(&request)?;
        let v1::ObserveTurnRequest { assignment, turn_id, after_sequence } = request.into_inner();
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let turn_id = request::id(turn_id, "turn_id").map_err(status)?;
        let key = Key { principal, session_id };
        let front = self.registry.find(&key).map_err(status)?;
        let (name, epoch) = (turn_id.clone(), fence.epoch);
        let reader = front
            .ask(|reply| Command::Observe { fence, turn_id, after: after_sequence, reply })
            .await
            .map_err(status)?;
        let seat = self.streams.observations.take((key, name.clone(), epoch)).map_err(status)?;
        let observation = Observation { reader, turn_id: name, keep_alive: self.streams.keep_alive };
        Ok(Response::new(self.streams.open(observation, seat)))
    }

    async fn acknowledge_events(
        &self,
        request: Request<v1::AcknowledgeEventsRequest>,
    ) -> Result<Response<v1::AcknowledgeEventsResponse>, Status> {
        let principal = self.principal(&request)?;
        let v1::AcknowledgeEventsRequest { assignment, turn_id, through_sequence: through } = request.into_inner();
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let turn_id = request::id(turn_id, "turn_id").map_err(status)?;
        let front = self.session(principal, session_id)?;
        let through =
            front.ask(|reply| Command::Acknowledge { fence, turn_id, through, reply }).await.map_err(status)?;
        Ok(Response::new(v1::AcknowledgeEventsResponse { through_sequence: through }))
    }

    async fn read_payload(
        &self,
        request: Request<v1::ReadPayloadRequest>,
    ) -> Result<Response<Self::ReadPayloadStream>, Status> {
        let principal = self.principal(&request)?;
        let v1::ReadPayloadRequest { assignment, turn_id, payload_id } = request.into_inner();
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let turn_id = request::id(turn_id, "turn_id").map_err(status)?;
        let key = Key { principal, session_id };
        let front = self.registry.find(&key).map_err(status)?;
        let (name, epoch) = (turn_id.clone(), fence.epoch);
        let part = payload::named(&payload_id);
        let read = front.ask(|reply| Command::ReadPayload { fence, turn_id, part, reply }).await.map_err(status)?;
        let seat = self.streams.parts.take((key, name.clone(), epoch)).map_err(status)?;
        Ok(Response::new(self.streams.open(payload::Part::new(read, name), seat)))
    }

    async fn submit_function_results(
        &self,
        request: Request<v1::SubmitFunctionResultsRequest>,
    ) -> Result<Response<v1::SubmitFunctionResultsResponse>, Status> {
        let principal = self.principal(&request)?;
        let v1::SubmitFunctionResultsRequest { assignment, results } = request.into_inner();
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let named: Vec<(String, String)> = results.iter().map(|r| (r.turn_id.clone(), r.call_id.clone())).collect();
        let results = result::results(results).map_err(status)?;
        let front = self.session(principal, session_id)?;
        let outcomes = front.ask(|reply| Command::Submit { fence, results, reply }).await.map_err(status)?;
        let outcomes = named.into_iter().zip(outcomes).map(|((turn_id, call_id), outcome)| v1::FunctionResultOutcome {
            turn_id,
            call_id,
            outcome: answer::outcome(outcome).into(),
        });
        Ok(Response::new(v1::SubmitFunctionResultsResponse { outcomes: outcomes.collect() }))
    }

    async fn report_function_progress(
        &self,
        request: Request<v1::ReportFunctionProgressRequest>,
    ) -> Result<Response<v1::ReportFunctionProgressResponse>, Status> {
        let principal = self.principal(&request)?;
        let mut wire = request.into_inner();
        let (session_id, fence) = request::assignment(wire.assignment.take()).map_err(status)?;
        let report = result::progress(wire).map_err(status)?;
        let front = self.session(principal, session_id)?;
        let duplicate = front.ask(|reply| Command::Progress { fence, report, reply }).await.map_err(status)?;
        Ok(Response::new(v1::ReportFunctionProgressResponse { duplicate }))
    }

    async fn steer_turn(
        &self,
        request: Request<v1::SteerTurnRequest>,
    ) -> Result<Response<v1::SteerTurnResponse>, Status> {
        let principal = self.principal(&request)?;
        let mut wire = request.into_inner();
        let (session_id, fence) = request::assignment(wire.assignment.take()).map_err(status)?;
        let request = request::steer(wire).map_err(status)?;
        let front = self.session(principal, session_id)?;
        let steered = front.ask(|reply| Command::Steer { fence, request, reply }).await.map_err(status)?;
        let input = Some(answer::input(&steered.input));
        Ok(Response::new(v1::SteerTurnResponse { input, duplicate: steered.duplicate }))
    }

    async fn cancel_turn(
        &self,
        request: Request<v1::CancelTurnRequest>,
    ) -> Result<Response<v1::CancelTurnResponse>, Status> {
        let principal = self.principal(&request)?;
        let v1::CancelTurnRequest { assignment, turn_id, wait } = request.into_inner();
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let turn_id = request::id(turn_id, "turn_id").map_err(status)?;
        let wait = request::wait(wait).map_err(status)?;
        let front = self.session(principal, session_id)?;
        let turn = front.ask(|reply| Command::Cancel { fence, turn_id, wait, reply }).await.map_err(status)?;
        Ok(Response::new(answer::cancelled(turn)))
    }

    async fn get_turn(&self, request: Request<v1::GetTurnRequest>) -> Result<Response<v1::GetTurnResponse>, Status> {
        let principal = self.principal(&request)?;
        let v1::GetTurnRequest { assignment, turn_id } = request.into_inner();
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let turn_id = request::id(turn_id, "turn_id").map_err(status)?;
        let front = self.session(principal, session_id)?;
        let turn = front.ask(|reply| Command::Get { fence, turn_id, reply }).await.map_err(status)?;
        Ok(Response::new(v1::GetTurnResponse { turn: Some(answer::turn(turn)) }))
    }

    async fn list_turns(
        &self,
        request: Request<v1::ListTurnsRequest>,
    ) -> Result<Response<v1::ListTurnsResponse>, Status> {
        let principal = self.principal(&request)?;
        let v1::ListTurnsRequest { assignment, page_size, page_token } = request.into_inner();
        let (session_id, fence) = request::assignment(assignment).map_err(status)?;
        let limit = listing::size(page_size).map_err(status)?;
        let before = listing::before(&page_token).map_err(status)?;
        let front = self.session(principal, session_id)?;
        let page = front.ask(|reply| Command::List { fence, before, limit, reply }).await.map_err(status)?;
        Ok(Response::new(listing::turns(page)))
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let caller = self.caller(&request)?;
        let v1::ListSessionsRequest { all_principals, session_id, page_size, page_token } = request.into_inner();
        if all_principals {
            for_operators(&caller)?;
        }
        let limit = listing::size(page_size).map_err(status)?;
        let after = listing::after(&page_token).map_err(status)?;
        let session_id = listing::filter(session_id).map_err(status)?;
        let scope = Scope { principal: (!all_principals).then_some(caller.principal), session_id };
        let page = self.registry.list(&scope, after, limit).await.map_err(status)?;
        Ok(Response::new(listing::sessions(page)))
    }

    async fn watch_runtime(
        &self,
        request: Request<v1::WatchRuntimeRequest>,
    ) -> Result<Response<Self::WatchRuntimeStream>, Status> {
        self.caller(&request)?;
        Ok(Response::new(watch::stream(Arc::clone(&self.registry))))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        for_operators(&self.caller(&request)?)?;
        Ok(Response::new(watch::drained(&*self.registry.drain().await)))
    }
}

/// The stream of a preparation. Ending it cancels nothing: the work is the Session's (R-PRE-7).
fn preparation(progress: Progress) -> Stream<v1::PrepareExecutionResponse> {
    use futures_util::StreamExt as _;
    match progress {
        Progress::Ready(grant) => Box::pin(tokio_stream::once(Ok(answer::ready(grant)))),
        Progress::Preparing { executor_id, revision, done } => {
            let preparing = v1::Preparing { executor_id, revision };
            let first = v1::PrepareExecutionResponse {
                progress: Some(v1::prepare_execution_response::Progress::Preparing(preparing)),
            };
            let last = async move {
                match done.await {
                    Ok(answer) => answer.map(answer::ready).map_err(status),
                    Err(_gone) => Err(status(Refusal::new(Reason::Draining, "the bridge is stopping"))),
                }
            };
            Box::pin(tokio_stream::once(Ok(first)).chain(futures_util::stream::once(last)))
        }
    }
}
