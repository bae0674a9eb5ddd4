//! The streams of observers (R-EVT-1, R-EVT-11). Each has a task that reads the Turn's log and hands over what the connection takes; a
//! connection that takes nothing for too long ends it. No Turn waits for it.
//!
//! HTTP/2 asks a stream for more only when its peer has room, so a stream that is not read cannot find out by itself that it is late. Its task
//! can, and lets go of the log at once; the peer gets the status when it reads again.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use proto::{raw, v1};
use tokio::{sync::mpsc, time};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;

use super::{Stream, status};
use crate::{
    clock,
    refusal::{Reason, Refusal},
    tasks,
    turn::log::{FencedBy, Next, Omission, Reader, Why},
};

/// Answers on their way to a connection: one, and the last word of a stream, whose place is kept free.
const ON_THE_WAY: usize = 2;

/// What all observers of a daemon share.
#[derive(Clone, Debug)]
pub(crate) struct Observers {
    /// How long a stream may be silent.
    pub(crate) keep_alive: Duration,
    /// How long a stream may take nothing.
    pub(crate) limit: Duration,
    /// Every observer's task.
    pub(crate) tracker: TaskTracker,
    /// Cancelled when the daemon cuts what is still open.
    pub(crate) cut: CancellationToken,
}

type Answer = Result<raw::ObserveTurnResponse, Status>;

impl Observers {
    /// The stream of one observation.
    pub(super) fn stream(&self, reader: Reader, turn_id: String) -> Stream<raw::ObserveTurnResponse> {
        let (answers, taken) = mpsc::channel(ON_THE_WAY);
        let Self { keep_alive, limit, tracker, cut } = self.clone();
        let work = async move {
            tokio::select! {
                () = answers.closed() => {}
                () = cut.cancelled() => {}
                () = observe(&answers, reader, &turn_id, keep_alive, limit) => {}
            }
        };
        drop(tasks::spawn(&tracker, tasks::Kind::Observer, work));
        Box::pin(ReceiverStream::new(taken))
    }
}

async fn observe(
    answers: &mpsc::Sender<Answer>,
    mut reader: Reader,
    turn_id: &str,
    keep_alive: Duration,
    limit: Duration,
) {
    let Ok(last_word) = answers.clone().reserve_owned().await else { return };
    loop {
        let answer = match answer(reader.next(keep_alive).await, turn_id) {
            Some(Ok(answer)) => answer,
            Some(Err(status)) => return drop(last_word.send(Err(status))),
            None => return,
        };
        match time::timeout(limit, answers.send(Ok(answer))).await {
            Ok(Ok(())) => {}
            Ok(Err(_gone)) => return,
            Err(_elapsed) => {
                tracing::info!(turn_id, "an observer that does not read is ended");
                let refusal = Refusal::new(
                    Reason::ObserverTooSlow,
                    "the stream was not read for too long; nothing is lost, observe again behind the last event",
                );
                return drop(last_word.send(Err(status(refusal))));
            }
        }
    }
}

fn answer(next: Next, turn_id: &str) -> Option<Result<raw::ObserveTurnResponse, Status>> {
    let lost = |reason, text: &str| Some(Err(status(Refusal::new(reason, text))));
    match next {
        Next::Events { omitted, mut events, last_sequence } => {
            if let Some(omission) = omitted {
                events.insert(0, omitted_event(turn_id, omission));
            }
            Some(Ok(raw::ObserveTurnResponse { events, last_sequence }))
        }
        Next::Idle { last_sequence } => Some(Ok(raw::ObserveTurnResponse { events: Vec::new(), last_sequence })),
        Next::Ended => None,
        Next::Fenced { epoch, by } => {
            let (text, state) = match by {
                FencedBy::TakeOver => ("a higher epoch holds the Session", "bound"),
                FencedBy::Release => ("the assignment is released", "released"),
            };
            let refusal = Refusal::new(Reason::AssignmentStale, text);
            Some(Err(status(refusal.at("assignment").with("epoch", epoch).with("state", state))))
        }
        Next::Lost => lost(Reason::Draining, "the stream is lost; observe again"),
        Next::Failed(error) => {
            tracing::error!(turn_id, %error, "the events of a Turn cannot be read");
            lost(Reason::StorageUnavailable, "the events of the Turn cannot be read; observe again")
        }
    }
}

/// What is dropped is said: the statement stands at the last sequence of its range (R-EVT-1).
fn omitted_event(turn_id: &str, omission: Omission) -> Bytes {
    let reason = match omission.why {
        Why::Acknowledged => v1::OmissionReason::Acknowledged,
        Why::Gone => v1::OmissionReason::BridgeRestarted,
        Why::Unwritten => v1::OmissionReason::Storage,
    };
    let omitted = v1::EventsOmitted { first: omission.first, last: omission.last, reason: reason.into() };
    let event = v1::Event {
        turn_id: turn_id.to_owned(),
        sequence: omission.last,
        time: Some(clock::now().into()),
        kind: Some(v1::event::Kind::EventsOmitted(omitted)),
    };
    Bytes::from(event.encode_to_vec())
}
