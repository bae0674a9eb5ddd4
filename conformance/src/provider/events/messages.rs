//! The Messages API: content blocks, one function for each, and the endings.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Ending, Item, Response, event, flat, fresh, pieces};
use crate::provider::protocol::{messages_error, told};
use crate::provider::request::{FOREIGN, Request};
use crate::script::provider::{Call, Complete, CustomCall, Reasoning, Search, Shell, Text, Usage};

/// The beginning: the message without content, and what the input was counted to.
pub(super) fn created(response: &Response<'_>) -> String {
    let mut counts = if response.complete.without_usage { json!({}) } else { usage(&response.complete) };
    counts["output_tokens"] = json!(1);
    event("message_start", json!({ "message": message(response, &counts) }))
}

fn message(response: &Response<'_>, usage: &Value) -> Value {
    json!({
        "id": response.id, "type": "message", "role": "assistant", "model": response.request.model, "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage,
    })
}

/// The input is counted without what came from the cache, and reasoning is part of the output.
fn usage(complete: &Complete) -> Value {
    let Usage { input, cached, output, .. } = complete.usage.unwrap_or_default();
    json!({
        "input_tokens": input.saturating_sub(cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": output,
    })
}

/// The last events: the reason to stop with the counts and the stop, or an error.
pub(super) fn ended(ending: Ending<'_>, called: bool) -> Vec<String> {
    if let Ending::Failed(failed) = ending {
        return vec![event("error", failed_body(&failed.code, &failed.message))];
    }
    let delta = json!({"stop_reason": stop_reason(ending, called), "stop_sequence": null});
    let mut data = json!({ "delta": delta });
    if let Some(usage) = counts(ending) {
        data["usage"] = usage;
    }
    vec![event("message_delta", data), event("message_stop", json!({}))]
}

/// The answer as one message. A failed one is an error object.
pub(super) fn whole(response: &Response<'_>, ending: Ending<'_>, items: &[Item]) -> Result<String, String> {
    if let Ending::Failed(failed) = ending {
        return Err(failed_body(&failed.code, &failed.message).to_string());
    }
    let called = items.iter().any(|item| item.call);
    let mut message = message(response, &counts(ending).unwrap_or_default());
    message["stop_reason"] = json!(stop_reason(ending, called));
    let content: Vec<_> = items.iter().map(|item| &*item.whole).collect();
    // The blocks are put in as texts, since what a script gives goes out as it stands.
    Ok(message.to_string().replacen(r#""content":[]"#, &format!(r#""content":[{}]"#, content.join(",")), 1))
}

fn counts(ending: Ending<'_>) -> Option<Value> {
    match ending {
        Ending::Complete(complete) => (!complete.without_usage).then(|| usage(complete)),
        Ending::Failed(_) | Ending::Incomplete(_) => Some(usage(&Complete::default())),
    }
}

fn stop_reason<'a>(ending: Ending<'a>, called: bool) -> &'a str {
    match ending {
        Ending::Incomplete(incomplete) => match &*incomplete.reason {
            "max_output_tokens" => "max_tokens",
            "content_filter" => "refusal",
            other => other,
        },
        Ending::Complete(_) | Ending::Failed(_) if called => "tool_use",
        Ending::Complete(_) | Ending::Failed(_) => "end_turn",
    }
}

fn failed_body(code: &str, message: &str) -> Value {
    let kind = match code {
        "server_error" => "api_error",
        "rate_limit_exceeded" => "rate_limit_error",
        "server_is_overloaded" | "slow_down" => "overloaded_error",
        "context_length_exceeded" | "invalid_prompt" => "invalid_request_error",
        other => other,
    };
    if message.is_empty() { messages_error(kind, &told(code)) } else { messages_error(kind, message) }
}

fn begun(index: usize, block: &Value) -> String {
    event("content_block_start", json!({"index": index, "content_block": block}))
}

fn delta(index: usize, delta: &Value) -> String {
    event("content_block_delta", json!({"index": index, "delta": delta}))
}

fn stopped(index: usize) -> String {
    event("content_block_stop", json!({ "index": index }))
}

/// A text block: begun, one delta per chunk, stopped. A phase and an id have no place here.
pub(super) fn text(index: usize, text: &Text) -> Item {
    let mut events = vec![begun(index, &json!({"type": "text", "text": ""}))];
    events.extend(text.chunks.iter().map(|chunk| delta(index, &json!({"type": "text_delta", "text": chunk}))));
    if !text.open {
        events.push(stopped(index));
    }
    let whole = json!({"type": "text", "text": text.chunks.concat()}).to_string();
    Item { events, whole, call: false }
}

/// A thinking block, word by word, then its signature: the summary, or the raw text where there is no summary.
pub(super) fn thinking(index: usize, reasoning: &Reasoning) -> Item {
    let summary = (!reasoning.summary.is_empty()).then(|| reasoning.summary.join("\n\n"));
    let text = summary.or_else(|| reasoning.raw.clone()).unwrap_or_default();
    let signature = fresh("signature");
    let mut events = vec![begun(index, &json!({"type": "thinking", "thinking": "", "signature": ""}))];
    let words = text.split_inclusive(' ');
    events.extend(words.map(|word| delta(index, &json!({"type": "thinking_delta", "thinking": word}))));
    events.push(delta(index, &json!({"type": "signature_delta", "signature": signature})));
    events.push(stopped(index));
    let whole = json!({"type": "thinking", "thinking": text, "signature": signature}).to_string();
    Item { events, whole, call: false }
}

/// A call: begun with an empty input, then the text of its arguments in pieces. The name is that under which the
/// request declares it.
pub(super) fn call(index: usize, call: &Call, request: &Request) -> Item {
    let named = |namespace: &String| format!("{FOREIGN}{namespace}__{}", call.name);
    let declared = || request.function(&call.name).map(|tool| tool.wire.clone());
    let hidden = || request.hidden(&call.name).map(|(server, name)| format!("{FOREIGN}{server}__{name}"));
    let name = call.namespace.as_ref().map(named).or_else(declared).or_else(hidden);
    let name = name.unwrap_or_else(|| call.name.clone());
    tool_use(index, &name, &call.arguments, call.call_id.clone())
}

fn tool_use(index: usize, name: &str, arguments: &str, id: Option<String>) -> Item {
    let id = id.unwrap_or_else(|| fresh("toolu"));
    let mut block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
    let mut events = vec![begun(index, &block)];
    let pieces = pieces(arguments).into_iter();
    events.extend(pieces.map(|piece| delta(index, &json!({"type": "input_json_delta", "partial_json": piece}))));
    events.push(stopped(index));
    // What is no JSON can only be streamed.
    let input = serde_json::from_str::<&RawValue>(arguments).map_or_else(|_| "{}".into(), |input| flat(input.get()));
    block["input"] = Value::Null;
    let whole = block.to_string().replacen(r#""input":null"#, &format!(r#""input":{input}"#), 1);
    Item { events, whole, call: true }
}

/// A command for the shell tool, which answers when it is done, whatever the script says.
pub(super) fn shell(index: usize, shell: &Shell, request: &Request) -> Item {
    let arguments = json!({"command": shell.command}).to_string();
    let name = request.shell().map_or("Bash", |tool| &tool.wire);
    tool_use(index, name, &arguments, shell.call_id.clone())
}

/// Free text has no tool of its own: it is the member `input`.
pub(super) fn custom_call(index: usize, call: &CustomCall) -> Item {
    tool_use(index, &call.name, &json!({"input": call.input}).to_string(), call.call_id.clone())
}

/// A web search: where the request lets the provider search, the search and what it found; else a call of the
/// Harness's own tool, which makes such a request.
pub(super) fn search(index: usize, search: &Search, request: &Request) -> Vec<Item> {
    if !request.searches {
        let arguments = json!({"query": search.query}).to_string();
        return vec![tool_use(index, "WebSearch", &arguments, search.call_id.clone())];
    }
    let id = fresh("srvtoolu");
    let asked = json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": search.query}});
    let result = |(title, url): &(String, String)| json!({"type": "web_search_result", "title": title, "url": url, "encrypted_content": "sealed", "page_age": null});
    let found: Vec<_> = search.results.iter().map(result).collect();
    let found = json!({"type": "web_search_tool_result", "tool_use_id": id, "content": found});
    let mut items = vec![item(index, &asked.to_string()), item(index + 1, &found.to_string())];
    // Its input is streamed, so the Harness reads the query from the deltas.
    if let Some(first) = items.first_mut() {
        let query = json!({"query": search.query}).to_string();
        first.events.insert(1, delta(index, &json!({"type": "input_json_delta", "partial_json": query})));
    }
    items
}

/// Any block as a script has it.
pub(super) fn item(index: usize, block: &str) -> Item {
    let begun = format!(
        "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":{index},\"content_block\":{}}}\n\n",
        flat(block)
    );
    let kind: Value = serde_json::from_str(block).unwrap_or_default();
    Item { events: vec![begun, stopped(index)], whole: flat(block), call: kind["type"] == "tool_use" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::provider::{Failed, Incomplete};

    fn data(event: &str) -> Value {
        serde_json::from_str(event.split_once("data: ").unwrap().1.trim_end()).unwrap()
    }

    fn request() -> Request {
        Request::messages(
            r#"{"model":"m","tools":[{"name":"Bash","input_schema":{}},{"name":"mcp__functions__f","input_schema":{}}]}"#,
        )
    }

    #[test]
    fn arguments_go_out_in_pieces_that_make_the_text_as_it_stands() {
        let arguments = r#"{"z":1.0,"a":1e400,"z":3,"ü":"a long enough text"}"#;
        let made = Call { name: "f".into(), arguments: arguments.into(), call_id: Some("c1".into()), namespace: None };
        let item = call(2, &made, &request());
        assert_eq!(
            data(&item.events[0])["content_block"],
            json!({"type":"tool_use","id":"c1","name":"mcp__functions__f","input":{}})
        );
        let pieces = item.events.iter().map(|event| data(event)["delta"]["partial_json"].as_str().map(str::to_owned));
        assert_eq!(pieces.flatten().collect::<String>(), arguments);
        assert!(item.whole.contains(arguments) && item.call);
    }

    #[test]
    fn a_call_has_the_name_of_its_declaration_or_its_own() {
        let named = |name: &str, namespace: Option<&str>| {
            let made =
                Call { name: name.into(), namespace: namespace.map(Into::into), arguments: "{}".into(), call_id: None };
            data(&call(0, &made, &request()).events[0])["content_block"]["name"].clone()
        };
        assert_eq!(named("f", None), "mcp__functions__f");
        assert_eq!(named("nowhere", None), "nowhere");
        assert_eq!(named("search", Some("tickets")), "mcp__tickets__search");
    }

    #[test]
    fn thinking_is_signed() {
        let item = thinking(0, &Reasoning { summary: vec!["one two".into(), "three".into()], raw: None });
        let deltas: Vec<_> = item.events.iter().map(|event| data(event)["delta"].clone()).collect();
        assert_eq!(deltas[1]["thinking"], "one ");
        assert_eq!(deltas[deltas.len() - 2]["type"], "signature_delta");
        assert!(item.whole.contains(r#""thinking":"one two\n\nthree""#));
    }

    #[test]
    fn the_reason_to_stop_follows_from_the_ending() {
        let incomplete = |reason: &str| Incomplete { reason: reason.into() };
        let complete = Complete::default();
        for (ending, called, want) in [
            (Ending::Complete(&complete), false, "end_turn"),
            (Ending::Complete(&complete), true, "tool_use"),
            (Ending::Incomplete(&incomplete("max_output_tokens")), true, "max_tokens"),
            (Ending::Incomplete(&incomplete("content_filter")), false, "refusal"),
            (Ending::Incomplete(&incomplete("pause_turn")), false, "pause_turn"),
        ] {
            let events = ended(ending, called);
            assert_eq!(data(&events[0])["delta"]["stop_reason"], want);
            assert_eq!(data(&events[0])["usage"]["input_tokens"], 90);
            assert_eq!(data(&events[1])["type"], "message_stop");
        }
        let failed = Failed { code: "server_is_overloaded".into(), message: String::new() };
        assert_eq!(data(&ended(Ending::Failed(&failed), false)[0])["error"]["type"], "overloaded_error");
    }

    #[test]
    fn a_search_is_a_call_or_what_the_provider_found() {
        let wanted =
            Search { query: "plums".into(), results: vec![("Plums".into(), "https://a.test".into())], call_id: None };
        let [asked] = &search(0, &wanted, &request())[..] else { panic!("one call") };
        assert!(asked.call && asked.whole.contains(r#""name":"WebSearch""#));
        let searching = Request::messages(r#"{"tools":[{"type":"web_search_20250305","name":"web_search"}]}"#);
        let [asked, found] = &search(0, &wanted, &searching)[..] else { panic!("two blocks") };
        assert!(!asked.call && asked.whole.contains("server_tool_use"));
        assert_eq!(data(&found.events[0])["content_block"]["content"][0]["url"], "https://a.test");
    }
}
