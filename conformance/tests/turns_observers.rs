//! Observing a Turn: again and again, side by side, behind what is acknowledged, while nothing happens, and when it is
//! long over.

use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::rig::{Harness, Observed, Rig, Setup, refused, scenario, text_result};
use conformance::rig::{function, name};
use conformance::{for_each_harness, for_every_harness};
use proto::client::{Client, Session};
use proto::v1::event::Kind;
use proto::v1::{self, Reason};

for_every_harness!(
    a_core_that_disconnects_after_every_event_sees_each_once,
    a_finished_turn_is_observed_from_anywhere,
    a_stream_without_events_is_kept_alive,
    sessions_at_once_see_only_their_own
);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(observers_side_by_side_see_the_same, what_is_acknowledged_is_said_to_be_omitted);

fn a_core_that_disconnects_after_every_event_sees_each_once(harness: Harness) {
    scenario("observe_again", &["R-EVT-1", "R-EVT-8", "R-EVT-11"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [
                {"reasoning": {"summary": ["A thought."]}},
                {"text": {"chunks": ["one ", "two ", "three ", "four"], "delay_ms": 20}},
                {"shell": {"command": "echo hi", "yield_ms": 30000}}]},
                {"play": [{"text": {"chunks": ["done"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "go").await?;
        let mut seen = Observed::default();
        while seen.end().is_err() {
            // A connection of its own for every event.
            let client = rig.client().await?;
            let after = seen.events.len() as u64;
            let mut events = client.observe(session.assignment().clone(), "t-1", after);
            seen.events.push(events.next().await?.context("the stream ended before the end")?);
        }
        seen.check_order()?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["one two three four", "done"]);
        let again = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert_eq!(again.events, seen.events);
        Ok(())
    });
}

fn observers_side_by_side_see_the_same(harness: Harness) {
    scenario("observe_two", &["R-EVT-1", "R-EVT-11"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["a ", "b ", "c ", "d"], "delay_ms": 20, "open": true}}, {"gate": "go"}, "drop"]},
                {"play": [{"text": {"chunks": ["a b c d"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut first = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "go").await?;
        let mut second = rig.client().await?.observe(session.assignment().clone(), "t-1", 0);
        let mut early = Observed::default();
        early.until(&mut first, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        // A third one comes when the Turn is under way and one leaves.
        let mut third = rig.client().await?.observe(session.assignment().clone(), "t-1", 1);
        third.next().await?.context("no event")?;
        drop(third);
        rig.provider.open_gate("go");
        let (one, two) = tokio::join!(early.to_the_end(&mut first), Observed::default().to_the_end(&mut second));
        let (one, two) = (one?, two?);
        one.completed()?;
        assert_eq!(one.events, two.events);
        Ok(())
    });
}

fn a_finished_turn_is_observed_from_anywhere(harness: Harness) {
    scenario("observe_finished", &["R-EVT-1", "R-EVT-11"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello to you").await?;
        rig.whole_turn(&session, "t-2", "and to you").await?.completed()?;
        let last = seen.events.len() as u64;
        for after in 0..last {
            let again = observe(&session, rig, "t-1", after).await?;
            assert_eq!(again.events, seen.events[usize::try_from(after)?..]);
        }
        // Behind the end there is nothing, and that is no error.
        let mut messages = raw(&rig.client().await?, &session, "t-1", last).await?;
        assert_eq!(messages.next().await?, None);
        let refusal = refused_above(rig, &session, "t-1", last + 1).await?;
        assert_eq!(refusal.fields[0].path, "after_sequence");
        refused(raw(&rig.client().await?, &session, "t-9", 0).await, Reason::NotFound)?;
        Ok(())
    });
}

fn what_is_acknowledged_is_said_to_be_omitted(harness: Harness) {
    scenario("observe_acknowledged", &["R-EVT-1", "R-EVT-11"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["a ", "b ", "c"], "open": true}}, {"gate": "go"}, "drop"]},
                {"play": [{"text": {"chunks": ["a b c"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "go").await?;
        let mut seen = Observed::default();
        for _ in 0..3 {
            seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        }
        // While it runs: two of five.
        assert_eq!(session.acknowledge("t-1", 2).await?, 2);
        assert_eq!(session.acknowledge("t-1", 1).await?, 2, "a lower one changes nothing");
        refused(session.acknowledge("t-1", 99).await, Reason::InvalidRequest)?;
        refused_above(rig, &session, "t-1", 99).await?;
        let mut again = session.turn_events("t-1");
        let first = again.next().await?.context("no event")?;
        assert_eq!((first.sequence, omitted(&first)), (2, Some((1, 2))));
        assert_eq!(again.next().await?.map(|event| event.sequence), Some(3));
        assert_eq!(observe_one(&session, rig, 1).await?, (2, "events_omitted"));
        assert_eq!(observe_one(&session, rig, 2).await?, (3, name_at(&seen, 3)));

        rig.provider.open_gate("go");
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let last = seen.events.len() as u64;
        // In part, after the end.
        assert_eq!(session.acknowledge("t-1", last - 2).await?, last - 2);
        let rest = observe(&session, rig, "t-1", 0).await?;
        assert_eq!(omitted(&rest.events[0]), Some((1, last - 2)));
        assert_eq!(rest.events[1..], seen.events[usize::try_from(last)? - 2..]);
        // As a whole: the terminal is given all the same.
        assert_eq!(session.acknowledge("t-1", last).await?, last);
        let rest = observe(&session, rig, "t-1", 0).await?;
        assert_eq!(omitted(&rest.events[0]), Some((1, last - 1)));
        assert_eq!(rest.events[1..], seen.events[usize::try_from(last)? - 1..]);
        let turn = session.turn("t-1").await?;
        assert_eq!((turn.last_sequence, turn.acknowledged_sequence), (last, last));
        assert_eq!(turn.ended.as_ref(), Some(seen.end()?));
        Ok(())
    });
}

fn a_stream_without_events_is_kept_alive(harness: Harness) {
    let setup = Setup::outer().of(harness).with("limits.keep_alive_ms = 200");
    scenario("observe_keep_alive", &["R-EVT-11"], setup, async |rig| {
        rig.provider.script(r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}]"#)?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration, "t-1", "go").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        if harness == Harness::ClaudeCode {
            // The end of the answer follows its call.
            seen.until(&mut events, |kind| (name(kind) == "usage").then_some(())).await?;
        }
        let last = seen.events.len() as u64;
        let begun = Instant::now();
        let mut messages = raw(&rig.client().await?, &session, "t-1", last).await?;
        for _ in 0..2 {
            let message = messages.next().await?.context("the stream ended")?;
            assert_eq!((message.events.len(), message.last_sequence), (0, last));
        }
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_millis(300), "they came after {waited:?}");
        session.submit(vec![text_result("t-1", seen.call_id()?, "enough")]).await?;
        let mut sequence = last;
        while let Some(message) = messages.next().await? {
            sequence = message.events.last().map_or(sequence, |event| event.sequence);
            assert_eq!(message.last_sequence, sequence);
        }
        let seen = seen.to_the_end(&mut events).await?;
        assert_eq!(sequence, seen.events.len() as u64, "the stream ends OK behind the end of the Turn");
        seen.completed()
    });
}

fn sessions_at_once_see_only_their_own(harness: Harness) {
    scenario("observe_sessions", &["R-EVT-1", "R-EVT-6", "R-ASG-1"], Setup::outer().of(harness), async |rig| {
        let names = ["red", "green", "blue"];
        for one in names {
            rig.provider.script(&format!(
                r#"[{{"match": "only {one}", "play": [{{"text": {{"chunks": ["{one} ", "{one} ", "{one}"], "delay_ms": 15}}}}, {{"shell": {{"command": "echo {one}", "yield_ms": 30000}}}}]}},
                    {{"match": "only {one}", "play": [{{"text": {{"chunks": ["{one} was it"], "delay_ms": 15}}}}]}}]"#
            ))?;
        }
        let rig = &*rig;
        let turn = async |one: &'static str| -> anyhow::Result<(&str, Session, Observed)> {
            let session = rig.session().await?;
            // The same id of a Turn in every Session.
            let seen = rig.whole_turn(&session, "t-1", &format!("only {one}")).await?;
            Ok((one, session, seen))
        };
        let (red, green, blue) = tokio::try_join!(turn("red"), turn("green"), turn("blue"))?;
        for (one, session, seen) in [red, green, blue] {
            seen.completed()?;
            assert_eq!(seen.messages(), [format!("{one} {one} {one}"), format!("{one} was it")]);
            let all = format!("{:?}", seen.events);
            for other in names.iter().filter(|name| **name != one) {
                assert!(!all.contains(other), "{other} is in the Turn of {one}: {all}");
            }
            assert_eq!(observe(&session, rig, "t-1", 0).await?.events, seen.events);
        }
        Ok(())
    });
}

async fn raw(
    client: &Client,
    session: &Session,
    turn_id: &str,
    after_sequence: u64,
) -> Result<proto::client::Messages<v1::ObserveTurnResponse>, proto::client::Error> {
    let assignment = Some(session.assignment().clone());
    client.observe_turn(v1::ObserveTurnRequest { assignment, turn_id: turn_id.into(), after_sequence }).await
}

/// The refusal of an observation above the last sequence.
async fn refused_above(
    rig: &Rig,
    session: &Session,
    turn_id: &str,
    after: u64,
) -> anyhow::Result<proto::client::Refusal> {
    refused(raw(&rig.client().await?, session, turn_id, after).await, Reason::InvalidRequest)
}

async fn observe(session: &Session, rig: &Rig, turn_id: &str, after: u64) -> anyhow::Result<Observed> {
    let mut events = rig.client().await?.observe(session.assignment().clone(), turn_id, after);
    Observed::default().to_the_end(&mut events).await
}

/// Sequence and name of the first event after a sequence of `t-1`.
async fn observe_one(session: &Session, rig: &Rig, after: u64) -> anyhow::Result<(u64, &'static str)> {
    let mut events = rig.client().await?.observe(session.assignment().clone(), "t-1", after);
    let event = events.next().await?.context("no event")?;
    Ok((event.sequence, event.kind.as_ref().map_or("", name)))
}

fn name_at(seen: &Observed, sequence: usize) -> &'static str {
    seen.events[sequence - 1].kind.as_ref().map_or("", name)
}

/// The range of events that an event says are omitted since they were acknowledged.
fn omitted(event: &v1::Event) -> Option<(u64, u64)> {
    let Some(Kind::EventsOmitted(omitted)) = &event.kind else { return None };
    (omitted.reason() == v1::OmissionReason::Acknowledged).then_some((omitted.first, omitted.last))
}
