//! Turns of the real Harness that are cancelled at moments that a seed picks: each settles, in order and with nothing left, and the next one runs
//! on the same Executor (R-CAN-1, R-CAN-2, R-CAN-3, R-CAN-5).

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Process, Rig, Setup, function, is_long, scenario, text_result};
use proto::client::{Session, text_input};
use proto::v1::{self, CancelOutcome, EndCause, TurnStatus, event::Kind};
use tokio::sync::Notify;
use tokio::time;

for_each_harness!(a_cancel_at_any_moment_settles_and_the_executor_goes_on);

const ROUNDS: usize = 15;
/// The same where there is more time (`RUNTIME_BRIDGE_LONG`).
const LONG: usize = 200;
/// The latest moment of a cancel; a whole Turn takes about as long.
const LATEST_MS: u64 = 700;

/// A thought, a command that leaves something behind, a call, an answer.
const SCRIPT: &str = r#"[
    {"play": [{"reasoning": {"summary": ["Let me see."]}}, {"text": {"chunks": ["I ", "look."], "delay_ms": 5, "phase": "commentary"}},
              {"shell": {"command": "setsid sleep 7401 & echo up; sleep 0.05", "yield_ms": 250}}]},
    {"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
    {"play": [{"text": {"chunks": ["That ", "was ", "it."], "delay_ms": 5}}]}]"#;

/// The next number of a sequence that looks like chance and is the same in every run.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Follows a Turn to its end and answers its call; says when it has begun.
async fn followed(session: &Session, turn_id: &str, begun: &Notify) -> anyhow::Result<Observed> {
    let (mut events, mut seen) = (session.turn_events(turn_id), Observed::default());
    while let Some(event) = events.next().await? {
        let call = match &event.kind {
            Some(Kind::FunctionCall(call)) => Some(call.call_id.clone()),
            Some(Kind::TurnStarted(_)) => {
                begun.notify_one();
                None
            }
            _ => None,
        };
        seen.events.push(event);
        if let Some(call_id) = call {
            // The cancel may have come before it.
            _ = session.submit(vec![text_result(turn_id, &call_id, "found")]).await;
        }
    }
    seen.check_order()?;
    Ok(seen)
}

/// The moment of a cancel.
#[derive(Debug, Clone, Copy)]
struct Moment {
    /// It counts from the start of the native turn; else from the answer to the start, which a busy machine tells much earlier.
    begun: bool,
    after: Duration,
}

/// How the Turn ended, and how long its cancel took.
async fn cancelled(
    rig: &Rig,
    session: &Session,
    ready: &v1::Ready,
    base: &[Process],
    turn_id: &str,
    moment: Moment,
) -> anyhow::Result<&'static str> {
    rig.provider.reset();
    rig.provider.script(SCRIPT)?;
    session.start(ready, turn_id, text_input("look")).await?;
    let begun = Notify::new();
    let mut following = pin!(followed(session, turn_id, &begun));
    let begins = async {
        if moment.begun {
            begun.notified().await;
        }
    };
    let early = tokio::select! {
        seen = &mut following => Some(seen),
        () = begins => time::timeout(moment.after, &mut following).await.ok(),
    };
    let answer = session.cancel(turn_id, Some(Duration::from_secs(30))).await?;
    // Settled means gone, at this very moment. Claude Code looks for what it has to end.
    let looks = |one: &Process| one.command.starts_with("ps -A -o pid=");
    let left = rig.family()?.into_iter().filter(|one| !one.zombie && !one.runs_in(base) && !looks(one));
    let left: Vec<_> = left.collect();
    anyhow::ensure!(answer.outcome() == CancelOutcome::Settled, "{answer:?}");
    anyhow::ensure!(left.is_empty(), "processes are left: {left:#?}");
    let seen = match early {
        Some(seen) => seen?,
        None => following.await?,
    };
    let turn = answer.turn.context("no Turn")?;
    let end = seen.end()?;
    anyhow::ensure!(turn.ended.as_ref() == Some(end) && turn.required_actions.is_empty(), "{turn:?}");
    let how = match (end.status(), end.cause.map(|_| end.cause())) {
        (TurnStatus::Completed, None) => "completed",
        (TurnStatus::Cancelled, Some(EndCause::Requested)) => {
            let told = seen.kinds().any(|kind| matches!(kind, Kind::TurnStarted(_)));
            if told { "cancelled" } else { "cancelled before it began" }
        }
        _ => anyhow::bail!("it ended so: {end:?}"),
    };
    Ok(how)
}

#[expect(clippy::print_stdout, reason = "it says how the Turns ended")]
fn a_cancel_at_any_moment_settles_and_the_executor_goes_on(harness: Harness) {
    let rounds = if is_long() { LONG } else { ROUNDS };
    let rules = ["R-CAN-1", "R-CAN-2", "R-CAN-3", "R-CAN-5", "R-EVT-2", "R-FN-7"];
    scenario("cancel_seeded", &rules, Setup::outer().of(harness).patient(), async |rig| {
        let session = rig.session().await?;
        let functions = || vec![function("lookup", "{\"type\":\"object\"}")];
        let mut events = rig.start_turn(&session, rig.configuration(functions()), "t-first", "hello").await?;
        let first = Observed::default().to_the_end(&mut events).await?;
        first.completed()?;
        let base = rig.family()?;
        let (mut seed, mut ends) = (20_261_130, BTreeMap::new());
        for round in 0..rounds {
            let ready = rig.prepare_again(&session, rig.configuration(functions())).await?;
            let after = Duration::from_millis(next(&mut seed) % LATEST_MS);
            let moment = Moment { begun: round % 3 == 2, after };
            let end = cancelled(rig, &session, &ready, &base, &format!("t-{round}"), moment)
                .await
                .with_context(|| format!("round {round}, cancelled at {moment:?}"))?;
            *ends.entry(end).or_insert(0) += 1;
        }
        println!("{rounds} Turns: {ends:?}");
        anyhow::ensure!(ends.contains_key("cancelled"), "no cancel came in time: {ends:?}");
        rig.provider.reset();
        let ready = rig.prepare_again(&session, rig.configuration(functions())).await?;
        session.start(&ready, "t-last", text_input("go on")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-last")).await?.completed()
    });
}
