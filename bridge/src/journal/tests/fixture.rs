//! Files that earlier versions wrote. One is checked in for every schema that was ever released.

use std::{fs, path::Path};

use super::{Folder, call, check_integrity, session, turn};
use crate::journal::{
    CallRecord, EndRecord, ExecutorRecord, InputRecord, Journal, Placement, RESERVED, ResultRecord, SessionRecord,
    SessionRow, StoredResult, TurnRecord, TurnRow,
};

/// The newest schema. A new one gets a new file; the old ones are never written again.
const NEWEST: &str = "v3.db";

/// With this set the newest file is written anew.
const WRITE: &str = "RUNTIME_BRIDGE_WRITE_FIXTURES";

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/journal/fixtures").join(name)
}

#[tokio::test]
async fn a_file_of_schema_1_opens() {
    opens("v1.db", 0, &[]).await;
}

#[tokio::test]
async fn a_file_of_schema_2_opens() {
    opens("v2.db", RESERVED, &[]).await;
}

#[tokio::test]
async fn a_file_of_schema_3_opens() {
    opens("v3.db", RESERVED, &inputs()).await;
}

async fn opens(name: &str, reserved: u64, inputs: &[InputRecord]) {
    let folder = Folder::new();
    fs::copy(fixture(name), folder.path()).unwrap();
    let journal = folder.journal();
    assert_eq!(journal.state_id(), "0190d3c0-0000-7000-8000-000000000001");
    check(&journal, reserved, inputs).await;
    journal.close().await;
    check_integrity(&folder.path());
}

#[tokio::test]
async fn todays_writer_fills_a_file_that_todays_reader_understands() {
    let folder = Folder::new();
    let journal = folder.journal();
    fill(&journal).await;
    check(&journal, RESERVED, &inputs()).await;
    journal.close().await;
    if std::env::var_os(WRITE).is_some() {
        let connection = rusqlite::Connection::open(folder.path()).unwrap();
        let id = "UPDATE meta SET value = '0190d3c0-0000-7000-8000-000000000001' WHERE name = 'state_id'";
        connection.execute(id, ()).unwrap();
        connection.close().unwrap();
        fs::copy(folder.path(), fixture(NEWEST)).unwrap();
    }
}

fn second_session() -> SessionRecord {
    SessionRecord { placement: Placement::None, epoch: u64::MAX, released: true, ..session("s-2") }
}

fn executor() -> ExecutorRecord {
    ExecutorRecord {
        executor_id: "x-1".to_owned(),
        fingerprint: [5; 32],
        native_session_id: Some("thread-1".to_owned()),
        keeper_pid: 4242,
        keeper_start: 123_456_789,
        closed: false,
    }
}

fn end() -> EndRecord {
    EndRecord {
        status: "completed".to_owned(),
        ended: b"terminal".to_vec(),
        last_sequence: 12,
        ended_ms: 1_700_000_001_000,
        usage: None,
    }
}

fn result() -> StoredResult {
    StoredResult { hash: [6; 32], body: b"result".to_vec() }
}

/// One input in each phase.
fn inputs() -> Vec<InputRecord> {
    let phases = [
        ("received", None),
        ("written", None),
        ("accepted", Some("consumed")),
        ("refused", Some("turn_ended")),
        ("outcome_unknown", None),
    ];
    let input = |(phase, detail): (&str, Option<&str>)| InputRecord {
        input_id: format!("i-{phase}"),
        hash: [7; 32],
        phase: phase.to_owned(),
        detail: detail.map(ToOwned::to_owned),
    };
    phases.into_iter().map(input).collect()
}

async fn fill(journal: &Journal) {
    let row = journal.put_session(session("s-1")).await.unwrap();
    journal.put_session(second_session()).await.unwrap();
    journal.put_executor(row, executor()).await.unwrap();
    let ended = journal.insert_turn(turn(row, 1)).await.unwrap();
    journal.end_turn(ended, end(), None).await.unwrap();
    let open = journal.insert_turn(turn(row, 2)).await.unwrap();
    journal.turn_started(open, "thread-1", Some("native-2")).await.unwrap();
    journal.cancel_requested(open, "requested").await.unwrap();
    journal.acknowledge(open, 3).await.unwrap();
    journal.insert_call(open, call("c-1")).await.unwrap();
    journal.insert_call(open, call("c-2")).await.unwrap();
    journal.call_phase(open, "c-2", "abandoned", Some("native_timeout")).await.unwrap();
    let stored = ResultRecord { turn: open, call_id: "c-1".to_owned(), result: result() };
    journal.store_results(vec![stored]).await.unwrap();
    for input in inputs() {
        journal.insert_input(open, &input.input_id, input.hash).await.unwrap();
    }
    journal.input_phases(open, inputs()).await.unwrap();
}

async fn check(journal: &Journal, reserved: u64, inputs: &[InputRecord]) {
    let first = SessionRecord { had_turn: true, next_turn_number: 3, ..session("s-1") };
    let row = SessionRow(1);
    assert_eq!(journal.sessions().await.unwrap(), [(row, first), (SessionRow(2), second_session())]);
    assert_eq!(journal.open_executors().await.unwrap(), [(row, executor())]);
    let ended = journal.turn(row, "t-1").await.unwrap().unwrap();
    assert_eq!((ended.start, ended.end), (turn(row, 1), Some(end())));
    let open = TurnRecord {
        row: TurnRow(2),
        start: turn(row, 2),
        native_session_id: Some("thread-1".to_owned()),
        native_turn_id: Some("native-2".to_owned()),
        cancel_cause: Some("requested".to_owned()),
        acknowledged: 3,
        reserved,
        events_gone: false,
        unwritten: 0,
        end: None,
        inputs: inputs.to_vec(),
    };
    assert_eq!(journal.open_turns().await.unwrap(), [open]);
    let calls = [
        CallRecord { start: call("c-1"), phase: "result_stored".to_owned(), reason: None, result: Some(result()) },
        CallRecord {
            start: call("c-2"),
            phase: "abandoned".to_owned(),
            reason: Some("native_timeout".to_owned()),
            result: None,
        },
    ];
    assert_eq!(journal.calls_of(TurnRow(2)).await.unwrap(), calls);
}
