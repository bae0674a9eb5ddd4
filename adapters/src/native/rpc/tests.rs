use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The only place that calls the parser: shows the message in one line.
fn shown(line: &[u8]) -> String {
    let params = |params: Option<&RawValue>| params.map_or("-".to_owned(), |raw| raw.get().to_owned());
    match parse(line) {
        Ok(Message::Request { id, method, params: p }) => format!("request {} {method} {}", id.get(), params(p)),
        Ok(Message::Notification { method, params: p }) => format!("notification {method} {}", params(p)),
        Ok(Message::Response { id, outcome: Ok(result) }) => format!("response {id} {}", result.get()),
        Ok(Message::Response { id, outcome: Err(error) }) => {
            format!("error {id} {} {:?} {}", error.code, error.message, params(error.data.as_deref()))
        }
        Err(malformed) => format!("malformed: {malformed}"),
    }
}

#[track_caller]
fn check(line: &str, want: &str) {
    assert_eq!(shown(line.as_bytes()), want);
}

#[test]
fn a_request_has_a_method_and_an_id() {
    check(r#"{"id":7,"method":"a/b","params":{"x":1.0}}"#, r#"request 7 a/b {"x":1.0}"#);
    check(r#"{"method":"m","id":"r-1"}"#, r#"request "r-1" m -"#);
    check(r#"{"method":"m","id":-3,"params":null}"#, "request -3 m -");
    // A method decides, whatever else is there.
    check(r#"{"method":"m","id":1,"result":{}}"#, "request 1 m -");
}

#[test]
fn a_notification_has_no_id() {
    check(r#"{"method":"m","params":[1, 2]}"#, "notification m [1, 2]");
    check(r#" {"jsonrpc":"2.0","method":"m\u002fn","id":null,"later":{"deep":[{}]}} "#, "notification m/n -");
    check(r#"{"\u006dethod":"escaped key"}"#, "notification escaped key -");
}

#[test]
fn a_response_keeps_its_text() {
    check(
        r#"{"id":7,"result":{"b":1,"a":1.0,"a":12345678901234567890123}}"#,
        r#"response 7 {"b":1,"a":1.0,"a":12345678901234567890123}"#,
    );
    check(r#"{"result":null,"id":18446744073709551615}"#, "response 18446744073709551615 null");
    check(r#"{"id":7,"result":{},"error":null}"#, "response 7 {}");
}

#[test]
fn an_error_wins_over_a_result_and_may_be_odd() {
    check(r#"{"id":1,"error":{"code":-32600,"message":"no","data":{"a": 1}}}"#, r#"error 1 -32600 "no" {"a": 1}"#);
    check(r#"{"id":1,"result":null,"error":{"code":"E","more":1}}"#, r#"error 1 0 "" -"#);
    check(r#"{"id":1,"error":"plain"}"#, r#"error 1 0 "plain" -"#);
    check(r#"{"id":1,"error":{"message":[1]}}"#, r#"error 1 0 "[1]" -"#);
}

#[test]
fn a_member_given_twice_holds_as_given_last() {
    check(r#"{"id":1,"id":2,"result":1,"result":2}"#, "response 2 2");
}

#[test]
fn a_response_to_an_id_that_is_not_ours_is_foreign() {
    for id in ["\"1\"", "-1", "1.0", "18446744073709551616", "null", "{}"] {
        let line = format!(r#"{{"id":{id},"result":1}}"#);
        assert!(matches!(parse(line.as_bytes()), Err(Malformed::ForeignId { .. })), "{line}");
    }
    assert!(matches!(parse(br#"{"error":{"code":1,"message":"parse error"}}"#), Err(Malformed::ForeignId { .. })));
}

#[test]
fn what_is_no_message_is_told_apart() {
    check("", "malformed: not JSON at column 0: ");
    check("warming up…", "malformed: not JSON at column 1: warming up…");
    check(r#"{"method":"m"} x"#, r#"malformed: not JSON at column 16: {\"method\":\"m\"} x"#);
    check(r#"{"method":"m""#, r#"malformed: not JSON at column 13: {\"method\":\"m\""#);
    check(r#"[{"id":1,"result":1}]"#, r#"malformed: not an object: [{\"id\":1,\"result\":1}]"#);
    check("\"text\"", r#"malformed: not an object: \"text\""#);
    check("{}", "malformed: no JSON-RPC message: {}");
    check(r#"{"id":1}"#, r#"malformed: no JSON-RPC message: {\"id\":1}"#);
    check(r#"{"method":5,"id":1}"#, r#"malformed: no JSON-RPC message: {\"method\":5,\"id\":1}"#);
    check(r#"{"method":"m","id":true}"#, r#"malformed: no JSON-RPC message: {\"method\":\"m\",\"id\":true}"#);
    assert_eq!(
        shown(b"{\"method\":\"\xff\"}"),
        "malformed: not UTF-8 after 11 bytes: {\\\"method\\\":\\\"\u{fffd}\\\"}"
    );
}

#[test]
fn an_excerpt_is_short_and_printable_wherever_a_character_ends() {
    for lead in 0..8 {
        let line = format!("{}{}", "x".repeat(lead), "\u{1f980}\n\u{1b}é".repeat(500));
        let Err(Malformed::NotJson { excerpt, .. }) = parse(line.as_bytes()) else { panic!("{line}") };
        assert!(excerpt.chars().count() <= 256, "{excerpt}");
        assert!(excerpt.ends_with('…') && !excerpt.contains(char::is_control), "{excerpt}");
    }
}

#[test]
fn a_built_line_has_one_newline_and_no_jsonrpc_member() {
    let schema = RawValue::from_string("{\n  \"a\": 1.0,\r\n  \"a\": \"x\\n\"\n}".to_owned()).unwrap();
    let line = request(3, "m", &json!({ "n": 1 })).unwrap();
    assert_eq!(&line[..], b"{\"id\":3,\"method\":\"m\",\"params\":{\"n\":1}}\n");
    let line = notification("m", &schema).unwrap();
    assert_eq!(&line[..], b"{\"method\":\"m\",\"params\":{   \"a\": 1.0,    \"a\": \"x\\n\" }}\n");
    let id = RawValue::from_string("\"q-1\"".to_owned()).unwrap();
    assert_eq!(&answer(&id, &json!(null)).unwrap()[..], b"{\"id\":\"q-1\",\"result\":null}\n");
    let line = refusal(&id, -32601, "say \"no\"\n");
    assert_eq!(&line[..], b"{\"id\":\"q-1\",\"error\":{\"code\":-32601,\"message\":\"say \\\"no\\\"\\n\"}}\n");
}

proptest! {
    #[test]
    fn a_built_request_is_read_back(id: i64, method: String, text: String) {
        let raw = RawValue::from_string(id.to_string()).unwrap();
        let line = request(id.unsigned_abs(), &method, &json!([text])).unwrap();
        prop_assert_eq!(memchr::memchr_iter(b'\n', &line).count(), 1);
        match parse(&line[..line.len() - 1]).unwrap() {
            Message::Request { id: read, method: m, params } => {
                prop_assert_eq!(read.get(), id.unsigned_abs().to_string());
                prop_assert_eq!(&*m, &*method);
                prop_assert_eq!(params.unwrap().get(), json!([text]).to_string());
            }
            other => prop_assert!(false, "{:?}", other),
        }
        let line = refusal(&raw, id, &text);
        prop_assert_eq!(memchr::memchr_iter(b'\n', &line).count(), 1);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(line: Vec<u8>) {
        let _ = parse(&line);
    }
}
