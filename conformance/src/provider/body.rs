//! A response body that a script feeds piece by piece, and that can break off on purpose.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

/// What a script sends.
#[derive(Debug)]
pub(crate) enum Piece {
    Bytes(Bytes),
    /// The body fails here, after everything before it was written to the socket.
    Broken,
}

/// The body breaks off because the script says so.
#[derive(Debug)]
pub(crate) struct BrokenOff;

impl std::fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the script breaks the answer off")
    }
}

impl std::error::Error for BrokenOff {}

/// The body of any answer.
pub(crate) type AnyBody = Either<Full<Bytes>, Played>;

/// A body that a script feeds.
#[derive(Debug)]
pub(crate) struct Played {
    pieces: mpsc::Receiver<Piece>,
    breaking: bool,
}

impl Played {
    pub(crate) fn new(pieces: mpsc::Receiver<Piece>) -> Self {
        Self { pieces, breaking: false }
    }
}

impl Body for Played {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if self.breaking {
            return Poll::Ready(Some(Err(BrokenOff)));
        }
        match self.pieces.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Piece::Bytes(bytes))) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Poll::Ready(Some(Piece::Broken)) => {
                // ORDER: the server flushes when a body has nothing to give. One such moment before the failure brings
                // out what was sent before it.
                self.breaking = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// A body that is known whole.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> AnyBody {
    Either::Left(Full::new(bytes.into()))
}
