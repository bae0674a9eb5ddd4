//! A double of MiniMax Code 0.4.12: the program `mcode`, which speaks the Agent Client Protocol over its three pipes and runs a tool loop of its own
//! against the model provider and the MCP servers that it is told of. What it does and why stands in `MCODE.md`. It knows nothing of the bridge.

mod ask;
mod config;
mod faults;
mod history;
mod http;
mod install;
mod lines;
mod model;
mod prompt;
mod serve;
mod servers;
mod session;
mod tools;
mod turn;
mod wire;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;

pub use faults::{ExitAt, Faults, Leaves, Settles, Steers};
pub use install::{install, received, set_faults, starts};

use crate::child::Keep;

/// The name of the program.
const NAME: &str = "mcode";

/// What `--version` says.
pub const VERSION: &str = "0.4.12";

/// Runs the double where this process was started under its name; the folder of the program has the faults.
///
/// # Errors
/// When it cannot be run.
pub fn as_itself() -> Option<anyhow::Result<ExitCode>> {
    let mut arguments = std::env::args_os();
    let named = arguments.next().is_some_and(|name| Path::new(&name).file_name().is_some_and(|name| name == NAME));
    named.then(|| {
        let arguments: Option<Vec<String>> = arguments.map(OsString::into_string).map(Result::ok).collect();
        let program = std::env::current_exe().context("find this program")?;
        run(&arguments.context("arguments that are not UTF-8")?, program.parent())
    })
}

/// Runs the double with the arguments that MiniMax Code would get. The folder has its faults, and keeps how it was started.
///
/// # Errors
/// When the faults or the configuration cannot be read.
pub fn run(arguments: &[String], folder: Option<&Path>) -> anyhow::Result<ExitCode> {
    let faults = folder.map(Faults::beside).transpose()?.unwrap_or_default();
    // A folder that may not be written, such as another user's, keeps nothing.
    let keep = folder.and_then(|folder| Keep::open(Some(&install::kept(folder)), arguments).ok());
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--version" | "-v"] => {
            let version = faults.version.as_deref().unwrap_or(VERSION);
            writeln!(std::io::stdout(), "{version}").context("say the version")?;
            Ok(ExitCode::SUCCESS)
        }
        ["acp"] => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let code = runtime.context("start a runtime")?.block_on(serve::serve(faults, keep, data()?))?;
            // Reads of standard input and what a Turn left behind are of no interest any more.
            std::process::exit(i32::from(code));
        }
        _ => {
            writeln!(std::io::stderr(), "{NAME} knows `acp` and `--version`, not {arguments:?}").context("say it")?;
            Ok(ExitCode::from(2))
        }
    }
}

/// The data folder.
fn data() -> anyhow::Result<PathBuf> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty()).map(PathBuf::from);
    set("MINIMAX_DATA_DIR")
        .or_else(|| set("MAVIS_DATA_DIR"))
        .or_else(|| set("HOME").map(|home| home.join(".minimax")))
        .context("neither MINIMAX_DATA_DIR nor HOME is set")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line on standard error.
fn note(text: &str) {
    // Nobody may be listening.
    _ = writeln!(std::io::stderr(), "{text}");
}

/// An id that nothing else has.
fn fresh(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::now_v7().simple())
}
