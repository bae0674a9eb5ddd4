//! What a Turn is told of the answers of its model provider (R-FN-10).

use super::Active;
use crate::turn::machine::{Batch, Input};

impl Active {
    /// The calls of answers that are on their way to the Harness.
    pub(in crate::session) async fn batches(&mut self, batches: impl Iterator<Item = Batch> + Send) {
        for batch in batches {
            if self.machine.end().is_none() {
                self.step(Input::Batch(batch)).await;
            }
        }
    }
}
