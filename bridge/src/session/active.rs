//! A Turn at work: the state machine with its log, its journal row and those who wait for it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use adapters::harness::{AbandonReason, Failure, FailureCode, FunctionResult, InputPart, Order, Report};
use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Reply, Shared, Snapshot,
    past::{Lost, Past},
    recording::Recording,
    storage,
    supports::Supports,
};
use crate::{
    journal::{self, EndRecord, HistoryRecord, NewCall, RESERVED, SessionRow, TurnRow},
    refusal::Refusal,
    turn::{
        calls::{self, Digest, Known},
        event::{Call, CancelCause},
        inputs,
        judge::Judge,
        log::{FencedBy, Front, Log},
        machine::{Effect, Input, Phase, Turn},
    },
};

mod answer;
mod batches;
mod deadlines;
mod steering;
mod watch;

pub(super) use deadlines::Deadlines;
pub(super) use steering::{record as input_record, refusal as input_refusal};

/// Between two tries to store the end of a Turn.
const END_AGAIN: Duration = Duration::from_secs(1);

/// Between two tries to store calls that the journal did not take.
const CALLS_AGAIN: Duration = Duration::from_millis(500);

/// Between two tries to record that the file has everything again.
const NOTE_AGAIN: Duration = Duration::from_millis(500);

/// After how many more events a reservation that failed is tried again.
const RESERVE_AGAIN: u64 = RESERVED >> 10;

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
    recording: Recording,
    acknowledged: u64,
    /// With which sequence more are to be reserved.
    reserve_at: u64,
    /// Whether the journal was told that the file does not take events.
    unwritten_noted: bool,
    /// When the journal is told again that the file has everything, where it did not take that.
    note_again: Option<Instant>,
    /// Calls that the journal did not take, and that nobody has seen.
    unstored: Option<Unstored>,
    orders: VecDeque<Order>,
    evidence: Vec<(Instant, String)>,
    waiters: Vec<(Instant, Reply<Snapshot>)>,
    /// Those who wait for what becomes of an input.
    inputs_awaited: Vec<steering::Waiter>,
    /// The end, until the journal has it.
    ending: Option<Ending>,
    ended: Option<Bytes>,
    watch: watch::Watch,
    deadlines: Deadlines,
    answer: answer::Answer,
    /// What it may be given.
    pub(super) supports: Supports,
}

/// An end that nobody has seen.
#[derive(Debug)]
struct Ending {
    record: EndRecord,
    abandoned: &'static str,
    next_try: Instant,
}

/// Calls that wait for storage (R-DUR-4).
#[derive(Debug)]
struct Unstored {
    calls: Vec<Call>,
    next_try: Instant,
    give_up: Instant,
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
    pub(super) max_calls: Option<u32>,
    pub(super) deadlines: Deadlines,
    /// Judges the final answer, where one of a form is asked for.
    pub(super) judge: Option<Arc<Judge>>,
    pub(super) supports: Supports,
}

impl Active {
    pub(super) fn begin(shared: &Arc<Shared>, begin: Begin, input: Vec<InputPart>) -> Self {
        let client_id = begin.turn_id.clone();
        let (codec, bounds) = (Arc::clone(&shared.codec), shared.limits.bounds);
        let recording = Recording::new(begin.turn_id.clone(), codec, bounds, begin.log);
        Self {
            shared: Arc::clone(shared),
            row: begin.row,
            turn_id: begin.turn_id,
            content: begin.content,
            created_at: begin.created_at,
            number: begin.number,
            machine: Turn::new(begin.native_session_id, begin.idempotency_prefix).limited(begin.max_calls),
            history: begin.history,
            recording,
            acknowledged: 0,
            reserve_at: RESERVED / 2,
            unwritten_noted: false,
            note_again: None,
            unstored: None,
            orders: VecDeque::from([Order::Start { input, client_id }]),
            evidence: Vec::new(),
            waiters: Vec::new(),
            inputs_awaited: Vec::new(),
            ending: None,
            ended: None,
            watch: watch::Watch::new(Instant::now(), begin.max_duration, &shared.limits),
            deadlines: begin.deadlines,
            answer: answer::Answer::new(begin.number, begin.judge),
            supports: begin.supports,
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
        self.recording.front()
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
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
        let storage = self.unstored.iter().map(|unstored| unstored.next_try.min(unstored.give_up));
        let storage = storage.chain(self.recording.next_deadline().filter(|_| self.ending.is_none()));
        let storage = storage.chain(self.note_again.filter(|_| self.ending.is_none()));
        let own = evidence.chain(self.waiters.iter().map(|(at, _)| *at)).chain(ending);
        let own = own.chain(self.deadlines.next()).chain(self.inputs_awaited_until());
        own.chain(storage).chain(self.watch_until()).min()
    }

    /// Fences lower epochs at once (R-ASG-2): observers, and those who wait for a cancel. Its effect stands, so they are told how far it is.
    pub(super) fn fence(&mut self, epoch: u64, by: FencedBy) {
        self.recording.front().fence(epoch, by);
        let snapshot = self.snapshot();
        for (_, reply) in self.waiters.drain(..) {
            drop(reply.send(Ok(snapshot.clone())));
        }
        self.answer_for_all_inputs();
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            turn_id: self.turn_id.clone(),
            phase: match self.machine.phase() {
                // An end that is not stored is none: it could not be told again after a restart.
                Phase::Ended if self.ended.is_none() => Phase::Settling,
                phase => phase,
            },
            required: self.machine.required_actions().collect(),
            inputs: self.machine.inputs().to_vec(),
            last_sequence: self.recording.front().last_sequence(),
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
            self.watch.hear(&report, Instant::now());
            // What comes behind the settlement is the Executor's own end, and not this Turn's.
            if self.machine.end().is_none() {
                self.answer.heard(&report);
                self.step(Input::Report(report)).await;
            }
        }
        self.flush().await;
        self.give_up_beyond_bounds().await;
    }

    /// Ends the Turn when its events are more than may be kept (R-EVT-8, R-DUR-4).
    async fn give_up_beyond_bounds(&mut self) {
        let waiting = self.unstored.iter().flat_map(|unstored| &unstored.calls).map(|call| call.arguments.len()).sum();
        if let Some(failure) = self.recording.breach(waiting).filter(|_| self.machine.end().is_none()) {
            self.step(Input::Fail(failure)).await;
        }
    }

    /// Interrupts the Turn, which then is failed for this.
    pub(super) async fn fail(&mut self, code: FailureCode, message: String) {
        if self.machine.end().is_none() {
            self.step(Input::Fail(Failure { code, message, http_status: None, exit: None })).await;
            self.flush().await;
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
            // A Turn that nobody could stop would be worse than a wish that a restart does not know of: a full disk may be its own work.
            if let Err(error) = stored {
                tracing::error!(error = &error as &dyn std::error::Error, "a cancel is not recorded");
            }
        }
        self.step(Input::Cancel(cause)).await;
        self.flush().await;
        Ok(())
    }

    /// Answers when the Turn is over, or at `until`.
    pub(super) fn wait(&mut self, until: Instant, reply: Reply<Snapshot>) {
        self.waiters.push((until, reply));
        self.answer_waiters(Instant::now());
    }

    /// Takes a result that is on disk.
    pub(super) async fn result(&mut self, call_id: String, digest: Digest, result: FunctionResult) {
        self.deadlines.end(&call_id);
        self.step(Input::Result { call_id, digest, result }).await;
        self.flush().await;
    }

    pub(super) async fn acknowledge(&mut self, through: u64) -> Result<u64, Refusal> {
        self.shared.journal.acknowledge(self.row, through).await.map_err(|error| storage(&error))?;
        self.acknowledged = self.acknowledged.max(through);
        self.recording.acknowledge(self.acknowledged);
        Ok(self.acknowledged)
    }

    /// Does what is due.
    pub(super) async fn overdue(&mut self, now: Instant) {
        self.answer_waiters(now);
        self.keep_watch(now).await;
        self.expire_calls(now).await;
        let (due, rest) = std::mem::take(&mut self.evidence).into_iter().partition::<Vec<_>, _>(|(at, _)| *at <= now);
        self.evidence = rest;
        for (_, call_id) in due {
            self.step(Input::Overdue { call_id }).await;
        }
        match &self.ending {
            Some(ending) if ending.next_try <= now => self.store_end().await,
            Some(_) => {}
            None => {
                self.recording.overdue(now);
                self.store_calls(now).await;
                self.flush().await;
            }
        }
    }

    /// Tries again to store the calls that the journal did not take, and gives the Turn up when that takes too long.
    async fn store_calls(&mut self, now: Instant) {
        let Some(mut unstored) = self.unstored.take_if(|unstored| unstored.next_try.min(unstored.give_up) <= now)
        else {
            return;
        };
        let mut refused = None;
        while let Some(call) = unstored.calls.first()
            && refused.is_none()
        {
            if !self.machine.is_hidden(&call.call_id) {
                unstored.calls.remove(0);
                continue;
            }
            match self.insert_call(call.clone()).await {
                Ok(()) => {
                    let call = unstored.calls.remove(0);
                    self.step(Input::StoredLate { call }).await;
                }
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if unstored.give_up <= now => {
                let failure = storage_unavailable(storage(&error).text);
                self.step(Input::Fail(failure)).await;
            }
            Some(_) => {
                unstored.next_try = now + CALLS_AGAIN;
                self.unstored = Some(unstored);
            }
            None => {}
        }
    }

    /// Stores a call. It is the next event.
    async fn insert_call(&mut self, call: Call) -> journal::Result<()> {
        // ORDER: what came before the call is seen before it, and the call only once it is on disk (R-FN-3).
        self.recording.say_omitted();
        self.flush().await;
        let sequence = self.recording.next_sequence();
        let call = NewCall { call_id: call.call_id, name: call.name, arguments: call.arguments, sequence };
        self.shared.journal.insert_call(self.row, call).await
    }

    /// Whether the Turn is over but for the journal.
    pub(super) fn is_unstored(&self) -> bool {
        self.ending.is_some()
    }

    /// Stores the end and gives it out. Nobody sees an end that the journal does not have: it is tried again.
    async fn store_end(&mut self) {
        let Some(mut ending) = self.ending.take() else { return };
        // ORDER: the terminal is in the file before the journal has it, and is given out after both; a restart in between finds it in the
        // file. A file that does not take it is no hindrance: then the journal alone has it, and knows what the file lacks.
        let first_unwritten = if self.recording.write_all() { 0 } else { self.recording.first_unwritten() };
        let mut stored = Ok(());
        if first_unwritten > 0 || self.unwritten_noted {
            stored = self.shared.journal.events_unwritten(self.row, first_unwritten).await;
        }
        if stored.is_ok() && !self.machine.inputs().is_empty() {
            // All of them, since one that the journal did not take before must not stand open in a Turn that is over.
            stored = self.shared.journal.input_phases(self.row, self.input_records()).await;
        }
        if stored.is_ok() {
            stored = self.shared.journal.end_turn(self.row, ending.record.clone(), Some(ending.abandoned)).await;
        }
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
        self.recording.publish();
        self.recording.end();
        tracing::info!(turn_id = self.turn_id, status = ending.record.status, "Turn ended");
        self.ended = Some(Bytes::from(ending.record.ended));
    }

    /// The Turn as it is kept when it is over.
    pub(super) fn into_past(mut self) -> Past {
        let snapshot = self.snapshot();
        for (_, reply) in self.waiters.drain(..) {
            drop(reply.send(Ok(snapshot.clone())));
        }
        self.answer_for_all_inputs();
        let front = self.recording.front();
        let trace = front.trace();
        // What the file did not take is in memory only.
        let held = self.recording.is_unwritten().then_some(front);
        let lost = Lost::Nothing;
        Past { row: self.row, number: self.number, content: self.content, front: trace, held, snapshot, lost }
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
            Effect::Emit(event) => {
                self.note_call(&event);
                self.recording.emit(event);
            }
            Effect::Answer { call_id, result } => self.orders.push_back(Order::Answer { call_id, result }),
            Effect::Steer { input_id, input } => {
                let client_id = inputs::client_id(&self.turn_id, &input_id);
                self.orders.push_back(Order::Steer { input_id, client_id, input });
            }
            Effect::StoreInput { input_id, .. } => {
                let records = self.input_records().into_iter().filter(|record| record.input_id == input_id);
                let stored = self.shared.journal.input_phases(self.row, records.collect()).await;
                self.logged(stored, "the phase of an input");
            }
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
                if let Err(error) = self.insert_call(call.clone()).await {
                    // It waits until it can be stored; nobody has seen it.
                    let now = Instant::now();
                    tracing::error!(
                        turn_id = self.turn_id,
                        error = &error as &dyn std::error::Error,
                        "a function call could not be stored and is not shown"
                    );
                    let limit = if error.is_storage() { self.shared.limits.unstored_call } else { Duration::ZERO };
                    let unstored = self.unstored.get_or_insert_with(|| Unstored {
                        calls: Vec::new(),
                        next_try: now + CALLS_AGAIN,
                        give_up: now + limit,
                    });
                    let call_id = call.call_id.clone();
                    unstored.calls.push(call);
                    return Err(Input::NotStored { call_id });
                }
            }
            Effect::StorePhase { call_id, phase } => {
                if phase == calls::Phase::Applied {
                    self.evidence.retain(|(_, waits)| *waits != call_id);
                }
                let reason = match &phase {
                    calls::Phase::Abandoned(reason) => Some(reason_name(*reason)),
                    calls::Phase::Pending | calls::Phase::Stored | calls::Phase::Written => None,
                    calls::Phase::Applied | calls::Phase::Refused => None,
                };
                let stored = self.shared.journal.call_phase(self.row, &call_id, phase.name(), reason).await;
                self.logged(stored, "the phase of a call");
            }
            Effect::Finish { end, abandoned } => self.finish(end, abandoned).await,
        }
        Ok(())
    }

    /// Writes what is pending and gives it out.
    async fn flush(&mut self) {
        if self.ending.is_some() {
            return;
        }
        let is_stored = self.recording.write();
        self.note_again = self.note_again.filter(|at| is_stored && *at > Instant::now());
        if is_stored == self.unwritten_noted && self.note_again.is_none() {
            self.note_unwritten().await;
        }
        // ORDER: a sequence is reserved on disk before it is given out, so that none is given twice after a power loss (R-DUR-2).
        self.reserve().await;
        self.recording.publish();
    }

    /// Tells the journal whether the file lacks events. What it lacks observers will have seen: a process that finds it so must not give these
    /// sequences again, and one that finds them must not call them lost.
    async fn note_unwritten(&mut self) {
        let is_lacking = self.recording.is_unwritten();
        let first = if is_lacking { self.recording.first_unwritten() } else { 0 };
        let noted = self.shared.journal.events_unwritten(self.row, first).await;
        // The file itself is marked too, where the journal does not take it.
        self.unwritten_noted = is_lacking || noted.is_err();
        self.note_again = noted.as_ref().err().filter(|_| !is_lacking).map(|_| Instant::now() + NOTE_AGAIN);
        self.logged(noted, "whether events are held in memory");
    }

    /// Reserves more sequences once half of a block is left.
    async fn reserve(&mut self) {
        let last = self.recording.last_sequence();
        if last < self.reserve_at {
            return;
        }
        let stored = self.shared.journal.reserve(self.row, last + RESERVED).await;
        self.reserve_at = last + if stored.is_ok() { RESERVED / 2 } else { RESERVE_AGAIN };
        self.logged(stored, "a block of sequences");
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
        AbandonReason::NativeTimeout => "native_timeout",
        AbandonReason::Deadline => "deadline",
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
