use proptest::prelude::*;

use super::super::{Judge, Limits};
use super::*;

fn events(events: &[&str]) -> String {
    events.iter().map(|event| format!("event: e\r\ndata: {event}\r\n\r\n")).collect()
}

/// What goes on of these pieces, and the ids of the calls.
fn pass<'a>(protocol: Protocol, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<(String, Vec<String>), Breach> {
    let mut judge = Judge::strict(Some(protocol), true, Limits::default());
    let (mut out, mut calls) = (Vec::new(), Vec::new());
    let mut add = |passes: Passes| {
        out.extend(passes.bytes);
        calls.extend(passes.batch.into_iter().flat_map(|batch| batch.calls).map(|call| call.call_id));
    };
    for piece in pieces {
        add(judge.take(piece)?.unwrap());
    }
    add(judge.finish()?);
    Ok((String::from_utf8(out).unwrap(), calls))
}

fn passed(protocol: Protocol, text: &str) -> Result<(String, Vec<String>), Breach> {
    pass(protocol, [text.as_bytes()])
}

const CREATED: &str = r#"{"type":"response.created","response":{"id":"r"}}"#;
const TEXT: &str = r#"{"type":"response.output_text.delta","output_index":0,"delta":"hi"}"#;
const ADDED: &str = r#"{"type":"response.output_item.added","output_index":1,"item":{"type":"function_call","call_id":"a","name":"f"}}"#;
const DELTA: &str = r#"{"type":"response.function_call_arguments.delta","output_index":1,"delta":"{}"}"#;
const DONE: &str = r#"{"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}}"#;
const OTHER: &str = r#"{"type":"response.output_item.done","output_index":2,"item":{"type":"custom_tool_call","call_id":"b","name":"g","input":"x"}}"#;
const COMPLETED: &str = r#"{"type":"response.completed","response":{"id":"r","output":[]}}"#;
const INCOMPLETE: &str = r#"{"type":"response.incomplete","response":{"id":"r"}}"#;

const START: &str = r#"{"type":"message_start","message":{"id":"m"}}"#;
const BLOCK: &str =
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f","input":{}}}"#;
const BLOCK_STOP: &str = r#"{"type":"content_block_stop","index":0}"#;
const PING: &str = r#"{"type":"ping"}"#;
const ASKS: &str = r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{}}"#;
const CUT: &str = r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{}}"#;
const STOP: &str = r#"{"type":"message_stop"}"#;

#[test]
fn calls_go_on_with_everything_behind_them_once_their_end_asks_for_them() {
    let before = events(&[CREATED, TEXT]);
    let held = events(&[ADDED, DELTA, TEXT, DONE, OTHER]);
    let end = events(&[COMPLETED]);
    let mut judge = Judge::strict(Some(Protocol::Responses), true, Limits::default());
    let mut take = |text: &str| judge.take(text.as_bytes()).unwrap().unwrap();
    assert_eq!(take(&before).bytes, before.as_bytes());
    assert_eq!(take(&held), Passes::default());
    let Passes { bytes, batch } = take(&end);
    assert_eq!(String::from_utf8(bytes).unwrap(), format!("{held}{end}"));
    let batch = batch.unwrap();
    assert_eq!(batch.id.as_deref(), Some("r"));
    let calls: Vec<_> = batch.calls.iter().map(|call| (&*call.call_id, &*call.name)).collect();
    assert_eq!(calls, [("a", "f"), ("b", "g")]);
}

#[test]
fn what_is_cut_is_passed_on_without_its_calls() {
    let of = |protocol, before: &[&str], held: &[&str], end: &[&str]| {
        let (before, end) = (events(before), events(end));
        let text = format!("{before}{}{end}", events(held));
        assert_eq!(passed(protocol, &text), Ok((format!("{before}{end}"), Vec::new())));
    };
    of(Protocol::Responses, &[CREATED, TEXT], &[ADDED, DELTA, DONE], &[INCOMPLETE]);
    of(Protocol::Responses, &[CREATED], &[ADDED], &[r#"{"type":"response.failed","response":{}}"#, "[DONE]"]);
    of(Protocol::Messages, &[START], &[BLOCK, PING, BLOCK_STOP], &[CUT, STOP]);
    of(Protocol::Messages, &[START], &[BLOCK], &[r#"{"type":"error","error":{"type":"overloaded_error"}}"#]);
    // It ends without a mark.
    of(Protocol::Responses, &[CREATED, TEXT], &[ADDED, DELTA, DONE, OTHER], &[]);
    of(Protocol::Messages, &[START], &[BLOCK, BLOCK_STOP, ASKS], &[]);
}

#[test]
fn calls_that_cannot_be_told_apart_break_the_answer_off() {
    let twice = DONE.replace("\"output_index\":1", "\"output_index\":2");
    let flaw = passed(Protocol::Responses, &events(&[DONE, &twice, COMPLETED]));
    assert_eq!(flaw, Err(Breach::Calling("two calls have one id")));
    assert!(passed(Protocol::Responses, &events(&[DONE, &twice, INCOMPLETE])).is_ok(), "nothing of it is run");
}

#[test]
fn without_calls_everything_passes_with_the_event_that_it_belongs_to() {
    let mut judge = Judge::strict(Some(Protocol::Messages), true, Limits::default());
    let mut take = |text: &str| String::from_utf8(judge.take(text.as_bytes()).unwrap().unwrap().bytes).unwrap();
    assert_eq!(take(": busy\n\n"), ": busy\n\n");
    assert_eq!(take("data: {\"type\":\"ping\"}\r\n\r"), "data: {\"type\":\"ping\"}\r\n\r");
    assert_eq!(take("\nda"), "\n");
    assert_eq!(take("ta: {}"), "");
    assert_eq!(take("\n\n"), "data: {}\n\n");
}

#[test]
fn an_event_that_never_ends_is_none() {
    let text = events(&[START]);
    assert_eq!(passed(Protocol::Messages, &format!("{text}data: {BLOCK}\r\n")), Ok((text, Vec::new())));
}

#[test]
fn an_answer_that_is_no_stream_is_held_back_as_a_whole() {
    let message = |reason: &str| {
        format!(r#"{{"id":"m","content":[{{"type":"tool_use","id":"a","name":"f"}}],"stop_reason":"{reason}"}}"#)
    };
    let judge = |text: &str| {
        let mut judge = Judge::strict(Some(Protocol::Messages), false, Limits::default());
        assert_eq!(judge.take(text.as_bytes()), Ok(Some(Passes::default())));
        judge.finish()
    };
    let runs = judge(&message("tool_use")).unwrap();
    assert_eq!((runs.bytes, runs.batch.unwrap().calls.len()), (message("tool_use").into_bytes(), 1));
    assert!(judge(&message("max_tokens")).is_err());
}

/// An answer, and what of it may be told by a prefix.
fn answers() -> Vec<(Protocol, String)> {
    vec![
        (Protocol::Responses, events(&[CREATED, TEXT, ADDED, DELTA, TEXT, DONE, OTHER, COMPLETED, "[DONE]"])),
        (Protocol::Responses, events(&[CREATED, TEXT, ADDED, DELTA, INCOMPLETE])),
        (Protocol::Responses, format!(": hi\r\r{}: keep\n\n", events(&[CREATED, TEXT, COMPLETED]))),
        (Protocol::Messages, events(&[START, BLOCK, PING, BLOCK_STOP, ASKS, STOP])),
        (Protocol::Messages, events(&[START, BLOCK, PING, BLOCK_STOP, CUT, STOP])),
        (Protocol::Messages, events(&[START, BLOCK, PING]).replace("\r\n", "\r")),
    ]
}

proptest! {
    #[test]
    fn where_the_bytes_are_cut_does_not_matter(which in 0..6usize, cuts in prop::collection::vec(0..4000usize, 0..12)) {
        let (protocol, text) = answers().swap_remove(which);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut % text.len()).collect();
        cuts.sort_unstable();
        let (mut pieces, mut at) = (Vec::new(), 0);
        for cut in cuts {
            pieces.push(&text.as_bytes()[at..cut]);
            at = cut;
        }
        pieces.push(&text.as_bytes()[at..]);
        prop_assert_eq!(pass(protocol, pieces), passed(protocol, &text));
    }

    #[test]
    fn no_part_of_a_call_goes_on_before_its_end(which in 0..6usize, cut in 0..4000usize) {
        let (protocol, text) = answers().swap_remove(which);
        let prefix = &text[..cut % text.len()];
        let (out, calls) = passed(protocol, prefix).unwrap();
        let is_over = prefix.contains("completed\"") || prefix.contains("message_stop");
        let tells = out.contains("_call\"") || out.contains("tool_use\",\"id");
        prop_assert!(is_over || !tells && calls.is_empty(), "{out}");
    }
}
