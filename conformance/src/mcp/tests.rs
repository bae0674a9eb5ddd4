//! What the servers answer to a client that knows nothing but the texts of the protocol.

use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{Fault, Gate, Peer, Refusing, Script, Sdk, Server};
use crate::rig::Place;

/// An answer over HTTP.
struct Answered {
    status: u16,
    session: Option<String>,
    redirect: Option<String>,
    text: String,
}

impl Answered {
    /// The message: the body, or the last event of it.
    fn message(&self) -> Value {
        let data = self.text.lines().rev().find_map(|line| line.strip_prefix("data: "));
        serde_json::from_str(data.unwrap_or(&self.text)).unwrap_or_default()
    }
}

/// Posts a message with these headers, and reads the answer to its end.
async fn post(server: &Server, headers: &[(&str, &str)], message: &Value) -> anyhow::Result<Answered> {
    post_to(server.address, headers, message).await
}

async fn post_to(address: SocketAddr, headers: &[(&str, &str)], message: &Value) -> anyhow::Result<Answered> {
    let mut stream = TcpStream::connect(address).await?;
    let body = message.to_string();
    let mut head = format!("POST /mcp HTTP/1.0\r\nhost: {address}\r\ncontent-length: {}\r\n", body.len());
    head += "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer)?;
    let (head, text) = answer.split_once("\r\n\r\n").context("no answer")?;
    let header = |name: &str| {
        let found = head.lines().find_map(|line| line.split_once(": ").filter(|(key, _)| *key == name));
        found.map(|(_, value)| value.to_owned())
    };
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok(Answered { status, session: header("mcp-session-id"), redirect: header("location"), text: text.to_owned() })
}

fn initialize() -> Value {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

fn request(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

fn call(tool: &str, arguments: &Value) -> Value {
    request("tools/call", &json!({"name": tool, "arguments": arguments}))
}

/// Greets a server, and gives the headers that further requests carry.
async fn greet(server: &Server) -> anyhow::Result<Vec<(&'static str, String)>> {
    let greeted = post(server, &[], &initialize()).await?;
    assert_eq!(greeted.message()["result"]["protocolVersion"], "2025-11-25", "{}", greeted.text);
    let mut headers = vec![("mcp-protocol-version", "2025-11-25".to_owned())];
    headers.extend(greeted.session.map(|session| ("mcp-session-id", session)));
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(post(server, &borrowed(&headers), &initialized).await?.status, 202);
    Ok(headers)
}

fn borrowed<'a>(headers: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    headers.iter().map(|(name, value)| (*name, &**value)).collect()
}

async fn asked(server: &Server, message: &Value) -> anyhow::Result<Value> {
    let headers = greet(server).await?;
    Ok(post(server, &borrowed(&headers), message).await?.message())
}

fn names(listed: &Value) -> Vec<String> {
    let tools = listed["result"]["tools"].as_array().into_iter().flatten();
    tools.filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn it_answers_in_sessions_and_in_plain_json() -> anyhow::Result<()> {
    for json in [false, true] {
        let server = Server::start(Script { json, ..Script::default() }).await?;
        let answer = asked(&server, &call("echo", &json!({"text": "hello"}))).await?;
        assert_eq!(answer["result"]["content"][0]["text"], "hello", "{answer}");
        let structured = asked(&server, &call("structured", &json!({}))).await?;
        assert_eq!(structured["result"]["structuredContent"]["city"], "Bern", "{structured}");
        let failing = asked(&server, &call("failing", &json!({}))).await?;
        assert_eq!(failing["result"]["isError"], true, "{failing}");
        let picture = asked(&server, &call("picture", &json!({}))).await?;
        assert_eq!(picture["result"]["content"][0]["mimeType"], "image/png", "{picture}");
        let large = asked(&server, &call("large", &json!({"bytes": 10 << 20}))).await?;
        assert_eq!(large["result"]["content"][0]["text"].as_str().map(str::len), Some(10 << 20));
        assert_eq!(asked(&server, &call("broken", &json!({}))).await?["error"]["code"], -32603);
        assert_eq!(asked(&server, &call("nothing", &json!({}))).await?["error"]["code"], -32602);
        assert_eq!(server.calls(), ["echo", "structured", "failing", "picture", "large", "broken", "nothing"]);
        server.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn it_takes_its_token_only_and_tells_the_headers() -> anyhow::Result<()> {
    let server = Server::start(Script { bearer: Some("t-1".into()), json: true, ..Script::default() }).await?;
    assert_eq!(post(&server, &[], &initialize()).await?.status, 401);
    assert_eq!(post(&server, &[("authorization", "Bearer t-2")], &initialize()).await?.status, 401);
    let headers = [("authorization", "Bearer t-1"), ("mcp-protocol-version", "2025-11-25"), ("x-team", "a")];
    assert_eq!(post(&server, &headers, &initialize()).await?.status, 200);
    let told = post(&server, &headers, &call("headers", &json!({}))).await?.message();
    let told: Value = serde_json::from_str(told["result"]["content"][0]["text"].as_str().context("no text")?)?;
    assert_eq!(told["x-team"], "a");
    let requests = server.wait_for(|requests| requests.len() == 4).await?;
    assert_eq!(requests[0].asks().as_deref(), Some("initialize"));
    assert_eq!(requests[3].bearer(), Some("t-1"));
    Ok(())
}

#[tokio::test]
async fn its_list_has_pages_and_thousands_of_tools_and_grows() -> anyhow::Result<()> {
    let more: Vec<_> = (0..3000).map(|n| format!("tool-{n}")).collect();
    let server = Server::start(Script { more, page: Some(2000), ..Script::default() }).await?;
    let first = asked(&server, &request("tools/list", &json!({}))).await?;
    assert_eq!(names(&first).len(), 2000);
    let cursor = json!({"cursor": first["result"]["nextCursor"]});
    let second = asked(&server, &request("tools/list", &cursor)).await?;
    assert_eq!(names(&second).last().map(String::as_str), Some("tool-2999"));
    assert_eq!(second["result"]["nextCursor"], Value::Null);
    let grown = asked(&server, &call("grow", &json!({}))).await?;
    assert_eq!(grown["result"]["content"][0]["text"], "grown", "{grown}");
    let second = asked(&server, &request("tools/list", &cursor)).await?;
    assert_eq!(names(&second).last().map(String::as_str), Some("late"));
    Ok(())
}

#[tokio::test]
async fn it_goes_wrong_as_it_was_told() -> anyhow::Result<()> {
    let script = Script::default().at("initialize", Fault::Status(503));
    let server = Server::start(script).await?;
    assert_eq!(post(&server, &[], &initialize()).await?.status, 503);
    server.fail(None, Fault::Redirected("http://127.0.0.1:1/".into()));
    assert_eq!(post(&server, &[], &initialize()).await?.redirect.as_deref(), Some("http://127.0.0.1:1/"));
    server.fail(Some("initialize"), Fault::Dropped);
    assert!(post(&server, &[], &initialize()).await.is_err());
    server.heal();
    server.fail(Some("tools/call"), Fault::BrokenOff);
    let broken = asked(&server, &call("echo", &json!({}))).await?;
    assert_eq!(broken, Value::Null);
    server.heal();
    server.fail(Some("initialize"), Fault::Held("go"));
    let waiting = async {
        server.wait_for(|requests| requests.iter().filter(|one| one.asks().is_some()).count() > 6).await?;
        server.open_gate("go");
        anyhow::Ok(())
    };
    let (greeted, waited) = tokio::join!(greet(&server), waiting);
    waited?;
    greeted?;
    let refusing = Refusing::start()?;
    assert!(TcpStream::connect(refusing.address).await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_call_waits_for_the_test() -> anyhow::Result<()> {
    let server = Server::start(Script::default()).await?;
    let released = async {
        server.wait_for_mark("slow").await?;
        server.open_gate("slow");
        anyhow::Ok(())
    };
    let slow = call("slow", &json!({}));
    let (answer, released) = tokio::join!(asked(&server, &slow), released);
    released?;
    assert_eq!(answer?["result"]["content"][0]["text"], "released");
    Ok(())
}

/// A server over standard input and output.
struct Piped {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Piped {
    async fn start(place: &Place, sdk: Sdk, more: &[&str]) -> anyhow::Result<Self> {
        let (program, arguments) = sdk.stdio()?;
        let mut command = Command::new(program);
        command.args(arguments).args(more).env_clear().env("COLOUR", "red").current_dir(place.workspace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("start the server")?;
        let stdin = child.stdin.take().context("no input")?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let mut piped = Self { child, stdin, lines };
        let greeted = piped.ask(&initialize()).await?;
        assert_eq!(greeted["result"]["protocolVersion"], "2025-11-25", "{greeted}");
        piped.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
        Ok(piped)
    }

    async fn say(&mut self, message: &Value) -> anyhow::Result<()> {
        Ok(self.stdin.write_all(format!("{message}\n").as_bytes()).await?)
    }

    async fn ask(&mut self, message: &Value) -> anyhow::Result<Value> {
        self.say(message).await?;
        Ok(serde_json::from_str(&self.lines.next_line().await?.context("it ended")?)?)
    }
}

#[tokio::test]
async fn a_process_tells_how_it_was_started_and_waits_for_the_test() -> anyhow::Result<()> {
    let place = Place::make()?;
    let gate_path = place.socket().with_file_name("gate"); // A short path, as a socket needs.
    let gate = Gate::listen(&gate_path)?;
    let (gate_text, starts) = (gate_path.display().to_string(), place.workspace().join("starts"));
    let arguments =
        ["--gate", &gate_text, "--starts", &starts.display().to_string(), "--more", "a-b", "--", "one", "two"];
    let mut piped = Piped::start(&place, Sdk::Rust, &arguments).await?;
    let told = piped.ask(&call("environment", &json!({}))).await?;
    let told: Value = serde_json::from_str(told["result"]["content"][0]["text"].as_str().context("no text")?)?;
    assert_eq!(told["env"], json!({"COLOUR": "red"}));
    assert_eq!(told["cwd"], json!(place.workspace()));
    assert_eq!(told["argv"].as_array().context("no arguments")?[8..], [json!("--"), json!("one"), json!("two")]);
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&starts)?)?;
    assert_eq!(line, told);
    assert_eq!(names(&piped.ask(&request("tools/list", &json!({}))).await?).last().map(String::as_str), Some("a-b"));
    piped.say(&call("slow", &json!({}))).await?;
    drop(gate.called().await?);
    let line = piped.lines.next_line().await?.context("it ended")?;
    assert!(line.contains("released"), "{line}");
    assert!(piped.ask(&call("die", &json!({}))).await.is_err());
    assert_eq!(piped.child.wait().await?.code(), Some(1));
    Ok(())
}

#[tokio::test]
async fn the_sdk_for_javascript_serves_both_ways() -> anyhow::Result<()> {
    let echo = call("echo", &json!({"text": "hello"}));
    let place = Place::make()?;
    let mut piped = Piped::start(&place, Sdk::Npm, &[]).await?;
    assert_eq!(piped.ask(&echo).await?["result"]["content"][0]["text"], "hello");
    assert_eq!(
        piped.ask(&call("structured", &json!({}))).await?["result"]["structuredContent"],
        json!({"city": "Bern", "degrees": -3.5})
    );
    drop(piped.stdin);
    assert!(piped.child.wait().await?.success());
    let peer = Peer::start(Sdk::Npm).await?;
    let address = peer.url().trim_start_matches("http://").trim_end_matches("/mcp").parse()?;
    let answer = post_to(address, &[("mcp-protocol-version", "2025-11-25")], &echo).await?.message();
    assert_eq!(answer["result"]["content"][0]["text"], "hello", "{answer}");
    Ok(())
}
