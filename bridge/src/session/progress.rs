//! Reports of the application about a call that it still works on (R-FN-8).

use super::{Answer, CallProgress, Fence, owner::Owner, results};
use crate::turn::calls::judge_progress;

impl Owner {
    /// Takes a report; true when it is not news.
    pub(super) async fn progress(&mut self, fence: &Fence, report: CallProgress) -> Answer<bool> {
        self.admit(fence)?;
        let CallProgress { turn_id, call_id, number, message } = report;
        let known = self.known_call(&turn_id, &call_id).await?.map(|(_, known)| known);
        if let Some(refusal) = results::refusal_of(judge_progress(known)) {
            return Err(refusal.at("call_id"));
        }
        match &mut self.turn {
            // Neither a call that has its result nor one of another Turn waits for anything.
            Some(turn) if turn.id() == turn_id => turn.progress(call_id, number, message).await,
            Some(_) | None => Ok(true),
        }
    }
}
