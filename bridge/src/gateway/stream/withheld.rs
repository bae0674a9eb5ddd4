//! Holds back what a provider streams from its first call on, until it is known whether the calls may run (R-FN-10): they go on byte for byte
//! behind an end that asks for them, and are left out where the answer was cut or refused, or ends without a mark. Pure: it is fed events and
//! says which bytes go on.

use super::{
    Breach, Protocol,
    calls::{Batch, Calls, Meaning},
};

/// What goes on in the place of the bytes that were taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Passes {
    pub(crate) bytes: Vec<u8>,
    /// The calls among them.
    pub(crate) batch: Option<Batch>,
}

/// What is held back of one answer.
#[derive(Debug)]
pub(super) struct Withheld {
    calls: Calls,
    /// Everything from the first call on.
    held: Option<Vec<u8>>,
    /// What of it goes on where the calls do not.
    rest: Vec<u8>,
    /// The last event is among that; what is between events goes with the one before it.
    is_rest: bool,
    /// The beginning of the event that is not whole yet: it may be a call.
    begun: Vec<u8>,
}

impl Withheld {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self { calls: Calls::new(protocol), held: None, rest: Vec::new(), is_rest: false, begun: Vec::new() }
    }

    /// Takes bytes of an event that is not whole yet.
    pub(super) fn begin(&mut self, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
    }

    /// Takes the last bytes of an event and what it says, which is nothing where there are only comments.
    ///
    /// # Errors
    /// It cannot be read, or the calls cannot be told apart.
    pub(super) fn event(&mut self, data: Option<&[u8]>, bytes: &[u8], passes: &mut Passes) -> Result<(), Breach> {
        let meaning = data.map_or(Ok(Meaning::Nothing), |data| self.calls.read(data))?;
        if matches!(meaning, Meaning::Call) {
            self.held.get_or_insert_default();
        }
        let Some(held) = &mut self.held else {
            passes.bytes.append(&mut self.begun);
            passes.bytes.extend_from_slice(bytes);
            return Ok(());
        };
        let from = held.len();
        held.append(&mut self.begun);
        held.extend_from_slice(bytes);
        if data.is_some() {
            self.is_rest = meaning == Meaning::Rest;
        }
        if self.is_rest {
            self.rest.extend_from_slice(&held[from..]);
        }
        match meaning {
            Meaning::Nothing | Meaning::Call | Meaning::Rest => {}
            Meaning::End { runs: true } => {
                passes.batch = Some(self.calls.batch()?);
                passes.bytes.append(held);
                self.held = None;
            }
            Meaning::End { runs: false } => {
                passes.bytes.append(&mut self.rest);
                passes.bytes.extend_from_slice(&held[from..]);
                self.held = None;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "withheld_tests.rs"]
mod tests;
