//! The same provider, asked by the Chat Completions API.

use serde_json::Value;

use super::*;
use crate::script::provider::After;

fn asking(messages: &Value, stream: bool) -> String {
    let tools = json!([{"type": "function", "function": {"name": "functions_f"}}]);
    let options = json!({"include_usage": true});
    json!({"model": "m", "stream": stream, "stream_options": options, "tools": tools, "messages": messages}).to_string()
}

fn user(text: &str) -> Value {
    json!([{"role": "system", "content": "above"}, {"role": "user", "content": text}])
}

async fn post(provider: &Provider, body: &str) -> String {
    read(send(provider, "POST", "/v1/chat/completions", body).await).await.0
}

/// The data of the events in an answer; that of the end is a text.
fn events(answer: &str) -> Vec<Value> {
    let data = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data))).collect()
}

/// What a stream added up to: the text, the reasoning, the calls, and the reason to stop.
fn added_up(events: &[Value]) -> (String, String, Vec<(String, String)>, Value) {
    let (mut text, mut reasoning, mut calls, mut finish) = (String::new(), String::new(), Vec::new(), Value::Null);
    for choice in events.iter().map(|event| &event["choices"][0]) {
        let delta = &choice["delta"];
        text += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let place = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            if let Some(name) = call["function"]["name"].as_str() {
                assert_eq!((place, call["id"].is_string()), (calls.len(), true), "calls begin in order");
                calls.push((name.to_owned(), String::new()));
            }
            calls[place].1 += call["function"]["arguments"].as_str().unwrap();
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    (text, reasoning, calls, finish)
}

#[tokio::test]
async fn the_mock_streams_chunks_and_the_request_is_read() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    let answer = post(&provider, &asking(&user("hello you"), true)).await;
    assert!(answer.contains("content-type: text/event-stream") && !answer.contains("event: "), "{answer}");
    let events = events(&answer);
    assert_eq!(events.len(), 6, "who speaks, two words, the end, the counts, the mark: {answer}");
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!((&events[0]["model"], &events[0]["usage"]), (&json!("m"), &Value::Null));
    assert_eq!(added_up(&events[..4]).0, "hello you");
    assert_eq!((&events[3]["choices"][0]["finish_reason"], &events[5]), (&json!("stop"), &json!("[DONE]")));
    assert_eq!(events[4]["usage"]["total_tokens"], 120);
    let [request] = &provider.model_requests()[..] else { panic!("one request") };
    assert_eq!((request.protocol(), request.model()), (Some(Protocol::ChatCompletions), "m".into()));
    assert_eq!((request.user_texts(), request.key()), (vec!["hello you".to_owned()], Some("k")));
    assert_eq!((request.instructions(), request.tools()), ("above".into(), vec!["f".to_owned()]));
    assert_eq!(request.newest_input(), ["hello you"]);
    assert_eq!((request.events, request.end), (6, Some(End::Sent)));
}

#[tokio::test]
async fn the_script_of_the_other_apis_serves_this_one() {
    let script = r#"[{"always": true, "play": [
        {"reasoning": {"summary": ["one two"]}},
        {"text": {"chunks": ["a", "b"]}}, {"text": {"chunks": ["c"]}},
        {"calls": [{"name": "f", "arguments": "{\"n\":1.0}", "call_id": "c1"}, {"name": "g", "arguments": "not JSON"}]},
        {"shell": {"command": "ls"}}, {"custom_call": {"name": "exec", "input": "1"}}, {"search": {"query": "plums"}},
        {"complete": {"usage": {"input": 7, "cached": 3, "output": 2, "reasoning": 1}}}]}]"#;
    let provider = Provider::start(steps(script)).await.unwrap();
    let streamed = events(&post(&provider, &asking(&user("x"), true)).await);
    let (text, reasoning, calls, finish) = added_up(&streamed[..streamed.len() - 2]);
    assert_eq!((&*text, &*reasoning, &finish), ("abc", "one two", &json!("tool_calls")));
    let names: Vec<_> = calls.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["functions_f", "g", "bash", "exec", "websearch"]);
    assert_eq!((&*calls[0].1, &*calls[1].1), (r#"{"n":1.0}"#, "not JSON"));
    let usage = &streamed[streamed.len() - 2]["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(7), &json!(2)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 3);

    let answer = post(&provider, &asking(&user("x"), false)).await;
    let whole: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("abc"), &json!("one two")));
    let called: Vec<_> = message["tool_calls"].as_array().unwrap().iter().map(|call| &call["function"]).collect();
    assert_eq!((called.len(), &called[1]["arguments"]), (5, &json!("not JSON")));
    assert_eq!((&whole["usage"], &whole["choices"][0]["finish_reason"]), (usage, &finish));
}

#[tokio::test]
async fn an_answer_ends_as_the_script_says() {
    let text = r#"{"text":{"chunks":["a","b"]}}"#;
    for (play, last, count, ended, end) in [
        (format!("[{text}]"), "[DONE]", 6, true, End::Sent),
        (format!(r#"[{text},{{"complete":{{"without_usage":true}}}}]"#), "[DONE]", 5, true, End::Sent),
        (format!(r#"[{text},{{"failed":{{"code":"server_error"}}}}]"#), "error", 4, true, End::Sent),
        (format!(r#"[{text},{{"incomplete":{{"reason":"max_output_tokens"}}}}]"#), "[DONE]", 6, true, End::Sent),
        (format!(r#"[{text},"close"]"#), "b", 3, true, End::Sent),
        (format!(r#"[{text},"drop"]"#), "b", 3, false, End::Broken),
        (r#"[{"event":{"data":"this is not JSON"}},"close"]"#.into(), "this is not JSON", 1, true, End::Sent),
    ] {
        let provider = Provider::start(steps(&format!(r#"[{{"play":{play}}}]"#))).await.unwrap();
        let answer = post(&provider, &asking(&user("x"), true)).await;
        let events = events(&answer);
        let of_last = events.last().unwrap();
        let said = of_last.as_str().or_else(|| of_last["choices"][0]["delta"]["content"].as_str()).unwrap_or("error");
        assert_eq!((said, events.len(), answer.ends_with("0\r\n\r\n")), (last, count, ended), "{play}: {answer}");
        let requests = provider.wait_for(|requests| requests[0].end.is_some()).await.unwrap();
        assert_eq!(requests[0].end, Some(end), "{play}");
    }
}

#[tokio::test]
async fn refusals_and_failures_have_the_form_of_the_api() {
    let script = r#"[{"play": [{"http": {"status": 429, "code": "rate_limit_exceeded", "type": "requests"}}]},
        {"play": [{"failed": {"code": "context_length_exceeded", "message": "too long"}}]}]"#;
    let provider = Provider::start(steps(script)).await.unwrap();
    for (status, code) in [(429, "rate_limit_exceeded"), (400, "context_length_exceeded")] {
        let answer = post(&provider, &asking(&user("x"), false)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(body["error"]["code"], code);
    }
}

#[tokio::test]
async fn steps_are_taken_by_what_is_newest_and_outputs_are_read() {
    let provider =
        Provider::start(vec![Step::text("read").after(After::Outputs), Step::text("asked").after(After::User)])
            .await
            .unwrap();
    assert!(post(&provider, &asking(&user("x"), true)).await.contains("asked"));
    let call = json!({"id": "c1", "type": "function", "function": {"name": "functions_f", "arguments": "{}"}});
    let messages = json!([{"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "R"}]);
    assert!(post(&provider, &asking(&messages, true)).await.contains("read"));
    let last = &provider.model_requests()[1];
    assert_eq!((last.output("c1"), last.output_failed("c1")), (Some("R".into()), Some(false)));
    assert_eq!(last.conversation().len(), 3);
    // Without a step the mock quotes what it reads.
    assert!(post(&provider, &asking(&messages, true)).await.contains("answer "));
}
