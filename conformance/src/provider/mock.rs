//! What the provider does without a script. It keeps no state: the request alone decides.
//!
//! `sleep` runs a shell command of 60 s where a shell is offered, `call NAME` calls that function, the newest outputs
//! of tools are quoted, and anything else is echoed. Where the answer is to fit a schema, it ends with a value that does.

use serde_json::{Map, Value, json};

use super::protocol::Protocol;
use super::request::{Newest, Request};
use crate::script::provider::{Action, Call, Search, Shell, Text};

/// How long the command of `sleep` runs, in seconds.
const SLEEP_SECONDS: u32 = 60;

/// The longest time a shell tool accepts before it answers, in milliseconds.
const YIELD_MS: u64 = 30_000;

/// How deep example arguments are nested at most, whatever the schema says.
const DEPTH: u32 = 8;

/// The actions that answer the request.
pub(super) fn answer(request: &Request) -> Vec<Action> {
    match request.newest() {
        Newest::User(prompt) if request.searches => search(&prompt),
        Newest::Nothing => finish(request, "There is nothing to answer."),
        Newest::Outputs(outputs) => finish(request, &format!("The answer was: {}", outputs.join(", "))),
        Newest::User(prompt) => match prompt.trim().split_once(' ') {
            None if prompt.trim() == "sleep" => sleep(request),
            Some(("call", name)) => call(request, name.trim()),
            _ => finish(request, &prompt),
        },
    }
}

/// The end of a Turn: the text, or where a schema is asked for, a value that fits it.
fn finish(request: &Request, text: &str) -> Vec<Action> {
    let Some(schema) = &request.schema else { return say(text) };
    let value = example(schema, DEPTH).to_string();
    match request.protocol {
        Protocol::Responses | Protocol::ChatCompletions => say(&value),
        Protocol::Messages => {
            vec![Action::Calls(vec![Call { name: "StructuredOutput".into(), arguments: value, ..Call::default() }])]
        }
    }
}

/// The provider's own search, in the request that Claude Code makes for it.
fn search(prompt: &str) -> Vec<Action> {
    let query = prompt.rsplit_once("query: ").map_or(prompt, |(_, query)| query).to_owned();
    let results = vec![("An example".to_owned(), "https://example.com/".to_owned())];
    let found = format!("Found about {query}: https://example.com/");
    [vec![Action::Search(Search { query, results, call_id: None })], say(&found)].concat()
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
        Request::responses(&json!({ "input": input, "tools": tools }).to_string())
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
    fn a_schema_is_answered_with_a_value_that_fits_it() {
        let schema = json!({"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}});
        let said = |request: &Request| match &answer(request)[..] {
            [Action::Text(text)] => text.chunks.concat(),
            [Action::Calls(calls)] => format!("{} {}", calls[0].name, calls[0].arguments),
            other => format!("{other:?}"),
        };
        let body = json!({"input": "hello", "text": {"format": {"type": "json_schema", "schema": schema}}});
        assert_eq!(said(&Request::responses(&body.to_string())), r#"{"n":1}"#);
        let tools = json!([{"name": "StructuredOutput", "input_schema": schema}]);
        let body = json!({"messages": [{"role": "user", "content": "hello"}], "tools": tools});
        assert_eq!(said(&Request::messages(&body.to_string())), r#"StructuredOutput {"n":1}"#);
    }

    #[test]
    fn claude_code_is_asked_in_its_own_words() {
        let tools = json!([{"name": "Bash", "input_schema": {}}, {"name": "mcp__functions__f", "input_schema": {}}]);
        let said = |prompt: &str, tools: &Value| {
            let body = json!({"messages": [{"role": "user", "content": prompt}], "tools": tools});
            answer(&Request::messages(&body.to_string()))
        };
        assert!(matches!(&said("sleep", &tools)[..], [Action::Shell(_)]));
        assert!(matches!(&said("call f", &tools)[..], [Action::Calls(calls)] if calls[0].name == "f"));
        let searching = json!([{"type": "web_search_20250305", "name": "web_search"}]);
        let found = said("Perform a web search for the query: plums", &searching);
        assert!(matches!(&found[..], [Action::Search(search), Action::Text(_)] if search.query == "plums"));
    }

    #[test]
    fn outputs_are_quoted() {
        let input =
            json!([{"type":"function_call_output","output":"42"},{"type":"function_call_output","output":"43"}]);
        let Action::Text(text) = &answer(&Request::responses(&json!({ "input": input }).to_string()))[0] else {
            panic!("no text");
        };
        assert_eq!(text.chunks.concat(), "The answer was: 42, 43");
    }
}
