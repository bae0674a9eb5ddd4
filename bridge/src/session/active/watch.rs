//! How long a Turn may take, and how long it may be quiet (R-EVT-10).

use std::time::Duration;

use adapters::harness::{Order, Report, Standing};
use tokio::time::Instant;

use super::Active;
use crate::turn::{machine::Input, stop::Stop};

/// The two limits of one Turn.
#[derive(Debug)]
pub(super) struct Watch {
    deadline: Option<Instant>,
    quiet: Duration,
    /// When the adapter last reported something of the Turn.
    heard: Instant,
    /// When the Harness was asked how the Turn stands, until it is answered.
    asked: Option<Instant>,
}

/// What silence of the Harness means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    /// Nothing: something is open that may take its time.
    MeansNothing,
    /// It waits to ask its provider again, or has asked.
    OfARetry,
    /// It should say something.
    Counts,
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Deadline,
    Quiet,
}

impl Watch {
    pub(super) fn new(now: Instant, max_duration: Option<Duration>, quiet: Duration) -> Self {
        // A point in time that no clock can hold is never reached.
        let deadline = max_duration.and_then(|most| now.checked_add(most));
        Self { deadline, quiet, heard: now, asked: None }
    }

    fn quiet_until(&self, silence: Silence) -> Option<Instant> {
        let quiet = match silence {
            _ if self.asked.is_some() => return None,
            Silence::MeansNothing => return None,
            Silence::Counts => self.quiet,
            // A Harness does not say when the wait of a retry is over, and one whose provider never begins to answer would wait for ever.
            Silence::OfARetry => self.quiet.saturating_mul(2),
        };
        self.heard.checked_add(quiet)
    }

    fn due(&self, now: Instant, silence: Silence) -> Option<Due> {
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_over(self.deadline) {
            return Some(Due::Deadline);
        }
        is_over(self.quiet_until(silence)).then_some(Due::Quiet)
    }

    /// Takes the answer; true when the Turn is stalled.
    fn answered(&mut self, standing: Standing, now: Instant, silence: Silence) -> bool {
        let Some(asked) = self.asked.take() else { return false };
        let stalled = match standing {
            // The Harness still counts the Turn as active, or does not say: neither proves that it will ever end.
            Standing::Active | Standing::Silent => silence != Silence::MeansNothing && self.heard <= asked,
            Standing::Heard { .. } | Standing::Over => false,
        };
        let heard = match standing {
            Standing::Heard { ago } => now.checked_sub(ago).unwrap_or(now),
            Standing::Active | Standing::Silent | Standing::Over => now,
        };
        self.heard = self.heard.max(heard);
        stalled
    }
}

impl Active {
    /// What silence of the Harness means at this moment.
    fn silence(&self) -> Silence {
        if !self.machine.is_at_work() || !self.machine.may_stall() {
            Silence::MeansNothing
        } else if self.machine.is_retrying() {
            Silence::OfARetry
        } else {
            Silence::Counts
        }
    }

    /// Something of the Turn was reported.
    pub(super) fn heard(&mut self) {
        self.watch.heard = Instant::now();
    }

    /// When a limit is over, unless something happens before.
    pub(super) fn watch_until(&self) -> Option<Instant> {
        if !self.machine.is_at_work() {
            return None;
        }
        self.watch.deadline.into_iter().chain(self.watch.quiet_until(self.silence())).min()
    }

    /// Does what a limit that is over asks for.
    pub(super) async fn keep_watch(&mut self, now: Instant) {
        if !self.machine.is_at_work() {
            return;
        }
        match self.watch.due(now, self.silence()) {
            Some(Due::Deadline) => self.step(Input::Stop(Stop::Deadline)).await,
            Some(Due::Quiet) => {
                self.watch.asked = Some(now);
                self.orders.push_back(Order::Ask { quiet: self.watch.quiet });
            }
            None => {}
        }
    }

    /// The Harness was asked, and this is how the Turn stands.
    pub(super) async fn stands(&mut self, standing: Standing) {
        self.step(Input::Report(Report::Standing(standing))).await;
        if self.watch.answered(standing, Instant::now(), self.silence()) {
            tracing::warn!(turn_id = self.turn_id, ?standing, "a Turn is stalled");
            self.step(Input::Stop(Stop::Stalled)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(600);

    fn second(of: Instant, seconds: u64) -> Instant {
        of + Duration::from_secs(seconds)
    }

    #[test]
    fn a_limit_is_over_at_its_moment_and_the_deadline_comes_first() {
        let now = Instant::now();
        let watch = Watch::new(now, Some(Duration::from_secs(600)), QUIET);
        assert_eq!(watch.due(second(now, 599), Silence::Counts), None);
        assert_eq!(watch.due(second(now, 600), Silence::Counts), Some(Due::Deadline));
        let watch = Watch::new(now, None, QUIET);
        assert_eq!(watch.due(second(now, 600), Silence::MeansNothing), None);
        assert_eq!(watch.due(second(now, 600), Silence::Counts), Some(Due::Quiet));
        assert_eq!(watch.due(second(now, 1199), Silence::OfARetry), None);
        assert_eq!(watch.due(second(now, 1200), Silence::OfARetry), Some(Due::Quiet));
        assert_eq!(
            Watch::new(now, Some(Duration::MAX), Duration::MAX).due(second(now, 1 << 30), Silence::OfARetry),
            None
        );
    }

    #[test]
    fn only_a_harness_that_said_nothing_since_is_stalled() {
        let start = Instant::now();
        let ask = |heard: u64, standing: Standing, silence: Silence| {
            let mut watch = Watch::new(start, None, QUIET);
            watch.asked = Some(second(start, 600));
            watch.heard = second(start, heard);
            let stalled = watch.answered(standing, second(start, 605), silence);
            (stalled, watch.quiet_until(Silence::Counts).map(|until| (until - start).as_secs()))
        };
        assert!(ask(0, Standing::Active, Silence::Counts).0 && ask(0, Standing::Silent, Silence::OfARetry).0);
        // A call came while the Harness was asked, or any other report did.
        assert!(!ask(0, Standing::Active, Silence::MeansNothing).0);
        assert!(!ask(601, Standing::Active, Silence::Counts).0);
        // Messages that led to no report count from their own moment.
        assert_eq!(
            ask(0, Standing::Heard { ago: Duration::from_secs(100) }, Silence::Counts),
            (false, Some(505 + 600))
        );
        assert_eq!(ask(0, Standing::Over, Silence::Counts), (false, Some(605 + 600)));
        // An answer that nobody waits for.
        assert!(!Watch::new(start, None, QUIET).answered(Standing::Silent, start, Silence::Counts));
    }
}
