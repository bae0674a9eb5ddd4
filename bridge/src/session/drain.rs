//! The drain of the daemon (R-DUR-3): nothing new begins, what runs may finish, what only waits holds nothing up.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Key, Registry,
    owner::Owner,
    standing::{Load, RunningTurn},
};
use crate::{
    clock,
    refusal::{Reason, Refusal},
    tasks,
    turn::event::CancelCause,
};

/// Where the daemon's drain is. One for the daemon, and it begins once.
#[derive(Debug)]
pub(crate) struct Drain {
    timeout: Duration,
    /// How long the rest may take to settle.
    settlement: Duration,
    /// Nothing new begins.
    begun: CancellationToken,
    /// Nobody waits for what still runs.
    hurried: CancellationToken,
    /// What still runs is cancelled.
    cut: CancellationToken,
    state: watch::Sender<State>,
    /// Rings when the standing of a Session has changed; the one task of the drain waits for it.
    moved: Notify,
}

/// What others may know of a drain.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// When what still runs is cancelled; set once the drain has begun.
    pub(crate) deadline: Option<SystemTime>,
    /// How it went; set when it is over.
    pub(crate) done: Option<Arc<Drained>>,
    /// The daemon leaves: streams end.
    pub(crate) is_leaving: bool,
}

/// How a drain went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Turns that only waited for required actions when nothing else ran any more.
    pub(crate) waiting: Vec<DrainedTurn>,
    /// Turns that still ran at the deadline.
    pub(crate) interrupted: Vec<DrainedTurn>,
    /// Sessions whose native work could not be ended, or not in time.
    pub(crate) unconfirmed: u32,
}

/// A Turn that was not waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrainedTurn {
    /// Its Session.
    pub(crate) key: Key,
    /// The Turn.
    pub(crate) turn_id: String,
}

/// A look at all Sessions during a drain.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Every Turn that is not over.
    pub(super) turns: Vec<(Key, RunningTurn)>,
    /// Owners that may still begin something.
    pub(super) unheard: usize,
    /// Executors by state.
    pub(super) load: Load,
    /// Sessions with a Turn or an Executor.
    pub(super) left: u32,
}

impl View {
    /// Whether nothing goes on but Turns that only wait.
    fn only_waits(&self) -> bool {
        self.unheard == 0 && self.turns.iter().all(|(_, turn)| turn.only_waits)
    }

    /// Whether no Turn and no Executor is left that could still end.
    fn is_over(&self) -> bool {
        self.unheard == 0 && self.turns.is_empty() && self.left == self.load.unconfirmed
    }

    /// The Turns, first those that only wait.
    fn parted(self) -> (Vec<DrainedTurn>, Vec<DrainedTurn>) {
        let (waiting, running): (Vec<_>, Vec<_>) = self.turns.into_iter().partition(|(_, turn)| turn.only_waits);
        let named = |turns: Vec<(Key, RunningTurn)>| {
            turns.into_iter().map(|(key, turn)| DrainedTurn { key, turn_id: turn.turn_id }).collect()
        };
        (named(waiting), named(running))
    }
}

impl Drain {
    /// A drain that has not begun, with the time that what runs will have, and what is cancelled then.
    pub(crate) fn new(timeout: Duration, settlement: Duration) -> Self {
        Self {
            timeout,
            settlement,
            begun: CancellationToken::new(),
            hurried: CancellationToken::new(),
            cut: CancellationToken::new(),
            state: watch::Sender::new(State::default()),
            moved: Notify::new(),
        }
    }

    /// Whether nothing new begins.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// The drain as it goes on.
    pub(crate) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Cancelled when nothing new begins any more.
    pub(crate) fn begun(&self) -> CancellationToken {
        self.begun.clone()
    }

    pub(super) fn cut(&self) -> CancellationToken {
        self.cut.clone()
    }

    pub(super) fn moved(&self) {
        self.moved.notify_one();
    }
}

impl Registry {
    /// Begins the drain, unless it has begun.
    fn begin_drain(self: &Arc<Self>) {
        let drain = Arc::clone(&self.shared().drain);
        let deadline = Instant::now() + drain.timeout;
        let stamp = clock::now() + drain.timeout;
        let is_first = drain.state.send_if_modified(|state| {
            let is_first = state.deadline.is_none();
            state.deadline.get_or_insert(stamp);
            is_first
        });
        if is_first {
            tracing::info!(timeout_ms = drain.timeout.as_millis(), "draining");
            drain.begun.cancel();
            let registry = Arc::clone(self);
            drop(tasks::spawn(&self.shared().tracker, tasks::Kind::Drain, registry.carry_out(deadline)));
        }
    }

    /// The work of the drain.
    async fn carry_out(self: Arc<Self>, deadline: Instant) {
        let drain = &self.shared().drain;
        let mut told = usize::MAX;
        let view = loop {
            let view = self.view();
            if view.only_waits() {
                break view;
            }
            if view.turns.len() != told {
                told = view.turns.len();
                tracing::info!(turns = told, "the drain waits for Turns");
            }
            // Every arm is cancel safe: a bell that rang meanwhile is remembered.
            tokio::select! {
                () = drain.moved.notified() => {}
                () = sleep_until(deadline) => break self.view(),
                () = drain.hurried.cancelled() => break self.view(),
            }
        };
        let (waiting, interrupted) = view.parted();
        tracing::info!(waiting = waiting.len(), interrupted = interrupted.len(), "what still runs is cancelled");
        drain.cut.cancel();
        // LIMIT: settlement has a bound, but an end that the disk does not take has none (R-DUR-4). Who asked is told what is left.
        let settled_by = Instant::now() + drain.settlement;
        let unconfirmed = loop {
            let view = self.view();
            if view.is_over() {
                break view.left;
            }
            tokio::select! {
                () = drain.moved.notified() => {}
                () = sleep_until(settled_by) => {
                    tracing::error!(turns = view.turns.len(), sessions = view.left, "the drain is answered before all of it is over");
                    break view.left;
                }
            }
        };
        tracing::info!(unconfirmed, "drained");
        let done = Arc::new(Drained { waiting, interrupted, unconfirmed });
        drain.state.send_modify(|state| state.done = Some(done));
    }

    /// Drains the daemon, or joins the drain that has begun; answers when it is over.
    pub(crate) async fn drain(self: &Arc<Self>) -> Arc<Drained> {
        self.begin_drain();
        let mut state = self.shared().drain.watch();
        loop {
            if let Some(done) = state.borrow_and_update().done.clone() {
                return done;
            }
            if state.changed().await.is_err() {
                return Arc::default();
            }
        }
    }

    /// Does not wait for what still runs; false where nobody waits for it any more.
    pub(crate) fn hurry(&self) -> bool {
        let drain = &self.shared().drain;
        let waits = !drain.cut.is_cancelled() && !drain.hurried.is_cancelled();
        drain.hurried.cancel();
        waits
    }

    /// Drains, and stops every Session. Answers when all of it is over.
    pub(crate) async fn stop(self: &Arc<Self>) {
        self.begin_drain();
        self.shared().drain.cut.cancelled().await;
        self.shared().stopping.cancel();
        self.shared().tracker.close();
        self.shared().tracker.wait().await;
        self.shared().drain.state.send_modify(|state| state.is_leaving = true);
    }
}

impl Owner {
    /// The daemon drains: a handle that is not used yet never will be, and nobody needs an idle Executor.
    pub(super) fn begin_draining(&mut self) {
        self.drains = true;
        self.fail_pending(&draining());
    }

    /// The daemon waits for the Turn no longer.
    pub(super) async fn cut_off(&mut self) {
        self.is_cut_off = true;
        if let Some(turn) = &mut self.turn
            && let Err(refusal) = turn.cancel(CancelCause::BridgeStopped).await
        {
            tracing::warn!(%refusal, "a Turn is stopped without a record of it");
        }
        self.follow().await;
    }

    /// Nothing new begins.
    pub(super) fn is_draining(&self) -> bool {
        self.drains || self.shared.drain.has_begun()
    }
}

/// The refusal of everything new.
pub(super) fn draining() -> Refusal {
    Refusal::new(Reason::Draining, "the bridge drains and takes no preparations and starts")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ExecutorState;

    fn turn(only_waits: bool) -> (Key, RunningTurn) {
        let key = Key { principal: "p".into(), session_id: "s".into() };
        (key, RunningTurn { turn_id: format!("t-{only_waits}"), actions: 1, only_waits })
    }

    fn view(turns: Vec<(Key, RunningTurn)>, executors: &[ExecutorState], unheard: usize) -> View {
        let mut load = Load::default();
        executors.iter().for_each(|state| load.add(*state, None));
        let left = executors.iter().filter(|state| **state != ExecutorState::None).count();
        View { turns, unheard, load, left: u32::try_from(left).unwrap() }
    }

    #[test]
    fn turns_that_only_wait_hold_nothing_up() {
        assert!(view(vec![], &[], 0).only_waits());
        assert!(view(vec![turn(true)], &[], 0).only_waits());
        assert!(!view(vec![turn(true), turn(false)], &[], 0).only_waits());
        assert!(!view(vec![], &[], 1).only_waits(), "an owner that has not heard may still begin a Turn");
        let (waiting, running) = view(vec![turn(true), turn(false)], &[], 0).parted();
        assert_eq!((&*waiting[0].turn_id, &*running[0].turn_id), ("t-true", "t-false"));
    }

    #[test]
    fn a_drain_is_over_when_nothing_is_left_that_could_end() {
        assert!(view(vec![], &[ExecutorState::None, ExecutorState::Unconfirmed], 0).is_over());
        for state in [ExecutorState::Preparing, ExecutorState::Idle, ExecutorState::Busy, ExecutorState::Closing] {
            assert!(!view(vec![], &[state], 0).is_over(), "{state:?}");
        }
        assert!(!view(vec![turn(true)], &[], 0).is_over());
    }
}
