//! One call of a function: a program that reads the arguments and writes the output.
//!
//! The program is the application's own, so it has this process's environment and folder. It runs in a process group of its own, so that
//! a Ctrl-C of the terminal does not reach it and an end reaches everything that it started.

use std::{
    os::unix::process::ExitStatusExt as _, path::Path, pin::pin, process::ExitStatus, process::Stdio, time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, Command},
    time,
};
use tokio_util::sync::CancellationToken;

/// Largest output in bytes: well below the largest request.
const MAX_OUTPUT_BYTES: usize = 16 * 1024 * 1024;
/// How much of the end of stderr a failed result carries, in bytes.
const ERROR_BYTES: usize = 4 * 1024;
/// How long the pipes of a program that has ended may stay open; what it left running keeps them.
const DRAIN: Duration = Duration::from_secs(1);
/// How long a program has to end by SIGTERM before SIGKILL.
const TERMINATE: Duration = Duration::from_secs(1);

/// What became of a call.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli::run) enum Answer {
    /// The program answered, or cannot.
    Result {
        /// Whether it exited with 0.
        success: bool,
        /// What it wrote to stdout; a failed one may have none.
        output: Option<String>,
        /// What went wrong.
        error: Option<String>,
    },
    /// It was stopped before it answered.
    Stopped,
}

impl Answer {
    pub(in crate::cli::run) fn failed(error: impl Into<String>) -> Self {
        Self::Result { success: false, output: None, error: Some(error.into()) }
    }
}

/// Runs `program` with the arguments on stdin, until it ends or `stop` is cancelled; then everything in its group is ended.
pub(in crate::cli::run) async fn answer(program: &Path, arguments: &str, stop: &CancellationToken) -> Answer {
    let spawned = Command::new(program)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return Answer::failed(format!("{} could not be started: {error}", program.display())),
    };
    let (mut output, mut errors) = (Output::default(), Tail::default());
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let status = {
        let mut pipes = pin!(async {
            tokio::join!(feed(stdin, arguments), output.read(stdout), errors.read(stderr));
        });
        let mut drained = false;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status,
                () = &mut pipes, if !drained => drained = true,
                () = stop.cancelled() => {
                    end(&mut child).await;
                    return Answer::Stopped;
                }
            }
        };
        if !drained {
            // What did not come by now is not the program's own.
            _ = time::timeout(DRAIN, pipes).await;
        }
        status
    };
    match status {
        Ok(status) => judge(status, output, &errors),
        Err(error) => Answer::failed(format!("{}: {error}", program.display())),
    }
}

fn judge(status: ExitStatus, output: Output, errors: &Tail) -> Answer {
    if output.too_large {
        return Answer::failed(format!("the output is larger than {} MiB", MAX_OUTPUT_BYTES / (1024 * 1024)));
    }
    let Ok(text) = String::from_utf8(output.bytes) else {
        return Answer::failed("the output is not UTF-8");
    };
    if status.success() {
        return Answer::Result { success: true, output: Some(text), error: None };
    }
    let error = match (errors.text(), status.code()) {
        (text, _) if !text.trim().is_empty() => text,
        (_, Some(code)) => format!("exit code {code}"),
        (_, None) => format!("killed by signal {}", status.signal().unwrap_or_default()),
    };
    Answer::Result { success: false, output: Some(text).filter(|text| !text.is_empty()), error: Some(error) }
}

/// Ends the whole group of a program that has not been waited for, so its number is still its own.
async fn end(child: &mut Child) {
    signal(child, Signal::TERM);
    if time::timeout(TERMINATE, child.wait()).await.is_err() {
        signal(child, Signal::KILL);
        _ = child.wait().await;
    }
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        // Gone already is as good.
        _ = kill_process_group(pid, signal);
    }
}

async fn feed(stdin: Option<ChildStdin>, arguments: &str) {
    if let Some(mut stdin) = stdin {
        // A program that does not read its arguments is no failure.
        _ = stdin.write_all(arguments.as_bytes()).await;
    }
}

/// What a program wrote to stdout, to a limit.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    too_large: bool,
}

impl Output {
    async fn read(&mut self, pipe: Option<impl AsyncRead + Unpin>) {
        let Some(pipe) = pipe else { return };
        let mut limited = pipe.take(MAX_OUTPUT_BYTES as u64 + 1);
        // Read to the limit and dropped: the program then gets SIGPIPE.
        _ = limited.read_to_end(&mut self.bytes).await;
        self.too_large = self.bytes.len() > MAX_OUTPUT_BYTES;
    }
}

/// The end of what a program wrote to stderr.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    async fn read(&mut self, pipe: Option<impl AsyncRead + Unpin>) {
        let Some(mut pipe) = pipe else { return };
        let mut piece = [0; ERROR_BYTES];
        while let Ok(read @ 1..) = pipe.read(&mut piece).await {
            self.bytes.extend_from_slice(&piece[..read]);
            let surplus = self.bytes.len().saturating_sub(ERROR_BYTES);
            self.bytes.drain(..surplus);
        }
    }

    /// As text; what the cut left of a character at the beginning does not count.
    fn text(&self) -> String {
        let begin = match self.bytes.len() {
            ERROR_BYTES => self.bytes.iter().take(3).take_while(|byte| (**byte & 0xC0) == 0x80).count(),
            _ => 0,
        };
        String::from_utf8_lossy(&self.bytes[begin..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

    use super::*;
    use crate::cli::run::folders::tests::scratch;

    fn script(name: &str, text: &str) -> PathBuf {
        let path = scratch(name).join("script");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    async fn run(name: &str, text: &str, arguments: &str) -> Answer {
        answer(&script(name, text), arguments, &CancellationToken::new()).await
    }

    fn failed(output: Option<&str>, error: &str) -> Answer {
        Answer::Result { success: false, output: output.map(Into::into), error: Some(error.into()) }
    }

    #[tokio::test]
    async fn the_arguments_are_read_and_the_output_is_handed_on() {
        let answered = run("echo", "printf 'got '; cat", "{\"id\": 1e400}\n").await;
        let output = Some("got {\"id\": 1e400}\n".into());
        assert_eq!(answered, Answer::Result { success: true, output, error: None });
    }

    #[tokio::test]
    async fn arguments_that_are_not_read_do_no_harm() {
        let arguments = "x".repeat(1024 * 1024);
        let answered = run("deaf", "exec <&-; echo fine", &arguments).await;
        assert_eq!(answered, Answer::Result { success: true, output: Some("fine\n".into()), error: None });
    }

    #[tokio::test]
    async fn a_failure_tells_the_end_of_stderr() {
        assert_eq!(run("fails", "echo part; echo broken >&2; exit 3", "").await, failed(Some("part\n"), "broken\n"));
        assert_eq!(run("mute", "exit 3", "").await, failed(None, "exit code 3"));
        assert_eq!(run("killed", "kill -9 $$", "").await, failed(None, "killed by signal 9"));
    }

    #[tokio::test]
    async fn only_the_last_4_kib_of_stderr_are_kept() {
        let text = "i=0; while [ $i -lt 3000 ]; do printf 'é' >&2; i=$((i+1)); done; printf end >&2; exit 1";
        let Answer::Result { error: Some(error), .. } = run("long", text, "").await else { panic!("no result") };
        assert_eq!(error, format!("{}end", "é".repeat((ERROR_BYTES - 3) / 2)));
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_started_is_a_failed_result() {
        let answered = answer(Path::new("/none/program"), "", &CancellationToken::new()).await;
        let Answer::Result { success: false, output: None, error: Some(error) } = answered else {
            panic!("{answered:?}")
        };
        assert!(error.starts_with("/none/program could not be started: No such file"), "{error}");
    }

    #[tokio::test]
    async fn an_output_that_no_text_can_carry_is_a_failed_result() {
        assert_eq!(run("binary", r"printf '\377'", "").await, failed(None, "the output is not UTF-8"));
        let answered = run("huge", "head -c 17000000 /dev/zero", "").await;
        assert_eq!(answered, failed(None, "the output is larger than 16 MiB"));
    }

    #[tokio::test]
    async fn what_a_program_leaves_running_does_not_hold_the_answer() {
        let answered = run("leaves", "sleep 30 & echo done", "").await;
        assert_eq!(answered, Answer::Result { success: true, output: Some("done\n".into()), error: None });
    }

    #[tokio::test]
    async fn a_stopped_program_ends_with_everything_it_started() {
        let fifo = scratch("fifo").join("f");
        let made = Command::new("mkfifo").arg(&fifo).status().await.unwrap();
        assert!(made.success());
        // Both hold the writing end, and the one that waits ignores SIGTERM: the reader sees the end only when both are gone.
        let text = format!("exec 3>'{}'; trap '' TERM; sleep 600 & echo up >&3; wait", fifo.display());
        let program = script("stopped", &text);
        let stop = CancellationToken::new();
        let reader = async {
            let mut file = tokio::fs::File::open(&fifo).await.unwrap();
            let mut up = [0; 3];
            file.read_exact(&mut up).await.unwrap();
            stop.cancel();
            let mut rest = Vec::new();
            file.read_to_end(&mut rest).await.unwrap();
        };
        let (answered, ()) = tokio::join!(answer(&program, "", &stop), reader);
        assert_eq!(answered, Answer::Stopped);
    }
}
