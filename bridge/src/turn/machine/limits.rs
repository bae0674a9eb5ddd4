//! The limits of a Turn (R-EVT-10): when they count, and what they do. Pure.

use super::{Effect, State, Turn};
use crate::turn::stop::Stop;

impl Turn {
    /// Whether the Harness works on it and nothing has stopped it yet.
    pub(crate) fn is_at_work(&self) -> bool {
        matches!(self.state, State::Starting | State::Running) && !self.is_stopping()
    }

    /// Whether silence of the Harness means anything: no tool, call or required action is open (R-EVT-10).
    pub(crate) fn may_stall(&self) -> bool {
        !self.items.has_open_tool() && !self.calls.iter().any(|c| c.phase.is_open())
    }

    /// A limit is over. Whatever stopped the Turn before stands.
    pub(super) fn stop(&mut self, stop: Stop) -> Vec<Effect> {
        let first = self.is_at_work();
        if first {
            self.stop = Some(stop);
        }
        self.interrupt_if(first)
    }
}
