//! A request to a model provider and what streams back, in words that the three dialects share.

mod chat;
mod messages;
mod responses;

use anyhow::Context;
use hyper::Method;
use serde_json::{Value, json};

use super::config::{Api, Custom, Limit};
use super::history::Entry;
use super::http::{self, Answer};

/// A tool on offer.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) schema: Value,
}

/// What a model is asked.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub(super) model: &'a str,
    pub(super) limit: Limit,
    pub(super) system: &'a str,
    pub(super) tools: &'a [Offer],
    pub(super) history: &'a [Entry],
}

/// A piece of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Thought(String),
    Signature(String),
    Text(String),
    /// A block ended: a text behind it is another one.
    Closed,
    /// A call began, under a key of this response.
    Call {
        key: u64,
        id: String,
        name: String,
    },
    Arguments {
        key: u64,
        text: String,
    },
    Usage {
        input: Option<u64>,
        output: Option<u64>,
    },
    /// The response is whole.
    Stopped,
    Failed(String),
}

/// A response under way.
#[derive(Debug)]
pub(super) struct Stream {
    answer: Answer,
    api: Api,
    over: bool,
}

/// Sends the request.
pub(super) async fn ask(custom: &Custom, ask: &Ask<'_>) -> anyhow::Result<Stream> {
    let key = custom.api_key()?;
    let bearer = || ("authorization".to_owned(), format!("Bearer {key}"));
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let (path, mut headers, body) = match custom.api {
        Api::Messages => {
            let headers = vec![header("x-api-key", &key), header("anthropic-version", "2023-06-01")];
            ("/v1/messages", headers, messages::body(ask))
        }
        Api::ChatCompletions => ("/chat/completions", vec![bearer()], chat::body(ask)),
        Api::Responses => ("/responses", vec![bearer()], responses::body(ask)),
    };
    headers.push(header("content-type", "application/json"));
    headers.push(header("accept", "application/json"));
    headers.push(header("user-agent", "minimax-code/0.4.12 (double)"));
    let answer = http::send(Method::POST, &format!("{}{path}", custom.base_url), &headers, body.to_string()).await?;
    if !answer.status.is_success() {
        let status = answer.status.as_u16();
        let body = answer.whole().await.unwrap_or_default();
        let told = serde_json::from_str::<Value>(&body).ok();
        let told = told.and_then(|told| told["error"]["message"].as_str().map(str::to_owned));
        anyhow::bail!("{status} {}", told.unwrap_or(body));
    }
    Ok(Stream { answer, api: custom.api, over: false })
}

impl Stream {
    /// The pieces of the next event, nothing at the end.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<Piece>>> {
        if self.over {
            return Ok(None);
        }
        let Some(data) = self.answer.event().await?.filter(|data| data != "[DONE]") else { return Ok(None) };
        let event: Value = serde_json::from_str(&data).with_context(|| format!("the event {data:.200}"))?;
        let pieces = match self.api {
            Api::Messages => messages::pieces(&event),
            Api::ChatCompletions => chat::pieces(&event),
            Api::Responses => responses::pieces(&event),
        };
        // Behind the last event nothing is waited for; Chat Completions tells the counts behind the reason to stop.
        self.over = self.api != Api::ChatCompletions && pieces.contains(&Piece::Stopped);
        Ok(Some(pieces))
    }
}

/// The arguments of a call as a value; what is no JSON is an empty object.
fn input(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| json!({}))
}

/// The texts of parts of MCP.
fn texts(content: &Value) -> String {
    let parts = content.as_array().into_iter().flatten();
    let text = |part: &Value| match part["type"].as_str() {
        Some("text") => part["text"].as_str().unwrap_or_default().to_owned(),
        kind => format!("[{}]", kind.unwrap_or("nothing")),
    };
    parts.map(text).collect::<Vec<_>>().join("\n")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The text of an error object.
fn failure(error: &Value) -> Piece {
    let told = error["message"].as_str().filter(|told| !told.is_empty()).or(error["code"].as_str());
    Piece::Failed(told.map_or_else(|| error.to_string(), str::to_owned))
}
