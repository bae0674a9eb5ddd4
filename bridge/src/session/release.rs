//! Releasing a Session: fence, cancel and settle, close, remove, answer (R-ASG-4).

use adapters::native::folder;

use super::{
    Fence, ReleaseDone, Reply,
    assignment::Release,
    executor::Slot,
    owner::{Internal, Owner, Recorded},
    storage,
};
use crate::{
    refusal::{Reason, Refusal},
    tasks,
    turn::{event::CancelCause, log::FencedBy},
};

/// A release at work.
#[derive(Debug)]
pub(super) struct Releasing {
    remove_home: bool,
    removal: Removal,
    waiting: Vec<Reply<ReleaseDone>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Removal {
    NotBegun,
    AtWork,
    Done,
    Failed(String),
}

impl Owner {
    /// Begins a release, or joins the one at work.
    pub(super) async fn release(&mut self, fence: Fence, remove_home: bool, reply: Reply<ReleaseDone>) {
        let release = match self.recorded().and_then(|recorded| recorded.assignment().release(&fence)) {
            Ok(release) => release,
            Err(refusal) => return drop(reply.send(Err(refusal))),
        };
        self.clean_up_again().await;
        if release == Release::Fence
            && let Err(refusal) = self.fence_off(fence.epoch).await
        {
            return drop(reply.send(Err(refusal)));
        }
        match &mut self.release {
            Some(releasing) => {
                releasing.remove_home |= remove_home;
                releasing.waiting.push(reply);
            }
            None => {
                self.release = Some(Releasing { remove_home, removal: Removal::NotBegun, waiting: vec![reply] });
            }
        }
    }

    async fn fence_off(&mut self, epoch: u64) -> Result<(), Refusal> {
        let mut record = self.recorded()?.record.clone();
        record.epoch = epoch;
        record.released = true;
        let row = self.shared.journal.put_session(record.clone()).await.map_err(|error| storage(&error))?;
        self.session = Some(Recorded { row, record });
        self.void_preparations(&Refusal::new(Reason::AssignmentStale, "the assignment is released"));
        self.fence_readers(epoch, FencedBy::Release);
        if let Some(turn) = &mut self.turn
            && let Err(refusal) = turn.cancel(CancelCause::Released).await
        {
            tracing::warn!(%refusal, "a Turn is released without a record of it");
        }
        self.follow().await;
        Ok(())
    }

    /// Does the next step of a release once the one before is done.
    pub(super) async fn advance_release(&mut self) {
        if self.release.is_none() || self.turn.is_some() {
            return;
        }
        let left = match &self.slot {
            Slot::Live(_) | Slot::Preparing(_) => return self.close_executor("the assignment is released").await,
            Slot::Empty => None,
            Slot::Unconfirmed(_) => Some("native processes of the Session could not be ended".to_owned()),
        };
        let home = self.folder().join("home");
        let Some(releasing) = &mut self.release else { return };
        let (left, home_removed) = match (&releasing.removal, left) {
            // What may still be at work in the home keeps it.
            (_, Some(left)) => (Some(left), false),
            (Removal::NotBegun, None) if releasing.remove_home => {
                releasing.removal = Removal::AtWork;
                let internal = self.internal.clone();
                drop(tasks::spawn(&self.shared.tracker, tasks::Kind::Removal, async move {
                    let removed = tokio::task::spawn_blocking(move || folder::remove_all(&home)).await;
                    let removed = removed.unwrap_or_else(|error| Err(error.into()));
                    drop(internal.send(Internal::HomeRemoved(removed)).await);
                }));
                return;
            }
            (Removal::AtWork, None) => return,
            (Removal::NotBegun, None) => (None, false),
            (Removal::Done, None) => (None, true),
            (Removal::Failed(text), None) => (Some(text.clone()), false),
        };
        self.tell_standing();
        if let Some(releasing) = self.release.take() {
            for waiting in releasing.waiting {
                drop(waiting.send(Ok(ReleaseDone { left: left.clone(), home_removed })));
            }
        }
    }

    /// The native home was to be removed.
    pub(super) fn home_removed(&mut self, result: std::io::Result<()>) {
        if let Some(releasing) = &mut self.release {
            releasing.removal = match result {
                Ok(()) => Removal::Done,
                Err(error) => Removal::Failed(format!("the native home could not be removed: {error}")),
            };
        }
    }
}
