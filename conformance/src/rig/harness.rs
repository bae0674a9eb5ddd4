//! The Harnesses that scenarios drive, and what each is called.

use std::path::{Path, PathBuf};

use proto::v1;

use super::place;
use crate::{mcode::Faults, provider::Protocol};

/// A Harness that the daemon hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Harness {
    /// Codex, through its app server.
    #[default]
    Codex,
    /// Claude Code, through its stream of JSON lines.
    ClaudeCode,
    /// MiniMax Code, through ACP: the double of it, since the real one cannot be installed.
    MinimaxCode,
    /// opencode, through ACP.
    Opencode,
}

impl Harness {
    /// Those that every scenario is written for, each with a protocol of its own.
    pub const ALL: [Self; 2] = [Self::Codex, Self::ClaudeCode];

    /// Those that speak ACP.
    pub const ACP: [Self; 2] = [Self::MinimaxCode, Self::Opencode];

    /// All there are.
    pub const EVERY: [Self; 4] = [Self::Codex, Self::ClaudeCode, Self::MinimaxCode, Self::Opencode];

    /// The Harness that the protocol calls so.
    #[must_use]
    pub fn of_kind(kind: &str) -> Option<Self> {
        Self::EVERY.into_iter().find(|harness| harness.kind() == kind)
    }

    /// What the protocol calls it.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::ClaudeCode => "claude_code",
            Self::MinimaxCode => "minimax_code",
            Self::Opencode => "opencode",
        }
    }

    /// Its name for people.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Codex => "Codex",
            Self::ClaudeCode => "Claude Code",
            Self::MinimaxCode => "MiniMax Code (fake)",
            Self::Opencode => "opencode (ACP)",
        }
    }

    /// A model that it knows; the bundled provider plays it.
    #[must_use]
    pub fn model(self) -> &'static str {
        match self {
            Self::Codex => "gpt-5.5",
            Self::ClaudeCode => "claude-sonnet-4-5",
            Self::MinimaxCode => "MiniMax-M3",
            // It knows those that its configuration names.
            Self::Opencode => "open-model",
        }
    }

    /// The API in which it talks to its model.
    #[must_use]
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Codex => Protocol::Responses,
            Self::ClaudeCode | Self::MinimaxCode => Protocol::Messages,
            Self::Opencode => Protocol::ChatCompletions,
        }
    }

    /// The same as the bridge's protocol has it.
    #[must_use]
    pub fn model_protocol(self) -> v1::ModelProtocol {
        match self.protocol() {
            Protocol::Responses => v1::ModelProtocol::Responses,
            Protocol::Messages => v1::ModelProtocol::Messages,
            Protocol::ChatCompletions => v1::ModelProtocol::ChatCompletions,
        }
    }

    /// How many tokens the model takes and gives, where the Harness is to be told.
    #[must_use]
    pub fn token_limits(self) -> Option<v1::TokenLimits> {
        Self::ACP.contains(&self).then_some(v1::TokenLimits { context: 200_000, output: 8_192 })
    }

    /// The native message that proves that the result of a call was taken over (R-FN-6).
    #[must_use]
    pub fn result_evidence(self) -> &'static str {
        match self {
            Self::Codex => "item/completed",
            Self::ClaudeCode => "user/tool_result",
            Self::MinimaxCode | Self::Opencode => "session/update",
        }
    }

    /// The tool that runs commands on a workspace.
    #[must_use]
    pub fn shell(self) -> &'static str {
        match self {
            Self::Codex => "exec_command",
            Self::ClaudeCode => "Bash",
            Self::MinimaxCode | Self::Opencode => "bash",
        }
    }

    /// What the daemon's configuration says of it, where this is its program.
    pub(super) fn settings(self, program: &Path) -> String {
        // A path in the form of Rust's debug output is a basic string of TOML, as long as it has no control characters.
        match self {
            Self::Codex => format!("codex.program = {program:?}\n"),
            Self::ClaudeCode => format!("claude_code.program = {program:?}\n"),
            Self::MinimaxCode => format!("minimax_code.program = {program:?}\n"),
            Self::Opencode => {
                let key = "harness.acp.opencode";
                format!("{key}.command = [{program:?}, \"acp\"]\n{key}.profile = \"opencode\"\n")
            }
        }
    }

    /// What the file of its program is called.
    #[must_use]
    pub fn executable(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::ClaudeCode => "claude",
            Self::MinimaxCode => "mcode",
            Self::Opencode => "opencode",
        }
    }

    /// The program that a rig of its own runs: the pinned one, or the double with these faults, which is made in this folder.
    ///
    /// # Errors
    /// When it is not installed, or cannot be made.
    pub(super) fn program(self, folder: &Path, faults: &Faults) -> anyhow::Result<PathBuf> {
        match self {
            Self::Codex => place::codex(),
            Self::ClaudeCode => place::claude(),
            Self::MinimaxCode => crate::mcode::install(folder, &place::patient(faults)),
            Self::Opencode => place::opencode(),
        }
    }

    /// Whether the program that stands for it is itself, and no double.
    #[must_use]
    pub fn is_real(self) -> bool {
        self != Self::MinimaxCode
    }

    /// Whether its process takes another Turn behind a cancel that it has settled.
    #[must_use]
    pub fn outlives_a_cancel(self) -> bool {
        Self::ALL.contains(&self)
    }

    /// Where a scenario has nothing for this Harness, and must not run with it.
    ///
    /// # Panics
    /// Always.
    pub fn has_nothing_here(self) -> ! {
        panic!("this is not written for {}", self.title())
    }

    /// Whether it was started for a conversation with these arguments, and not to print something.
    pub(crate) fn converses(self, args: &[String]) -> bool {
        match self {
            Self::Codex => args.first().is_some_and(|first| first == "app-server"),
            Self::ClaudeCode => args.iter().any(|arg| arg.starts_with("--session-id=") || arg.starts_with("--resume=")),
            Self::MinimaxCode | Self::Opencode => args.first().is_some_and(|first| first == "acp"),
        }
    }

    /// Whether a command line is that of the Harness itself, which its keeper has in its own.
    pub(super) fn runs_as(self, command: &str) -> bool {
        let own = match self {
            Self::Codex => " app-server",
            Self::ClaudeCode => "stream-json",
            Self::MinimaxCode => "mcode acp",
            Self::Opencode => "opencode acp",
        };
        command.contains(own) && !command.contains("runtime-bridge-keeper")
    }
}

/// Declares that these tests, functions of a [`Harness`], run with each of [`Harness::ALL`]: `name::codex`, `name::claude_code`.
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

/// The same with each of [`Harness::EVERY`]: also `name::minimax_code` and `name::opencode`.
#[macro_export]
macro_rules! for_every_harness {
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

                #[test]
                fn minimax_code() {
                    super::$test(Harness::MinimaxCode);
                }

                #[test]
                fn opencode() {
                    super::$test(Harness::Opencode);
                }
            }
        )+
    };
}

/// The same with each of [`Harness::ACP`].
#[macro_export]
macro_rules! for_each_acp_agent {
    ($($test:ident),+ $(,)?) => {
        $(
            mod $test {
                use $crate::rig::Harness;

                #[test]
                fn minimax_code() {
                    super::$test(Harness::MinimaxCode);
                }

                #[test]
                fn opencode() {
                    super::$test(Harness::Opencode);
                }
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_harness_is_known_by_its_kind_and_either_has_a_protocol_of_its_own_or_speaks_acp() {
        for harness in Harness::EVERY {
            assert_eq!(Harness::of_kind(harness.kind()), Some(harness));
            assert_ne!(Harness::ALL.contains(&harness), Harness::ACP.contains(&harness));
        }
    }

    #[test]
    fn a_command_line_is_that_of_the_harness_and_not_of_its_keeper() {
        for harness in Harness::ACP {
            let own = format!("/tools/{} acp", harness.executable());
            assert!(harness.runs_as(&own) && !harness.runs_as(&format!("/bin/runtime-bridge-keeper {own}")));
            assert!(harness.converses(&["acp".into()]) && !harness.converses(&["--version".into()]));
        }
    }
}
