//! Streams of events and of large parts (R-EVT-11, R-API-7). Each has a task that reads the Turn's log and hands over what the connection takes; a
//! connection that takes nothing for too long ends it. No Turn waits for it.
//!
//! HTTP/2 asks a stream for more only when its peer has room, so a stream that is not read cannot find out by itself that it is late. Its task
//! can, and lets go of the log at once; the peer gets the status when it reads again. Until then the stream keeps its place among those that
//! are open, since what is on its way to the peer takes memory.

use std::{future::Future, time::Duration};

use futures_util::stream;
use tokio::{sync::mpsc, time};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;

use super::{
    Stream,
    seats::{Seat, Seats},
    status,
};
use crate::{
    refusal::{Reason, Refusal},
    tasks,
    turn::log::FencedBy,
};

/// Answers on their way to a connection: one, and the last word of a stream, whose place is kept free.
const ON_THE_WAY: usize = 2;

/// What all streams of a daemon share that read the log of a Turn.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    /// How long a stream may be silent.
    pub(super) keep_alive: Duration,
    /// The places of observations.
    pub(super) observations: Seats,
    /// The places of streams of large parts.
    pub(super) parts: Seats,
    /// How long a stream may take nothing.
    limit: Duration,
    /// Every stream's task.
    tracker: TaskTracker,
    /// Cancelled when the daemon cuts what is still open.
    cut: CancellationToken,
}

/// What a stream gives out.
pub(super) trait Source: Send + 'static {
    /// One message of it.
    type Answer: Send + 'static;

    /// The Turn that it reads, for the log.
    fn turn_id(&self) -> &str;

    /// The next answer; nothing behind the last, and none behind a status.
    fn next(&mut self) -> impl Future<Output = Option<Result<Self::Answer, Status>>> + Send;
}

impl Streams {
    /// No streams yet, with these limits of each.
    pub(crate) fn new(keep_alive: Duration, limit: Duration) -> Self {
        let (tracker, cut) = (TaskTracker::new(), CancellationToken::new());
        Self { keep_alive, observations: Seats::default(), parts: Seats::default(), limit, tracker, cut }
    }

    /// The stream of a source.
    pub(super) fn open<S: Source>(&self, source: S, seat: Seat) -> Stream<S::Answer> {
        let (answers, taken) = mpsc::channel(ON_THE_WAY);
        let (limit, cut) = (self.limit, self.cut.clone());
        let work = async move {
            tokio::select! {
                () = answers.closed() => {}
                () = cut.cancelled() => {}
                () = hand_over(&answers, source, limit) => {}
            }
        };
        drop(tasks::spawn(&self.tracker, tasks::Kind::Reader, work));
        Box::pin(stream::unfold((taken, seat), |(mut taken, seat)| async {
            let answer = taken.recv().await?;
            Some((answer, (taken, seat)))
        }))
    }

    /// Cuts what is still open, and waits until it is.
    pub(crate) async fn cut(&self) {
        self.cut.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

async fn hand_over<S: Source>(answers: &mpsc::Sender<Result<S::Answer, Status>>, mut source: S, limit: Duration) {
    let Ok(last_word) = answers.clone().reserve_owned().await else { return };
    loop {
        let answer = match source.next().await {
            Some(Ok(answer)) => answer,
            Some(Err(status)) => return drop(last_word.send(Err(status))),
            None => return,
        };
        match time::timeout(limit, answers.send(Ok(answer))).await {
            Ok(Ok(())) => {}
            Ok(Err(_gone)) => return,
            Err(_elapsed) => {
                tracing::info!(turn_id = source.turn_id(), "an observer that does not read is ended");
                let refusal = Refusal::new(
                    Reason::ObserverTooSlow,
                    "the stream was not read for too long; nothing is lost, ask again behind what was read",
                );
                return drop(last_word.send(Err(status(refusal))));
            }
        }
    }
}

/// The status of a stream whose epoch is over (R-ASG-2).
pub(super) fn fenced(epoch: u64, by: FencedBy) -> Status {
    let (text, state) = match by {
        FencedBy::TakeOver => ("a higher epoch holds the Session", "bound"),
        FencedBy::Release => ("the assignment is released", "released"),
    };
    let refusal = Refusal::new(Reason::AssignmentStale, text);
    status(refusal.at("assignment").with("epoch", epoch).with("state", state))
}
