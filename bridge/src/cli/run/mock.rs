//! The bundled provider as a child: a program of its own beside the daemon, so that no part of a fake is in the daemon.

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use proto::v1;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Take},
    process::{Child, ChildStdin, ChildStdout, Command},
    time,
};

/// Name of the program, which is installed beside the daemon.
const PROGRAM: &str = "runtime-bridge-conformance";
/// How long it has to tell its address.
const START: Duration = Duration::from_secs(10);
/// How long it has to end by itself.
const STOP: Duration = Duration::from_secs(2);
/// Longest first line in bytes.
const MAX_LINE_BYTES: u64 = 1024;

/// A provider that runs. It ends with its stdin, so also when this process is gone.
#[derive(Debug)]
pub(super) struct Mock {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Held open, so that whatever else it says does not end it.
    _stdout: Option<BufReader<Take<ChildStdout>>>,
    origin: String,
}

/// Why there is no bundled provider.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The program is not there or cannot be run.
    #[error("--mock needs {}, which cannot be started: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It told no address.
    #[error("--mock: {} told no address, but {line:?}", program.display())]
    NoAddress {
        /// The program.
        program: PathBuf,
        /// Its first line.
        line: String,
    },
}

impl Mock {
    /// Starts the provider that lies beside `daemon`, the path of this program; on a port that the system picks, unless one is given.
    pub(super) async fn start(daemon: &Path, port: u16) -> Result<Self, Error> {
        let program = daemon.with_file_name(PROGRAM);
        let mut child = Command::new(&program)
            .args(["provider", "--port", &port.to_string()])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Error::Start { program: program.clone(), source })?;
        let stdin = child.stdin.take();
        let mut stdout = child.stdout.take().map(|stdout| BufReader::new(stdout.take(MAX_LINE_BYTES)));
        let mut line = String::new();
        if let Some(stdout) = &mut stdout {
            // No line, half a line and no text are all no address.
            _ = time::timeout(START, stdout.read_line(&mut line)).await;
        }
        match origin(&line) {
            Some(origin) => Ok(Self { child, stdin, _stdout: stdout, origin }),
            None => Err(Error::NoAddress { program, line: line.trim().into() }),
        }
    }

    /// Where a Harness sends its requests: it speaks each protocol on one port.
    pub(super) fn base_url(&self, protocol: v1::ModelProtocol) -> String {
        match protocol {
            // A Harness that speaks it adds the whole path.
            v1::ModelProtocol::Messages => self.origin.clone(),
            v1::ModelProtocol::Responses | v1::ModelProtocol::ChatCompletions | v1::ModelProtocol::Unspecified => {
                format!("{}/v1", self.origin)
            }
        }
    }

    /// Ends it.
    pub(super) async fn stop(mut self) {
        drop(self.stdin.take());
        if time::timeout(STOP, self.child.wait()).await.is_err() {
            // It cannot be ended any harder.
            _ = self.child.kill().await;
        }
    }
}

/// The port of a base address, 0 where it has none.
pub(super) fn port(base_url: &str) -> u16 {
    let address = base_url.trim_start_matches("http://").trim_end_matches("/v1");
    address.parse::<std::net::SocketAddr>().map_or(0, |address| address.port())
}

/// The scheme, host and port in the first line, which is an address with or without `http://` and with or without the path.
fn origin(line: &str) -> Option<String> {
    let word = line.split_whitespace().last()?.trim_end_matches('/');
    let address = word.strip_prefix("http://").unwrap_or(word);
    let host = address.strip_suffix("/v1").unwrap_or(address);
    host.parse::<std::net::SocketAddr>().ok()?;
    Some(format!("http://{host}"))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::cli::run::folders::tests::scratch;

    fn program(name: &str, text: &str) -> PathBuf {
        let path = scratch(name).join(PROGRAM);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path.with_file_name("runtime-bridge")
    }

    #[test]
    fn the_first_line_has_the_address() {
        for (line, url) in [
            ("http://127.0.0.1:4711/v1\n", Some("http://127.0.0.1:4711")),
            ("http://127.0.0.1:4711\n", Some("http://127.0.0.1:4711")),
            ("listening on 127.0.0.1:4711\n", Some("http://127.0.0.1:4711")),
            ("", None),
            ("ready\n", None),
        ] {
            assert_eq!(origin(line).as_deref(), url, "{line:?}");
        }
        assert_eq!(port("http://127.0.0.1:4711/v1"), 4711);
        assert_eq!(port("http://127.0.0.1:4711"), 4711);
        assert_eq!(port("https://api.example.com/v1"), 0);
    }

    #[tokio::test]
    async fn a_provider_ends_with_its_stdin() {
        let daemon = program("mock", "[ \"$*\" = 'provider --port 0' ] && echo http://127.0.0.1:1; cat >/dev/null");
        let mock = Mock::start(&daemon, 0).await.unwrap();
        assert_eq!(mock.base_url(v1::ModelProtocol::Responses), "http://127.0.0.1:1/v1");
        assert_eq!(mock.base_url(v1::ModelProtocol::Messages), "http://127.0.0.1:1");
        time::timeout(STOP / 2, mock.stop()).await.unwrap();
    }

    #[tokio::test]
    async fn a_missing_provider_is_named() {
        let daemon = scratch("no-mock").join("runtime-bridge");
        let error = Mock::start(&daemon, 0).await.unwrap_err().to_string();
        assert!(error.contains("/runtime-bridge-conformance, which cannot be started: No such file"), "{error}");
    }

    #[tokio::test]
    async fn a_provider_without_an_address_is_an_error() {
        let error = Mock::start(&program("odd-mock", "echo hello"), 0).await.unwrap_err().to_string();
        assert!(error.ends_with("told no address, but \"hello\""), "{error}");
    }
}
