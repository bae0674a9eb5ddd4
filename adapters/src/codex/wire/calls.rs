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

/// `rawResponseItem/completed` of a function call, or of a result of several parts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct RawNotice {
    pub(in crate::codex) thread_id: String,
    pub(in crate::codex) turn_id: String,
    pub(in crate::codex) item: RawItem,
}

/// What of it matters: a call has a name and arguments, a result has an output.
#[derive(Debug, Default, Deserialize)]
pub(in crate::codex) struct RawItem {
    pub(in crate::codex) call_id: String,
    pub(in crate::codex) name: Option<String>,
    /// The model's own text.
    pub(in crate::codex) arguments: Option<String>,
    pub(in crate::codex) output: Option<Vec<RawPart>>,
}

/// A part of a result as the provider is given it.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct RawPart {
    #[serde(rename = "type")]
    pub(in crate::codex) kind: String,
}

/// The kind of an image among them.
pub(in crate::codex) const RAW_IMAGE: &str = "input_image";

/// Tells an item of the provider's answer, or of what is sent to the provider, as it is.
pub(super) const RAW_ITEM: &str = "rawResponseItem/completed";

/// Whether parameters of [`RAW_ITEM`] that begin so may be of use. Codex repeats every message and result in such a notification, so the others
/// are told by their beginning.
pub(super) fn is_of_use(params: &[u8]) -> bool {
    const KIND: &[u8] = b"\"item\":{\"type\":\"";
    let beginning = &params[..params.len().min(BEGINNING)];
    let Some(at) = memchr::memmem::find(beginning, KIND) else { return true };
    let kind = &beginning[at + KIND.len()..];
    let has_parts = || memchr::memmem::find(kind, b"\"output\":[").is_some();
    kind.starts_with(b"function_call\"") || (kind.starts_with(b"function_call_output\"") && has_parts())
}

/// In how many bytes the kind of the item is found, and of a result whether it has parts: only ids stand before that.
const BEGINNING: usize = 512;
