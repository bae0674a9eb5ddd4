//! The Executor of a Session: `preparing → idle ⇄ busy → closing → closed`, and `unconfirmed` when closing could not be proved.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use adapters::{
    harness::{Configuration, Executor, Order, PrepareError, Report, Resume},
    native::{environment::Mark, tree},
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::{credential::Access, owner::Owner, supports::Supports};
use crate::{
    gateway::Breach,
    journal::HistoryRecord,
    refusal::{Reason, Refusal},
    turn::judge::Judge,
};

/// What a Session has of native resources.
#[derive(Debug)]
pub(super) enum Slot {
    /// Nothing.
    Empty,
    /// A task starts an Executor.
    Preparing(Box<Preparing>),
    /// An Executor that serves Turns, or is closing.
    Live(Box<Live>),
    /// Native work is left that could not be ended.
    Unconfirmed(Unconfirmed),
}

/// Native work that could not be ended. Its room stays taken until it is gone.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    executor_id: String,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Unconfirmed {
    /// What an earlier run of the daemon left behind; it takes a room where there is one.
    pub(super) fn of_earlier_run(executor_id: String, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { executor_id, _permit: permit }
    }
}

/// An Executor that is being prepared.
#[derive(Debug)]
pub(super) struct Preparing {
    pub(super) executor_id: String,
    pub(super) configuration: Arc<Configuration>,
    pub(super) access: Access,
    /// The history that it goes on with, and the instructions that were given to it last.
    pub(super) resume: Option<(Resume, Option<Vec<u8>>)>,
    pub(super) supports: Supports,
    pub(super) give_up: CancellationToken,
    pub(super) task: tokio::task::JoinHandle<()>,
}

/// An Executor.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) executor_id: String,
    pub(super) configuration: Arc<Configuration>,
    pub(super) access: Access,
    pub(super) executor: Executor,
    /// What becomes the Session's history once a native turn has started.
    pub(super) history: HistoryRecord,
    /// Judges final answers, where they are to be of a form.
    pub(super) judge: Option<Arc<Judge>>,
    /// What its Turns may be given.
    pub(super) supports: Supports,
    pub(super) closing: bool,
    /// Orders on their way; at most one for each result of an open call, and a few more.
    pub(super) outbox: VecDeque<Order>,
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// What a preparation's task brings back.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) executor_id: String,
    /// The room that it has; none when it was given up while it waited for one.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) result: Result<Executor, PrepareError>,
    pub(super) retired: Option<Retired>,
}

/// An Executor that was closed to make room for another one.
#[derive(Debug)]
pub(super) struct Retired {
    pub(super) executor_id: String,
    pub(super) keeper_pid: u32,
    pub(super) survivors: u32,
}

/// What comes of a live Executor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    /// So many reports; without any the adapter is gone.
    Reports(usize),
    /// Its model provider may have sent what it may not.
    Breach,
}

impl Slot {
    /// What a live Executor tells, while orders that found no room go out; for ever pending otherwise. Cancel safe.
    pub(super) async fn hear(&mut self, batch: &mut Vec<Report>, limit: usize) -> Heard {
        match self {
            Self::Live(live) => {
                let Live { executor, outbox, access, .. } = &mut **live;
                loop {
                    tokio::select! {
                        count = executor.reports.recv_many(batch, limit) => return Heard::Reports(count),
                        () = access.breached() => return Heard::Breach,
                        room = executor.orders.reserve(), if !outbox.is_empty() => match (room, outbox.pop_front()) {
                            (Ok(room), Some(order)) => room.send(order),
                            // The adapter is gone and says so in its reports.
                            (Err(_), _) => outbox.clear(),
                            (Ok(_), None) => {}
                        },
                    }
                }
            }
            Self::Empty | Self::Preparing(_) | Self::Unconfirmed(_) => std::future::pending().await,
        }
    }

    /// What the model provider of a live Executor did that it may not, once.
    pub(super) fn take_breach(&self) -> Option<Breach> {
        match self {
            Self::Live(live) => live.access.take_breach(),
            Self::Empty | Self::Preparing(_) | Self::Unconfirmed(_) => None,
        }
    }

    /// Gives an order. It never waits: the owner that waited for room would not take the reports that the adapter waits to give.
    pub(super) fn order(&mut self, order: Order) {
        if let Self::Live(live) = self {
            live.outbox.push_back(order);
        }
    }

    /// The Executor ends by itself.
    pub(super) fn retiring(&mut self) {
        if let Self::Live(live) = self {
            live.closing = true;
        }
    }

    /// Whether something of an Executor that is no longer used may still be there.
    pub(super) fn holds_leftovers(&self) -> bool {
        match self {
            Self::Unconfirmed(_) => true,
            Self::Live(live) => live.closing,
            Self::Empty | Self::Preparing(_) => false,
        }
    }

    /// Whether nothing native is left, or nothing more can be done about it.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Empty | Self::Unconfirmed(_))
    }
}

/// How long leftovers may take to end when they are tried again.
const SWEEP: Duration = Duration::from_secs(2);

impl Owner {
    /// Closes the Executor, or gives its preparation up. Its end comes as a report.
    pub(super) async fn close_executor(&mut self, why: &str) {
        match &mut self.slot {
            Slot::Live(live) if !live.closing => {
                live.closing = true;
                tracing::info!(executor_id = live.executor_id, why, "Executor is closing");
                self.slot.order(Order::Close);
            }
            Slot::Preparing(preparing) => preparing.give_up.cancel(),
            Slot::Live(_) | Slot::Empty | Slot::Unconfirmed(_) => {}
        }
    }

    /// The Executor is gone.
    pub(super) async fn executor_closed(&mut self, survivors: u32) {
        if let Slot::Live(live) = std::mem::replace(&mut self.slot, Slot::Empty) {
            let Live { executor_id, executor, permit, .. } = *live;
            self.gone(&Retired { executor_id: executor_id.clone(), keeper_pid: executor.keeper.pid, survivors }).await;
            let refusal =
                Refusal::new(Reason::HandleExpired, "the Executor of the handle is gone; prepare again").at("handle");
            self.preparations.fail(&executor_id, &refusal);
            // A keeper that was stopped from outside ends nothing; its tree still carries the mark.
            if survivors > 0 && !self.sweep(&executor_id).await {
                self.room_wanted = None;
                self.leave_unconfirmed(&executor_id, permit);
            } else {
                self.give_room(permit);
            }
        }
    }

    /// Keeps in mind that an Executor left something behind.
    pub(super) fn leave_unconfirmed(&mut self, executor_id: &str, permit: Option<OwnedSemaphorePermit>) {
        self.slot = Slot::Unconfirmed(Unconfirmed { executor_id: executor_id.to_owned(), _permit: permit });
    }

    /// Tries once more to end what an Executor left behind.
    pub(super) async fn clean_up_again(&mut self) {
        if let Slot::Unconfirmed(Unconfirmed { executor_id, .. }) = &self.slot
            && self.sweep(executor_id).await
        {
            tracing::info!("what an Executor left behind is gone");
            self.slot = Slot::Empty;
        }
    }

    /// Ends what carries an Executor's mark; true when nothing is left.
    pub(super) async fn sweep(&self, executor_id: &str) -> bool {
        let mark = Mark::new(self.shared.journal.state_id(), executor_id);
        let swept = tokio::task::spawn_blocking(move || tree::sweep(mark.as_str(), SWEEP)).await;
        swept.is_ok_and(|swept| swept.left == 0)
    }

    /// Records that an Executor is gone.
    pub(super) async fn gone(&self, retired: &Retired) {
        self.shared.keepers.remove(retired.keeper_pid);
        tracing::info!(executor_id = retired.executor_id, survivors = retired.survivors, "Executor closed");
        if let Err(error) = self.shared.journal.close_executor(&retired.executor_id).await {
            tracing::error!(error = &error as &dyn std::error::Error, "the end of an Executor could not be recorded");
        }
    }
}
