//! One Turn in all three views.

use proto::v1::{
    AbandonReason, Command, Content, DiscardReason, EndCause, Event, EventsOmitted, Failure, FailureCode, FileChange,
    FileEdit, FileEditKind, FunctionCall, FunctionCallAbandoned, FunctionResultApplied, MessageCompleted, MessageDelta,
    MessageDiscarded, MessagePhase, MessageStarted, NativeIdentity, Notice, OtherTool, PayloadRef, ProviderRetry,
    ReasoningCompleted, ReasoningDelta, ReasoningText, Tool, ToolCompleted, ToolStarted, ToolStatus, TurnEnded,
    TurnStarted, TurnStatus, Usage,
};

use super::*;

fn text(text: &str) -> Option<Content> {
    Some(Content { place: Some(v1::content::Place::Text(text.into())) })
}

fn started(item: &str) -> Kind {
    Kind::MessageStarted(MessageStarted { item_id: item.into(), native_id: format!("native-{item}") })
}

fn delta(item: &str, more: &str) -> Kind {
    Kind::MessageDelta(MessageDelta { item_id: item.into(), text: more.into() })
}

fn completed(item: &str, whole: &str) -> Kind {
    let phase = Some(MessagePhase::FinalAnswer.into());
    Kind::MessageCompleted(MessageCompleted { item_id: item.into(), text: text(whole), phase })
}

fn reasoning(item: &str, more: &str) -> Kind {
    let text_kind = ReasoningText::Summary.into();
    Kind::ReasoningDelta(ReasoningDelta { item_id: item.into(), text_kind, index: 0, text: more.into() })
}

fn reasoned(item: &str, summary: &[&str]) -> Kind {
    let summary = summary.iter().filter_map(|part| text(part)).collect();
    Kind::ReasoningCompleted(ReasoningCompleted { item_id: item.into(), summary, raw: Vec::new(), incomplete: false })
}

fn command(line: &str) -> Option<Tool> {
    let command = Command { command: text(line), directory: "/w".into() };
    Some(Tool { kind: Some(v1::tool::Kind::Command(command)) })
}

fn changed() -> Option<Tool> {
    let edit = |path: &str, kind: FileEditKind, moved_to: &str| FileEdit {
        path: path.into(),
        kind: kind.into(),
        diff: text("@@"),
        moved_to: moved_to.into(),
    };
    let edits = vec![
        edit("new.rs", FileEditKind::Add, ""),
        edit("old.rs", FileEditKind::Delete, ""),
        edit("a.rs", FileEditKind::Update, "b.rs"),
    ];
    Some(Tool { kind: Some(v1::tool::Kind::FileChange(FileChange { edits })) })
}

fn tool_started(tool: Option<Tool>) -> Kind {
    Kind::ToolStarted(ToolStarted { item_id: "x".into(), native_id: "n".into(), tool })
}

fn tool_completed(tool: Option<Tool>, status: ToolStatus, exit_code: Option<i32>) -> Kind {
    let duration = Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 });
    let completed =
        ToolCompleted { item_id: "x".into(), status: status.into(), tool, output: text("out"), exit_code, duration };
    Kind::ToolCompleted(completed)
}

fn call() -> Kind {
    Kind::FunctionCall(FunctionCall {
        call_id: "c1".into(),
        name: "find".into(),
        arguments: text("{\"id\":\n1}"),
        idempotency_key: "key".into(),
        call_id_origin: v1::CallIdOrigin::Native.into(),
        turn_id: "t".into(),
        arguments_exact: false,
        batch_id: None,
        position: None,
    })
}

fn applied() -> Kind {
    let evidence = "item/completed".into();
    Kind::FunctionResultApplied(FunctionResultApplied { call_id: "c1".into(), evidence, success: true })
}

fn ended(status: TurnStatus) -> TurnEnded {
    TurnEnded { status: status.into(), ..Default::default() }
}

fn refused() -> Kind {
    let (reason, message) = (v1::Reason::TurnEnded.into(), String::new());
    Kind::InputRefused(v1::InputRefused { input_id: "i".into(), reason, message })
}

/// A completed end with a call that failed, and an answer beside its schema.
fn with_errors() -> TurnEnded {
    let code = v1::ToolErrorCode::NotExecuted.into();
    let error = v1::ToolError { call_id: "c1".into(), name: "find".into(), code, message: "no\nserver".into() };
    let (tool_errors, output_matches_schema) = (vec![error], Some(false));
    TurnEnded { tool_errors, output_matches_schema, ..ended(TurnStatus::Completed) }
}

/// What a Turn with these events leaves on stdout and on stderr.
async fn seen(style: Style, kinds: Vec<Kind>) -> (String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut screen = Screen::new(style, &mut out, &mut err);
    for (sequence, kind) in (1..).zip(kinds) {
        let time = Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 250_000_000 });
        screen.show(&Event { turn_id: "t".into(), sequence, time, kind: Some(kind) }).await;
    }
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

fn turn() -> Vec<Kind> {
    vec![
        Kind::TurnStarted(TurnStarted::default()),
        reasoning("r", "Let me "),
        reasoning("r", "look."),
        reasoned("r", &["Let me look."]),
        tool_started(command("ls -la\nrm x")),
        tool_completed(command("ls -la"), ToolStatus::Failed, Some(2)),
        tool_started(changed()),
        tool_completed(changed(), ToolStatus::Completed, None),
        started("a"),
        delta("a", "I look "),
        delta("a", "at it"),
        call(),
        applied(),
        completed("a", "I look at it"),
        started("b"),
        delta("b", "Do"),
        delta("b", "ne."),
        completed("b", "Done.\n"),
        Kind::TurnEnded(ended(TurnStatus::Completed)),
    ]
}

#[tokio::test]
async fn a_terminal_sees_text_as_it_comes() {
    let (out, err) = seen(Style::Live { colour: false }, turn()).await;
    insta::assert_snapshot!(out, @r#"
    (reasoning) Let me look.
    $ ls -la…
    exit code 2
    + new.rs
    - old.rs
    ~ a.rs -> b.rs
    I look at it
    find({"id":…)
    c1: the Harness has the result
    Done.
    "#);
    assert_eq!(err, "");
}

#[tokio::test]
async fn a_terminal_with_colours_sees_all_but_the_answer_dim() {
    let (out, _) = seen(Style::Live { colour: true }, turn()).await;
    let dim: Vec<_> = out.lines().filter(|line| line.starts_with("\x1b[2m") && line.ends_with("\x1b[0m")).collect();
    assert_eq!(dim.len(), 8, "{out:?}");
    assert_eq!(dim[0], "\x1b[2mLet me \x1b[0m\x1b[2mlook.\x1b[0m");
    let plain: Vec<_> = out.lines().filter(|line| !line.contains('\x1b')).collect();
    assert_eq!(plain, ["I look at it", "Done."]);
}

#[tokio::test]
async fn a_pipe_gets_the_completed_messages_alone() {
    let (out, err) = seen(Style::Plain, turn()).await;
    assert_eq!(out, "I look at it\nDone.\n");
    insta::assert_snapshot!(err, @r#"
    $ ls -la…
    exit code 2
    + new.rs
    - old.rs
    ~ a.rs -> b.rs
    find({"id":…)
    c1: the Harness has the result
    "#);
}

#[tokio::test]
async fn the_complete_text_replaces_what_was_written() {
    let live = |kinds| seen(Style::Live { colour: false }, kinds);
    for (kinds, wanted) in [
        (vec![delta("a", "one "), completed("a", "one two")], "one two\n"),
        (vec![delta("a", "one"), completed("a", "another")], "one\nanother\n"),
        (vec![completed("a", "at once")], "at once\n"),
        (vec![delta("a", "one"), delta("b", "two"), completed("b", "two"), completed("a", "one")], "one\ntwo\n"),
        (vec![delta("a", "on"), call(), completed("a", "one")], "on\nfind({\"id\":…)\none\n"),
        (vec![delta("a", "line\n"), completed("a", "line\n"), delta("b", "x")], "line\nx"),
        (vec![reasoned("r", &["first", "second"])], "(reasoning) first\n(reasoning) second\n"),
    ] {
        assert_eq!(live(kinds).await.0, wanted);
    }
    let reason = DiscardReason::Retried.into();
    let void = Kind::MessageDiscarded(MessageDiscarded { item_id: "a".into(), reason });
    assert_eq!(live(vec![delta("a", "wro"), void]).await.0, "wro\nthe last text is void (retried)\n");
}

#[tokio::test]
async fn a_text_cannot_steer_the_terminal() {
    let kinds = vec![delta("a", "a\x1b]0;title\x07b\r\n\tc\u{9b}d"), tool_started(command("echo \x1b[2J"))];
    let (out, _) = seen(Style::Live { colour: false }, kinds).await;
    assert_eq!(out, "a]0;titleb\n\tcd\n$ echo [2J\n");
}

#[tokio::test]
async fn an_end_that_is_not_a_completion_is_told_on_stderr() {
    let failure = Failure {
        code: FailureCode::AuthenticationError.into(),
        message: "the key was refused".into(),
        http_status: Some(401),
        ..Default::default()
    };
    let failed = TurnEnded { failure: Some(failure), ..ended(TurnStatus::Failed) };
    let cancelled = TurnEnded { cause: Some(EndCause::Requested.into()), ..ended(TurnStatus::Cancelled) };
    let unknown = TurnEnded { cause: Some(EndCause::ExecutionLost.into()), ..ended(TurnStatus::Unknown) };
    for (end, text) in [
        (failed, "the Turn failed: authentication_error (HTTP 401): the key was refused\n"),
        (cancelled, "the Turn was cancelled (requested)\n"),
        (unknown, "nobody knows how the Turn ended (execution_lost)\n"),
    ] {
        for style in [Style::Plain, Style::Live { colour: true }] {
            assert_eq!(seen(style, vec![Kind::TurnEnded(end.clone())]).await, (String::new(), text.into()));
        }
        let (out, err) = seen(Style::Json, vec![Kind::TurnEnded(end.clone())]).await;
        assert_eq!((out.lines().count(), err.as_str()), (1, ""));
    }
}

#[tokio::test]
async fn inputs_and_what_an_end_says_of_the_answer_are_lines() {
    let evidence = v1::InputEvidence::Consumed.into();
    let accepted = v1::InputAccepted { input_id: "i".into(), evidence, native_id: "n".into() };
    let kinds = || {
        vec![
            Kind::InputWritten(v1::InputWritten { input_id: "i".into() }),
            Kind::InputAccepted(accepted.clone()),
            refused(),
            Kind::InputOutcomeUnknown(v1::InputOutcomeUnknown { input_id: "i".into() }),
            Kind::TurnEnded(with_errors()),
        ]
    };
    let (out, err) = seen(Style::Plain, kinds()).await;
    assert_eq!(out, "");
    insta::assert_snapshot!(err, @r"
    i: written
    i: it stands in the Turn's history
    i: not taken (turn_ended)
    i: nobody knows whether it took part
    find (c1): not_executed: no…
    the answer does not fit the schema
    ");
    assert_eq!(seen(Style::Live { colour: false }, kinds()).await, (err, String::new()));
    for (finish, want) in [
        (v1::Finish::Stop, ""),
        (v1::Finish::Incomplete, "the answer was cut short\n"),
        (v1::Finish::Refused, "the model refused to answer\n"),
        (v1::Finish::NoOutput, "there is no answer\n"),
    ] {
        let end = TurnEnded { finish: Some(finish.into()), ..ended(TurnStatus::Completed) };
        assert_eq!(seen(Style::Plain, vec![Kind::TurnEnded(end)]).await.1, want);
    }
    let fits = TurnEnded { output_matches_schema: Some(true), ..ended(TurnStatus::Completed) };
    assert_eq!(seen(Style::Plain, vec![Kind::TurnEnded(fits)]).await.1, "the answer fits the schema\n");
}

#[tokio::test]
async fn every_kind_of_event_has_its_line_of_json() {
    let payload = v1::content::Place::Payload(PayloadRef { payload_id: "p1".into(), size: 9, sha256: vec![0, 171] });
    let kinds = vec![
        Kind::TurnStarted(TurnStarted { native: Some(NativeIdentity { session_id: "s".into(), turn_id: "n".into() }) }),
        started("a"),
        delta("a", "x\u{1b}\n\"é"),
        completed("a", "x"),
        Kind::MessageDiscarded(MessageDiscarded { item_id: "a".into(), reason: DiscardReason::TurnEnded.into() }),
        Kind::ReasoningStarted(v1::ReasoningStarted { item_id: "r".into(), native_id: String::new() }),
        reasoning("r", "hm"),
        reasoned("r", &["hm"]),
        tool_started(command("ls")),
        Kind::ToolOutput(v1::ToolOutput { item_id: "x".into(), text: "out".into() }),
        tool_completed(changed(), ToolStatus::Declined, Some(-1)),
        tool_started(Some(Tool { kind: Some(v1::tool::Kind::Other(OtherTool { name: "web".into() })) })),
        call(),
        applied(),
        Kind::FunctionCallAbandoned(FunctionCallAbandoned {
            call_id: "c1".into(),
            reason: AbandonReason::TurnEnded.into(),
        }),
        Kind::ProviderRetry(ProviderRetry {
            http_status: Some(503),
            code: FailureCode::ServerError.into(),
            message: "m".into(),
        }),
        Kind::Usage(Usage { input_tokens: Some(3), total_tokens: Some(0), ..Default::default() }),
        Kind::Notice(Notice { code: "request_declined".into(), message: "m".into() }),
        Kind::EventsOmitted(EventsOmitted { first: 1, last: 4, reason: 77 }),
        Kind::MessageCompleted(MessageCompleted {
            item_id: "big".into(),
            text: Some(Content { place: Some(payload) }),
            phase: None,
        }),
        Kind::FunctionProgress(v1::FunctionProgress { call_id: "c1".into(), number: 2, message: "half".into() }),
        Kind::InputWritten(v1::InputWritten { input_id: "i".into() }),
        Kind::InputAccepted(v1::InputAccepted {
            input_id: "i".into(),
            evidence: v1::InputEvidence::Consumed.into(),
            native_id: "n".into(),
        }),
        refused(),
        Kind::InputOutcomeUnknown(v1::InputOutcomeUnknown { input_id: "i".into() }),
        Kind::TurnEnded(with_errors()),
        Kind::TurnEnded(TurnEnded {
            failure: Some(Failure {
                code: FailureCode::HarnessExited.into(),
                exit_code: Some(1),
                ..Default::default()
            }),
            ..ended(TurnStatus::Failed)
        }),
    ];
    let (out, err) = seen(Style::Json, kinds).await;
    assert_eq!(err, "");
    for line in out.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    let whole = r#"{"turn_id":"t","sequence":1,"time":"2027-01-15T08:00:00.250Z","turn_started":{"native":{"session_id":"s","turn_id":"n"}}}"#;
    assert_eq!(out.lines().next(), Some(whole));
    let kinds = out.replace(r#""turn_id":"t","sequence":"#, "").replace(r#","time":"2027-01-15T08:00:00.250Z""#, "");
    insta::assert_snapshot!(kinds, @r#"
    {1,"turn_started":{"native":{"session_id":"s","turn_id":"n"}}}
    {2,"message_started":{"item_id":"a","native_id":"native-a"}}
    {3,"message_delta":{"item_id":"a","text":"x\u001b\n\"é"}}
    {4,"message_completed":{"item_id":"a","text":{"text":"x"},"phase":"final_answer"}}
    {5,"message_discarded":{"item_id":"a","reason":"turn_ended"}}
    {6,"reasoning_started":{"item_id":"r","native_id":""}}
    {7,"reasoning_delta":{"item_id":"r","text_kind":"summary","index":0,"text":"hm"}}
    {8,"reasoning_completed":{"item_id":"r","summary":[{"text":"hm"}],"raw":[],"incomplete":false}}
    {9,"tool_started":{"item_id":"x","native_id":"n","tool":{"command":{"command":{"text":"ls"},"directory":"/w"}}}}
    {10,"tool_output":{"item_id":"x","text":"out"}}
    {11,"tool_completed":{"item_id":"x","status":"declined","tool":{"file_change":{"edits":[{"path":"new.rs","kind":"add","diff":{"text":"@@"},"moved_to":""},{"path":"old.rs","kind":"delete","diff":{"text":"@@"},"moved_to":""},{"path":"a.rs","kind":"update","diff":{"text":"@@"},"moved_to":"b.rs"}]}},"output":{"text":"out"},"exit_code":-1,"duration":"1.500s"}}
    {12,"tool_started":{"item_id":"x","native_id":"n","tool":{"other":{"name":"web"}}}}
    {13,"function_call":{"call_id":"c1","name":"find","arguments":{"text":"{\"id\":\n1}"},"arguments_exact":false,"call_id_origin":"native","idempotency_key":"key","turn_id":"t"}}
    {14,"function_result_applied":{"call_id":"c1","evidence":"item/completed","success":true}}
    {15,"function_call_abandoned":{"call_id":"c1","reason":"turn_ended"}}
    {16,"provider_retry":{"http_status":503,"code":"server_error","message":"m"}}
    {17,"usage":{"input_tokens":3,"total_tokens":0}}
    {18,"notice":{"code":"request_declined","message":"m"}}
    {19,"events_omitted":{"first":1,"last":4,"reason":77}}
    {20,"message_completed":{"item_id":"big","text":{"payload":{"payload_id":"p1","size":9,"sha256":"00ab"}}}}
    {21,"function_progress":{"call_id":"c1","number":2,"message":"half"}}
    {22,"input_written":{"input_id":"i"}}
    {23,"input_accepted":{"input_id":"i","evidence":"consumed","native_id":"n"}}
    {24,"input_refused":{"input_id":"i","reason":"turn_ended","message":""}}
    {25,"input_outcome_unknown":{"input_id":"i"}}
    {26,"turn_ended":{"status":"completed","reconciled":false,"tool_errors":[{"call_id":"c1","name":"find","code":"not_executed","message":"no\nserver"}],"output_matches_schema":false}}
    {27,"turn_ended":{"status":"failed","failure":{"code":"harness_exited","message":"","exit_code":1},"reconciled":false,"tool_errors":[]}}
    "#);
}

#[tokio::test]
async fn an_event_that_this_program_does_not_know_is_still_an_event() {
    let mut screen = Screen::new(Style::Json, Vec::new(), Vec::new());
    screen.show(&Event { turn_id: "t".into(), sequence: 3, ..Default::default() }).await;
    assert_eq!(screen.out, b"{\"turn_id\":\"t\",\"sequence\":3}\n");
}

#[tokio::test]
async fn remarks_and_complaints_begin_a_line_and_spare_the_json() {
    let event = Event { kind: Some(delta("a", "half")), ..Default::default() };
    for (style, out, err) in [
        (
            Style::Live { colour: false },
            "half\nnow\n",
            "runtime-bridge run: wrong\nsession run-1; --resume run-1 goes on with it\n",
        ),
        (Style::Plain, "", "now\nruntime-bridge run: wrong\nsession run-1; --resume run-1 goes on with it\n"),
    ] {
        let mut screen = Screen::new(style, Vec::new(), Vec::new());
        screen.show(&event).await;
        screen.remark("now").await;
        screen.complain("wrong").await;
        screen.farewell("run-1").await;
        assert_eq!(
            (String::from_utf8_lossy(&screen.out), String::from_utf8_lossy(&screen.err)),
            (out.into(), err.into())
        );
    }
    let mut screen = Screen::new(Style::Json, Vec::new(), Vec::new());
    screen.remark("now").await;
    screen.complain("wrong").await;
    assert!(screen.out.is_empty());
}

#[tokio::test]
async fn a_reader_that_goes_away_is_noticed() {
    let (reader, writer) = tokio::io::duplex(64);
    let mut screen = Screen::new(Style::Json, writer, Vec::new());
    let event = Event::default();
    screen.show(&event).await;
    assert!(!screen.is_closed());
    drop(reader);
    screen.show(&event).await;
    assert!(screen.is_closed());
}
