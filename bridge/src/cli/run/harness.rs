//! The Harnesses that `run` knows, and what it takes by itself for each.

use std::fmt;

use clap::ValueEnum;
use proto::v1;
use serde::{Deserialize, Serialize};

/// A Harness that does the Turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(super) enum Harness {
    /// `codex app-server`.
    #[default]
    Codex,
    /// `claude` in its stream-json mode.
    ClaudeCode,
}

impl Harness {
    /// What it speaks with its model provider.
    pub(super) fn protocol(self) -> v1::ModelProtocol {
        match self {
            Self::Codex => v1::ModelProtocol::Responses,
            Self::ClaudeCode => v1::ModelProtocol::Messages,
        }
    }

    /// The provider when none is named.
    pub(super) fn provider(self) -> &'static str {
        match self {
            Self::Codex => "https://api.openai.com/v1",
            Self::ClaudeCode => "https://api.anthropic.com",
        }
    }

    /// The model when none is named: one that the pinned Harness knows by itself.
    pub(super) fn model(self) -> &'static str {
        match self {
            Self::Codex => "gpt-5.5",
            Self::ClaudeCode => "claude-opus-5-5",
        }
    }

    /// The variable with the key when no file is named.
    pub(super) fn key_variable(self) -> &'static str {
        match self {
            Self::Codex => "OPENAI_API_KEY",
            Self::ClaudeCode => "ANTHROPIC_API_KEY",
        }
    }
}

impl fmt::Display for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Codex => "codex",
            Self::ClaudeCode => "claude_code",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_harness_has_one_name_everywhere() {
        for harness in Harness::value_variants() {
            let written = serde_json::to_string(harness).unwrap();
            assert_eq!(written, format!("\"{harness}\""));
            assert_eq!(harness.to_possible_value().unwrap().get_name(), harness.to_string());
        }
    }
}
