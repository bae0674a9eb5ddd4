use super::*;
use crate::{
    claude_code::wire::{self, Line, McpContent},
    harness::{AbandonReason, FunctionOutput, Presence},
};

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}

fn calls() -> Calls {
    Calls::new(["lookup".to_owned(), "other".to_owned()])
}

fn call(tool_use_id: &str, name: &str, arguments: &str) -> ToolCall {
    let text = format!(
        r#"{{"type":"control_request","request_id":"d","request":{{"subtype":"mcp_message","server_name":"functions","message":{{"method":"tools/call","params":{{"name":"{name}","arguments":{arguments},"_meta":{{"claudecode/toolUseId":"{tool_use_id}","progressToken":2}}}},"jsonrpc":"2.0","id":2}}}}}}"#
    );
    let Some(Line::Request(wire::ControlRequest { kind: wire::Asked::Mcp(message), .. })) =
        wire::read(text.as_bytes()).unwrap()
    else {
        panic!("no request")
    };
    let McpContent::Call(call) = message.content else { panic!("no call") };
    call
}

fn request(calls: &mut Calls, id: u32, tool_use_id: &str, arguments: &str) -> Step {
    calls.requested(format!("d{id}"), raw(&id.to_string()), call(tool_use_id, "lookup", arguments))
}

fn event(text: &str) -> Event {
    let text = format!(r#"{{"type":"stream_event","event":{text},"parent_tool_use_id":null}}"#);
    let Some(Line::Stream(stream)) = wire::read(text.as_bytes()).unwrap() else { panic!("no event: {text}") };
    stream.event
}

fn stream(calls: &mut Calls, index: u32, tool_use_id: &str, pieces: &[&str]) {
    calls.streamed(&event(&format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"tool_use","id":"{tool_use_id}","name":"mcp__functions__lookup","input":{{}}}}}}"#
    )));
    for piece in pieces {
        let piece = serde_json::to_string(piece).unwrap();
        calls.streamed(&event(&format!(
            r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"input_json_delta","partial_json":{piece}}}}}"#
        )));
    }
}

fn stop(calls: &mut Calls, index: u32) {
    calls.streamed(&event(&format!(r#"{{"type":"content_block_stop","index":{index}}}"#)));
}

fn shown(line: &str) -> ToolResult {
    let text = format!(
        r#"{{"type":"user","message":{{"role":"user","content":[{line}]}},"parent_tool_use_id":null,"tool_result_meta":[{{"id":"toolu_R","non_execution_kind":"user-rejected"}}]}}"#
    );
    let Some(Line::User(mut user)) = wire::read(text.as_bytes()).unwrap() else { panic!("no user line") };
    user.results.remove(0)
}

fn success(tool_use_id: &str, text: &str) -> ToolResult {
    shown(&format!(
        r#"{{"tool_use_id":"{tool_use_id}","type":"tool_result","content":[{{"type":"text","text":"{text}"}}]}}"#
    ))
}

fn failure(tool_use_id: &str, text: &str) -> ToolResult {
    shown(&format!(r#"{{"type":"tool_result","content":"{text}","is_error":true,"tool_use_id":"{tool_use_id}"}}"#))
}

fn result(success: bool, text: &str) -> FunctionResult {
    let output = Presence::Value(FunctionOutput::Text(text.into()));
    FunctionResult { success, error: Presence::Absent, output, disposition: None }
}

#[track_caller]
fn check(reports: &[Report], want: &[&str]) {
    let got: Vec<String> = reports.iter().map(|report| format!("{report:?}")).collect();
    assert_eq!(got, want);
}

#[track_caller]
fn check_lines(lines: &[Bytes], want: &[&str]) {
    let got: Vec<&str> = lines.iter().map(|line| std::str::from_utf8(line).unwrap().trim_end()).collect();
    let want: Vec<String> = want
        .iter()
        .map(|want| format!(r#"{{"type":"control_response","response":{{"subtype":"success",{want}}}}}"#))
        .collect();
    assert_eq!(got, want);
}

const APPLIED: &str = r#"AnswerApplied { call_id: "toolu_A", evidence: "user/tool_result", success: true }"#;
const WRITTEN: &str = r#"AnswerWritten { call_id: "toolu_A" }"#;
const ABANDONED: &str = r#"CallAbandoned { call_id: "toolu_A", reason: NativeCancelled }"#;
const DIFFERS: &str = r#"AnswerDiffers { call_id: "toolu_A" }"#;

#[test]
fn a_call_is_answered_and_its_result_seen() {
    let mut calls = calls();
    stream(&mut calls, 1, "toolu_A", &["{\"z\":1.0, \"a\":1234567", "8901234567890123,\"c\":1e2,\"z\":3}"]);
    stop(&mut calls, 1);
    let step = request(&mut calls, 2, "toolu_A", r#"{"z":3,"a":1.2345678901234568e+22,"c":100}"#);
    check_lines(&step.lines, &[]);
    check(
        &step.reports,
        &[
            r#"Call { call_id: "toolu_A", name: "lookup", arguments: "{\"z\":1.0, \"a\":12345678901234567890123,\"c\":1e2,\"z\":3}", exact: true, named_by_bridge: false }"#,
        ],
    );
    check_lines(
        &calls.answered("toolu_A", &result(true, "R")),
        &[
            r#""request_id":"d2","response":{"mcp_response":{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"R"}],"isError":false}}}"#,
        ],
    );
    check_lines(&calls.answered("toolu_A", &result(true, "R")), &[]);
    check(calls.written("toolu_A").as_slice(), &[WRITTEN]);
    check(&calls.seen(&success("toolu_A", "R")), &[APPLIED]);
    check(&calls.seen(&success("toolu_A", "R")), &[]);
    assert_eq!(calls.cancelled(&raw("2")), None);
}

#[test]
fn arguments_are_the_models_own_where_they_were_told_whole() {
    let shown = |calls: &mut Calls, id: &str| {
        let Some(Report::Call { arguments, exact, .. }) = request(calls, 9, id, r#"{"a":100}"#).reports.pop() else {
            panic!("no call")
        };
        (arguments, exact)
    };
    let respelled = || (r#"{"a":100}"#.to_owned(), false);
    let mut calls = calls();
    assert_eq!(shown(&mut calls, "untold"), respelled());
    for (id, pieces) in [("empty", &[][..]), ("broken", &["{\"a\":"]), ("blank", &[" "])] {
        stream(&mut calls, 0, id, pieces);
        stop(&mut calls, 0);
        assert_eq!(shown(&mut calls, id), respelled(), "{id}");
    }
    // The call may overtake the end of its block.
    stream(&mut calls, 1, "early", &["{\"a\"", ":1e2}"]);
    assert_eq!(shown(&mut calls, "early"), ("{\"a\":1e2}".into(), true));
    stop(&mut calls, 1);
    stream(&mut calls, 2, "number", &["1"]);
    assert_eq!(shown(&mut calls, "number"), respelled());
    // Which of the two Claude asks for first cannot be told.
    for index in [3, 4] {
        stream(&mut calls, index, "twice", &["{}"]);
    }
    assert_eq!(shown(&mut calls, "twice"), respelled());
    // Blocks of a stream that broke off are none of the next one.
    stream(&mut calls, 5, "void", &["{}"]);
    calls.streamed(&event(r#"{"type":"message_stop"}"#));
    stop(&mut calls, 5);
    assert_eq!(shown(&mut calls, "void"), respelled());
    let half = |half: &str| {
        event(&format!(
            r#"{{"type":"content_block_delta","index":7,"delta":{{"type":"input_json_delta","partial_json":"{half}"}}}}"#
        ))
    };
    stream(&mut calls, 7, "half", &["{\"a\":\""]);
    calls.streamed(&half(r"\ud83d"));
    calls.streamed(&half(r#"\ude00\"}"#));
    stop(&mut calls, 7);
    assert_eq!(shown(&mut calls, "half"), respelled());
    stream(&mut calls, 6, "array", &["[1]"]);
    stop(&mut calls, 6);
    assert_eq!(shown(&mut calls, "array"), ("[1]".into(), true));
}

#[test]
fn many_calls_are_open_at_once() {
    let mut calls = calls();
    for id in 1..=40 {
        assert_eq!(request(&mut calls, id, &format!("toolu_{id}"), "{}").reports.len(), 1);
    }
    for id in (1..=40).rev() {
        let call_id = format!("toolu_{id}");
        assert_eq!(calls.answered(&call_id, &result(true, &call_id)).len(), 1);
        let applied = Report::AnswerApplied { call_id: call_id.clone(), evidence: EVIDENCE, success: true };
        let written = Report::AnswerWritten { call_id: call_id.clone() };
        assert_eq!(calls.seen(&success(&call_id, &call_id)), [written, applied]);
    }
}

#[test]
fn calls_that_are_none_are_refused() {
    let mut calls = calls();
    let text = r#"{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"toolu_C","name":"mcp__functions__lookup","input":{}}]},"parent_tool_use_id":"toolu_P"}"#;
    let Some(Line::Assistant(child)) = wire::read(text.as_bytes()).unwrap() else { panic!("no message") };
    calls.told(&child);
    let mut unnamed = call("x", "lookup", "{}");
    unnamed.meta.tool_use_id = None;
    for (call, why) in [
        (call("toolu_A", "nope", "{}"), "no such function"),
        (unnamed, "the call has no id"),
        (call("toolu_C", "lookup", "{}"), "subagents have no functions"),
    ] {
        let step = calls.requested("d".into(), raw("7"), call);
        let message = format!("a call was refused: {why}");
        assert_eq!(step.reports, [Report::Notice { code: "call_refused", message }]);
        check_lines(
            &step.lines,
            &[&format!(
                r#""request_id":"d","response":{{"mcp_response":{{"jsonrpc":"2.0","id":7,"error":{{"code":-32602,"message":"{why}"}}}}}}"#
            )],
        );
    }
    check(&calls.seen(&failure("toolu_A", "no such function")), &[]);
    check_lines(
        &[foreign("d", &raw("8")).unwrap()],
        &[
            r#""request_id":"d","response":{"mcp_response":{"jsonrpc":"2.0","id":8,"error":{"code":-32602,"message":"no Turn is running"}}}"#,
        ],
    );
}

#[test]
fn another_call_with_the_same_id_is_refused_and_its_result_tells_nothing() {
    let mut calls = calls();
    request(&mut calls, 2, "toolu_A", r#"{"a":1}"#);
    let step = request(&mut calls, 3, "toolu_A", r#"{"a":2}"#);
    assert_eq!(step.lines.len(), 1);
    check(
        &step.reports,
        &[r#"Notice { code: "call_id_reused", message: "a call was refused: another call has this id" }"#],
    );
    check(&calls.seen(&failure("toolu_A", "another call has this id")), &[]);
    request(&mut calls, 4, "toolu_A", r#"{"a":3}"#);
    calls.answered("toolu_A", &result(true, "R"));
    check(&calls.seen(&failure("toolu_A", "another call has this id")), &[]);
    check(&calls.seen(&success("toolu_A", "R")), &[WRITTEN, APPLIED]);
}

#[test]
fn the_same_call_twice_is_one_call_with_one_result() {
    let mut calls = calls();
    request(&mut calls, 2, "toolu_A", "{}");
    assert_eq!(request(&mut calls, 3, "toolu_A", "{}").reports, []);
    assert_eq!(calls.cancelled(&raw("3")), None);
    request(&mut calls, 4, "toolu_A", "{}");
    assert_eq!(calls.answered("toolu_A", &result(true, "R")).len(), 2);
    let late = request(&mut calls, 5, "toolu_A", "{}");
    assert_eq!((late.reports.len(), late.lines.len()), (0, 1));
    check(&calls.seen(&success("toolu_A", "R")), &[WRITTEN, APPLIED]);
    check(&calls.seen(&success("toolu_A", "R")), &[]);
}

#[test]
fn an_interrupt_abandons_what_has_no_result() {
    // With its notification, as Claude does it.
    let mut calls = calls();
    request(&mut calls, 2, "toolu_A", "{}");
    check(calls.cancelled(&raw("2")).as_slice(), &[ABANDONED]);
    check(&calls.seen(&shown(r#"{"type":"tool_result","content":"The user doesn't want to proceed","is_error":true,"tool_use_id":"toolu_A"}"#)), &[]);
    check_lines(&calls.answered("toolu_A", &result(true, "late")), &[]);
    assert_eq!(calls.written("toolu_A"), None);
    let again = request(&mut calls, 3, "toolu_A", "{}");
    assert_eq!((again.reports.len(), again.lines.len()), (0, 1));
    assert_eq!(calls.cancelled(&raw("77")), None);

    // Without one: a result that is not ours is in its place.
    calls.begin();
    request(&mut calls, 2, "toolu_A", "{}");
    check(&calls.seen(&failure("toolu_A", "timed out after 2s")), &[ABANDONED]);

    // The answer was on its way when the interrupt came.
    let rejected = shown(r#"{"type":"tool_result","content":"no","is_error":true,"tool_use_id":"toolu_R"}"#);
    calls.begin();
    request(&mut calls, 2, "toolu_R", "{}");
    request(&mut calls, 3, "toolu_R", "{}");
    calls.answered("toolu_R", &result(true, "R"));
    check(&calls.seen(&rejected), &[]);
    let abandoned = Report::CallAbandoned { call_id: "toolu_R".into(), reason: AbandonReason::NativeCancelled };
    assert_eq!(calls.seen(&rejected), [abandoned]);
}

#[test]
fn a_result_that_is_another_one_is_said_to_differ() {
    for seen in [
        failure("toolu_A", "R"),
        success("toolu_A", "R "),
        shown(r#"{"tool_use_id":"toolu_A","type":"tool_result","content":"<persisted-output>"}"#),
        shown(r#"{"tool_use_id":"toolu_A","type":"tool_result","content":7}"#),
    ] {
        let mut calls = calls();
        request(&mut calls, 2, "toolu_A", "{}");
        calls.answered("toolu_A", &result(true, "R"));
        check(calls.written("toolu_A").as_slice(), &[WRITTEN]);
        check(&calls.seen(&seen), &[DIFFERS]);
        check(&calls.seen(&success("toolu_A", "R")), &[]);
    }
}

#[test]
fn a_failed_result_is_seen_with_its_flag() {
    let mut calls = calls();
    request(&mut calls, 2, "toolu_A", "{}");
    let lines = calls.answered("toolu_A", &result(false, "half\n"));
    check_lines(
        &lines,
        &[
            r#""request_id":"d2","response":{"mcp_response":{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"half\n"}],"isError":true}}}"#,
        ],
    );
    let applied = r#"AnswerApplied { call_id: "toolu_A", evidence: "user/tool_result", success: false }"#;
    check(&calls.seen(&failure("toolu_A", "half")), &[WRITTEN, applied]);
}

#[test]
fn a_tool_of_another_server_is_no_function() {
    for (tool, want) in [("mcp__functions__f", Some("f")), ("mcp__other__f", None), ("f", None), ("Bash", None)] {
        assert_eq!(function_of(tool), want, "{tool}");
    }
}
