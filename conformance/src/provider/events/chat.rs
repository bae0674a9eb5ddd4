//! The Chat Completions API: one message, whose text and calls come in chunks, and the endings. Its events have no names.

use serde_json::{Map, Value, json};

use super::{Ending, Item, Response, flat, fresh, pieces};
use crate::provider::protocol::openai_error;
use crate::script::provider::{Call, Complete, CustomCall, Failed, Reasoning, Search, Shell, Text, Usage};

/// The shell tool, where the request offers none: the Harness will refuse it.
const SHELL: &str = "bash";

/// What a Harness calls its tool for searches of the web.
const SEARCH: &str = "websearch";

/// The beginning: who speaks.
pub(super) fn created(response: &Response<'_>) -> String {
    delta(response, &json!({"role": "assistant", "content": ""}))
}

fn data(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn delta(response: &Response<'_>, delta: &Value) -> String {
    data(&chunk(response, delta, None))
}

/// A chunk. Where the counts are asked for, each one but the last says that it has none.
fn chunk(response: &Response<'_>, delta: &Value, finish: Option<&str>) -> Value {
    let mut chunk = head(response, "chat.completion.chunk");
    chunk["choices"] = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    if response.request.counts {
        chunk["usage"] = Value::Null;
    }
    chunk
}

fn head(response: &Response<'_>, object: &str) -> Value {
    json!({"id": response.id, "object": object, "created": 1, "model": response.request.model})
}

fn usage(complete: &Complete) -> Value {
    let Usage { input, cached, output, reasoning } = complete.usage.unwrap_or_default();
    json!({
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    })
}

fn counts(ending: Ending<'_>) -> Option<Value> {
    match ending {
        Ending::Complete(complete) => (!complete.without_usage).then(|| usage(complete)),
        Ending::Failed(_) | Ending::Incomplete(_) => Some(usage(&Complete::default())),
    }
}

/// The last events: the reason to stop, the counts where they were asked for, and the mark of the end; or an error alone.
pub(super) fn ended(response: &Response<'_>, ending: Ending<'_>, called: bool) -> Vec<String> {
    if let Ending::Failed(failed) = ending {
        return vec![data(&failed_body(failed))];
    }
    let mut events = vec![data(&chunk(response, &json!({}), Some(finish_reason(ending, called))))];
    if let Some(usage) = counts(ending).filter(|_| response.request.counts) {
        let mut last = head(response, "chat.completion.chunk");
        last["choices"] = json!([]);
        last["usage"] = usage;
        events.push(data(&last));
    }
    events.push("data: [DONE]\n\n".into());
    events
}

/// The answer as one message. A failed one is an error object.
pub(super) fn whole(response: &Response<'_>, ending: Ending<'_>, items: &[Item]) -> Result<String, String> {
    if let Ending::Failed(failed) = ending {
        return Err(failed_body(failed).to_string());
    }
    let parsed = |item: &Item| serde_json::from_str(&item.whole).unwrap_or_default();
    let mut message = Map::from_iter([("role".into(), json!("assistant")), ("content".into(), Value::Null)]);
    for item in items.iter().filter(|item| !item.call) {
        let Value::Object(members) = parsed(item) else { continue };
        for (name, value) in members {
            // Texts go on where the one before ended.
            let value = match (message.get(&name), value) {
                (Some(Value::String(before)), Value::String(more)) => json!(format!("{before}{more}")),
                (_, value) => value,
            };
            message.insert(name, value);
        }
    }
    let calls: Vec<Value> = items.iter().filter(|item| item.call).map(parsed).collect();
    let called = !calls.is_empty();
    if called {
        message.insert("tool_calls".into(), calls.into());
    }
    let mut body = head(response, "chat.completion");
    let finish = finish_reason(ending, called);
    body["choices"] = json!([{"index": 0, "message": message, "logprobs": null, "finish_reason": finish}]);
    if let Some(usage) = counts(ending) {
        body["usage"] = usage;
    }
    Ok(body.to_string())
}

fn finish_reason<'a>(ending: Ending<'a>, called: bool) -> &'a str {
    match ending {
        Ending::Incomplete(incomplete) => match &*incomplete.reason {
            "max_output_tokens" => "length",
            other => other,
        },
        Ending::Complete(_) | Ending::Failed(_) if called => "tool_calls",
        Ending::Complete(_) | Ending::Failed(_) => "stop",
    }
}

fn failed_body(failed: &Failed) -> Value {
    let message = if failed.message.is_empty() { "the script refuses" } else { &failed.message };
    openai_error(&failed.code, message, Some(&failed.code))
}

/// A part of the text of the message, one delta per chunk. It has no beginning and no end of its own, no phase and no id.
pub(super) fn text(response: &Response<'_>, text: &Text) -> Item {
    let events = text.chunks.iter().map(|chunk| delta(response, &json!({"content": chunk}))).collect();
    Item { events, whole: json!({"content": text.chunks.concat()}).to_string(), call: false }
}

/// Reasoning, word by word, in the member that providers agree on: the summary, or the raw text where there is no summary.
pub(super) fn reasoning(response: &Response<'_>, reasoning: &Reasoning) -> Item {
    let summary = (!reasoning.summary.is_empty()).then(|| reasoning.summary.join("\n\n"));
    let text = summary.or_else(|| reasoning.raw.clone()).unwrap_or_default();
    let words = text.split_inclusive(' ');
    let events = words.map(|word| delta(response, &json!({"reasoning_content": word}))).collect();
    Item { events, whole: json!({"reasoning_content": text}).to_string(), call: false }
}

/// A call: begun with its id and its name, then the text of its arguments in pieces. The name is that under which the
/// request declares it.
pub(super) fn call(response: &Response<'_>, index: usize, call: &Call) -> Item {
    let request = response.request;
    let named = |namespace: &String| format!("{namespace}_{}", call.name);
    let declared = || request.function(&call.name).map(|tool| tool.wire.clone());
    let hidden = || request.hidden(&call.name).map(|(server, name)| format!("{server}_{name}"));
    let name = call.namespace.as_ref().map(named).or_else(declared).or_else(hidden);
    function(response, index, &name.unwrap_or_else(|| call.name.clone()), &call.arguments, call.call_id.clone())
}

fn function(response: &Response<'_>, index: usize, name: &str, arguments: &str, id: Option<String>) -> Item {
    let id = id.unwrap_or_else(|| fresh("call"));
    let calls = |call: Value| delta(response, &json!({"tool_calls": [call]}));
    let begun = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
    let mut events = vec![calls(begun)];
    let pieces = pieces(arguments).into_iter();
    events.extend(pieces.map(|piece| calls(json!({"index": index, "function": {"arguments": piece}}))));
    let whole = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    Item { events, whole: whole.to_string(), call: true }
}

/// A command for the shell tool, which answers when it is done, whatever the script says. The tool wants it described.
pub(super) fn shell(response: &Response<'_>, index: usize, shell: &Shell) -> Item {
    let tool = response.request.shell();
    let name = tool.map_or(SHELL, |tool| &tool.wire);
    let mut arguments = json!({"command": shell.command});
    if tool.is_none_or(|tool| tool.parameters["properties"].get("description").is_some()) {
        arguments["description"] = json!("Runs what the script says");
    }
    function(response, index, name, &arguments.to_string(), shell.call_id.clone())
}

/// Free text has no tool of its own: it is the member `input`.
pub(super) fn custom_call(response: &Response<'_>, index: usize, call: &CustomCall) -> Item {
    function(response, index, &call.name, &json!({"input": call.input}).to_string(), call.call_id.clone())
}

/// A web search: a call of the Harness's own tool, since the provider has none.
pub(super) fn search(response: &Response<'_>, index: usize, search: &Search) -> Item {
    function(response, index, SEARCH, &json!({"query": search.query}).to_string(), search.call_id.clone())
}

/// Any delta as a script has it, byte for byte in a stream.
pub(super) fn item(response: &Response<'_>, delta: &str) -> Item {
    let chunk = chunk(response, &Value::Null, None).to_string();
    let chunk = chunk.replacen(r#""delta":null"#, &format!(r#""delta":{}"#, flat(delta)), 1);
    Item { events: vec![format!("data: {chunk}\n\n")], whole: flat(delta), call: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::request::Request;
    use crate::script::provider::Incomplete;

    const REQUEST: &str = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"tools":[
        {"type":"function","function":{"name":"bash","parameters":{"properties":{"command":{},"description":{}}}}},
        {"type":"function","function":{"name":"functions_f"}},
        {"type":"function","function":{"name":"tickets_search"}}]}"#;

    fn data(event: &str) -> Value {
        serde_json::from_str(event.strip_prefix("data: ").unwrap().trim_end()).unwrap_or_default()
    }

    fn delta_of(event: &str) -> Value {
        data(event)["choices"][0]["delta"].clone()
    }

    #[test]
    fn arguments_go_out_in_pieces_that_make_the_text_as_it_stands() {
        let request = Request::chat_completions(REQUEST);
        let response = Response::new(&request, &[]);
        let arguments = r#"{"z":1.0,"a":1e400,"z":3,"ü":"a long enough text"}"#;
        let made = Call { name: "f".into(), arguments: arguments.into(), call_id: Some("c1".into()), namespace: None };
        let item = call(&response, 2, &made);
        assert_eq!(
            delta_of(&item.events[0])["tool_calls"][0],
            json!({"index":2,"id":"c1","type":"function","function":{"name":"functions_f","arguments":""}})
        );
        let pieces = item.events.iter().map(|event| {
            let call = delta_of(event)["tool_calls"][0].clone();
            assert_eq!(call["index"], 2);
            call["function"]["arguments"].as_str().unwrap().to_owned()
        });
        assert_eq!(pieces.collect::<String>(), arguments);
        assert!(item.events.len() > 3 && item.call);
    }

    #[test]
    fn a_call_has_the_name_of_its_declaration_or_its_own() {
        let request = Request::chat_completions(REQUEST);
        let response = Response::new(&request, &[]);
        let named = |name: &str, namespace: Option<&str>| {
            let made = Call { name: name.into(), namespace: namespace.map(Into::into), ..Call::default() };
            delta_of(&call(&response, 0, &made).events[0])["tool_calls"][0]["function"]["name"].clone()
        };
        assert_eq!(named("f", None), "functions_f");
        assert_eq!(named("nowhere", None), "nowhere");
        assert_eq!(named("tickets.search", None), "tickets_search");
        assert_eq!(named("search", Some("tickets")), "tickets_search");
        assert_eq!(named("builds.list", None), "builds_list");
    }

    #[test]
    fn a_command_is_described_where_the_tool_wants_it() {
        let request = Request::chat_completions(REQUEST);
        let command = Shell { command: "ls".into(), ..Shell::default() };
        let whole: Value = serde_json::from_str(&shell(&Response::new(&request, &[]), 0, &command).whole).unwrap();
        assert_eq!(whole["function"]["name"], "bash");
        let arguments: Value = serde_json::from_str(whole["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["command"] == "ls" && arguments["description"].is_string());
    }

    #[test]
    fn a_delta_of_a_script_goes_out_as_it_stands() {
        let request = Request::chat_completions(REQUEST);
        let item = item(&Response::new(&request, &[]), "{\"n\":\n1e400}");
        assert!(item.events[0].contains(r#""delta":{"n": 1e400}"#), "{}", item.events[0]);
    }

    #[test]
    fn the_reason_to_stop_follows_from_the_ending() {
        let request = Request::chat_completions(REQUEST);
        let response = Response::new(&request, &[]);
        let incomplete = |reason: &str| Incomplete { reason: reason.into() };
        let complete = Complete::default();
        for (ending, called, want) in [
            (Ending::Complete(&complete), false, "stop"),
            (Ending::Complete(&complete), true, "tool_calls"),
            (Ending::Incomplete(&incomplete("max_output_tokens")), true, "length"),
            (Ending::Incomplete(&incomplete("content_filter")), false, "content_filter"),
            (Ending::Incomplete(&incomplete("tired")), false, "tired"),
        ] {
            let events = ended(&response, ending, called);
            let [finish, counts, done] = &events[..] else { panic!("{events:?}") };
            assert_eq!(data(finish)["choices"][0]["finish_reason"], want);
            assert_eq!((&data(counts)["choices"], &data(counts)["usage"]["prompt_tokens"]), (&json!([]), &json!(100)));
            assert_eq!(done, "data: [DONE]\n\n");
        }
        let failed = Failed { code: "server_error".into(), message: String::new() };
        let events = ended(&response, Ending::Failed(&failed), false);
        assert_eq!((events.len(), &data(&events[0])["error"]["code"]), (1, &json!("server_error")));
    }

    #[test]
    fn the_counts_come_where_they_are_asked_for_and_told() {
        let without = Complete { without_usage: true, ..Complete::default() };
        let asking = Request::chat_completions(REQUEST);
        let silent = Request::chat_completions(r#"{"stream":true}"#);
        for (request, complete, want) in
            [(&asking, Complete::default(), 3), (&asking, without, 2), (&silent, Complete::default(), 2)]
        {
            let response = Response::new(request, &[]);
            assert_eq!(ended(&response, Ending::Complete(&complete), false).len(), want);
            assert_eq!(data(&created(&response)).get("usage").is_some(), request.counts);
        }
    }
}
