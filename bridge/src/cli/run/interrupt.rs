//! Ctrl-C and SIGTERM as one stream of wishes to stop.

use std::{io, task::Poll};

use futures_util::{Stream, stream};
use tokio::signal::unix::{SignalKind, signal};

/// One item for each signal that comes from now on. A signal that comes while nobody looks is kept.
///
/// # Errors
/// When the handlers cannot be installed.
pub(super) fn signals() -> io::Result<impl Stream<Item = ()> + Unpin> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(stream::poll_fn(move |context| match interrupt.poll_recv(context) {
        Poll::Ready(signal) => Poll::Ready(signal),
        Poll::Pending => terminate.poll_recv(context),
    }))
}
