//! Claude Code's own files, read only: is the history there that is meant, which inputs stand in it, did a turn end well (R-PRE-4, R-EVT-7,
//! R-STE-3). A history is a file of one JSON object in a line, named by its conversation, in a folder that is named by the directory in which
//! Claude Code ran. The ids of our inputs stand in it as we gave them.

use std::{
    borrow::Cow,
    ffi::OsString,
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    harness::{Finish, HistoryFault, NativeEnd, Proof, ProvedInput, ProvedInputs, ProvedMessage, Resume},
    native::folder::Folder,
};

/// LIMIT: bytes of one line; a longer one holds no text that anybody here looks for.
const MAX_ROW: u64 = 64 << 20;

/// Stands in a history whose conversation has a schema for its answers: there `end_turn` is not the end.
const STRUCTURED: &str = "\"StructuredOutput\"";

/// One line.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    uuid: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "sessionId")]
    session: Option<Cow<'a, str>>,
    #[serde(rename = "isSidechain")]
    is_sidechain: bool,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    attachment: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Attachment<'a> {
    /// The input that came while a turn was running.
    #[serde(borrow)]
    source_uuid: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct Message {
    id: String,
    #[serde(default)]
    content: Vec<Block>,
    stop_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
}

impl Row<'_> {
    /// The input that it shows as read.
    fn input(&self) -> Option<String> {
        match (&*self.kind, &self.uuid, self.attachment) {
            ("user", Some(uuid), _) => Some(uuid.clone().into_owned()),
            ("attachment", _, Some(attachment)) => {
                let attachment: Attachment<'_> = serde_json::from_str(attachment.get()).ok()?;
                attachment.source_uuid.map(Cow::into_owned)
            }
            _ => None,
        }
    }
}

/// A history, whatever the directory was. A link to one is none.
fn find(home: &Path, session: &str) -> io::Result<Option<File>> {
    let projects = match Folder::open(home).and_then(|home| home.folder("projects")) {
        Ok(projects) => projects,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let name = format!("{session}.jsonl");
    let file_in = |project: OsString| projects.folder(project).and_then(|project| project.file(&name)).ok();
    Ok(projects.names()?.into_iter().find_map(file_in))
}

/// Gives each line to `look`, until it says that it has seen enough. A line that is cut or no row is passed over.
fn rows(file: File, mut look: impl FnMut(&str, Row<'_>) -> bool) -> io::Result<()> {
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut lines).take(MAX_ROW).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        let Ok(row) = serde_json::from_str::<Row<'_>>(text) else { continue };
        if look(text, row) {
            return Ok(());
        }
    }
}

/// Whether the history that is meant is there. The turn that completed last must stand in it, with something of its answer: Claude Code would go on
/// with what is left of a history that was cut, as if the rest had never been.
pub(super) fn check(home: &Path, resume: &Resume) -> Result<(), HistoryFault> {
    let id = &resume.native_session_id;
    // It is a part of a path.
    if uuid::Uuid::try_parse(id).is_err() {
        return Err(HistoryFault::Missing);
    }
    let file = find(home, id).map_err(|_| HistoryFault::Corrupt)?.ok_or(HistoryFault::Missing)?;
    let (mut first, mut foreign) = (true, false);
    let (mut began, mut found) = (false, resume.last_turn.is_none());
    let looked = rows(file, |_, row| {
        if let Some(session) = row.session.as_deref().filter(|_| first) {
            foreign = session != id;
            first = false;
        }
        found |= began && !row.is_sidechain && matches!(&*row.kind, "assistant" | "user");
        began |= row.input().is_some() && row.input() == resume.last_turn;
        foreign || (found && !first)
    });
    match looked {
        Ok(()) if foreign => Err(HistoryFault::Foreign),
        Ok(()) if found && !first => Ok(()),
        Ok(()) | Err(_) => Err(HistoryFault::Corrupt),
    }
}

/// What a history tells of one turn of ours.
#[derive(Debug, Default)]
struct Told {
    read: Vec<ProvedInput>,
    /// The turn's own input stands in it.
    began: bool,
    /// A later turn's input, or anything else that is no answer, stands behind the last answer.
    open: bool,
    structured: bool,
    /// The last answer ended by itself.
    ended: bool,
    message: Option<ProvedMessage>,
    /// Blocks of the message that is read, so far.
    blocks: (String, u32),
}

fn tell(home: &Path, session: &str, turn: &str) -> Option<Told> {
    let file = find(home, session).ok()??;
    let mut told = Told::default();
    rows(file, |text, row| {
        told.structured |= text.contains(STRUCTURED);
        if let Some(input) = row.input() {
            told.began |= input == turn;
            if told.began {
                told.read.push(ProvedInput { client_id: input.clone(), native_id: input });
            }
        }
        if told.began && !row.is_sidechain {
            told.row(&row);
        }
        false
    })
    .ok()?;
    Some(told)
}

impl Told {
    fn row(&mut self, row: &Row<'_>) {
        match &*row.kind {
            "assistant" => {
                let Some(Ok(message)) = row.message.map(|raw| serde_json::from_str::<Message>(raw.get())) else {
                    self.open = true;
                    return;
                };
                if self.blocks.0 != message.id {
                    self.blocks = (message.id.clone(), 0);
                }
                for block in message.content {
                    if block.kind == "text" {
                        let id = super::events::item_id(&message.id, self.blocks.1);
                        self.message = Some(ProvedMessage { id, text: block.text, phase: None });
                    }
                    self.blocks.1 += 1;
                }
                self.ended = message.stop_reason.as_deref() == Some("end_turn");
                self.open = false;
            }
            "user" | "attachment" | "queue-operation" => self.open = true,
            _ => {}
        }
    }

    /// Whether the turn came to its end: the model ended its answer, and nothing was asked of it after that.
    fn is_over(&self) -> bool {
        self.began && self.ended && !self.open && !self.structured
    }
}

/// Which inputs a turn has read. None where the history cannot be read.
pub(super) fn inputs(home: &Path, session: &str, turn: &str) -> Option<ProvedInputs> {
    let told = tell(home, session, turn)?;
    let is_over = told.is_over();
    Some(ProvedInputs { read: told.read, is_over })
}

/// How a turn ended, where its last answer proves it. It is written a little behind what is told, so one that lacks an input that was shown as read
/// has not the last answer yet.
pub(super) fn ending(home: &Path, session: &str, turn: &str, shown: &[String]) -> Option<Proof> {
    let told = tell(home, session, turn)?;
    let end = NativeEnd::Completed { finish: Some(Finish::Stop), at: None };
    let is_whole = shown.iter().all(|id| told.read.iter().any(|input| input.client_id == *id));
    (is_whole && told.is_over()).then_some(Proof { end, message: told.message, usage: None })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    const SESSION: &str = "0b0e7c1a-4a39-4b6c-8f6e-3f9b8f0f2d11";

    /// A home with this history, whose first line has the conversation's name.
    fn home(name: &str, rows: &[&str]) -> PathBuf {
        let exe = std::env::current_exe().unwrap();
        let home = exe.with_file_name(format!("claude-history-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&home);
        let folder = home.join("projects/-w");
        fs::create_dir_all(&folder).unwrap();
        let first = format!(r#"{{"type":"queue-operation","operation":"enqueue","sessionId":"{SESSION}"}}"#);
        let text: String = [&*first].iter().chain(rows).map(|row| format!("{row}\n")).collect();
        fs::write(folder.join(format!("{SESSION}.jsonl")), text).unwrap();
        home
    }

    const ASKED: &str =
        r#"{"type":"user","uuid":"t-1","message":{"role":"user","content":[{"type":"text","text":"hi"}]}}"#;
    const THOUGHT: &str = r#"{"type":"assistant","message":{"id":"m1","content":[{"type":"thinking","thinking":"h"}],"stop_reason":"end_turn"}}"#;
    const SAID: &str = r#"{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn"}}"#;
    const CALLED: &str = r#"{"type":"assistant","message":{"id":"m0","content":[{"type":"tool_use","id":"c","name":"Bash","input":{}}],"stop_reason":"tool_use"}}"#;
    const RESULT: &str =
        r#"{"type":"user","uuid":"r","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"c"}]}}"#;
    const STEERED: &str =
        r#"{"type":"attachment","uuid":"x","attachment":{"type":"queued_command","source_uuid":"t-1/a"}}"#;
    const LAST: &str = r#"{"type":"last-prompt","lastPrompt":"hi"}"#;

    fn resume(session: &str, last_turn: Option<&str>) -> Resume {
        let last_turn = last_turn.map(str::to_owned);
        Resume { native_session_id: session.into(), last_turn, instructions_changed: false }
    }

    #[test]
    fn the_history_that_is_meant_is_told_from_others() {
        let home = home("check", &[ASKED, SAID, STEERED, SAID]);
        let check = |session: &str, last: Option<&str>| check(&home, &resume(session, last));
        assert_eq!(check(SESSION, None), Ok(()));
        assert_eq!(check(SESSION, Some("t-1")), Ok(()));
        assert_eq!(check(SESSION, Some("t-1/a")), Ok(()));
        assert_eq!(check(SESSION, Some("t-2")), Err(HistoryFault::Corrupt));
        assert_eq!(check("0b0e7c1a-4a39-4b6c-8f6e-3f9b8f0f2d12", None), Err(HistoryFault::Missing));
        assert_eq!(check("../x", None), Err(HistoryFault::Missing));
        let other = "0b0e7c1a-4a39-4b6c-8f6e-3f9b8f0f2d13";
        let folder = home.join("projects/-w");
        fs::copy(folder.join(format!("{SESSION}.jsonl")), folder.join(format!("{other}.jsonl"))).unwrap();
        assert_eq!(check(other, None), Err(HistoryFault::Foreign));
        let file = folder.join(format!("{SESSION}.jsonl"));
        let whole = fs::read_to_string(&file).unwrap();
        fs::write(&file, &whole[..whole.find(SAID).unwrap()]).unwrap();
        assert_eq!(check(SESSION, Some("t-1")), Err(HistoryFault::Corrupt), "its answer is gone");
        fs::write(&file, "\0\0\0").unwrap();
        assert_eq!(check(SESSION, None), Err(HistoryFault::Corrupt));
        fs::rename(&file, home.join("aside")).unwrap();
        std::os::unix::fs::symlink(home.join("aside"), &file).unwrap();
        assert_eq!(check(SESSION, None), Err(HistoryFault::Missing), "a link is not it");
        assert_eq!(super::check(&home.join("none"), &resume(SESSION, None)), Err(HistoryFault::Missing));
    }

    #[track_caller]
    fn ends(name: &str, rows: &[&str], want: Option<&str>) {
        let proof = ending(&home(name, rows), SESSION, "t-1", &[]);
        assert_eq!(proof.map(|proof| proof.message.unwrap().text).as_deref(), want, "{rows:?}");
    }

    #[test]
    fn a_turn_is_over_where_its_last_answer_ended_and_nothing_came_behind_it() {
        ends("said", &[ASKED, SAID], Some("hello"));
        ends("thought", &[ASKED, THOUGHT, SAID, LAST], Some("hello"));
        ends("called", &[ASKED, CALLED, RESULT, SAID], Some("hello"));
        ends("asked", &[ASKED], None);
        ends("calling", &[ASKED, CALLED], None);
        ends("result", &[ASKED, CALLED, RESULT], None);
        ends("steered", &[ASKED, SAID, STEERED], None);
        ends("other", &[SAID], None);
        let structured = r#"{"type":"api-request-shape","shape":{"tools":[{"name":"StructuredOutput"}]}}"#;
        ends("structured", &[structured, ASKED, SAID], None);
        let sidechain = SAID.replacen('{', r#"{"isSidechain":true,"#, 1);
        ends("sidechain", &[ASKED, &sidechain], None);
        ends("cut", &[ASKED, &SAID[..40]], None);
    }

    #[test]
    fn a_history_without_an_input_that_was_read_is_older_than_the_end() {
        let shown = ["t-1/a".to_owned()];
        assert!(ending(&home("older", &[ASKED, SAID]), SESSION, "t-1", &shown).is_none());
        assert!(ending(&home("newer", &[ASKED, SAID, STEERED, SAID]), SESSION, "t-1", &shown).is_some());
    }

    #[test]
    fn inputs_that_were_read_stand_there() {
        let told = inputs(&home("inputs", &[ASKED, CALLED, RESULT, STEERED, SAID]), SESSION, "t-1").unwrap();
        let read: Vec<_> = told.read.iter().map(|input| &*input.client_id).collect();
        assert_eq!((read, told.is_over), (vec!["t-1", "r", "t-1/a"], true));
        let told = inputs(&home("unread", &[ASKED]), SESSION, "t-1").unwrap();
        assert_eq!((told.read.len(), told.is_over), (1, false));
        assert!(inputs(&home("nobody", &[]).join("none"), SESSION, "t-1").is_none());
    }
}
