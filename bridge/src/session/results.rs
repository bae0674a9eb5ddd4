//! Results of function calls: an atomic batch, judged one by one before any effect (R-FN-5).

use super::{Answer, Fence, ResultOutcome, Submitted, digest, owner::Owner, storage};
use crate::{
    journal::{ResultRecord, StoredResult, TurnRow},
    refusal::{Reason, Refusal},
    turn::calls::{Digest, Known, Verdict, judge},
};

impl Owner {
    /// Takes a batch: durable before the answer, handed to the Harness after it is durable.
    pub(super) async fn submit(&mut self, fence: &Fence, results: Vec<Submitted>) -> Answer<Vec<ResultOutcome>> {
        self.admit(fence)?;
        let mut outcomes = Vec::with_capacity(results.len());
        let mut accepted = Vec::new();
        let mut records = Vec::new();
        for (index, mut submitted) in results.into_iter().enumerate() {
            let (row, verdict, content) = self.judged(&submitted).await?;
            // Only a Turn that runs can accept a result.
            if let (Some(turn), Ok(result)) = (&self.turn, &submitted.result)
                && let Err(refusal) = turn.supports.result(result)
            {
                submitted.result = Err(refusal);
            }
            if let Some(refusal) = refusal(verdict, &submitted) {
                let field = refusal.field.clone().map_or_else(String::new, |field| format!(".{field}"));
                return Err(refusal.at(format!("results[{index}]{field}")).with("index", index));
            }
            outcomes.push(if verdict == Verdict::Duplicate {
                ResultOutcome::Duplicate
            } else {
                ResultOutcome::Accepted
            });
            if let (Verdict::Accepted, Some(turn), Ok(result)) = (verdict, row, submitted.result) {
                let stored = StoredResult { hash: content, body: submitted.body };
                records.push(ResultRecord { turn, call_id: submitted.call_id.clone(), result: stored });
                accepted.push((submitted.call_id, content, result));
            }
        }
        if records.is_empty() {
            return Ok(outcomes);
        }
        // ORDER: on disk before it is acknowledged, and before the Harness can see it (R-DUR-1).
        self.shared.journal.store_results(records).await.map_err(|error| storage(&error))?;
        if let Some(turn) = &mut self.turn {
            for (call_id, content, result) in accepted {
                turn.result(call_id, content, result).await;
            }
        }
        self.follow().await;
        Ok(outcomes)
    }

    async fn judged(&mut self, submitted: &Submitted) -> Answer<(Option<TurnRow>, Verdict, Digest)> {
        let known = self.known_call(&submitted.turn_id, &submitted.call_id).await?;
        // Content that is not valid equals nothing that is stored.
        let content = submitted.result.as_ref().map_or([0; 32], digest::result);
        Ok((known.map(|(row, _)| row), judge(content, known.map(|(_, known)| known)), content))
    }

    /// What is known of a call of any Turn of the Session.
    pub(super) async fn known_call(&mut self, turn_id: &str, call_id: &str) -> Answer<Option<(TurnRow, Known)>> {
        match &self.turn {
            Some(turn) if turn.id() == turn_id => Ok(turn.known(call_id).map(|known| (turn.row, known))),
            Some(_) | None => self.known_past(turn_id, call_id).await,
        }
    }
}

fn refusal(verdict: Verdict, submitted: &Submitted) -> Option<Refusal> {
    let of_content = || submitted.result.as_ref().err().filter(|_| verdict == Verdict::Accepted).cloned();
    refusal_of(verdict).or_else(of_content)
}

/// Why nothing comes of what is about a call.
pub(super) fn refusal_of(verdict: Verdict) -> Option<Refusal> {
    let (reason, text, status, code) = match verdict {
        Verdict::Duplicate | Verdict::Accepted => return None,
        Verdict::Unknown => (Reason::UnknownCall, "no such call in that Turn", 400, "invalid_request_error"),
        Verdict::Conflict => (Reason::ResultConflict, "another result is stored for the call", 409, "conflict_error"),
        Verdict::Cancelled => (Reason::TurnCancelled, "the Turn was cancelled", 409, "conflict_error"),
        Verdict::Abandoned => (Reason::CallAbandoned, "the call takes no result any more", 409, "conflict_error"),
    };
    Some(Refusal::new(reason, text).with("http_status", status).with("public_code", code))
}
