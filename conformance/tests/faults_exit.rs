//! A Harness that ends in the middle of a Turn (R-EVT-7, R-CAN-6): the Turn fails at once with how it ended, everything that it wrote
//! before is there, and its history is never replaced.

#![expect(clippy::unwrap_used, reason = "what is made before a scenario fails by panicking")]

use std::time::{Duration, SystemTime};

use anyhow::Context;
use conformance::child::FaultChild;
use conformance::child::fault::{FUNCTION, Fault, MARK, Place};
use conformance::for_each_harness;
use conformance::rig::{Harness, MODEL_KEY, Observed, Rig, Setup, function, name, refusal, scenario, text_result};
use conformance::script::child::{Program, Repeat, Signal, Step};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason, event::Kind};
use serde_json::json;
use serde_json::value::to_raw_value;

for_each_harness!(
    an_end_behind_the_native_end_keeps_it,
    every_kind_of_end_is_told_as_it_was,
    an_end_at_any_place_closes_what_is_open,
    an_end_behind_the_end_of_the_turn_changes_nothing_of_it,
    what_was_written_before_the_end_is_drained,
);

fn functions() -> Vec<v1::FunctionTool> {
    vec![function(FUNCTION, r#"{"type":"object"}"#)]
}

/// How a Harness ended: exit code and signal.
type Ended = (Option<i32>, Option<i32>);

/// A Turn of a Harness that follows this program from its start on. Calls are answered.
async fn turn(rig: &Rig, child: &FaultChild, program: Program) -> anyhow::Result<(Session, Observed)> {
    child.play(program)?;
    let session = rig.session().await?;
    let ready = rig.prepare(&session, rig.configuration(functions())).await?;
    session.start(&ready, "t-1", text_input("hello")).await?;
    let (mut events, mut observed) = (session.turn_events("t-1"), Observed::default());
    while let Some(event) = events.next().await? {
        if let Some(Kind::FunctionCall(call)) = &event.kind {
            // Where the Harness is gone already, the result comes too late.
            let answer = session.submit(vec![text_result("t-1", &call.call_id, "42")]).await;
            anyhow::ensure!(
                answer.as_ref().map_or_else(|e| e.reason() == Some(Reason::CallAbandoned), |_| true),
                "{answer:?}"
            );
        }
        observed.events.push(event);
    }
    observed.check_order()?;
    Ok((session, observed))
}

/// The Turn failed since the Harness ended so, soon after it did.
fn exited(child: &FaultChild, observed: &Observed, (code, signal): Ended) -> anyhow::Result<()> {
    let end = observed.end()?;
    assert_eq!(end.status(), v1::TurnStatus::Failed, "{end:?}");
    let failure = end.failure.as_ref().context("no failure")?;
    assert_eq!(failure.code(), v1::FailureCode::HarnessExited, "{failure:?}");
    assert_eq!((failure.exit_code, failure.exit_signal), (code, signal), "{failure:?}");
    let how = code.map_or_else(|| format!("signal {}", signal.unwrap_or_default()), |code| format!("exit code {code}"));
    assert!(failure.message.contains(&how), "{failure:?}");
    assert!(!failure.message.contains(MODEL_KEY), "{failure:?}");
    assert!(end.cause.is_none() && end.finish.is_none() && end.native_completed_at.is_none(), "{end:?}");
    let time = observed.events.last().and_then(|event| event.time).context("no time")?;
    let marked = child.marked_at(MARK)?;
    let took = SystemTime::try_from(time)?.duration_since(marked)?;
    // No limit of anything that it waits for; how quick it is on a machine that has time, is measured elsewhere.
    assert!(took < Duration::from_secs(10), "the end took {took:?}");
    // The scenario knows of it at about the same time.
    assert!(marked.elapsed()? < Duration::from_secs(20));
    Ok(())
}

/// A Session with a native history is never given a new thread, whether the history is named or not; the child has written none.
async fn history_is_gone(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let native = session.turn("t-1").await?.native.context("the Turn never began natively")?.session_id;
    let refused = session.prepare(rig.configuration(functions()), Vec::new()).await;
    refusal(refused, Reason::NativeHistoryUnavailable).with("history", "not_named").with("native_session_id", &native);
    let refused = rig.resume(session, rig.configuration(functions()), &native).await;
    refusal(refused, Reason::NativeHistoryUnavailable).with("history", "missing");
    Ok(())
}

fn every_kind_of_end_is_told_as_it_was(harness: Harness) {
    scenario("fault_ends", &["R-EVT-7", "R-CAN-6", "R-PRE-4"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let said = vec![Step::Mark(MARK.into()), Step::Exit(3)];
        for (program, ended) in [
            (harness.with_fault(Place::InMessage, Fault::ExitsWith0), (Some(0), None)),
            (harness.with_fault(Place::InMessage, Fault::ExitsWith1), (Some(1), None)),
            (harness.with_steps(Place::InMessage, &said), (Some(3), None)),
            (harness.with_fault(Place::InMessage, Fault::Segfaults), (None, Some(11))),
            (harness.with_fault(Place::InMessage, Fault::IsKilled), (None, Some(9))),
            (
                harness.with_steps(Place::InMessage, &[Step::Mark(MARK.into()), Step::Die(Signal::Term)]),
                (None, Some(15)),
            ),
            (harness.with_fault(Place::InMessage, Fault::EndsInALine), (Some(0), None)),
            (harness.with_fault(Place::InMessage, Fault::LeavesADescendant), (Some(0), None)),
        ] {
            let (session, observed) = turn(rig, &child, program).await?;
            exited(&child, &observed, ended)?;
            let story = ["turn_started", "message_started", "message_delta", "message_discarded", "turn_ended"];
            assert_eq!(observed.story(), story);
            assert_eq!(observed.deltas(), "Let me look.");
            history_is_gone(rig, &session).await?;
            assert_eq!(session.turn("t-1").await?.ended.as_ref(), Some(observed.end()?));
            bystander.undisturbed(rig).await?;
        }
        // What it said last is in the text.
        let (_, observed) = turn(rig, &child, harness.with_fault(Place::InTurn, Fault::ExitsWith1)).await?;
        let message = observed.end()?.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default();
        assert!(message.contains("nothing works"), "{message}");
        Ok(())
    });
}

fn an_end_at_any_place_closes_what_is_open(harness: Harness) {
    scenario("fault_places", &["R-EVT-2", "R-EVT-7", "R-FN-7", "R-PRE-4"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        for (place, last) in [
            (Place::AtTurnStart, &[] as &[_]),
            (Place::AfterTurnStart, &[]),
            (Place::InTurn, &["turn_started"]),
            (Place::InMessage, &["message_delta", "message_discarded"]),
            (Place::InCommand, &["tool_started", "tool_completed"]),
            (Place::InCall, &["function_call", "function_call_abandoned"]),
            (Place::AfterCall, &["function_call", "function_call_abandoned"]),
            (Place::BeforeEnd, &["message_completed"]),
        ] {
            let (session, observed) = turn(rig, &child, harness.with_fault(place, Fault::ExitsWith0)).await?;
            exited(&child, &observed, (Some(0), None))?;
            let mut story = observed.story();
            if harness == Harness::ClaudeCode {
                // It has no output of a command before its end, and tells the tokens of each answer.
                story.retain(|name| *name != "usage");
            }
            let last: &[&str] = match (harness, place) {
                (Harness::Codex, Place::InCommand) => &["tool_started", "tool_output", "tool_completed"],
                (Harness::Codex, Place::BeforeEnd) => &["message_completed", "usage"],
                _ => last,
            };
            assert!(story[..story.len() - 1].ends_with(last), "{place:?} {story:?}");
            for kind in observed.kinds() {
                match kind {
                    Kind::FunctionCallAbandoned(abandoned) => {
                        assert_eq!(abandoned.reason(), v1::AbandonReason::ExecutionLost);
                        let late = session.submit(vec![text_result("t-1", &abandoned.call_id, "43")]).await;
                        let reason = late.err().and_then(|error| error.reason());
                        let wanted = [Reason::CallAbandoned, Reason::ResultConflict];
                        assert!(reason.is_some_and(|reason| wanted.contains(&reason)), "{reason:?}");
                    }
                    Kind::ToolCompleted(tool) if place == Place::InCommand => {
                        assert_eq!(tool.status(), v1::ToolStatus::Incomplete);
                    }
                    _ => {}
                }
            }
            let state = session.turn("t-1").await?;
            assert_eq!((state.phase(), state.required_actions.len()), (v1::TurnPhase::Ended, 0));
            if state.native.is_some() {
                history_is_gone(rig, &session).await?;
            }
            bystander.undisturbed(rig).await.with_context(|| format!("{place:?}"))?;
        }
        Ok(())
    });
}

fn an_end_behind_the_end_of_the_turn_changes_nothing_of_it(harness: Harness) {
    scenario("fault_after_end", &["R-EVT-7", "R-PRE-4"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        for fault in [Fault::ExitsWith1, Fault::Segfaults, Fault::LeavesADescendant] {
            let (session, observed) = turn(rig, &child, harness.with_fault(Place::AfterEnd, fault)).await?;
            observed.completed().with_context(|| format!("{fault:?}"))?;
            assert_eq!(observed.messages().last(), Some(&"All is well."));
            bystander.undisturbed(rig).await?;
            history_is_gone(rig, &session).await?;
        }
        Ok(())
    });
}

/// The native end was told, and the process ends before it says anything more (R-EVT-7).
fn an_end_behind_the_native_end_keeps_it(harness: Harness) {
    let end = match harness {
        Harness::Codex => {
            let turn = json!({"id": "${turn}", "status": "completed", "error": null, "items": []});
            vec![json!({"method": "turn/completed", "params": {"threadId": "${thread}", "turn": turn}})]
        }
        Harness::ClaudeCode => vec![json!({"type": "result", "subtype": "success", "is_error": false,
            "stop_reason": "end_turn", "terminal_reason": "completed", "session_id": "${session}"})],
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let lines = end.iter().map(|line| Step::Line(to_raw_value(line).unwrap()));
    let steps: Vec<_> = lines.chain([Step::Die(Signal::Kill)]).collect();
    scenario("fault_end_then_exit", &["R-EVT-7", "R-EVT-2"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let (session, observed) = turn(rig, &child, harness.with_steps(Place::BeforeEnd, &steps)).await?;
        observed.completed()?;
        assert_eq!(observed.messages(), ["Let me look.", "All is well."]);
        bystander.undisturbed(rig).await?;
        history_is_gone(rig, &session).await
    });
}

/// All bytes that were in the pipe when it ended are events.
fn what_was_written_before_the_end_is_drained(harness: Harness) {
    scenario("fault_drained", &["R-EVT-7", "R-EVT-8"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let burst = Repeat { times: 3000, steps: vec![harness.delta("${round} ")] };
        for end in [Step::Exit(0), Step::Die(Signal::Kill)] {
            let steps = [Step::Repeat(burst.clone()), Step::Mark(MARK.into()), end];
            let (_, observed) = turn(rig, &child, harness.with_steps(Place::InMessage, &steps)).await?;
            let want: String = (0..3000).map(|round| format!("{round} ")).collect();
            assert_eq!(observed.deltas(), format!("Let me look.{want}"));
            let names: Vec<_> = observed.kinds().map(name).collect();
            assert_eq!(names[names.len() - 2..], ["message_discarded", "turn_ended"]);
        }
        Ok(())
    });
}
