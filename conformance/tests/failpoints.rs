//! The daemon dies, or its disk fails, before and behind each of its writes, in a Turn of the real Codex: nothing that was
//! acknowledged is forgotten, nothing is done twice, and everything comes to an end (R-DUR-1, R-DUR-2, R-API-6).
//!
//! The daemon is one that was built with failpoints. In an ordinary run each point has one of its faults, in turn; with
//! `RUNTIME_BRIDGE_LONG` it has all of them.

use std::time::Duration;

use anyhow::Context;
use conformance::ledger::{Ledger, SCRIPT, reason};
use conformance::rig::{Daemon, Ended, Rig, Setup, failpoints, program, scenario};
use proto::v1::Reason;

const RULES: [&str; 8] = ["R-DUR-1", "R-DUR-2", "R-API-6", "R-CAN-4", "R-EVT-1", "R-EVT-2", "R-FN-5", "R-PRE-4"];

/// A daemon that aborts ends of this signal.
const ABORT: i32 = 6;

/// The operations of the journal, with the pass that is meant, in the order of a run.
const JOURNAL: &[(&str, u32)] = &[
    ("put_session", 1),
    ("put_executor", 1),
    ("insert_turn", 1),
    ("turn_started", 1),
    ("put_history", 1),
    ("insert_call", 1),
    ("insert_input", 1),
    ("input_phases", 1),
    ("store_results", 1),
    ("call_phase", 1),
    ("call_phase", 2),
    ("input_phases", 2),
    ("end_turn", 1),
    ("acknowledge", 1),
    ("insert_turn", 2),
    ("cancel_requested", 1),
    ("end_turn", 2),
    ("put_session", 2),
    ("close_executor", 1),
];

/// What is written to the Harness.
const NATIVE: &[&str] = &["initialize", "thread/start", "turn/start", "turn/steer", "answer", "turn/interrupt"];

#[test]
fn the_journal_fails_up_to_the_start_of_a_turn_and_its_call() {
    table("journal", &JOURNAL[..8].iter().map(journal).collect::<Vec<_>>());
}

#[test]
fn the_journal_fails_between_a_result_and_the_end() {
    table("journal", &JOURNAL[8..14].iter().map(journal).collect::<Vec<_>>());
}

#[test]
fn the_journal_fails_in_a_cancelled_turn_and_the_release() {
    table("journal", &JOURNAL[14..].iter().map(journal).collect::<Vec<_>>());
}

#[test]
fn the_file_of_a_turn_fails() {
    let mut rows = vec![faults("log.create", 1, "ENOSPC")];
    rows.extend([1, 3, 5].map(|pass| {
        let when = |when| Fault { armed: format!("log.append.{when}=abort@{pass}"), dies: true };
        ["within", "after", "before"].map(when).to_vec()
    }));
    table("log", &rows);
}

#[test]
fn the_disk_is_full_under_the_events_of_a_turn() {
    let full = |pass| vec![Fault { armed: format!("log.append.before=error:ENOSPC@{pass}"), dies: false }];
    table("log", &[1, 2, 3, 5].map(full));
}

#[test]
fn the_pipe_to_the_harness_fails() {
    let rows: Vec<_> = NATIVE.iter().map(|method| faults(&format!("native.{method}"), 1, "EIO")).collect();
    table("native", &rows);
}

#[test]
fn an_ordinary_daemon_has_no_failpoints() {
    let holds = |path: &std::path::Path, text: &str| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    let (ordinary, armed) = (program("runtime-bridge").unwrap(), failpoints().unwrap());
    for text in ["RUNTIME_BRIDGE_FAILPOINTS", "failpoint"] {
        assert!(holds(&armed, text), "the other build does not hold {text:?}");
        assert!(!holds(&ordinary, text), "the ordinary build holds {text:?}");
    }
}

/// One thing that goes wrong at one point.
#[derive(Debug, Clone)]
struct Fault {
    armed: String,
    /// The daemon dies of it.
    dies: bool,
}

fn journal((operation, pass): &(&str, u32)) -> Vec<Fault> {
    faults(&format!("journal.{operation}"), *pass, "ENOSPC")
}

fn faults(point: &str, pass: u32, error: &str) -> Vec<Fault> {
    vec![
        Fault { armed: format!("{point}.before=abort@{pass}"), dies: true },
        Fault { armed: format!("{point}.after=abort@{pass}"), dies: true },
        Fault { armed: format!("{point}.before=error:{error}@{pass}"), dies: false },
    ]
}

/// Runs a table of points, each with its faults: one of them, in turn, or all.
fn table(group: &str, rows: &[Vec<Fault>]) {
    let is_long = std::env::var_os("RUNTIME_BRIDGE_LONG").is_some();
    for (index, row) in rows.iter().enumerate() {
        for fault in row.iter().enumerate().filter(|(n, _)| is_long || *n == index % row.len()).map(|(_, fault)| fault)
        {
            run(group, fault);
        }
    }
}

fn run(group: &str, fault: &Fault) {
    let setup = Setup { failpoints: Some(fault.armed.clone()), ..Setup::outer() };
    let name = fault.armed.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    scenario(&format!("failpoint_{group}_{name}"), &RULES, setup, async |rig| {
        rig.provider.script(SCRIPT)?;
        let mut ledger = Ledger::new("s-1");
        let worked = ledger.work(rig).await;
        let passed = rig.daemon.log_text().contains("failpoint");
        anyhow::ensure!(passed, "the point was not passed: {worked:?}");
        let outcome = if fault.dies { died(rig, &ledger, worked).await } else { went_on(rig, &ledger, worked).await };
        outcome.with_context(|| format!("{fault:?} and then {ledger:?}"))
    });
}

/// The daemon is dead. What it had started is gone, and the next daemon knows everything.
async fn died(rig: &mut Rig, ledger: &Ledger, worked: anyhow::Result<()>) -> anyhow::Result<()> {
    let family = rig.family()?;
    let ended = rig.daemon.wait(Duration::from_secs(10)).await?;
    anyhow::ensure!(ended == Ended::Signal(ABORT), "the daemon ended with {ended:?}: {worked:?}");
    rig.all_gone(&family).await?;
    rig.disarm();
    rig.daemon = Daemon::start(rig.place()).await?;
    let session = ledger.holds(rig).await?;
    ledger.goes_on(rig, session).await
}

/// The daemon lives, and the Session is at its end, or at one that the fault explains. A restart changes nothing.
async fn went_on(rig: &mut Rig, ledger: &Ledger, worked: anyhow::Result<()>) -> anyhow::Result<()> {
    anyhow::ensure!(rig.daemon.is_running(), "the daemon is gone: {worked:?}");
    if let Err(error) = worked {
        // An Executor that could not go on is retired, and its history is never replaced (R-PRE-4).
        let known = [Reason::NativeHistoryUnavailable, Reason::HandleExpired, Reason::CallAbandoned];
        anyhow::ensure!(reason(&error).is_some_and(|reason| known.contains(&reason)), "{error:?}");
    }
    rig.disarm();
    let family = rig.family()?;
    rig.daemon.kill().await?;
    rig.all_gone(&family).await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let session = ledger.holds(rig).await?;
    ledger.goes_on(rig, session).await
}
