//! What tests look for in a recorded request, whichever of the APIs it speaks.

use serde_json::Value;

use super::protocol::Protocol;
use super::record::Recorded;
use super::request::{Input, Request};

impl Recorded {
    /// The API that this is a request for a response of the model of.
    #[must_use]
    pub fn protocol(&self) -> Option<Protocol> {
        Protocol::of(&self.path).filter(|_| self.method == "POST")
    }

    /// Whether this is a request for a response of the model.
    #[must_use]
    pub fn asks_the_model(&self) -> bool {
        self.protocol().is_some()
    }

    fn request(&self) -> Request {
        Request::parse(self.protocol().unwrap_or_default(), &self.body)
    }

    /// The model that is asked.
    #[must_use]
    pub fn model(&self) -> String {
        self.request().model
    }

    /// The key of the provider, however it is sent.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        let bearer = self.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        bearer.or_else(|| self.header("x-api-key"))
    }

    /// The texts that stand above the conversation, joined by line breaks.
    #[must_use]
    pub fn instructions(&self) -> String {
        self.request().instructions.join("\n")
    }

    /// What users wrote, in order, without what the Harness writes in their place.
    #[must_use]
    pub fn user_texts(&self) -> Vec<String> {
        let written = |input| if let Input::User(text) = input { Some(text) } else { None };
        self.request().inputs.into_iter().filter_map(written).collect()
    }

    /// The texts and the addresses of images in the newest message of a user, without what the Harness adds to it.
    #[must_use]
    pub fn newest_input(&self) -> Vec<String> {
        let body = self.json();
        match self.protocol().unwrap_or_default() {
            Protocol::Responses => super::request::responses::newest_input(&body),
            Protocol::Messages => super::request::messages::newest_input(&body),
            Protocol::ChatCompletions => super::request::chat::newest_input(&body),
        }
    }

    /// The conversation, item by item, without what the Harness adds to it for this request alone.
    #[must_use]
    pub fn conversation(&self) -> Vec<Value> {
        let body = self.json();
        match self.protocol().unwrap_or_default() {
            Protocol::Responses => body["input"].as_array().cloned().unwrap_or_default(),
            Protocol::Messages => super::request::messages::conversation(&body),
            Protocol::ChatCompletions => super::request::chat::conversation(&body),
        }
    }

    /// What the model reads as the output of a call: a text, or a list of parts, which are named as in the Responses API.
    /// The last one counts.
    #[must_use]
    pub fn output(&self, call_id: &str) -> Option<Value> {
        self.output_of(call_id).map(|(content, _)| content)
    }

    /// Whether the model is told by a mark of its own that a call failed; only the Messages API has one.
    #[must_use]
    pub fn output_failed(&self, call_id: &str) -> Option<bool> {
        self.output_of(call_id).map(|(_, failed)| failed)
    }

    fn output_of(&self, wanted: &str) -> Option<(Value, bool)> {
        self.request().inputs.into_iter().rev().find_map(|input| match input {
            Input::Output { call_id, content, failed } if call_id == wanted => Some((content, failed)),
            _ => None,
        })
    }

    /// The names of the tools on offer: functions of the application and tools of the Harness by their own name, those of
    /// other servers as `server.name`.
    #[must_use]
    pub fn tools(&self) -> Vec<String> {
        self.request().tools.iter().map(super::request::Tool::full_name).collect()
    }

    /// The parameters of a tool on offer, as the model sees them.
    #[must_use]
    pub fn schema(&self, tool: &str) -> Option<Value> {
        self.request().tool(tool).map(|tool| tool.parameters.clone())
    }

    /// The description of a tool on offer.
    #[must_use]
    pub fn description(&self, tool: &str) -> Option<String> {
        self.request().tool(tool).map(|tool| tool.description.clone())
    }

    /// Whether a tool on offer is hidden from the model until it was searched for.
    #[must_use]
    pub fn is_deferred(&self, tool: &str) -> Option<bool> {
        self.request().tool(tool).map(|tool| tool.deferred)
    }

    /// The names of tools that the model knows of by their names alone, and has to search for.
    #[must_use]
    pub fn announced(&self) -> Vec<String> {
        self.request().announced
    }

    /// The schema that the answer is to fit.
    #[must_use]
    pub fn output_schema(&self) -> Option<Value> {
        self.request().schema
    }
}
