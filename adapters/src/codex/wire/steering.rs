//! Messages about the inputs that are added to a turn.

use serde::{Deserialize, Serialize};

use super::UserInput;

/// `userMessage`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct UserItem {
    #[serde(default)]
    pub(in crate::codex) id: String,
    /// What stood beside it when it was written.
    pub(in crate::codex) client_id: Option<String>,
}

/// Parameters of `turn/steer`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct TurnSteer<'a> {
    pub(in crate::codex) thread_id: &'a str,
    pub(in crate::codex) expected_turn_id: &'a str,
    pub(in crate::codex) client_user_message_id: &'a str,
    pub(in crate::codex) input: Vec<UserInput<'a>>,
}
