//! Reading a request of the Chat Completions API. A Harness names the tool of a server `server_tool` there.

use serde_json::{Value, json};

use super::{Input, Request, Tool, text_of};
use crate::provider::protocol::Protocol;

/// The server that holds the application's functions.
const FUNCTIONS: &str = "functions";

/// Tools of a Harness's own that have a name like that of a server's tool.
const NOT_OF_A_SERVER: [&str; 6] =
    ["apply_patch", "plan_enter", "plan_exit", "web_fetch", "web_search", "exec_command"];

/// What stands before the images of an output, which only a user's message can carry.
const ATTACHED: &str = "Attached media from tool result:";

/// Texts in the user's place that a Harness writes by itself begin with one of these.
const NOT_FROM_A_USER: [&str; 3] = ["<system-reminder>", ATTACHED, "Generate a title for this conversation:"];

impl Request {
    /// Reads a body of the Chat Completions API.
    pub(in crate::provider) fn chat_completions(body: &str) -> Self {
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let messages = || body["messages"].as_array().into_iter().flatten();
        let schema = &body["response_format"]["json_schema"]["schema"];
        Self {
            protocol: Protocol::ChatCompletions,
            model: body["model"].as_str().unwrap_or_default().to_owned(),
            streams: body["stream"] == true,
            counts: body["stream_options"]["include_usage"] == true,
            searches: false,
            instructions: messages().filter(above).map(|message| text_of(&message["content"])).collect(),
            tools: body["tools"].as_array().into_iter().flatten().map(tool).collect(),
            announced: Vec::new(),
            inputs: inputs(&body),
            schema: (!schema.is_null()).then(|| schema.clone()),
        }
    }
}

/// Whether a message stands above the conversation.
fn above(message: &&Value) -> bool {
    message["role"] == "system" || message["role"] == "developer"
}

fn tool(tool: &Value) -> Tool {
    let function = &tool["function"];
    let wire = function["name"].as_str().unwrap_or_default();
    let foreign = wire.split_once('_').filter(|_| !NOT_OF_A_SERVER.contains(&wire));
    let (namespace, name) = foreign.map_or((None, wire), |(server, name)| (Some(server), name));
    Tool {
        name: name.to_owned(),
        namespace: namespace.filter(|server| *server != FUNCTIONS).map(str::to_owned),
        wire: wire.to_owned(),
        kind: tool["type"].as_str().unwrap_or("function").to_owned(),
        description: function["description"].as_str().unwrap_or_default().to_owned(),
        parameters: function["parameters"].clone(),
        deferred: false,
    }
}

/// The texts and the addresses of images in the newest message of a user.
pub(in crate::provider) fn newest_input(body: &Value) -> Vec<String> {
    let messages = body["messages"].as_array().into_iter().flatten();
    let mut users = messages.filter(|message| matches!(input(message), Input::User(_)));
    users.next_back().map(|message| parts(&message["content"])).unwrap_or_default()
}

/// The messages below those that stand above the conversation.
pub(in crate::provider) fn conversation(body: &Value) -> Vec<Value> {
    let messages = body["messages"].as_array().into_iter().flatten();
    messages.filter(|message| !above(message)).cloned().collect()
}

/// The parts of a content: its texts, and the addresses of its images.
fn parts(content: &Value) -> Vec<String> {
    match content {
        Value::String(text) => vec![text.clone()],
        Value::Array(parts) => parts.iter().map(said).collect(),
        _ => Vec::new(),
    }
}

fn said(part: &Value) -> String {
    let said = part["text"].as_str().or_else(|| part["image_url"]["url"].as_str());
    said.map_or_else(|| part.to_string(), str::to_owned)
}

/// The messages in their order. Images that follow outputs belong to the last of them: there is no word of which it is.
fn inputs(body: &Value) -> Vec<Input> {
    let mut inputs: Vec<Input> = Vec::new();
    for message in body["messages"].as_array().into_iter().flatten() {
        let attached = message["role"] == "user" && text_of(&message["content"]).starts_with(ATTACHED);
        match inputs.last_mut() {
            Some(Input::Output { content, .. }) if attached => {
                let before = match content.take() {
                    Value::String(text) => vec![json!({"type": "input_text", "text": text})],
                    Value::Array(parts) => parts,
                    other => vec![other],
                };
                let images = message["content"].as_array().into_iter().flatten().skip(1).map(part);
                *content = before.into_iter().chain(images).collect();
            }
            Some(_) | None => inputs.push(input(message)),
        }
    }
    inputs
}

fn input(message: &Value) -> Input {
    let content = &message["content"];
    match message["role"].as_str() {
        Some("user") => {
            let text = text_of(content);
            let by_a_user = !NOT_FROM_A_USER.iter().any(|start| text.starts_with(start));
            if by_a_user { Input::User(text) } else { Input::Other }
        }
        Some("tool") => Input::Output {
            call_id: message["tool_call_id"].as_str().unwrap_or_default().to_owned(),
            content: output(content),
            failed: false,
        },
        _ => Input::Other,
    }
}

/// An output: one text, or parts that are named as in the Responses API.
fn output(content: &Value) -> Value {
    let Some(parts) = content.as_array() else { return content.clone() };
    match &parts[..] {
        [one] if one["type"] == "text" => one["text"].clone(),
        _ => parts.iter().map(part).collect(),
    }
}

fn part(part: &Value) -> Value {
    match part["image_url"]["url"].as_str() {
        Some(address) => json!({"type": "input_image", "image_url": address}),
        None if part["type"] == "text" => json!({"type": "input_text", "text": part["text"]}),
        None => part.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Newest;
    use super::*;

    fn request(messages: &Value) -> Request {
        Request::chat_completions(&json!({ "messages": messages }).to_string())
    }

    #[test]
    fn the_newest_input_is_the_last_user_message_or_the_last_outputs() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let calls = json!({"role": "assistant", "content": null, "tool_calls": []});
        let output = |text: &str| json!({"role": "tool", "tool_call_id": "c1", "content": text});
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        for (messages, want) in [
            (json!([]), Newest::Nothing),
            (json!([{"role": "system", "content": "s"}, user("hi")]), Newest::User("hi".into())),
            (json!([user("hi"), user("<system-reminder>x")]), Newest::User("hi".into())),
            (json!([parts]), Newest::User("a\nb".into())),
            (json!([user("hi"), calls, output("a"), output("b")]), Newest::Outputs(vec!["a".into(), "b".into()])),
            (json!([user("hi"), calls, output("a"), user("and")]), Newest::User("and".into())),
        ] {
            assert_eq!(request(&messages).newest(), want, "{messages}");
        }
    }

    #[test]
    fn tools_have_the_names_of_the_application() {
        let function = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}, "description": "d"}});
        let names = ["bash", "apply_patch", "functions_a_b", "tickets_search"];
        let body = json!({"tools": names.map(function)});
        let request = Request::chat_completions(&body.to_string());
        let names: Vec<_> = request.tools.iter().map(Tool::full_name).collect();
        assert_eq!(names, ["bash", "apply_patch", "a_b", "tickets.search"]);
        assert_eq!(request.function("a.b").unwrap().wire, "functions_a_b");
        assert_eq!(request.function("tickets.search").unwrap().parameters, json!({"type": "object"}));
        assert_eq!(request.shell().unwrap().wire, "bash");
    }

    #[test]
    fn instructions_the_schema_and_the_wish_for_counts_are_found() {
        let body = json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true},
            "messages": [{"role": "system", "content": "above"}, {"role": "developer", "content": [{"type": "text", "text": "below"}]}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        });
        let request = Request::chat_completions(&body.to_string());
        assert_eq!(request.instructions, ["above", "below"]);
        assert_eq!(request.schema, Some(json!({"type": "object"})));
        assert!(request.streams && request.counts && request.model == "m");
        assert!(conversation(&body).is_empty());
    }

    #[test]
    fn outputs_and_images_are_named_as_in_the_responses_api() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
        let text = json!({"type": "text", "text": "see"});
        assert_eq!(output(&json!([text])), "see");
        let read = json!([{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]);
        assert_eq!(output(&json!([text, image])), read);
        let asked = json!({"role": "user", "content": [text, image]});
        let result = json!({"role": "tool", "tool_call_id": "c1", "content": "see"});
        let attached = json!({"role": "user", "content": [{"type": "text", "text": ATTACHED}, image]});
        let body = json!({"messages": [asked, result, attached]});
        assert_eq!(newest_input(&body), ["see", "data:image/png;base64,AAAA"]);
        let wanted = Input::Output { call_id: "c1".into(), content: read, failed: false };
        assert_eq!(inputs(&body)[1..], [wanted]);
    }
}
