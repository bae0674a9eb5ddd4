//! A Turn that says more than may be kept (R-EVT-8): parts are omitted and said to be, what completes them is kept, and twice the bound
//! ends the Turn.

use anyhow::Context;
use conformance::rig::{Daemon, Observed, Setup, function, scenario, text_result};
use proto::v1::{self, event::Kind};
use serde_json::json;

/// Why one Harness is enough.
const OWN: &str = "the bounds are of the log that the bridge keeps";

/// Ranges that are omitted since the file was full.
fn omitted(seen: &Observed) -> Vec<(u64, u64)> {
    let range = |kind: &Kind| match kind {
        Kind::EventsOmitted(omitted) if omitted.reason() == v1::OmissionReason::LogLimit => {
            Some((omitted.first, omitted.last))
        }
        _ => None,
    };
    seen.kinds().filter_map(range).collect()
}

#[test]
fn past_the_bound_deltas_are_omitted_and_what_completes_is_kept() {
    let setup = Setup::outer().bridge(OWN).with("limits.turn_log_bytes = 65536\nlimits.turn_memory_bytes = 4096");
    scenario("bounds_deltas", &["R-EVT-8", "R-EVT-1", "R-EVT-2", "R-FN-3"], setup, async |rig| {
        // The first message fills most of the file; the second one's deltas come behind the bound.
        let chunks = |letter: &str, count| vec![letter.repeat(256); count];
        rig.provider.script(
            &json!([
                {"play": [{"text": {"chunks": chunks("a", 160)}}, {"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
                {"play": [{"text": {"chunks": chunks("b", 64)}}]}])
            .to_string(),
        )?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration, "t-1", "talk").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let ranges = omitted(&seen);
        assert!(!ranges.is_empty(), "{:?}", seen.story());
        // Sequences count on: together the ranges and the deltas that were kept are all deltas.
        let kept = seen.kinds().filter(|kind| matches!(kind, Kind::MessageDelta(_))).count() as u64;
        let dropped: u64 = ranges.iter().map(|(first, last)| last - first + 1).sum();
        assert!(kept > 0 && dropped > 0, "{kept} {dropped}");
        assert_eq!(seen.messages(), ["a".repeat(256 * 160), "b".repeat(256 * 64)]);
        assert!(seen.story().contains(&"function_result_applied"), "{:?}", seen.story());
        let last = seen.events.last().map(|event| event.sequence);
        assert_eq!(session.turn("t-1").await?.last_sequence, last.context("no event")?);

        // Another observer, from everywhere; and another daemon.
        for after in 0..last.unwrap_or_default() {
            let mut rest = rig.client().await?.observe(session.assignment().clone(), "t-1", after);
            let first = rest.next().await?.context("no event")?;
            let want = seen.events.iter().find(|event| event.sequence > after);
            assert_eq!(Some(&first), want, "after {after}");
        }
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let again = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(again.events, seen.events);
        Ok(())
    });
}

#[test]
fn twice_the_bound_ends_the_turn() {
    let setup = Setup::outer().bridge(OWN).with("limits.turn_log_bytes = 65536");
    scenario("bounds_twice", &["R-EVT-8", "R-EVT-5"], setup, async |rig| {
        // Completed messages are kept, so that only they can come so far.
        let message = json!({"text": {"chunks": ["m".repeat(48 << 10)]}});
        let mut play = vec![message; 5];
        play.push(json!("hang"));
        rig.provider.script(&json!([{"play": play}]).to_string())?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "talk").await?;
        let failure = seen.end()?.failure.clone().context("it did not fail")?;
        assert_eq!(failure.code(), v1::FailureCode::StreamLimitExceeded, "{failure:?}");
        let bytes = rig.place().event_file()?.metadata()?.len();
        assert!(bytes < 4 * 65536, "the file has {bytes} bytes");
        Ok(())
    });
}

#[test]
fn a_running_turn_that_omits_shows_that_it_goes_on() {
    let setup = Setup::outer().bridge(OWN).with("limits.turn_log_bytes = 16384");
    scenario("bounds_progress", &["R-EVT-8", "R-EVT-11"], setup, async |rig| {
        rig.provider.script(
            &json!([{"play": [{"text": {"chunks": vec!["a".repeat(1024); 40], "open": true}}, {"gate": "go"}, "drop"]},
                {"play": [{"text": {"chunks": ["done"]}}]}])
            .to_string(),
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "talk").await?;
        let mut seen = Observed::default();
        // Nothing that is kept follows the deltas, and yet it is said that they were.
        let said = |kind: &Kind| matches!(kind, Kind::EventsOmitted(_)).then_some(());
        seen.until(&mut events, said).await?;
        rig.provider.open_gate("go");
        seen.to_the_end(&mut events).await?.completed()
    });
}
