//! The Anthropic Messages API.

use serde_json::{Value, json};

use super::{Ask, Piece, failure, input, text};
use crate::mcode::history::{Block, Entry};

pub(super) fn body(ask: &Ask<'_>) -> Value {
    let tool =
        |tool: &super::Offer| json!({"name": tool.name, "description": tool.description, "input_schema": tool.schema});
    let tools: Vec<_> = ask.tools.iter().map(tool).collect();
    let messages: Vec<_> = ask.history.iter().filter_map(message).collect();
    let system = [json!({"type": "text", "text": ask.system})];
    let mut body = json!({"model": ask.model, "max_tokens": ask.limit.output, "stream": true, "system": system, "messages": messages});
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    }
    body
}

fn message(entry: &Entry) -> Option<Value> {
    Some(match entry {
        Entry::Meta(_) => return None,
        Entry::User(said) => json!({"role": "user", "content": [{"type": "text", "text": said.text}]}),
        Entry::Assistant(blocks) => {
            json!({"role": "assistant", "content": blocks.iter().map(block).collect::<Vec<_>>()})
        }
        Entry::Results(outcomes) => {
            let result = |outcome: &crate::mcode::history::Outcome| {
                let content: Vec<_> = outcome.content.as_array().into_iter().flatten().map(part).collect();
                json!({"type": "tool_result", "tool_use_id": outcome.id, "content": content, "is_error": outcome.is_error})
            };
            json!({"role": "user", "content": outcomes.iter().map(result).collect::<Vec<_>>()})
        }
    })
}

fn block(block: &Block) -> Value {
    match block {
        Block::Thought { text, signature, .. } => {
            json!({"type": "thinking", "thinking": text, "signature": signature})
        }
        Block::Text(said) => json!({"type": "text", "text": said.text}),
        Block::Call(call) => {
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input(&call.arguments)})
        }
    }
}

/// A part of MCP as this API has it.
fn part(part: &Value) -> Value {
    match part["type"].as_str() {
        Some("text") => json!({"type": "text", "text": part["text"]}),
        Some("image") => {
            let source = json!({"type": "base64", "media_type": part["mimeType"], "data": part["data"]});
            json!({"type": "image", "source": source})
        }
        _ => json!({"type": "text", "text": part.to_string()}),
    }
}

pub(super) fn pieces(event: &Value) -> Vec<Piece> {
    let key = event["index"].as_u64().unwrap_or_default();
    match event["type"].as_str() {
        Some("message_start") => {
            let usage = &event["message"]["usage"];
            let input = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
            let input = input.iter().filter_map(|name| usage[name].as_u64()).sum();
            vec![Piece::Usage { input: Some(input), output: None }]
        }
        Some("content_block_start") => {
            let block = &event["content_block"];
            match block["type"].as_str() {
                Some("tool_use") => {
                    let mut begun = vec![Piece::Call { key, id: text(&block["id"]), name: text(&block["name"]) }];
                    if block["input"].as_object().is_some_and(|input| !input.is_empty()) {
                        begun.push(Piece::Arguments { key, text: block["input"].to_string() });
                    }
                    begun
                }
                Some("text") if block["text"] != "" => vec![Piece::Text(text(&block["text"]))],
                _ => Vec::new(),
            }
        }
        Some("content_block_delta") => {
            let delta = &event["delta"];
            match delta["type"].as_str() {
                Some("text_delta") => vec![Piece::Text(text(&delta["text"]))],
                Some("thinking_delta") => vec![Piece::Thought(text(&delta["thinking"]))],
                Some("signature_delta") => vec![Piece::Signature(text(&delta["signature"]))],
                Some("input_json_delta") => vec![Piece::Arguments { key, text: text(&delta["partial_json"]) }],
                _ => Vec::new(),
            }
        }
        Some("content_block_stop") => vec![Piece::Closed],
        Some("message_delta") => vec![Piece::Usage { input: None, output: event["usage"]["output_tokens"].as_u64() }],
        Some("message_stop") => vec![Piece::Stopped],
        Some("error") => vec![failure(&event["error"])],
        _ => Vec::new(),
    }
}
