//! Take-overs in the middle of the work (R-ASG-2): nothing is lost, and the Core before is fenced at once, on every call and stream.

use anyhow::Context;
use conformance::child::codex;
use conformance::child::fault::{Fault, MARK, Place};
use conformance::rig::{Observed, Refused, Rig, Setup, Stands, function, refusal, scenario, text_result};
use proto::client::{Error, Messages, Session};
use proto::v1::{self, CancelOutcome, Reason, ResultOutcome, TurnPhase, event::Kind};
use serde_json::json;
use tokio::task::JoinSet;

/// Why one Harness is enough.
const OWN: &str = "the fence is the bridge's own; `turns_takeover` has each Harness";

/// Deltas of the Turn.
const DELTAS: usize = 10_000;
/// Calls that are open at once.
const CALLS: [&str; 3] = ["c1", "c2", "c3"];
/// Take-overs while deltas come.
const ROUNDS: u32 = 6;

#[test]
fn nothing_is_lost_by_take_overs_at_any_moment() {
    let rules = ["R-ASG-1", "R-ASG-2", "R-EVT-1", "R-FN-3", "R-FN-5"];
    // Who does not read is ended by the take-over, and not before it.
    let setup = Setup::outer().bridge(OWN).with("limits.observer_ms = 50000");
    scenario("takeover_load", &rules, setup, async |rig| {
        rig.provider.script(&script())?;
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
        let mut core = rig.session().await?;
        let functions = vec![function("lookup", r#"{"type":"object"}"#)];
        let mut events = rig.start_turn(&core, rig.configuration(functions), "t-1", "go").await?;
        let mut seen = Observed::default();
        for _ in CALLS {
            seen.call(&mut events).await?;
        }

        // One with open calls: while the next Core comes, the one before answers a call.
        let next = higher(&core);
        let late = core.submit(results(&CALLS[..1]));
        let (late, bound) = tokio::join!(late, bind(rig, next));
        let before = std::mem::replace(&mut core, bound?);
        let was_in_time = match late {
            Ok(outcomes) => outcomes[0].outcome() == ResultOutcome::Accepted,
            Err(error) => {
                stale(Err::<(), _>(error), &core);
                false
            }
        };
        fenced(rig, &before, &core).await?;
        drain_fenced(&mut events, &mut seen, &core).await?;
        let turn = core.turn("t-1").await?;
        assert_eq!(turn.phase(), TurnPhase::RequiresAction);
        // The one that was answered in time may be applied already.
        assert!(turn.required_actions.len() >= CALLS.len() - usize::from(was_in_time), "{turn:?}");
        let outcomes = core.submit(results(&CALLS)).await?;
        let told: Vec<_> = outcomes.iter().map(v1::FunctionResultOutcome::outcome).collect();
        let first = if was_in_time { ResultOutcome::Duplicate } else { ResultOutcome::Accepted };
        assert_eq!(told, [first, ResultOutcome::Accepted, ResultOutcome::Accepted]);

        // Several at random moments of a stream of deltas; the provider holds back the second half of them for the first three.
        for round in 1..=ROUNDS {
            let mut events = rig.client().await?.observe(core.assignment().clone(), "t-1", seen.events.len() as u64);
            let idle = unread(rig, &core).await?;
            for _ in 0..dice.below(DELTAS as u64 / 8) {
                // The last of them may come when the Turn is over.
                if seen.end().is_err() {
                    seen.events.push(events.next().await?.context("the stream ended early")?);
                }
            }
            let bound = bind(rig, higher(&core)).await?;
            let before = std::mem::replace(&mut core, bound);
            fenced(rig, &before, &core).await?;
            if seen.end().is_err() {
                drain_fenced(&mut events, &mut seen, &core).await?;
            }
            ends_stale(idle, &core).await?;
            if round == ROUNDS / 2 {
                rig.provider.open_gate("half");
            }
        }
        let mut events = rig.client().await?.observe(core.assignment().clone(), "t-1", seen.events.len() as u64);
        while seen.end().is_err() {
            seen.events.push(events.next().await?.context("the stream ended early")?);
        }
        seen.completed()?;
        seen.check_order()?;
        assert_eq!(seen.kinds().filter(|kind| matches!(kind, Kind::MessageDelta(_))).count(), DELTAS);
        let whole = Observed::default().to_the_end(&mut core.turn_events("t-1")).await?;
        assert!(whole.events == seen.events, "what all Cores saw together is the whole");
        for call in CALLS {
            assert_eq!(rig.provider.model_requests()[1].output(call), Some(json!(format!("result of {call}"))));
        }

        // Whoever reads a Turn that is over is fenced too.
        let idle = unread(rig, &core).await?;
        let bound = bind(rig, higher(&core)).await?;
        ends_stale(idle, &bound).await?;
        let idle = unread(rig, &bound).await?;
        bound.release(false).await?;
        let error = rest(idle).await.err().context("the stream of a released assignment ended well")?;
        refusal(Err::<(), _>(error), Reason::AssignmentStale).with("state", "released");
        Ok(())
    });
}

#[test]
fn who_waits_for_a_cancel_is_told_how_far_it_is() {
    let setup = Setup { stands: Stands::Faulty(Box::new(codex::healthy())), ..Setup::outer().bridge(OWN) };
    scenario("takeover_cancel", &["R-ASG-2", "R-CAN-1", "R-API-5"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        child.play(codex::with_fault(Place::AtInterrupt, Fault::Hangs))?;
        let old = rig.session().await?;
        let mut events = rig.start_turn(&old, rig.configuration(Vec::new()), "t-1", "hello").await?;
        Observed::default().until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        let mut waiting = JoinSet::new();
        let core = old.clone();
        waiting.spawn(async move { core.cancel("t-1", Some(std::time::Duration::from_secs(60))).await });
        child.wait_for_mark(MARK).await?;
        let new = bind(rig, higher(&old)).await?;
        // The cancel stands; who asked for it hears no more than how far it was.
        let answer = waiting.join_next().await.context("nobody waits")???;
        assert_eq!(answer.outcome(), CancelOutcome::Pending);
        assert_eq!(answer.turn.unwrap_or_default().phase(), TurnPhase::Settling);
        stale(old.cancel("t-1", None).await, &new);
        let answer = new.cancel("t-1", Some(std::time::Duration::from_secs(30))).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled);
        Ok(())
    });
}

/// Three calls, then as many deltas, of which the second half waits for a gate.
fn script() -> String {
    let calls: Vec<_> =
        CALLS.iter().map(|call| json!({"name": "lookup", "call_id": call, "arguments": "{}"})).collect();
    let half = |from: usize| -> Vec<_> { (from..from + DELTAS / 2).map(|number| format!("{number} ")).collect() };
    json!([
        {"play": [{"calls": calls}]},
        {"play": [{"text": {"chunks": half(0)}}, {"gate": "half"}, {"text": {"chunks": half(DELTAS / 2)}}]},
    ])
    .to_string()
}

fn results(calls: &[&str]) -> Vec<v1::FunctionResult> {
    calls.iter().map(|call| text_result("t-1", call, &format!("result of {call}"))).collect()
}

fn higher(core: &Session) -> v1::AssignmentRef {
    let mut assignment = core.assignment().clone();
    assignment.epoch += 1;
    assignment
}

/// The next Core, on a connection of its own.
async fn bind(rig: &Rig, assignment: v1::AssignmentRef) -> anyhow::Result<Session> {
    let directory = rig.workspace().to_string_lossy().into_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    let placement = v1::bind_assignment_request::Placement::Workspace(workspace);
    Ok(Session::bind(rig.client().await?, assignment, placement).await?)
}

/// The refusal of a Core before by the epoch of this one.
#[track_caller]
fn stale<T: std::fmt::Debug>(answer: Result<T, Error>, now: &Session) -> Refused {
    let epoch = now.assignment().epoch.to_string();
    refusal(answer, Reason::AssignmentStale).with("epoch", &epoch).with("state", "bound")
}

/// The Core before is refused on every call.
async fn fenced(rig: &Rig, before: &Session, now: &Session) -> anyhow::Result<()> {
    let mut target = rig.target(before);
    target.turn_id = "t-1".into();
    let client = rig.client().await?;
    for call in conformance::rig::Call::ALL {
        stale(call.make(&client, &target).await, now);
    }
    Ok(())
}

/// What was on its way to a Core comes, and then its stream ends.
async fn drain_fenced(
    events: &mut proto::client::TurnEvents,
    seen: &mut Observed,
    now: &Session,
) -> anyhow::Result<()> {
    loop {
        match events.next().await {
            Ok(Some(event)) => seen.events.push(event),
            // All of it was on its way before the take-over.
            Ok(None) if seen.end().is_ok() => return Ok(()),
            Ok(None) => anyhow::bail!("the stream of a fenced Core ended well"),
            Err(error) => {
                stale(Err::<(), _>(error), now);
                return Ok(());
            }
        }
    }
}

/// An observer of all events that does not read.
async fn unread(rig: &Rig, core: &Session) -> anyhow::Result<Messages<v1::ObserveTurnResponse>> {
    let assignment = Some(core.assignment().clone());
    let request = v1::ObserveTurnRequest { assignment, turn_id: "t-1".into(), after_sequence: 0 };
    Ok(rig.client().await?.observe_turn(request).await?)
}

async fn rest(mut messages: Messages<v1::ObserveTurnResponse>) -> Result<(), Error> {
    while messages.next().await?.is_some() {}
    Ok(())
}

/// The stream of an observer that did not read ends when it does.
async fn ends_stale(messages: Messages<v1::ObserveTurnResponse>, now: &Session) -> anyhow::Result<()> {
    let error = rest(messages).await.err().context("the stream of a fenced Core ended well")?;
    stale(Err::<(), _>(error), now);
    Ok(())
}

/// Random moments, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
