//! The server over standard input and output, and how a test makes a call of its tool `slow` wait.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use tokio::net::{UnixListener, UnixStream};
use tokio::time;

use super::{WAIT, tools};

/// How the server over standard input and output behaves.
#[derive(Debug, Args)]
pub struct StdioArgs {
    /// A socket that a call of `slow` connects to; it waits until the connection ends (see [`Gate`]).
    #[arg(long)]
    gate: Option<PathBuf>,
    /// A file to which each start appends one line of JSON: what the tool `environment` tells.
    #[arg(long)]
    starts: Option<PathBuf>,
    /// A file that has to be there when the server starts; else it ends with 1 at once.
    #[arg(long)]
    needs: Option<PathBuf>,
    /// The name of one more tool.
    #[arg(long)]
    more: Vec<String>,
    /// Nothing: arguments to tell of.
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Serves until standard input ends.
///
/// # Errors
/// When the start cannot be told, or the client does not speak the protocol.
pub async fn serve(args: StdioArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.starts {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).context("open the starts")?;
        // One write, so that two starts cannot mix.
        file.write_all(format!("{}\n", tools::environment()).as_bytes()).context("tell of a start")?;
    }
    if let Some(path) = &args.needs {
        anyhow::ensure!(path.exists(), "{} is not there", path.display());
    }
    tools::serve_stdio(args.more, args.gate).await
}

/// Where a call of the tool `slow` of a server over standard input and output arrives.
#[derive(Debug)]
pub struct Gate(UnixListener);

/// A call that waits. Dropping it lets it go on.
#[derive(Debug)]
pub struct Waiting {
    // Held for its end alone.
    _stream: UnixStream,
}

impl Gate {
    /// Listens at this path, which is what `--gate` names.
    ///
    /// # Errors
    /// When there can be no socket.
    pub fn listen(path: &Path) -> anyhow::Result<Self> {
        Ok(Self(UnixListener::bind(path).with_context(|| format!("listen at {}", path.display()))?))
    }

    /// Waits for the next call.
    ///
    /// # Errors
    /// When none comes within 30 s.
    pub async fn called(&self) -> anyhow::Result<Waiting> {
        let accepted = time::timeout(WAIT, self.0.accept()).await.context("nothing called the tool `slow`")?;
        Ok(Waiting { _stream: accepted.context("take a connection")?.0 })
    }
}
