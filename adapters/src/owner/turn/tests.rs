use super::*;

const MANNER: Manner = Manner { name: "codex", cleans: true, close: Duration::ZERO };

fn timing() -> Timing {
    Timing::default()
}

fn completed(end: NativeEnd) -> Event {
    Event::Completed { native: "U".into(), end, open_work: 0 }
}

fn with_work(end: NativeEnd, open_work: usize) -> Event {
    Event::Completed { native: "U".into(), end, open_work }
}

fn started() -> Event {
    Event::Started { native: "U".into() }
}

fn accepted() -> Event {
    Event::Accepted { native: Some("U".into()) }
}

fn refused(overloaded: bool) -> Event {
    let failure = Failure { code: FailureCode::InvalidRequest, message: "no".into(), http_status: None, exit: None };
    Event::Refused { failure, overloaded }
}

fn fault() -> Event {
    Event::Fault(Failure { code: FailureCode::LineTooLarge, message: "long".into(), http_status: None, exit: None })
}

fn exited(exit: Exit, foreign_signal: bool) -> Event {
    Event::Exited { exit, foreign_signal, said: String::new() }
}

/// One word for each effect; timers that are cleared are left out.
fn word(effect: &Effect) -> Option<String> {
    Some(match effect {
        Effect::Report(Report::Started { .. }) => "started".into(),
        Effect::Report(Report::Ended(NativeEnd::Completed { .. })) => "ended completed".into(),
        Effect::Report(Report::Ended(NativeEnd::Interrupted { .. })) => "ended interrupted".into(),
        Effect::Report(Report::Ended(NativeEnd::Failed { failure, .. })) => format!("ended {:?}", failure.code),
        Effect::Report(Report::Settled(Settlement { confirmed, reusable })) => {
            format!("settled {confirmed} {reusable}")
        }
        Effect::Report(Report::Proved(NativeEnd::Completed { .. })) => "proved completed".into(),
        Effect::Report(Report::Proved(NativeEnd::Interrupted { .. })) => "proved interrupted".into(),
        Effect::Report(Report::Proved(NativeEnd::Failed { failure, .. })) => format!("proved {:?}", failure.code),
        Effect::Report(other) => format!("{other:?}"),
        Effect::Submit => "submit".into(),
        Effect::Interrupt { native } => format!("interrupt {native}"),
        Effect::Clean => "clean".into(),
        Effect::EndSurplus => "end surplus".into(),
        Effect::Retire => "retire".into(),
        Effect::Arm(timer, after) => format!("{timer:?} in {} ms", after.as_millis()),
        Effect::Disarm(_) => return None,
    })
}

#[track_caller]
fn check(events: &[Event], want: &[&str]) {
    let mut turn = Turn::new(MANNER, timing());
    let mut got = Vec::new();
    for event in events {
        let mut out = Vec::new();
        if let Err(misfit) = turn.on(event.clone(), &mut out) {
            got.push(format!("misfit: {misfit}"));
        }
        got.extend(out.iter().filter_map(word));
    }
    assert_eq!(got, want);
}

const SETTLEMENT: &str = "Settlement in 60000 ms";
const NONE_LEFT: Event = Event::SurplusEnded { left: 0 };

#[test]
fn a_plain_turn() {
    check(
        &[accepted(), started(), completed(DONE), NONE_LEFT],
        &["started", "ended completed", SETTLEMENT, "end surplus", "settled true true"],
    );
}

#[test]
fn notifications_before_the_answer_count() {
    let none = Event::Accepted { native: None };
    check(
        &[started(), none.clone(), completed(DONE), NONE_LEFT],
        &["started", "ended completed", SETTLEMENT, "end surplus", "settled true true"],
    );
    check(&[none, started()], &["started"]);
    check(&[accepted(), completed(DONE)], &["started", "ended completed", SETTLEMENT, "end surplus"]);
}

#[test]
fn another_native_turn_is_none_of_ours() {
    let other = Event::Started { native: "X".into() };
    check(&[accepted(), other.clone()], &["misfit: started in state submitting"]);
    check(&[started(), other], &["started", "misfit: started in state running"]);
    let end = DONE;
    let ended = Event::Completed { native: "X".into(), end, open_work: 0 };
    check(&[started(), ended.clone()], &["started", "misfit: completed in state running"]);
    check(&[accepted(), ended], &["misfit: completed in state submitting"]);
}

#[test]
fn a_second_end_is_nothing() {
    check(
        &[started(), completed(DONE), completed(STOPPED), NONE_LEFT, completed(DONE)],
        &[
            "started",
            "ended completed",
            SETTLEMENT,
            "end surplus",
            "misfit: completed in state settling",
            "settled true true",
            "misfit: completed in state settled",
        ],
    );
}

#[test]
fn an_interrupt_waits_for_the_start_of_the_native_turn() {
    check(
        &[accepted(), Event::Interrupt, started(), completed(STOPPED), Event::Cleaned, NONE_LEFT],
        &[
            "Interrupt in 2000 ms",
            "started",
            "interrupt U",
            "Interrupt in 2000 ms",
            "ended interrupted",
            SETTLEMENT,
            "clean",
            "Clean in 1000 ms",
            "end surplus",
            "settled true true",
        ],
    );
}

#[test]
fn a_refused_interrupt_is_tried_again() {
    check(
        &[
            started(),
            Event::Interrupt,
            Event::InterruptRefused,
            Event::Expired(Timer::InterruptAgain),
            Event::InterruptRefused,
            completed(DONE),
        ],
        &[
            "started",
            "interrupt U",
            "Interrupt in 2000 ms",
            "InterruptAgain in 50 ms",
            "interrupt U",
            "InterruptAgain in 50 ms",
            "ended completed",
            SETTLEMENT,
            "end surplus",
        ],
    );
}

#[test]
fn a_second_interrupt_is_idempotent() {
    check(&[started(), Event::Interrupt, Event::Interrupt], &["started", "interrupt U", "Interrupt in 2000 ms"]);
    check(&[Event::Interrupt, Event::Interrupt], &["Interrupt in 2000 ms"]);
}

#[test]
fn an_interrupt_without_effect_ends_the_process() {
    let ladder = ["started", "interrupt U", "Interrupt in 2000 ms", "retire", SETTLEMENT];
    let begin = [started(), Event::Interrupt, Event::Expired(Timer::Interrupt)];
    let exits = |exit, foreign| [&begin[..], &[exited(exit, foreign)]].concat();
    check(&exits(Exit::Code(0), false), &[&ladder[..], &["ended interrupted", "settled true false"]].concat());
    check(&exits(Exit::Signal(9), false), &[&ladder[..], &["ended interrupted", "settled true false"]].concat());
    // A signal that we did not send is a failure (R-CAN-6).
    check(&exits(Exit::Signal(11), true), &[&ladder[..], &["ended HarnessExited", "settled true false"]].concat());
    // A completion on its way wins (R-CAN-5).
    check(
        &[&begin[..], &[completed(DONE), exited(Exit::Code(0), false)]].concat(),
        &[&ladder[..], &["ended completed", "settled true false"]].concat(),
    );
    check(
        &[&begin[..], &[Event::Expired(Timer::Settlement)]].concat(),
        &[&ladder[..], &["ended interrupted", "settled false false"]].concat(),
    );
}

#[test]
fn an_interrupt_that_is_held_too_long_ends_the_process() {
    check(
        &[Event::Interrupt, Event::Expired(Timer::Interrupt), started(), exited(Exit::Code(0), false)],
        &["Interrupt in 2000 ms", "retire", SETTLEMENT, "started", "ended interrupted", "settled true false"],
    );
}

#[test]
fn open_work_gets_its_time_and_is_then_stopped() {
    check(
        &[started(), with_work(DONE, 2), Event::Work { open: 1 }, Event::Work { open: 0 }, NONE_LEFT],
        &["started", "ended completed", SETTLEMENT, "Work in 2000 ms", "end surplus", "settled true true"],
    );
    check(
        &[
            started(),
            with_work(DONE, 1),
            Event::Expired(Timer::Work),
            Event::Cleaned,
            Event::Work { open: 0 },
            NONE_LEFT,
        ],
        &[
            "started",
            "ended completed",
            SETTLEMENT,
            "Work in 2000 ms",
            "clean",
            "Clean in 1000 ms",
            "end surplus",
            "settled true true",
        ],
    );
    // Work that never shows its end is ended anyway.
    check(
        &[started(), with_work(DONE, 1), Event::Interrupt, Event::Cleaned, Event::Expired(Timer::Clean)],
        &["started", "ended completed", SETTLEMENT, "Work in 2000 ms", "clean", "Clean in 1000 ms", "end surplus"],
    );
}

#[test]
fn what_cannot_be_ended_alone_goes_with_the_process() {
    check(
        &[started(), completed(DONE), Event::SurplusEnded { left: 1 }, exited(Exit::Code(0), false)],
        &["started", "ended completed", SETTLEMENT, "end surplus", "retire", "settled true false"],
    );
    check(
        &[started(), completed(DONE), Event::Expired(Timer::Settlement)],
        &["started", "ended completed", SETTLEMENT, "end surplus", "retire", "settled false false"],
    );
}

#[test]
fn a_refused_start_is_a_failure() {
    check(&[refused(false), NONE_LEFT], &["ended InvalidRequest", SETTLEMENT, "end surplus", "settled true true"]);
}

#[test]
fn a_busy_codex_is_asked_again_a_few_times() {
    let again = |times: usize| vec![[refused(true), Event::Expired(Timer::Resubmit)]; times].concat();
    check(
        &[again(5), vec![refused(true)]].concat(),
        &[
            "Resubmit in 100 ms",
            "submit",
            "Resubmit in 200 ms",
            "submit",
            "Resubmit in 400 ms",
            "submit",
            "Resubmit in 800 ms",
            "submit",
            "Resubmit in 1600 ms",
            "submit",
            "ended InvalidRequest",
            SETTLEMENT,
            "end surplus",
        ],
    );
    check(
        &[refused(true), Event::Interrupt, Event::Expired(Timer::Resubmit)],
        &["Resubmit in 100 ms", "Interrupt in 2000 ms", "ended interrupted", SETTLEMENT, "end surplus"],
    );
    check(
        &[Event::Interrupt, refused(true)],
        &["Interrupt in 2000 ms", "ended interrupted", SETTLEMENT, "end surplus"],
    );
}

#[test]
fn an_exit_in_a_turn_is_a_failure_whatever_its_code() {
    for exit in [Exit::Code(0), Exit::Code(1), Exit::Signal(11)] {
        check(&[started(), exited(exit, false)], &["started", "ended HarnessExited", "settled true false"]);
        check(&[exited(exit, false)], &["ended HarnessExited", "settled true false"]);
        check(
            &[started(), Event::Interrupt, exited(exit, false)],
            &["started", "interrupt U", "Interrupt in 2000 ms", "ended HarnessExited", "settled true false"],
        );
    }
}

#[test]
fn an_end_counts_more_than_the_exit_after_it() {
    check(
        &[started(), completed(DONE), exited(Exit::Code(1), false)],
        &["started", "ended completed", SETTLEMENT, "end surplus", "settled true false"],
    );
}

#[test]
fn a_fault_retires_the_process_and_is_the_failure() {
    check(
        &[started(), fault(), exited(Exit::Code(0), false)],
        &["started", "retire", SETTLEMENT, "ended LineTooLarge", "settled true false"],
    );
    // It goes on until it is ended, and says that all is well.
    check(
        &[started(), fault(), completed(DONE), exited(Exit::Code(0), false)],
        &["started", "retire", SETTLEMENT, "ended LineTooLarge", "settled true false"],
    );
    check(
        &[started(), completed(DONE), fault(), exited(Exit::Code(0), false)],
        &["started", "ended completed", SETTLEMENT, "end surplus", "retire", "settled true false"],
    );
    // An end that comes behind what was lost.
    check(
        &[started(), fault(), completed(DONE), exited(Exit::Code(0), false)],
        &["started", "retire", SETTLEMENT, "ended LineTooLarge", "settled true false"],
    );
}

#[test]
fn closing_in_a_turn_interrupts_it_without_asking_codex() {
    check(
        &[started(), Event::Close, exited(Exit::Code(0), false)],
        &["started", "retire", SETTLEMENT, "ended interrupted", "settled true false"],
    );
}

#[test]
fn an_interrupt_that_nobody_asked_for_is_a_protocol_error() {
    check(&[started(), completed(STOPPED)], &["started", "ended HarnessProtocolError", SETTLEMENT, "end surplus"]);
}

#[test]
fn events_of_other_states_change_nothing() {
    for event in [Event::InterruptRefused, Event::Cleaned, NONE_LEFT, Event::Expired(Timer::Clean)] {
        let mut turn = Turn::new(MANNER, timing());
        let mut out = Vec::new();
        assert!(turn.on(event, &mut out).is_err());
        assert_eq!(out, []);
        assert!(turn.is_open() && !turn.is_settled());
    }
}

const DONE: NativeEnd = NativeEnd::Completed { finish: None, at: None };
const STOPPED: NativeEnd = NativeEnd::Interrupted { at: None };
const GONE: Event = Event::Exited { exit: Exit::Code(0), foreign_signal: false, said: String::new() };

#[test]
fn an_end_that_history_proves_is_the_end() {
    check(&[started(), Event::Proved(DONE), GONE], &["started", "proved completed", "settled true false"]);
    check(&[accepted(), Event::Proved(DONE), GONE], &["started", "proved completed", "settled true false"]);
    check(
        &[started(), Event::Close, Event::Proved(DONE), GONE],
        &["started", "retire", SETTLEMENT, "proved completed", "settled true false"],
    );
    // What the process told itself stands.
    check(
        &[started(), completed(DONE), Event::Proved(STOPPED)],
        &["started", "ended completed", SETTLEMENT, "end surplus", "misfit: proved in state settling"],
    );
    check(
        &[started(), Event::Close, completed(DONE), Event::Proved(DONE)],
        &["started", "retire", SETTLEMENT, "ended completed", "misfit: proved in state retiring"],
    );
}

#[test]
fn history_is_asked_for_an_end_that_was_not_told_and_believed_where_it_fits() {
    let cases: [(&[Event], Option<&str>, [bool; 3]); 8] = [
        // Whether it takes a completion, an interrupt, and an interrupt where somebody else's signal ended the process.
        (&[], None, [false, false, false]),
        (&[accepted()], Some("U"), [true, false, false]),
        (&[started()], Some("U"), [true, false, false]),
        (&[started(), Event::Interrupt], Some("U"), [true, true, false]),
        (&[accepted(), Event::Interrupt], Some("U"), [true, true, false]),
        (&[started(), Event::Close], Some("U"), [true, false, false]),
        (&[started(), fault()], None, [false, false, false]),
        (&[started(), completed(DONE)], None, [false, false, false]),
    ];
    for (events, unended, takes) in cases {
        let mut turn = Turn::new(MANNER, timing());
        for event in events {
            turn.on(event.clone(), &mut Vec::new()).unwrap();
        }
        assert_eq!(turn.unended(), unended, "{events:?}");
        let found =
            [(DONE, false), (STOPPED, false), (STOPPED, true)].map(|(end, foreign)| turn.is_proved_by(&end, foreign));
        assert_eq!(found, takes, "{events:?}");
    }
}
