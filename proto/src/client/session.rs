//! One Session under one fence: what a Core does from Bind to Release.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{Client, Error, TurnEvents, backoff::Backoff};
use crate::v1;

/// A bound Session. Clones are the same Session.
///
/// Calls that were lost are sent again as they were: every mutation is idempotent by the identity in it (R-API-6).
#[derive(Clone, Debug)]
pub struct Session {
    pub(super) client: Client,
    pub(super) assignment: v1::AssignmentRef,
    directory: String,
    preparations: Arc<Preparations>,
}

impl Session {
    /// Binds a Session and fixes its placement, or takes it over with a higher epoch.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn bind(
        client: Client,
        assignment: v1::AssignmentRef,
        placement: v1::bind_assignment_request::Placement,
    ) -> Result<Self, Error> {
        let request = v1::BindAssignmentRequest { assignment: Some(assignment.clone()), placement: Some(placement) };
        let bound = persist(&client, || client.bind_assignment(request.clone())).await?;
        Ok(Self { client, assignment, directory: bound.directory, preparations: Arc::default() })
    }

    /// The fence that every call names.
    pub fn assignment(&self) -> &v1::AssignmentRef {
        &self.assignment
    }

    /// The canonical directory of a workspace; empty for the placement `none`.
    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// Prepares an Executor under a preparation id that is made here.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn prepare(
        &self,
        configuration: v1::ExecutionConfiguration,
        credentials: Vec<v1::Credential>,
    ) -> Result<v1::Ready, Error> {
        self.prepare_with(configuration, credentials, None).await
    }

    /// Prepares an Executor that goes on with the native history of an earlier Turn of this Session, as its `turn_started` named it.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn resume(
        &self,
        configuration: v1::ExecutionConfiguration,
        credentials: Vec<v1::Credential>,
        native_session_id: &str,
    ) -> Result<v1::Ready, Error> {
        let resume = v1::Resume { native_session_id: native_session_id.into() };
        self.prepare_with(configuration, credentials, Some(resume)).await
    }

    async fn prepare_with(
        &self,
        configuration: v1::ExecutionConfiguration,
        credentials: Vec<v1::Credential>,
        resume: Option<v1::Resume>,
    ) -> Result<v1::Ready, Error> {
        let request = v1::PrepareExecutionRequest {
            assignment: Some(self.assignment.clone()),
            preparation_id: self.preparations.next(),
            configuration: Some(configuration),
            credentials,
            resume,
        };
        self.client.prepare(request).await
    }

    /// Gives the requests to the model provider a fresh key.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn update_credential(&self, credential: v1::Credential) -> Result<v1::CredentialOutcome, Error> {
        let request =
            v1::UpdateCredentialRequest { assignment: Some(self.assignment.clone()), credential: Some(credential) };
        Ok(persist(&self.client, || self.client.update_credential(request.clone())).await?.outcome())
    }

    /// Starts a Turn with what `ready` allows.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn start(
        &self,
        ready: &v1::Ready,
        turn_id: &str,
        input: Vec<v1::InputPart>,
    ) -> Result<v1::StartTurnResponse, Error> {
        self.start_within(ready, turn_id, input, None).await
    }

    /// Starts a Turn that may take so long (R-EVT-10).
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn start_within(
        &self,
        ready: &v1::Ready,
        turn_id: &str,
        input: Vec<v1::InputPart>,
        max_duration: Option<Duration>,
    ) -> Result<v1::StartTurnResponse, Error> {
        let request = v1::StartTurnRequest {
            assignment: Some(self.assignment.clone()),
            handle: ready.handle.clone(),
            turn_id: turn_id.into(),
            input,
            max_duration: max_duration.map(wire_duration),
        };
        persist(&self.client, || self.client.start_turn(request.clone())).await
    }

    /// The events of a Turn from its first to its last.
    pub fn turn_events(&self, turn_id: &str) -> TurnEvents {
        self.client.observe(self.assignment.clone(), turn_id, 0)
    }

    /// Hands in function results as one batch.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn submit(&self, results: Vec<v1::FunctionResult>) -> Result<Vec<v1::FunctionResultOutcome>, Error> {
        let request = v1::SubmitFunctionResultsRequest { assignment: Some(self.assignment.clone()), results };
        Ok(persist(&self.client, || self.client.submit_function_results(request.clone())).await?.outcomes)
    }

    /// Adds one input to a Turn that runs, and answers when it is written or its outcome is known (R-STE-1).
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn steer(
        &self,
        turn_id: &str,
        input_id: &str,
        input: Vec<v1::InputPart>,
    ) -> Result<v1::SteerTurnResponse, Error> {
        let request = v1::SteerTurnRequest {
            assignment: Some(self.assignment.clone()),
            turn_id: turn_id.into(),
            input_id: input_id.into(),
            input,
        };
        persist(&self.client, || self.client.steer_turn(request.clone())).await
    }

    /// Says that the application still works on a call; true when that was no news. Reports of a call are numbered from 1.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn progress(&self, turn_id: &str, call_id: &str, number: u64, message: &str) -> Result<bool, Error> {
        let request = v1::ReportFunctionProgressRequest {
            assignment: Some(self.assignment.clone()),
            turn_id: turn_id.into(),
            call_id: call_id.into(),
            number,
            message: message.into(),
        };
        Ok(persist(&self.client, || self.client.report_function_progress(request.clone())).await?.duplicate)
    }

    /// Cancels a Turn and waits for its settlement, for as long as `wait` says: 0 to 60 s, `None` for the bridge's 15 s.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn cancel(&self, turn_id: &str, wait: Option<Duration>) -> Result<v1::CancelTurnResponse, Error> {
        let request = v1::CancelTurnRequest {
            assignment: Some(self.assignment.clone()),
            turn_id: turn_id.into(),
            wait: wait.map(wire_duration),
        };
        persist(&self.client, || self.client.cancel_turn(request.clone())).await
    }

    /// The state of a Turn.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn turn(&self, turn_id: &str) -> Result<v1::Turn, Error> {
        let request = v1::GetTurnRequest { assignment: Some(self.assignment.clone()), turn_id: turn_id.into() };
        Ok(persist(&self.client, || self.client.get_turn(request.clone())).await?.turn.unwrap_or_default())
    }

    /// A page of the Session's Turns, newest first, and where the next one begins: at an empty token the newest Turn, at the end an empty one.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn turns(&self, page_token: &str) -> Result<v1::ListTurnsResponse, Error> {
        let (assignment, page_token) = (Some(self.assignment.clone()), page_token.into());
        let request = v1::ListTurnsRequest { assignment, page_size: None, page_token };
        persist(&self.client, || self.client.list_turns(request.clone())).await
    }

    /// Lets the bridge drop the events of a Turn up to a sequence, and tells the highest that was ever acknowledged.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn acknowledge(&self, turn_id: &str, through_sequence: u64) -> Result<u64, Error> {
        let request = v1::AcknowledgeEventsRequest {
            assignment: Some(self.assignment.clone()),
            turn_id: turn_id.into(),
            through_sequence,
        };
        Ok(persist(&self.client, || self.client.acknowledge_events(request.clone())).await?.through_sequence)
    }

    /// Ends the assignment under the next epoch. A second call repeats the cleanup that is not done yet (R-ASG-4).
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`].
    pub async fn release(&self, remove_home: bool) -> Result<v1::ReleaseAssignmentResponse, Error> {
        let mut assignment = self.assignment.clone();
        assignment.epoch = assignment.epoch.saturating_add(1);
        let request = v1::ReleaseAssignmentRequest { assignment: Some(assignment), remove_home, principal: None };
        persist(&self.client, || self.client.release_assignment(request.clone())).await
    }
}

/// One that no protobuf duration can hold is refused by the bridge as out of range.
fn wire_duration(of: Duration) -> prost_types::Duration {
    of.try_into().unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}

/// A text as the whole input of a Turn.
pub fn text_input(text: impl Into<String>) -> Vec<v1::InputPart> {
    vec![v1::InputPart { part: Some(v1::input_part::Part::Text(text.into())) }]
}

/// Sends a call until it has an answer, or the client's patience is over.
pub(super) async fn persist<T, F: Future<Output = Result<T, Error>>>(
    client: &Client,
    call: impl Fn() -> F,
) -> Result<T, Error> {
    let mut backoff = Backoff::new(client.patience);
    loop {
        match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) => backoff.wait_after(error).await?,
        }
    }
}

/// Makes preparation ids that no other process that drives the Session makes.
#[derive(Debug)]
struct Preparations {
    prefix: u64,
    count: AtomicU64,
}

impl Default for Preparations {
    fn default() -> Self {
        // The standard library seeds every process's hasher from the system's randomness.
        Self { prefix: RandomState::new().hash_one("preparation"), count: AtomicU64::new(0) }
    }
}

impl Preparations {
    fn next(&self) -> String {
        format!("prep-{:016x}-{}", self.prefix, self.count.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
