//! What the provider reads out of a request of the Responses API: the tools on offer and the newest input. It looks
//! only; the recorded body stays the text that came.

use serde_json::Value;

/// One request, as far as an answer depends on it.
#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    pub(super) tools: Vec<Tool>,
    pub(super) newest: Newest,
}

/// A tool on offer, from the top level, a namespace, or a list that is carried in the input.
#[derive(Debug, Clone)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// `function`, `custom`, or a hosted tool's name.
    pub(super) kind: String,
    pub(super) parameters: Value,
}

/// The newest input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Newest {
    /// Outputs of tools, in order.
    Outputs(Vec<String>),
    /// A user's message.
    User(String),
    #[default]
    Nothing,
}

/// User messages that a Harness writes by itself begin with one of these.
const NOT_FROM_A_USER: [&str; 5] =
    ["<environment_context>", "<turn_aborted>", "<user_instructions>", "# AGENTS.md instructions", "<model_switch>"];

impl Request {
    /// Reads a body; one that is no JSON offers nothing and asks nothing.
    pub(super) fn parse(body: &str) -> Self {
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let mut tools = Vec::new();
        collect_tools(&body["tools"], None, &mut tools);
        let items = match &body["input"] {
            Value::Array(items) => items.as_slice(),
            Value::String(text) => return Self { tools, newest: Newest::User(text.clone()) },
            _ => &[],
        };
        for item in items.iter().filter(|item| item["type"] == "additional_tools") {
            collect_tools(&item["tools"], None, &mut tools);
        }
        Self { tools, newest: newest(items) }
    }

    /// The function of this name, or of `namespace.name`.
    pub(super) fn function(&self, name: &str) -> Option<&Tool> {
        let functions = || self.tools.iter().filter(|tool| tool.kind == "function");
        functions().find(|tool| tool.name == name).or_else(|| {
            let (namespace, name) = name.rsplit_once('.')?;
            functions().find(|tool| tool.name == name && tool.namespace.as_deref() == Some(namespace))
        })
    }

    /// The shell tool, whatever its name and form.
    pub(super) fn shell(&self) -> Option<&Tool> {
        const NAMES: [&str; 4] = ["exec_command", "shell_command", "shell", "local_shell"];
        NAMES.iter().find_map(|name| self.tools.iter().find(|tool| tool.name == *name || tool.kind == *name))
    }
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
                kind: kind.to_owned(),
                parameters: tool["parameters"].clone(),
            });
        }
    }
}

fn newest(items: &[Value]) -> Newest {
    let mut outputs = Vec::new();
    for item in items.iter().rev() {
        let kind = item["type"].as_str().unwrap_or("message");
        if kind.ends_with("_output") {
            outputs.push(text_of(&item["output"]));
        } else if !outputs.is_empty() {
            break;
        } else if kind == "message" && item["role"] == "user" {
            let text = text_of(&item["content"]);
            if !NOT_FROM_A_USER.iter().any(|start| text.starts_with(start)) {
                return Newest::User(text);
            }
        }
    }
    outputs.reverse();
    if outputs.is_empty() { Newest::Nothing } else { Newest::Outputs(outputs) }
}

/// The text of a content or an output: a string, or a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().map(|part| part["text"].as_str().unwrap_or("[no text]")).collect::<Vec<_>>().join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(input: &Value, want: &Newest) {
        assert_eq!(&Request::parse(&json!({ "input": input }).to_string()).newest, want);
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
        let request = Request::parse(&body.to_string());
        assert_eq!(request.function("lookup").unwrap().namespace.as_deref(), Some("bridge"));
        assert_eq!(request.function("bridge.lookup").unwrap().name, "lookup");
        assert_eq!(request.function("inner").unwrap().namespace, None);
        assert!(request.function("web_search").is_none());
        assert_eq!(request.shell().unwrap().name, "exec_command");
    }
}
