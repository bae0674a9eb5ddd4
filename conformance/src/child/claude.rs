//! Ready programs that speak enough of the stream of JSON lines of `claude` to be taken for it, each with one fault at one place (see
//! [`super::fault`]); and what a child takes from the arguments and the lines of that protocol.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::fault::{self, FUNCTION, Place};
use super::steps::{line, raw, result, set, set_rule};
use crate::script::child::{Bytes, Command, Program, Read, Rule, Step};

/// What `--version` answers.
pub const VERSION_LINE: &str = "2.1.332 (Claude Code)\n";

/// The JSON-RPC id and the id of the request of a call.
const CALL: u64 = 0;

/// A program without a fault.
#[must_use]
pub fn healthy() -> Program {
    build(None, &[])
}

/// A program whose Turn calls [`FUNCTION`] with these arguments (JSON text), and is healthy otherwise.
#[must_use]
pub fn calling(arguments: &str) -> Program {
    let mut program = healthy();
    set_rule(&mut program, "user", turn(&|_| Vec::new(), Some(arguments), false));
    program
}

/// A program with steps of the caller's own at a place.
#[must_use]
pub fn with_steps(place: Place, steps: &[Step]) -> Program {
    build(Some(place), steps)
}

fn build(place: Option<Place>, fault: &[Step]) -> Program {
    let at = |here| fault::at(place, fault, here);
    let arguments = matches!(place, Some(Place::InCall | Place::AfterCall)).then_some(r#"{"q":"life"}"#);
    let interrupted = place == Some(Place::AtInterrupt);
    let version = Step::Bytes(Bytes { text: Some(VERSION_LINE.into()), ..Bytes::default() });
    let version = Command { args: vec!["--version".into()], steps: vec![version] };
    // The first one starts the conversation, any other one asks how it stands.
    let start = Rule { method: "initialize".into(), times: Some(1), then: initialize(&at) };
    let asked = Rule { method: "initialize".into(), times: None, then: vec![initialized()] };
    let mut program =
        Program { steps: at(Place::Start), rules: vec![start, asked], commands: vec![version], on_eof: None };
    set_rule(&mut program, "user", turn(&at, arguments, interrupted));
    set_rule(&mut program, "interrupt", interrupt());
    program
}

fn initialize(at: &impl Fn(Place) -> Vec<Step>) -> Vec<Step> {
    let mut steps = at(Place::AtInitialize);
    steps.extend(at(Place::AtThreadStart));
    steps.extend([set(json!({"tools": "${offered}", "state": "idle"})), initialized()]);
    steps.extend(at(Place::AfterInitialize));
    steps.extend(at(Place::AfterThreadStart));
    steps
}

fn initialized() -> Step {
    result(&json!({
        "commands": [], "agents": [], "models": [], "output_style": "default", "pid": "${pid}",
        "account": {"apiKeySource": "ANTHROPIC_API_KEY", "tokenSource": "none"},
        "claude_code_version": "2.1.332", "session_state": "${state}",
    }))
}

/// The steps of one Turn, with a function call in it where there are arguments for one.
fn turn(at: &dyn Fn(Place) -> Vec<Step>, call: Option<&str>, interrupted: bool) -> Vec<Step> {
    let mut steps = at(Place::AtTurnStart);
    steps.extend([set(json!({"turn": "${.uuid}", "state": "running"})), lifecycle("queued")]);
    steps.extend(at(Place::AfterTurnStart));
    steps.extend([state("running"), lifecycle("started"), init()]);
    steps.extend(at(Place::InTurn));
    steps.extend([message_start("msg_1"), block_start(0, json!({"type": "text", "text": ""}))]);
    steps.push(delta("Let me look."));
    steps.extend(at(Place::InMessage));
    if interrupted {
        steps.push(Step::Read(Read { method: Some("interrupt".into()), answer_to: None }));
        steps.extend(at(Place::AtInterrupt));
        steps.extend(interrupt());
        return steps;
    }
    steps.extend([assistant("msg_1", json!({"type": "text", "text": "Let me look."})), block_stop(0)]);
    steps.extend(command(at));
    if let Some(arguments) = call {
        steps.extend(function_call(at, arguments));
    }
    steps.extend([message_start("msg_3"), block_start(0, json!({"type": "text", "text": ""})), delta("All is well.")]);
    steps.extend([assistant("msg_3", json!({"type": "text", "text": "All is well."})), block_stop(0)]);
    steps.extend(message_end("end_turn"));
    steps.extend(at(Place::BeforeEnd));
    steps.extend(end());
    steps.extend(at(Place::AfterEnd));
    steps
}

/// What ends a Turn that went well.
#[must_use]
pub fn end() -> Vec<Step> {
    let counts = json!({"inputTokens": 90, "outputTokens": 20, "cacheReadInputTokens": 10,
        "cacheCreationInputTokens": 0, "thinkingTokens": 5});
    let result = json!({
        "type": "result", "subtype": "success", "is_error": false, "num_turns": 1, "result": "All is well.",
        "stop_reason": "end_turn", "terminal_reason": "completed", "api_error_status": null,
        "session_id": "${session}", "model_usage_since_last_result": {"claude-sonnet-4-5": counts},
    });
    vec![line(&result), lifecycle("completed"), set(json!({"state": "idle"})), state("idle")]
}

fn command(at: &dyn Fn(Place) -> Vec<Step>) -> Vec<Step> {
    let used = |input: Value| json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": input});
    let input = json!({"type": "input_json_delta", "partial_json": r#"{"command":"echo hi"}"#});
    let mut steps = vec![
        block_start(1, used(json!({}))),
        event(&json!({"type": "content_block_delta", "index": 1, "delta": input})),
        assistant("msg_1", used(json!({"command": "echo hi"}))),
        block_stop(1),
    ];
    steps.extend(message_end("tool_use"));
    steps.extend(at(Place::InCommand));
    let shown = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": "hi", "is_error": false});
    steps.push(line(&json!({
        "type": "user", "message": {"role": "user", "content": [shown]}, "parent_tool_use_id": null,
        "session_id": "${session}", "tool_use_result": {"stdout": "hi", "stderr": "", "interrupted": false},
    })));
    steps
}

fn function_call(at: &dyn Fn(Place) -> Vec<Step>, arguments: &str) -> Vec<Step> {
    let name = format!("mcp__functions__{FUNCTION}");
    let input = json!({"type": "input_json_delta", "partial_json": arguments});
    // Text and not `json!`, so that the arguments stay byte for byte.
    let told = format!(
        r#"{{"type":"assistant","message":{{"id":"msg_2","model":"claude-sonnet-4-5","content":[{{"type":"tool_use","id":"call_1","name":"{name}","input":{arguments}}}],"stop_reason":null}},"parent_tool_use_id":null}}"#
    );
    let mut steps = vec![
        message_start("msg_2"),
        block_start(0, json!({"type": "tool_use", "id": "call_1", "name": name, "input": {}})),
        event(&json!({"type": "content_block_delta", "index": 0, "delta": input})),
        text(told),
        block_stop(0),
        call(CALL, "call_1", FUNCTION, arguments),
    ];
    steps.extend(message_end("tool_use"));
    steps.extend(at(Place::InCall));
    steps.push(Step::Read(Read { method: None, answer_to: Some(CALL) }));
    steps.extend(at(Place::AfterCall));
    let shown = json!({
        "type": "tool_result", "tool_use_id": "call_1", "content": "${response.response.mcp_response.result.content?}",
        "is_error": "${response.response.mcp_response.result.isError?}",
    });
    steps.push(line(&json!({
        "type": "user", "message": {"role": "user", "content": [shown]}, "parent_tool_use_id": null,
        "session_id": "${session}",
    })));
    steps
}

/// A request for a call of a function, with its arguments as text.
#[must_use]
pub fn call(id: u64, call_id: &str, function: &str, arguments: &str) -> Step {
    text(format!(
        r#"{{"type":"control_request","request_id":"{id}","request":{{"subtype":"mcp_message","server_name":"functions","message":{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{function}","arguments":{arguments},"_meta":{{"claudecode/toolUseId":"{call_id}"}}}}}}}}}}"#
    ))
}

/// Lines, events, blocks and a request that nobody knows.
pub(super) fn unknown_messages() -> Vec<Step> {
    vec![
        line(&json!({"type": "teleported", "session_id": "${session}"})),
        line(&json!({"type": "system", "subtype": "teleported", "session_id": "${session}"})),
        event(&json!({"type": "block_teleported", "index": 0, "delta": {"type": "hologram"}})),
        event(&json!({"type": "content_block_delta", "index": 0, "delta": {"type": "hologram_delta"}})),
        assistant("msg_h", json!({"type": "hologram", "id": "h1"})),
        line(&json!({"type": "control_request", "request_id": "900", "request": {"subtype": "foo_bar"}})),
    ]
}

/// Refuses the request that came last.
pub(super) fn refusal() -> Step {
    Step::Error(raw(&json!("no")))
}

/// Says that the interrupt is taken.
pub(super) fn interrupt_taken() -> Step {
    result(&json!({"still_queued": [], "cancelled": []}))
}

fn interrupt() -> Vec<Step> {
    let result = json!({
        "type": "result", "subtype": "error_during_execution", "is_error": true, "num_turns": 1,
        "errors": ["[ede_diagnostic]"], "stop_reason": null, "terminal_reason": "aborted_streaming",
        "session_id": "${session}", "model_usage_since_last_result": {},
    });
    vec![interrupt_taken(), line(&result), lifecycle("cancelled"), set(json!({"state": "idle"})), state("idle")]
}

/// More of the text that is open.
pub(super) fn delta(text: &str) -> Step {
    event(&json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}))
}

fn init() -> Step {
    line(&json!({
        "type": "system", "subtype": "init", "session_id": "${session}", "tools": "${tools}",
        "model": "claude-sonnet-4-5", "claude_code_version": "2.1.332",
    }))
}

fn lifecycle(state: &str) -> Step {
    let line =
        json!({"type": "command_lifecycle", "command_uuid": "${turn?}", "state": state, "session_id": "${session}"});
    self::line(&line)
}

fn state(state: &str) -> Step {
    line(&json!({"type": "system", "subtype": "session_state_changed", "state": state, "session_id": "${session}"}))
}

fn message_start(id: &str) -> Step {
    event(&json!({"type": "message_start", "message": {"id": id, "role": "assistant", "content": []}}))
}

fn message_end(reason: &str) -> [Step; 2] {
    let usage = json!({"input_tokens": 30, "output_tokens": 5, "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0});
    let delta = json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage});
    [event(&delta), event(&json!({"type": "message_stop"}))]
}

fn block_start(index: u32, block: Value) -> Step {
    event(&json!({"type": "content_block_start", "index": index, "content_block": block}))
}

fn block_stop(index: u32) -> Step {
    event(&json!({"type": "content_block_stop", "index": index}))
}

fn event(event: &Value) -> Step {
    line(&json!({"type": "stream_event", "event": event, "parent_tool_use_id": null, "session_id": "${session}"}))
}

fn assistant(id: &str, block: Value) -> Step {
    let message = json!({"id": id, "role": "assistant", "model": "claude-sonnet-4-5", "content": [block],
        "stop_reason": null});
    line(&json!({"type": "assistant", "message": message, "parent_tool_use_id": null, "session_id": "${session}"}))
}

fn text(json: String) -> Step {
    Step::Line(RawValue::from_string(json).unwrap_or_else(|_| RawValue::NULL.to_owned()))
}

/// The conversation that the arguments name.
pub(super) fn session(args: &[String]) -> Option<&str> {
    value(args, "--session-id=").or_else(|| value(args, "--resume="))
}

/// The tools that the arguments and this `initialize` have it offer.
pub(super) fn offered(args: &[String], initialize: &Value) -> Value {
    let native = value(args, "--tools=").unwrap_or_default().split(',').filter(|name| !name.is_empty());
    let request = &initialize["request"];
    let declared = &request["sdkMcpServerManifests"]["functions"]["toolsListResult"]["tools"];
    let declared = declared.as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str());
    let structured = request.get("jsonSchema").map(|_| "StructuredOutput".to_owned());
    let functions = declared.map(|name| format!("mcp__functions__{name}"));
    native.map(str::to_owned).chain(functions).chain(structured).collect::<Vec<_>>().into()
}

/// The answer to the control request that came last.
pub(super) fn success(result: &str) -> String {
    format!(
        r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"${{request_id}}","response":{result}}}}}"#
    )
}

/// Its refusal.
pub(super) fn error(error: &str) -> String {
    format!(
        r#"{{"type":"control_response","response":{{"subtype":"error","request_id":"${{request_id}}","error":{error}}}}}"#
    )
}

fn value<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    args.iter().find_map(|arg| arg.strip_prefix(name))
}
