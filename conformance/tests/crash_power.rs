//! What a power loss leaves: event files without their ends, or none. Sequences go on above what may have been given out, and no observer
//! sees one twice with other content (R-DUR-2, R-EVT-1).

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Context;
use conformance::rig::{Daemon, Observed, Rig, Setup, scenario};
use proto::client::{Session, TurnEvents};
use proto::v1::{self, event::Kind};

const SCRIPT: &str =
    r#"[{"play": [{"text": {"chunks": ["one ", "two ", "three ", "four ", "five "], "open": true}}, "hang"]}]"#;

/// A running Turn of which six events and more were seen.
async fn in_the_middle(rig: &Rig, session: &Session) -> anyhow::Result<(TurnEvents, Observed)> {
    rig.provider.script(SCRIPT)?;
    let mut events = rig.start_turn(session, rig.configuration(Vec::new()), "t-1", "count").await?;
    let mut seen = Observed::default();
    for _ in 0..5 {
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
    }
    Ok((events, seen))
}

fn event_file(rig: &Rig) -> anyhow::Result<PathBuf> {
    let session = fs::read_dir(rig.place().state().join("sessions"))?.next().context("no Session")??;
    Ok(session.path().join("turns/1.log"))
}

/// No sequence has two contents; the Turn has one end, which is the last.
fn check(first: &Observed, later: &Observed) -> anyhow::Result<()> {
    let mut by_sequence = BTreeMap::new();
    for event in first.events.iter().chain(&later.events) {
        // A statement of omission stands for events that are not given again.
        if matches!(event.kind, Some(Kind::EventsOmitted(_))) {
            continue;
        }
        let before = by_sequence.insert(event.sequence, event);
        anyhow::ensure!(before.is_none_or(|before| before == event), "twice: {before:?} and {event:?}");
    }
    let end = later.end()?;
    anyhow::ensure!((end.status(), end.cause()) == (v1::TurnStatus::Unknown, v1::EndCause::ExecutionLost), "{end:?}");
    Ok(())
}

#[test]
fn a_file_that_lost_its_end_goes_on_above_what_was_given_out() {
    scenario("crash_cut", &["R-DUR-2", "R-EVT-1"], Setup::outer(), async |rig| {
        let session = rig.session().await?;
        let (mut events, seen) = in_the_middle(rig, &session).await?;
        let last_seen = seen.events.len() as u64;
        // Core has said what it has, so that the loss can be noticed without a restart of the machine.
        session.acknowledge("t-1", last_seen).await?;
        rig.daemon.kill().await?;
        let file = event_file(rig)?;
        let length = file.metadata()?.len();
        fs::File::options().write(true).open(&file)?.set_len(length / 2)?;
        rig.daemon = Daemon::start(rig.place()).await?;

        // The observer goes on where it was, and one begins anew.
        let rest = Observed::default().to_the_end(&mut events).await?;
        check(&seen, &rest)?;
        let Some(Kind::EventsOmitted(omitted)) = &rest.events[0].kind else { anyhow::bail!("{:?}", rest.story()) };
        assert_eq!(omitted.reason(), v1::OmissionReason::BridgeRestarted);
        assert!(omitted.first <= last_seen + 1 && omitted.last > last_seen, "{omitted:?}");
        let anew = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        check(&seen, &anew)?;
        assert_eq!(anew.events.last(), rest.events.last());
        assert_eq!(session.turn("t-1").await?.last_sequence, rest.events.last().map_or(0, |event| event.sequence));
        Ok(())
    });
}

#[test]
fn a_file_that_is_lost_leaves_the_end_above_what_was_given_out() {
    scenario("crash_lost", &["R-DUR-2", "R-EVT-1"], Setup::outer(), async |rig| {
        let session = rig.session().await?;
        let (mut events, seen) = in_the_middle(rig, &session).await?;
        rig.daemon.kill().await?;
        fs::remove_file(event_file(rig)?)?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let rest = Observed::default().to_the_end(&mut events).await?;
        check(&seen, &rest)?;
        assert_eq!(rest.story(), ["events_omitted", "turn_ended"]);
        Ok(())
    });
}

#[test]
fn a_file_of_somebody_else_is_put_aside_and_not_overwritten() {
    scenario("crash_foreign", &["R-DUR-2", "R-EVT-1"], Setup::outer(), async |rig| {
        let session = rig.session().await?;
        let (mut events, seen) = in_the_middle(rig, &session).await?;
        rig.daemon.kill().await?;
        let file = event_file(rig)?;
        fs::write(&file, "these are the notes of somebody else")?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let rest = Observed::default().to_the_end(&mut events).await?;
        check(&seen, &rest)?;
        assert_eq!(rest.story(), ["events_omitted", "turn_ended"]);
        let aside = fs::read_to_string(file.with_extension("unreadable"))?;
        assert_eq!(aside, "these are the notes of somebody else");
        Ok(())
    });
}
