//! A raw client: lines out, lines in, and what a test needs of a folder.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use conformance::mcode::{Faults, install};
use conformance::provider::{Protocol, Provider};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time;

/// The longest wait for a line.
const WAIT: Duration = Duration::from_secs(60);

/// The key of the provider, which stands in no file.
pub(crate) const KEY: &str = "key-of-the-double";

/// A folder with the program, its data and a workspace, and the provider that it asks.
pub(crate) struct Place {
    pub(crate) root: PathBuf,
    pub(crate) program: PathBuf,
    pub(crate) provider: Provider,
}

/// A running program.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    last: u64,
    /// Every message that came so far.
    pub(crate) seen: Vec<Value>,
}

impl Place {
    pub(crate) async fn make(name: &str, faults: &Faults) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mcode-{name}-{}", std::process::id()));
        // An earlier process may have had the same id.
        _ = std::fs::remove_dir_all(&root);
        for part in ["data", "w"] {
            std::fs::create_dir_all(root.join(part)).unwrap();
        }
        let program = install(&root.join("program"), faults).unwrap();
        let place = Self { root, program, provider: Provider::start(Vec::new()).await.unwrap() };
        place.configure(|_| {});
        place
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.root.join("w")
    }

    /// Writes the configuration, changed by the test.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut Value)) {
        let mut config = json!({
            "custom_provider": {"oac": {"name": "p", "kind": "custom", "enabled": true, "api": "anthropic-messages",
                "options": {"baseURL": self.provider.base_url_for(Protocol::Messages), "apiKey": "${PROVIDER_KEY}"},
                "models": {"claude-sonnet-5": {"name": "M", "tool_call": true, "limit": {"context": 64000, "output": 4096}}}}},
            "askUser": {"enabled": false},
            "agents": {"default": {"tools": ["bash", "read", "write", "edit"], "builtinTools": [], "skills": [],
                "features": {"mavis": false, "delegation": false, "webSearch": false}}},
            "permissionMode": "auto",
        });
        change(&mut config);
        std::fs::write(self.data().join("config.yaml"), config.to_string()).unwrap();
    }

    /// The program with the environment that an adapter would give it.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("MINIMAX_DATA_DIR", self.data()).env("HOME", self.data()).env("PROVIDER_KEY", KEY);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Starts it, and greets it.
    pub(crate) async fn start(&self) -> Running {
        let mut running = self.start_bare();
        running.ask("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})).await.unwrap();
        running
    }

    pub(crate) fn start_bare(&self) -> Running {
        let mut command = self.command(&["acp"]);
        // What it says there is not looked at, and nobody is to wait for it.
        command.stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, stdin, lines, last: 0, seen: Vec::new() }
    }

    /// Starts it with a session that has the model of the configuration.
    pub(crate) async fn session(&self, servers: Value) -> (Running, String) {
        let mut running = self.start().await;
        let made = running.ask("session/new", json!({"cwd": self.workspace(), "mcpServers": servers})).await.unwrap();
        let session = made["sessionId"].as_str().unwrap().to_owned();
        running.set_model(&session).await;
        (running, session)
    }
}

impl Running {
    pub(crate) async fn write(&mut self, line: &str) {
        // A program that is gone is what some tests are about.
        _ = self.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).await;
    }

    /// Sends a request, and gives its id.
    pub(crate) async fn send(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params});
        self.write(&request.to_string()).await;
        self.last
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
    }

    /// The next message; lines that are none are passed over. Nothing at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            let line = match time::timeout(WAIT, self.lines.next_line()).await.unwrap() {
                Ok(line) => line?,
                // A line that is no text.
                Err(_) => continue,
            };
            if let Ok(message) = serde_json::from_str::<Value>(&line)
                && message["jsonrpc"] == "2.0"
            {
                self.seen.push(message.clone());
                return Some(message);
            }
        }
    }

    /// The first message from here on that fits.
    pub(crate) async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        while let Some(message) = self.next().await {
            if fits(&message) {
                return message;
            }
        }
        panic!("it ended: {:?}", self.seen);
    }

    /// The answer to a request.
    pub(crate) async fn answer(&mut self, id: u64) -> Result<Value, Value> {
        let message = self.until(|message| message["id"] == id && message.get("method").is_none()).await;
        message.get("result").cloned().ok_or_else(|| message["error"].clone())
    }

    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send(method, params).await;
        self.answer(id).await
    }

    /// The next update of this kind.
    pub(crate) async fn update(&mut self, kind: &str) -> Value {
        let message = self.until(|message| message["params"]["update"]["sessionUpdate"] == kind).await;
        message["params"]["update"].clone()
    }

    pub(crate) async fn set_model(&mut self, session: &str) {
        let params =
            json!({"sessionId": session, "configId": "model", "value": "m:custom_provider%3Aoac:claude-sonnet-5:v:"});
        let set = self.ask("session/set_config_option", params).await.unwrap();
        assert_eq!(set["configOptions"][1]["currentValue"], "m:custom_provider%3Aoac:claude-sonnet-5:v:");
    }

    /// Sends a prompt of one text.
    pub(crate) async fn prompt(&mut self, session: &str, text: &str) -> u64 {
        self.send("session/prompt", json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]})).await
    }

    /// Why a prompt of one text ended.
    pub(crate) async fn prompted(&mut self, session: &str, text: &str) -> String {
        let id = self.prompt(session, text).await;
        self.answer(id).await.unwrap()["stopReason"].as_str().unwrap().to_owned()
    }

    /// The updates of this kind so far.
    pub(crate) fn updates(&self, kind: &str) -> Vec<Value> {
        let updates = self.seen.iter().map(|message| &message["params"]["update"]);
        updates.filter(|update| update["sessionUpdate"] == kind).cloned().collect()
    }

    /// What the model said so far.
    pub(crate) fn said(&self) -> String {
        let said = self.updates("agent_message_chunk");
        said.iter().map(|update| update["content"]["text"].as_str().unwrap()).collect()
    }

    /// Closes its input, and waits for its end.
    pub(crate) async fn end(mut self) -> ExitStatus {
        drop(self.stdin.take());
        while self.next().await.is_some() {}
        time::timeout(WAIT, self.child.wait()).await.unwrap().unwrap()
    }
}
