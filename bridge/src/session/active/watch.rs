//! How long a Turn may take, how long it may be quiet, and how long its provider may be asked again (R-EVT-10).

use std::time::Duration;

use adapters::harness::{Order, Report, RetryOf, Standing};
use tokio::time::Instant;

use super::{super::Limits, Active};
use crate::turn::{machine::Input, stop::Stop};

/// The limits of one Turn.
#[derive(Debug)]
pub(super) struct Watch {
    deadline: Option<Instant>,
    quiet: Duration,
    retry: Duration,
    /// When the adapter last reported something of the Turn.
    heard: Instant,
    /// When the Harness was asked how the Turn stands, until it is answered.
    asked: Option<Instant>,
    /// Set while the Harness asks its provider again.
    retrying: Option<Retrying>,
}

/// A request to the provider that is made again and again.
#[derive(Clone, Copy, Debug)]
struct Retrying {
    /// When the first try had failed.
    since: Instant,
    /// What it ends as when nothing comes of it.
    end: Stop,
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Stop(Stop),
    Quiet,
}

impl Watch {
    pub(super) fn new(now: Instant, max_duration: Option<Duration>, limits: &Limits) -> Self {
        // A point in time that no clock can hold is never reached.
        let deadline = max_duration.and_then(|most| now.checked_add(most));
        Self { deadline, quiet: limits.quiet, retry: limits.retry, heard: now, asked: None, retrying: None }
    }

    /// Something of the Turn was reported.
    pub(super) fn hear(&mut self, report: &Report, now: Instant) {
        self.heard = now;
        if let Report::ProviderRetry(RetryOf { code, http_status, .. }) = report {
            let since = self.retrying.map_or(now, |retrying| retrying.since);
            let end = Stop::Unanswered { code: *code, http_status: *http_status };
            self.retrying = Some(Retrying { since, end });
        } else if is_of_an_answer(report) {
            self.retrying = None;
        }
    }

    fn retry_until(&self) -> Option<Instant> {
        self.retrying.and_then(|retrying| retrying.since.checked_add(self.retry))
    }

    /// While the provider is asked again only the limit of that counts: a Harness does not say when the wait of a retry is over.
    fn quiet_until(&self, may_stall: bool) -> Option<Instant> {
        let counts = may_stall && self.asked.is_none() && self.retrying.is_none();
        self.heard.checked_add(self.quiet).filter(|_| counts)
    }

    /// When the first limit is over, unless something happens before.
    fn until(&self, may_stall: bool) -> Option<Instant> {
        self.deadline.into_iter().chain(self.retry_until()).chain(self.quiet_until(may_stall)).min()
    }

    fn due(&self, now: Instant, may_stall: bool) -> Option<Due> {
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_over(self.deadline) {
            return Some(Due::Stop(Stop::Deadline));
        }
        if is_over(self.retry_until()) {
            return self.retrying.map(|retrying| Due::Stop(retrying.end));
        }
        is_over(self.quiet_until(may_stall)).then_some(Due::Quiet)
    }

    /// Takes the answer; true when the Turn is stalled.
    fn answered(&mut self, standing: Standing, now: Instant, may_stall: bool) -> bool {
        let Some(asked) = self.asked.take() else { return false };
        let stalled = match standing {
            // The Harness still counts the Turn as active, or does not say: neither proves that it will ever end.
            Standing::Active | Standing::Silent => may_stall && self.heard <= asked,
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

/// Whether it shows that the provider has answered. What only begins may break off again.
fn is_of_an_answer(report: &Report) -> bool {
    matches!(
        report,
        Report::MessageCompleted { .. }
            | Report::ReasoningCompleted { .. }
            | Report::ToolStarted { .. }
            | Report::Call { .. }
            | Report::Usage(_)
    )
}

impl Active {
    /// When a limit is over, unless something happens before.
    pub(super) fn watch_until(&self) -> Option<Instant> {
        self.watch.until(self.machine.may_stall()).filter(|_| self.machine.is_at_work())
    }

    /// Does what a limit that is over asks for.
    pub(super) async fn keep_watch(&mut self, now: Instant) {
        if !self.machine.is_at_work() {
            return;
        }
        match self.watch.due(now, self.machine.may_stall()) {
            Some(Due::Stop(stop)) => self.step(Input::Stop(stop)).await,
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
        let may_stall = self.machine.is_at_work() && self.machine.may_stall();
        if self.watch.answered(standing, Instant::now(), may_stall) {
            tracing::warn!(turn_id = self.turn_id, ?standing, "a Turn is stalled");
            self.step(Input::Stop(Stop::Stalled)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use adapters::harness::FailureCode;

    use super::*;

    const QUIET: Duration = Duration::from_secs(600);

    fn second(of: Instant, seconds: u64) -> Instant {
        of + Duration::from_secs(seconds)
    }

    fn watch(now: Instant, max_duration: Option<Duration>) -> Watch {
        let retry = Duration::from_secs(100);
        Watch {
            deadline: max_duration.map(|most| now + most),
            quiet: QUIET,
            retry,
            heard: now,
            asked: None,
            retrying: None,
        }
    }

    fn retry(code: FailureCode) -> Report {
        Report::ProviderRetry(RetryOf { code, http_status: Some(503), message: String::new() })
    }

    #[test]
    fn a_limit_is_over_at_its_moment_and_the_deadline_comes_first() {
        let now = Instant::now();
        let limited = watch(now, Some(QUIET));
        assert_eq!(limited.due(second(now, 599), true), None);
        assert_eq!(limited.due(second(now, 600), true), Some(Due::Stop(Stop::Deadline)));
        let free = watch(now, None);
        assert_eq!(free.due(second(now, 600), false), None);
        assert_eq!(free.due(second(now, 599), true), None);
        assert_eq!(free.due(second(now, 600), true), Some(Due::Quiet));
        assert_eq!((free.until(true), free.until(false)), (Some(second(now, 600)), None));
        assert_eq!(Watch { quiet: Duration::MAX, ..free }.due(second(now, 1 << 30), true), None);
    }

    #[test]
    fn retries_have_a_time_of_their_own_from_the_first_to_an_answer() {
        let now = Instant::now();
        let mut watch = watch(now, None);
        watch.hear(&retry(FailureCode::ConnectionFailed), second(now, 10));
        watch.hear(&Report::MessageStarted { id: "m".into() }, second(now, 20));
        watch.hear(&retry(FailureCode::ServerError), second(now, 90));
        assert_eq!(watch.due(second(now, 109), true), None);
        let end = Stop::Unanswered { code: FailureCode::ServerError, http_status: Some(503) };
        // Whatever else is open: nothing can come of it before the provider has answered.
        assert_eq!(watch.due(second(now, 110), false), Some(Due::Stop(end)));
        assert_eq!(watch.until(true), Some(second(now, 110)));
        watch.hear(&Report::MessageCompleted { id: "m".into(), text: String::new(), phase: None }, second(now, 100));
        assert_eq!(watch.due(second(now, 699), true), None);
        assert_eq!(watch.due(second(now, 700), true), Some(Due::Quiet));
    }

    #[test]
    fn only_a_harness_that_said_nothing_since_is_stalled() {
        let start = Instant::now();
        let ask = |heard: u64, standing: Standing, may_stall: bool| {
            let mut watch = watch(start, None);
            watch.asked = Some(second(start, 600));
            watch.heard = second(start, heard);
            let stalled = watch.answered(standing, second(start, 605), may_stall);
            (stalled, watch.quiet_until(true).map(|until| (until - start).as_secs()))
        };
        assert!(ask(0, Standing::Active, true).0 && ask(0, Standing::Silent, true).0);
        // A call came while the Harness was asked, or any other report did.
        assert!(!ask(0, Standing::Active, false).0);
        assert!(!ask(601, Standing::Active, true).0);
        // Messages that led to no report count from their own moment.
        assert_eq!(ask(0, Standing::Heard { ago: Duration::from_secs(100) }, true), (false, Some(505 + 600)));
        assert_eq!(ask(0, Standing::Over, true), (false, Some(605 + 600)));
        // An answer that nobody waits for.
        assert!(!watch(start, None).answered(Standing::Silent, start, true));
    }
}
