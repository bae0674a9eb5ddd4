//! Counters of tokens. Claude keeps uncached input, input read from the provider's cache and input written to it apart; together they are the input.

use crate::{
    claude_code::wire::{ModelUsage, Tokens},
    harness::Usage,
};

/// Counts that are added up; what was never counted is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    input: Option<u64>,
    cache_read: Option<u64>,
    cache_written: Option<u64>,
    output: Option<u64>,
    thinking: Option<u64>,
}

impl Counts {
    pub(super) fn add(&mut self, more: Self) {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        self.input = sum(self.input, more.input);
        self.cache_read = sum(self.cache_read, more.cache_read);
        self.cache_written = sum(self.cache_written, more.cache_written);
        self.output = sum(self.output, more.output);
        self.thinking = sum(self.thinking, more.thinking);
    }

    pub(super) fn usage(self) -> Usage {
        let all = |counts: [Option<u64>; 3]| counts.into_iter().flatten().reduce(u64::saturating_add);
        let input = all([self.input, self.cache_read, self.cache_written]);
        Usage {
            input,
            cached_input: self.cache_read,
            output: self.output,
            reasoning_output: self.thinking,
            total: input.zip(self.output).map(|(input, output)| input.saturating_add(output)),
        }
    }
}

impl From<Tokens> for Counts {
    fn from(of: Tokens) -> Self {
        Self {
            input: of.input_tokens,
            cache_read: of.cache_read_input_tokens,
            cache_written: of.cache_creation_input_tokens,
            output: of.output_tokens,
            thinking: None,
        }
    }
}

impl From<ModelUsage> for Counts {
    fn from(of: ModelUsage) -> Self {
        Self {
            input: of.input_tokens,
            cache_read: of.cache_read_input_tokens,
            cache_written: of.cache_creation_input_tokens,
            output: of.output_tokens,
            // Zero also where the provider does not tell it (R-EVT-4).
            thinking: of.thinking_tokens.filter(|tokens| *tokens > 0),
        }
    }
}
