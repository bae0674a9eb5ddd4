//! Agents behind ACP that misbehave: at the start, within a prompt, at its end, and when they are stopped. The faults are those of the double; what a real agent
//! shows by itself is shown with opencode too.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use conformance::for_each_acp_agent;
use conformance::mcode::{self, ExitAt, Faults, Leaves, Settles};
use conformance::rig::Harness;
use conformance::rig::{Observed, Rig, Setup, function, refusal, scenario};
use proto::client::{Session, text_input};
use proto::v1::event::Kind;
use proto::v1::{self, CancelOutcome, EndCause, FailureCode, Reason, TurnStatus};
use rustix::process::Signal;

for_each_acp_agent!(
    an_agent_that_is_killed_in_a_prompt_fails_it_at_once_and_the_next_turn_goes_on,
    a_call_of_an_agent_that_is_killed_is_over_with_its_execution
);

/// Why a fault of the double is enough.
const DOUBLE: &str = "no real agent does this when it is told to";

fn double(faults: Faults) -> Setup {
    Setup::double(faults).only(DOUBLE)
}

fn an_agent_that_is_killed_in_a_prompt_fails_it_at_once_and_the_next_turn_goes_on(harness: Harness) {
    let rules = ["R-EVT-7", "R-EVT-3", "R-PRE-4", "R-CAN-6"];
    scenario("acp_killed", &rules, Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["half ", "a thought"], "open": true}}, {"gate": "never"}]},
                {"play": [{"text": {"chunks": ["Here I am."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "think").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        rig.harness()?.signal(Signal::KILL)?;
        let seen = seen.to_the_end(&mut events).await?;
        let end = seen.end()?;
        let code = end.failure.as_ref().map(v1::Failure::code);
        assert_eq!((end.status(), code), (TurnStatus::Failed, Some(FailureCode::HarnessExited)), "{end:?}");
        goes_on(rig, &session, "Here I am.").await
    });
}

fn a_call_of_an_agent_that_is_killed_is_over_with_its_execution(harness: Harness) {
    let rules = ["R-EVT-7", "R-FN-7", "R-FN-5"];
    scenario("acp_killed_call", &rules, Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"x\"}"}]}]}]"#,
        )?;
        let session = rig.session().await?;
        let functions = vec![function("lookup", r#"{"type":"object","properties":{"q":{"type":"string"}}}"#)];
        let mut events = rig.start_turn(&session, rig.configuration(functions), "t-1", "look").await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        rig.harness()?.signal(Signal::KILL)?;
        let seen = seen.to_the_end(&mut events).await?;
        let end = seen.end()?;
        let code = end.failure.as_ref().map(v1::Failure::code);
        assert_eq!((end.status(), code), (TurnStatus::Failed, Some(FailureCode::HarnessExited)), "{end:?}");
        let told = seen.kinds().filter_map(|kind| match kind {
            Kind::FunctionCallAbandoned(abandoned) => Some((abandoned.call_id.clone(), abandoned.reason())),
            _ => None,
        });
        assert_eq!(told.collect::<Vec<_>>(), [(call.call_id, v1::AbandonReason::ExecutionLost)]);
        Ok(())
    });
}

/// The next Turn goes on with the same native history, in whatever process.
async fn goes_on(rig: &Rig, session: &Session, answer: &str) -> anyhow::Result<()> {
    let native = session.turn("t-1").await?.native.context("it never began")?.session_id;
    rig.executor_gone(session).await?;
    let ready = rig.resume(session, rig.configuration(Vec::new()), &native).await?;
    let seen = rig.turn_with(session, &ready, "t-2", "go on").await?;
    seen.completed()?;
    assert_eq!(seen.messages(), [answer]);
    assert_eq!(seen.native_session()?, native);
    Ok(())
}

#[test]
fn a_turn_that_is_cancelled_before_its_prompt_is_written_never_reaches_the_agent() {
    let setup = Setup::double(Faults::default());
    let setup = setup.only("the double holds back an answer until it is told to give it");
    scenario("acp_cancel_before", &["R-CAN-1", "R-CAN-4"], setup, async |rig| {
        let hold = rig.double().join("hold");
        rig.set_faults(&Faults { hold_config: Some(hold.clone()), ..Faults::default() })?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        let pid = rig.harness()?.pid;
        fs::write(&hold, "")?;
        session.start(&ready, "t-1", text_input("think")).await?;
        let mut events = session.turn_events("t-1");
        session.cancel("t-1", Some(Duration::ZERO)).await?;
        fs::remove_file(&hold)?;
        let seen = Observed::default().to_the_end(&mut events).await?;
        let end = seen.end()?;
        assert_eq!((end.status(), end.cause()), (TurnStatus::Cancelled, EndCause::Requested), "{end:?}");
        let read = String::from_utf8(mcode::received(&rig.double(), pid)?)?;
        assert!(!read.contains("session/prompt"), "{read}");
        assert_eq!(rig.provider.requests().len(), 0);
        // The Session is as it was.
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["Here."]}}]}]"#)?;
        let seen = rig.whole_turn(&session, "t-2", "now").await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["Here."]);
        Ok(())
    });
}

#[test]
fn an_agent_that_ends_on_its_way_fails_the_preparation_with_its_step() {
    scenario("acp_start_ends", &["R-PRE-1", "R-PRE-4"], double(Faults::default()), async |rig| {
        for (method, step) in [("initialize", "initialize"), ("session/new", "session")] {
            for code in [0, 3] {
                rig.set_faults(&Faults { exit_at: Some(ExitAt { method: method.into(), code }), ..Faults::default() })?;
                let session = rig.session().await?;
                let refused = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
                let refused = refusal(refused, Reason::PreparationFailed).into_inner();
                assert_eq!(refused.metadata.get("step").map(String::as_str), Some(step), "{refused:?}");
                rig.set_faults(&Faults::default())?;
                rig.whole_turn(&session, "t-1", "now").await?.completed()?;
            }
        }
        Ok(())
    });
}

#[test]
fn what_is_no_message_or_unknown_or_comes_late_changes_no_turn() {
    let faults = Faults {
        junk_lines: true,
        unknown_update: true,
        foreign_session: true,
        double_finals: true,
        answer_twice: true,
        late_updates: 100,
        long_line_bytes: 10 << 20,
        endless_stderr: true,
        ..Faults::default()
    };
    scenario("acp_noise", &["R-EVT-6", "R-EVT-8", "R-EVT-12", "R-CAP-5"], double(faults), async |rig| {
        let session = rig.session().await?;
        for round in 1..=4 {
            rig.provider.script(&format!(
                r#"[{{"play": [{{"shell": {{"command": "echo of-{round}", "yield_ms": 30000}}}}]}}, {{"play": [{{"text": {{"chunks": ["answer {round}"]}}}}]}}]"#
            ))?;
            let seen = rig.whole_turn(&session, &format!("t-{round}"), &format!("round {round}")).await?;
            seen.completed()?;
            assert_eq!(seen.messages(), [format!("answer {round}")]);
            let tools: Vec<_> = seen.kinds().filter(|kind| matches!(kind, Kind::ToolCompleted(_))).collect();
            assert_eq!(tools.len(), 1, "{tools:?}");
            assert!(seen.tool_output()?.contains(&format!("of-{round}")));
        }
        Ok(())
    });
}

#[test]
fn a_prompt_that_fails_or_ends_as_nobody_knows_is_a_failure() {
    scenario("acp_prompt_fails", &["R-EVT-3", "R-EVT-5"], double(Faults::default()), async |rig| {
        for (name, faults, want) in [
            ("fails", Faults { fail_prompt: Some("the moon".into()), ..Faults::default() }, FailureCode::ServerError),
            (
                "reason",
                Faults { stop_reason: Some("tired".into()), ..Faults::default() },
                FailureCode::HarnessProtocolError,
            ),
        ] {
            rig.set_faults(&faults)?;
            let session = rig.session().await?;
            let seen = rig.whole_turn(&session, "t-1", name).await?;
            let end = seen.end()?;
            let failure = end.failure.clone().context("it did not fail")?;
            assert_eq!((end.status(), failure.code()), (TurnStatus::Failed, want), "{name}: {failure:?}");
        }
        Ok(())
    });
}

#[test]
fn an_exit_in_a_turn_is_told_with_its_status_and_the_session_goes_on() {
    let faults = Faults { exit_mid_turn: Some(7), ..Faults::default() };
    scenario("acp_exit", &["R-EVT-7", "R-PRE-4"], double(faults), async |rig| {
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["on ", "and on"]}}]}, {"play": [{"text": {"chunks": ["Well again."]}}]}]"#)?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "talk").await?;
        let failure = seen.end()?.failure.clone().context("it did not fail")?;
        assert_eq!(failure.code(), FailureCode::HarnessExited);
        assert!(failure.message.contains('7'), "{failure:?}");
        rig.set_faults(&Faults::default())?;
        goes_on(rig, &session, "Well again.").await
    });
}

#[test]
fn a_history_that_the_agent_does_not_know_is_not_replaced() {
    scenario("acp_forgotten", &["R-PRE-4"], double(Faults::default()), async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "first").await?;
        let native = seen.native_session()?;
        rig.harness()?.signal(Signal::KILL)?;
        rig.executor_gone(&session).await?;
        rig.set_faults(&Faults { load_forgets: true, ..Faults::default() })?;
        let refused = rig.resume(&session, rig.configuration(Vec::new()), &native).await;
        refusal(refused, Reason::NativeHistoryUnavailable);
        rig.set_faults(&Faults::default())?;
        let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
        rig.turn_with(&session, &ready, "t-2", "second").await?.completed()
    });
}

#[test]
fn a_prompt_that_is_never_answered_is_stalled() {
    let faults = Faults { never_answer: true, ..Faults::default() };
    let setup = double(faults).with("limits.quiet_ms = 1000\n");
    scenario("acp_never", &["R-EVT-10"], setup, async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "say it").await?;
        let end = seen.end()?;
        assert_eq!((end.status(), end.cause()), (TurnStatus::Unknown, EndCause::Stalled), "{end:?}");
        Ok(())
    });
}

/// A Turn whose command runs, cancelled: nothing of it is left, and the next one goes on.
async fn cancelled(rig: &Rig) -> anyhow::Result<()> {
    rig.provider.reset();
    rig.provider.script(
        r#"[{"play": [{"shell": {"command": "sleep 71 & sleep 72; true", "yield_ms": 30000}}]}, {"always": true, "play": [{"text": {"chunks": ["Here I am."]}}]}]"#,
    )?;
    let session = rig.session().await?;
    let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "wait").await?;
    let mut seen = Observed::default();
    seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
    let answer = session.cancel("t-1", Some(Duration::from_secs(40))).await?;
    assert_eq!(answer.outcome(), CancelOutcome::Settled, "{answer:?}");
    let left: Vec<_> = rig.family()?.into_iter().filter(|process| process.command.starts_with("sleep 7")).collect();
    assert!(left.is_empty(), "{left:#?}");
    let seen = seen.to_the_end(&mut events).await?;
    assert_eq!(seen.end()?.status(), TurnStatus::Cancelled);
    assert!(seen.kinds().all(|kind| !matches!(kind, Kind::FunctionCall(_))));
    goes_on(rig, &session, "Here I am.").await
}

#[test]
fn whatever_a_cancelled_prompt_leaves_is_gone() {
    scenario("acp_cancel_leaves", &["R-CAN-2", "R-CAN-3"], double(Faults::default()), async |rig| {
        for leaves in [Leaves::Group, Leaves::Session] {
            rig.set_faults(&Faults { cancel_leaves: Some(leaves), ..Faults::default() })?;
            cancelled(rig).await?;
        }
        Ok(())
    });
}

#[test]
fn a_cancel_that_is_settled_late_or_never_ends_with_the_process() {
    scenario("acp_cancel_late", &["R-CAN-1", "R-CAN-4"], double(Faults::default()), async |rig| {
        for settles in [Settles::LateMs(300), Settles::Never] {
            rig.set_faults(&Faults { cancel: Some(settles), ..Faults::default() })?;
            cancelled(rig).await?;
        }
        Ok(())
    });
}

#[test]
fn a_tool_behind_a_cancel_is_of_no_turn() {
    let faults = Faults { cancel_late_call: Some("bash".into()), ..Faults::default() };
    scenario("acp_cancel_tool", &["R-EVT-6", "R-CAN-2"], double(faults), async |rig| cancelled(rig).await);
}

#[test]
fn an_agent_that_ignores_everything_is_ended() {
    let faults =
        Faults { ignore_eof: true, ignore_term: true, deaf_after: Some("session/prompt".into()), ..Faults::default() };
    scenario("acp_deaf", &["R-CAN-4", "R-ASG-4"], double(faults), async |rig| {
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["half"], "open": true}}, {"gate": "never"}]}]"#)?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        session.start(&ready, "t-1", text_input("think")).await?;
        let answer = session.cancel("t-1", Some(Duration::from_secs(40))).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled, "{answer:?}");
        assert_eq!(rig.harnesses()?.len(), 0);
        Ok(())
    });
}

#[test]
fn nobody_is_asked() {
    scenario("acp_asks", &["R-PLC-1"], double(Faults::default()), async |rig| {
        rig.set_faults(&Faults { ask_always: true, ..Faults::default() })?;
        rig.provider.script(
            r#"[{"play": [{"shell": {"command": "touch was-allowed", "yield_ms": 30000}}]}, {"play": [{"text": {"chunks": ["Denied."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "do it").await?;
        seen.completed()?;
        assert!(!rig.workspace().join("was-allowed").exists());
        assert!(seen.kinds().any(|kind| matches!(kind, Kind::Notice(_))), "{:?}", seen.story());
        rig.set_faults(&Faults { question: true, ..Faults::default() })?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "do it").await?;
        assert!(seen.kinds().any(|kind| matches!(kind, Kind::Notice(_))), "{:?}", seen.story());
        // The double tells the model what it was answered.
        let asked = rig.provider.model_requests().pop().context("the model was asked nothing")?;
        assert!(asked.body.contains("[question] answered: nothing"), "{}", asked.body);
        Ok(())
    });
}
