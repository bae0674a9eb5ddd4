//! The same provider, asked by the Messages API.

use super::*;
use crate::script::provider::After;

fn asking(prompt: &str, stream: bool, tools: &serde_json::Value) -> String {
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": prompt}]}]);
    json!({"model": "claude-x", "stream": stream, "tools": tools, "messages": messages}).to_string()
}

async fn post(provider: &Provider, body: &str) -> (String, bool) {
    read(send(provider, "POST", "/v1/messages?beta=true", body).await).await
}

/// The data of the events in an answer.
fn events(answer: &str) -> Vec<serde_json::Value> {
    answer
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter_map(|data| serde_json::from_str(data).ok())
        .collect()
}

/// The body of an answer that is no stream.
fn whole_body(answer: &str) -> serde_json::Value {
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

#[tokio::test]
async fn the_mock_streams_blocks() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    let (answer, _) = post(&provider, &asking("hello you", true, &json!([]))).await;
    let events = events(&answer);
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(events[0]["message"]["model"], "claude-x");
    assert_eq!(events[5]["delta"]["stop_reason"], "end_turn");
    let [request] = &provider.model_requests()[..] else { panic!("one request") };
    assert_eq!((request.protocol(), request.model()), (Some(Protocol::Messages), "claude-x".into()));
    assert_eq!((request.user_texts(), request.key()), (vec!["hello you".to_owned()], Some("k")));
    assert_eq!((request.events, request.end), (7, Some(End::Sent)));
}

#[tokio::test]
async fn one_script_serves_both_apis() {
    let script = r#"[{"always": true, "play": [
        {"reasoning": {"summary": ["one two"]}},
        {"text": {"chunks": ["a", "b"]}}, {"text": {"chunks": ["c"]}},
        {"calls": [{"name": "f", "arguments": "{\"n\":1.0}", "call_id": "c1"}, {"name": "g", "arguments": "{}"}]},
        {"shell": {"command": "ls"}},
        {"complete": {"usage": {"input": 7, "cached": 3, "output": 2, "reasoning": 1}}}]}]"#;
    let provider = Provider::start(steps(script)).await.unwrap();
    assert!(ask(&provider, "x").await.0.contains(r#""arguments":"{\"n\":1.0}""#));
    let tools = json!([{"name": "mcp__functions__f", "input_schema": {}}]);
    let (answer, _) = post(&provider, &asking("x", true, &tools)).await;
    let events = events(&answer);
    let begun = events.iter().filter(|event| event["type"] == "content_block_start");
    let begun: Vec<_> = begun.map(|event| (event["index"].as_u64().unwrap(), event["content_block"].clone())).collect();
    let kinds: Vec<_> = begun.iter().map(|(_, block)| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text", "text", "tool_use", "tool_use", "tool_use"]);
    assert!(begun.iter().enumerate().all(|(place, (index, _))| place as u64 == *index));
    let names: Vec<_> = begun.iter().filter_map(|(_, block)| block["name"].as_str()).collect();
    assert_eq!(names, ["mcp__functions__f", "g", "Bash"]);
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 4);
    let end = &events[events.len() - 2];
    assert_eq!((&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]), (&json!("tool_use"), &json!(2)));
}

#[tokio::test]
async fn an_answer_without_a_stream_is_one_message() {
    let script = r#"[{"play": [{"text": {"chunks": ["a", "b"]}}, {"calls": [{"name": "f", "arguments": "{\"n\":1.0}"}]}]},
        {"play": [{"failed": {"code": "server_error", "message": "no"}}]}, {"play": [{"http": {"status": 529}}]}]"#;
    let provider = Provider::start(steps(script)).await.unwrap();
    let body = asking("x", false, &json!([]));
    let (answer, _) = post(&provider, &body).await;
    assert!(answer.contains(r#""input":{"n":1.0}"#), "{answer}");
    let message = whole_body(&answer);
    assert_eq!((&message["type"], &message["stop_reason"]), (&json!("message"), &json!("tool_use")));
    assert_eq!(message["content"][0], json!({"type": "text", "text": "ab"}));
    for (status, kind) in [(500, "api_error"), (529, "overloaded_error")] {
        let (answer, _) = post(&provider, &body).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(whole_body(&answer)["error"]["type"], kind);
    }
}

#[tokio::test]
async fn tokens_are_counted_and_the_count_is_no_request_to_the_model() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    let (answer, _) = read(send(&provider, "POST", "/v1/messages/count_tokens?beta=true", "{\"a\":1}").await).await;
    assert_eq!(whole_body(&answer)["input_tokens"], 1);
    assert_eq!((provider.model_requests().len(), &*provider.requests()[0].answered_by), (0, "count"));
}

#[tokio::test]
async fn a_stream_breaks_where_the_script_says() {
    let script = r#"[{"play": [{"text": {"chunks": ["a"], "open": true}}, "drop"]},
        {"play": [{"text": {"chunks": ["a"]}}, {"failed": {"code": "overloaded_error", "message": "busy"}}]},
        {"play": [{"text": {"chunks": ["a"]}}, "close"]}, {"drop_after_events": 3, "play": ["mock"]},
        {"play": [{"text": {"chunks": ["a"]}}, {"incomplete": {"reason": "max_tokens"}}]}]"#;
    let provider = Provider::start(steps(script)).await.unwrap();
    for (last, count, ended) in [
        ("content_block_delta", 3, false),
        ("error", 5, true),
        ("content_block_stop", 4, true),
        ("content_block_delta", 3, false),
        ("message_stop", 6, true),
    ] {
        let (answer, _) = post(&provider, &asking("x", true, &json!([]))).await;
        let events = events(&answer);
        assert_eq!((events.last().unwrap()["type"].as_str().unwrap(), events.len()), (last, count));
        assert_eq!(answer.ends_with("0\r\n\r\n"), ended, "{answer}");
    }
}

#[tokio::test]
async fn a_step_can_wait_for_outputs_and_a_search_takes_none_that_does_not_name_it() {
    let provider =
        Provider::start(vec![Step::text("read").after(After::Outputs), Step::text("asked").after(After::User)])
            .await
            .unwrap();
    let searching = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    let (answer, _) = post(&provider, &asking("Perform a web search for the query: plums", true, &searching)).await;
    assert!(answer.contains("web_search_tool_result") && answer.contains("plums"), "{answer}");
    assert!(post(&provider, &asking("x", true, &json!([]))).await.0.contains("asked"));
    let result = json!([{"type": "tool_result", "tool_use_id": "c1", "content": "R", "is_error": true}]);
    let body = json!({"stream": true, "messages": [{"role": "user", "content": result}]}).to_string();
    assert!(post(&provider, &body).await.0.contains("read"));
    let last = &provider.model_requests()[2];
    assert_eq!((last.output("c1"), last.output_failed("c1")), (Some("R".into()), Some(true)));
}
