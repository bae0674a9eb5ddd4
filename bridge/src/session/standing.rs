//! What the owner of a Session last said of it, so that lists, the load and a drain ask nobody and start no owner.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{drain::Drain, executor::Slot, owner::Owner};
use crate::journal::{SessionRecord, SessionRow};

/// A Session as its owner last told it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// What the journal has; nothing before the first Bind is recorded.
    pub(crate) session: Option<(SessionRow, SessionRecord)>,
    /// What it has of native resources.
    pub(crate) executor: ExecutorState,
    /// The Turn that is not over.
    pub(crate) turn: Option<RunningTurn>,
    /// Whether the owner has heard of the drain: it begins nothing new any more.
    pub(crate) drains: bool,
    /// Whether the owner is gone.
    pub(crate) is_gone: bool,
}

/// What a Session has of native resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExecutorState {
    #[default]
    None,
    Preparing,
    Idle,
    Busy,
    Closing,
    Unconfirmed,
}

/// A Turn that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningTurn {
    pub(crate) turn_id: String,
    /// Its required actions.
    pub(crate) actions: usize,
    /// Whether nothing goes on in it but the waiting for them.
    pub(crate) only_waits: bool,
}

/// What all Sessions carry together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) preparing: u32,
    pub(crate) idle: u32,
    pub(crate) busy: u32,
    pub(crate) closing: u32,
    pub(crate) unconfirmed: u32,
    pub(crate) running_turns: u32,
    pub(crate) waiting_actions: u32,
}

impl Load {
    /// Adds a Session.
    pub(super) fn add(&mut self, executor: ExecutorState, turn: Option<&RunningTurn>) {
        match executor {
            ExecutorState::None => {}
            ExecutorState::Preparing => self.preparing += 1,
            ExecutorState::Idle => self.idle += 1,
            ExecutorState::Busy => self.busy += 1,
            ExecutorState::Closing => self.closing += 1,
            ExecutorState::Unconfirmed => self.unconfirmed += 1,
        }
        if let Some(turn) = turn {
            self.running_turns += 1;
            self.waiting_actions = self.waiting_actions.saturating_add(u32::try_from(turn.actions).unwrap_or(u32::MAX));
        }
    }
}

/// Where a [`Standing`] is read.
#[derive(Clone, Debug, Default)]
pub(super) struct Stand(Arc<Mutex<Standing>>);

impl Stand {
    /// The standing; the lock is held for a few statements without any wait.
    pub(super) fn look(&self) -> MutexGuard<'_, Standing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the owner is gone, however it ends: a drain must not wait for one that broke.
pub(super) struct Farewell {
    pub(super) stand: Stand,
    pub(super) drain: Arc<Drain>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let mut standing = self.stand.look();
        standing.is_gone = true;
        standing.turn = None;
        // What an owner that broke had is ended with it; what could not be ended is still there.
        if standing.executor != ExecutorState::Unconfirmed {
            standing.executor = ExecutorState::None;
        }
        drop(standing);
        self.drain.moved();
    }
}

impl Owner {
    /// Tells how the Session stands, where that has changed.
    pub(super) fn tell_standing(&self) {
        let executor = match &self.slot {
            Slot::Empty => ExecutorState::None,
            Slot::Preparing(_) => ExecutorState::Preparing,
            Slot::Live(live) if live.closing => ExecutorState::Closing,
            Slot::Live(_) if self.turn.is_some() => ExecutorState::Busy,
            Slot::Live(_) => ExecutorState::Idle,
            Slot::Unconfirmed(_) => ExecutorState::Unconfirmed,
        };
        let turn = self.turn.as_ref().map(|turn| (turn.id(), turn.waiting()));
        let mut standing = self.stand.look();
        let mut moved = standing.executor != executor || standing.drains != self.drains;
        standing.executor = executor;
        standing.drains = self.drains;
        // Compared in place: this is asked after each batch of a Turn's events.
        let told = standing.turn.as_ref().map(|t| (t.turn_id.as_str(), (t.actions, t.only_waits)));
        if told != turn {
            standing.turn = turn.map(|(turn_id, (actions, only_waits))| RunningTurn {
                turn_id: turn_id.to_owned(),
                actions,
                only_waits,
            });
            moved = true;
        }
        let told = standing.session.as_ref().map(|(row, record)| (*row, record));
        if told != self.session.as_ref().map(|session| (session.row, &session.record)) {
            standing.session = self.session.as_ref().map(|session| (session.row, session.record.clone()));
        }
        drop(standing);
        if moved {
            self.shared.drain.moved();
        }
    }
}
