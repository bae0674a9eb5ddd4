//! Inputs whose end nobody was told: the daemon or the Harness dies with them, and history proves what became of them, or nobody knows
//! (R-STE-3, R-DUR-2). Each keeps its one outcome for good (R-API-6).

use std::fs;
use std::time::Duration;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::provider::Recorded;
use conformance::rig::{Daemon, Harness, Observed, Rig, Setup, function, refused, scenario, text_result};
use proto::client::{Session, TurnEvents, text_input};
use proto::v1::{self, InputEvidence, InputPhase, Reason, TurnStatus, event::Kind};
use rustix::process;

for_each_harness!(
    what_was_accepted_stays_so_when_the_daemon_dies,
    what_was_written_and_not_read_when_the_daemon_dies_has_one_outcome_and_is_never_read,
    what_was_read_unseen_is_found_in_history,
    what_a_killed_harness_had_not_read_is_unknown,
    what_a_stopped_harness_may_have_read_is_unknown
);

/// The model calls a function, which holds what is added to the Turn.
const CALL: &str =
    r#"[{"match": "look it up", "play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}]"#;

fn what_was_accepted_stays_so_when_the_daemon_dies(harness: Harness) {
    let rules = ["R-STE-1", "R-STE-3", "R-DUR-1", "R-DUR-2", "R-API-6"];
    scenario("steer_lost_accepted", &rules, steering(harness), async |rig| {
        let (session, mut events, mut seen) = waiting(rig).await?;
        rig.provider.script(
            r#"[{"match": "turn left", "play": [{"text": {"chunks": ["Left"], "open": true}}, {"gate": "never"}]}]"#,
        )?;
        session.steer("t-1", "i-1", text_input("turn left")).await?;
        session.submit(vec![text_result("t-1", "c1", "found")]).await?;
        seen.until(&mut events, |kind| matches!(kind, Kind::InputAccepted(_)).then_some(())).await?;
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        killed(rig).await?;
        let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(whole.events[..seen.events.len()], seen.events);
        assert_eq!(ends(&whole), ["accepted"]);
        let input = only_input(&session).await?;
        assert_eq!((input.phase(), input.evidence()), (InputPhase::Accepted, InputEvidence::Consumed));
        keeps(&session, &input).await
    });
}

fn what_was_written_and_not_read_when_the_daemon_dies_has_one_outcome_and_is_never_read(harness: Harness) {
    let rules = ["R-STE-2", "R-STE-3", "R-DUR-2", "R-API-6"];
    scenario("steer_lost_unread", &rules, steering(harness), async |rig| {
        let (session, mut events, mut seen) = waiting(rig).await?;
        session.steer("t-1", "i-1", text_input("turn left")).await?;
        seen.until(&mut events, |kind| matches!(kind, Kind::InputWritten(_)).then_some(())).await?;
        killed(rig).await?;
        let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        let input = only_input(&session).await?;
        // The Harness may have had the time to note that it was interrupted: then history proves that it did not read.
        match input.phase() {
            InputPhase::Refused => {
                assert_eq!((input.refusal(), &*ends(&whole)), (Reason::TurnEnded, &["TURN_ENDED"][..]))
            }
            InputPhase::OutcomeUnknown => assert_eq!(ends(&whole), ["unknown"]),
            // Claude Code gives up a call once nobody can answer it any more, and reads what waited behind it. That stands in its history.
            InputPhase::Accepted if harness == Harness::ClaudeCode => assert_eq!(ends(&whole), ["accepted"]),
            other => anyhow::bail!("{other:?}"),
        }
        keeps(&session, &input).await?;
        let native = whole.native_session()?;
        let ready = rig.resume(&session, configuration(rig), &native).await?;
        rig.turn_with(&session, &ready, "t-2", "and then").await?.completed()?;
        let requests = rig.provider.model_requests();
        let is_read = |request: &Recorded| request.body.contains("turn left");
        // A Harness that is ending already may still have asked its model: then nobody knows, and no later Turn has it.
        let was_read = match input.phase() {
            InputPhase::OutcomeUnknown => requests.last().is_some_and(is_read),
            _ => requests.iter().any(is_read),
        };
        assert_eq!(was_read, input.phase() == InputPhase::Accepted);
        Ok(())
    });
}

fn what_was_read_unseen_is_found_in_history(harness: Harness) {
    let rules = ["R-STE-3", "R-DUR-2", "R-API-6"];
    // The daemon stands still while the provider answers.
    scenario("steer_lost_read", &rules, steering(harness).without_gateway(), async |rig| {
        rig.provider.script(
            r#"[{"match": "wait for it", "play": [{"shell": {"command": "echo up; while [ ! -e go ]; do sleep 0.05; done", "yield_ms": 30000}}]},
                {"match": "turn left", "play": [{"text": {"chunks": ["Left it is."], "phase": "final_answer"}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "wait for it").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
        let answer = session.steer("t-1", "i-1", text_input("turn left")).await?;
        assert_eq!(answer.input.map(|input| input.phase()), Some(InputPhase::Written));
        // From here on nobody hears what the Harness says.
        rig.daemon.signal(process::Signal::STOP)?;
        fs::write(rig.workspace().join("go"), "")?;
        rig.wait_for_history(match harness {
            Harness::Codex => "task_complete",
            Harness::ClaudeCode => r#""stop_reason":"end_turn""#,
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        })
        .await?;
        killed(rig).await?;
        let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        whole.completed()?;
        assert!(whole.end()?.reconciled, "{:?}", whole.end());
        assert_eq!((whole.messages().last(), ends(&whole)), (Some(&"Left it is."), vec!["accepted"]));
        let input = only_input(&session).await?;
        assert_eq!((input.phase(), input.evidence()), (InputPhase::Accepted, InputEvidence::Consumed));
        keeps(&session, &input).await
    });
}

fn what_a_killed_harness_had_not_read_is_unknown(harness: Harness) {
    scenario("steer_lost_harness", &["R-STE-3", "R-EVT-7", "R-CAN-6"], steering(harness), async |rig| {
        let (session, mut events, seen) = waiting(rig).await?;
        session.steer("t-1", "i-1", text_input("turn left")).await?;
        rig.harness()?.signal(process::Signal::KILL)?;
        let seen = seen.to_the_end(&mut events).await?;
        assert_eq!(seen.end()?.status(), TurnStatus::Failed, "{:?}", seen.end());
        assert_eq!(ends(&seen), ["unknown"]);
        let input = only_input(&session).await?;
        assert_eq!(input.phase(), InputPhase::OutcomeUnknown);
        keeps(&session, &input).await
    });
}

fn what_a_stopped_harness_may_have_read_is_unknown(harness: Harness) {
    let rules = ["R-STE-1", "R-STE-3", "R-CAN-1", "R-CAN-4"];
    scenario("steer_lost_stopped", &rules, steering(harness).with("limits.input_write_ms = 300"), async |rig| {
        let (session, mut events, seen) = waiting(rig).await?;
        rig.wait_for_history("look it up").await?;
        rig.harness()?.signal(process::Signal::STOP)?;
        // More than a pipe takes.
        let long = format!("turn left{}", "x".repeat(1 << 19));
        let answer = session.steer("t-1", "i-1", text_input(long.clone())).await?;
        assert_eq!(answer.input.map(|input| input.phase()), Some(InputPhase::Received));
        let again = session.steer("t-1", "i-1", text_input(long)).await?;
        assert_eq!((again.duplicate, again.input.map(|input| input.phase())), (true, Some(InputPhase::Received)));
        session.cancel("t-1", Some(Duration::from_secs(30))).await?;
        let seen = seen.to_the_end(&mut events).await?;
        assert_eq!(seen.end()?.status(), TurnStatus::Cancelled, "{:?}", seen.end());
        assert_eq!(ends(&seen), ["unknown"]);
        assert_eq!(only_input(&session).await?.phase(), InputPhase::OutcomeUnknown);
        // The next Turn goes on with the same history, in which it never was.
        let ready = rig.resume(&session, configuration(rig), &seen.native_session()?).await?;
        rig.turn_with(&session, &ready, "t-2", "and then").await?.completed()?;
        assert!(rig.provider.model_requests().iter().all(|request| !request.body.contains("turn left")));
        Ok(())
    });
}

#[test]
fn a_follow_up_that_is_killed_does_not_end_as_the_native_turn_before_it() {
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() };
    let setup = setup.only("Codex reads an added input in the same native turn");
    scenario("steer_lost_follow_up", &["R-STE-2", "R-EVT-3", "R-EVT-7", "R-CAN-6"], setup, async |rig| {
        rig.provider.script(
            r#"[{"match": "turn left", "play": [{"text": {"chunks": ["half an ", "answer"], "open": true}}, {"gate": "never"}]},
                {"match": "go on", "play": [{"text": {"chunks": ["The first."]}}, {"gate": "first"}, {"complete": {"usage": {"input": 70, "cached": 30, "output": 12, "reasoning": 0}}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "go on").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        session.steer("t-1", "i-1", text_input("turn left")).await?;
        seen.until(&mut events, |kind| matches!(kind, Kind::InputWritten(_)).then_some(())).await?;
        rig.provider.open_gate("first");
        seen.until(&mut events, |kind| matches!(kind, Kind::InputAccepted(_)).then_some(())).await?;
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        rig.harness()?.signal(process::Signal::KILL)?;
        let seen = seen.to_the_end(&mut events).await?;
        let end = seen.end()?;
        assert_eq!((end.status(), end.reconciled), (TurnStatus::Failed, false), "{end:?}");
        assert_eq!(end.failure.as_ref().map(v1::Failure::code), Some(v1::FailureCode::HarnessExited));
        assert_eq!((seen.messages(), ends(&seen)), (vec!["The first."], vec!["accepted"]));
        Ok(())
    });
}

/// A Harness that reads inputs while it works.
fn steering(harness: Harness) -> Setup {
    Setup::outer().of(harness).needing(v1::Capability::Steering)
}

/// A Turn that waits for the result of a call.
async fn waiting(rig: &Rig) -> anyhow::Result<(Session, TurnEvents, Observed)> {
    rig.provider.script(CALL)?;
    let session = rig.session().await?;
    let mut events = rig.start_turn(&session, configuration(rig), "t-1", "look it up").await?;
    let mut seen = Observed::default();
    seen.call(&mut events).await?;
    Ok((session, events, seen))
}

fn configuration(rig: &Rig) -> v1::ExecutionConfiguration {
    rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)])
}

/// The daemon dies at once, and another one starts on what it left.
async fn killed(rig: &mut Rig) -> anyhow::Result<()> {
    let family = rig.family()?;
    rig.daemon.kill().await?;
    rig.all_gone(&family).await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    Ok(())
}

async fn only_input(session: &Session) -> anyhow::Result<v1::TurnInput> {
    let mut turn = session.turn("t-1").await?;
    anyhow::ensure!(turn.inputs.len() == 1 && turn.ended.is_some(), "{turn:?}");
    turn.inputs.pop().context("no input")
}

/// Whoever asks again has the same answer, and nothing else is taken.
async fn keeps(session: &Session, input: &v1::TurnInput) -> anyhow::Result<()> {
    let again = session.steer("t-1", "i-1", text_input("turn left")).await?;
    anyhow::ensure!(again.duplicate && again.input.as_ref() == Some(input), "{again:?} and {input:?}");
    refused(session.steer("t-1", "i-1", text_input("turn right")).await, Reason::InputConflict)?;
    refused(session.steer("t-1", "i-2", text_input("too late")).await, Reason::TurnEnded).map(drop)
}

fn ends(seen: &Observed) -> Vec<&'static str> {
    let end = |kind: &Kind| match kind {
        Kind::InputAccepted(_) => Some("accepted"),
        Kind::InputRefused(e) => Some(e.reason().as_str_name().trim_start_matches("REASON_")),
        Kind::InputOutcomeUnknown(_) => Some("unknown"),
        _ => None,
    };
    seen.kinds().filter_map(end).collect()
}
