//! What the calls of every Harness have in common: the phases of a call, and the model's own text of arguments that is told before the call.

use std::collections::BTreeMap;

use crate::harness::{AbandonReason, Report};

/// Calls that the provider told and the Harness has not asked for; it does within milliseconds, or never.
pub(crate) const TOLD: usize = 64;

/// Where a call stands; `A` is the answer as it was written.
#[derive(Debug)]
pub(crate) enum Phase<A> {
    /// It waits for its result.
    Pending,
    /// The result was handed to the writer.
    Answered {
        /// As it was written.
        answer: A,
        /// The writer is done with it.
        written: bool,
    },
    /// The native result was seen, and is the one that was written.
    Applied {
        /// As it was written.
        answer: A,
    },
    /// It takes no result any more.
    Abandoned,
}

impl<A> Phase<A> {
    /// The result was written to the end.
    pub(crate) fn written(&mut self, call_id: &str) -> Option<Report> {
        match self {
            Self::Answered { written: written @ false, .. } => {
                *written = true;
                Some(Report::AnswerWritten { call_id: call_id.to_owned() })
            }
            Self::Pending | Self::Answered { .. } | Self::Applied { .. } | Self::Abandoned => None,
        }
    }

    /// The native result of the call was seen; `applied` says whether it is what was written (R-FN-6).
    pub(crate) fn seen(
        &mut self,
        call_id: &str,
        evidence: &'static str,
        success: bool,
        applied: impl FnOnce(&A) -> bool,
    ) -> Vec<Report> {
        let call_id = call_id.to_owned();
        match std::mem::replace(self, Self::Abandoned) {
            Self::Pending => vec![Report::CallAbandoned { call_id, reason: AbandonReason::NativeCancelled }],
            Self::Answered { answer, written } => {
                // The Harness has it, so it was written; the writer's own word is still on its way.
                let mut reports: Vec<Report> =
                    (!written).then(|| Report::AnswerWritten { call_id: call_id.clone() }).into_iter().collect();
                if applied(&answer) {
                    *self = Self::Applied { answer };
                    reports.push(Report::AnswerApplied { call_id, evidence, success });
                } else {
                    reports.push(Report::AnswerDiffers { call_id });
                }
                reports
            }
            kept @ (Self::Applied { .. } | Self::Abandoned) => {
                *self = kept;
                Vec::new()
            }
        }
    }

    /// The Harness cancelled the call, or its result was not taken.
    pub(crate) fn cancelled(&mut self, call_id: &str) -> Option<Report> {
        match self {
            Self::Pending | Self::Answered { .. } => {
                *self = Self::Abandoned;
                Some(Report::CallAbandoned { call_id: call_id.to_owned(), reason: AbandonReason::NativeCancelled })
            }
            Self::Applied { .. } | Self::Abandoned => None,
        }
    }
}

/// The model's own text of arguments, by call; nothing where one id has several.
#[derive(Debug, Default)]
pub(crate) struct Told(BTreeMap<String, Option<String>>);

impl Told {
    /// The provider told a call that was not asked for.
    pub(crate) fn tell(&mut self, call_id: String, arguments: String) {
        if self.0.len() < TOLD || self.0.contains_key(&call_id) {
            self.0.entry(call_id).and_modify(|told| *told = None).or_insert(Some(arguments));
        }
    }

    /// The call is asked for now.
    pub(crate) fn take(&mut self, call_id: &str) -> Option<String> {
        self.0.remove(call_id).flatten()
    }

    /// How many calls were told and not asked for.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_told_once_and_within_bounds() {
        let mut told = Told::default();
        told.tell("a".into(), "1".into());
        told.tell("b".into(), "2".into());
        told.tell("b".into(), "3".into());
        assert_eq!(told.take("a").as_deref(), Some("1"));
        assert_eq!(told.take("a"), None);
        assert_eq!(told.take("b"), None);
        for at in 0..=TOLD {
            told.tell(at.to_string(), "{}".into());
        }
        assert_eq!((told.take("0").as_deref(), told.take(&TOLD.to_string())), (Some("{}"), None));
        told.clear();
        assert_eq!(told.take("1"), None);
    }

    #[test]
    fn a_call_goes_through_its_phases_once() {
        let mut phase = Phase::Pending;
        assert_eq!(phase.written("c"), None);
        phase = Phase::Answered { answer: 7, written: false };
        assert_eq!(phase.written("c"), Some(Report::AnswerWritten { call_id: "c".into() }));
        assert_eq!(phase.written("c"), None);
        let applied = Report::AnswerApplied { call_id: "c".into(), evidence: "e", success: true };
        assert_eq!(phase.seen("c", "e", true, |answer| *answer == 7), [applied]);
        assert_eq!(phase.seen("c", "e", true, |_| false), []);
        assert_eq!(phase.cancelled("c"), None);
        assert!(matches!(phase, Phase::Applied { answer: 7 }));
    }

    #[test]
    fn what_was_not_written_is_not_applied() {
        let abandoned = Report::CallAbandoned { call_id: "c".into(), reason: AbandonReason::NativeCancelled };
        let mut phase = Phase::<u8>::Pending;
        assert_eq!(phase.seen("c", "e", true, |_| true), std::slice::from_ref(&abandoned));
        assert_eq!((phase.cancelled("c"), phase.written("c")), (None, None));
        let mut phase = Phase::Answered { answer: 7, written: true };
        assert_eq!(phase.seen("c", "e", true, |_| false), [Report::AnswerDiffers { call_id: "c".into() }]);
        let mut phase = Phase::Answered { answer: 7, written: false };
        assert_eq!(phase.cancelled("c"), Some(abandoned));
    }
}
