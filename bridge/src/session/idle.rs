//! Idle Executors: they close after a while, and the longest idle one makes room where there is none (R-PRE-3).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::Instant,
};

use super::{
    executor::Slot,
    owner::{Internal, Owner},
};
use crate::refusal::{Reason, Refusal};

/// The step of a preparation that found no room.
pub(super) const NO_ROOM: &str = "capacity";

/// The idle Executors of all Sessions, longest idle first.
#[derive(Debug, Default)]
pub(crate) struct IdleExecutors(Mutex<Offers>);

#[derive(Debug, Default)]
struct Offers {
    next: u64,
    owners: BTreeMap<(Instant, u64), mpsc::Sender<Internal>>,
}

/// An idle Executor among the others, until this is dropped or its room is asked for.
#[derive(Debug)]
pub(super) struct Offer {
    all: Arc<IdleExecutors>,
    name: (Instant, u64),
}

impl Offer {
    /// Since when it is idle.
    pub(super) fn since(&self) -> Instant {
        self.name.0
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.all.lock().owners.remove(&self.name);
    }
}

impl IdleExecutors {
    fn lock(&self) -> MutexGuard<'_, Offers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn offer(self: &Arc<Self>, since: Instant, owner: mpsc::Sender<Internal>) -> Offer {
        let mut offers = self.lock();
        let name = (since, offers.next);
        offers.next += 1;
        offers.owners.insert(name, owner);
        Offer { all: Arc::clone(self), name }
    }

    /// Whether there is one.
    pub(super) fn are_there(&self) -> bool {
        !self.lock().owners.is_empty()
    }

    /// Gets the room of the longest idle Executor by closing it. Each is asked by one preparation alone, and hands its room over itself, so that
    /// nobody comes in between. Nothing when there is none, or when all of them are busy again.
    pub(super) async fn make_room(&self, capacity: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = Arc::clone(capacity).try_acquire_owned() {
                return Some(permit);
            }
            let (_, owner) = self.lock().owners.pop_first()?;
            let (reply, room) = oneshot::channel();
            // An owner that is gone has given its room back.
            if owner.send(Internal::MakeRoom(reply)).await.is_ok()
                && let Ok(permit) = room.await
            {
                return Some(permit);
            }
        }
    }
}

impl Owner {
    /// Notes since when the Executor is idle.
    pub(super) fn note_idle(&mut self) {
        match (self.is_idle(), &self.idle) {
            (true, None) => {
                self.idle = Some(self.shared.idle.offer(Instant::now(), self.internal.clone()));
            }
            (false, Some(_)) => self.idle = None,
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Ready, without a Turn and without a handle that may still be used.
    fn is_idle(&self) -> bool {
        matches!(&self.slot, Slot::Live(live) if !live.closing)
            && self.turn.is_none()
            && self.preparations.pending().is_none()
    }

    /// When an idle Executor closes.
    pub(super) fn idle_until(&self) -> Option<Instant> {
        self.idle.as_ref().map(|offer| offer.since() + self.shared.limits.idle)
    }

    /// Closes an Executor that was idle for long enough.
    pub(super) async fn close_idle(&mut self, now: Instant) {
        if self.is_idle() && self.idle_until().is_some_and(|until| until <= now) {
            self.close_executor("it was idle").await;
        }
    }

    /// Another Session needs the room. An Executor that is idle no longer keeps it, and the one who asks looks elsewhere.
    pub(super) async fn make_room(&mut self, reply: oneshot::Sender<OwnedSemaphorePermit>) {
        if self.is_idle() {
            self.room_wanted = Some(reply);
            self.close_executor("another Session needs its room").await;
        } else {
            // Offered anew once it is idle again.
            self.idle = None;
        }
    }

    /// The Executor is gone: its room goes to the one who asked for it, else to whoever comes.
    pub(super) fn give_room(&mut self, permit: Option<OwnedSemaphorePermit>) {
        if let (Some(reply), Some(permit)) = (self.room_wanted.take(), permit) {
            // The room of one who has gone is free again.
            drop(reply.send(permit));
        }
    }
}

/// The refusal of a preparation that finds no room.
pub(super) fn no_room(max_executors: u32) -> Refusal {
    Refusal::new(Reason::PreparationCapacity, "no room for another Executor, and none is idle")
        .with("max_executors", max_executors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(rooms: usize) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(rooms))
    }

    /// What an owner does with a wish for its room.
    async fn answer(wishes: &mut mpsc::Receiver<Internal>, room: Option<OwnedSemaphorePermit>) {
        let Some(Internal::MakeRoom(reply)) = wishes.recv().await else { panic!("no wish") };
        if let Some(room) = room {
            reply.send(room).unwrap();
        }
    }

    #[tokio::test]
    async fn the_longest_idle_one_makes_room_and_one_that_is_busy_again_is_passed_over() {
        let (idle, capacity) = (Arc::new(IdleExecutors::default()), capacity(2));
        let rooms = Arc::clone(&capacity).try_acquire_many_owned(2).unwrap();
        let mut rooms = [rooms];
        let (young, mut young_wishes) = mpsc::channel(1);
        let (old, mut old_wishes) = mpsc::channel(1);
        let now = Instant::now();
        let _young = idle.offer(now + std::time::Duration::from_secs(1), young);
        let _old = idle.offer(now, old);
        assert!(idle.are_there());
        let room = rooms[0].split(1);
        let (made, (), ()) =
            tokio::join!(idle.make_room(&capacity), answer(&mut old_wishes, None), answer(&mut young_wishes, room));
        assert!(made.is_some());
        assert!(!idle.are_there(), "each is asked once");
        assert!(idle.make_room(&capacity).await.is_none());
    }

    #[tokio::test]
    async fn an_offer_that_is_taken_back_is_not_asked() {
        let (idle, capacity) = (Arc::new(IdleExecutors::default()), capacity(0));
        let (owner, _wishes) = mpsc::channel(1);
        drop(idle.offer(Instant::now(), owner));
        assert!(idle.make_room(&capacity).await.is_none());
    }

    #[tokio::test]
    async fn room_that_is_free_is_taken_first() {
        let (idle, capacity) = (Arc::new(IdleExecutors::default()), capacity(1));
        let (owner, mut wishes) = mpsc::channel(1);
        let _offer = idle.offer(Instant::now(), owner);
        assert!(idle.make_room(&capacity).await.is_some());
        assert!(wishes.try_recv().is_err());
    }
}
