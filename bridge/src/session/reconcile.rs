//! How a Turn of an earlier run ended, from the Harness's own history (R-DUR-2): its status, where history proves one, and the last message, where
//! nobody has seen it. Nothing is invented, and a Turn that history does not prove to have ended is `unknown`.

use adapters::harness::{AbandonReason, NativeEnd, Proof, ProvedMessage};

use super::Shared;
use crate::{
    journal::{SessionRecord, TurnRecord},
    turn::event::{CancelCause, End, Event, Recovered, Seen, Status, UnknownCause},
};

/// What history proves of a Turn. Its processes are gone.
pub(super) async fn proof(shared: &Shared, session: &SessionRecord, turn: &TurnRecord) -> Option<Proof> {
    let history = session.history.as_ref()?;
    let harness = shared.harnesses.get(history.harness.as_str())?;
    let native_session_id = turn.native_session_id.as_ref().filter(|id| **id == history.native_session_id)?;
    let home = shared.state.join("sessions").join(&session.directory).join("home");
    let proof = harness.reconcile(&home, native_session_id, turn.native_turn_id.as_ref()?).await?;
    // Codex notes an interrupt for whatever ends it in the middle of a Turn; it is the end of a Turn that was cancelled, and of no other.
    let is_cancelled = cancel_cause(turn).is_some();
    (is_cancelled || !matches!(proof.end, NativeEnd::Interrupted { .. })).then_some(proof)
}

/// The events that close a Turn, the end included.
pub(super) fn closing(turn: &TurnRecord, found: Recovered, proof: Option<Proof>) -> (Vec<Event>, End) {
    let lost = Status::Unknown(UnknownCause::ExecutionLost);
    let mut events = Vec::new();
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
    (events, End { status, finish, native_at, usage, reconciled })
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
