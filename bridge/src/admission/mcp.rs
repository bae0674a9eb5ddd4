//! An MCP server as public JSON has it. `headers`, `authorization`, `request_metadata` and `env` may stand beside the transport or in it, not in both.

use adapters::harness::{McpOrigin, McpServer, McpTransport};

use super::{
    Rejection,
    shape::{Findings, Object, Stage, string},
};

const METADATA: &str = "Nonempty MCP request_metadata is not supported yet.";
const AUTHORIZATION: &str = "Inline MCP authorization is not supported; use credential_id.";
const ENV: &str = "Inline MCP env is not supported; declare env_vars and set the values in the Environment.";

/// Members of the entry itself.
const ENTRY: &[&str] = &[
    "type",
    "server_label",
    "transport",
    "connection_origin",
    "credential_id",
    "allowed_tools",
    "required",
    "headers",
    "request_metadata",
    "authorization",
    "env",
];
const HTTP: &[&str] = &["type", "server_url", "headers", "request_metadata", "authorization"];
const STDIO: &[&str] = &["type", "command", "args", "cwd", "env_vars", "env"];

/// A server.
#[derive(Debug)]
pub(super) struct Entry {
    /// What a preparation takes.
    pub(super) server: McpServer,
    /// The credential of the Vault that is named.
    pub(super) credential_id: Option<String>,
    /// Why it cannot be run, by its text alone.
    pub(super) unsupported: Option<Rejection>,
    /// Members that were not there: name, and what it is then.
    pub(super) defaulted: Vec<(&'static str, &'static str)>,
    /// Path of its headers.
    pub(super) headers_at: String,
}

/// Reads an entry.
pub(super) fn read(entry: &Object<'_>, findings: &mut Findings) -> Entry {
    entry.only(ENTRY, findings);
    let label = entry.required_string("server_label", findings);
    let text = entry.required("transport", findings).unwrap_or("{}");
    let inner = Object::read(entry.path("transport"), text, findings);
    let kind = match entry.get("transport") {
        Some(_) => inner.required_string("type", findings),
        None => String::new(),
    };
    let mut unsupported = None;
    let mut refuse = |rejection: Rejection| {
        unsupported.get_or_insert(rejection);
    };
    let mut defaulted = Vec::new();
    let both = Both { entry, inner: &inner };

    let (headers_at, headers) = both.get("headers", findings);
    let headers = headers.map_or_else(Vec::new, |text| {
        let headers = Object::read(headers_at.clone(), text, findings);
        let read: Vec<_> = headers
            .members()
            .map(|(name, text)| (name, string(&format!("{headers_at}{}", super::json::member(name)), text, findings)))
            .collect();
        read.into_iter().map(|(name, value)| (name.to_owned(), value.unwrap_or_default())).collect()
    });
    let (at, text) = both.get("request_metadata", findings);
    if text.is_some_and(|text| Object::read(at.clone(), text, findings).members().next().is_some()) {
        refuse(Rejection::exactly(&at, METADATA));
    }
    let (at, text) = both.get("authorization", findings);
    if text.is_some() {
        refuse(Rejection::exactly(&at, AUTHORIZATION));
    }
    let (at, text) = both.get("env", findings);
    if text.is_some_and(|text| Object::read(at.clone(), text, findings).members().next().is_some()) {
        match &*kind {
            "stdio" => refuse(Rejection::exactly(&at, ENV)),
            _ => refuse(Rejection::unsupported(&at, "must not be there: only a process has an environment")),
        }
    }
    let credential_id = entry.string("credential_id", findings);
    if credential_id.as_deref() == Some("") {
        refuse(Rejection::unsupported(&entry.path("credential_id"), "must not be empty; null is no credential"));
    }
    let (transport, usual) = match &*kind {
        "http" => {
            inner.only(HTTP, findings);
            let url = inner.required_string("server_url", findings);
            let bearer = credential_id.is_some();
            (McpTransport::Http { url, headers, bearer }, "service")
        }
        "stdio" => {
            inner.only(STDIO, findings);
            if credential_id.is_some() {
                let path = entry.path("credential_id");
                refuse(Rejection::unsupported(&path, "must not be there: a process is given no credential"));
            }
            if !headers.is_empty() {
                refuse(Rejection::unsupported(&headers_at, "must not be there: only an http server has headers"));
            }
            let transport = McpTransport::Stdio {
                command: inner.required_string("command", findings),
                args: inner.strings("args", findings).unwrap_or_default(),
                cwd: inner.required_string("cwd", findings),
                env_vars: inner.strings("env_vars", findings).unwrap_or_default(),
            };
            (transport, "environment")
        }
        _ => {
            refuse(Rejection::unsupported(&inner.path("type"), "must be http or stdio"));
            (McpTransport::Http { url: String::new(), headers, bearer: false }, "service")
        }
    };
    let origin = entry.word("connection_origin", &["service", "environment"], findings);
    if entry.given("connection_origin").is_none() {
        defaulted.push(("connection_origin", usual));
    }
    let origin = match origin.unwrap_or(usual) {
        "environment" => McpOrigin::Environment,
        _ => McpOrigin::Service,
    };
    let allowed_tools = entry.strings("allowed_tools", findings);
    if allowed_tools.is_none() {
        defaulted.push(("allowed_tools", "null, which allows every tool"));
    }
    let required = entry.boolean("required", findings);
    if required.is_none() {
        defaulted.push(("required", "false"));
    }
    let server = McpServer { label, transport, origin, allowed_tools, required: required.unwrap_or(false) };
    Entry { server, credential_id, unsupported, defaulted, headers_at }
}

/// The two places of some members.
struct Both<'o, 'a> {
    entry: &'o Object<'a>,
    inner: &'o Object<'a>,
}

impl<'a> Both<'_, 'a> {
    /// The path and the text of a member that is not null.
    fn get(&self, name: &str, findings: &mut Findings) -> (String, Option<&'a str>) {
        match (self.entry.given(name), self.inner.given(name)) {
            (Some(_), Some(text)) => {
                let at = self.inner.path(name);
                findings.find(Stage::Value, &at, || format!("must not be there: {} is", self.entry.path(name)));
                (at, Some(text))
            }
            (None, Some(text)) => (self.inner.path(name), Some(text)),
            (text, None) => (self.entry.path(name), text),
        }
    }
}
