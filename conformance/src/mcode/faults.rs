//! What the double does badly: `faults.json` beside the installed program.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// The name of the file beside the program.
pub(super) const FILE: &str = "faults.json";

/// What goes wrong, and the limits that a test cannot wait for. The default is well-behaved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// What `--version` says instead of `0.4.12`; the answer of `initialize` says it too.
    pub version: Option<String>,
    /// The answer of `initialize` has no `_meta`.
    pub without_meta: bool,
    /// It ends when this method arrives, without an answer.
    pub exit_at: Option<ExitAt>,
    /// This method is never answered; nothing else is held up by it.
    pub mute_at: Option<String>,
    /// `session/set_config_option` is not answered, and nothing behind it read, while this file is there.
    pub hold_config: Option<PathBuf>,
    /// Standard input is read no more once this method was handled.
    pub deaf_after: Option<String>,
    /// The end of standard input is no reason to leave.
    pub ignore_eof: bool,
    /// SIGTERM is no reason either.
    pub ignore_term: bool,
    /// Before every answer, lines that are no message.
    pub junk_lines: bool,
    /// At the start of a prompt, one line (a list of commands) that is at least so long.
    pub long_line_bytes: usize,
    /// Standard error is written to without an end.
    pub endless_stderr: bool,
    /// How a cancelled prompt is settled.
    pub cancel: Option<Settles>,
    /// What a cancelled `bash` leaves alive.
    pub cancel_leaves: Option<Leaves>,
    /// After a prompt was answered as cancelled, this tool is begun, run and ended with the ids of the Turn that is over. A tool of an MCP server
    /// is really called, with an empty object.
    pub cancel_late_call: Option<String>,
    /// The answer of a prompt is sent twice.
    pub answer_twice: bool,
    /// A prompt is worked on to its end and not answered.
    pub never_answer: bool,
    /// So many updates with the ids of the ended Turn after the answer of its prompt.
    pub late_updates: usize,
    /// No `usage_update` and no `session_info_update` after the answer.
    pub without_late_usage: bool,
    /// An update of a kind that nobody knows, at the start of a prompt.
    pub unknown_update: bool,
    /// A prompt that went well ends with this reason.
    pub stop_reason: Option<String>,
    /// A prompt fails with -32603 and `Runtime failed: ` before this text, without a request to the provider.
    pub fail_prompt: Option<String>,
    /// It ends with this status after the first text of the model.
    pub exit_mid_turn: Option<u8>,
    /// What goes wrong with steering.
    pub steer: Option<Steers>,
    /// Every tool is asked for, whatever the permission mode.
    pub ask_always: bool,
    /// Before the model is asked, the user is: by elicitation where the client can, else by a permission whose options are answers. What is
    /// answered goes to the model as a text.
    pub question: bool,
    /// Every update comes again under the id of a session that does not exist.
    pub foreign_session: bool,
    /// `session/load` and `session/resume` know no session.
    pub load_forgets: bool,
    /// The final update of a tool comes twice.
    pub double_finals: bool,
    /// The discovery of MCP servers has so long, instead of 2 s (15 s over standard input and output).
    pub discovery_ms: Option<u64>,
    /// So long a pause before the discovery, which counts.
    pub discovery_delay_ms: u64,
    /// A call of a tool of an MCP server has so long, instead of 120 s.
    pub call_ms: Option<u64>,
    /// So many requests to the provider in one prompt, instead of 200; more end it with `max_turn_requests`.
    pub max_requests: Option<u32>,
    /// `.mcp.json` of the workspace is believed.
    pub project_mcp: bool,
}

/// When it ends early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExitAt {
    /// The method, such as `session/new`.
    pub method: String,
    /// The status.
    pub code: u8,
}

/// How a cancelled prompt is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settles {
    /// Not at all.
    Never,
    /// So many milliseconds later.
    LateMs(u64),
}

/// What a cancelled `bash` leaves alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leaves {
    /// The command, in the double's own process group.
    Group,
    /// The command, in a session of its own.
    Session,
}

/// What goes wrong with steering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steers {
    /// It is taken, and not answered.
    Lost,
    /// It is taken, and answered with an error that does not say so.
    Error,
    /// It is taken, and the receipt names another Turn.
    ChangedTurn,
    /// The receipt is no receipt.
    Unreadable,
}

impl Faults {
    /// Reads the file in a folder; without one nothing goes wrong.
    pub(super) fn beside(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| format!("read {}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }
}
