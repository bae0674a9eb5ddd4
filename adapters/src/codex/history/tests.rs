use std::{env, fs, path::PathBuf, process};

use super::*;
use crate::harness::{FailureCode, MessagePhase};

/// What Codex 0.171.0 wrote, with long texts cut: a turn that was killed in a call, one that completed, one that was interrupted, one that
/// failed, and one in which the process was asked to end.
const ROLLOUT: &str = include_str!("tests/rollout.jsonl");

/// Where it is in a home.
const DAY: &str = "sessions/2026/11/30";
const THREAD: &str = "01a22b63-4fd1-7d92-b9c4-22060c57f91f";
const KILLED: &str = "01a22b63-4fde-7fb1-ac75-36556b7c9a08";
const COMPLETED: &str = "01a22b63-52f8-7320-a455-dbfe02c007f6";
const INTERRUPTED: &str = "01a22b63-5382-7f73-9722-da43ff3dff4a";
const FAILED: &str = "01a22b63-53c0-7eb0-9f51-02fc42845cd5";
const ENDED: &str = "01a22b63-5406-7031-a5b2-93ee9710bb22";

/// A home that is removed with the value.
struct Home(PathBuf);

impl Home {
    fn with(name: &str, rollout: &str) -> Self {
        let home = env::current_exe().unwrap().with_file_name(format!("history-{}-{name}", process::id()));
        let day = home.join(DAY);
        fs::create_dir_all(&day).unwrap();
        fs::write(day.join(format!("rollout-2026-11-30T07-37-38-{THREAD}.jsonl")), rollout).unwrap();
        Self(home)
    }

    fn check(&self, thread: &str, last_turn: Option<&str>) -> Result<(), HistoryFault> {
        let last_turn = last_turn.map(str::to_owned);
        check(&self.0, &Resume { native_session_id: thread.into(), last_turn, instructions_changed: false })
    }

    fn end(&self, turn: &str) -> Option<NativeEnd> {
        Some(ending(&self.0, THREAD, turn)?.into_proof(&Errors::unseen(), &Cleaner::default()).end)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_completed_turn_has_its_end_its_message_and_its_usage() {
    let home = Home::with("completed", ROLLOUT);
    let found = ending(&home.0, THREAD, COMPLETED).unwrap();
    assert!(matches!(found.end, Ended::Completed));
    assert_eq!(found.at, Some(UNIX_EPOCH + Duration::from_secs(1_796_024_259)));
    let message = found.message.unwrap();
    assert_eq!((&*message.id, &*message.text), ("msg_01a22b63534e774bb40f81018dc7c01f", "two"));
    assert_eq!(message.phase, Some(MessagePhase::FinalAnswer));
    assert_eq!(found.usage.map(|usage| (usage.input, usage.total)), Some((Some(100), Some(120))));
}

#[test]
fn each_end_is_told_apart_and_a_turn_without_one_has_none() {
    let home = Home::with("ends", ROLLOUT);
    assert!(matches!(home.end(INTERRUPTED), Some(NativeEnd::Interrupted { at: Some(_) })));
    assert!(matches!(home.end(ENDED), Some(NativeEnd::Interrupted { at: Some(_) })));
    let Some(NativeEnd::Failed { failure, .. }) = home.end(FAILED) else { panic!("it did not fail") };
    assert_eq!(failure.code, FailureCode::ServerError);
    assert_eq!(home.end(KILLED), None);
    assert_eq!(home.end("01a22b63-0000-7320-a455-dbfe02c007f6"), None);
}

#[test]
fn a_torn_or_foreign_line_takes_nothing_away() {
    let torn = format!("{ROLLOUT}{{\"type\":\"event_msg\",\"payload\":{{\"type\":\"task_comp");
    assert!(matches!(Home::with("torn", &torn).end(COMPLETED), Some(NativeEnd::Completed { .. })));
    let lines: Vec<_> = ROLLOUT.lines().flat_map(|line| [line, "{\"type\":7}", "\u{0}garbage{", "[]"]).collect();
    assert!(matches!(Home::with("noise", &lines.join("\n")).end(COMPLETED), Some(NativeEnd::Completed { .. })));
}

#[test]
fn the_history_that_is_meant_is_taken_and_no_other() {
    let home = Home::with("meant", ROLLOUT);
    for last in [None, Some(COMPLETED), Some(FAILED), Some(INTERRUPTED)] {
        assert_eq!(home.check(THREAD, last), Ok(()));
    }
    let other = "01a22b63-0000-7d92-b9c4-22060c57f91f";
    for odd in [other, "", "..", "../../etc/passwd", "--config", "*", &THREAD[1..]] {
        assert_eq!(home.check(odd, None), Err(HistoryFault::Missing), "{odd}");
    }
    assert_eq!(home.check(THREAD, Some(other)), Err(HistoryFault::Corrupt));
    assert_eq!(Home::with("foreign", &ROLLOUT.replace(THREAD, other)).check(THREAD, None), Err(HistoryFault::Foreign));
}

#[test]
fn a_damaged_history_is_none() {
    let second = ROLLOUT.find('\n').unwrap() + 1;
    for (name, damaged) in [
        ("empty", ""),
        ("garbage", "\u{0}\u{0}\u{0}\n"),
        ("headless", &ROLLOUT[second..]),
        ("cut head", &ROLLOUT[..200]),
    ] {
        let found = Home::with(&format!("damaged-{}", name.len()), damaged).check(THREAD, None);
        assert_eq!(found, Err(HistoryFault::Corrupt), "{name}");
    }
    // Codex itself would go on with a history that lost its turns.
    let emptied = Home::with("emptied", &ROLLOUT[..second]);
    assert_eq!(emptied.check(THREAD, Some(COMPLETED)), Err(HistoryFault::Corrupt));
    assert_eq!(Home::with("nothing", "").end(COMPLETED), None);
}

#[test]
fn a_link_is_not_a_history() {
    let home = Home::with("link", ROLLOUT);
    let path = home.0.join(DAY).join(format!("rollout-2026-11-30T07-37-38-{THREAD}.jsonl"));
    assert!(find(&home.0, THREAD).is_some());
    let elsewhere = home.0.join("elsewhere.jsonl");
    fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    assert_eq!(home.check(THREAD, None), Err(HistoryFault::Missing));
}

#[test]
fn inputs_that_were_read_are_found_and_only_an_end_proves_that_others_were_not() {
    let home = Home::with("inputs", ROLLOUT);
    let found = |turn| {
        let ProvedInputs { read, is_over } = inputs(&home.0, THREAD, turn).unwrap();
        (read.into_iter().map(|input| (input.client_id, input.native_id)).collect::<Vec<_>>(), is_over)
    };
    let one = |client: &str, native: &str| vec![(client.to_owned(), native.to_owned())];
    assert_eq!(found(COMPLETED), (one("u-two", "01a22b63-5316-7981-8ec3-a4ce81949afe"), true));
    assert_eq!(found(INTERRUPTED), (one("u-three", "01a22b63-5399-7673-b282-bc223f8d0080"), true));
    assert_eq!(found(KILLED), (one("u-one", "01a22b63-500b-7ee0-9301-47c97bedcb26"), false));
    assert_eq!(found("01a22b63-0000-7320-a455-dbfe02c007f6"), (Vec::new(), false));
    // Where the beginning of the turn is not there, an input may have stood before.
    let cut = ROLLOUT.split_at(ROLLOUT.find("u-two").unwrap()).1;
    let found = inputs(&Home::with("cut inputs", cut).0, THREAD, COMPLETED).unwrap();
    assert_eq!((found.read.len(), found.is_over), (0, false));
}
