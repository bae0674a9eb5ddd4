//! Native messages of function calls, the provider's own among them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::harness::OutputPart;

/// `dynamicToolCall`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct CallItem {
    pub(in crate::codex) id: String,
    #[serde(default)]
    pub(in crate::codex) status: String,
    pub(in crate::codex) success: Option<bool>,
    pub(in crate::codex) content_items: Option<Vec<ContentItem>>,
}

/// A part of a result, ours and Codex's. One of another type has neither a text nor an address.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct ContentItem {
    #[serde(default, rename = "type")]
    pub(in crate::codex) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::codex) text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::codex) image_url: Option<String>,
}

impl ContentItem {
    pub(in crate::codex) fn of(part: OutputPart) -> Self {
        match part {
            OutputPart::Text(text) => Self { kind: "inputText".into(), text: Some(text), image_url: None },
            OutputPart::Image(image) => {
                Self { kind: "inputImage".into(), text: None, image_url: Some(super::data_url(&image)) }
            }
        }
    }
}

/// Parameters of `item/tool/call`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct CallParams {
    pub(in crate::codex) thread_id: String,
    pub(in crate::codex) turn_id: String,
    pub(in crate::codex) call_id: String,
    pub(in crate::codex) namespace: Option<String>,
    pub(in crate::codex) tool: String,
    /// As it came: numbers and order stay (R-API-3). A missing member is null.
    pub(in crate::codex) arguments: Option<Box<RawValue>>,
}

/// The answer to `item/tool/call`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct CallAnswer {
    pub(in crate::codex) success: bool,
    pub(in crate::codex) content_items: Vec<ContentItem>,
}

/// A function call as the provider told it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct RawCallNotice {
    pub(in crate::codex) thread_id: String,
    pub(in crate::codex) turn_id: String,
    pub(in crate::codex) item: RawCall,
}

/// What of it matters.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct RawCall {
    pub(in crate::codex) call_id: String,
    pub(in crate::codex) name: String,
    /// The model's own text.
    pub(in crate::codex) arguments: String,
}

/// Tells an item of the provider's answer, or of what is sent to the provider, as it is.
pub(super) const RAW_ITEM: &str = "rawResponseItem/completed";

/// Whether parameters of [`RAW_ITEM`] that begin so may be those of a function call. Codex repeats every message and result in such a
/// notification, so the others are told by their beginning.
pub(super) fn may_be_raw_call(params: &[u8]) -> bool {
    const KIND: &[u8] = b"\"item\":{\"type\":\"";
    let beginning = &params[..params.len().min(BEGINNING)];
    memchr::memmem::find(beginning, KIND).is_none_or(|at| params[at + KIND.len()..].starts_with(b"function_call\""))
}

/// In how many bytes the kind of the item is found: the ids of thread and turn stand before it.
const BEGINNING: usize = 256;
