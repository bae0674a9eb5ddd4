//! What Codex writes into its history.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::TurnError;
use crate::harness::Usage;

/// Counts of tokens, as history has them.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(in crate::codex) struct StoredTokens {
    total_tokens: Option<u64>,
    input_tokens: Option<u64>,
    cached_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    reasoning_output_tokens: Option<u64>,
}

impl StoredTokens {
    pub(in crate::codex) fn into_usage(self) -> Usage {
        Usage {
            input: self.input_tokens,
            cached_input: self.cached_input_tokens,
            output: self.output_tokens,
            reasoning_output: self.reasoning_output_tokens,
            total: self.total_tokens,
        }
    }
}

/// What went wrong in a turn, as history has it.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct StoredError {
    #[serde(default)]
    message: String,
    #[serde(rename = "codex_error_info")]
    info: Option<Box<RawValue>>,
}

impl From<StoredError> for TurnError {
    fn from(StoredError { message, info }: StoredError) -> Self {
        Self { message, info, details: None }
    }
}
