//! An agent's side of an owner: what is written to it, and what it keeps of a conversation. A Turn is one prompt; it begins once the request before it is answered, and ends
//! with the prompt's own answer. What comes before and behind is of no Turn (R-EVT-6).

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::Serialize;
use tokio::{sync::mpsc, time::Instant};

use super::{
    events::{Items, Names},
    functions::Calls,
    profile::{Agent, Listing, Profile, Slash},
    start,
    wire::{self, Text},
};
use crate::{
    cleaner::Cleaner,
    function_server::{Answer, FunctionServer, Happening, RequestId},
    harness::{FunctionResult, InputPart, OutputPart, Proof, ProvedInputs, Report},
    native::rpc::EncodeError,
    owner::{Carried, Manner, Native, Owner},
};

mod inbox;

/// A conversation of an agent and what is known of the Turn that runs in it.
pub(super) struct Conversation {
    agent: Arc<dyn Agent>,
    id: String,
    next_id: u64,
    /// What we asked and was not answered.
    asked: BTreeMap<u64, Asked>,
    prompt: Prompt,
    /// The native turn: ACP has no ids of its own for prompts.
    turn: String,
    items: Items,
    calls: Calls,
    functions: Option<Functions>,
    /// The model's option and its value, by which a request without an effect is made.
    model: Option<(String, String)>,
    /// Where the agent took the inputs that were added to the prompt: its own id of what runs.
    steered: Option<String>,
    /// A cancel was written.
    cancelled: bool,
    /// Something happened after which the process takes no other prompt.
    spent: bool,
    /// Until when the functions have to be listed.
    listed_by: Option<Instant>,
    /// The Session's home, where it is not written down there yet that it has this conversation.
    unrecorded: Option<PathBuf>,
}

/// The functions that an agent is served.
pub(super) struct Functions {
    pub(super) server: FunctionServer,
    pub(super) happenings: mpsc::Receiver<Happening>,
    pub(super) listed: bool,
    /// How long a prompt may take to list them.
    pub(super) patience: Duration,
}

/// What a conversation is made of.
pub(super) struct Opened {
    pub(super) agent: Arc<dyn Agent>,
    pub(super) id: String,
    pub(super) next_id: u64,
    pub(super) names: Names,
    pub(super) functions: Option<Functions>,
    pub(super) model: Option<(String, String)>,
    pub(super) unrecorded: Option<PathBuf>,
}

/// How far a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prompt {
    /// Nothing was written, or its end is told.
    None,
    /// The request before it is not answered.
    Behind,
    /// It was written.
    Running,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Barrier,
    Prompt,
    Steer,
    Standing,
    /// Whether the agent lives, which has dropped this request for a function.
    Lives(RequestId),
}

impl Conversation {
    pub(super) fn new(opened: Opened) -> Self {
        let Opened { agent, id, next_id, names, functions, model, unrecorded } = opened;
        Self {
            id,
            next_id,
            asked: BTreeMap::new(),
            prompt: Prompt::None,
            turn: String::new(),
            items: Items::new(Arc::clone(&agent), Arc::new(names)),
            calls: Calls::default(),
            functions,
            model,
            steered: None,
            cancelled: false,
            spent: false,
            listed_by: None,
            unrecorded,
            agent,
        }
    }

    fn profile(&self) -> &Profile {
        self.agent.profile()
    }

    /// Answers a request that no Turn can answer.
    fn dismiss(&self, request: RequestId) {
        if let Some(functions) = &self.functions {
            let parts = vec![OutputPart::Text(NO_TURN.to_owned())];
            functions.server.answer(request, Answer { success: false, parts });
        }
    }

    /// Answers all requests that are left.
    fn dismiss_all(&self) {
        if let Some(functions) = &self.functions {
            functions.server.close_open(NO_TURN);
        }
    }

    /// Whether an input was taken into the same native turn as those before it. What runs under another id may be of another prompt.
    fn took(&mut self, native_id: &str) -> bool {
        self.steered.get_or_insert_with(|| native_id.to_owned()) == native_id
    }

    /// Whether the functions have to be listed yet.
    fn is_unlisted(&self) -> bool {
        self.functions.as_ref().is_some_and(|functions| !functions.listed)
    }
}

impl Native for Conversation {
    const HELPERS: &'static [&'static str] = &[];
    type Beside = Happening;

    fn manner(&self) -> Manner {
        Manner { name: self.profile().name, cleans: false, close: Duration::ZERO }
    }

    async fn beside(&mut self) -> Happening {
        match &mut self.functions {
            Some(functions) => match functions.happenings.recv().await {
                Some(happening) => happening,
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }

    async fn came(owner: &mut Owner<Self>, what: Happening) {
        owner.served(what).await;
    }

    fn begin(&mut self) {
        self.items.begin();
        self.calls.begin();
        self.prompt = Prompt::None;
        self.turn = format!("prompt-{}", uuid::Uuid::now_v7().simple());
        self.steered = None;
        self.cancelled = false;
        self.listed_by = None;
    }

    /// Nothing of a Turn is kept for the time until the next one.
    fn settled(&mut self) {
        self.asked.clear();
        self.items.begin();
        self.calls.begin();
        self.prompt = Prompt::None;
        self.listed_by = None;
    }

    /// It stands in the one prompt that there is.
    fn read_more(&mut self) {}

    fn submit(owner: &mut Owner<Self>) {
        owner.native.prompt = Prompt::Behind;
        owner.ask_harmless(Asked::Barrier);
    }

    fn interrupt(owner: &mut Owner<Self>, _native: &str) {
        owner.native.cancelled = true;
        let params = wire::SessionRef { session_id: &owner.native.id };
        let line = wire::notification("session/cancel", &params);
        owner.put(line, None);
    }

    /// What an interrupt leaves running ends with the process.
    fn clean(_owner: &mut Owner<Self>) {}

    fn write_input(owner: &mut Owner<Self>) {
        owner.steer_next();
    }

    /// It goes to the agent by the server of the functions.
    fn answer(&mut self, call_id: &str, result: &FunctionResult) -> Vec<Bytes> {
        if let Some((request, answer)) = self.calls.answered(call_id, result)
            && let Some(functions) = &self.functions
        {
            functions.server.answer(request, answer);
        }
        Vec::new()
    }

    fn answer_written(&mut self, _call_id: &str) -> Option<Report> {
        None
    }

    /// That it is answered says that the agent lives.
    fn ask(owner: &mut Owner<Self>) {
        owner.ask_harmless(Asked::Standing);
    }

    fn next_due(&self) -> Option<Instant> {
        self.listed_by
    }

    async fn due(owner: &mut Owner<Self>, now: Instant) {
        if owner.native.listed_by.take_if(|at| *at <= now).is_some() && owner.are_functions_missing().await {
            owner.unlisted().await;
        }
    }

    async fn message(owner: &mut Owner<Self>, line: &[u8]) {
        owner.told(line).await;
    }

    /// No native history is read.
    async fn inputs_read(&self, _native: &str) -> Option<ProvedInputs> {
        None
    }

    async fn ending(&self, _native: &str, _shown: &[String], _cleaner: &Cleaner) -> Option<Proof> {
        None
    }

    fn missed(&mut self, _proof: Proof, _out: &mut Vec<Report>) {}
}

/// Said to who asks for a function when no Turn runs.
const NO_TURN: &str = "no Turn is running";

/// The blocks of an input. A text that begins with `/` is one for the model all the same (R-CTL-1).
fn blocks(slash: Slash, parts: &[InputPart]) -> Vec<Text<'_>> {
    let mut blocks: Vec<_> = wire::texts(parts).map(Text::of).collect();
    let Some(first) = blocks.first().map(|block| block.text.clone()) else { return blocks };
    match slash {
        Slash::EmptyBlock if first.starts_with('/') && blocks.len() == 1 => blocks.push(Text::of("")),
        // White space before it hides no command.
        Slash::ZeroWidthSpace if first.trim_start().starts_with('/') => {
            blocks[0].text = format!("\u{200b}{first}").into();
        }
        Slash::EmptyBlock | Slash::ZeroWidthSpace => {}
    }
    blocks
}

impl Owner<Conversation> {
    /// Writes the prompt, which is the Turn.
    fn write_prompt(&mut self) {
        let Some(input) = self.input.take() else { return };
        let native = &mut self.native;
        // ORDER: once a prompt may be read, its history is not to be replaced.
        if let Some(home) = native.unrecorded.take()
            && let Err(error) = start::record(native.agent.profile().kind, &home, &native.id)
        {
            tracing::error!(%error, "which conversation a Session has could not be written down; it cannot be gone on with");
        }
        native.prompt = Prompt::Running;
        let in_turn = matches!(native.profile().listing, Listing::InTurn(_));
        if let Some(functions) = native.functions.as_mut().filter(|_| in_turn) {
            // It lists them again once it has left the server.
            functions.listed = functions.server.is_listed();
        }
        if native.is_unlisted() {
            native.listed_by = native.functions.as_ref().map(|functions| Instant::now() + functions.patience);
        }
        let id = native.id.clone();
        let prompt = blocks(native.profile().slash, &input.parts);
        self.ask_for(Asked::Prompt, "session/prompt", &wire::Prompt { session_id: &id, prompt }, None);
    }

    /// Writes a request without an effect, which is answered in its order, so that what an earlier prompt left in the pipe is known as such by the answer (R-EVT-6): the model's
    /// option with the value that it has, or else a list, which an agent that has none refuses.
    fn ask_harmless(&mut self, what: Asked) {
        let id = &self.native.id;
        let (method, params) = match &self.native.model {
            Some((option, value)) => (
                "session/set_config_option",
                serde_json::json!({ "sessionId": id, "configId": option, "value": value }),
            ),
            None => ("session/list", serde_json::json!({ "sessionId": id })),
        };
        self.ask_for(what, method, &params, None);
    }

    /// Writes the next input that was added, where there is one and the agent can take it: the prompt must be known to run.
    fn steer_next(&mut self) {
        let Some(steer) = self.native.profile().steer else { return };
        let is_open = self.turn.as_ref().is_some_and(|turn| turn.is_open() && turn.has_started());
        if !is_open || self.native.prompt != Prompt::Running || self.native.cancelled || !self.native.items.are_begun()
        {
            return;
        }
        let Some(input) = self.inputs.next() else { return };
        let texts: Vec<_> = wire::texts(&input.parts).collect();
        let (text, carried, client) =
            (texts.join("\n\n"), Carried::Input(input.input_id.clone()), input.client_id.clone());
        let id = self.native.id.clone();
        let params = wire::SteerParams { session_id: &id, text: &text, client_request_id: &client };
        self.ask_for(Asked::Steer, steer.method, &params, Some(carried));
    }

    /// Writes a request, whose answer is waited for.
    fn ask_for(&mut self, what: Asked, method: &str, params: &impl Serialize, carried: Option<Carried>) {
        let id = self.native.next_id;
        self.native.next_id += 1;
        self.native.asked.insert(id, what);
        let line = wire::request(id, method, params);
        self.put(line, carried);
    }

    fn put(&mut self, line: Result<Bytes, EncodeError>, carried: Option<Carried>) {
        match line {
            Ok(line) => self.write(line, carried),
            Err(error) => tracing::error!(%error, "a line could not be written as JSON"),
        }
    }
}
