//! Inputs that come in the moment in which their Turn ends: each has one outcome, one that is accepted was read in its own Turn, and one that is
//! not is never read at all, in no later Turn either (R-STE-2, R-STE-3).

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, is_long, scenario};
use proto::client::{Session, text_input};
use proto::v1::event::Kind;
use proto::v1::{self, InputPhase, Reason};
use tokio::time;

for_each_harness!(a_late_input_is_read_in_its_own_turn_or_never);

const ROUNDS: u64 = 8;
/// The same where there is more time (`RUNTIME_BRIDGE_LONG`).
const LONG: u64 = 200;
/// The latest moment of an input, behind the last word of the model.
const LATEST_US: u64 = 20_000;

#[expect(clippy::print_stdout, reason = "it says which moments were met")]
fn a_late_input_is_read_in_its_own_turn_or_never(harness: Harness) {
    let rounds = if is_long() { LONG } else { ROUNDS };
    scenario(
        "steer_late",
        &["R-STE-1", "R-STE-2", "R-STE-3", "R-EVT-2"],
        Setup::outer().of(harness).needing(v1::Capability::Steering),
        async |rig| {
            let session = rig.session().await?;
            let (mut seed, mut ends, mut unread) = (20_261_130, BTreeMap::new(), Vec::new());
            for round in 0..rounds {
                let moment = Duration::from_micros(next(&mut seed) % LATEST_US);
                let end = late(rig, &session, round, moment)
                    .await
                    .with_context(|| format!("round {round}, an input after {moment:?}"))?;
                if end != "read" {
                    unread.push(text(round));
                }
                *ends.entry(end).or_insert(0) += 1;
                for text in &unread {
                    let told = rig.provider.model_requests().iter().any(|request| request.body.contains(text));
                    anyhow::ensure!(!told, "{text:?} was not read, and the model was told it");
                }
            }
            println!("{rounds} Turns: {ends:?}");
            // The history that all of them have left, as the model reads it.
            let last = rig.whole_turn(&session, "t-last", "go on").await?;
            last.completed()?;
            let request = rig.provider.model_requests().pop().context("no request")?;
            let told: Vec<_> = unread.iter().filter(|text| request.body.contains(*text)).collect();
            anyhow::ensure!(told.is_empty(), "a later Turn has {told:?}");
            Ok(())
        },
    );
}

fn text(round: u64) -> String {
    format!("late word {round}.")
}

/// A Turn whose model has said everything, and an input behind that.
async fn late(rig: &Rig, session: &Session, round: u64, moment: Duration) -> anyhow::Result<&'static str> {
    let (turn_id, input_id, gate) = (format!("t-{round}"), format!("i-{round}"), format!("go-{round}"));
    rig.provider.script(&format!(
        r#"[{{"play": [{{"text": {{"chunks": ["Said."]}}}}, {{"mark": "said-{round}"}}, {{"gate": "{gate}"}}]}}]"#
    ))?;
    let mut events =
        rig.start_turn(session, rig.configuration(Vec::new()), &turn_id, &format!("question {round}")).await?;
    rig.provider.wait_for_mark(&format!("said-{round}")).await?;
    rig.provider.open_gate(&gate);
    let mut following = pin!(Observed::default().to_the_end(&mut events));
    let early = time::timeout(moment, &mut following).await;
    let steered = session.steer(&turn_id, &input_id, text_input(text(round))).await;
    let seen = match early {
        Ok(seen) => seen?,
        Err(_) => following.await?,
    };
    seen.completed()?;
    let told = seen.kinds().filter(|kind| is_end_of(kind, &input_id)).count();
    let turn = session.turn(&turn_id).await?;
    let was_read = rig.provider.model_requests().iter().any(|request| request.body.contains(&text(round)));
    let Err(error) = steered else {
        let [input] = &turn.inputs[..] else { anyhow::bail!("not one input: {turn:?}") };
        anyhow::ensure!(told == 1, "{told} ends of one input: {:?}", seen.story());
        return match (input.phase(), was_read) {
            (InputPhase::Accepted, true) => Ok("read"),
            (InputPhase::Refused, false) if input.refusal() == Reason::TurnEnded => Ok("refused at the end"),
            other => anyhow::bail!("{other:?}: {input:?} in {:?}", seen.story()),
        };
    };
    anyhow::ensure!(error.reason() == Some(Reason::TurnEnded), "{error:?}");
    anyhow::ensure!((told, turn.inputs.len(), was_read) == (0, 0, false), "refused, and {turn:?}");
    Ok("refused")
}

fn is_end_of(kind: &Kind, input_id: &str) -> bool {
    match kind {
        Kind::InputAccepted(e) => e.input_id == input_id,
        Kind::InputRefused(e) => e.input_id == input_id,
        Kind::InputOutcomeUnknown(e) => e.input_id == input_id,
        _ => false,
    }
}

/// The next number of a sequence that looks like chance and is the same in every run.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}
