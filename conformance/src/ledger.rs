//! A Core that does all there is to do with one Session, remembers what it was told, and can check later that all of it
//! is still true (R-DUR-1, R-DUR-2, R-API-6). It sends the same request again where one had no effect, and gives up where
//! its connection is lost.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use anyhow::Context;
use proto::client::{Client, Error, Session, TurnEvents, text_input};
use proto::v1::bind_assignment_request::Placement;
use proto::v1::{self, Reason, ResultOutcome, TurnStatus, event::Kind};
use tokio::time;

use crate::rig::{MODEL_KEY, Observed, Rig, function, text_result};

/// What the model does: a call in the Turn that asks to look something up, nothing in the one that asks to hold on.
pub const SCRIPT: &str = r#"[
    {"match": "hold on", "always": true, "play": ["headers", "hang"]},
    {"match": "look it up", "times": 1, "play": [
        {"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"life\"}"}]}]}]"#;

/// The Turn with the call.
const CALLS: &str = "t-1";
/// The Turn that is cancelled.
const HOLDS: &str = "t-2";
/// What is added to the Turn with the call, while that waits.
const INPUT: (&str, &str) = ("i-1", "and look twice");
/// What the application answers.
const ANSWER: &str = "the answer is 42";

/// How often a request that had no effect is sent again, and after how long.
const TRIES: u32 = 40;
const AGAIN: Duration = Duration::from_millis(25);

/// What a Core was told.
#[derive(Debug, Default)]
pub struct Ledger {
    session_id: String,
    bound: bool,
    ready: Option<v1::Ready>,
    /// The Turns whose start was acknowledged.
    started: BTreeSet<&'static str>,
    /// The input was added, and this was told of it.
    steered: Option<v1::TurnInput>,
    /// The result was sent.
    sent: bool,
    /// And it was acknowledged.
    accepted: bool,
    /// The highest acknowledged sequence of the first Turn.
    acknowledged: u64,
    /// How the cancelled Turn ended.
    cancelled: Option<v1::TurnEnded>,
    released: bool,
    events: Vec<v1::Event>,
    /// Refusals without effect.
    refusals: Vec<Reason>,
}

impl Ledger {
    /// An empty one, for a Session of this id.
    #[must_use]
    pub fn new(session_id: &str) -> Self {
        Self { session_id: session_id.into(), ..Self::default() }
    }

    /// Whether everything was done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.released
    }

    /// The events of the first Turn that were seen.
    #[must_use]
    pub fn events(&self) -> &[v1::Event] {
        &self.events
    }

    /// The reasons for which a request had no effect and was sent again.
    #[must_use]
    pub fn refusals(&self) -> &[Reason] {
        &self.refusals
    }

    /// Binds, prepares, does a Turn with a call, acknowledges, does a Turn that is cancelled, releases.
    ///
    /// # Errors
    /// The first thing that was lost, or refused for another reason than the storage. What was told before stays.
    pub async fn work(&mut self, rig: &Rig) -> anyhow::Result<()> {
        let client = rig.client().await?.with_patience(Duration::ZERO);
        let session = self.bind(rig, &client).await?;
        self.start(rig, &session, CALLS, "look it up").await?;
        let mut events = session.turn_events(CALLS);
        while let Some(event) = events.next().await? {
            let call = match &event.kind {
                Some(Kind::FunctionCall(call)) => Some(call.call_id.clone()),
                _ => None,
            };
            self.events.push(event);
            if let Some(call_id) = call {
                let (id, text) = INPUT;
                match self.again(async || session.steer(CALLS, id, text_input(text)).await).await {
                    Ok(answer) => self.steered = answer.input,
                    // The Harness may be lost already, and its Turn with it.
                    Err(error) if error.reason() == Some(Reason::TurnEnded) => {}
                    Err(error) => return Err(error.into()),
                }
                self.sent = true;
                let submit = async || session.submit(vec![text_result(CALLS, &call_id, ANSWER)]).await;
                let outcomes = self.again(submit).await?;
                anyhow::ensure!(outcomes.len() == 1, "{outcomes:?}");
                self.accepted = true;
            }
        }
        let half = self.events.len() as u64 / 2;
        self.acknowledged = self.again(async || session.acknowledge(CALLS, half).await).await?;
        anyhow::ensure!(self.acknowledged == half, "acknowledged up to {} of {half}", self.acknowledged);
        self.cancel(rig, &session).await?;
        self.again(async || session.release(true).await).await?;
        self.released = true;
        Ok(())
    }

    /// A second Turn, which is cancelled once the Harness works on it.
    async fn cancel(&mut self, rig: &Rig, session: &Session) -> anyhow::Result<()> {
        self.start(rig, session, HOLDS, "hold on").await?;
        let mut events: TurnEvents = session.turn_events(HOLDS);
        let mut seen = Observed::default();
        let begun = seen.until(&mut events, |kind| matches!(kind, Kind::TurnStarted(_)).then_some(())).await;
        if let Err(error) = begun {
            let Ok(end) = seen.end() else { return Err(error) };
            self.cancelled = Some(end.clone());
            return Err(error.context(Unbegun(end.failure.as_ref().map(v1::Failure::code))));
        }
        let answer = self.again(async || session.cancel(HOLDS, None).await).await?;
        anyhow::ensure!(answer.outcome() == v1::CancelOutcome::Settled, "{answer:?}");
        self.cancelled = answer.turn.and_then(|turn| turn.ended);
        let end = seen.to_the_end(&mut events).await?;
        anyhow::ensure!(self.cancelled.as_ref() == Some(end.end()?), "{:?} and {:?}", self.cancelled, end.end());
        // A Harness that is lost in this moment failed (R-CAN-6).
        let status = end.end()?.status();
        anyhow::ensure!(matches!(status, TurnStatus::Cancelled | TurnStatus::Failed), "{:?}", end.end());
        Ok(())
    }

    async fn bind(&mut self, rig: &Rig, client: &Client) -> anyhow::Result<Session> {
        let (fence, placement) = (self.fence("a-1", 3), workspace(rig));
        let bind = async || Session::bind(client.clone(), fence.clone(), placement.clone()).await;
        let session = self.again(bind).await?;
        self.bound = true;
        Ok(session)
    }

    fn fence(&self, assignment_id: &str, epoch: u64) -> v1::AssignmentRef {
        v1::AssignmentRef { session_id: self.session_id.clone(), assignment_id: assignment_id.into(), epoch }
    }

    async fn start(&mut self, rig: &Rig, session: &Session, turn: &'static str, prompt: &str) -> anyhow::Result<()> {
        let configuration = rig.configuration(vec![function("lookup", "{}")]);
        let key = vec![v1::Credential { name: "model".into(), value: MODEL_KEY.into() }];
        let ready = self.again(async || session.prepare(configuration.clone(), key.clone()).await).await?;
        self.ready = Some(ready.clone());
        let started = self.again(async || session.start(&ready, turn, text_input(prompt)).await).await?;
        anyhow::ensure!(!started.duplicate, "{turn} was there before it was started");
        self.started.insert(turn);
        Ok(())
    }

    /// Makes a call until it has an effect. A refusal for the storage, or of a Harness that could not be prepared, says
    /// that it had none (R-API-5).
    async fn again<T>(&mut self, call: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
        for _ in 0..TRIES {
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match error.reason() {
                Some(reason @ (Reason::StorageUnavailable | Reason::PreparationFailed)) => self.refusals.push(reason),
                // A Harness that was lost is on its way out for a moment longer than its Turn.
                Some(Reason::SessionBusy) => {}
                _ => return Err(error),
            }
            time::sleep(AGAIN).await;
        }
        call().await
    }

    /// Everything that was told is true in the daemon that runs now, and whatever was begun is at its end. Gives the
    /// Session, which is bound again.
    ///
    /// # Errors
    /// What was forgotten, done twice or left open.
    pub async fn holds(&self, rig: &Rig) -> anyhow::Result<Session> {
        let asked = rig.provider.model_requests().len();
        let session = self.bound_again(rig).await?;
        if let Some(whole) = self.turn_holds(rig, &session, CALLS).await? {
            anyhow::ensure!(whole.events.starts_with(&self.events), "events changed: {:?}\n{whole:?}", self.events);
            self.start_holds(&session, CALLS, "look it up").await?;
            self.result_holds(&session, &whole).await?;
            self.input_holds(&session, &whole).await?;
        }
        if let Some(whole) = self.turn_holds(rig, &session, HOLDS).await? {
            let end = whole.end()?;
            anyhow::ensure!(self.cancelled.as_ref().is_none_or(|told| told == end), "{:?} and {end:?}", self.cancelled);
            anyhow::ensure!(end.status() != TurnStatus::Completed, "nothing answered it: {end:?}");
            self.start_holds(&session, HOLDS, "hold on").await?;
        }
        let outputs = rig.provider.model_requests();
        let outputs: BTreeSet<_> =
            outputs.iter().filter_map(|request| request.output("c1")).map(|o| o.to_string()).collect();
        anyhow::ensure!(outputs.len() <= 1, "the model read two results: {outputs:?}");
        anyhow::ensure!(rig.provider.model_requests().len() == asked, "the model was asked again");
        Ok(session)
    }

    /// The Session, unless it was released, does another Turn in the daemon that runs now: with its native history where
    /// it has one, and never with another (R-PRE-4).
    ///
    /// # Errors
    /// When it cannot, or when a history that Core knows of was replaced.
    pub async fn goes_on(&self, rig: &Rig, session: Session) -> anyhow::Result<()> {
        if session.assignment().assignment_id != "a-1" {
            return Ok(());
        }
        // The history has the words that the script waits for.
        rig.provider.reset();
        let known = self.events.iter().find_map(|event| match &event.kind {
            Some(Kind::TurnStarted(started)) => Some(started.native.as_ref()?.session_id.clone()),
            _ => None,
        });
        let configuration = rig.configuration(vec![function("lookup", "{}")]);
        let ready = match rig.prepare(&session, configuration.clone()).await {
            Ok(ready) => {
                anyhow::ensure!(known.is_none(), "the history {known:?} was replaced by an empty one");
                ready
            }
            Err(error) => {
                let refusal = error.downcast_ref::<Error>().and_then(Error::refusal);
                let history = refusal.filter(|refusal| refusal.reason == Some(Reason::NativeHistoryUnavailable));
                let Some(history) = history else { return Err(error) };
                let named = history.metadata.get("native_session_id").context("a history without a name")?;
                anyhow::ensure!(known.as_ref().is_none_or(|known| known == named), "{known:?} became {named:?}");
                rig.resume(&session, configuration, named).await?
            }
        };
        session.start(&ready, "t-3", text_input("go on")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-3")).await?.completed()
    }

    /// Binds the Session again, under the fence that it should have, or a new assignment when it was released.
    async fn bound_again(&self, rig: &Rig) -> anyhow::Result<Session> {
        let client = rig.client().await?;
        match Session::bind(client.clone(), self.fence("a-1", 3), workspace(rig)).await {
            Ok(session) => {
                anyhow::ensure!(!self.released, "the release is forgotten");
                Ok(session)
            }
            // It was recorded, whether or not that was told. Its retry answers as before, or does what is left.
            Err(error) if error.reason() == Some(Reason::AssignmentStale) && self.bound => {
                let fence = Some(self.fence("a-1", 4));
                let bare = v1::ReleaseAssignmentRequest { assignment: fence, ..Default::default() };
                let request = v1::ReleaseAssignmentRequest { remove_home: true, ..bare };
                let answer = client.release_assignment(request).await.context("the release again")?;
                anyhow::ensure!(answer.outcome() == v1::ReleaseOutcome::Confirmed, "{answer:?}");
                Ok(Session::bind(client, self.fence("a-2", 1), workspace(rig)).await?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The events of a Turn, which has one end that the snapshot has too; `None` when it never came about.
    async fn turn_holds(&self, rig: &Rig, session: &Session, turn_id: &str) -> anyhow::Result<Option<Observed>> {
        let turn = match session.turn(turn_id).await {
            Ok(turn) => turn,
            Err(error) if error.reason() == Some(Reason::NotFound) => {
                anyhow::ensure!(!self.started.contains(turn_id), "{turn_id} is lost: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let ended = turn.ended.clone().with_context(|| format!("{turn_id} goes on: {turn:?}"))?;
        let seen = if turn_id == CALLS { &self.events[..] } else { &[] };
        // What was acknowledged may be gone, and is here.
        let kept = usize::try_from(turn.acknowledged_sequence).context("count the events")?;
        let acknowledged = turn.acknowledged_sequence;
        anyhow::ensure!(acknowledged >= self.acknowledged || seen.is_empty(), "an acknowledgement is lost: {turn:?}");
        let mut whole = Observed { events: seen.get(..kept).context("acknowledged what was never seen")?.to_vec() };
        let mut rest = rig.client().await?.observe(session.assignment().clone(), turn_id, acknowledged);
        while let Some(event) = rest.next().await? {
            whole.events.push(event);
        }
        whole.check_order()?;
        anyhow::ensure!(whole.end()? == &ended, "{turn_id} has two ends: {ended:?}, {:?}", whole.end());
        let last = whole.events.last().map(|event| event.sequence);
        anyhow::ensure!(Some(turn.last_sequence) == last, "{turn_id}: {turn:?}");
        anyhow::ensure!(turn.required_actions.is_empty(), "{turn_id} is over and waits: {turn:?}");
        Ok(Some(whole))
    }

    /// The start is known to whoever asks again.
    async fn start_holds(&self, session: &Session, turn_id: &str, prompt: &str) -> anyhow::Result<()> {
        let ready = self.ready.clone().unwrap_or_default();
        let again = session.start(&ready, turn_id, text_input(prompt)).await?;
        anyhow::ensure!(again.duplicate, "{turn_id} was started twice");
        let other = session.start(&ready, turn_id, text_input("something else")).await;
        let refused = other.as_ref().err().and_then(Error::reason);
        anyhow::ensure!(refused == Some(Reason::TurnConflict), "a conflict of {turn_id} is forgotten: {other:?}");
        Ok(())
    }

    /// So is the input, which has one end.
    async fn input_holds(&self, session: &Session, whole: &Observed) -> anyhow::Result<()> {
        let (id, text) = INPUT;
        let input = match session.steer(CALLS, id, text_input(text)).await {
            Ok(answer) => answer.input.context("an answer without an input")?,
            Err(error) => {
                anyhow::ensure!(error.reason() == Some(Reason::TurnEnded), "{error:?}");
                anyhow::ensure!(self.steered.is_none(), "an acknowledged input is lost: {:?}", self.steered);
                return Ok(());
            }
        };
        let ends = whole.kinds().filter_map(end_of_input).collect::<Vec<_>>();
        anyhow::ensure!(ends.len() <= 1, "an input with several ends: {ends:?}");
        let end = ends.first().copied().unwrap_or(input.phase());
        anyhow::ensure!(input.phase() == end, "{input:?} and {end:?}");
        let is_closed = !matches!(input.phase(), v1::InputPhase::Received | v1::InputPhase::Written);
        anyhow::ensure!(is_closed, "{CALLS} is over and an input waits: {input:?}");
        let other = session.steer(CALLS, id, text_input("something else")).await;
        let refused = other.as_ref().err().and_then(Error::reason);
        anyhow::ensure!(refused == Some(Reason::InputConflict), "a conflict of an input is forgotten: {other:?}");
        Ok(())
    }

    /// So is the result, if it was acknowledged, and it was applied once at most.
    async fn result_holds(&self, session: &Session, whole: &Observed) -> anyhow::Result<()> {
        let Some(call_id) = whole.kinds().find_map(called) else { return Ok(()) };
        let applied = whole.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_))).count();
        anyhow::ensure!(applied <= 1, "a result was applied {applied} times");
        let again = session.submit(vec![text_result(CALLS, call_id, ANSWER)]).await;
        match again.as_ref().map(|outcomes| outcomes[0].outcome()).map_err(Error::reason) {
            Ok(ResultOutcome::Duplicate) => anyhow::ensure!(self.sent, "a result that nobody sent"),
            Err(Some(Reason::CallAbandoned)) => {
                anyhow::ensure!(!self.accepted, "an acknowledged result is lost");
                anyhow::ensure!(applied == 0, "an applied result is lost");
            }
            other => anyhow::bail!("{other:?}"),
        }
        if self.accepted {
            let other = session.submit(vec![text_result(CALLS, call_id, "another")]).await;
            let refused = other.as_ref().err().and_then(Error::reason);
            anyhow::ensure!(refused == Some(Reason::ResultConflict), "a conflict is forgotten: {other:?}");
        }
        Ok(())
    }
}

/// The Turn that was to be cancelled ended before it began, with this failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unbegun(pub Option<v1::FailureCode>);

impl fmt::Display for Unbegun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the Turn ended before it began: {:?}", self.0)
    }
}

/// Why a call was refused, if it was.
#[must_use]
pub fn reason(error: &anyhow::Error) -> Option<Reason> {
    error.downcast_ref::<Error>().and_then(Error::reason)
}

fn workspace(rig: &Rig) -> Placement {
    let directory = rig.workspace().to_string_lossy().into_owned();
    Placement::Workspace(v1::Workspace { environment_id: "env-1".into(), directory })
}

fn end_of_input(kind: &Kind) -> Option<v1::InputPhase> {
    match kind {
        Kind::InputAccepted(_) => Some(v1::InputPhase::Accepted),
        Kind::InputRefused(_) => Some(v1::InputPhase::Refused),
        Kind::InputOutcomeUnknown(_) => Some(v1::InputPhase::OutcomeUnknown),
        _ => None,
    }
}

fn called(kind: &Kind) -> Option<&str> {
    if let Kind::FunctionCall(call) = kind { Some(&call.call_id) } else { None }
}
