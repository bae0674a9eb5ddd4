//! Killed at random moments, the journal has every write that it acknowledged.

use std::{
    collections::HashSet,
    hash::{BuildHasher as _, RandomState},
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Command, Stdio},
};

use tokio::task::JoinSet;

use super::{Folder, call, check_integrity, session, turn};
use crate::journal::{Journal, ResultRecord, StoredResult};

/// Where the child writes. Only the child has it.
const PATH: &str = "RUNTIME_BRIDGE_TEST_JOURNAL";

const WRITERS: u64 = 8;

#[tokio::test]
async fn every_acknowledged_write_survives_a_kill() {
    for round in 0..5u64 {
        let folder = Folder::new();
        // Between the first acknowledgements and a few checkpoints of the write-ahead log.
        let lines = usize::try_from(RandomState::new().hash_one(round) % 4000).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "journal::tests::crash::the_writer_that_is_killed", "--nocapture"])
            .env(PATH, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let is_stored = |line: &String| line.starts_with("stored ");
        let mut acknowledged: HashSet<String> = said.by_ref().filter(is_stored).take(lines).collect();
        child.kill().unwrap();
        // What it said before it died counts, but for a line that was torn.
        let mut rest: Vec<String> = said.collect();
        if rest.last().is_some_and(|last| !last.ends_with('.')) {
            rest.pop();
        }
        acknowledged.extend(rest.into_iter().filter(is_stored));
        child.wait().unwrap();
        assert!(acknowledged.len() >= lines, "round {round}: the child ended by itself");

        let journal = folder.journal();
        let mut found = HashSet::new();
        for turn in journal.open_turns().await.unwrap() {
            for call in journal.calls_of(turn.row).await.unwrap() {
                assert_eq!(call.phase == "result_stored", call.result.is_some());
                if let Some(result) = call.result {
                    assert_eq!(result.body, call.start.call_id.as_bytes());
                    found.insert(format!("stored {}.", call.start.call_id));
                }
            }
        }
        let lost: Vec<_> = acknowledged.difference(&found).collect();
        assert!(lost.is_empty(), "round {round}, killed after {lines}: lost {lost:?}");
        journal.close().await;
        check_integrity(&folder.path());
    }
}

/// Not a test of its own: what the test above starts and kills.
#[tokio::test]
async fn the_writer_that_is_killed() {
    let Some(path) = std::env::var_os(PATH).map(PathBuf::from) else { return };
    let journal = Journal::open(&path).unwrap();
    let session = journal.put_session(session("s-1")).await.unwrap();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let journal = journal.clone();
        writers.spawn(async move {
            let turn = journal.insert_turn(turn(session, writer + 1)).await.unwrap();
            for n in 0u64.. {
                let id = format!("c-{writer}-{n}");
                journal.insert_call(turn, call(&id)).await.unwrap();
                let result = StoredResult { hash: [3; 32], body: id.clone().into_bytes() };
                journal.store_results(vec![ResultRecord { turn, call_id: id.clone(), result }]).await.unwrap();
                // A failing write says that the other side is gone.
                if writeln!(std::io::stdout(), "stored {id}.").is_err() {
                    return;
                }
            }
        });
    }
    writers.join_all().await;
}
