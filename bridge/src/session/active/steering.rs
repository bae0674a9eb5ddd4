//! The inputs that are added to a Turn: on disk before they are given to the adapter, and those who wait to hear of them (R-STE-1).

use adapters::harness::InputPart;
use tokio::time::Instant;

use super::{Active, Input};
use crate::{
    journal::InputRecord,
    refusal::{Reason, Refusal},
    session::{Answer, Reply, Steered, storage},
    turn::{
        calls::Digest,
        inputs::{InputState, MAX_INPUTS, Verdict},
    },
};

/// Somebody who waits for what becomes of an input.
#[derive(Debug)]
pub(super) struct Waiter {
    until: Instant,
    input_id: String,
    duplicate: bool,
    reply: Reply<Steered>,
}

impl Active {
    /// Takes an input, or finds the one that has its id; true when it was there before.
    pub(in crate::session) async fn steer(
        &mut self,
        input_id: &str,
        content: Digest,
        input: Vec<InputPart>,
    ) -> Answer<bool> {
        let verdict = self.machine.judge_input(input_id, content, &input);
        if let Some(refusal) = refusal(verdict) {
            return Err(refusal);
        }
        if verdict == Verdict::Duplicate {
            return Ok(true);
        }
        self.supports.steer(&input)?;
        // ORDER: on disk before the Harness can see it, so that it is never written twice (R-STE-3, R-DUR-1).
        let stored = self.shared.journal.insert_input(self.row, input_id, content).await;
        stored.map_err(|error| storage(&error))?;
        self.step(Input::Steer { input_id: input_id.to_owned(), content, input }).await;
        self.flush().await;
        Ok(false)
    }

    /// Answers when an input is written, has come to its end, or at `until`.
    pub(in crate::session) fn wait_for_input(
        &mut self,
        until: Instant,
        input_id: String,
        duplicate: bool,
        reply: Reply<Steered>,
    ) {
        self.inputs_awaited.push(Waiter { until, input_id, duplicate, reply });
        self.answer_for_inputs(Instant::now());
    }

    /// Answers those whose input is where they wait for it to be, and those who do not wait any longer.
    pub(in crate::session) fn answer_for_inputs(&mut self, now: Instant) {
        let is_due = |waiter: &mut Waiter| waiter.until <= now || !self.machine.is_written_next(&waiter.input_id);
        let due: Vec<_> = self.inputs_awaited.extract_if(.., is_due).collect();
        due.into_iter().for_each(|waiter| self.answer_for_input(waiter));
    }

    /// Answers everybody who waits.
    pub(super) fn answer_for_all_inputs(&mut self) {
        std::mem::take(&mut self.inputs_awaited).into_iter().for_each(|waiter| self.answer_for_input(waiter));
    }

    fn answer_for_input(&self, waiter: Waiter) {
        let found = self.machine.inputs().iter().find(|input| input.input_id == waiter.input_id);
        if let Some(input) = found {
            drop(waiter.reply.send(Ok(Steered { input: input.clone(), duplicate: waiter.duplicate })));
        }
    }

    /// When somebody does not wait any longer.
    pub(super) fn inputs_awaited_until(&self) -> Option<Instant> {
        self.inputs_awaited.iter().map(|waiter| waiter.until).min()
    }

    /// The inputs as the journal keeps them.
    pub(super) fn input_records(&self) -> Vec<InputRecord> {
        self.machine.inputs().iter().map(record).collect()
    }
}

/// An input as the journal keeps it.
pub(in crate::session) fn record(of: &InputState) -> InputRecord {
    let InputState { input_id, content, phase, .. } = of;
    let detail = phase.detail().map(str::to_owned);
    InputRecord { input_id: input_id.clone(), hash: *content, phase: phase.name().to_owned(), detail }
}

/// Why an input is not taken.
pub(in crate::session) fn refusal(verdict: Verdict) -> Option<Refusal> {
    let conflict =
        |reason, text| Refusal::new(reason, text).with("http_status", 409).with("public_code", "conflict_error");
    Some(match verdict {
        Verdict::Taken | Verdict::Duplicate => return None,
        Verdict::Conflict => {
            conflict(Reason::InputConflict, "the input's id was used with other content").at("input_id")
        }
        Verdict::Cancelled => conflict(Reason::TurnCancelled, "the Turn was cancelled"),
        Verdict::Ended => conflict(Reason::TurnEnded, "the Turn is over, or about to be"),
        Verdict::Limit => Refusal::new(Reason::InputLimit, format!("a Turn takes {MAX_INPUTS} inputs")),
        Verdict::Busy => Refusal::new(Reason::InputBusy, "too many inputs wait for the Harness, or too large ones")
            .with("retry_ms", 250),
    })
}
