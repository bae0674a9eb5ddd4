//! Sessions: how they begin, come back and are set.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time;
use tokio_util::sync::CancellationToken;

use super::config::MANAGED;
use super::history::{self, Block, Entry, Meta};
use super::serve::Engine;
use super::servers::{self, Server};
use super::wire::{Refusal, ToolUpdate, raw};
use super::{fresh, lock, prompt, tools, turn};

/// When the third list of commands comes.
const THIRD_LIST: Duration = Duration::from_millis(100);

/// A session that is attached.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    /// What stands above the conversation, as the files were when it was attached.
    pub(super) system: String,
    pub(super) state: Mutex<State>,
}

/// How it stands.
#[derive(Debug)]
pub(super) struct State {
    pub(super) meta: Meta,
    pub(super) entries: Vec<Entry>,
    pub(super) servers: Vec<Arc<Server>>,
    pub(super) active: Option<Active>,
    /// A cancel came and no prompt was there.
    pub(super) latched: bool,
    /// The mode that the next prompt has.
    pub(super) next_mode: Option<String>,
    /// Which Turn took which message, by the id that the client gave it.
    pub(super) steered: BTreeMap<String, String>,
    /// Tools that the user allowed for good.
    pub(super) allowed: BTreeSet<String>,
    pub(super) queue: VecDeque<(String, String)>,
}

/// A prompt that is worked on.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) turn: String,
    /// The id of the request, where it was one.
    pub(super) request: Option<Value>,
    pub(super) cancel: CancellationToken,
    /// What it was asked is written down, and it can be steered.
    pub(super) admitted: bool,
    /// What waits for the next boundary.
    pub(super) steers: VecDeque<String>,
}

impl Session {
    fn new(data: &Path, id: String, meta: Meta, entries: Vec<Entry>, servers: Vec<Arc<Server>>) -> Arc<Self> {
        let system = turn::system(data, &meta.cwd);
        let state = State {
            meta,
            entries,
            servers,
            active: None,
            latched: false,
            next_mode: None,
            steered: BTreeMap::new(),
            allowed: BTreeSet::new(),
            queue: VecDeque::new(),
        };
        Arc::new(Self { id, system, state: Mutex::new(state) })
    }
}

/// Makes a session.
pub(super) async fn new(engine: &Arc<Engine>, id: &Value, params: &Value) {
    let made = placed(engine, params, true).map(|(cwd, servers)| {
        let meta = Meta { cwd, model: MANAGED.into(), mode: "default".into() };
        Session::new(&engine.data, fresh("mvs"), meta, Vec::new(), servers)
    });
    let session = match made.and_then(|session| kept(engine, &session).map(|()| session)) {
        Ok(session) => session,
        Err(refusal) => return engine.wire.answer(id, Err(refusal)).await,
    };
    engine.attach(session.clone());
    attached(engine, id, &session, true).await;
}

/// Takes a session up again, with its history told or not.
pub(super) async fn load(engine: &Arc<Engine>, id: &Value, params: &Value, replay: bool) {
    let session = match found(engine, params) {
        Ok(session) => session,
        Err(refusal) => return engine.wire.answer(id, Err(refusal)).await,
    };
    engine.attach(session.clone());
    if replay {
        let entries = lock(&session.state).entries.clone();
        tell(engine, &session.id, &entries).await;
    }
    attached(engine, id, &session, false).await;
}

fn found(engine: &Engine, params: &Value) -> Result<Arc<Session>, Refusal> {
    let id = params["sessionId"].as_str().ok_or_else(|| Refusal::params("sessionId is missing"))?;
    let (cwd, servers) = placed(engine, params, false)?;
    let read = history::read(&engine.data, id).filter(|_| !engine.faults.load_forgets);
    let (meta, entries) = read.ok_or_else(|| Refusal::unknown(id))?;
    if resolved(&meta.cwd) != resolved(&cwd) {
        return Err(Refusal::params("cwd does not match the session's workspace"));
    }
    if engine.session(id).is_some_and(|session| lock(&session.state).active.is_some()) {
        return Err(Refusal::params("A prompt is already active for this session."));
    }
    Ok(Session::new(&engine.data, id.to_owned(), meta, entries, servers))
}

/// Makes a copy of a session, of which something was said.
pub(super) async fn fork(engine: &Arc<Engine>, id: &Value, params: &Value) {
    let copy = || {
        let known = found(engine, params)?;
        let (meta, entries, servers) = {
            let state = lock(&known.state);
            (state.meta.clone(), state.entries.clone(), state.servers.clone())
        };
        if entries.is_empty() {
            return Err(Refusal::params("nothing was said in this session"));
        }
        let servers = match (params["mcpServers"].is_array(), engine.session(&known.id)) {
            (false, Some(attached)) => lock(&attached.state).servers.clone(),
            _ => servers,
        };
        let copy = Session::new(&engine.data, fresh("mvs"), meta, entries.clone(), servers);
        kept(engine, &copy)?;
        for entry in &entries {
            written(history::append(&engine.data, &copy.id, entry))?;
        }
        Ok(copy)
    };
    let session = match copy() {
        Ok(session) => session,
        Err(refusal) => return engine.wire.answer(id, Err(refusal)).await,
    };
    engine.attach(session.clone());
    attached(engine, id, &session, true).await;
}

/// Lets a session go; its history stays.
pub(super) fn close(engine: &Engine, params: &Value) -> Result<Value, Refusal> {
    let session = engine.known(params)?;
    engine.detach(&session.id);
    prompt::cancel(&session);
    Ok(json!({}))
}

/// The sessions of this data folder.
pub(super) fn list(engine: &Engine, params: &Value) -> Value {
    let one = |id: String| {
        let (meta, entries) = history::read(&engine.data, &id)?;
        let wanted = params["cwd"].as_str().is_none_or(|cwd| resolved(&meta.cwd) == resolved(Path::new(cwd)));
        let mut session = json!({"sessionId": id, "cwd": meta.cwd});
        if let Some(title) = turn::title(&entries) {
            session["title"] = json!(title);
        }
        wanted.then_some(session)
    };
    json!({"sessions": history::ids(&engine.data).into_iter().filter_map(one).collect::<Vec<_>>()})
}

/// Sets the mode for the next prompt.
pub(super) async fn set_mode(engine: &Engine, params: &Value) -> Result<Value, Refusal> {
    let session = engine.known(params)?;
    let mode = params["modeId"].as_str().filter(|mode| ["default", "plan"].contains(mode));
    let mode = mode.ok_or_else(|| Refusal::params("unknown mode"))?.to_owned();
    let settled = {
        let mut state = lock(&session.state);
        if state.active.is_some() {
            state.next_mode = Some(mode.clone());
            false
        } else {
            state.meta.mode.clone_from(&mode);
            written(history::append(&engine.data, &session.id, &Entry::Meta(state.meta.clone())))?;
            true
        }
    };
    if settled {
        let update = json!({"sessionUpdate": "current_mode_update", "currentModeId": mode});
        engine.wire.update(&session.id, &update).await;
    }
    let transition = if settled { "settled" } else { "next_prompt" };
    Ok(json!({"_meta": {"minimax-code/transition": transition}}))
}

/// Sets an option to a value that was advertised.
pub(super) async fn set_option(engine: &Engine, params: &Value) -> Result<Value, Refusal> {
    let session = engine.known(params)?;
    let value = params["value"].as_str().ok_or_else(|| Refusal::params("value must be a string"))?;
    match params["configId"].as_str() {
        Some("model") if engine.config.find(value).is_some() => {
            let mut state = lock(&session.state);
            if state.meta.model != value {
                state.meta.model = value.to_owned();
                written(history::append(&engine.data, &session.id, &Entry::Meta(state.meta.clone())))?;
            }
        }
        Some("permissionMode") if ["default", "auto", "bypassPermissions"].contains(&value) => {
            *lock(&engine.permission_mode) = value.to_owned();
            // It holds for the whole process, so every session hears of it.
            for other in engine.all().iter().filter(|other| other.id != session.id) {
                tell_options(engine, other).await;
            }
        }
        Some("model" | "permissionMode") => return Err(Refusal::params("the value was not advertised")),
        _ => return Err(Refusal::params("unknown config option")),
    }
    tell_options(engine, &session).await;
    Ok(json!({ "configOptions": options(engine, &session) }))
}

async fn tell_options(engine: &Engine, session: &Session) {
    let options = options(engine, session);
    let update = json!({"sessionUpdate": "config_option_update", "configOptions": options});
    engine.wire.update(&session.id, &update).await;
}

/// Where a session is to be and which servers it is to have.
fn placed(engine: &Engine, params: &Value, new: bool) -> Result<(PathBuf, Vec<Arc<Server>>), Refusal> {
    if engine.config.customs.is_empty() {
        let message = "Authentication required: run `mcode acp login` or configure a provider".into();
        return Err(Refusal { code: -32000, message });
    }
    let cwd = params["cwd"].as_str().map(PathBuf::from).filter(|cwd| cwd.is_absolute());
    let cwd = cwd.ok_or_else(|| Refusal::params("cwd must be an absolute path"))?;
    if params["additionalDirectories"].as_array().is_some_and(|more| !more.is_empty()) {
        return Err(Refusal::params("additionalDirectories are not supported"));
    }
    if new && !params["mcpServers"].is_array() {
        return Err(Refusal::params("mcpServers must be an array"));
    }
    let mut servers = servers::parse(&params["mcpServers"]).map_err(|error| Refusal::params(&error))?;
    servers.extend(servers::configured(&engine.data.join("mcp.json")));
    if engine.faults.project_mcp {
        servers.extend(servers::configured(&cwd.join(".mcp.json")));
    }
    Ok((cwd, servers))
}

/// The path that a folder really has, else the one that it is called by.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn kept(engine: &Engine, session: &Session) -> Result<(), Refusal> {
    let meta = lock(&session.state).meta.clone();
    written(history::append(&engine.data, &session.id, &Entry::Meta(meta)))
}

fn written(done: anyhow::Result<()>) -> Result<(), Refusal> {
    done.map_err(|error| Refusal::internal(&format!("{error:#}")))
}

/// Answers that a session is there, among three lists of its commands. Only a new one has its id in the answer.
async fn attached(engine: &Arc<Engine>, id: &Value, session: &Arc<Session>, new: bool) {
    let mut answer = json!({"modes": modes(session), "configOptions": options(engine, session)});
    if new {
        answer["sessionId"] = json!(session.id);
    }
    let commands = prompt::commands_update("");
    engine.wire.update(&session.id, &commands).await;
    engine.wire.answer(id, Ok(answer)).await;
    if lock(&engine.client).extensions {
        let params = json!({ "sessionId": session.id });
        engine.wire.notify("mcode/session/current_session_update", params).await;
    }
    engine.wire.update(&session.id, &commands).await;
    let (engine, session) = (engine.clone(), session.clone());
    engine.clone().tasks.spawn(async move {
        time::sleep(THIRD_LIST).await;
        engine.wire.update(&session.id, &commands).await;
    });
}

fn modes(session: &Session) -> Value {
    let mode = lock(&session.state).meta.mode.clone();
    let named = [json!({"id": "default", "name": "Default"}), json!({"id": "plan", "name": "Plan"})];
    json!({"currentModeId": mode, "availableModes": named})
}

/// The options with their values. A model that is not in the catalogue any more has none.
fn options(engine: &Engine, session: &Session) -> Value {
    let mode = lock(&engine.permission_mode).clone();
    let named = [("default", "Ask"), ("auto", "Auto"), ("bypassPermissions", "Full access")];
    let named = named.map(|(value, name)| json!({"value": value, "name": name}));
    let mut options = vec![json!({"type": "select", "id": "permissionMode", "name": "Permission mode",
        "category": "_permission", "currentValue": mode, "_meta": {"minimax-code/scope": "process"}, "options": named})];
    let model = lock(&session.state).meta.model.clone();
    if model == MANAGED || engine.config.find(&model).is_some() {
        let models: Vec<_> = engine.config.catalogue();
        let models: Vec<_> = models.iter().map(|(value, name)| json!({"value": value, "name": name})).collect();
        options.push(json!({"type": "select", "id": "model", "name": "Model", "category": "model",
            "currentValue": model, "options": models}));
    }
    json!(options)
}

/// Tells what was said, message by message.
async fn tell(engine: &Engine, session: &str, entries: &[Entry]) {
    let mut results = BTreeMap::new();
    for entry in entries {
        if let Entry::Results(outcomes) = entry {
            results.extend(outcomes.iter().map(|outcome| (outcome.id.clone(), outcome)));
        }
    }
    for entry in entries {
        match entry {
            Entry::Meta(_) | Entry::Results(_) => {}
            Entry::User(said) => {
                engine.wire.update(session, &turn::chunk("user_message_chunk", &said.id, &said.text)).await;
            }
            Entry::Assistant(blocks) => {
                for block in blocks {
                    match block {
                        Block::Thought { id, text, .. } => {
                            engine.wire.update(session, &turn::chunk("agent_thought_chunk", id, text)).await;
                        }
                        Block::Text(said) => {
                            engine
                                .wire
                                .update(session, &turn::chunk("agent_message_chunk", &said.id, &said.text))
                                .await;
                        }
                        Block::Call(call) => {
                            let outcome = results.get(&call.id);
                            let update = ToolUpdate {
                                session_update: "tool_call",
                                tool_call_id: &call.id,
                                title: Some(&call.name),
                                name: Some(&call.name),
                                kind: Some(tools::kind(&call.name)),
                                status: outcome.map(|outcome| &*outcome.status),
                                raw_input: Some(raw(&call.arguments)),
                                raw_output: outcome.map(|outcome| raw(&outcome.raw_output)),
                                ..ToolUpdate::default()
                            };
                            engine.wire.update(session, &update).await;
                        }
                    }
                }
            }
        }
    }
}
