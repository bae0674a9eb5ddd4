//! The lines, the greeting, and sessions that begin and come back.

use conformance::mcode::{self, Faults, VERSION};
use serde_json::{Value, json};

use super::client::{KEY, Place};

#[tokio::test]
async fn tells_its_version_and_leaves_with_its_input() {
    let place = Place::make("version", &Faults::default()).await;
    let output = place.command(&["--version"]).output().await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{VERSION}\n"));
    assert_eq!(place.start().await.end().await.code(), Some(0));
    let starts = mcode::starts(&place.root.join("program")).unwrap();
    assert_eq!(starts.iter().map(|start| &*start.args[0]).collect::<Vec<_>>(), ["--version", "acp"]);
    assert_eq!(starts[1].env["PROVIDER_KEY"], KEY);
    let received = mcode::received(&place.root.join("program"), starts[1].pid).unwrap();
    assert!(received.starts_with(b"{\"") && received.ends_with(b"\n"));
}

#[tokio::test]
async fn junk_is_passed_over_and_an_array_is_the_end() {
    let place = Place::make("lines", &Faults::default()).await;
    let mut running = place.start_bare();
    for junk in ["no JSON", "5", "", "{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{}}"] {
        running.write(junk).await;
    }
    let request = json!({"jsonrpc": "2.0", "id": "a text", "method": "initialize", "params": {"protocolVersion": 99}});
    running.write(&request.to_string()).await;
    let answer = running.next().await.unwrap();
    assert_eq!((&answer["id"], &answer["result"]["protocolVersion"]), (&json!("a text"), &json!(1)));
    assert_eq!(answer["result"]["agentInfo"]["name"], "minimax-code");
    let extensions = &answer["result"]["_meta"]["minimax-code/extensions"];
    assert_eq!(extensions["methods"].as_array().unwrap().len(), 14);
    assert_eq!(extensions["methods"][2], "mcode/session/steer");
    assert_eq!(extensions["notifications"][3], "mcode/session/delegation_update");
    assert!(answer["result"].get("authMethods").is_none());
    for method in ["session/cancel", "no/such/method", "mcode/session/no"] {
        assert_eq!(running.ask(method, json!({})).await.unwrap_err()["code"], -32601, "{method}");
    }
    running.write("[]").await;
    assert_eq!(running.next().await, None);
    assert_eq!(running.child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn a_session_has_modes_options_and_three_lists_of_commands() {
    let place = Place::make("new", &Faults::default()).await;
    let mut running = place.start().await;
    for bad in [
        json!({"cwd": "w", "mcpServers": []}),
        json!({"cwd": place.workspace()}),
        json!({"cwd": place.workspace(), "mcpServers": [], "additionalDirectories": ["/x"]}),
    ] {
        assert_eq!(running.ask("session/new", bad).await.unwrap_err()["code"], -32602);
    }
    let server = json!({"type": "http", "name": "a", "url": "http://127.0.0.1:1/", "headers": []});
    let doubled = json!({"cwd": place.workspace(), "mcpServers": [server, server]});
    assert_eq!(running.ask("session/new", doubled).await.unwrap_err()["code"], -32602);
    let made = running.ask("session/new", json!({"cwd": place.workspace(), "mcpServers": []})).await.unwrap();
    assert_eq!(made["modes"]["currentModeId"], "default");
    let model = &made["configOptions"][1];
    assert_eq!((&model["id"], &model["category"]), (&json!("model"), &json!("model")));
    assert_eq!(
        model["options"],
        json!([{"value": "m:custom_provider%3Aoac:claude-sonnet-5:v:", "name": "claude-sonnet-5"}])
    );
    let session = made["sessionId"].clone();
    for _ in 0..2 {
        running.update("available_commands_update").await;
    }
    assert_eq!(running.updates("available_commands_update").len(), 3);
    let option = |id: &str, value: Value| json!({"sessionId": session, "configId": id, "value": value});
    for bad in
        [option("model", json!("m:minimax:MiniMax-M3:v:")), option("model", json!(1)), option("colour", json!("red"))]
    {
        assert_eq!(running.ask("session/set_config_option", bad).await.unwrap_err()["code"], -32602);
    }
    let set = running.ask("session/set_config_option", option("permissionMode", json!("bypassPermissions"))).await;
    assert_eq!(set.unwrap()["configOptions"][0]["currentValue"], "bypassPermissions");
    let mode = running.ask("session/set_mode", json!({"sessionId": session, "modeId": "plan"})).await.unwrap();
    assert_eq!(mode["_meta"]["minimax-code/transition"], "settled");
}

#[tokio::test]
async fn a_session_outlives_a_kill_and_is_told_again() {
    let place = Place::make("load", &Faults::default()).await;
    std::fs::write(place.data().join("AGENTS.md"), "be brief").unwrap();
    let calls = r#"[{"play":[{"text":{"chunks":["be","fore"]}},{"calls":[{"name":"bash","arguments":"{\"command\":\"echo hi\"}","call_id":"c1"}]}]},
                    {"play":[{"text":{"chunks":["after"]}}]}]"#;
    place.provider.script(calls).unwrap();
    let (mut running, session) = place.session(json!([])).await;
    assert_eq!(running.prompted(&session, "first").await, "end_turn");
    let live = running.updates("agent_message_chunk");
    running.child.start_kill().unwrap();
    running.child.wait().await.unwrap();

    std::fs::write(place.data().join("AGENTS.md"), "be long").unwrap();
    let mut running = place.start().await;
    let asked = |cwd: Value, id: &str| json!({"sessionId": id, "cwd": cwd, "mcpServers": []});
    let workspace = json!(place.workspace());
    assert_eq!(running.ask("session/load", asked(json!("/"), &session)).await.unwrap_err()["code"], -32602);
    assert_eq!(running.ask("session/load", asked(workspace.clone(), "mvs_x")).await.unwrap_err()["code"], -32002);
    assert_eq!(
        running.ask("session/prompt", json!({"sessionId": session, "prompt": []})).await.unwrap_err()["code"],
        -32002
    );
    running.seen.clear();
    let loaded = running.ask("session/load", asked(workspace.clone(), &session)).await.unwrap();
    assert!(loaded.get("sessionId").is_none());
    assert_eq!(loaded["configOptions"][1]["currentValue"], "m:custom_provider%3Aoac:claude-sonnet-5:v:");
    assert_eq!(running.updates("user_message_chunk")[0]["content"]["text"], "first");
    let told = running.updates("agent_message_chunk");
    let ids = |updates: &[Value]| -> Vec<Value> {
        let mut ids: Vec<_> = updates.iter().map(|update| update["messageId"].clone()).collect();
        ids.dedup();
        ids
    };
    assert_eq!((ids(&live).len(), ids(&live)), (2, ids(&told)));
    let tool = &running.updates("tool_call")[0];
    assert_eq!((&tool["status"], &tool["rawOutput"]["content"][0]["text"]), (&json!("completed"), &json!("hi\n")));
    assert_eq!(running.prompted(&session, "second").await, "end_turn");
    let request = place.provider.model_requests().pop().unwrap();
    assert!(request.body.contains("before") && request.body.contains("be long") && !request.body.contains("be brief"));
    assert_eq!(running.end().await.code(), Some(0));

    // The model is not in the catalogue any more.
    place.configure(|config| {
        config["custom_provider"]["oac"]["models"] = json!({"N": {"limit": {"context": 1, "output": 1}}})
    });
    let mut running = place.start().await;
    let resumed = running.ask("session/resume", asked(workspace, &session)).await.unwrap();
    assert_eq!(resumed["configOptions"].as_array().unwrap().len(), 1);
    assert!(running.updates("user_message_chunk").is_empty());
    let listed = running.ask("session/list", json!({})).await.unwrap();
    assert_eq!(
        (&listed["sessions"][0]["sessionId"], &listed["sessions"][0]["title"]),
        (&json!(session), &json!("first"))
    );
    let copy = running.ask("session/fork", json!({"sessionId": session, "cwd": place.workspace()})).await.unwrap();
    assert_ne!(copy["sessionId"], json!(session));
    assert_eq!(running.ask("session/close", json!({"sessionId": session})).await.unwrap(), json!({}));
    assert_eq!(running.ask("session/close", json!({"sessionId": session})).await.unwrap_err()["code"], -32002);
}

#[tokio::test]
async fn without_a_provider_a_login_is_asked_for_and_a_bad_file_is_told_of() {
    let place = Place::make("login", &Faults::default()).await;
    place.configure(|config| config["custom_provider"] = json!({}));
    let mut running = place.start().await;
    let made = running.ask("session/new", json!({"cwd": place.workspace(), "mcpServers": []})).await;
    assert_eq!(made.unwrap_err()["code"], -32000);
    std::fs::write(place.data().join("config.yaml"), "logLevel: error\n").unwrap();
    let output = place.command(&["acp"]).output().await.unwrap();
    assert!(!output.status.success() && String::from_utf8(output.stderr).unwrap().contains("no JSON"));
}
