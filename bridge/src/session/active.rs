//! A Turn at work: the state machine with its log, its journal row and those who wait for it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use adapters::harness::{AbandonReason, Failure, FailureCode, FunctionResult, Order, Report};
use bytes::Bytes;
use tokio::time::Instant;

use super::{Reply, Shared, Snapshot, past::Past, storage};
use crate::{
    clock,
    journal::{self, EndRecord, HistoryRecord, NewCall, SessionRow, TurnRow},
    refusal::Refusal,
    turn::{
        calls::{self, Digest, Known},
        event::{CancelCause, Event},
        log::{FencedBy, Front, Log, Record, Trace},
        machine::{Effect, Input, Phase, Turn},
        split::split,
    },
};

mod watch;

/// Bytes of events that are kept for a file that does not take them, before the Turn is given up (R-DUR-4).
const MAX_UNWRITTEN: usize = 8 << 20;

/// Between two tries to store the end of a Turn.
const END_AGAIN: Duration = Duration::from_secs(1);

/// A Turn that is not over.
#[derive(Debug)]
pub(super) struct Active {
    shared: Arc<Shared>,
    pub(super) row: TurnRow,
    turn_id: String,
    content: Digest,
    created_at: std::time::SystemTime,
    pub(super) number: u64,
    machine: Turn,
    history: Option<(SessionRow, HistoryRecord)>,
    log: Log,
    acknowledged: u64,
    /// Encoded events that are not written yet.
    pending: Vec<Record>,
    pending_events: u64,
    pending_bytes: usize,
    /// The terminal's sequence, when the file could not take it; the journal alone has it.
    unwritten: Option<u64>,
    orders: VecDeque<Order>,
    evidence: Vec<(Instant, String)>,
    waiters: Vec<(Instant, Reply<Snapshot>)>,
    /// The end, until the journal has it.
    ending: Option<Ending>,
    ended: Option<Bytes>,
    watch: watch::Watch,
}

/// An end that nobody has seen.
#[derive(Debug)]
struct Ending {
    record: EndRecord,
    abandoned: &'static str,
    next_try: Instant,
}

/// What a Turn is begun with.
#[derive(Debug)]
pub(super) struct Begin {
    pub(super) row: TurnRow,
    pub(super) turn_id: String,
    pub(super) content: Digest,
    pub(super) created_at: std::time::SystemTime,
    pub(super) number: u64,
    pub(super) native_session_id: String,
    /// What becomes the Session's history with the native start, where that is news.
    pub(super) history: Option<(SessionRow, HistoryRecord)>,
    pub(super) idempotency_prefix: String,
    pub(super) log: Log,
    pub(super) max_duration: Option<Duration>,
}

impl Active {
    pub(super) fn begin(shared: &Arc<Shared>, begin: Begin, input: Vec<String>) -> Self {
        let client_id = begin.turn_id.clone();
        Self {
            shared: Arc::clone(shared),
            row: begin.row,
            turn_id: begin.turn_id,
            content: begin.content,
            created_at: begin.created_at,
            number: begin.number,
            machine: Turn::new(begin.native_session_id, begin.idempotency_prefix),
            history: begin.history,
            log: begin.log,
            acknowledged: 0,
            pending: Vec::new(),
            pending_events: 0,
            pending_bytes: 0,
            unwritten: None,
            orders: VecDeque::from([Order::Start { input, client_id }]),
            evidence: Vec::new(),
            waiters: Vec::new(),
            ending: None,
            ended: None,
            watch: watch::Watch::new(Instant::now(), begin.max_duration, shared.limits.quiet),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.turn_id
    }

    pub(super) fn content(&self) -> Digest {
        self.content
    }

    pub(super) fn known(&self, call_id: &str) -> Option<Known> {
        self.machine.known(call_id)
    }

    pub(super) fn front(&self) -> Front {
        self.log.reader()
    }

    pub(super) fn has_started(&self) -> bool {
        self.machine.native().is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// How the Turn stands, for those who do not ask it: its required actions, and whether it only waits for them.
    pub(super) fn waiting(&self) -> (usize, bool) {
        (self.machine.required_actions().count(), self.machine.only_waits())
    }

    pub(super) fn orders(&mut self) -> VecDeque<Order> {
        std::mem::take(&mut self.orders)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let evidence = self.evidence.iter().map(|(at, _)| *at);
        let ending = self.ending.iter().map(|ending| ending.next_try);
        evidence.chain(self.waiters.iter().map(|(at, _)| *at)).chain(ending).chain(self.watch_until()).min()
    }

    /// Fences lower epochs at once (R-ASG-2): observers, and those who wait for a cancel. Its effect stands, so they are told how far it is.
    pub(super) fn fence(&mut self, epoch: u64, by: FencedBy) {
        self.log.reader().fence(epoch, by);
        let snapshot = self.snapshot();
        for (_, reply) in self.waiters.drain(..) {
            drop(reply.send(Ok(snapshot.clone())));
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            turn_id: self.turn_id.clone(),
            phase: match self.machine.phase() {
                // An end that is not stored is none: it could not be told again after a restart.
                Phase::Ended if self.ended.is_none() => Phase::Settling,
                phase => phase,
            },
            required: self.machine.required_actions().cloned().collect(),
            last_sequence: match self.unwritten {
                Some(sequence) if self.ended.is_some() => sequence,
                Some(_) | None => self.log.reader().last_sequence(),
            },
            acknowledged: self.acknowledged,
            usage: self.machine.usage().map(|usage| self.shared.codec.encode_usage(usage)),
            native: self.machine.native().cloned(),
            ended: self.ended.clone(),
            cancel_requested: self.machine.cancel_requested(),
            created_at: self.created_at,
            left: true,
        }
    }

    /// Takes reports; their events are written with one call and wake observers once.
    pub(super) async fn take(&mut self, reports: impl Iterator<Item = Report> + Send) {
        for report in reports {
            if let Report::Standing(standing) = report {
                self.stands(standing).await;
                continue;
            }
            self.heard();
            // What comes behind the settlement is the Executor's own end, and not this Turn's.
            if self.machine.end().is_none() {
                self.step(Input::Report(report)).await;
            }
        }
        self.flush();
        if self.pending_bytes > MAX_UNWRITTEN && self.machine.end().is_none() {
            let failure = storage_unavailable("the events of the Turn could not be stored".into());
            self.step(Input::Fail(failure)).await;
        }
    }

    /// Cancels the Turn. The wish is on disk before it has an effect.
    pub(super) async fn cancel(&mut self, cause: CancelCause) -> Result<(), Refusal> {
        if !(self.machine.cancel_requested() && cause == CancelCause::Requested) {
            let name = match cause {
                CancelCause::Requested => "requested",
                CancelCause::BridgeStopped => "bridge_stopped",
                CancelCause::Released => "released",
            };
            let stored = self.shared.journal.cancel_requested(self.row, name).await;
            if cause == CancelCause::Requested {
                stored.map_err(|error| storage(&error))?;
            } else if let Err(error) = stored {
                tracing::error!(error = &error as &dyn std::error::Error, "a cancel is not recorded");
            }
        }
        self.step(Input::Cancel(cause)).await;
        self.flush();
        Ok(())
    }

    /// Answers when the Turn is over, or at `until`.
    pub(super) fn wait(&mut self, until: Instant, reply: Reply<Snapshot>) {
        self.waiters.push((until, reply));
        self.answer_waiters(Instant::now());
    }

    /// Takes a result that is on disk.
    pub(super) async fn result(&mut self, call_id: String, digest: Digest, result: FunctionResult) {
        self.step(Input::Result { call_id, digest, result }).await;
        self.flush();
    }

    pub(super) async fn acknowledge(&mut self, through: u64) -> Result<u64, Refusal> {
        self.shared.journal.acknowledge(self.row, through).await.map_err(|error| storage(&error))?;
        self.acknowledged = self.acknowledged.max(through);
        self.log.acknowledge(self.acknowledged);
        Ok(self.acknowledged)
    }

    /// Does what is due.
    pub(super) async fn overdue(&mut self, now: Instant) {
        self.answer_waiters(now);
        self.keep_watch(now).await;
        let (due, rest) = std::mem::take(&mut self.evidence).into_iter().partition::<Vec<_>, _>(|(at, _)| *at <= now);
        self.evidence = rest;
        for (_, call_id) in due {
            self.step(Input::Overdue { call_id }).await;
        }
        match &self.ending {
            Some(ending) if ending.next_try <= now => self.store_end().await,
            Some(_) => {}
            None => self.flush(),
        }
    }

    /// Whether the Turn is over but for the journal.
    pub(super) fn is_unstored(&self) -> bool {
        self.ending.is_some()
    }

    /// Stores the end and gives it out. Nobody sees an end that the journal does not have: it is tried again.
    async fn store_end(&mut self) {
        let Some(mut ending) = self.ending.take() else { return };
        // ORDER: the terminal is in the file before the journal has it, and is given out after both; a restart in between finds it in the
        // file. A file that does not take it is no hindrance: then the journal alone has it.
        let written = self.pending_events == 0 || self.write();
        let stored = self.shared.journal.end_turn(self.row, ending.record.clone(), Some(ending.abandoned)).await;
        if let Err(error) = stored {
            tracing::error!(
                turn_id = self.turn_id,
                error = &error as &dyn std::error::Error,
                "the end of a Turn could not be stored; it is tried again"
            );
            ending.next_try = Instant::now() + END_AGAIN;
            self.ending = Some(ending);
            return;
        }
        // Observers of a file without its terminal lose their stream and find it in the journal when they observe again.
        if written {
            self.log.publish();
            self.log.end();
        } else {
            self.unwritten = Some(ending.record.last_sequence);
        }
        tracing::info!(turn_id = self.turn_id, status = ending.record.status, "Turn ended");
        self.ended = Some(Bytes::from(ending.record.ended));
    }

    /// The Turn as it is kept when it is over.
    pub(super) fn into_past(mut self) -> Past {
        let snapshot = self.snapshot();
        for (_, reply) in self.waiters.drain(..) {
            drop(reply.send(Ok(snapshot.clone())));
        }
        let front = if self.unwritten.is_none() { self.log.reader().trace() } else { Trace::default() };
        Past { row: self.row, number: self.number, content: self.content, front, snapshot }
    }

    fn answer_waiters(&mut self, now: Instant) {
        if self.waiters.iter().any(|(until, _)| *until <= now) {
            let snapshot = self.snapshot();
            let (due, rest) =
                std::mem::take(&mut self.waiters).into_iter().partition::<Vec<_>, _>(|(until, _)| *until <= now);
            self.waiters = rest;
            for (_, reply) in due {
                drop(reply.send(Ok(snapshot.clone())));
            }
        }
    }

    async fn step(&mut self, input: Input) {
        match self.machine.on(input) {
            Ok(effects) => {
                for effect in effects {
                    // What stands behind a call that could not be stored tells of that call and does not happen.
                    if let Err(instead) = self.perform(effect).await {
                        return Box::pin(self.step(instead)).await;
                    }
                }
            }
            Err(misfit) => {
                tracing::error!(turn_id = self.turn_id, %misfit, "an adapter broke the Harness contract");
                if self.machine.end().is_none() {
                    Box::pin(self.step(Input::Fail(protocol_error()))).await;
                }
            }
        }
    }

    /// Does what the machine asks for, or tells what happened instead.
    async fn perform(&mut self, effect: Effect) -> Result<(), Input> {
        match effect {
            Effect::Emit(event) => self.emit(event),
            Effect::Answer { call_id, result } => self.orders.push_back(Order::Answer { call_id, result }),
            Effect::Interrupt => self.orders.push_back(Order::Interrupt),
            Effect::AwaitEvidence { call_id } => {
                self.evidence.push((Instant::now() + self.shared.limits.evidence, call_id));
            }
            Effect::StoreStarted(native) => {
                let stored =
                    self.shared.journal.turn_started(self.row, &native.session_id, Some(&native.turn_id)).await;
                self.logged(stored, "the native ids of a Turn");
                if let Some((session, history)) = self.history.take() {
                    let stored = self.shared.journal.put_history(session, history).await;
                    self.logged(stored, "the native history of a Session");
                }
            }
            Effect::StoreCall(call) => {
                // ORDER: what came before the call is seen before it, and the call only once it is on disk (R-FN-3).
                self.flush();
                let sequence = self.log.next_sequence() + self.pending_events;
                let call_id = call.call_id.clone();
                let call = NewCall { call_id: call.call_id, name: call.name, arguments: call.arguments, sequence };
                if let Err(error) = self.shared.journal.insert_call(self.row, call).await {
                    let failure = storage_unavailable(storage(&error).text);
                    return Err(Input::NotStored { call_id, failure });
                }
            }
            Effect::StorePhase { call_id, phase } => {
                if phase == calls::Phase::Applied {
                    self.evidence.retain(|(_, waits)| *waits != call_id);
                }
                let reason = match &phase {
                    calls::Phase::Abandoned(reason) => Some(reason_name(*reason)),
                    calls::Phase::Pending | calls::Phase::Stored | calls::Phase::Written | calls::Phase::Applied => {
                        None
                    }
                };
                let stored = self.shared.journal.call_phase(self.row, &call_id, phase.name(), reason).await;
                self.logged(stored, "the phase of a call");
            }
            Effect::Finish { end, abandoned } => {
                let status = end.status.name();
                let usage = end.usage.as_ref().map(|usage| self.shared.codec.encode_usage(usage));
                let sequence = self.emit_one(&Event::TurnEnded(end));
                let terminal = match self.pending.last() {
                    Some(Record::Event { bytes }) => bytes.to_vec(),
                    Some(Record::Payload { .. }) | None => Vec::new(),
                };
                let record = EndRecord {
                    status: status.into(),
                    ended: terminal,
                    last_sequence: sequence,
                    ended_ms: clock::millis(clock::now()),
                    usage,
                };
                self.ending = Some(Ending { record, abandoned: reason_name(abandoned), next_try: Instant::now() });
                self.store_end().await;
            }
        }
        Ok(())
    }

    fn emit(&mut self, event: Event) {
        split(event, |event| {
            self.emit_one(&event);
        });
    }

    fn emit_one(&mut self, event: &Event) -> u64 {
        let sequence = self.log.next_sequence() + self.pending_events;
        let encoded = self.shared.codec.encode(&self.turn_id, sequence, clock::now(), event);
        for (part, bytes) in (0u16..).zip(encoded.payloads) {
            self.pending_bytes += bytes.len();
            self.pending.push(Record::Payload { part, bytes: bytes.into() });
        }
        self.pending_bytes += encoded.bytes.len();
        self.pending.push(Record::Event { bytes: encoded.bytes });
        self.pending_events += 1;
        sequence
    }

    /// Writes what is pending and gives it out.
    fn flush(&mut self) {
        if self.ending.is_none() && self.pending_events > 0 && self.write() {
            self.log.publish();
        }
    }

    /// Writes what is pending. What cannot be written is kept in its order and tried again with what follows.
    fn write(&mut self) -> bool {
        if let Err(error) = self.log.append(&self.pending) {
            tracing::error!(turn_id = self.turn_id, %error, "events of a Turn could not be written");
            return false;
        }
        self.pending.clear();
        (self.pending_events, self.pending_bytes) = (0, 0);
        true
    }

    fn logged(&self, stored: Result<(), journal::Error>, what: &str) {
        if let Err(error) = stored {
            tracing::error!(
                turn_id = self.turn_id,
                error = &error as &dyn std::error::Error,
                "{what} could not be recorded"
            );
        }
    }
}

/// The name that the journal keeps of a reason.
pub(super) fn reason_name(reason: AbandonReason) -> &'static str {
    match reason {
        AbandonReason::NativeCancelled => "native_cancelled",
        AbandonReason::ExecutionLost => "execution_lost",
        AbandonReason::TurnEnded => "turn_ended",
    }
}

fn protocol_error() -> Failure {
    Failure {
        code: FailureCode::HarnessProtocolError,
        message: "the Harness did something that its protocol does not allow".into(),
        http_status: None,
        exit: None,
    }
}

fn storage_unavailable(message: String) -> Failure {
    Failure { code: FailureCode::StorageUnavailable, message, http_status: None, exit: None }
}
