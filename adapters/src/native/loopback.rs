//! An HTTP server for Harnesses: on loopback, where whatever runs on this machine can connect, so that a stranger costs little and gets nothing. What a request is answered is
//! its owner's.

use std::{fmt::Write as _, future, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use secrecy::SecretString;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time,
};
use tokio_util::sync::CancellationToken;

/// How long a connection may take for the head of its first request: whatever runs on this machine can open one, and holds room for no longer.
const FIRST_HEAD: Duration = Duration::from_secs(10);
/// How long a connection may be without a request, or take for the head of one. Longer than a Harness keeps one for later.
const HEAD: Duration = Duration::from_secs(330);
/// LIMIT: bytes of the head of a request.
pub const HEAD_BYTES: usize = 64 << 10;
/// Between two tries to take a connection where the system refuses one.
const AGAIN: Duration = Duration::from_millis(100);
/// Random bytes of what nobody guesses.
const SECRET_BYTES: usize = 24;

/// 192 random bits, as text: a path or a bearer that nobody guesses.
///
/// # Errors
/// What the system says.
pub fn unguessable() -> io::Result<SecretString> {
    let mut bytes = [0u8; SECRET_BYTES];
    let mut filled = 0;
    while filled < SECRET_BYTES {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    let mut text = String::with_capacity(2 * SECRET_BYTES);
    for byte in bytes {
        // A String can always be written to.
        _ = write!(text, "{byte:02x}");
    }
    Ok(text.into())
}

/// A listener with room for so many connections at once; the next ones wait.
#[derive(Debug)]
pub struct Loopback {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

/// A connection that was taken. Its place is free again when this is dropped.
#[derive(Debug)]
pub struct Taken {
    tcp: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Loopback {
    /// Takes connections of this listener.
    #[must_use]
    pub fn new(listener: TcpListener, connections: usize) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(connections)) }
    }

    /// The next connection; none once it is told to stop.
    pub async fn next(&self, stop: &CancellationToken) -> Option<Taken> {
        let accept = async || {
            // It is never closed.
            let place = Arc::clone(&self.room).acquire_owned().await.ok()?;
            loop {
                match self.listener.accept().await {
                    Ok((tcp, _)) => return Some(Taken { tcp, _place: place }),
                    Err(error) => {
                        tracing::warn!(%error, "a connection of a Harness could not be taken");
                        time::sleep(AGAIN).await;
                    }
                }
            }
        };
        // CANCEL: a connection that is lost here is one of a server that ends.
        stop.run_until_cancelled(accept()).await.flatten()
    }
}

impl Taken {
    /// Serves the connection until its end, or until it is told to stop; an error in place of an answer ends it. Each piece goes on as it comes.
    pub async fn serve<B, E, A>(self, stop: &CancellationToken, answer: impl Fn(Request<Incoming>) -> A)
    where
        A: Future<Output = Result<Response<B>, E>>,
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Self { tcp, _place } = self;
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "a connection collects what it sends");
        }
        let begun = Notify::new();
        let service = service_fn(|request| {
            begun.notify_one();
            answer(request)
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(tcp), service);
        let nothing_came = async {
            if time::timeout(FIRST_HEAD, begun.notified()).await.is_ok() {
                future::pending::<()>().await;
            }
        };
        let served = async {
            // CANCEL: a connection that brought no request is dropped, and with it nothing.
            // ORDER: a request that is there is taken, however late anybody looks.
            tokio::select! {
                biased;
                served = served => if let Err(error) = served {
                    tracing::debug!(%error, "a connection of a Harness broke off");
                },
                () = nothing_came => tracing::debug!("a connection brought no request in its time"),
            }
        };
        stop.run_until_cancelled(served).await;
    }
}
