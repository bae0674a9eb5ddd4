//! The provider is proved on the real opencode, without a bridge between them: a text with a thought, a command and an MCP
//! tool, an error that is tried again, a cancel, and a session that goes on in another process.
#![expect(clippy::unwrap_used, reason = "a child that cannot be driven is a failed test")]

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use conformance::mcp::{Script, Server};
use conformance::provider::{End, Protocol, Provider};
use conformance::rig::opencode;
use serde_json::{Value, json};

const KEY: &str = "sk-test-key";

/// The variables that keep it from what it does beside a turn: to look for updates and models, to load what lies in a workspace.
const QUIET: [&str; 11] = [
    "OPENCODE_DISABLE_AUTOCOMPACT",
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_CLAUDE_CODE",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_PROJECT_CONFIG",
    "OPENCODE_DISABLE_PRUNE",
    "OPENCODE_DISABLE_SHARE",
    "OPENCODE_PURE",
];

/// Folders of one opencode, which outlive its process.
struct Folder(PathBuf);

impl Folder {
    fn make(provider: &Provider, name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("opencode-{name}-{}", std::process::id()));
        let config = folder.join("home/.config/opencode");
        // What it looks for in its folder before it installs a package there, which it would at every first start.
        fs::create_dir_all(config.join("node_modules")).unwrap();
        fs::create_dir_all(folder.join("work")).unwrap();
        let locked = json!({"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}});
        fs::write(config.join("package-lock.json"), locked.to_string()).unwrap();
        let model = json!({"name": "M", "limit": {"context": 64000, "output": 4096}});
        let options = json!({"baseURL": provider.base_url_for(Protocol::ChatCompletions), "apiKey": "{env:TEST_KEY}"});
        let settings = json!({
            "model": "test/m", "small_model": "test/m", "enabled_providers": ["test"], "share": "disabled", "autoupdate": false,
            "permission": {"*": "allow"}, "agent": {"title": {"disable": true}},
            "provider": {"test": {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m": model}}},
        });
        fs::write(config.join("opencode.json"), settings.to_string()).unwrap();
        Self(folder)
    }

    fn work(&self) -> PathBuf {
        self.0.join("work")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of a failed test can be looked at.
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// An opencode that speaks ACP.
struct Agent<'a> {
    folder: &'a Folder,
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    asked: u64,
}

impl<'a> Agent<'a> {
    fn start(folder: &'a Folder) -> Self {
        let mut child = Command::new(opencode().unwrap())
            .arg("acp")
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", folder.0.join("home"))
            .env("NO_PROXY", "*")
            .env("TEST_KEY", KEY)
            .envs(QUIET.map(|name| (name, "1")))
            .current_dir(folder.work())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut agent = Self { folder, child, stdin, lines: BufReader::new(stdout).lines(), asked: 0 };
        let started = agent.ask("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}})).1;
        assert_eq!(started["result"]["agentInfo"], json!({"name": "OpenCode", "version": "1.18.33"}));
        agent
    }

    fn write(&mut self, message: &Value) {
        writeln!(self.stdin, "{message}").unwrap();
    }

    fn begin(&mut self, method: &str, params: &Value) -> u64 {
        self.asked += 1;
        self.write(&json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}));
        self.asked
    }

    /// The updates up to the answer to a request, and the answer.
    fn until(&mut self, id: u64) -> (Vec<Value>, Value) {
        let mut updates = Vec::new();
        for line in &mut self.lines {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if line["id"] == id && line.get("method").is_none() {
                return (updates, line);
            }
            assert_eq!(line["method"], "session/update", "it asks for nothing");
            updates.push(line["params"]["update"].clone());
        }
        panic!("it ended without an answer: {updates:#?}");
    }

    fn ask(&mut self, method: &str, params: &Value) -> (Vec<Value>, Value) {
        let id = self.begin(method, params);
        self.until(id)
    }

    fn session(&mut self, servers: &Value) -> String {
        let answer = self.ask("session/new", &json!({"cwd": self.folder.work(), "mcpServers": servers})).1;
        assert_eq!(answer["result"]["configOptions"][0]["currentValue"], "test/m");
        answer["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    fn prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{"type": "text", "text": text}]);
        self.begin("session/prompt", &json!({"sessionId": session, "prompt": prompt}))
    }

    fn turn(&mut self, session: &str, text: &str) -> (Vec<Value>, Value) {
        let id = self.prompt(session, text);
        let (updates, answer) = self.until(id);
        (updates, answer["result"].clone())
    }

    fn end(mut self) {
        drop(self.stdin);
        assert!(self.child.wait().unwrap().success());
    }
}

/// The text of all chunks of a kind.
fn text(updates: &[Value], kind: &str) -> String {
    let chunks = updates.iter().filter(|update| update["sessionUpdate"] == kind);
    chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
}

/// The last update of a call.
fn last<'a>(updates: &'a [Value], call: &str) -> &'a Value {
    updates.iter().rfind(|update| update["toolCallId"] == call).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_and_a_thought_come_as_chunks_with_their_usage() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    let folder = Folder::make(&provider, "text");
    let mut agent = Agent::start(&folder);
    let session = agent.session(&json!([]));
    let (updates, end) = agent.turn(&session, "hello from the test");
    assert_eq!(
        (text(&updates, "agent_message_chunk"), &end["stopReason"]),
        ("hello from the test".into(), &json!("end_turn"))
    );
    provider
        .script(
            r#"[{"play": [{"reasoning": {"summary": ["They wait."]}}, {"text": {"chunks": ["One ", "two"]}},
                {"complete": {"usage": {"input": 70, "cached": 30, "output": 20, "reasoning": 1}}}]}]"#,
        )
        .unwrap();
    let (updates, end) = agent.turn(&session, "think");
    assert_eq!(text(&updates, "agent_thought_chunk"), "They wait.");
    assert_eq!(text(&updates, "agent_message_chunk"), "One two");
    let usage =
        json!({"inputTokens": 40, "cachedReadTokens": 30, "outputTokens": 19, "thoughtTokens": 1, "totalTokens": 90});
    assert_eq!(end["usage"], usage);
    agent.end();
    let [first, second] = &provider.model_requests()[..] else { panic!("{:#?}", provider.requests()) };
    assert_eq!(
        (first.protocol(), first.key(), first.model()),
        (Some(Protocol::ChatCompletions), Some(KEY), "m".into())
    );
    assert_eq!(first.user_texts(), ["hello from the test"]);
    assert_eq!(second.user_texts(), ["hello from the test", "think"]);
    assert!(
        first.instructions().contains("opencode") && first.tools().contains(&"bash".to_owned()),
        "{:?}",
        first.tools()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_and_a_tool_of_a_server_run_and_their_outputs_are_read() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    provider
        .script(
            r#"[{"after": "user", "play": [{"text": {"chunks": ["I look."]}}, {"shell": {"command": "echo plums", "call_id": "c1"}},
                    {"calls": [{"name": "tickets.echo", "arguments": "{\"text\":\"pears\"}", "call_id": "c2"},
                        {"name": "failing", "namespace": "tickets", "arguments": "{}", "call_id": "c3"}]}]},
                {"after": "outputs", "play": [{"text": {"chunks": ["Fruit."]}}]}]"#,
        )
        .unwrap();
    let server = Server::start(Script { bearer: Some("t".into()), ..Script::default() }).await.unwrap();
    let folder = Folder::make(&provider, "command");
    let mut agent = Agent::start(&folder);
    let headers = json!([{"name": "authorization", "value": "Bearer t"}]);
    let session = agent.session(&json!([{"type": "http", "name": "tickets", "url": server.url(), "headers": headers}]));
    let (updates, end) = agent.turn(&session, "run it");
    assert_eq!(
        (text(&updates, "agent_message_chunk"), &end["stopReason"]),
        ("I look.Fruit.".into(), &json!("end_turn"))
    );
    let told = ["c1", "c2", "c3"].map(|call| last(&updates, call)["status"].clone());
    assert_eq!(told, ["completed", "completed", "failed"]);
    assert_eq!(last(&updates, "c1")["rawOutput"]["metadata"]["exit"], 0);
    agent.end();
    assert_eq!(server.calls(), ["echo", "failing"]);
    let [first, second] = &provider.model_requests()[..] else { panic!("{:#?}", provider.requests()) };
    assert!(first.tools().contains(&"tickets.echo".to_owned()), "{:?}", first.tools());
    let read = |call: &str| second.output(call).unwrap();
    assert_eq!((read("c1"), read("c2")), (json!("plums\n"), json!("pears")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_is_tried_again_and_a_cancel_ends_the_answer() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    provider
        .script(
            r#"[{"play": [{"http": {"status": 503, "headers": {"retry-after-ms": "10"}}}]}, {"play": [{"text": {"chunks": ["Done."]}}]},
                {"play": [{"text": {"chunks": ["half"], "open": true}}, {"mark": "held"}, "hang"]}]"#,
        )
        .unwrap();
    let folder = Folder::make(&provider, "errors");
    let mut agent = Agent::start(&folder);
    let session = agent.session(&json!([]));
    assert_eq!(text(&agent.turn(&session, "hello").0, "agent_message_chunk"), "Done.");
    let id = agent.prompt(&session, "hold");
    provider.wait_for_mark("held").await.unwrap();
    agent.write(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}));
    assert_eq!(agent.until(id).1["result"]["stopReason"], "cancelled");
    let requests = provider.wait_for(|all| all.len() == 3 && all[2].end.is_some()).await.unwrap();
    assert_eq!((requests[0].status, requests[2].end), (Some(503), Some(End::ClientGone)));
    agent.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_on_in_another_process_after_a_kill() {
    let provider = Provider::start(Vec::new()).await.unwrap();
    let folder = Folder::make(&provider, "resume");
    let mut agent = Agent::start(&folder);
    let session = agent.session(&json!([]));
    agent.turn(&session, "first");
    provider.script(r#"[{"play": [{"text": {"chunks": ["half"], "open": true}}, {"mark": "held"}, "hang"]}]"#).unwrap();
    agent.prompt(&session, "lost");
    provider.wait_for_mark("held").await.unwrap();
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();

    let mut agent = Agent::start(&folder);
    let params = json!({"sessionId": session, "cwd": folder.work(), "mcpServers": []});
    let (replayed, answer) = agent.ask("session/resume", &params);
    assert_eq!((replayed, answer.get("error")), (Vec::new(), None));
    agent.turn(&session, "second");
    agent.end();
    assert_eq!(provider.model_requests()[2].user_texts(), ["first", "lost", "second"]);
}
