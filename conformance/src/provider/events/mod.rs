//! The server-sent events of an answer, in the words of the API that was asked. Each event is the text that goes out.

mod chat;
mod messages;
mod responses;

use serde_json::{Value, json};
use uuid::Uuid;

use super::protocol::Protocol;
use super::request::Request;
use crate::script::provider::{Action, Call, Complete, CustomCall, Event, Failed, Incomplete, Shell};

/// One item of an answer: what is streamed of it, and all of it where the answer is no stream.
#[derive(Debug, Default)]
pub(super) struct Item {
    pub(super) events: Vec<String>,
    /// The finished item as JSON, where the API answers without a stream: the Responses API does not.
    pub(super) whole: String,
    /// Whether the Harness has to run something before the model goes on.
    pub(super) call: bool,
}

/// How an answer ends, where it does so properly.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ending<'a> {
    Complete(&'a Complete),
    Failed(&'a Failed),
    Incomplete(&'a Incomplete),
}

/// What an answer is about, beside its items.
#[derive(Debug)]
pub(super) struct Response<'a> {
    pub(super) id: String,
    pub(super) request: &'a Request,
    /// What the end will say, where a script tells it: the Messages API names the input at the beginning.
    pub(super) complete: Complete,
}

/// A fresh id with a prefix, unique among all runs, since a Harness keeps ids in its history.
pub(super) fn fresh(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::now_v7().simple())
}

/// An event whose name is its type.
fn event(kind: &str, mut data: Value) -> String {
    data["type"] = json!(kind);
    format!("event: {kind}\ndata: {data}\n\n")
}

/// How many characters of a call's arguments stand in one delta at least.
const PIECE: usize = 16;

/// In how many deltas long arguments stand.
const PIECES: usize = 64;

/// The text of a call's arguments as it is streamed.
fn pieces(arguments: &str) -> Vec<String> {
    let characters: Vec<_> = arguments.chars().collect();
    characters.chunks(PIECE.max(characters.len() / PIECES)).map(|piece| piece.iter().collect()).collect()
}

/// An event as a script has it.
pub(super) fn verbatim(event: &Event) -> String {
    let name = event.name.as_ref().map(|name| format!("event: {name}\n")).unwrap_or_default();
    let data: String = event.data.split('\n').map(|line| format!("data: {line}\n")).collect();
    format!("{name}{data}\n")
}

/// JSON without the line breaks between its tokens (there are none within).
fn flat(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

impl<'a> Response<'a> {
    /// An answer to a request, by a script of these actions.
    pub(super) fn new(request: &'a Request, play: &[Action]) -> Self {
        let complete = match play.last() {
            Some(Action::Complete(complete)) => complete.clone(),
            _ => Complete::default(),
        };
        let prefix = match request.protocol {
            Protocol::Responses => "resp",
            Protocol::Messages => "msg",
            Protocol::ChatCompletions => "chatcmpl",
        };
        Self { id: fresh(prefix), request, complete }
    }

    /// The first event.
    pub(super) fn created(&self) -> String {
        match self.request.protocol {
            Protocol::Responses => responses::created(&self.id),
            Protocol::Messages => messages::created(self),
            Protocol::ChatCompletions => chat::created(self),
        }
    }

    /// What an action adds behind these items, item by item; nothing for an action that adds none.
    pub(super) fn items(&self, before: &[Item], action: &Action) -> Vec<Item> {
        // The Chat Completions API counts calls, and nothing else.
        let counted = |item: &&Item| item.call || self.request.protocol != Protocol::ChatCompletions;
        self.items_at(before.iter().filter(counted).count(), action)
    }

    fn items_at(&self, place: usize, action: &Action) -> Vec<Item> {
        let one = |item| vec![item];
        let request = self.request;
        match (request.protocol, action) {
            (_, Action::Calls(calls)) => {
                let numbered = calls.iter().enumerate();
                numbered.map(|(number, call)| self.call(place + number, call)).collect()
            }
            (_, Action::Patch(patch)) => {
                let call = CustomCall { name: "apply_patch".into(), input: patch.clone(), call_id: None };
                self.items_at(place, &Action::CustomCall(call))
            }
            (_, Action::Shell(shell)) => one(self.shell(place, shell)),
            (Protocol::Responses, Action::Text(text)) => one(responses::message(place, text).into()),
            (Protocol::Responses, Action::Reasoning(reasoning)) => one(responses::reasoning(place, reasoning).into()),
            (Protocol::Responses, Action::CustomCall(call)) => one(responses::custom_call(place, call).into()),
            (Protocol::Responses, Action::Search(search)) => one(responses::search(place, search).into()),
            (Protocol::Responses, Action::Item(item)) => one(responses::item(place, item.get()).into()),
            (Protocol::Messages, Action::Text(text)) => one(messages::text(place, text)),
            (Protocol::Messages, Action::Reasoning(reasoning)) => one(messages::thinking(place, reasoning)),
            (Protocol::Messages, Action::CustomCall(call)) => one(messages::custom_call(place, call)),
            (Protocol::Messages, Action::Search(search)) => messages::search(place, search, request),
            (Protocol::Messages, Action::Item(item)) => one(messages::item(place, item.get())),
            (Protocol::ChatCompletions, Action::Text(text)) => one(chat::text(self, text)),
            (Protocol::ChatCompletions, Action::Reasoning(reasoning)) => one(chat::reasoning(self, reasoning)),
            (Protocol::ChatCompletions, Action::CustomCall(call)) => one(chat::custom_call(self, place, call)),
            (Protocol::ChatCompletions, Action::Search(search)) => one(chat::search(self, place, search)),
            (Protocol::ChatCompletions, Action::Item(item)) => one(chat::item(self, item.get())),
            _ => Vec::new(),
        }
    }

    fn call(&self, place: usize, call: &Call) -> Item {
        match self.request.protocol {
            Protocol::Responses => responses::call(place, call, self.request).into(),
            Protocol::Messages => messages::call(place, call, self.request),
            Protocol::ChatCompletions => chat::call(self, place, call),
        }
    }

    fn shell(&self, place: usize, shell: &Shell) -> Item {
        match self.request.protocol {
            Protocol::Responses => responses::shell(place, shell, self.request).into(),
            Protocol::Messages => messages::shell(place, shell, self.request),
            Protocol::ChatCompletions => chat::shell(self, place, shell),
        }
    }

    /// The last events; `called` says whether one of the items is a call.
    pub(super) fn ended(&self, ending: Ending<'_>, called: bool) -> Vec<String> {
        match (self.request.protocol, ending) {
            (Protocol::Responses, Ending::Complete(complete)) => vec![responses::completed(&self.id, complete)],
            (Protocol::Responses, Ending::Failed(failed)) => vec![responses::failed(&self.id, failed)],
            (Protocol::Responses, Ending::Incomplete(incomplete)) => vec![responses::incomplete(&self.id, incomplete)],
            (Protocol::Messages, ending) => messages::ended(ending, called),
            (Protocol::ChatCompletions, ending) => chat::ended(self, ending, called),
        }
    }

    /// The answer as one text, which the Responses API is never asked for; an error when it failed.
    pub(super) fn whole(&self, ending: Ending<'_>, items: &[Item]) -> Result<String, String> {
        match self.request.protocol {
            Protocol::ChatCompletions => chat::whole(self, ending, items),
            Protocol::Responses | Protocol::Messages => messages::whole(self, ending, items),
        }
    }
}

impl From<Vec<String>> for Item {
    fn from(events: Vec<String>) -> Self {
        Self { events, ..Self::default() }
    }
}
