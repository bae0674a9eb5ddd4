mod chat;
mod messages;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::script::Script;

/// Sends one request on a connection of its own.
async fn send(provider: &Provider, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(provider.address()).await.unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer k\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

/// Reads until the connection ends, and says whether it was reset.
async fn read(mut stream: TcpStream) -> (String, bool) {
    let mut bytes = Vec::new();
    let reset = stream.read_to_end(&mut bytes).await.is_err();
    (String::from_utf8(bytes).unwrap(), reset)
}

async fn ask(provider: &Provider, prompt: &str) -> (String, bool) {
    read(send(provider, "POST", "/v1/responses", &body(prompt)).await).await
}

fn body(prompt: &str) -> String {
    let input = json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}]);
    json!({ "input": input, "stream": true }).to_string()
}

fn steps(text: &str) -> Vec<Step> {
    Script::parse(&format!(r#"{{"version":1,"provider":{text}}}"#)).unwrap().provider
}

/// The names of the events in an answer, one word each.
fn names(answer: &str) -> Vec<&str> {
    answer.lines().filter_map(|line| line.strip_prefix("event: response.")).collect()
}

#[tokio::test]
async fn echoes_without_a_script_and_records_the_request() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    let (answer, _) = ask(&provider, "hello you").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: text/event-stream"), "{answer}");
    assert!(answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
    assert_eq!(
        names(&answer),
        ["created", "output_item.added", "output_text.delta", "output_text.delta", "output_item.done", "completed"]
    );
    let [request] = &provider.requests()[..] else { panic!("one request") };
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/responses"));
    assert_eq!(request.header("authorization"), Some("Bearer k"));
    assert_eq!(request.body, body("hello you"));
    assert_eq!((request.status, request.events, request.end), (Some(200), 6, Some(End::Sent)));
    assert_eq!(request.answered_by, "mock");
    provider.stop().await;
}

#[tokio::test]
async fn steps_answer_in_order_where_they_match() {
    let provider = Provider::start(vec![
        Step::text("for b").matching("bbb"),
        Step::text("twice").times(2),
        Step::http(429, Some("busy")).always(),
    ])
    .await
    .unwrap();
    for (prompt, want) in [("aaa", "twice"), ("bbb", "for "), ("aaa", "twice"), ("aaa", "busy"), ("aaa", "busy")] {
        let (answer, _) = ask(&provider, prompt).await;
        assert!(answer.contains(want), "{prompt}: {answer}");
    }
    assert_eq!(provider.model_requests()[4].status, Some(429));
}

#[tokio::test]
async fn every_ending_is_what_it_says() {
    let text = r#"{"text":{"chunks":["a","b"]}}"#;
    for (play, status, last, chunked_end, end) in [
        (format!("[{text}]"), 200, "completed", true, End::Sent),
        (format!(r#"[{text},{{"complete":{{"without_usage":true}}}}]"#), 200, "completed", true, End::Sent),
        (format!(r#"[{text},{{"failed":{{"code":"server_error"}}}}]"#), 200, "failed", true, End::Sent),
        (format!(r#"[{text},{{"incomplete":{{"reason":"max_output_tokens"}}}}]"#), 200, "incomplete", true, End::Sent),
        (format!(r#"[{text},"close"]"#), 200, "output_item.done", true, End::Sent),
        (format!(r#"[{text},"drop"]"#), 200, "output_item.done", false, End::Broken),
        (r#"["headers","close"]"#.to_owned(), 200, "", true, End::Sent),
        (
            r#"[{"http":{"status":503,"code":"slow_down","headers":{"retry-after":"1"}}}]"#.to_owned(),
            503,
            "",
            false,
            End::Sent,
        ),
    ] {
        let provider = Provider::start(steps(&format!(r#"[{{"play":{play}}}]"#))).await.unwrap();
        let (answer, reset) = ask(&provider, "x").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{play}: {answer}");
        assert_eq!(names(&answer).last().copied().unwrap_or_default(), last, "{play}");
        assert_eq!(answer.ends_with("0\r\n\r\n"), chunked_end, "{play}: {answer}");
        assert!(!reset, "{play}");
        let requests = provider.wait_for(|requests| requests[0].end.is_some()).await.unwrap();
        assert_eq!(requests[0].end, Some(end), "{play}");
        provider.stop().await;
    }
}

#[tokio::test]
async fn drops_before_the_headers_and_resets_anywhere() {
    let provider = Provider::start(steps(
        r#"[{"play":["drop"]},{"play":["reset"]},{"play":[{"text":{"chunks":["a"]}},"reset"]}]"#,
    ))
    .await
    .unwrap();
    assert_eq!(ask(&provider, "x").await, (String::new(), false));
    assert_eq!(ask(&provider, "x").await, (String::new(), true));
    // A reset may overtake what was sent before it, so the answer is not looked at.
    assert!(ask(&provider, "x").await.1);
}

#[tokio::test]
async fn a_stream_can_drop_after_so_many_events_each_of_them_delivered() {
    for events in 0..6 {
        let step = Step { drop_after_events: Some(events), ..Step::text("a b") };
        let provider = Provider::start(vec![step]).await.unwrap();
        let (answer, _) = ask(&provider, "x").await;
        assert_eq!(names(&answer).len() as u64, events, "{answer}");
        assert!(!answer.ends_with("0\r\n\r\n"));
    }
}

#[tokio::test]
async fn a_gate_holds_the_stream_until_the_test_opens_it() {
    let provider = Provider::start(steps(
        r#"[{"play":[{"text":{"chunks":["before"]}},{"mark":"held"},{"gate":"go"},{"text":{"chunks":["after"]}}]}]"#,
    ))
    .await
    .unwrap();
    let stream = send(&provider, "POST", "/v1/responses", &body("x")).await;
    provider.wait_for_mark("held").await.unwrap();
    assert_eq!(provider.requests()[0].end, None);
    provider.open_gate("go");
    let (answer, _) = read(stream).await;
    assert!(answer.contains("before") && answer.contains("after"), "{answer}");
}

#[tokio::test]
async fn notices_that_the_client_goes_away_before_and_after_the_headers() {
    for play in [r#"["hang"]"#, r#"["headers","hang"]"#, r#"[{"gate":"never"}]"#] {
        let provider = Provider::start(steps(&format!(r#"[{{"play":{play}}}]"#))).await.unwrap();
        let stream = send(&provider, "POST", "/v1/responses", &body("x")).await;
        provider.wait_for(|requests| requests.len() == 1).await.unwrap();
        drop(stream);
        let requests = provider.wait_for(|requests| requests[0].end.is_some()).await.unwrap();
        assert_eq!(requests[0].end, Some(End::ClientGone), "{play}");
        assert!(requests[0].ended_at_ms.is_some());
    }
}

#[tokio::test]
async fn plays_every_kind_of_item() {
    let provider = Provider::start(steps(
        r#"[{"play":[
            {"reasoning":{"summary":["one two"],"raw":"deep"}},
            {"calls":[{"name":"f","arguments":"{\"a\":1e400}","call_id":"c1"},{"name":"g","arguments":"","namespace":"n"}]},
            {"shell":{"command":"ls"}},
            {"patch":"*** Begin Patch"},
            {"custom_call":{"name":"exec","input":"1"}},
            {"item":{"type":"hologram","n":1.0}},
            {"event":{"data":"[DONE]"}},
            {"raw":": a comment\n\n"},
            "mock"
        ]}]"#,
    ))
    .await
    .unwrap();
    let (answer, _) = ask(&provider, "echoed").await;
    for want in [
        "reasoning_summary_text.delta",
        r#""text":"deep""#,
        r#""arguments":"{\"a\":1e400}""#,
        r#""namespace":"n""#,
        r#""name":"exec_command""#,
        r#""name":"apply_patch""#,
        r#"{"type":"hologram","n":1.0}"#,
        "data: [DONE]\n\n",
        ": a comment",
        r#""delta":"echoed""#,
        r#""output_index":7"#,
    ] {
        assert!(answer.contains(want), "{want} is not in {answer}");
    }
}

#[tokio::test]
async fn is_controlled_over_http() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    let script = Script::for_provider(vec![Step::text("scripted")]).text().unwrap();
    let (answer, _) = read(send(&provider, "POST", "/__script", &script).await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (answer, _) = read(send(&provider, "POST", "/__script", "{").await).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(ask(&provider, "x").await.0.contains("scripted"));
    let (answer, _) = read(send(&provider, "GET", "/__requests", "").await).await;
    let requests: Vec<Recorded> = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(requests, provider.requests());
    read(send(&provider, "POST", "/__gates/g", "").await).await;
    provider.push(steps(r#"[{"play":[{"gate":"g"},{"mark":"m"}]}]"#).remove(0));
    ask(&provider, "x").await;
    let (answer, _) = read(send(&provider, "GET", "/__marks/m", "").await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    read(send(&provider, "POST", "/__reset", "").await).await;
    assert!(provider.requests().is_empty());
    let (answer, _) = read(send(&provider, "GET", "/v1/models", "").await).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

#[tokio::test]
async fn answers_many_at_once() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    let prompts: Vec<_> = (0..40).map(|n| format!("prompt-{n}-end")).collect();
    let answers = futures_util::future::join_all(prompts.iter().map(|prompt| ask(&provider, prompt))).await;
    for (prompt, (answer, _)) in prompts.iter().zip(answers) {
        assert!(answer.contains(prompt.as_str()), "{answer}");
    }
}
