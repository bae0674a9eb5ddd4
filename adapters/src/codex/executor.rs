//! Codex's side of an owner: what is asked of it, and what it keeps of a thread.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    path::PathBuf,
    time::Duration,
};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{events::Items, failure::Errors, functions::Calls, history, servers::Standings, wire};
use crate::{
    cleaner::Cleaner,
    harness::{Failure, FunctionResult, Proof, ProvedInputs, Report},
    native::rpc,
    owner::{Carried, Manner, Native, Owner},
};

mod inbox;
mod standing;
mod steering;

/// A thread of Codex and what is known of the Turn that runs on it.
pub(super) struct Thread {
    id: String,
    /// Codex's home, where the history is.
    home: PathBuf,
    nowhere: bool,
    /// Schema of every final answer.
    output_schema: Option<Box<RawValue>>,
    /// The sandbox of every turn, where it is not the thread's.
    sandbox_policy: Option<wire::SandboxPolicy>,
    next_id: u64,
    /// What we asked and was not answered.
    asked: BTreeMap<u64, Asked>,
    items: Items,
    calls: Calls,
    /// Which MCP servers are there.
    servers: Standings,
    /// When an input that Codex could not take is written again.
    again_at: Option<Instant>,
    errors: Errors,
    /// The last `error` that was not to be retried; `turn/completed` repeats it.
    final_error: Option<Failure>,
}

/// What a thread is made of.
pub(super) struct Opened {
    pub(super) id: String,
    pub(super) home: PathBuf,
    pub(super) nowhere: bool,
    pub(super) output_schema: Option<Box<RawValue>>,
    pub(super) sandbox_policy: Option<wire::SandboxPolicy>,
    pub(super) next_id: u64,
    /// Tokens that the thread had used before.
    pub(super) used: wire::Tokens,
    pub(super) functions: BTreeSet<String>,
    pub(super) servers: Standings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Start,
    Steer,
    Interrupt,
    Clean,
    Standing,
}

impl Thread {
    pub(super) fn new(opened: Opened) -> Self {
        let Opened { id, home, nowhere, output_schema, sandbox_policy, next_id, used, functions, servers } = opened;
        Self {
            id,
            home,
            nowhere,
            output_schema,
            sandbox_policy,
            next_id,
            asked: BTreeMap::new(),
            items: Items::new(used),
            calls: Calls::new(functions),
            servers,
            again_at: None,
            errors: Errors::default(),
            final_error: None,
        }
    }
}

impl Native for Thread {
    const HELPERS: &'static [&'static str] = &["codex-code-mode"];
    type Beside = Infallible;

    fn manner(&self) -> Manner {
        Manner { name: "codex", cleans: true, close: Duration::ZERO }
    }

    async fn beside(&mut self) -> Infallible {
        std::future::pending().await
    }

    async fn came(_owner: &mut Owner<Self>, what: Infallible) {
        match what {}
    }

    fn begin(&mut self) {
        self.items = Items::new(self.items.total());
        self.calls.begin();
        self.again_at = None;
        self.errors = Errors::default();
        self.final_error = None;
        self.servers.begin();
    }

    /// No result of a Turn is kept for the time until the next one.
    fn settled(&mut self) {
        self.asked.clear();
        self.calls.begin();
    }

    /// It stands in the one native turn that there is.
    fn read_more(&mut self) {}

    fn submit(owner: &mut Owner<Self>) {
        let Some(input) = &owner.input else { return };
        let thread = &owner.native;
        let params = wire::TurnStart {
            thread_id: &thread.id,
            client_user_message_id: &input.client_id,
            input: input.parts.iter().map(wire::UserInput::of).collect(),
            output_schema: thread.output_schema.as_deref(),
            environments: thread.nowhere.then_some([]),
            sandbox_policy: thread.sandbox_policy,
        };
        let line = rpc::request(thread.next_id, "turn/start", &params);
        owner.ask_for(Asked::Start, line, None);
    }

    fn interrupt(owner: &mut Owner<Self>, native: &str) {
        let params = wire::TurnInterrupt { thread_id: &owner.native.id, turn_id: native };
        let line = rpc::request(owner.native.next_id, "turn/interrupt", &params);
        owner.ask_for(Asked::Interrupt, line, None);
    }

    fn clean(owner: &mut Owner<Self>) {
        owner.native.items.stop();
        let params = wire::ThreadRef { thread_id: &owner.native.id };
        let line = rpc::request(owner.native.next_id, "thread/backgroundTerminals/clean", &params);
        owner.ask_for(Asked::Clean, line, None);
    }

    fn write_input(owner: &mut Owner<Self>) {
        owner.steer_next();
    }

    fn answer(&mut self, call_id: &str, result: &FunctionResult) -> Vec<Bytes> {
        self.calls.answered(call_id, result)
    }

    fn answer_written(&mut self, call_id: &str) -> Option<Report> {
        self.calls.written(call_id)
    }

    fn ask(owner: &mut Owner<Self>) {
        let params = wire::NewestTurn { thread_id: &owner.native.id, limit: 1, items_view: "notLoaded" };
        let line = rpc::request(owner.native.next_id, "thread/turns/list", &params);
        owner.ask_for(Asked::Standing, line, None);
    }

    fn next_due(&self) -> Option<Instant> {
        self.again_at
    }

    async fn due(owner: &mut Owner<Self>, now: Instant) {
        if owner.native.again_at.take_if(|at| *at <= now).is_some() {
            owner.steer_next();
        }
    }

    async fn message(owner: &mut Owner<Self>, line: &[u8]) {
        owner.told(line).await;
    }

    async fn inputs_read(&self, native: &str) -> Option<ProvedInputs> {
        let (home, thread, turn) = (self.home.clone(), self.id.clone(), native.to_owned());
        tokio::task::spawn_blocking(move || history::inputs(&home, &thread, &turn)).await.unwrap_or_default()
    }

    async fn ending(&self, native: &str, _shown: &[String], cleaner: &Cleaner) -> Option<Proof> {
        let (home, thread, turn) = (self.home.clone(), self.id.clone(), native.to_owned());
        let found = tokio::task::spawn_blocking(move || history::ending(&home, &thread, &turn)).await.ok()??;
        Some(found.into_proof(&self.errors, cleaner))
    }

    fn missed(&mut self, proof: Proof, out: &mut Vec<Report>) {
        self.items.missed(proof.message, proof.usage, out);
    }
}

impl Owner<Thread> {
    /// Writes a request, whose answer is waited for.
    fn ask_for(&mut self, what: Asked, line: Result<Bytes, rpc::EncodeError>, carried: Option<Carried>) {
        match line {
            Ok(line) => {
                self.native.asked.insert(self.native.next_id, what);
                self.native.next_id += 1;
                self.write(line, carried);
            }
            Err(error) => tracing::error!(%error, ?what, "a request could not be written as JSON"),
        }
    }
}
