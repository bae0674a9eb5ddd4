//! The pure state machine of one Turn: `starting → running ⇄ requires_action → settling → ended`.
//!
//! It takes reports of the adapter and wishes of the Session, and gives effects in the order in which they must happen. It does no I/O,
//! reads no clock and holds no channel.

use std::time::SystemTime;

use adapters::harness::{
    AbandonReason, Exit, Failure, FailureCode, Finish, FunctionResult, InputPart, NativeEnd, Report, Settlement,
    Standing, Usage,
};

use super::{
    calls::{CallState, Digest, Known, Phase as CallPhase, Told},
    event::{Call, CancelCause, Discard, End, Event, Native, Status, UnknownCause, Waiting},
    inputs::{self, InputState},
    items::{Items, Kind},
    stop::Stop,
    tool_errors::{self, Failed},
};
use crate::refusal::Reason;

mod batches;
mod deadline;
mod limits;
mod steering;

pub(crate) use batches::Batch;
pub(crate) use steering::closing as closing_input;

/// One Turn.
#[derive(Debug)]
pub(crate) struct Turn {
    state: State,
    native_session_id: String,
    idempotency_prefix: String,
    items: Items,
    calls: Vec<CallState>,
    batches: batches::Batches,
    inputs: Vec<InputState>,
    usage: Option<Usage>,
    native: Option<Native>,
    cancel: Option<CancelCause>,
    failure: Option<Failure>,
    /// Why the bridge stopped it before anything else did.
    stop: Option<Stop>,
    /// Native history told the end.
    reconciled: bool,
}

#[derive(Debug)]
enum State {
    /// Handed to the adapter; the Harness has not said anything.
    Starting,
    /// The Harness works on it.
    Running,
    /// The native end is known.
    Settling(NativeEnd),
    /// Over.
    Ended(End),
}

/// Where a Turn is, as Core sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Running,
    RequiresAction,
    Settling,
    Ended,
}

/// What can happen to a Turn.
#[derive(Debug)]
pub(crate) enum Input {
    /// The adapter reports. [`Report::Closed`] stands for an Executor that is gone.
    Report(Report),
    /// The calls of an answer are on their way to the Harness.
    Batch(Batch),
    /// Core, or the end of something above, cancels it.
    Cancel(CancelCause),
    /// The bridge itself ends it.
    Fail(Failure),
    /// A limit of the Turn is over.
    Stop(Stop),
    /// A result for a call that is pending is on disk.
    Result { call_id: String, digest: Digest, result: FunctionResult },
    /// An input that is added is on disk.
    Steer { input_id: String, content: Digest, input: Vec<InputPart> },
    /// A call could not be stored; it is not shown (R-DUR-4).
    NotStored { call_id: String },
    /// A call that could not be stored is stored now.
    StoredLate { call: Call },
    /// The time for evidence of a written result is over.
    Overdue { call_id: String },
    /// The deadline of a call is over, and that it is abandoned is on disk.
    Expired { call_id: String },
}

/// What has to be done, in order.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect {
    /// Store the native identity.
    StoreStarted(Native),
    /// Store a call durably; nothing behind it happens before (R-FN-3).
    StoreCall(Call),
    /// Store a call's phase.
    StorePhase { call_id: String, phase: CallPhase },
    /// Append an event.
    Emit(Event),
    /// Give a result to the adapter.
    Answer { call_id: String, result: FunctionResult },
    /// Store an input's phase.
    StoreInput { input_id: String, phase: inputs::Phase },
    /// Give an input to the adapter.
    Steer { input_id: String, input: Vec<InputPart> },
    /// Await the evidence of a written result.
    AwaitEvidence { call_id: String },
    /// Tell the adapter to interrupt.
    Interrupt,
    /// Append the terminal and store the end. The last effect of all.
    Finish { end: End, abandoned: AbandonReason },
}

/// A report that does not fit the state.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the adapter reported {report} while the Turn was {phase:?}")]
pub(crate) struct Misfit {
    /// What was reported.
    pub(crate) report: &'static str,
    /// Where the Turn was.
    pub(crate) phase: Phase,
}

impl Turn {
    /// A Turn on its way to the Harness. The prefix makes idempotency keys of calls unique beyond the Turn.
    pub(crate) fn new(native_session_id: String, idempotency_prefix: String) -> Self {
        Self {
            state: State::Starting,
            native_session_id,
            idempotency_prefix,
            items: Items::default(),
            calls: Vec::new(),
            batches: batches::Batches::default(),
            inputs: Vec::new(),
            usage: None,
            native: None,
            cancel: None,
            failure: None,
            stop: None,
            reconciled: false,
        }
    }

    /// The same with at most so many function calls (R-FN-10).
    pub(crate) fn limited(self, most: Option<u32>) -> Self {
        Self { batches: batches::Batches::limited(most), ..self }
    }

    /// Where the Turn is.
    pub(crate) fn phase(&self) -> Phase {
        match &self.state {
            State::Ended(_) => Phase::Ended,
            State::Settling(_) => Phase::Settling,
            State::Starting | State::Running if self.is_stopping() => Phase::Settling,
            State::Starting => Phase::Starting,
            State::Running if self.calls.iter().any(|c| !c.hidden && c.phase.is_open()) => Phase::RequiresAction,
            State::Running => Phase::Running,
        }
    }

    /// Calls that wait, in the order in which they were made.
    pub(crate) fn required_actions(&self) -> impl Iterator<Item = Waiting> {
        let over = self.is_stopping() || matches!(self.state, State::Settling(_) | State::Ended(_));
        let open = self.calls.iter().filter(move |c| !over && !c.hidden && c.phase.is_open());
        open.map(|c| Waiting { call: c.call.clone(), large: c.large.clone() })
    }

    /// Whether nothing goes on but the waiting for results that nobody has given yet (R-DUR-3).
    pub(crate) fn only_waits(&self) -> bool {
        let open: Vec<_> = self.calls.iter().filter(|c| c.phase.is_open()).collect();
        let goes_on = self.is_stopping()
            || !self.items.are_closed()
            || self.writes_input()
            || !matches!(self.state, State::Running);
        !goes_on && !open.is_empty() && open.iter().all(|c| c.phase == CallPhase::Pending)
    }

    /// What is known of a call.
    pub(crate) fn known(&self, call_id: &str) -> Option<Known> {
        self.call(call_id).filter(|c| !c.hidden && c.phase != CallPhase::Refused).map(|c| Known {
            stored: c.stored,
            cancelled: self.cancel == Some(CancelCause::Requested),
            closed: !c.phase.is_open()
                || matches!(self.state, State::Settling(_) | State::Ended(_))
                || self.is_stopping(),
        })
    }

    /// Usage so far.
    pub(crate) fn usage(&self) -> Option<&Usage> {
        self.usage.as_ref()
    }

    /// Native identity, once the Harness has started the Turn.
    pub(crate) fn native(&self) -> Option<&Native> {
        self.native.as_ref()
    }

    /// Whether Core has cancelled it.
    pub(crate) fn cancel_requested(&self) -> bool {
        self.cancel == Some(CancelCause::Requested)
    }

    /// How it ended.
    pub(crate) fn end(&self) -> Option<&End> {
        match &self.state {
            State::Ended(end) => Some(end),
            State::Starting | State::Running | State::Settling(_) => None,
        }
    }

    /// Takes an input and tells what has to be done.
    pub(crate) fn on(&mut self, input: Input) -> Result<Vec<Effect>, Misfit> {
        match input {
            Input::Report(report) => self.report(report),
            Input::Batch(batch) => {
                self.batches.take(batch);
                Ok(Vec::new())
            }
            Input::Cancel(cause) => Ok(self.cancel(cause)),
            Input::Fail(failure) => Ok(self.fail(failure)),
            Input::Stop(stop) => Ok(self.stop(stop)),
            Input::Result { call_id, digest, result } => Ok(self.result(call_id, digest, result)),
            Input::Steer { input_id, content, input } => Ok(self.steer(input_id, content, input)),
            Input::NotStored { call_id } => {
                if let Some(call) = self.call_mut(&call_id) {
                    call.hidden = true;
                }
                Ok(Vec::new())
            }
            Input::StoredLate { call } => Ok(self.stored_late(call)),
            Input::Overdue { call_id } => Ok(self.overdue(&call_id)),
            Input::Expired { call_id } => Ok(self.expired(call_id)),
        }
    }

    fn is_stopping(&self) -> bool {
        self.cancel.is_some() || self.failure.is_some() || self.stop.is_some()
    }

    fn call(&self, call_id: &str) -> Option<&CallState> {
        self.calls.iter().find(|c| c.call.call_id == call_id)
    }

    fn call_mut(&mut self, call_id: &str) -> Option<&mut CallState> {
        self.calls.iter_mut().find(|c| c.call.call_id == call_id)
    }

    fn cancel(&mut self, cause: CancelCause) -> Vec<Effect> {
        // The cause that came first stands, but Core's own wish is remembered whatever came first: results are judged by it (R-FN-5).
        let first = !self.is_stopping();
        if self.cancel.is_none() || cause == CancelCause::Requested {
            self.cancel = Some(cause);
        }
        self.interrupt_if(first)
    }

    fn fail(&mut self, failure: Failure) -> Vec<Effect> {
        let first = !self.is_stopping();
        self.failure.get_or_insert(failure);
        self.interrupt_if(first)
    }

    fn interrupt_if(&self, first: bool) -> Vec<Effect> {
        match self.state {
            State::Starting | State::Running if first => vec![Effect::Interrupt],
            State::Starting | State::Running | State::Settling(_) | State::Ended(_) => Vec::new(),
        }
    }

    fn result(&mut self, call_id: String, digest: Digest, result: FunctionResult) -> Vec<Effect> {
        let Some(call) = self.call_mut(&call_id) else { return Vec::new() };
        call.stored = Some(digest);
        call.phase = CallPhase::Stored;
        call.failed = Failed::of(&result);
        vec![Effect::Answer { call_id, result }]
    }

    fn overdue(&mut self, call_id: &str) -> Vec<Effect> {
        match self.call(call_id) {
            Some(call) if call.awaits_evidence() && matches!(self.state, State::Running) && !self.is_stopping() => {
                self.unconfirmed("the Harness did not show the written result of a function call in time")
            }
            Some(_) | None => Vec::new(),
        }
    }

    fn unconfirmed(&mut self, message: &str) -> Vec<Effect> {
        self.fail(Failure {
            code: FailureCode::FunctionResultUnconfirmed,
            message: message.into(),
            http_status: None,
            exit: None,
        })
    }

    fn misfit(&self, report: &'static str) -> Misfit {
        Misfit { report, phase: self.phase() }
    }

    fn report(&mut self, report: Report) -> Result<Vec<Effect>, Misfit> {
        if let State::Ended(_) = self.state {
            return Err(self.misfit("something after the end"));
        }
        Ok(match report {
            Report::Started { native_turn_id } => match self.state {
                State::Starting => {
                    self.state = State::Running;
                    let native = Native { session_id: self.native_session_id.clone(), turn_id: native_turn_id };
                    self.native = Some(native.clone());
                    vec![Effect::StoreStarted(native.clone()), Effect::Emit(Event::TurnStarted { native })]
                }
                State::Running | State::Settling(_) | State::Ended(_) => return Err(self.misfit("a second start")),
            },
            Report::MessageStarted { id } => {
                let item = self.items.open(&id, Kind::Message);
                emit(Event::MessageStarted { item, native: id })
            }
            Report::MessageDelta { id, text } => {
                let (mut effects, item) = self.opened(&id, Kind::Message);
                effects.push(Effect::Emit(Event::MessageDelta { item, text }));
                effects
            }
            Report::MessageCompleted { id, text, phase } => {
                let (mut effects, item) = self.opened(&id, Kind::Message);
                self.items.close(&id, &Kind::Message);
                effects.push(Effect::Emit(Event::MessageCompleted { item, text, phase }));
                effects
            }
            Report::AnswerBroken => self.items.break_answer(Discard::Retried).into_iter().map(Effect::Emit).collect(),
            Report::AnswerSteered => self.items.break_answer(Discard::Steered).into_iter().map(Effect::Emit).collect(),
            Report::InputWritten { .. } | Report::InputAccepted { .. } | Report::InputRefused { .. } => {
                self.input_reported(report)?
            }
            Report::ReasoningStarted { id } => {
                let item = self.items.open(&id, Kind::Reasoning);
                emit(Event::ReasoningStarted { item, native: id })
            }
            Report::ReasoningDelta { id, kind, index, text } => {
                let (mut effects, item) = self.opened(&id, Kind::Reasoning);
                effects.push(Effect::Emit(Event::ReasoningDelta { item, kind, index, text }));
                effects
            }
            Report::ReasoningCompleted { id, summary, raw } => {
                let (mut effects, item) = self.opened(&id, Kind::Reasoning);
                self.items.close(&id, &Kind::Reasoning);
                effects.push(Effect::Emit(Event::ReasoningCompleted { item, summary, raw, incomplete: false }));
                effects
            }
            Report::ToolStarted { id, tool } => {
                let item = self.items.open(&id, Kind::Tool(tool.clone()));
                emit(Event::ToolStarted { item, native: id, tool })
            }
            // Output of a tool that never began, or is over, belongs to nothing that Core knows.
            Report::ToolOutput { id, text } => match self.items.find(&id, &any_tool()) {
                Some(item) => emit(Event::ToolOutput { item: item.to_owned(), text }),
                None => Vec::new(),
            },
            Report::ToolCompleted { id, end } => {
                let (mut effects, item) = self.opened(&id, Kind::Tool(end.tool.clone()));
                self.items.close(&id, &any_tool());
                effects.push(Effect::Emit(Event::ToolCompleted { item, end }));
                effects
            }
            Report::Call { call_id, name, arguments, exact, named_by_bridge } => {
                self.called(batches::Asked { call_id, name, arguments, exact, named_by_bridge })?
            }
            Report::AnswerWritten { call_id } => match self.call_mut(&call_id) {
                Some(call) if call.phase == CallPhase::Stored => {
                    call.phase = CallPhase::Written;
                    vec![
                        Effect::StorePhase { call_id: call_id.clone(), phase: CallPhase::Written },
                        Effect::AwaitEvidence { call_id },
                    ]
                }
                Some(call) if call.told.is_some() => {
                    call.told = Some(Told::Written);
                    vec![Effect::AwaitEvidence { call_id }]
                }
                Some(_) | None => Vec::new(),
            },
            Report::AnswerApplied { call_id, evidence, success } => match self.call_mut(&call_id) {
                // The evidence may overtake the word that the write is finished.
                Some(call) if matches!(call.phase, CallPhase::Stored | CallPhase::Written) => {
                    call.close(CallPhase::Applied);
                    vec![
                        Effect::StorePhase { call_id: call_id.clone(), phase: CallPhase::Applied },
                        Effect::Emit(Event::FunctionResultApplied { call_id, evidence, success }),
                    ]
                }
                Some(call) if call.told.is_some() => {
                    call.told = None;
                    Vec::new()
                }
                Some(_) | None => return Err(self.misfit("a receipt for a call without a result")),
            },
            Report::AnswerDiffers { .. } => {
                self.unconfirmed("the Harness shows another result of a function call than was written")
            }
            Report::CallAbandoned { call_id, reason } => {
                // The Harness cancels the calls of a Turn that is stopped under it; what took them away is the stop (R-DUR-3).
                let stopped = matches!(self.cancel, Some(CancelCause::BridgeStopped | CancelCause::Released));
                self.abandon(call_id, if stopped { AbandonReason::ExecutionLost } else { reason })
            }
            Report::Standing(standing) => {
                // The end that follows was asked for: the Harness had not told it (R-EVT-10).
                self.reconciled |= standing == Standing::Over;
                Vec::new()
            }
            Report::ProviderRetry(retry) => emit(Event::ProviderRetry(retry)),
            Report::Usage(usage) => {
                self.usage = Some(usage);
                emit(Event::Usage(usage))
            }
            Report::Notice { code, message } => emit(Event::Notice { code, message }),
            Report::Ended(end) => match self.state {
                State::Starting | State::Running => {
                    let effects = self.close_inputs(inputs::Phase::Refused(Reason::TurnEnded));
                    self.state = State::Settling(end);
                    effects
                }
                State::Settling(_) | State::Ended(_) => return Err(self.misfit("a second end")),
            },
            Report::Proved(end) => {
                self.reconciled = true;
                return self.report(Report::Ended(end));
            }
            Report::Settled(settlement) => self.settled(settlement)?,
            Report::Closed { exit, survivors } => self.lost(exit, survivors),
        })
    }

    /// The id of an open item, and the event that opens it where the Harness left that out.
    fn opened(&mut self, native: &str, kind: Kind) -> (Vec<Effect>, String) {
        if let Some(item) = self.items.find(native, &kind) {
            return (Vec::new(), item.to_owned());
        }
        let item = self.items.open(native, kind.clone());
        let (named, native) = (item.clone(), native.to_owned());
        let event = match kind {
            Kind::Message => Event::MessageStarted { item: named, native },
            Kind::Reasoning => Event::ReasoningStarted { item: named, native },
            Kind::Tool(tool) => Event::ToolStarted { item: named, native, tool },
        };
        (emit(event), item)
    }

    /// Shows a call that is on disk after all. What became of the Turn or the call meanwhile stands.
    fn stored_late(&mut self, call: Call) -> Vec<Effect> {
        if !self.is_hidden(&call.call_id) {
            return Vec::new();
        }
        if let Some(state) = self.call_mut(&call.call_id) {
            state.hidden = false;
        }
        emit(Event::FunctionCall { call })
    }

    /// Whether a call still waits to be stored and shown.
    pub(crate) fn is_hidden(&self, call_id: &str) -> bool {
        let runs = matches!(self.state, State::Starting | State::Running) && !self.is_stopping();
        runs && self.call(call_id).is_some_and(|c| c.hidden)
    }

    fn abandon(&mut self, call_id: String, reason: AbandonReason) -> Vec<Effect> {
        match self.call_mut(&call_id) {
            // The Harness gave the call up although it had the bridge's own result: nothing is to be awaited.
            Some(call) if call.told.is_some() => {
                call.told = None;
                Vec::new()
            }
            // What nobody has seen is not taken back either.
            Some(call) if call.hidden => {
                self.calls.retain(|c| c.call.call_id != call_id);
                Vec::new()
            }
            Some(call) if call.phase.is_open() => {
                call.close(CallPhase::Abandoned(reason));
                vec![
                    Effect::StorePhase { call_id: call_id.clone(), phase: CallPhase::Abandoned(reason) },
                    Effect::Emit(Event::FunctionCallAbandoned { call_id, reason }),
                ]
            }
            Some(_) | None => Vec::new(),
        }
    }

    fn settled(&mut self, settlement: Settlement) -> Result<Vec<Effect>, Misfit> {
        match std::mem::replace(&mut self.state, State::Running) {
            State::Settling(native) => Ok(self.finish(native, settlement.confirmed)),
            state @ (State::Starting | State::Running | State::Ended(_)) => {
                self.state = state;
                Err(self.misfit("settlement before the end"))
            }
        }
    }

    /// The Executor is gone before the Turn was settled.
    fn lost(&mut self, exit: Option<Exit>, survivors: u32) -> Vec<Effect> {
        let native = match std::mem::replace(&mut self.state, State::Running) {
            State::Settling(native) => native,
            State::Starting | State::Running | State::Ended(_) => NativeEnd::Failed {
                failure: Failure {
                    code: FailureCode::HarnessExited,
                    message: "the Harness exited in the middle of the Turn".into(),
                    http_status: None,
                    exit,
                },
                finish: None,
                at: None,
            },
        };
        self.finish(native, survivors == 0)
    }

    fn finish(&mut self, native: NativeEnd, confirmed: bool) -> Vec<Effect> {
        let interrupted = matches!(native, NativeEnd::Interrupted { .. });
        if matches!(native, NativeEnd::Completed { .. }) && self.calls.iter().any(CallState::awaits_evidence) {
            self.unconfirmed("the Harness ended the Turn without showing the written result of a function call");
        }
        let mut end = self.outcome(native, confirmed);
        let abandoned = match &end.status {
            Status::Failed(Failure { code: FailureCode::HarnessExited, .. }) => AbandonReason::ExecutionLost,
            Status::Cancelled(CancelCause::BridgeStopped | CancelCause::Released) => AbandonReason::ExecutionLost,
            Status::Completed | Status::Failed(_) | Status::Cancelled(CancelCause::Requested) | Status::Unknown(_) => {
                AbandonReason::TurnEnded
            }
        };
        let why = if interrupted { Discard::Interrupted } else { Discard::TurnEnded };
        // Where the adapter told no end, what it was given may have been written.
        let mut effects = self.close_inputs(inputs::Phase::OutcomeUnknown);
        effects.extend(self.items.close_all(why).into_iter().map(Effect::Emit));
        self.calls.retain(|c| !c.hidden);
        for call in self.calls.iter_mut().filter(|c| c.phase.is_open()) {
            call.close(CallPhase::Abandoned(abandoned));
            let call_id = call.call.call_id.clone();
            effects.push(Effect::Emit(Event::FunctionCallAbandoned { call_id, reason: abandoned }));
        }
        if end.status == Status::Completed {
            end.tool_errors = tool_errors::list(self.calls.iter().map(CallState::ended));
        }
        self.state = State::Ended(end.clone());
        effects.push(Effect::Finish { end, abandoned });
        effects
    }

    /// How the Turn ended. A failure of ours stands before everything; a completion that came although a cancel was on its way wins (R-CAN-5);
    /// a native failure stays one (R-EVT-3).
    fn outcome(&self, native: NativeEnd, confirmed: bool) -> End {
        let (status, finish, native_at): (Status, Option<Finish>, Option<SystemTime>) = match native {
            NativeEnd::Completed { finish, at } => (Status::Completed, finish, at),
            NativeEnd::Failed { failure, finish, at } => (Status::Failed(failure), finish, at),
            NativeEnd::Interrupted { at } => (self.interrupted(), None, at),
        };
        let status = match (&self.failure, confirmed) {
            (_, false) => Status::Unknown(UnknownCause::Unsettled),
            (Some(ours), true) => Status::Failed(ours.clone()),
            (None, true) => status,
        };
        let reconciled = self.reconciled && confirmed && self.failure.is_none() && self.stop.is_none();
        End { status, finish, native_at, usage: self.usage, reconciled, tool_errors: Vec::new(), output_matches: None }
    }

    fn interrupted(&self) -> Status {
        match (self.stop, self.cancel) {
            (Some(stop), _) => stop.status(),
            (None, Some(cause)) => Status::Cancelled(cause),
            (None, None) => Status::Failed(Failure {
                code: FailureCode::HarnessProtocolError,
                message: "the Harness says that the Turn was interrupted, but nobody asked for it".into(),
                http_status: None,
                exit: None,
            }),
        }
    }
}

fn emit(event: Event) -> Vec<Effect> {
    vec![Effect::Emit(event)]
}

fn any_tool() -> Kind {
    Kind::Tool(adapters::harness::Tool::Other { name: String::new() })
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
