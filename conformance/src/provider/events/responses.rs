//! The Responses API: one function per item or ending.

use serde_json::{Value, json};

use super::{event, flat, fresh};
use crate::provider::request::{FOREIGN, Request};
use crate::script::provider::{Call, Complete, CustomCall, Failed, Incomplete, Reasoning, Search, Shell, Text, Usage};

/// The first event of every response.
pub(super) fn created(response: &str) -> String {
    let response = json!({"id": response, "object": "response", "status": "in_progress"});
    event("response.created", json!({ "response": response }))
}

/// The end of a response that went well.
pub(super) fn completed(response: &str, complete: &Complete) -> String {
    let mut body = json!({"id": response, "object": "response", "status": "completed"});
    if !complete.without_usage {
        body["usage"] = usage(complete.usage.unwrap_or_default());
    }
    event("response.completed", json!({ "response": body }))
}

/// The end of a response that failed.
pub(super) fn failed(response: &str, failed: &Failed) -> String {
    let error = json!({"code": failed.code, "message": failed.message});
    let body = json!({"id": response, "object": "response", "status": "failed", "error": error});
    event("response.failed", json!({ "response": body }))
}

/// The end of a response that was cut.
pub(super) fn incomplete(response: &str, incomplete: &Incomplete) -> String {
    let details = json!({ "reason": incomplete.reason });
    let usage = usage(Usage::default());
    let body = json!({"id": response, "object": "response", "status": "incomplete", "incomplete_details": details, "usage": usage});
    event("response.incomplete", json!({ "response": body }))
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    })
}

fn added(index: usize, item: &Value) -> String {
    event("response.output_item.added", json!({"output_index": index, "item": item}))
}

fn done(index: usize, item: &Value) -> String {
    event("response.output_item.done", json!({"output_index": index, "item": item}))
}

/// Any item as a script has it: byte for byte in both events.
pub(super) fn item(index: usize, item: &str) -> Vec<String> {
    let event = |kind: &str| {
        format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"output_index\":{index},\"item\":{}}}\n\n", flat(item))
    };
    vec![event("response.output_item.added"), event("response.output_item.done")]
}

/// A message: begun, one delta per chunk, done.
pub(super) fn message(index: usize, text: &Text) -> Vec<String> {
    let id = text.id.clone().unwrap_or_else(|| fresh("msg"));
    let mut item = json!({"type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": []});
    if let Some(phase) = &text.phase {
        item["phase"] = json!(phase);
    }
    let mut events = vec![added(index, &item)];
    events.extend(text.chunks.iter().map(|chunk| {
        let place = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": chunk});
        event("response.output_text.delta", place)
    }));
    if !text.open {
        item["status"] = json!("completed");
        item["content"] = json!([{"type": "output_text", "text": text.chunks.concat(), "annotations": []}]);
        events.push(done(index, &item));
    }
    events
}

/// A reasoning item: the summary part by part and word by word, then the raw text.
pub(super) fn reasoning(index: usize, reasoning: &Reasoning) -> Vec<String> {
    let id = fresh("rs");
    let begun = json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": ""});
    let mut events = vec![added(index, &begun)];
    for (part, text) in reasoning.summary.iter().enumerate() {
        let place = json!({"item_id": id, "output_index": index, "summary_index": part});
        let with = |name: &str, value: Value| {
            let mut place = place.clone();
            place[name] = value;
            place
        };
        let empty = json!({"type": "summary_text", "text": ""});
        events.push(event("response.reasoning_summary_part.added", with("part", empty)));
        for word in text.split_inclusive(' ') {
            events.push(event("response.reasoning_summary_text.delta", with("delta", json!(word))));
        }
        events.push(event("response.reasoning_summary_text.done", with("text", json!(text))));
    }
    let summary: Vec<_> = reasoning.summary.iter().map(|text| json!({"type": "summary_text", "text": text})).collect();
    let mut item = json!({"type": "reasoning", "id": id, "summary": summary, "encrypted_content": "sealed"});
    if let Some(raw) = &reasoning.raw {
        events.extend(raw.split_inclusive(' ').map(|word| {
            let place = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": word});
            event("response.reasoning_text.delta", place)
        }));
        item["content"] = json!([{"type": "reasoning_text", "text": raw}]);
    }
    events.push(done(index, &item));
    events
}

/// A function call: begun with empty arguments, done with all of them.
pub(super) fn call(index: usize, call: &Call, request: &Request) -> Vec<String> {
    let id = fresh("fc");
    let call_id = call.call_id.clone().unwrap_or_else(|| fresh("call"));
    let declared = request.function(&call.name).filter(|_| call.namespace.is_none());
    let hidden = request.hidden(&call.name).filter(|_| call.namespace.is_none());
    let name = declared.map(|tool| &*tool.name).or(hidden.map(|(_, name)| name)).unwrap_or(&call.name);
    let namespace =
        declared.and_then(|tool| tool.namespace.clone()).or(hidden.map(|(server, _)| format!("{FOREIGN}{server}")));
    let mut item = json!({"type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": ""});
    if let Some(namespace) = call.namespace.clone().or(namespace) {
        item["namespace"] = json!(namespace);
    }
    let begun = added(index, &item);
    item["arguments"] = json!(call.arguments);
    vec![begun, done(index, &item)]
}

/// A call of a custom tool.
pub(super) fn custom_call(index: usize, call: &CustomCall) -> Vec<String> {
    let id = fresh("ctc");
    let call_id = call.call_id.clone().unwrap_or_else(|| fresh("call"));
    let mut item = json!({"type": "custom_tool_call", "id": id, "call_id": call_id, "name": call.name, "input": ""});
    let begun = added(index, &item);
    item["input"] = json!(call.input);
    vec![begun, done(index, &item)]
}

/// A search of the provider's own.
pub(super) fn search(index: usize, search: &Search) -> Vec<String> {
    let action = json!({"type": "search", "query": search.query});
    let found = json!({"type": "web_search_call", "id": fresh("ws"), "status": "completed", "action": action});
    vec![added(index, &found), done(index, &found)]
}

/// A command in the form of the shell tool on offer; where none is offered, in that of `exec_command`, which the
/// Harness will refuse.
pub(super) fn shell(index: usize, shell: &Shell, request: &Request) -> Vec<String> {
    let tool = request.shell();
    let name = tool.map_or("exec_command", |tool| &tool.name);
    let properties = tool.map(|tool| &tool.parameters["properties"]);
    let has = |name: &str| properties.is_none_or(|properties| properties.get(name).is_some());
    if name == "local_shell" {
        let call_id = shell.call_id.clone().unwrap_or_else(|| fresh("call"));
        let action = json!({"type": "exec", "command": ["/bin/sh", "-c", shell.command], "timeout_ms": null});
        let item = json!({"type": "local_shell_call", "id": fresh("lsh"), "call_id": call_id, "status": "completed", "action": action});
        return vec![added(index, &item), done(index, &item)];
    }
    let mut arguments = json!({});
    if has("cmd") {
        arguments["cmd"] = json!(shell.command);
    } else if properties.is_some_and(|properties| properties["command"]["type"] == "array") {
        arguments["command"] = json!(["/bin/sh", "-c", shell.command]);
    } else {
        arguments["command"] = json!(shell.command);
    }
    if let Some(yield_ms) = shell.yield_ms.filter(|_| has("yield_time_ms")) {
        arguments["yield_time_ms"] = json!(yield_ms);
    }
    let arguments = arguments.to_string();
    call(index, &Call { name: name.into(), namespace: None, arguments, call_id: shell.call_id.clone() }, request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(event: &str) -> Value {
        serde_json::from_str(event.split_once("data: ").unwrap().1.trim_end()).unwrap()
    }

    #[test]
    fn a_message_says_its_text_again_when_done() {
        let text = Text { chunks: vec!["a ".into(), "b".into()], ..Text::default() };
        let events = message(0, &text);
        assert_eq!(events.len(), 4);
        assert_eq!(data(&events[1])["delta"], "a ");
        assert_eq!(data(&events[3])["item"]["content"][0]["text"], "a b");
        assert_eq!(message(0, &Text { open: true, ..text }).len(), 3);
    }

    #[test]
    fn arguments_and_items_go_out_as_they_stand() {
        let request = Request::default();
        let arguments = r#"{"z":1.0,"a":1e400,"z":3}"#;
        let events = call(0, &Call { name: "f".into(), arguments: arguments.into(), ..Call::default() }, &request);
        assert_eq!(data(&events[0])["item"]["arguments"], "");
        assert_eq!(data(&events[1])["item"]["arguments"], arguments);
        assert!(item(3, "{\"n\":\n1.0}")[1].contains(r#""item":{"n": 1.0}"#));
    }

    #[test]
    fn a_tool_of_a_server_is_called_in_its_namespace() {
        let tools = json!([{"type":"namespace","name":"mcp__tickets","tools":[{"type":"function","name":"search"}]}]);
        let request = Request::responses(&json!({ "tools": tools }).to_string());
        assert_eq!(request.tools[0].full_name(), "tickets.search");
        let named = |name: &str, namespace: Option<&str>| {
            let call = Call { name: name.into(), namespace: namespace.map(Into::into), ..Call::default() };
            let item = data(&super::call(0, &call, &request)[1])["item"].clone();
            (item["name"].clone(), item["namespace"].clone())
        };
        let want = (json!("search"), json!("mcp__tickets"));
        for (name, namespace) in [("search", None), ("tickets.search", None), ("search", Some("mcp__tickets"))] {
            assert_eq!(named(name, namespace), want, "{name}");
        }
        assert_eq!(named("builds.list", None), (json!("list"), json!("mcp__builds")));
    }

    #[test]
    fn a_command_takes_the_form_of_the_tool_on_offer() {
        for (tool, want) in [
            (
                json!({"type":"function","name":"exec_command","parameters":{"properties":{"cmd":{},"yield_time_ms":{}}}}),
                r#"{"cmd":"ls","yield_time_ms":9}"#,
            ),
            (
                json!({"type":"function","name":"shell","parameters":{"properties":{"command":{"type":"array"}}}}),
                r#"{"command":["/bin/sh","-c","ls"]}"#,
            ),
            (
                json!({"type":"function","name":"shell_command","parameters":{"properties":{"command":{"type":"string"}}}}),
                r#"{"command":"ls"}"#,
            ),
        ] {
            let request = Request::responses(&json!({ "tools": [tool] }).to_string());
            let command = Shell { command: "ls".into(), yield_ms: Some(9), call_id: None };
            let events = shell(0, &command, &request);
            assert_eq!(data(&events[1])["item"]["arguments"], want);
        }
        let request = Request::responses(r#"{"tools":[{"type":"local_shell"}]}"#);
        let events = shell(0, &Shell { command: "ls".into(), ..Shell::default() }, &request);
        assert_eq!(data(&events[1])["item"]["action"]["command"][2], "ls");
    }
}
