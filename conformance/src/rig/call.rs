//! Every call that names a Session, each with content that is in order but for what a scenario spoils.

use proto::client::{Client, Error, Messages, Session, text_input};
use proto::v1;

use super::{Rig, text_result};

/// A call that names a Session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as the RPCs")]
pub enum Call {
    Bind,
    Release,
    Prepare,
    ReleasePreparation,
    Start,
    Observe,
    Acknowledge,
    ReadPayload,
    Submit,
    Progress,
    Cancel,
    Get,
    List,
}

/// What the calls are about.
#[derive(Debug, Clone)]
pub struct Target {
    /// The fence.
    pub assignment: Option<v1::AssignmentRef>,
    /// The placement of Bind.
    pub placement: Option<v1::bind_assignment_request::Placement>,
    /// The Turn.
    pub turn_id: String,
    /// The preparation.
    pub preparation_id: String,
    /// The configuration of the preparation.
    pub configuration: v1::ExecutionConfiguration,
}

impl Rig {
    /// The calls on a Session, about a Turn `t-none` that it does not have.
    #[must_use]
    pub fn target(&self, session: &Session) -> Target {
        let workspace = v1::Workspace {
            environment_id: "env-1".into(),
            directory: self.workspace().to_string_lossy().into_owned(),
        };
        Target {
            assignment: Some(session.assignment().clone()),
            placement: Some(v1::bind_assignment_request::Placement::Workspace(workspace)),
            turn_id: "t-none".into(),
            preparation_id: "p-call".into(),
            configuration: self.configuration(Vec::new()),
        }
    }
}

impl Target {
    /// The same calls under another fence.
    #[must_use]
    pub fn under(&self, change: impl FnOnce(&mut v1::AssignmentRef)) -> Self {
        let mut target = self.clone();
        if let Some(assignment) = &mut target.assignment {
            change(assignment);
        }
        target
    }
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Bind,
        Self::Release,
        Self::Prepare,
        Self::ReleasePreparation,
        Self::Start,
        Self::Observe,
        Self::Acknowledge,
        Self::ReadPayload,
        Self::Submit,
        Self::Progress,
        Self::Cancel,
        Self::Get,
        Self::List,
    ];

    /// Those about a Turn that must be there.
    pub const ABOUT_A_TURN: [Self; 5] = [Self::Observe, Self::Acknowledge, Self::ReadPayload, Self::Cancel, Self::Get];

    /// Makes the call; of a stream, up to its end.
    ///
    /// # Errors
    /// What the bridge refused, or a connection that was lost.
    pub async fn make(self, client: &Client, about: &Target) -> Result<(), Error> {
        let Target { assignment, placement, turn_id, preparation_id, configuration } = about.clone();
        match self {
            Self::Bind => client.bind_assignment(v1::BindAssignmentRequest { assignment, placement }).await.map(drop),
            Self::Release => {
                let request = v1::ReleaseAssignmentRequest { assignment, remove_home: false, principal: None };
                client.release_assignment(request).await.map(drop)
            }
            Self::Prepare => {
                let (configuration, credentials) = (Some(configuration), Vec::new());
                let request = v1::PrepareExecutionRequest {
                    assignment,
                    preparation_id,
                    configuration,
                    credentials,
                    resume: None,
                };
                to_the_end(client.prepare_execution(request).await?).await
            }
            Self::ReleasePreparation => {
                let request = v1::ReleasePreparationRequest { assignment, handle: "hdl-none".into() };
                client.release_preparation(request).await.map(drop)
            }
            Self::Start => {
                let (handle, input) = ("hdl-none".into(), text_input("hello"));
                let max_duration = None;
                let request = v1::StartTurnRequest { assignment, handle, turn_id, input, max_duration };
                client.start_turn(request).await.map(drop)
            }
            Self::Observe => {
                let request = v1::ObserveTurnRequest { assignment, turn_id, after_sequence: 0 };
                to_the_end(client.observe_turn(request).await?).await
            }
            Self::Acknowledge => {
                let request = v1::AcknowledgeEventsRequest { assignment, turn_id, through_sequence: 0 };
                client.acknowledge_events(request).await.map(drop)
            }
            Self::ReadPayload => {
                let request = v1::ReadPayloadRequest { assignment, turn_id, payload_id: "1.0".into() };
                to_the_end(client.read_payload(request).await?).await
            }
            Self::Submit => {
                let results = vec![text_result(&turn_id, "call-1", "42")];
                client.submit_function_results(v1::SubmitFunctionResultsRequest { assignment, results }).await.map(drop)
            }
            Self::Progress => {
                let (call_id, number) = ("call-1".into(), 1);
                let bare = v1::ReportFunctionProgressRequest { assignment, turn_id, call_id, ..Default::default() };
                let request = v1::ReportFunctionProgressRequest { number, ..bare };
                client.report_function_progress(request).await.map(drop)
            }
            Self::Cancel => {
                client.cancel_turn(v1::CancelTurnRequest { assignment, turn_id, wait: None }).await.map(drop)
            }
            Self::Get => client.get_turn(v1::GetTurnRequest { assignment, turn_id }).await.map(drop),
            Self::List => client.list_turns(v1::ListTurnsRequest { assignment, ..Default::default() }).await.map(drop),
        }
    }
}

async fn to_the_end<T>(mut messages: Messages<T>) -> Result<(), Error> {
    while messages.next().await?.is_some() {}
    Ok(())
}
