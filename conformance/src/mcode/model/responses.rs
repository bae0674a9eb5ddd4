//! The OpenAI Responses API.

use serde_json::{Value, json};

use super::{Ask, Piece, failure, text, texts};
use crate::mcode::history::{Block, Entry};

pub(super) fn body(ask: &Ask<'_>) -> Value {
    let tool = |tool: &super::Offer| json!({"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema, "strict": false});
    let tools: Vec<_> = ask.tools.iter().map(tool).collect();
    let input: Vec<_> = ask.history.iter().flat_map(items).collect();
    let mut body = json!({"model": ask.model, "instructions": ask.system, "max_output_tokens": ask.limit.output,
        "stream": true, "store": false, "input": input});
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    }
    body
}

fn items(entry: &Entry) -> Vec<Value> {
    match entry {
        Entry::Meta(_) => Vec::new(),
        Entry::User(said) => {
            vec![json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": said.text}]})]
        }
        Entry::Assistant(blocks) => blocks.iter().filter_map(item).collect(),
        Entry::Results(outcomes) => outcomes
            .iter()
            .map(|outcome| json!({"type": "function_call_output", "call_id": outcome.id, "output": texts(&outcome.content)}))
            .collect(),
    }
}

fn item(block: &Block) -> Option<Value> {
    match block {
        Block::Thought { .. } => None,
        Block::Text(said) => {
            let content = [json!({"type": "output_text", "text": said.text, "annotations": []})];
            Some(json!({"type": "message", "role": "assistant", "content": content}))
        }
        Block::Call(call) => {
            Some(json!({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}))
        }
    }
}

pub(super) fn pieces(event: &Value) -> Vec<Piece> {
    let key = event["output_index"].as_u64().unwrap_or_default();
    let item = &event["item"];
    match event["type"].as_str() {
        Some("response.output_item.added") if item["type"] == "function_call" => {
            // A namespace is a part of the name that the declaration of a tool has.
            vec![Piece::Call { key, id: text(&item["call_id"]), name: text(&item["name"]) }]
        }
        // The arguments that came in pieces are here once more, and whole.
        Some("response.output_item.done") if item["type"] == "function_call" => {
            vec![Piece::Arguments { key, text: text(&item["arguments"]) }, Piece::Closed]
        }
        Some("response.output_item.done") => vec![Piece::Closed],
        Some("response.output_text.delta") => vec![Piece::Text(text(&event["delta"]))],
        Some("response.reasoning_summary_text.delta" | "response.reasoning_text.delta") => {
            vec![Piece::Thought(text(&event["delta"]))]
        }
        Some("response.completed" | "response.incomplete") => {
            let count = |name: &str| event["response"]["usage"][name].as_u64();
            let usage = Piece::Usage { input: count("input_tokens"), output: count("output_tokens") };
            vec![usage, Piece::Stopped]
        }
        Some("response.failed") => vec![failure(&event["response"]["error"])],
        Some("error") => vec![failure(if event["error"].is_object() { &event["error"] } else { event })],
        _ => Vec::new(),
    }
}
