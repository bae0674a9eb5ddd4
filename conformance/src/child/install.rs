//! Puts a fault child in the place of a Harness: a folder with an executable that runs the script.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use tokio::time::{self, Instant};

use super::keep::Start;
use crate::rig::Harness;
use crate::script::Script;
use crate::script::child::Program;

/// The longest wait of a test for a fault child.
const WAIT: Duration = Duration::from_secs(30);

/// The time between two looks at the folder, which has no bell.
const LOOK: Duration = Duration::from_millis(5);

/// A fault child that can be started as a Harness, any number of times.
#[derive(Debug, Clone)]
pub struct FaultChild {
    dir: PathBuf,
    name: String,
}

impl FaultChild {
    /// Writes the script and the executable of this name into a folder of its own. `program` is the binary of this crate.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn install(dir: &Path, name: &str, program: &Path, script: Program) -> anyhow::Result<Self> {
        let keep = dir.join("kept");
        for part in ["gates", "marks"] {
            fs::create_dir_all(keep.join(part)).with_context(|| format!("make {}", keep.display()))?;
        }
        let child = Self { dir: dir.to_owned(), name: name.to_owned() };
        let script_path = child.script();
        child.play(script)?;
        let wrapper = format!(
            "#!/bin/sh\nexec {} child --script {} --keep {} -- \"$@\"\n",
            quoted(program)?,
            quoted(&script_path)?,
            quoted(&keep)?
        );
        fs::write(child.path(), wrapper).context("write the executable")?;
        fs::set_permissions(child.path(), fs::Permissions::from_mode(0o755)).context("make it executable")?;
        Ok(child)
    }

    /// Lets children that are started from now on play another script. Those that run go on with theirs.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn play(&self, script: Program) -> anyhow::Result<()> {
        // Written aside first: a child that starts at this moment reads the one or the other.
        let aside = self.script().with_extension("new");
        fs::write(&aside, Script::for_child(script).text()?).context("write the script")?;
        fs::rename(&aside, self.script()).context("write the script")
    }

    /// The executable to start.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Opens a gate, for good.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn open_gate(&self, gate: &str) -> anyhow::Result<()> {
        fs::write(self.kept().join("gates").join(gate), "").with_context(|| format!("open the gate {gate}"))
    }

    /// Waits until a child has reached a mark.
    ///
    /// # Errors
    /// When none does within 30 s.
    pub async fn wait_for_mark(&self, mark: &str) -> anyhow::Result<()> {
        let path = self.kept().join("marks").join(mark);
        let end = Instant::now() + WAIT;
        while !path.exists() {
            anyhow::ensure!(Instant::now() < end, "no fault child reached the mark {mark:?}");
            time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// When a child last reached a mark.
    ///
    /// # Errors
    /// When none ever did.
    pub fn marked_at(&self, mark: &str) -> anyhow::Result<SystemTime> {
        let path = self.kept().join("marks").join(mark);
        let found = fs::metadata(path).with_context(|| format!("no fault child reached the mark {mark:?}"))?;
        Ok(found.modified()?)
    }

    /// All starts so far, in their order, those for a command such as `--version` included.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn starts(&self) -> anyhow::Result<Vec<Start>> {
        starts_in(&self.kept())
    }

    /// The start of the last child that plays a conversation of this Harness.
    ///
    /// # Errors
    /// When there is none.
    pub fn last(&self, harness: Harness) -> anyhow::Result<Start> {
        let starts = self.starts()?;
        starts.into_iter().rfind(|start| harness.converses(&start.args)).context("no child plays a conversation")
    }

    /// Every byte that the child with this process id received.
    ///
    /// # Errors
    /// When there was no such child.
    pub fn received(&self, pid: u32) -> anyhow::Result<Vec<u8>> {
        fs::read(self.kept().join(format!("{pid}.stdin"))).with_context(|| format!("no fault child {pid}"))
    }

    /// Waits until the child with this process id has received a text, and gives all that it has received: it reads on only when it has said
    /// what it has to say.
    ///
    /// # Errors
    /// When there was no such child, or it does not within 30 s.
    pub async fn wait_for_received(&self, pid: u32, text: &str) -> anyhow::Result<String> {
        let end = Instant::now() + WAIT;
        loop {
            let received = String::from_utf8_lossy(&self.received(pid)?).into_owned();
            if received.contains(text) && received.ends_with('\n') {
                return Ok(received);
            }
            anyhow::ensure!(Instant::now() < end, "{text:?} is not in {received}");
            time::sleep(LOOK).await;
        }
    }

    /// The process ids of the descendants that the child with this process id started.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn descendants(&self, pid: u32) -> anyhow::Result<Vec<u32>> {
        let path = self.kept().join(format!("{pid}.descendants"));
        if !path.exists() {
            return Ok(Vec::new());
        }
        fs::read_to_string(path)?.lines().map(|line| line.parse().context("a process id")).collect()
    }

    fn script(&self) -> PathBuf {
        self.dir.join("child.json")
    }

    fn kept(&self) -> PathBuf {
        self.dir.join("kept")
    }
}

/// All starts that were kept in a folder, in their order.
pub(crate) fn starts_in(folder: &Path) -> anyhow::Result<Vec<Start>> {
    let mut starts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let at = fs::metadata(&path)?.modified()?;
            starts.push((at, serde_json::from_slice::<Start>(&fs::read(path)?)?));
        }
    }
    // Process ids begin anew when they have come to their end, so the later one may be the lower one.
    starts.sort_by_key(|(at, start)| (*at, start.pid));
    Ok(starts.into_iter().map(|(_, start)| start).collect())
}

/// A path as one word of a shell.
fn quoted(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}
