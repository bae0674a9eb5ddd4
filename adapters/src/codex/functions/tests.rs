use super::*;
use crate::{
    call::TOLD,
    harness::{FunctionOutput, Image, MediaType, OutputPart, Presence},
};

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}

fn params(call_id: &str, tool: &str, arguments: &str) -> CallParams {
    CallParams {
        thread_id: "T".into(),
        turn_id: "U".into(),
        call_id: call_id.into(),
        namespace: None,
        tool: tool.into(),
        arguments: Some(raw(arguments)),
    }
}

fn result(success: bool, text: &str) -> FunctionResult {
    let output = Presence::Value(FunctionOutput::Text(text.into()));
    FunctionResult { success, error: Presence::Absent, output, disposition: None }
}

fn item(id: &str, status: &str, success: Option<bool>, texts: &[&str]) -> CallItem {
    let part = |text: &&str| ContentItem::of(OutputPart::Text((*text).into()));
    let content_items = Some(texts.iter().map(part).collect());
    CallItem { id: id.into(), status: status.into(), success, content_items }
}

fn item_of(texts: &[&str]) -> CallItem {
    item("c", "completed", Some(true), texts)
}

fn calls() -> Calls {
    Calls::new(["lookup".to_owned()])
}

fn pending(calls: &mut Calls, id: &str) {
    let step = calls.requested(&raw(id), params("c", "lookup", "{}"));
    assert!(step.lines.is_empty());
}

#[track_caller]
fn check_lines(lines: &[Bytes], want: &[&str]) {
    let got: Vec<_> = lines.iter().map(|line| std::str::from_utf8(line).unwrap().trim_end()).collect();
    assert_eq!(got, want);
}

#[track_caller]
fn check(reports: &[Report], want: &[&str]) {
    let got: Vec<String> = reports.iter().map(|report| format!("{report:?}")).collect();
    assert_eq!(got, want);
}

const APPLIED: &str = r#"AnswerApplied { call_id: "c", evidence: "item/completed", success: true }"#;
const WRITTEN: &str = r#"AnswerWritten { call_id: "c" }"#;
const DIFFERS: &str = r#"AnswerDiffers { call_id: "c" }"#;
const URL: &str = "data:image/png;base64,Ynl0ZXM=";
const CANCELLED: &str = r#"CallAbandoned { call_id: "c", reason: NativeCancelled }"#;

#[test]
fn a_call_is_reported_answered_and_applied() {
    let mut calls = calls();
    let step = calls.requested(&raw("0"), params("c", "lookup", r#"{"z":1.0, "a":1e2}"#));
    check(
        &step.reports,
        &[
            r#"Call { call_id: "c", name: "lookup", arguments: "{\"z\":1.0, \"a\":1e2}", exact: false, named_by_bridge: false }"#,
        ],
    );
    let lines = calls.answered("c", &result(true, "42"));
    check_lines(&lines, &[r#"{"id":0,"result":{"success":true,"contentItems":[{"type":"inputText","text":"42"}]}}"#]);
    check(&calls.written("c").into_iter().collect::<Vec<_>>(), &[WRITTEN]);
    assert_eq!(calls.written("c"), None);
    check(&calls.completed(item("c", "completed", Some(true), &["42"])), &[APPLIED]);
    check(&calls.completed(item("c", "completed", Some(true), &["42"])), &[]);
}

#[test]
fn the_models_own_text_is_shown_where_it_was_told() {
    let told = |calls: &mut Calls, call_id: &str, name: &str, arguments: &str| {
        let (name, arguments) = (Some(name.into()), Some(arguments.into()));
        assert_eq!(calls.told(RawItem { call_id: call_id.into(), name, arguments, output: None }), None);
    };
    let shown = |calls: &mut Calls, call_id: &str| {
        let step = calls.requested(&raw("0"), params(call_id, "lookup", r#"{"a":1e+2}"#));
        match &step.reports[..] {
            [Report::Call { arguments, exact, .. }] => (arguments.clone(), *exact),
            other => panic!("{other:?}"),
        }
    };
    let mut calls = calls();
    told(&mut calls, "exact", "lookup", r#" {"a":1e2, "a" : 1e2}"#);
    assert_eq!(shown(&mut calls, "exact"), (r#" {"a":1e2, "a" : 1e2}"#.to_owned(), true));
    let respelled = || (r#"{"a":1e+2}"#.to_owned(), false);
    assert_eq!(shown(&mut calls, "untold"), respelled());
    told(&mut calls, "broken", "lookup", r#"{"a":"#);
    assert_eq!(shown(&mut calls, "broken"), respelled());
    told(&mut calls, "native", "exec_command", "{}");
    assert_eq!(shown(&mut calls, "native"), respelled());
    // Which of the two Codex asks for cannot be told.
    told(&mut calls, "twice", "lookup", "{}");
    told(&mut calls, "twice", "lookup", r#"{"a":100}"#);
    assert_eq!(shown(&mut calls, "twice"), respelled());
    // Of what Codex has asked for nothing is kept, so any number of calls has its text.
    for n in 0..2 * TOLD {
        let id = format!("asked-{n}");
        told(&mut calls, &id, "lookup", "{}");
        assert_eq!(shown(&mut calls, &id), ("{}".to_owned(), true));
        told(&mut calls, &id, "lookup", "{}");
    }
    assert_eq!(calls.told.len(), 0);
    for n in 0..2 * TOLD {
        told(&mut calls, &n.to_string(), "lookup", "{}");
    }
    assert_eq!(calls.told.len(), TOLD);
}

#[test]
fn a_failed_result_says_so_in_its_text() {
    let mut calls = calls();
    pending(&mut calls, "7");
    let lines = calls.answered("c", &result(false, "half"));
    check_lines(
        &lines,
        &[
            r#"{"id":7,"result":{"success":false,"contentItems":[{"type":"inputText","text":"The function failed."},{"type":"inputText","text":"half"}]}}"#,
        ],
    );
    let reports = calls.completed(item("c", "failed", Some(false), &["The function failed.", "half"]));
    check(&reports, &[WRITTEN, r#"AnswerApplied { call_id: "c", evidence: "item/completed", success: false }"#]);
}

#[test]
fn an_image_that_codex_replaces_by_a_text_differs() {
    let image = OutputPart::Image(Image { media_type: MediaType::Png, data: Bytes::from_static(b"bytes") });
    let output = Presence::Value(FunctionOutput::Parts(vec![image]));
    let given = FunctionResult { output, ..result(true, "") };
    let shown = |item: ContentItem| CallItem { content_items: Some(vec![item]), ..item_of(&[]) };
    for (shown, want) in [
        (shown(ContentItem { kind: "inputImage".into(), text: None, image_url: Some(URL.into()) }), APPLIED),
        (shown(ContentItem { kind: "inputImage".into(), text: None, image_url: None }), DIFFERS),
        (item_of(&["image content omitted because it could not be processed"]), DIFFERS),
    ] {
        let mut calls = calls();
        pending(&mut calls, "0");
        let line = format!(
            r#"{{"id":0,"result":{{"success":true,"contentItems":[{{"type":"inputImage","imageUrl":"{URL}"}}]}}}}"#
        );
        check_lines(&calls.answered("c", &given), &[&line]);
        check(&calls.completed(shown), &[WRITTEN, want]);
    }
}

#[test]
fn an_image_that_the_model_does_not_get_differs_also_behind_the_receipt() {
    let image = || OutputPart::Image(Image { media_type: MediaType::Png, data: Bytes::from_static(b"bytes") });
    let output = Presence::Value(FunctionOutput::Parts(vec![image(), OutputPart::Text("a".into()), image()]));
    let given = FunctionResult { output, ..result(true, "") };
    let entered = |calls: &mut Calls, kinds: &[&str]| {
        let output = Some(kinds.iter().map(|kind| RawPart { kind: (*kind).into() }).collect());
        let told = calls.told(RawItem { call_id: "c".into(), output, ..RawItem::default() });
        told.into_iter().collect::<Vec<_>>()
    };
    let shown = || CallItem { content_items: Some(answer(&given).content_items), ..item_of(&[]) };
    for (kinds, want) in [
        (&["input_image", "input_text", "input_image"][..], &[][..]),
        (&["input_text", "input_text", "input_image"], &[DIFFERS]),
    ] {
        let mut calls = calls();
        pending(&mut calls, "0");
        check(&entered(&mut calls, kinds), &[]);
        calls.answered("c", &given);
        check(&calls.completed(shown()), &[WRITTEN, APPLIED]);
        check(&entered(&mut calls, kinds), want);
        check(&entered(&mut calls, &[]), if want.is_empty() { &[DIFFERS] } else { &[] });
    }
}

#[test]
fn a_result_without_content_is_not_taken_for_a_cancelled_call() {
    let mut calls = calls();
    pending(&mut calls, "0");
    let empty = FunctionResult { success: true, error: Presence::Null, output: Presence::Null, disposition: None };
    check_lines(&calls.answered("c", &empty), &[r#"{"id":0,"result":{"success":true,"contentItems":[]}}"#]);
    check(&calls.completed(item("c", "completed", Some(true), &[])), &[WRITTEN, APPLIED]);
}

#[test]
fn evidence_before_the_writers_word_stands_behind_it() {
    let mut calls = calls();
    pending(&mut calls, "0");
    calls.answered("c", &result(true, "42"));
    check(&calls.completed(item("c", "completed", Some(true), &["42"])), &[WRITTEN, APPLIED]);
    assert_eq!(calls.written("c"), None);
}

#[test]
fn other_content_is_said_to_differ() {
    for (status, success, texts) in [
        ("completed", Some(true), &["43"][..]),
        ("completed", Some(true), &["42", ""]),
        ("failed", Some(false), &["42"]),
        ("failed", Some(false), &["dynamic tool response was invalid"]),
        ("completed", None, &["42"]),
    ] {
        let mut calls = calls();
        pending(&mut calls, "0");
        calls.answered("c", &result(true, "42"));
        let _ = calls.written("c");
        check(&calls.completed(item("c", status, success, texts)), &[r#"AnswerDiffers { call_id: "c" }"#]);
        check(&calls.completed(item("c", "completed", Some(true), &["42"])), &[]);
    }
}

#[test]
fn a_cancelled_call_is_abandoned_before_and_after_the_write() {
    let mut calls = calls();
    pending(&mut calls, "0");
    check(&calls.completed(item("c", "failed", Some(false), &[])), &[CANCELLED]);
    assert!(calls.answered("c", &result(true, "late")).is_empty());

    calls.begin();
    pending(&mut calls, "1");
    calls.answered("c", &result(true, "42"));
    check(&calls.completed(item("c", "failed", Some(false), &[])), &[CANCELLED]);
    assert_eq!(calls.written("c"), None);
}

#[test]
fn one_call_id_is_one_call_whatever_asks_for_it() {
    let mut calls = calls();
    pending(&mut calls, "0");
    pending(&mut calls, "1");
    let line = |id: u8| {
        format!(r#"{{"id":{id},"result":{{"success":true,"contentItems":[{{"type":"inputText","text":"42"}}]}}}}"#)
    };
    check_lines(&calls.answered("c", &result(true, "42")), &[&line(0), &line(1)]);
    let step = calls.requested(&raw("2"), params("c", "lookup", "{}"));
    check(&step.reports, &[]);
    check_lines(&step.lines, &[&line(2)]);
    calls.completed(item("c", "completed", Some(true), &["42"]));
    let step = calls.requested(&raw("3"), params("c", "lookup", "{}"));
    check_lines(&step.lines, &[&line(3)]);
    check(&calls.completed(item("c", "completed", Some(true), &["42"])), &[]);
}

#[test]
fn of_two_requests_with_one_id_one_may_be_cancelled() {
    let mut calls = calls();
    pending(&mut calls, "0");
    pending(&mut calls, "1");
    calls.answered("c", &result(true, "42"));
    check(&calls.completed(item("c", "failed", Some(false), &[])), &[]);
    check(&calls.completed(item("c", "completed", Some(true), &["42"])), &[WRITTEN, APPLIED]);

    calls.begin();
    pending(&mut calls, "0");
    pending(&mut calls, "1");
    check(&calls.completed(item("c", "failed", Some(false), &[])), &[]);
    check(&calls.completed(item("c", "failed", Some(false), &[])), &[CANCELLED]);
}

#[test]
fn other_arguments_under_a_known_id_are_refused_and_do_not_touch_the_call() {
    let mut calls = calls();
    pending(&mut calls, "0");
    let step = calls.requested(&raw("1"), params("c", "lookup", r#"{"other":1}"#));
    check_lines(&step.lines, &[r#"{"id":1,"error":{"code":-32602,"message":"another call has this id"}}"#]);
    check(
        &step.reports,
        &[r#"Notice { code: "call_id_reused", message: "a call was refused: another call has this id" }"#],
    );
    // Codex completes the refused one under the same id.
    check(&calls.completed(item("c", "failed", Some(false), &["dynamic tool request failed"])), &[]);
    calls.answered("c", &result(true, "42"));
    check(&calls.completed(item("c", "completed", Some(true), &["42"])), &[WRITTEN, APPLIED]);
}

#[test]
fn undeclared_names_are_refused_at_once() {
    let mut calls = calls();
    for (tool, namespace) in [("Lookup", None), ("nope", None), ("lookup", Some("bridge".to_owned()))] {
        let step = calls.requested(&raw("\"s\""), CallParams { namespace, ..params("c", tool, "{}") });
        check_lines(&step.lines, &[r#"{"id":"s","error":{"code":-32602,"message":"no such function"}}"#]);
        check(&step.reports, &[r#"Notice { code: "call_refused", message: "a call was refused: no such function" }"#]);
    }
}

#[test]
fn results_for_calls_that_are_not_open_are_nothing() {
    let mut calls = calls();
    assert!(calls.answered("c", &result(true, "42")).is_empty());
    check(&calls.completed(item("c", "completed", Some(true), &["42"])), &[]);
    pending(&mut calls, "0");
    assert_eq!(calls.written("c"), None);
    calls.answered("c", &result(true, "42"));
    assert!(calls.answered("c", &result(true, "43")).is_empty());
}
