//! A call whose own deadline is over (R-FN-8): the Harness is given the result that nobody knows the outcome, and the call takes no other one.
//! Pure.

use adapters::harness::{AbandonReason, Disposition, FunctionResult, Presence};

use super::{Effect, Turn};
use crate::turn::{
    calls::{Phase, Told},
    event::Event,
};

impl Turn {
    /// Whether the call waits for its result, so that its deadline means something.
    pub(crate) fn waits_for_result(&self, call_id: &str) -> bool {
        self.is_at_work() && self.call(call_id).is_some_and(|call| !call.hidden && call.phase == Phase::Pending)
    }

    /// The deadline of a call is over; that it is abandoned is on disk.
    pub(super) fn expired(&mut self, call_id: String) -> Vec<Effect> {
        if !self.waits_for_result(&call_id) {
            return Vec::new();
        }
        let reason = AbandonReason::Deadline;
        if let Some(call) = self.call_mut(&call_id) {
            call.close(Phase::Abandoned(reason));
            call.told = Some(Told::Given);
        }
        let (error, output) = (Presence::Absent, Presence::Absent);
        let disposition = Some(Disposition::OutcomeUnknown);
        let result = FunctionResult { success: false, error, output, disposition };
        let event = Event::FunctionCallAbandoned { call_id: call_id.clone(), reason };
        vec![Effect::Emit(event), Effect::Answer { call_id, result }]
    }
}
