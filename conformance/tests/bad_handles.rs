//! Preparations, handles and starts that do not fit: each has its own answer, and identity is looked at first (R-API-6, R-PRE-2, R-PRE-7).

use std::time::{Duration, SystemTime};

use anyhow::Context;
use conformance::child::codex;
use conformance::child::fault::Place;
use conformance::rig::{MODEL_KEY, Rig, Setup, refusal, scenario};
use conformance::script::child::{Program, Step};
use proto::client::{Error, Session, text_input};
use proto::v1::{self, Reason, prepare_execution_response::Progress};
use tokio::time;

/// Why one Harness is enough.
const OWN: &str = "handles and identities are the bridge's own";

fn with(program: Program) -> Setup {
    Setup::faulty(program).bridge(OWN)
}

/// A Turn that stays in its first message until the gate `go` is open.
fn held() -> Setup {
    with(codex::with_steps(Place::InMessage, &[Step::Gate("go".into())]))
}

/// A preparation under an id of the scenario's own.
fn preparation(rig: &Rig, session: &Session, id: &str) -> v1::PrepareExecutionRequest {
    v1::PrepareExecutionRequest {
        assignment: Some(session.assignment().clone()),
        preparation_id: id.into(),
        configuration: Some(rig.configuration(Vec::new())),
        credentials: vec![v1::Credential { name: "model".into(), value: MODEL_KEY.into() }],
        resume: None,
    }
}

async fn give_back(rig: &Rig, session: &Session, handle: &str) -> anyhow::Result<Result<(), Error>> {
    let assignment = Some(session.assignment().clone());
    let request = v1::ReleasePreparationRequest { assignment, handle: handle.into() };
    Ok(rig.client().await?.release_preparation(request).await.map(drop))
}

#[test]
fn a_handle_is_used_once() {
    scenario("bad_handle_used", &["R-PRE-2", "R-STA-1"], held(), async |rig| {
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        let unknown = v1::Ready { handle: "hdl_none".into(), ..ready.clone() };
        refusal(session.start(&unknown, "t-1", text_input("a")).await, Reason::HandleUnknown).at("handle");
        let empty = v1::Ready { handle: String::new(), ..ready.clone() };
        refusal(session.start(&empty, "t-1", text_input("a")).await, Reason::HandleUnknown).at("handle");
        assert!(!session.start(&ready, "t-1", text_input("a")).await?.duplicate);
        // Used up while the Turn runs, and after it.
        let used = session.start(&ready, "t-2", text_input("a")).await;
        refusal(used, Reason::HandleExpired).at("handle").says("was used");
        refusal(give_back(rig, &session, &ready.handle).await?, Reason::HandleExpired).at("handle").says("was used");
        let second = preparation(rig, &session, "p-2");
        refusal(rig.client().await?.prepare(second).await, Reason::SessionBusy).says("runs");
        rig.child.as_ref().context("a child")?.open_gate("go")?;
        let mut events = session.turn_events("t-1");
        while events.next().await?.is_some() {}
        let used = session.start(&ready, "t-2", text_input("a")).await;
        refusal(used, Reason::HandleExpired).at("handle").says("was used");
        refusal(session.turn("t-2").await, Reason::NotFound).at("turn_id");
        rig.whole_turn(&session, "t-3", "hello").await?.completed()
    });
}

#[test]
fn a_start_is_known_by_its_turn_before_anything_else_is_looked_at() {
    scenario("bad_start_twice", &["R-API-6", "R-STA-1"], held(), async |rig| {
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        assert!(!session.start(&ready, "t-1", text_input("a")).await?.duplicate);
        let wrong = v1::Ready { handle: "hdl_none".into(), ..ready.clone() };
        let text = |text: &str| text_input(text).remove(0);
        for over in [false, true] {
            for handle in [&ready, &wrong] {
                let again = session.start(handle, "t-1", text_input("a")).await?;
                assert!(again.duplicate);
                assert_eq!(again.turn.map(|turn| turn.ended.is_some()), Some(over));
                for other in [text_input("b"), text_input("a "), vec![text("a"), text("a")]] {
                    refusal(session.start(handle, "t-1", other).await, Reason::TurnConflict).at("turn_id");
                }
            }
            rig.child.as_ref().context("a child")?.open_gate("go")?;
            let mut events = session.turn_events("t-1");
            while events.next().await?.is_some() {}
        }
        // The border between the parts is content.
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        session.start(&ready, "t-2", vec![text("ab"), text("c")]).await?;
        let moved = session.start(&ready, "t-2", vec![text("a"), text("bc")]).await;
        refusal(moved, Reason::TurnConflict).at("turn_id");
        let mut events = session.turn_events("t-2");
        while events.next().await?.is_some() {}
        Ok(())
    });
}

#[test]
fn a_handle_expires_and_the_executor_is_used_again() {
    let setup = Setup { more: "limits.handle_life_ms = 6000".into(), ..with(codex::healthy()) };
    scenario("bad_handle_expired", &["R-PRE-2", "R-PRE-7"], setup, async |rig| {
        let session = rig.session().await?;
        let client = rig.client().await?;
        let ready = client.prepare(preparation(rig, &session, "p-1")).await?;
        // Looking at it again does not extend it.
        let again = client.prepare(preparation(rig, &session, "p-1")).await?;
        assert_eq!((&again.handle, again.expires_at), (&ready.handle, ready.expires_at));
        let expires = SystemTime::try_from(ready.expires_at.context("no expiry")?)?;
        let left = expires.duration_since(SystemTime::now()).unwrap_or_default();
        assert!(left <= Duration::from_secs(6), "{left:?}");
        time::sleep_until(time::Instant::now() + left).await;
        let expired = session.start(&ready, "t-1", text_input("a")).await;
        refusal(expired, Reason::HandleExpired).at("handle").says("expired");
        refusal(give_back(rig, &session, &ready.handle).await?, Reason::HandleExpired).at("handle").says("expired");
        let same = client.prepare(preparation(rig, &session, "p-1")).await;
        refusal(same, Reason::HandleExpired).at("preparation_id").says("another id");
        let fresh = client.prepare(preparation(rig, &session, "p-2")).await?;
        assert!(fresh.reused);
        assert_eq!(fresh.executor_id, ready.executor_id);
        session.start(&fresh, "t-1", text_input("a")).await?;
        Ok(())
    });
}

#[test]
fn a_handle_that_was_given_back_is_over() {
    scenario("bad_handle_released", &["R-PRE-2", "R-PRE-7"], with(codex::healthy()), async |rig| {
        let session = rig.session().await?;
        let client = rig.client().await?;
        let ready = client.prepare(preparation(rig, &session, "p-1")).await?;
        // A handle that is not used yet holds the Session.
        let second = client.prepare(preparation(rig, &session, "p-2")).await;
        refusal(second, Reason::SessionBusy).with("preparation_id", "p-1");
        refusal(give_back(rig, &session, "hdl_none").await?, Reason::HandleUnknown).at("handle");
        let other = rig.session().await?;
        refusal(give_back(rig, &other, &ready.handle).await?, Reason::HandleUnknown).at("handle");
        give_back(rig, &session, &ready.handle).await??;
        give_back(rig, &session, &ready.handle).await??;
        let over = session.start(&ready, "t-1", text_input("a")).await;
        refusal(over, Reason::HandleExpired).at("handle").says("given back");
        let same = client.prepare(preparation(rig, &session, "p-1")).await;
        refusal(same, Reason::HandleExpired).at("preparation_id");
        let fresh = client.prepare(preparation(rig, &session, "p-2")).await?;
        assert!(fresh.reused);
        assert_ne!(fresh.handle, ready.handle);
        Ok(())
    });
}

#[test]
fn a_preparation_is_attached_to_by_its_id() {
    let held = with(codex::with_steps(Place::AtThreadStart, &[Step::Gate("go".into())]));
    scenario("preparation_attached", &["R-PRE-7", "R-API-6"], held, async |rig| {
        let session = rig.session().await?;
        let client = rig.client().await?;
        let request = preparation(rig, &session, "p-1");
        let mut stream = client.prepare_execution(request.clone()).await?;
        let first = stream.next().await?.and_then(|message| message.progress).context("no progress")?;
        let Progress::Preparing(first) = first else { anyhow::bail!("ready too early: {first:?}") };
        // Ending the stream cancels nothing.
        drop(stream);
        let mut stream = client.prepare_execution(request.clone()).await?;
        let again = stream.next().await?.and_then(|message| message.progress).context("no progress")?;
        assert_eq!(again, Progress::Preparing(first.clone()));
        // Other content under the id is a conflict, while it runs and when it is done.
        let mut other = request.clone();
        if let Some(configuration) = &mut other.configuration {
            configuration.instructions = "other".into();
        }
        refusal(client.prepare(other.clone()).await, Reason::PreparationConflict).at("preparation_id");
        rig.child.as_ref().context("a child")?.open_gate("go")?;
        let ready = stream.next().await?.and_then(|message| message.progress).context("no progress")?;
        let Progress::Ready(ready) = ready else { anyhow::bail!("not ready: {ready:?}") };
        assert!(ready.executor_id == first.executor_id && ready.revision > first.revision && !ready.reused);
        assert!(stream.next().await?.is_none());
        refusal(client.prepare(other.clone()).await, Reason::PreparationConflict).at("preparation_id");
        let attached = client.prepare(request.clone()).await?;
        assert_eq!((&attached.handle, attached.expires_at), (&ready.handle, ready.expires_at));
        // Also when its handle is used.
        session.start(&attached, "t-1", text_input("a")).await?;
        assert_eq!(client.prepare(request).await?.handle, ready.handle);
        refusal(client.prepare(other).await, Reason::PreparationConflict).at("preparation_id");
        let app_servers = rig.child.iter().flat_map(|child| child.starts()).flatten();
        assert_eq!(app_servers.filter(|start| start.args[0] == "app-server").count(), 1);
        Ok(())
    });
}

#[test]
fn without_room_the_same_turn_can_be_tried_again_later() {
    let setup = Setup { more: "max_executors = 1".into(), ..with(codex::healthy()) };
    scenario("bad_capacity", &["R-PRE-1", "R-PRE-3"], setup, async |rig| {
        let (first, second) = (rig.session().await?, rig.session().await?);
        let client = rig.client().await?;
        assert_eq!(
            client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?.limits.map(|l| l.max_executors),
            Some(1)
        );
        rig.whole_turn(&first, "t-1", "hello").await?.completed()?;
        // With a handle that is not used yet, the Executor is not idle and makes no room.
        let ready = rig.prepare(&first, rig.configuration(Vec::new())).await?;
        let full = client.prepare(preparation(rig, &second, "p-1")).await;
        refusal(full, Reason::PreparationCapacity).with("max_executors", "1");
        first.start(&ready, "t-2", text_input("hello")).await?;
        // A release makes room, and the same preparation succeeds.
        let fence = v1::AssignmentRef { epoch: 2, ..first.assignment().clone() };
        let release = v1::ReleaseAssignmentRequest { assignment: Some(fence), remove_home: true, principal: None };
        let released = client.release_assignment(release).await?;
        assert_eq!(released.outcome(), v1::ReleaseOutcome::Confirmed, "{released:?}");
        let ready = client.prepare(preparation(rig, &second, "p-1")).await?;
        second.start(&ready, "t-1", text_input("hello")).await?;
        Ok(())
    });
}
