//! Room for Executors (R-PRE-3): how many there may be, which idle one makes room, and when one closes by itself.

use std::time::Duration;

use anyhow::Context;
use conformance::child::codex;
use conformance::rig::{Rig, Setup, Stands, refusal, refused, scenario};
use proto::client::{Client, Session};
use proto::v1::{self, ExecutorState, Load, Reason, watch_runtime_response::News};
use tokio::task::JoinSet;

#[test]
fn the_longest_idle_executor_makes_room() {
    scenario("capacity_longest_idle", &["R-PRE-1", "R-PRE-3"], limited(&rooms(2)), async |rig| {
        let (a, b, c) = (rig.session().await?, rig.session().await?, rig.session().await?);
        let (of_a, of_b) = (prepare(rig, &a).await?, prepare(rig, &b).await?);
        // Handles that are not used yet keep their room.
        let refused = refusal(c.prepare(rig.configuration(Vec::new()), Vec::new()).await, Reason::PreparationCapacity);
        refused.with("max_executors", "2");
        give_back(rig, &b, &of_b).await?;
        give_back(rig, &a, &of_a).await?;
        let of_c = prepare(rig, &c).await?;
        assert!(!of_c.reused);
        assert_eq!(states(rig, [&a, &b, &c]).await?, [ExecutorState::Idle, ExecutorState::None, ExecutorState::Idle]);
        let again = prepare(rig, &a).await?;
        assert!(again.reused && again.executor_id == of_a.executor_id, "the younger one was kept");
        // Now both rooms have unused handles again.
        let refused = b.prepare(rig.configuration(Vec::new()), Vec::new()).await;
        refusal(refused, Reason::PreparationCapacity);
        // The Turn of a room that was made for it is like any other.
        c.start(&of_c, "t-1", proto::client::text_input("hello")).await?;
        conformance::rig::Observed::default().to_the_end(&mut c.turn_events("t-1")).await?.completed()?;
        give_back(rig, &a, &again).await?;
        // Idle since the end of its Turn, and that is longer.
        let of_b = prepare(rig, &b).await?;
        assert_eq!(states(rig, [&a, &b, &c]).await?, [ExecutorState::Idle, ExecutorState::Idle, ExecutorState::None]);
        assert_eq!(load(rig).await?, Load { executors_idle: 2, max_executors: 2, ..Default::default() });
        // The Session that lost its Executor goes on with its history, in a room that is made for it again.
        give_back(rig, &b, &of_b).await?;
        let native = c.turn("t-1").await?.native.context("no native identity")?.session_id;
        let resumed = rig.resume(&c, rig.configuration(Vec::new()), &native).await?;
        c.start(&resumed, "t-2", proto::client::text_input("hello again")).await?;
        let seen = conformance::rig::Observed::default().to_the_end(&mut c.turn_events("t-2")).await?;
        seen.completed()?;
        assert_eq!(seen.native_session()?, native);
        assert_eq!(states(rig, [&a, &b, &c]).await?, [ExecutorState::None, ExecutorState::Idle, ExecutorState::Idle]);
        Ok(())
    });
}

#[test]
fn an_executor_that_is_idle_for_long_closes() {
    let setup = limited("[limits]\nidle_ms = 300\nwatch_ms = 20");
    scenario("capacity_idle", &["R-PRE-2", "R-PRE-3"], setup, async |rig| {
        let session = rig.session().await?;
        let ready = prepare(rig, &session).await?;
        give_back(rig, &session, &ready).await?;
        closes(rig, &session).await?;
        refused(session.start(&ready, "t-1", proto::client::text_input("hello")).await, Reason::HandleExpired)?;
        // A handle that is not used yet keeps its Executor, however long it takes.
        let again = prepare(rig, &session).await?;
        assert_ne!(again.executor_id, ready.executor_id);
        session.start(&again, "t-1", proto::client::text_input("hello")).await?;
        conformance::rig::Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
        closes(rig, &session).await?;
        // What it had is not lost.
        let native = session.turn("t-1").await?.native.context("no native identity")?.session_id;
        let resumed = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
        session.start(&resumed, "t-2", proto::client::text_input("hello again")).await?;
        conformance::rig::Observed::default().to_the_end(&mut session.turn_events("t-2")).await?.completed()
    });
}

#[test]
fn an_executor_whose_handle_has_expired_is_idle() {
    let setup = limited("[limits]\nidle_ms = 200\nhandle_life_ms = 200\nwatch_ms = 20");
    scenario("capacity_expired", &["R-PRE-2", "R-PRE-3"], setup, async |rig| {
        let session = rig.session().await?;
        let ready = prepare(rig, &session).await?;
        closes(rig, &session).await?;
        refused(session.start(&ready, "t-1", proto::client::text_input("hello")).await, Reason::HandleExpired)?;
        Ok(())
    });
}

#[test]
fn two_sessions_race_for_one_room() {
    scenario("capacity_race", &["R-PRE-3"], limited(&rooms(1)), async |rig| {
        let (a, b, c) = (rig.session().await?, rig.session().await?, rig.session().await?);
        let ready = prepare(rig, &a).await?;
        give_back(rig, &a, &ready).await?;
        let client = rig.client().await?;
        let (of_b, of_c) = tokio::join!(client.prepare(preparation(rig, &b)), client.prepare(preparation(rig, &c)));
        let (won, lost) = match (of_b, of_c) {
            (Ok(ready), Err(error)) => ((&b, ready), (&c, error)),
            (Err(error), Ok(ready)) => ((&c, ready), (&b, error)),
            both => anyhow::bail!("one of them was due: {both:?}"),
        };
        refused(Err::<(), _>(lost.1), Reason::PreparationCapacity)?;
        assert_eq!(states(rig, [&a, won.0]).await?, [ExecutorState::None, ExecutorState::Idle]);
        won.0.start(&won.1, "t-1", proto::client::text_input("hello")).await?;
        conformance::rig::Observed::default().to_the_end(&mut won.0.turn_events("t-1")).await?.completed()?;
        // Idle again, it makes room for the very preparation that was refused.
        client.prepare(preparation(rig, lost.0)).await?;
        Ok(())
    });
}

#[test]
fn of_300_preparations_at_once_as_many_succeed_as_there_is_room() {
    const ROOMS: usize = 4;
    let setup = Setup { stands: Stands::Faulty(Box::new(codex::healthy())), ..limited(&rooms(ROOMS)) };
    scenario("capacity_300", &["R-PRE-3", "R-API-8"], setup, async |rig| {
        let connections = [rig.client().await?, rig.client().await?, rig.client().await?];
        let mut binding = JoinSet::new();
        for number in 0..300 {
            let session = bind(connections[number % 3].clone(), rig, number);
            binding.spawn(session);
        }
        let sessions = binding.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut preparing = JoinSet::new();
        for session in &sessions {
            let (session, configuration) = (session.clone(), rig.configuration(Vec::new()));
            preparing.spawn(async move {
                let prepared = session.prepare(configuration, Vec::new()).await;
                (session, prepared)
            });
        }
        let mut ready = Vec::new();
        for (session, prepared) in preparing.join_all().await {
            match prepared {
                Ok(granted) => ready.push((session, granted)),
                Err(error) => drop(refusal(Err::<(), _>(error), Reason::PreparationCapacity)),
            }
        }
        assert_eq!(ready.len(), ROOMS);
        let full = Load { executors_idle: 4, max_executors: 4, ..Default::default() };
        assert_eq!(load(rig).await?, full);
        // Idle ones make room for as many again, and no more.
        for (session, granted) in &ready {
            give_back(rig, session, granted).await?;
        }
        let others: Vec<_> = sessions.iter().filter(|one| !has(&ready, one)).take(ROOMS + 3).cloned().collect();
        let mut preparing = JoinSet::new();
        for session in others {
            let configuration = rig.configuration(Vec::new());
            preparing.spawn(async move { session.prepare(configuration, Vec::new()).await });
        }
        let granted = preparing.join_all().await;
        assert_eq!(granted.iter().filter(|prepared| prepared.is_ok()).count(), ROOMS);
        granted.into_iter().filter(Result::is_err).for_each(|lost| drop(refusal(lost, Reason::PreparationCapacity)));
        assert_eq!(load(rig).await?, full);
        // Nothing leaks: when all are released, all room is there.
        let mut releasing = JoinSet::new();
        for session in sessions {
            releasing.spawn(async move { session.release(true).await });
        }
        for released in releasing.join_all().await {
            assert_eq!(released?.outcome(), v1::ReleaseOutcome::Confirmed);
        }
        assert_eq!(load(rig).await?, Load { max_executors: 4, ..Default::default() });
        rig.only(&[]).await
    });
}

/// A daemon with these lines in its configuration.
fn limited(more: &str) -> Setup {
    Setup::outer().bridge("the bridge alone counts Executors and picks the one that makes room").with(more)
}

fn rooms(rooms: usize) -> String {
    format!("max_executors = {rooms}")
}

fn has(ready: &[(Session, v1::Ready)], session: &Session) -> bool {
    ready.iter().any(|(one, _)| one.assignment().session_id == session.assignment().session_id)
}

async fn prepare(rig: &Rig, session: &Session) -> anyhow::Result<v1::Ready> {
    rig.prepare(session, rig.configuration(Vec::new())).await
}

/// A preparation under an id that stays the same.
fn preparation(rig: &Rig, session: &Session) -> v1::PrepareExecutionRequest {
    v1::PrepareExecutionRequest {
        assignment: Some(session.assignment().clone()),
        preparation_id: "p-1".into(),
        configuration: Some(rig.configuration(Vec::new())),
        credentials: Vec::new(),
        resume: None,
    }
}

async fn give_back(rig: &Rig, session: &Session, ready: &v1::Ready) -> anyhow::Result<()> {
    let (assignment, handle) = (Some(session.assignment().clone()), ready.handle.clone());
    rig.client().await?.release_preparation(v1::ReleasePreparationRequest { assignment, handle }).await?;
    Ok(())
}

/// Waits until the Executor of the only Session that has one is closed; the heartbeats give the rhythm.
async fn closes(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let mut rhythm = rig.client().await?.watch_runtime(v1::WatchRuntimeRequest {}).await?;
    while states(rig, [session]).await? != [ExecutorState::None] {
        rhythm.next().await?;
    }
    rig.only(&[]).await
}

async fn states<const N: usize>(rig: &Rig, sessions: [&Session; N]) -> anyhow::Result<[ExecutorState; N]> {
    let mut states = [ExecutorState::Unspecified; N];
    for (state, session) in states.iter_mut().zip(sessions) {
        let session_id = Some(session.assignment().session_id.clone());
        let request = v1::ListSessionsRequest { session_id, ..Default::default() };
        let listed = rig.client().await?.list_sessions(request).await?.sessions;
        *state = listed.first().context("it is not listed")?.executor();
    }
    Ok(states)
}

/// The load at this moment.
async fn load(rig: &Rig) -> anyhow::Result<Load> {
    let mut watch = rig.client().await?.watch_runtime(v1::WatchRuntimeRequest {}).await?;
    loop {
        let message = watch.next().await?.context("the bridge left")?;
        if let Some(News::Heartbeat(heartbeat)) = message.news {
            return heartbeat.load.context("a heartbeat without a load");
        }
    }
}

fn bind(
    client: Client,
    rig: &Rig,
    number: usize,
) -> impl Future<Output = Result<Session, proto::client::Error>> + Send + use<> {
    let assignment = v1::AssignmentRef { session_id: format!("s-{number}"), assignment_id: "a-1".into(), epoch: 1 };
    let directory = rig.workspace().to_string_lossy().into_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    let placement = v1::bind_assignment_request::Placement::Workspace(workspace);
    Session::bind(client.with_patience(Duration::ZERO), assignment, placement)
}
