//! The body of an answer on its way to the Harness: each piece is judged before it goes on, and nothing goes on behind a breach.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::{
    routes::Route,
    stream::{Breach, Judge, Passes},
};

/// How long a provider may keep an answer open behind the mark of its end.
const AFTER_END: Duration = Duration::from_secs(2);

/// An answer that is judged while it passes.
#[derive(Debug)]
pub(super) struct Judged {
    inner: Incoming,
    judge: Judge,
    route: Arc<Route>,
    /// Held until the answer is over.
    _seat: OwnedSemaphorePermit,
    wait: Wait,
    /// Nothing comes any more but this, if anything.
    over: Option<Option<Cut>>,
    /// What comes is not what goes on.
    holds_back: bool,
}

/// What has to come in a time.
#[derive(Debug)]
enum Wait {
    /// The first byte.
    First(Pin<Box<Sleep>>),
    /// Nothing.
    None,
    /// The end, behind the mark of it.
    End(Pin<Box<Sleep>>),
}

/// An answer that is cut off; whoever reads it sees a connection that broke.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    #[error("{0}")]
    Breach(Breach),
    #[error("the other side broke off: {0}")]
    Broken(hyper::Error),
}

impl Judged {
    /// An answer whose first byte has to come until then, if at all.
    pub(super) fn new(
        inner: Incoming,
        judge: Judge,
        route: Arc<Route>,
        by: Option<Instant>,
        seat: OwnedSemaphorePermit,
    ) -> Self {
        let by = by.filter(|_| !inner.is_end_stream());
        let wait = by.map_or(Wait::None, |by| Wait::First(Box::pin(sleep_until(by))));
        let holds_back = judge.holds_back();
        Self { inner, judge, route, _seat: seat, wait, over: None, holds_back }
    }

    fn breach(&mut self, breach: Breach) -> Cut {
        self.route.breach(breach);
        Cut::Breach(breach)
    }

    /// Breaks off, once what came before it is out: an error makes hyper drop what it has not written yet, a pause makes it write.
    fn break_off(&mut self, cut: Cut, cx: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.over = Some(Some(cut));
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Judges a piece, and gives what goes on of it.
    fn passes(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, Cut> {
        let Some(data) = frame.data_ref() else { return Ok(frame) };
        let passes = self.judge.take(data).map_err(|breach| self.breach(breach))?;
        match self.wait {
            Wait::End(_) => {}
            _ if self.judge.is_over() => self.wait = Wait::End(Box::pin(sleep(AFTER_END))),
            Wait::First(_) => self.wait = Wait::None,
            Wait::None => {}
        }
        Ok(passes.map_or(frame, |passes| self.instead(passes)))
    }

    /// What goes on instead of what came.
    fn instead(&self, Passes { bytes, batch }: Passes) -> Frame<Bytes> {
        // ORDER: the Session knows the calls before the Harness does.
        if let Some(batch) = batch {
            self.route.batch(batch);
        }
        Frame::data(bytes.into())
    }

    /// The body is over; what is held back as a whole goes on now.
    fn finish(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.over = Some(None);
        match self.judge.finish() {
            Ok(passes) if passes.bytes.is_empty() => Poll::Ready(None),
            Ok(passes) => Poll::Ready(Some(Ok(self.instead(passes)))),
            Err(breach) => {
                let cut = self.breach(breach);
                self.break_off(cut, cx)
            }
        }
    }
}

impl Body for Judged {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(over) = &mut self.over {
            return Poll::Ready(over.take().map(Err));
        }
        while let Poll::Ready(next) = Pin::new(&mut self.inner).poll_frame(cx) {
            let Some(frame) = next else { return self.finish(cx) };
            match frame.map_err(Cut::Broken).and_then(|frame| self.passes(frame)) {
                // All of it is held back.
                Ok(frame) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
                Ok(frame) => return Poll::Ready(Some(Ok(frame))),
                Err(cut) => return self.break_off(cut, cx),
            }
        }
        match &mut self.wait {
            Wait::None => Poll::Pending,
            Wait::First(until) => {
                ready!(until.as_mut().poll(cx));
                let limit = self.judge.first_byte();
                let cut = self.breach(Breach::FirstByte(limit));
                self.break_off(cut, cx)
            }
            Wait::End(until) => {
                ready!(until.as_mut().poll(cx));
                self.over = Some(None);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over.as_ref().map_or_else(|| !self.holds_back && self.inner.is_end_stream(), Option::is_none)
    }

    fn size_hint(&self) -> SizeHint {
        if self.holds_back { SizeHint::default() } else { self.inner.size_hint() }
    }
}
