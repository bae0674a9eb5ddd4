//! The start after an end that nobody saw: leftovers are ended, Turns without an end get the one that is proved, or become `unknown` (R-DUR-2).

use std::{collections::HashMap, path::Path, time::Duration};

use adapters::{
    harness::{AbandonReason, Proof, ProvedInputs, Timing, Usage},
    native::{environment::Mark, tree},
};
use bytes::Bytes;

use super::{
    Shared,
    active::{input_record, reason_name},
    boot::{Boot, Given},
    reconcile, unsettled,
};
use crate::{
    clock,
    journal::{self, CallRecord, EndRecord, SessionRecord, SessionRow, TurnRecord},
    turn::{
        event::{Event, Native, Omitted, Status},
        inputs::InputState,
        log::{self, Kept, Log, Record, Recovered},
        tool_errors,
    },
};

/// What a keeper may take to be gone behind the time that it gives.
const KEEPER_MARGIN: Duration = Duration::from_secs(1);

/// Gives the keepers of an earlier run the time in which they end what they have: TERM first, so that a Harness can write its history.
pub(crate) fn await_keepers(state_id: &str) {
    tree::await_keepers(&Mark::prefix(state_id), Timing::default().term_grace + KEEPER_MARGIN);
}

/// Ends everything that carries a mark of ours: what an earlier process left running, or what this one could not end. Blocks for `limit` at most.
pub(crate) fn sweep(state_id: &str, limit: Duration) {
    let swept = tree::sweep(&Mark::prefix(state_id), limit);
    if swept.ended > 0 || swept.left > 0 {
        tracing::warn!(ended = swept.ended, left = swept.left, "leftovers were ended");
    }
}

/// Ends every Turn that has no end, and records every Executor as closed. Tells the Executors whose processes could not be ended, by
/// Session; they stay open in the journal.
///
/// # Errors
///
/// What the journal says.
pub(crate) async fn settle(
    shared: &Shared,
    sessions: &[(SessionRow, SessionRecord)],
) -> journal::Result<HashMap<SessionRow, String>> {
    let mut unconfirmed = HashMap::new();
    for (session, executor) in shared.journal.open_executors().await? {
        let mark = Mark::new(shared.journal.state_id(), &executor.executor_id);
        if tree::sweep(mark.as_str(), Duration::ZERO).left > 0 {
            tracing::error!(executor_id = executor.executor_id, "processes of an earlier run could not be ended");
            unconfirmed.insert(session, executor.executor_id);
        } else {
            shared.journal.close_executor(&executor.executor_id).await?;
        }
    }
    let boot = Boot::of(&shared.journal).await?;
    let sessions: HashMap<SessionRow, &SessionRecord> = sessions.iter().map(|(row, s)| (*row, s)).collect();
    for turn in shared.journal.open_turns().await? {
        let Some(session) = sessions.get(&turn.start.session) else { continue };
        let turns = shared.state.join("sessions").join(&session.directory).join("turns");
        let (row, turn_id) = (turn.row, turn.start.turn_id.clone());
        let calls = shared.journal.calls_of(row).await?;
        let given = Given::by(&turn, &calls);
        let proof = reconcile::proof(shared, session, &turn).await;
        let read = unsettled::proved(shared, session, &turn).await;
        let native = reconcile::native(session, &turn);
        let known = Known { given, calls, boot: &boot, native, proof, read };
        let (end, inputs) = end_of(shared, &turn, &turns, known);
        tracing::warn!(turn_id, status = end.status, "a Turn of an earlier run was ended");
        shared.journal.input_phases(row, inputs.iter().map(input_record).collect()).await?;
        shared.journal.end_turn(row, end, Some(reason_name(AbandonReason::ExecutionLost))).await?;
    }
    // ORDER: behind the ends, so that a start that does not come so far is followed by one that knows as much.
    boot.note(&shared.journal).await?;
    Ok(unconfirmed)
}

/// What is known of a Turn beside its file.
struct Known<'a> {
    given: Given,
    calls: Vec<CallRecord>,
    boot: &'a Boot,
    /// The native turn, where it is known to have started.
    native: Option<Native>,
    /// What native history proves.
    proof: Option<Proof>,
    /// What it has of the inputs that were added.
    read: ProvedInputs,
}

/// The end of a Turn: the one that its file has already, else the one that native history proves, else `unknown`.
fn end_of(shared: &Shared, turn: &TurnRecord, turns: &Path, known: Known<'_>) -> (EndRecord, Vec<InputState>) {
    let Known { mut given, calls, boot, native, proof, read } = known;
    let path = turns.join(format!("{}.log", turn.start.number));
    let mut recovery = shared.codec.recovery();
    let recovered = Log::recover(&path, shared.limits.log, |_, event| recovery.take(&event));
    let (log, last, mut found) = match recovered {
        Ok(Recovered { log, cut_bytes, is_lacking }) => {
            if is_lacking {
                given.at_least = given.at_most;
            }
            if cut_bytes > 0 {
                tracing::warn!(path = %path.display(), bytes = cut_bytes, "a torn end was cut off");
            }
            let last = log.last_sequence();
            (Some(log), last, recovery.end())
        }
        Err(error) => {
            // The journal alone has the end of this Turn.
            drop(log::put_aside(&path, &error));
            given.at_least = given.at_most;
            let log = Log::create(&path, shared.limits.log);
            let last = if log.is_ok() { 0 } else { given.at_most };
            (log.ok(), last, shared.codec.recovery().end())
        }
    };
    let encode_usage = |usage: &Usage| shared.codec.encode_usage(usage);
    let ended_ms = clock::millis(clock::now());
    if let Some((status, ended)) = found.ended.take() {
        let usage = found.usage.as_ref().map(encode_usage);
        let ended = ended.to_vec();
        // A Turn that never started has written none.
        let read = ProvedInputs { is_over: read.is_over || !found.is_started, ..read };
        let (inputs, _) = unsettled::close(turn, &found, &read);
        return (EndRecord { status, ended, last_sequence: last, ended_ms, usage }, inputs);
    }

    let mut sequence = boot.last_given(last, &given);
    if sequence > last || log.is_none() {
        // What the file lacks may have been seen.
        found.is_lacking = true;
        found.is_started |= turn.native_turn_id.is_some();
        let kept = if log.is_some() { last } else { 0 };
        let is_open = |call: &&CallRecord| matches!(&*call.phase, "pending" | "result_stored" | "written");
        let (known, lost): (Vec<_>, Vec<_>) =
            calls.iter().filter(is_open).partition(|call| call.start.sequence <= kept);
        found.open_calls.retain(|id| known.iter().any(|call| call.start.call_id == *id));
        found.open_calls.extend(lost.into_iter().map(|call| call.start.call_id.clone()));
    }
    let (inputs, told) = unsettled::close(turn, &found, &read);
    let proof = proof.filter(|_| unsettled::is_whole(turn, &inputs, &read));
    let (mut closing, mut end) = reconcile::closing(turn, native, found, proof);
    if end.status == Status::Completed {
        end.tool_errors = tool_errors::list(calls.iter().map(|call| ended(shared, call)));
    }
    let name = end.status.name().to_owned();
    let usage = end.usage.as_ref().map(encode_usage);
    // A start that is told only now comes before anything else (R-EVT-2).
    let begun = closing.iter().take_while(|event| matches!(event, Event::TurnStarted { .. })).count();
    closing.splice(begun..begun, told);
    let closing = closing.into_iter().chain([Event::TurnEnded(end)]);
    let mut records = Vec::new();
    let mut terminal = Bytes::new();
    if sequence > last && log.is_some() {
        let omitted = Event::EventsOmitted { first: last + 1, last: sequence, why: Omitted::BridgeRestarted };
        let bytes = shared.codec.encode(&turn.start.turn_id, sequence, clock::now(), &omitted).bytes;
        records.push(Record::Omission { last: sequence, bytes });
    }
    for event in closing {
        sequence += 1;
        let encoded = shared.codec.encode(&turn.start.turn_id, sequence, clock::now(), &event);
        for (part, bytes) in (0u16..).zip(encoded.payloads) {
            records.push(Record::Payload { part, bytes: bytes.into() });
        }
        terminal = encoded.bytes.clone();
        records.push(Record::Event { bytes: encoded.bytes });
    }
    let written = log.map(|mut log| {
        let written = log.append(&records);
        log.publish();
        log.end();
        written
    });
    if let Some(Ok(Kept::Refused(error)) | Err(error)) = written {
        tracing::warn!(path = %path.display(), %error, "the end of a Turn is in the journal only");
    }
    (EndRecord { status: name, ended: terminal.to_vec(), last_sequence: sequence, ended_ms, usage }, inputs)
}

/// What the journal knows of a call whose Turn is over: one that did not come to an end of its own is abandoned.
fn ended<'a>(shared: &Shared, call: &'a CallRecord) -> tool_errors::Ended<'a> {
    let failed = call.result.as_ref().and_then(|result| shared.codec.failed(&result.body));
    let is_abandoned = call.phase != "applied";
    tool_errors::Ended { call_id: &call.start.call_id, name: &call.start.name, failed, is_abandoned }
}
