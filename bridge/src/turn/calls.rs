//! The function calls of a Turn: their phases, and the judgement of results (R-FN-5). Pure.

use adapters::harness::{AbandonReason, FunctionResult};
use sha2::{Digest as _, Sha256};

use super::{
    event::{Call, Large},
    tool_errors::{Ended, Failed},
};

/// Where a call is: `pending → result_stored → written → applied`, or `abandoned`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for its result.
    Pending,
    /// The result is on disk and on its way to the Harness.
    Stored,
    /// The result was written to the Harness; its evidence is awaited.
    Written,
    /// The result is in native history.
    Applied,
    /// Takes no result any more.
    Abandoned(AbandonReason),
    /// Did not fit into the Turn's limit: nobody is told of it but the Harness, and it is not stored.
    Refused,
}

impl Phase {
    /// The name that the journal keeps.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Stored => "result_stored",
            Self::Written => "written",
            Self::Applied => "applied",
            Self::Abandoned(_) => "abandoned",
            Self::Refused => "refused",
        }
    }

    /// Whether the call is a required action (R-FN-3).
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Pending | Self::Stored | Self::Written)
    }
}

/// A call as its Turn has it.
#[derive(Debug)]
pub(super) struct CallState {
    pub(super) call: Call,
    /// Its arguments, when they are too large to be held here.
    pub(super) large: Option<Large>,
    pub(super) phase: Phase,
    pub(super) stored: Option<Digest>,
    /// Nobody has seen it, since it could not be stored yet (R-DUR-4).
    pub(super) hidden: bool,
    /// What its result says of a failure.
    pub(super) failed: Option<Failed>,
    /// The bridge's own result, where the call's deadline was over or it was refused.
    pub(super) told: Option<Told>,
}

/// How far the bridge's own result of an abandoned call is, until the Harness shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// On its way.
    Given,
    /// Written; its evidence is awaited.
    Written,
}

/// Bytes of arguments of open calls that are held in memory, and that one answer may have together (R-API-7).
const HELD_ARGUMENTS: usize = 5 << 19;

impl CallState {
    /// A call that was just made.
    pub(super) fn new(call: Call) -> Self {
        Self { call, large: None, phase: Phase::Pending, stored: None, hidden: false, failed: None, told: None }
    }

    /// A call that gets the bridge's own result.
    pub(super) fn refused(mut call: Call, told: &FunctionResult) -> Self {
        call.arguments = String::new();
        let (failed, told) = (Failed::of(told), Some(Told::Given));
        Self { phase: Phase::Refused, failed, told, ..Self::new(call) }
    }

    /// Whether the evidence of a written result is awaited.
    pub(super) fn awaits_evidence(&self) -> bool {
        self.phase == Phase::Written || self.told == Some(Told::Written)
    }

    /// What is known of it at the end of its Turn.
    pub(super) fn ended(&self) -> Ended<'_> {
        let Call { call_id, name, .. } = &self.call;
        let is_abandoned = matches!(self.phase, Phase::Abandoned(_));
        Ended { call_id, name, failed: self.failed.clone(), is_abandoned }
    }

    /// Nobody asks for the arguments any more; the journal has them.
    pub(super) fn close(&mut self, phase: Phase) {
        self.phase = phase;
        self.call.arguments = String::new();
    }
}

/// Lets go of the newest call's arguments where all together would be too many bytes; the journal has them.
pub(super) fn hold_arguments(calls: &mut [CallState]) {
    let held: usize = calls.iter().map(|c| c.call.arguments.len()).sum();
    if let Some(newest) = calls.last_mut().filter(|_| held > HELD_ARGUMENTS) {
        let arguments = std::mem::take(&mut newest.call.arguments);
        let sha256 = Sha256::digest(arguments.as_bytes()).into();
        newest.large = Some(Large { size: arguments.len() as u64, sha256 });
    }
}

/// SHA-256 of a result's content.
pub(crate) type Digest = [u8; 32];

/// What is known of a call when a result for it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Digest of the stored result.
    pub(crate) stored: Option<Digest>,
    /// Whether Core has cancelled the Turn.
    pub(crate) cancelled: bool,
    /// Whether the call is abandoned, or its Turn over.
    pub(crate) closed: bool,
}

/// The judgement of one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    Duplicate,
    Unknown,
    Conflict,
    Cancelled,
    Abandoned,
}

/// Judges a result against what is known of its call; the first case that matches is the answer (R-FN-5).
pub(crate) fn judge(content: Digest, known: Option<Known>) -> Verdict {
    match known {
        None => Verdict::Unknown,
        Some(Known { stored: Some(stored), .. }) if stored == content => Verdict::Duplicate,
        Some(Known { stored: Some(_), .. }) => Verdict::Conflict,
        Some(Known { cancelled: true, .. }) => Verdict::Cancelled,
        Some(Known { closed: true, .. }) => Verdict::Abandoned,
        Some(_) => Verdict::Accepted,
    }
}

/// Judges a report of the application about a call: one that has its result needs none.
pub(crate) fn judge_progress(known: Option<Known>) -> Verdict {
    judge(known.and_then(|known| known.stored).unwrap_or_default(), known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_case_is_the_answer() {
        let known = |stored, cancelled, closed| Some(Known { stored, cancelled, closed });
        let (same, other) = ([1; 32], [2; 32]);
        for (known, want) in [
            (None, Verdict::Unknown),
            (known(Some(same), false, false), Verdict::Duplicate),
            (known(Some(same), true, true), Verdict::Duplicate),
            (known(Some(other), true, true), Verdict::Conflict),
            (known(None, true, true), Verdict::Cancelled),
            (known(None, true, false), Verdict::Cancelled),
            (known(None, false, true), Verdict::Abandoned),
            (known(None, false, false), Verdict::Accepted),
        ] {
            assert_eq!(judge(same, known), want, "{known:?}");
            let report = if want == Verdict::Conflict { Verdict::Duplicate } else { want };
            assert_eq!(judge_progress(known), report, "{known:?}");
        }
    }
}
