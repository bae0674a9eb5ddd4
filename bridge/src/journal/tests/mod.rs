//! The journal against real files.

mod crash;
mod enrollments;
mod fixture;
mod listing;
mod opening;
mod place;
mod records;
mod writer;

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Journal, NewCall, NewTurn, Placement, SessionRecord, SessionRow, TurnRow};

/// A fresh folder of this test beside the test program, which goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let program = std::env::current_exe().unwrap();
        let folder = program.parent().unwrap().join(format!("journal-{}", uuid::Uuid::now_v7()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("journal.db")
    }

    fn journal(&self) -> Journal {
        Journal::open(&self.path()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn check_integrity(path: &Path) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let said: String = connection.query_row("PRAGMA integrity_check", (), |row| row.get(0)).unwrap();
    assert_eq!(said, "ok");
    let strangers: i64 =
        connection.query_row("SELECT count(*) FROM pragma_foreign_key_check", (), |row| row.get(0)).unwrap();
    assert_eq!(strangers, 0, "every reference has its row");
}

fn session(id: &str) -> SessionRecord {
    SessionRecord {
        principal: "uid:1000".to_owned(),
        session_id: id.to_owned(),
        directory: format!("{id:0>32}"),
        assignment_id: "a-1".to_owned(),
        epoch: 1,
        released: false,
        placement: Placement::Workspace { environment_id: "env".to_owned(), directory: "/src/project".to_owned() },
        had_turn: false,
        next_turn_number: 1,
        history: None,
    }
}

fn turn(session: SessionRow, number: u64) -> NewTurn {
    NewTurn {
        session,
        turn_id: format!("t-{number}"),
        number,
        executor_id: "x-1".to_owned(),
        content: [7; 32],
        created_ms: 1_700_000_000_000,
    }
}

fn call(id: &str) -> NewCall {
    NewCall {
        call_id: id.to_owned(),
        name: "look_up".to_owned(),
        arguments: r#"{"a": 1.0,  "a": 2}"#.to_owned(),
        sequence: 4,
    }
}

/// A Session with one Turn.
async fn begin(journal: &Journal) -> (SessionRow, TurnRow) {
    let session = journal.put_session(session("s-1")).await.unwrap();
    let turn = journal.insert_turn(turn(session, 1)).await.unwrap();
    (session, turn)
}
