//! What the provider does without a script. It keeps no state: the request alone decides.
//!
//! `sleep` runs a shell command of 60 s where a shell is offered, `call NAME` calls that function, the newest outputs
//! of tools are quoted, and anything else is echoed.

use serde_json::{Map, Value, json};

use super::request::{Newest, Request};
use crate::script::provider::{Action, Call, Shell, Text};

/// How long the command of `sleep` runs, in seconds.
const SLEEP_SECONDS: u32 = 60;

/// The longest time a shell tool accepts before it answers, in milliseconds.
const YIELD_MS: u64 = 30_000;

/// How deep example arguments are nested at most, whatever the schema says.
const DEPTH: u32 = 8;

/// The actions that answer the request.
pub(super) fn answer(request: &Request) -> Vec<Action> {
    match &request.newest {
        Newest::Nothing => say("There is nothing to answer."),
        Newest::Outputs(outputs) => say(&format!("The answer was: {}", outputs.join(", "))),
        Newest::User(prompt) => match prompt.trim().split_once(' ') {
            None if prompt.trim() == "sleep" => sleep(request),
            Some(("call", name)) => call(request, name.trim()),
            _ => say(prompt),
        },
    }
}

fn say(text: &str) -> Vec<Action> {
    let chunks = text.split_inclusive(' ').map(str::to_owned).collect();
    vec![Action::Text(Text { chunks, phase: Some("final_answer".into()), ..Text::default() })]
}

fn sleep(request: &Request) -> Vec<Action> {
    if request.shell().is_none() {
        return say("No shell is offered.");
    }
    vec![Action::Shell(Shell { command: format!("sleep {SLEEP_SECONDS}"), yield_ms: Some(YIELD_MS), call_id: None })]
}

fn call(request: &Request, name: &str) -> Vec<Action> {
    let Some(tool) = request.function(name) else {
        return say(&format!("No function {name} is offered."));
    };
    vec![Action::Calls(vec![Call {
        name: tool.name.clone(),
        namespace: tool.namespace.clone(),
        arguments: example(&tool.parameters, DEPTH).to_string(),
        call_id: None,
    }])]
}

/// A small value that fits a simple schema: the required properties, each with something short.
fn example(schema: &Value, depth: u32) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    if depth == 0 {
        return Value::Null;
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str),
        kind => kind.as_str(),
    };
    match kind {
        Some("string") => json!("text"),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("null") => Value::Null,
        _ => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let members = required.map(|name| (name.to_owned(), example(&schema["properties"][name], depth - 1)));
            Value::Object(members.collect::<Map<_, _>>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt: &str, tools: &Value) -> Request {
        let input = json!([{"type":"message","role":"user","content":[{"type":"input_text","text":prompt}]}]);
        Request::parse(&json!({ "input": input, "tools": tools }).to_string())
    }

    #[track_caller]
    fn check(prompt: &str, tools: &Value, want: &str) {
        let got = match &answer(&request(prompt, tools))[..] {
            [Action::Text(text)] => format!("text {}", text.chunks.concat()),
            [Action::Shell(shell)] => format!("shell {}", shell.command),
            [Action::Calls(calls)] => format!("call {} {}", calls[0].name, calls[0].arguments),
            other => format!("{other:?}"),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn the_prompt_decides() {
        let schema = json!({"type":"object","required":["city","days","unit","where"],"properties":{
            "city":{"type":"string"},"days":{"type":"integer"},"unit":{"enum":["C","F"]},"more":{"type":"string"},
            "where":{"type":"object","required":["x"],"properties":{"x":{"type":["number","null"]}}}}});
        let tools = json!([
            {"type":"function","name":"exec_command","parameters":{}},
            {"type":"function","name":"weather","parameters":schema}]);
        check("sleep", &tools, "shell sleep 60");
        check(" sleep\n", &tools, "shell sleep 60");
        check("sleep", &json!([]), "text No shell is offered.");
        check("call weather", &tools, r#"call weather {"city":"text","days":1,"unit":"C","where":{"x":1}}"#);
        check("call storm", &tools, "text No function storm is offered.");
        check("Hello there,  you", &tools, "text Hello there,  you");
        check("sleep well", &tools, "text sleep well");
    }

    #[test]
    fn outputs_are_quoted() {
        let input =
            json!([{"type":"function_call_output","output":"42"},{"type":"function_call_output","output":"43"}]);
        let Action::Text(text) = &answer(&Request::parse(&json!({ "input": input }).to_string()))[0] else {
            panic!("no text");
        };
        assert_eq!(text.chunks.concat(), "The answer was: 42, 43");
    }
}
