//! A disk that takes no writes, without a disk of one's own: the system's limit on the size of files, set from outside on a daemon that
//! runs. It holds for the daemon alone; native processes that it has started keep their own.

use anyhow::Context;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::process::Command;

use super::{Daemon, Place, program};

impl Daemon {
    /// From now on no file takes a byte.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn fill_disk(&self) -> anyhow::Result<()> {
        self.limit_files(Some(0))
    }

    /// From now on no file takes a byte beyond this size.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn full_beyond(&self, bytes: u64) -> anyhow::Result<()> {
        self.limit_files(Some(bytes))
    }

    /// There is room again.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn free_disk(&self) -> anyhow::Result<()> {
        self.limit_files(None)
    }

    /// Starts a daemon for which no file takes a byte beyond the first 4 KiB, and does not wait for it.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn_on_full_disk(place: &Place) -> anyhow::Result<Self> {
        let mut command = Command::new("sh");
        // The unit is 512 bytes.
        command.args(["-c", r#"ulimit -S -f 8 && exec "$0" "$@""#]).arg(program("runtime-bridge")?);
        Self::spawn_command(command, place)
    }

    fn limit_files(&self, current: Option<u64>) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
        let maximum = getrlimit(Resource::Fsize).maximum;
        let limit = Rlimit { current: current.or(maximum), maximum };
        prlimit(Some(pid), Resource::Fsize, limit).context("limit the daemon's files")?;
        Ok(())
    }
}
