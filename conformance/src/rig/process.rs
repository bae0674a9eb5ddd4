//! Which processes a daemon has started, seen from outside: descendants, marks in the environment, and what works in
//! the folders of a rig.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, str};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{self, Instant};

/// The variable by which a bridge marks what descends from it.
const MARK: &str = "RUNTIME_BRIDGE_MARK";

/// How long what should be gone may take.
const GONE: Duration = Duration::from_secs(20);

/// How long what should come may take: a Harness has to ask its model and to start a shell before it runs a command.
const COMES: Duration = Duration::from_secs(40);

/// The time between two looks at `/proc`, which has no bell for strangers.
const LOOK: Duration = Duration::from_millis(10);

/// One process, as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// When it started, in ticks since the boot: with the id, the identity.
    pub started: u64,
    /// Its command line, arguments separated by blanks.
    pub command: String,
    /// Its working directory; empty when it cannot be read.
    pub directory: PathBuf,
    /// The bridge's mark in its environment.
    pub mark: Option<String>,
    /// Whether it is dead and only waits for its parent.
    pub zombie: bool,
    environment: Vec<String>,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        // The second field is the name in parentheses, which may hold anything; the fields behind it begin with the state.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        let words = |name: &str| {
            let bytes = fs::read(dir.join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            text.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        let environment = words("environ");
        let mark = environment.iter().find_map(|line| line.strip_prefix(MARK)?.strip_prefix('=')).map(str::to_owned);
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            command: words("cmdline").join(" "),
            directory: fs::read_link(dir.join("cwd")).unwrap_or_default(),
            mark,
            zombie: matches!(*fields.first()?, "Z" | "X"),
            environment,
        })
    }

    /// A variable of its environment.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    /// The names of the variables in its environment.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.environment.iter().map(|line| line.split('=').next().unwrap_or_default())
    }

    /// Whether its command line or its environment holds a text.
    #[must_use]
    pub fn shows(&self, text: &str) -> bool {
        self.command.contains(text) || self.environment.iter().any(|line| line.contains(text))
    }

    /// Whether it is among these and runs; who its parent is by now does not count.
    #[must_use]
    pub fn runs_in(&self, all: &[Self]) -> bool {
        all.iter().any(|one| one.pid == self.pid && one.started == self.started && !one.zombie)
    }

    fn works_in(&self, root: &Path) -> bool {
        let text = root.to_string_lossy();
        self.directory.starts_with(root)
            || self.command.contains(&*text)
            || self.environment.iter().any(|line| line.contains(&*text))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let same = Self::read(self.pid).is_some_and(|now| now.started == self.started);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).filter(|_| same);
        let pid = pid.with_context(|| format!("{} is gone", self.command))?;
        kill_process(pid, signal).with_context(|| format!("signal {}", self.command))
    }

    /// Kills it, if it is still the same process.
    pub(super) fn kill(&self) {
        // It may have ended in this moment.
        _ = self.signal(Signal::KILL);
    }
}

/// All processes that are there.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn processes() -> anyhow::Result<Vec<Process>> {
    let entries = fs::read_dir("/proc").context("read /proc")?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(pids.filter_map(Process::read).collect())
}

/// The descendants of a daemon, without itself; what carries the mark of one of them; what works in the rig's folder.
pub(super) fn family(daemon: u32, root: &Path) -> anyhow::Result<Vec<Process>> {
    let all = processes()?;
    let ourselves = [daemon, std::process::id()];
    let mut pids = BTreeSet::from([daemon]);
    // Parents may stand behind their children in the list, so it is gone through until nothing is added.
    loop {
        let before = pids.len();
        pids.extend(all.iter().filter(|process| pids.contains(&process.parent)).map(|p| p.pid).collect::<Vec<_>>());
        if pids.len() == before {
            break;
        }
    }
    pids.extend(all.iter().filter(|process| process.works_in(root)).map(|process| process.pid));
    let marks: BTreeSet<_> =
        all.iter().filter(|process| pids.contains(&process.pid)).filter_map(|process| process.mark.clone()).collect();
    pids.extend(all.iter().filter(|process| process.mark.as_ref().is_some_and(|m| marks.contains(m))).map(|p| p.pid));
    Ok(all.into_iter().filter(|process| pids.contains(&process.pid) && !ourselves.contains(&process.pid)).collect())
}

/// Waits until the family of a daemon has nobody but these. Gives who is there beside them after 20 s.
pub(super) async fn others(daemon: u32, root: &Path, known: &[Process]) -> anyhow::Result<Vec<Process>> {
    let limit = Instant::now() + GONE;
    loop {
        let mut others = family(daemon, root)?;
        others.retain(|process| {
            !process.zombie && !known.iter().any(|one| one.pid == process.pid && one.started == process.started)
        });
        if others.is_empty() || Instant::now() > limit {
            return Ok(others);
        }
        time::sleep(LOOK).await;
    }
}

/// Waits until one of a family fits; see [`family`].
pub(super) async fn appears(daemon: u32, root: &Path, fits: impl Fn(&Process) -> bool) -> anyhow::Result<Process> {
    let limit = Instant::now() + COMES;
    loop {
        let family = family(daemon, root)?;
        if let Some(found) = family.iter().find(|process| !process.zombie && fits(process)) {
            return Ok(found.clone());
        }
        anyhow::ensure!(Instant::now() < limit, "no such process in {family:#?}");
        time::sleep(LOOK).await;
    }
}

/// Waits until nothing of a family is alive, nor anything with its marks, nor anything that works in the folder. Gives
/// what is left after 20 s.
pub(super) async fn left_of(family: &[Process], root: &Path) -> anyhow::Result<Vec<Process>> {
    let limit = Instant::now() + GONE;
    let marks: BTreeSet<_> = family.iter().filter_map(|process| process.mark.as_deref()).collect();
    loop {
        let mut left = processes()?;
        left.retain(|process| {
            let known = family.iter().any(|one| one.pid == process.pid && one.started == process.started);
            let marked = process.mark.as_deref().is_some_and(|mark| marks.contains(mark));
            !process.zombie && process.pid != std::process::id() && (known || marked || process.works_in(root))
        });
        if left.is_empty() || Instant::now() > limit {
            return Ok(left);
        }
        time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A folder whose name is in the child's environment.
    fn start(root: &Path, mark: &str) -> Child {
        let sleep = Command::new("sleep").arg("600").env(MARK, mark).env("HOME", root).stdin(Stdio::null()).spawn();
        sleep.unwrap()
    }

    #[tokio::test]
    async fn finds_what_descends_is_marked_or_works_in_the_folder_until_it_is_gone() {
        let root = Path::new("/nonexistent/rig-of-this-test");
        let mut child = start(root, "m.process-test");
        let mut stranger = start(Path::new("/nonexistent/other"), "m.process-test");
        let found = family(u32::MAX, root).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        let first = found.iter().find(|process| process.pid == child.id()).unwrap();
        assert_eq!(first.command, "sleep 600");
        assert_eq!(first.variable("HOME"), Some("/nonexistent/rig-of-this-test"));
        assert_eq!(first.parent, std::process::id());
        for process in &found {
            process.kill();
        }
        // They are zombies of ours now, and that counts as gone.
        assert_eq!(left_of(&found, root).await.unwrap(), []);
        child.wait().unwrap();
        stranger.wait().unwrap();
    }
}
