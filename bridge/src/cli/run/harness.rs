//! The Harnesses that `run` knows, and what it takes by itself for each.

use std::{fmt, str::FromStr};

use adapters::harness::TokenLimits;
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
    /// `mcode acp`.
    MinimaxCode,
}

impl Harness {
    /// What it speaks with its model provider.
    pub(super) fn protocol(self) -> v1::ModelProtocol {
        match self {
            Self::Codex => v1::ModelProtocol::Responses,
            Self::ClaudeCode => v1::ModelProtocol::Messages,
            // It speaks all three; this is the one that most providers of its models have.
            Self::MinimaxCode => v1::ModelProtocol::ChatCompletions,
        }
    }

    /// The provider when none is named.
    pub(super) fn provider(self) -> &'static str {
        match self {
            Self::Codex => "https://api.openai.com/v1",
            Self::ClaudeCode => "https://api.anthropic.com",
            Self::MinimaxCode => "https://api.minimax.io/v1",
        }
    }

    /// The model when none is named: one that the pinned Harness knows by itself.
    pub(super) fn model(self) -> &'static str {
        match self {
            Self::Codex => "gpt-5.5",
            Self::ClaudeCode => "claude-opus-5-5",
            Self::MinimaxCode => "MiniMax-M3",
        }
    }

    /// The token limits of the model when none are given; only for a Harness that must be told them.
    pub(super) fn token_limits(self) -> Option<Tokens> {
        match self {
            Self::Codex | Self::ClaudeCode => None,
            Self::MinimaxCode => Some(Tokens { context: 128_000, output: 16_000 }),
        }
    }

    /// The variable with the key when no file is named.
    pub(super) fn key_variable(self) -> &'static str {
        match self {
            Self::Codex => "OPENAI_API_KEY",
            Self::ClaudeCode => "ANTHROPIC_API_KEY",
            Self::MinimaxCode => "MINIMAX_API_KEY",
        }
    }
}

impl fmt::Display for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Codex => "codex",
            Self::ClaudeCode => "claude_code",
            Self::MinimaxCode => "minimax_code",
        })
    }
}

/// Values of `--token-limits`: how many tokens the model takes, and how many of them an answer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tokens {
    pub(super) context: u64,
    pub(super) output: u64,
}

impl Tokens {
    /// As the protocol has them.
    pub(super) fn wire(self) -> v1::TokenLimits {
        v1::TokenLimits { context: self.context, output: self.output }
    }
}

impl FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (context, output) = text.split_once(',').ok_or("two numbers with a comma between them are expected")?;
        let number = |text: &str| text.trim().parse().map_err(|_| format!("`{text}` is not a number of tokens"));
        let (context, output) = (number(context)?, number(output)?);
        TokenLimits::of(context, output).map(|_| Self { context, output }).ok_or_else(|| TokenLimits::RANGE.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_limits_are_two_numbers_that_fit() {
        assert_eq!("64000,4096".parse(), Ok(Tokens { context: 64_000, output: 4096 }));
        for (odd, want) in [
            ("64000", "two numbers"),
            ("a,1", "`a`"),
            ("1,", "``"),
            ("1,2", TokenLimits::RANGE),
            ("1,0", TokenLimits::RANGE),
        ] {
            let error = odd.parse::<Tokens>().unwrap_err();
            assert!(error.contains(want), "{odd}: {error}");
        }
    }

    #[test]
    fn a_harness_has_one_name_everywhere() {
        for harness in Harness::value_variants() {
            let written = serde_json::to_string(harness).unwrap();
            assert_eq!(written, format!("\"{harness}\""));
            assert_eq!(harness.to_possible_value().unwrap().get_name(), harness.to_string());
        }
    }
}
