//! The work of one preparation: room for its Executor, and its start.

use std::{sync::Arc, time::Duration};

use adapters::{
    harness::{Harness, Launch, Order, PrepareError, Report},
    native::{environment::Mark, tree},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::super::{
    IdleExecutors,
    executor::{Live, Prepared, Retired},
    idle,
    owner::Internal,
};

/// How long the end of a preparation that was given up may take.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// What stands before a new Executor can be started.
pub(super) enum Before {
    Nothing(OwnedSemaphorePermit),
    /// The longest idle Executor of another Session makes room.
    MakeRoom,
    /// An idle Executor holds an older credential.
    Retire(Box<Live>),
    /// The same, while it is still being prepared, and given up now. Its room comes when it is gone, where it had one.
    Inherit {
        task: JoinHandle<()>,
        room: oneshot::Receiver<OwnedSemaphorePermit>,
    },
}

/// The work of one preparation.
pub(super) struct Work {
    pub(super) executor_id: String,
    pub(super) harness: Arc<dyn Harness>,
    pub(super) launch: Launch,
    pub(super) before: Before,
    pub(super) give_up: CancellationToken,
    pub(super) capacity: Arc<Semaphore>,
    pub(super) idle: Arc<IdleExecutors>,
    pub(super) internal: tokio::sync::mpsc::Sender<Internal>,
}

impl Work {
    pub(super) async fn run(self) {
        let Self { executor_id, harness, launch, before, give_up, capacity, idle, internal } = self;
        let (permit, retired) = match before {
            Before::Nothing(permit) => (Some(permit), None),
            Before::Retire(live) => {
                let (permit, retired) = retire(*live).await;
                (permit, Some(retired))
            }
            Before::MakeRoom => (found(idle.make_room(&capacity), &give_up).await, None),
            Before::Inherit { task, room } => {
                // Also when this one is given up meanwhile: what the one before has started is gone by then (R-ASG-4).
                drop(task.await);
                (found(inherit(room, &idle, &capacity), &give_up).await, None)
            }
        };
        if permit.is_none() && retired.is_none() {
            let result = Err(without_room(give_up.is_cancelled()));
            return drop(internal.send(Internal::Prepared(Prepared { executor_id, permit, result, retired })).await);
        }
        let result = match &retired {
            Some(Retired { survivors: 1.., .. }) => Err(given_up(false)),
            Some(_) | None => {
                let mark = launch.mark.clone();
                let prepared = tokio::select! {
                    result = harness.prepare(launch) => Some(result),
                    () = give_up.cancelled() => None,
                };
                match prepared {
                    Some(result) => result,
                    // Dropping the preparation begins the end of what it has started; whether it is gone must be seen (R-ASG-4).
                    None => Err(given_up(ended(&mark).await)),
                }
            }
        };
        drop(internal.send(Internal::Prepared(Prepared { executor_id, permit, result, retired })).await);
    }
}

/// What a search for room finds before the preparation is given up.
async fn found<T>(search: impl Future<Output = Option<T>>, give_up: &CancellationToken) -> Option<T> {
    tokio::select! {
        biased;
        () = give_up.cancelled() => None,
        room = search => room,
    }
}

/// The room of a preparation that was given up. The Executor is dropped by the owner, which has replaced it. One that had no
/// room yet leaves none: then it is made as for a new one (R-PRE-3).
async fn inherit(
    room: oneshot::Receiver<OwnedSemaphorePermit>,
    idle: &IdleExecutors,
    capacity: &Arc<Semaphore>,
) -> Option<OwnedSemaphorePermit> {
    match room.await {
        Ok(room) => Some(room),
        Err(_none) => idle.make_room(capacity).await,
    }
}

/// Closes an idle Executor and waits for its last word.
async fn retire(live: Live) -> (Option<OwnedSemaphorePermit>, Retired) {
    let Live { executor_id, mut executor, permit, .. } = live;
    let keeper_pid = executor.keeper.pid;
    drop(executor.orders.send(Order::Close).await);
    let mut survivors = 0;
    while let Some(report) = executor.reports.recv().await {
        if let Report::Closed { survivors: left, .. } = report {
            survivors = left;
        }
    }
    (permit, Retired { executor_id, keeper_pid, survivors })
}

/// Ends what carries a mark; true when nothing of it is left.
async fn ended(mark: &Mark) -> bool {
    let mark = mark.clone();
    let swept = tokio::task::spawn_blocking(move || tree::sweep(mark.as_str(), GIVEN_UP)).await;
    swept.is_ok_and(|swept| swept.left == 0)
}

fn without_room(given_up: bool) -> PrepareError {
    match given_up {
        true => self::given_up(true),
        false => PrepareError {
            step: idle::NO_ROOM,
            message: "no room for another Executor".into(),
            clean: true,
            history: None,
            changed_history: false,
        },
    }
}

fn given_up(clean: bool) -> PrepareError {
    PrepareError {
        step: "cancelled",
        message: "the preparation was given up".into(),
        clean,
        history: None,
        changed_history: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A preparation that was given up while it waited for room leaves none: the one behind it asks idle Executors as any other does.
    #[tokio::test]
    async fn who_inherits_no_room_asks_the_longest_idle_one() {
        let (idle, capacity) = (Arc::new(IdleExecutors::default()), Arc::new(Semaphore::new(1)));
        let taken = Arc::clone(&capacity).try_acquire_owned().unwrap();
        let (owner, mut wishes) = tokio::sync::mpsc::channel(1);
        let _offer = idle.offer(tokio::time::Instant::now(), owner);
        let (none, room) = oneshot::channel();
        drop(none);
        let asked = async {
            let Some(Internal::MakeRoom(reply)) = wishes.recv().await else { panic!("nobody was asked") };
            reply.send(taken).unwrap();
        };
        let (made, ()) = tokio::join!(inherit(room, &idle, &capacity), asked);
        assert!(made.is_some());
        // Nobody is idle any more, and there is no room.
        let (none, room) = oneshot::channel();
        drop(none);
        assert!(inherit(room, &idle, &capacity).await.is_none());
    }

    #[tokio::test]
    async fn the_room_of_the_one_before_is_handed_over() {
        let (idle, capacity) = (Arc::new(IdleExecutors::default()), Arc::new(Semaphore::new(1)));
        let taken = Arc::clone(&capacity).try_acquire_owned().unwrap();
        let (owner, mut wishes) = tokio::sync::mpsc::channel(1);
        let _offer = idle.offer(tokio::time::Instant::now(), owner);
        let (reply, room) = oneshot::channel();
        reply.send(taken).unwrap();
        assert!(inherit(room, &idle, &capacity).await.is_some());
        assert!(wishes.try_recv().is_err(), "somebody was asked in vain");
    }
}
