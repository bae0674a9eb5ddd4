//! What an owner still finds out once its process is gone.

use super::{Event, Owner, Turn};
use crate::{codex::history, harness::Proof};

impl Owner {
    /// The process is gone and did not tell the Turn's end: history may have it (R-EVT-7), with what the process did not live to tell.
    pub(super) async fn consult_history(&mut self, foreign_signal: bool) {
        let Some(native) = self.turn.as_ref().and_then(Turn::unended).map(str::to_owned) else { return };
        let turn_id = native.clone();
        let (home, thread) = (self.home.clone(), self.thread_id.clone());
        let found = tokio::task::spawn_blocking(move || history::ending(&home, &thread, &native)).await;
        let Some(found) = found.unwrap_or_default() else { return };
        let Proof { end, message, usage } = found.into_proof(&self.errors, &self.cleaner);
        if !self.turn.as_ref().is_some_and(|turn| turn.is_proved_by(&end, foreign_signal)) {
            return;
        }
        self.begun(&turn_id).await;
        let mut missing = Vec::new();
        self.items.missed(message, usage, &mut missing);
        for report in missing {
            self.emit(report).await;
        }
        self.feed(Event::Proved(end)).await;
    }
}
