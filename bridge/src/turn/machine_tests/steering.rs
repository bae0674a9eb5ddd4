//! Tables for the inputs that are added to a Turn.

use adapters::harness::{InputEvidence, InputRefusal};

use super::*;
use crate::turn::inputs::{MAX_WAITING_BYTES, Verdict};

fn steer(id: &str) -> Input {
    Input::Steer { input_id: id.into(), content: [1; 32], input: vec!["text".into()] }
}
fn written_input(id: &str) -> Input {
    report(Report::InputWritten { input_id: id.into() })
}
fn read(id: &str) -> Input {
    let (evidence, native_id) = (InputEvidence::Consumed, "n".into());
    report(Report::InputAccepted { input_id: id.into(), evidence, native_id })
}
fn unread(id: &str) -> Input {
    report(Report::InputRefused { input_id: id.into(), why: InputRefusal::TurnEnded })
}

#[test]
fn an_input_is_written_and_then_accepted_and_each_is_stored_first() {
    check(
        vec![started(), steer("a"), written_input("a"), read("a")],
        "store_started turn_started steer(a) store(written) InputWritten store(accepted) InputAccepted = Running",
    );
    check(
        vec![started(), steer("a"), read("a"), written_input("a"), read("a")],
        "store_started turn_started steer(a) store(accepted) InputWritten InputAccepted = Running",
    );
}

#[test]
fn an_answer_that_is_broken_off_for_an_input_is_void_for_that_reason() {
    check(
        vec![started(), delta("m", "hi"), report(Report::AnswerSteered), delta("n", "ho")],
        "store_started turn_started +m ~hi void(m,Steered) +n ~ho = Running",
    );
}

#[test]
fn an_end_refuses_what_was_not_written_and_leaves_what_was_unknown() {
    check(
        vec![started(), steer("a"), steer("b"), written_input("a"), completed(), settled(true)],
        "store_started turn_started steer(a) steer(b) store(written) InputWritten store(outcome_unknown) InputOutcomeUnknown \
         store(refused) InputRefused completed = Ended",
    );
    check(
        vec![started(), steer("a"), written_input("a"), unread("a"), completed(), settled(true)],
        "store_started turn_started steer(a) store(written) InputWritten store(refused) InputRefused completed = Ended",
    );
}

#[test]
fn an_executor_that_is_gone_without_a_word_leaves_everything_unknown() {
    let closed = report(Report::Closed { exit: None, survivors: 0 });
    check(
        vec![started(), steer("a"), closed],
        "store_started turn_started steer(a) store(outcome_unknown) InputOutcomeUnknown failed(HarnessExited) = Ended",
    );
}

#[test]
fn a_turn_that_never_starts_has_its_end_alone() {
    check(
        vec![steer("a"), cancel(), interrupted(), settled(true)],
        "steer(a) interrupt store(refused) cancelled(Requested) = Ended",
    );
}

#[test]
fn news_of_an_input_that_was_never_given_is_a_misfit() {
    check(
        vec![started(), read("a")],
        "store_started turn_started misfit(news of an input that it was not given) = Running",
    );
}

#[test]
fn a_turn_that_writes_an_input_does_more_than_wait() {
    let mut turn = Turn::new("thread".into(), "s/t".into());
    for input in [started(), call("c")] {
        turn.on(input).unwrap();
    }
    assert!(turn.only_waits());
    turn.on(steer("a")).unwrap();
    assert!(!turn.only_waits());
    // What is written waits for the call as the Turn does.
    turn.on(written_input("a")).unwrap();
    assert!(turn.only_waits());
}

#[test]
fn what_is_given_and_not_written_makes_others_wait_by_its_size() {
    let mut turn = Turn::new("thread".into(), "s/t".into());
    let large = || vec![InputPart::Text("x".repeat(MAX_WAITING_BYTES / 2 + 1))];
    turn.on(started()).unwrap();
    assert_eq!(turn.judge_input("a", [1; 32], &large()), Verdict::Taken);
    turn.on(Input::Steer { input_id: "a".into(), content: [1; 32], input: large() }).unwrap();
    assert_eq!(turn.judge_input("b", [2; 32], &large()), Verdict::Busy);
    // What is known is answered whatever waits.
    assert_eq!(turn.judge_input("a", [1; 32], &large()), Verdict::Duplicate);
    turn.on(written_input("a")).unwrap();
    assert_eq!(turn.judge_input("b", [2; 32], &large()), Verdict::Taken);
}
