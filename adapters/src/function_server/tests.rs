use std::net::SocketAddr;

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use crate::harness::{Image, MediaType};

const WEATHER: &str = r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#;

fn function(name: &str, parameters: &str) -> FunctionTool {
    FunctionTool {
        name: name.into(),
        description: format!("What {name} does."),
        parameters: parameters.into(),
        defer_loading: false,
        silence_timeout: None,
        max_duration: None,
    }
}

async fn start(tasks: &TaskTracker) -> (FunctionServer, mpsc::Receiver<Happening>) {
    FunctionServer::start(&[function("weather", WEATHER), function("any", "true")], tasks).await.unwrap()
}

fn text(text: &str) -> Vec<OutputPart> {
    vec![OutputPart::Text(text.into())]
}

/// What came back for one request.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    async fn read(mut tcp: TcpStream) -> Self {
        let mut bytes = Vec::new();
        // A server that ends resets what it has not read.
        _ = tcp.read_to_end(&mut bytes).await;
        let all = String::from_utf8(bytes).unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap_or((&all, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        Self { status, head: head.into(), body: body.into() }
    }

    /// The messages of a stream; each is a piece of its own.
    fn messages(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data:"));
        data.filter_map(|data| serde_json::from_str(data.trim()).ok()).collect()
    }

    #[track_caller]
    fn result(&self) -> Value {
        match &*self.messages() {
            [one] => one["result"].clone(),
            _ => panic!("{self:?}"),
        }
    }
}

/// A client that speaks plain HTTP, each request on a connection of its own.
#[derive(Clone)]
struct Client {
    to: SocketAddr,
    path: String,
    host: String,
    headers: String,
}

impl Client {
    fn stranger(server: &FunctionServer) -> Self {
        let (host, path) = server.address().url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let headers = String::new();
        Self { to: host.parse().unwrap(), path: format!("/{path}"), host: host.into(), headers }
    }

    fn knowing(server: &FunctionServer) -> Self {
        Self::stranger(server).with("authorization", &bearer(server))
    }

    async fn greeted(server: &FunctionServer) -> Self {
        let client = Self::knowing(server);
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"},
        });
        let reply = client.request(0, "initialize", params).await;
        assert_eq!(reply.result()["protocolVersion"], "2025-06-18");
        let session = reply.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
        let client = client.with("mcp-session-id", session).with("mcp-protocol-version", "2025-06-18");
        let reply = client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        assert_eq!(Reply::read(reply).await.status, 202);
        client
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    async fn send(&self, method: &str, length: usize, body: &str) -> TcpStream {
        let Self { to, path, host, headers } = self;
        let mut tcp = TcpStream::connect(to).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        tcp.write_all(head.as_bytes()).await.unwrap();
        tcp.write_all(body.as_bytes()).await.unwrap();
        tcp
    }

    async fn post(&self, message: &Value) -> TcpStream {
        let text = message.to_string();
        self.send("POST", text.len(), &text).await
    }

    async fn request(&self, id: u64, method: &str, params: Value) -> Reply {
        Reply::read(self.post(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await).await
    }

    /// Asks for a function, and does not wait for its answer.
    async fn call(&self, id: u64, name: &str, arguments: Value) -> TcpStream {
        let params = json!({"name": name, "arguments": arguments});
        self.post(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})).await
    }
}

fn bearer(server: &FunctionServer) -> String {
    format!("Bearer {}", server.address().bearer.expose_secret())
}

async fn asked(happened: &mut mpsc::Receiver<Happening>) -> (RequestId, String, String) {
    match happened.recv().await {
        Some(Happening::Asked { request, name, arguments }) => (request, name, arguments),
        other => panic!("{other:?}"),
    }
}

async fn written(happened: &mut mpsc::Receiver<Happening>, want: RequestId) {
    match happened.recv().await {
        Some(Happening::Written { request }) if request == want => {}
        other => panic!("{other:?}"),
    }
}

async fn given_up(happened: &mut mpsc::Receiver<Happening>, want: RequestId) -> Gone {
    match happened.recv().await {
        Some(Happening::GivenUp { request, how }) if request == want => how,
        other => panic!("{other:?}"),
    }
}

async fn listed(happened: &mut mpsc::Receiver<Happening>) {
    assert!(matches!(happened.recv().await, Some(Happening::Listed)));
}

#[tokio::test]
async fn functions_are_listed_and_answered() {
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    let listed = client.request(1, "tools/list", json!({})).await.result();
    assert!(matches!(happened.recv().await, Some(Happening::Listed)));
    let weather: Value = serde_json::from_str(WEATHER).unwrap();
    let want = json!([
        {"name": "weather", "description": "What weather does.", "inputSchema": weather},
        {"name": "any", "description": "What any does.", "inputSchema": {"type": "object"}},
    ]);
    assert_eq!(listed["tools"], want);

    let call = client.call(2, "weather", json!({"city": "Bern", "n": 9_007_199_254_740_993_i64})).await;
    let (request, name, arguments) = asked(&mut happened).await;
    assert_eq!((&*name, &*arguments), ("weather", r#"{"city":"Bern","n":9007199254740993}"#));
    let image = Image { media_type: MediaType::Png, data: bytes::Bytes::from_static(b"bytes") };
    let parts = vec![OutputPart::Text("fine".into()), OutputPart::Image(image), OutputPart::Text("still".into())];
    server.answer(request, Answer { success: true, parts });
    written(&mut happened, request).await;
    let want = json!({"content": [
        {"type": "text", "text": "fine"},
        {"type": "image", "data": "Ynl0ZXM=", "mimeType": "image/png"},
        {"type": "text", "text": "still"},
    ], "isError": false});
    assert_eq!(Reply::read(call).await.result(), want);

    let call =
        client.post(&json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "any"}})).await;
    let (request, name, arguments) = asked(&mut happened).await;
    assert_eq!((&*name, &*arguments), ("any", "{}"));
    server.answer(request, Answer { success: false, parts: text("boom") });
    written(&mut happened, request).await;
    // Twice is no answer.
    server.answer(request, Answer { success: true, parts: Vec::new() });
    let want = json!({"content": [{"type": "text", "text": "boom"}], "isError": true});
    assert_eq!(Reply::read(call).await.result(), want);
}

#[tokio::test]
async fn equal_calls_are_answered_each_in_its_turn() {
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    let mut calls = Vec::new();
    for id in 1..=3 {
        let call = client.call(id, "weather", json!({"city": "Bern"})).await;
        calls.push((call, asked(&mut happened).await.0));
    }
    for (call, request) in calls.into_iter().rev() {
        server.answer(request, Answer { success: true, parts: text(&format!("for {}", request.0)) });
        written(&mut happened, request).await;
        assert_eq!(Reply::read(call).await.result()["content"][0]["text"], format!("for {}", request.0));
    }
}

#[tokio::test]
async fn a_cancelled_request_is_given_up() {
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    let call = client.call(7, "any", json!({})).await;
    let (request, ..) = asked(&mut happened).await;
    let params = json!({"requestId": 7, "reason": "the limit"});
    let cancel = client.post(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})).await;
    assert_eq!(Reply::read(cancel).await.status, 202);
    assert_eq!(given_up(&mut happened, request).await, Gone::Told(Some("the limit".into())));
    server.answer(request, Answer { success: true, parts: text("late") });
    // The stream ends, and nothing came by it.
    assert!(Reply::read(call).await.messages().is_empty());
}

#[tokio::test]
async fn a_dropped_request_is_given_up_and_the_others_go_on() {
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    let stays = client.call(1, "any", json!({})).await;
    let (first, ..) = asked(&mut happened).await;
    let goes = client.call(2, "any", json!({})).await;
    let (second, ..) = asked(&mut happened).await;
    drop(goes);
    assert_eq!(given_up(&mut happened, second).await, Gone::Dropped);
    server.answer(second, Answer { success: true, parts: text("late") });
    server.answer(first, Answer { success: true, parts: text("in time") });
    written(&mut happened, first).await;
    assert_eq!(Reply::read(stays).await.result()["content"][0]["text"], "in time");
}

#[tokio::test]
async fn a_client_that_has_left_has_not_listed_the_functions() {
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    assert!(!server.is_listed());
    client.request(1, "tools/list", json!({})).await;
    listed(&mut happened).await;
    assert!(server.is_listed());
    // The stream that stands is dropped: it has left, and is back with a new one.
    let mut stands = client.send("GET", 0, "").await;
    let mut head = [0; 12];
    stands.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    listed(&mut happened).await;
    drop(stands);
    while server.is_listed() {
        tokio::task::yield_now().await;
    }
    let stands = client.send("GET", 0, "").await;
    listed(&mut happened).await;
    assert!(server.is_listed());
    // Another one has listed nothing, and says nothing for it.
    let other = Client::greeted(&server).await;
    assert_eq!(Reply::read(client.send("DELETE", 0, "").await).await.status, 202);
    assert!(!server.is_listed());
    other.request(1, "tools/list", json!({})).await;
    assert!(server.is_listed());
    drop(stands);
}

#[tokio::test]
async fn the_end_of_a_session_gives_its_requests_up() {
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let (client, other) = (Client::greeted(&server).await, Client::greeted(&server).await);
    let ended = client.call(1, "any", json!({})).await;
    let (first, ..) = asked(&mut happened).await;
    let stays = other.call(1, "any", json!({})).await;
    let (second, ..) = asked(&mut happened).await;
    assert_eq!(Reply::read(client.send("DELETE", 0, "").await).await.status, 202);
    given_up(&mut happened, first).await;
    assert!(Reply::read(ended).await.messages().is_empty());
    server.answer(second, Answer { success: true, parts: text("in time") });
    written(&mut happened, second).await;
    assert_eq!(Reply::read(stays).await.result()["content"][0]["text"], "in time");
}

#[tokio::test]
async fn strangers_are_told_nothing_and_not_read() {
    let tasks = TaskTracker::new();
    let (server, mut happened) = start(&tasks).await;
    let (other, _others) = start(&tasks).await;
    let stranger = Client::stranger(&server);
    let there = |client: Client, path: &str| Client { path: path.into(), ..client };
    let own = bearer(&server);
    for (client, status) in [
        (stranger.clone(), 401),
        (stranger.clone().with("authorization", ""), 401),
        (stranger.clone().with("authorization", "Bearer "), 401),
        (stranger.clone().with("authorization", &format!("Basic {}", &own["Bearer ".len()..])), 401),
        (stranger.clone().with("authorization", &own[..own.len() - 1]), 401),
        (stranger.clone().with("authorization", &format!("{own}0")), 401),
        (stranger.clone().with("authorization", &own).with("authorization", &own), 401),
        // Another Session's.
        (stranger.clone().with("authorization", &bearer(&other)), 401),
        (there(Client::knowing(&server), &Client::stranger(&other).path), 404),
        (there(Client::knowing(&server), "/"), 404),
        (there(Client::knowing(&server), &format!("{}/mcp", stranger.path)), 404),
        (there(stranger.clone(), "/"), 404),
    ] {
        for method in ["POST", "GET", "DELETE", "OPTIONS"] {
            // The body never comes, and nobody waits for it.
            let reply = Reply::read(client.send(method, 1000, "").await).await;
            assert_eq!((reply.status, &*reply.body), (status, ""), "{method} {reply:?}");
            assert!(!reply.head.contains("rmcp") && !reply.head.contains("runtime-bridge"), "{reply:?}");
        }
    }
    // Who knows both, but from another site.
    let elsewhere = Client { host: "evil.example".into(), ..Client::knowing(&server) };
    assert_eq!(elsewhere.request(1, "tools/list", json!({})).await.status, 403);
    // And none of a Session of theirs.
    let theirs = Client::greeted(&other).await;
    let mixed = Client { headers: theirs.headers.replace(&bearer(&other), &own), ..stranger };
    assert_eq!(mixed.request(1, "tools/list", json!({})).await.status, 404);
    drop(server);
    assert!(happened.recv().await.is_none());
}

#[tokio::test]
async fn what_is_not_declared_is_no_call() {
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    let result = Reply::read(client.call(1, "erase", json!({})).await).await.result();
    assert_eq!(result["isError"], true);
    assert!(result["content"][0]["text"].as_str().unwrap().contains("No function of this name"));
    let call = client.call(2, "any", json!({})).await;
    let (request, name, _) = asked(&mut happened).await;
    assert_eq!(name, "any");
    server.answer(request, Answer { success: true, parts: Vec::new() });
    assert_eq!(Reply::read(call).await.result(), json!({"content": [], "isError": false}));
}

#[tokio::test]
async fn a_version_without_sessions_is_not_spoken() {
    let (server, _happened) = start(&TaskTracker::new()).await;
    let client = Client::knowing(&server).with("mcp-protocol-version", "2026-07-28").with("mcp-method", "tools/list");
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let reply = client.request(1, "tools/list", json!({"_meta": meta})).await;
    assert!(reply.status == 400 && reply.body.contains("2025-11-25"), "{reply:?}");
}

#[tokio::test]
async fn long_arguments_and_answers_pass() {
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    let long = "x".repeat(8 << 20);
    let call = client.call(1, "any", json!({"long": long})).await;
    let (request, _, arguments) = asked(&mut happened).await;
    assert_eq!(arguments.len(), long.len() + r#"{"long":""}"#.len());
    let read = tokio::join!(Reply::read(call), async {
        server.answer(request, Answer { success: true, parts: text(&long) });
        written(&mut happened, request).await;
    });
    assert!(read.0.messages()[0]["result"]["content"][0]["text"] == *long);
}

#[tokio::test]
async fn a_slow_owner_makes_calls_wait_and_loses_none() {
    const CALLS: u64 = 2 * HAPPENINGS as u64 + 10;
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    let mut calls = Vec::new();
    for id in 1..=CALLS {
        calls.push(client.call(id, "any", json!({ "id": id })).await);
    }
    let (mut answered, mut done) = (0, 0);
    while done < CALLS {
        match happened.recv().await.unwrap() {
            Happening::Asked { request, arguments, .. } => {
                answered += 1;
                server.answer(request, Answer { success: true, parts: text(&arguments) });
            }
            Happening::Written { .. } => done += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answered, CALLS);
    for (call, id) in calls.into_iter().zip(1..) {
        assert_eq!(Reply::read(call).await.result()["content"][0]["text"], json!({"id": id}).to_string());
    }
}

#[tokio::test]
async fn what_is_open_is_closed_with_a_text() {
    let (server, mut happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    let (one, two) = (client.call(1, "any", json!({})).await, client.call(2, "any", json!({})).await);
    asked(&mut happened).await;
    asked(&mut happened).await;
    server.close_open("The Turn has ended.");
    for call in [one, two] {
        let want = json!({"content": [{"type": "text", "text": "The Turn has ended."}], "isError": true});
        assert_eq!(Reply::read(call).await.result(), want);
    }
    // The server goes on.
    let call = client.call(3, "any", json!({})).await;
    loop {
        if let Some(Happening::Asked { request, .. }) = happened.recv().await {
            server.answer(request, Answer { success: true, parts: text("next") });
            break;
        }
    }
    assert_eq!(Reply::read(call).await.result()["content"][0]["text"], "next");
}

#[tokio::test]
async fn everything_ends_with_the_server() {
    let tasks = TaskTracker::new();
    let (server, mut happened) = start(&tasks).await;
    let client = Client::greeted(&server).await;
    let stands = client.send("GET", 0, "").await;
    let call = client.call(1, "any", json!({})).await;
    let silent = TcpStream::connect(client.to).await.unwrap();
    asked(&mut happened).await;
    drop(server);
    for tcp in [stands, call, silent] {
        assert!(Reply::read(tcp).await.messages().is_empty());
    }
    tasks.close();
    tasks.wait().await;
    assert!(happened.recv().await.is_none());
    assert!(TcpStream::connect(client.to).await.is_err());
}

#[tokio::test]
async fn an_owner_that_went_leaves_calls_unanswered_and_no_task() {
    let tasks = TaskTracker::new();
    let (server, happened) = start(&tasks).await;
    let client = Client::greeted(&server).await;
    drop(happened);
    let reply = Reply::read(client.call(1, "any", json!({})).await).await;
    assert!(reply.messages()[0]["error"]["message"].is_string(), "{reply:?}");
    drop(server);
    tasks.close();
    tasks.wait().await;
}

#[tokio::test]
async fn a_schema_is_that_of_an_object() {
    let listed = async |parameters: &str| {
        let (server, _happened) = FunctionServer::start(&[function("f", parameters)], &TaskTracker::new()).await?;
        let client = Client::greeted(&server).await;
        let listed = client.request(1, "tools/list", json!({})).await.result();
        io::Result::Ok(listed["tools"][0]["inputSchema"].clone())
    };
    for (given, want) in [
        ("true", json!({"type": "object"})),
        ("false", json!({"type": "object", "not": {}})),
        ("{}", json!({"type": "object"})),
        (r#"{"properties":{"a":true}}"#, json!({"type": "object", "properties": {"a": true}})),
        (r#"{"type":["null","object"]}"#, json!({"type": "object"})),
    ] {
        assert_eq!(listed(given).await.unwrap(), want, "{given}");
    }
    for given in [r#"{"type":"string"}"#, r#"{"type":["null"]}"#, r#"{"type":1}"#, "1", "{"] {
        let error = listed(given).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{given}");
    }
}

#[tokio::test]
async fn addresses_are_never_alike_and_a_bearer_is_not_shown() {
    let tasks = TaskTracker::new();
    let (one, two) = (start(&tasks).await.0, start(&tasks).await.0);
    assert_ne!(one.address().url, two.address().url);
    assert_ne!(bearer(&one), bearer(&two));
    assert!(!format!("{one:?}").contains(one.address().bearer.expose_secret()));
}

#[tokio::test]
async fn sessions_stay_few_and_one_with_a_call_goes_on() {
    let tasks = TaskTracker::new();
    let (server, mut happened) = start(&tasks).await;
    let (busy, idle) = (Client::greeted(&server).await, Client::greeted(&server).await);
    let call = busy.call(1, "any", json!({})).await;
    let (request, ..) = asked(&mut happened).await;
    for _ in 0..sessions::SESSIONS {
        Client::greeted(&server).await;
    }
    assert_eq!(idle.request(1, "tools/list", json!({})).await.status, 404);
    server.answer(request, Answer { success: true, parts: text("in time") });
    written(&mut happened, request).await;
    assert_eq!(Reply::read(call).await.result()["content"][0]["text"], "in time");
    assert_eq!(busy.request(2, "ping", json!({})).await.result(), json!({}));
}

#[tokio::test]
async fn a_head_and_a_body_have_limits() {
    let (server, _happened) = start(&TaskTracker::new()).await;
    let client = Client::greeted(&server).await;
    // A head that comes with one read may be a little longer.
    let long = client.clone().with("x-long", &"x".repeat(4 * loopback::HEAD_BYTES));
    assert_eq!(Reply::read(long.send("POST", 0, "").await).await.status, 431);
    assert_eq!(Reply::read(client.send("POST", door::BODY_BYTES + 1, "").await).await.status, 413);
}

#[tokio::test]
async fn connections_that_bring_no_request_keep_no_room() {
    let (server, _happened) = start(&TaskTracker::new()).await;
    let to = Client::stranger(&server).to;
    let mut silent = Vec::new();
    for _ in 0..door::CONNECTIONS {
        silent.push(TcpStream::connect(to).await.unwrap());
    }
    // It waits until the others are ended, and needs no more than that.
    Client::greeted(&server).await;
    for tcp in silent {
        assert_eq!(Reply::read(tcp).await.head, "");
    }
}
