//! Prompts: admission, commands that never reach the model, steering, cancels, and how a prompt is answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time;
use tokio_util::sync::CancellationToken;

use super::faults::{Settles, Steers};
use super::serve::Engine;
use super::session::{Active, Session};
use super::turn::{self, Ended, Trace};
use super::wire::Refusal;
use super::{fresh, lock};

/// The commands, with what each says for itself.
const COMMANDS: [(&str, &str); 10] = [
    ("help", "Show the commands"),
    ("new", "Start a new session"),
    ("model", "Show the model"),
    ("status", "Show the status"),
    ("doctor", "Check the installation"),
    ("context", "Show the context"),
    ("skills", "List the skills"),
    ("mcp", "List the MCP servers"),
    ("usage", "Show the usage"),
    ("compact", "Compact the context"),
];

/// The list of commands, filled up with this text.
pub(super) fn commands_update(filling: &str) -> Value {
    let command =
        |(name, description): &(&str, &str)| json!({"name": name, "description": format!("{description}{filling}")});
    let commands: Vec<_> = COMMANDS.iter().map(command).collect();
    json!({"sessionUpdate": "available_commands_update", "availableCommands": commands})
}

/// Takes a prompt and works on it beside everything else.
pub(super) async fn prompt(engine: &Arc<Engine>, id: &Value, params: &Value) {
    let admitted = engine.known(params).and_then(|session| {
        let (text, command) = read(&params["prompt"])?;
        Ok((session, text, command))
    });
    let (session, text, command) = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return engine.wire.answer(id, Err(refusal)).await,
    };
    enum Gate {
        Open(CancellationToken),
        Busy,
        Cancelled,
    }
    let gate = {
        let mut state = lock(&session.state);
        if state.active.is_some() {
            Gate::Busy
        } else if std::mem::take(&mut state.latched) {
            Gate::Cancelled
        } else {
            let cancel = CancellationToken::new();
            state.active = Some(active(Some(id.clone()), cancel.clone()));
            Gate::Open(cancel)
        }
    };
    let answer = match gate {
        Gate::Busy => Err(Refusal::params("A prompt is already active for this session.")),
        Gate::Cancelled => Ok(json!({"stopReason": "cancelled"})),
        Gate::Open(cancel) => {
            let engine = engine.clone();
            engine.clone().tasks.spawn(drive(engine, session, text, command, cancel));
            return;
        }
    };
    engine.wire.answer(id, answer).await;
}

fn active(request: Option<Value>, cancel: CancellationToken) -> Active {
    Active { turn: fresh("turn"), request, cancel, admitted: false, steers: VecDeque::new() }
}

/// The text of a prompt, and the command that it is where it is one.
fn read(blocks: &Value) -> Result<(String, Option<&'static str>), Refusal> {
    let blocks = blocks.as_array().ok_or_else(|| Refusal::params("prompt must be an array"))?;
    let text = |block: &Value| match block["type"].as_str() {
        Some("text") => block["text"].as_str().map(str::to_owned).ok_or_else(|| Refusal::params("a text without text")),
        Some("resource_link") => Ok(format!("[{}]({})", plain(&block["name"]), plain(&block["uri"]))),
        kind => Err(Refusal::params(&format!("unsupported content block: {}", kind.unwrap_or("none")))),
    };
    let texts = blocks.iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let command = match (&blocks[..], &texts[..]) {
        ([block], [text]) if block["type"] == "text" => text.strip_prefix('/').and_then(|line| {
            let word = line.split_whitespace().next()?;
            COMMANDS.iter().map(|(name, _)| *name).find(|name| *name == word)
        }),
        _ => None,
    };
    Ok((texts.join("\n\n"), command))
}

fn plain(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Works on a prompt to its end, answers it, and starts what is queued behind it.
async fn drive(
    engine: Arc<Engine>,
    session: Arc<Session>,
    text: String,
    command: Option<&'static str>,
    cancel: CancellationToken,
) {
    let (mut text, mut command, mut cancel) = (text, command, cancel);
    loop {
        let trace = one(&engine, &session, text, command, &cancel).await;
        let next = {
            let mut state = lock(&session.state);
            // A client that has its answer may have asked again already; what is queued waits for the end of that.
            let next = if state.active.is_some() { None } else { state.queue.pop_front() };
            if next.is_some() {
                cancel = CancellationToken::new();
                state.active = Some(active(None, cancel.clone()));
            }
            next
        };
        afterwards(&engine, &session, trace).await;
        let Some((_, queued)) = next else { return };
        (text, command) = (queued, None);
    }
}

/// Works on one prompt and answers it.
async fn one(
    engine: &Arc<Engine>,
    session: &Arc<Session>,
    text: String,
    command: Option<&'static str>,
    cancel: &CancellationToken,
) -> Trace {
    let faults = &engine.faults;
    if faults.long_line_bytes > 0 {
        let filling = ".".repeat(faults.long_line_bytes / COMMANDS.len() + 1);
        engine.wire.update(&session.id, &commands_update(&filling)).await;
    }
    if faults.unknown_update {
        let update = json!({"sessionUpdate": "weather_update", "degrees": 21, "of": {"a": [1]}});
        engine.wire.update(&session.id, &update).await;
    }
    let mut trace = Trace::default();
    let ended = match (command, &faults.fail_prompt) {
        (Some(command), _) => {
            let content = json!({"type": "text", "text": said(engine, session, command)});
            let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
            engine.wire.update(&session.id, &update).await;
            Ended::Done
        }
        (None, Some(fails)) => Ended::Failed(fails.clone()),
        // A boxed future keeps the task small.
        (None, None) => Box::pin(turn::run(engine, session, text, cancel, &mut trace)).await,
    };
    trace.cancelled = matches!(ended, Ended::Cancelled);
    match faults.cancel.filter(|_| trace.cancelled) {
        Some(Settles::Never) => std::future::pending().await,
        Some(Settles::LateMs(ms)) => time::sleep(Duration::from_millis(ms)).await,
        None => {}
    }
    if faults.never_answer {
        std::future::pending::<()>().await;
    }
    if command.is_none() {
        turn::tell_usage(engine, session, &trace).await;
    }
    let answer = match ended {
        Ended::Done => Ok(faults.stop_reason.as_deref().unwrap_or("end_turn")),
        Ended::Cancelled => Ok("cancelled"),
        Ended::TooMany => Ok("max_turn_requests"),
        Ended::Failed(text) => Err(format!("Runtime failed: {text}")),
    };
    let (request, mode) = {
        let mut state = lock(&session.state);
        let request = state.active.take().and_then(|active| active.request);
        let mode = state.next_mode.take();
        if let Some(mode) = &mode {
            state.meta.mode.clone_from(mode);
        }
        (request, mode)
    };
    if let Some(mode) = mode {
        let update = json!({"sessionUpdate": "current_mode_update", "currentModeId": mode});
        engine.wire.update(&session.id, &update).await;
    }
    if let Some(request) = request {
        for _ in 0..1 + usize::from(faults.answer_twice) {
            let answer = answer.clone().map(|reason| json!({ "stopReason": reason }));
            engine.wire.answer(&request, answer.map_err(|text| Refusal::internal(&text))).await;
        }
    }
    trace
}

/// What the event stream tells when the prompt is answered already.
async fn afterwards(engine: &Arc<Engine>, session: &Arc<Session>, trace: Trace) {
    let faults = &engine.faults;
    if let Some(name) = faults.cancel_late_call.as_ref().filter(|_| trace.cancelled) {
        turn::late_call(engine, session, name, &trace).await;
    }
    for number in 0..faults.late_updates {
        turn::late_update(engine, session, number, &trace).await;
    }
    if !faults.without_late_usage && trace.worked {
        turn::tell_usage(engine, session, &trace).await;
        let title = turn::title(&lock(&session.state).entries);
        let update = json!({"sessionUpdate": "session_info_update", "title": title});
        engine.wire.update(&session.id, &update).await;
    }
}

/// What a command says.
fn said(engine: &Engine, session: &Session, command: &str) -> String {
    let state = lock(&session.state);
    match command {
        "help" => COMMANDS.map(|(name, description)| format!("/{name}: {description}")).join("\n"),
        "model" => format!("Model: {}", state.meta.model),
        "status" => format!("Session {} in {}", session.id, state.meta.cwd.display()),
        "mcp" => format!("{} MCP servers", state.servers.len()),
        "skills" => "No skills.".into(),
        "context" | "usage" => format!("{} entries", state.entries.len()),
        "doctor" => format!("{} providers", engine.config.customs.len()),
        other => format!("/{other}: done"),
    }
}

/// Cancels what a session works on. Where it works on nothing, that holds for a prompt of the same burst.
pub(super) fn cancel(session: &Session) {
    let mut state = lock(&session.state);
    match &state.active {
        Some(active) => active.cancel.cancel(),
        None => state.latched = true,
    }
}

/// Takes a message for the Turn that is active.
pub(super) async fn steer(engine: &Engine, id: &Value, params: &Value) {
    let taken = engine.known(params).and_then(|session| {
        let text = params["text"].as_str().filter(|text| !text.trim().is_empty());
        let text = text.ok_or_else(|| Refusal::params("text must not be empty"))?.to_owned();
        let key = params["clientRequestId"].as_str().map(str::to_owned);
        take(&session, text, key)
    });
    let answer = match (taken, engine.faults.steer) {
        (Ok(_), Some(Steers::Lost)) => return,
        (Ok(_), Some(Steers::Error)) => Err(Refusal::internal("the steering queue broke")),
        (Ok((_, mode)), Some(Steers::ChangedTurn)) => Ok(json!({"turnId": fresh("turn"), "mode": mode})),
        (Ok(_), Some(Steers::Unreadable)) => Ok(json!("yes")),
        (Ok((turn, mode)), None) => Ok(json!({"turnId": turn, "mode": mode})),
        (Err(refusal), _) => Err(refusal),
    };
    engine.wire.answer(id, answer).await;
}

fn take(session: &Session, text: String, key: Option<String>) -> Result<(String, &'static str), Refusal> {
    let mut state = lock(&session.state);
    let state = &mut *state;
    let active = state.active.as_mut().filter(|active| active.admitted && !active.cancel.is_cancelled());
    let active = active.ok_or_else(|| Refusal::params("No active turn to steer."))?;
    if let Some(turn) = key.as_ref().and_then(|key| state.steered.get(key)) {
        return Ok((turn.clone(), "duplicate"));
    }
    active.steers.push_back(text);
    if let Some(key) = key {
        state.steered.insert(key, active.turn.clone());
    }
    Ok((active.turn.clone(), "steered"))
}

/// The other extensions, as far as a client may meet them.
pub(super) async fn extension(engine: &Arc<Engine>, method: &str, params: &Value) -> Result<Value, Refusal> {
    let item = || params["itemId"].as_str().unwrap_or_default().to_owned();
    match method {
        "queue/list" => {
            let session = engine.known(params)?;
            let state = lock(&session.state);
            let items: Vec<_> = state.queue.iter().map(|(id, text)| json!({"itemId": id, "text": text})).collect();
            Ok(json!({ "items": items }))
        }
        "queue/enqueue" => {
            let session = engine.known(params)?;
            let text = params["text"].as_str().ok_or_else(|| Refusal::params("text is missing"))?.to_owned();
            let id = fresh("item");
            let (cancel, position) = {
                let mut state = lock(&session.state);
                if state.active.is_some() {
                    state.queue.push_back((id.clone(), text.clone()));
                    (None, state.queue.len())
                } else {
                    let cancel = CancellationToken::new();
                    state.active = Some(active(None, cancel.clone()));
                    (Some(cancel), 0)
                }
            };
            if let Some(cancel) = cancel {
                engine.tasks.spawn(drive(engine.clone(), session.clone(), text, None, cancel));
            }
            if lock(&engine.client).extensions {
                engine.wire.notify("mcode/session/queue_update", json!({ "sessionId": session.id })).await;
            }
            Ok(json!({"itemId": id, "status": "queued", "position": position}))
        }
        "queue/update" | "queue/delete" | "queue/steer" => {
            let session = engine.known(params)?;
            let mut state = lock(&session.state);
            let place = state.queue.iter().position(|(id, _)| *id == item());
            let place = place.ok_or_else(|| Refusal::params("no such item"))?;
            let queued = state.queue.remove(place).unwrap_or_default();
            let (id, mut text) = queued;
            if method == "queue/steer" {
                state.active.iter_mut().for_each(|active| active.steers.push_back(text.clone()));
            } else if method == "queue/update" {
                text = params["text"].as_str().unwrap_or(&text).to_owned();
                state.queue.insert(place, (id.clone(), text.clone()));
            }
            Ok(json!({"item": {"itemId": id, "text": text}}))
        }
        "goal/get" | "goal/create" | "goal/patch" if engine.config.goals => {
            engine.known(params)?;
            Ok(json!({ "goal": null }))
        }
        "goal/clear" if engine.config.goals => {
            engine.known(params)?;
            Ok(json!({ "cleared": true }))
        }
        "delegation/get" => {
            let session = engine.known(params)?;
            Ok(json!({"snapshot": {"rootSessionId": session.id, "members": []}}))
        }
        "delegation/stop" => {
            engine.known(params)?;
            Ok(json!({"receipt": {"failedSessionIds": []}}))
        }
        _ => Err(Refusal::method(&format!("mcode/session/{method}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(blocks: &[&str], text: &str, command: Option<&str>) {
        let blocks: Vec<_> = blocks.iter().map(|text| json!({"type": "text", "text": text})).collect();
        let read = read(&json!(blocks)).unwrap();
        assert_eq!((&*read.0, read.1), (text, command));
    }

    #[test]
    fn only_one_text_that_begins_with_a_slash_is_a_command() {
        check(&["/help"], "/help", Some("help"));
        check(&["/status now"], "/status now", Some("status"));
        check(&["/nothing"], "/nothing", None);
        check(&["/help", ""], "/help\n\n", None);
        check(&["", "/help"], "\n\n/help", None);
        check(&["\n/help"], "\n/help", None);
        check(&["\u{200b}/help"], "\u{200b}/help", None);
        let image = json!([{"type": "image", "data": "", "mimeType": "image/png"}]);
        assert_eq!(read(&image).unwrap_err().code, -32602);
    }
}
