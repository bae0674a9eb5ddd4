//! The fence of a Session: a pure state machine of assignments and epochs (R-ASG-1, -2, -4).

use crate::refusal::{Reason, Refusal};

/// What a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    /// Core's id of the assignment.
    pub(crate) assignment_id: String,
    /// At least 1.
    pub(crate) epoch: u64,
}

/// What is recorded for a Session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// The recorded fence.
    pub(crate) fence: Fence,
    /// Whether it is released.
    pub(crate) released: bool,
}

/// What a Bind does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bind {
    /// Nothing was recorded, or what was is released: this is a new assignment.
    New,
    /// It is recorded already.
    Same,
    /// A lower epoch of the same assignment is fenced by this one.
    TakeOver,
}

/// What a Release does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The assignment is fenced and cleaned up.
    Fence,
    /// It is released already; what is left of the cleanup is done again.
    Again,
}

impl Assignment {
    /// Judges a Bind against what is recorded.
    pub(crate) fn bind(recorded: Option<&Self>, asked: &Fence) -> Result<Bind, Refusal> {
        let Some(recorded) = recorded else { return Ok(Bind::New) };
        let same = recorded.fence.assignment_id == asked.assignment_id;
        match (same, recorded.released) {
            (false, true) => Ok(Bind::New),
            (false, false) => Err(recorded.conflict("another assignment is bound")),
            (true, true) => Err(recorded.stale("the assignment is released")),
            (true, false) if asked.epoch < recorded.fence.epoch => Err(recorded.stale("a higher epoch is recorded")),
            (true, false) if asked.epoch > recorded.fence.epoch => Ok(Bind::TakeOver),
            (true, false) => Ok(Bind::Same),
        }
    }

    /// Judges a Release.
    pub(crate) fn release(&self, asked: &Fence) -> Result<Release, Refusal> {
        if self.fence.assignment_id != asked.assignment_id {
            return Err(self.conflict("another assignment is bound"));
        }
        match (asked.epoch.cmp(&self.fence.epoch), self.released) {
            (std::cmp::Ordering::Less, _) => Err(self.stale("a higher epoch is recorded")),
            (std::cmp::Ordering::Equal, true) => Ok(Release::Again),
            (std::cmp::Ordering::Equal, false) => {
                Err(self.conflict("a release needs a higher epoch than the recorded one"))
            }
            (std::cmp::Ordering::Greater, false) => Ok(Release::Fence),
            (std::cmp::Ordering::Greater, true) => Ok(Release::Fence),
        }
    }

    /// Judges any other request.
    pub(crate) fn admit(&self, asked: &Fence) -> Result<(), Refusal> {
        if self.fence.assignment_id != asked.assignment_id {
            return Err(self.conflict("another assignment is bound"));
        }
        match asked.epoch.cmp(&self.fence.epoch) {
            std::cmp::Ordering::Less => Err(self.stale("a higher epoch is recorded")),
            std::cmp::Ordering::Greater => {
                Err(self.conflict("the epoch is higher than the recorded one; bind it first"))
            }
            std::cmp::Ordering::Equal if self.released => Err(self.stale("the assignment is released")),
            std::cmp::Ordering::Equal => Ok(()),
        }
    }

    fn conflict(&self, text: &str) -> Refusal {
        self.tell(Refusal::new(Reason::AssignmentConflict, text))
    }

    fn stale(&self, text: &str) -> Refusal {
        self.tell(Refusal::new(Reason::AssignmentStale, text))
    }

    fn tell(&self, refusal: Refusal) -> Refusal {
        let state = if self.released { "released" } else { "bound" };
        refusal.at("assignment").with("epoch", self.fence.epoch).with("state", state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(id: &str, epoch: u64) -> Fence {
        Fence { assignment_id: id.into(), epoch }
    }

    fn outcome<T: std::fmt::Debug>(result: Result<T, Refusal>) -> String {
        match result {
            Ok(done) => format!("{done:?}"),
            Err(refusal) => format!("{:?}", refusal.reason),
        }
    }

    #[test]
    fn every_pair_of_recorded_and_asked_has_one_answer() {
        let bound = Assignment { fence: fence("a", 5), released: false };
        let released = Assignment { fence: fence("a", 5), released: true };
        for (recorded, asked, bind, admit, release) in [
            (&bound, fence("a", 5), "Same", "()", "AssignmentConflict"),
            (&bound, fence("a", 4), "AssignmentStale", "AssignmentStale", "AssignmentStale"),
            (&bound, fence("a", 6), "TakeOver", "AssignmentConflict", "Fence"),
            (&bound, fence("b", 5), "AssignmentConflict", "AssignmentConflict", "AssignmentConflict"),
            (&bound, fence("b", 6), "AssignmentConflict", "AssignmentConflict", "AssignmentConflict"),
            (&released, fence("a", 5), "AssignmentStale", "AssignmentStale", "Again"),
            (&released, fence("a", 4), "AssignmentStale", "AssignmentStale", "AssignmentStale"),
            (&released, fence("a", 6), "AssignmentStale", "AssignmentConflict", "Fence"),
            (&released, fence("b", 1), "New", "AssignmentConflict", "AssignmentConflict"),
        ] {
            let case = format!("{recorded:?} {asked:?}");
            assert_eq!(outcome(Assignment::bind(Some(recorded), &asked)), bind, "bind {case}");
            assert_eq!(outcome(recorded.admit(&asked)), admit, "admit {case}");
            assert_eq!(outcome(recorded.release(&asked)), release, "release {case}");
        }
        assert_eq!(outcome(Assignment::bind(None, &fence("a", 1))), "New");
    }

    #[test]
    fn a_refusal_carries_the_recorded_epoch_and_state() {
        let bound = Assignment { fence: fence("a", 5), released: true };
        let refusal = bound.admit(&fence("a", 5)).unwrap_err();
        assert_eq!(refusal.metadata, [("epoch", "5".to_owned()), ("state", "released".to_owned())]);
    }
}
