//! How a Turn of an earlier run ended, from the Harness's own history (R-DUR-2): its status, where history proves one, and the last message, where
//! nobody has seen it. Nothing is invented, and a Turn that history does not prove to have ended is `unknown`.

use adapters::harness::{AbandonReason, NativeEnd, Proof, ProvedMessage};

use super::Shared;
use crate::{
    journal::{SessionRecord, TurnRecord},
    turn::event::{CancelCause, End, Event, Native, Recovered, Seen, Status, UnknownCause},
};

/// What history proves of a Turn. Its processes are gone.
pub(super) async fn proof(shared: &Shared, session: &SessionRecord, turn: &TurnRecord) -> Option<Proof> {
    let native = native(session, turn)?;
    let harness = shared.harnesses.get(session.history.as_ref()?.harness.as_str())?;
    let home = shared.state.join("sessions").join(&session.directory).join("home");
    let proof = harness.reconcile(&home, &native.session_id, &native.turn_id).await?;
    // A Harness notes an interrupt for whatever ends it in the middle of a Turn; it is the end of a Turn that was cancelled, and of no other.
    let is_cancelled = cancel_cause(turn).is_some();
    (is_cancelled || !matches!(proof.end, NativeEnd::Interrupted { .. })).then_some(proof)
}

/// The native turn, when it is known to have started in the history that the Session goes on with: no other is told (R-PRE-4).
pub(super) fn native(session: &SessionRecord, turn: &TurnRecord) -> Option<Native> {
    let history = &session.history.as_ref()?.native_session_id;
    let session_id = turn.native_session_id.clone().filter(|id| id == history)?;
    Some(Native { session_id, turn_id: turn.native_turn_id.clone()? })
}

/// The events that close a Turn, and its end. The native turn, where it started, is told first if it was not.
pub(super) fn closing(
    turn: &TurnRecord,
    native: Option<Native>,
    found: Recovered,
    proof: Option<Proof>,
) -> (Vec<Event>, End) {
    let lost = Status::Unknown(UnknownCause::ExecutionLost);
    // The journal has the start before the file does: it is said first, unless it may have been seen (R-EVT-2).
    let untold = native.filter(|_| !found.is_started && !found.is_lacking);
    let mut events: Vec<_> = untold.map(|native| Event::TurnStarted { native }).into_iter().collect();
    let mut item_of_message = None;
    let (status, native_at, finish, usage) = match proof {
        None => (lost, None, None, found.usage),
        Some(Proof { end, message, usage }) => {
            item_of_message = message.and_then(|message| complete(&found, message, &mut events));
            let (status, at, finish) = match end {
                NativeEnd::Completed { finish, at } => (Status::Completed, at, finish),
                NativeEnd::Failed { failure, finish, at } => (Status::Failed(failure), at, finish),
                NativeEnd::Interrupted { at } => (cancel_cause(turn).map_or(lost, Status::Cancelled), at, None),
            };
            (status, at, finish, usage.or(found.usage))
        }
    };
    let reconciled = !matches!(status, Status::Unknown(_));
    let is_completed =
        |event: &Event| matches!(event, Event::MessageDiscarded { item, .. } if Some(item) == item_of_message.as_ref());
    events.extend(found.closing.into_iter().filter(|event| !is_completed(event)));
    let abandoned = |call_id| Event::FunctionCallAbandoned { call_id, reason: AbandonReason::ExecutionLost };
    events.extend(found.open_calls.into_iter().map(abandoned));
    (events, End { status, finish, native_at, usage, reconciled, tool_errors: Vec::new(), output_matches: None })
}

/// Completes the last message, unless that was seen; gives its item.
fn complete(found: &Recovered, message: ProvedMessage, events: &mut Vec<Event>) -> Option<String> {
    let ProvedMessage { id, text, phase } = message;
    let known = found.messages.iter().rev().find(|known| known.native == id);
    let item = match known.map(|known| (known.state, &known.item)) {
        Some((Seen::Completed, _)) => return None,
        Some((Seen::Open, item)) => item.clone(),
        // It is said anew, under an id of its own.
        Some((Seen::Discarded, _)) => begin(format!("{id}#reconciled"), id, events),
        // It may have been seen: an id is not begun twice.
        None if found.is_lacking => begin(format!("{id}#reconciled"), id, events),
        None => begin(id.clone(), id, events),
    };
    events.push(Event::MessageCompleted { item: item.clone(), text, phase });
    Some(item)
}

fn begin(item: String, native: String, events: &mut Vec<Event>) -> String {
    events.push(Event::MessageStarted { item: item.clone(), native });
    item
}

fn cancel_cause(turn: &TurnRecord) -> Option<CancelCause> {
    match turn.cancel_cause.as_deref()? {
        "requested" => Some(CancelCause::Requested),
        "bridge_stopped" => Some(CancelCause::BridgeStopped),
        "released" => Some(CancelCause::Released),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use adapters::harness::{Failure, FailureCode, Usage};

    use super::*;
    use crate::turn::event::{Discard, SeenMessage};

    fn turn(cancel: Option<&str>) -> TurnRecord {
        TurnRecord {
            native_session_id: Some("thread".into()),
            native_turn_id: Some("native".into()),
            cancel_cause: cancel.map(str::to_owned),
            ..TurnRecord::of_test()
        }
    }

    fn proof(end: NativeEnd, message: Option<&str>) -> Option<Proof> {
        let message = message.map(|id| ProvedMessage { id: id.into(), text: "all of it".into(), phase: None });
        Some(Proof { end, message, usage: None })
    }

    fn completed() -> NativeEnd {
        NativeEnd::Completed { finish: None, at: Some(SystemTime::UNIX_EPOCH) }
    }

    fn found(messages: &[(&str, &str, Seen)]) -> Recovered {
        let seen = |(item, native, state): &(&str, &str, Seen)| SeenMessage {
            item: (*item).into(),
            native: (*native).into(),
            state: *state,
        };
        let open = messages.iter().filter(|(_, _, state)| *state == Seen::Open);
        let discarded = |item: &str| Event::MessageDiscarded { item: item.into(), reason: Discard::TurnEnded };
        Recovered {
            closing: open.map(|(item, _, _)| discarded(item)).collect(),
            messages: messages.iter().map(seen).collect(),
            open_calls: vec!["c1".into()],
            ..Recovered::default()
        }
    }

    fn abandoned() -> Event {
        Event::FunctionCallAbandoned { call_id: "c1".into(), reason: AbandonReason::ExecutionLost }
    }

    fn says(item: &str) -> Event {
        Event::MessageCompleted { item: item.into(), text: "all of it".into(), phase: None }
    }

    fn begins(item: &str) -> Event {
        Event::MessageStarted { item: item.into(), native: "m".into() }
    }

    fn discards(item: &str) -> Event {
        Event::MessageDiscarded { item: item.into(), reason: Discard::TurnEnded }
    }

    #[track_caller]
    fn check(messages: &[(&str, &str, Seen)], want: &[Event]) {
        let (events, end) = closing(&turn(None), None, found(messages), proof(completed(), Some("m")));
        assert_eq!(events, [want, &[abandoned()]].concat());
        assert!(end.reconciled && end.status == Status::Completed && end.native_at.is_some(), "{end:?}");
    }

    #[test]
    fn the_last_message_is_said_once_and_under_one_id() {
        check(&[], &[begins("m"), says("m")]);
        check(&[("m", "m", Seen::Completed)], &[]);
        check(&[("m", "m", Seen::Open)], &[says("m")]);
        check(&[("m", "m", Seen::Discarded)], &[begins("m#reconciled"), says("m#reconciled")]);
        check(&[("m", "m", Seen::Discarded), ("m#2", "m", Seen::Open)], &[says("m#2")]);
        check(&[("m", "m", Seen::Completed), ("n", "n", Seen::Open)], &[discards("n")]);
    }

    #[test]
    fn a_start_that_only_the_journal_has_is_said_first() {
        let native = || Some(Native { session_id: "thread".into(), turn_id: "native".into() });
        let started = Event::TurnStarted { native: native().unwrap() };
        let nothing = Recovered::default;
        let (events, _) = closing(&turn(None), native(), nothing(), proof(completed(), Some("m")));
        assert_eq!(events, [started.clone(), begins("m"), says("m")]);
        assert_eq!(closing(&turn(None), native(), nothing(), None).0, [started]);
        // It may have been seen, it was seen, or there was none.
        assert_eq!(closing(&turn(None), native(), Recovered { is_lacking: true, ..nothing() }, None).0, []);
        assert_eq!(closing(&turn(None), native(), Recovered { is_started: true, ..nothing() }, None).0, []);
        assert_eq!(closing(&turn(None), None, nothing(), None).0, []);
    }

    #[test]
    fn without_a_proof_nothing_is_known() {
        let (events, end) = closing(&turn(Some("requested")), None, found(&[("m", "m", Seen::Open)]), None);
        assert_eq!(events, [discards("m"), abandoned()]);
        assert_eq!((end.status, end.reconciled), (Status::Unknown(UnknownCause::ExecutionLost), false));
    }

    #[test]
    fn the_status_is_that_of_history() {
        let failure = Failure { code: FailureCode::ServerError, message: "m".into(), http_status: None, exit: None };
        let failed = NativeEnd::Failed { failure: failure.clone(), finish: None, at: None };
        let (_, end) = closing(&turn(None), None, found(&[]), proof(failed, None));
        assert_eq!((end.status, end.reconciled), (Status::Failed(failure), true));
        for (cause, want) in [
            ("requested", CancelCause::Requested),
            ("bridge_stopped", CancelCause::BridgeStopped),
            ("released", CancelCause::Released),
        ] {
            let interrupted = NativeEnd::Interrupted { at: None };
            let (_, end) = closing(&turn(Some(cause)), None, found(&[]), proof(interrupted, None));
            assert_eq!((end.status, end.reconciled), (Status::Cancelled(want), true));
        }
        // A completion wins over the cancel (R-CAN-5).
        let (_, end) = closing(&turn(Some("requested")), None, found(&[]), proof(completed(), None));
        assert_eq!(end.status, Status::Completed);
    }

    #[test]
    fn usage_of_history_stands_before_what_was_seen() {
        let usage = |total| Some(Usage { total: Some(total), ..Usage::default() });
        let seen = Recovered { usage: usage(1), ..Recovered::default() };
        let proof = Some(Proof { end: completed(), message: None, usage: usage(2) });
        assert_eq!(closing(&turn(None), None, seen, proof).1.usage, usage(2));
        let seen = Recovered { usage: usage(1), ..Recovered::default() };
        assert_eq!(closing(&turn(None), None, seen, None).1.usage, usage(1));
    }
}
