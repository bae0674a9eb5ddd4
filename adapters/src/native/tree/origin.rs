//! Where a process comes from: the check on a peer of the daemon's socket (R-SEC-1).

use std::{collections::BTreeSet, fs, process, str};

use thiserror::Error;

use super::{ProcessId, stat};
use crate::native::{environment::MARK_VARIABLE, served};

/// The process, or one that it descends from, cannot be examined, so nothing is proved and the caller refuses it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("process {pid} cannot be examined: {what} of process {at} is gone or unreadable")]
pub struct Unexaminable {
    /// The process that was asked about.
    pub pid: u32,
    /// The one on the way up at which it failed.
    pub at: u32,
    /// What could not be read: `status`, `environment`, or `origin` when the tree changed while it was walked.
    pub what: &'static str,
}

/// True when the process is one of `keepers`, descends from one, or when its environment holds a mark of ours: a value
/// of [`MARK_VARIABLE`] that begins with `mark_prefix`, where the empty prefix fits every mark. The ancestors' marks
/// count as well, where they can be read, since a child may have been given another environment. This process itself is none of these.
///
/// # Errors
/// [`Unexaminable`] when the process or one between it and the first of all is gone, or its own environment cannot be
/// read.
pub fn is_descendant_or_marked(pid: u32, keepers: &BTreeSet<u32>, mark_prefix: &str) -> Result<bool, Unexaminable> {
    // We are no tool of ours, and our own environment is closed to us where others of our user may not read it.
    if pid == process::id() {
        return Ok(false);
    }
    let fail = |at, what| Unexaminable { pid, at, what };
    let first = stat::read(pid).ok_or_else(|| fail(pid, "status"))?;
    let environ = fs::read(format!("/proc/{pid}/environ")).map_err(|_| fail(pid, "environment"))?;
    if is_marked(&environ, mark_prefix) {
        return Ok(true);
    }
    let mut at = first.clone();
    loop {
        if keepers.contains(&at.pid) {
            return Ok(true);
        }
        // Parent 0 is the first process of this machine or container, or one outside of it.
        if at.parent == 0 {
            break;
        }
        let parent = stat::read(at.parent).ok_or_else(|| fail(at.parent, "status"))?;
        // A parent that is younger than its child has taken over the number of the one that ended.
        if parent.start > at.start {
            return Err(fail(at.parent, "origin"));
        }
        if fs::read(format!("/proc/{}/environ", parent.pid)).is_ok_and(|environ| is_marked(&environ, mark_prefix)) {
            return Ok(true);
        }
        at = parent;
    }
    // The whole walk was about the same process, and its line of descent did not change at its lower end.
    match stat::read(pid) {
        Some(again) if again.id() == first.id() && again.parent == first.parent => Ok(false),
        Some(_) | None => Err(fail(pid, "origin")),
    }
}

fn is_marked(environ: &[u8], prefix: &str) -> bool {
    marks(environ).any(|value| value.starts_with(prefix.as_bytes()))
}

/// What a process is to the end of a Turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It may stay.
    Spared,
    /// It is to be ended.
    Surplus,
    /// Its line of descent, or a program in it, changes at this moment, so that it has to be looked at again.
    Changing,
}

/// Whether a process was started by a declared MCP server, by what nobody can give himself: it descends from a child of the agent that was there
/// `before` the Turn and whose environment names one of the `labels`; the agent is the child of the keeper, and was there before as well. A variable
/// alone proves nothing, since whatever the model runs may have it, and neither does a parent that is gone.
#[must_use]
pub fn of_server(process: ProcessId, keeper: u32, before: &BTreeSet<ProcessId>, labels: &BTreeSet<String>) -> Kind {
    if labels.is_empty() {
        return Kind::Surplus;
    }
    let Some(mut at) = stat::read(process.pid).filter(|stat| stat.id() == process) else { return Kind::Changing };
    let mut child = None;
    while at.parent != keeper {
        // It has left the tree that it was found in, or its parent ended while it was looked at.
        let Some(parent) = stat::read(at.parent).filter(|parent| at.parent != 0 && parent.start <= at.start) else {
            return Kind::Changing;
        };
        child = Some(at.id());
        at = parent;
    }
    match child.filter(|child| before.contains(child) && before.contains(&at.id())) {
        Some(server) => is_server(server, labels),
        None => Kind::Surplus,
    }
}

fn is_server(process: ProcessId, labels: &BTreeSet<String>) -> Kind {
    let is_named = |entry: &[u8]| {
        let label = entry.strip_prefix(served::VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        label.and_then(|label| str::from_utf8(label).ok()).is_some_and(|label| labels.contains(label))
    };
    match fs::read(format!("/proc/{}/environ", process.pid)) {
        Ok(environ) if environ.is_empty() && stat::changes_program(process.pid) => Kind::Changing,
        Ok(environ) if environ.split(|byte| *byte == 0).any(is_named) => Kind::Spared,
        Ok(_) | Err(_) => Kind::Surplus,
    }
}

/// The values of the mark's variable in an environment as `/proc` shows it. There may be several.
pub(super) fn marks(environ: &[u8]) -> impl Iterator<Item = &[u8]> {
    environ
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(MARK_VARIABLE.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_variable_is_looked_for_as_a_whole() {
        let environ = format!("A=1\0X{MARK_VARIABLE}=no\0{MARK_VARIABLE}X=no\0{MARK_VARIABLE}=yes.1\0B=2\0");
        assert_eq!(marks(environ.as_bytes()).collect::<Vec<_>>(), [b"yes.1"]);
        assert!(is_marked(environ.as_bytes(), "yes.") && is_marked(environ.as_bytes(), ""));
        assert!(!is_marked(environ.as_bytes(), "no") && !is_marked(b"", ""));
    }
}
