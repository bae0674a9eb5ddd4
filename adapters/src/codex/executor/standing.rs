//! How a Turn stands that was quiet for long: Codex is asked for the newest turn of the thread (R-EVT-10).

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Asked, Owner, Turn, rpc, wire};
use crate::{
    harness::{Report, Standing},
    native::rpc::RpcError,
};

/// How long Codex may take to answer. It does so from memory, in some milliseconds.
const ANSWER: Duration = Duration::from_secs(5);

/// When Codex was last heard, and until when it may answer.
#[derive(Debug)]
pub(super) struct Quiet {
    pub(super) heard_at: Instant,
    pub(super) answer_until: Option<Instant>,
}

impl Quiet {
    pub(super) fn new() -> Self {
        Self { heard_at: Instant::now(), answer_until: None }
    }
}

/// The answer to `thread/turns/list`.
#[derive(Debug, Deserialize)]
struct Page {
    data: Vec<wire::Turn>,
}

impl Owner {
    /// Asks Codex, unless it was heard within `quiet` or the Turn is on its way to its end anyway.
    pub(super) async fn ask_standing(&mut self, quiet: Duration) {
        let ago = self.quiet.heard_at.elapsed();
        if ago < quiet || !self.turn.as_ref().is_some_and(Turn::is_open) {
            return self.emit(Report::Standing(Standing::Heard { ago: ago.min(quiet) })).await;
        }
        self.quiet.answer_until = Some(Instant::now() + ANSWER);
        let method = "thread/turns/list";
        let params = wire::NewestTurn { thread_id: &self.thread_id, limit: 1, items_view: "notLoaded" };
        self.ask(Asked::Standing, method, rpc::request(self.next_id, method, &params));
    }

    /// Codex has answered.
    pub(super) async fn stands(&mut self, outcome: Result<&RawValue, RpcError>) {
        if self.quiet.answer_until.take().is_none() {
            return;
        }
        let newest = match outcome.map(|answer| serde_json::from_str::<Page>(answer.get())) {
            Ok(Ok(page)) => page.data.into_iter().next(),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the list of turns does not fit");
                return self.emit(Report::Standing(Standing::Silent)).await;
            }
            Err(error) => {
                tracing::debug!(code = error.code, "the list of turns was refused");
                return self.emit(Report::Standing(Standing::Silent)).await;
            }
        };
        let native = self.turn.as_ref().and_then(Turn::native);
        let over = newest.filter(|turn| {
            native == Some(&*turn.id) && matches!(&*turn.status, "completed" | "failed" | "interrupted")
        });
        match over {
            Some(turn) => {
                tracing::warn!(status = turn.status, "codex did not tell the end of a turn before it was asked");
                self.emit(Report::Standing(Standing::Over)).await;
                self.completed(turn).await;
            }
            None => self.emit(Report::Standing(Standing::Active)).await,
        }
    }

    /// Codex has not answered in time.
    pub(super) async fn silent_standing(&mut self) {
        self.quiet.answer_until = None;
        self.emit(Report::Standing(Standing::Silent)).await;
    }
}
