//! Admission: public JSON of an application to what a preparation takes, or to one rejection, always the same one for the same input.
//!
//! First the text (strict JSON), then its shape, then what it means: by itself, under its placement, to its Harness. The last three are the code that a
//! preparation runs ([`combination`](crate::session::combination), [`adapters::admission`]). Pure: nothing here knows the wire, a Session or this machine.

use std::path::PathBuf;

use adapters::{
    admission::built::Built,
    harness::{Controls, FunctionTool, McpServer},
};

mod body;
pub(crate) mod file;
mod json;
mod judge;
mod mcp;
mod projection;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use judge::admit;

/// What the answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To keep an Agent: nothing is said of whether it can be run.
    Save,
    /// To begin a Session.
    Session,
}

/// Public JSON, as the application sent it; what is none was not sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Texts<'a> {
    /// An array of tools.
    pub(crate) tools: Option<&'a [u8]>,
    /// How answers look.
    pub(crate) text: Option<&'a [u8]>,
    /// Effort and summary.
    pub(crate) reasoning: Option<&'a [u8]>,
    /// A word.
    pub(crate) service_tier: Option<&'a [u8]>,
    /// Subagents.
    pub(crate) multi_agent: Option<&'a [u8]>,
}

/// What a Session is to run on.
#[derive(Debug)]
pub(crate) struct Selection {
    /// The Harness.
    pub(crate) built: Built,
    /// The Environment's public type.
    pub(crate) environment: String,
    /// What of the network it reaches; empty where it is not said.
    pub(crate) network: String,
    /// Whether it asks for packages of its system.
    pub(crate) system_packages: bool,
    /// The workspace's directory; empty where it is not known.
    pub(crate) directory: PathBuf,
    /// Whether the Session brings a provider of its own, where that is said.
    pub(crate) own_provider: Option<bool>,
    /// What the provider speaks, where that is said.
    pub(crate) protocol: Option<String>,
    /// Whether the token limits of the model are told.
    pub(crate) token_limits: bool,
    /// Native settings.
    pub(crate) harness_config: String,
}

/// What is admitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// What a preparation takes; none for what is only kept.
    pub(crate) tools: Option<Tools>,
    /// The public JSON with its defaults, one object.
    pub(crate) projection: String,
    /// What was left out and has a value then, with that value, for a person: members of tools and of `text`; those of an MCP transport that are empty then,
    /// and those that stay unset, are not among them.
    pub(crate) defaulted: Vec<String>,
}

/// What a preparation takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tools {
    pub(crate) functions: Vec<FunctionTool>,
    pub(crate) tool_search: bool,
    pub(crate) mcp_servers: Vec<McpServer>,
    pub(crate) controls: Controls,
}

/// What the public API answers instead.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Rejection {
    /// Always 400 so far.
    pub(crate) http_status: u16,
    /// The public code.
    pub(crate) code: &'static str,
    /// JSON path of the field at fault; none where the answer names none.
    pub(crate) param: Option<String>,
    /// For a person: the path, what is wrong, and what is allowed.
    pub(crate) message: String,
}

impl Rejection {
    /// The request is no request.
    fn request(path: &str, message: &str) -> Self {
        Self {
            http_status: 400,
            code: "invalid_request_error",
            param: Some(path.to_owned()),
            message: format!("{path}: {message}"),
        }
    }

    /// The request cannot be run.
    fn unsupported(path: &str, message: &str) -> Self {
        Self { code: "unsupported_or_invalid_configuration", ..Self::request(path, message) }
    }

    /// The request cannot be run, in these words.
    fn exactly(path: &str, message: &str) -> Self {
        Self { message: message.to_owned(), ..Self::unsupported(path, message) }
    }
}
