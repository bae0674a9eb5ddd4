//! The folder in which a fault child keeps what a test wants to know, and through which test and child wait for each
//! other: `<pid>.json` (how it was started), `<pid>.stdin` (every byte received), `<pid>.descendants`, `gates/<name>`,
//! `marks/<name>`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, process, thread};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// How a fault child was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Its process id.
    pub pid: u32,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its whole environment; what is not UTF-8 is replaced.
    pub env: BTreeMap<String, String>,
}

/// The time between two looks at a gate.
const LOOK: Duration = Duration::from_millis(5);

/// An open folder, or none.
#[derive(Debug)]
pub(crate) struct Keep {
    dir: Option<PathBuf>,
    stdin: Option<File>,
}

impl Keep {
    /// Opens the folder and writes how this process was started.
    pub(crate) fn open(dir: Option<&Path>, args: &[String]) -> anyhow::Result<Self> {
        let Some(dir) = dir else { return Ok(Self { dir: None, stdin: None }) };
        for part in ["gates", "marks"] {
            fs::create_dir_all(dir.join(part)).with_context(|| format!("make {}/{part}", dir.display()))?;
        }
        let pid = process::id();
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        let start = Start {
            pid,
            args: args.to_vec(),
            cwd: env::current_dir().context("read the working directory")?,
            env: env::vars_os().map(|(name, value)| (text(name), text(value))).collect(),
        };
        let stdin = File::create(dir.join(format!("{pid}.stdin"))).context("keep standard input")?;
        // Written aside first, so that a test that looks sees all of it or nothing.
        let aside = dir.join(format!("{pid}.new"));
        fs::write(&aside, serde_json::to_vec(&start)?).context("keep the start")?;
        fs::rename(&aside, dir.join(format!("{pid}.json"))).context("keep the start")?;
        Ok(Self { dir: Some(dir.to_owned()), stdin: Some(stdin) })
    }

    pub(crate) fn received(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.stdin.as_mut().map_or(Ok(()), |file| file.write_all(bytes)).context("keep standard input")
    }

    pub(super) fn descendant(&self, pid: u32) -> anyhow::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let path = dir.join(format!("{}.descendants", process::id()));
        let mut file = OpenOptions::new().create(true).append(true).open(path).context("keep a descendant")?;
        writeln!(file, "{pid}").context("keep a descendant")
    }

    pub(super) fn mark(&self, mark: &str) -> anyhow::Result<()> {
        fs::write(self.place("marks", mark)?, "").with_context(|| format!("set the mark {mark}"))
    }

    /// Waits until a gate is open, for ever.
    pub(super) fn pass(&self, gate: &str) -> anyhow::Result<()> {
        let path = self.place("gates", gate)?;
        while !path.exists() {
            thread::sleep(LOOK);
        }
        Ok(())
    }

    fn place(&self, kind: &str, name: &str) -> anyhow::Result<PathBuf> {
        let dir = self.dir.as_ref().with_context(|| format!("{kind} need a folder: --keep"))?;
        Ok(dir.join(kind).join(name))
    }
}
