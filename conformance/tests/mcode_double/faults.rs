//! The switches.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use conformance::mcode::{ExitAt, Faults, Leaves, Settles, Steers};
use conformance::mcp::{Script, Server};
use rustix::process::{Pid, Signal, getpgid, kill_process, test_kill_process};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::time;

use super::client::Place;

fn faults() -> Faults {
    Faults::default()
}

#[tokio::test]
async fn it_ends_where_it_is_told_to() {
    for (method, code) in [("initialize", 0), ("session/new", 3)] {
        let exit_at = Some(ExitAt { method: method.into(), code });
        let place = Place::make(&format!("exit-{code}"), &Faults { exit_at, ..faults() }).await;
        let mut running = place.start_bare();
        running.send("initialize", json!({"protocolVersion": 1})).await;
        running.send("session/new", json!({"cwd": "/", "mcpServers": []})).await;
        while running.next().await.is_some() {}
        assert_eq!(running.child.wait().await.unwrap().code(), Some(i32::from(code)));
    }
    let place = Place::make("exit-mid", &Faults { exit_mid_turn: Some(4), ..faults() }).await;
    let (mut running, session) = place.session(json!([])).await;
    let id = running.prompt(&session, "hello").await;
    while running.next().await.is_some() {}
    assert_eq!(running.child.wait().await.unwrap().code(), Some(4));
    assert!(!running.said().is_empty() && !running.seen.iter().any(|message| message["id"] == id));
}

#[tokio::test]
async fn it_holds_on_and_is_killed() {
    let place = Place::make("stays", &Faults { ignore_eof: true, ignore_term: true, ..faults() }).await;
    let mut running = place.start().await;
    drop(running.stdin.take());
    let pid = Pid::from_raw(i32::try_from(running.child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    test_kill_process(pid).unwrap();
    running.child.kill().await.unwrap();
    assert_eq!(running.child.wait().await.unwrap().signal(), Some(9));
}

#[tokio::test]
async fn a_deaf_one_answers_nothing_more() {
    let place = Place::make("deaf", &Faults { deaf_after: Some("session/new".into()), ..faults() }).await;
    let mut running = place.start().await;
    running.ask("session/new", json!({"cwd": place.workspace(), "mcpServers": []})).await.unwrap();
    let id = running.send("session/list", json!({})).await;
    running.child.kill().await.unwrap();
    while running.next().await.is_some() {}
    assert!(!running.seen.iter().any(|message| message["id"] == id));
}

#[tokio::test]
async fn noise_is_around_a_turn_that_goes_well() {
    let noise = Faults {
        without_meta: true,
        version: Some("0.5.0".into()),
        junk_lines: true,
        long_line_bytes: 10 * 1024 * 1024,
        endless_stderr: true,
        unknown_update: true,
        foreign_session: true,
        double_finals: true,
        answer_twice: true,
        late_updates: 100,
        stop_reason: Some("weary".into()),
        ..faults()
    };
    let place = Place::make("noise", &noise).await;
    place
        .provider
        .script(r#"[{"play":[{"calls":[{"name":"bash","arguments":"{\"command\":\"true\"}","call_id":"c1"}]}]}]"#)
        .unwrap();
    let mut running = place.start_bare();
    let greeted = running.ask("initialize", json!({"protocolVersion": 1})).await.unwrap();
    assert!(greeted.get("_meta").is_none() && greeted["agentInfo"]["version"] == "0.5.0");
    let made = running.ask("session/new", json!({"cwd": place.workspace(), "mcpServers": []})).await.unwrap();
    let session = made["sessionId"].as_str().unwrap().to_owned();
    running.set_model(&session).await;
    let id = running.prompt(&session, "hello").await;
    assert_eq!(running.answer(id).await.unwrap()["stopReason"], "weary");
    assert_eq!(running.answer(id).await.unwrap()["stopReason"], "weary");
    let answered = running.seen.len();
    running.update("session_info_update").await;
    let late = &running.seen[answered..];
    let message = running.updates("agent_message_chunk")[0]["messageId"].clone();
    let ours = |message: &&serde_json::Value| message["params"]["sessionId"] == *session;
    assert!(late.iter().filter(ours).count() >= 101);
    assert!(late.iter().any(|late| late["params"]["update"]["messageId"] == message));
    assert!(running.seen.iter().any(|message| message["params"]["sessionId"] == "mvs_of_somebody_else"));
    let finals = running
        .updates("tool_call_update")
        .into_iter()
        .filter(|update| update["status"] == "completed" && update["rawOutput"]["details"].is_object());
    assert_eq!(finals.count(), 4);
    assert!(running.seen.iter().any(|message| message.to_string().len() > 10 * 1024 * 1024));
    assert_eq!(running.updates("weather_update").len(), 2);
}

#[tokio::test]
async fn standard_error_goes_on_for_ever() {
    let place = Place::make("stderr", &Faults { endless_stderr: true, ..faults() }).await;
    let mut child = place.command(&["acp"]).spawn().unwrap();
    let mut much = vec![0; 1024 * 1024];
    child.stderr.take().unwrap().read_exact(&mut much).await.unwrap();
    child.kill().await.unwrap();
}

#[tokio::test]
async fn prompts_fail_or_stay_without_an_answer() {
    let place = Place::make("fail", &Faults { fail_prompt: Some("out of luck".into()), ..faults() }).await;
    let (mut running, session) = place.session(json!([])).await;
    let id = running.prompt(&session, "hello").await;
    let error = running.answer(id).await.unwrap_err();
    assert_eq!(error, json!({"code": -32603, "message": "Internal error: Runtime failed: out of luck"}));
    for faults in [Faults { never_answer: true, ..faults() }, Faults { cancel: Some(Settles::Never), ..faults() }] {
        let name = if faults.never_answer { "mute" } else { "held" };
        let place = Place::make(name, &faults).await;
        place.provider.script(r#"[{"play":[{"text":{"chunks":["one"]}},"hang"]}]"#).unwrap();
        let (mut running, session) = place.session(json!([])).await;
        let id = running.prompt(&session, "hello").await;
        running.update("agent_message_chunk").await;
        running.notify("session/cancel", json!({ "sessionId": session })).await;
        // It is busy with it still.
        let busy = running.prompt(&session, "more").await;
        assert_eq!(running.answer(busy).await.unwrap_err()["code"], -32602);
        assert!(!running.seen.iter().any(|message| message["id"] == id));
    }
}

#[tokio::test]
async fn a_cancel_comes_late_and_a_call_after_it() {
    let late = Faults { cancel: Some(Settles::LateMs(100)), cancel_late_call: Some("mcp__s__echo".into()), ..faults() };
    let place = Place::make("late-call", &late).await;
    let server = Server::start(Script::default()).await.unwrap();
    let entry = json!({"type": "http", "name": "s", "url": server.url(), "headers": []});
    place.provider.script(r#"[{"play":[{"text":{"chunks":["one"]}},"hang"]}]"#).unwrap();
    let (mut running, session) = place.session(json!([entry])).await;
    let id = running.prompt(&session, "hello").await;
    running.update("agent_message_chunk").await;
    running.notify("session/cancel", json!({ "sessionId": session })).await;
    assert_eq!(running.answer(id).await.unwrap()["stopReason"], "cancelled");
    assert_eq!(running.update("tool_call").await["name"], "mcp__s__echo");
    server.wait_for(|requests| requests.iter().any(|request| request.tool().as_deref() == Some("echo"))).await.unwrap();
}

#[tokio::test]
async fn a_cancelled_command_lives_on() {
    for leaves in [Leaves::Group, Leaves::Session] {
        let place =
            Place::make(&format!("leaves-{leaves:?}"), &Faults { cancel_leaves: Some(leaves), ..faults() }).await;
        let command = json!({"command": "echo $$ > pid.new; mv pid.new pid; exec sleep 600"}).to_string();
        let step = json!([{"play": [{"calls": [{"name": "bash", "arguments": command, "call_id": "c1"}]}]}]);
        place.provider.script(&step.to_string()).unwrap();
        let (mut running, session) = place.session(json!([])).await;
        let id = running.prompt(&session, "run").await;
        let pid = pid_in(&place.workspace().join("pid")).await;
        running.notify("session/cancel", json!({ "sessionId": session })).await;
        assert_eq!(running.answer(id).await.unwrap()["stopReason"], "cancelled");
        test_kill_process(pid).unwrap();
        let own = Pid::from_raw(i32::try_from(running.child.id().unwrap()).unwrap());
        let shares = getpgid(Some(pid)).unwrap() == getpgid(own).unwrap();
        assert_eq!(shares, leaves == Leaves::Group);
        kill_process(pid, Signal::KILL).unwrap();
    }
}

/// The process id that a command wrote.
async fn pid_in(path: &Path) -> Pid {
    let written = async {
        let mut looks = time::interval(Duration::from_millis(5));
        loop {
            looks.tick().await;
            if let Ok(text) = std::fs::read_to_string(path) {
                return Pid::from_raw(text.trim().parse().unwrap()).unwrap();
            }
        }
    };
    time::timeout(Duration::from_secs(60), written).await.unwrap()
}

#[tokio::test]
async fn steering_goes_wrong_and_is_taken() {
    for (steer, answer) in [
        (Steers::Error, Some("error")),
        (Steers::ChangedTurn, Some("turnId")),
        (Steers::Unreadable, Some("yes")),
        (Steers::Lost, None),
    ] {
        let place = Place::make(&format!("steer-{steer:?}"), &Faults { steer: Some(steer), ..faults() }).await;
        place.provider.script(r#"[{"play":[{"text":{"chunks":["one"]}},{"gate":"go"}]}]"#).unwrap();
        let (mut running, session) = place.session(json!([])).await;
        let id = running.prompt(&session, "go").await;
        running.update("agent_message_chunk").await;
        let steered = running.send("mcode/session/steer", json!({"sessionId": session, "text": "left"})).await;
        // An answer in order tells that the one before was handled.
        running.ask("session/list", json!({})).await.unwrap();
        let told = running.seen.iter().find(|message| message["id"] == steered).map(ToString::to_string);
        assert_eq!(told.as_ref().map(|told| told.contains(answer.unwrap())), answer.map(|_| true));
        place.provider.open_gate("go");
        assert_eq!(running.answer(id).await.unwrap()["stopReason"], "end_turn");
        assert!(place.provider.model_requests()[1].body.contains("left"));
    }
}

#[tokio::test]
async fn a_session_is_forgotten() {
    let place = Place::make("forgets", &Faults { load_forgets: true, ..faults() }).await;
    let (mut running, session) = place.session(json!([])).await;
    let asked = json!({"sessionId": session, "cwd": place.workspace(), "mcpServers": []});
    assert_eq!(running.ask("session/load", asked).await.unwrap_err()["code"], -32002);
}

#[tokio::test]
async fn every_tool_is_asked_for_and_requests_are_counted() {
    let place = Place::make("always", &Faults { ask_always: true, max_requests: Some(1), ..faults() }).await;
    place
        .provider
        .script(r#"[{"play":[{"calls":[{"name":"bash","arguments":"{\"command\":\"true\"}","call_id":"c1"}]}]}]"#)
        .unwrap();
    let (mut running, session) = place.session(json!([])).await;
    let id = running.prompt(&session, "go").await;
    let asked = running.until(|message| message["method"] == "session/request_permission").await;
    running
        .write(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}).to_string())
        .await;
    assert_eq!(running.answer(id).await.unwrap()["stopReason"], "max_turn_requests");
}
