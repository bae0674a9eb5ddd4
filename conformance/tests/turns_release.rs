//! Releasing a Session: what runs is settled, the Executor closes, the home goes when asked, and nothing else.

use std::fs;
use std::path::PathBuf;

use conformance::rig::{Harness, Observed, Rig, Setup, function, refused, scenario, text_result};
use conformance::{for_each_harness, for_every_harness};
use proto::client::Session;
use proto::v1::{self, EndCause, Reason, ReleaseOutcome, TurnStatus};

for_every_harness!(
    a_release_removes_the_home_when_asked_and_leaves_the_workspace,
    a_release_without_removal_keeps_the_home_until_it_is_asked_for,
    a_released_session_takes_a_new_assignment_only,
    an_unused_session_is_released_too
);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(a_release_settles_the_turn_that_runs);

fn a_release_settles_the_turn_that_runs(harness: Harness) {
    let rules = ["R-ASG-4", "R-CAN-4", "R-EVT-3", "R-FN-7"];
    scenario("release_running", &rules, Setup::outer().of(harness), async |rig| {
        let call = r#"{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}"#;
        let shell = r#"{"shell": {"command": "setsid sleep 67 & sleep 68", "yield_ms": 30000}}"#;
        // Claude Code runs no command beside a call that is open.
        let (play, commands) = match harness {
            Harness::Codex => (format!("{call}, {shell}"), &["sleep 67", "sleep 68"][..]),
            Harness::ClaudeCode => (call.to_owned(), &[][..]),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        rig.provider.script(&format!(r#"[{{"play": [{play}]}}]"#))?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration, "t-1", "go").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        for command in commands {
            rig.wait_for_process(|process| process.command == *command).await?;
        }
        let family = rig.family()?;
        let released = session.release(false).await?;
        assert_eq!((released.outcome(), &*released.detail), (ReleaseOutcome::Confirmed, ""));
        assert!(!released.home_removed);
        // Confirmed means gone, at this very moment: the keeper, the Harness and what the model started.
        let alive: Vec<_> = rig.family()?.into_iter().filter(|process| family.contains(process)).collect();
        assert!(alive.is_empty(), "{alive:#?}");
        // The observer is fenced and does not see the end; whoever binds next does.
        refused(seen.to_the_end(&mut events).await, Reason::AssignmentStale)?;
        refused(session.turn("t-1").await, Reason::AssignmentStale)?;
        let next = bind_anew(rig, &session, "a-2").await?;
        let turn = next.turn("t-1").await?;
        let end = turn.ended.unwrap_or_default();
        assert_eq!((end.status(), end.cause()), (TurnStatus::Cancelled, EndCause::Released));
        let seen = Observed::default().to_the_end(&mut next.turn_events("t-1")).await?;
        assert_eq!(seen.end()?, &end);
        assert!(seen.story().contains(&"function_call_abandoned"), "{:?}", seen.story());
        // R-FN-5: it was not cancelled by `CancelTurn`.
        refused(next.submit(vec![text_result("t-1", "c1", "late")]).await, Reason::CallAbandoned)?;
        Ok(())
    });
}

fn a_release_removes_the_home_when_asked_and_leaves_the_workspace(harness: Harness) {
    scenario(
        "release_home",
        &["R-ASG-3", "R-ASG-4"],
        Setup::outer().of(harness).needing(v1::Capability::HomeRemoval),
        async |rig| {
            fs::write(rig.workspace().join("precious.txt"), "keep me")?;
            let session = rig.session().await?;
            rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
            assert_eq!(homes(rig)?.len(), 1);
            let released = session.release(true).await?;
            assert_eq!((released.outcome(), released.home_removed), (ReleaseOutcome::Confirmed, true));
            assert_eq!(homes(rig)?, Vec::<PathBuf>::new());
            assert_eq!(fs::read_to_string(rig.workspace().join("precious.txt"))?, "keep me");
            // The same call repeats its answer.
            assert_eq!(session.release(true).await?, released);
            // The history is gone for good, and it is not replaced by an empty one.
            let next = bind_anew(rig, &session, "a-2").await?;
            assert_eq!(next.turn("t-1").await?.phase(), v1::TurnPhase::Ended);
            let prepared = rig.prepare(&next, rig.configuration(Vec::new())).await;
            refused(prepared, Reason::NativeHistoryUnavailable)?;
            Ok(())
        },
    );
}

fn a_release_without_removal_keeps_the_home_until_it_is_asked_for(harness: Harness) {
    scenario(
        "release_keeps_home",
        &["R-ASG-4", "R-API-6"],
        Setup::outer().of(harness).needing(v1::Capability::HomeRemoval),
        async |rig| {
            let session = rig.session().await?;
            rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
            let released = session.release(false).await?;
            assert_eq!((released.outcome(), released.home_removed), (ReleaseOutcome::Confirmed, false));
            assert_eq!(homes(rig)?.len(), 1);
            assert_eq!(session.release(false).await?, released);
            let released = session.release(true).await?;
            assert_eq!((released.outcome(), released.home_removed), (ReleaseOutcome::Confirmed, true));
            assert_eq!(homes(rig)?.len(), 0);
            Ok(())
        },
    );
}

fn a_released_session_takes_a_new_assignment_only(harness: Harness) {
    scenario("release_fences", &["R-ASG-1", "R-ASG-2", "R-ASG-4"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        // It needs a higher epoch.
        let same = v1::ReleaseAssignmentRequest {
            assignment: Some(session.assignment().clone()),
            remove_home: false,
            principal: None,
        };
        refused(rig.client().await?.release_assignment(same).await, Reason::AssignmentConflict)?;
        session.release(false).await?;
        let refusal = refused(session.turn("t-1").await, Reason::AssignmentStale)?;
        assert_eq!(refusal.metadata.get("state").map(String::as_str), Some("released"));
        assert_eq!(refusal.metadata.get("epoch").map(String::as_str), Some("2"));
        let again = bind_anew(rig, &session, "a-1").await;
        refused(again, Reason::AssignmentStale)?;
        let next = bind_anew(rig, &session, "a-2").await?;
        let again = Observed::default().to_the_end(&mut next.turn_events("t-1")).await?;
        assert_eq!(again.events, seen.events, "earlier Turns stay readable");
        Ok(())
    });
}

fn an_unused_session_is_released_too(harness: Harness) {
    scenario("release_unused", &["R-ASG-4", "R-PRE-7"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let released = session.release(true).await?;
        assert_eq!((released.outcome(), released.home_removed), (ReleaseOutcome::Confirmed, true));
        let prepared = rig.session().await?;
        let ready = rig.prepare(&prepared, rig.configuration(Vec::new())).await?;
        prepared.release(false).await?;
        let next = bind_anew(rig, &prepared, "a-2").await?;
        let started = next.start(&ready, "t-1", proto::client::text_input("hello")).await;
        refused(started, Reason::HandleUnknown)?;
        // It never had a Turn, so there is no history to lose.
        rig.whole_turn(&next, "t-1", "hello").await?.completed()
    });
}

/// Binds the Session to another assignment, at epoch 1.
async fn bind_anew(rig: &Rig, session: &Session, assignment_id: &str) -> anyhow::Result<Session> {
    let session_id = session.assignment().session_id.clone();
    let assignment = v1::AssignmentRef { session_id, assignment_id: assignment_id.into(), epoch: 1 };
    let directory = rig.workspace().to_string_lossy().into_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    let placement = v1::bind_assignment_request::Placement::Workspace(workspace);
    Ok(Session::bind(rig.client().await?, assignment, placement).await?)
}

/// The native homes in the daemon's state.
fn homes(rig: &Rig) -> anyhow::Result<Vec<PathBuf>> {
    let sessions = fs::read_dir(rig.place().state().join("sessions"))?;
    let homes = sessions.map(|entry| Ok(entry?.path().join("home"))).collect::<std::io::Result<Vec<_>>>()?;
    Ok(homes.into_iter().filter(|home| home.exists()).collect())
}
