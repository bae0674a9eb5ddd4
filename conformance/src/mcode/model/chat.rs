//! The OpenAI Chat Completions API.

use serde_json::{Value, json};

use super::{Ask, Piece, failure, text, texts};
use crate::mcode::history::{Block, Entry};

pub(super) fn body(ask: &Ask<'_>) -> Value {
    let tool = |tool: &super::Offer| {
        let function = json!({"name": tool.name, "description": tool.description, "parameters": tool.schema});
        json!({"type": "function", "function": function})
    };
    let tools: Vec<_> = ask.tools.iter().map(tool).collect();
    let mut messages = vec![json!({"role": "system", "content": ask.system})];
    messages.extend(ask.history.iter().flat_map(said));
    let mut body = json!({"model": ask.model, "max_tokens": ask.limit.output, "stream": true,
        "stream_options": {"include_usage": true}, "messages": messages});
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    }
    body
}

fn said(entry: &Entry) -> Vec<Value> {
    match entry {
        Entry::Meta(_) => Vec::new(),
        Entry::User(said) => vec![json!({"role": "user", "content": said.text})],
        Entry::Assistant(blocks) => {
            let (mut content, mut calls) = (String::new(), Vec::new());
            for block in blocks {
                match block {
                    Block::Thought { .. } => {}
                    Block::Text(said) => content.push_str(&said.text),
                    Block::Call(call) => calls.push(json!({"id": call.id, "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments}})),
                }
            }
            let mut message = json!({"role": "assistant", "content": content});
            if !calls.is_empty() {
                message["tool_calls"] = json!(calls);
            }
            vec![message]
        }
        Entry::Results(outcomes) => outcomes
            .iter()
            .map(|outcome| json!({"role": "tool", "tool_call_id": outcome.id, "content": texts(&outcome.content)}))
            .collect(),
    }
}

pub(super) fn pieces(event: &Value) -> Vec<Piece> {
    if event["error"].is_object() {
        return vec![failure(&event["error"])];
    }
    let mut pieces = Vec::new();
    if event["usage"].is_object() {
        let count = |name: &str| event["usage"][name].as_u64();
        pieces.push(Piece::Usage { input: count("prompt_tokens"), output: count("completion_tokens") });
    }
    let choice = &event["choices"][0];
    let delta = &choice["delta"];
    for name in ["reasoning_content", "reasoning"] {
        if let Some(thought) = delta[name].as_str().filter(|thought| !thought.is_empty()) {
            pieces.push(Piece::Thought(thought.to_owned()));
        }
    }
    if let Some(said) = delta["content"].as_str().filter(|said| !said.is_empty()) {
        pieces.push(Piece::Text(said.to_owned()));
    }
    for call in delta["tool_calls"].as_array().into_iter().flatten() {
        let key = call["index"].as_u64().unwrap_or_default();
        // Only the first piece of a call names it.
        if let Some(id) = call["id"].as_str().filter(|id| !id.is_empty()) {
            pieces.push(Piece::Call { key, id: id.to_owned(), name: text(&call["function"]["name"]) });
        }
        if let Some(arguments) = call["function"]["arguments"].as_str() {
            pieces.push(Piece::Arguments { key, text: arguments.to_owned() });
        }
    }
    if choice["finish_reason"].is_string() {
        pieces.push(Piece::Stopped);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_comes_in_pieces() {
        let first = json!({"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [
            {"index": 1, "id": "c1", "type": "function", "function": {"name": "bash", "arguments": ""}}]}}]});
        let more = json!({"choices": [{"delta": {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}, "finish_reason": null}]});
        let end = json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]});
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}});
        let arguments = |text: &str| Piece::Arguments { key: 1, text: text.into() };
        let call = Piece::Call { key: 1, id: "c1".into(), name: "bash".into() };
        assert_eq!(pieces(&first), [call, arguments("")]);
        assert_eq!(pieces(&more), [arguments("{}")]);
        assert_eq!(pieces(&end), [Piece::Stopped]);
        assert_eq!(pieces(&usage), [Piece::Usage { input: Some(3), output: Some(4) }]);
    }
}
