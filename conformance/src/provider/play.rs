//! Plays one step: turns its actions into the head and the pieces of one answer, and notes how it ended.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::{mpsc, oneshot};
use tokio::time;

use super::body::Piece;
use super::events::{Ending, Item, Response, verbatim};
use super::record::End;
use super::request::Request;
use super::{Shared, mock};
use crate::script::provider::{Action, Complete, Http, Step};

/// The beginning of an answer.
#[derive(Debug)]
pub(super) enum Head {
    /// A stream of events.
    Stream(mpsc::Receiver<Piece>),
    /// A whole answer.
    Whole { status: StatusCode, headers: Vec<(HeaderName, HeaderValue)>, body: Bytes },
    /// No answer: the connection is closed, or reset.
    Nothing,
}

/// Why playing stops before the end of the actions.
#[derive(Debug)]
enum Stop {
    ClientGone,
    Broken,
}

/// Pieces that wait for the connection: one, so that the script notices a client that does not read.
const PIECES: usize = 1;

/// The answer under way.
struct Stage<'a> {
    shared: &'a Shared,
    number: usize,
    step: &'a Step,
    response: Response<'a>,
    out: Out,
    events: u64,
    /// What was made so far; its texts are kept where the answer is no stream.
    items: Vec<Item>,
    created: bool,
    /// Tells the connection that it is to be reset and not only closed.
    reset: &'a std::sync::atomic::AtomicBool,
}

enum Out {
    Head(Option<oneshot::Sender<Head>>),
    Body(mpsc::Sender<Piece>),
}

/// Plays a step as the answer to request `number`.
pub(super) async fn play(
    shared: &Shared,
    number: usize,
    step: &Step,
    request: &Request,
    head: oneshot::Sender<Head>,
    reset: &std::sync::atomic::AtomicBool,
) {
    let mut stage = Stage {
        shared,
        number,
        step,
        response: Response::new(request, &step.play),
        out: Out::Head(Some(head)),
        events: 0,
        items: Vec::new(),
        created: false,
        reset,
    };
    let end = match stage.all(&step.play).await {
        Ok(()) => End::Sent,
        Err(Stop::Broken) => End::Broken,
        Err(Stop::ClientGone) => End::ClientGone,
    };
    shared.record.end(number, end);
}

impl Stage<'_> {
    async fn all(&mut self, actions: &[Action]) -> Result<(), Stop> {
        for action in actions {
            self.one(action).await?;
        }
        if actions.last().is_some_and(Action::ends) {
            Ok(())
        } else {
            self.end(Ending::Complete(&Complete::default())).await
        }
    }

    async fn one(&mut self, action: &Action) -> Result<(), Stop> {
        match action {
            Action::Text(text) => self.add(action, Duration::from_millis(text.delay_ms)).await,
            Action::Reasoning(_)
            | Action::Calls(_)
            | Action::Shell(_)
            | Action::CustomCall(_)
            | Action::Patch(_)
            | Action::Search(_)
            | Action::Item(_) => self.add(action, Duration::ZERO).await,
            Action::Event(event) => self.send_event(verbatim(event)).await,
            Action::Raw(text) => self.send(Piece::Bytes(text.clone().into())).await,
            Action::Mock => {
                for action in mock::answer(self.response.request) {
                    Box::pin(self.one(&action)).await?;
                }
                Ok(())
            }
            Action::Headers => self.begin().map(drop),
            Action::PauseMs(milliseconds) => self.wait(time::sleep(Duration::from_millis(*milliseconds))).await,
            Action::Gate(gate) => self.wait(self.shared.signals.opened(gate)).await,
            Action::Mark(mark) => {
                self.shared.signals.mark(mark);
                Ok(())
            }
            Action::Complete(complete) => self.end(Ending::Complete(complete)).await,
            Action::Failed(failed) => self.end(Ending::Failed(failed)).await,
            Action::Incomplete(incomplete) => self.end(Ending::Incomplete(incomplete)).await,
            Action::Http(http) => self.http(http),
            Action::Close => self.begin().map(drop),
            Action::Drop => self.break_off(false).await,
            Action::Reset => self.break_off(true).await,
            Action::Hang => self.wait(std::future::pending()).await,
        }
    }

    async fn end(&mut self, ending: Ending<'_>) -> Result<(), Stop> {
        if self.is_whole() {
            return self.answer_whole(ending).await;
        }
        self.create().await?;
        let called = self.items.iter().any(|item| item.call);
        for event in self.response.ended(ending, called) {
            self.send_event(event).await?;
        }
        Ok(())
    }

    /// Whether the answer is one text and no stream.
    fn is_whole(&self) -> bool {
        !self.response.request.streams
    }

    async fn answer_whole(&mut self, ending: Ending<'_>) -> Result<(), Stop> {
        if self.step.drop_after_events.is_some() {
            return self.break_off(false).await;
        }
        let whole = self.response.whole(ending, &self.items);
        let status = match ending {
            Ending::Failed(failed) if is_refusal(&failed.code) => StatusCode::BAD_REQUEST,
            Ending::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Ending::Complete(_) | Ending::Incomplete(_) => StatusCode::OK,
        };
        self.send_whole(status, Vec::new(), whole.unwrap_or_else(|failed| failed))
    }

    /// Makes the items of an action and sends their events; the delay stands before each event but an item's first and last.
    async fn add(&mut self, action: &Action, delay: Duration) -> Result<(), Stop> {
        for mut item in self.response.items(&self.items, action) {
            let events = std::mem::take(&mut item.events);
            self.create().await?;
            self.items.push(item);
            let last = events.len().saturating_sub(1);
            for (place, event) in events.into_iter().enumerate() {
                if !delay.is_zero() && place != 0 && place != last {
                    self.wait(time::sleep(delay)).await?;
                }
                self.send_event(event).await?;
            }
        }
        Ok(())
    }

    async fn create(&mut self) -> Result<(), Stop> {
        if self.created {
            return Ok(());
        }
        self.created = true;
        self.send_event(self.response.created()).await
    }

    /// Sends an event; an answer that is no stream has none.
    async fn send_event(&mut self, event: String) -> Result<(), Stop> {
        if self.is_whole() {
            return Ok(());
        }
        if self.step.event_delay_ms > 0 {
            self.wait(time::sleep(Duration::from_millis(self.step.event_delay_ms))).await?;
        }
        if self.step.drop_after_events.is_some_and(|limit| self.events >= limit) {
            return self.break_off(false).await;
        }
        self.send(Piece::Bytes(event.into())).await?;
        self.events += 1;
        self.shared.record.change(self.number, |request| request.events += 1);
        Ok(())
    }

    async fn send(&mut self, piece: Piece) -> Result<(), Stop> {
        self.begin()?.send(piece).await.map_err(|_| Stop::ClientGone)
    }

    /// Sends the head of a stream if that was not done.
    fn begin(&mut self) -> Result<&mpsc::Sender<Piece>, Stop> {
        if let Out::Head(head) = &mut self.out {
            let (pieces, body) = mpsc::channel(PIECES);
            let sent = head.take().is_some_and(|head| head.send(Head::Stream(body)).is_ok());
            if !sent {
                return Err(Stop::ClientGone);
            }
            self.shared.record.change(self.number, |request| request.status = Some(200));
            self.out = Out::Body(pieces);
        }
        match &self.out {
            Out::Body(pieces) => Ok(pieces),
            Out::Head(_) => Err(Stop::ClientGone),
        }
    }

    fn http(&mut self, http: &Http) -> Result<(), Stop> {
        let status = StatusCode::from_u16(http.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let given = http.headers.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
        let body = http.body.clone().unwrap_or_else(|| self.response.request.protocol.error_body(http));
        self.send_whole(status, given.collect(), body)
    }

    fn send_whole(
        &mut self,
        status: StatusCode,
        given: Vec<(HeaderName, HeaderValue)>,
        body: String,
    ) -> Result<(), Stop> {
        let json = (HeaderName::from_static("content-type"), HeaderValue::from_static("application/json"));
        let headers = std::iter::once(json).chain(given).collect();
        let Out::Head(head) = &mut self.out else { return Err(Stop::Broken) };
        let whole = Head::Whole { status, headers, body: body.into() };
        head.take().and_then(|head| head.send(whole).ok()).ok_or(Stop::ClientGone)?;
        self.shared.record.change(self.number, |request| request.status = Some(status.as_u16()));
        Ok(())
    }

    async fn break_off(&mut self, reset: bool) -> Result<(), Stop> {
        self.reset.store(reset, std::sync::atomic::Ordering::Relaxed);
        match &mut self.out {
            Out::Head(head) => head.take().map(|head| head.send(Head::Nothing)).map(drop),
            Out::Body(pieces) => pieces.send(Piece::Broken).await.ok(),
        };
        Err(Stop::Broken)
    }

    /// Waits for something, or for the client to go away.
    async fn wait(&mut self, what: impl Future<Output = ()>) -> Result<(), Stop> {
        let gone = async {
            match &mut self.out {
                Out::Head(Some(head)) => head.closed().await,
                Out::Head(None) => {}
                Out::Body(pieces) => pieces.closed().await,
            }
        };
        tokio::select! {
            () = what => Ok(()),
            () = gone => Err(Stop::ClientGone),
        }
    }
}
/// Whether an error says that the request itself is at fault.
fn is_refusal(code: &str) -> bool {
    matches!(code, "invalid_prompt" | "context_length_exceeded")
}
