//! SIGTERM (R-DUR-3): what runs is cancelled and settled, nothing new begins, and the daemon ends with 0.

use std::time::Duration;

use anyhow::Context;
use conformance::child::fault::{Fault, MARK, Place};
use conformance::for_each_harness;
use conformance::rig::{Daemon, Ended, Harness, Observed, Setup, function, refusal, scenario, text_result};
use proto::client::text_input;
use proto::v1::{self, Reason, event::Kind, watch_runtime_response::News};
use rustix::process::Signal;

for_each_harness!(
    a_running_turn_is_cancelled_and_readable_after_the_restart,
    nothing_new_begins_while_the_daemon_stops,
    a_second_signal_does_not_wait,
);

const SCHEMA: &str = r#"{"type":"object"}"#;

fn is_stopped(end: &v1::TurnEnded) {
    let want = (v1::TurnStatus::Cancelled, v1::EndCause::BridgeStopped);
    assert_eq!((end.status(), end.cause()), want, "{end:?}");
}

fn a_running_turn_is_cancelled_and_readable_after_the_restart(harness: Harness) {
    let rules = ["R-DUR-3", "R-CAN-2", "R-CAN-4", "R-FN-7"];
    scenario("stop_running", &rules, Setup::outer().of(harness), async |rig| {
        let shell = r#"{"play": [{"shell": {"command": "sleep 613", "yield_ms": 250}}]}"#;
        let call = r#"{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}"#;
        // Claude Code waits for a command before it goes on.
        let calls = harness == Harness::Codex;
        rig.provider.script(&if calls { format!("[{shell}, {call}]") } else { format!("[{shell}]") })?;
        let session = rig.session().await?;
        let functions = vec![function("lookup", SCHEMA)];
        let mut events = rig.start_turn(&session, rig.configuration(functions), "t-1", "look it up").await?;
        let mut seen = Observed::default();
        if calls {
            seen.call(&mut events).await?;
        } else {
            seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
        }
        rig.wait_for_process(|process| process.command == "sleep 613").await?;
        let family = rig.family()?;
        rig.daemon.signal(Signal::TERM)?;
        // Who observes sees the end before the daemon goes.
        let seen = seen.to_the_end(&mut events).await?;
        is_stopped(seen.end()?);
        assert_eq!(rig.daemon.wait(Duration::from_secs(20)).await?, Ended::Code(0));
        rig.all_gone(&family).await?;
        assert!(!rig.place().socket().exists());

        rig.daemon = Daemon::start(rig.place()).await?;
        let turn = session.turn("t-1").await?;
        assert_eq!(turn.ended.as_ref(), Some(seen.end()?));
        assert!(!turn.cancel_requested, "Core did not cancel it");
        let again = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(again.events, seen.events);
        let abandoned = seen.kinds().find_map(|kind| match kind {
            Kind::FunctionCallAbandoned(abandoned) => Some(abandoned.reason()),
            _ => None,
        });
        assert_eq!(abandoned, calls.then_some(v1::AbandonReason::ExecutionLost));
        if calls {
            let late = session.submit(vec![text_result("t-1", "c1", "42")]).await;
            refusal(late, Reason::CallAbandoned).public(409, "conflict_error");
        }
        let refused = session.prepare(rig.configuration(vec![function("lookup", SCHEMA)]), Vec::new()).await;
        refusal(refused, Reason::NativeHistoryUnavailable);
        rig.whole_turn(&rig.session().await?, "t-1", "hello").await?.completed()
    });
}

fn nothing_new_begins_while_the_daemon_stops(harness: Harness) {
    // Time for the refusals before it is interrupted, whatever the machine does meanwhile.
    let setup = Setup::child_of(harness).with("[limits]\ndrain_timeout_ms = 5000");
    scenario("stop_draining", &["R-DUR-3", "R-CAN-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let idle = rig.session().await?;
        let ready = rig.prepare(&idle, rig.configuration(Vec::new())).await?;
        // A Harness that ignores everything makes the stop long.
        child.play(harness.with_fault(Place::AtInterrupt, Fault::Hangs))?;
        let busy = rig.session().await?;
        let mut events = rig.start_turn(&busy, rig.configuration(Vec::new()), "t-1", "hello").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        let fresh = rig.session().await?;
        let client = rig.client().await?.with_patience(Duration::ZERO);
        let mut watch = client.watch_runtime(v1::WatchRuntimeRequest {}).await?;
        rig.daemon.signal(Signal::TERM)?;
        while !matches!(watch.next().await?.context("the bridge left")?.news, Some(News::Drain(_))) {}
        let refused = fresh.prepare(rig.configuration(Vec::new()), Vec::new()).await;
        refusal(refused, Reason::Draining);
        refusal(idle.start(&ready, "t-1", text_input("hello")).await, Reason::Draining);
        child.wait_for_mark(MARK).await?;
        let seen = seen.to_the_end(&mut events).await?;
        is_stopped(seen.end()?);
        assert_eq!(rig.daemon.wait(Duration::from_secs(20)).await?, Ended::Code(0));
        rig.daemon = Daemon::start(rig.place()).await?;
        refusal(idle.turn("t-1").await, Reason::NotFound).at("turn_id");
        child.play(harness.healthy())?;
        rig.whole_turn(&idle, "t-1", "hello").await?.completed()
    });
}

fn a_second_signal_does_not_wait(harness: Harness) {
    let setup = Setup::child_of(harness);
    scenario("stop_twice", &["R-DUR-3", "R-CAN-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        child.play(harness.with_fault(Place::AtInterrupt, Fault::Hangs))?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "hello").await?;
        Observed::default().until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        let family = rig.family()?;
        rig.daemon.signal(Signal::TERM)?;
        child.wait_for_mark(MARK).await?;
        rig.daemon.signal(Signal::TERM)?;
        // One that waited would end with 0.
        assert_eq!(rig.daemon.wait(Duration::from_secs(20)).await?, Ended::Code(1));
        // The keepers end what is left.
        rig.all_gone(&family).await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let ended = session.turn("t-1").await?.ended.context("it goes on")?;
        assert_eq!((ended.status(), ended.cause()), (v1::TurnStatus::Unknown, v1::EndCause::ExecutionLost));
        Ok(())
    });
}
