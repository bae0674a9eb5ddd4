//! The loop over the lines of the client, and what is done with each method.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time;
use tokio_util::task::TaskTracker;

use super::config::Config;
use super::faults::Faults;
use super::lines::Lines;
use super::session::{self, Session};
use super::wire::{Refusal, Wire};
use super::{VERSION, lock, note, prompt};
use crate::child::Keep;

/// How much is read at once. Lines in one read are one burst.
const BURST: usize = 64 * 1024;

/// How long Turns have to end when the client is gone.
const LEAVING: Duration = Duration::from_secs(1);
/// Between two looks whether an answer is still held back.
const HELD: Duration = Duration::from_millis(2);

/// What all sessions share.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) wire: Wire,
    pub(super) config: Config,
    pub(super) faults: Faults,
    pub(super) data: PathBuf,
    pub(super) tasks: TaskTracker,
    /// Held while the names of MCP tools are written.
    pub(super) names: Mutex<()>,
    pub(super) permission_mode: Mutex<String>,
    pub(super) client: Mutex<Client>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
}

/// What the client can.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Client {
    pub(super) form: bool,
    pub(super) extensions: bool,
}

/// Serves until standard input ends, and gives the status to leave with.
pub(super) async fn serve(faults: Faults, mut keep: Option<Keep>, data: PathBuf) -> anyhow::Result<u8> {
    let config = Config::read(&data)?;
    let (wire, writing) = Wire::new(&faults);
    let (tasks, mut writer) = (TaskTracker::new(), JoinSet::new());
    writer.spawn(writing);
    if faults.endless_stderr {
        std::thread::spawn(chatter);
    }
    let engine = Arc::new(Engine {
        wire,
        permission_mode: Mutex::new(config.permission_mode.clone()),
        config,
        faults,
        data,
        tasks,
        names: Mutex::default(),
        client: Mutex::default(),
        sessions: Mutex::default(),
    });
    let reading = async {
        let mut stdin = tokio::io::stdin();
        let (mut burst, mut lines) = (vec![0; BURST], Lines::default());
        loop {
            let read = stdin.read(&mut burst).await.context("read standard input")?;
            let bytes = burst.get(..read).unwrap_or_default();
            if let Some(keep) = &mut keep {
                keep.received(bytes)?;
            }
            if read == 0 && engine.faults.ignore_eof {
                std::future::pending::<()>().await;
            }
            if read == 0 {
                return anyhow::Ok(0);
            }
            lines.add(bytes);
            while let Some(line) = lines.next() {
                if let Some(code) = engine.line(&line).await {
                    return Ok(code);
                }
            }
            // A cancel holds for what came with it.
            engine.all().iter().for_each(|session| lock(&session.state).latched = false);
        }
    };
    let code = tokio::select! {
        code = reading => code?,
        () = signalled(engine.faults.ignore_term) => 0,
    };
    for session in engine.all() {
        lock(&session.state).active.iter().for_each(|active| active.cancel.cancel());
    }
    engine.tasks.close();
    // A Turn that does not end in time ends with the process.
    _ = time::timeout(LEAVING, engine.tasks.wait()).await;
    engine.wire.flush().await;
    Ok(code)
}

/// Writes to standard error without an end.
fn chatter() {
    use std::io::Write;
    let text = format!("warning: {}\n", "this goes on and on ".repeat(50));
    while std::io::stderr().write_all(text.as_bytes()).is_ok() {}
}

async fn signalled(deaf: bool) {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = |kind| async move {
        match signal(kind) {
            Ok(mut signal) => _ = signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    let mut waits = JoinSet::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        waits.spawn(wait(kind));
    }
    loop {
        waits.join_next().await;
        if !deaf {
            return;
        }
        waits.spawn(wait(SignalKind::terminate()));
    }
}

impl Engine {
    /// All sessions that are attached.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        lock(&self.sessions).values().cloned().collect()
    }

    /// The session with this id, where it is attached.
    pub(super) fn session(&self, id: &str) -> Option<Arc<Session>> {
        lock(&self.sessions).get(id).cloned()
    }

    pub(super) fn attach(&self, session: Arc<Session>) {
        lock(&self.sessions).insert(session.id.clone(), session);
    }

    pub(super) fn detach(&self, id: &str) -> Option<Arc<Session>> {
        lock(&self.sessions).remove(id)
    }

    /// Ends the process, with everything said that was to be said.
    pub(super) async fn leave(&self, code: u8) -> ! {
        self.wire.flush().await;
        std::process::exit(i32::from(code))
    }

    /// Does what a line says. Gives the status to leave with where it is a reason to leave.
    async fn line(self: &Arc<Self>, line: &[u8]) -> Option<u8> {
        let line = line.trim_ascii();
        let message = match serde_json::from_slice::<Value>(line) {
            Ok(Value::Array(_)) => return Some(0),
            Ok(message) if message.is_object() => message,
            Ok(_) => return None,
            Err(_) if line.is_empty() => return None,
            Err(error) => {
                note(&format!("Failed to parse JSON message: {error}"));
                return None;
            }
        };
        let Some(method) = message["method"].as_str().map(str::to_owned) else {
            self.wire.answered(message);
            return None;
        };
        if let Some(exit) = self.faults.exit_at.as_ref().filter(|exit| exit.method == method) {
            return Some(exit.code);
        }
        match message.get("id") {
            Some(_) if self.faults.mute_at.as_ref() == Some(&method) => {}
            Some(id) => self.request(id, &method, &message["params"]).await,
            None => self.notification(&method, &message["params"]),
        }
        if self.faults.deaf_after.as_ref() == Some(&method) {
            std::future::pending::<()>().await;
        }
        None
    }

    fn notification(&self, method: &str, params: &Value) {
        match method {
            "session/cancel" => {
                let session = params["sessionId"].as_str().and_then(|id| self.session(id));
                session.iter().for_each(|session| prompt::cancel(session));
            }
            "$/cancel_request" => {
                for session in self.all() {
                    let state = lock(&session.state);
                    let asked =
                        state.active.iter().filter(|active| active.request.as_ref() == Some(&params["requestId"]));
                    asked.for_each(|active| active.cancel.cancel());
                }
            }
            _ => {}
        }
    }

    async fn request(self: &Arc<Self>, id: &Value, method: &str, params: &Value) {
        let answer = match method {
            "initialize" => Ok(self.initialize(params)),
            "authenticate" => match params["methodId"].as_str() {
                Some("minimax-code-login") => Ok(json!({})),
                _ => Err(Refusal::params("unknown authentication method")),
            },
            "session/new" => return session::new(self, id, params).await,
            "session/load" => return session::load(self, id, params, true).await,
            "session/resume" => return session::load(self, id, params, false).await,
            "session/fork" => return session::fork(self, id, params).await,
            "session/list" => Ok(session::list(self, params)),
            "session/close" => session::close(self, params),
            "session/set_mode" => session::set_mode(self, params).await,
            "session/set_config_option" => {
                while self.faults.hold_config.as_ref().is_some_and(|held| held.exists()) {
                    time::sleep(HELD).await;
                }
                session::set_option(self, params).await
            }
            "session/prompt" => return prompt::prompt(self, id, params).await,
            "mcode/session/steer" => return prompt::steer(self, id, params).await,
            "session/activate" | "mcode/session/activate" => {
                self.known(params).map(|session| json!({ "sessionId": session.id }))
            }
            _ => match method.strip_prefix("mcode/session/") {
                Some(extension) => prompt::extension(self, extension, params).await,
                None => Err(Refusal::method(method)),
            },
        };
        self.wire.answer(id, answer).await;
    }

    /// The session that a request names.
    pub(super) fn known(&self, params: &Value) -> Result<Arc<Session>, Refusal> {
        let id = params["sessionId"].as_str().ok_or_else(|| Refusal::params("sessionId is missing"))?;
        self.session(id).ok_or_else(|| Refusal::unknown(id))
    }

    fn initialize(&self, params: &Value) -> Value {
        let can = &params["clientCapabilities"];
        let extensions = &can["_meta"]["minimax-code/extensions"];
        *lock(&self.client) = Client {
            form: !can["elicitation"]["form"].is_null(),
            extensions: extensions["version"] == 1 && extensions["notifications"] == true,
        };
        let version = self.faults.version.as_deref().unwrap_or(VERSION);
        let mut result = json!({
            "protocolVersion": 1,
            "agentCapabilities": {
                "loadSession": true,
                "mcpCapabilities": {"http": true, "sse": true},
                "promptCapabilities": {"image": false, "audio": false, "embeddedContext": false},
                "sessionCapabilities": {"list": {}, "fork": {}, "resume": {}, "close": {}},
            },
            "agentInfo": {"name": "minimax-code", "title": "MiniMax Code", "version": version},
        });
        if can["auth"]["terminal"] == true || can["_meta"]["terminal-auth"] == true {
            let login = json!({"id": "minimax-code-login", "name": "Login", "description": "mcode acp login"});
            result["authMethods"] = json!([login]);
        }
        if !self.faults.without_meta {
            let of = |group: &str, names: &[&str]| -> Vec<String> {
                names.iter().map(|name| format!("mcode/session/{group}{name}")).collect()
            };
            let mut methods = vec!["session/activate".to_owned()];
            methods.extend(of("", &["activate", "steer"]));
            methods.extend(of("queue/", &["list", "enqueue", "update", "delete", "steer"]));
            let mut notifications = of("", &["current_session_update", "queue_update"]);
            if self.config.goals {
                methods.extend(of("goal/", &["get", "create", "patch", "clear"]));
                notifications.extend(of("", &["goal_update"]));
            }
            methods.extend(of("delegation/", &["get", "stop"]));
            notifications.extend(of("", &["delegation_update"]));
            let extensions = json!({"version": 1, "methods": methods, "notifications": notifications});
            result["_meta"] = json!({ "minimax-code/extensions": extensions });
        }
        result
    }
}
