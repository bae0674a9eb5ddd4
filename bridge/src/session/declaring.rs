//! What the Harnesses support, for those who watch: one task looks again now and then, however many there are (R-CAP-3).

use std::{sync::Arc, time::Duration};

use adapters::harness::Declaration;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::Shared;

/// The newest declarations of all Harnesses, sorted by kind; nothing before the first look.
pub(crate) type Newest = Option<Arc<Vec<Declaration>>>;

/// The declarations that are given out.
#[derive(Debug)]
pub(crate) struct Declared {
    newest: watch::Sender<Newest>,
    /// Rings when somebody begins to watch.
    wanted: Notify,
}

impl Default for Declared {
    fn default() -> Self {
        Self { newest: watch::Sender::new(None), wanted: Notify::new() }
    }
}

impl Declared {
    /// The declarations, which are looked at anew now, and every change of them.
    pub(crate) fn watch(&self) -> watch::Receiver<Newest> {
        let mut newest = self.newest.subscribe();
        newest.mark_changed();
        self.wanted.notify_one();
        newest
    }
}

/// Looks when somebody begins to watch, and every so often while somebody does. Ends when the daemon stops.
pub(crate) async fn keep_looking(shared: Arc<Shared>) {
    let Declared { newest, wanted } = &shared.declared;
    loop {
        let every: Duration = shared.limits.watch;
        // Every arm is cancel safe.
        tokio::select! {
            () = shared.stopping.cancelled() => return,
            () = wanted.notified() => {}
            () = sleep(every), if newest.receiver_count() > 0 => {}
        }
        let mut declarations = Vec::with_capacity(shared.harnesses.len());
        for harness in shared.harnesses.values() {
            declarations.push(harness.declare().await);
        }
        newest.send_if_modified(|known| {
            let is_news = known.as_deref() != Some(&declarations);
            if is_news {
                *known = Some(Arc::new(declarations));
            }
            is_news
        });
    }
}
