//! How long and how often a lost stream is looked for.

use std::time::Duration;

use tokio::time::{self, Instant};

use super::Error;

/// Wait before the first new attempt.
const FIRST: Duration = Duration::from_millis(20);
/// Longest wait between two attempts.
const LONGEST: Duration = Duration::from_secs(1);

/// Doubles the wait from attempt to attempt, and gives up when nothing was heard for its whole patience.
#[derive(Debug)]
pub(super) struct Backoff {
    patience: Duration,
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    wait: Duration,
}

impl Backoff {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, failing: None }
    }

    /// The bridge has answered: the next loss is a new one.
    pub(super) fn heard(&mut self) {
        self.failing = None;
    }

    /// When to try again after `error`.
    ///
    /// # Errors
    /// The error itself where trying again is no use: the bridge has given an answer, or the patience is over.
    pub(super) fn after(&mut self, error: Error, now: Instant) -> Result<Instant, Error> {
        let failing = self.failing.get_or_insert(Failing { since: now, wait: FIRST });
        let next = now + failing.wait;
        if !error.is_lost() || next > failing.since + self.patience {
            return Err(error);
        }
        failing.wait = (failing.wait * 2).min(LONGEST);
        Ok(next)
    }

    /// As [`Backoff::after`], and waits until then.
    pub(super) async fn wait_after(&mut self, error: Error) -> Result<(), Error> {
        let next = self.after(error, Instant::now())?;
        time::sleep_until(next).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> Error {
        Error::ended_early("gone")
    }

    #[test]
    fn the_waits_double_to_a_second_and_end_with_the_patience() {
        let mut backoff = Backoff::new(Duration::from_secs(4));
        let start = Instant::now();
        let mut now = start;
        let mut waits = Vec::new();
        while let Ok(next) = backoff.after(lost(), now) {
            waits.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert!(now <= start + Duration::from_secs(4));
    }

    #[test]
    fn an_answer_begins_anew() {
        let mut backoff = Backoff::new(Duration::from_millis(50));
        let start = Instant::now();
        backoff.after(lost(), start).unwrap();
        assert!(backoff.after(lost(), start + Duration::from_millis(20)).is_err());
        backoff.heard();
        assert!(backoff.after(lost(), start + Duration::from_millis(20)).is_ok());
    }

    #[test]
    fn without_patience_the_first_loss_is_final() {
        assert!(Backoff::new(Duration::ZERO).after(lost(), Instant::now()).is_err());
    }
}
