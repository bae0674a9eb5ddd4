//! What was said in a session, on disk: a file of JSON lines in the data folder. It outlives a kill at any moment; a line that was not written
//! whole is passed over.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// A line of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    /// How the session is set; the last one counts.
    Meta(Meta),
    /// What a user said.
    User(Said),
    /// What the model said in one response.
    Assistant(Vec<Block>),
    /// What its calls gave, in their order.
    Results(Vec<Outcome>),
}

/// How a session is set.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) cwd: PathBuf,
    pub(super) model: String,
    pub(super) mode: String,
}

/// A text with the id of its message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) id: String,
    pub(super) text: String,
}

/// A part of a response.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Block {
    Thought { id: String, text: String, signature: String },
    Text(Said),
    Call(Call),
}

/// A call of a tool; the arguments are JSON as the model wrote it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

/// What a call gave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) id: String,
    pub(super) name: String,
    /// `completed` or `failed`, as ACP has it.
    pub(super) status: String,
    /// What the model reads, as parts of MCP.
    pub(super) content: serde_json::Value,
    /// Whether the model is told that it failed.
    pub(super) is_error: bool,
    /// `rawOutput` of ACP, as JSON text.
    pub(super) raw_output: String,
}

impl Outcome {
    /// A failure with nothing but a text.
    pub(super) fn failed(call: &Call, text: &str) -> Self {
        let (content, raw_output) = (said(text), serde_json::json!({ "error": text }).to_string());
        let (id, name) = (call.id.clone(), call.name.clone());
        Self { id, name, status: "failed".into(), content, is_error: true, raw_output }
    }
}

/// A text as parts of MCP.
pub(super) fn said(text: &str) -> serde_json::Value {
    serde_json::json!([{"type": "text", "text": text}])
}

/// The file of a session.
pub(super) fn file(data: &Path, id: &str) -> PathBuf {
    folder(data).join(format!("{id}.jsonl"))
}

/// Adds an entry.
pub(super) fn append(data: &Path, id: &str, entry: &Entry) -> anyhow::Result<()> {
    fs::create_dir_all(folder(data)).context("make the folder of the history")?;
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    let mut file = OpenOptions::new().create(true).append(true).open(file(data, id)).context("open the history")?;
    file.write_all(&line).context("write the history")
}

/// Reads a session: how it is set, and what was said. Calls whose results a kill took away have failed. Nothing where there is no such session.
pub(super) fn read(data: &Path, id: &str) -> Option<(Meta, Vec<Entry>)> {
    let plain = id.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    let text = plain.then(|| fs::read_to_string(file(data, id)).ok()).flatten()?;
    let (mut meta, mut entries) = (None, Vec::new());
    for entry in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        match entry {
            Entry::Meta(set) => meta = Some(set),
            entry => {
                close(&mut entries, matches!(entry, Entry::Results(_)));
                entries.push(entry);
            }
        }
    }
    close(&mut entries, false);
    Some((meta?, entries))
}

/// Ends calls that have no results.
fn close(entries: &mut Vec<Entry>, answered: bool) {
    let Some(Entry::Assistant(blocks)) = entries.last() else { return };
    let lost = |block: &Block| match block {
        Block::Call(call) => Some(Outcome::failed(call, "aborted")),
        Block::Thought { .. } | Block::Text(_) => None,
    };
    let lost: Vec<_> = blocks.iter().filter_map(lost).collect();
    if !answered && !lost.is_empty() {
        entries.push(Entry::Results(lost));
    }
}

/// The ids of all sessions.
pub(super) fn ids(data: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder(data)).into_iter().flatten().flatten();
    let mut ids: Vec<_> =
        entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".jsonl")?.to_owned())).collect();
    ids.sort();
    ids
}

fn folder(data: &Path) -> PathBuf {
    data.join("v2").join("sessions")
}
