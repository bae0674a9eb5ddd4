use super::*;

fn call(json: &str) -> ToolCall<'_> {
    serde_json::from_str(json).unwrap()
}

fn ended(output: &str) -> Option<McpResult> {
    let text = format!(r#"{{"toolCallId":"1","status":"completed","rawOutput":{output}}}"#);
    mcp_result(&call(&text))
}

#[test]
fn results_are_read_as_they_were_seen() {
    // Two texts have an empty line between them; an image is beside the texts, and a result of nothing is an empty text.
    for (output, is_error, text) in [
        (r#"{"output":"first\n\nsecond","metadata":{"truncated":false}}"#, false, "first\n\nsecond"),
        (r#"{"output":" a\n\n\n\nb ","metadata":{"truncated":false}}"#, false, " a\n\n\n\nb "),
        (
            r#"{"output":"","metadata":{"truncated":false},"attachments":[{"type":"file","mime":"image/png"}]}"#,
            false,
            "",
        ),
        (r#"{"error":"no one\n\nno two"}"#, true, "no one\n\nno two"),
        (r#"{"error":"MCP tool returned an error"}"#, true, "MCP tool returned an error"),
    ] {
        let for_none = text == NO_TEXT;
        let want =
            McpResult { json: output.into(), is_error: Some(is_error), texts: vec![text.into()], tool: None, for_none };
        assert_eq!(ended(output), Some(want), "{output}");
    }
}

#[test]
fn what_is_no_result_is_none() {
    for output in [
        r#"{"error":"Tool execution aborted","metadata":{"interrupted":true}}"#,
        r#"{"metadata":{}}"#,
        r#"{"output":"a","error":"b"}"#,
        r#""text""#,
        "null",
    ] {
        assert_eq!(ended(output), None, "{output}");
    }
    assert_eq!(mcp_result(&call(r#"{"toolCallId":"1"}"#)), None);
}

#[test]
fn tools_have_names_and_commands() {
    let first = r#"{"toolCallId":"call_a0ee8bb1","title":"bash","kind":"execute","status":"pending","locations":[{"path":"/w"}],"rawInput":{"cwd":"/w"}}"#;
    assert_eq!(name(&call(first)).as_deref(), Some("bash"));
    assert_eq!(name(&call(r#"{"toolCallId":"1"}"#)), None);
    let arguments = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    let bash = arguments(r#"{"command":"echo hi; exit 3","description":"says hi","cwd":"/w"}"#);
    assert_eq!(command("bash", &bash).as_deref(), Some("echo hi; exit 3"));
    assert_eq!(command("read", &bash), None);
    // The first report has no command yet.
    assert_eq!(command("bash", &arguments(r#"{"cwd":"/w"}"#)), None);
}

#[test]
fn names_are_spelled_as_natively() {
    for (server, name, want) in [
        ("functions", "lookup", "functions_lookup"),
        ("functions", "_lead", "functions__lead"),
        ("functions", "UP-per_9", "functions_UP-per_9"),
        ("functions", "a.b c/d", "functions_a_b_c_d"),
        ("functions", "\u{e9}\u{1f600}x", "functions____x"),
        ("a.b", "two__und", "a_b_two__und"),
    ] {
        assert_eq!(tool(server, name), want);
    }
}
