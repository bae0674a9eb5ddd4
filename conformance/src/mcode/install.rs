//! Puts the double in the place of MiniMax Code: a folder with a program `mcode` and what it is to do badly.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::NAME;
use super::faults::{FILE, Faults};
use crate::child::Start;
use crate::rig::program;

/// Makes a folder with a program `mcode` in it, and gives its path. It is a link to the binary of this crate, which has to be built; what it does
/// badly stands beside it and is read at every start.
///
/// # Errors
/// When the binary is not there, or the folder cannot be written.
pub fn install(folder: &Path, faults: &Faults) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let path = folder.join(NAME);
    let binary = program("runtime-bridge-conformance")?;
    if path.exists() {
        fs::remove_file(&path).context("take the old program away")?;
    }
    // Another file system has no links to this one's files.
    if fs::hard_link(&binary, &path).is_err() {
        fs::copy(&binary, &path).with_context(|| format!("copy {}", binary.display()))?;
    }
    set_faults(folder, faults)?;
    Ok(path)
}

/// Lets programs of this folder that are started from now on do this badly. Those that run go on as they are.
///
/// # Errors
/// When the folder cannot be written.
pub fn set_faults(folder: &Path, faults: &Faults) -> anyhow::Result<()> {
    // Written aside first: a program that starts at this moment reads the one or the other.
    let aside = folder.join("faults.new");
    fs::write(&aside, serde_json::to_vec_pretty(faults)?).context("write the faults")?;
    fs::rename(&aside, folder.join(FILE)).context("write the faults")
}

/// How the programs of this folder were started so far, in their order, those for `--version` included.
///
/// # Errors
/// When what was kept cannot be read.
pub fn starts(folder: &Path) -> anyhow::Result<Vec<Start>> {
    crate::child::starts_in(&kept(folder))
}

/// Every byte that the program with this process id has read.
///
/// # Errors
/// When there was no such program.
pub fn received(folder: &Path, pid: u32) -> anyhow::Result<Vec<u8>> {
    fs::read(kept(folder).join(format!("{pid}.stdin"))).with_context(|| format!("no program {pid}"))
}

/// Where programs keep how they were started.
pub(super) fn kept(folder: &Path) -> PathBuf {
    folder.join("kept")
}
