//! A connection that was let in, over whichever listener.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};
use tonic::transport::server::Connected;

use super::Peer;

/// What HTTP/2 begins with: its preface, and the head of the first frame.
const OPENING: usize = 24 + 9;

/// A socket of any kind.
pub(crate) trait Socket: AsyncRead + AsyncWrite + fmt::Debug + Send {}

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send> Socket for S {}

/// A connection and who is at its other end.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Pin<Box<dyn Socket>>,
    peer: Peer,
    opening: Option<Opening>,
}

/// What the other side has to say before it is heard: the server waits for the beginning of HTTP/2 without a limit of its own, pings only behind it,
/// and could not stop gracefully before.
#[derive(Debug)]
struct Opening {
    left: usize,
    limit: Pin<Box<Sleep>>,
}

impl Connection {
    /// A connection on which the other side begins to speak HTTP/2 within `limit`, or it ends.
    pub(crate) fn new(socket: impl Socket + 'static, peer: Peer, limit: Duration) -> Self {
        let opening = Some(Opening { left: OPENING, limit: Box::pin(sleep(limit)) });
        Self { socket: Box::pin(socket), peer, opening }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { socket, peer, opening } = self.get_mut();
        let Some(open) = opening else { return socket.as_mut().poll_read(cx, buffer) };
        let before = buffer.filled().len();
        if let Poll::Ready(read) = socket.as_mut().poll_read(cx, buffer) {
            open.left = open.left.saturating_sub(buffer.filled().len() - before);
            if open.left == 0 {
                *opening = None;
            }
            return Poll::Ready(read);
        }
        ready!(open.limit.as_mut().poll(cx));
        tracing::warn!(principal = peer.principal, "a connection was ended that does not begin to speak HTTP/2");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.socket.as_mut().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket.as_mut().poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn opened(limit: Duration) -> (Connection, tokio::io::DuplexStream) {
        let (near, far) = tokio::io::duplex(1 << 10);
        let peer = Peer { principal: "core".into(), bearer: None, operator: false, is_relay: false };
        (Connection::new(near, peer, limit), far)
    }

    #[tokio::test]
    async fn who_says_nothing_or_one_byte_at_a_time_is_ended() {
        let limit = Duration::from_millis(50);
        let begun = tokio::time::Instant::now();
        let (mut mute, _far) = opened(limit);
        assert_eq!(mute.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= limit);
        let (mut slow, mut far) = opened(limit);
        for _ in 0..OPENING - 1 {
            far.write_u8(b'x').await.unwrap();
            slow.read_u8().await.unwrap();
        }
        assert_eq!(slow.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_has_begun_may_be_silent() {
        let (mut connection, mut far) = opened(Duration::from_millis(1));
        far.write_all(&[b'x'; OPENING]).await.unwrap();
        connection.read_exact(&mut [0; OPENING]).await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(50), connection.read_u8()).await;
        assert!(silent.is_err());
        drop(far);
        assert_eq!(connection.read_u8().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
