//! Claude Code's side of an owner: what is written to it, and what it keeps of a conversation. A Turn begins when Claude has read its input and
//! ends at the idle state, not at a `result`: an input that came too late for one native turn is read by another one of the same Turn (R-STE-2).

use std::{collections::BTreeMap, convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    config,
    events::Items,
    failure::Errors,
    functions::Calls,
    history,
    inventory::Inventory,
    mcp::Servers,
    structured::{self, Structured},
    wire::write,
};
use crate::{
    cleaner::Cleaner,
    harness::{FunctionResult, NativeEnd, Proof, ProvedInputs, ProvedMessage, Report},
    native::rpc::EncodeError,
    owner::{Carried, Manner, Native, Owner},
};

mod inbox;

/// A conversation of Claude Code and what is known of the Turn that runs in it.
pub(super) struct Conversation {
    id: String,
    /// Claude's configuration folder, where the history is.
    home: PathBuf,
    inventory: Inventory,
    mcp: Servers,
    /// The Turn was told which of them are not there.
    told_absent: bool,
    next_id: u64,
    /// What we asked and was not answered.
    asked: BTreeMap<String, Asked>,
    items: Items,
    calls: Calls,
    errors: Errors,
    /// The answer by a schema, where one is asked for.
    structured: Option<Structured>,
    /// An interrupt of ours is on its way.
    interrupted: bool,
    /// How the last native turn ended; the Turn itself is over at the idle state.
    end: Option<NativeEnd>,
}

/// What a conversation is made of.
pub(super) struct Opened {
    pub(super) id: String,
    pub(super) home: PathBuf,
    pub(super) inventory: Inventory,
    pub(super) mcp: Servers,
    pub(super) functions: Vec<String>,
    pub(super) is_structured: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Interrupt,
    Rules,
    Standing,
}

impl Conversation {
    pub(super) fn new(opened: Opened) -> Self {
        let Opened { id, home, inventory, mcp, functions, is_structured } = opened;
        Self {
            id,
            home,
            inventory,
            items: Items::of(Arc::clone(&mcp.tools)),
            mcp,
            told_absent: false,
            next_id: 1,
            asked: BTreeMap::new(),
            calls: Calls::new(functions),
            errors: Errors::default(),
            structured: is_structured.then(Structured::default),
            interrupted: false,
            end: None,
        }
    }

    /// An end with the answer that was asked for, where one was.
    fn answered_with(&self, end: NativeEnd) -> (NativeEnd, Option<ProvedMessage>) {
        match &self.structured {
            Some(structured) => structured.end(end),
            None => (end, None),
        }
    }
}

impl Native for Conversation {
    const HELPERS: &'static [&'static str] = &[];
    type Beside = Infallible;

    fn manner(&self) -> Manner {
        Manner { name: "claude", cleans: false, close: Duration::from_secs(2) }
    }

    async fn beside(&mut self) -> Infallible {
        std::future::pending().await
    }

    async fn came(_owner: &mut Owner<Self>, what: Infallible) {
        match what {}
    }

    fn begin(&mut self) {
        self.items = Items::of(Arc::clone(&self.mcp.tools));
        self.told_absent = false;
        self.calls.begin();
        self.errors = Errors::default();
        self.structured = self.structured.take().map(|_| Structured::default());
        self.interrupted = false;
        self.end = None;
    }

    /// Nothing of a Turn is kept for the time until the next one.
    fn settled(&mut self) {
        self.asked.clear();
        self.begin();
    }

    /// Another native turn has begun, of which nothing is known: what ended is not the Turn's end.
    fn read_more(&mut self) {
        self.end = None;
    }

    fn submit(owner: &mut Owner<Self>) {
        let Some(input) = &owner.input else { return };
        let line = write::user(&input.client_id, &input.parts);
        owner.put(line, None);
    }

    fn interrupt(owner: &mut Owner<Self>, _native: &str) {
        owner.native.interrupted = true;
        owner.native.items.stop();
        owner.ask_for(Asked::Interrupt, write::interrupt);
    }

    /// An interrupt leaves nothing running.
    fn clean(_owner: &mut Owner<Self>) {}

    fn write_input(owner: &mut Owner<Self>) {
        if !owner.turn.as_ref().is_some_and(|turn| turn.is_open() && turn.has_started()) {
            return;
        }
        let Some(input) = owner.inputs.next() else { return };
        let (carried, line) = (Carried::Input(input.input_id.clone()), write::user(&input.client_id, &input.parts));
        owner.put(line, Some(carried));
    }

    fn answer(&mut self, call_id: &str, result: &FunctionResult) -> Vec<Bytes> {
        self.calls.answered(call_id, result)
    }

    fn answer_written(&mut self, call_id: &str) -> Option<Report> {
        self.calls.written(call_id)
    }

    /// A second `initialize` changes nothing, and its answer has the state of the session.
    fn ask(owner: &mut Owner<Self>) {
        owner.ask_for(Asked::Standing, |id| write::request(id, &config::again()));
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }

    async fn due(_owner: &mut Owner<Self>, _now: Instant) {}

    async fn message(owner: &mut Owner<Self>, line: &[u8]) {
        owner.told(line).await;
    }

    async fn inputs_read(&self, native: &str) -> Option<ProvedInputs> {
        let (home, session, turn) = (self.home.clone(), self.id.clone(), native.to_owned());
        tokio::task::spawn_blocking(move || history::inputs(&home, &session, &turn)).await.unwrap_or_default()
    }

    /// The end of the last native turn was told, or stands in history.
    async fn ending(&self, native: &str, shown: &[String], _cleaner: &Cleaner) -> Option<Proof> {
        if let Some(end) = self.end.clone() {
            let (end, message) = self.answered_with(end);
            return Some(Proof { end, message, usage: None });
        }
        // That an answer was held to fit stands in no history.
        if self.structured.is_some() {
            return None;
        }
        let (home, session, turn, shown) = (self.home.clone(), self.id.clone(), native.to_owned(), shown.to_vec());
        tokio::task::spawn_blocking(move || history::ending(&home, &session, &turn, &shown)).await.unwrap_or_default()
    }

    fn missed(&mut self, proof: Proof, out: &mut Vec<Report>) {
        match (proof.message, &self.structured) {
            (Some(message), Some(_)) => structured::publish(message, out),
            (Some(message), None) => self.items.missed(message, out),
            (None, _) => {}
        }
    }
}

impl Owner<Conversation> {
    /// Writes a control request, whose answer is waited for.
    fn ask_for(&mut self, what: Asked, line: impl FnOnce(&str) -> Result<Bytes, EncodeError>) {
        let id = format!("rb-{}", self.native.next_id);
        self.native.next_id += 1;
        let line = line(&id);
        self.native.asked.insert(id, what);
        self.put(line, None);
    }

    fn put(&mut self, line: Result<Bytes, EncodeError>, carried: Option<Carried>) {
        match line {
            Ok(line) => self.write(line, carried),
            Err(error) => tracing::error!(%error, "a line could not be written as JSON"),
        }
    }
}
