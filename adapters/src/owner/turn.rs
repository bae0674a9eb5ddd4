//! The pure state machine of one native Turn: from the submitted input over the native end to the proof that nothing of it runs any more
//! (R-CAN-1 to R-CAN-6, R-EVT-7, R-EVT-9). It reads no clock, holds no channel and starts no process; [`super::Owner`] performs its effects. Its names are
//! those that every Harness has; what each is natively, its adapter knows.

use std::time::Duration;

pub(crate) use self::event::{Effect, Event, Timer};
use crate::harness::{Exit, Failure, FailureCode, NativeEnd, Report, Settlement, Timing};

mod event;

/// How often an input is submitted again that the Harness was too busy to take.
const TRIES: u32 = 5;
/// Between two such tries at first; it doubles.
const TRY_AFTER: Duration = Duration::from_millis(100);
/// Between two tries of an interrupt. Directly after a start Codex refuses it, and the Turn would run to its end.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(50);
/// How long stopped commands may take to show that they ended.
const CLEAN: Duration = Duration::from_secs(1);

/// An event that does not fit the state. Nothing changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event} in state {state}")]
pub(crate) struct Misfit {
    state: &'static str,
    event: String,
}

/// What differs between Harnesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Name of the program, for people.
    pub(crate) name: &'static str,
    /// An interrupt leaves commands running, which the Harness ends when it is told to.
    pub(crate) cleans: bool,
    /// From the closed input to the end of a process that does not leave by itself (R-CAN-4).
    pub(crate) close: Duration,
}

/// One native Turn.
#[derive(Debug)]
pub(crate) struct Turn {
    manner: Manner,
    timing: Timing,
    state: State,
    /// `turn_started` was reported.
    started: bool,
}

#[derive(Debug)]
enum State {
    /// The input may have been submitted.
    Submitting { native: Option<String>, tries: u32, interrupt: bool },
    /// The Harness works.
    Running { native: String, interrupt: Interrupt },
    /// The end is known; what was started is brought to its end.
    Settling { native: Option<String>, stage: Stage, open: usize },
    /// The process is being ended.
    Retiring { native: Option<String>, cause: Cause, ended: bool },
    /// Nothing more happens.
    Settled { native: Option<String> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupt {
    No,
    Sent,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Open work may end by itself.
    Work,
    /// It was told to end.
    Clean { answered: bool },
    /// What is left is ended.
    Surplus,
}

#[derive(Clone, Debug)]
enum Cause {
    Asked,
    Fault(Failure),
}

impl Turn {
    /// A Turn whose input is about to be submitted.
    pub(crate) fn new(manner: Manner, timing: Timing) -> Self {
        Self { manner, timing, state: State::Submitting { native: None, tries: 0, interrupt: false }, started: false }
    }

    /// The native turn, once it is known. Before that every native turn of the thread is this one: only one is ever started.
    pub(crate) fn native(&self) -> Option<&str> {
        match &self.state {
            State::Submitting { native, .. }
            | State::Settling { native, .. }
            | State::Retiring { native, .. }
            | State::Settled { native } => native.as_deref(),
            State::Running { native, .. } => Some(native),
        }
    }

    /// Whether calls may be made: the native end is not known and the process is not being ended.
    pub(crate) fn is_open(&self) -> bool {
        match &self.state {
            State::Submitting { .. } | State::Running { .. } => true,
            State::Settling { .. } | State::Retiring { .. } | State::Settled { .. } => false,
        }
    }

    /// Whether it was interrupted before its input was submitted.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self.state, State::Submitting { interrupt: true, .. })
    }

    /// Whether what the Harness tells belongs to the Turn: it has started, and its end is not known.
    pub(crate) fn is_told(&self) -> bool {
        let ended = match &self.state {
            State::Submitting { .. } | State::Running { .. } => false,
            State::Retiring { ended, .. } => *ended,
            State::Settling { .. } | State::Settled { .. } => true,
        };
        self.started && !ended
    }

    /// Whether the native turn is known to have started, and was reported.
    pub(crate) fn has_started(&self) -> bool {
        self.started
    }

    /// The native turn whose end is not known; asked once the process is gone.
    pub(crate) fn unended(&self) -> Option<&str> {
        match &self.state {
            State::Submitting { native, .. } | State::Retiring { native, ended: false, cause: Cause::Asked } => {
                native.as_deref()
            }
            State::Running { native, .. } => Some(native),
            // A fault of ours stands, whatever the Harness did after it.
            State::Settling { .. } | State::Retiring { .. } | State::Settled { .. } => None,
        }
    }

    /// Whether an end in history is that of this Turn. An interrupt is, when it was asked for and nobody else ended the process (R-CAN-6):
    /// A Harness may note one for whatever ends it in the middle of a Turn.
    pub(crate) fn is_proved_by(&self, end: &NativeEnd, foreign_signal: bool) -> bool {
        let sent = match &self.state {
            State::Submitting { interrupt, .. } => *interrupt,
            State::Running { interrupt, .. } => *interrupt != Interrupt::No,
            State::Retiring { .. } | State::Settling { .. } | State::Settled { .. } => false,
        };
        match end {
            NativeEnd::Completed { .. } | NativeEnd::Failed { .. } => self.unended().is_some(),
            NativeEnd::Interrupted { .. } => sent && !foreign_signal,
        }
    }

    /// Whether everything is over.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state, State::Settled { .. })
    }

    /// Takes an event and adds what is to be done.
    ///
    /// # Errors
    /// [`Misfit`] when the event cannot come in this state; the caller counts it.
    pub(crate) fn on(&mut self, event: Event, out: &mut Vec<Effect>) -> Result<(), Misfit> {
        match &mut self.state {
            State::Submitting { .. } => self.on_submitting(event, out),
            State::Running { .. } => self.on_running(event, out),
            State::Settling { .. } => self.on_settling(event, out),
            State::Retiring { .. } => self.on_retiring(event, out),
            State::Settled { .. } => self.misfit(&event),
        }
    }

    fn on_submitting(&mut self, event: Event, out: &mut Vec<Effect>) -> Result<(), Misfit> {
        let State::Submitting { native, tries, interrupt } = &mut self.state else { return self.misfit(&event) };
        match event {
            // A Turn that was cancelled before its input was written never reaches the Harness (R-CAN-1).
            Event::Prepared if *interrupt => self.end(NativeEnd::Interrupted { at: None }, 0, out),
            Event::Prepared => out.push(Effect::Submit),
            Event::Accepted { native: told } => {
                *native = told.or(native.take());
            }
            Event::Refused { overloaded: true, .. } if *tries < TRIES && !*interrupt => {
                out.push(Effect::Arm(Timer::Resubmit, TRY_AFTER * 2_u32.pow(*tries)));
                *tries += 1;
            }
            // Nothing was submitted, so there is nothing to be interrupted.
            Event::Refused { .. } if *interrupt => self.end(NativeEnd::Interrupted { at: None }, 0, out),
            Event::Refused { failure, .. } => self.end(failed(failure), 0, out),
            Event::Expired(Timer::Resubmit) if *interrupt => self.end(NativeEnd::Interrupted { at: None }, 0, out),
            Event::Expired(Timer::Resubmit) => out.push(Effect::Submit),
            Event::Started { native: told } => {
                if native.as_ref().is_some_and(|native| *native != told) {
                    return self.misfit(&Event::Started { native: told });
                }
                let interrupt = *interrupt;
                self.report_started(&told, out);
                self.state = State::Running { native: told, interrupt: Interrupt::No };
                if interrupt {
                    self.send_interrupt(out);
                    out.push(Effect::Arm(Timer::Interrupt, self.timing.interrupt));
                }
            }
            Event::Completed { native: told, end, open_work } => {
                if native.as_ref().is_some_and(|native| *native != told) {
                    return self.misfit(&Event::Completed { native: told, end, open_work });
                }
                let asked = *interrupt;
                *native = Some(told.clone());
                self.report_started(&told, out);
                self.end(native_end(self.manner, end, asked), open_work, out);
            }
            // Held until the Harness can take it, and then given its time anew.
            Event::Interrupt if !*interrupt => {
                *interrupt = true;
                out.push(Effect::Arm(Timer::Interrupt, self.timing.interrupt));
            }
            Event::Interrupt | Event::Work { .. } => {}
            Event::Expired(Timer::Interrupt) | Event::Close => self.retire(Cause::Asked, false, out),
            Event::Fault(failure) => self.retire(Cause::Fault(failure), false, out),
            Event::Proved(end) => self.proved(end, out),
            Event::Exited { exit, said, .. } => self.lost(exit, &said, out),
            Event::InterruptRefused | Event::Cleaned | Event::SurplusEnded { .. } | Event::Expired(_) => {
                return self.misfit(&event);
            }
        }
        Ok(())
    }

    fn on_running(&mut self, event: Event, out: &mut Vec<Effect>) -> Result<(), Misfit> {
        let State::Running { native, interrupt } = &mut self.state else { return self.misfit(&event) };
        match event {
            // Notifications may come before the answer (B-018).
            Event::Accepted { native: told } if told.as_ref().is_none_or(|told| told == native) => {}
            Event::Started { native: told } if told == *native => {}
            Event::Completed { native: told, end, open_work } if told == *native => {
                let asked = *interrupt != Interrupt::No;
                self.end(native_end(self.manner, end, asked), open_work, out);
            }
            Event::Interrupt if *interrupt == Interrupt::No => {
                self.send_interrupt(out);
                out.push(Effect::Arm(Timer::Interrupt, self.timing.interrupt));
            }
            Event::Interrupt | Event::Work { .. } => {}
            Event::InterruptRefused if *interrupt == Interrupt::Sent => {
                *interrupt = Interrupt::Refused;
                out.push(Effect::Arm(Timer::InterruptAgain, INTERRUPT_AGAIN));
            }
            Event::Expired(Timer::InterruptAgain) if *interrupt == Interrupt::Refused => self.send_interrupt(out),
            Event::Expired(Timer::Interrupt) | Event::Close => self.retire(Cause::Asked, false, out),
            Event::Fault(failure) => self.retire(Cause::Fault(failure), false, out),
            Event::Proved(end) => self.proved(end, out),
            Event::Exited { exit, said, .. } => self.lost(exit, &said, out),
            Event::Prepared
            | Event::Accepted { .. }
            | Event::Refused { .. }
            | Event::Started { .. }
            | Event::Completed { .. }
            | Event::InterruptRefused
            | Event::Cleaned
            | Event::SurplusEnded { .. }
            | Event::Expired(_) => return self.misfit(&event),
        }
        Ok(())
    }

    fn on_settling(&mut self, event: Event, out: &mut Vec<Effect>) -> Result<(), Misfit> {
        let State::Settling { stage, open, .. } = &mut self.state else { return self.misfit(&event) };
        match (event, *stage) {
            (Event::Work { open: now }, _) => {
                *open = now;
                if now == 0 && matches!(stage, Stage::Work | Stage::Clean { answered: true }) {
                    self.end_surplus(out);
                }
            }
            (Event::Expired(Timer::Work) | Event::Interrupt, Stage::Work) if self.manner.cleans => self.clean(out),
            (Event::Expired(Timer::Work) | Event::Interrupt, Stage::Work) => self.end_surplus(out),
            (Event::Cleaned, Stage::Clean { .. }) => {
                *stage = Stage::Clean { answered: true };
                if *open == 0 {
                    self.end_surplus(out);
                }
            }
            (Event::Expired(Timer::Clean), Stage::Clean { .. }) => self.end_surplus(out),
            (Event::SurplusEnded { left: 0 }, Stage::Surplus) => self.settle(true, true, out),
            // What the daemon cannot end alone goes with everything else, under the keeper.
            (Event::SurplusEnded { .. }, Stage::Surplus) => self.retire(Cause::Asked, true, out),
            (Event::Fault(failure), _) => self.retire(Cause::Fault(failure), true, out),
            (Event::Close, _) => self.retire(Cause::Asked, true, out),
            (Event::Exited { .. }, _) => self.settle(true, false, out),
            (Event::Expired(Timer::Settlement), _) => {
                out.push(Effect::Retire);
                self.settle(false, false, out);
            }
            (Event::Interrupt | Event::InterruptRefused, _) => {}
            (
                event @ (Event::Prepared
                | Event::Accepted { .. }
                | Event::Refused { .. }
                | Event::Started { .. }
                | Event::Completed { .. }
                | Event::Cleaned
                | Event::SurplusEnded { .. }
                | Event::Proved(_)
                | Event::Expired(_)),
                _,
            ) => return self.misfit(&event),
        }
        Ok(())
    }

    fn on_retiring(&mut self, event: Event, out: &mut Vec<Effect>) -> Result<(), Misfit> {
        let State::Retiring { native, cause, ended } = &mut self.state else { return self.misfit(&event) };
        let fits = |told: &str| native.as_ref().is_none_or(|native| native == told);
        match event {
            Event::Started { native: told } if fits(&told) && !*ended => {
                *native = Some(told.clone());
                self.report_started(&told, out);
            }
            // It was on its way (R-CAN-5). Behind a fault it proves nothing: something before it is lost.
            Event::Completed { native: told, end, .. } if fits(&told) && !*ended => {
                *native = Some(told.clone());
                *ended = true;
                let end = match cause {
                    Cause::Asked => native_end(self.manner, end, true),
                    // What came behind the fault may rest on what was lost by it.
                    Cause::Fault(failure) => failed(failure.clone()),
                };
                self.report_started(&told, out);
                out.push(Effect::Report(Report::Ended(end)));
            }
            Event::Exited { exit, foreign_signal, said } => {
                if !*ended {
                    let end = match cause {
                        Cause::Asked if foreign_signal => failed(exited(self.manner, exit, &said)),
                        Cause::Asked => NativeEnd::Interrupted { at: None },
                        Cause::Fault(failure) => failed(failure.clone()),
                    };
                    out.push(Effect::Report(Report::Ended(end)));
                }
                self.settle(true, false, out);
            }
            Event::Expired(Timer::Settlement) => {
                if !*ended {
                    let end = match cause {
                        Cause::Asked => NativeEnd::Interrupted { at: None },
                        Cause::Fault(failure) => failed(failure.clone()),
                    };
                    out.push(Effect::Report(Report::Ended(end)));
                }
                self.settle(false, false, out);
            }
            Event::Prepared
            | Event::Accepted { .. }
            | Event::Refused { .. }
            | Event::Interrupt
            | Event::InterruptRefused
            | Event::Work { .. }
            | Event::Cleaned
            | Event::SurplusEnded { .. }
            | Event::Fault(_)
            | Event::Close => {}
            Event::Proved(end) if !*ended => self.proved(end, out),
            Event::Started { .. } | Event::Completed { .. } | Event::Proved(_) | Event::Expired(_) => {
                return self.misfit(&event);
            }
        }
        Ok(())
    }

    fn report_started(&mut self, native: &str, out: &mut Vec<Effect>) {
        if !self.started {
            self.started = true;
            out.push(Effect::Report(Report::Started { native_turn_id: native.to_owned() }));
        }
    }

    fn send_interrupt(&mut self, out: &mut Vec<Effect>) {
        if let State::Running { native, interrupt } = &mut self.state {
            *interrupt = Interrupt::Sent;
            out.push(Effect::Interrupt { native: native.clone() });
        }
    }

    /// The native end is known.
    fn end(&mut self, end: NativeEnd, open: usize, out: &mut Vec<Effect>) {
        let native = self.native().map(str::to_owned);
        let interrupted = matches!(end, NativeEnd::Interrupted { .. });
        out.extend([Timer::Resubmit, Timer::Interrupt, Timer::InterruptAgain].map(Effect::Disarm));
        out.push(Effect::Report(Report::Ended(end)));
        out.push(Effect::Arm(Timer::Settlement, self.timing.settlement));
        self.state = State::Settling { native, stage: Stage::Work, open };
        if interrupted && self.started && self.manner.cleans {
            self.clean(out);
        } else if open > 0 {
            out.push(Effect::Arm(Timer::Work, self.timing.settle));
        } else {
            self.end_surplus(out);
        }
    }

    fn clean(&mut self, out: &mut Vec<Effect>) {
        self.set_stage(Stage::Clean { answered: false });
        out.extend([Effect::Disarm(Timer::Work), Effect::Clean, Effect::Arm(Timer::Clean, CLEAN)]);
    }

    fn end_surplus(&mut self, out: &mut Vec<Effect>) {
        self.set_stage(Stage::Surplus);
        out.extend([Effect::Disarm(Timer::Work), Effect::Disarm(Timer::Clean), Effect::EndSurplus]);
    }

    fn set_stage(&mut self, now: Stage) {
        if let State::Settling { stage, .. } = &mut self.state {
            *stage = now;
        }
    }

    fn retire(&mut self, cause: Cause, ended: bool, out: &mut Vec<Effect>) {
        let native = self.native().map(str::to_owned);
        out.push(Effect::Retire);
        if !ended {
            out.push(Effect::Arm(Timer::Settlement, self.timing.settlement));
        }
        let others = [Timer::Resubmit, Timer::Interrupt, Timer::InterruptAgain, Timer::Work, Timer::Clean];
        out.extend(others.map(Effect::Disarm));
        self.state = State::Retiring { native, cause, ended };
    }

    /// History has the end, and the process is gone.
    fn proved(&mut self, end: NativeEnd, out: &mut Vec<Effect>) {
        let native = self.native().map(str::to_owned);
        if let Some(native) = &native {
            self.report_started(native, out);
        }
        out.push(Effect::Report(Report::Proved(end)));
        self.state = State::Retiring { native, cause: Cause::Asked, ended: true };
    }

    /// The process is gone in the middle of a Turn. No exit code is a success.
    fn lost(&mut self, exit: Exit, said: &str, out: &mut Vec<Effect>) {
        out.push(Effect::Report(Report::Ended(failed(exited(self.manner, exit, said)))));
        self.settle(true, false, out);
    }

    fn settle(&mut self, confirmed: bool, reusable: bool, out: &mut Vec<Effect>) {
        let all =
            [Timer::Resubmit, Timer::InterruptAgain, Timer::Interrupt, Timer::Work, Timer::Clean, Timer::Settlement];
        out.extend(all.map(Effect::Disarm));
        out.push(Effect::Report(Report::Settled(Settlement { confirmed, reusable })));
        self.state = State::Settled { native: self.native().map(str::to_owned) };
    }

    fn misfit(&self, event: &Event) -> Result<(), Misfit> {
        let state = match &self.state {
            State::Submitting { .. } => "submitting",
            State::Running { .. } => "running",
            State::Settling { .. } => "settling",
            State::Retiring { .. } => "retiring",
            State::Settled { .. } => "settled",
        };
        Err(Misfit { state, event: event.to_string() })
    }
}

fn failed(failure: Failure) -> NativeEnd {
    NativeEnd::Failed { failure, finish: None, at: None }
}

/// The native end of a Turn. An interrupt that nobody asked for is none (R-CAN-6).
fn native_end(manner: Manner, end: NativeEnd, asked: bool) -> NativeEnd {
    match end {
        NativeEnd::Interrupted { at } if !asked => {
            let failure = protocol_error(format!("{} interrupted the Turn by itself", manner.name));
            NativeEnd::Failed { failure, finish: None, at }
        }
        end => end,
    }
}

fn protocol_error(message: String) -> Failure {
    Failure { code: FailureCode::HarnessProtocolError, message, http_status: None, exit: None }
}

fn exited(manner: Manner, exit: Exit, said: &str) -> Failure {
    let how = match exit {
        Exit::Code(code) => format!("with exit code {code}"),
        Exit::Signal(signal) => format!("by signal {signal}"),
    };
    let said = if said.is_empty() { String::new() } else { format!("; it said: {said}") };
    Failure {
        code: FailureCode::HarnessExited,
        message: format!("{} ended {how} before the Turn did{said}", manner.name),
        http_status: None,
        exit: Some(exit),
    }
}

#[cfg(test)]
mod tests;
