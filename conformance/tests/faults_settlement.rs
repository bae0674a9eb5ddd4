//! What is told of a settlement: a completion that wins, one that is not proved and its later truth, an end before the native turn has begun,
//! and a pipe that says half a line and nothing more (R-CAN-1 to R-CAN-5, R-EVT-9).

#![expect(clippy::unwrap_used, reason = "what is made before a scenario fails by panicking")]

use std::time::Duration;

use anyhow::Context;
use conformance::child::fault::{FUNCTION, Fault, MARK, Place};
use conformance::child::{FaultChild, claude};
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, function, refusal, scenario, text_result};
use conformance::script::child::{Bytes, Program, Read, Step};
use proto::client::{Session, text_input};
use proto::v1::{self, CancelOutcome, Reason, TurnStatus, event::Kind};
use rustix::process::Signal;
use serde_json::value::to_raw_value;

for_each_harness!(
    a_completion_that_is_on_its_way_wins,
    a_settlement_that_is_not_proved_is_told_and_so_is_its_later_truth,
    a_release_waits_for_what_a_stopped_keeper_keeps,
    a_cancel_before_the_native_turn_has_started_is_held_and_not_lost,
    half_a_line_and_then_silence_is_nothing_until_it_is_ended,
);

/// The time between two questions for a truth that has no bell.
const ASK: Duration = Duration::from_millis(20);

fn setup(harness: Harness, more: &str) -> Setup {
    Setup::child_of(harness).with(more)
}

/// A Turn of a Harness that follows this program, up to its mark.
async fn marked(rig: &Rig, child: &FaultChild, program: Program) -> anyhow::Result<Session> {
    child.play(program)?;
    let session = rig.session().await?;
    let ready = rig.prepare(&session, rig.configuration(vec![function(FUNCTION, "{}")])).await?;
    session.start(&ready, "t-1", text_input("hello")).await?;
    child.wait_for_mark(MARK).await?;
    Ok(session)
}

async fn observed(session: &Session) -> anyhow::Result<Observed> {
    Observed::default().to_the_end(&mut session.turn_events("t-1")).await
}

/// The interrupt is answered, and the Turn completes all the same: it was done already.
fn a_completion_that_is_on_its_way_wins(harness: Harness) {
    scenario("cancel_completion_wins", &["R-CAN-5", "R-CAN-1", "R-FN-5"], setup(harness, "").patient(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        for place in [Place::InMessage, Place::BeforeEnd] {
            let session = marked(rig, &child, harness.with_steps(place, &harness.reads_interrupt())).await?;
            // The mark may be the one of the round before; a Turn whose input is not written yet would be cancelled.
            let speaks = |kind: &Kind| matches!(kind, Kind::MessageStarted(_)).then_some(());
            Observed::default().until(&mut session.turn_events("t-1"), speaks).await?;
            let answer = session.cancel("t-1", None).await?;
            assert_eq!(answer.outcome(), CancelOutcome::Settled, "{place:?}");
            let turn = answer.turn.context("no Turn")?;
            let seen = observed(&session).await?;
            seen.completed().with_context(|| format!("{place:?}"))?;
            assert_eq!(turn.ended.as_ref(), Some(seen.end()?));
            assert!(turn.cancel_requested, "{turn:?}");
            assert_eq!(seen.messages(), ["Let me look.", "All is well."]);
            // It was not in vain for nothing: the Executor is as good as before.
            rig.prepare_again(&session, rig.configuration(vec![function(FUNCTION, "{}")])).await?;
        }
        // A call that nobody answered, of a Turn that completed: the cancel is what a late result is told of.
        let session = marked(rig, &child, harness.with_steps(Place::InCall, &interrupt_then_end(harness))).await?;
        let mut events = session.turn_events("t-1");
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        assert_eq!(session.cancel("t-1", None).await?.outcome(), CancelOutcome::Settled);
        seen.to_the_end(&mut events).await?.completed()?;
        let late = session.submit(vec![text_result("t-1", &call.call_id, "late")]).await;
        refusal(late, Reason::TurnCancelled).public(409, "conflict_error");
        Ok(())
    });
}

/// Behind the interrupt the native turn completes at once, with its call open.
fn interrupt_then_end(harness: Harness) -> Vec<Step> {
    let mut steps = harness.reads_interrupt();
    match harness {
        Harness::Codex => {
            let turn = serde_json::json!({"id": "${turn}", "status": "completed", "error": null, "items": []});
            let end =
                serde_json::json!({"method": "turn/completed", "params": {"threadId": "${thread}", "turn": turn}});
            steps.push(Step::Line(to_raw_value(&end).unwrap_or_default()));
        }
        Harness::ClaudeCode => steps.extend(claude::end()),
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    }
    steps.push(Step::Read(Read { method: Some("exit".into()), answer_to: None }));
    steps
}

/// A keeper that is stopped ends nothing, so nothing is proved in time; what it kept is ended by its mark, and who asks again is told so.
fn a_settlement_that_is_not_proved_is_told_and_so_is_its_later_truth(harness: Harness) {
    let rules = ["R-CAN-1", "R-CAN-2", "R-CAN-3", "R-CAN-4", "R-EVT-9", "R-ASG-4", "R-API-5"];
    scenario("cancel_unconfirmed", &rules, setup(harness, "limits.settlement_ms = 5000"), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let base = rig.family()?;
        let session = marked(rig, &child, harness.with_fault(Place::InCommand, Fault::Hangs)).await?;
        let new = rig.family()?.into_iter().filter(|process| !base.contains(process)).collect::<Vec<_>>();
        let keeper = new.iter().find(|process| process.command.contains("runtime-bridge-keeper"));
        keeper.context("no keeper")?.signal(Signal::STOP)?;
        let pending = session.cancel("t-1", Some(Duration::ZERO)).await?;
        assert_eq!(pending.outcome(), CancelOutcome::Pending);
        let first = session.cancel("t-1", Some(Duration::from_secs(20))).await?;
        assert_eq!(first.outcome(), CancelOutcome::Unconfirmed, "{first:?}");
        let seen = observed(&session).await?;
        let end = seen.end()?;
        assert_eq!((end.status(), end.cause()), (TurnStatus::Unknown, v1::EndCause::Unsettled), "{end:?}");
        assert!(seen.story().contains(&"tool_completed"), "the open command is closed: {:?}", seen.story());
        let mut asks = tokio::time::interval(ASK);
        let later = loop {
            let later = session.cancel("t-1", Some(Duration::ZERO)).await?;
            if later.outcome() != CancelOutcome::Unconfirmed {
                break later;
            }
            asks.tick().await;
        };
        assert_eq!(later.outcome(), CancelOutcome::Settled);
        // Settled means gone; how the Turn ended is not told anew.
        let family = rig.family()?;
        let left: Vec<_> = new.iter().filter(|one| one.runs_in(&family)).collect();
        assert!(left.is_empty(), "{left:#?}");
        assert_eq!(later.turn.and_then(|turn| turn.ended).as_ref(), Some(end));
        assert_eq!(observed(&session).await?.events, seen.events);
        let released = session.release(true).await?;
        assert_eq!((released.outcome(), released.home_removed), (v1::ReleaseOutcome::Confirmed, true), "{released:?}");
        bystander.undisturbed(rig).await
    });
}

/// The same when the Session is released meanwhile: the Release answers once everything is gone.
fn a_release_waits_for_what_a_stopped_keeper_keeps(harness: Harness) {
    let rules = ["R-ASG-4", "R-CAN-4", "R-EVT-9"];
    scenario("release_unconfirmed", &rules, setup(harness, "limits.settlement_ms = 5000"), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let session = marked(rig, &child, harness.with_fault(Place::InCommand, Fault::Hangs)).await?;
        let family = rig.family()?;
        let keeper = family.iter().find(|process| process.command.contains("runtime-bridge-keeper"));
        keeper.context("no keeper")?.signal(Signal::STOP)?;
        let released = session.release(true).await?;
        assert_eq!((released.outcome(), released.home_removed), (v1::ReleaseOutcome::Confirmed, true), "{released:?}");
        let now = rig.family()?;
        let left: Vec<_> = family.iter().filter(|one| one.runs_in(&now)).collect();
        assert!(left.is_empty(), "{left:#?}");
        let fence = v1::AssignmentRef { assignment_id: "a-2".into(), epoch: 1, ..session.assignment().clone() };
        let placement = rig.target(&session).placement.context("no placement")?;
        let next = Session::bind(rig.client().await?, fence, placement).await?;
        let end = next.turn("t-1").await?.ended.context("it goes on")?;
        assert_eq!((end.status(), end.cause()), (TurnStatus::Unknown, v1::EndCause::Unsettled), "{end:?}");
        Ok(())
    });
}

/// A cancel is held until the native turn can be interrupted, and sent once.
fn a_cancel_before_the_native_turn_has_started_is_held_and_not_lost(harness: Harness) {
    let mut program = harness.with_steps(Place::AtInterrupt, &[]);
    let (method, start, interrupt) = match harness {
        Harness::Codex => ("turn/start", "turn/started", r#""turn/interrupt""#),
        Harness::ClaudeCode => ("user", "running", r#""subtype":"interrupt""#),
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let turn = program.rules.iter_mut().find(|rule| rule.method == method).unwrap();
    let begun = |step: &Step| matches!(step, Step::Line(line) if line.get().contains(start));
    let place = turn.then.iter().position(begun).unwrap();
    turn.then.splice(place..place, [Step::Mark(MARK.into()), Step::Gate("begin".into())]);
    scenario("cancel_before_start", &["R-CAN-1", "R-CAN-3", "R-EVT-2"], setup(harness, "").patient(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let session = marked(rig, &child, program).await?;
        for _ in 0..2 {
            let pending = session.cancel("t-1", Some(Duration::ZERO)).await?;
            assert_eq!(pending.outcome(), CancelOutcome::Pending);
        }
        child.open_gate("begin")?;
        assert_eq!(session.cancel("t-1", None).await?.outcome(), CancelOutcome::Settled);
        let seen = observed(&session).await?;
        let end = seen.end()?;
        assert_eq!((end.status(), end.cause()), (TurnStatus::Cancelled, v1::EndCause::Requested), "{end:?}");
        let told = String::from_utf8(child.received(child.last(harness)?.pid)?)?;
        let told_so = told.matches(interrupt).count();
        assert_eq!(told_so, 1, "{told}");
        rig.prepare_again(&session, rig.configuration(vec![function(FUNCTION, "{}")])).await.map(drop)
    });
}

/// Half a line is no message, and silence is no end: the Turn runs on until somebody ends it.
fn half_a_line_and_then_silence_is_nothing_until_it_is_ended(harness: Harness) {
    let rules = ["R-CAN-1", "R-CAN-4", "R-EVT-2", "R-PRE-1"];
    scenario("fault_half_a_line", &rules, setup(harness, "limits.harness_start_ms = 8000"), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let half = harness.cut_delta().0 + "PHANTOM";
        let half = Step::Bytes(Bytes { text: Some(half), ..Bytes::default() });
        let steps = [half.clone(), Step::Mark("half".into()), Step::Drain];
        let session = marked(rig, &child, harness.with_steps(Place::InMessage, &steps)).await?;
        child.wait_for_mark("half").await?;
        let turn = session.turn("t-1").await?;
        assert_eq!((turn.phase(), turn.ended), (v1::TurnPhase::Running, None));
        let answer = session.cancel("t-1", Some(Duration::from_secs(20))).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled);
        let seen = observed(&session).await?;
        let end = seen.end()?;
        assert_eq!((end.status(), end.cause()), (TurnStatus::Cancelled, v1::EndCause::Requested), "{end:?}");
        assert_eq!(seen.deltas(), "Let me look.");
        let discarded = seen.kinds().any(|kind| matches!(kind, Kind::MessageDiscarded(_)));
        assert!(discarded, "{:?}", seen.story());
        bystander.undisturbed(rig).await?;

        let opens = if harness == Harness::Codex { "session" } else { "initialize" };
        // At the start it is a preparation that fails in its time.
        child.play(harness.with_steps(Place::AtThreadStart, &[half, Step::Drain]))?;
        let session = rig.session().await?;
        let refused = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
        refusal(refused, Reason::PreparationFailed).with("step", opens);
        bystander.undisturbed(rig).await
    });
}
