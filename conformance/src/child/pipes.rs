//! The child's own ends of its three pipes, without buffers, so that a script decides on every `write`.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{read, retry_on_intr, write};
use rustix::stdio;

/// Writes all bytes to standard output, in as many system calls as the pipe makes of it.
pub(super) fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    write_all(stdio::stdout(), bytes)
}

/// The same for standard error.
pub(super) fn write_stderr(bytes: &[u8]) -> io::Result<()> {
    write_all(stdio::stderr(), bytes)
}

/// Reads what there is on standard input, 0 bytes at its end.
pub(super) fn read_stdin(buffer: &mut [u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| read(stdio::stdin(), &mut *buffer))?)
}

/// Closes our end of standard output: the reader sees its end if no descendant holds it.
pub(super) fn close_stdout() -> io::Result<()> {
    let nothing = OpenOptions::new().write(true).open("/dev/null")?;
    Ok(stdio::dup2_stdout(nothing.as_fd())?)
}

/// Closes our end of standard input: the writer gets a broken pipe.
pub(super) fn close_stdin() -> io::Result<()> {
    let nothing = OpenOptions::new().read(true).open("/dev/null")?;
    Ok(stdio::dup2_stdin(nothing.as_fd())?)
}

fn write_all(pipe: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = retry_on_intr(|| write(pipe, bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}
