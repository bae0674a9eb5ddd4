//! Connections: where callers come from, who they are, and the one gRPC server that serves them all. Knows no Session.

mod caller;
mod connection;
mod dial;
pub(crate) mod greeting;
mod loopback;
mod mutual;
mod server;
pub(crate) mod tls;
mod unix;

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

pub(crate) use connection::Connection;
pub(crate) use dial::{Dialler, keep_renewed};
pub(crate) use loopback::LoopbackListener;
pub(crate) use mutual::{MutualListener, examine};
pub(crate) use server::{CONNECTION_WINDOW, MAX_STREAMS, PING, STREAM_WINDOW, Server, serve};
pub(crate) use unix::{BindError, Gate, Listener};

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The principal that a Session belongs to (R-ASG-5).
    pub(crate) principal: String,
    /// What its calls have to carry, where the connection alone does not tell who it is.
    pub(crate) bearer: Option<loopback::Bearer>,
    /// Whether it has the role of an operator.
    pub(crate) operator: bool,
    /// Whether it is the relay, whose calls name the principal (R-ENR-4).
    pub(crate) is_relay: bool,
}

/// What a connection has to do in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The handshake of TLS.
    pub(crate) handshake: Duration,
    /// To begin with HTTP/2.
    pub(crate) opening: Duration,
}

/// An event is not held back to be sent with the next one.
pub(crate) fn at_once(stream: &tokio::net::TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection collects what it sends");
    }
}

/// Between two tries to take a connection where the system refuses one.
const AGAIN: Duration = Duration::from_millis(100);

/// The system gives no connection. Out of descriptors, most likely: what is open goes on, and the next one gets its turn.
pub(crate) async fn refused_by_system(error: &std::io::Error) {
    tracing::error!(%error, "a connection could not be accepted");
    tokio::time::sleep(AGAIN).await;
}

/// How many connections there may be at once: so many, or half as many as the process may have open files where that is less. It opens other files as well.
pub(crate) fn room(most: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
    room_of(most, files)
}

fn room_of(most: usize, files: Option<usize>) -> usize {
    files.map_or(most, |files| most.min(files / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_other_files() {
        for (files, want) in [(None, 4096), (Some(1 << 20), 4096), (Some(1024), 512)] {
            assert_eq!(room_of(4096, files), want);
        }
    }
}
