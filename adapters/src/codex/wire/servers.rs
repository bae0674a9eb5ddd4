//! Messages about MCP servers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::harness::McpCall;

/// `mcpServer/startupStatus/updated`.
pub(in crate::codex) const STATUS: &str = "mcpServer/startupStatus/updated";

/// What it tells.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct StatusNotice {
    pub(in crate::codex) thread_id: Option<String>,
    pub(in crate::codex) name: String,
    #[serde(default)]
    pub(in crate::codex) status: String,
    pub(in crate::codex) error: Option<String>,
}

/// Parameters of `config/read`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct ReadConfig<'a> {
    pub(in crate::codex) include_layers: bool,
    pub(in crate::codex) cwd: &'a std::path::Path,
}

/// The answer, as far as it tells of MCP servers.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct Layers {
    #[serde(default, deserialize_with = "or_none")]
    pub(in crate::codex) layers: Vec<Layer>,
}

/// Where a part of the configuration stands, and what of it.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct Layer {
    pub(in crate::codex) name: LayerName,
    pub(in crate::codex) config: LayerConfig,
}

/// Where.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct LayerName {
    #[serde(rename = "type")]
    pub(in crate::codex) kind: String,
}

/// What.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct LayerConfig {
    #[serde(default, deserialize_with = "or_none")]
    pub(in crate::codex) mcp_servers: BTreeMap<String, IgnoredAny>,
}

fn or_none<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(input: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

/// `mcpToolCall`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct CallItem {
    pub(in crate::codex) id: String,
    #[serde(default)]
    server: String,
    #[serde(default)]
    tool: String,
    arguments: Option<Box<RawValue>>,
    #[serde(default)]
    pub(in crate::codex) status: String,
    result: Option<Box<RawValue>>,
    pub(in crate::codex) error: Option<CallError>,
    pub(in crate::codex) duration_ms: Option<u64>,
}

/// Why a call has no result.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct CallError {
    #[serde(default)]
    pub(in crate::codex) message: String,
}

impl CallItem {
    /// What is called, with what came of it (R-MCP-5).
    pub(in crate::codex) fn call(&self) -> McpCall {
        McpCall {
            server: self.server.clone(),
            tool: self.tool.clone(),
            arguments: self.arguments.as_ref().map(|text| text.get().to_owned()).unwrap_or_default(),
            result: self.result.as_ref().map(|text| text.get().to_owned()),
            error: self.error.as_ref().map(|error| error.message.clone()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_keeps_its_names_and_its_texts() {
        let item = r#"{"type":"mcpToolCall","id":"m1","server":"we-b","tool":"do.it","arguments":{"n":1.0},"status":"completed",
            "result":{"content":[ ],"structuredContent":null},"error":null,"durationMs":4}"#;
        let item: CallItem = serde_json::from_str(item).unwrap();
        let want = McpCall {
            server: "we-b".into(),
            tool: "do.it".into(),
            arguments: r#"{"n":1.0}"#.into(),
            result: Some(r#"{"content":[ ],"structuredContent":null}"#.into()),
            error: String::new(),
        };
        assert_eq!((item.call(), item.duration_ms), (want, Some(4)));
        let item: CallItem = serde_json::from_str(r#"{"id":"m","error":{"message":"gone"},"result":null}"#).unwrap();
        assert_eq!(item.call(), McpCall { error: "gone".into(), ..McpCall::default() });
    }
}
