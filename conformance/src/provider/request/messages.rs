//! Reading a request of the Messages API. Claude Code puts a prefix before the name of a function, writes reminders of its
//! own between what users wrote, and puts a message that came while it worked into the outputs of tools.

use serde_json::{Value, json};

use super::{FOREIGN, Input, Request, Tool};
use crate::provider::protocol::Protocol;

/// The server that holds the application's functions.
const FUNCTIONS: &str = "functions";

/// The tool through which an answer by schema comes.
const STRUCTURED: &str = "StructuredOutput";

/// A note of the Harness's own.
const REMINDER: &str = "<system-reminder>";

/// What stands around a message that came while the Harness worked.
const WHILE_WORKING: [&str; 2] = [
    "<system-reminder>\nThe user sent a new message while you were working:\n",
    "\n\nThis is how Claude Code surfaces messages the user sends mid-turn",
];

/// How the names of tools that have to be searched for are told, one on each line behind this one.
const ANNOUNCED: &str = "The following deferred tools are now available via ToolSearch.";

/// How the text behind an image begins.
const COPY: &str = "[Image: source: ";

/// Texts in the user's place that the Harness writes by itself begin with one of these.
const NOT_FROM_A_USER: [&str; 5] = [
    REMINDER,
    "[Request interrupted by user",
    "[structured-output-enforce]",
    "Tool loaded.",
    "Your response above was cut off mid-stream.",
];

impl Request {
    /// Reads a body of the Messages API.
    pub(in crate::provider) fn messages(body: &str) -> Self {
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let offered = body["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
        let tools: Vec<_> = offered.iter().map(tool).collect();
        let searches = !tools.is_empty() && tools.iter().all(|tool| tool.kind.starts_with("web_search_"));
        let schema = tools.iter().find(|tool| tool.wire == STRUCTURED).map(|tool| tool.parameters.clone());
        let messages = || body["messages"].as_array().into_iter().flatten();
        Self {
            protocol: Protocol::Messages,
            model: body["model"].as_str().unwrap_or_default().to_owned(),
            streams: body["stream"] == true,
            counts: true,
            searches,
            instructions: blocks(&body["system"]).iter().filter_map(text).collect(),
            tools,
            announced: messages().flat_map(announced).collect(),
            inputs: messages().flat_map(inputs).collect(),
            schema,
        }
    }
}

fn tool(tool: &Value) -> Tool {
    let wire = tool["name"].as_str().unwrap_or_default();
    let foreign = wire.strip_prefix(FOREIGN).and_then(|name| name.split_once("__"));
    let (namespace, name) = foreign.map_or((None, wire), |(server, name)| (Some(server), name));
    let kind = tool["type"].as_str().filter(|kind| *kind != "custom").unwrap_or("function");
    Tool {
        name: name.to_owned(),
        namespace: namespace.filter(|server| *server != FUNCTIONS).map(str::to_owned),
        wire: wire.to_owned(),
        kind: kind.to_owned(),
        description: tool["description"].as_str().unwrap_or_default().to_owned(),
        parameters: tool["input_schema"].clone(),
        deferred: tool["defer_loading"] == true,
    }
}

/// The names that a message tells of tools to be searched for.
fn announced(message: &Value) -> Vec<String> {
    let told = |block: &Value| -> Option<Vec<String>> {
        let text = text(block)?;
        let (_, behind) = text.split_once(ANNOUNCED)?;
        let lines = behind.lines().skip(1);
        Some(lines.take_while(|line| !line.starts_with('<')).map(|name| plain_name(name).to_owned()).collect())
    };
    blocks(&message["content"]).iter().filter_map(told).flatten().collect()
}

/// The name of a function without what stands before it.
fn plain_name(wire: &str) -> &str {
    let own = wire.strip_prefix(FOREIGN).and_then(|name| name.strip_prefix(FUNCTIONS)?.strip_prefix("__"));
    own.unwrap_or(wire)
}

/// A content as its blocks: a text alone is one.
fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::Array(blocks) => blocks.clone(),
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        _ => Vec::new(),
    }
}

fn text(block: &Value) -> Option<String> {
    block["text"].as_str().filter(|_| block["type"] == "text").map(str::to_owned)
}

/// The texts and the addresses of images in the newest message of a user.
pub(in crate::provider) fn newest_input(body: &Value) -> Vec<String> {
    let messages = body["messages"].as_array().into_iter().flatten();
    let users = messages.filter(|message| message["role"] == "user").map(written);
    users.rev().find(|written| !written.is_empty()).unwrap_or_default()
}

/// What a user wrote of a message. A note of the Harness brings a line break to the text before it.
fn written(message: &Value) -> Vec<String> {
    let mut written: Vec<String> = Vec::new();
    for block in blocks(&message["content"]) {
        match (by_a_user(&block), written.last_mut()) {
            (Some(text), _) => written.push(text),
            (None, Some(last)) if last.ends_with('\n') => drop(last.pop()),
            (None, _) => {}
        }
    }
    written
}

/// A block as a user wrote it; behind an image stands a text with the path of its copy.
fn by_a_user(block: &Value) -> Option<String> {
    match text(block) {
        Some(text) => {
            let added = NOT_FROM_A_USER.iter().any(|start| text.starts_with(start)) || text.starts_with(COPY);
            (!added).then_some(text)
        }
        None if block["type"] == "image" => part(block)["image_url"].as_str().map(str::to_owned),
        None => None,
    }
}

/// The blocks of the conversation with who wrote them, without reminders and without marks for the provider's cache.
pub(in crate::provider) fn conversation(body: &Value) -> Vec<Value> {
    let messages = body["messages"].as_array().into_iter().flatten();
    let said = |message: &Value| -> Vec<Value> {
        let blocks = blocks(&message["content"]).into_iter();
        let kept = blocks.filter(|block| !text(block).is_some_and(|text| text.starts_with(REMINDER)));
        let plain = |mut block: Value| {
            if let Some(members) = block.as_object_mut() {
                members.remove("cache_control");
            }
            if block["type"] == "tool_result" {
                block["content"] = without_reminders(&block["content"]);
            }
            json!({"role": message["role"], "block": block})
        };
        kept.map(plain).collect()
    };
    messages.flat_map(said).collect()
}

/// The outputs of a message first, then what a user wrote in it.
fn inputs(message: &Value) -> Vec<Input> {
    if message["role"] != "user" {
        return vec![Input::Other];
    }
    let (mut outputs, mut written) = (Vec::new(), Vec::new());
    for block in blocks(&message["content"]) {
        if block["type"] == "tool_result" {
            written.extend(blocks(&block["content"]).iter().filter_map(text).filter_map(|text| while_working(&text)));
            outputs.push(output(&block));
        } else if let Some(text) = text(&block) {
            let by_a_user = !NOT_FROM_A_USER.iter().any(|start| text.starts_with(start));
            written.extend(while_working(&text).or_else(|| by_a_user.then_some(text)));
        } else {
            outputs.push(Input::Other);
        }
    }
    outputs.extend(written.into_iter().map(Input::User));
    outputs
}

/// What a user wrote while the Harness worked, where this text carries it.
fn while_working(text: &str) -> Option<String> {
    let [before, behind] = WHILE_WORKING;
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(behind)?.0.to_owned())
}

fn output(block: &Value) -> Input {
    Input::Output {
        call_id: block["tool_use_id"].as_str().unwrap_or_default().to_owned(),
        content: without_reminders(&block["content"]),
        failed: block["is_error"] == true,
    }
}

/// An output without the notes that the Harness adds to it: they follow in blocks of their own, and the text before them
/// gets a line break, or in the same text behind an empty line. One text alone is that text; several parts are named as in
/// the Responses API.
fn without_reminders(content: &Value) -> Value {
    let is_reminder = |part: &Value| part["text"].as_str().is_some_and(|text| text.starts_with(REMINDER));
    let parts = match content {
        Value::String(text) => {
            return text.split(&format!("\n\n{REMINDER}")).next().unwrap_or_default().into();
        }
        Value::Array(parts) => parts,
        other => return other.clone(),
    };
    let mut kept: Vec<Value> = Vec::new();
    for (place, part) in parts.iter().enumerate().filter(|(_, part)| !is_reminder(part)) {
        let mut part = part.clone();
        let noted = parts.get(place + 1).is_some_and(is_reminder);
        if let Some(text) = part["text"].as_str().and_then(|text| text.strip_suffix('\n')).filter(|_| noted) {
            part["text"] = json!(text);
        }
        kept.push(part);
    }
    match &kept[..] {
        [one] if one["type"] == "text" => one["text"].clone(),
        _ => kept.iter().map(part).collect(),
    }
}

/// A part as the Responses API has it.
fn part(part: &Value) -> Value {
    let source = &part["source"];
    match (part["type"].as_str(), source["media_type"].as_str(), source["data"].as_str()) {
        (Some("text"), ..) => json!({"type": "input_text", "text": part["text"]}),
        (Some("image"), Some(media_type), Some(data)) => {
            json!({"type": "input_image", "image_url": format!("data:{media_type};base64,{data}")})
        }
        _ => part.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Newest;
    use super::*;

    fn request(messages: &Value) -> Request {
        Request::messages(&json!({ "messages": messages }).to_string())
    }

    fn reminder(text: &str) -> Value {
        json!({"type": "text", "text": format!("<system-reminder>\n{text}\n</system-reminder>")})
    }

    fn steer() -> Value {
        json!({"type": "text", "text": "<system-reminder>\nThe user sent a new message while you were working:\nturn left\n\nThis is how Claude Code surfaces messages the user sends mid-turn — within\n</system-reminder>\n"})
    }

    #[test]
    fn users_are_told_from_reminders() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let asked = json!({"role": "user", "content": [reminder("Today's date"), text("hello"), text("and you")]});
        let inputs = request(&json!([asked])).inputs;
        assert_eq!(inputs, [Input::User("hello".into()), Input::User("and you".into())]);
        let nudge = json!({"role": "user", "content": [text("[structured-output-enforce] You MUST")]});
        let plain = json!({"role": "user", "content": "hello"});
        assert_eq!(request(&json!([plain, nudge])).newest(), Newest::User("hello".into()));
    }

    #[test]
    fn the_newest_input_and_the_conversation_are_without_what_the_harness_adds() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
        let image = json!({"type": "image", "source": source});
        let asked = [reminder("x"), text("see"), image, text("this\n"), text("[Image: source: /tmp/1.png]")];
        let result = json!({"type": "tool_result", "tool_use_id": "c", "content": [text("R\n"), reminder("x")]});
        let body = json!({"messages": [
            {"role": "user", "content": asked}, {"role": "assistant", "content": "well"},
            {"role": "user", "content": [result]}]});
        assert_eq!(newest_input(&body), ["see", "data:image/png;base64,AAAA", "this"]);
        let told = conversation(&body);
        assert_eq!(told.len(), 6);
        assert_eq!(told[4], json!({"role": "assistant", "block": {"type": "text", "text": "well"}}));
        assert_eq!(told[5]["block"]["content"], "R");
    }

    #[test]
    fn names_to_search_for_are_told_line_by_line() {
        let told = reminder(&format!("{ANNOUNCED} Use it:\nNotebookEdit\nmcp__functions__find"));
        let asked =
            json!({"role": "user", "content": [told, reminder("else\nwhere"), {"type": "text", "text": "hello"}]});
        assert_eq!(request(&json!([asked])).announced, ["NotebookEdit", "find"]);
    }

    #[test]
    fn an_output_is_what_the_call_gave() {
        let result = |content: Value| {
            let block = json!({"type": "tool_result", "tool_use_id": "c1", "content": content, "is_error": true});
            request(&json!([{"role": "user", "content": [block]}])).inputs.remove(0)
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        let read = |text: &str| json!({"type": "input_text", "text": text});
        let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
        let image = json!({"type": "image", "source": source});
        for (content, want) in [
            (json!("plain"), json!("plain")),
            (json!("plain\n\n<system-reminder>\nx</system-reminder>"), json!("plain")),
            (json!([text("R")]), json!("R")),
            (json!([text("R\n"), reminder("x")]), json!("R")),
            (json!([text("R\n")]), json!("R\n")),
            (json!([text("a"), text("b\n"), reminder("x")]), json!([read("a"), read("b")])),
            (json!([image]), json!([{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}])),
        ] {
            assert_eq!(result(content), Input::Output { call_id: "c1".into(), content: want, failed: true });
        }
    }

    #[test]
    fn a_message_while_it_works_is_newer_than_the_output_that_carries_it() {
        let block =
            json!({"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "R\n"}, steer()]});
        let request = request(&json!([{"role": "user", "content": [block]}]));
        assert_eq!(request.inputs.len(), 2);
        assert_eq!(request.newest(), Newest::User("turn left".into()));
    }

    #[test]
    fn tools_have_the_names_of_the_application() {
        let body = json!({"system": [{"type": "text", "text": "above"}], "tools": [
            {"name": "Bash", "input_schema": {}},
            {"name": "mcp__functions__a_b", "input_schema": {"type": "object"}, "defer_loading": true},
            {"name": "mcp__tickets__search", "input_schema": {}},
            {"name": "StructuredOutput", "input_schema": {"type": "object"}},
        ]});
        let request = Request::messages(&body.to_string());
        let names: Vec<_> = request.tools.iter().map(Tool::full_name).collect();
        assert_eq!(names, ["Bash", "a_b", "tickets.search", "StructuredOutput"]);
        let function = request.function("a.b").unwrap();
        assert!(function.deferred && function.wire == "mcp__functions__a_b");
        assert_eq!(request.function("tickets.search").unwrap().wire, "mcp__tickets__search");
        assert_eq!(request.shell().unwrap().wire, "Bash");
        assert_eq!(request.schema, Some(json!({"type": "object"})));
        assert_eq!((request.instructions, request.searches), (vec!["above".to_owned()], false));
        let body = json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]});
        assert!(Request::messages(&body.to_string()).searches);
    }
}
