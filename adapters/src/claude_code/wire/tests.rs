use bytes::Bytes;

use super::*;
use crate::harness::{Image, InputPart, MediaType, OutputPart};

fn line(text: &str) -> Line {
    read(text.as_bytes()).unwrap().unwrap()
}

fn asked(text: &str) -> ControlRequest {
    let Line::Request(request) = line(text) else { panic!("no request: {text}") };
    request
}

#[track_caller]
fn written(line: Result<Bytes, crate::native::rpc::EncodeError>, want: &str) {
    let line = line.unwrap();
    assert_eq!(std::str::from_utf8(&line).unwrap(), format!("{want}\n"));
}

#[test]
fn only_lines_that_nobody_reads_are_passed_over() {
    for (beginning, want) in [
        (r#"{"type":"rate_limit_event","rate_limit_info":{"#, false),
        (r#"{"type":"system","subtype":"thinking_tokens","estimated"#, false),
        (r#"{"type":"system","subtype":"hook_started""#, false),
        (r#"{"type":"system","subtype":"init","cwd":"#, true),
        (r#"{"type":"system","subtype":"in"#, true),
        (r#"{"type":"system","x":1,"subtype":"hook_started""#, true),
        (r#"{"type":"system","subtype":"hook\u005fstarted""#, true),
        (r#"{"type":"user","message":{"role":"user""#, true),
        (r#"{"type":"control_request","request_id":"r""#, true),
        (r#"{"duration_api_ms":17,"stop_reason":"end_turn""#, true),
        (r#"{ "type":"rate_limit_event""#, true),
        (r#"{"type":"rate_limit"#, true),
        ("", true),
    ] {
        assert_eq!(is_read(beginning.as_bytes()), want, "{beginning}");
    }
}

#[test]
fn unknown_lines_are_none_and_broken_ones_an_error() {
    for text in [
        r#"{"type":"rate_limit_event","state":{"a":1},"message":7,"error":[],"event":"x"}"#,
        r#"{"type":"hologram"}"#,
        r#"{"type":"system","subtype":"thinking_tokens","estimated_tokens":1}"#,
        r#"{"type":"system"}"#,
        r#"{"type":"stream_event","event":{"type":"ping"}}"#,
    ] {
        assert!(read(text.as_bytes()).unwrap().is_none(), "{text}");
    }
    for text in [
        "",
        "x",
        "[]",
        "{}",
        r#"{"type":7}"#,
        r#"{"type":"assistant"}"#,
        r#"{"type":"stream_event"}"#,
        r#"{"type":"user","message":{"content":[7]}}"#,
        r#"{"type":"control_request","request":{"subtype":"can_use_tool"}}"#,
    ] {
        assert!(read(text.as_bytes()).is_err(), "{text}");
    }
    assert!(read(b"{\"type\":\"result\",\"subtype\":\"\xff\"}").is_err());
}

#[test]
fn lines_around_a_native_turn_are_read() {
    let Line::Init(init) = line(
        r#"{"type":"system","subtype":"init","cwd":"/w","session_id":"S","tools":["Bash"],"mcp_servers":[{"name":"functions","status":"connected","source":"sdk"}],"model":"m","user_message_uuids":["u"],"new":[]}"#,
    ) else {
        panic!("no init")
    };
    assert_eq!((init.session_id.as_str(), init.tools.len()), ("S", 1));
    for (state, want) in [
        ("\"idle\"", SessionState::Idle),
        ("\"running\"", SessionState::Running),
        ("\"requires_action\"", SessionState::RequiresAction),
        ("\"paused\"", SessionState::Other),
        ("7", SessionState::Other),
    ] {
        let text = format!(r#"{{"type":"system","subtype":"session_state_changed","state":{state}}}"#);
        assert!(matches!(line(&text), Line::State(state) if state == want), "{text}");
    }
    for (state, want) in [
        ("queued", InputState::Queued),
        ("started", InputState::Started),
        ("completed", InputState::Completed),
        ("cancelled", InputState::Cancelled),
        ("lost", InputState::Other),
    ] {
        let text = format!(r#"{{"type":"command_lifecycle","command_uuid":"u","state":"{state}","uuid":"x"}}"#);
        assert!(matches!(line(&text), Line::Lifecycle(of) if of.state == want && of.command_uuid == "u"), "{text}");
    }
    let Line::Retry(retry) = line(
        r#"{"type":"system","subtype":"api_retry","attempt":1,"max_retries":2,"retry_delay_ms":564,"error_status":null,"error":"unknown"}"#,
    ) else {
        panic!("no retry")
    };
    assert_eq!((retry.attempt, retry.max_retries, retry.error_status), (1, 2, None));
    assert!(matches!(line(r#"{"type":"system","subtype":"compact_boundary","compact_metadata":{}}"#), Line::Compacted));
    assert!(matches!(line(r#"{"type":"tool_progress","tool_use_id":"t-heartbeat-0"}"#), Line::Heartbeat));
    assert!(matches!(line(r#"{"type":"control_cancel_request","request_id":"r"}"#), Line::Withdrawn));
}

#[test]
fn answers_to_our_requests_are_read() {
    let Line::Response(response) = line(
        r#"{"type":"control_response","response":{"subtype":"success","request_id":"r","response":{"still_queued":[ ]}}}"#,
    ) else {
        panic!("no response")
    };
    assert!(response.success);
    assert_eq!(response.response.unwrap().get(), r#"{"still_queued":[ ]}"#);
    let Line::Response(response) = line(
        r#"{"type":"control_response","response":{"subtype":"error","request_id":"r","error":"no","error_code":"unsupported_request"}}"#,
    ) else {
        panic!("no response")
    };
    assert_eq!((response.success, response.error.as_deref()), (false, Some("no")));
}

#[test]
fn a_call_keeps_its_texts() {
    let request = asked(
        r#"{"type":"control_request","request_id":"d0","request":{"subtype":"mcp_message","server_name":"functions","message":{"method":"tools/call","params":{"name":"look.up","arguments":{"z":1.50, "a":12345678901234567890123},"_meta":{"claudecode/toolUseId":"toolu_A","progressToken":2}},"jsonrpc":"2.0","id":2}}}"#,
    );
    let Asked::Mcp(McpMessage { server, id, content: McpContent::Call(call) }) = request.kind else {
        panic!("no call")
    };
    assert_eq!((server.as_str(), id.unwrap().get(), call.name.as_str()), (SERVER, "2", "look.up"));
    assert_eq!(call.arguments.unwrap().get(), r#"{"z":1.50, "a":12345678901234567890123}"#);
    assert_eq!(call.meta.tool_use_id.as_deref(), Some("toolu_A"));
    let request = asked(
        r#"{"type":"control_request","request_id":"d1","request":{"subtype":"mcp_message","server_name":"functions","message":{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5,"reason":"AbortError: remote-cancel"}}}}"#,
    );
    let Asked::Mcp(McpMessage { id: None, content: McpContent::Cancelled(which), .. }) = request.kind else {
        panic!("no cancellation")
    };
    assert_eq!(which.get(), "5");
}

#[test]
fn what_nobody_can_answer_is_declined() {
    let ask = |request: &str| asked(&format!(r#"{{"type":"control_request","request_id":"r","request":{request}}}"#));
    for (request, want) in [
        (
            r#"{"subtype":"can_use_tool","tool_name":"Bash","input":{}}"#,
            r#"{"subtype":"success","request_id":"r","response":{"behavior":"deny","message":"Permission was not granted: nobody can be asked."}}"#,
        ),
        (
            r#"{"subtype":"elicitation","mcp_server_name":"s","message":"?"}"#,
            r#"{"subtype":"success","request_id":"r","response":{"action":"decline"}}"#,
        ),
        (r#"{"subtype":"hook_callback","callback_id":"h"}"#, r#"{"subtype":"success","request_id":"r","response":{}}"#),
        (
            r#"{"subtype":"mcp_message","server_name":"functions","message":{"jsonrpc":"2.0","id":"x","method":"ping"}}"#,
            r#"{"subtype":"success","request_id":"r","response":{"mcp_response":{"jsonrpc":"2.0","id":"x","error":{"code":-32601,"message":"no such method"}}}}"#,
        ),
        (
            r#"{"subtype":"mcp_message","server_name":"functions","message":{"jsonrpc":"2.0","method":"notifications/initialized"}}"#,
            r#"{"subtype":"success","request_id":"r","response":{"mcp_response":{"jsonrpc":"2.0","id":0,"result":{}}}}"#,
        ),
        (
            r#"{"subtype":"oauth_token_refresh"}"#,
            r#"{"subtype":"error","request_id":"r","error":"not supported by this client"}"#,
        ),
    ] {
        written(write::decline(&ask(request)), &format!(r#"{{"type":"control_response","response":{want}}}"#));
    }
}

#[test]
fn a_call_that_a_hook_asks_about_is_let_go_on_or_refused() {
    let request = asked(
        r#"{"type":"control_request","request_id":"r","request":{"subtype":"hook_callback","callback_id":"mcp","input":{"tool_name":"mcp__a__b","tool_input":{}}}}"#,
    );
    assert!(matches!(request.kind, Asked::Hook(tool) if tool == "mcp__a__b"));
    written(
        write::let_call("r"),
        r#"{"type":"control_response","response":{"subtype":"success","request_id":"r","response":{}}}"#,
    );
    written(
        write::refuse_call("r", "no"),
        r#"{"type":"control_response","response":{"subtype":"success","request_id":"r","response":{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"deny","permissionDecisionReason":"no"}}}}"#,
    );
}

#[test]
fn an_input_is_written_as_it_is() {
    let image = Image { media_type: MediaType::Png, data: Bytes::from_static(b"bytes") };
    written(
        write::user("u", &["/compact @x \r\n\u{2028}".into(), InputPart::Image(image)]),
        concat!(
            r#"{"type":"user","uuid":"u","message":{"role":"user","content":[{"type":"text","text":"/compact @x \r\n"#,
            "\u{2028}",
            r#""},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"Ynl0ZXM="}}]},"parent_tool_use_id":null,"session_id":"","client_composed":true,"priority":"next"}"#
        ),
    );
    written(
        write::interrupt("i"),
        r#"{"type":"control_request","request_id":"i","request":{"subtype":"interrupt","cancel_queued":true}}"#,
    );
}

#[test]
fn schemas_in_a_request_keep_their_text_on_one_line() {
    #[derive(serde::Serialize)]
    struct Initialize<'a> {
        subtype: &'a str,
        #[serde(rename = "jsonSchema")]
        schema: &'a RawValue,
    }
    let schema = RawValue::from_string("{\n\"b\":1.50,\r\n\"a\":\"\\u00e9\"}".into()).unwrap();
    written(
        write::request("i", &Initialize { subtype: "initialize", schema: &schema }),
        r#"{"type":"control_request","request_id":"i","request":{"subtype":"initialize","jsonSchema":{ "b":1.50,  "a":"\u00e9"}}}"#,
    );
}

#[test]
fn results_have_their_parts_and_the_flag() {
    let image = Image { media_type: MediaType::Jpeg, data: Bytes::from_static(b"j") };
    let parts = [OutputPart::Text("a\n".into()), OutputPart::Image(image)];
    let id = RawValue::from_string("2".into()).unwrap();
    written(
        write::mcp_result("r", &id, &write::CallResult::new(true, &parts)),
        r#"{"type":"control_response","response":{"subtype":"success","request_id":"r","response":{"mcp_response":{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"a\n"},{"type":"image","data":"ag==","mimeType":"image/jpeg"}],"isError":false}}}}}"#,
    );
    written(
        write::mcp_error("r", &id, -32602, "no"),
        r#"{"type":"control_response","response":{"subtype":"success","request_id":"r","response":{"mcp_response":{"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"no"}}}}}"#,
    );
}

#[test]
fn the_content_of_a_result_is_a_text_or_parts() {
    let shown = |block: &str| {
        let text =
            format!(r#"{{"type":"user","message":{{"role":"user","content":[{block}]}},"parent_tool_use_id":null}}"#);
        let Line::User(mut user) = line(&text) else { panic!("no user line") };
        user.results.remove(0)
    };
    let text = shown(r#"{"type":"tool_result","content":"Exit code 3\ud83d","is_error":true,"tool_use_id":"t"}"#);
    assert!(text.is_error);
    assert_eq!(text.shown().unwrap(), Shown::Text("Exit code 3\u{fffd}".into()));
    let parts = shown(
        r#"{"tool_use_id":"t","type":"tool_result","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aa=="}},{"type":"tool_reference"}]}"#,
    );
    assert!(!parts.is_error);
    let image = ShownPart::Image { media_type: "image/png".into(), data: "aa==".into() };
    assert_eq!(parts.shown().unwrap(), Shown::Parts(vec![ShownPart::Text("a".into()), image, ShownPart::Other]));
    assert_eq!(shown(r#"{"tool_use_id":"t","type":"tool_result"}"#).shown().unwrap(), Shown::Parts(Vec::new()));
}

#[test]
fn user_lines_tell_whose_they_are_and_why_a_tool_did_not_run() {
    let Line::User(user) = line(
        r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","content":"no","is_error":true,"tool_use_id":"t"}]},"parent_tool_use_id":"toolu_P","tool_use_result":{"stdout":"x"},"tool_result_meta":[{"id":"t","non_execution_kind":"permission-rule"}]}"#,
    ) else {
        panic!("no user line")
    };
    assert_eq!(user.parent.as_deref(), Some("toolu_P"));
    assert_eq!(user.results[0].not_run.as_deref(), Some("permission-rule"));
    assert_eq!(user.raw.unwrap().get(), r#"{"stdout":"x"}"#);
    for (text, is_replay) in [
        (r#"{"type":"user","message":{"role":"user","content":"hi"},"isReplay":true}"#, true),
        (
            r#"{"type":"user","message":{"role":"user","content":[{"type":"text","text":"go on"}]},"isSynthetic":true}"#,
            false,
        ),
    ] {
        let Line::User(user) = line(text) else { panic!("no user line") };
        assert_eq!((user.is_replay, user.results.len()), (is_replay, 0));
    }
}

#[test]
fn a_request_that_does_not_fit_is_still_one_that_waits_for_an_answer() {
    let Line::Request(request) = line(r#"{"type":"control_request","request_id":"r"}"#) else { panic!("no request") };
    assert!(request.request_id == "r" && matches!(request.kind, Asked::Other(_)));
    for method in ["tools/call", "notifications/cancelled"] {
        let text = format!(
            r#"{{"type":"control_request","request_id":"r","request":{{"subtype":"mcp_message","server_name":"functions","message":{{"method":"{method}","id":1,"params":[]}}}}}}"#
        );
        let Line::Request(request) = line(&text) else { panic!("no request") };
        let Asked::Mcp(message) = request.kind else { panic!("no message of MCP") };
        assert!(message.id.is_some() && matches!(message.content, McpContent::Other), "{text}");
    }
}

#[test]
fn a_result_holds_whatever_the_form_of_its_details() {
    let Line::Result(result) = line(
        r#"{"type":"result","subtype":"success","is_error":false,"result":"x","errors":"none","api_error_status":"none","api_error":{},"stop_reason":7,"model_usage_since_last_result":[]}"#,
    ) else {
        panic!("no result")
    };
    assert_eq!((result.result.as_deref(), result.api_error_status, result.errors.len()), (Some("x"), None, 0));
    assert!(result.stop_reason.is_none() && result.model_usage_since_last_result.is_empty());
}

#[test]
fn a_line_of_another_conversation_is_none_of_this_one() {
    for (text, want) in [
        (r#"{"type":"result","session_id":"s-2"}"#, "foreign"),
        (r#"{"type":"teleported","session_id":"s-2"}"#, "foreign"),
        (r#"{"type":"system","subtype":"init","session_id":"s-2","tools":[]}"#, "line"),
        (r#"{"type":"result","session_id":"s-1"}"#, "line"),
        (r#"{"type":"result","session_id":""}"#, "line"),
        (r#"{"type":"result","session_id":null}"#, "line"),
        (r#"{"type":"result","session_id":7}"#, "line"),
        (r#"{"type":"result"}"#, "line"),
        (r#"{"type":"teleported"}"#, "unknown"),
    ] {
        let heard = match hear(text.as_bytes(), "s-1").unwrap() {
            Heard::Line(_) => "line",
            Heard::Foreign => "foreign",
            Heard::Unknown => "unknown",
        };
        assert_eq!(heard, want, "{text}");
    }
}
