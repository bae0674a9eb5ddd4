//! What a check plays, and how it is judged.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::LocalBoxFuture;
use proto::client::{Session, text_input};
use proto::v1::{self, CancelOutcome, Reason, ResultOutcome, TurnStatus, event::Kind};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time;

use super::{Core, refusal, report::Judge};
use crate::rig::{Observed, processes, text_result};

/// How long a receipt is waited for that must not come.
const HELD: Duration = Duration::from_millis(2500);

type Run = for<'a> fn(&'a Core<'_>, &'a mut Judge<'_>) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// The scenarios: name, the rule that each is about first of all, what it does.
pub(super) const ALL: [(&str, &str, Run); 6] = [
    ("text_turn", "R-EVT-1", |core, judge| Box::pin(text_turn(core, judge))),
    ("same_start", "R-API-6", |core, judge| Box::pin(same_start(core, judge))),
    ("function_call", "R-FN-5", |core, judge| Box::pin(function_call(core, judge))),
    ("held_harness", "R-FN-6", |core, judge| Box::pin(held_harness(core, judge))),
    ("cancel", "R-CAN-1", |core, judge| Box::pin(cancel(core, judge))),
    ("fence", "R-ASG-1", |core, judge| Box::pin(fence(core, judge))),
];

/// A call in the first answer of the model, a text in the second.
const CALL: &str = r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
    {"play": [{"text": {"chunks": ["It is 42."]}}]}]"#;

async fn text_turn(core: &Core<'_>, judge: &mut Judge<'_>) -> anyhow::Result<()> {
    core.provider
        .script(r#"[{"play": [{"text": {"chunks": ["one ", "two ", "three"], "phase": "final_answer"}}]}]"#)?;
    let session = core.session().await?;
    core.start(&session, "t-1", "count").await?;
    let whole = core.events(&session, "t-1", 0).await?;
    judge.found("R-EVT-1", "sequences are 1, 2, 3, … without holes", holes(&whole));
    judge.found("R-EVT-2", "items open and close in order, one end, and nothing behind it", in_order(&whole));
    let status = whole.end().map(v1::TurnEnded::status).ok();
    judge.equal("R-EVT-3", "the Turn completes", &status, &Some(TurnStatus::Completed));
    judge.equal("R-EVT-2", "the completed message is the model's text", &whole.messages(), &vec!["one two three"]);

    // An observer that comes back gets the rest, and one that comes again gets the same.
    let again = core.events(&session, "t-1", 0).await?;
    judge.found("R-EVT-1", "a second observation has no holes", holes(&again));
    let rest = core.events(&session, "t-1", 2).await?;
    judge.equal(
        "R-EVT-1",
        "an observation behind 2 has what is behind it",
        &rest.events,
        &again.events.get(2..).unwrap_or_default().to_vec(),
    );
    let turn = session.turn("t-1").await?;
    judge.equal("R-EVT-1", "GetTurn tells the last sequence", &turn.last_sequence, &(again.events.len() as u64));
    Ok(())
}

async fn same_start(core: &Core<'_>, judge: &mut Judge<'_>) -> anyhow::Result<()> {
    let session = core.session().await?;
    let ready = core.start(&session, "t-1", "hello").await?;
    let again = session.start(&ready, "t-1", text_input("hello")).await?;
    judge.equal("R-API-6", "the same start is a duplicate", &again.duplicate, &true);
    let other = session.start(&ready, "t-1", text_input("good bye")).await;
    judge.equal("R-API-6", "another input is a conflict", &refusal(&other), &Some(Reason::TurnConflict));
    core.events(&session, "t-1", 0).await?;
    let later = session.start(&ready, "t-1", text_input("hello")).await?;
    judge.equal("R-API-6", "the same start is one after the end too", &later.duplicate, &true);
    let asked = core.provider.model_requests().len();
    judge.equal("R-API-6", "the model was asked once", &asked, &1);
    Ok(())
}

async fn function_call(core: &Core<'_>, judge: &mut Judge<'_>) -> anyhow::Result<()> {
    core.provider.script(CALL)?;
    let session = core.session().await?;
    core.start(&session, "t-1", "look it up").await?;
    let mut observing = core.observe(&session, "t-1", 0).await?;
    observing.until(called).await?.context("there is no function call")?;
    judge.equal("R-FN-3", "the call is a required action", &actions(&session).await?, &1);
    let answer = vec![text_result("t-1", "c1", "42")];
    let unknown = session.submit(vec![text_result("t-1", "c9", "42")]).await;
    judge.equal("R-FN-5", "a call that nobody made is unknown", &refusal(&unknown), &Some(Reason::UnknownCall));
    let first = session.submit(answer.clone()).await?;
    judge.equal("R-FN-5", "the first result is accepted", &outcome(&first), &Some(ResultOutcome::Accepted));
    let again = session.submit(answer.clone()).await?;
    judge.equal("R-FN-5", "the same result is a duplicate", &outcome(&again), &Some(ResultOutcome::Duplicate));
    let other = session.submit(vec![text_result("t-1", "c1", "43")]).await;
    judge.equal("R-FN-5", "another result is a conflict", &refusal(&other), &Some(Reason::ResultConflict));

    observing.until(|_| None::<()>).await?;
    let whole = observing.seen;
    judge.found("R-EVT-2", "the call is closed once, before the end", in_order(&whole));
    let receipts = whole.kinds().filter(|kind| applied(kind).is_some()).count();
    judge.equal("R-FN-6", "the receipt comes once", &receipts, &1);
    let read = core.provider.model_requests().get(1).and_then(|request| request.output("c1"));
    judge.equal("R-FN-9", "the model reads the result as it is", &read, &Some("42".into()));
    judge.equal("R-FN-3", "nothing is required any more", &actions(&session).await?, &0);
    let later = session.submit(answer).await?;
    let duplicate = Some(ResultOutcome::Duplicate);
    judge.equal("R-FN-5", "the same result is a duplicate after the end", &outcome(&later), &duplicate);
    Ok(())
}

/// While the Harness is held still, it cannot take a result over, so nobody may say that it did.
async fn held_harness(core: &Core<'_>, judge: &mut Judge<'_>) -> anyhow::Result<()> {
    const WHAT: &str = "no receipt before the Harness has taken the result over";
    core.provider.script(CALL)?;
    let session = core.session().await?;
    core.start(&session, "t-1", "look it up").await?;
    let mut observing = core.observe(&session, "t-1", 0).await?;
    observing.until(called).await?.context("there is no function call")?;
    let held = Held::those_in(Path::new(session.directory()))?;
    if held.0.is_empty() {
        judge.unjudged("R-FN-6", WHAT, "the Harness's process was not found in its workspace");
    }
    let accepted = session.submit(vec![text_result("t-1", "c1", "42")]).await?;
    judge.equal("R-FN-5", "the result is accepted", &outcome(&accepted), &Some(ResultOutcome::Accepted));
    if !held.0.is_empty() {
        let early = match time::timeout(HELD, observing.until(applied)).await {
            Ok(receipt) => receipt?.map_or(Ok(()), |call| Err(anyhow::anyhow!("the receipt of {call} came before"))),
            Err(_nothing_came) => Ok(()),
        };
        judge.found("R-FN-6", WHAT, early);
        judge.equal("R-FN-3", "the call stays required until then", &actions(&session).await?, &1);
    }
    drop(held);
    observing.until(|_| None::<()>).await?;
    let status = observing.seen.end().map(v1::TurnEnded::status).ok();
    judge.equal("R-EVT-3", "the Turn completes", &status, &Some(TurnStatus::Completed));
    Ok(())
}

async fn cancel(core: &Core<'_>, judge: &mut Judge<'_>) -> anyhow::Result<()> {
    core.provider.script(CALL)?;
    let session = core.session().await?;
    core.start(&session, "t-1", "look it up").await?;
    let mut observing = core.observe(&session, "t-1", 0).await?;
    observing.until(called).await?.context("there is no function call")?;
    let answer = session.cancel("t-1", None).await?;
    judge.equal("R-CAN-1", "the cancel is settled", &answer.outcome(), &CancelOutcome::Settled);
    observing.until(|_| None::<()>).await?;
    let end = observing.seen.end().ok().map(|end| (end.status(), end.cause()));
    judge.equal("R-EVT-3", "the end tells the cause", &end, &Some((TurnStatus::Cancelled, v1::EndCause::Requested)));
    judge.found("R-EVT-2", "the call is abandoned before the end", in_order(&observing.seen));
    let again = session.cancel("t-1", None).await?;
    judge.equal("R-CAN-1", "a second cancel tells the same", &again.outcome(), &CancelOutcome::Settled);
    let late = session.submit(vec![text_result("t-1", "c1", "42")]).await;
    judge.equal("R-FN-5", "a result after the cancel is refused", &refusal(&late), &Some(Reason::TurnCancelled));
    Ok(())
}

async fn fence(core: &Core<'_>, judge: &mut Judge<'_>) -> anyhow::Result<()> {
    let session = core.session().await?;
    let get = async |change: fn(&mut v1::AssignmentRef)| {
        let mut fence = session.assignment().clone();
        change(&mut fence);
        core.client.get_turn(v1::GetTurnRequest { assignment: Some(fence), turn_id: "t-none".into() }).await
    };
    for (what, change, want) in [
        ("a lower epoch is stale", (|fence| fence.epoch = 2) as fn(&mut v1::AssignmentRef), Reason::AssignmentStale),
        ("a higher epoch is a conflict", |fence| fence.epoch = 4, Reason::AssignmentConflict),
        ("another assignment is a conflict", |fence| fence.assignment_id = "a-2".into(), Reason::AssignmentConflict),
        ("another Session is not there", |fence| fence.session_id.push_str("-2"), Reason::NotFound),
    ] {
        judge.equal("R-ASG-1", what, &refusal(&get(change).await), &Some(want));
    }
    let request = v1::GetTurnRequest { assignment: Some(session.assignment().clone()), turn_id: "t-none".into() };
    let unversioned = core.client.clone().claiming_version(None).get_turn(request).await;
    judge.equal(
        "R-API-1",
        "a call without its version is refused",
        &refusal(&unversioned),
        &Some(Reason::InvalidRequest),
    );
    Ok(())
}

/// Processes that stand still until this is dropped.
struct Held(Vec<Pid>);

impl Held {
    /// Holds whatever works in a folder.
    fn those_in(folder: &Path) -> anyhow::Result<Self> {
        let mut held = Self(Vec::new());
        for process in processes()? {
            let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| process.directory == folder) {
                kill_process(pid, Signal::STOP).with_context(|| format!("hold {}", process.command))?;
                held.0.push(pid);
            }
        }
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for pid in &self.0 {
            // It may have been ended meanwhile.
            _ = kill_process(*pid, Signal::CONT);
        }
    }
}

/// The first place where sequences do not go on by one.
fn holes(observed: &Observed) -> anyhow::Result<()> {
    let sequences: Vec<_> = observed.events.iter().map(|event| event.sequence).collect();
    let whole: Vec<_> = (1..).take(sequences.len()).collect();
    anyhow::ensure!(sequences == whole, "{sequences:?}");
    Ok(())
}

/// The order of the events, whatever their numbers are.
fn in_order(observed: &Observed) -> anyhow::Result<()> {
    let mut counted = observed.clone();
    for (sequence, event) in (1..).zip(&mut counted.events) {
        event.sequence = sequence;
    }
    counted.check_order()
}

async fn actions(session: &Session) -> anyhow::Result<usize> {
    Ok(session.turn("t-1").await?.required_actions.len())
}

fn called(kind: &Kind) -> Option<String> {
    if let Kind::FunctionCall(call) = kind { Some(call.call_id.clone()) } else { None }
}

fn applied(kind: &Kind) -> Option<String> {
    if let Kind::FunctionResultApplied(applied) = kind { Some(applied.call_id.clone()) } else { None }
}

fn outcome(outcomes: &[v1::FunctionResultOutcome]) -> Option<ResultOutcome> {
    outcomes.first().map(v1::FunctionResultOutcome::outcome)
}
