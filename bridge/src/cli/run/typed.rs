//! Lines of standard input, as inputs for the running Turn.

use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::AsFd,
    task::{Context, Poll},
    thread,
};

use futures_util::{Stream, stream};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::getpgrp,
    termios,
};
use tokio::sync::mpsc;

use super::arguments::Steering;

/// Longest line in bytes: as many characters as an input may have, four bytes each.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;
/// How much is read at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// Lines that are read ahead. The rest stays where it is until the bridge has taken these.
const AHEAD: usize = 1;

/// What a line is, or why there are no more.
type Line = io::Result<String>;

/// The lines that are inputs; none where nobody can type them.
///
/// A terminal is read only by the job in its foreground: any other would be stopped by it.
///
/// # Errors
/// When the system has no thread or no pipe left.
pub(super) fn lines(steering: Steering) -> io::Result<impl Stream<Item = Line> + Unpin> {
    let stdin = io::stdin();
    let is_ours = || termios::tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == getpgrp());
    let is_read = match steering {
        Steering::Never => false,
        Steering::Typed => is_ours(),
        Steering::Always => !termios::isatty(&stdin) || is_ours(),
    };
    let mut lines = if is_read { Some(Lines::start(stdin)?) } else { None };
    Ok(stream::poll_fn(move |context| match &mut lines {
        Some(lines) => lines.poll_next(context),
        None => Poll::Ready(None),
    }))
}

/// A thread that reads lines, and ends when this is dropped. A runtime's own reader of stdin would wait for one more line.
#[derive(Debug)]
struct Lines {
    lines: mpsc::Receiver<Line>,
    /// Its end ends the thread's wait.
    held: Option<PipeWriter>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Lines {
    fn start(source: impl AsFd + Send + 'static) -> io::Result<Self> {
        let (sender, lines) = mpsc::channel(AHEAD);
        let (end, held) = io::pipe()?;
        let thread = thread::Builder::new().name("stdin".into()).spawn(move || read(&source, &end, &sender))?;
        Ok(Self { lines, held: Some(held), thread: Some(thread) })
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Line>> {
        self.lines.poll_recv(context)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.lines.close();
        drop(self.held.take());
        if let Some(thread) = self.thread.take() {
            // It waits for nothing any more. A panic of it is nothing to tell.
            _ = thread.join();
        }
    }
}

/// Reads until the end of the source, of `end`, or of whoever takes the lines.
fn read(source: &impl AsFd, end: &PipeReader, lines: &mpsc::Sender<Line>) {
    let mut rest = Vec::new();
    loop {
        let chunk = match chunk(source, end) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return,
            Err(error) => {
                _ = lines.blocking_send(Err(error));
                return;
            }
        };
        let is_over = chunk.is_empty();
        rest.extend(chunk);
        while let Some(line) = next(&mut rest, is_over).transpose() {
            let is_broken = line.is_err();
            if lines.blocking_send(line).is_err() || is_broken {
                return;
            }
        }
        if is_over {
            return;
        }
    }
}

/// What the source has, as soon as it has something, and nothing at its end; `None` when the other one has ended before.
fn chunk(source: &impl AsFd, end: &PipeReader) -> io::Result<Option<Vec<u8>>> {
    let mut asked = [PollFd::new(end, PollFlags::IN), PollFd::new(source, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut asked, None))?;
    if !asked[0].revents().is_empty() {
        return Ok(None);
    }
    let mut chunk = vec![0; CHUNK_BYTES];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(source, &mut *chunk))?;
    chunk.truncate(read);
    Ok(Some(chunk))
}

/// Takes the next line that has something in it.
fn next(rest: &mut Vec<u8>, is_over: bool) -> io::Result<Option<String>> {
    loop {
        let line: Vec<u8> = match rest.iter().position(|byte| *byte == b'\n') {
            Some(end) => rest.drain(..=end).collect(),
            None if is_over && !rest.is_empty() => std::mem::take(rest),
            None if rest.len() >= MAX_LINE_BYTES => return Err(io::Error::other("a line is too long")),
            None => return Ok(None),
        };
        let line = String::from_utf8(line).map_err(|_| io::Error::other("a line is not UTF-8"))?;
        if !line.trim().is_empty() {
            return Ok(Some(line.trim().to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::Write as _,
    };

    use super::*;
    use crate::cli::run::folders::tests::scratch;

    async fn next(lines: &mut Lines) -> Option<String> {
        lines.lines.recv().await.transpose().unwrap()
    }

    #[tokio::test]
    async fn lines_of_a_pipe_come_one_by_one_and_the_reader_ends_without_one() {
        let (read, mut write) = io::pipe().unwrap();
        let mut lines = Lines::start(read).unwrap();
        write.write_all(b"one\n\n  two \nthr").unwrap();
        assert_eq!(next(&mut lines).await.as_deref(), Some("one"));
        assert_eq!(next(&mut lines).await.as_deref(), Some("two"));
        write.write_all(b"ee\nfour").unwrap();
        assert_eq!(next(&mut lines).await.as_deref(), Some("three"));
        drop(write);
        assert_eq!(next(&mut lines).await.as_deref(), Some("four"));
        assert_eq!(next(&mut lines).await, None);

        // One that waits for a line, and one whose lines nobody takes.
        let (read, mut write) = io::pipe().unwrap();
        let lines = Lines::start(read).unwrap();
        drop(lines);
        assert!(write.write_all(b"nobody reads").is_err());
        let (read, mut write) = io::pipe().unwrap();
        let lines = Lines::start(read).unwrap();
        write.write_all(b"1\n2\n3\n4\n").unwrap();
        drop(lines);
    }

    #[tokio::test]
    async fn more_than_is_read_at_once_comes_whole() {
        let (read, mut write) = io::pipe().unwrap();
        let long = "x".repeat(3 * CHUNK_BYTES + 1);
        let text = format!("{long}\nshort");
        let writer = thread::spawn(move || write.write_all(text.as_bytes()).unwrap());
        let mut lines = Lines::start(read).unwrap();
        assert_eq!(next(&mut lines).await, Some(long));
        assert_eq!(next(&mut lines).await.as_deref(), Some("short"));
        writer.join().unwrap();
    }

    #[tokio::test]
    async fn a_file_is_read_to_its_end_and_what_is_no_text_ends_it() {
        let path = scratch("typed").join("lines");
        fs::write(&path, "a\n \nb\n").unwrap();
        let mut lines = Lines::start(File::open(&path).unwrap()).unwrap();
        assert_eq!(next(&mut lines).await.as_deref(), Some("a"));
        assert_eq!(next(&mut lines).await.as_deref(), Some("b"));
        assert_eq!(next(&mut lines).await, None);
        fs::write(&path, b"\xff\nb\n").unwrap();
        let mut lines = Lines::start(File::open(&path).unwrap()).unwrap();
        assert!(lines.lines.recv().await.unwrap().is_err());
        assert_eq!(next(&mut lines).await, None);
    }

    #[test]
    fn a_line_has_a_limit() {
        let mut rest = vec![b'x'; MAX_LINE_BYTES - 1];
        assert!(super::next(&mut rest, false).unwrap().is_none());
        rest.push(b'x');
        assert!(super::next(&mut rest, false).is_err());
    }
}
