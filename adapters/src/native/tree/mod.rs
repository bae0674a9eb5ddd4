//! Processes as `/proc` shows them: who descends from whom, who carries our mark, and how to end exactly those. It holds
//! no state; every answer is true for the moment it was read and checked again before anything is killed.

mod end;
mod origin;
mod stat;

use std::collections::{BTreeMap, BTreeSet};

use self::stat::Stat;

pub(crate) use self::end::sweep_exactly;
pub use self::{
    end::{Killed, Surplus, Swept, await_keepers, end_surplus, is_adopted_by_us, kill, spare_children, sweep},
    origin::{Kind, Unexaminable, is_descendant_or_marked, of_server},
};

/// One process for as long as the machine runs: a pid is given out again, a pid with its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the boot.
    pub start: u64,
}

/// Every process that descends from `root_pid` and runs, without the root itself. Children of any thread count; zombies
/// do not. One pass can miss a process whose parent ended during the pass: who needs certainty looks twice.
#[must_use]
pub fn descendants(root_pid: u32) -> BTreeSet<ProcessId> {
    let all = stat::all();
    below(&all, [root_pid]).into_iter().filter(|stat| stat.runs()).map(Stat::id).collect()
}

/// The name of a process as the kernel has it: at most 15 bytes of its program's, unless it named itself. `None` when it
/// is gone.
#[must_use]
pub fn name(process: ProcessId) -> Option<String> {
    stat::read(process.pid).filter(|stat| stat.id() == process).map(|stat| stat.name)
}

/// The program that a process runs; none when it is gone or somebody else's.
#[must_use]
pub fn program(process: ProcessId) -> Option<std::path::PathBuf> {
    let program = std::fs::read_link(format!("/proc/{}/exe", process.pid)).ok()?;
    alive(&process).then_some(program)
}

/// True while the process runs; a zombie does not.
#[must_use]
pub fn alive(process: &ProcessId) -> bool {
    stat::read(process.pid).is_some_and(|stat| stat.id() == *process && stat.runs())
}

/// All that descends from the roots, zombies too, without the roots unless one descends from another.
fn below(all: &[Stat], roots: impl IntoIterator<Item = u32>) -> Vec<&Stat> {
    let mut children: BTreeMap<u32, Vec<&Stat>> = BTreeMap::new();
    for stat in all {
        children.entry(stat.parent).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut open: Vec<u32> = roots.into_iter().collect();
    while let Some(pid) = open.pop() {
        for child in children.remove(&pid).into_iter().flatten() {
            found.push(child);
            open.push(child.pid);
        }
    }
    found
}

#[cfg(test)]
mod tests;
