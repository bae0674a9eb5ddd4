//! The daemon is killed at moments that a seed picks: whatever was acknowledged before is there after it (R-DUR-1, R-DUR-2, R-API-6).

use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use conformance::child::fault::FUNCTION;
use conformance::for_each_harness;
use conformance::rig::{Daemon, Harness, MODEL_KEY, Observed, Rig, Setup, function, scenario, text_result};
use proto::client::{Client, Session, text_input};
use proto::v1::{self, Reason, ResultOutcome, event::Kind};
use tokio::sync::Notify;
use tokio::time;

for_each_harness!(nothing_acknowledged_is_lost_whenever_the_daemon_is_killed);

/// How many times the daemon is killed.
const ROUNDS: u64 = 40;
/// The same where there is more time (`RUNTIME_BRIDGE_LONG`).
const LONG: u64 = 200;
/// The latest moment of a kill; a whole Turn takes less.
const LATEST_MS: u64 = 220;

/// What a Core was told before the daemon was gone.
#[derive(Debug, Default)]
struct Told {
    bound: bool,
    handle: Option<v1::Ready>,
    started: bool,
    /// A result was sent.
    sent: bool,
    /// And it was acknowledged.
    accepted: bool,
    events: Vec<v1::Event>,
}

/// A Core that does one Turn, says when its result is acknowledged, and remembers what it was told. It gives up at the first thing that is lost.
async fn core(rig: &Rig, client: Client, id: &str, told: &mut Told, answered: &Notify) -> anyhow::Result<()> {
    let session = bind(rig, client, id).await?;
    told.bound = true;
    let key = vec![v1::Credential { name: "model".into(), value: MODEL_KEY.into() }];
    let ready = session.prepare(rig.configuration(vec![function(FUNCTION, "{}")]), key).await?;
    told.handle = Some(ready.clone());
    session.start(&ready, "t-1", text_input(id)).await?;
    told.started = true;
    let mut events = session.turn_events("t-1");
    while let Some(event) = events.next().await? {
        let call = match &event.kind {
            Some(Kind::FunctionCall(call)) => Some(call.call_id.clone()),
            _ => None,
        };
        told.events.push(event);
        if let Some(call_id) = call {
            told.sent = true;
            session.submit(vec![text_result("t-1", &call_id, id)]).await?;
            told.accepted = true;
            answered.notify_one();
        }
    }
    Ok(())
}

async fn bind(rig: &Rig, client: Client, id: &str) -> anyhow::Result<Session> {
    let fence = v1::AssignmentRef { session_id: id.into(), assignment_id: "a-1".into(), epoch: 3 };
    let directory = rig.workspace().to_string_lossy().into_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    Ok(Session::bind(client, fence, v1::bind_assignment_request::Placement::Workspace(workspace)).await?)
}

/// What was told is true, whatever was not.
async fn holds(rig: &Rig, id: &str, told: &Told) -> anyhow::Result<()> {
    let fence = v1::AssignmentRef { session_id: id.into(), assignment_id: "a-1".into(), epoch: 3 };
    let request = v1::GetTurnRequest { assignment: Some(fence), turn_id: "t-1".into() };
    let client = rig.client().await?;
    let turn = client.get_turn(request).await;
    if let Err(error) = &turn {
        let refusal = error.refusal().with_context(|| format!("{error}"))?;
        let field = refusal.fields.first().map(|field| field.path.as_str());
        anyhow::ensure!(refusal.reason == Some(Reason::NotFound), "{refusal}");
        anyhow::ensure!(!told.bound || field == Some("turn_id"), "the Session is lost: {refusal}");
        anyhow::ensure!(!told.started, "the Turn is lost: {refusal}");
    }
    let session = bind(rig, client, id).await?;
    let Ok(turn) = turn else { return Ok(()) };
    let turn = turn.turn.context("no Turn")?;
    let ended = turn.ended.clone().context("it goes on")?;
    let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
    whole.check_order()?;
    anyhow::ensure!(whole.events.starts_with(&told.events), "events changed: {:?}\n{:?}", told.events, whole.events);
    anyhow::ensure!(whole.end()? == &ended && turn.last_sequence == whole.events.len() as u64, "{turn:?}");
    let lost = (v1::TurnStatus::Unknown, Some(v1::EndCause::ExecutionLost.into()));
    let ends = [(v1::TurnStatus::Completed, None), lost];
    anyhow::ensure!(ends.contains(&(ended.status(), ended.cause)), "{ended:?}");
    // The start is known to whoever asks again, and so is a result.
    let ready = told.handle.clone().unwrap_or_default();
    anyhow::ensure!(session.start(&ready, "t-1", text_input(id)).await?.duplicate, "it was started twice");
    let call = told.events.iter().find_map(|event| match &event.kind {
        Some(Kind::FunctionCall(call)) => Some(call.call_id.clone()),
        _ => None,
    });
    let Some(call_id) = call else { return Ok(()) };
    let again = session.submit(vec![text_result("t-1", &call_id, id)]).await;
    match again.as_ref().map(|outcomes| outcomes[0].outcome()).map_err(proto::client::Error::reason) {
        Ok(ResultOutcome::Duplicate) => anyhow::ensure!(told.sent, "a result that nobody sent"),
        Err(Some(Reason::CallAbandoned)) => anyhow::ensure!(!told.accepted, "an acknowledged result is lost"),
        other => anyhow::bail!("{other:?}"),
    }
    if told.accepted {
        let other = session.submit(vec![text_result("t-1", &call_id, "another")]).await;
        let reason = other.as_ref().err().and_then(proto::client::Error::reason);
        anyhow::ensure!(reason == Some(Reason::ResultConflict), "{other:?}");
    }
    Ok(())
}

/// The next number of a sequence that looks like chance and is the same in every run.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn nothing_acknowledged_is_lost_whenever_the_daemon_is_killed(harness: Harness) {
    let rounds = if std::env::var_os("RUNTIME_BRIDGE_LONG").is_some() { LONG } else { ROUNDS };
    let program = harness.calling(r#"{"q":"life"}"#);
    let setup = Setup::faulty(program).of(harness);
    scenario("crash_seeded", &["R-DUR-1", "R-DUR-2", "R-API-6", "R-CAN-4"], setup, async |rig| {
        let mut seed = 20_261_130;
        let mut all = Vec::new();
        for round in 0..rounds {
            let id = format!("s-{round}");
            let moment = Duration::from_millis(next(&mut seed) % LATEST_MS);
            let client = rig.client().await?.with_patience(Duration::ZERO);
            let family = rig.family()?;
            let mut told = Told::default();
            {
                let shown: &Rig = rig;
                let answered = Notify::new();
                let mut work = pin!(core(shown, client, &id, &mut told, &answered));
                let begins = async {
                    // A busy machine does not come so far in the time of a Turn.
                    if round % 4 == 3 {
                        answered.notified().await;
                    }
                };
                let over = tokio::select! {
                    _ = &mut work => true,
                    () = begins => time::timeout(moment, &mut work).await.is_ok(),
                };
                let pid = shown.daemon.pid();
                kill(pid)?;
                if !over {
                    // What is lost ends it; what came in before counts.
                    _ = work.await;
                }
            }
            rig.daemon.wait(Duration::from_secs(10)).await?;
            rig.all_gone(&family).await?;
            rig.daemon = Daemon::start(rig.place()).await?;
            holds(rig, &id, &told)
                .await
                .with_context(|| format!("round {round}, killed after {moment:?}: {told:?}"))?;
            all.push((id, told));
        }
        // Also many starts later.
        for (id, told) in &all {
            holds(rig, id, told).await.with_context(|| format!("{id} at the end"))?;
        }
        let (started, results) = (all.iter().filter(|(_, t)| t.started), all.iter().filter(|(_, t)| t.accepted));
        let (started, results) = (started.count(), results.count());
        anyhow::ensure!(started > 0 && results > 0, "no kill came late: {started} starts, {results} results");
        Ok(())
    });
}

fn kill(pid: u32) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).context("no process id")?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::KILL)?)
}
