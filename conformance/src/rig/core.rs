//! What a Core does, in the few lines that a scenario wants to say: bind, prepare, start, observe, answer.

use std::fmt::Debug;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::Context;
use proto::client::{Error, Refusal, Session, TurnEvents, text_input};
use proto::v1;
use proto::v1::event::Kind;
use serde_json::json;
use tokio::time;
use uuid::Uuid;

use super::{Harness, Refused, Rig, refusal};

/// The key of the model provider in all rigs. Nothing but the provider may ever see it.
pub const MODEL_KEY: &str = "sk-rig-canary-4f1d0c2b";

/// Between two questions for the same thing.
const AGAIN: Duration = Duration::from_millis(20);

/// The events of a Turn, to its end.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// All events in order.
    pub events: Vec<v1::Event>,
}

impl Rig {
    /// Binds a fresh Session on the rig's workspace.
    ///
    /// # Errors
    /// What the bridge refused.
    pub async fn session(&self) -> anyhow::Result<Session> {
        let directory = self.workspace().to_str().context("the workspace's path is not UTF-8")?.to_owned();
        let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
        self.bind(v1::bind_assignment_request::Placement::Workspace(workspace)).await
    }

    /// Binds a fresh Session with the placement `none` (see [`nowhere`]).
    ///
    /// # Errors
    /// What the bridge refused.
    pub async fn session_nowhere(&self) -> anyhow::Result<Session> {
        self.bind(v1::bind_assignment_request::Placement::None(v1::NoPlacement {})).await
    }

    async fn bind(&self, placement: v1::bind_assignment_request::Placement) -> anyhow::Result<Session> {
        let kind = match &placement {
            v1::bind_assignment_request::Placement::None(_) => v1::Placement::None,
            v1::bind_assignment_request::Placement::Workspace(_) => v1::Placement::Workspace,
        };
        self.placements.lock().unwrap_or_else(PoisonError::into_inner).insert(kind);
        let session_id = format!("s-{}", Uuid::now_v7().simple());
        let assignment = v1::AssignmentRef { session_id, assignment_id: "a-1".into(), epoch: 1 };
        Ok(Session::bind(self.client().await?, assignment, placement).await?)
    }

    /// The ordinary configuration: the Harness's model at the rig's provider, these functions.
    #[must_use]
    pub fn configuration(&self, functions: Vec<v1::FunctionTool>) -> v1::ExecutionConfiguration {
        self.configuration_of(self.kind(), functions)
    }

    /// The same for another Harness of the daemon.
    #[must_use]
    pub fn configuration_of(&self, harness: Harness, functions: Vec<v1::FunctionTool>) -> v1::ExecutionConfiguration {
        configuration(harness, &self.provider.base_url_for(harness.protocol()), functions)
    }

    /// Prepares a Session with this configuration and the provider's key.
    ///
    /// # Errors
    /// What the bridge refused.
    pub async fn prepare(
        &self,
        session: &Session,
        configuration: v1::ExecutionConfiguration,
    ) -> anyhow::Result<v1::Ready> {
        let key = v1::Credential { name: "model".into(), value: MODEL_KEY.into() };
        Ok(session.prepare(configuration, vec![key]).await?)
    }

    /// Prepares a Session that goes on with this native history.
    ///
    /// # Errors
    /// What the bridge refused.
    pub async fn resume(
        &self,
        session: &Session,
        configuration: v1::ExecutionConfiguration,
        native_session_id: &str,
    ) -> Result<v1::Ready, proto::client::Error> {
        let key = v1::Credential { name: "model".into(), value: MODEL_KEY.into() };
        session.resume(configuration, vec![key], native_session_id).await
    }

    /// Prepares the next Turn on the Executor that is there; behind a cancel that the Harness's process does not outlive, on another one that goes on with its history.
    ///
    /// # Errors
    /// What the bridge refused, or an Executor that was replaced.
    pub async fn prepare_again(
        &self,
        session: &Session,
        configuration: v1::ExecutionConfiguration,
    ) -> anyhow::Result<v1::Ready> {
        if self.kind().outlives_a_cancel() {
            let ready = self.prepare(session, configuration).await?;
            anyhow::ensure!(ready.reused, "the Executor was replaced");
            return Ok(ready);
        }
        let listing = v1::ListTurnsRequest { assignment: Some(session.assignment().clone()), ..Default::default() };
        let turns = self.client().await?.list_turns(listing).await?.turns;
        match turns.into_iter().find_map(|turn| turn.native) {
            Some(native) => Ok(self.resume(session, configuration, &native.session_id).await?),
            None => self.prepare(session, configuration).await,
        }
    }

    /// Waits until a Session has no Executor: one whose process ended by itself may be there for a moment longer.
    ///
    /// # Errors
    /// When the Session is not listed.
    pub async fn executor_gone(&self, session: &Session) -> anyhow::Result<()> {
        let client = self.client().await?;
        let session_id = Some(session.assignment().session_id.clone());
        let request = v1::ListSessionsRequest { session_id, ..Default::default() };
        let mut interval = time::interval(AGAIN);
        loop {
            let listed = client.list_sessions(request.clone()).await?.sessions;
            if listed.first().context("it is not listed")?.executor() == v1::ExecutorState::None {
                return Ok(());
            }
            interval.tick().await;
        }
    }

    /// Starts a Turn with a handle, and gives its events to the end.
    ///
    /// # Errors
    /// What the bridge refused, or a stream that stayed lost.
    pub async fn turn_with(
        &self,
        session: &Session,
        ready: &v1::Ready,
        turn_id: &str,
        prompt: &str,
    ) -> anyhow::Result<Observed> {
        session.start(ready, turn_id, text_input(prompt)).await?;
        Observed::default().to_the_end(&mut session.turn_events(turn_id)).await
    }

    /// Prepares and starts a Turn, and gives its events to be read.
    ///
    /// # Errors
    /// What the bridge refused.
    pub async fn start_turn(
        &self,
        session: &Session,
        configuration: v1::ExecutionConfiguration,
        turn_id: &str,
        prompt: &str,
    ) -> anyhow::Result<TurnEvents> {
        let ready = self.prepare(session, configuration).await?;
        session.start(&ready, turn_id, text_input(prompt)).await?;
        Ok(session.turn_events(turn_id))
    }

    /// The events of a Turn after a sequence, to its end, without looking again for a stream that is lost.
    ///
    /// # Errors
    /// What the bridge refused, or a lost stream.
    pub async fn observe(&self, session: &Session, turn_id: &str, after: u64) -> Result<Observed, Error> {
        let mut events =
            self.core().await?.with_patience(Duration::ZERO).observe(session.assignment().clone(), turn_id, after);
        let mut seen = Observed::default();
        while let Some(event) = events.next().await? {
            seen.events.push(event);
        }
        Ok(seen)
    }

    /// A Turn `t-1` of a fresh Session that has made these calls, by name of the function and id of the call, and waits for their results. Then the
    /// model says one word.
    ///
    /// # Errors
    /// What the bridge refused, or a stream that stayed lost.
    pub async fn waiting_turn(
        &self,
        functions: Vec<v1::FunctionTool>,
        calls: &[(&str, &str)],
    ) -> anyhow::Result<(Session, TurnEvents, Observed)> {
        let made = calls.iter().map(|(name, id)| json!({"name": name, "call_id": id, "arguments": "{}"}));
        let script = json!([
            {"match": "look it up", "play": [{"calls": made.collect::<Vec<_>>()}]},
            {"after": "outputs", "play": [{"text": {"chunks": ["Heard."]}}]},
        ]);
        self.provider.script(&script.to_string())?;
        let session = self.session().await?;
        let mut events = self.start_turn(&session, self.configuration(functions), "t-1", "look it up").await?;
        let mut seen = Observed::default();
        for _ in calls {
            seen.call(&mut events).await?;
        }
        Ok((session, events, seen))
    }

    /// A whole Turn without functions.
    ///
    /// # Errors
    /// What the bridge refused, or a stream that stayed lost.
    pub async fn whole_turn(&self, session: &Session, turn_id: &str, prompt: &str) -> anyhow::Result<Observed> {
        let mut events = self.start_turn(session, self.configuration(Vec::new()), turn_id, prompt).await?;
        Observed::default().to_the_end(&mut events).await
    }
}

/// A Harness's bundled model on a workspace, with a provider at this address that speaks the API of the Harness.
#[must_use]
pub fn configuration(harness: Harness, base_url: &str, functions: Vec<v1::FunctionTool>) -> v1::ExecutionConfiguration {
    let provider = v1::ModelProvider {
        protocol: harness.model_protocol().into(),
        base_url: base_url.into(),
        token_limits: harness.token_limits(),
    };
    v1::ExecutionConfiguration {
        harness: harness.kind().into(),
        placement: v1::Placement::Workspace.into(),
        model: harness.model().into(),
        instructions: String::new(),
        provider: Some(v1::execution_configuration::Provider::ModelProvider(provider)),
        harness_config: String::new(),
        tools: Some(v1::AdmittedTools { functions, ..Default::default() }),
    }
}

/// The same configuration under the placement `none`.
#[must_use]
pub fn nowhere(configuration: v1::ExecutionConfiguration) -> v1::ExecutionConfiguration {
    v1::ExecutionConfiguration { placement: v1::Placement::None.into(), ..configuration }
}

/// A function with these parameters, a JSON Schema as text.
#[must_use]
pub fn function(name: &str, parameters: &str) -> v1::FunctionTool {
    v1::FunctionTool {
        name: name.into(),
        description: format!("The function {name}."),
        parameters: parameters.into(),
        ..Default::default()
    }
}

/// A successful result with one text.
#[must_use]
pub fn text_result(turn_id: &str, call_id: &str, text: &str) -> v1::FunctionResult {
    v1::FunctionResult {
        turn_id: turn_id.into(),
        call_id: call_id.into(),
        success: Some(true),
        error: None,
        output: Some(v1::FunctionOutput { value: Some(v1::function_output::Value::Text(text.into())) }),
        disposition: None,
    }
}

/// The refusal of a call, which must have this reason.
///
/// # Errors
/// When the call was not refused, or for another reason.
pub fn refused<T: Debug, E: Into<anyhow::Error>>(result: Result<T, E>, reason: v1::Reason) -> anyhow::Result<Refusal> {
    let error = match result {
        Ok(answer) => anyhow::bail!("{reason:?} was due, and the answer is {answer:?}"),
        Err(error) => error.into(),
    };
    let refusal = error.downcast_ref::<proto::client::Error>().and_then(proto::client::Error::refusal);
    match refusal.filter(|refusal| refusal.reason == Some(reason)) {
        Some(refusal) => Ok(refusal.clone()),
        None => Err(error.context(format!("{reason:?} was due"))),
    }
}

/// Asks until the answer is a refusal for this reason, and gives it.
pub async fn until_refused<T: Debug>(reason: v1::Reason, ask: impl AsyncFn() -> Result<T, Error>) -> Refused {
    let mut interval = time::interval(AGAIN);
    loop {
        let answer = ask().await;
        if matches!(&answer, Err(error) if error.reason() == Some(reason)) {
            return refusal(answer, reason);
        }
        interval.tick().await;
    }
}

impl Observed {
    /// Reads events until one fits, and gives it; what came before is kept too.
    ///
    /// # Errors
    /// When the Turn ends before, which shows its events.
    pub async fn until<T>(&mut self, events: &mut TurnEvents, fits: impl Fn(&Kind) -> Option<T>) -> anyhow::Result<T> {
        while let Some(event) = events.next().await? {
            let found = event.kind.as_ref().and_then(&fits);
            self.events.push(event);
            if let Some(found) = found {
                return Ok(found);
            }
        }
        anyhow::bail!("the Turn ended without it: {:#?}", self.events)
    }

    /// The next function call.
    ///
    /// # Errors
    /// As [`Observed::until`].
    pub async fn call(&mut self, events: &mut TurnEvents) -> anyhow::Result<v1::FunctionCall> {
        let call = |kind: &Kind| if let Kind::FunctionCall(call) = kind { Some(call.clone()) } else { None };
        self.until(events, call).await
    }

    /// The function calls that were seen so far.
    #[must_use]
    pub fn calls(&self) -> Vec<&v1::FunctionCall> {
        self.kinds().filter_map(|kind| if let Kind::FunctionCall(call) = kind { Some(call) } else { None }).collect()
    }

    /// The id of the call that was seen last: the model's own, or where the Harness has none the bridge's.
    ///
    /// # Errors
    /// When there was none.
    pub fn call_id(&self) -> anyhow::Result<&str> {
        Ok(&self.calls().last().context("no function was called")?.call_id)
    }

    /// Reads the rest of the events. Where the first one was read too, their order is checked (see
    /// [`Observed::check_order`]).
    ///
    /// # Errors
    /// When the stream stays lost or breaks its rules.
    pub async fn to_the_end(mut self, events: &mut TurnEvents) -> anyhow::Result<Self> {
        while let Some(event) = events.next().await? {
            self.events.push(event);
        }
        if self.events.first().is_some_and(|event| event.sequence == 1 && name_of(event) != "events_omitted") {
            self.check_order()?;
        }
        Ok(self)
    }

    /// The kinds of the events.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.events.iter().filter_map(|event| event.kind.as_ref())
    }

    /// How the Turn ended.
    ///
    /// # Errors
    /// When the last event is no end.
    pub fn end(&self) -> anyhow::Result<&v1::TurnEnded> {
        match self.events.last().and_then(|event| event.kind.as_ref()) {
            Some(Kind::TurnEnded(end)) => Ok(end),
            _ => anyhow::bail!("the last event is no end: {:#?}", self.events.last()),
        }
    }

    /// The native conversation, as the start told it.
    ///
    /// # Errors
    /// When the Turn has not started natively.
    pub fn native_session(&self) -> anyhow::Result<String> {
        let started = self.kinds().find_map(|kind| match kind {
            Kind::TurnStarted(started) => started.native.as_ref().map(|native| native.session_id.clone()),
            _ => None,
        });
        started.context("the Turn has not started natively")
    }

    /// Checks that the Turn completed.
    ///
    /// # Errors
    /// When it ended otherwise, which shows how.
    pub fn completed(&self) -> anyhow::Result<()> {
        let end = self.end()?;
        anyhow::ensure!(end.status() == v1::TurnStatus::Completed, "the Turn ended so: {end:?}");
        Ok(())
    }

    /// The whole output of the first tool that ended with one.
    ///
    /// # Errors
    /// When none did, or its output is too large to stand in the event.
    pub fn tool_output(&self) -> anyhow::Result<String> {
        let text = self.kinds().find_map(|kind| match kind {
            Kind::ToolCompleted(v1::ToolCompleted { output: Some(v1::Content { place }), .. }) => place.clone(),
            _ => None,
        });
        match text {
            Some(v1::content::Place::Text(text)) => Ok(text),
            other => anyhow::bail!("no output: {other:?}"),
        }
    }

    /// The texts of the completed messages that stand in their events.
    #[must_use]
    pub fn messages(&self) -> Vec<&str> {
        self.kinds().filter_map(message_text).collect()
    }

    /// All deltas of messages, joined.
    #[must_use]
    pub fn deltas(&self) -> String {
        self.kinds().filter_map(delta_text).collect()
    }
}

fn name_of(event: &v1::Event) -> &'static str {
    event.kind.as_ref().map_or("", super::name)
}

fn message_text(kind: &Kind) -> Option<&str> {
    let Kind::MessageCompleted(message) = kind else { return None };
    match message.text.as_ref()?.place.as_ref()? {
        v1::content::Place::Text(text) => Some(text),
        v1::content::Place::Payload(_) => None,
    }
}

fn delta_text(kind: &Kind) -> Option<&str> {
    if let Kind::MessageDelta(delta) = kind { Some(&delta.text) } else { None }
}
