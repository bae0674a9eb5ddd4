use super::*;
use crate::claude_code::wire::{self, Line};

/// What the items report of some lines; `false` stands where a line was not of the Turn.
fn told(items: &mut Items, lines: &[&str]) -> Vec<String> {
    let mut told = Vec::new();
    for line in lines {
        let mut out = Vec::new();
        let is_ours = match wire::read(line.as_bytes()).unwrap().unwrap() {
            Line::Stream(stream) => items.streamed(stream, &mut out),
            Line::Assistant(line) => items.told(line, &mut out),
            Line::User(line) => items.ended(&line, &mut out),
            Line::Result(result) => {
                items.turn_ended(&result, &mut out);
                true
            }
            line => panic!("{line:?}"),
        };
        told.extend(out.iter().map(|report| format!("{report:?}")));
        if !is_ours {
            told.push("false".into());
        }
    }
    told
}

fn event(event: &str) -> String {
    format!(r#"{{"type":"stream_event","event":{event},"parent_tool_use_id":null}}"#)
}

fn message(id: &str, block: &str) -> String {
    format!(
        r#"{{"type":"assistant","message":{{"id":"{id}","model":"m","content":[{block}]}},"parent_tool_use_id":null}}"#
    )
}

#[track_caller]
fn check(items: &mut Items, lines: &[String], want: &[&str]) {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_eq!(told(items, &lines), want);
}

#[test]
fn nothing_of_a_subagent_is_of_the_turn() {
    let mut items = Items::default();
    let lines = [
        r#"{"type":"stream_event","event":{"type":"message_start","message":{"id":"m"}},"parent_tool_use_id":"toolu_P"}"#,
        r#"{"type":"assistant","message":{"id":"m","model":"m","content":[{"type":"text","text":"x"}]},"parent_tool_use_id":"toolu_P"}"#,
        r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t"}]},"parent_tool_use_id":"toolu_P"}"#,
    ];
    assert_eq!(told(&mut items, &lines), ["false", "false", "false"]);
    assert!(items.are_bare());
}

#[test]
fn what_claude_says_in_the_models_place_is_no_message() {
    let mut items = Items::default();
    let line = r#"{"type":"assistant","message":{"id":"s","model":"<synthetic>","content":[{"type":"text","text":"API Error: 400"}]},"parent_tool_use_id":null,"error":"unknown"}"#;
    assert_eq!(told(&mut items, &[line]), Vec::<String>::new());
    assert!(items.are_bare());
    items.unread();
    assert!(!items.are_bare());
}

#[test]
fn blocks_without_a_place_have_the_next_one() {
    let start = event(r#"{"type":"message_start","message":{"id":"m"}}"#);
    let block = event(r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"a"}}"#);
    let stop = event(r#"{"type":"message_stop"}"#);
    let text = |text: &str| message("m", &format!(r#"{{"type":"text","text":"{text}"}}"#));
    check(
        &mut Items::default(),
        &[start, block, text("ab"), text("second"), stop, text("late"), text("later"), text("")],
        &[
            r#"MessageStarted { id: "m:0" }"#,
            r#"MessageDelta { id: "m:0", text: "a" }"#,
            r#"MessageCompleted { id: "m:0", text: "ab", phase: None }"#,
            r#"MessageStarted { id: "m:1" }"#,
            r#"MessageCompleted { id: "m:1", text: "second", phase: None }"#,
            r#"MessageStarted { id: "m:2" }"#,
            r#"MessageCompleted { id: "m:2", text: "late", phase: None }"#,
            r#"MessageStarted { id: "m:3" }"#,
            r#"MessageCompleted { id: "m:3", text: "later", phase: None }"#,
        ],
    );
}

#[test]
fn deltas_without_a_block_or_of_another_kind_are_dropped() {
    let delta = |index: u32, delta: &str| {
        event(&format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#))
    };
    let start = event(r#"{"type":"message_start","message":{"id":"m"}}"#);
    let block = event(r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#);
    check(
        &mut Items::default(),
        &[
            delta(0, r#"{"type":"text_delta","text":"x"}"#),
            start,
            delta(0, r#"{"type":"text_delta","text":"x"}"#),
            block,
            delta(0, r#"{"type":"thinking_delta","thinking":""}"#),
            delta(0, r#"{"type":"thinking_delta","thinking":"h"}"#),
            delta(0, r#"{"type":"text_delta","text":"x"}"#),
            delta(0, r#"{"type":"hologram_delta"}"#),
        ],
        &[r#"ReasoningStarted { id: "m:0" }"#, r#"ReasoningDelta { id: "m:0", kind: Raw, index: 0, text: "h" }"#],
    );
}

#[test]
fn an_answer_that_another_one_follows_broke_off() {
    let start = |id: &str| event(&format!(r#"{{"type":"message_start","message":{{"id":"{id}"}}}}"#));
    let block = event(r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"a"}}"#);
    let begun = [r#"MessageStarted { id: "m:0" }"#, r#"MessageDelta { id: "m:0", text: "a" }"#];
    let mut items = Items::default();
    check(&mut items, &[start("m"), block.clone(), start("n")], &[begun[0], begun[1], "AnswerBroken"]);
    // At an interrupt the Session closes what is open, and calls it so.
    let mut items = Items::default();
    check(&mut items, &[start("m"), block], &begun);
    items.stop();
    check(&mut items, &[event(r#"{"type":"message_stop"}"#), start("n")], &[]);
}

#[test]
fn a_search_goes_on_while_its_answer_breaks_off() {
    let search = message("m", r#"{"type":"tool_use","id":"t","name":"WebSearch","input":{"query":"q"}}"#);
    let begun = r#"ToolStarted { id: "t", tool: WebSearch { query: "q", action: Some(Search { queries: ["q"] }) } }"#;
    let start = event(r#"{"type":"message_start","message":{"id":"m"}}"#);
    let tool = event(
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"WebSearch","input":{}}}"#,
    );
    let text = event(r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":"a"}}"#);
    let cut = r#"{"type":"stream_event","event":{"type":"message_stop"},"parent_tool_use_id":null,"abandoned_blocks":{"from_block_index":1}}"#;
    let end = r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","content":"found"}]},"parent_tool_use_id":null}"#;
    let mut items = Items::default();
    check(
        &mut items,
        &[start, tool, search, text, cut.into(), end.into()],
        &[
            begun,
            r#"MessageStarted { id: "m:1" }"#,
            r#"MessageDelta { id: "m:1", text: "a" }"#,
            "AnswerBroken",
            begun,
            r#"ToolCompleted { id: "t", end: ToolEnd { status: Completed, tool: WebSearch { query: "q", action: Some(Search { queries: ["q"] }) }, output: Some("found"), exit_code: None, duration: None } }"#,
        ],
    );
}

#[test]
fn only_tools_of_this_machine_are_open_work() {
    let tool = |id: &str, name: &str| {
        message("m", &format!(r#"{{"type":"tool_use","id":"{id}","name":"{name}","input":[]}}"#))
    };
    let mut items = Items::default();
    let lines: Vec<String> = [
        ("a", "Bash"),
        ("b", "WebFetch"),
        ("c", "Read"),
        ("d", "mcp__functions__lookup"),
        ("e", "StructuredOutput"),
        ("a", "Bash"),
    ]
    .iter()
    .map(|(id, name)| tool(id, name))
    .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_eq!(told(&mut items, &lines).len(), 3);
    assert_eq!(items.open_work(), 2);
    items.stop();
    let end = r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"a","content":"x"},{"type":"tool_result","tool_use_id":"c","content":"x"},{"type":"tool_result","tool_use_id":"d","content":"x"}]},"parent_tool_use_id":null}"#;
    let ended = told(&mut items, &[end]);
    assert_eq!(ended.iter().filter(|report| report.contains("status: Incomplete")).count(), 2);
    assert_eq!((ended.len(), items.open_work()), (2, 0));
}

#[test]
fn usage_is_what_was_measured() {
    let delta = event(
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":1,"output_tokens":2}}"#,
    );
    let aborted =
        event(r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"input_tokens":1,"output_tokens":2}}"#);
    let result =
        |usage: &str| format!(r#"{{"type":"result","subtype":"success","model_usage_since_last_result":{{{usage}}}}}"#);
    let one =
        "Usage(Usage { input: Some(1), cached_input: None, output: Some(2), reasoning_output: None, total: Some(3) })";
    let mut items = Items::default();
    // Without counters of a native turn, those of its answers are all that is known.
    check(&mut items, &[aborted, result("")], &[]);
    check(&mut items, &[delta, result("")], &[one]);
    let two = "Usage(Usage { input: Some(61), cached_input: Some(20), output: Some(9), reasoning_output: Some(3), total: Some(70) })";
    let models = r#""a":{"inputTokens":10,"outputTokens":4,"cacheReadInputTokens":20,"thinkingTokens":3},"b":{"inputTokens":0,"outputTokens":3,"cacheCreationInputTokens":30,"thinkingTokens":0}"#;
    check(&mut items, &[result(models), result("")], &[two]);
}

#[test]
fn a_text_of_nothing_but_white_space_is_no_block_of_the_message() {
    let start = event(r#"{"type":"message_start","message":{"id":"m"}}"#);
    let begins = |index: u32| {
        event(&format!(
            r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"text","text":""}}}}"#
        ))
    };
    let grows = |index: u32, text: &str| {
        event(&format!(
            r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"text_delta","text":"{text}"}}}}"#
        ))
    };
    let ends = |index: u32| event(&format!(r#"{{"type":"content_block_stop","index":{index}}}"#));
    let whole = message("m", r#"{"type":"text","text":" hello"}"#);
    let stop = event(r#"{"type":"message_stop"}"#);
    // Claude tells no `assistant` line for the first block.
    let lines = [
        start,
        begins(0),
        grows(0, "\\n\\n"),
        ends(0),
        begins(1),
        grows(1, " "),
        grows(1, "hello"),
        whole,
        ends(1),
        stop,
    ];
    check(
        &mut Items::default(),
        &lines,
        &[
            r#"MessageStarted { id: "m:0" }"#,
            r#"MessageDelta { id: "m:0", text: " hello" }"#,
            r#"MessageCompleted { id: "m:0", text: " hello", phase: None }"#,
        ],
    );
}
