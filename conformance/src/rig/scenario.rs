//! Runs one scenario: a rig, the rules that it shows, a limit, a record of what happened.

use std::fs;
use std::panic::Location;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Link, Rig, Setup, Stands, daemon, place, under};
use crate::evidence::Outcome;
use anyhow::Context;
use tokio::time;

/// The longest that a scenario may take, its clean-up included; below the limit of the test runner, which would say less.
const LIMIT: Duration = Duration::from_secs(55);
/// The same where repeated scenarios have their rounds turned up.
const LONG_LIMIT: Duration = Duration::from_secs(1100);
/// What a scenario that is not done has to say why.
const TELLING: Duration = Duration::from_secs(2);

/// Whether there is time for many rounds: `RUNTIME_BRIDGE_LONG`, which `scripts/test --long` sets.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("RUNTIME_BRIDGE_LONG").is_some()
}

/// Runs a scenario that shows that these rules hold, for example `R-FN-3`.
///
/// Afterwards the daemon is ended and must leave nothing behind. Where the Harness does not declare what the setup needs, that is
/// noted and nothing else is done. The outcome is written to `<target>/scenarios/<name>.<harness>.json`.
///
/// # Panics
/// When the scenario fails, which is how a test says so.
#[track_caller]
pub fn scenario<F>(name: &str, rules: &[&str], setup: Setup, run: F)
where
    F: AsyncFnOnce(&mut Rig) -> anyhow::Result<()>,
{
    for rule in rules {
        assert!(is_rule(rule), "{rule} is not the name of a rule");
    }
    let file = Path::new(Location::caller().file()).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (harness, for_each, all) = (setup.harness.kind(), setup.for_each, setup.all);
    let (only, bridge) = (setup.only, setup.bridge);
    let pinned = matches!(setup.stands, Stands::Real);
    let real = pinned && setup.harness.is_real();
    let begun = Instant::now();
    let mut seen = Seen::default();
    let outcome = perform(setup, &mut seen, run);
    let written = note(&Outcome {
        name: name.to_owned(),
        file,
        harness: harness.to_owned(),
        for_each,
        all,
        only: only.map(str::to_owned),
        bridge: bridge.map(str::to_owned),
        real,
        double: pinned && !real,
        placements: seen.placements,
        not_declared: seen.undeclared,
        rules: rules.iter().map(|&rule| rule.to_owned()).collect(),
        passed: outcome.is_ok(),
        took_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        error: outcome.as_ref().err().map(|error| format!("{error:#}")),
    });
    if let Err(problem) = outcome.and(written) {
        panic!("scenario {name} of {harness} ({}): {problem:?}", rules.join(", "));
    }
}

/// What a run tells beside its success.
#[derive(Default)]
struct Seen {
    placements: Vec<String>,
    undeclared: Vec<String>,
}

fn perform<F>(setup: Setup, seen: &mut Seen, run: F) -> anyhow::Result<()>
where
    F: AsyncFnOnce(&mut Rig) -> anyhow::Result<()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let limit = if is_long() { LONG_LIMIT } else { LIMIT };
    let whole = async {
        let end = time::Instant::now() + limit;
        let needs = setup.needs.clone();
        let mut rig = Rig::start(setup).await?;
        seen.undeclared = rig.undeclared(&needs).await?;
        if !seen.undeclared.is_empty() {
            seen.placements = needs.iter().map(|(placement, _)| under(*placement).to_owned()).collect();
            return rig.finish().await;
        }
        let done = time::timeout_at(end, run(&mut rig)).await;
        // What it waits for is among what runs, most often.
        let done = done.unwrap_or_else(|_| {
            let running: Vec<_> = rig.family().unwrap_or_default().into_iter().map(|process| process.command).collect();
            Err(anyhow::anyhow!("it is not done after {limit:?}; what runs: {running:#?}"))
        });
        seen.placements = rig.placements().into_iter().map(|placement| under(placement).to_owned()).collect();
        if let Err(error) = done {
            daemon::show(&rig.daemon.log_tail());
            return Err(error);
        }
        rig.finish().await
    };
    runtime.block_on(async {
        let limit = limit + TELLING;
        time::timeout(limit, whole).await.with_context(|| format!("it is not done after {limit:?}"))?
    })
}

fn note(outcome: &Outcome) -> anyhow::Result<()> {
    // A run over another link shows what it shows beside the whole run.
    let folder = match Link::of_run()? {
        Link::Unix => "scenarios",
        Link::Mtls => "scenarios-mtls",
        Link::Relay => "scenarios-relay",
    };
    let dir = place::target()?.join(folder);
    fs::create_dir_all(&dir).context("make the folder of outcomes")?;
    let text = serde_json::to_string(outcome).context("write an outcome as JSON")?;
    fs::write(dir.join(format!("{}.{}.json", outcome.name, outcome.harness)), text).context("write the outcome")
}

/// `R-`, letters, `-`, a number.
fn is_rule(text: &str) -> bool {
    let mut parts = text.split('-');
    parts.next() == Some("R")
        && parts.next().is_some_and(|room| !room.is_empty() && room.bytes().all(|byte| byte.is_ascii_uppercase()))
        && parts.next().is_none_or(|number| number.parse::<u32>().is_ok())
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_a_room_and_mostly_a_number() {
        for (text, want) in [
            ("R-FN-3", true),
            ("R-CAN", true),
            ("R-fn-3", false),
            ("FN-3", false),
            ("R-FN-x", false),
            ("R-FN-3-1", false),
        ] {
            assert_eq!(is_rule(text), want, "{text}");
        }
    }
}
