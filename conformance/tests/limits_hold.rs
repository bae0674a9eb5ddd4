//! Limits of the daemon that no other scenario reaches: how many requests wait for one Session, how large a batch and a result may be, how many
//! streams a connection carries, how long the path of a socket is (R-API-4, R-FN-5).

use std::time::Duration;

use anyhow::Context;
use conformance::child::codex;
use conformance::child::fault::FUNCTION;
use conformance::rig::{Daemon, Ended, Observed, Setup, function, refusal, scenario, text_result};
use futures_util::future::{join_all, try_join_all};
use proto::client::{Client, Error, Session, text_input};
use proto::v1::{self, Reason, ResultOutcome};
use tokio::time;

/// Why one Harness is enough.
const OWN: &str = "these limits are of the daemon and its socket";

/// Requests that are sent at once to one Session, several times what may wait for it.
const AT_ONCE: usize = 1000;
/// How often they are sent until one finds no room.
const WAVES: usize = 20;

fn faulty(program: conformance::script::child::Program) -> Setup {
    Setup::faulty(program).bridge(OWN)
}

#[test]
fn requests_that_find_no_room_are_told_when_to_come_again() {
    scenario("limit_inbox", &["R-API-4", "R-API-8"], faulty(codex::healthy()), async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        let client = rig.client().await?.with_patience(Duration::ZERO);
        let acknowledge = |through_sequence| {
            let assignment = Some(session.assignment().clone());
            client.acknowledge_events(v1::AcknowledgeEventsRequest {
                assignment,
                turn_id: "t-1".into(),
                through_sequence,
            })
        };
        let mut full = None;
        for _ in 0..WAVES {
            for answer in join_all((0..AT_ONCE).map(|_| acknowledge(1))).await {
                match answer {
                    Ok(answer) => assert_eq!(answer.through_sequence, 1),
                    Err(error) => full = Some(error),
                }
            }
            if full.is_some() {
                break;
            }
        }
        let refused = refusal(Err::<(), _>(full.context("all of them found room")?), Reason::Overloaded).into_inner();
        assert!(refused.retry_after.is_some(), "{refused:?}");
        // It was none of the Session's business: nothing is lost, and the same request is answered.
        assert_eq!(acknowledge(2).await?.through_sequence, 2);
        assert_eq!(session.turn("t-1").await?.ended.as_ref(), Some(seen.end()?));
        rig.whole_turn(&session, "t-2", "again").await?.completed()
    });
}

#[test]
fn the_largest_batch_and_the_largest_result_are_taken_and_no_larger_ones() {
    scenario("limit_results", &["R-FN-5", "R-API-7"], faulty(codex::calling(r#"{"q":"life"}"#)), async |rig| {
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(vec![function(FUNCTION, "{}")])).await?;
        session.start(&ready, "t-1", text_input("hello")).await?;
        let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
        let call = seen.call(&mut events).await?;
        let batch = |count: usize| (0..count).map(|n| text_result("t-1", &format!("c-{n}"), "x")).collect::<Vec<_>>();
        refusal(session.submit(batch(1025)).await, Reason::InvalidRequest).at("results").says("1024");
        // So many are judged one by one: none of these calls is there.
        refusal(session.submit(batch(1024)).await, Reason::UnknownCall).at("results[0]");
        let largest = "r".repeat(8 << 20);
        let larger = session.submit(vec![text_result("t-1", &call.call_id, &format!("{largest}r"))]).await;
        refusal(larger, Reason::InvalidResult).at("results[0].output").says("8 MiB");
        assert_eq!(session.turn("t-1").await?.required_actions.len(), 1, "nothing is consumed");
        let taken = session.submit(vec![text_result("t-1", &call.call_id, &largest)]).await?;
        assert_eq!(taken[0].outcome(), ResultOutcome::Accepted);
        seen.to_the_end(&mut events).await?.completed()
    });
}

/// One more stream than a connection carries waits for one of them to end; another connection is not concerned.
#[test]
fn a_connection_carries_so_many_streams_and_another_one_is_free() {
    scenario("limit_streams", &["R-API-8"], faulty(codex::healthy()), async |rig| {
        let watch = async |client: &Client| -> Result<_, Error> {
            let mut stream = client.watch_runtime(v1::WatchRuntimeRequest {}).await?;
            stream.next().await?;
            Ok(stream)
        };
        let client = rig.client().await?;
        let mut held = try_join_all((0..1024).map(|_| watch(&client))).await?;
        let more = time::timeout(Duration::from_millis(300), watch(&client)).await;
        assert!(more.is_err(), "a stream above the limit was opened");
        rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        watch(&rig.client().await?).await?;
        drop(held.pop());
        watch(&client).await?;
        Ok(())
    });
}

#[test]
fn a_path_that_no_socket_can_have_stops_the_daemon_with_the_limit() {
    scenario("limit_socket", &["R-SEC-1"], faulty(codex::healthy()), async |rig| {
        rig.daemon.terminate().await?;
        let config = std::fs::read_to_string(rig.place().config())?;
        let socket = format!("{:?}", rig.place().socket());
        let long = format!("{:?}", rig.place().root().join("s".repeat(108)));
        std::fs::write(rig.place().config(), config.replace(&socket, &long))?;
        rig.daemon = Daemon::spawn(rig.place())?;
        assert_eq!(rig.daemon.wait(Duration::from_secs(20)).await?, Ended::Code(17));
        assert!(rig.daemon.log_text().contains("107"), "{}", rig.daemon.log_tail());
        Ok(())
    });
}

/// What is too large for a message is refused before anything looks at it, and the connection goes on.
#[test]
fn a_request_above_the_limit_has_no_effect() {
    scenario("limit_request", &["R-API-7"], faulty(codex::healthy()), async |rig| {
        let bound = rig.session().await?;
        // A request that is refused without a reason counts as lost, and is not sent again here.
        let client = rig.client().await?.with_patience(Duration::ZERO);
        let placement = rig.target(&bound).placement.context("no placement")?;
        let session = Session::bind(client, bound.assignment().clone(), placement).await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        let start = async |bytes: usize| session.start(&ready, "t-1", text_input("x".repeat(bytes))).await;
        // Below the limit the content is judged.
        refusal(start(63 << 20).await, Reason::InvalidRequest).at("input");
        let above = start(65 << 20).await;
        let above = above.err().context("a request of 65 MiB was taken")?;
        assert_ne!(above.reason(), Some(Reason::InvalidRequest), "{above}");
        assert_eq!(session.turn("t-1").await.err().and_then(|error| error.reason()), Some(Reason::NotFound));
        session.start(&ready, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()
    });
}
