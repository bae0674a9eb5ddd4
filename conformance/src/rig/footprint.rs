//! What a daemon takes of the machine, seen from outside.

use std::fmt;
use std::fs;

use anyhow::Context;

use super::Rig;

/// What a process has at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: u64,
    /// Memory of its own that is resident, in KiB: no files, nothing shared.
    pub memory_kib: u64,
}

impl Footprint {
    /// Looks at a process.
    ///
    /// # Errors
    /// When it is gone or not ours.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("read the process's status")?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok());
            number.with_context(|| format!("no {name} in the process's status"))
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).context("read the process's descriptors")?.count();
        Ok(Self { descriptors, threads: number("Threads")?, memory_kib: number("RssAnon")? })
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptors, threads, memory_kib } = self;
        write!(f, "{descriptors:>4} descriptors, {threads:>3} threads, {memory_kib:>7} KiB")
    }
}

impl Rig {
    /// What the daemon has at this moment.
    ///
    /// # Errors
    /// When it is gone.
    pub fn footprint(&self) -> anyhow::Result<Footprint> {
        Footprint::of(self.daemon.pid())
    }
}
