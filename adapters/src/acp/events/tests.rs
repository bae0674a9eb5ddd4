//! Frames of the real opencode 1.18.33 (ids, paths and texts are shortened), and properties of how texts are told apart.

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::{
    acp::{
        profile::{Listing, McpResult, Profile, SetUp, Slash, ToolReading},
        wire::Update,
    },
    function_server::RequestId,
    harness::{
        BoxFuture, Declaration, FunctionOutput, FunctionResult, Launch, NotAdmitted, PrepareError, Presence, Settings,
    },
    probe::Found,
};

/// An agent that names tools as opencode does, and is never started.
#[derive(Debug)]
struct Named(Profile);

impl Agent for Named {
    fn profile(&self) -> &Profile {
        &self.0
    }

    fn built(&self) -> crate::admission::built::Built {
        unreachable!("items are not admitted")
    }

    fn look(&self) -> BoxFuture<'_, Found> {
        unreachable!("nothing is looked for")
    }

    fn declare(&self, _: &Settings, _: &Found) -> Declaration {
        unreachable!("nothing is declared")
    }

    fn admit(&self, _: &Declaration, _: &Configuration) -> Result<(), NotAdmitted> {
        unreachable!("nothing is admitted")
    }

    fn set_up<'a>(
        &'a self,
        _: &'a Settings,
        _: &'a Found,
        _: &'a Launch,
    ) -> BoxFuture<'a, Result<SetUp, PrepareError>> {
        unreachable!("nothing is set up")
    }
}

fn command(_: &str, arguments: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Bash {
        command: String,
    }
    serde_json::from_str::<Bash>(arguments.get()).ok().map(|bash| bash.command)
}

fn mcp_result(told: &ToolCall<'_>) -> Option<McpResult> {
    let is_error = Some(!told.ended()?);
    let text = output(told)?;
    Some(McpResult { json: told.raw_output?.get().to_owned(), is_error, texts: vec![text], ..McpResult::default() })
}

fn profile() -> Profile {
    Profile {
        kind: "acp:test",
        name: "agent",
        slash: Slash::ZeroWidthSpace,
        mcp_names: &[|server, tool| format!("{server}_{tool}")],
        tools: ToolReading {
            name: |told| told.title.as_ref().map(|title| title.clone().into_owned()),
            command,
            mcp_result,
        },
        steer: None,
        reusable_after_cancel: false,
        resumes: true,
        unknown_session: &[],
        listing: Listing::AtOpening,
    }
}

/// The machines of one Turn, of a Session with the function `echo` and the server `tickets`.
struct Machines {
    items: Items,
    calls: Calls,
    stopped: bool,
}

impl Machines {
    fn new() -> Self {
        let servers = ["tickets", "functions"].map(|label| (format!("{label}_"), label.to_owned()));
        let functions = BTreeMap::from([("functions_echo".to_owned(), "echo".to_owned())]);
        let names = Names { functions, servers: servers.into() };
        let mut calls = Calls::default();
        calls.begin();
        Self { items: Items::new(Arc::new(Named(profile())), Arc::new(names)), calls, stopped: false }
    }

    /// What is told of these updates.
    fn take(&mut self, updates: &[&str]) -> Vec<Report> {
        let mut out = Vec::new();
        for update in updates {
            let raw: &RawValue = serde_json::from_str(update).unwrap();
            match Update::read(raw).unwrap() {
                Update::Message(chunk) => self.items.message(&chunk, &mut out),
                Update::Thought(chunk) => self.items.thought(&chunk, &mut out),
                Update::Tool(told) => self.items.tool(&told, &mut self.calls, self.stopped, &mut out),
                Update::Beside | Update::Unknown => {}
            }
        }
        out
    }

    fn ended(&mut self) -> Vec<Report> {
        let mut out = Vec::new();
        self.items.end(&mut out);
        out
    }
}

/// The end of the name of a report and what a reader looks for in it.
fn brief(reports: &[Report]) -> Vec<String> {
    let status = |status: &ToolStatus| format!("{status:?}").to_lowercase();
    let tool = |tool: &Tool| match tool {
        Tool::Command { command, directory } => format!("command {command:?} in {directory:?}"),
        Tool::Mcp(call) => {
            format!("mcp {}/{} {} {:?} {:?}", call.server, call.tool, call.arguments, call.result, call.error)
        }
        Tool::Other { name } => format!("other {name}"),
        tool => format!("{tool:?}"),
    };
    let one = |report: &Report| match report {
        Report::MessageStarted { id } => format!("+message {id}"),
        Report::MessageDelta { id, text } => format!("message {id} {text:?}"),
        Report::MessageCompleted { id, text, .. } => format!("-message {id} {text:?}"),
        Report::ReasoningStarted { id } => format!("+thought {id}"),
        Report::ReasoningDelta { id, text, .. } => format!("thought {id} {text:?}"),
        Report::ReasoningCompleted { id, raw, .. } => format!("-thought {id} {raw:?}"),
        Report::ToolStarted { id, tool: shown } => format!("+tool {id} {}", tool(shown)),
        Report::ToolCompleted { id, end } => {
            let ToolEnd { status: how, tool: shown, output, exit_code, .. } = end;
            format!("-tool {id} {} {} {output:?} {exit_code:?}", status(how), tool(shown))
        }
        report => format!("{report:?}"),
    };
    reports.iter().map(one).collect()
}

#[track_caller]
fn check(machines: &mut Machines, updates: &[&str], want: &[&str]) {
    assert_eq!(brief(&machines.take(updates)), want);
}

fn chunk(kind: &str, id: Option<&str>, text: &str) -> String {
    let id = id.map(|id| format!(r#""messageId":"{id}","#)).unwrap_or_default();
    let text = serde_json::to_string(text).unwrap();
    format!(r#"{{"sessionUpdate":"agent_{kind}_chunk",{id}"content":{{"type":"text","text":{text}}}}}"#)
}

const BASH: [&str; 4] = [
    r#"{"sessionUpdate":"tool_call","toolCallId":"c1","title":"bash","kind":"execute","status":"pending","locations":[{"path":"/ws"}],"rawInput":{"cwd":"/ws"}}"#,
    r#"{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"in_progress","kind":"execute","title":"echo hi; exit 3","locations":[{"path":"/ws"}],"rawInput":{"command":"echo hi; exit 3","description":"d","cwd":"/ws"}}"#,
    r#"{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"in_progress","kind":"execute","title":"echo hi; exit 3","locations":[{"path":"/ws"}],"rawInput":{"command":"echo hi; exit 3","description":"d","cwd":"/ws"},"content":[{"type":"content","content":{"type":"text","text":"hi\n"}}]}"#,
    r#"{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"completed","title":"echo hi; exit 3","content":[{"type":"content","content":{"type":"text","text":"hi\n"}}],"rawOutput":{"output":"hi\n","metadata":{"output":"hi\n","exit":3,"truncated":false}}}"#,
];

#[test]
fn a_command_is_told_once_its_line_is_there_and_ends_once_by_its_code() {
    let mut machines = Machines::new();
    check(&mut machines, &BASH[..1], &[]);
    assert!(machines.items.are_unended());
    check(&mut machines, &BASH[1..3], &[r#"+tool c1 command "echo hi; exit 3" in "/ws""#]);
    let ended = r#"-tool c1 failed command "echo hi; exit 3" in "/ws" Some("hi\n") Some(3)"#;
    check(&mut machines, &[BASH[3], BASH[3], BASH[2]], &[ended]);
    assert!(!machines.items.are_unended());
}

#[test]
fn what_ends_behind_our_cancel_was_stopped_by_it() {
    let mut machines = Machines::new();
    machines.take(&BASH[..2]);
    machines.stopped = true;
    let ended = r#"-tool c1 incomplete command "echo hi; exit 3" in "/ws" Some("hi\n") None"#;
    check(&mut machines, &BASH[3..], &[ended]);
}

const READ: [&str; 3] = [
    r#"{"sessionUpdate":"tool_call","toolCallId":"c2","title":"read","kind":"read","status":"pending","locations":[],"rawInput":{}}"#,
    r#"{"sessionUpdate":"tool_call_update","toolCallId":"c2","status":"in_progress","kind":"read","title":"read","locations":[{"path":"/etc/hostname"}],"rawInput":{"filePath":"/etc/hostname"}}"#,
    r#"{"sessionUpdate":"tool_call_update","toolCallId":"c2","status":"completed","title":"etc/hostname","content":[{"type":"content","content":{"type":"text","text":"vm"}}],"rawOutput":{"output":"1: vm","metadata":{"preview":"vm"}}}"#,
];

#[test]
fn a_native_tool_keeps_the_name_that_it_came_with() {
    check(&mut Machines::new(), &READ[..1], &[]);
    let want = ["+tool c2 other read", r#"-tool c2 completed other read Some("1: vm") None"#];
    check(&mut Machines::new(), &READ, &want);
    // It failed before it was begun.
    let failed =
        r#"{"sessionUpdate":"tool_call_update","toolCallId":"c2","status":"failed","rawOutput":{"error":"no"}}"#;
    let want = ["+tool c2 other read", r#"-tool c2 failed other read Some("no") None"#];
    check(&mut Machines::new(), &[READ[0], failed], &want);
}

/// Frames of a tool of an MCP server: announced, begun, ended.
fn mcp(id: &str, name: &str, arguments: &str, end: &str) -> [String; 3] {
    [
        format!(
            r#"{{"sessionUpdate":"tool_call","toolCallId":"{id}","title":"{name}","kind":"other","status":"pending","locations":[],"rawInput":{{}}}}"#
        ),
        format!(
            r#"{{"sessionUpdate":"tool_call_update","toolCallId":"{id}","status":"in_progress","kind":"other","title":"{name}","locations":[],"rawInput":{arguments}}}"#
        ),
        format!(r#"{{"sessionUpdate":"tool_call_update","toolCallId":"{id}",{end}}}"#),
    ]
}

const WENT_WELL: &str = r#""status":"completed","content":[{"type":"content","content":{"type":"text","text":"http echo: x"}}],"rawOutput":{"output":"http echo: x","metadata":{"truncated":false}}"#;
const SAID_NO: &str = r#""status":"failed","content":[{"type":"content","content":{"type":"text","text":"tool says no"}}],"rawOutput":{"error":"tool says no"}"#;

#[test]
fn a_tool_of_a_server_has_its_own_name_and_the_arguments_that_it_was_given() {
    let frames = mcp("c3", "tickets_open_one", r#"{"text":"x"}"#, WENT_WELL);
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    let want = [
        r#"+tool c3 mcp tickets/open_one {"text":"x"} None """#,
        r#"-tool c3 completed mcp tickets/open_one {"text":"x"} Some("{\"output\":\"http echo: x\",\"metadata\":{\"truncated\":false}}") "" None None"#,
    ];
    check(&mut Machines::new(), &frames, &want);
    // It takes none: then the empty object is what it was given.
    let frames = mcp("c4", "tickets_fail", "{}", SAID_NO);
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    let want = [
        "+tool c4 mcp tickets/fail {} None \"\"",
        r#"-tool c4 failed mcp tickets/fail {} Some("{\"error\":\"tool says no\"}") "" None None"#,
    ];
    check(&mut Machines::new(), &frames, &want);
}

fn id_of(report: &Report) -> String {
    match report {
        Report::Call { call_id, .. } => call_id.clone(),
        report => panic!("{report:?}"),
    }
}

fn result(text: &str) -> FunctionResult {
    FunctionResult {
        success: true,
        error: Presence::Absent,
        output: Presence::Value(FunctionOutput::Text(text.to_owned())),
        disposition: None,
    }
}

#[test]
fn calls_that_run_together_are_joined_by_their_arguments_whatever_stood_in_the_announcement() {
    let mut machines = Machines::new();
    let with = mcp("c5", "functions_echo", r#"{"text":"x"}"#, r#""status":"completed","rawOutput":{"output":"for x"}"#);
    let without = mcp("c6", "functions_echo", "{}", r#""status":"completed","rawOutput":{"output":"for none"}"#);
    check(&mut machines, &[&with[0], &without[0]], &[]);
    // The one that is announced first is asked for last.
    let bare = id_of(&machines.calls.asked(RequestId(1), "echo".to_owned(), "{}".to_owned()));
    let other = id_of(&machines.calls.asked(RequestId(2), "echo".to_owned(), r#"{"text":"x"}"#.to_owned()));
    check(&mut machines, &[&with[1], &without[1]], &[]);
    assert_ne!(bare, other);
    for (call, text, request) in [(&bare, "for none", RequestId(1)), (&other, "for x", RequestId(2))] {
        let (asked, _) = machines.calls.answered(call, &result(text)).unwrap();
        assert_eq!(asked, request);
        assert_eq!(machines.calls.answered(call, &result(text)), None);
    }
    for (call, end) in [(&other, &with[2]), (&bare, &without[2])] {
        let told = machines.take(&[end]);
        let evidence = functions::EVIDENCE;
        let applied = Report::AnswerApplied { call_id: call.clone(), evidence, success: true };
        assert_eq!(told.last(), Some(&applied), "{told:?}");
    }
    assert!(!machines.items.are_unended());
}

#[test]
fn a_function_that_never_came_to_the_server_is_a_tool_and_no_call() {
    let frames = mcp("c7", "functions_echo", r#"{"text":"x"}"#, SAID_NO);
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    let told = brief(&Machines::new().take(&frames));
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("+tool c7 mcp functions/echo") && told[1].starts_with("-tool c7 failed"), "{told:?}");
}

#[test]
fn texts_end_where_another_one_a_thought_or_a_tool_begins() {
    let mut machines = Machines::new();
    let said = |text| chunk("message", None, text);
    let (a, b, c) = (said("a"), said("b"), said("c"));
    let thought = chunk("thought", None, "t");
    let frames = [&*thought, &a, &b, READ[0], READ[1], &c, READ[2], &a];
    let want = [
        "+thought thought#1",
        "thought thought#1 \"t\"",
        "-thought thought#1 [\"t\"]",
        "+message message#1",
        "message message#1 \"a\"",
        "message message#1 \"b\"",
        "-message message#1 \"ab\"",
        "+tool c2 other read",
        "+message message#2",
        "message message#2 \"c\"",
        "-message message#2 \"c\"",
        r#"-tool c2 completed other read Some("1: vm") None"#,
        "+message message#3",
        "message message#3 \"a\"",
    ];
    check(&mut machines, &frames, &want);
    assert_eq!(brief(&machines.ended()), ["-message message#3 \"a\""]);
    assert!(machines.ended().is_empty());
}

#[test]
fn a_text_with_an_id_goes_on_beside_a_tool_that_was_there_before_it() {
    let mut machines = Machines::new();
    machines.take(&READ[..2]);
    let said = |text| chunk("message", Some("m"), text);
    let (a, b, c) = (said("a"), said("b"), said("c"));
    let told = machines.take(&[&a, READ[2], &b, READ[2], &c]);
    let texts = told.iter().filter(|report| !matches!(report, Report::ToolCompleted { .. }));
    let texts = brief(&texts.cloned().collect::<Vec<_>>());
    assert_eq!(texts, ["+message m", "message m \"a\"", "message m \"b\"", "message m \"c\""]);
    // Told again after its end, an update of a tool says nothing of a text without an id either.
    let told = machines.take(&[&chunk("message", None, "x"), READ[2], &chunk("message", None, "y")]);
    assert_eq!(brief(&told)[1..], ["+message message#1", "message message#1 \"x\"", "message message#1 \"y\""]);
}

#[test]
fn an_id_that_comes_back_is_another_item() {
    let said = |id| chunk("message", Some(id), "t");
    let frames = [said("m"), said("n"), said("m")];
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    let told = brief(&Machines::new().take(&frames));
    let begun: Vec<_> = told.iter().filter(|told| told.starts_with('+')).collect();
    assert_eq!(begun, ["+message m", "+message n", "+message m#2"]);
}

#[test]
fn what_is_no_text_begins_nothing() {
    let image =
        r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"","mimeType":"image/png"}}"#;
    let mut machines = Machines::new();
    check(&mut machines, &[image, &chunk("message", None, "")], &[]);
    assert!(machines.items.are_bare());
    // A thought alone is no answer, though the prompt runs.
    machines.take(&[&chunk("thought", None, "t")]);
    assert!(machines.items.are_bare() && machines.items.are_begun());
}

/// A frame of a Turn: a piece of a text, or the next frame of one of the tools.
#[derive(Clone, Debug)]
enum Frame {
    Text { is_thought: bool, id: Option<u8>, text: String },
    Tool { which: usize, at: usize },
}

fn frame() -> impl Strategy<Value = Frame> {
    let text = (any::<bool>(), proptest::option::of(0..3_u8), "[a-c\"\\\\]{0,3}");
    prop_oneof![
        4 => text.prop_map(|(is_thought, id, text)| Frame::Text { is_thought, id, text }),
        1 => (0..2_usize, 0..3_usize).prop_map(|(which, at)| Frame::Tool { which, at }),
    ]
}

proptest! {
    /// Whatever an agent tells, in whatever order: each item begins once, is told only while it is open, and ends once with all of its text; nothing of a text is lost.
    #[test]
    fn items_begin_once_and_end_once_with_all_of_their_text(frames in proptest::collection::vec(frame(), 0..40)) {
        let mut machines = Machines::new();
        let (mut told, mut messages, mut thoughts) = (Vec::new(), String::new(), String::new());
        for frame in &frames {
            let line = match frame {
                Frame::Text { is_thought, id, text } => {
                    if *is_thought { thoughts.push_str(text) } else { messages.push_str(text) }
                    let id = id.map(|id| format!("i{id}"));
                    chunk(if *is_thought { "thought" } else { "message" }, id.as_deref(), text)
                }
                Frame::Tool { which: 0, at } => READ[*at].to_owned(),
                Frame::Tool { at, .. } => BASH[*at].to_owned(),
            };
            told.extend(machines.take(&[&line]));
        }
        told.extend(machines.ended());
        let (mut open, mut over) = (BTreeMap::<(char, String), String>::new(), Vec::new());
        let (mut said, mut thought) = (String::new(), String::new());
        for report in told {
            match report {
                Report::MessageStarted { id } => prop_assert!(open.insert(('m', id), String::new()).is_none()),
                Report::ReasoningStarted { id } => prop_assert!(open.insert(('t', id), String::new()).is_none()),
                Report::ToolStarted { id, .. } => prop_assert!(open.insert(('x', id), String::new()).is_none()),
                Report::MessageDelta { id, text } => open.get_mut(&('m', id)).unwrap().push_str(&text),
                Report::ReasoningDelta { id, text, .. } => open.get_mut(&('t', id)).unwrap().push_str(&text),
                Report::MessageCompleted { id, text, .. } => {
                    let key = ('m', id);
                    prop_assert_eq!(open.remove(&key), Some(text.clone()));
                    said.push_str(&text);
                    over.push(key);
                }
                Report::ReasoningCompleted { id, raw, .. } => {
                    let key = ('t', id);
                    prop_assert_eq!(open.remove(&key), Some(raw.concat()));
                    thought.push_str(&raw.concat());
                    over.push(key);
                }
                Report::ToolCompleted { id, .. } => {
                    let key = ('x', id);
                    prop_assert!(open.remove(&key).is_some());
                    over.push(key);
                }
                report => prop_assert!(false, "{:?}", report),
            }
        }
        prop_assert!(open.keys().all(|(kind, _)| *kind == 'x'));
        prop_assert_eq!((said, thought), (messages, thoughts));
        let count = over.len();
        over.sort();
        over.dedup();
        prop_assert_eq!(over.len(), count, "an item began again");
    }
}
