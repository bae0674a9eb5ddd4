//! MiniMax Code: what is known of it (kind `minimax_code`). There is no adapter yet, so no daemon hosts it; `Admit` judges by this.

mod declaration;

pub(crate) use declaration::built;

/// The kind of this Harness.
pub const KIND: &str = "minimax_code";
