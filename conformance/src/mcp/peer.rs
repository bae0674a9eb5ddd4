//! Servers of the official SDKs as programs: what a stranger's server is, whatever language it is written in. They have the tools `echo {text}`,
//! `structured` and `environment`, whose results are as each SDK makes them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time;

use super::{Script, Server, WAIT};
use crate::rig::{npm_peer, program, python};

/// An official SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sdk {
    /// For JavaScript.
    Npm,
    /// For Python.
    Python,
    /// For Rust.
    Rust,
}

impl Sdk {
    /// Its name in labels and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Python => "python",
            Self::Rust => "rust",
        }
    }

    /// The program and its arguments that serve over standard input and output.
    ///
    /// # Errors
    /// When what it needs is not installed; the message says how to get it.
    pub fn stdio(self) -> anyhow::Result<(PathBuf, Vec<String>)> {
        match self {
            Self::Rust => Ok((program("runtime-bridge-conformance")?, vec!["mcp-stdio".into()])),
            Self::Npm | Self::Python => self.serving("stdio"),
        }
    }

    fn serving(self, way: &str) -> anyhow::Result<(PathBuf, Vec<String>)> {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let text = |path: PathBuf| path.into_os_string().into_string().ok().context("a path that is not UTF-8");
        match self {
            Self::Npm => Ok((node()?, vec![text(peers.join("npm/server.mjs"))?, text(npm_peer()?)?, way.into()])),
            // It leaves the checkout alone.
            Self::Python => Ok((python()?, vec!["-B".into(), text(peers.join("python/server.py"))?, way.into()])),
            Self::Rust => anyhow::bail!("the SDK for Rust serves in this process"),
        }
    }
}

/// Node, by its whole path: a server's own `PATH` may be another one.
fn node() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("node")).find(|node| node.is_file());
    found.context("no `node` on PATH: it comes with npm, which the README asks for")
}

/// A server of an SDK over HTTP. Dropping it ends it.
#[derive(Debug)]
pub struct Peer {
    url: String,
    // Held for their ends alone.
    _running: Running,
}

#[derive(Debug)]
enum Running {
    Here { _server: Server },
    Process { _child: Child },
}

impl Peer {
    /// Starts a server, and waits until it says where it listens.
    ///
    /// # Errors
    /// When what it needs is not installed, or it says nothing.
    pub async fn start(sdk: Sdk) -> anyhow::Result<Self> {
        if sdk == Sdk::Rust {
            let server = Server::start(Script::default()).await?;
            return Ok(Self { url: server.url(), _running: Running::Here { _server: server } });
        }
        let (program, arguments) = sdk.serving("http")?;
        let mut command = Command::new(program);
        // Its standard error is the test's, whose runner shows it where the test fails.
        command.args(arguments).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("start the MCP server of {}", sdk.name()))?;
        let mut said = BufReader::new(child.stdout.take().context("no output")?).lines();
        let url =
            time::timeout(WAIT, said.next_line()).await.context("the MCP server does not say where it listens")?;
        let url = url?.context("the MCP server ended")?;
        Ok(Self { url, _running: Running::Process { _child: child } })
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}
