//! Opening and closing.

use super::{Folder, check_integrity};
use crate::journal::{Error, Journal};

#[tokio::test]
async fn the_state_id_is_made_once() {
    let folder = Folder::new();
    let journal = folder.journal();
    let id = journal.state_id().to_owned();
    journal.close().await;
    let journal = folder.journal();
    assert_eq!(journal.state_id(), id);
    assert_ne!(Folder::new().journal().state_id(), id, "another journal has another");
}

#[tokio::test]
async fn a_second_opening_of_the_same_file_is_refused() {
    let folder = Folder::new();
    let journal = folder.journal();
    assert!(matches!(Journal::open(&folder.path()), Err(Error::Locked)));
    journal.close().await;
    folder.journal().close().await;
}

#[tokio::test]
async fn a_file_of_a_newer_schema_is_refused_and_left_alone() {
    let folder = Folder::new();
    folder.journal().close().await;
    let version = || {
        let connection = rusqlite::Connection::open(folder.path()).unwrap();
        connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap()
    };
    let known = version();
    rusqlite::Connection::open(folder.path()).unwrap().pragma_update(None, "user_version", known + 1).unwrap();
    let refused = Journal::open(&folder.path()).unwrap_err();
    assert!(matches!(refused, Error::NewerSchema { found, known: k } if found == known + 1 && k == known), "{refused}");
    assert_eq!(version(), known + 1);
}

#[tokio::test]
async fn a_file_that_is_no_journal_is_refused() {
    let folder = Folder::new();
    std::fs::write(folder.path(), [b'x'; 4096]).unwrap();
    assert!(matches!(Journal::open(&folder.path()), Err(Error::Corrupt(_))));

    let folder = Folder::new();
    rusqlite::Connection::open(folder.path()).unwrap().execute_batch("CREATE TABLE other (n INTEGER)").unwrap();
    assert!(matches!(Journal::open(&folder.path()), Err(Error::Corrupt(_))));
}

#[test]
fn a_path_that_cannot_be_opened_is_named() {
    let folder = Folder::new();
    let path = folder.0.join("absent").join("journal.db");
    let refused = Journal::open(&path).unwrap_err();
    assert!(matches!(&refused, Error::Open { path: named, .. } if *named == path), "{refused}");
}

#[tokio::test]
async fn closing_carries_out_what_waits_and_refuses_what_comes_after() {
    let folder = Folder::new();
    let journal = folder.journal();
    let other = journal.clone();
    let waiting = {
        let journal = journal.clone();
        async move { journal.put_session(super::session("s-1")).await }
    };
    // Both are asked for in this order before either is answered.
    let (stored, ()) = tokio::join!(waiting, journal.close());
    stored.unwrap();
    assert!(matches!(other.sessions().await, Err(Error::Closed)));
    other.close().await;
    let leftovers: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(leftovers, ["journal.db"], "the write-ahead log went into the file");
    check_integrity(&folder.path());
    assert_eq!(folder.journal().sessions().await.unwrap().len(), 1);
}
