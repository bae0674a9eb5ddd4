//! What a power loss or a full disk leaves: event files without their ends, or none. Sequences go on above what may have been given out, no
//! observer sees one twice with other content (R-DUR-2, R-EVT-1), and a call that was seen is abandoned (R-FN-7).

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context;
use conformance::rig::{Daemon, Observed, Rig, Setup, lookup, scenario};
use proto::client::{Session, TurnEvents};
use proto::v1::{self, event::Kind};

/// Why one Harness is enough.
const OWN: &str = "the files that lose their end are the bridge's own";

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

/// Loses what the file has from the first of these bytes on.
fn cut_before(file: &Path, bytes: &str) -> anyhow::Result<()> {
    let content = fs::read(file)?;
    let at = content.windows(bytes.len()).position(|window| window == bytes.as_bytes());
    let length = at.with_context(|| format!("the file has no {bytes}"))?;
    Ok(fs::File::options().write(true).open(file)?.set_len(length.try_into()?)?)
}

/// The one call that was abandoned, behind the statement of what is lost.
fn check_abandoned(later: &Observed) -> anyhow::Result<()> {
    let abandoned = later.kinds().filter_map(|kind| match kind {
        Kind::FunctionCallAbandoned(call) => Some((call.call_id.as_str(), call.reason())),
        _ => None,
    });
    assert_eq!(abandoned.collect::<Vec<_>>(), [("c1", v1::AbandonReason::ExecutionLost)], "{:?}", later.story());
    assert!(later.story().contains(&"events_omitted"), "the call was not lost: {:?}", later.story());
    Ok(())
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
    scenario("crash_cut", &["R-DUR-2", "R-EVT-1"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let (mut events, seen) = in_the_middle(rig, &session).await?;
        let last_seen = seen.events.len() as u64;
        // Core has said what it has, so that the loss can be noticed without a restart of the machine.
        session.acknowledge("t-1", last_seen).await?;
        rig.daemon.kill().await?;
        let file = rig.place().event_file()?;
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
    scenario("crash_lost", &["R-DUR-2", "R-EVT-1"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let (mut events, seen) = in_the_middle(rig, &session).await?;
        rig.daemon.kill().await?;
        fs::remove_file(rig.place().event_file()?)?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let rest = Observed::default().to_the_end(&mut events).await?;
        check(&seen, &rest)?;
        assert_eq!(rest.story(), ["events_omitted", "turn_ended"]);
        Ok(())
    });
}

#[test]
fn a_file_of_somebody_else_is_put_aside_and_not_overwritten() {
    scenario("crash_foreign", &["R-DUR-2", "R-EVT-1"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let (mut events, seen) = in_the_middle(rig, &session).await?;
        rig.daemon.kill().await?;
        let file = rig.place().event_file()?;
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

#[test]
fn a_file_of_somebody_else_in_the_place_of_an_ended_turn_leaves_its_end() {
    scenario("crash_foreign_ended", &["R-DUR-2", "R-DUR-4"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let whole = rig.whole_turn(&session, "t-1", "hello").await?;
        let last = whole.events.len() as u64;
        rig.daemon.kill().await?;
        let file = rig.place().event_file()?;
        fs::write(&file, "these are the notes of somebody else")?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let mut behind = rig.client().await?.observe(session.assignment().clone(), "t-1", last - 1);
        assert_eq!(behind.next().await?.as_ref(), whole.events.last());
        assert_eq!(behind.next().await?, None);
        let anew = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(anew.story(), ["events_omitted", "turn_ended"]);
        assert_eq!(anew.events.last(), whole.events.last());
        acknowledged_and_put_aside(&session, last, &file).await
    });
}

/// Core has all of a Turn, so that it needs no file; the one in its place is not the Turn's.
async fn acknowledged_and_put_aside(session: &Session, last: u64, file: &Path) -> anyhow::Result<()> {
    assert_eq!(session.acknowledge("t-1", last).await?, last);
    assert!(!file.exists(), "it is where it was");
    let aside = fs::read_to_string(file.with_extension("unreadable"))?;
    assert_eq!(aside, "these are the notes of somebody else");
    Ok(())
}

#[test]
fn a_file_of_somebody_else_is_put_aside_when_nobody_has_looked_into_it() {
    scenario("crash_foreign_unseen", &["R-DUR-4", "R-EVT-1"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let whole = rig.whole_turn(&session, "t-1", "hello").await?;
        let last = whole.events.len() as u64;
        rig.daemon.kill().await?;
        let file = rig.place().event_file()?;
        let own = fs::read(&file)?;
        fs::write(&file, "these are the notes of somebody else")?;
        rig.daemon = Daemon::start(rig.place()).await?;
        acknowledged_and_put_aside(&session, last, &file).await?;
        // A file of ours goes.
        fs::remove_file(file.with_extension("unreadable"))?;
        fs::write(&file, own)?;
        assert_eq!(session.acknowledge("t-1", last).await?, last);
        assert!(!file.exists() && !file.with_extension("unreadable").exists(), "a file of ours is kept");
        let anew = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(anew.story(), ["events_omitted", "turn_ended"]);
        Ok(())
    });
}

#[test]
fn what_was_seen_on_a_full_disk_is_not_given_anew_after_a_kill() {
    scenario("crash_full", &["R-DUR-2", "R-DUR-4", "R-EVT-1"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["one "], "open": true}}, {"gate": "go"},
                {"text": {"chunks": ["two ", "three ", "four ", "five "], "open": true}}, "hang"]}]"#,
        )?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "count").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        // Neither the event file nor the journal takes anything from now on.
        rig.daemon.fill_disk()?;
        rig.provider.open_gate("go");
        while !seen.deltas().ends_with("five ") {
            seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        }
        let last_seen = seen.events.len() as u64;
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;

        // The observer was ahead of the file, and still reads the end.
        let rest = Observed::default().to_the_end(&mut events).await?;
        check(&seen, &rest)?;
        let anew = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        check(&seen, &anew)?;
        let omitted = anew.kinds().find_map(|kind| if let Kind::EventsOmitted(it) = kind { Some(it) } else { None });
        let omitted = omitted.with_context(|| format!("nothing was lost: {:?}", anew.story()))?;
        assert_eq!(omitted.reason(), v1::OmissionReason::BridgeRestarted);
        assert!(omitted.first <= last_seen && omitted.last >= last_seen, "{omitted:?} of {last_seen}");
        assert_eq!(anew.events.last(), rest.events.last());
        Ok(())
    });
}

#[test]
fn a_call_that_was_seen_and_is_lost_is_abandoned() {
    scenario("crash_call", &["R-FN-7", "R-DUR-2"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let (mut events, seen) = rig.waiting(&session).await?;
        session.acknowledge("t-1", seen.events.len() as u64).await?;
        rig.daemon.kill().await?;
        cut_before(&rig.place().event_file()?, "lookup")?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let rest = Observed::default().to_the_end(&mut events).await?;
        check(&seen, &rest)?;
        check_abandoned(&rest)?;
        let anew = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        check(&seen, &anew)?;
        check_abandoned(&anew)
    });
}

#[test]
fn a_call_that_was_held_in_memory_is_abandoned_after_a_kill() {
    scenario("crash_call_held", &["R-FN-7", "R-DUR-2", "R-DUR-4"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let (mut events, mut seen) = rig.at_a_gate(&session, &"x".repeat(3 << 20), &[lookup("{}")]).await?;
        // The event file is larger than this, the journal is smaller: the call is stored, and its event is not.
        rig.daemon.full_beyond(2 << 20)?;
        rig.provider.open_gate("go");
        seen.call(&mut events).await?;
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let rest = Observed::default().to_the_end(&mut events).await?;
        check(&seen, &rest)?;
        check_abandoned(&rest)
    });
}
