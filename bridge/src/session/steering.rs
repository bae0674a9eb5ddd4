//! Adding an input to a Turn (R-STE-1). What is known is answered first, also when the Turn is over (R-API-6).

use tokio::time::Instant;

use super::{Answer, Fence, Reply, SteerRequest, Steered, active::input_refusal, digest, owner::Owner};
use crate::turn::inputs::{self, Door, Verdict, judge};

impl Owner {
    /// Takes an input; answers when it is written to the Harness, or when its outcome is known.
    pub(super) async fn steer(&mut self, fence: &Fence, request: SteerRequest, reply: Reply<Steered>) {
        if let Err(refusal) = self.admit(fence) {
            return drop(reply.send(Err(refusal)));
        }
        let until = Instant::now() + self.shared.limits.input_write;
        match &mut self.turn {
            Some(turn) if turn.id() == request.turn_id => {
                let content = digest::steer(&request.input);
                match turn.steer(&request.input_id, content, request.input).await {
                    Ok(duplicate) => turn.wait_for_input(until, request.input_id, duplicate, reply),
                    Err(refusal) => drop(reply.send(Err(refusal))),
                }
                self.follow().await;
            }
            Some(_) | None => drop(reply.send(self.steer_past(request).await)),
        }
    }

    /// An input for a Turn that is over.
    async fn steer_past(&mut self, request: SteerRequest) -> Answer<Steered> {
        let SteerRequest { turn_id, input_id, input } = request;
        let past = &self.past(&turn_id).await?.snapshot;
        let door = if past.cancel_requested { Door::Cancelled } else { Door::Ended };
        let verdict = judge(&input_id, digest::steer(&input), inputs::bytes(&input), &past.inputs, door);
        let known = past.inputs.iter().find(|input| input.input_id == input_id && verdict == Verdict::Duplicate);
        match (known, input_refusal(verdict)) {
            (_, Some(refusal)) => Err(refusal),
            (Some(input), None) => Ok(Steered { input: input.clone(), duplicate: true }),
            // A Turn that is over takes nothing.
            (None, None) => Err(super::owner::no_turn()),
        }
    }
}
