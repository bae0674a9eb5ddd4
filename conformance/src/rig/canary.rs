//! Secrets that must not be found, and a search that counts where it looked: command lines and environments of all that a daemon starts,
//! files, and whatever texts a scenario has (R-SEC-6). What is known to hold one is judged by the scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;
use tokio::task::JoinSet;
use tokio::time::{self, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Harness, Place};

/// Between two looks at all processes.
const LOOK: Duration = Duration::from_millis(5);

/// Values of this run alone, each with what it is called.
#[derive(Debug, Clone)]
pub struct Canaries {
    /// What all of them begin with.
    token: String,
    names: Vec<String>,
}

/// A kind of place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The command line of a process.
    Argv,
    /// The environment that a process was started with.
    Environ,
    /// Those of the daemon itself.
    Daemon,
    /// A file.
    File,
    /// A line of the daemon's log.
    Log,
    /// An event of a Turn.
    Event,
    /// Another answer to Core.
    Answer,
    /// A refusal of a call of Core.
    Refusal,
    /// A request that the provider got.
    Request,
}

/// A secret that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Find {
    /// In what kind of place.
    pub kind: Kind,
    /// Where.
    pub place: String,
    /// Which one.
    pub secret: String,
}

/// Where was looked, and what was found.
#[derive(Debug, Clone)]
pub struct Scan {
    canaries: Canaries,
    looked: BTreeMap<Kind, u64>,
    found: BTreeSet<Find>,
}

impl Canaries {
    /// One for each of these names.
    #[must_use]
    pub fn new(names: &[&str]) -> Self {
        let id = Uuid::now_v7().simple().to_string();
        // The first digits of a version 7 id are the time, the last ones are random.
        let token = format!("cnry{}", &id[id.len() - 16..]);
        Self { token, names: names.iter().map(|&name| name.to_owned()).collect() }
    }

    /// A secret that somebody else made; where it is found, it is told as a part of one.
    #[must_use]
    pub fn of(secret: &str) -> Self {
        Self { token: secret.to_owned(), names: Vec::new() }
    }

    /// The value for a name. Its file name is none of an existing file, and it looks like a key.
    ///
    /// # Panics
    /// When there is no such name.
    #[must_use]
    pub fn value(&self, name: &str) -> String {
        let place = self.names.iter().position(|one| one == name);
        format!("sk-{}-{:03}", self.token, place.unwrap_or_else(|| panic!("no canary is called {name}")))
    }

    /// A pattern for `grep` that fits each of them and not itself, so that the command line it stands in has none.
    #[must_use]
    pub fn pattern(&self) -> String {
        let (begin, end) = self.token.split_at(self.token.len() - 1);
        format!("{begin}[{end}]")
    }

    /// The same for one of them.
    ///
    /// # Panics
    /// When there is no such name.
    #[must_use]
    pub fn pattern_of(&self, name: &str) -> String {
        format!("{}{}", self.pattern(), &self.value(name)["sk-".len() + self.token.len()..])
    }

    /// The names of those that a text holds. What begins as one and ends otherwise counts too.
    fn held_by(&self, text: &str) -> BTreeSet<&str> {
        let rests = text.match_indices(&self.token).map(|(at, _)| &text[at + self.token.len()..]);
        let number = |rest: &str| rest.strip_prefix('-')?.get(..3)?.parse::<usize>().ok();
        rests
            .map(|rest| number(rest).and_then(|number| self.names.get(number)).map_or("a part of one", |n| n))
            .collect()
    }
}

impl Scan {
    /// A search that has not looked anywhere.
    #[must_use]
    pub fn new(canaries: Canaries) -> Self {
        Self { canaries, looked: BTreeMap::new(), found: BTreeSet::new() }
    }

    /// Looks at a text.
    pub fn look(&mut self, kind: Kind, place: &str, text: &str) {
        *self.looked.entry(kind).or_default() += 1;
        for secret in self.canaries.held_by(text) {
            self.found.insert(Find { kind, place: place.to_owned(), secret: secret.to_owned() });
        }
    }

    /// Looks at the name and the bytes of each file below a folder.
    ///
    /// # Errors
    /// When something that is there cannot be read.
    pub fn files(&mut self, folder: &Path) -> anyhow::Result<()> {
        each_file(folder, &mut |path, text| {
            let place = path.display().to_string();
            self.look(Kind::File, &place, &format!("{place}\n{text}"));
        })
    }

    /// Adds what another one has seen.
    pub fn merge(&mut self, other: &Self) {
        for (kind, looked) in &other.looked {
            *self.looked.entry(*kind).or_default() += looked;
        }
        self.found.extend(other.found.iter().cloned());
    }

    /// How often was looked at places of a kind.
    #[must_use]
    pub fn looked(&self, kind: Kind) -> u64 {
        self.looked.get(&kind).copied().unwrap_or_default()
    }

    /// What was found, each once for its place.
    pub fn found(&self) -> impl Iterator<Item = &Find> {
        self.found.iter()
    }
}

/// A search through all processes that goes on beside a scenario.
#[derive(Debug)]
pub struct Watch {
    task: JoinSet<anyhow::Result<Watched>>,
    stop: CancellationToken,
}

/// What a watch has seen.
#[derive(Debug)]
pub struct Watched {
    /// Command lines and environments.
    pub scan: Scan,
    /// How often it looked at all of them.
    pub rounds: u64,
    /// How many processes it saw.
    pub processes: usize,
    /// How long it was there.
    pub took: Duration,
}

impl Watch {
    /// Begins to look every 5 ms at what the daemons of a place have started, until [`Watch::stop`].
    #[must_use]
    pub fn start(place: &Place, canaries: &Canaries) -> Self {
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(watch(place.config(), Scan::new(canaries.clone()), stop.clone()));
        Self { task, stop }
    }

    /// Looks once more, and ends it.
    ///
    /// # Errors
    /// When `/proc` could not be read.
    pub async fn stop(mut self) -> anyhow::Result<Watched> {
        self.stop.cancel();
        self.task.join_next().await.context("the watch is gone")??
    }
}

async fn watch(config: PathBuf, scan: Scan, stop: CancellationToken) -> anyhow::Result<Watched> {
    let begun = time::Instant::now();
    let mut seen = Watched { scan, rounds: 0, processes: 0, took: Duration::ZERO };
    let mut table = Table { config: config.display().to_string(), ..Table::default() };
    let mut looks = time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(looks.tick()).await.is_some() {
        seen.round(&mut table)?;
    }
    // What came before the stop was looked at, however busy the machine is.
    seen.round(&mut table)?;
    (seen.processes, seen.took) = (table.family.len(), begun.elapsed());
    Ok(seen)
}

/// Who is who among the processes of the machine.
#[derive(Debug, Default)]
struct Table {
    /// A daemon has this path in its command line, and is a child of this process.
    config: String,
    /// What descends from a daemon, whoever its parent is by now.
    family: BTreeSet<(u32, u64)>,
    /// What does not, and never will: it is not read again.
    strangers: BTreeSet<u32>,
}

/// A process as its `stat` has it: id and start are its identity.
#[derive(Debug, Clone, Copy)]
struct Stat {
    pid: u32,
    parent: u32,
    started: u64,
}

impl Table {
    /// The daemons of this moment, and what descends from them.
    fn look(&mut self) -> anyhow::Result<(Vec<u32>, Vec<u32>)> {
        let entries = fs::read_dir("/proc").context("read /proc")?;
        let there: BTreeSet<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        self.strangers.retain(|pid| there.contains(pid));
        let read: Vec<_> = there.difference(&self.strangers).filter_map(|pid| stat(*pid)).collect();
        let ours = std::process::id();
        let children = read.iter().filter(|one| one.parent == ours).map(|one| one.pid);
        let daemons: Vec<_> = children.filter(|pid| words(*pid, "cmdline").contains(&self.config)).collect();
        let mut family: BTreeSet<u32> =
            read.iter().filter(|one| self.family.contains(&one.identity())).map(|one| one.pid).collect();
        // Parents may stand behind their children in the list, so it is gone through until nothing is added.
        loop {
            let is_below = |one: &&Stat| {
                !family.contains(&one.pid) && (daemons.contains(&one.parent) || family.contains(&one.parent))
            };
            let below: Vec<_> = read.iter().filter(is_below).collect();
            if below.is_empty() {
                break;
            }
            self.family.extend(below.iter().map(|one| one.identity()));
            family.extend(below.iter().map(|one| one.pid));
        }
        // Our own children may become daemons, and a parent that is not known yet may be one of the family.
        let is_stranger = |one: &&Stat| {
            !family.contains(&one.pid) && one.parent != ours && (one.parent == 0 || there.contains(&one.parent))
        };
        let strangers: Vec<_> = read.iter().filter(is_stranger).map(|one| one.pid).collect();
        self.strangers.extend(strangers);
        Ok((daemons, family.into_iter().collect()))
    }
}

impl Stat {
    fn identity(&self) -> (u32, u64) {
        (self.pid, self.started)
    }
}

impl Watched {
    /// Looks once.
    fn round(&mut self, table: &mut Table) -> anyhow::Result<()> {
        self.rounds += 1;
        let (daemons, family) = table.look()?;
        let images: Vec<_> = daemons.iter().map(|daemon| words(*daemon, "cmdline")).collect();
        for daemon in daemons {
            self.look(daemon, Kind::Daemon, Kind::Daemon, "the daemon");
        }
        for pid in family {
            let command = words(pid, "cmdline");
            // Between its fork and its exec a child is the daemon's own image, with the daemon's memory.
            match images.contains(&command) {
                true => self.look(pid, Kind::Daemon, Kind::Daemon, "the daemon"),
                false => self.look(pid, Kind::Argv, Kind::Environ, &role(&command)),
            }
        }
        Ok(())
    }

    fn look(&mut self, pid: u32, argv: Kind, environ: Kind, role: &str) {
        // The environment first: a process that has become another one meanwhile is looked at as that one the next time.
        let environment = words(pid, "environ");
        self.scan.look(argv, &format!("argv of {role}"), &words(pid, "cmdline"));
        self.scan.look(environ, &format!("environ of {role}"), &environment);
    }
}

/// What a process is, by its command line.
fn role(command: &str) -> String {
    let word = command.split(' ').next().unwrap_or_default();
    let name = word.rsplit('/').next().unwrap_or_default();
    match name {
        "runtime-bridge-keeper" => "the keeper".to_owned(),
        _ if Harness::EVERY.into_iter().any(|harness| harness.runs_as(command)) => "the Harness".to_owned(),
        name => format!("`{name}`"),
    }
}

fn stat(pid: u32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, which may hold anything; the fields behind it begin with the state.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_ascii_whitespace().collect();
    Some(Stat { pid, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? })
}

/// The words of a file of `/proc`, with blanks between; nothing of a process that is gone.
fn words(pid: u32, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
}

/// The files below a folder that hold a text.
///
/// # Errors
/// When something that is there cannot be read.
pub fn files_with(folder: &Path, text: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    each_file(folder, &mut |path, held| found.extend(held.contains(text).then(|| path.to_owned())))?;
    Ok(found)
}

/// Reads each file below a folder. A Harness at work has files that come and go.
fn each_file(folder: &Path, see: &mut dyn FnMut(&Path, &str)) -> anyhow::Result<()> {
    for entry in unless_gone(fs::read_dir(folder).map(Some))?.into_iter().flatten() {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            each_file(&path, see)?;
        } else if kind.is_file() {
            let bytes = unless_gone(fs::read(&path)).with_context(|| format!("read {}", path.display()))?;
            see(&path, &String::from_utf8_lossy(&bytes));
        }
    }
    Ok(())
}

/// What was read, or nothing where it was removed since its folder was.
fn unless_gone<T: Default>(read: io::Result<T>) -> io::Result<T> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_canary_is_found_by_its_name_wherever_it_stands() {
        let canaries = Canaries::new(&["model", "OTHER"]);
        let mut scan = Scan::new(canaries.clone());
        let place = Place::make().unwrap();
        fs::create_dir_all(place.root().join("deep/er")).unwrap();
        let text = [b"\xff\xfe\0 ", canaries.value("OTHER").as_bytes(), b"\0"].concat();
        fs::write(place.root().join("deep/er/file"), text).unwrap();
        fs::write(place.root().join("innocent"), canaries.pattern_of("model")).unwrap();
        scan.files(place.root()).unwrap();
        scan.look(Kind::Log, "a line", &format!("{:?}", canaries.value("model")));
        scan.look(Kind::Event, "an event", &canaries.value("model")["sk-".len()..][..20]);
        scan.look(Kind::Event, "an event", &canaries.value("model")[..canaries.value("model").len() - 1]);
        assert_eq!(files_with(place.root(), &canaries.value("OTHER")).unwrap(), [place.root().join("deep/er/file")]);
        let found: Vec<_> = scan.found().map(|find| (find.kind, find.secret.as_str())).collect();
        assert_eq!(found, [(Kind::File, "OTHER"), (Kind::Log, "model"), (Kind::Event, "a part of one")]);
        assert_eq!((scan.looked(Kind::File), scan.looked(Kind::Event), scan.looked(Kind::Argv)), (2, 2, 0));
    }

    #[tokio::test]
    async fn what_descends_from_a_daemon_is_watched() {
        let canaries = Canaries::new(&["model", "OTHER"]);
        let place = Place::make().unwrap();
        let config = place.config().display().to_string();
        // A shell plays the daemon: it has one canary in its environment, and its child the other one.
        let script = format!("env -i KEY={} sleep 600 & wait", canaries.value("model"));
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "serve", &config]).env("OTHER", canaries.value("OTHER")).stdin(Stdio::null());
        let mut daemon = shell.spawn().unwrap();
        let watch = Watch::start(&place, &canaries);
        let child =
            super::super::process::appears(daemon.id(), place.root(), |one| one.command == "sleep 600").await.unwrap();
        let seen = watch.stop().await.unwrap();
        child.kill();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        let found: BTreeSet<_> = seen.scan.found().map(|find| (find.place.as_str(), find.secret.as_str())).collect();
        for want in
            [("environ of `sleep`", "model"), ("environ of the daemon", "OTHER"), ("argv of the daemon", "model")]
        {
            assert!(found.contains(&want), "{found:?}");
        }
        assert!(seen.rounds > 0 && seen.processes > 0 && seen.took > Duration::ZERO);
    }
}
