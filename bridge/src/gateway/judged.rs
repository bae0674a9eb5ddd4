//! The body of an answer on its way to the Harness: each piece is judged before it goes on, and nothing goes on behind a breach.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::{
    routes::Route,
    stream::{Breach, Judge},
};

/// How long a provider may keep an answer open behind the mark of its end.
const AFTER_END: Duration = Duration::from_secs(2);

/// An answer that is judged while it passes.
#[derive(Debug)]
pub(super) struct Judged {
    inner: Incoming,
    judge: Judge,
    route: Arc<Route>,
    wait: Wait,
    /// Nothing comes any more but this, if anything.
    over: Option<Option<Cut>>,
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
    #[error("the model provider broke off: {0}")]
    Broken(hyper::Error),
}

impl Judged {
    /// An answer whose first byte has to come until then.
    pub(super) fn new(inner: Incoming, judge: Judge, route: Arc<Route>, by: Instant) -> Self {
        let wait = if inner.is_end_stream() { Wait::None } else { Wait::First(Box::pin(sleep_until(by))) };
        Self { inner, judge, route, wait, over: None }
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

    fn passes(&mut self, data: &[u8]) -> Result<(), Cut> {
        self.judge.take(data).map_err(|breach| self.breach(breach))?;
        match self.wait {
            Wait::End(_) => {}
            _ if self.judge.is_over() => self.wait = Wait::End(Box::pin(sleep(AFTER_END))),
            Wait::First(_) => self.wait = Wait::None,
            Wait::None => {}
        }
        Ok(())
    }
}

impl Body for Judged {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(over) = &mut self.over {
            return Poll::Ready(over.take().map(Err));
        }
        if let Poll::Ready(next) = Pin::new(&mut self.inner).poll_frame(cx) {
            let Some(frame) = next else { return Poll::Ready(None) };
            let passed = frame.map_err(Cut::Broken).and_then(|frame| {
                frame.data_ref().map_or(Ok(()), |data| self.passes(data))?;
                Ok(frame)
            });
            return match passed {
                Ok(frame) => Poll::Ready(Some(Ok(frame))),
                Err(cut) => self.break_off(cut, cx),
            };
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
        self.over.as_ref().map_or_else(|| self.inner.is_end_stream(), Option::is_none)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
