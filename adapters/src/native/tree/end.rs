//! Ending processes: one by its id, what a Turn left behind, and what an earlier daemon left behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, process,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, child_subreaper, kill_process, pidfd_open, pidfd_send_signal, waitpid,
    },
};
use tokio::{task, time};

use super::{Kind, ProcessId, alive, below, stat, stat::Stat};
use crate::native::environment::Mark;

/// The first part of the keeper's name: the kernel keeps 15 bytes.
const KEEPER_NAME: &str = "runtime-bridge-";
/// Between two looks at what is left, at first; it doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// What became of a KILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killed {
    /// The signal was sent.
    Sent,
    /// The process was gone already.
    Gone,
    /// The process is not ours to signal, or the system has no way to do it safely.
    Refused,
}

/// What [`end_surplus`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surplus {
    /// Processes that were killed and are gone.
    pub ended: u32,
    /// Processes that are still there.
    pub left: u32,
}

/// What [`sweep`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Processes that were killed and are gone.
    pub ended: u32,
    /// Processes that are still there.
    pub left: u32,
}

/// Sends KILL to exactly this process: it is held by a pidfd, and its start time is read after the pidfd was opened.
pub fn kill(target: &ProcessId) -> Killed {
    let Some(pid) = i32::try_from(target.pid).ok().and_then(Pid::from_raw) else { return Killed::Refused };
    let outcome = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(_) if !alive(target) => return Killed::Gone,
        Ok(held) => pidfd_send_signal(held, Signal::KILL),
        // A system without pidfds: the start time alone must do.
        Err(Errno::NOSYS) if !alive(target) => return Killed::Gone,
        Err(Errno::NOSYS) => kill_process(pid, Signal::KILL),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => Killed::Sent,
        Err(Errno::SRCH) => Killed::Gone,
        Err(_) => Killed::Refused,
    }
}

/// Ends every descendant of `root_pid` that was not there `before` and is of that kind, by its name, as the kernel has it (at
/// most 15 bytes), and its id: the Harness's own helper programs are spared, and what declared MCP servers start. Looks again until two looks in a row
/// find nothing, neither a process that runs nor one that died since the look before, or until `limit` (R-CAN-2): of a chain
/// in which each starts the next one and ends, a look may meet nothing but the dead.
pub async fn end_surplus(
    root_pid: u32,
    before: &BTreeSet<ProcessId>,
    kind: impl Fn(&str, ProcessId) -> Kind + Send,
    limit: Duration,
) -> Surplus {
    let deadline = Instant::now() + limit;
    let (mut killed, mut dead) = (BTreeSet::new(), BTreeSet::new());
    let mut quiet = 0;
    let mut pause = PAUSE;
    loop {
        // Thousands of processes take some milliseconds, which is too long for a thread that serves others.
        let all = task::spawn_blocking(stat::all).await.unwrap_or_else(|_| stat::all());
        let tree = below(&all, [root_pid]);
        let (mut surplus, mut changing) = (BTreeSet::new(), BTreeSet::new());
        for stat in tree.iter().filter(|stat| stat.runs() && !before.contains(&stat.id())) {
            match kind(&stat.name, stat.id()) {
                Kind::Spared => {}
                Kind::Surplus => drop(surplus.insert(stat.id())),
                Kind::Changing => drop(changing.insert(stat.id())),
            }
        }
        // The keeper reaps its orphans every few seconds, so that whoever ended since the last look is still seen.
        let dead_now: BTreeSet<_> = tree.iter().copied().filter(|stat| !stat.runs()).map(Stat::id).collect();
        let is_still = surplus.is_empty() && changing.is_empty() && dead_now.is_subset(&dead);
        dead = dead_now;
        quiet = if is_still { quiet + 1 } else { 0 };
        if quiet == 2 || Instant::now() >= deadline {
            // Of what still changes it is not known whether it may stay.
            let left: BTreeSet<_> = surplus.union(&changing).copied().collect();
            return Surplus { ended: count(killed.difference(&left)), left: count(left.iter()) };
        }
        let mut escaped = !changing.is_empty();
        for target in &surplus {
            match kill(target) {
                Killed::Sent => drop(killed.insert(*target)),
                Killed::Gone => escaped = true,
                Killed::Refused => {}
            }
        }
        time::sleep(pause).await;
        // What was gone before its signal came may have started another one; that is met by looking often.
        pause = if escaped { PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
    }
}

/// Ends every process whose environment has a mark with this prefix, and what descends from such a process; never
/// ourselves. For the start of a daemon: what an earlier one left (R-DUR-2). Blocks for at most about `limit`.
pub fn sweep(mark_prefix: &str, limit: Duration) -> Swept {
    sweep_where(limit, |value| value.starts_with(mark_prefix.as_bytes()))
}

/// Waits until no keeper whose mark has this prefix is left, or for so long. For the start of a daemon: a keeper whose daemon is gone ends what it
/// has by itself and leaves it time to write its history, which KILL would not. Blocks.
pub fn await_keepers(mark_prefix: &str, limit: Duration) {
    let deadline = Instant::now() + limit;
    let mut pause = PAUSE;
    let is_ours = |value: &[u8]| value.starts_with(mark_prefix.as_bytes());
    let is_keeper =
        |stat: &Stat| stat.name == KEEPER_NAME && stat.runs() && !matches!(mark_of(stat.pid, is_ours), Marked::No);
    while stat::all().iter().any(is_keeper) && Instant::now() < deadline {
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Ends what carries exactly this mark, and its descendants.
pub(crate) fn sweep_exactly(mark: &Mark, limit: Duration) -> Swept {
    sweep_where(limit, |value| value == mark.as_str().as_bytes())
}

/// Children that we had before we adopted any: whoever started us may have left them to us.
static OLDER: OnceLock<BTreeSet<ProcessId>> = OnceLock::new();

/// From now on, a child of ours that is not there yet may be what a killed keeper had. For the start of a daemon, before it adopts.
pub fn spare_children() {
    let own = process::id();
    let _ = OLDER.set(stat::all().iter().filter(|stat| stat.parent == own).map(Stat::id).collect());
}

/// Whether what a killed keeper had comes to this process. The first process of a machine or container gets all orphans, so there nothing is told
/// by it.
fn adopts() -> bool {
    process::id() != 1 && matches!(child_subreaper(), Ok(Some(_)))
}

/// Whether a process comes from a keeper that was killed: it descends from a child of ours that was not there when we started. What cannot be
/// examined counts as such. Keepers that live have their children too, so this is for what does not descend from one.
#[must_use]
pub fn is_adopted_by_us(pid: u32) -> bool {
    let own = process::id();
    if !adopts() || pid == own {
        return false;
    }
    let mut at = stat::read(pid);
    while let Some(stat) = at {
        if stat.parent == own {
            return OLDER.get().is_none_or(|older| !older.contains(&stat.id()));
        }
        if stat.parent == 0 {
            return false;
        }
        at = stat::read(stat.parent);
    }
    true
}

fn sweep_where(limit: Duration, is_ours: impl Fn(&[u8]) -> bool) -> Swept {
    let deadline = Instant::now() + limit;
    let mut killed = BTreeSet::new();
    let adopts = adopts();
    let mut adopted: BTreeSet<ProcessId> = BTreeSet::new();
    let mut quiet = 0;
    let mut pause = PAUSE;
    loop {
        let all = stat::all();
        let (targets, is_certain) = sweep_targets(&all, &is_ours);
        let left: BTreeSet<_> = targets.iter().map(|stat| stat.id()).collect();
        quiet = if left.is_empty() && is_certain { quiet + 1 } else { 0 };
        if quiet == 2 || Instant::now() >= deadline {
            return Swept { ended: count(killed.difference(&left)), left: count(left.iter()) };
        }
        // A keeper gathers what lost its parent, so it goes last; most often it goes by itself.
        let parents: BTreeSet<u32> = targets.iter().map(|stat| stat.parent).collect();
        for stat in &targets {
            let is_needed = stat.name == KEEPER_NAME && parents.contains(&stat.pid);
            if is_needed {
                // It counts as ended once it is gone.
                killed.insert(stat.id());
            } else if kill(&stat.id()) == Killed::Sent {
                killed.insert(stat.id());
                adopted.extend(Some(stat.id()).filter(|_| adopts && stat.name != KEEPER_NAME));
            }
        }
        thread::sleep(pause);
        // Nobody else waits for what was adopted; what is not ours yet becomes so when its parent is gone.
        adopted.retain(|id| {
            let Some(pid) = i32::try_from(id.pid).ok().and_then(Pid::from_raw) else { return false };
            match waitpid(Some(pid), WaitOptions::NOHANG) {
                Ok(waited) => waited.is_none(),
                Err(_) => stat::read(id.pid).is_some_and(|stat| stat.id() == *id),
            }
        });
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What is to be ended; false beside it when a process was changing its program, so that it has to be looked at again.
fn sweep_targets(all: &[Stat], is_ours: impl Fn(&[u8]) -> bool) -> (Vec<&Stat>, bool) {
    let own = process::id();
    let adopts = adopts();
    // Should we have been started by something that carries the mark, it and its other children are spared.
    let above = above(all, own);
    let mut is_certain = true;
    let mut marked = Vec::new();
    for stat in all.iter().filter(|stat| !above.contains(&stat.pid)) {
        match mark_of(stat.pid, &is_ours) {
            Marked::Fits => marked.push(stat),
            Marked::No if adopts && stat.parent == own && is_adopted(stat) => marked.push(stat),
            Marked::No => {}
            Marked::Unknown => is_certain = false,
        }
    }
    let mut targets = below(all, marked.iter().map(|stat| stat.pid));
    targets.extend(marked);
    targets.sort_unstable_by_key(|stat| stat.pid);
    targets.dedup_by_key(|stat| stat.pid);
    targets.retain(|stat| stat.runs() && stat.pid != own);
    (targets, is_certain)
}

/// Whether a child of ours without a mark is what a killed keeper had: whatever we start ourselves is a keeper, with its mark, and before that
/// it is a copy of ourselves. A tool may run our program too, but not with our environment and arguments.
fn is_adopted(stat: &Stat) -> bool {
    // ORDER: a program that is whole, its environment, and still the same program: a child of ours that becomes a keeper meanwhile is looked at
    // again, and an environment that is empty is not the one of a program that was just being set up.
    let before = super::program(stat.id());
    if OLDER.get().is_some_and(|older| older.contains(&stat.id()))
        || !stat.runs()
        || before.is_none()
        || stat::changes_program(stat.pid)
    {
        return false;
    }
    let of = |pid: &str, what| fs::read(format!("/proc/{pid}/{what}")).ok();
    let pid = stat.pid.to_string();
    let Some(environ) = of(&pid, "environ") else { return false };
    let is_copy =
        of("self", "environ").is_none_or(|own| own == environ) && of("self", "cmdline") == of(&pid, "cmdline");
    let is_ours = is_copy && before == fs::read_link("/proc/self/exe").ok();
    let is_same = !stat::changes_program(stat.pid) && super::program(stat.id()) == before;
    is_same && !is_ours && super::origin::marks(&environ).next().is_none()
}

/// A process and all that it descends from.
fn above(all: &[Stat], pid: u32) -> BTreeSet<u32> {
    let parents: BTreeMap<u32, u32> = all.iter().map(|stat| (stat.pid, stat.parent)).collect();
    let mut found = BTreeSet::new();
    let mut next = Some(&pid);
    while let Some(at) = next
        && found.insert(*at)
    {
        next = parents.get(at);
    }
    found
}

enum Marked {
    Fits,
    No,
    /// It is between two programs.
    Unknown,
}

/// Whether the environment that the process was started with has a mark that fits. An environment that cannot be read
/// belongs to another user, so the process is not one of ours.
fn mark_of(pid: u32, fits: impl Fn(&[u8]) -> bool) -> Marked {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environ) if environ.is_empty() && stat::changes_program(pid) => Marked::Unknown,
        Ok(environ) if super::origin::marks(&environ).any(fits) => Marked::Fits,
        Ok(_) | Err(_) => Marked::No,
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_that_belongs_to_another_process_by_now_is_not_killed() {
        let own = stat::read(process::id()).map(|stat| stat.id()).unwrap();
        assert_eq!(kill(&ProcessId { start: own.start + 1, ..own }), Killed::Gone);
        assert_eq!(kill(&ProcessId { pid: u32::MAX, start: 1 }), Killed::Refused);
        assert_eq!(kill(&ProcessId { pid: 0, start: 1 }), Killed::Refused);
    }

    #[test]
    fn a_sweep_of_a_mark_that_nobody_carries_ends_nothing() {
        assert_eq!(sweep("st_nobody-carries-this.", Duration::from_secs(5)), Swept::default());
    }
}
