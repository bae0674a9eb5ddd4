//! The gateway between a client and a provider of bare sockets, which show each byte and each end.

use adapters::{harness::ModelProtocol, native::loopback};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Bench {
    gateway: Gateway,
    provider: TcpListener,
}

impl Bench {
    async fn start() -> Self {
        Self::limited(StreamLimits::default()).await
    }

    async fn limited(limits: StreamLimits) -> Self {
        let provider = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let allowed = format!("http://{}", provider.local_addr().unwrap()).parse().unwrap();
        let connect = ConnectLimits { address: PATIENCE, whole: PATIENCE };
        let guards = Guards::new(Guard::new([allowed]), false);
        Self { gateway: Gateway::open(guards, connect, limits, 64 << 20).await.unwrap(), provider }
    }

    fn lease(&self, protocol: ModelProtocol, key: Option<&str>) -> Lease {
        let base_url = format!("http://{}/base", self.provider.local_addr().unwrap());
        self.gateway
            .lease(&ModelProvider { protocol, base_url, token_limits: None }, key.map(SecretString::from), false)
            .unwrap()
    }

    fn strict_lease(&self) -> Lease {
        let base_url = format!("http://{}/base", self.provider.local_addr().unwrap());
        self.gateway
            .lease(&ModelProvider { protocol: ModelProtocol::Messages, base_url, token_limits: None }, None, true)
            .unwrap()
    }

    async fn ask(&self, lease: &Lease, head: &str, body: &str) -> Talk {
        let path = lease.base_url().strip_prefix(&format!("http://{}", self.gateway.address())).unwrap().to_owned();
        self.ask_path(&path, head, body).await
    }

    async fn ask_path(&self, path: &str, head: &str, body: &str) -> Talk {
        let mut talk = Talk(TcpStream::connect(self.gateway.address()).await.unwrap());
        let length = body.len();
        talk.say(&format!("POST {path}{head}\r\ncontent-length: {length}\r\n\r\n{body}")).await;
        talk
    }

    async fn asked(&self) -> Talk {
        Talk(time::timeout(PATIENCE, self.provider.accept()).await.unwrap().unwrap().0)
    }
}

/// One end of a connection.
struct Talk(TcpStream);

impl Talk {
    async fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until this stands at the end.
    async fn hear(&mut self, end: &str) -> String {
        let mut heard = Vec::new();
        while !heard.ends_with(end.as_bytes()) {
            let byte = time::timeout(PATIENCE, self.0.read_u8()).await.unwrap();
            heard.push(byte.unwrap_or_else(|error| panic!("{error} behind {:?}", String::from_utf8_lossy(&heard))));
        }
        String::from_utf8(heard).unwrap()
    }

    /// Reads to the end of the connection.
    async fn rest(mut self) -> String {
        let mut heard = Vec::new();
        // A reset is an end as well.
        drop(time::timeout(PATIENCE, self.0.read_to_end(&mut heard)).await.unwrap());
        String::from_utf8(heard).unwrap()
    }
}

#[tokio::test]
async fn a_request_has_the_key_and_the_answer_comes_piece_by_piece() {
    let bench = Bench::start().await;
    for (protocol, key, want) in [
        (ModelProtocol::Responses, Some("real"), "authorization: Bearer real\r\n"),
        (ModelProtocol::Messages, Some("real"), "x-api-key: real\r\n"),
        (ModelProtocol::Messages, None, ""),
    ] {
        let lease = bench.lease(protocol, key);
        let head = "/v1/messages?beta=true HTTP/1.1\r\nhost: here\r\nauthorization: Bearer placeholder\r\nx-api-key: placeholder\r\n\
                    connection: keep-alive, x-own\r\nx-own: 1\r\nx-other: 2";
        let mut client = bench.ask(&lease, head, "question").await;
        let mut provider = bench.asked().await;
        let asked = provider.hear("question").await;
        assert!(asked.starts_with("POST /base/v1/messages?beta=true HTTP/1.1\r\n"), "{asked}");
        let host = format!("host: {}\r\n", bench.provider.local_addr().unwrap());
        for part in [want, &host, "x-other: 2\r\n", "content-length: 8\r\n"] {
            assert!(asked.contains(part), "{part:?} is not in {asked}");
        }
        for part in ["placeholder", "x-own", "here"] {
            assert!(!asked.contains(part), "{part:?} is in {asked}");
        }
        assert_eq!(asked.contains("authorization") || asked.contains("x-api-key"), key.is_some());

        provider
            .say("HTTP/1.1 200 Fine\r\ntransfer-encoding: chunked\r\nx-id: 7\r\nkeep-alive: timeout=1\r\n\r\n")
            .await;
        provider.say("5\r\ndata1\r\n").await;
        let first = client.hear("5\r\ndata1\r\n").await;
        assert!(first.starts_with("HTTP/1.1 200") && first.contains("x-id: 7\r\n"), "{first}");
        assert!(!first.contains("timeout=1"), "{first}");
        // Nothing of the second is on its way before the first was there.
        provider.say("5\r\ndata2\r\n0\r\n\r\n").await;
        assert_eq!(client.hear("0\r\n\r\n").await, "5\r\ndata2\r\n0\r\n\r\n");
    }
    bench.gateway.close().await;
}

#[tokio::test]
async fn who_breaks_off_is_seen_on_the_other_side() {
    let bench = Bench::start().await;
    let lease = bench.lease(ModelProtocol::Responses, Some("real"));
    // The provider, in the middle of its answer.
    let client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h", "").await;
    let mut provider = bench.asked().await;
    provider.hear("\r\n\r\n").await;
    provider.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
    drop(provider);
    let heard = client.rest().await;
    assert!(heard.ends_with("3\r\nabc\r\n"), "{heard}");
    // The provider, before it has answered.
    let client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h", "").await;
    drop(bench.asked().await);
    assert_eq!(client.rest().await, "");
    // The client, before there is an answer, and in the middle of it.
    let client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h", "").await;
    let mut provider = bench.asked().await;
    provider.hear("\r\n\r\n").await;
    drop(client);
    assert_eq!(provider.rest().await, "");
    let mut client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h", "").await;
    let mut provider = bench.asked().await;
    provider.hear("\r\n\r\n").await;
    provider.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
    client.hear("abc\r\n").await;
    drop(client);
    assert_eq!(provider.rest().await, "");
}

/// A provider that ends a connection between two requests is asked over another one; what it may have read of is never sent again.
#[tokio::test]
async fn a_request_is_never_sent_twice() {
    let bench = Bench::start().await;
    let lease = bench.lease(ModelProtocol::Responses, Some("real"));
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let mut client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h", "first").await;
    let mut provider = bench.asked().await;
    provider.hear("first").await;
    provider.say(answer).await;
    client.hear("\r\n\r\nok").await;
    // It is used again, and ends when a part of the second request is there.
    let mut client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h", "second").await;
    provider.hear("/x HTTP/1.1\r\n").await;
    drop(provider);
    let mut byte = [0];
    let end = time::timeout(PATIENCE, client.0.read(&mut byte)).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "the client was told something");
    // The next one that comes to the provider is the third.
    let client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h\r\nconnection: close", "third").await;
    let mut provider = bench.asked().await;
    let asked = provider.hear("\r\n\r\nthird").await;
    assert!(!asked.contains("second"), "{asked}");
    provider.say(answer).await;
    assert!(client.rest().await.ends_with("ok"));
    // A connection that ended while nothing was under way is replaced, and nobody notices. The gateway has seen the end once it ends its own side.
    provider.0.shutdown().await.unwrap();
    assert_eq!(provider.rest().await, "");
    let client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h\r\nconnection: close", "fourth").await;
    let mut provider = bench.asked().await;
    provider.hear("\r\n\r\nfourth").await;
    provider.say(answer).await;
    assert!(client.rest().await.ends_with("ok"));
}

#[tokio::test]
async fn a_route_lives_as_long_as_its_lease_and_nobody_guesses_it() {
    let bench = Bench::start().await;
    let lease = bench.lease(ModelProtocol::Responses, Some("real"));
    let path = format!("/{}", lease.name.as_str());
    lease.swap(Some("fresh".into()));
    let client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h\r\nconnection: close", "").await;
    let mut provider = bench.asked().await;
    let asked = provider.hear("\r\n\r\n").await;
    assert!(asked.contains("authorization: Bearer fresh\r\n"), "{asked}");
    provider.say("HTTP/1.1 204 Fine\r\n\r\n").await;
    assert!(client.rest().await.starts_with("HTTP/1.1 204"));
    let other = bench.lease(ModelProtocol::Responses, None);
    drop(lease);
    for unknown in [&*path, "", "/", "/..", &format!("/{}/../x", other.name.as_str())] {
        let client = bench.ask_path(unknown, "/x HTTP/1.1\r\nhost: h\r\nconnection: close", "").await;
        let told = client.rest().await;
        assert!(told.starts_with("HTTP/1.1 404") && told.ends_with("\r\n\r\n"), "{unknown}: {told}");
    }
}

#[tokio::test]
async fn what_is_not_passed_on_says_why() {
    let bench = Bench::start().await;
    let lease = bench.lease(ModelProtocol::Responses, Some("real"));
    let client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h\r\nconnection: close", "").await;
    let mut provider = bench.asked().await;
    provider.hear("\r\n\r\n").await;
    provider.say("HTTP/1.1 307 Elsewhere\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n").await;
    let told = client.rest().await;
    assert!(told.starts_with("HTTP/1.1 502") && told.contains("redirect (307)"), "{told}");
    assert!(!told.contains("elsewhere"), "{told}");
    assert!(lease.trouble().unwrap().contains("redirect"));

    // An address that the operator did not name. A name for it is resolved, and judged by what it stands for.
    for base_url in ["http://127.0.0.1:9/v1", "http://localhost:9/v1"] {
        let provider =
            ModelProvider { protocol: ModelProtocol::Messages, base_url: base_url.into(), token_limits: None };
        let lease = bench.gateway.lease(&provider, Some("real".into()), false).unwrap();
        let client = bench.ask(&lease, "/x HTTP/1.1\r\nhost: h\r\nconnection: close", "").await;
        let told = client.rest().await;
        assert!(told.starts_with("HTTP/1.1 400") && told.contains("a loopback address"), "{told}");
        assert!(lease.trouble().unwrap().contains("outbound guard"));
    }
}

const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

#[tokio::test]
async fn an_answer_that_is_over_is_not_waited_for() {
    let bench = Bench::start().await;
    let lease = bench.lease(ModelProtocol::Messages, None);
    let mut client = bench.ask(&lease, "/v1/messages HTTP/1.1\r\nhost: h\r\naccept-encoding: gzip", "").await;
    let mut provider = bench.asked().await;
    let asked = provider.hear("\r\n\r\n").await;
    assert!(!asked.contains("encoding"), "{asked}");
    let reason = "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n";
    let stop = "data: {\"type\":\"message_stop\"}\n\n";
    provider.say(&format!("{STREAM}{}{}", chunk(reason), chunk(stop))).await;
    // The provider holds the connection and says nothing more.
    let heard = client.hear("0\r\n\r\n").await;
    assert!(heard.contains(reason) && heard.contains(stop), "{heard}");
    assert!(lease.take_breach().is_none());
    assert_eq!(provider.rest().await, "");
}

#[tokio::test]
async fn an_answer_is_cut_off_where_it_breaks_a_limit() {
    let limits = StreamLimits { first_byte: Duration::from_millis(300), events: 2, bytes: 200, ..Default::default() };
    let bench = Bench::limited(limits).await;
    let lease = bench.lease(ModelProtocol::Responses, None);
    let ping = chunk("data: {}\n\n");
    let whole = |kind: &str, text: &str| {
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 999\r\n\r\n{text}")
    };
    for (path, answer, want) in [
        ("/responses", String::new(), Breach::FirstByte(limits.first_byte)),
        ("/responses", STREAM.into(), Breach::FirstByte(limits.first_byte)),
        ("/responses", format!("{STREAM}{ping}{ping}"), Breach::Events(2)),
        ("/models", whole("application/json", "half"), Breach::Bytes(200)),
    ] {
        let client = bench.ask(&lease, &format!("{path} HTTP/1.1\r\nhost: h"), "").await;
        let mut provider = bench.asked().await;
        provider.hear("\r\n\r\n").await;
        provider.say(&answer).await;
        if matches!(want, Breach::Events(_)) {
            provider.say(&ping).await;
        }
        if matches!(want, Breach::Bytes(_)) {
            provider.say(&"x".repeat(300)).await;
        }
        time::timeout(PATIENCE, lease.breached()).await.unwrap();
        assert_eq!(lease.take_breach(), Some(want));
        let told = client.rest().await;
        assert!(!told.contains("xx") && !told.ends_with("0\r\n\r\n"), "{told}");
    }
    // Nothing is counted that is no stream of answers, and nothing passes that is packed.
    let client = bench.ask(&lease, "/models HTTP/1.1\r\nhost: h\r\nconnection: close", "").await;
    let mut provider = bench.asked().await;
    provider.hear("\r\n\r\n").await;
    provider.say(&format!("{STREAM}{ping}{ping}{ping}{ping}0\r\n\r\n")).await;
    assert!(client.rest().await.ends_with("0\r\n\r\n"));
    // The connection to the provider is used again.
    let client = bench.ask(&lease, "/responses HTTP/1.1\r\nhost: h\r\nconnection: close", "").await;
    provider.hear("\r\n\r\n").await;
    provider.say("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n").await;
    let told = client.rest().await;
    assert!(told.starts_with("HTTP/1.1 502") && told.contains("packs its answer"), "{told}");
    assert_eq!(lease.take_breach(), None);
}

#[tokio::test]
async fn a_head_has_a_limit() {
    let bench = Bench::start().await;
    let lease = bench.lease(ModelProtocol::Responses, Some("real"));
    // A head that comes with one read may be a little longer.
    let long =
        format!("/x HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-long: {}", "x".repeat(4 * loopback::HEAD_BYTES));
    let told = bench.ask(&lease, &long, "").await.rest().await;
    assert!(told.starts_with("HTTP/1.1 431"), "{told}");
}

/// A listener with room for so many connections.
async fn listening(room: usize, tasks: &TaskTracker, stop: &CancellationToken) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listening = listen(Loopback::new(listener, room), Arc::default(), tasks.clone(), stop.clone());
    drop(tasks::spawn(tasks, tasks::Kind::Gateway, listening));
    address
}

async fn connected(address: SocketAddr) -> Talk {
    Talk(TcpStream::connect(address).await.unwrap())
}

#[tokio::test]
async fn a_connection_waits_where_there_is_no_room() {
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let (address, other) = (listening(1, &tasks, &stop).await, listening(1, &tasks, &stop).await);
    // It keeps its room, and so the second is not looked at before it ends.
    let mut first = connected(address).await;
    first.say("GET /x HTTP/1.1\r\n").await;
    let mut second = connected(address).await;
    second.say("GET /x HTTP/1.1\r\nhost: h\r\n\r\n").await;
    let mut elsewhere = connected(other).await;
    elsewhere.say("GET /x HTTP/1.1\r\nhost: h\r\n\r\n").await;
    let answer = elsewhere.rest().await;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("connection: close\r\n"), "{answer}");
    let mut byte = [0];
    assert_eq!(second.0.try_read(&mut byte).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(first);
    assert!(second.hear("\r\n\r\n").await.starts_with("HTTP/1.1 404"));
    stop.cancel();
    tasks.close();
    tasks.wait().await;
}

#[tokio::test]
async fn a_connection_that_brings_no_request_keeps_no_room() {
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let address = listening(2, &tasks, &stop).await;
    let mut slow = connected(address).await;
    slow.say("GET /x HTTP/1.1\r\n").await;
    let silent = connected(address).await;
    // They end without an answer, and it is the other side that ends them.
    assert_eq!((slow.rest().await, silent.rest().await), (String::new(), String::new()));
    stop.cancel();
    tasks.close();
    tasks.wait().await;
}

#[tokio::test]
async fn a_route_has_so_many_open_requests_and_one_that_ends_makes_room() {
    let bench = Bench::start().await;
    let lease = bench.lease(ModelProtocol::Responses, None);
    let other = bench.lease(ModelProtocol::Responses, None);
    let head = "/x HTTP/1.1\r\nhost: h";
    let mut open = Vec::new();
    for _ in 0..routes::OPEN {
        let client = bench.ask(&lease, head, "q").await;
        let mut provider = bench.asked().await;
        provider.hear("q").await;
        open.push((client, provider));
    }
    let mut client = bench.ask(&lease, head, "q").await;
    let answer = client.hear("\"type\":\"error\"}").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("at most 64 requests"), "{answer}");
    // Another route has room of its own.
    let _client = bench.ask(&other, head, "q").await;
    bench.asked().await.hear("q").await;
    let (mut client, mut provider) = open.pop().unwrap();
    // Else the next request would come over this connection.
    provider.say("HTTP/1.1 200 Fine\r\nconnection: close\r\ncontent-length: 1\r\n\r\na").await;
    client.hear("a").await;
    drop(provider);
    // Its room is free a moment after its last byte.
    loop {
        let next = bench.ask(&lease, head, "q").await;
        let mut byte = [0];
        tokio::select! {
            mut provider = bench.asked() => break drop(provider.hear("q").await),
            peeked = next.0.peek(&mut byte) => drop(peeked.unwrap()),
        }
    }
}

#[tokio::test]
async fn calls_are_held_back_until_they_may_run_and_told_before_they_go_on() {
    let bench = Bench::start().await;
    let event = |data: &str| format!("data: {data}\n\n");
    let before = event(r#"{"type":"message_start","message":{"id":"m"}}"#);
    let held = [
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"}}"#,
    ];
    let held: String = held.map(event).concat();
    let end = event(r#"{"type":"message_stop"}"#);
    let length = before.len() + held.len() + end.len();
    let head = format!("HTTP/1.1 200 Fine\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n");

    let lease = bench.strict_lease();
    let mut client = bench.ask(&lease, "/v1/messages HTTP/1.1\r\nhost: here", "q").await;
    let mut provider = bench.asked().await;
    provider.hear("q").await;
    provider.say(&format!("{head}{before}{held}")).await;
    let heard = client.hear(&format!("{before}\r\n")).await;
    assert!(!heard.contains("content-length"), "{heard}");
    assert_eq!(lease.take_batches().count(), 0);
    provider.say(&end).await;
    let heard = client.hear("0\r\n\r\n").await;
    assert!(heard.contains(&format!("{held}{end}")), "{heard}");
    let batches: Vec<_> = lease.take_batches().collect();
    let calls = vec![Called { call_id: "a".into(), name: "f".into() }];
    assert_eq!(batches, [Batch { id: Some("m".into()), calls }]);

    // What is no stream is held back as a whole, and cut off where its calls are not to be run.
    for (reason, passes) in [("tool_use", true), ("max_tokens", false)] {
        let body =
            format!(r#"{{"id":"m","content":[{{"type":"tool_use","id":"a","name":"f"}}],"stop_reason":"{reason}"}}"#);
        let lease = bench.strict_lease();
        let mut client = bench.ask(&lease, "/v1/messages HTTP/1.1\r\nhost: here", "q").await;
        let mut provider = bench.asked().await;
        provider.hear("q").await;
        let length = body.len();
        provider.say(&format!("HTTP/1.1 200 Fine\r\ncontent-length: {length}\r\n\r\n{body}")).await;
        if passes {
            assert!(client.hear("0\r\n\r\n").await.contains(&body));
            assert_eq!((lease.take_batches().count(), lease.take_breach()), (1, None));
        } else {
            assert!(!client.rest().await.contains(&body));
            assert!(matches!(lease.take_breach(), Some(Breach::Calling(_))));
        }
    }
}
