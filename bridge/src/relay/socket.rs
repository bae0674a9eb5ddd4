//! The socket of a link, which ends when it is told to, and who starts the tasks of a connection.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use hyper::rt::Executor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::{
    sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned},
    task::TaskTracker,
};

use crate::tasks;

/// A socket that is there until it is told to end: HTTP/2 keeps it for as long as one of its streams is held, whoever gave up the rest (R-ENR-3).
#[derive(Debug)]
pub(super) struct Ending<S> {
    socket: S,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    _gone: DropGuard,
}

impl<S> Ending<S> {
    /// Ends with `end`, and tells by `gone` that it is dropped.
    pub(super) fn new(socket: S, end: CancellationToken, gone: CancellationToken) -> Self {
        Self { socket, end: Box::pin(end.cancelled_owned()), _gone: gone.drop_guard() }
    }

    /// Fails once it is to end. Reading and writing wait in one task, which is woken for both.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the link was closed")),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Ending<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ending<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Starts the tasks of a connection, so that the relay can wait for them.
#[derive(Clone, Debug)]
pub(super) struct Tracked(pub(super) TaskTracker);

impl<F> Executor<F> for Tracked
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, task: F) {
        drop(tasks::spawn(&self.0, tasks::Kind::Relay, task));
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn who_waits_for_bytes_or_for_room_is_told_the_end() {
        for writes in [false, true] {
            let (near, _far) = tokio::io::duplex(1);
            let (end, gone) = (CancellationToken::new(), CancellationToken::new());
            let mut socket = Ending::new(near, end.clone(), gone.clone());
            let waits = async {
                let ended =
                    if writes { socket.write_all(b"more than fits").await } else { socket.read_u8().await.map(drop) };
                drop(socket);
                ended
            };
            let ends = async {
                tokio::task::yield_now().await;
                assert!(!gone.is_cancelled());
                end.cancel();
            };
            let (ended, ()) = tokio::join!(waits, ends);
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
            assert!(gone.is_cancelled());
        }
    }
}
