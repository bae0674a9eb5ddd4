//! The daemon dies, or its disk fails, before and behind each of its writes, in a Turn of the real Harness: nothing that was
//! acknowledged is forgotten, nothing is done twice, and everything comes to an end (R-DUR-1, R-DUR-2, R-API-6).
//!
//! The daemon is one that was built with failpoints. In an ordinary run each point has one of its faults, in turn; with
//! `RUNTIME_BRIDGE_LONG` it has all of them. Writes that such a Turn does not come to are in `failpoints_rare`.
#![expect(clippy::unwrap_used, reason = "a tree that cannot be read is a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use conformance::fault::{Fault, faults, table};
use conformance::ledger::{Ledger, SCRIPT, Unbegun, reason};
use conformance::rig::{Daemon, Harness, Rig, Setup, failpoints, program};
use proto::v1::{self, Reason};

const RULES: [&str; 8] = ["R-DUR-1", "R-DUR-2", "R-API-6", "R-CAN-4", "R-EVT-1", "R-EVT-2", "R-FN-5", "R-PRE-4"];

/// The operations of the journal, with the pass that is meant, in the order of a run.
const JOURNAL: &[(&str, u32)] = &[
    ("put_session", 1),
    ("check", 1),
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

/// The operations of the journal that write nothing.
const READS: &[&str] = &[
    "boot_id",
    "call",
    "calls_of",
    "ended",
    "last_native_turn",
    "last_turns",
    "native_sessions",
    "open_executors",
    "open_turns",
    "released_before",
    "sessions",
    "turn",
    "turns_before",
];

/// What is written to Codex.
const NATIVE: &[&str] =
    &["initialize", "initialized", "thread/start", "turn/start", "turn/steer", "answer", "turn/interrupt"];

/// What is written to Claude Code, with the pass that is meant: the second input is the one that is added.
const CLAUDE: &[(&str, u32)] = &[("initialize", 1), ("user", 1), ("user", 2), ("mcp_response", 1), ("interrupt", 1)];

/// What no Turn of the real Claude Code comes to: it asks for nothing but calls, since nobody is there to be asked (R-PLC-1).
const UNASKED: &[&str] = &["control_response"];

#[test]
fn the_journal_fails_up_to_the_start_of_a_turn_and_its_call() {
    run("journal", &JOURNAL[..9].iter().map(journal).collect::<Vec<_>>());
}

#[test]
fn the_journal_fails_between_a_result_and_the_end() {
    run("journal", &JOURNAL[9..15].iter().map(journal).collect::<Vec<_>>());
}

#[test]
fn the_journal_fails_in_a_cancelled_turn_and_the_release() {
    run("journal", &JOURNAL[15..].iter().map(journal).collect::<Vec<_>>());
}

#[test]
fn the_journal_fails_to_note_what_the_file_of_a_turn_lacks() {
    // What the file did not take is noted at once, and noted as written at the end.
    let noted = |pass| faults("journal.events_unwritten", pass, "ENOSPC");
    let rows =
        [1, 2].map(noted).map(|row| row.iter().map(|fault| fault.beside("log.append.before=error:ENOSPC@2")).collect());
    run("unwritten", &rows);
}

#[test]
fn the_file_of_a_turn_fails() {
    let mut rows = vec![faults("log.create", 1, "ENOSPC")];
    rows.extend([1, 3, 5].map(|pass| {
        let dies = |when| Fault::at(&format!("log.append.{when}"), "abort", pass);
        ["within", "after", "before"].map(dies).to_vec()
    }));
    run("log", &rows);
}

#[test]
fn the_disk_is_full_under_the_events_of_a_turn() {
    run("log", &[1, 2, 3, 5].map(|pass| vec![Fault::at("log.append.before", "error:ENOSPC", pass)]));
}

#[test]
fn the_pipe_to_the_harness_fails() {
    let rows: Vec<_> = NATIVE.iter().map(|method| faults(&format!("native.{method}"), 1, "EIO")).collect();
    table("native", &RULES, &rows, |fault| fault.arm(Setup::outer().only("the lines are Codex's")), course);
}

#[test]
fn the_pipe_to_claude_code_fails() {
    let rows: Vec<_> = CLAUDE.iter().map(|(name, pass)| faults(&format!("native.{name}"), *pass, "EIO")).collect();
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only("the lines are Claude Code's");
    table("native", &RULES, &rows, |fault| fault.arm(setup.clone()), course);
}

#[test]
fn an_ordinary_daemon_has_no_failpoints() {
    let holds = |path: &Path, text: &str| {
        let bytes = fs::read(path).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    let (ordinary, armed) = (program("runtime-bridge").unwrap(), failpoints().unwrap());
    for text in ["RUNTIME_BRIDGE_FAILPOINTS", "failpoint"] {
        assert!(holds(&armed, text), "the other build does not hold {text:?}");
        assert!(!holds(&ordinary, text), "the ordinary build holds {text:?}");
    }
}

#[test]
fn every_write_of_the_journal_fails_in_some_scenario() {
    let operations: BTreeSet<_> = sources("bridge/src/journal").iter().flat_map(|text| operations(text)).collect();
    assert!(operations.len() > 25, "{operations:?}");
    let failing = |name: &str| JOURNAL.iter().any(|(known, _)| *known == name) || is_named(&format!("journal.{name}"));
    let forgotten: Vec<_> = operations.iter().filter(|name| !READS.contains(&&***name) && !failing(name)).collect();
    assert!(forgotten.is_empty(), "no scenario lets these fail: {forgotten:?}");
    let gone: Vec<_> = READS.iter().filter(|name| !operations.contains(**name)).collect();
    assert!(gone.is_empty(), "the journal has no {gone:?}");
}

#[test]
fn every_line_to_the_harness_fails_in_some_scenario() {
    let methods: BTreeSet<_> = sources("adapters/src/codex").iter().flat_map(|text| methods(text)).collect();
    assert!(methods.contains("turn/start") && methods.contains("initialized"), "{methods:?}");
    let failing = |name: &str| NATIVE.contains(&name) || is_named(&format!("native.{name}"));
    let forgotten: Vec<_> = methods.iter().filter(|name| !failing(name)).collect();
    assert!(forgotten.is_empty(), "no scenario lets these fail: {forgotten:?}");

    let lines: BTreeSet<_> = sources("adapters/src/claude_code").iter().flat_map(|text| lines(text)).collect();
    let named = lines.iter().map(String::as_str).filter(|name| is_named(&format!("native.{name}")));
    let failing: BTreeSet<_> =
        CLAUDE.iter().map(|(name, _)| *name).chain(UNASKED.iter().copied()).chain(named).map(str::to_owned).collect();
    assert_eq!(lines, failing, "the lines to Claude Code, and those that fail or that it never asks for");
}

fn journal((operation, pass): &(&str, u32)) -> Vec<Fault> {
    faults(&format!("journal.{operation}"), *pass, "ENOSPC")
}

fn run(group: &str, rows: &[Vec<Fault>]) {
    table(group, &RULES, rows, Fault::setup, course);
}

/// All that there is to do with a Session. Afterwards the next daemon knows everything.
async fn course(rig: &mut Rig, fault: &Fault) -> anyhow::Result<()> {
    rig.provider.script(SCRIPT)?;
    let mut ledger = Ledger::new("s-1");
    let worked = ledger.work(rig).await;
    let told = format!("it worked so: {worked:?}, {ledger:?}");
    if let Err(error) = worked
        && !fault.dies
    {
        // An Executor that could not go on is retired, and its history is never replaced (R-PRE-4).
        let known = [Reason::NativeHistoryUnavailable, Reason::HandleExpired, Reason::CallAbandoned];
        // Claude Code ends a Turn whose pipe has failed before it goes; the next one may be there before that.
        let lost = Unbegun(Some(v1::FailureCode::HarnessExited));
        let is_lost = rig.kind() == Harness::ClaudeCode && error.downcast_ref::<Unbegun>() == Some(&lost);
        anyhow::ensure!(is_lost || reason(&error).is_some_and(|reason| known.contains(&reason)), "{told}");
    }
    fault.ended(rig).await.with_context(|| told.clone())?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let session = ledger.holds(rig).await.with_context(|| told.clone())?;
    ledger.goes_on(rig, session).await.context(told)
}

/// The texts of the files below a folder of the workspace, but for those of tests.
fn sources(folder: &str) -> Vec<String> {
    let mut open = vec![workspace().join(folder)];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_test {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") && !is_test {
            let text = fs::read_to_string(path).unwrap();
            found.push(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned());
        }
    }
    found
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Whether a scenario of this file or of the rare ones arms this point.
fn is_named(point: &str) -> bool {
    let quoted = format!("\"{point}\"");
    let tests = ["failpoints.rs", "failpoints_rare.rs"].map(|name| workspace().join("conformance/tests").join(name));
    tests.iter().any(|path| fs::read_to_string(path).unwrap().contains(&quoted))
}

/// The methods that hand something to the journal's thread.
fn operations(text: &str) -> Vec<String> {
    let functions = text.split("async fn ").skip(1).filter(|function| function.contains("self.run("));
    functions.map(|function| function.split(['(', '<']).next().unwrap_or_default().to_owned()).collect()
}

/// The names of requests and notifications that are made. Each stands where it is made, or is the `method` above it.
fn methods(text: &str) -> Vec<String> {
    // A request has its number first.
    let requests = text.split("rpc::request(").skip(1).filter_map(|rest| Some(rest.split_once(", ")?.1));
    let begins = ["rpc::notification(", "self.ask(", "let method = "];
    let others = begins.iter().flat_map(|begin| text.split(begin).skip(1));
    requests
        .chain(others)
        .filter_map(|rest| Some(rest.trim_start().strip_prefix('"')?.split('"').next()?.to_owned()))
        .collect()
}

/// The names of the lines to Claude Code: a request is called by its subtype, an answer of the server of functions by what it holds.
fn lines(text: &str) -> Vec<String> {
    let quoted = |rest: &str| rest.split('"').next().unwrap_or_default().to_owned();
    let subtypes =
        text.split("subtype: \"").skip(1).map(quoted).filter(|subtype| subtype != "success" && subtype != "error");
    let kinds = text.split("rpc::line(").skip(1).filter_map(|line| line.split("kind: \"").nth(1)).map(quoted);
    let answers = text.contains("mcp_response: ").then(|| "mcp_response".to_owned());
    subtypes.chain(kinds.filter(|kind| kind != "control_request")).chain(answers).collect()
}

#[test]
fn operations_and_methods_are_found() {
    let journal = "async fn one(&self) {\n self.run(move |c| ()) }\nasync fn two<T>(&self) { one() }\nasync fn three<F>(f: F) { self.run(f) }";
    assert_eq!(operations(journal), ["one", "three"]);
    let adapter = "self.ask(Asked::Start, \"turn/start\", rpc::request(owner.native.next_id, \"turn/start\", &params));\nself.ask(\n    \"a/b\", x);\n\
                   rpc::notification(\"c\", &no);\nlet method = \"d/e\";\nrpc::request(id, method, params);";
    assert_eq!(methods(adapter), ["turn/start", "c", "a/b", "d/e"]);
    let claude = "Ask { subtype: \"stop\", x }; Success { subtype: \"success\" }; rpc::line(&Line {\n kind: \"user\" }); struct R { mcp_response: &'a M }\n\
                  rpc::line(&Line { kind: \"control_request\", request })";
    assert_eq!(lines(claude), ["stop", "user", "mcp_response"]);
}
