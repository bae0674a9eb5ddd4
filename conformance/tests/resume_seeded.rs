//! The daemon is killed at moments that a seed picks, in Turns of a real Harness on one Session: after each kill the Session goes on with its
//! history, every Turn that is said to have completed stands in it once, and none stands in it twice (R-DUR-2, R-PRE-4).

use std::time::Duration;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::provider::Recorded;
use conformance::rig::{Daemon, Harness, MODEL_KEY, Observed, Rig, Setup, is_long, scenario};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason, TurnStatus};
use tokio::time;

for_each_harness!(the_session_goes_on_whenever_the_daemon_is_killed);

/// How many times the daemon is killed; fewer where each start of the Harness takes seconds, since each round has one.
fn rounds(harness: Harness) -> u64 {
    match harness {
        Harness::Codex => 6,
        Harness::ClaudeCode => 4,
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    }
}

/// The same where there is more time (`RUNTIME_BRIDGE_LONG`).
const LONG: u64 = 40;
/// The latest moment of a kill behind the answer to the start; a whole Turn takes less on an idle machine.
const LATEST_MS: u64 = 160;

/// Prepares as a Core does that was told nothing: the refusal names the history, where there is one.
async fn prepared(rig: &Rig, session: &Session) -> anyhow::Result<v1::Ready> {
    let key = || vec![v1::Credential { name: "model".into(), value: MODEL_KEY.into() }];
    let error = match session.prepare(rig.configuration(Vec::new()), key()).await {
        Ok(ready) => return Ok(ready),
        Err(error) => error,
    };
    let refusal = error.refusal().filter(|refusal| refusal.reason == Some(Reason::NativeHistoryUnavailable));
    let native =
        refusal.and_then(|refusal| refusal.metadata.get("native_session_id")).with_context(|| format!("{error}"))?;
    Ok(session.resume(rig.configuration(Vec::new()), key(), native).await?)
}

/// How often a text is an input of the user in what the model was sent.
fn times(request: &Recorded, prompt: &str) -> usize {
    request.user_texts().iter().filter(|text| *text == prompt).count()
}

fn the_session_goes_on_whenever_the_daemon_is_killed(harness: Harness) {
    let rules = ["R-DUR-2", "R-PRE-4", "R-EVT-3", "R-STA-2"];
    let setup = Setup::outer().of(harness).needing(v1::Capability::SessionResume);
    scenario("resume_seeded", &rules, setup, async |rig| {
        let rounds = if is_long() { LONG } else { rounds(harness) };
        let session = rig.session().await?;
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        let mut ends = Vec::new();
        for round in 0..rounds {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let after = Duration::from_millis((seed >> 33) % LATEST_MS);
            let turn_id = format!("t-{round}");
            let ready = prepared(rig, &session).await.with_context(|| format!("round {round}: {ends:?}"))?;
            session.start(&ready, &turn_id, text_input(format!("prompt {round}"))).await?;
            let mut events = session.turn_events(&turn_id);
            let mut seen = Observed::default();
            let watching = async {
                while let Ok(Some(event)) = events.next().await {
                    seen.events.push(event);
                }
            };
            // The kill comes when it comes, whatever the Turn has done by then.
            _ = time::timeout(after, watching).await;
            let family = rig.family()?;
            rig.daemon.kill().await?;
            rig.all_gone(&family).await?;
            rig.daemon = Daemon::start(rig.place()).await?;

            let end = session.turn(&turn_id).await?.ended.with_context(|| format!("round {round} goes on"))?;
            let whole = Observed::default().to_the_end(&mut session.turn_events(&turn_id)).await?;
            anyhow::ensure!(
                whole.events[..seen.events.len()] == seen.events,
                "round {round}: what was seen is not there"
            );
            anyhow::ensure!(whole.end()? == &end, "round {round}: two ends");
            if let Ok(told) = seen.end() {
                anyhow::ensure!(told == &end && !end.reconciled, "round {round}: another end than was told");
            }
            let fits = match end.status() {
                TurnStatus::Completed => whole.messages() == [format!("prompt {round}")],
                TurnStatus::Unknown => !end.reconciled,
                _ => false,
            };
            anyhow::ensure!(fits, "round {round}: {whole:#?}");
            ends.push((round, end.status(), end.reconciled));
        }
        let ready = prepared(rig, &session).await?;
        rig.turn_with(&session, &ready, "t-last", "the last one").await?.completed()?;
        let requests = rig.provider.model_requests();
        let last = requests.last().context("no request")?;
        for (round, status, _) in &ends {
            let times = times(last, &format!("prompt {round}"));
            let fits = if *status == TurnStatus::Completed { times == 1 } else { times <= 1 };
            anyhow::ensure!(fits, "round {round} stands {times} times in the history: {ends:?}");
        }
        Ok(())
    });
}
