//! The pure state machine of the inputs that are added to a Turn: their phases, and the judgement of a new one (R-STE-1, R-STE-3, R-API-6).

use adapters::harness::InputEvidence;

use super::calls::Digest;
use crate::refusal::Reason;

/// Inputs of a Turn that the Harness may have to take at once.
pub(crate) const MAX_WAITING: usize = 16;
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
    /// Too many wait for the Harness.
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
pub(crate) fn judge(input_id: &str, content: Digest, had: &[InputState], door: Door) -> Verdict {
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
        (None, Door::Open) => Verdict::Taken,
    }
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
        (0..count).map(|n| InputState { input_id: format!("i-{n}"), content: [1; 32], phase }).collect()
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
                assert_eq!(judge("i-3", [1; 32], &had, door), Verdict::Duplicate);
                assert_eq!(judge("i-3", [2; 32], &had, door), Verdict::Conflict);
            }
        }
    }

    #[test]
    fn a_new_input_is_taken_while_the_turn_has_room_for_it() {
        let new = |had: &[InputState], door| judge("new", [1; 32], had, door);
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
}
