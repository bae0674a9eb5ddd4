//! The client against a scripted bridge on a Unix socket of this process.

mod bridge;

use std::time::Duration;

use bridge::{Bridge, Observation, ended, event, omitted};

use sha2::{Digest as _, Sha256};

use super::*;
use crate::v1::event::Kind;

fn fence() -> v1::AssignmentRef {
    v1::AssignmentRef { session_id: "s".into(), assignment_id: "a".into(), epoch: 3 }
}

async fn connected(bridge: &Bridge) -> Client {
    Client::connect(Endpoint::Unix(bridge.socket())).await.unwrap()
}

/// Observes to the end or to an error: the sequences that came, and the error.
async fn observe(client: &Client, after: u64) -> (Vec<u64>, Option<Error>) {
    let mut events = client.observe(fence(), "t", after);
    let mut sequences = Vec::new();
    loop {
        match events.next().await {
            Ok(Some(event)) => sequences.push(event.sequence),
            Ok(None) => return (sequences, None),
            Err(error) => {
                assert!(events.next().await.unwrap().is_none(), "events after an error");
                return (sequences, Some(error));
            }
        }
    }
}

#[test]
fn an_endpoint_is_a_unix_socket() {
    for (text, path) in [
        ("unix:/run/b.sock", Some("/run/b.sock")),
        ("unix:///run/b.sock", Some("/run/b.sock")),
        ("unix:b.sock", Some("b.sock")),
        ("unix:", None),
        ("unix://host/b.sock", None),
        ("/run/b.sock", None),
        ("http://localhost:1", None),
        ("http://127.0.0.1", None),
    ] {
        assert_eq!(text.parse().ok(), path.map(|path| Endpoint::Unix(path.into())), "{text}");
    }
}

#[test]
fn an_endpoint_is_an_address_in_numbers() {
    for text in ["http://127.0.0.1:7480", "http://[::1]:1"] {
        let endpoint: Endpoint = text.parse().unwrap();
        assert!(matches!(endpoint, Endpoint::Tcp(_)));
        assert_eq!(endpoint.to_string(), text);
    }
}

#[tokio::test]
async fn an_observation_behind_the_end_is_over_at_once() {
    let bridge = Bridge::start().await;
    bridge.will_show([Observation::answers([]), Observation::answers([vec![]])]);
    for _ in 0..2 {
        let (sequences, error) = observe(&connected(&bridge).await, 5).await;
        assert!(sequences.is_empty() && error.is_none(), "{error:?}");
    }
    assert_eq!(bridge.asked(), [5, 5]);
    // Behind an event an end in order is none: the Turn has not ended.
    bridge.will_show([Observation::answers([vec![event(1)]]), Observation::answers([vec![ended(2)]])]);
    let (sequences, error) = observe(&connected(&bridge).await, 0).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(sequences, [1, 2]);
}

#[tokio::test]
async fn nobody_at_the_socket_is_a_transport_error() {
    let bridge = Bridge::start().await;
    let error = Client::connect(Endpoint::Unix(bridge.socket().with_file_name("none"))).await.unwrap_err();
    assert!(matches!(&error, Error::Transport { message, .. } if message.contains("No such file")), "{error}");
}

#[tokio::test]
async fn every_call_says_its_version() {
    let bridge = Bridge::start().await;
    let client = connected(&bridge).await;
    client.get_turn(v1::GetTurnRequest::default()).await.unwrap();
    client.clone().claiming_version(Some("9.9")).get_turn(v1::GetTurnRequest::default()).await.unwrap();
    client.claiming_version(None).get_turn(v1::GetTurnRequest::default()).await.unwrap();
    assert_eq!(bridge.versions(), [Some(version::CURRENT.to_string()), Some("9.9".into()), None]);
}

#[tokio::test]
async fn a_refusal_keeps_its_reason_and_fields() {
    let bridge = Bridge::start().await;
    let refused = connected(&bridge).await.cancel_turn(v1::CancelTurnRequest::default()).await.unwrap_err();
    assert_eq!(refused.reason(), Some(v1::Reason::InvalidRequest));
    let fields = &refused.refusal().unwrap().fields;
    assert_eq!(fields, &[Field { path: "turn_id".into(), description: "is empty".into() }]);
}

#[tokio::test]
async fn a_lost_observation_goes_on_where_it_stopped() {
    let bridge = Bridge::start().await;
    bridge.will_show([
        Observation::answers([vec![event(1), event(2)], vec![]]),
        Observation::answers([vec![event(3)]]).then(tonic::Status::unavailable("gone")),
        Observation::refused(tonic::Status::unavailable("not yet")),
        Observation::answers([vec![event(4), ended(5)]]),
    ]);
    let (sequences, error) = observe(&connected(&bridge).await, 0).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(sequences, [1, 2, 3, 4, 5]);
    assert_eq!(bridge.asked(), [0, 2, 3, 3]);
}

#[tokio::test]
async fn an_observation_survives_a_restart_of_the_bridge() {
    let mut bridge = Bridge::start().await;
    bridge.will_show([Observation::answers([vec![event(1)]]).and_stays(), Observation::answers([vec![ended(2)]])]);
    let mut events = connected(&bridge).await.observe(fence(), "t", 0);
    assert_eq!(events.next().await.unwrap().unwrap().sequence, 1);
    bridge.restart().await;
    assert!(matches!(events.next().await.unwrap().unwrap().kind, Some(Kind::TurnEnded(_))));
    assert_eq!(events.last_sequence(), 2);
    assert_eq!(bridge.asked(), [0, 1]);
}

#[tokio::test]
async fn an_observer_that_was_too_slow_observes_again() {
    let bridge = Bridge::start().await;
    let slow = bridge::refusal(tonic::Code::ResourceExhausted, "OBSERVER_TOO_SLOW", "was not read", &[]);
    bridge.will_show([Observation::answers([vec![event(1)]]).then(slow), Observation::answers([vec![ended(2)]])]);
    let (sequences, error) = observe(&connected(&bridge).await, 0).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(sequences, [1, 2]);
}

#[tokio::test]
async fn a_reason_ends_an_observation() {
    let bridge = Bridge::start().await;
    let stale = bridge::refusal(tonic::Code::FailedPrecondition, "ASSIGNMENT_STALE", "taken over", &[]);
    bridge.will_show([Observation::answers([vec![event(1)]]).then(stale)]);
    let (sequences, error) = observe(&connected(&bridge).await, 0).await;
    assert_eq!(sequences, [1]);
    assert_eq!(error.unwrap().reason(), Some(v1::Reason::AssignmentStale));
}

#[tokio::test]
async fn an_observation_that_stays_lost_is_given_up() {
    let bridge = Bridge::start().await;
    let client = connected(&bridge).await.with_patience(Duration::from_millis(30));
    bridge.will_show([
        Observation::refused(tonic::Status::unavailable("first")),
        Observation::refused(tonic::Status::unavailable("second")),
    ]);
    let (sequences, error) = observe(&client, 0).await;
    assert!(sequences.is_empty());
    assert!(error.unwrap().to_string().contains("second"));
}

#[tokio::test]
async fn gaps_and_repetitions_are_errors() {
    for (after, shown, expected, found) in [
        (0, vec![event(1), event(3)], 2, 3),
        (0, vec![event(1), event(1)], 2, 1),
        (4, vec![event(4)], 5, 4),
        (0, vec![event(2)], 1, 2),
        (0, vec![omitted(2, 3)], 1, 3),
        (3, vec![omitted(1, 3)], 4, 3),
    ] {
        let bridge = Bridge::start().await;
        bridge.will_show([Observation::answers([shown])]);
        let (_, error) = observe(&connected(&bridge).await, after).await;
        let error = error.unwrap();
        assert!(
            matches!(&error, Error::Sequence { expected: e, found: f } if (*e, *f) == (expected, found)),
            "after {after}: {error}"
        );
    }
}

#[tokio::test]
async fn omitted_events_leave_no_gap() {
    let bridge = Bridge::start().await;
    bridge.will_show([Observation::answers([vec![omitted(1, 7), event(8), ended(9)]])]);
    let (sequences, error) = observe(&connected(&bridge).await, 5).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(sequences, [7, 8, 9]);
}

#[tokio::test]
async fn a_lost_preparation_is_attached_to_again() {
    let bridge = Bridge::start().await;
    let session = session(&bridge).await;
    let ready = session.prepare(v1::ExecutionConfiguration::default(), Vec::new()).await.unwrap();
    assert_eq!(ready.handle, "h");
    let [first, second] = bridge.preparations().try_into().unwrap();
    assert_eq!(first, second);
    session.prepare(v1::ExecutionConfiguration::default(), Vec::new()).await.unwrap();
    assert_ne!(bridge.preparations().last(), Some(&first), "another preparation has another id");
}

#[tokio::test]
async fn a_session_goes_from_bind_to_release() {
    let bridge = Bridge::start().await;
    let session = session(&bridge).await;
    assert_eq!(session.directory(), "/canonical");
    let ready = v1::Ready { handle: "h".into(), ..Default::default() };
    // The scripted bridge loses the first answer.
    let started = session.start(&ready, "t", text_input("hello")).await.unwrap();
    assert!(started.duplicate);
    bridge.will_show([Observation::answers([vec![ended(1)]])]);
    assert!(session.turn_events("t").next().await.unwrap().is_some());
    let outcomes = session.submit(vec![v1::FunctionResult::default()]).await.unwrap();
    assert_eq!(outcomes.len(), 1);
    assert_eq!(session.acknowledge("t", 1).await.unwrap(), 1);
    session.release(true).await.unwrap();
    assert_eq!(bridge.released(), [4]);
}

async fn session(bridge: &Bridge) -> Session {
    let none = v1::bind_assignment_request::Placement::None(v1::NoPlacement {});
    Session::bind(connected(bridge).await, fence(), none).await.unwrap()
}

#[tokio::test]
async fn a_payload_is_what_its_reference_tells() {
    let bridge = Bridge::start().await;
    let session = session(&bridge).await;
    let reference = |payload_id: &str, text: &str| v1::PayloadRef {
        payload_id: payload_id.into(),
        size: text.len() as u64,
        sha256: Sha256::digest(text).to_vec(),
    };
    assert_eq!(session.payload("t", &reference("1.0", "abc")).await.unwrap(), b"abc");
    for (payload_id, text) in [("1.0", "abd"), ("1.0", "ab"), ("1.0", "abcd"), ("moved", "abc")] {
        let error = session.payload("t", &reference(payload_id, text)).await.unwrap_err();
        assert!(matches!(error, Error::Payload { .. }), "{payload_id} {text}: {error:?}");
    }
}
