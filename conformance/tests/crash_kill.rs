//! `kill -9` of the daemon in the middle of a Turn (R-DUR-1, R-DUR-2): nothing lives on, nothing that was acknowledged is
//! lost, nothing is done twice.

use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::rig::{Daemon, Harness, Observed, Rig, Setup, function, refusal, scenario, text_result};
use conformance::{for_each_harness, for_every_harness};
use proto::client::{Session, TurnEvents, text_input};
use proto::v1::{self, Reason, ResultOutcome, event::Kind};

for_every_harness!(an_unused_preparation_does_not_survive_and_its_session_does, a_turn_that_was_over_stays_as_it_was);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(a_kill_while_a_command_runs_leaves_nothing);

const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}}}"#;

/// A command that goes on in the background, then two calls.
const SCRIPT: &str = r#"[
    {"play": [{"shell": {"command": "setsid sleep 611 & echo up; sleep 612", "yield_ms": 250}}]},
    {"play": [{"calls": [
        {"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"},
        {"name": "lookup", "call_id": "c2", "arguments": "{\"q\":\"b\"}"}]}]}]"#;

/// A Turn with a running command, an applied result of `c1` and a pending call `c2`.
async fn in_the_middle(rig: &Rig, session: &Session) -> anyhow::Result<(v1::Ready, TurnEvents, Observed)> {
    rig.provider.script(SCRIPT)?;
    let ready = rig.prepare(session, rig.configuration(vec![function("lookup", SCHEMA)])).await?;
    session.start(&ready, "t-1", text_input("look it up")).await?;
    let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
    seen.call(&mut events).await?;
    seen.call(&mut events).await?;
    let accepted = session.submit(vec![text_result("t-1", "c1", "42")]).await?;
    assert_eq!(accepted[0].outcome(), ResultOutcome::Accepted);
    seen.until(&mut events, |kind| matches!(kind, Kind::FunctionResultApplied(_)).then_some(())).await?;
    for command in ["sleep 611", "sleep 612"] {
        rig.wait_for_process(|process| process.command == command).await?;
    }
    Ok((ready, events, seen))
}

/// The daemon dies; all that it had started is gone soon. Then another one starts on the same state.
async fn crash(rig: &mut Rig) -> anyhow::Result<()> {
    let family = rig.family()?;
    rig.daemon.kill().await?;
    let begun = Instant::now();
    rig.all_gone(&family).await?;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    rig.daemon = Daemon::start(rig.place()).await?;
    Ok(())
}

#[test]
fn after_a_kill_the_turn_is_unknown_and_nothing_acknowledged_is_lost() {
    let rules = ["R-DUR-1", "R-DUR-2", "R-CAN-4", "R-EVT-1", "R-EVT-3", "R-FN-5", "R-FN-7", "R-API-6", "R-PRE-4"];
    let setup =
        Setup::outer().bridge("what is acknowledged is kept by the bridge; each Harness is killed beside it below");
    scenario("crash_kill", &rules, setup, async |rig| {
        let session = rig.session().await?;
        let (ready, events, seen) = in_the_middle(rig, &session).await?;
        let asked = rig.provider.model_requests().len();
        crash(rig).await?;

        // The Turn is over and nobody knows how.
        let turn = session.turn("t-1").await?;
        let ended = turn.ended.clone().context("it goes on")?;
        assert_eq!((ended.status(), ended.cause()), (v1::TurnStatus::Unknown, v1::EndCause::ExecutionLost));
        assert!(ended.failure.is_none() && turn.required_actions.is_empty(), "{turn:?}");
        assert!(turn.native.is_some() && turn.created_at.is_some(), "{turn:?}");

        // Every event that was seen is there as it was, and what was open is closed behind them.
        let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(whole.events[..seen.events.len()], seen.events);
        assert_eq!(whole.end()?, &ended);
        assert_eq!(turn.last_sequence, whole.events.len() as u64);
        let closing = &whole.events[seen.events.len()..];
        let abandoned = closing.iter().find_map(|event| match event.kind.as_ref()? {
            Kind::FunctionCallAbandoned(abandoned) => Some((abandoned.call_id.as_str(), abandoned.reason())),
            _ => None,
        });
        assert_eq!(abandoned, Some(("c2", v1::AbandonReason::ExecutionLost)));
        let stopped = closing.iter().any(|event| match &event.kind {
            Some(Kind::ToolCompleted(tool)) => tool.status() == v1::ToolStatus::Incomplete,
            _ => false,
        });
        assert!(stopped, "the command is not closed: {closing:?}");
        // The observer that was there goes on where it was.
        let mut rest = seen.clone();
        let mut events = events;
        while let Some(event) = events.next().await? {
            rest.events.push(event);
        }
        assert_eq!(rest.events, whole.events);

        // Results: the stored one is known, another one conflicts, a first one comes too late.
        let again = session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        assert_eq!(again[0].outcome(), ResultOutcome::Duplicate);
        let other = session.submit(vec![text_result("t-1", "c1", "43")]).await;
        refusal(other, Reason::ResultConflict).public(409, "conflict_error").at("results[0]").with("index", "0");
        let late = session.submit(vec![text_result("t-1", "c1", "42"), text_result("t-1", "c2", "42")]).await;
        refusal(late, Reason::CallAbandoned).public(409, "conflict_error").at("results[1]").with("index", "1");
        let unknown = session.submit(vec![text_result("t-1", "c3", "42")]).await;
        refusal(unknown, Reason::UnknownCall).public(400, "invalid_request_error");

        // The start is known; the handle is not, and there is no new thread in the place of the old one.
        assert!(session.start(&ready, "t-1", text_input("look it up")).await?.duplicate);
        refusal(session.start(&ready, "t-1", text_input("something else")).await, Reason::TurnConflict).at("turn_id");
        refusal(session.start(&ready, "t-2", text_input("go on")).await, Reason::HandleUnknown).at("handle");
        let configuration = rig.configuration(vec![function("lookup", SCHEMA)]);
        refusal(session.prepare(configuration, Vec::new()).await, Reason::NativeHistoryUnavailable);
        let cancelled = session.cancel("t-1", None).await?;
        assert_eq!(cancelled.outcome(), v1::CancelOutcome::Settled);
        assert_eq!(cancelled.turn.and_then(|turn| turn.ended), Some(ended));

        // Nothing of all this asked the model again.
        assert_eq!(rig.provider.model_requests().len(), asked);
        rig.whole_turn(&rig.session().await?, "t-1", "hello").await?.completed()
    });
}

/// The command has a grandchild in a session of its own.
fn a_kill_while_a_command_runs_leaves_nothing(harness: Harness) {
    let rules = ["R-DUR-1", "R-DUR-2", "R-CAN-4", "R-EVT-1", "R-EVT-3", "R-FN-5"];
    scenario("crash_command", &rules, Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"}]}]},
                {"play": [{"shell": {"command": "setsid sh -c 'sleep 615 & exec sleep 616' & sleep 617"}}]}]"#,
        )?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(vec![function("lookup", SCHEMA)])).await?;
        session.start(&ready, "t-1", text_input("look it up")).await?;
        let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
        seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
        for command in ["sleep 615", "sleep 616", "sleep 617"] {
            rig.wait_for_process(|process| process.command == command).await?;
        }
        crash(rig).await?;
        rig.only(&[]).await?;
        let turn = session.turn("t-1").await?;
        let ended = turn.ended.context("it goes on")?;
        assert_eq!((ended.status(), ended.cause()), (v1::TurnStatus::Unknown, v1::EndCause::ExecutionLost));
        let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(whole.events[..seen.events.len()], seen.events);
        let applied = whole.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_))).count();
        assert_eq!(applied, 1, "{:?}", whole.story());
        let tools = whole.kinds().filter_map(|kind| match kind {
            Kind::ToolCompleted(tool) => Some(tool.status()),
            _ => None,
        });
        assert_eq!(tools.collect::<Vec<_>>(), [v1::ToolStatus::Incomplete], "{:?}", whole.story());
        let again = session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        assert_eq!(again[0].outcome(), ResultOutcome::Duplicate);
        rig.whole_turn(&rig.session().await?, "t-1", "hello").await?.completed()
    });
}

fn an_unused_preparation_does_not_survive_and_its_session_does(harness: Harness) {
    scenario("crash_prepared", &["R-PRE-7", "R-DUR-2", "R-CAN-4"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        crash(rig).await?;
        refusal(session.start(&ready, "t-1", text_input("hello")).await, Reason::HandleUnknown).at("handle");
        // It never had a Turn, so there is no history to be kept.
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        // The fence of before holds, and a taken-over one after another crash.
        let client = rig.client().await?;
        let lower = v1::AssignmentRef { epoch: 5, ..session.assignment().clone() };
        let placement = rig.target(&session).placement.context("no placement")?;
        Session::bind(client.clone(), lower, placement).await?;
        crash(rig).await?;
        let refused = session.turn("t-1").await;
        refusal(refused, Reason::AssignmentStale).with("epoch", "5").with("state", "bound");
        Ok(())
    });
}

fn a_turn_that_was_over_stays_as_it_was(harness: Harness) {
    scenario("crash_ended", &["R-DUR-1", "R-DUR-2", "R-EVT-1"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let before = rig.whole_turn(&session, "t-1", "hello").await?;
        before.completed()?;
        let acknowledged = session.acknowledge("t-1", 2).await?;
        let turn = session.turn("t-1").await?;
        crash(rig).await?;
        assert_eq!(session.turn("t-1").await?, turn);
        assert_eq!(turn.acknowledged_sequence, acknowledged);
        let rest = rig.client().await?.observe(session.assignment().clone(), "t-1", 2);
        let mut rest = rest;
        let mut events = Vec::new();
        while let Some(event) = rest.next().await? {
            events.push(event);
        }
        assert_eq!(events, before.events[2..]);
        Ok(())
    });
}
