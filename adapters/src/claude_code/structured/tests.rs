use super::*;
use crate::claude_code::wire::{self, Line};

const CALL: &str = r#"{"type":"assistant","message":{"id":"m","model":"m","content":[{"type":"tool_use","id":"t","name":"StructuredOutput","input":{"x":1}}]},"parent_tool_use_id":null}"#;
const SEEN: &str = r#"{"type":"user","message":{"content":[{"tool_use_id":"t","type":"tool_result","content":"Structured output provided successfully"}]},"parent_tool_use_id":null}"#;
const RESULT: &str = r#"{"type":"result","subtype":"success","is_error":false,"result":"{\"x\":1}","stop_reason":"tool_use","structured_output":{"x":1}}"#;

fn answer(lines: &[&str]) -> Option<(String, String)> {
    let mut structured = Structured::default();
    for line in lines {
        match wire::read(line.as_bytes()).unwrap().unwrap() {
            Line::Assistant(line) => structured.called(&line),
            Line::User(line) => structured.seen(&line),
            Line::Result(result) => structured.turn_ended(&result),
            line => panic!("{line:?}"),
        }
    }
    match structured.end(NativeEnd::Completed { finish: None, at: None }) {
        (NativeEnd::Completed { .. }, Some(ProvedMessage { id, text, phase: Some(MessagePhase::FinalAnswer) })) => {
            Some((id, text))
        }
        (NativeEnd::Failed { failure, .. }, None) => {
            assert_eq!(failure.code, FailureCode::StructuredOutputMissing);
            None
        }
        end => panic!("{end:?}"),
    }
}

#[test]
fn both_lines_confirm_an_answer_and_neither_alone() {
    assert_eq!(answer(&[CALL, SEEN, RESULT]), Some(("t".into(), r#"{"x":1}"#.into())));
    let no_output = RESULT.replace(r#","structured_output":{"x":1}"#, "");
    let failed = RESULT.replace(r#""is_error":false"#, r#""is_error":true"#);
    let other = RESULT.replace(r#""subtype":"success""#, r#""subtype":"error_during_execution""#);
    let invalid = SEEN.replace(r#""type":"tool_result""#, r#""is_error":true,"type":"tool_result""#);
    let child = |line: &str| line.replace(r#""parent_tool_use_id":null"#, r#""parent_tool_use_id":"toolu_P""#);
    let replay = SEEN.replace(r#""type":"user""#, r#""isReplay":true,"type":"user""#);
    for lines in [
        &[][..],
        &[RESULT],
        &[CALL, SEEN],
        &[CALL, RESULT],
        &[SEEN, RESULT],
        &[CALL, SEEN, &no_output],
        &[CALL, SEEN, &failed],
        &[CALL, SEEN, &other],
        &[CALL, &invalid, RESULT],
        &[CALL, &child(SEEN), RESULT],
        &[&child(CALL), SEEN, RESULT],
        &[CALL, &replay, RESULT],
    ] {
        assert_eq!(answer(lines), None, "{lines:?}");
    }
}

#[test]
fn prose_behind_the_call_is_not_the_answer() {
    for other in ["after", "", "2", r#"{\"x\":2}"#] {
        let result = RESULT.replace(r#"{\"x\":1}"#, other);
        assert_ne!(result, RESULT);
        assert_eq!(answer(&[CALL, SEEN, &result]), Some(("t".into(), r#"{"x":1}"#.into())), "{other}");
    }
    let none = RESULT.replace(r#""result":"{\"x\":1}","#, "");
    assert_eq!(answer(&[CALL, SEEN, &none]), Some(("t".into(), r#"{"x":1}"#.into())));
    let spelled = RESULT.replace(r#"{\"x\":1}"#, r#"{ \"x\": 1 }"#);
    assert_eq!(answer(&[CALL, SEEN, &spelled]), Some(("t".into(), r#"{ "x": 1 }"#.into())));
}

#[test]
fn a_later_native_turn_replaces_the_answer() {
    let second = |line: &str| line.replace("\"t\"", "\"u\"").replace("1}", "2}");
    let [call, seen, result] = [CALL, SEEN, RESULT].map(second);
    assert_eq!(answer(&[CALL, SEEN, RESULT, &call, &seen, &result]), Some(("u".into(), r#"{"x":2}"#.into())));
    assert_eq!(answer(&[CALL, SEEN, RESULT, &result]), None);
}

#[test]
fn an_answer_is_one_message_with_one_delta() {
    let mut out = Vec::new();
    let (id, text, phase) = ("t".to_owned(), "{}".to_owned(), Some(MessagePhase::FinalAnswer));
    publish(ProvedMessage { id: id.clone(), text: text.clone(), phase }, &mut out);
    let want = [
        Report::MessageStarted { id: id.clone() },
        Report::MessageDelta { id: id.clone(), text: text.clone() },
        Report::MessageCompleted { id, text, phase },
    ];
    assert_eq!(out, want);
}

#[test]
fn other_ends_stay_as_they_are() {
    let end = NativeEnd::Interrupted { at: None };
    assert_eq!(Structured::default().end(end.clone()), (end, None));
}
