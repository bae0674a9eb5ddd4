//! A Harness that does not react: to an interrupt, to the end of its pipes, to what it is told; and what it leaves behind (R-CAN-2 to
//! R-CAN-4, R-EVT-9). Whatever it does, the Turn has an end and nothing of it lives on.

#![expect(clippy::unwrap_used, reason = "what is made before a scenario fails by panicking")]

use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::child::FaultChild;
use conformance::child::fault::{FUNCTION, Fault, MARK, Place};
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, function, processes, refusal, scenario, text_result};
use conformance::script::child::{Program, Repeat, Spawn, Step};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason, event::Kind};
use serde_json::json;
use serde_json::value::to_raw_value;

for_each_harness!(
    questions_of_one_that_reads_no_answers_take_bounded_memory,
    an_interrupt_that_is_ignored_ends_with_the_process,
    an_end_by_a_signal_of_its_own_is_no_cancel,
    a_closed_output_is_an_end,
    a_pipe_that_nobody_reads_holds_up_nobody_else,
    what_a_turn_leaves_behind_is_gone_when_it_is_over,
    a_release_ends_a_deaf_harness,
);

/// A Turn of a Harness that follows this program, just started.
async fn started(rig: &Rig, child: &FaultChild, program: Program) -> anyhow::Result<Session> {
    child.play(program)?;
    let session = rig.session().await?;
    let functions = vec![function(FUNCTION, r#"{"type":"object"}"#)];
    let ready = rig.prepare(&session, rig.configuration(functions)).await?;
    session.start(&ready, "t-1", text_input("hello")).await?;
    Ok(session)
}

async fn observed(session: &Session) -> anyhow::Result<Observed> {
    Observed::default().to_the_end(&mut session.turn_events("t-1")).await
}

/// Waits until the Harness has begun to answer.
async fn speaks(session: &Session) -> anyhow::Result<()> {
    let delta = |kind: &Kind| matches!(kind, Kind::MessageDelta(_)).then_some(());
    Observed::default().until(&mut session.turn_events("t-1"), delta).await
}

fn is_cancelled(end: &v1::TurnEnded, cause: v1::EndCause) {
    assert_eq!((end.status(), end.cause), (v1::TurnStatus::Cancelled, Some(cause.into())), "{end:?}");
    assert!(end.failure.is_none(), "{end:?}");
}

async fn history_is_gone(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let functions = vec![function(FUNCTION, r#"{"type":"object"}"#)];
    let refused = session.prepare(rig.configuration(functions), Vec::new()).await;
    refusal(refused, Reason::NativeHistoryUnavailable);
    Ok(())
}

fn an_interrupt_that_is_ignored_ends_with_the_process(harness: Harness) {
    scenario("fault_interrupt_ignored", &["R-CAN-1", "R-CAN-3", "R-CAN-4"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        // Deaf to the interrupt, to the end of its input and to SIGTERM.
        let session = started(rig, &child, harness.with_fault(Place::AtInterrupt, Fault::Hangs)).await?;
        let mut events = session.turn_events("t-1");
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        let begun = Instant::now();
        let pending = session.cancel("t-1", Some(Duration::ZERO)).await?;
        assert_eq!(pending.outcome(), v1::CancelOutcome::Pending, "{pending:?}");
        let turn = pending.turn.context("no Turn")?;
        assert!(turn.cancel_requested && turn.ended.is_none() && turn.phase() == v1::TurnPhase::Settling, "{turn:?}");
        // Another cancel waits for the same end.
        let settled = session.cancel("t-1", Some(Duration::from_secs(30))).await?;
        let took = begun.elapsed();
        assert_eq!(settled.outcome(), v1::CancelOutcome::Settled, "{settled:?}");
        // 2 s for the interrupt, 3 s for SIGTERM.
        assert!((4000..20_000).contains(&took.as_millis()), "{took:?}");
        let seen = seen.to_the_end(&mut events).await?;
        is_cancelled(seen.end()?, v1::EndCause::Requested);
        assert_eq!(settled.turn.and_then(|turn| turn.ended).as_ref(), Some(seen.end()?));
        history_is_gone(rig, &session).await?;
        bystander.undisturbed(rig).await
    });
}

fn an_end_by_a_signal_of_its_own_is_no_cancel(harness: Harness) {
    scenario("fault_interrupt_dies", &["R-CAN-3", "R-CAN-6"], Setup::child_of(harness).patient(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        for fault in [Fault::Segfaults, Fault::IsKilled] {
            let session = started(rig, &child, harness.with_fault(Place::AtInterrupt, fault)).await?;
            speaks(&session).await?;
            let settled = session.cancel("t-1", None).await?;
            assert_eq!(settled.outcome(), v1::CancelOutcome::Settled, "{fault:?} {settled:?}");
            let observed = observed(&session).await?;
            let end = observed.end()?;
            let code = end.failure.as_ref().map(v1::Failure::code);
            let want = (v1::TurnStatus::Failed, Some(v1::FailureCode::HarnessExited));
            assert_eq!((end.status(), code), want, "{fault:?} {end:?}");
            history_is_gone(rig, &session).await?;
            bystander.undisturbed(rig).await?;
        }
        // One that refuses the interrupt at first is asked again, and goes on living.
        let session = started(rig, &child, harness.with_fault(Place::AtInterrupt, Fault::Refuses)).await?;
        speaks(&session).await?;
        let settled = session.cancel("t-1", None).await?;
        assert_eq!(settled.outcome(), v1::CancelOutcome::Settled, "{settled:?}");
        is_cancelled(observed(&session).await?.end()?, v1::EndCause::Requested);
        let functions = vec![function(FUNCTION, r#"{"type":"object"}"#)];
        rig.prepare_again(&session, rig.configuration(functions)).await.map(drop)
    });
}

fn a_closed_output_is_an_end(harness: Harness) {
    scenario("fault_closed_output", &["R-EVT-7", "R-CAN-4"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        // One that would end with its input, and one that hears nothing any more.
        let deaf = [Step::Mark(MARK.into()), Step::CloseStdout, Step::IgnoreTerm, Step::Hang];
        for program in
            [harness.with_fault(Place::InMessage, Fault::ClosesItsOutput), harness.with_steps(Place::InMessage, &deaf)]
        {
            let session = started(rig, &child, program).await?;
            let begun = Instant::now();
            let observed = observed(&session).await?;
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
            let failure = observed.end()?.failure.as_ref().context("no failure")?;
            assert_eq!(failure.code(), v1::FailureCode::HarnessExited, "{failure:?}");
            assert_eq!(observed.deltas(), "Let me look.");
            history_is_gone(rig, &session).await?;
            bystander.undisturbed(rig).await?;
        }
        Ok(())
    });
}

fn a_pipe_that_nobody_reads_holds_up_nobody_else(harness: Harness) {
    // Far more than it takes until the cancel: that is to end the Turn.
    let setup = Setup::child_of(harness).with("limits.result_evidence_ms = 60000");
    scenario("fault_unread_input", &["R-FN-5", "R-FN-8", "R-CAN-4", "R-API-8"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let hangs = [Step::IgnoreTerm, Step::Mark(MARK.into()), Step::Hang];
        let closes = [Step::CloseStdin, Step::Mark(MARK.into()), Step::Hang];
        // More than the pipe takes, and no more than the Harness does.
        let long = if harness == Harness::Codex { 8 << 20 } else { 400_000 };
        for (steps, size) in [(&hangs as &[_], long), (&closes, 10)] {
            let session = started(rig, &child, harness.with_steps(Place::InCall, steps)).await?;
            let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
            let call = seen.call(&mut events).await?;
            child.wait_for_mark(MARK).await?;
            // Stored and acknowledged all the same.
            let result = text_result("t-1", &call.call_id, &"x".repeat(size));
            let accepted = session.submit(vec![result.clone()]).await?;
            assert_eq!(accepted[0].outcome(), v1::ResultOutcome::Accepted);
            let again = session.submit(vec![result]).await?;
            assert_eq!(again[0].outcome(), v1::ResultOutcome::Duplicate);
            assert_eq!(session.turn("t-1").await?.ended, None);
            let settled = session.cancel("t-1", Some(Duration::from_secs(20))).await?;
            assert_eq!(settled.outcome(), v1::CancelOutcome::Settled, "{settled:?}");
            let seen = seen.to_the_end(&mut events).await?;
            is_cancelled(seen.end()?, v1::EndCause::Requested);
            assert!(seen.story().contains(&"function_call_abandoned"), "{:?}", seen.story());
            history_is_gone(rig, &session).await?;
            bystander.undisturbed(rig).await?;
        }
        Ok(())
    });
}

/// Each question is answered, and the answers to these are never read.
fn questions_of_one_that_reads_no_answers_take_bounded_memory(harness: Harness) {
    const QUESTIONS: u64 = 200_000;
    const GROWS_KIB: u64 = 48 << 10;
    let question = match harness {
        Harness::Codex => json!({"id": "${round}", "method": "foo/bar", "params": {}}),
        Harness::ClaudeCode => {
            json!({"type": "control_request", "request_id": "q${round}", "request": {"subtype": "foo_bar"}})
        }
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let asks = Repeat { times: QUESTIONS, steps: vec![Step::Line(to_raw_value(&question).unwrap())] };
    let steps = [Step::Repeat(asks), Step::IgnoreTerm, Step::Hang];
    scenario("fault_unread_answers", &["R-EVT-8", "R-PLC-1", "R-CAN-4"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let base = rig.footprint()?;
        let session = started(rig, &child, harness.with_steps(Place::InMessage, &steps)).await?;
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        let (mut most, mut looked) = (base.memory_kib, 0);
        while session.turn("t-1").await?.ended.is_none() {
            most = most.max(rig.footprint()?.memory_kib);
            looked += 1;
            looks.tick().await;
        }
        anyhow::ensure!(looked > 1, "nobody looked");
        anyhow::ensure!(most <= base.memory_kib + GROWS_KIB, "memory grows from {base} to {most} KiB");
        let seen = observed(&session).await?;
        let failure = seen.end()?.failure.as_ref().context("no failure")?;
        assert_eq!(failure.code(), v1::FailureCode::HarnessProtocolError, "{failure:?}");
        assert!(failure.message.contains("does not read the answers"), "{failure:?}");
        bystander.undisturbed(rig).await
    });
}

/// R-CAN-2: what a Turn has started and did not end is gone before the Turn is said to be over.
fn what_a_turn_leaves_behind_is_gone_when_it_is_over(harness: Harness) {
    scenario("fault_leftovers", &["R-CAN-2", "R-EVT-9", "R-CAN-3"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        for (new_session, ignore_term, clear_env) in [(true, true, false), (true, true, true), (false, false, false)] {
            let spawn = Spawn { seconds: 600, new_session, ignore_term, hold_stdout: true, clear_env };
            let session = started(rig, &child, harness.with_steps(Place::InCommand, &[Step::Spawn(spawn)])).await?;
            let observed = observed(&session).await?;
            observed.completed()?;
            let left = child.descendants(child.last(harness)?.pid)?;
            assert_eq!(left.len(), 1);
            let alive = processes()?.into_iter().filter(|process| left.contains(&process.pid) && !process.zombie);
            assert_eq!(alive.collect::<Vec<_>>(), [], "it lives when the Turn is over");
            // The Harness itself is well, and takes the next Turn.
            let functions = vec![function(FUNCTION, r#"{"type":"object"}"#)];
            assert!(rig.prepare(&session, rig.configuration(functions)).await?.reused);
            let fence = v1::AssignmentRef { epoch: 2, ..session.assignment().clone() };
            let release = v1::ReleaseAssignmentRequest { assignment: Some(fence), remove_home: true, principal: None };
            let released = rig.client().await?.release_assignment(release).await?;
            assert_eq!(released.outcome(), v1::ReleaseOutcome::Confirmed, "{released:?}");
            bystander.undisturbed(rig).await?;
        }
        Ok(())
    });
}

fn a_release_ends_a_deaf_harness(harness: Harness) {
    scenario("fault_deaf_release", &["R-ASG-4", "R-CAN-4"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let spawn = Spawn { seconds: 600, new_session: true, ignore_term: true, ..Spawn::default() };
        let steps = [Step::Spawn(spawn), Step::IgnoreTerm, Step::Mark(MARK.into()), Step::Hang];
        let session = started(rig, &child, harness.with_steps(Place::InCommand, &steps)).await?;
        child.wait_for_mark(MARK).await?;
        let observing = observed(&session);
        let fence = v1::AssignmentRef { epoch: 2, ..session.assignment().clone() };
        let release = v1::ReleaseAssignmentRequest { assignment: Some(fence), remove_home: true, principal: None };
        let released = rig.client().await?.release_assignment(release.clone()).await?;
        assert_eq!(released.outcome(), v1::ReleaseOutcome::Confirmed, "{released:?}");
        assert!(released.home_removed && released.detail.is_empty(), "{released:?}");
        bystander.undisturbed(rig).await?;
        assert_eq!(rig.client().await?.release_assignment(release).await?.outcome(), v1::ReleaseOutcome::Confirmed);
        // The fenced epoch sees nothing more; the Turn is readable under the next assignment.
        let fenced = observing.await.map_err(|error| error.downcast::<proto::client::Error>());
        let fenced = fenced.err().context("a fenced observer saw the end")??;
        refusal(Err::<(), _>(fenced), Reason::AssignmentStale);
        let fence = v1::AssignmentRef { assignment_id: "a-2".into(), epoch: 1, ..session.assignment().clone() };
        let placement = rig.target(&session).placement.context("no placement")?;
        let next = Session::bind(rig.client().await?, fence, placement).await?;
        let observed = observed(&next).await?;
        is_cancelled(observed.end()?, v1::EndCause::Released);
        Ok(())
    });
}
