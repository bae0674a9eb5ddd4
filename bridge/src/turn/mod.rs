//! Turns: what can happen in one, its state machine, and its sequenced event log. Knows no wire and no journal.

pub(crate) mod calls;
pub(crate) mod event;
pub(crate) mod inputs;
mod items;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod split;
pub(crate) mod stop;
pub(crate) mod tool_errors;

pub(crate) use items::incomplete;
pub(crate) use machine::closing_input;
