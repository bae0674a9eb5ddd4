//! Streams of a Turn's events and of its large parts: how many there may be (R-EVT-11), and that a large part is read under the same rules as
//! events are (R-API-7): a take-over ends who reads it (R-ASG-2), and so does not reading it.

use std::time::Duration;

use anyhow::Context;
use conformance::rig::{Daemon, Observed, Rig, Setup, refusal, scenario};
use futures_util::future::try_join_all;
use proto::client::{Client, Error, Messages, Session};
use proto::v1::{self, Reason, event::Kind};
use serde_json::json;

/// Why one Harness is enough.
const OWN: &str = "streams read the log, no Harness waits for them";

/// Streams of one kind that may read a Turn.
const OF_A_TURN: usize = 64;
/// What the daemon says when it ends a stream that is not read.
const ENDED: &str = "an observer that does not read is ended";
/// Far more than is on its way to a reader that does not read.
const LARGE: usize = 8 << 20;

fn observe(session: &Session) -> v1::ObserveTurnRequest {
    v1::ObserveTurnRequest { assignment: Some(session.assignment().clone()), turn_id: "t-1".into(), after_sequence: 0 }
}

fn read(session: &Session, payload: &v1::PayloadRef) -> v1::ReadPayloadRequest {
    v1::ReadPayloadRequest {
        assignment: Some(session.assignment().clone()),
        turn_id: "t-1".into(),
        payload_id: payload.payload_id.clone(),
    }
}

/// The Core that takes over.
async fn take_over(rig: &Rig, session: &Session) -> anyhow::Result<Session> {
    let mut assignment = session.assignment().clone();
    assignment.epoch += 1;
    let placement = rig.target(session).placement.context("no placement")?;
    Ok(Session::bind(rig.client().await?, assignment, placement).await?)
}

/// A Turn that is over, and its message, which is too large for an event.
async fn large_message(rig: &Rig, session: &Session) -> anyhow::Result<(Observed, v1::PayloadRef)> {
    rig.provider.script(&json!([{"play": [{"text": {"chunks": ["x".repeat(LARGE)]}}]}]).to_string())?;
    let seen = rig.whole_turn(session, "t-1", "talk").await?;
    seen.completed()?;
    let place = seen.kinds().find_map(|kind| match kind {
        Kind::MessageCompleted(message) => message.text.clone()?.place,
        _ => None,
    });
    let Some(v1::content::Place::Payload(payload)) = place else { anyhow::bail!("no reference: {place:?}") };
    assert_eq!(payload.size, LARGE as u64);
    Ok((seen, payload))
}

/// Reads a part to the end of its stream, and gives what came before it ended.
async fn rest(mut messages: Messages<v1::ReadPayloadResponse>) -> (usize, Result<(), Error>) {
    let mut bytes = 0;
    loop {
        match messages.next().await {
            Ok(Some(message)) => bytes += message.data.len(),
            Ok(None) => return (bytes, Ok(())),
            Err(error) => return (bytes, Err(error)),
        }
    }
}

fn overloaded<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let refused = refusal(answer, Reason::Overloaded).into_inner();
    assert!(refused.retry_after.is_some(), "{refused:?}");
}

#[test]
fn a_turn_has_so_many_observers_and_one_that_ends_makes_room() {
    scenario("streams_observers", &["R-EVT-11", "R-API-4", "R-ASG-2"], Setup::outer().bridge(OWN), async |rig| {
        rig.provider.script(
            r#"[{"match": "hold", "play": [{"text": {"chunks": ["on "], "open": true}}, {"gate": "go"}, "drop"]},
                {"match": "hold", "play": [{"text": {"chunks": ["and on"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        // One of them is the Core's own.
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "hold").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        let client = rig.client().await?.with_patience(Duration::ZERO);
        let opened = async |client: &Client, session: &Session| client.observe_turn(observe(session)).await;
        let mut held = try_join_all((1..OF_A_TURN).map(|_| opened(&client, &session))).await?;
        // Over every connection.
        let other = rig.client().await?.with_patience(Duration::ZERO);
        for client in [&client, &other] {
            overloaded(opened(client, &session).await);
        }
        // Nothing else of the Session is concerned, nor is another Turn.
        assert!(session.turn("t-1").await?.ended.is_none());
        let beside = rig.session().await?;
        rig.whole_turn(&beside, "t-1", "hello").await?.completed()?;

        drop(held.pop());
        let mut interval = tokio::time::interval(Duration::from_millis(10));
        let last = loop {
            // The daemon hears of it when it hears of it.
            match opened(&client, &session).await {
                Ok(last) => break last,
                Err(error) => assert_eq!(error.reason(), Some(Reason::Overloaded), "{error}"),
            }
            interval.tick().await;
        };
        held.push(last);
        overloaded(opened(&client, &session).await);
        // Whoever takes over finds room beside those who do not read.
        let next = take_over(rig, &session).await?;
        let mut events = next.turn_events("t-1");
        rig.provider.open_gate("go");
        Observed::default().to_the_end(&mut events).await?.completed()?;
        drop(held);
        Ok(())
    });
}

#[test]
fn a_turn_has_so_many_readers_of_parts_and_one_that_ends_makes_room() {
    // Those who do not read keep their places however long the others take.
    let setup = Setup::outer().bridge(OWN).with("limits.observer_ms = 50000");
    scenario("streams_parts", &["R-API-7", "R-API-4"], setup, async |rig| {
        let session = rig.session().await?;
        let (_, payload) = large_message(rig, &session).await?;
        let client = rig.client().await?.with_patience(Duration::ZERO);
        let opened = async || client.read_payload(read(&session, &payload)).await;
        let mut held = try_join_all((0..OF_A_TURN).map(|_| opened())).await?;
        overloaded(opened().await);
        // They take no place of observers.
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
        let (bytes, ended) = rest(held.pop().context("none is held")?).await;
        ended?;
        assert_eq!(bytes, LARGE);
        held.push(opened().await?);
        overloaded(opened().await);
        Ok(())
    });
}

#[test]
fn a_part_that_is_not_read_loses_its_stream_and_is_read_again() {
    let setup = Setup::outer().bridge(OWN).with("limits.observer_ms = 300");
    scenario("part_slow", &["R-API-7", "R-EVT-11"], setup, async |rig| {
        let session = rig.session().await?;
        let (_, payload) = large_message(rig, &session).await?;
        // The Turn's own observer may have been too slow as well.
        let ended_before = rig.daemon.logs().iter().filter(|line| line["message"] == ENDED).count();
        let unread = rig.client().await?.read_payload(read(&session, &payload)).await?;
        rig.daemon.wait_for_logs(ENDED, ended_before + 1).await?;
        // What had been sent is read, and then the reason.
        let (bytes, ended) = rest(unread).await;
        refusal(ended, Reason::ObserverTooSlow);
        assert!(bytes < LARGE, "all of it was on its way");
        assert_eq!(session.payload("t-1", &payload).await?.len(), LARGE);
        Ok(())
    });
}

#[test]
fn a_take_over_ends_who_reads_a_part() {
    scenario("part_fenced", &["R-ASG-2", "R-API-7"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let (_, payload) = large_message(rig, &session).await?;
        let mut stream = rig.client().await?.read_payload(read(&session, &payload)).await?;
        let first = stream.next().await?.context("no bytes")?;
        let next = take_over(rig, &session).await?;
        let (bytes, ended) = rest(stream).await;
        let epoch = next.assignment().epoch.to_string();
        refusal(ended, Reason::AssignmentStale).with("epoch", &epoch).with("state", "bound");
        assert!(first.data.len() + bytes < LARGE, "all of it was on its way");
        assert_eq!(next.payload("t-1", &payload).await?.len(), LARGE);
        Ok(())
    });
}

#[test]
fn a_part_whose_event_is_lost_is_not_there_any_more() {
    scenario("part_lost", &["R-API-7", "R-DUR-2"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        let (seen, payload) = large_message(rig, &session).await?;
        rig.daemon.kill().await?;
        let folder = std::fs::read_dir(rig.place().state().join("sessions"))?.next().context("no Session")??;
        std::fs::remove_file(folder.path().join("turns/1.log"))?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let last = seen.events.len().to_string();
        refusal(session.payload("t-1", &payload).await, Reason::EventsGone).with("first_available", &last);
        let never = v1::PayloadRef { payload_id: "999999.0".into(), ..payload };
        refusal(session.payload("t-1", &never).await, Reason::NotFound).at("payload_id");
        Ok(())
    });
}
