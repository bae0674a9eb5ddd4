//! One stream of answers, as it comes.

use std::fmt;

use super::Error;

/// The messages of one server stream. Dropping it resets the stream, which cancels nothing in the bridge.
pub struct Messages<T> {
    inner: tonic::Streaming<T>,
}

impl<T> Messages<T> {
    pub(super) fn new(inner: tonic::Streaming<T>) -> Self {
        Self { inner }
    }

    /// The next message, or `None` when the bridge ended the stream with OK. Dropping the future loses no message.
    ///
    /// # Errors
    /// What the bridge refused, or [`Error::Transport`] when the stream is lost.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        self.inner.message().await.map_err(|status| Error::from_status(&status))
    }
}

impl<T> fmt::Debug for Messages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").finish_non_exhaustive()
    }
}
