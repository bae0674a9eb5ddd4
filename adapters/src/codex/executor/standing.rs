//! How a Turn stands that was quiet for long: Codex is asked for the newest turn of the thread (R-EVT-10).

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Thread, wire};
use crate::{
    harness::{Report, Standing},
    native::rpc::RpcError,
    owner::{Owner, Turn},
};

/// The answer to `thread/turns/list`.
#[derive(Debug, Deserialize)]
struct Page {
    data: Vec<wire::Turn>,
}

impl Owner<Thread> {
    /// Codex has answered.
    pub(super) async fn stands(&mut self, outcome: Result<&RawValue, RpcError>) {
        if !self.quiet.answered() {
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
}
