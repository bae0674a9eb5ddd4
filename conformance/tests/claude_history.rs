//! What Claude Code's history does not prove: only the end of an answer stands in it, so a Turn that failed or was cancelled unseen is `unknown`
//! and never anything better (R-EVT-3, R-DUR-2), and the Session goes on.

use std::time::Duration;

use anyhow::Context;
use conformance::rig::{Daemon, Harness, Observed, Rig, Setup, scenario};
use proto::client::{Session, text_input};
use proto::v1::{self, EndCause, TurnStatus, event::Kind};
use rustix::process::Signal;
use serde_json::json;

fn setup() -> Setup {
    // The daemon stands still, or is gone, while the provider answers.
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.without_gateway();
    setup.only("it is asked what the history of Claude Code proves")
}

/// The daemon dies, and there is another one once everything of it is gone.
async fn die(rig: &mut Rig) -> anyhow::Result<()> {
    let family = rig.family()?;
    rig.daemon.kill().await?;
    rig.all_gone(&family).await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    Ok(())
}

/// The Turn is unknown, and the next one goes on with the same history.
async fn is_unknown(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
    whole.check_order()?;
    let end = whole.end()?;
    assert_eq!((end.status(), end.cause(), end.reconciled), (TurnStatus::Unknown, EndCause::ExecutionLost, false));
    let native = whole.native_session()?;
    let ready = rig.resume(session, rig.configuration(Vec::new()), &native).await?;
    let seen = rig.turn_with(session, &ready, "t-2", "and then").await?;
    seen.completed()?;
    assert_eq!((seen.native_session()?, seen.messages()), (native, vec!["and then"]));
    let last = rig.provider.model_requests().pop().context("no request")?;
    assert_eq!(last.user_texts().first().map(String::as_str), Some("think"), "{last:?}");
    Ok(())
}

#[test]
fn a_turn_that_failed_while_the_daemon_died_is_unknown() {
    scenario("claude_failed_unseen", &["R-DUR-2", "R-EVT-3", "R-PRE-4"], setup(), async |rig| {
        let refused = json!({"http": {"status": 403, "message": "no"}});
        let script = json!([
            {"play": [{"text": {"chunks": ["half"]}}, {"calls": [{"name": "Bash", "call_id": "b", "arguments": "{\"command\":\"true\"}"}]}]},
            {"play": [{"mark": "asked"}, {"gate": "go"}, refused]},
        ]);
        rig.provider.script(&script.to_string())?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        session.start(&ready, "t-1", text_input("think")).await?;
        let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
        seen.until(&mut events, |kind| matches!(kind, Kind::ToolCompleted(_)).then_some(())).await?;
        rig.provider.wait_for_mark("asked").await?;
        rig.daemon.signal(Signal::STOP)?;
        rig.provider.open_gate("go");
        rig.wait_for_history(r#""isApiErrorMessage":true"#).await?;
        die(rig).await?;
        is_unknown(rig, &session).await
    });
}

#[test]
fn a_turn_whose_cancel_nobody_heard_is_unknown() {
    scenario("claude_cancelled_unseen", &["R-DUR-2", "R-EVT-3", "R-CAN-1"], setup(), async |rig| {
        let session = rig.session().await?;
        let script = json!([{"play": [{"text": {"chunks": ["half"]}}, {"gate": "never"}]}]);
        rig.provider.script(&script.to_string())?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        session.start(&ready, "t-1", text_input("think")).await?;
        let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        // Claude Code writes its history a little behind what it tells; a Session without one could not be resumed.
        rig.wait_for_history(r#""text":"think""#).await?;
        rig.harness()?.signal(Signal::STOP)?;
        let pending = session.cancel("t-1", Some(Duration::ZERO)).await?;
        assert_eq!(pending.outcome(), v1::CancelOutcome::Pending);
        die(rig).await?;
        assert!(session.turn("t-1").await?.cancel_requested);
        is_unknown(rig, &session).await
    });
}
