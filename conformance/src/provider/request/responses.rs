//! Reading a request of the Responses API. Tools stand at the top level, in namespaces, and in lists that are carried in
//! the input.

use serde_json::Value;

use super::{Input, Request, Tool, text_of};
use crate::provider::protocol::Protocol;

/// User messages that a Harness writes by itself begin with one of these.
const NOT_FROM_A_USER: [&str; 5] =
    ["<environment_context>", "<turn_aborted>", "<user_instructions>", "# AGENTS.md instructions", "<model_switch>"];

impl Request {
    /// Reads a body of the Responses API.
    pub(in crate::provider) fn responses(body: &str) -> Self {
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let mut tools = Vec::new();
        collect_tools(&body["tools"], None, &mut tools);
        let (inputs, items) = match &body["input"] {
            Value::Array(items) => (items.iter().map(input).collect(), items.as_slice()),
            Value::String(text) => (vec![Input::User(text.clone())], &[][..]),
            _ => (Vec::new(), &[][..]),
        };
        for item in items.iter().filter(|item| item["type"] == "additional_tools") {
            collect_tools(&item["tools"], None, &mut tools);
        }
        let above = |item: &&Value| item["role"] == "developer" || item["role"] == "system";
        let instructions = body["instructions"].as_str().map(str::to_owned);
        let format = &body["text"]["format"];
        Self {
            protocol: Protocol::Responses,
            model: body["model"].as_str().unwrap_or_default().to_owned(),
            streams: true,
            counts: true,
            searches: false,
            announced: Vec::new(),
            instructions: instructions
                .into_iter()
                .chain(items.iter().filter(above).map(|item| text_of(&item["content"])))
                .collect(),
            tools,
            inputs,
            schema: (format["type"] == "json_schema").then(|| format["schema"].clone()),
        }
    }
}

/// The texts and the addresses of images in the newest message of a user.
pub(in crate::provider) fn newest_input(body: &Value) -> Vec<String> {
    let mut items = body["input"].as_array().into_iter().flatten();
    let newest = items.rfind(|item| item["role"] == "user");
    let parts = newest.and_then(|item| item["content"].as_array()).into_iter().flatten();
    let said = |part: &Value| match part["type"].as_str() {
        Some("input_text") => part["text"].as_str().map(str::to_owned),
        Some("input_image") => part["image_url"].as_str().map(str::to_owned),
        _ => None,
    };
    parts.map(|part| said(part).unwrap_or_else(|| part.to_string())).collect()
}

fn collect_tools(list: &Value, namespace: Option<&str>, tools: &mut Vec<Tool>) {
    for tool in list.as_array().into_iter().flatten() {
        let kind = tool["type"].as_str().unwrap_or_default();
        let name = tool["name"].as_str().unwrap_or(kind);
        if kind == "namespace" {
            collect_tools(&tool["tools"], Some(name), tools);
        } else {
            tools.push(Tool {
                name: name.to_owned(),
                namespace: namespace.filter(|namespace| *namespace != "functions").map(str::to_owned),
                wire: name.to_owned(),
                kind: kind.to_owned(),
                description: tool["description"].as_str().unwrap_or_default().to_owned(),
                parameters: tool["parameters"].clone(),
                deferred: tool["defer_loading"] == true,
            });
        }
    }
}

fn input(item: &Value) -> Input {
    let kind = item["type"].as_str().unwrap_or("message");
    if kind.ends_with("_output") {
        let call_id = item["call_id"].as_str().unwrap_or_default().to_owned();
        return Input::Output { call_id, content: item["output"].clone(), failed: false };
    }
    let text = text_of(&item["content"]);
    let from_a_user =
        kind == "message" && item["role"] == "user" && !NOT_FROM_A_USER.iter().any(|start| text.starts_with(start));
    if from_a_user { Input::User(text) } else { Input::Other }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Newest;
    use super::*;

    #[track_caller]
    fn check(input: &Value, want: &Newest) {
        assert_eq!(&Request::responses(&json!({ "input": input }).to_string()).newest(), want);
    }

    #[test]
    fn the_newest_input_is_the_last_user_message_or_the_last_outputs() {
        let user = |text: &str| json!({"type":"message","role":"user","content":[{"type":"input_text","text":text}]});
        let call = json!({"type":"function_call","name":"f","call_id":"c"});
        let output = |text: &str| json!({"type":"function_call_output","call_id":"c","output":text});
        check(&json!([]), &Newest::Nothing);
        check(&json!("plain"), &Newest::User("plain".into()));
        check(&json!([user("<environment_context>x"), user("hi")]), &Newest::User("hi".into()));
        check(&json!([user("hi"), user("<turn_aborted> x")]), &Newest::User("hi".into()));
        check(
            &json!([user("hi"), call, call, output("a"), output("b")]),
            &Newest::Outputs(vec!["a".into(), "b".into()]),
        );
        check(&json!([user("hi"), call, output("a"), user("and")]), &Newest::User("and".into()));
        check(
            &json!([{"type":"custom_tool_call_output","output":[{"type":"input_text","text":"p"},{"type":"input_image"}]}]),
            &Newest::Outputs(vec!["p\n[no text]".into()]),
        );
    }

    #[test]
    fn tools_are_found_at_the_top_in_namespaces_and_in_the_input() {
        let body = json!({
            "tools": [
                {"type":"function","name":"exec_command","parameters":{}},
                {"type":"web_search"},
                {"type":"namespace","name":"bridge","tools":[{"type":"function","name":"lookup","parameters":{}}]},
            ],
            "input": [{"type":"additional_tools","tools":[
                {"type":"namespace","name":"functions","tools":[{"type":"function","name":"inner"}]}]}],
        });
        let request = Request::responses(&body.to_string());
        assert_eq!(request.function("lookup").unwrap().namespace.as_deref(), Some("bridge"));
        assert_eq!(request.function("bridge.lookup").unwrap().name, "lookup");
        assert_eq!(request.function("inner").unwrap().namespace, None);
        assert!(request.function("web_search").is_none());
        assert_eq!(request.shell().unwrap().name, "exec_command");
    }

    #[test]
    fn instructions_and_the_schema_of_the_answer_are_found() {
        let body = json!({
            "instructions": "above",
            "text": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
            "input": [{"type":"message","role":"developer","content":[{"type":"input_text","text":"below"}]}],
        });
        let request = Request::responses(&body.to_string());
        assert_eq!(request.instructions, ["above", "below"]);
        assert_eq!(request.schema, Some(json!({"type": "object"})));
        assert_eq!(Request::responses("{}").schema, None);
    }
}
