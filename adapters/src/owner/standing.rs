//! How a Turn stands that was quiet for long (R-EVT-10).

use std::time::Duration;

use tokio::time::Instant;

use super::{Native, Owner, Turn};
use crate::harness::{Report, Standing};

/// How long a Harness may take to answer. It does so from memory, in some milliseconds.
const ANSWER: Duration = Duration::from_secs(5);

/// When the Harness was last heard, and until when it may answer.
#[derive(Debug)]
pub(crate) struct Quiet {
    pub(super) heard_at: Instant,
    pub(super) answer_until: Option<Instant>,
}

impl Quiet {
    pub(super) fn new() -> Self {
        Self { heard_at: Instant::now(), answer_until: None }
    }

    /// The Harness has answered. False when nobody waits for that any more.
    pub(crate) fn answered(&mut self) -> bool {
        self.answer_until.take().is_some()
    }
}

impl<N: Native> Owner<N> {
    /// Asks the Harness, unless it was heard within `quiet` or the Turn is on its way to its end anyway.
    pub(super) async fn ask_standing(&mut self, quiet: Duration) {
        let ago = self.quiet.heard_at.elapsed();
        if ago < quiet || !self.turn.as_ref().is_some_and(Turn::is_open) {
            return self.emit(Report::Standing(Standing::Heard { ago: ago.min(quiet) })).await;
        }
        self.quiet.answer_until = Some(Instant::now() + ANSWER);
        N::ask(self);
    }

    /// The Harness has not answered in time.
    pub(super) async fn silent_standing(&mut self) {
        self.quiet.answer_until = None;
        self.emit(Report::Standing(Standing::Silent)).await;
    }
}
