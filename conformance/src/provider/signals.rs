//! Gates that a test opens and marks that a script sets: how a test and the provider wait for each other without
//! sleeping.

use std::collections::BTreeSet;

use tokio::sync::watch;

#[derive(Debug, Default)]
struct State {
    gates: BTreeSet<String>,
    marks: BTreeSet<String>,
}

/// All gates and marks of one provider. Both are sticky: a gate stays open, a mark stays set, until [`Signals::clear`].
#[derive(Debug, Default)]
pub(crate) struct Signals {
    state: watch::Sender<State>,
}

impl Signals {
    pub(crate) fn open(&self, gate: &str) {
        self.state.send_modify(|state| _ = state.gates.insert(gate.to_owned()));
    }

    pub(crate) fn mark(&self, mark: &str) {
        self.state.send_modify(|state| _ = state.marks.insert(mark.to_owned()));
    }

    pub(crate) async fn opened(&self, gate: &str) {
        // The sender is ours, so the wait cannot fail.
        _ = self.state.subscribe().wait_for(|state| state.gates.contains(gate)).await;
    }

    pub(crate) async fn marked(&self, mark: &str) {
        _ = self.state.subscribe().wait_for(|state| state.marks.contains(mark)).await;
    }

    pub(crate) fn clear(&self) {
        self.state.send_modify(|state| *state = State::default());
    }
}
