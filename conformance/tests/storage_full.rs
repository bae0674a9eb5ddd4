//! A disk that takes no writes under the journal and the event files (R-DUR-4): new work is refused without an effect, what runs goes on,
//! nothing is acknowledged that is not stored.

use std::time::Duration;

use anyhow::Context;
use conformance::rig::{Daemon, Ended, Observed, Setup, lookup, refusal, scenario, text_result};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason, ResultOutcome, event::Kind};
use serde_json::json;

/// Why one Harness is enough.
const OWN: &str = "the journal and the event files are the bridge's own";

/// Waits until a Turn is in this phase.
async fn in_phase(session: &Session, turn_id: &str, phase: v1::TurnPhase) -> anyhow::Result<()> {
    let mut interval = tokio::time::interval(Duration::from_millis(10));
    while session.turn(turn_id).await?.phase() != phase {
        interval.tick().await;
    }
    Ok(())
}

fn completed(kind: &Kind) -> Option<()> {
    matches!(kind, Kind::MessageCompleted(_)).then_some(())
}

/// Range and reason of every statement of omission.
fn omissions(seen: &Observed) -> Vec<(u64, u64, v1::OmissionReason)> {
    let range = |kind: &Kind| match kind {
        Kind::EventsOmitted(omitted) => Some((omitted.first, omitted.last, omitted.reason())),
        _ => None,
    };
    seen.kinds().filter_map(range).collect()
}

#[test]
fn a_full_disk_refuses_new_work_and_a_running_turn_goes_on() {
    scenario("storage_full", &["R-DUR-4", "R-DUR-1", "R-EVT-8"], Setup::outer().bridge(OWN), async |rig| {
        let (waits, prepared, bound, talks) =
            (rig.session().await?, rig.session().await?, rig.session().await?, rig.session().await?);
        let (mut waiting, seen_waiting) = rig.waiting(&waits).await?;
        let ready = rig.prepare(&prepared, rig.configuration(Vec::new())).await?;
        rig.provider.script(
            r#"[{"match": "talk", "play": [{"text": {"chunks": ["before "], "open": true}}, {"gate": "go"}, "drop"]},
                {"match": "talk", "play": [{"text": {"chunks": ["behind ", "it"]}}]}]"#,
        )?;
        let mut events = rig.start_turn(&talks, rig.configuration(Vec::new()), "t-1", "talk").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;

        rig.daemon.fill_disk()?;
        let family = rig.family()?;
        let refused = rig.prepare(&bound, rig.configuration(Vec::new())).await;
        conformance::rig::refused(refused, Reason::StorageUnavailable)?;
        refusal(prepared.start(&ready, "t-1", text_input("hello")).await, Reason::StorageUnavailable);
        refusal(prepared.turn("t-1").await, Reason::NotFound);
        refusal(waits.submit(vec![text_result("t-1", "c1", "42")]).await, Reason::StorageUnavailable);
        let turn = waits.turn("t-1").await?;
        assert_eq!((turn.phase(), turn.required_actions.len()), (v1::TurnPhase::RequiresAction, 1));
        rig.only(&family).await.context("a refused preparation started something")?;

        // Whoever observes sees what happens.
        rig.provider.open_gate("go");
        seen.until(&mut events, completed).await?;
        let mut late = talks.turn_events("t-1");
        let mut seen_late = Observed::default();
        seen_late.until(&mut late, completed).await?;

        rig.daemon.free_disk()?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen_late.to_the_end(&mut late).await?.events, seen.events);
        let again = Observed::default().to_the_end(&mut talks.turn_events("t-1")).await?;
        assert_eq!(again.events, seen.events, "it is written after all");

        // What was refused had no effect, so that the same is taken now.
        let accepted = waits.submit(vec![text_result("t-1", "c1", "42")]).await?;
        assert_eq!(accepted[0].outcome(), ResultOutcome::Accepted);
        seen_waiting.to_the_end(&mut waiting).await?.completed()?;
        prepared.start(&ready, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut prepared.turn_events("t-1")).await?.completed()?;
        rig.whole_turn(&bound, "t-1", "hello").await?.completed()
    });
}

#[test]
fn a_call_that_cannot_be_stored_is_shown_once_it_can() {
    scenario("storage_call_late", &["R-DUR-4", "R-FN-3"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let then = [lookup("{}"), json!({"text": {"chunks": ["behind"]}})];
        let (mut events, mut seen) = rig.at_a_gate(&session, "wait", &then).await?;
        rig.daemon.fill_disk()?;
        rig.provider.open_gate("go");
        // What comes behind the call is there, and the call is not.
        seen.until(&mut events, completed).await?;
        let turn = session.turn("t-1").await?;
        assert_eq!((turn.phase(), turn.required_actions.len()), (v1::TurnPhase::Running, 0));
        assert!(!seen.story().contains(&"function_call"), "{:?}", seen.story());
        refusal(session.submit(vec![text_result("t-1", "c1", "42")]).await, Reason::UnknownCall);

        rig.daemon.free_disk()?;
        seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert!(seen.story().contains(&"function_result_applied"), "{:?}", seen.story());
        Ok(())
    });
}

#[test]
fn a_call_that_stays_unstored_ends_the_turn() {
    let setup = Setup::outer().bridge(OWN).with("limits.unstored_call_ms = 300");
    scenario("storage_call_never", &["R-DUR-4", "R-FN-3", "R-EVT-5"], setup, async |rig| {
        let session = rig.session().await?;
        let (mut events, seen) = rig.at_a_gate(&session, "wait", &[lookup("{}")]).await?;
        rig.daemon.fill_disk()?;
        rig.provider.open_gate("go");
        in_phase(&session, "t-1", v1::TurnPhase::Settling).await?;
        rig.daemon.free_disk()?;
        let seen = seen.to_the_end(&mut events).await?;
        let failure = seen.end()?.failure.clone().context("it did not fail")?;
        assert_eq!(failure.code(), v1::FailureCode::StorageUnavailable, "{failure:?}");
        assert!(!seen.story().iter().any(|name| name.starts_with("function")), "{:?}", seen.story());
        Ok(())
    });
}

#[test]
fn what_only_the_file_does_not_take_is_seen_by_those_who_are_there() {
    scenario("storage_file", &["R-DUR-4", "R-EVT-1", "R-EVT-8"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let then = json!({"text": {"chunks": ["y".repeat(40 << 10)]}});
        let (mut events, seen) = rig.at_a_gate(&session, &"x".repeat(3 << 20), &[then]).await?;
        // The event file is larger than this, the journal is smaller.
        rig.daemon.full_beyond(2 << 20)?;
        rig.provider.open_gate("go");
        let stored = seen.events.len() as u64;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(omissions(&seen), []);
        let last = seen.events.len() as u64;
        // Whoever comes while it is in memory sees it too.
        let again = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(again.events, seen.events);

        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let later = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        let [(first, through, reason)] = omissions(&later)[..] else {
            anyhow::bail!("{:?}", later.story());
        };
        assert_eq!((through, reason), (last - 1, v1::OmissionReason::Storage));
        assert!(first > stored, "event {first} was in the file");
        let kept = usize::try_from(first)? - 1;
        assert_eq!(later.events[..kept], seen.events[..kept]);
        assert_eq!(later.end()?, seen.end()?);
        assert_eq!(session.turn("t-1").await?.last_sequence, last);
        Ok(())
    });
}

/// A Turn whose end the disk does not take holds up who asks for a drain no longer than its settlement may take, and no stop.
#[test]
fn a_drain_on_a_full_disk_is_answered_and_the_daemon_leaves() {
    let setup = Setup::outer().bridge(OWN).with("limits.drain_timeout_ms = 300\nlimits.settlement_ms = 2000");
    scenario("storage_drain", &["R-DUR-3", "R-DUR-4"], setup, async |rig| {
        let session = rig.session().await?;
        let (_events, seen) = rig.waiting(&session).await?;
        let family = rig.family()?;
        rig.daemon.fill_disk()?;
        let answer = rig.client().await?.drain(v1::DrainRequest {}).await?;
        let named: Vec<_> = answer.waiting_turns.iter().map(|turn| turn.turn_id.as_str()).collect();
        assert_eq!((named, answer.interrupted_turns.len(), answer.executors_unconfirmed), (vec!["t-1"], 0, 1));
        // An end that could not be told after a restart is none.
        assert_eq!(session.turn("t-1").await?.phase(), v1::TurnPhase::Settling);
        assert_eq!(rig.daemon.terminate().await?, Ended::Code(0), "{}", rig.daemon.log_tail());
        rig.all_gone(&family).await?;
        // The next start knows what this one could not store.
        rig.daemon = Daemon::start(rig.place()).await?;
        let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(whole.events[..seen.events.len()], seen.events);
        assert_ne!(whole.end()?.status(), v1::TurnStatus::Completed);
        Ok(())
    });
}

#[test]
fn what_the_file_took_after_all_is_not_lost_in_a_crash() {
    scenario("storage_again", &["R-DUR-2", "R-DUR-4", "R-EVT-1"], Setup::outer().bridge(OWN), async |rig| {
        let text = |chunk: &str| json!({"text": {"chunks": [chunk]}});
        let steps = json!([{"play": [
            text(&"x".repeat(3 << 20)), {"gate": "full"}, text("held"), {"gate": "free"}, text("stored"), "hang"]}]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "go").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, completed).await?;
        rig.daemon.full_beyond(2 << 20)?;
        rig.provider.open_gate("full");
        seen.until(&mut events, completed).await?;
        rig.daemon.wait_for_logs("they are held in memory", 1).await?;
        rig.daemon.free_disk()?;
        rig.daemon.wait_for_logs("the events of a Turn are stored again", 1).await?;
        // What comes behind is given out once the journal knows.
        rig.provider.open_gate("free");
        seen.until(&mut events, completed).await?;

        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let anew = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(omissions(&anew), [], "nothing was lost: {:?}", anew.story());
        assert_eq!(anew.events[..seen.events.len()], seen.events);
        assert_eq!(anew.end()?.cause(), v1::EndCause::ExecutionLost);
        anew.check_order()
    });
}

#[test]
fn what_is_held_in_memory_has_a_bound() {
    let setup = Setup::outer().bridge(OWN).with("limits.turn_held_bytes = 16384");
    scenario("storage_bound", &["R-DUR-4", "R-EVT-5", "R-EVT-8"], setup, async |rig| {
        let part = "z".repeat(4 << 10);
        let chunks = vec![part; 64];
        let session = rig.session().await?;
        let then = [json!({"text": {"chunks": chunks, "open": true}}), json!("hang")];
        let (mut events, seen) = rig.at_a_gate(&session, &"x".repeat(3 << 20), &then).await?;
        rig.daemon.full_beyond(2 << 20)?;
        rig.provider.open_gate("go");
        let seen = seen.to_the_end(&mut events).await?;
        let failure = seen.end()?.failure.clone().context("it did not fail")?;
        assert_eq!(failure.code(), v1::FailureCode::StorageUnavailable, "{failure:?}");
        for (first, last, reason) in omissions(&seen) {
            assert_eq!(reason, v1::OmissionReason::Storage, "{first} to {last}");
        }
        Ok(())
    });
}

/// Removes what native processes made anew in the place of a state directory that is gone; no daemon knows of it.
fn remove(state: &std::path::Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(state) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[test]
fn a_state_directory_that_is_moved_away_takes_nothing_until_it_is_back() {
    scenario("storage_moved", &["R-DUR-4", "R-DUR-1"], Setup::outer().bridge(OWN), async |rig| {
        let (waits, prepared, bound) = (rig.session().await?, rig.session().await?, rig.session().await?);
        let (mut events, seen) = rig.waiting(&waits).await?;
        let ready = rig.prepare(&prepared, rig.configuration(Vec::new())).await?;
        let (state, elsewhere) = (rig.place().state(), rig.place().root().join("elsewhere"));
        std::fs::rename(&state, &elsewhere)?;
        let family = rig.family()?;
        refusal(waits.submit(vec![text_result("t-1", "c1", "42")]).await, Reason::StorageUnavailable);
        refusal(prepared.start(&ready, "t-1", text_input("hello")).await, Reason::StorageUnavailable);
        let refused = rig.prepare(&bound, rig.configuration(Vec::new())).await;
        conformance::rig::refused(refused, Reason::StorageUnavailable)?;
        conformance::rig::refused(rig.session().await, Reason::StorageUnavailable)?;
        rig.only(&family).await.context("a refused preparation started something")?;
        assert!(!state.join("journal.db").exists(), "another journal was made in its place");

        remove(&state)?;
        std::fs::rename(&elsewhere, &state)?;
        let accepted = waits.submit(vec![text_result("t-1", "c1", "42")]).await?;
        assert_eq!(accepted[0].outcome(), ResultOutcome::Accepted);
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        // What was acknowledged is there after a crash.
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let again = waits.submit(vec![text_result("t-1", "c1", "42")]).await?;
        assert_eq!(again[0].outcome(), ResultOutcome::Duplicate);
        let later = Observed::default().to_the_end(&mut waits.turn_events("t-1")).await?;
        assert_eq!(later.events, seen.events);
        Ok(())
    });
}

#[test]
fn a_state_directory_that_is_deleted_is_told_and_survived() {
    scenario("storage_deleted", &["R-DUR-4", "R-CAN-4"], Setup::outer().bridge(OWN), async |rig| {
        let (waits, prepared) = (rig.session().await?, rig.session().await?);
        let (_events, _seen) = rig.waiting(&waits).await?;
        let ready = rig.prepare(&prepared, rig.configuration(Vec::new())).await?;
        // Native processes may write into it meanwhile, so it is taken out of their way first.
        let (state, trash) = (rig.place().state(), rig.place().root().join("trash"));
        std::fs::rename(&state, &trash)?;
        std::fs::remove_dir_all(&trash)?;
        refusal(waits.submit(vec![text_result("t-1", "c1", "42")]).await, Reason::StorageUnavailable);
        refusal(prepared.start(&ready, "t-1", text_input("hello")).await, Reason::StorageUnavailable);
        let text = rig.daemon.log_text();
        assert!(text.contains("journal.db is not where it was opened"), "the log does not say why");
        // It still ends in order, and the next one begins anew.
        let family = rig.family()?;
        rig.daemon.terminate().await?;
        rig.all_gone(&family).await?;
        remove(&state)?;
        rig.daemon = Daemon::start(rig.place()).await?;
        refusal(waits.turn("t-1").await, Reason::NotFound);
        rig.whole_turn(&rig.session().await?, "t-1", "hello").await?.completed()
    });
}

#[test]
fn a_start_that_cannot_settle_a_turn_says_that_the_disk_is_full() {
    scenario("storage_start", &["R-DUR-4", "R-DUR-2"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let (mut events, seen) = rig.waiting(&session).await?;
        let family = rig.family()?;
        rig.daemon.kill().await?;
        for _ in 0..2 {
            rig.daemon = Daemon::spawn_on_full_disk(rig.place())?;
            let ended = rig.daemon.wait(Duration::from_secs(20)).await?;
            assert_eq!(ended, Ended::Code(20), "{}", rig.daemon.log_tail());
            rig.all_gone(&family).await?;
        }
        // With room again the Turn is ended, and nothing is lost of it.
        rig.daemon = Daemon::start(rig.place()).await?;
        let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(whole.events[..seen.events.len()], seen.events);
        assert_eq!(whole.end()?.cause(), v1::EndCause::ExecutionLost);
        let rest = Observed::default().to_the_end(&mut events).await?;
        assert_eq!(rest.story(), ["function_call_abandoned", "turn_ended"]);
        Ok(())
    });
}
