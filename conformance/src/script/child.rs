//! A fault child's part of a script: a program that plays a Harness, well or badly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::provider::{is_false, is_zero};

/// What a fault child does.
///
/// `commands` are looked at first, for a start such as `codex --version`. Else `steps` run in order, and when they are
/// through the child answers by `rules` until its standard input ends, and exits with 0.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Programs for particular command lines. `--version` has a built-in one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Command>,
    /// The main sequence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Standing answers: to lines that a `read` step passes over, and to everything when the steps are through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// What is done when standard input ends. Absent: exit with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_eof: Option<Vec<Step>>,
}

/// A program for command lines that begin with certain arguments.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The first arguments, for example `["--version"]`.
    pub args: Vec<String>,
    /// What is done; then the child exits with 0.
    pub steps: Vec<Step>,
}

/// What is done when a line with a certain method comes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The method; `*` stands for any.
    pub method: String,
    /// How often the rule applies; absent: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// What is done.
    pub then: Vec<Step>,
}

/// One step. JSON that is sent is sent byte for byte (but for line breaks between its tokens), with `${…}` replaced.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Reads lines until one fits; others are answered by the rules.
    Read(Read),
    /// Answers the line that was read last with this result.
    Result(Box<RawValue>),
    /// Answers the line that was read last with this error object.
    Error(Box<RawValue>),
    /// Sends one line of JSON.
    Line(Box<RawValue>),
    /// Sends bytes, with chosen sizes of the writes.
    Bytes(Bytes),
    /// Writes to standard error.
    Stderr(Stderr),
    /// Keeps values under names, for `${name}`.
    Set(BTreeMap<String, Box<RawValue>>),
    /// Does steps several times; `${round}` counts from 0.
    Repeat(Repeat),
    /// Starts a descendant that sleeps.
    Spawn(Spawn),
    /// Waits this many milliseconds, without reading.
    PauseMs(u64),
    /// Waits, without reading, until the test opens the gate.
    Gate(String),
    /// Tells the test that this place was reached.
    Mark(String),
    /// SIGTERM has no effect from now on.
    IgnoreTerm,
    /// Closes standard output and goes on.
    CloseStdout,
    /// Closes standard input and goes on: whoever writes gets a broken pipe.
    CloseStdin,
    /// Does nothing more, for ever. Standard input stays open and unread.
    Hang,
    /// Does nothing more but read and keep what comes, for ever, the end of standard input included.
    Drain,
    /// Exits with this code.
    Exit(u8),
    /// Dies by this signal.
    Die(Signal),
}

/// Which line a `read` step waits for. Without members: the next line, whatever it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// A request or a notification with this method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The answer to our own request of this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_to: Option<u64>,
}

/// Bytes for standard output: `text` or `hex`, one of the two.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bytes {
    /// The bytes as text, `${…}` replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The bytes in hexadecimal; blanks do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hex: Option<String>,
    /// The sizes of the writes; the last one goes on. Empty: one write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write_sizes: Vec<usize>,
    /// Milliseconds before each write.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
}

/// Something for standard error.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stderr {
    /// A text, as it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Then this many bytes of filling, in lines of 100.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
}

/// Steps to repeat.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// How often.
    pub times: u64,
    /// What.
    pub steps: Vec<Step>,
}

/// A descendant. It has the child's environment, the marks of its keeper included.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spawn {
    /// How many seconds it lives.
    pub seconds: u64,
    /// It leaves the child's session and process group.
    #[serde(default, skip_serializing_if = "is_false")]
    pub new_session: bool,
    /// SIGTERM has no effect on it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ignore_term: bool,
    /// It keeps the child's standard output open; else it has none.
    #[serde(default, skip_serializing_if = "is_false")]
    pub hold_stdout: bool,
    /// It is started with an empty environment.
    #[serde(default, skip_serializing_if = "is_false")]
    pub clear_env: bool,
}

/// A signal to die by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the names of the signals say it all")]
pub enum Signal {
    Abrt,
    Hup,
    Int,
    Kill,
    Segv,
    Term,
}

impl Program {
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        check(&self.steps)?;
        self.rules.iter().try_for_each(|rule| check(&rule.then))?;
        self.commands.iter().try_for_each(|command| check(&command.steps))?;
        self.on_eof.as_deref().map_or(Ok(()), check)
    }
}

fn check(steps: &[Step]) -> anyhow::Result<()> {
    for step in steps {
        match step {
            Step::Bytes(bytes) => {
                anyhow::ensure!(bytes.text.is_some() != bytes.hex.is_some(), "bytes are text or hex, one of the two");
                anyhow::ensure!(!bytes.write_sizes.contains(&0), "a write has at least one byte");
                bytes.hex.as_deref().map(decode_hex).transpose()?;
            }
            Step::Repeat(repeat) => check(&repeat.steps)?,
            Step::Read(read) => {
                anyhow::ensure!(read.method.is_none() || read.answer_to.is_none(), "read waits for one thing");
            }
            _ => {}
        }
    }
    Ok(())
}

/// The bytes that a hexadecimal text stands for; blanks and line breaks do not count.
pub(crate) fn decode_hex(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).ok_or_else(|| anyhow::anyhow!("{c:?} is no hexadecimal digit")))
        .collect::<anyhow::Result<Vec<u32>>>()?;
    anyhow::ensure!(digits.len() % 2 == 0, "an odd number of hexadecimal digits");
    Ok(digits.chunks_exact(2).filter_map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_text_is_decoded_or_refused() {
        assert_eq!(decode_hex("ff 00\n7B").unwrap(), [0xff, 0, 0x7b]);
        assert!(decode_hex("fff").is_err());
        assert!(decode_hex("zz").is_err());
    }
}
