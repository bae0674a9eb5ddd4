//! The events of one Turn, each once, however often the stream is lost.

use std::{collections::VecDeque, time::Duration};

use tokio::time::{self, Instant};

use super::{Client, Error, Messages, backoff::Backoff};
use crate::v1::{self, event::Kind};

/// A stream without a message for so long is lost: a bridge says something every 15 s (R-EVT-11).
const SILENCE: Duration = Duration::from_secs(60);

/// The events of one Turn in order, to its end.
///
/// A lost stream is observed again behind the last event that [`TurnEvents::next`] gave; the bridge has no state of it (R-EVT-1).
#[derive(Debug)]
pub struct TurnEvents {
    client: Client,
    /// Its `after_sequence` is the last event that was given.
    request: v1::ObserveTurnRequest,
    stream: Option<Messages<v1::ObserveTurnResponse>>,
    /// Events that came and were not given yet.
    arrived: VecDeque<v1::Event>,
    backoff: Backoff,
    /// Not before this moment is the Turn observed again.
    resume_at: Instant,
    /// When the stream was opened or last said something.
    heard_at: Instant,
    /// The stream that is open has given no event.
    is_bare: bool,
    over: bool,
}

impl TurnEvents {
    pub(super) fn new(client: Client, request: v1::ObserveTurnRequest) -> Self {
        let now = Instant::now();
        let backoff = Backoff::new(client.patience);
        Self {
            client,
            request,
            stream: None,
            arrived: VecDeque::new(),
            backoff,
            resume_at: now,
            heard_at: now,
            is_bare: true,
            over: false,
        }
    }

    /// The last sequence that was given: where another observation would go on.
    pub fn last_sequence(&self) -> u64 {
        self.request.after_sequence
    }

    /// The next event, or `None` behind `turn_ended`, whoever was given that one. Dropping the future loses no event.
    ///
    /// # Errors
    /// What the bridge refused, [`Error::Transport`] when the stream stayed lost, [`Error::Sequence`] for a gap or a repetition. After an
    /// error there are no more events.
    pub async fn next(&mut self) -> Result<Option<v1::Event>, Error> {
        loop {
            if self.over {
                return Ok(None);
            }
            if let Some(event) = self.arrived.pop_front() {
                return self.give(event).map(Some);
            }
            match self.receive().await {
                Ok(Some(events)) => {
                    self.backoff.heard();
                    self.heard_at = Instant::now();
                    self.is_bare &= events.is_empty();
                    self.arrived.extend(events);
                }
                // A bridge ends a stream in order when nothing is behind what was asked for, and then only.
                Ok(None) if self.is_bare => self.over = true,
                Ok(None) => self.lost(Error::ended_early("the stream of the Turn ended before `turn_ended`"))?,
                Err(error) => self.lost(error)?,
            }
        }
    }

    /// The stream is lost and will be looked for, unless the error is final.
    fn lost(&mut self, error: Error) -> Result<(), Error> {
        self.stream = None;
        let resume = self.backoff.after(error, Instant::now());
        self.resume_at = resume.inspect_err(|_| self.over = true)?;
        Ok(())
    }

    fn give(&mut self, event: v1::Event) -> Result<v1::Event, Error> {
        let expected = self.request.after_sequence + 1;
        let fits = match &event.kind {
            // It stands at the last sequence of its range, which may begin below what was asked for.
            Some(Kind::EventsOmitted(omitted)) => {
                omitted.first <= expected && expected <= event.sequence && omitted.last == event.sequence
            }
            _ => event.sequence == expected,
        };
        if !fits {
            self.over = true;
            return Err(Error::Sequence { expected, found: event.sequence });
        }
        self.request.after_sequence = event.sequence;
        self.over = matches!(event.kind, Some(Kind::TurnEnded(_)));
        Ok(event)
    }

    /// The next message of the stream, which is opened first where there is none, or its end. Cancel-safe: an event leaves the stream only with
    /// the answer.
    async fn receive(&mut self) -> Result<Option<Vec<v1::Event>>, Error> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                time::sleep_until(self.resume_at).await;
                self.heard_at = Instant::now();
                self.is_bare = true;
                let opened = self.client.observe_turn(self.request.clone());
                let opened = time::timeout(SILENCE, opened).await.map_err(|_| silent())??;
                self.stream.insert(opened)
            }
        };
        let message = time::timeout_at(self.heard_at + SILENCE, stream.next()).await.map_err(|_| silent())??;
        Ok(message.map(|message| message.events))
    }
}

fn silent() -> Error {
    Error::ended_early("the stream of the Turn went silent")
}
