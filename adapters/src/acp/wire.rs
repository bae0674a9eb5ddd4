//! The messages of the Agent Client Protocol, version 1, as they are read: tolerant, with what is unknown kept apart (R-CAP-5).

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// `tool_call` and `tool_call_update`: what an agent says of a tool. Each part may come late, or never.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ToolCall<'a> {
    /// Names the tool's run within its conversation.
    #[serde(borrow)]
    pub(crate) tool_call_id: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(crate) title: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) status: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) raw_input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) raw_output: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) content: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    pub(crate) meta: Option<&'a RawValue>,
}
