//! What the user is asked: whether a tool may run, and questions of the model.

use std::path::Path;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::history::Call;
use super::serve::Engine;
use super::session::Session;
use super::turn::Place;
use super::wire::raw;
use super::{fresh, lock, tools};

/// Whether the user lets a tool run. The request has an id of its own, which is not that of the call. Waits for as long as it takes.
pub(super) async fn permitted(place: &Place<'_>, call: &Call) -> bool {
    let Place { engine, session, cancel, .. } = place;
    if lock(&session.state).allowed.contains(&call.name) {
        return true;
    }
    let input: Value = serde_json::from_str(raw(&call.arguments).get()).unwrap_or_default();
    let mut tool = json!({"toolCallId": fresh("perm"), "title": call.name, "name": call.name,
        "kind": tools::kind(&call.name), "status": "pending", "rawInput": input});
    if let Some(locations) = tools::locations(call, Path::new(place.cwd)) {
        tool["locations"] = locations;
    }
    let options = [
        json!({"optionId": "allow-once", "kind": "allow_once", "name": "Allow once"}),
        json!({"optionId": "allow-always", "kind": "allow_always", "name": "Always allow"}),
        json!({"optionId": "deny", "kind": "reject_once", "name": "Deny"}),
    ];
    let params = json!({"sessionId": session.id, "toolCall": tool, "options": options});
    match chosen(engine, &params, cancel).await.as_deref() {
        Some("allow-once") => true,
        Some("allow-always") => {
            lock(&session.state).allowed.insert(call.name.clone());
            true
        }
        _ => false,
    }
}

/// The option that the user chose; nothing for every other answer.
async fn chosen(engine: &Engine, params: &Value, cancel: &CancellationToken) -> Option<String> {
    let answer = tokio::select! {
        answer = engine.wire.ask("session/request_permission", params.clone()) => answer?,
        () = cancel.cancelled() => return None,
    };
    let outcome = &answer["outcome"];
    outcome["optionId"].as_str().filter(|_| outcome["outcome"] == "selected").map(str::to_owned)
}

/// What the user answers to questions. A client that has no forms is asked for a permission whose options are the answers, where there is one
/// question with one choice; else nobody is asked, and there is no answer.
pub(super) async fn question(
    engine: &Engine,
    session: &Session,
    asked: &Value,
    cancel: &CancellationToken,
) -> Option<String> {
    let questions: Vec<_> = asked["questions"].as_array().into_iter().flatten().collect();
    let answer = if lock(&engine.client).form {
        form(engine, session, &questions, cancel).await
    } else {
        degraded(engine, session, &questions, cancel).await
    };
    // The answer goes on in another native Turn of the same prompt.
    lock(&session.state).active.iter_mut().for_each(|active| active.turn = fresh("turn"));
    answer
}

async fn form(engine: &Engine, session: &Session, questions: &[&Value], cancel: &CancellationToken) -> Option<String> {
    let (mut properties, mut required) = (serde_json::Map::new(), Vec::new());
    for (number, question) in questions.iter().enumerate() {
        let field = format!("q{number}");
        let told = &question["question"];
        let option = |option: &Value| json!({"const": option["label"], "title": option["label"], "description": option["description"]});
        let options: Vec<_> = question["options"].as_array().into_iter().flatten().map(option).collect();
        let property = match (options.is_empty(), question["multiple"] == true) {
            (true, _) => json!({"type": "string", "title": told}),
            (false, false) => json!({"type": "string", "title": told, "oneOf": options}),
            (false, true) => json!({"type": "array", "title": told, "items": {"anyOf": options}}),
        };
        properties.insert(field.clone(), property);
        if question["other"] == true {
            let title = format!("{} — Other", told.as_str().unwrap_or_default());
            properties.insert(format!("{field}__other"), json!({"type": "string", "title": title}));
        } else {
            required.push(field);
        }
    }
    let message = questions.first().map_or(&Value::Null, |question| &question["question"]);
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    let params = json!({"mode": "form", "sessionId": session.id, "message": message, "requestedSchema": schema});
    let answer = tokio::select! {
        answer = engine.wire.ask("elicitation/create", params) => answer?,
        () = cancel.cancelled() => return None,
    };
    (answer["action"] == "accept").then(|| answer["content"].to_string())
}

async fn degraded(
    engine: &Engine,
    session: &Session,
    questions: &[&Value],
    cancel: &CancellationToken,
) -> Option<String> {
    let [question] = questions else { return None };
    let labels: Vec<_> = question["options"].as_array()?.iter().filter_map(|option| option["label"].as_str()).collect();
    if labels.is_empty() || question["multiple"] == true || question["other"] == true {
        return None;
    }
    let request = fresh("q");
    let id = |number: usize| format!("questionnaire:{request}:{number}");
    let option = |(number, label): (usize, &&str)| json!({"optionId": id(number), "kind": "allow_once", "name": label});
    let mut options: Vec<_> = labels.iter().enumerate().map(option).collect();
    options
        .push(json!({"optionId": format!("questionnaire:{request}:cancel"), "kind": "reject_once", "name": "Cancel"}));
    let tool = json!({"toolCallId": format!("perm_{request}"), "title": question["question"], "kind": "other", "status": "pending"});
    let params = json!({"sessionId": session.id, "toolCall": tool, "options": options});
    let chosen = chosen(engine, &params, cancel).await?;
    labels.iter().enumerate().find(|(number, _)| id(*number) == chosen).map(|(_, label)| (*label).to_owned())
}
