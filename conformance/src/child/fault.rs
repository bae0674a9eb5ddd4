//! Where a Harness of [`Harness::ALL`] misbehaves, and how; those that speak ACP have faults elsewhere. The healthy program of each answers the start, and plays the same Turn again and again: a message,
//! a command with output, a final message. A fault stands *before* what the healthy program does at its place, so that one that ends the process
//! replaces it and one that only disturbs is followed by it.

use super::{claude, codex};
use crate::rig::Harness;
use crate::script::child::{Bytes, Program, Read, Signal, Spawn, Stderr, Step};

/// The name of the function that [`Place::InCall`] and [`Place::AfterCall`] call.
pub const FUNCTION: &str = "lookup";

/// The mark that is set when a fault is about to happen.
pub const MARK: &str = "fault";

/// Where in the life of a Harness a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Before anything is read.
    Start,
    /// Instead of, or before, the answer to `initialize`.
    AtInitialize,
    /// Behind the answer to `initialize`.
    AfterInitialize,
    /// Instead of, or before, the answer that a conversation is there: the one to `thread/start`; Claude Code's is that to `initialize`.
    AtThreadStart,
    /// Behind that answer.
    AfterThreadStart,
    /// Instead of, or before, the word that the input of a Turn is there: the answer to `turn/start`, or `queued`.
    AtTurnStart,
    /// Behind it, before `turn/started` or `started`.
    AfterTurnStart,
    /// Behind that.
    InTurn,
    /// In the first message, behind its first delta.
    InMessage,
    /// In the command, behind its first output where there is one before its end.
    InCommand,
    /// While a function call waits for its answer.
    InCall,
    /// When the answer to a function call was read and not confirmed.
    AfterCall,
    /// When all items are done, before `turn/completed` or `result`.
    BeforeEnd,
    /// Behind `turn/completed`, or the idle state.
    AfterEnd,
    /// When the interrupt was read and not answered, in an open message.
    AtInterrupt,
}

/// The steps of a fault, where its place is here.
pub(super) fn at(place: Option<Place>, fault: &[Step], here: Place) -> Vec<Step> {
    if place != Some(here) {
        return Vec::new();
    }
    let mut steps = vec![Step::Mark(MARK.into())];
    steps.extend_from_slice(fault);
    steps
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Exits with 0.
    ExitsWith0,
    /// Writes a line to standard error and exits with 1.
    ExitsWith1,
    /// Dies of a segmentation fault.
    Segfaults,
    /// Dies of SIGKILL that nobody of ours sent.
    IsKilled,
    /// Does nothing more, reads nothing more, and does not care for SIGTERM.
    Hangs,
    /// Closes its output and goes on living until its input ends.
    ClosesItsOutput,
    /// Leaves a descendant that holds its output open, in a session of its own and deaf to SIGTERM, and exits.
    LeavesADescendant,
    /// Writes a line that is not UTF-8, and goes on.
    WritesInvalidUtf8,
    /// Writes a line that is not JSON, and goes on.
    WritesNoJson,
    /// Writes a notification of 65 MiB in one line, and goes on.
    WritesALineOf65MiB,
    /// Ends in the middle of a line.
    EndsInALine,
    /// Writes 1 MiB to standard error, and goes on.
    FloodsStderr,
    /// Sends notifications, items and a request that nobody knows, and goes on.
    SendsUnknownMessages,
    /// Answers the request that came last with an error, and then only what the rules know.
    Refuses,
}

impl Place {
    /// All places, in the order in which a run reaches them.
    pub const ALL: [Self; 15] = [
        Self::Start,
        Self::AtInitialize,
        Self::AfterInitialize,
        Self::AtThreadStart,
        Self::AfterThreadStart,
        Self::AtTurnStart,
        Self::AfterTurnStart,
        Self::InTurn,
        Self::InMessage,
        Self::InCommand,
        Self::InCall,
        Self::AfterCall,
        Self::BeforeEnd,
        Self::AfterEnd,
        Self::AtInterrupt,
    ];
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 14] = [
        Self::ExitsWith0,
        Self::ExitsWith1,
        Self::Segfaults,
        Self::IsKilled,
        Self::Hangs,
        Self::ClosesItsOutput,
        Self::LeavesADescendant,
        Self::WritesInvalidUtf8,
        Self::WritesNoJson,
        Self::WritesALineOf65MiB,
        Self::EndsInALine,
        Self::FloodsStderr,
        Self::SendsUnknownMessages,
        Self::Refuses,
    ];

    /// Whether the healthy program goes on behind it.
    #[must_use]
    pub fn goes_on(self) -> bool {
        matches!(
            self,
            Self::WritesInvalidUtf8
                | Self::WritesNoJson
                | Self::WritesALineOf65MiB
                | Self::FloodsStderr
                | Self::SendsUnknownMessages
        )
    }

    pub(super) fn steps(self, harness: Harness) -> Vec<Step> {
        let text = |text: &str| Step::Bytes(Bytes { text: Some(text.into()), ..Bytes::default() });
        match self {
            Self::ExitsWith0 => vec![Step::Exit(0)],
            Self::ExitsWith1 => {
                vec![Step::Stderr(Stderr { text: Some("Error: nothing works\n".into()), bytes: 0 }), Step::Exit(1)]
            }
            Self::Segfaults => vec![Step::Die(Signal::Segv)],
            Self::IsKilled => vec![Step::Die(Signal::Kill)],
            Self::Hangs => vec![Step::IgnoreTerm, Step::Hang],
            Self::ClosesItsOutput => vec![Step::CloseStdout, serve_on()],
            Self::LeavesADescendant => {
                let spawn =
                    Spawn { seconds: 600, new_session: true, ignore_term: true, hold_stdout: true, clear_env: false };
                vec![Step::Spawn(spawn), Step::Exit(0)]
            }
            Self::WritesInvalidUtf8 => {
                vec![Step::Bytes(Bytes { hex: Some("7b22 ff fe 22 7d 0a".into()), ..Bytes::default() })]
            }
            Self::WritesNoJson => vec![text("thread panicked at nothing in particular\n")],
            Self::WritesALineOf65MiB => vec![harness.delta("${fill:68157440}")],
            Self::EndsInALine => vec![text(harness.half_a_line()), Step::Exit(0)],
            Self::FloodsStderr => vec![Step::Stderr(Stderr { text: None, bytes: 1 << 20 })],
            Self::SendsUnknownMessages => match harness {
                Harness::Codex => codex::unknown_messages(),
                Harness::ClaudeCode => claude::unknown_messages(),
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            },
            Self::Refuses => match harness {
                Harness::Codex => vec![codex::refusal(), serve_on()],
                Harness::ClaudeCode => vec![claude::refusal(), serve_on()],
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            },
        }
    }
}

impl Harness {
    /// A program without a fault.
    #[must_use]
    pub fn healthy(self) -> Program {
        match self {
            Self::Codex => codex::healthy(),
            Self::ClaudeCode => claude::healthy(),
            Self::MinimaxCode | Self::Opencode => self.has_nothing_here(),
        }
    }

    /// A program whose Turn calls [`FUNCTION`] with these arguments (JSON text), and is healthy otherwise.
    #[must_use]
    pub fn calling(self, arguments: &str) -> Program {
        match self {
            Self::Codex => codex::calling(arguments),
            Self::ClaudeCode => claude::calling(arguments),
            Self::MinimaxCode | Self::Opencode => self.has_nothing_here(),
        }
    }

    /// A program with a fault at a place.
    #[must_use]
    pub fn with_fault(self, place: Place, fault: Fault) -> Program {
        self.with_steps(place, &fault.steps(self))
    }

    /// A program with steps of the caller's own at a place.
    #[must_use]
    pub fn with_steps(self, place: Place, steps: &[Step]) -> Program {
        match self {
            Self::Codex => codex::with_steps(place, steps),
            Self::ClaudeCode => claude::with_steps(place, steps),
            Self::MinimaxCode | Self::Opencode => self.has_nothing_here(),
        }
    }

    /// A line with more text of the message that is open at [`Place::InMessage`].
    #[must_use]
    pub fn delta(self, text: &str) -> Step {
        match self {
            Self::Codex => codex::delta("msg_1", text),
            Self::ClaudeCode => claude::delta(text),
            Self::MinimaxCode | Self::Opencode => self.has_nothing_here(),
        }
    }

    /// The same, cut in two where its text stands.
    #[must_use]
    pub fn cut_delta(self) -> (String, String) {
        const TEXT: &str = "HERE";
        let line = match self.delta(TEXT) {
            Step::Line(line) => line.get().to_owned(),
            _ => String::new(),
        };
        let (head, tail) = line.split_once(TEXT).unwrap_or_default();
        (head.to_owned(), tail.to_owned())
    }

    /// The beginning of a line that would end a Turn.
    #[must_use]
    pub fn half_a_line(self) -> &'static str {
        match self {
            Self::Codex => r#"{"method":"turn/comp"#,
            Self::ClaudeCode => r#"{"type":"result","subtype":"succ"#,
            Self::MinimaxCode | Self::Opencode => self.has_nothing_here(),
        }
    }

    /// Reads up to the interrupt, and says that it is taken.
    #[must_use]
    pub fn reads_interrupt(self) -> Vec<Step> {
        let (method, answer) = match self {
            Self::Codex => ("turn/interrupt", codex::interrupt_taken()),
            Self::ClaudeCode => ("interrupt", claude::interrupt_taken()),
            Self::MinimaxCode | Self::Opencode => self.has_nothing_here(),
        };
        vec![Step::Read(Read { method: Some(method.into()), answer_to: None }), answer]
    }
}

/// Waits for a method that nobody sends: all that comes is answered by the rules, until the input ends.
pub(super) fn serve_on() -> Step {
    Step::Read(Read { method: Some("exit".into()), answer_to: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    #[test]
    fn every_ready_program_is_a_script_and_reads_back_as_itself() {
        for harness in Harness::ALL {
            let mut programs = vec![harness.healthy(), harness.calling(r#"{"z":1e400}"#)];
            for place in Place::ALL {
                programs.extend(Fault::ALL.map(|fault| harness.with_fault(place, fault)));
            }
            for program in programs {
                let text = Script::for_child(program).text().unwrap();
                assert_eq!(Script::parse(&text).unwrap().text().unwrap(), text);
            }
        }
    }

    #[test]
    fn every_place_is_reached_by_a_rule() {
        for (harness, place) in Harness::ALL.into_iter().flat_map(|harness| Place::ALL.map(|place| (harness, place))) {
            let text = Script::for_child(harness.with_fault(place, Fault::ExitsWith0)).text().unwrap();
            let marks = text.matches("\"mark\"").count();
            assert!((1..=2).contains(&marks), "{harness:?} {place:?}");
        }
    }

    #[test]
    fn a_delta_is_cut_where_its_text_stands() {
        for harness in Harness::ALL {
            let (head, tail) = harness.cut_delta();
            let whole: serde_json::Value = serde_json::from_str(&format!("{head}more{tail}")).unwrap();
            assert!(whole.is_object() && !head.is_empty() && !tail.is_empty(), "{harness:?}");
        }
    }
}
