//! Lines of standard input, as inputs for the running Turn.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use futures_util::{Stream, stream};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::getpgrp,
    termios,
};
use tokio::io::{Interest, unix::AsyncFd};

use super::arguments::Steering;

/// Longest line in bytes: as many characters as an input may have, four bytes each.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;
/// How much is read at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// The lines that are inputs; none where nobody can type them.
///
/// A terminal is read only by the job in its foreground: any other would be stopped by it.
pub(super) fn lines(steering: Steering) -> impl Stream<Item = Result<String, io::Error>> + Unpin {
    let stdin = io::stdin();
    let is_ours = || termios::tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == getpgrp());
    let is_read = match steering {
        Steering::Never => false,
        Steering::Typed => is_ours(),
        Steering::Always => !termios::isatty(&stdin) || is_ours(),
    };
    let reader = is_read.then(|| Lines::new(stdin));
    Box::pin(stream::unfold(reader, async |reader| {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(line)) => Some((Ok(line), Some(reader))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// Lines of something that is read when it has something, never ahead of that: a reader on a thread would outlive the run.
#[derive(Debug)]
struct Lines<F: AsFd + AsRawFd> {
    source: Source<F>,
    /// What was read and not given out.
    rest: Vec<u8>,
    is_over: bool,
}

#[derive(Debug)]
enum Source<F: AsFd + AsRawFd> {
    /// A terminal, a pipe or a socket tells when it can be read.
    Waits(AsyncFd<F>),
    /// A file always can.
    File(F),
}

impl<F: AsFd + AsRawFd> Lines<F> {
    fn new(source: F) -> Self {
        let source = match AsyncFd::try_with_interest(source, Interest::READABLE) {
            Ok(source) => Source::Waits(source),
            Err(error) => Source::File(error.into_parts().0),
        };
        Self { source, rest: Vec::new(), is_over: false }
    }

    /// The next line with something in it. Dropping the future loses nothing.
    async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            let end = self.rest.iter().position(|byte| *byte == b'\n');
            let line: Vec<u8> = match end {
                Some(end) => self.rest.drain(..=end).collect(),
                None if self.is_over => self.rest.drain(..).collect(),
                None if self.rest.len() >= MAX_LINE_BYTES => return Err(io::Error::other("a line is too long")),
                None => {
                    let read = self.source.read().await?;
                    self.is_over = read.is_empty();
                    self.rest.extend(read);
                    continue;
                }
            };
            let line = String::from_utf8(line).map_err(|_| io::Error::other("a line is not UTF-8"))?;
            match line.trim() {
                "" if self.is_over && self.rest.is_empty() => return Ok(None),
                "" => {}
                line => return Ok(Some(line.to_owned())),
            }
        }
    }
}

impl<F: AsFd + AsRawFd> Source<F> {
    /// What is there, as soon as there is something; nothing at the end.
    async fn read(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Waits(source) => source.async_io(Interest::READABLE, |source| chunk(source, true)).await,
            Self::File(source) => chunk(source, false),
        }
    }
}

/// Reads once. The file description is shared with whoever started this, so it stays in its blocking mode, and is asked first.
fn chunk(source: &impl AsFd, may_wait: bool) -> io::Result<Vec<u8>> {
    let mut asked = [PollFd::new(source, PollFlags::IN)];
    if may_wait && poll(&mut asked, Some(&Timespec::default()))? == 0 {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let mut chunk = vec![0; CHUNK_BYTES];
    let read = rustix::io::read(source, &mut *chunk)?;
    chunk.truncate(read);
    Ok(chunk)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::Write as _,
    };

    use super::*;
    use crate::cli::run::folders::tests::scratch;

    #[tokio::test]
    async fn lines_of_a_pipe_come_one_by_one() {
        let (read, mut write) = io::pipe().unwrap();
        let mut lines = Lines::new(read);
        write.write_all(b"one\n\n  two \nthr").unwrap();
        assert_eq!(lines.next().await.unwrap().as_deref(), Some("one"));
        assert_eq!(lines.next().await.unwrap().as_deref(), Some("two"));
        // The rest of a line is waited for, and a wait that is given up loses nothing.
        assert!(futures_util::FutureExt::now_or_never(lines.next()).is_none());
        write.write_all(b"ee\nfour").unwrap();
        assert_eq!(lines.next().await.unwrap().as_deref(), Some("three"));
        drop(write);
        assert_eq!(lines.next().await.unwrap().as_deref(), Some("four"));
        assert_eq!(lines.next().await.unwrap(), None);
        assert_eq!(lines.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn more_than_is_read_at_once_comes_whole() {
        let (read, mut write) = io::pipe().unwrap();
        let long = "x".repeat(3 * CHUNK_BYTES + 1);
        let text = format!("{long}\nshort");
        let writer = std::thread::spawn(move || write.write_all(text.as_bytes()).unwrap());
        let mut lines = Lines::new(read);
        assert_eq!(lines.next().await.unwrap(), Some(long));
        assert_eq!(lines.next().await.unwrap().as_deref(), Some("short"));
        writer.join().unwrap();
    }

    #[tokio::test]
    async fn a_file_is_read_to_its_end() {
        let path = scratch("typed").join("lines");
        fs::write(&path, "a\n \nb\n").unwrap();
        let mut lines = Lines::new(File::open(&path).unwrap());
        assert_eq!(lines.next().await.unwrap().as_deref(), Some("a"));
        assert_eq!(lines.next().await.unwrap().as_deref(), Some("b"));
        assert_eq!(lines.next().await.unwrap(), None);
        fs::write(&path, b"\xff\n").unwrap();
        assert!(Lines::new(File::open(&path).unwrap()).next().await.is_err());
    }
}
