//! The Harnesses that scenarios drive, and what each is called.

use std::path::PathBuf;

use proto::v1;

use super::place;
use crate::provider::Protocol;

/// A Harness that the daemon hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Harness {
    /// Codex, through its app server.
    #[default]
    Codex,
    /// Claude Code, through its stream of JSON lines.
    ClaudeCode,
}

impl Harness {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Codex, Self::ClaudeCode];

    /// The Harness that the protocol calls so.
    #[must_use]
    pub fn of_kind(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|harness| harness.kind() == kind)
    }

    /// What the protocol calls it.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::ClaudeCode => "claude_code",
        }
    }

    /// Its name for people.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Codex => "Codex",
            Self::ClaudeCode => "Claude Code",
        }
    }

    /// A model that it knows; the bundled provider plays it.
    #[must_use]
    pub fn model(self) -> &'static str {
        match self {
            Self::Codex => "gpt-5.5",
            Self::ClaudeCode => "claude-sonnet-4-5",
        }
    }

    /// The API in which it talks to its model.
    #[must_use]
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Codex => Protocol::Responses,
            Self::ClaudeCode => Protocol::Messages,
        }
    }

    /// The same as the bridge's protocol has it.
    #[must_use]
    pub fn model_protocol(self) -> v1::ModelProtocol {
        match self.protocol() {
            Protocol::Responses => v1::ModelProtocol::Responses,
            Protocol::Messages => v1::ModelProtocol::Messages,
            Protocol::ChatCompletions => v1::ModelProtocol::Unspecified,
        }
    }

    /// The native message that proves that the result of a call was taken over (R-FN-6).
    #[must_use]
    pub fn result_evidence(self) -> &'static str {
        match self {
            Self::Codex => "item/completed",
            Self::ClaudeCode => "user/tool_result",
        }
    }

    /// The tool that runs commands on a workspace.
    #[must_use]
    pub fn shell(self) -> &'static str {
        match self {
            Self::Codex => "exec_command",
            Self::ClaudeCode => "Bash",
        }
    }

    /// The key of its program in the daemon's configuration.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Codex => "codex.program",
            Self::ClaudeCode => "claude_code.program",
        }
    }

    /// What the file of its program is called.
    #[must_use]
    pub fn executable(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::ClaudeCode => "claude",
        }
    }

    /// The pinned program.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn program(self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Codex => place::codex(),
            Self::ClaudeCode => place::claude(),
        }
    }

    /// Whether it was started for a conversation with these arguments, and not to print something.
    pub(crate) fn converses(self, args: &[String]) -> bool {
        match self {
            Self::Codex => args.first().is_some_and(|first| first == "app-server"),
            Self::ClaudeCode => args.iter().any(|arg| arg.starts_with("--session-id=") || arg.starts_with("--resume=")),
        }
    }

    /// Whether a command line is that of the Harness itself, which its keeper has in its own.
    pub(super) fn runs_as(self, command: &str) -> bool {
        let own = match self {
            Self::Codex => " app-server",
            Self::ClaudeCode => "stream-json",
        };
        command.contains(own) && !command.contains("runtime-bridge-keeper")
    }
}

/// Declares that these tests, functions of a [`Harness`], run with each one: `name::codex`, `name::claude_code`.
#[macro_export]
macro_rules! for_each_harness {
    ($($test:ident),+ $(,)?) => {
        $(
            mod $test {
                use $crate::rig::Harness;

                #[test]
                fn codex() {
                    super::$test(Harness::Codex);
                }

                #[test]
                fn claude_code() {
                    super::$test(Harness::ClaudeCode);
                }
            }
        )+
    };
}
