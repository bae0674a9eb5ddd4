//! The calls of a model provider's answers, where those are held back until all of them are known (R-FN-10): the place of each call, and whether the calls
//! of an answer fit together into what the Turn may have. Pure.

use std::collections::HashMap;

use adapters::harness::{Disposition, FunctionResult, Presence};

use super::{Effect, Misfit, Turn};
use crate::turn::{
    calls::{self, CallState},
    event::{Call, CallPlace, Event},
};

/// The calls of one answer.
#[derive(Debug)]
pub(crate) struct Batch {
    /// What the provider calls the answer, where it says so.
    pub(crate) id: Option<String>,
    /// The id of each call in the provider's order, and whether it is one of a function.
    pub(crate) calls: Vec<(String, bool)>,
}

/// What is known of calls that the Harness has not asked for yet.
#[derive(Debug, Default)]
pub(super) struct Batches {
    calls: HashMap<String, (CallPlace, Verdict)>,
    /// How many more calls of functions the Turn may have, where there is a limit.
    left: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fits,
    Exceeds,
}

impl Batches {
    pub(super) fn limited(most: Option<u32>) -> Self {
        Self { calls: HashMap::new(), left: most.map(|most| usize::try_from(most).unwrap_or(usize::MAX)) }
    }

    /// So many calls more, together.
    fn admit(&mut self, count: usize) -> Verdict {
        let Some(left) = &mut self.left else { return Verdict::Fits };
        match left.checked_sub(count) {
            Some(rest) => {
                *left = rest;
                Verdict::Fits
            }
            None => Verdict::Exceeds,
        }
    }

    pub(super) fn take(&mut self, Batch { id, calls }: Batch) {
        let verdict = self.admit(calls.iter().filter(|(_, is_function)| *is_function).count());
        for (position, (call_id, is_function)) in (0..).zip(calls) {
            if is_function {
                self.calls.insert(call_id, (CallPlace { batch_id: id.clone(), position }, verdict));
            }
        }
    }

    /// The Harness asks for a call. One that stands in no batch is one by itself.
    fn asked(&mut self, call_id: &str) -> (Option<CallPlace>, Verdict) {
        match self.calls.remove(call_id) {
            Some((place, verdict)) => (Some(place), verdict),
            None => (None, self.admit(1)),
        }
    }
}

/// What the Harness asks for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) call_id: String,
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) exact: bool,
    pub(super) named_by_bridge: bool,
}

impl Turn {
    /// The Harness asks for a call. One that exceeds the limit is not shown, and gets the bridge's own result.
    pub(super) fn called(&mut self, asked: Asked) -> Result<Vec<Effect>, Misfit> {
        let Asked { call_id, name, arguments, exact, named_by_bridge } = asked;
        if self.call(&call_id).is_some() {
            return Err(self.misfit("the same call twice"));
        }
        let (place, verdict) = self.batches.asked(&call_id);
        let idempotency_key = format!("{}/{call_id}", self.idempotency_prefix);
        let call = Call { call_id, name, arguments, exact, named_by_bridge, idempotency_key, place };
        if verdict == Verdict::Exceeds {
            let call_id = call.call_id.clone();
            let (error, output) = (Presence::Absent, Presence::Absent);
            let disposition = Some(Disposition::LimitExceeded);
            let result = FunctionResult { success: false, error, output, disposition };
            self.calls.push(CallState::refused(call, &result));
            return Ok(vec![Effect::Answer { call_id, result }]);
        }
        self.calls.push(CallState::new(call.clone()));
        calls::hold_arguments(&mut self.calls);
        Ok(vec![Effect::StoreCall(call.clone()), Effect::Emit(Event::FunctionCall { call })])
    }
}
