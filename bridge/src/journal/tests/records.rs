//! What goes in comes out, also after another opening.

use super::{Folder, begin, call, session, turn};
use crate::journal::{
    CallRecord, EndRecord, Error, ExecutorRecord, HistoryRecord, NewTurn, Placement, RESERVED, ResultRecord,
    SessionRecord, SessionRow, StoredResult, TurnRecord, TurnRow,
};

fn executor(id: &str) -> ExecutorRecord {
    ExecutorRecord {
        executor_id: id.to_owned(),
        fingerprint: [1; 32],
        native_session_id: None,
        keeper_pid: 4242,
        keeper_start: u64::MAX,
        closed: false,
    }
}

fn end() -> EndRecord {
    EndRecord {
        status: "completed".to_owned(),
        ended: vec![0, 1, 255],
        last_sequence: 9,
        ended_ms: 1_700_000_000_001,
        usage: Some(vec![3]),
    }
}

fn result(turn: TurnRow, call_id: &str) -> ResultRecord {
    ResultRecord {
        turn,
        call_id: call_id.to_owned(),
        result: StoredResult { hash: [9; 32], body: b"{\"n\":1.0}".to_vec() },
    }
}

#[tokio::test]
async fn a_session_is_kept_by_principal_and_id() {
    let folder = Folder::new();
    let journal = folder.journal();
    let first = session("s-1");
    let mut foreign = session("s-1");
    foreign.principal = "uid:1001".to_owned();
    foreign.directory = format!("{:0>32}", "f");
    foreign.placement = Placement::None;
    let row = journal.put_session(first.clone()).await.unwrap();
    let other = journal.put_session(foreign.clone()).await.unwrap();
    assert_ne!(row, other);

    let taken_over = SessionRecord { epoch: u64::MAX, assignment_id: "a-2".to_owned(), released: true, ..first };
    assert_eq!(journal.put_session(taken_over.clone()).await.unwrap(), row);
    journal.close().await;
    assert_eq!(folder.journal().sessions().await.unwrap(), [(row, taken_over), (other, foreign)]);
}

fn history(instructions: Option<Vec<u8>>) -> HistoryRecord {
    HistoryRecord {
        native_session_id: "thread-1".to_owned(),
        harness: "codex".to_owned(),
        configuration: vec![1; 64],
        settings: vec![2; 32],
        instructions,
    }
}

#[tokio::test]
async fn a_history_stays_whatever_becomes_of_the_assignment() {
    let folder = Folder::new();
    let journal = folder.journal();
    let row = journal.put_session(session("s-1")).await.unwrap();
    assert!(journal.sessions().await.unwrap()[0].1.history.is_none());
    for history in [history(None), history(Some(vec![3; 32]))] {
        journal.put_history(row, history.clone()).await.unwrap();
        journal.put_session(SessionRecord { epoch: 2, ..session("s-1") }).await.unwrap();
        assert_eq!(journal.sessions().await.unwrap()[0].1.history, Some(history));
    }
    journal.close().await;
    let journal = folder.journal();
    assert_eq!(journal.sessions().await.unwrap()[0].1.history, Some(history(Some(vec![3; 32]))));
    let nobody = SessionRow(99);
    assert!(matches!(journal.put_history(nobody, history(None)).await, Err(Error::Misfit(_))));
}

#[tokio::test]
async fn the_native_turn_that_completed_last_is_known() {
    let folder = Folder::new();
    let journal = folder.journal();
    let row = journal.put_session(session("s-1")).await.unwrap();
    assert_eq!(journal.last_native_turn(row, "thread-1").await.unwrap(), None);
    for (number, status) in [(1, "completed"), (2, "completed"), (3, "unknown"), (4, "failed")] {
        let turn = journal.insert_turn(turn(row, number)).await.unwrap();
        journal.turn_started(turn, "thread-1", Some(&format!("native-{number}"))).await.unwrap();
        journal.end_turn(turn, EndRecord { status: status.to_owned(), ..end() }, None).await.unwrap();
    }
    assert_eq!(journal.last_native_turn(row, "thread-1").await.unwrap().as_deref(), Some("native-2"));
    assert_eq!(journal.last_native_turn(row, "thread-2").await.unwrap(), None);
}

#[tokio::test]
async fn the_conversations_of_turns_are_known_with_what_they_were_prepared_with() {
    let folder = Folder::new();
    let journal = folder.journal();
    let row = journal.put_session(session("s-1")).await.unwrap();
    assert_eq!(journal.native_sessions(row).await.unwrap(), []);
    for (number, executor_id, thread) in [(1, "x-1", Some("old")), (2, "x-2", Some("new")), (3, "x-3", None)] {
        let native_session_id = thread.map(str::to_owned);
        journal.put_executor(row, ExecutorRecord { native_session_id, ..executor(executor_id) }).await.unwrap();
        let turn = NewTurn { executor_id: executor_id.to_owned(), ..turn(row, number) };
        journal.insert_turn(turn).await.unwrap();
    }
    let found = [("new".to_owned(), [1; 32]), ("old".to_owned(), [1; 32])];
    assert_eq!(journal.native_sessions(row).await.unwrap(), found);
}

#[tokio::test]
async fn a_session_never_forgets_that_it_had_a_turn() {
    let folder = Folder::new();
    let journal = folder.journal();
    let row = journal.put_session(session("s-1")).await.unwrap();
    journal.insert_turn(turn(row, 4)).await.unwrap();
    journal.put_session(session("s-1")).await.unwrap();
    let (_, found) = journal.sessions().await.unwrap().remove(0);
    assert!(found.had_turn);
    assert_eq!(found.next_turn_number, 5);
}

#[tokio::test]
async fn only_executors_whose_end_is_not_proved_are_open() {
    let folder = Folder::new();
    let journal = folder.journal();
    let row = journal.put_session(session("s-1")).await.unwrap();
    journal.put_executor(row, executor("x-1")).await.unwrap();
    journal.put_executor(row, executor("x-2")).await.unwrap();
    let known = ExecutorRecord { native_session_id: Some("thread".to_owned()), ..executor("x-2") };
    journal.put_executor(row, known.clone()).await.unwrap();
    journal.close_executor("x-1").await.unwrap();
    assert_eq!(journal.open_executors().await.unwrap(), [(row, known)]);
    assert!(matches!(journal.close_executor("x-3").await, Err(Error::Misfit(_))));
}

#[tokio::test]
async fn a_turn_is_found_by_its_id_with_all_that_became_of_it() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (session, row) = begin(&journal).await;
    let mut want = TurnRecord {
        row,
        start: turn(session, 1),
        native_session_id: None,
        native_turn_id: None,
        cancel_cause: None,
        acknowledged: 0,
        reserved: RESERVED,
        events_gone: false,
        unwritten: 0,
        end: None,
        inputs: Vec::new(),
    };
    assert_eq!(journal.turn(session, "t-1").await.unwrap(), Some(want.clone()));
    assert_eq!(journal.turn(session, "t-2").await.unwrap(), None);

    journal.turn_started(row, "thread", Some("native")).await.unwrap();
    journal.cancel_requested(row, "requested").await.unwrap();
    journal.cancel_requested(row, "bridge_stopped").await.unwrap();
    journal.acknowledge(row, 5).await.unwrap();
    journal.acknowledge(row, 3).await.unwrap();
    journal.reserve(row, 2_000_000).await.unwrap();
    journal.reserve(row, 90_000).await.unwrap();
    journal.events_unwritten(row, 7).await.unwrap();
    want.reserved = 2_000_000;
    want.unwritten = 7;
    want.native_session_id = Some("thread".to_owned());
    want.native_turn_id = Some("native".to_owned());
    want.cancel_cause = Some("requested".to_owned());
    want.acknowledged = 5;
    assert_eq!(journal.open_turns().await.unwrap(), [want.clone()]);

    journal.end_turn(row, end(), None).await.unwrap();
    want.end = Some(end());
    journal.close().await;
    let journal = folder.journal();
    assert_eq!(journal.turn(session, "t-1").await.unwrap(), Some(want));
    assert_eq!(journal.open_turns().await.unwrap(), []);
}

#[tokio::test]
async fn a_turn_begins_once_and_ends_once() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (session, row) = begin(&journal).await;
    assert!(matches!(journal.insert_turn(turn(session, 1)).await, Err(Error::Misfit(_))));
    journal.end_turn(row, end(), None).await.unwrap();
    let other = EndRecord { status: "failed".to_owned(), ..end() };
    assert!(matches!(journal.end_turn(row, other, None).await, Err(Error::Misfit(_))));
    let found = journal.turn(session, "t-1").await.unwrap().unwrap();
    assert_eq!(found.end, Some(end()));
}

#[tokio::test]
async fn what_has_no_turn_is_a_misfit() {
    let folder = Folder::new();
    let journal = folder.journal();
    let nowhere = TurnRow(77);
    assert!(matches!(journal.turn_started(nowhere, "thread", None).await, Err(Error::Misfit(_))));
    assert!(matches!(journal.acknowledge(nowhere, 1).await, Err(Error::Misfit(_))));
    assert!(matches!(journal.insert_call(nowhere, call("c-1")).await, Err(Error::Misfit(_))));
    assert!(matches!(journal.call_phase(nowhere, "c-1", "written", None).await, Err(Error::Misfit(_))));
}

#[tokio::test]
async fn a_call_keeps_its_arguments_byte_by_byte_and_its_result_through_abandonment() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (_, turn) = begin(&journal).await;
    journal.insert_call(turn, call("c-1")).await.unwrap();
    let mut want = CallRecord { start: call("c-1"), phase: "pending".to_owned(), reason: None, result: None };
    assert_eq!(journal.call(turn, "c-1").await.unwrap(), Some(want.clone()));
    assert!(matches!(journal.insert_call(turn, call("c-1")).await, Err(Error::Misfit(_))));

    let stored = result(turn, "c-1");
    journal.store_results(vec![stored.clone()]).await.unwrap();
    journal.call_phase(turn, "c-1", "abandoned", Some("native_timeout")).await.unwrap();
    want.phase = "abandoned".to_owned();
    want.reason = Some("native_timeout".to_owned());
    want.result = Some(stored.result);
    journal.close().await;
    assert_eq!(folder.journal().calls_of(turn).await.unwrap(), [want]);
}

#[tokio::test]
async fn a_phase_that_is_no_word_of_the_table_is_refused() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (_, turn) = begin(&journal).await;
    journal.insert_call(turn, call("c-1")).await.unwrap();
    assert!(matches!(journal.call_phase(turn, "c-1", "lost", None).await, Err(Error::Misfit(_))));
}

#[tokio::test]
async fn a_batch_of_results_is_stored_whole_or_not_at_all() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (_, turn) = begin(&journal).await;
    for id in ["c-1", "c-2", "c-3"] {
        journal.insert_call(turn, call(id)).await.unwrap();
    }
    let batch = |ids: &[&str]| ids.iter().map(|id| result(turn, id)).collect::<Vec<_>>();
    assert!(matches!(journal.store_results(batch(&["c-1", "c-2", "absent"])).await, Err(Error::Misfit(_))));
    for found in journal.calls_of(turn).await.unwrap() {
        assert_eq!((found.phase.as_str(), found.result), ("pending", None));
    }
    journal.store_results(batch(&["c-1", "c-2"])).await.unwrap();
    // A first result is the only one.
    assert!(matches!(journal.store_results(batch(&["c-3", "c-1"])).await, Err(Error::Misfit(_))));
    let phases: Vec<_> = journal.calls_of(turn).await.unwrap().into_iter().map(|call| call.phase).collect();
    assert_eq!(phases, ["result_stored", "result_stored", "pending"]);
}

#[tokio::test]
async fn the_end_of_a_turn_abandons_the_calls_that_are_still_open_and_no_others() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (_, turn) = begin(&journal).await;
    let phases = ["pending", "result_stored", "written", "applied", "cancelled", "abandoned"];
    for phase in phases {
        journal.insert_call(turn, call(phase)).await.unwrap();
        journal.call_phase(turn, phase, phase, (phase == "abandoned").then_some("native_timeout")).await.unwrap();
    }
    journal.end_turn(turn, end(), Some("turn_ended")).await.unwrap();
    let found: Vec<_> =
        journal.calls_of(turn).await.unwrap().into_iter().map(|call| (call.phase, call.reason)).collect();
    let abandoned = |reason: &str| ("abandoned".to_owned(), Some(reason.to_owned()));
    let kept = |phase: &str| (phase.to_owned(), None);
    assert_eq!(
        found,
        [
            abandoned("turn_ended"),
            abandoned("turn_ended"),
            abandoned("turn_ended"),
            kept("applied"),
            kept("cancelled"),
            abandoned("native_timeout"),
        ]
    );
}

#[tokio::test]
async fn an_identity_is_looked_up_by_an_index() {
    let folder = Folder::new();
    folder.journal().close().await;
    let connection = rusqlite::Connection::open(folder.path()).unwrap();
    for query in [
        "SELECT 1 FROM session WHERE principal = 'p' AND session_id = 's'",
        "SELECT 1 FROM turn WHERE session = 1 AND turn_id = 't'",
        "SELECT 1 FROM call WHERE turn = 1 AND call_id = 'c'",
        "SELECT * FROM turn WHERE status IS NULL ORDER BY row",
        "SELECT * FROM executor WHERE closed = 0 ORDER BY executor_id",
        "UPDATE call SET phase = 'written' WHERE turn = 1 AND call_id = 'c'",
    ] {
        let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}")).unwrap();
        let steps: Vec<String> = plan.query_map((), |row| row.get("detail")).unwrap().map(Result::unwrap).collect();
        assert!(steps.iter().all(|step| step.contains("INDEX")), "{query}: {steps:?}");
    }
}
