//! What is kept how long (R-DUR-4): events that nobody acknowledged go after a while, or the oldest when there are too many; a released
//! Session is forgotten after a while, with its home.

use std::path::{Path, PathBuf};
use std::time::Duration;

use conformance::rig::{Daemon, Observed, Rig, Setup, function, refusal, scenario, text_result, until_refused};
use proto::client::Session;
use proto::v1::{self, Reason, ResultOutcome, event::Kind};
use serde_json::json;

/// Why one Harness is enough.
const OWN: &str = "what is kept for how long is the bridge's own";

/// A Turn whose call has large arguments.
async fn turn_with_a_call(rig: &Rig, session: &Session) -> anyhow::Result<(Observed, v1::PayloadRef)> {
    let arguments = json!({"q": "x".repeat(2 << 20)}).to_string();
    let calls = json!([{"name": "lookup", "call_id": "c1", "arguments": arguments}]);
    let steps = json!([{"play": [{"calls": calls}]}, {"play": [{"text": {"chunks": ["Read."]}}]}]);
    rig.provider.script(&steps.to_string())?;
    let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
    let mut events = rig.start_turn(session, configuration, "t-1", "look it up").await?;
    let mut seen = Observed::default();
    let call = seen.call(&mut events).await?;
    let Some(v1::content::Place::Payload(payload)) = call.arguments.and_then(|arguments| arguments.place) else {
        anyhow::bail!("no reference")
    };
    session.submit(vec![text_result("t-1", "c1", "42")]).await?;
    let seen = seen.to_the_end(&mut events).await?;
    seen.completed()?;
    Ok((seen, payload))
}

#[test]
fn events_that_nobody_acknowledged_go_and_the_end_stays() {
    let setup = Setup::outer().bridge(OWN).with("limits.retention_ms = 3000\nlimits.retention_check_ms = 50");
    scenario("retention_events", &["R-DUR-4", "R-EVT-1", "R-FN-5"], setup, async |rig| {
        let session = rig.session().await?;
        let (seen, payload) = turn_with_a_call(rig, &session).await?;
        let last = seen.events.len() as u64;
        for restart in [false, true] {
            if restart {
                rig.daemon.kill().await?;
                rig.daemon = Daemon::start(rig.place()).await?;
            }
            for after in [0, last - 2] {
                let gone = until_refused(Reason::EventsGone, async || rig.observe(&session, "t-1", after).await).await;
                gone.with("first_available", &last.to_string());
            }
            let end = rig.observe(&session, "t-1", last - 1).await?;
            assert_eq!(end.events[..], seen.events[seen.events.len() - 1..]);
            refusal(session.payload("t-1", &payload).await, Reason::EventsGone);
            // The Turn, its call and its result are kept.
            let turn = session.turn("t-1").await?;
            assert_eq!((turn.last_sequence, turn.ended.as_ref()), (last, Some(seen.end()?)));
            let again = session.submit(vec![text_result("t-1", "c1", "42")]).await?;
            assert_eq!(again[0].outcome(), ResultOutcome::Duplicate);
        }
        // What is acknowledged in the meantime is no loss.
        session.acknowledge("t-1", last - 1).await?;
        let rest = rig.observe(&session, "t-1", 0).await?;
        assert!(matches!(rest.events[0].kind, Some(Kind::EventsOmitted(_))), "{:?}", rest.story());
        assert_eq!(rest.end()?, seen.end()?);
        Ok(())
    });
}

#[test]
fn the_oldest_events_go_first_where_there_are_too_many() {
    let setup = Setup::outer().bridge(OWN).with("limits.state_bytes = 1000000\nlimits.retention_check_ms = 50");
    scenario("retention_bytes", &["R-DUR-4"], setup, async |rig| {
        let sessions = [rig.session().await?, rig.session().await?, rig.session().await?];
        let mut turns = Vec::new();
        for session in &sessions {
            let text = "x".repeat(200_000);
            rig.provider.script(&json!([{"play": [{"text": {"chunks": [text]}}]}]).to_string())?;
            turns.push(rig.whole_turn(session, "t-1", "talk").await?);
        }
        // Each has its deltas and its message: two fit.
        until_refused(Reason::EventsGone, async || rig.observe(&sessions[0], "t-1", 0).await).await;
        for (session, turn) in sessions.iter().zip(&turns).skip(1) {
            assert_eq!(rig.observe(session, "t-1", 0).await?.events, turn.events);
        }
        Ok(())
    });
}

#[test]
fn a_released_session_is_forgotten_with_its_home() {
    let setup = Setup::outer().bridge(OWN).with("limits.retention_ms = 3000\nlimits.retention_check_ms = 50");
    scenario("retention_released", &["R-DUR-4", "R-ASG-4", "R-ASG-5"], setup, async |rig| {
        let (released, stays) = (rig.session().await?, rig.session().await?);
        rig.whole_turn(&released, "t-1", "hello").await?.completed()?;
        rig.whole_turn(&stays, "t-1", "hello").await?.completed()?;
        let folders = || std::fs::read_dir(rig.place().state().join("sessions")).map(Iterator::count);
        assert_eq!(folders()?, 2);
        released.release(false).await?;
        until_refused(Reason::NotFound, async || released.turn("t-1").await).await;
        assert_eq!(folders()?, 1, "its home is still there");
        assert!(stays.turn("t-1").await?.ended.is_some());
        refusal(released.release(false).await, Reason::NotFound);

        // Another daemon does not know it either; the same id begins anew.
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        refusal(released.turn("t-1").await, Reason::NotFound);
        let placement = rig.target(&released).placement;
        let Some(placement) = placement else { anyhow::bail!("no placement") };
        let anew = Session::bind(rig.client().await?, released.assignment().clone(), placement).await?;
        rig.whole_turn(&anew, "t-1", "hello").await?.completed()?;
        assert!(stays.turn("t-1").await?.ended.is_some());
        Ok(())
    });
}

/// What a daemon leaves that dies between the record of an acknowledgement and the removal of the file.
#[test]
fn an_acknowledged_file_that_is_left_goes_at_the_next_start() {
    // The first look is at the start, and the next one after this scenario.
    scenario("retention_acknowledged", &["R-DUR-4", "R-EVT-1"], Setup::outer().bridge(OWN), async |rig| {
        let sessions = [rig.session().await?, rig.session().await?];
        let mut left = Vec::new();
        for session in &sessions {
            let before = event_files(rig)?;
            let seen = rig.whole_turn(session, "t-1", "hello").await?;
            let mut files = event_files(rig)?;
            files.retain(|file| !before.contains(file));
            let [file] = &files[..] else { anyhow::bail!("{files:?}") };
            left.push((file.clone(), std::fs::read(file)?));
            session.acknowledge("t-1", seen.events.len() as u64).await?;
            assert!(!file.exists());
        }
        rig.daemon.kill().await?;
        std::fs::write(&left[0].0, &left[0].1)?;
        std::fs::write(&left[1].0, "these are the notes of somebody else")?;
        rig.daemon = Daemon::start(rig.place()).await?;
        // Nobody tells when the look is over.
        let mut interval = tokio::time::interval(Duration::from_millis(20));
        while left.iter().any(|(file, _)| file.exists()) {
            interval.tick().await;
        }
        assert_eq!(event_files(rig)?, [left[1].0.with_extension("unreadable")], "it was not one of ours");
        for session in &sessions {
            let anew = rig.observe(session, "t-1", 0).await?;
            assert_eq!(anew.story(), ["events_omitted", "turn_ended"]);
        }
        Ok(())
    });
}

fn event_files(rig: &Rig) -> anyhow::Result<Vec<PathBuf>> {
    let sessions = rig.place().state().join("sessions");
    let mut files = Vec::new();
    for session in entries(&sessions)? {
        files.extend(entries(&session.join("turns"))?);
    }
    Ok(files)
}

/// What is in a folder, which need not be there.
fn entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
