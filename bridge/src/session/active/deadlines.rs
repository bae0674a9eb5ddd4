//! How long functions may take to answer, and what the application says about those that take long (R-FN-8).

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use adapters::harness::FunctionTool;
use tokio::time::Instant;

use super::Active;
use crate::{
    refusal::{Reason, Refusal},
    session::{Answer, active::CALLS_AGAIN},
    turn::{calls::Phase, event::Event, machine::Input},
};

/// Between two reports about one call.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// The calls of a Turn that wait for their results.
#[derive(Debug)]
pub(in crate::session) struct Deadlines {
    /// Of functions that have a limit.
    limits: HashMap<String, Limits>,
    waiting: BTreeMap<String, Waiting>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    silence: Option<Duration>,
    most: Option<Duration>,
}

#[derive(Debug)]
struct Waiting {
    silence: Option<Duration>,
    silent_until: Option<Instant>,
    until: Option<Instant>,
    /// The last report.
    report: Option<(u64, Instant)>,
}

impl Waiting {
    fn over(&self) -> Option<Instant> {
        self.silent_until.into_iter().chain(self.until).min()
    }
}

/// What a report about a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    News,
    Old,
    /// It comes so much too early.
    TooSoon(Duration),
    /// The call does not wait.
    OfNone,
}

impl Deadlines {
    pub(in crate::session) fn new(functions: &[FunctionTool]) -> Self {
        let limits = functions.iter().filter(|function| function.silence_timeout.or(function.max_duration).is_some());
        let of = |f: &FunctionTool| (f.name.clone(), Limits { silence: f.silence_timeout, most: f.max_duration });
        Self { limits: limits.map(of).collect(), waiting: BTreeMap::new() }
    }

    /// A call is shown.
    fn begin(&mut self, call_id: &str, name: &str, now: Instant) {
        let Limits { silence, most } = self.limits.get(name).copied().unwrap_or_default();
        let after = |wait: Option<Duration>| wait.and_then(|wait| now.checked_add(wait));
        let waiting = Waiting { silence, silent_until: after(silence), until: after(most), report: None };
        self.waiting.insert(call_id.to_owned(), waiting);
    }

    /// A call does not wait any more.
    pub(super) fn end(&mut self, call_id: &str) {
        self.waiting.remove(call_id);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.values().filter_map(Waiting::over).min()
    }

    fn due(&self, now: Instant) -> Vec<String> {
        let is_over = |waiting: &Waiting| waiting.over().is_some_and(|at| at <= now);
        self.waiting.iter().filter(|(_, waiting)| is_over(waiting)).map(|(call_id, _)| call_id.clone()).collect()
    }

    /// A deadline could not have its effect; it is over at this later moment.
    fn put_off(&mut self, call_id: &str, until: Instant) {
        if let Some(waiting) = self.waiting.get_mut(call_id) {
            (waiting.silent_until, waiting.until) = (None, Some(until));
        }
    }

    fn reported(&mut self, call_id: &str, number: u64, now: Instant) -> Report {
        let Some(waiting) = self.waiting.get_mut(call_id) else { return Report::OfNone };
        if let Some((last, at)) = waiting.report {
            if number <= last {
                return Report::Old;
            }
            let since = now.saturating_duration_since(at);
            if let Some(left) = REPORT_EVERY.checked_sub(since).filter(|left| !left.is_zero()) {
                return Report::TooSoon(left);
            }
        }
        waiting.report = Some((number, now));
        if waiting.silent_until.is_some() {
            waiting.silent_until = waiting.silence.and_then(|silence| now.checked_add(silence));
        }
        Report::News
    }
}

impl Active {
    /// Follows what becomes of calls.
    pub(super) fn note_call(&mut self, event: &Event) {
        match event {
            Event::FunctionCall { call } => self.deadlines.begin(&call.call_id, &call.name, Instant::now()),
            Event::FunctionResultApplied { call_id, .. } | Event::FunctionCallAbandoned { call_id, .. } => {
                self.deadlines.end(call_id);
            }
            _ => {}
        }
    }

    /// Ends the calls whose deadlines are over.
    pub(super) async fn expire_calls(&mut self, now: Instant) {
        for call_id in self.deadlines.due(now) {
            if !self.machine.waits_for_result(&call_id) {
                self.deadlines.end(&call_id);
                continue;
            }
            // ORDER: that the call takes no result any more is on disk before the Harness is given one (R-DUR-1).
            let reason = super::reason_name(adapters::harness::AbandonReason::Deadline);
            let phase = Phase::Abandoned(adapters::harness::AbandonReason::Deadline);
            match self.shared.journal.call_phase(self.row, &call_id, phase.name(), Some(reason)).await {
                Ok(()) => self.step(Input::Expired { call_id }).await,
                Err(error) => {
                    self.logged(Err(error), "the deadline of a call");
                    self.deadlines.put_off(&call_id, now + CALLS_AGAIN);
                }
            }
        }
    }

    /// The application still works on a call that waits for its result; true when that is not news.
    pub(in crate::session) async fn progress(&mut self, call_id: String, number: u64, message: String) -> Answer<bool> {
        match self.deadlines.reported(&call_id, number, Instant::now()) {
            Report::News => {
                self.recording.emit(Event::FunctionProgress { call_id, number, message });
                self.flush().await;
                Ok(false)
            }
            Report::Old | Report::OfNone => Ok(true),
            Report::TooSoon(left) => {
                let text = "reports about a call are 250 milliseconds apart";
                // Rounded up, so that the next try is not too early again.
                Err(Refusal::new(Reason::Overloaded, text).with("retry_ms", left.as_millis() + 1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, silence: Option<u64>, most: Option<u64>) -> FunctionTool {
        FunctionTool {
            name: name.into(),
            description: String::new(),
            parameters: "{}".into(),
            defer_loading: false,
            silence_timeout: silence.map(Duration::from_secs),
            max_duration: most.map(Duration::from_secs),
        }
    }

    /// Seconds after which the call is over, when it was reported at these seconds.
    fn over(silence: Option<u64>, most: Option<u64>, reports: &[u64]) -> Option<u64> {
        let start = Instant::now();
        let mut deadlines = Deadlines::new(&[function("f", silence, most)]);
        deadlines.begin("c", "f", start);
        for (number, second) in (1..).zip(reports) {
            assert_eq!(deadlines.reported("c", number, start + Duration::from_secs(*second)), Report::News);
        }
        deadlines.next().map(|at| (at - start).as_secs())
    }

    #[test]
    fn progress_moves_the_end_of_silence_and_not_the_last_end() {
        assert_eq!(over(None, None, &[5]), None);
        assert_eq!(over(Some(10), None, &[]), Some(10));
        assert_eq!(over(Some(10), None, &[5, 9]), Some(19));
        assert_eq!(over(Some(10), Some(12), &[5, 9]), Some(12));
        assert_eq!(over(None, Some(12), &[5]), Some(12));
    }

    #[test]
    fn what_is_due_is_put_off_or_ended() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deadlines = Deadlines::new(&[function("f", Some(10), None)]);
        deadlines.begin("c", "f", start);
        deadlines.begin("d", "other", start);
        assert_eq!((deadlines.due(at(9)), deadlines.due(at(10))), (vec![], vec!["c".to_owned()]));
        deadlines.put_off("c", at(11));
        assert_eq!(deadlines.reported("c", 1, at(10)), Report::News);
        assert_eq!((deadlines.next(), deadlines.due(at(11))), (Some(at(11)), vec!["c".to_owned()]));
        deadlines.end("c");
        assert_eq!((deadlines.next(), deadlines.reported("c", 2, at(12))), (None, Report::OfNone));
    }

    #[test]
    fn reports_have_numbers_that_grow_and_a_distance() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut deadlines = Deadlines::new(&[]);
        deadlines.begin("c", "f", start);
        for (number, millis, want) in [
            (3, 0, Report::News),
            (3, 10, Report::Old),
            (2, 900, Report::Old),
            (4, 100, Report::TooSoon(Duration::from_millis(150))),
            (4, 250, Report::News),
            (9, 600, Report::News),
        ] {
            assert_eq!(deadlines.reported("c", number, at(millis)), want, "{number} at {millis}");
        }
    }
}
