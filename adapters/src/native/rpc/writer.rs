//! The one writer of a native process's stdin. A process that stops reading blocks this task and nothing else.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use thiserror::Error;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How many lines may wait: far more than a Turn writes in one go. When it is full a sender waits or is refused; a
/// process that has left so much unread is not going to read it soon.
const QUEUE: usize = 256;
/// Lines are put together for one write up to this size; a longer one is written from where it is.
const TOGETHER: usize = 64 << 10;
/// How long a write may make no progress once the writer was told to close.
const PATIENCE: Duration = Duration::from_millis(100);

/// Queues lines for the stdin of a native process. Clones share the queue; when the last one is gone, stdin is closed
/// after what is queued.
#[derive(Clone, Debug)]
pub struct Writer {
    queue: mpsc::Sender<Queued>,
    closing: CancellationToken,
}

/// Why a line was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// Too many lines wait. Nothing of this one was written.
    #[error("queue to the native process is full")]
    Full,
    /// Stdin is closed. Nothing of this line was written.
    #[error("stdin of the native process is closed")]
    Closed,
    /// The pipe broke or was closed in the middle. The process may have read the line or a part of it.
    #[error("stdin of the native process broke in the middle of a write")]
    Broken,
}

/// Resolves when a line was written and flushed, or with the reason why it was not.
#[derive(Debug)]
#[must_use = "the line is sent anyway, but nobody learns whether it was written"]
pub struct Notice(oneshot::Receiver<Result<(), SendError>>);

impl Writer {
    /// Starts the task that owns `stdin`, on the caller's tracker. It ends when the writer is closed, when all clones of
    /// the writer are gone, or when the process no longer reads.
    pub fn start(stdin: impl AsyncWrite + Send + Unpin + 'static, tasks: &TaskTracker) -> Self {
        let (queue, lines) = mpsc::channel(QUEUE);
        let closing = CancellationToken::new();
        tasks.spawn(Pump { stdin, closing: closing.clone(), buffer: Vec::new() }.run(lines));
        Self { queue, closing }
    }

    /// Queues a line, which has its newline already, if there is room now.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::Closed`].
    pub fn try_send(&self, line: Bytes) -> Result<(), SendError> {
        self.queue(line, None)
    }

    /// Queues a line as soon as there is room. Cancel safe: the line is queued or it is not.
    ///
    /// # Errors
    /// [`SendError::Closed`].
    pub async fn send(&self, line: Bytes) -> Result<(), SendError> {
        // ORDER: close is asked first, so that nothing is queued behind it.
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(SendError::Closed),
            room = self.queue.reserve() => room.map(|room| room.send(Queued { line, done: None })).map_err(|_| SendError::Closed),
        }
    }

    /// Queues a line, if there is room now, and tells when it was written and flushed.
    pub fn send_noticed(&self, line: Bytes) -> Notice {
        let (done, notice) = oneshot::channel();
        // A refused line gives `done` back to nobody, so the reason goes through a second one.
        match self.queue(line, Some(done)) {
            Ok(()) => Notice(notice),
            Err(refused) => {
                let (done, notice) = oneshot::channel();
                let _ = done.send(Err(refused));
                Notice(notice)
            }
        }
    }

    /// Closes stdin after what is queued, or at once when the process does not read. Later lines are refused.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// True once lines are refused.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closing.is_cancelled() || self.queue.is_closed()
    }

    fn queue(&self, line: Bytes, done: Option<Done>) -> Result<(), SendError> {
        if self.closing.is_cancelled() {
            return Err(SendError::Closed);
        }
        self.queue.try_send(Queued { line, done }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SendError::Full,
            mpsc::error::TrySendError::Closed(_) => SendError::Closed,
        })
    }
}

impl Future for Notice {
    type Output = Result<(), SendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // The task answers each line that it took; one that vanished without a word may have been written.
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(SendError::Broken)))
    }
}

type Done = oneshot::Sender<Result<(), SendError>>;

#[derive(Debug)]
struct Queued {
    line: Bytes,
    done: Option<Done>,
}

struct Pump<W> {
    stdin: W,
    closing: CancellationToken,
    buffer: Vec<u8>,
}

impl<W: AsyncWrite + Unpin> Pump<W> {
    async fn run(mut self, mut lines: mpsc::Receiver<Queued>) {
        let closing = self.closing.clone();
        let mut batch = Vec::new();
        loop {
            let taken = tokio::select! {
                biased;
                taken = lines.recv_many(&mut batch, QUEUE) => taken,
                () = closing.cancelled(), if !lines.is_closed() => {
                    lines.close();
                    continue;
                }
            };
            if taken == 0 {
                break;
            }
            if let Err(error) = self.write(&mut batch).await {
                tracing::debug!(%error, "stdin of a native process is gone");
                lines.close();
                answer(batch.drain(..), Err(SendError::Closed));
                while let Some(left) = lines.recv().await {
                    answer([left], Err(SendError::Closed));
                }
                break;
            }
        }
        // Dropping stdin closes it.
    }

    /// Writes the batch. On an error what is left in it was not begun.
    async fn write(&mut self, batch: &mut Vec<Queued>) -> io::Result<()> {
        while !batch.is_empty() {
            self.buffer.clear();
            let mut count = 0;
            for queued in batch.iter() {
                if count > 0 && self.buffer.len() + queued.line.len() > TOGETHER {
                    break;
                }
                count += 1;
                if queued.line.len() > TOGETHER {
                    break;
                }
                self.buffer.extend_from_slice(&queued.line);
            }
            #[cfg(failpoints)]
            for queued in batch.iter().take(count) {
                crate::failpoint::native(&queued.line, crate::failpoint::When::Before)?;
            }
            let whole = batch[0].line.clone();
            let text = if self.buffer.is_empty() { &whole[..] } else { &self.buffer[..] };
            let (written, result) = write_all(&mut self.stdin, text, &self.closing).await;
            if let Err(error) = result {
                let mut start = 0;
                let begun = batch.iter().take_while(|queued| {
                    let begun = start < written;
                    start += queued.line.len();
                    begun
                });
                let begun = begun.count();
                answer(batch.drain(..begun), Err(SendError::Broken));
                return Err(error);
            }
            #[cfg(failpoints)]
            for queued in batch.iter().take(count) {
                crate::failpoint::native(&queued.line, crate::failpoint::When::After)?;
            }
            answer(batch.drain(..count), Ok(()));
        }
        // An idle Session holds no buffer.
        self.buffer = Vec::new();
        Ok(())
    }
}

fn answer(queued: impl IntoIterator<Item = Queued>, outcome: Result<(), SendError>) {
    for done in queued.into_iter().filter_map(|queued| queued.done) {
        // The sender may have stopped caring.
        let _ = done.send(outcome);
    }
}

/// Writes and flushes; says how much went out in any case.
async fn write_all(
    stdin: &mut (impl AsyncWrite + Unpin),
    text: &[u8],
    closing: &CancellationToken,
) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < text.len() {
        // CANCEL: a write that loses the race has written nothing.
        let attempt = stdin.write(&text[written..]);
        let progress = if closing.is_cancelled() {
            time::timeout(PATIENCE, attempt).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        } else {
            tokio::select! {
                progress = attempt => progress,
                () = closing.cancelled() => continue,
            }
        };
        match progress {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) => return (written, Err(error)),
        }
    }
    (written, stdin.flush().await)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

    use super::*;

    fn line(text: &str) -> Bytes {
        Bytes::from(format!("{text}\n"))
    }

    #[tokio::test]
    async fn lines_arrive_whole_and_in_order() {
        let tasks = TaskTracker::new();
        let (ours, theirs) = tokio::io::duplex(16);
        let writer = Writer::start(ours, &tasks);
        let big = "x".repeat(3 * TOGETHER);
        for text in ["one", "two", &big, "three"] {
            writer.try_send(line(text)).unwrap();
        }
        writer.close();
        assert_eq!(writer.try_send(line("late")), Err(SendError::Closed));
        assert_eq!(writer.send(line("late")).await, Err(SendError::Closed));
        assert_eq!(writer.send_noticed(line("late")).await, Err(SendError::Closed));
        let mut read = Vec::new();
        let mut lines = BufReader::new(theirs).lines();
        while let Some(text) = lines.next_line().await.unwrap() {
            read.push(text);
        }
        assert_eq!(read, ["one", "two", &*big, "three"]);
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn a_notice_comes_with_the_write_and_not_before() {
        let tasks = TaskTracker::new();
        let (ours, mut theirs) = tokio::io::duplex(4);
        let writer = Writer::start(ours, &tasks);
        let mut notice = writer.send_noticed(line("longer than the pipe"));
        tokio::select! {
            biased;
            early = &mut notice => panic!("{early:?}"),
            () = tokio::task::yield_now() => {}
        }
        let mut read = vec![0; 21];
        theirs.read_exact(&mut read).await.unwrap();
        assert_eq!(notice.await, Ok(()));
    }

    #[tokio::test]
    async fn a_process_that_does_not_read_fills_the_queue_and_close_does_not_wait_for_it() {
        let tasks = TaskTracker::new();
        let (ours, mut theirs) = tokio::io::duplex(4);
        let writer = Writer::start(ours, &tasks);
        let first = writer.send_noticed(line("blocked"));
        // The first line is being written when its beginning arrives.
        let mut begun = [0; 1];
        theirs.read_exact(&mut begun).await.unwrap();
        let mut queued = Vec::new();
        while writer.try_send(line("more")).is_ok() {
            queued.push(());
        }
        assert_eq!(queued.len(), QUEUE);
        assert_eq!(writer.send_noticed(line("more")).await, Err(SendError::Full));
        writer.close();
        assert_eq!(first.await, Err(SendError::Broken));
        tasks.close();
        tasks.wait().await;
        let mut rest = String::new();
        theirs.read_to_string(&mut rest).await.unwrap();
        assert!("locked\n".starts_with(&rest), "{rest}");
    }

    #[tokio::test]
    async fn a_broken_pipe_tells_what_was_begun_and_what_was_not() {
        let tasks = TaskTracker::new();
        let (ours, mut theirs) = tokio::io::duplex(4);
        let writer = Writer::start(ours, &tasks);
        let first = writer.send_noticed(line("begun"));
        let mut begun = [0; 1];
        theirs.read_exact(&mut begun).await.unwrap();
        let second = writer.send_noticed(line("not begun"));
        drop(theirs);
        assert_eq!(first.await, Err(SendError::Broken));
        assert_eq!(second.await, Err(SendError::Closed));
        tasks.close();
        tasks.wait().await;
        assert!(writer.is_closed());
        assert_eq!(writer.try_send(line("late")), Err(SendError::Closed));
    }

    #[tokio::test]
    async fn dropping_the_last_writer_closes_stdin_after_what_is_queued() {
        let tasks = TaskTracker::new();
        let (ours, mut theirs) = tokio::io::duplex(64);
        let writer = Writer::start(ours, &tasks);
        writer.send(line("last")).await.unwrap();
        drop(writer.clone());
        drop(writer);
        let mut read = String::new();
        theirs.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "last\n");
        tasks.close();
        tasks.wait().await;
    }
}
