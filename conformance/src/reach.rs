//! What a tool that a model runs could try: to call the daemon whose Harness started it (R-SEC-1).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use proto::client::{Client, Endpoint};
use proto::v1;

/// The time between two looks at the parent; there is no bell for its end.
const LOOK: Duration = Duration::from_millis(5);

/// Calls the daemon at this socket. Gives `reached NAME`, or `refused: ` and why.
///
/// # Errors
/// When there is no runtime to call from.
pub fn reach(socket: &Path) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    let call = async {
        let client = Client::connect(Endpoint::Unix(socket.to_owned())).await?;
        client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await
    };
    Ok(match runtime.block_on(call) {
        Ok(info) => format!("reached {}", info.name),
        Err(error) => format!("refused: {error}"),
    })
}

/// Does the same from a process that has left its session, has an empty environment, and whose parent is gone. What came of it is written
/// to the file `out` when all of this is so.
///
/// # Errors
/// When the process cannot be started.
pub fn reach_detached(socket: &Path, out: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.arg("reach").arg(socket).arg("--out").arg(out);
    command.args(["--orphan-of", &std::process::id().to_string()]);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("start the one that is left alone")?;
    Ok(())
}

/// The other half of [`reach_detached`].
///
/// # Errors
/// When the session cannot be left, or the file not be written.
pub fn reach_as_orphan(socket: &Path, parent: u32, out: &Path) -> anyhow::Result<()> {
    rustix::process::setsid().context("leave the session")?;
    let is_orphan =
        || rustix::process::getppid().is_none_or(|pid| u32::try_from(pid.as_raw_nonzero().get()) != Ok(parent));
    while !is_orphan() {
        thread::sleep(LOOK);
    }
    let said = reach(socket)?;
    let aside: PathBuf = out.with_extension("new");
    fs::write(&aside, said).context("write what came of it")?;
    fs::rename(&aside, out).context("write what came of it")
}
