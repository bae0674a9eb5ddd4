//! Codex's own history on disk, a *rollout*: one file for each thread, one JSON object a line, only ever added to. Read here, never written:
//! whether a history is the one that is meant (R-PRE-4), and how a native turn ended whose end nobody saw (R-EVT-7, R-DUR-2).
//!
//! What Codex tells as `turn/completed` it has written before, which is why a history without its last turn is not the one that is meant.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Deserialize;
use serde_json::value::RawValue;

use self::backwards::Backwards;
use super::{events, failure::Errors, wire};
use crate::{
    cleaner::Cleaner,
    harness::{HistoryFault, NativeEnd, Proof, ProvedInput, ProvedInputs, ProvedMessage, Resume, Usage},
    native::folder::Folder,
};

mod backwards;

/// LIMIT: bytes of the first line, which holds the base instructions.
const MAX_HEAD: u64 = 16 << 20;
/// LIMIT: bytes of a history that are looked at for the end of a turn, from its end.
const MAX_LOOK: u64 = 256 << 20;

/// What stands in history about a native turn that has ended.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) end: Ended,
    pub(super) at: Option<SystemTime>,
    pub(super) message: Option<ProvedMessage>,
    pub(super) usage: Option<Usage>,
}

impl Found {
    /// The same in neutral words. `errors` are those that were told of the turn.
    pub(super) fn into_proof(self, errors: &Errors, cleaner: &Cleaner) -> Proof {
        let Self { end, at, message, usage } = self;
        let end = match end {
            Ended::Completed => NativeEnd::Completed { finish: None, at },
            Ended::Failed(error) => NativeEnd::Failed { failure: errors.last(&error, cleaner), finish: None, at },
            Ended::Interrupted => NativeEnd::Interrupted { at },
        };
        Proof { end, message, usage }
    }
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Ended {
    Completed,
    Failed(wire::TurnError),
    Interrupted,
}

/// Whether the history is there, is that of the thread, and has the turn that must be in it.
pub(super) fn check(codex_home: &Path, resume: &Resume) -> Result<(), HistoryFault> {
    let file = find(codex_home, &resume.native_session_id).ok_or(HistoryFault::Missing)?;
    if head(&file).ok_or(HistoryFault::Corrupt)? != resume.native_session_id {
        return Err(HistoryFault::Foreign);
    }
    let Some(last) = &resume.last_turn else { return Ok(()) };
    match turn(file, last) {
        Ok(Some(_)) => Ok(()),
        Ok(None) | Err(_) => Err(HistoryFault::Corrupt),
    }
}

/// How a native turn ended, where that stands in history.
pub(super) fn ending(codex_home: &Path, thread_id: &str, turn_id: &str) -> Option<Found> {
    turn(find(codex_home, thread_id)?, turn_id).unwrap_or_default()
}

/// The file of a thread: `sessions/<year>/<month>/<day>/rollout-<time>-<thread>.jsonl`. Neither a link nor a pipe is a history.
fn find(codex_home: &Path, thread_id: &str) -> Option<File> {
    let is_id = !thread_id.is_empty() && thread_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let end = format!("-{thread_id}.jsonl");
    let mut folders = vec![(Folder::open(codex_home).and_then(|home| home.folder("sessions")).ok()?, 0)];
    while let Some((folder, depth)) = folders.pop().filter(|_| is_id) {
        for name in folder.names().unwrap_or_default() {
            let text = name.to_string_lossy();
            if text.starts_with("rollout-") && text.ends_with(&end) {
                if let Ok(file) = folder.file(&name) {
                    return Some(file);
                }
            } else if depth < 3
                && let Ok(below) = folder.folder(&name)
            {
                folders.push((below, depth + 1));
            }
        }
    }
    None
}

/// The thread that the first line names.
fn head(file: &File) -> Option<String> {
    #[derive(Deserialize)]
    struct Meta {
        id: String,
    }
    let mut line = Vec::new();
    BufReader::new(file.take(MAX_HEAD)).read_until(b'\n', &mut line).ok()?;
    let line: Line<'_> = serde_json::from_slice(&line).ok()?;
    let meta: Meta = serde_json::from_str(line.payload?.get()).ok()?;
    (line.kind == "session_meta").then_some(meta.id)
}

/// Which inputs of a native turn stand in history.
pub(super) fn inputs(codex_home: &Path, thread_id: &str, turn_id: &str) -> Option<ProvedInputs> {
    let (mut read, mut is_over) = (Vec::new(), false);
    let is_whole = lines(find(codex_home, thread_id)?, turn_id, |_, payload| match payload.kind.as_deref() {
        Some("task_complete" | "turn_aborted") => is_over = true,
        Some("item_completed") => {
            let item = payload.item.and_then(|item| serde_json::from_str::<Item>(item.get()).ok());
            if let Some(Item { id: native_id, client_id: Some(client_id), .. }) = item {
                read.push(ProvedInput { client_id, native_id });
            }
        }
        _ => {}
    });
    read.reverse();
    Some(ProvedInputs { read, is_over: is_over && is_whole.ok()? })
}

/// What stands in history of a turn that has ended.
fn turn(file: File, turn_id: &str) -> io::Result<Option<Found>> {
    let (mut end, mut message, mut usage) = (None, None, None);
    lines(file, turn_id, |kind, payload| match (kind, payload.kind.as_deref()) {
        ("token_usage_record", _) if usage.is_none() => {
            usage = payload.turn_token_usage.map(wire::StoredTokens::into_usage);
        }
        (_, Some("task_complete")) if end.is_none() => {
            let at = payload.completed_at.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
            end = Some((payload.error.map_or(Ended::Completed, |error| Ended::Failed(error.into())), at));
        }
        (_, Some("turn_aborted")) if end.is_none() => {
            let at = payload.completed_at.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
            end = Some((Ended::Interrupted, at));
        }
        (_, Some("item_completed")) if message.is_none() => {
            message = payload.item.and_then(|item| serde_json::from_str(item.get()).ok()).and_then(text_of);
        }
        _ => {}
    })?;
    Ok(end.map(|(end, at)| Found { end, at, message, usage }))
}

/// Gives the lines of a turn from the last to the first, and tells whether its start was reached. What does not parse is skipped: the end of a
/// file may be torn.
fn lines(file: File, turn_id: &str, mut take: impl FnMut(&str, Payload<'_>)) -> io::Result<bool> {
    let mut lines = Backwards::new(file, MAX_LOOK)?;
    while let Some(line) = lines.next()? {
        let Ok(Line { kind, payload: Some(payload) }) = serde_json::from_slice(&line) else { continue };
        if !matches!(&*kind, "event_msg" | "token_usage_record") {
            continue;
        }
        let Ok(payload) = serde_json::from_str::<Payload<'_>>(payload.get()) else { continue };
        if payload.turn_id.as_deref() != Some(turn_id) {
            continue;
        }
        if payload.kind.as_deref() == Some("task_started") {
            return Ok(true);
        }
        take(&kind, payload);
    }
    Ok(false)
}

/// The tag of a line; the rest is read by it.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

/// What is of use in the lines that name a turn.
#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    turn_id: Option<String>,
    /// Seconds since 1970.
    completed_at: Option<u64>,
    error: Option<wire::StoredError>,
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    turn_token_usage: Option<wire::StoredTokens>,
}

/// A completed item, as far as it is a message.
#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    content: Vec<Part>,
    phase: Option<String>,
    /// What stood beside an input when it was written.
    client_id: Option<String>,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: String,
}

fn text_of(item: Item) -> Option<ProvedMessage> {
    let is_message = item.kind == "AgentMessage" && !item.id.is_empty();
    is_message.then(|| ProvedMessage {
        id: item.id,
        text: item.content.into_iter().map(|part| part.text).collect(),
        phase: item.phase.and_then(|phase| events::message_phase(&phase)),
    })
}

#[cfg(test)]
mod tests;
