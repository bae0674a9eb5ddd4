//! The histories that a Harness itself keeps, as they stand on disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tokio::time;

use super::{Harness, Rig};

/// The longest that a text may take to appear.
const WAIT: Duration = Duration::from_secs(20);

impl Rig {
    /// The folder in which Codex keeps the histories of the only Session that has a home.
    ///
    /// # Errors
    /// When no Session has one.
    pub fn histories(&self) -> anyhow::Result<PathBuf> {
        let folders = fs::read_dir(self.place.state().join("sessions"))?.flatten();
        let mut homes = folders.map(|folder| folder.path().join("home/codex")).filter(|home| home.is_dir());
        Ok(homes.next().context("no Session has a home")?.join("sessions"))
    }

    /// Waits until the result of a call stands in the history of one of the Sessions.
    ///
    /// # Errors
    /// When it does not within 20 s.
    pub async fn wait_for_result(&self, call_id: &str) -> anyhow::Result<()> {
        let opencode = |status: &str| format!(r#""callID":"{call_id}","state":{{"status":"{status}""#);
        let texts = match self.kind() {
            Harness::Codex => vec![format!(r#""call_id":"{call_id}","output":"#)],
            Harness::ClaudeCode => vec![format!(r#""tool_use_id":"{call_id}""#)],
            Harness::MinimaxCode => vec![format!(r#"{{"results":[{{"id":"{call_id}""#)],
            Harness::Opencode => vec![opencode("completed"), opencode("error")],
        };
        self.wait_for_one_of(&texts).await
    }

    /// Waits until this text stands in the history of one of the Sessions.
    ///
    /// # Errors
    /// When it does not within 20 s.
    pub async fn wait_for_history(&self, text: &str) -> anyhow::Result<()> {
        self.wait_for_one_of(&[text.to_owned()]).await
    }

    async fn wait_for_one_of(&self, texts: &[String]) -> anyhow::Result<()> {
        let folder = self.place.state().join("sessions");
        let mut looks = time::interval(Duration::from_millis(10));
        let looking = async {
            loop {
                let kept = all_of(&folder, &is_history);
                if texts.iter().any(|text| kept.contains(text)) {
                    return;
                }
                looks.tick().await;
            }
        };
        time::timeout(WAIT, looking).await.with_context(|| format!("{texts:?} never came"))
    }
}

/// Lines of JSON, or the database of opencode with what was written to it last: its rows are JSON, and short ones stand in one piece.
fn is_history(path: &Path) -> bool {
    let named = |name: &str| name.starts_with("opencode.db");
    path.extension().is_some_and(|kind| kind == "jsonl")
        || path.file_name().and_then(|name| name.to_str()).is_some_and(named)
}

/// All that stands in such files below a folder.
fn all_of(folder: &Path, fits: &impl Fn(&Path) -> bool) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => all_of(&entry.path(), fits),
        Ok(_) | Err(_) if fits(&entry.path()) => {
            fs::read(entry.path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
        }
        Ok(_) | Err(_) => String::new(),
    });
    texts.collect()
}
