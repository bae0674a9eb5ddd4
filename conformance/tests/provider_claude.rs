//! The provider is proved on the real Claude Code, without a bridge between them: a text, a thought, a command, errors that
//! are tried again, a web search.
#![expect(clippy::unwrap_used, reason = "a child that cannot be driven is a failed test")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use conformance::provider::{Protocol, Provider};
use conformance::rig::claude;
use serde_json::{Value, json};

const KEY: &str = "sk-test-key";

/// A Claude Code that speaks lines of JSON.
struct Claude {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    folder: PathBuf,
}

impl Claude {
    fn start(provider: &Provider, name: &str, tools: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("claude-{name}-{}", std::process::id()));
        for part in ["home", "config", "work"] {
            std::fs::create_dir_all(folder.join(part)).unwrap();
        }
        let mut child = Command::new(claude().unwrap())
            .args(["--output-format=stream-json", "--input-format=stream-json", "--verbose"])
            .args(["--include-partial-messages", "--strict-mcp-config", "--setting-sources="])
            .args(["--model=claude-sonnet-4-5", "--permission-mode=dontAsk"])
            .args([format!("--tools={tools}"), format!("--allowedTools={tools}")])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", folder.join("home"))
            .env("CLAUDE_CONFIG_DIR", folder.join("config"))
            .env("CLAUDE_CODE_TMPDIR", &folder)
            .env("ANTHROPIC_BASE_URL", provider.base_url_for(Protocol::Messages))
            .env("ANTHROPIC_API_KEY", KEY)
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
            .env("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1")
            .env("IS_SANDBOX", "1")
            .current_dir(folder.join("work"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, lines: BufReader::new(stdout).lines(), folder }
    }

    /// A turn: what it said, line by line, to its result.
    fn turn(&mut self, prompt: &str) -> Vec<Value> {
        let message = json!({"role": "user", "content": prompt});
        let line = json!({"type": "user", "message": message, "parent_tool_use_id": null, "session_id": "", "client_composed": true});
        writeln!(self.stdin, "{line}").unwrap();
        let mut said = Vec::new();
        for line in &mut self.lines {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let done = line["type"] == "result";
            said.push(line);
            if done {
                return said;
            }
        }
        panic!("it ended without a result: {said:#?}");
    }

    fn end(mut self) {
        drop(self.stdin);
        assert!(self.child.wait().unwrap().success());
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// The content blocks of the assistant's lines.
fn blocks(said: &[Value]) -> Vec<&Value> {
    let lines = said.iter().filter(|line| line["type"] == "assistant");
    lines.flat_map(|line| line["message"]["content"].as_array().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_and_a_thought_come_as_blocks_with_their_usage() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    let mut claude = Claude::start(&provider, "text", "");
    let said = claude.turn("hello from the test");
    assert_eq!(said.last().unwrap()["result"], "hello from the test");
    provider
        .script(
            r#"[{"play": [{"reasoning": {"summary": ["They wait."]}}, {"text": {"chunks": ["One ", "two"]}}, {"text": {"chunks": ["Three"]}},
                {"complete": {"usage": {"input": 70, "cached": 30, "output": 20, "reasoning": 1}}}]}]"#,
        )
        .unwrap();
    let said = claude.turn("think");
    let told: Vec<_> =
        blocks(&said).into_iter().map(|block| (&block["type"], &block["thinking"], &block["text"])).collect();
    let null = Value::Null;
    assert_eq!(
        told,
        [
            (&json!("thinking"), &json!("They wait."), &null),
            (&json!("text"), &null, &json!("One two")),
            (&json!("text"), &null, &json!("Three"))
        ]
    );
    let usage = &said.last().unwrap()["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["cache_read_input_tokens"], &usage["output_tokens"]),
        (&json!(40), &json!(30), &json!(20))
    );
    claude.end();
    let [first, second] = &provider.model_requests()[..] else { panic!("{:#?}", provider.requests()) };
    assert_eq!((first.key(), first.user_texts()), (Some(KEY), vec!["hello from the test".to_owned()]));
    assert_eq!((first.model(), first.tools()), ("claude-sonnet-4-5".to_owned(), Vec::new()));
    assert_eq!(second.user_texts(), ["hello from the test", "think"]);
    assert!(first.instructions().contains("Claude"), "{}", first.instructions());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_and_its_output_is_read() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    provider
        .script(
            r#"[{"after": "user", "play": [{"text": {"chunks": ["I look."]}}, {"shell": {"command": "echo plums", "call_id": "c1"}},
                    {"shell": {"command": "exit 3", "call_id": "c2"}}]},
                {"after": "outputs", "play": [{"text": {"chunks": ["Plums."]}}]}]"#,
        )
        .unwrap();
    let mut claude = Claude::start(&provider, "command", "Bash");
    let said = claude.turn("run it");
    assert_eq!(said.last().unwrap()["result"], "Plums.");
    let results: Vec<_> = said.iter().filter(|line| line["type"] == "user").collect();
    assert_eq!(results.len(), 2, "{results:#?}");
    claude.end();
    let requests = provider.model_requests();
    assert_eq!((requests.len(), requests[0].tools()), (2, vec!["Bash".to_owned()]));
    assert_eq!((requests[1].output("c1"), requests[1].output_failed("c1")), (Some("plums".into()), Some(false)));
    assert_eq!(requests[1].output_failed("c2"), Some(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_tried_again_and_a_refusal_and_a_cut_are_told() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    provider
        .script(
            r#"[{"play": [{"http": {"status": 529}}]}, {"play": [{"text": {"chunks": ["half"], "open": true}}, "drop"]},
                {"play": [{"text": {"chunks": ["half"]}}, {"failed": {"code": "overloaded_error", "message": "busy"}}]},
                {"play": [{"text": {"chunks": ["Done."]}}]},
                {"play": [{"http": {"status": 404, "message": "no such model"}}], "times": 2}]"#,
        )
        .unwrap();
    let mut claude = Claude::start(&provider, "errors", "");
    let said = claude.turn("hello");
    let retries = said.iter().filter(|line| line["subtype"] == "api_retry").map(|line| line["error_status"].clone());
    assert_eq!(retries.collect::<Vec<_>>(), [json!(529), Value::Null]);
    assert_eq!((&said.last().unwrap()["result"], &said.last().unwrap()["is_error"]), (&json!("Done."), &json!(false)));
    let said = claude.turn("again");
    let end = said.last().unwrap();
    assert_eq!((&end["is_error"], &end["api_error_status"]), (&json!(true), &json!(404)));
    drop(claude.stdin);
    // It ends with the failure of its last turn.
    assert_eq!(claude.child.wait().unwrap().code(), Some(1));
    std::fs::remove_dir_all(&claude.folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_search_is_a_request_of_its_own() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    provider
        .script(
            r#"[{"play": [{"search": {"query": "plums", "call_id": "c1"}}]}, {"play": [{"text": {"chunks": ["Found."]}}]}]"#,
        )
        .unwrap();
    let mut claude = Claude::start(&provider, "search", "WebSearch");
    assert_eq!(claude.turn("find plums").last().unwrap()["result"], "Found.");
    claude.end();
    let requests = provider.model_requests();
    assert_eq!(requests.len(), 3);
    assert_eq!((requests[1].tools(), &*requests[1].answered_by), (vec!["web_search".to_owned()], "mock"));
    let read = requests[2].output("c1").unwrap().to_string();
    assert!(read.contains("https://example.com/"), "{read}");
}
