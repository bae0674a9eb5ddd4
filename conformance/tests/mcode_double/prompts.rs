//! Prompts: texts, native tools, commands, steering, cancels, permissions and questions.

use conformance::mcode::Faults;
use conformance::provider::Protocol;
use serde_json::json;

use super::client::{KEY, Place};

#[tokio::test]
async fn a_text_streams_and_the_provider_sees_all_of_it() {
    let place = Place::make("text", &Faults::default()).await;
    std::fs::write(place.data().join("AGENTS.md"), "be brief").unwrap();
    place
        .provider
        .script(r#"[{"play":[{"reasoning":{"summary":["They greet."]}},{"text":{"chunks":["Hel","lo"]}}]}]"#)
        .unwrap();
    let (mut running, session) = place.session(json!([])).await;
    let id = running.prompt(&session, "hello").await;
    assert_eq!(running.answer(id).await.unwrap(), json!({"stopReason": "end_turn"}));
    assert_eq!(running.updates("usage_update").len(), 1);
    running.update("usage_update").await;
    assert_eq!(running.update("session_info_update").await["title"], "hello");
    assert_eq!(running.said(), "Hello");
    let thoughts = running.updates("agent_thought_chunk");
    assert!(!thoughts.is_empty() && thoughts[0]["messageId"] != running.updates("agent_message_chunk")[0]["messageId"]);
    let request = place.provider.model_requests().pop().unwrap();
    assert_eq!((request.path.as_str(), request.header("x-api-key")), ("/v1/messages", Some(KEY)));
    let body = request.json();
    assert_eq!((&body["model"], &body["max_tokens"]), (&json!("claude-sonnet-5"), &json!(4096)));
    assert!(body["system"][0]["text"].as_str().unwrap().contains("be brief"));
    let tools: Vec<_> = body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(tools, ["bash", "read", "write", "edit", "task_query", "task_output", "task_stop"]);
}

#[tokio::test]
async fn the_configuration_takes_tools_away() {
    let place = Place::make("tools", &Faults::default()).await;
    place.configure(|config| config["agents"]["default"]["tools"] = json!([]));
    let (mut running, session) = place.session(json!([])).await;
    assert_eq!(running.prompted(&session, "hello").await, "end_turn");
    assert!(place.provider.model_requests().pop().unwrap().json().get("tools").is_none());
    place.configure(|config| {
        config["agents"] = json!(null);
        config["askUser"] = json!(null);
    });
    let (mut running, session) = place.session(json!([])).await;
    assert_eq!(running.prompted(&session, "hello").await, "end_turn");
    let body = place.provider.model_requests().pop().unwrap().body;
    for name in ["web_fetch", "web_search", "task_append", "ask_user"] {
        assert!(body.contains(&format!("\"name\":\"{name}\"")), "{name}");
    }
}

#[tokio::test]
async fn a_provider_that_fails_and_a_missing_key_are_errors() {
    let place = Place::make("fails", &Faults::default()).await;
    place
        .provider
        .script(
            r#"[{"play":[{"http":{"status":529,"message":"too busy"}}]},{"play":[{"text":{"chunks":["x"]}},"drop"]}]"#,
        )
        .unwrap();
    let (mut running, session) = place.session(json!([])).await;
    for told in ["529 too busy", "broke off"] {
        let id = running.prompt(&session, "hello").await;
        let error = running.answer(id).await.unwrap_err();
        let message = error["message"].as_str().unwrap();
        assert!(error["code"] == -32603 && message.contains("Runtime failed: ") && message.contains(told), "{message}");
    }
    let blank = running.prompt(&session, " \n").await;
    assert_eq!(running.answer(blank).await.unwrap_err()["code"], -32603);
    let requests = place.provider.model_requests().len();
    place.configure(|config| config["custom_provider"]["oac"]["options"]["apiKey"] = json!("${NO_SUCH_KEY}"));
    let (mut running, session) = place.session(json!([])).await;
    let id = running.prompt(&session, "hello").await;
    assert!(running.answer(id).await.unwrap_err()["message"].as_str().unwrap().contains("NO_SUCH_KEY"));
    assert_eq!(place.provider.model_requests().len(), requests);
}

#[tokio::test]
async fn native_tools_work_on_the_workspace() {
    let place = Place::make("native", &Faults::default()).await;
    let steps = r#"[{"play":[{"calls":[
        {"name":"write","arguments":"{\"path\":\"a.txt\",\"content\":\"one two\"}","call_id":"c1"}]}]},
        {"play":[{"calls":[{"name":"edit","arguments":"{\"path\":\"a.txt\",\"oldText\":\"two\",\"newText\":\"three\"}","call_id":"c2"}]}]},
        {"play":[{"calls":[{"name":"bash","arguments":"{\"command\":\"cat a.txt; pwd; exit 3\"}","call_id":"c3"},
        {"name":"read","arguments":"{\"path\":\"a.txt\"}","call_id":"c4"},{"name":"nothing","arguments":"{}","call_id":"c5"}]}]}]"#;
    place.provider.script(steps).unwrap();
    let (mut running, session) = place.session(json!([])).await;
    assert_eq!(running.prompted(&session, "work").await, "end_turn");
    let begun = running.updates("tool_call");
    assert_eq!(begun.len(), 5);
    assert!(begun[0].get("rawInput").is_none() && begun[0]["name"] == "write" && begun[0]["kind"] == "edit");
    let of = |id: &str| -> Vec<_> {
        running.updates("tool_call_update").into_iter().filter(|update| update["toolCallId"] == id).collect()
    };
    assert_eq!(of("c1")[0]["rawInput"]["path"], "a.txt");
    assert!(of("c1")[0].get("status").is_none());
    let bash = &of("c3")[1];
    assert_eq!(
        (&bash["status"], &bash["rawOutput"]["details"]["execution"]["exitCode"]),
        (&json!("failed"), &json!(3))
    );
    let text = bash["rawOutput"]["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("one three") && text.contains(place.workspace().to_str().unwrap()));
    assert_eq!(of("c4")[1]["rawOutput"]["content"][0]["text"], "one three");
    assert!(of("c5")[1]["rawOutput"]["error"].as_str().unwrap().contains("not found"));
}

#[tokio::test]
async fn commands_never_reach_the_model() {
    let place = Place::make("slash", &Faults::default()).await;
    let (mut running, session) = place.session(json!([])).await;
    assert_eq!(running.prompted(&session, "/help").await, "end_turn");
    assert!(running.updates("agent_message_chunk")[0].get("messageId").is_none());
    assert!(place.provider.model_requests().is_empty());
    let blocks = json!([{"type": "text", "text": "/help"}, {"type": "text", "text": ""}]);
    running.ask("session/prompt", json!({"sessionId": session, "prompt": blocks})).await.unwrap();
    let body = place.provider.model_requests().pop().unwrap().json();
    assert_eq!(body["messages"][0]["content"][0]["text"], "/help\n\n");
    let image = json!([{"type": "image", "data": "", "mimeType": "image/png"}]);
    let refused = running.ask("session/prompt", json!({"sessionId": session, "prompt": image})).await;
    assert_eq!(refused.unwrap_err()["code"], -32602);
}

#[tokio::test]
async fn a_message_in_a_turn_is_read_at_the_next_boundary() {
    let place = Place::make("steer", &Faults::default()).await;
    let steps = r#"[{"play":[{"text":{"chunks":["one"]}},{"gate":"go"}]},{"play":[{"text":{"chunks":["two"]}}]}]"#;
    place.provider.script(steps).unwrap();
    let (mut running, session) = place.session(json!([])).await;
    let steer = json!({"sessionId": session, "text": "turn left", "clientRequestId": "k1"});
    assert_eq!(running.ask("mcode/session/steer", steer.clone()).await.unwrap_err()["code"], -32602);
    let id = running.prompt(&session, "go").await;
    running.update("agent_message_chunk").await;
    let busy = running.prompt(&session, "me too").await;
    let busy = running.answer(busy).await.unwrap_err();
    assert!(busy["message"].as_str().unwrap().ends_with("A prompt is already active for this session."));
    let first = running.ask("mcode/session/steer", steer.clone()).await.unwrap();
    let second = running.ask("mcode/session/steer", steer.clone()).await.unwrap();
    assert_eq!((&first["mode"], &second["mode"]), (&json!("steered"), &json!("duplicate")));
    assert_eq!(first["turnId"], second["turnId"]);
    place.provider.open_gate("go");
    assert_eq!(running.answer(id).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(running.said(), "onetwo");
    let requests = place.provider.model_requests();
    assert_eq!((requests.len(), requests[1].body.matches("turn left").count()), (2, 1));
    assert_eq!(running.ask("mcode/session/steer", steer).await.unwrap_err()["code"], -32602);
}

#[tokio::test]
async fn a_cancel_settles_and_holds_for_its_burst() {
    let place = Place::make("cancel", &Faults::default()).await;
    place.provider.script(r#"[{"match":"hang","play":[{"text":{"chunks":["one"]}},"hang"]}]"#).unwrap();
    let (mut running, session) = place.session(json!([])).await;
    let id = running.prompt(&session, "hang").await;
    running.update("agent_message_chunk").await;
    running.notify("session/cancel", json!({ "sessionId": session })).await;
    assert_eq!(running.answer(id).await.unwrap()["stopReason"], "cancelled");
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "burst"}]});
    let cancel = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}});
    let burst = json!({"jsonrpc": "2.0", "id": 900, "method": "session/prompt", "params": prompt});
    running.write(&format!("{cancel}\n{burst}")).await;
    assert_eq!(running.answer(900).await.unwrap()["stopReason"], "cancelled");
    running.notify("session/cancel", json!({ "sessionId": "mvs_nobody" })).await;
    let shell = r#"[{"play":[{"calls":[{"name":"bash","arguments":"{\"command\":\"touch started; sleep 600\"}","call_id":"c1"}]}]}]"#;
    place.provider.script(shell).unwrap();
    let id = running.prompt(&session, "run").await;
    running.update("tool_call_update").await;
    running.notify("$/cancel_request", json!({ "requestId": id })).await;
    assert_eq!(running.answer(id).await.unwrap()["stopReason"], "cancelled");
    assert_eq!(running.updates("tool_call_update").last().unwrap()["status"], "failed");
    assert_eq!(running.prompted(&session, "hello").await, "end_turn");
}

#[tokio::test]
async fn what_leaves_the_workspace_is_asked_for_under_another_id() {
    let place = Place::make("ask", &Faults::default()).await;
    place.configure(|config| config["permissionMode"] = json!("default"));
    let elsewhere = place.root.join("elsewhere.txt");
    let write = |id: &str| {
        let arguments = json!({"path": elsewhere, "content": "x"}).to_string();
        json!([{"play": [{"calls": [{"name": "write", "arguments": arguments, "call_id": id}]}]}]).to_string()
    };
    let (mut running, session) = place.session(json!([])).await;
    for (call, outcome, there) in [
        ("c1", json!({"outcome": "cancelled"}), false),
        ("c2", json!({"outcome": "selected", "optionId": "deny"}), false),
        ("c3", json!({"outcome": "selected", "optionId": "allow-once"}), true),
    ] {
        place.provider.script(&write(call)).unwrap();
        let id = running.prompt(&session, "write it").await;
        let asked = running.until(|message| message["method"] == "session/request_permission").await;
        assert_ne!(asked["params"]["toolCall"]["toolCallId"], call);
        running.write(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}}).to_string()).await;
        assert_eq!(running.answer(id).await.unwrap()["stopReason"], "end_turn");
        assert_eq!(elsewhere.exists(), there, "{call}");
    }
}

#[tokio::test]
async fn a_question_is_a_form_or_a_permission() {
    let place = Place::make("question", &Faults { question: true, ..Faults::default() }).await;
    let (mut running, session) = place.session(json!([])).await;
    let id = running.prompt(&session, "hello").await;
    let asked = running.until(|message| message["method"] == "session/request_permission").await;
    let options = asked["params"]["options"].as_array().unwrap();
    assert!(
        options[0]["optionId"].as_str().unwrap().starts_with("questionnaire:") && options[0]["kind"] == "allow_once"
    );
    let outcome = json!({"outcome": "selected", "optionId": options[1]["optionId"]});
    running.write(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}}).to_string()).await;
    running.answer(id).await.unwrap();
    assert!(place.provider.model_requests()[0].body.contains("answered: blue"));

    let mut running = place.start_bare();
    running
        .ask("initialize", json!({"protocolVersion": 1, "clientCapabilities": {"elicitation": {"form": {}}}}))
        .await
        .unwrap();
    let made = running.ask("session/new", json!({"cwd": place.workspace(), "mcpServers": []})).await.unwrap();
    let session = made["sessionId"].as_str().unwrap().to_owned();
    running.set_model(&session).await;
    let id = running.prompt(&session, "hello").await;
    let asked = running.until(|message| message["method"] == "elicitation/create").await;
    assert_eq!(asked["params"]["requestedSchema"]["properties"]["q0"]["oneOf"][0]["const"], "red");
    running.write(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}).to_string()).await;
    running.answer(id).await.unwrap();
    assert!(place.provider.model_requests()[1].body.contains("answered: nothing"));
}

#[tokio::test]
async fn the_responses_api_is_spoken_too() {
    let place = Place::make("responses", &Faults::default()).await;
    place.configure(|config| {
        config["custom_provider"]["oac"]["api"] = json!("openai-responses");
        config["custom_provider"]["oac"]["options"]["baseURL"] = json!(place.provider.base_url());
    });
    let steps = r#"[{"play":[{"reasoning":{"summary":["Hm."]}},{"calls":[{"name":"bash","arguments":"{\"command\":\"echo hi\"}","call_id":"c1"}]}]},
        {"play":[{"text":{"chunks":["do","ne"]}}]},{"play":[{"failed":{"code":"server_error","message":"it broke"}}]}]"#;
    place.provider.script(steps).unwrap();
    let (mut running, session) = place.session(json!([])).await;
    assert_eq!(running.prompted(&session, "go").await, "end_turn");
    assert_eq!(running.said(), "done");
    let requests = place.provider.model_requests();
    assert_eq!(requests[0].header("authorization"), Some(&*format!("Bearer {KEY}")));
    let output = requests[1].json()["input"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&output["call_id"], &output["output"]), (&json!("c1"), &json!("hi\n")));
    let id = running.prompt(&session, "again").await;
    assert!(running.answer(id).await.unwrap_err()["message"].as_str().unwrap().ends_with("Runtime failed: it broke"));
}

#[tokio::test]
async fn chat_completions_are_spoken_too() {
    let place = Place::make("chat", &Faults::default()).await;
    place.configure(|config| {
        config["custom_provider"]["oac"]["api"] = json!("openai-completions");
        config["custom_provider"]["oac"]["options"]["baseURL"] =
            json!(place.provider.base_url_for(Protocol::ChatCompletions));
    });
    let steps = r#"[{"play":[{"text":{"chunks":["on it"]}},{"calls":[
            {"name":"bash","arguments":"{\"command\":\"echo hi\"}","call_id":"c1"},
            {"name":"bash","arguments":"{\"command\":\"echo ho\"}","call_id":"c2"}]}]},
        {"play":[{"reasoning":{"summary":["Hm."]}},{"text":{"chunks":["do","ne"]}},{"complete":{"usage":{"input":7,"cached":0,"output":2,"reasoning":0}}}]},
        {"play":[{"text":{"chunks":["x"]}},"close"]}]"#;
    place.provider.script(steps).unwrap();
    let (mut running, session) = place.session(json!([])).await;
    assert_eq!(running.prompted(&session, "go").await, "end_turn");
    assert_eq!(running.said(), "on itdone");
    assert_eq!(running.updates("usage_update")[0]["used"], 9);
    let requests = place.provider.model_requests();
    assert_eq!(requests[0].path, "/v1/chat/completions");
    assert_eq!(requests[0].header("authorization"), Some(&*format!("Bearer {KEY}")));
    let messages = requests[1].json()["messages"].as_array().unwrap().clone();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
    assert_eq!((&messages[4]["tool_call_id"], &messages[4]["content"]), (&json!("c2"), &json!("ho\n")));
    let id = running.prompt(&session, "again").await;
    assert!(running.answer(id).await.unwrap_err()["message"].as_str().unwrap().contains("ended early"));
}
