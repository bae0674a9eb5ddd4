//! Ready programs that speak enough of `codex app-server` to be taken for it, each with one fault at one place (see [`super::fault`]).

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::fault::{self, FUNCTION, Fault, Place};
use super::steps::{line, raw, result, set, set_rule};
use crate::rig::Harness;
use crate::script::child::{Command, Program, Read, Step};

/// A program without a fault.
#[must_use]
pub fn healthy() -> Program {
    build(None, &[])
}

/// A program whose Turn calls [`FUNCTION`] with these arguments (JSON text), and is healthy otherwise.
#[must_use]
pub fn calling(arguments: &str) -> Program {
    let mut program = healthy();
    let arguments = RawValue::from_string(arguments.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned());
    set_rule(&mut program, "turn/start", turn(&|_| Vec::new(), Some(&arguments), false));
    program
}

/// A program on a machine whose managed configuration requires this, with this catalogue of models, and healthy otherwise.
#[must_use]
pub fn managed(requirements: &Value, catalogue: &Value) -> Program {
    let mut program = healthy();
    let answer = json!({"supportsIndependentSpeedModes": true, "requirements": requirements});
    set_rule(&mut program, "configRequirements/read", vec![result(&answer)]);
    let args = ["debug", "models", "--bundled"].map(str::to_owned).into();
    program.commands.push(Command { args, steps: vec![line(catalogue), Step::Exit(0)] });
    program
}

/// A program with a fault at a place.
#[must_use]
pub fn with_fault(place: Place, fault: Fault) -> Program {
    build(Some(place), &fault.steps(Harness::Codex))
}

/// A program with steps of the caller's own at a place.
#[must_use]
pub fn with_steps(place: Place, steps: &[Step]) -> Program {
    build(Some(place), steps)
}

fn build(place: Option<Place>, fault: &[Step]) -> Program {
    let at = |here| fault::at(place, fault, here);
    let calls = matches!(place, Some(Place::InCall | Place::AfterCall));
    let arguments = calls.then(|| raw(&json!({"q": "life"})));
    let interrupted = place == Some(Place::AtInterrupt);
    let mut program = Program { steps: at(Place::Start), rules: Vec::new(), commands: Vec::new(), on_eof: None };
    set_rule(&mut program, "initialize", initialize(&at));
    set_rule(&mut program, "initialized", Vec::new());
    set_rule(&mut program, "thread/start", thread(&at, json!("${uuid}")));
    set_rule(&mut program, "thread/resume", thread(&at, json!("${params.threadId}")));
    set_rule(&mut program, "turn/start", turn(&at, arguments.as_deref(), interrupted));
    set_rule(&mut program, "turn/interrupt", interrupt());
    set_rule(
        &mut program,
        "configRequirements/read",
        vec![result(&json!({"supportsIndependentSpeedModes": true, "requirements": null}))],
    );
    set_rule(&mut program, "thread/backgroundTerminals/list", vec![result(&json!({"data": [], "nextCursor": null}))]);
    set_rule(&mut program, "server/diagnostics", vec![result(&json!({"process": {"id": "${pid}"}, "gauges": []}))]);
    for method in ["thread/backgroundTerminals/clean", "thread/settings/update", "thread/unsubscribe", "thread/archive"]
    {
        set_rule(&mut program, method, vec![result(&json!({}))]);
    }
    program
}

fn initialize(at: &impl Fn(Place) -> Vec<Step>) -> Vec<Step> {
    let mut steps = at(Place::AtInitialize);
    steps.push(result(&json!({
        "userAgent": "bridge/0.171.0 (Linux; x86_64) unknown (bridge; 1.0)",
        "codexHome": "/nonexistent", "platformFamily": "unix", "platformOs": "linux",
    })));
    steps.push(notify("remoteControl/status/changed", &json!({ "status": "disabled" })));
    steps.extend(at(Place::AfterInitialize));
    steps
}

fn thread(at: &impl Fn(Place) -> Vec<Step>, id: Value) -> Vec<Step> {
    let thread = json!({
        "id": "${thread}", "sessionId": "${thread}", "parentThreadId": null, "preview": "", "ephemeral": false,
        "modelProvider": "p", "createdAt": 0, "status": {"type": "idle"}, "path": "/nonexistent/rollout.jsonl",
        "cwd": "${params.cwd?}", "cliVersion": "0.171.0", "source": "vscode", "turns": [],
    });
    let mut steps = at(Place::AtThreadStart);
    steps.extend([
        set(json!({ "thread": id })),
        result(&json!({
            "thread": thread, "model": "${params.model?}", "modelProvider": "${params.modelProvider?}",
            "cwd": "${params.cwd?}", "instructionSources": [], "approvalPolicy": "never", "approvalsReviewer": "user",
            "sandbox": {"type": "dangerFullAccess"}, "reasoningEffort": null,
        })),
        notify("thread/started", &json!({ "thread": thread })),
    ]);
    steps.extend(at(Place::AfterThreadStart));
    steps
}

/// The steps of one Turn, with a function call in it where there are arguments for one.
fn turn(at: &dyn Fn(Place) -> Vec<Step>, call: Option<&RawValue>, interrupted: bool) -> Vec<Step> {
    let mut steps = at(Place::AtTurnStart);
    let running =
        json!({"id": "${turn}", "items": [], "itemsView": "notLoaded", "status": "inProgress", "error": null});
    steps.extend([
        set(json!({"turn": "${uuid}", "client": "${params.clientUserMessageId?}", "input": "${params.input?}"})),
        result(&json!({ "turn": running })),
    ]);
    steps.extend(at(Place::AfterTurnStart));
    steps.push(status(&json!({"type": "active", "activeFlags": []})));
    steps.push(notify("turn/started", &json!({"threadId": "${thread}", "turn": running})));
    let user = json!({"type": "userMessage", "id": "u1", "clientId": "${client}", "content": "${input}"});
    steps.extend([started(&user), completed(&user)]);
    steps.extend(at(Place::InTurn));
    let message =
        |id: &str, text: &str, phase: &str| json!({"type": "agentMessage", "id": id, "text": text, "phase": phase});
    steps.extend([started(&message("msg_1", "", "commentary")), delta("msg_1", "Let me look.")]);
    steps.extend(at(Place::InMessage));
    if interrupted {
        steps.push(Step::Read(Read { method: Some("turn/interrupt".into()), answer_to: None }));
        steps.extend(at(Place::AtInterrupt));
        steps.extend(interrupt());
        return steps;
    }
    steps.push(completed(&message("msg_1", "Let me look.", "commentary")));
    steps.extend(command(at));
    if let Some(arguments) = call {
        steps.extend(function_call(at, arguments));
    }
    let answer = message("msg_2", "All is well.", "final_answer");
    steps.extend([started(&message("msg_2", "", "final_answer")), delta("msg_2", "All is well."), completed(&answer)]);
    let counts = json!({"totalTokens": 120, "inputTokens": 100, "cachedInputTokens": 10, "cacheWriteInputTokens": 0, "outputTokens": 20, "reasoningOutputTokens": 5});
    let usage = json!({"total": counts, "last": counts, "modelContextWindow": 258_400});
    steps.push(notify(
        "thread/tokenUsage/updated",
        &json!({"threadId": "${thread}", "turnId": "${turn}", "tokenUsage": usage}),
    ));
    steps.extend(at(Place::BeforeEnd));
    steps.push(status(&json!({ "type": "idle" })));
    steps.push(ended("completed", &json!([answer])));
    steps.extend(at(Place::AfterEnd));
    steps
}

fn command(at: &dyn Fn(Place) -> Vec<Step>) -> Vec<Step> {
    let item = |status: &str, output: Value, exit: Value| {
        json!({"type": "commandExecution", "id": "e1", "command": "/bin/bash -lc 'echo hi'", "cwd": "/", "processId": "1",
            "source": "unifiedExecStartup", "status": status, "commandActions": [{"type": "unknown", "command": "echo hi"}],
            "aggregatedOutput": output, "exitCode": exit, "durationMs": null})
    };
    let output = json!({"threadId": "${thread}", "turnId": "${turn}", "itemId": "e1", "delta": "hi\n"});
    let mut steps = vec![
        started(&item("inProgress", Value::Null, Value::Null)),
        notify("item/commandExecution/outputDelta", &output),
    ];
    steps.extend(at(Place::InCommand));
    steps.push(completed(&item("completed", json!("hi\n"), json!(0))));
    steps
}

fn function_call(at: &dyn Fn(Place) -> Vec<Step>, arguments: &RawValue) -> Vec<Step> {
    // Text and not `json!`, so that the arguments stay byte for byte.
    let item = |status: &str, content: &str, success: &str| {
        let text = format!(
            r#"{{"type":"dynamicToolCall","id":"call_1","namespace":null,"tool":"{FUNCTION}","arguments":{},"status":"{status}","contentItems":{content},"success":{success}}}"#,
            arguments.get()
        );
        RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
    };
    let with = |method: &str, item: &RawValue| {
        let text = format!(
            r#"{{"method":"{method}","params":{{"threadId":"${{thread}}","turnId":"${{turn}}","item":{}}}}}"#,
            item.get()
        );
        Step::Line(RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned()))
    };
    let request = format!(
        r#"{{"method":"item/tool/call","id":0,"params":{{"threadId":"${{thread}}","turnId":"${{turn}}","callId":"call_1","namespace":null,"tool":"{FUNCTION}","arguments":{}}}}}"#,
        arguments.get()
    );
    let mut steps = vec![
        with("item/started", &item("inProgress", "null", "null")),
        Step::Line(RawValue::from_string(request).unwrap_or_else(|_| RawValue::NULL.to_owned())),
    ];
    steps.extend(at(Place::InCall));
    steps.push(Step::Read(Read { method: None, answer_to: Some(0) }));
    steps.extend(at(Place::AfterCall));
    steps.push(with("item/completed", &item("completed", r#""${result.contentItems}""#, r#""${result.success}""#)));
    steps
}

/// Notifications, items and a request that nobody knows.
pub(super) fn unknown_messages() -> Vec<Step> {
    vec![
        notify("turn/teleported", &json!({"threadId": "${thread?}"})),
        notify(
            "item/started",
            &json!({"threadId": "${thread?}", "turnId": "${turn?}", "item": {"type": "hologram", "id": "h1"}}),
        ),
        line(&json!({"id": 900, "method": "foo/bar", "params": {}})),
    ]
}

/// Refuses the request that came last.
pub(super) fn refusal() -> Step {
    Step::Error(raw(&json!({"code": -32600, "message": "no"})))
}

/// Says that the interrupt is taken.
pub(super) fn interrupt_taken() -> Step {
    result(&json!({}))
}

fn interrupt() -> Vec<Step> {
    vec![interrupt_taken(), status(&json!({ "type": "idle" })), ended("interrupted", &json!([]))]
}

fn ended(status: &str, items: &Value) -> Step {
    let turn = json!({"id": "${turn?}", "status": status, "error": null, "durationMs": 1, "itemsView": "summary", "items": items});
    notify("turn/completed", &json!({"threadId": "${thread?}", "turn": turn}))
}

fn status(status: &Value) -> Step {
    notify("thread/status/changed", &json!({"threadId": "${thread?}", "status": status}))
}

fn started(item: &Value) -> Step {
    notify("item/started", &json!({"threadId": "${thread}", "turnId": "${turn}", "item": item}))
}

fn completed(item: &Value) -> Step {
    notify("item/completed", &json!({"threadId": "${thread}", "turnId": "${turn}", "item": item}))
}

pub(super) fn delta(item: &str, text: &str) -> Step {
    let params = json!({"threadId": "${thread?}", "turnId": "${turn?}", "itemId": item, "delta": text});
    notify("item/agentMessage/delta", &params)
}

fn notify(method: &str, params: &Value) -> Step {
    line(&json!({"method": method, "params": params, "emittedAtMs": 0}))
}
