//! MCP servers over HTTP and over standard input and output.

use conformance::mcode::Faults;
use conformance::mcp::{Fault, Script, Server};
use serde_json::{Value, json};

use super::client::{Place, Running};

fn http(name: &str, server: &Server) -> Value {
    json!({"type": "http", "name": name, "url": server.url(), "headers": [{"name": "authorization", "value": "Bearer T"}]})
}

/// A discovery that nobody is late for, however slow the machine is.
fn patient() -> Faults {
    Faults { discovery_ms: Some(60_000), ..Faults::default() }
}

/// A step that calls one tool.
fn call(name: &str, arguments: &str, id: &str) -> String {
    json!([{"play": [{"calls": [{"name": name, "arguments": arguments, "call_id": id}]}]}]).to_string()
}

/// The final update of a call.
fn ended(running: &Running, id: &str) -> Value {
    let updates = running.updates("tool_call_update");
    updates.into_iter().rfind(|update| update["toolCallId"] == id && update.get("status").is_some()).unwrap()
}

fn offered(place: &Place) -> Vec<String> {
    let body = place.provider.model_requests().pop().unwrap().json();
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_tool_is_found_named_and_called() {
    let place = Place::make("mcp", &patient()).await;
    let script = Script { bearer: Some("T".into()), more: vec!["read.status".into()], ..Script::default() };
    let server = Server::start(script).await.unwrap();
    let incomplete = json!({"type": "http", "name": "gone", "url": server.url()});
    let (mut running, session) = place.session(json!([http("raw name", &server), incomplete])).await;
    assert!(server.requests().is_empty());
    place.provider.script(&call("mcp__raw_name__echo", r#"{"z":1,"text":"back"}"#, "c1")).unwrap();
    place.provider.script(&call("mcp__raw_name__read_status", r#"{"text":"dot"}"#, "c2")).unwrap();
    place.provider.script(&call("mcp__raw_name__failing", "{}", "c3")).unwrap();
    place.provider.script(&call("mcp__raw_name__broken", "{}", "c4")).unwrap();
    assert_eq!(running.prompted(&session, "go").await, "end_turn");
    assert_eq!(ended(&running, "c1")["rawOutput"]["details"]["mcp"]["content"][0]["text"], "back");
    assert_eq!(ended(&running, "c2")["rawOutput"]["details"]["tool"], "read.status");
    let failed = ended(&running, "c3");
    assert_eq!(
        (&failed["status"], &failed["rawOutput"]["details"]["mcp"]["isError"]),
        (&json!("completed"), &json!(true))
    );
    let broken = ended(&running, "c4");
    assert!(broken["status"] == "failed" && broken["rawOutput"].get("details").is_none());
    assert!(server.requests().iter().any(|request| request.body.contains(r#""arguments":{"z":1,"text":"back"}"#)));
    let lists = server.requests().iter().filter(|request| request.asks().as_deref() == Some("tools/list")).count();
    assert_eq!(lists, 1);
    assert!(offered(&place).contains(&"mcp__raw_name__read_status".to_owned()));
    let names: Value =
        serde_json::from_slice(&std::fs::read(place.data().join("mcp-runtime-names.json")).unwrap()).unwrap();
    assert_eq!(names["servers"][0]["key"], r#"["configured","raw name"]"#);
    let tools = names["servers"][0]["tools"].as_array().unwrap();
    assert!(tools.contains(&json!({"raw": "read.status", "segment": "read_status"})));
    let results = place.provider.model_requests().pop().unwrap().json()["messages"].clone();
    assert!(results.to_string().contains("it does not work"));
}

#[tokio::test]
async fn a_late_server_has_no_tools_in_this_turn() {
    let place = Place::make("late", &Faults { discovery_ms: Some(300), ..Faults::default() }).await;
    let server = Server::start(Script::default().at("tools/list", Fault::Held("list"))).await.unwrap();
    let (mut running, session) = place.session(json!([http("slow", &server)])).await;
    assert_eq!(running.prompted(&session, "one").await, "end_turn");
    assert!(!offered(&place).iter().any(|name| name.starts_with("mcp__")));
}

#[tokio::test]
async fn a_long_call_is_given_up_and_the_server_is_told() {
    let place = Place::make("limit", &Faults { call_ms: Some(500), ..patient() }).await;
    let server = Server::start(Script::default()).await.unwrap();
    let (mut running, session) = place.session(json!([http("s", &server)])).await;
    place.provider.script(&call("mcp__s__slow", "{}", "c1")).unwrap();
    assert_eq!(running.prompted(&session, "go").await, "end_turn");
    assert!(ended(&running, "c1")["rawOutput"]["error"].as_str().unwrap().contains("timed out after 500ms"));
    server.wait_for_mark("cancelled").await.unwrap();
}

#[tokio::test]
async fn a_cancel_takes_a_call_back() {
    let place = Place::make("back", &patient()).await;
    let server = Server::start(Script::default()).await.unwrap();
    let (mut running, session) = place.session(json!([http("s", &server)])).await;
    place.provider.script(&call("mcp__s__slow", "{}", "c1")).unwrap();
    let id = running.prompt(&session, "go").await;
    server.wait_for_mark("slow").await.unwrap();
    running.notify("session/cancel", json!({ "sessionId": session })).await;
    assert_eq!(running.answer(id).await.unwrap()["stopReason"], "cancelled");
    server.wait_for_mark("cancelled").await.unwrap();
    assert_eq!(ended(&running, "c1")["status"], "failed");
}

#[tokio::test]
async fn a_server_over_pipes_starts_at_home() {
    let place = Place::make("pipes", &patient()).await;
    let program = place.program.with_file_name("runtime-bridge-conformance");
    std::fs::hard_link(&place.program, &program).unwrap();
    let entry = json!({"name": "p", "command": program, "args": ["mcp-stdio"], "env": [{"name": "K", "value": "V"}]});
    let (mut running, session) = place.session(json!([entry])).await;
    place.provider.script(&call("mcp__p__environment", "{}", "c1")).unwrap();
    assert_eq!(running.prompted(&session, "go").await, "end_turn");
    let told = ended(&running, "c1")["rawOutput"]["content"][0]["text"].as_str().unwrap().to_owned();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["env"]["K"], &told["cwd"]), (&json!("V"), &json!(place.data().canonicalize().unwrap())));
    assert!(told["env"]["PROVIDER_KEY"].is_string());
}
