//! The pure state machine of the inputs that are added to a Turn: their phases, and the judgement of a new one (R-STE-1, R-STE-3, R-API-6).

use adapters::harness::{InputEvidence, InputPart};

use super::calls::Digest;
use crate::refusal::Reason;

/// Inputs of a Turn that the Harness may have to take at once.
pub(crate) const MAX_WAITING: usize = 16;
/// Bytes of the inputs of a Turn that are not written to the Harness: so many are held in memory, and one input beside them that is.
pub(crate) const MAX_WAITING_BYTES: usize = 64 << 20;
/// Inputs of a Turn.
pub(crate) const MAX_INPUTS: usize = 256;

/// Where an input is: `received → written → accepted`, or `refused`, or `outcome_unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is on disk and on its way to the Harness.
    Received,
    /// It was written to the Harness, or may have been.
    Written,
    /// The Harness shows that it has it.
    Accepted(InputEvidence),
    /// It takes no part in the Turn, and never will in another one.
    Refused(Reason),
    /// Nobody can prove whether it took part.
    OutcomeUnknown,
}

impl Phase {
    /// The name that the journal keeps.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Written => "written",
            Self::Accepted(_) => "accepted",
            Self::Refused(_) => "refused",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }

    /// What the journal keeps beside the name.
    pub(crate) fn detail(self) -> Option<&'static str> {
        match self {
            Self::Accepted(InputEvidence::Consumed) => Some("consumed"),
            Self::Accepted(InputEvidence::Admitted) => Some("admitted"),
            Self::Refused(Reason::TurnEnded) => Some("turn_ended"),
            Self::Refused(_) => Some("unsupported"),
            Self::Received | Self::Written | Self::OutcomeUnknown => None,
        }
    }

    /// The phase of these words.
    pub(crate) fn of(name: &str, detail: Option<&str>) -> Self {
        match (name, detail) {
            ("received", _) => Self::Received,
            ("written", _) => Self::Written,
            ("accepted", Some("admitted")) => Self::Accepted(InputEvidence::Admitted),
            ("accepted", _) => Self::Accepted(InputEvidence::Consumed),
            ("refused", Some("turn_ended")) => Self::Refused(Reason::TurnEnded),
            ("refused", _) => Self::Refused(Reason::Unsupported),
            // The journal takes no other word than those.
            _ => Self::OutcomeUnknown,
        }
    }

    /// Whether it has come to its end.
    pub(crate) fn is_closed(self) -> bool {
        matches!(self, Self::Accepted(_) | Self::Refused(_) | Self::OutcomeUnknown)
    }
}

/// An input as its Turn has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputState {
    /// Core's id.
    pub(crate) input_id: String,
    /// Digest of its content.
    pub(crate) content: Digest,
    /// Where it is.
    pub(crate) phase: Phase,
    /// Bytes of its texts and images, which are held until it is written; nothing for one of an earlier run.
    pub(crate) bytes: usize,
}

/// Bytes of the texts and images of an input.
pub(crate) fn bytes(of: &[InputPart]) -> usize {
    let bytes = |part: &InputPart| match part {
        InputPart::Text(text) => text.len(),
        InputPart::Image(image) => image.data.len(),
    };
    of.iter().map(bytes).sum()
}

/// What stands beside the native message of an input: no other input of a Session has the same, since no id of Core holds the stroke.
pub(crate) fn client_id(turn_id: &str, input_id: &str) -> String {
    format!("{turn_id}/{input_id}")
}

/// The judgement of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is new and can be taken.
    Taken,
    /// It is known.
    Duplicate,
    /// Another one is known under its id.
    Conflict,
    /// Core has cancelled the Turn.
    Cancelled,
    /// The Turn takes no more.
    Ended,
    /// The Turn has had as many as it may have.
    Limit,
    /// Too many wait for the Harness, or too large ones.
    Busy,
}

/// How a Turn stands towards a new input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// It takes one.
    Open,
    /// Core has cancelled it.
    Cancelled,
    /// It is over, or about to be.
    Ended,
}

/// Judges an input against those that its Turn has had; the first case that matches is the answer. What is known is answered whatever became
/// of the Turn.
pub(crate) fn judge(input_id: &str, content: Digest, bytes: usize, had: &[InputState], door: Door) -> Verdict {
    let known = had.iter().find(|input| input.input_id == input_id);
    match (known, door) {
        (Some(known), _) if known.content == content => Verdict::Duplicate,
        (Some(_), _) => Verdict::Conflict,
        (None, Door::Cancelled) => Verdict::Cancelled,
        (None, Door::Ended) => Verdict::Ended,
        (None, Door::Open) if had.len() >= MAX_INPUTS => Verdict::Limit,
        (None, Door::Open) if had.iter().filter(|input| !input.phase.is_closed()).count() >= MAX_WAITING => {
            Verdict::Busy
        }
        (None, Door::Open) if held(had).saturating_add(bytes) > MAX_WAITING_BYTES => Verdict::Busy,
        (None, Door::Open) => Verdict::Taken,
    }
}

/// Bytes of the inputs that are not written.
fn held(had: &[InputState]) -> usize {
    had.iter().filter(|input| input.phase == Phase::Received).map(|input| input.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Phase; 7] = [
        Phase::Received,
        Phase::Written,
        Phase::Accepted(InputEvidence::Consumed),
        Phase::Accepted(InputEvidence::Admitted),
        Phase::Refused(Reason::TurnEnded),
        Phase::Refused(Reason::Unsupported),
        Phase::OutcomeUnknown,
    ];

    fn inputs(count: usize, phase: Phase) -> Vec<InputState> {
        (0..count).map(|n| InputState { input_id: format!("i-{n}"), content: [1; 32], phase, bytes: 1 }).collect()
    }

    #[test]
    fn the_journal_keeps_every_phase() {
        for phase in ALL {
            assert_eq!(Phase::of(phase.name(), phase.detail()), phase);
        }
        let closed: Vec<_> = ALL.into_iter().filter(|phase| phase.is_closed()).collect();
        assert_eq!(closed, ALL[2..]);
    }

    #[test]
    fn what_is_known_is_answered_whatever_became_of_the_turn() {
        for phase in ALL {
            for door in [Door::Open, Door::Cancelled, Door::Ended] {
                let had = inputs(MAX_INPUTS, phase);
                assert_eq!(judge("i-3", [1; 32], 1, &had, door), Verdict::Duplicate);
                assert_eq!(judge("i-3", [2; 32], 1, &had, door), Verdict::Conflict);
            }
        }
    }

    #[test]
    fn a_new_input_is_taken_while_the_turn_has_room_for_it() {
        let new = |had: &[InputState], door| judge("new", [1; 32], 1, had, door);
        let done = Phase::Accepted(InputEvidence::Consumed);
        assert_eq!(new(&[], Door::Open), Verdict::Taken);
        assert_eq!(new(&[], Door::Cancelled), Verdict::Cancelled);
        assert_eq!(new(&inputs(MAX_INPUTS, done), Door::Ended), Verdict::Ended);
        for waits in [Phase::Received, Phase::Written] {
            assert_eq!(new(&inputs(MAX_WAITING - 1, waits), Door::Open), Verdict::Taken);
            assert_eq!(new(&inputs(MAX_WAITING, waits), Door::Open), Verdict::Busy);
        }
        assert_eq!(new(&inputs(MAX_INPUTS - 1, done), Door::Open), Verdict::Taken);
        assert_eq!(new(&inputs(MAX_INPUTS, done), Door::Open), Verdict::Limit);
    }

    #[test]
    fn what_waits_to_be_written_has_a_bound_in_bytes() {
        let large = |phase| [InputState { bytes: MAX_WAITING_BYTES - 10, ..inputs(1, phase).remove(0) }];
        let new = |bytes, phase| judge("new", [1; 32], bytes, &large(phase), Door::Open);
        assert_eq!(new(10, Phase::Received), Verdict::Taken);
        assert_eq!((new(11, Phase::Received), new(usize::MAX, Phase::Received)), (Verdict::Busy, Verdict::Busy));
        // What is written is not held any more.
        for phase in ALL.into_iter().filter(|phase| *phase != Phase::Received) {
            assert_eq!(new(11, phase), Verdict::Taken, "{phase:?}");
        }
        assert_eq!(bytes(&["abc".into(), "de".into()]), 5);
    }
}
