//! The Codex adapter against scripted children: what they do wrong, and what the Session is told about it. Each child is a shell script that
//! speaks the app-server's lines; the adapter's requests have the ids 1 (`initialize`), 2 (`thread/start`), 3 and up.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use adapters::{
    codex::{Codex, Settings},
    harness::{
        Configuration, Controls, Executor, Exit, FunctionOutput, FunctionResult, FunctionTool, Harness as _, Isolation,
        Launch, ModelProtocol, ModelProvider, Order, Placement, PrepareError, Presence, Report, Timing,
    },
    native::{environment::Mark, tree},
};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Up to the thread; `log` keeps what the child was told.
const READY: &str = r#"
hear() { IFS= read -r line && printf '%s\n' "$line" >> "$LOG"; }
hear; echo '{"id":1,"result":{"userAgent":"runtime-bridge/0.171.0 (x)"}}'
hear; hear; echo '{"id":2,"result":{"thread":{"id":"T"},"approvalPolicy":"never","sandbox":{"type":"dangerFullAccess"}}}'
"#;
/// Up to the started native turn `U`.
const STARTED: &str = r#"
hear; echo '{"id":3,"result":{"turn":{"id":"U"}}}'
echo '{"method":"turn/started","params":{"threadId":"T","turn":{"id":"U","status":"inProgress"}}}'
"#;
/// The end of the native turn `U`.
const COMPLETED: &str = r#"
echo '{"method":"turn/completed","params":{"threadId":"T","turn":{"id":"U","status":"completed","completedAt":null}}}'
"#;
/// The child stays until its input is closed.
const STAY: &str = "while hear; do :; done";

struct Bench {
    folder: PathBuf,
    codex: Codex,
    workspace: PathBuf,
}

impl Bench {
    /// A bench whose program is a script.
    fn new(name: &str, script: &[&str], change: impl FnOnce(&mut Settings)) -> Self {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("codex-executor-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let workspace = folder.join("workspace");
        fs::create_dir_all(&workspace).unwrap();
        fs::create_dir_all(folder.join("home")).unwrap();
        fs::create_dir_all(folder.join("tmp")).unwrap();
        let program = folder.join("codex");
        let log = folder.join("log");
        let head = "#!/bin/sh\nif [ \"$1\" = --version ]; then echo codex-cli 0.171.0; exit 0; fi\n";
        let body = format!("{head}LOG='{}'\n{}\n", log.display(), script.join("\n"));
        fs::write(&program, body).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut settings = Settings::new(PathBuf::from(env!("CARGO_BIN_EXE_runtime-bridge-keeper")), Isolation::Outer);
        settings.program = Some(program);
        settings.limits = Timing {
            interrupt: Duration::from_millis(300),
            settle: Duration::from_millis(300),
            term_grace: Duration::from_millis(300),
            ..Timing::default()
        };
        change(&mut settings);
        Self { folder, codex: Codex::new(settings), workspace }
    }

    async fn prepare(&self) -> Result<Executor, PrepareError> {
        let configuration = Configuration {
            harness: "codex".into(),
            placement: Placement::Workspace { environment_id: "e".into(), directory: self.workspace.clone() },
            model: "gpt-5.5".into(),
            instructions: String::new(),
            provider: ModelProvider {
                protocol: ModelProtocol::Responses,
                base_url: "http://127.0.0.1:9/v1".into(),
                token_limits: None,
            },
            harness_config: String::new(),
            functions: vec![FunctionTool {
                name: "lookup".into(),
                description: String::new(),
                parameters: r#"{"type":"object"}"#.into(),
                defer_loading: false,
                silence_timeout: None,
                max_duration: None,
            }],
            tool_search: false,
            mcp_servers: Vec::new(),
            controls: Controls::default(),
        };
        let executor_id = format!("ex-{}", self.folder.file_name().unwrap().display());
        let launch = Launch {
            mark: Mark::new("test", &executor_id),
            executor_id,
            home: self.folder.join("home"),
            temporary: self.folder.join("tmp"),
            workspace: Some(self.workspace.clone()),
            configuration: Arc::new(configuration),
            model_key: Some("sk-canary".to_owned().into()),
            holds_key: true,
            mcp_bearers: BTreeMap::new(),
            mcp_variables: BTreeMap::new(),
            secrets: Some(&"sk-canary".into()).into_iter().collect(),
            resume: None,
        };
        tokio::time::timeout(PATIENCE, self.codex.prepare(launch)).await.unwrap()
    }

    /// What the child was told.
    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns once something outside of this process, which tells nobody of it, has come about.
async fn when(mut is_so: impl FnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    let looking = async {
        while !is_so() {
            looks.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap();
}

async fn start(executor: &Executor) {
    executor.orders.send(Order::Start { input: vec!["hi".into()], client_id: "c-1".into() }).await.unwrap();
}

async fn answer(executor: &Executor, call_id: &str, text: &str) {
    let output = Presence::Value(FunctionOutput::Text(text.into()));
    let result = FunctionResult { success: true, error: Presence::Absent, output, disposition: None };
    executor.orders.send(Order::Answer { call_id: call_id.into(), result }).await.unwrap();
}

async fn next(executor: &mut Executor) -> Option<Report> {
    tokio::time::timeout(PATIENCE, executor.reports.recv()).await.unwrap()
}

/// The next reports up to one that the word fits, as short texts.
async fn until(executor: &mut Executor, word: &str) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(report) = next(executor).await {
        let text = short(&report);
        all.push(text.clone());
        if text.starts_with(word) {
            break;
        }
    }
    all
}

fn short(report: &Report) -> String {
    match report {
        Report::Started { native_turn_id } => format!("started {native_turn_id}"),
        Report::MessageStarted { id } => format!("message {id}"),
        Report::MessageDelta { id, text } => format!("delta {id} {text}"),
        Report::MessageCompleted { id, text, .. } => format!("message {id} is {text}"),
        Report::Call { call_id, arguments, .. } => format!("call {call_id} {arguments}"),
        Report::AnswerWritten { call_id } => format!("written {call_id}"),
        Report::AnswerApplied { call_id, .. } => format!("applied {call_id}"),
        Report::Notice { code, .. } => format!("notice {code}"),
        Report::Ended(adapters::harness::NativeEnd::Completed { .. }) => "ended completed".into(),
        Report::Ended(adapters::harness::NativeEnd::Interrupted { .. }) => "ended interrupted".into(),
        Report::Ended(adapters::harness::NativeEnd::Failed { failure, .. }) => {
            format!("ended {:?} {:?}", failure.code, failure.exit)
        }
        Report::Settled(settled) => format!("settled {} {}", settled.confirmed, settled.reusable),
        Report::Closed { exit, survivors } => format!("closed {exit:?} {survivors}"),
        other => format!("{other:?}"),
    }
}

fn completed() -> &'static str {
    "ended completed"
}

#[tokio::test]
async fn a_child_that_hangs_at_the_start_is_ended() {
    let bench = Bench::new("hang", &["while :; do sleep 1000; done"], |settings| {
        settings.limits.start = Duration::from_millis(300);
    });
    let before = tree::descendants(std::process::id());
    let failed = bench.prepare().await.unwrap_err();
    assert_eq!((failed.step, failed.clean), ("initialize", true));
    assert_eq!(failed.message, "codex did not answer within 300 ms");
    assert_eq!(tree::descendants(std::process::id()), before);
}

#[tokio::test]
async fn a_child_that_exits_at_once_says_why() {
    let script = "echo 'bad setting, see https://h.example/x sk-canary' >&2; exit 3";
    let failed = Bench::new("exit", &[script], |_| {}).prepare().await.unwrap_err();
    assert_eq!((failed.step, failed.clean), ("initialize", true));
    assert_eq!(
        failed.message,
        "codex ended with exit code 3 before it answered; it said: bad setting, see [address] [key]"
    );
}

#[tokio::test]
async fn a_refused_thread_is_a_failed_step() {
    let script = r#"
read -r line; echo '{"id":1,"result":{"userAgent":"runtime-bridge/0.171.0"}}'
read -r line; read -r line; echo '{"id":2,"error":{"code":-32600,"message":"no such provider at http://h/x"}}'
read -r line"#;
    let failed = Bench::new("refused", &[script], |_| {}).prepare().await.unwrap_err();
    assert_eq!((failed.step, failed.clean), ("session", true));
    assert_eq!(failed.message, "codex refused: no such provider at [address]");
}

#[tokio::test]
async fn another_policy_than_asked_for_is_not_accepted() {
    let script = r#"
read -r line; echo '{"id":1,"result":{}}'
read -r line; read -r line; echo '{"id":2,"result":{"thread":{"id":"T"},"approvalPolicy":"on-request"}}'
read -r line"#;
    let failed = Bench::new("policy", &[script], |_| {}).prepare().await.unwrap_err();
    assert_eq!(failed.message, "codex broke its protocol: it did not take the approval policy never");
}

#[tokio::test]
async fn a_dropped_preparation_leaves_nothing() {
    let bench = Bench::new("dropped", &["echo x > \"$LOG\"; while :; do sleep 1000; done"], |_| {});
    let before = tree::descendants(std::process::id());
    {
        let mut preparing = Box::pin(bench.prepare());
        while !bench.folder.join("log").exists() {
            tokio::select! {
                _ = &mut preparing => panic!("prepared"),
                () = when(|| bench.folder.join("log").exists()) => {}
            }
        }
    }
    when(|| tree::descendants(std::process::id()) == before).await;
}

#[tokio::test]
async fn notifications_before_the_answer_count() {
    let script = r#"hear
echo '{"method":"warning","params":{"threadId":"T","message":"m"}}'
echo '{"method":"turn/started","params":{"threadId":"T","turn":{"id":"U","status":"inProgress"}}}'
echo '{"method":"item/started","params":{"threadId":"T","turnId":"U","item":{"type":"agentMessage","id":"m","text":""}}}'
echo '{"method":"item/agentMessage/delta","params":{"threadId":"T","turnId":"U","itemId":"m","delta":"Hel"}}'
echo '{"id":3,"result":{"turn":{}}}'
echo '{"method":"item/completed","params":{"threadId":"T","turnId":"U","item":{"type":"agentMessage","id":"m","text":"Hello"}}}'"#;
    let bench = Bench::new("early", &[READY, script, COMPLETED, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    assert_eq!((executor.version.as_str(), executor.native_session_id.as_str()), ("0.171.0", "T"));
    start(&executor).await;
    let got = until(&mut executor, "settled").await;
    assert_eq!(
        got,
        [
            "started U",
            "notice harness_warning",
            "message m",
            "delta m Hel",
            "message m is Hello",
            completed(),
            "settled true true"
        ]
    );
    executor.orders.send(Order::Close).await.unwrap();
    assert_eq!(until(&mut executor, "closed").await, ["closed Some(Code(0)) 0"]);
    assert_eq!(next(&mut executor).await, None);
    bench.codex.drained().await;
    assert!(bench.log().contains(r#""clientUserMessageId":"c-1","input":[{"type":"text","text":"hi"}]"#));
}

#[tokio::test]
async fn lines_that_are_none_and_messages_that_nobody_knows_are_skipped() {
    let script = r#"
printf 'no json\n\n{"a":\377}\n[1]\n{"method":7}\n{"id":99,"result":{}}\n'
echo '{"method":"turn/teleported","params":{"threadId":"T","turnId":"U"}}'
echo '{"method":"item/started","params":{"threadId":"T","turnId":"U","item":{"id":"x"}}}'
echo '{"method":"item/started","params":{"threadId":"T"}}'
echo '{"method":"item/started","params":{"threadId":"X","turnId":"U","item":{"type":"agentMessage","id":"m"}}}'
echo '{"method":"item/started","params":{"threadId":"T","turnId":"V","item":{"type":"agentMessage","id":"m"}}}'"#;
    let bench = Bench::new("noise", &[READY, STARTED, script, COMPLETED, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    assert_eq!(until(&mut executor, "settled").await, ["started U", completed(), "settled true true"]);
}

#[tokio::test]
async fn an_exit_in_a_turn_is_a_failure_whatever_its_code() {
    for (name, end, exit) in [("exit0", "exit 0", Exit::Code(0)), ("segv", "kill -SEGV $$", Exit::Signal(11))] {
        let last = r#"echo '{"method":"item/started","params":{"threadId":"T","turnId":"U","item":{"type":"agentMessage","id":"m"}}}'"#;
        let bench = Bench::new(name, &[READY, STARTED, last, end], |_| {});
        let mut executor = bench.prepare().await.unwrap();
        start(&executor).await;
        let ended = format!("ended HarnessExited {:?}", Some(exit));
        let closed = format!("closed {:?} 0", Some(exit));
        let got = until(&mut executor, "closed").await;
        assert_eq!(got, ["started U", "message m", &ended, "settled true false", &closed]);
        assert_eq!(next(&mut executor).await, None);
    }
}

#[tokio::test]
async fn a_child_that_closes_its_output_is_ended() {
    let bench = Bench::new("mute", &[READY, STARTED, "exec >&-; while :; do sleep 1000; done"], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    let got = until(&mut executor, "settled").await;
    assert!(got[1].starts_with("ended HarnessExited"), "{got:?}");
    assert_eq!((got[0].as_str(), got[2].as_str()), ("started U", "settled true false"));
    assert!(until(&mut executor, "closed").await[0].ends_with(" 0"));
}

#[tokio::test]
async fn a_line_above_the_limit_fails_the_turn_and_retires_the_process() {
    let script = "head -c 10000 /dev/zero | tr '\\0' x; echo";
    let bench = Bench::new("long", &[READY, STARTED, script, STAY], |settings| settings.max_line_bytes = 4096);
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    let got = until(&mut executor, "settled").await;
    assert_eq!(got, ["started U", "ended LineTooLarge None", "settled true false"]);
    assert!(until(&mut executor, "closed").await[0].starts_with("closed Some("));
}

#[tokio::test]
async fn one_call_id_is_one_call_whatever_asks_for_it() {
    let call = |id: u8, thread: &str, tool: &str, arguments: &str| {
        format!(
            r#"echo '{{"method":"item/tool/call","id":{id},"params":{{"threadId":"{thread}","turnId":"U","callId":"c","namespace":null,"tool":"{tool}","arguments":{arguments}}}}}'"#
        )
    };
    let applied = r#"
hear; hear
echo '{"method":"item/completed","params":{"threadId":"T","turnId":"U","item":{"type":"dynamicToolCall","id":"c","status":"completed","success":true,"contentItems":[{"type":"inputText","text":"42"}]}}}'"#;
    let script = [
        READY,
        STARTED,
        // Refused: another thread, an undeclared name. Then the call, its twin, the same id with other arguments.
        &call(0, "X", "lookup", "{}"),
        &call(1, "T", "Lookup", "{}"),
        &call(2, "T", "lookup", r#"{"z":1.0, "a":1}"#),
        &call(3, "T", "lookup", r#"{"z":1.0, "a":1}"#),
        &call(4, "T", "lookup", "{}"),
        "hear; hear; hear",
        applied,
        &call(5, "T", "lookup", r#"{"z":1.0, "a":1}"#),
        "hear",
        COMPLETED,
        STAY,
    ];
    let bench = Bench::new("calls", &script, |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    let call = until(&mut executor, "notice call_id_reused").await;
    assert_eq!(call, ["started U", "notice call_refused", r#"call c {"z":1.0, "a":1}"#, "notice call_id_reused"]);
    answer(&executor, "c", "42").await;
    let got = until(&mut executor, "settled").await;
    assert_eq!(got, ["written c", "applied c", completed(), "settled true true"]);
    let result = r#""result":{"success":true,"contentItems":[{"type":"inputText","text":"42"}]}}"#;
    let log = bench.log();
    for id in [2, 3, 5] {
        assert!(log.contains(&format!("{{\"id\":{id},{result}")), "{id}: {log}");
    }
    for id in [0, 1, 4] {
        assert!(log.contains(&format!("{{\"id\":{id},\"error\":{{\"code\":-32602,")), "{id}: {log}");
    }
}

#[tokio::test]
async fn what_asks_for_a_person_is_declined_and_said() {
    let script = r#"
echo '{"method":"item/commandExecution/requestApproval","id":"a","params":{"threadId":"T","turnId":"U"}}'; hear
echo '{"method":"world/peace","id":7,"params":{}}'; hear"#;
    let bench = Bench::new("decline", &[READY, STARTED, script, COMPLETED, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    let got = until(&mut executor, "settled").await;
    let declined = "notice request_declined";
    assert_eq!(got, ["started U", declined, declined, completed(), "settled true true"]);
    let log = bench.log();
    assert!(log.contains(r#"{"id":"a","result":{"decision":"decline"}}"#), "{log}");
    assert!(log.contains(r#"{"id":7,"error":{"code":-32601,"message":"not supported"}}"#), "{log}");
}

#[tokio::test]
async fn an_interrupt_that_is_ignored_ends_everything() {
    for (name, ignore) in [("ignored", ""), ("stubborn", "trap '' TERM HUP INT; (trap '' TERM; sleep 1000) &")] {
        let bench = Bench::new(name, &[READY, ignore, STARTED, STAY, "while :; do sleep 1; done"], |_| {});
        let mut executor = bench.prepare().await.unwrap();
        start(&executor).await;
        assert_eq!(until(&mut executor, "started").await, ["started U"]);
        executor.orders.send(Order::Interrupt).await.unwrap();
        executor.orders.send(Order::Interrupt).await.unwrap();
        assert_eq!(until(&mut executor, "settled").await, ["ended interrupted", "settled true false"]);
        assert!(until(&mut executor, "closed").await[0].ends_with(" 0"));
        assert!(!tree::alive(&executor.keeper));
        assert_eq!(bench.log().matches("turn/interrupt").count(), 1);
    }
}

#[tokio::test]
async fn an_interrupt_is_held_until_the_native_turn_runs_and_repeated_when_it_is_refused() {
    let script = r#"hear; echo '{"id":3,"result":{"turn":{"id":"U"}}}'
until [ -e "$LOG.go" ]; do sleep 0.01; done
echo '{"method":"turn/started","params":{"threadId":"T","turn":{"id":"U"}}}'
hear; echo '{"id":4,"error":{"code":-32600,"message":"no active turn to interrupt"}}'
hear; echo '{"id":5,"result":{}}'
echo '{"method":"turn/completed","params":{"threadId":"T","turn":{"id":"U","status":"interrupted"}}}'
hear; echo '{"id":6,"result":{}}'"#;
    let bench = Bench::new("held", &[READY, script, STAY], |settings| {
        settings.limits.interrupt = PATIENCE;
    });
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    when(|| bench.log().contains("turn/start")).await;
    executor.orders.send(Order::Interrupt).await.unwrap();
    fs::write(bench.folder.join("log.go"), "").unwrap();
    let got = until(&mut executor, "settled").await;
    assert_eq!(got, ["started U", "ended interrupted", "settled true true"]);
    let log = bench.log();
    assert_eq!(log.matches("turn/interrupt").count(), 2, "{log}");
    assert!(log.contains(r#""method":"thread/backgroundTerminals/clean","params":{"threadId":"T"}"#), "{log}");
}

#[tokio::test]
async fn a_turn_that_is_cancelled_before_its_input_was_written_never_reaches_codex() {
    let bench = Bench::new("never", &[READY, STARTED, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    executor.orders.send(Order::Interrupt).await.unwrap();
    assert_eq!(until(&mut executor, "settled").await, ["ended interrupted", "settled true true"]);
    assert!(!bench.log().contains("turn/start"), "{}", bench.log());
}

#[tokio::test]
async fn a_busy_child_is_asked_again() {
    let script = r#"hear; echo '{"id":3,"error":{"code":-32001,"message":"Server overloaded; retry later."}}'
hear; echo '{"id":4,"result":{"turn":{"id":"U"}}}'
echo '{"method":"turn/started","params":{"threadId":"T","turn":{"id":"U"}}}'"#;
    let bench = Bench::new("busy", &[READY, script, COMPLETED, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    assert_eq!(until(&mut executor, "settled").await, ["started U", completed(), "settled true true"]);
    assert_eq!(bench.log().matches("turn/start").count(), 2);
}

#[tokio::test]
async fn a_refused_input_fails_the_turn_and_nothing_else() {
    let script = r#"hear; echo '{"id":3,"error":{"code":-32602,"message":"Input exceeds the maximum length"}}'
hear; echo '{"id":4,"result":{"turn":{"id":"U"}}}'
echo '{"method":"turn/started","params":{"threadId":"T","turn":{"id":"U"}}}'"#;
    let bench = Bench::new("refusal", &[READY, script, COMPLETED, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    assert_eq!(until(&mut executor, "settled").await, ["ended InvalidRequest None", "settled true true"]);
    start(&executor).await;
    assert_eq!(until(&mut executor, "settled").await, ["started U", completed(), "settled true true"]);
}

#[tokio::test]
async fn what_a_turn_leaves_running_is_ended_and_its_late_messages_do_not_reach_the_next() {
    let late = r#"(setsid sleep 1000 >/dev/null 2>&1 </dev/null &)
echo '{"method":"item/started","params":{"threadId":"T","turnId":"U","item":{"type":"commandExecution","id":"e","command":"x"}}}'"#;
    let next_turn = r#"hear; echo '{"id":4,"result":{}}'; hear
echo '{"method":"item/completed","params":{"threadId":"T","turnId":"U","item":{"type":"commandExecution","id":"e"}}}'
echo '{"method":"turn/completed","params":{"threadId":"T","turn":{"id":"U","status":"interrupted"}}}'
echo '{"id":5,"result":{"turn":{"id":"V"}}}'
echo '{"method":"item/agentMessage/delta","params":{"threadId":"T","turnId":"U","itemId":"m","delta":"old"}}'
echo '{"method":"turn/started","params":{"threadId":"T","turn":{"id":"V"}}}'
echo '{"method":"turn/completed","params":{"threadId":"T","turn":{"id":"V","status":"completed"}}}'"#;
    let bench = Bench::new("late", &[READY, STARTED, late, COMPLETED, next_turn, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    let idle = tree::descendants(executor.keeper.pid);
    start(&executor).await;
    let got = until(&mut executor, "settled").await;
    let tool = r#"ToolStarted { id: "e", tool: Command { command: "x", directory: "" } }"#;
    // The command never shows its end, so the Session closes it; what runs is gone all the same.
    assert_eq!(got, ["started U", tool, completed(), "settled true true"]);
    assert_eq!(tree::descendants(executor.keeper.pid), idle);
    start(&executor).await;
    assert_eq!(until(&mut executor, "settled").await, ["started V", completed(), "settled true true"]);
}

#[tokio::test]
async fn orders_are_taken_while_nobody_takes_reports() {
    let script = r#"
echo '{"method":"item/started","params":{"threadId":"T","turnId":"U","item":{"type":"agentMessage","id":"m"}}}'
i=0; while [ $i -lt 3000 ]; do echo '{"method":"item/agentMessage/delta","params":{"threadId":"T","turnId":"U","itemId":"m","delta":"x"}}'; i=$((i+1)); done"#;
    let bench = Bench::new("full", &[READY, STARTED, script, COMPLETED, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    // More than both channels hold, before the first report is taken.
    for _ in 0..1000 {
        tokio::time::timeout(PATIENCE, answer(&executor, "nobody", "x")).await.unwrap();
    }
    let got = until(&mut executor, "settled").await;
    assert_eq!(got.iter().filter(|text| *text == "delta m x").count(), 3000);
    assert_eq!(got.last().unwrap(), "settled true true");
}

#[tokio::test]
async fn a_dropped_executor_ends_everything() {
    let bench = Bench::new("let-go", &[READY, STARTED, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    assert_eq!(until(&mut executor, "started").await, ["started U"]);
    let keeper = executor.keeper;
    drop(executor);
    tokio::time::timeout(PATIENCE, bench.codex.drained()).await.unwrap();
    assert!(!tree::alive(&keeper));
}

#[tokio::test]
async fn closing_in_a_turn_interrupts_it() {
    let bench = Bench::new("close", &[READY, STARTED, STAY], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    start(&executor).await;
    assert_eq!(until(&mut executor, "started").await, ["started U"]);
    executor.orders.send(Order::Close).await.unwrap();
    let got = until(&mut executor, "closed").await;
    assert_eq!(got[..2], ["ended interrupted", "settled true false"]);
    assert!(got[2].starts_with("closed Some("), "{got:?}");
}

#[tokio::test]
async fn an_idle_child_that_dies_closes_the_executor() {
    let bench = Bench::new("idle", &[READY, "exit 4"], |_| {});
    let mut executor = bench.prepare().await.unwrap();
    assert_eq!(until(&mut executor, "closed").await, ["closed Some(Code(4)) 0"]);
}
