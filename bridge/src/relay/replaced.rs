//! Who is let in when somebody is there already: a pure state machine of one Environment's connections (R-ENR-5).
//!
//! A process that comes again replaces its own older connection, however often. Two processes that replace each other are two machines with one identity:
//! at the third time within a minute both are told so, and are not let in again.

use std::{collections::VecDeque, time::Duration};

/// Within which replacements count.
const WINDOW: Duration = Duration::from_secs(60);
/// How many of them are too many.
const TOO_MANY: usize = 3;
/// Processes that are remembered as refused. Each had to prove the identity, so there are few.
const REMEMBERED: usize = 64;

/// What is to be done with a connection that comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is let in; an older one goes.
    Take,
    /// It is refused.
    Refuse,
    /// It is refused, and the one that is there goes and will be refused.
    RefuseBoth,
}

/// The connections of one Environment, as far as they count.
#[derive(Debug, Default)]
pub(super) struct Replacements {
    /// When, since the relay began.
    at: VecDeque<Duration>,
    refused: VecDeque<String>,
}

impl Replacements {
    /// A process comes so long after the relay began, and this one is connected.
    pub(super) fn comes(&mut self, now: Duration, process: &str, connected: Option<&str>) -> Verdict {
        if self.refused.iter().any(|refused| refused == process) {
            return Verdict::Refuse;
        }
        let Some(other) = connected.filter(|other| *other != process) else { return Verdict::Take };
        self.at.retain(|at| now.saturating_sub(*at) < WINDOW);
        self.at.push_back(now);
        if self.at.len() < TOO_MANY {
            return Verdict::Take;
        }
        self.at.clear();
        for refused in [process, other] {
            if self.refused.len() == REMEMBERED {
                self.refused.pop_front();
            }
            self.refused.push_back(refused.to_owned());
        }
        Verdict::RefuseBoth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(steps: &[(u64, &str, Option<&str>, Verdict)]) {
        let mut connections = Replacements::default();
        for (seconds, process, connected, want) in steps {
            let now = Duration::from_secs(*seconds);
            assert_eq!(connections.comes(now, process, *connected), *want, "{process} after {seconds} s");
        }
    }

    #[test]
    fn the_third_replacement_within_a_minute_refuses_both() {
        use Verdict::{Refuse, RefuseBoth, Take};
        check(&[
            (0, "a", None, Take),
            (1, "b", Some("a"), Take),
            (2, "a", Some("b"), Take),
            (60, "b", Some("a"), RefuseBoth),
            (61, "a", None, Refuse),
            (9999, "b", None, Refuse),
            // Started anew, and alone.
            (9999, "c", None, Take),
        ]);
    }

    #[test]
    fn slow_replacements_and_a_process_that_comes_again_are_no_sign() {
        use Verdict::Take;
        check(&[
            (0, "a", None, Take),
            (1, "b", Some("a"), Take),
            (2, "a", Some("b"), Take),
            (61, "b", Some("a"), Take),
            (62, "a", Some("b"), Take),
        ]);
        check(&[(0, "a", None, Take), (1, "a", Some("a"), Take), (2, "a", Some("a"), Take), (3, "a", Some("a"), Take)]);
    }
}
