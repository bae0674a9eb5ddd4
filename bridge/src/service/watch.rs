//! The stream of `WatchRuntime`. Each is polled by its connection, reads what is told to all, and holds up nobody.

use std::{sync::Arc, time::Duration};

use futures_util::stream;
use proto::v1::{self, watch_runtime_response::News};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Stream, answer};
use crate::{
    clock,
    session::{DrainState, Drained, DrainedTurn, Load, Registry, declaring},
};

/// One watcher.
struct Watcher {
    registry: Arc<Registry>,
    every: Duration,
    next: Instant,
    declarations: watch::Receiver<declaring::Newest>,
    drain: watch::Receiver<DrainState>,
    /// Whether the drain was told.
    knows_of_drain: bool,
}

/// The stream of one watcher.
pub(super) fn stream(registry: Arc<Registry>) -> Stream<v1::WatchRuntimeResponse> {
    let shared = registry.shared();
    let watcher = Watcher {
        every: shared.limits.watch,
        next: Instant::now(),
        declarations: shared.declared.watch(),
        drain: shared.drain.watch(),
        knows_of_drain: false,
        registry,
    };
    Box::pin(stream::unfold(watcher, async |mut watcher| {
        let news = watcher.next().await?;
        Some((Ok(v1::WatchRuntimeResponse { news: Some(news) }), watcher))
    }))
}

impl Watcher {
    /// The next piece of news; nothing when the bridge leaves.
    async fn next(&mut self) -> Option<News> {
        loop {
            let DrainState { deadline, is_leaving, .. } = self.drain.borrow_and_update().clone();
            if is_leaving {
                return None;
            }
            if let Some(deadline) = deadline.filter(|_| !self.knows_of_drain) {
                self.knows_of_drain = true;
                return Some(News::Drain(v1::DrainNotice { deadline: Some(deadline.into()) }));
            }
            // Every arm is cancel safe. An error of `changed` says that the daemon is gone, and with it this stream.
            tokio::select! {
                biased;
                () = sleep_until(self.next) => {
                    self.next = Instant::now() + self.every;
                    return Some(News::Heartbeat(self.heartbeat(deadline.is_some())));
                }
                changed = self.drain.changed() => changed.ok()?,
                changed = self.declarations.changed() => {
                    changed.ok()?;
                    let newest = self.declarations.borrow_and_update().clone();
                    if let Some(newest) = newest {
                        let harnesses = newest.iter().cloned().map(answer::declaration).collect();
                        return Some(News::Declarations(v1::Declarations { harnesses }));
                    }
                }
            }
        }
    }

    fn heartbeat(&self, draining: bool) -> v1::Heartbeat {
        let Load { preparing, idle, busy, closing, unconfirmed, running_turns, waiting_actions } = self.registry.load();
        v1::Heartbeat {
            time: Some(clock::now().into()),
            load: Some(v1::Load {
                executors_preparing: preparing,
                executors_idle: idle,
                executors_busy: busy,
                executors_closing: closing,
                executors_unconfirmed: unconfirmed,
                max_executors: self.registry.shared().limits.max_executors,
                running_turns,
                waiting_actions,
            }),
            draining,
        }
    }
}

/// The answer of a drain.
pub(super) fn drained(of: &Drained) -> v1::DrainResponse {
    let named = |turns: &[DrainedTurn]| {
        let named = turns.iter().map(|turn| v1::DrainedTurn {
            principal: turn.key.principal.clone(),
            session_id: turn.key.session_id.clone(),
            turn_id: turn.turn_id.clone(),
        });
        named.collect()
    };
    v1::DrainResponse {
        waiting_turns: named(&of.waiting),
        interrupted_turns: named(&of.interrupted),
        executors_unconfirmed: of.unconfirmed,
    }
}
