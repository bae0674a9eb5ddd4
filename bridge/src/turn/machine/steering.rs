//! The inputs that are added to a Turn (R-STE-1 to R-STE-3): what the reports about them mean, and what becomes of them at its end. Pure.

use adapters::harness::{InputPart, InputRefusal, Report};

use super::{Effect, Misfit, State, Turn};
use crate::{
    refusal::Reason,
    turn::{
        calls::Digest,
        event::{CancelCause, Event},
        inputs::{self, Door, InputState, Phase, Verdict, judge},
    },
};

impl Turn {
    /// The inputs that were added, in their order.
    pub(crate) fn inputs(&self) -> &[InputState] {
        &self.inputs
    }

    /// Whether an input is on its way to the Harness, and has come to nothing else.
    pub(crate) fn is_written_next(&self, input_id: &str) -> bool {
        self.inputs.iter().any(|input| input.input_id == input_id && input.phase == Phase::Received)
    }

    /// Judges an input that is to be added.
    pub(crate) fn judge_input(&self, input_id: &str, content: Digest, input: &[InputPart]) -> Verdict {
        let door = match self.state {
            _ if self.cancel == Some(CancelCause::Requested) => Door::Cancelled,
            State::Starting | State::Running if !self.is_stopping() => Door::Open,
            State::Starting | State::Running | State::Settling(_) | State::Ended(_) => Door::Ended,
        };
        judge(input_id, content, inputs::bytes(input), &self.inputs, door)
    }

    /// An input that is on disk.
    pub(super) fn steer(&mut self, input_id: String, content: Digest, input: Vec<InputPart>) -> Vec<Effect> {
        let bytes = inputs::bytes(&input);
        self.inputs.push(InputState { input_id: input_id.clone(), content, phase: Phase::Received, bytes });
        vec![Effect::Steer { input_id, input }]
    }

    /// What the adapter reports of an input.
    pub(super) fn input_reported(&mut self, report: Report) -> Result<Vec<Effect>, Misfit> {
        match report {
            Report::InputWritten { input_id } => self.moved(&input_id, Phase::Written, None),
            Report::InputAccepted { input_id, evidence, native_id } => {
                let event = Event::InputAccepted { input_id: input_id.clone(), evidence, native: native_id };
                self.moved(&input_id, Phase::Accepted(evidence), Some(event))
            }
            Report::InputRefused { input_id, why } => {
                let (reason, message) = match why {
                    InputRefusal::TurnEnded => (Reason::TurnEnded, String::new()),
                    InputRefusal::NotTaken { message } => (Reason::Unsupported, message),
                };
                let event = Event::InputRefused { input_id: input_id.clone(), reason, message };
                self.moved(&input_id, Phase::Refused(reason), Some(event))
            }
            _ => Err(self.misfit("something else than news of an input")),
        }
    }

    /// Brings every input to its end, once nothing more will be found out: those that were not written to `unwritten` (R-STE-3).
    pub(super) fn close_inputs(&mut self, unwritten: Phase) -> Vec<Effect> {
        let open: Vec<_> = self.inputs.iter().filter(|input| !input.phase.is_closed()).cloned().collect();
        let mut effects = Vec::new();
        for InputState { input_id, phase, .. } in open {
            let end = if phase == Phase::Received { unwritten } else { Phase::OutcomeUnknown };
            let event = closing(input_id.clone(), end);
            // An open input is one that the Turn has.
            effects.extend(self.moved(&input_id, end, event).unwrap_or_default());
        }
        effects
    }

    /// Whether an input is on its way to the Harness.
    pub(super) fn writes_input(&self) -> bool {
        self.inputs.iter().any(|input| input.phase == Phase::Received)
    }

    /// Moves an input on. What it has come to stands.
    fn moved(&mut self, input_id: &str, to: Phase, event: Option<Event>) -> Result<Vec<Effect>, Misfit> {
        // `turn_started` is the first event of a Turn (R-EVT-2), and a Turn that never starts has its end alone.
        let is_shown = self.native.is_some();
        let Some(input) = self.inputs.iter_mut().find(|input| input.input_id == input_id) else {
            return Err(self.misfit("news of an input that it was not given"));
        };
        let from = input.phase;
        if from.is_closed() || from == to {
            return Ok(Vec::new());
        }
        input.phase = to;
        // The evidence may overtake the word that the write is finished.
        let is_written = from == Phase::Received && matches!(to, Phase::Written | Phase::Accepted(_));
        let written = is_written.then(|| Event::InputWritten { input_id: input_id.to_owned() });
        let events = written.into_iter().chain(event).filter(|_| is_shown).map(Effect::Emit);
        Ok([Effect::StoreInput { input_id: input_id.to_owned(), phase: to }].into_iter().chain(events).collect())
    }
}

/// The event of an input that came to its end without the Harness.
pub(crate) fn closing(input_id: String, end: Phase) -> Option<Event> {
    match end {
        Phase::Refused(reason) => Some(Event::InputRefused { input_id, reason, message: String::new() }),
        Phase::OutcomeUnknown => Some(Event::InputOutcomeUnknown { input_id }),
        Phase::Received | Phase::Written | Phase::Accepted(_) => None,
    }
}
