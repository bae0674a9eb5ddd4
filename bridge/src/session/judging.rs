//! Has final answers judged beside the task that owns the Session (R-CTL-3).

use std::{sync::Arc, thread, time::Duration};

use tokio::{sync::oneshot, time};

use super::owner::{Internal, Owner};
use crate::{tasks, turn::judge::Judge};

/// How long the end of a Turn waits for a judgement.
const LIMIT: Duration = Duration::from_secs(5);
/// Stack of a judgement. What the bounds of a judge allow needs about a quarter of it, and what is not touched takes no memory.
const STACK: usize = 16 << 20;

impl Owner {
    /// Has an answer of the Turn of this number judged. The verdict comes as news.
    pub(super) fn begin_judging(&self, number: u64, judge: Arc<Judge>, answer: String) {
        let internal = self.internal.clone();
        let work = async move {
            let at_work = Arc::clone(&judge);
            let verdict = within(LIMIT, &judge, move || at_work.judge(&answer)).await;
            // Where the Session's task is gone, nobody waits for it.
            drop(internal.send(Internal::Judged { number, verdict }).await);
        };
        drop(tasks::spawn(&self.shared.tracker, tasks::Kind::Judgement, work));
    }

    /// Takes a verdict.
    pub(super) async fn judgement(&mut self, number: u64, verdict: Option<bool>) {
        if let Some(turn) = &mut self.turn {
            turn.judged(number, verdict).await;
        }
        self.follow().await;
    }
}

/// Judges on a thread of its own, which is not waited for beyond the limit: its work is bounded, and the end of the daemon is its end.
async fn within(limit: Duration, judge: &Judge, work: impl FnOnce() -> Option<bool> + Send + 'static) -> Option<bool> {
    let (tell, told) = oneshot::channel();
    let work = move || {
        // Nobody waits for a verdict that comes too late.
        let _unheard = tell.send(work());
    };
    if let Err(error) = thread::Builder::new().name("judge".into()).stack_size(STACK).spawn(work) {
        tracing::warn!(%error, "a final answer could not be judged");
        return None;
    }
    match time::timeout(limit, told).await {
        Ok(verdict) => verdict.unwrap_or_default(),
        Err(_elapsed) => {
            tracing::warn!("a final answer took too long to be judged; no other one of the Executor is");
            judge.give_up();
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_judgement_that_takes_too_long_is_none_and_the_last() {
        let judge = Judge::new("{}");
        assert_eq!(within(LIMIT, &judge, || Some(false)).await, Some(false));
        assert_eq!(judge.judge("1"), Some(true));
        let (release, released) = mpsc::sync_channel::<()>(0);
        let verdict = within(Duration::from_millis(1), &judge, move || {
            // It is at work as long as this test.
            released.recv().unwrap_err();
            Some(true)
        });
        assert_eq!(verdict.await, None);
        assert_eq!(judge.judge("1"), None);
        drop(release);
    }

    #[tokio::test]
    async fn a_judgement_that_panics_is_none() {
        assert_eq!(within(LIMIT, &Judge::new("{}"), || panic!("as a validator should not")).await, None);
    }
}
