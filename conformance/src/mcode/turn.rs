//! The loop of one prompt: the model is asked, its calls are run, and it is asked again until it has none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::history::{self, Block, Call, Entry, Outcome, Said};
use super::model::{self, Ask, Offer, Piece};
use super::serve::Engine;
use super::servers::{self, Found};
use super::session::Session;
use super::wire::{ToolUpdate, raw};
use super::{ask, fresh, lock, tools};

/// How many requests to the provider one prompt may have.
const REQUESTS: u32 = 200;

/// How many characters of the first message are the title.
const TITLE: usize = 50;

/// How a prompt ended.
#[derive(Debug)]
pub(super) enum Ended {
    Done,
    Cancelled,
    TooMany,
    Failed(String),
}

/// What is left of a prompt for those who tell of it afterwards.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// The model was to be asked.
    pub(super) worked: bool,
    pub(super) cancelled: bool,
    /// The last message, and the last tool.
    pub(super) message: Option<String>,
    pub(super) tool: Option<String>,
    used: u64,
    found: Vec<Found>,
}

/// Why a prompt does not go on.
enum Stop {
    Cancelled,
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// A message of one kind.
pub(super) fn chunk(kind: &str, id: &str, text: &str) -> Value {
    json!({"sessionUpdate": kind, "messageId": id, "content": {"type": "text", "text": text}})
}

/// The beginning of the first thing that a user said.
pub(super) fn title(entries: &[Entry]) -> Option<String> {
    entries.iter().find_map(|entry| match entry {
        Entry::User(said) => Some(said.text.trim().chars().take(TITLE).collect()),
        Entry::Meta(_) | Entry::Assistant(_) | Entry::Results(_) => None,
    })
}

/// Texts above the conversation: the double's own, that of the data folder, and that of the workspace.
pub(super) fn system(data: &Path, cwd: &Path) -> String {
    let own = format!("You are MiniMax Code, a coding agent. The working directory is {}.", cwd.display());
    let files = [data.join("AGENTS.md"), cwd.join("AGENTS.md")];
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    std::iter::once(own).chain(texts).collect::<Vec<_>>().join("\n\n")
}

/// Works on a prompt to its end.
pub(super) async fn run(
    engine: &Arc<Engine>,
    session: &Arc<Session>,
    text: String,
    cancel: &CancellationToken,
    trace: &mut Trace,
) -> Ended {
    trace.worked = true;
    match work(engine, session, text, cancel, trace).await {
        Ok(ended) => ended,
        Err(Stop::Cancelled) => Ended::Cancelled,
        Err(Stop::Failed(_)) if cancel.is_cancelled() => Ended::Cancelled,
        Err(Stop::Failed(error)) => Ended::Failed(format!("{error:#}")),
    }
}

async fn work(
    engine: &Arc<Engine>,
    session: &Arc<Session>,
    text: String,
    cancel: &CancellationToken,
    trace: &mut Trace,
) -> Result<Ended, Stop> {
    if text.trim().is_empty() {
        return Err(anyhow::anyhow!("the prompt has no text").into());
    }
    keep(engine, session, Entry::User(Said { id: fresh("msg"), text }))?;
    lock(&session.state).active.iter_mut().for_each(|active| active.admitted = true);
    let (model, cwd, servers) = {
        let state = lock(&session.state);
        (state.meta.model.clone(), state.meta.cwd.clone(), state.servers.clone())
    };
    let (custom, model, limit) =
        engine.config.find(&model).ok_or_else(|| anyhow::anyhow!("Authentication required for the model {model}"))?;
    if engine.faults.question {
        let asked = tools::input(tools::QUESTION);
        let answer = ask::question(engine, session, &asked, cancel).await.unwrap_or_else(|| "nothing".into());
        let text = format!("[question] answered: {answer}");
        keep(engine, session, Entry::User(Said { id: fresh("msg"), text }))?;
    }
    let discovery = servers::discover(&servers, &engine.data, &engine.faults, &engine.names);
    trace.found = tokio::select! {
        found = discovery => found?,
        () = cancel.cancelled() => return Err(Stop::Cancelled),
    };
    let mut offers = tools::offers(&engine.config);
    offers.extend(trace.found.iter().map(|found| found.offer.clone()));
    for _ in 0..engine.faults.max_requests.unwrap_or(REQUESTS) {
        take_steers(engine, session)?;
        let entries = lock(&session.state).entries.clone();
        let asked = Ask { model, limit, system: &session.system, tools: &offers, history: &entries };
        let blocks = tokio::select! {
            blocks = respond(engine, session, custom, &asked, trace) => blocks?,
            () = cancel.cancelled() => return Err(Stop::Cancelled),
        };
        let call = |block: &Block| match block {
            Block::Call(call) => Some(call.clone()),
            Block::Thought { .. } | Block::Text(_) => None,
        };
        let calls: Vec<_> = blocks.iter().filter_map(call).collect();
        if !blocks.is_empty() {
            keep(engine, session, Entry::Assistant(blocks))?;
        }
        if calls.is_empty() {
            // What was taken meanwhile is read before the end; from here on nothing is taken any more.
            let mut state = lock(&session.state);
            let done = state.active.as_ref().is_none_or(|active| active.steers.is_empty());
            if done {
                state.active.iter_mut().for_each(|active| active.admitted = false);
                return Ok(Ended::Done);
            }
            continue;
        }
        let place = Place { engine, session, cwd: &cwd, found: &trace.found, offers: &offers, cancel };
        let ran = future::join_all(calls.iter().map(|call| run_call(&place, call))).await;
        let dismissed = ran.iter().any(|(_, dismissed)| *dismissed);
        keep(engine, session, Entry::Results(ran.into_iter().map(|(outcome, _)| outcome).collect()))?;
        if cancel.is_cancelled() {
            return Err(Stop::Cancelled);
        }
        if dismissed {
            return Ok(Ended::Done);
        }
    }
    Ok(Ended::TooMany)
}

/// Writes an entry down and remembers it.
fn keep(engine: &Engine, session: &Session, entry: Entry) -> anyhow::Result<()> {
    history::append(&engine.data, &session.id, &entry)?;
    lock(&session.state).entries.push(entry);
    Ok(())
}

fn take_steers(engine: &Engine, session: &Session) -> anyhow::Result<()> {
    let steers = {
        let mut state = lock(&session.state);
        state.active.as_mut().map(|active| std::mem::take(&mut active.steers)).unwrap_or_default()
    };
    steers.into_iter().try_for_each(|text| keep(engine, session, Entry::User(Said { id: fresh("msg"), text })))
}

/// Asks the model once, and tells what it says as it comes.
async fn respond(
    engine: &Engine,
    session: &Session,
    custom: &super::config::Custom,
    asked: &Ask<'_>,
    trace: &mut Trace,
) -> anyhow::Result<Vec<Block>> {
    let mut stream = model::ask(custom, asked).await?;
    let (mut blocks, mut places) = (Vec::<Block>::new(), BTreeMap::new());
    let (mut open, mut stopped, mut counts) = (false, false, (0, 0));
    while let Some(pieces) = stream.next().await? {
        for piece in pieces {
            match piece {
                Piece::Text(text) if text.is_empty() => {}
                Piece::Text(text) => {
                    if !open || !matches!(blocks.last(), Some(Block::Text(_))) {
                        blocks.push(Block::Text(Said { id: fresh("msg"), text: String::new() }));
                    }
                    open = true;
                    if let Some(Block::Text(said)) = blocks.last_mut() {
                        said.text.push_str(&text);
                        engine.wire.update(&session.id, &chunk("agent_message_chunk", &said.id, &text)).await;
                        trace.message = Some(said.id.clone());
                    }
                    if let Some(code) = engine.faults.exit_mid_turn {
                        engine.leave(code).await;
                    }
                }
                Piece::Thought(more) => {
                    if !open || !matches!(blocks.last(), Some(Block::Thought { .. })) {
                        let (text, signature) = (String::new(), String::new());
                        blocks.push(Block::Thought { id: fresh("thought"), text, signature });
                    }
                    open = true;
                    if let Some(Block::Thought { id, text, .. }) = blocks.last_mut() {
                        text.push_str(&more);
                        engine.wire.update(&session.id, &chunk("agent_thought_chunk", id, &more)).await;
                    }
                }
                Piece::Signature(more) => {
                    if let Some(Block::Thought { signature, .. }) = blocks.last_mut() {
                        signature.push_str(&more);
                    }
                }
                Piece::Closed => open = false,
                Piece::Call { key, id, name } => {
                    let begun = begun(&id, &name);
                    engine.wire.update(&session.id, &begun).await;
                    trace.tool = Some(id.clone());
                    places.insert(key, blocks.len());
                    blocks.push(Block::Call(Call { id, name, arguments: String::new() }));
                    open = false;
                }
                Piece::Arguments { key, text } => {
                    if let Some(Block::Call(call)) = places.get(&key).and_then(|place| blocks.get_mut(*place)) {
                        call.arguments.push_str(&text);
                    }
                }
                Piece::Usage { input, output } => {
                    counts = (input.unwrap_or(counts.0), output.unwrap_or(counts.1));
                    trace.used = counts.0 + counts.1;
                }
                Piece::Stopped => stopped = true,
                Piece::Failed(told) => anyhow::bail!(told),
            }
        }
    }
    anyhow::ensure!(stopped, "the stream of the provider ended early");
    for block in &mut blocks {
        if let Block::Call(call) = block
            && call.arguments.trim().is_empty()
        {
            call.arguments = "{}".into();
        }
    }
    Ok(blocks)
}

/// A call without its arguments, which come later.
fn begun<'a>(id: &'a str, name: &'a str) -> ToolUpdate<'a> {
    ToolUpdate {
        session_update: "tool_call",
        tool_call_id: id,
        title: Some(name),
        name: Some(name),
        kind: Some(tools::kind(name)),
        status: Some("pending"),
        ..ToolUpdate::default()
    }
}

/// Where calls are run.
pub(super) struct Place<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) session: &'a Arc<Session>,
    pub(super) cwd: &'a PathBuf,
    found: &'a [Found],
    offers: &'a [Offer],
    pub(super) cancel: &'a CancellationToken,
}

/// Runs a call and tells of it. Gives whether it was a question that nobody could be asked.
async fn run_call(place: &Place<'_>, call: &Call) -> (Outcome, bool) {
    let Place { engine, session, .. } = place;
    // The status is absent: only the arguments are new.
    let arguments = ToolUpdate {
        session_update: "tool_call_update",
        tool_call_id: &call.id,
        raw_input: Some(raw(&call.arguments)),
        locations: tools::locations(call, place.cwd),
        ..ToolUpdate::default()
    };
    engine.wire.update(&session.id, &arguments).await;
    let (outcome, dismissed) = carry_out(place, call).await;
    tell_final(engine, &session.id, &outcome).await;
    (outcome, dismissed)
}

async fn tell_final(engine: &Engine, session: &str, outcome: &Outcome) {
    let ended = ToolUpdate {
        session_update: "tool_call_update",
        tool_call_id: &outcome.id,
        status: Some(&outcome.status),
        raw_output: Some(raw(&outcome.raw_output)),
        ..ToolUpdate::default()
    };
    for _ in 0..1 + usize::from(engine.faults.double_finals) {
        engine.wire.update(session, &ended).await;
    }
}

async fn carry_out(place: &Place<'_>, call: &Call) -> (Outcome, bool) {
    let Place { engine, session, cwd, found, offers, cancel } = place;
    if serde_json::from_str::<BTreeMap<String, &RawValue>>(&call.arguments).is_err() {
        return (Outcome::failed(call, "the arguments are no JSON object"), false);
    }
    if !offers.iter().any(|offer| offer.name == call.name) {
        return (Outcome::failed(call, &format!("Tool {} not found", call.name)), false);
    }
    let outside = *lock(&engine.permission_mode) == "default" && tools::outside(call, cwd);
    if (outside || engine.faults.ask_always) && !ask::permitted(place, call).await {
        let why = if cancel.is_cancelled() { "aborted" } else { "The user denied this tool call." };
        return (Outcome::failed(call, why), false);
    }
    if let Some(found) = found.iter().find(|found| found.offer.name == call.name) {
        return (found.call(call, &engine.faults, cancel).await, false);
    }
    if call.name == tools::ASK_USER {
        return match ask::question(engine, session, &tools::input(&call.arguments), cancel).await {
            Some(answer) => (tools::completed(call, &answer), false),
            None => (Outcome::failed(call, "The question was dismissed."), !cancel.is_cancelled()),
        };
    }
    (tools::run(place, call).await, false)
}

/// The context that is used, and what it has cost.
pub(super) async fn tell_usage(engine: &Engine, session: &Session, trace: &Trace) {
    let model = lock(&session.state).meta.model.clone();
    let size = engine.config.find(&model).map_or(0, |(_, _, limit)| limit.context);
    let cost = json!({"amount": 0.0, "currency": "USD"});
    let update = json!({"sessionUpdate": "usage_update", "used": trace.used, "size": size, "cost": cost});
    engine.wire.update(&session.id, &update).await;
}

/// A call that begins when its Turn is over.
pub(super) async fn late_call(engine: &Engine, session: &Session, name: &str, trace: &Trace) {
    let call = Call { id: fresh("call"), name: name.to_owned(), arguments: "{}".into() };
    engine.wire.update(&session.id, &begun(&call.id, name)).await;
    let outcome = match trace.found.iter().find(|found| found.offer.name == name) {
        Some(found) => found.call(&call, &engine.faults, &CancellationToken::new()).await,
        None => tools::completed(&call, "late"),
    };
    tell_final(engine, &session.id, &outcome).await;
}

/// One of many updates that come when their Turn is over.
pub(super) async fn late_update(engine: &Engine, session: &Session, number: usize, trace: &Trace) {
    let update = match (number % 3, &trace.message, &trace.tool) {
        (0, Some(message), _) => chunk("agent_message_chunk", message, "late"),
        (1, _, Some(tool)) => {
            json!({"sessionUpdate": "tool_call_update", "toolCallId": tool, "status": "completed", "rawOutput": {}})
        }
        (2, ..) => json!({"sessionUpdate": "usage_update", "used": number, "size": 1}),
        _ => chunk("agent_thought_chunk", "thought_of_an_ended_turn", "late"),
    };
    engine.wire.update(&session.id, &update).await;
}
