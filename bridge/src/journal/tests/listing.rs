//! Pages of Turns, and what the newest Turns tell of their Sessions.

use super::{Folder, session, turn};
use crate::journal::{EndRecord, Journal, LastTurn, SessionRow};

async fn numbers(journal: &Journal, session: SessionRow, before: Option<u64>, limit: usize) -> Vec<u64> {
    let found = journal.turns_before(session, before, limit).await.unwrap();
    found.into_iter().map(|turn| turn.start.number).collect()
}

#[tokio::test]
async fn turns_come_newest_first_and_of_their_session_only() {
    let folder = Folder::new();
    let journal = folder.journal();
    let one = journal.put_session(session("s-1")).await.unwrap();
    let other = journal.put_session(session("s-2")).await.unwrap();
    for number in 1..=5 {
        journal.insert_turn(turn(one, number)).await.unwrap();
    }
    journal.insert_turn(turn(other, 9)).await.unwrap();
    assert_eq!(numbers(&journal, one, None, 10).await, [5, 4, 3, 2, 1]);
    assert_eq!(numbers(&journal, one, None, 2).await, [5, 4]);
    assert_eq!(numbers(&journal, one, Some(4), 2).await, [3, 2]);
    assert_eq!(numbers(&journal, one, Some(1), 2).await, [] as [u64; 0]);
    assert_eq!(numbers(&journal, other, None, 2).await, [9]);
}

#[tokio::test]
async fn the_newest_turns_tell_of_their_session() {
    let folder = Folder::new();
    let journal = folder.journal();
    let none = journal.put_session(session("s-1")).await.unwrap();
    let some = journal.put_session(session("s-2")).await.unwrap();
    let first = journal.insert_turn(turn(some, 1)).await.unwrap();
    journal.turn_started(first, "thread-1", Some("n-1")).await.unwrap();
    let end = EndRecord {
        status: "completed".to_owned(),
        ended: vec![1],
        last_sequence: 3,
        ended_ms: 1_700_000_000_500,
        usage: None,
    };
    journal.end_turn(first, end, None).await.unwrap();
    let told = |active_ms, native: Option<&str>| LastTurn { active_ms, native_session_id: native.map(str::to_owned) };
    let want = [told(None, None), told(Some(1_700_000_000_500), Some("thread-1"))];
    assert_eq!(journal.last_turns(vec![none, some]).await.unwrap(), want);
    // One that has not reached the Harness is the newest, and says nothing of the native session.
    let mut next = turn(some, 2);
    next.created_ms = 1_700_000_000_900;
    journal.insert_turn(next).await.unwrap();
    let want = [told(Some(1_700_000_000_900), Some("thread-1"))];
    assert_eq!(journal.last_turns(vec![some]).await.unwrap(), want);
}
