//! Tables for the state machine of a Turn.

use adapters::harness::{Presence, Tool};

use sha2::{Digest as _, Sha256};

use super::*;

/// Feeds inputs and renders what came out, one word an effect. The only place that calls the machine.
#[track_caller]
fn check(inputs: Vec<Input>, want: &str) {
    let mut turn = Turn::new("thread".into(), "s/t".into());
    let mut seen = Vec::new();
    for input in inputs {
        match turn.on(input) {
            Ok(effects) => seen.extend(effects.iter().map(name)),
            Err(misfit) => seen.push(format!("misfit({})", misfit.report)),
        }
    }
    seen.push(format!("= {:?}", turn.phase()));
    assert_eq!(seen.join(" "), want);
}

fn name(effect: &Effect) -> String {
    match effect {
        Effect::StoreStarted(_) => "store_started".into(),
        Effect::StoreCall(_) => "store_call".into(),
        Effect::StorePhase { phase, .. } => format!("store({})", phase.name()),
        Effect::StoreInput { phase, .. } => format!("store({})", phase.name()),
        Effect::Steer { input_id, .. } => format!("steer({input_id})"),
        Effect::Answer { .. } => "answer".into(),
        Effect::AwaitEvidence { .. } => "await".into(),
        Effect::Interrupt => "interrupt".into(),
        Effect::Finish { end, .. } => match &end.status {
            Status::Failed(failure) => format!("failed({:?})", failure.code),
            Status::Cancelled(cause) => format!("cancelled({cause:?})"),
            Status::Unknown(cause) => format!("unknown({cause:?})"),
            Status::Completed => "completed".into(),
        },
        Effect::Emit(event) => match event {
            Event::TurnStarted { .. } => "turn_started".into(),
            Event::MessageStarted { item, .. } => format!("+{item}"),
            Event::MessageDelta { text, .. } => format!("~{text}"),
            Event::MessageCompleted { item, .. } => format!("-{item}"),
            Event::MessageDiscarded { item, reason } => format!("void({item},{reason:?})"),
            Event::ToolCompleted { item, end } => format!("tool({item},{:?})", end.status),
            Event::FunctionCall { .. } => "call".into(),
            Event::FunctionResultApplied { .. } => "applied".into(),
            Event::FunctionCallAbandoned { reason, .. } => format!("abandoned({reason:?})"),
            other => format!("{other:?}").split([' ', '(']).next().unwrap_or_default().into(),
        },
    }
}

fn report(report: Report) -> Input {
    Input::Report(report)
}
fn started() -> Input {
    report(Report::Started { native_turn_id: "n".into() })
}
fn call(id: &str) -> Input {
    report(Report::Call {
        call_id: id.into(),
        name: "f".into(),
        arguments: "{}".into(),
        exact: false,
        named_by_bridge: false,
    })
}
fn not_stored(id: &str) -> Input {
    Input::NotStored { call_id: id.into() }
}
fn stored_late(id: &str) -> Input {
    let (arguments, idempotency_key) = ("{}".into(), "k".into());
    let (call_id, name) = (id.into(), "f".into());
    Input::StoredLate {
        call: Call { call_id, name, arguments, exact: false, named_by_bridge: false, idempotency_key, place: None },
    }
}
fn fail() -> Input {
    let code = FailureCode::StorageUnavailable;
    Input::Fail(Failure { code, message: String::new(), http_status: None, exit: None })
}
fn result(id: &str) -> Input {
    let result = FunctionResult { success: true, error: Presence::Absent, output: Presence::Absent, disposition: None };
    Input::Result { call_id: id.into(), digest: [1; 32], result }
}
fn written(id: &str) -> Input {
    report(Report::AnswerWritten { call_id: id.into() })
}
fn applied(id: &str) -> Input {
    report(Report::AnswerApplied { call_id: id.into(), evidence: "item/completed", success: true })
}
fn completed() -> Input {
    report(Report::Ended(NativeEnd::Completed { finish: None, at: None }))
}
fn interrupted() -> Input {
    report(Report::Ended(NativeEnd::Interrupted { at: None }))
}
fn settled(confirmed: bool) -> Input {
    report(Report::Settled(Settlement { confirmed, reusable: confirmed }))
}
fn delta(id: &str, text: &str) -> Input {
    report(Report::MessageDelta { id: id.into(), text: text.into() })
}
fn cancel() -> Input {
    Input::Cancel(CancelCause::Requested)
}

#[test]
fn a_text_turn_completes_after_settlement() {
    check(
        vec![started(), delta("m", "hi"), completed(), settled(true)],
        "store_started turn_started +m ~hi void(m,TurnEnded) completed = Ended",
    );
}

#[test]
fn a_call_is_stored_before_it_is_shown_and_applied_only_with_evidence() {
    check(
        vec![started(), call("c"), result("c"), written("c"), applied("c")],
        "store_started turn_started store_call call answer store(written) await store(applied) applied = Running",
    );
    check(vec![started(), call("c")], "store_started turn_started store_call call = RequiresAction");
    check(
        vec![started(), call("c"), result("c"), applied("c"), written("c")],
        "store_started turn_started store_call call answer store(applied) applied = Running",
    );
}

#[test]
fn a_receipt_without_a_result_is_a_misfit() {
    check(
        vec![started(), call("c"), applied("c")],
        "store_started turn_started store_call call misfit(a receipt for a call without a result) = RequiresAction",
    );
}

#[test]
fn a_written_result_without_evidence_fails_the_turn() {
    let overdue = || Input::Overdue { call_id: "c".into() };
    check(
        vec![started(), call("c"), result("c"), written("c"), overdue(), interrupted(), settled(true)],
        "store_started turn_started store_call call answer store(written) await interrupt abandoned(TurnEnded) \
         failed(FunctionResultUnconfirmed) = Ended",
    );
    check(
        vec![started(), call("c"), result("c"), written("c"), applied("c"), overdue()],
        "store_started turn_started store_call call answer store(written) await store(applied) applied = Running",
    );
}

#[test]
fn a_cancel_interrupts_once_and_ends_cancelled() {
    check(
        vec![started(), call("c"), cancel(), cancel(), interrupted(), settled(true)],
        "store_started turn_started store_call call interrupt abandoned(TurnEnded) cancelled(Requested) = Ended",
    );
    check(vec![cancel()], "interrupt = Settling");
}

#[test]
fn a_completion_on_its_way_wins_over_a_cancel() {
    check(
        vec![started(), cancel(), completed(), settled(true)],
        "store_started turn_started interrupt completed = Ended",
    );
}

#[test]
fn an_interrupt_that_nobody_asked_for_is_a_failure() {
    check(
        vec![started(), interrupted(), settled(true)],
        "store_started turn_started failed(HarnessProtocolError) = Ended",
    );
}

#[test]
fn an_unproved_settlement_is_unknown() {
    check(
        vec![started(), cancel(), interrupted(), settled(false)],
        "store_started turn_started interrupt unknown(Unsettled) = Ended",
    );
}

#[test]
fn an_executor_that_is_gone_fails_the_turn_and_abandons_its_calls() {
    let closed = || report(Report::Closed { exit: Some(Exit::Signal(9)), survivors: 0 });
    check(
        vec![started(), call("c"), closed()],
        "store_started turn_started store_call call abandoned(ExecutionLost) failed(HarnessExited) = Ended",
    );
    check(vec![started(), completed(), closed()], "store_started turn_started completed = Ended");
}

#[test]
fn a_call_that_goes_with_a_stop_is_lost_and_not_cancelled_by_the_harness() {
    let abandoned = || report(Report::CallAbandoned { call_id: "c".into(), reason: AbandonReason::NativeCancelled });
    let told = "store_started turn_started store_call call interrupt store(abandoned)";
    check(
        vec![
            started(),
            call("c"),
            Input::Cancel(CancelCause::BridgeStopped),
            abandoned(),
            interrupted(),
            settled(true),
        ],
        &format!("{told} abandoned(ExecutionLost) cancelled(BridgeStopped) = Ended"),
    );
    check(
        vec![started(), call("c"), cancel(), abandoned(), interrupted(), settled(true)],
        &format!("{told} abandoned(NativeCancelled) cancelled(Requested) = Ended"),
    );
}

#[test]
fn nothing_comes_after_the_end() {
    check(
        vec![started(), completed(), settled(true), delta("m", "late"), settled(true)],
        "store_started turn_started completed misfit(something after the end) misfit(something after the end) = Ended",
    );
    check(vec![settled(true)], "misfit(settlement before the end) = Starting");
}

#[test]
fn an_open_tool_is_closed_as_incomplete() {
    let tool = || Tool::Command { command: "sleep 60".into(), directory: "/".into() };
    check(
        vec![started(), report(Report::ToolStarted { id: "t".into(), tool: tool() }), completed(), settled(true)],
        "store_started turn_started ToolStarted tool(t,Incomplete) completed = Ended",
    );
}

#[test]
fn results_are_judged_by_the_cancel_of_core_even_when_completion_won() {
    let mut turn = Turn::new("thread".into(), "s/t".into());
    for input in [started(), call("c"), cancel(), completed(), settled(true)] {
        turn.on(input).unwrap();
    }
    let known = turn.known("c").unwrap();
    assert!(known.cancelled && known.closed && known.stored.is_none());
    assert!(turn.known("d").is_none());
    assert_eq!(turn.required_actions().count(), 0);
}

fn stop(stop: Stop) -> Input {
    Input::Stop(stop)
}

#[test]
fn a_limit_interrupts_once_and_ends_the_turn_in_its_own_way() {
    check(
        vec![started(), stop(Stop::Deadline), stop(Stop::Stalled), interrupted(), settled(true)],
        "store_started turn_started interrupt failed(DeadlineExceeded) = Ended",
    );
    check(
        vec![started(), stop(Stop::Stalled), interrupted(), settled(true)],
        "store_started turn_started interrupt unknown(Stalled) = Ended",
    );
    // Before the Harness has said anything, and when its end is not proved.
    check(vec![stop(Stop::Deadline), interrupted(), settled(true)], "interrupt failed(DeadlineExceeded) = Ended");
    check(vec![stop(Stop::Deadline), interrupted(), settled(false)], "interrupt unknown(Unsettled) = Ended");
}

#[test]
fn what_the_harness_says_of_the_end_stands_above_a_limit() {
    for limit in [Stop::Deadline, Stop::Stalled] {
        check(
            vec![started(), stop(limit), completed(), settled(true)],
            "store_started turn_started interrupt completed = Ended",
        );
        check(vec![started(), completed(), stop(limit), settled(true)], "store_started turn_started completed = Ended");
    }
}

#[test]
fn of_a_cancel_and_a_limit_the_first_names_the_end() {
    check(
        vec![started(), cancel(), stop(Stop::Deadline), interrupted(), settled(true)],
        "store_started turn_started interrupt cancelled(Requested) = Ended",
    );
    check(
        vec![started(), stop(Stop::Deadline), cancel(), interrupted(), settled(true)],
        "store_started turn_started interrupt failed(DeadlineExceeded) = Ended",
    );
}

#[test]
fn silence_means_nothing_while_a_tool_or_a_call_is_open() {
    let command = || Tool::Command { command: "sleep".into(), directory: String::new() };
    let tool = |id: &str| report(Report::ToolStarted { id: id.into(), tool: command() });
    for (inputs, want) in [
        (vec![], true),
        (vec![started()], true),
        (vec![started(), delta("m", "hi")], true),
        (vec![started(), tool("e")], false),
        (vec![started(), call("c")], false),
        (vec![started(), call("c"), result("c"), written("c")], false),
        (vec![started(), call("c"), result("c"), written("c"), applied("c")], true),
    ] {
        let told = format!("{inputs:?}");
        let mut turn = Turn::new("thread".into(), "s/t".into());
        for input in inputs {
            turn.on(input).unwrap();
        }
        assert_eq!(turn.may_stall(), want, "{told}");
    }
}

#[test]
fn a_turn_only_waits_when_nothing_but_open_calls_is_left() {
    let only_waits = |inputs: Vec<Input>| {
        let mut turn = Turn::new("thread".into(), "s/t".into());
        inputs.into_iter().for_each(|input| drop(turn.on(input).unwrap()));
        turn.only_waits()
    };
    let tool = || report(Report::ToolStarted { id: "x".into(), tool: Tool::Other { name: "x".into() } });
    for (inputs, want) in [
        (vec![], false),
        (vec![started()], false),
        (vec![started(), call("a")], true),
        (vec![started(), call("a"), tool()], false),
        (vec![started(), delta("m", "so"), call("a")], false),
        (vec![started(), call("a"), call("b"), result("a")], false),
        (vec![started(), call("a"), call("b"), result("a"), written("a"), applied("a")], true),
        (vec![started(), call("a"), result("a"), written("a"), applied("a")], false),
        (vec![started(), call("a"), cancel()], false),
    ] {
        let case = format!("{inputs:?}");
        assert_eq!(only_waits(inputs), want, "{case}");
    }
}

#[test]
fn a_call_that_is_not_stored_is_seen_by_nobody_until_it_is() {
    check(vec![started(), call("c"), not_stored("c")], "store_started turn_started store_call call = Running");
    check(
        vec![started(), call("c"), not_stored("c"), stored_late("c"), stored_late("c")],
        "store_started turn_started store_call call call = RequiresAction",
    );
    // Nothing is said about it when it goes away again, or the Turn does.
    let abandoned = Report::CallAbandoned { call_id: "c".into(), reason: AbandonReason::NativeCancelled };
    check(
        vec![started(), call("c"), not_stored("c"), report(abandoned), stored_late("c")],
        "store_started turn_started store_call call = Running",
    );
    check(
        vec![started(), call("c"), not_stored("c"), fail(), stored_late("c"), interrupted(), settled(true)],
        "store_started turn_started store_call call interrupt failed(StorageUnavailable) = Ended",
    );
}

#[test]
fn arguments_are_held_within_a_bound_and_while_somebody_asks_for_them() {
    let mut turn = Turn::new("thread".into(), "s/t".into());
    turn.on(started()).unwrap();
    let mut large = |id: &str, bytes: usize| {
        let arguments = "x".repeat(bytes);
        let made =
            Report::Call { call_id: id.into(), name: "f".into(), arguments, exact: false, named_by_bridge: false };
        turn.on(report(made)).unwrap();
    };
    large("a", 1 << 20);
    large("b", 2 << 20);
    large("c", 1 << 20);
    let seen: Vec<_> = turn.required_actions().map(|w| (w.call.arguments.len(), w.large.map(|l| l.size))).collect();
    assert_eq!(seen, [(1 << 20, None), (0, Some(2 << 20)), (1 << 20, None)]);
    let second = turn.required_actions().nth(1).and_then(|w| w.large).unwrap();
    assert_eq!(second.sha256, <[u8; 32]>::from(Sha256::digest("x".repeat(2 << 20))));
    for id in ["a", "c"] {
        turn.on(result(id)).unwrap();
        turn.on(applied(id)).unwrap();
    }
    assert_eq!(turn.calls.iter().map(|c| c.call.arguments.len()).sum::<usize>(), 0);
}

fn expired(id: &str) -> Input {
    Input::Expired { call_id: id.into() }
}

const EXPIRED: &str = "store_started turn_started store_call call abandoned(Deadline) answer";

#[test]
fn a_call_whose_deadline_is_over_is_abandoned_and_the_bridge_answers_it() {
    check(vec![started(), call("c"), expired("c")], &format!("{EXPIRED} = Running"));
    // A second end, and a result that raced with it, change nothing.
    check(vec![started(), call("c"), expired("c"), expired("c")], &format!("{EXPIRED} = Running"));
    // The receipt of the bridge's own result is no news for Core, whose call is over.
    check(
        vec![started(), call("c"), expired("c"), written("c"), applied("c"), completed(), settled(true)],
        &format!("{EXPIRED} await completed = Ended"),
    );
    check(
        vec![started(), call("c"), expired("c"), applied("c"), written("c"), completed(), settled(true)],
        &format!("{EXPIRED} completed = Ended"),
    );
}

#[test]
fn the_bridges_own_result_needs_its_evidence_too() {
    let overdue = || Input::Overdue { call_id: "c".into() };
    let unconfirmed = format!("{EXPIRED} await interrupt failed(FunctionResultUnconfirmed) = Ended");
    check(
        vec![started(), call("c"), expired("c"), written("c"), overdue(), interrupted(), settled(true)],
        &unconfirmed,
    );
    let differs = report(Report::AnswerDiffers { call_id: "c".into() });
    check(vec![started(), call("c"), expired("c"), written("c"), differs, interrupted(), settled(true)], &unconfirmed);
    check(
        vec![started(), call("c"), expired("c"), written("c"), completed(), settled(true)],
        &format!("{EXPIRED} await failed(FunctionResultUnconfirmed) = Ended"),
    );
    // The Harness gave the call up by itself: there is nothing to await.
    let given_up = report(Report::CallAbandoned { call_id: "c".into(), reason: AbandonReason::NativeCancelled });
    check(
        vec![started(), call("c"), expired("c"), written("c"), given_up, overdue(), completed(), settled(true)],
        &format!("{EXPIRED} await completed = Ended"),
    );
}

#[test]
fn a_deadline_ends_no_call_that_has_its_result_or_whose_turn_stops() {
    check(
        vec![started(), call("c"), result("c"), expired("c")],
        "store_started turn_started store_call call answer = RequiresAction",
    );
    check(
        vec![started(), call("c"), cancel(), expired("c")],
        "store_started turn_started store_call call interrupt = Settling",
    );
    check(
        vec![started(), call("c"), not_stored("c"), expired("c")],
        "store_started turn_started store_call call = Running",
    );
}

#[test]
fn a_completed_turn_lists_the_calls_that_did_not_succeed() {
    let failed = |id: &str| {
        let (error, output) = (Presence::Value("boom".into()), Presence::Absent);
        let result = FunctionResult { success: false, error, output, disposition: None };
        Input::Result { call_id: id.into(), digest: [2; 32], result }
    };
    let listed = |end: Input| {
        let mut turn = Turn::new("thread".into(), "s/t".into());
        let inputs =
            vec![started(), call("a"), call("b"), call("c"), expired("c"), result("b"), failed("a"), written("a")];
        let inputs = inputs.into_iter().chain([applied("a"), applied("b"), applied("c"), end, settled(true)]);
        inputs.for_each(|input| drop(turn.on(input).unwrap()));
        let errors = turn.end().map(|end| end.tool_errors.clone()).unwrap_or_default();
        errors.into_iter().map(|error| format!("{} {:?} {}", error.call_id, error.code, error.message)).collect()
    };
    let told: Vec<String> = listed(completed());
    assert_eq!(told, ["a Failed(None) boom", "c Abandoned "]);
    let told: Vec<String> = listed(interrupted());
    assert!(told.is_empty(), "{told:?}");
}

#[path = "machine_tests/steering.rs"]
mod steering;

#[path = "machine_tests/batches.rs"]
mod batches;
