//! MCP servers on a thread: what Codex is told of them, and which of them are there (R-PRE-5, R-MCP-2, R-MCP-4).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use secrecy::ExposeSecret as _;
use serde::Serialize;

use super::wire;
use crate::{
    cleaner::Cleaner,
    harness::{Launch, McpServer, McpTransport, Report},
    native::{environment::MARK_VARIABLE, served},
};

/// Where Codex keeps what it got by a login at an MCP server, in its home.
pub(super) const STORED_CREDENTIALS: &str = ".credentials.json";
/// How long a call may take. No limit can be told, and nobody waits for so long (R-FN-8).
const TOOL_TIMEOUT: Duration = Duration::from_hours(365 * 24);
/// Codex's words where a thread does not come about for a server that it requires.
const REQUIRED: &str = "required MCP servers failed to initialize";

/// A server as the configuration of a thread has it; the names are those of the start-up file.
#[derive(Debug, Serialize)]
pub(super) struct Server<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_headers: Option<BTreeMap<&'a str, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<&'a str>,
    /// What the process gets beside a path, a home and a folder for temporary files.
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<BTreeMap<&'a str, &'a str>>,
    /// Absent allows every tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled_tools: Option<&'a [String]>,
    required: bool,
    startup_timeout_sec: f64,
    tool_timeout_sec: f64,
    /// Nobody is there to be asked (R-PLC-1).
    default_tools_approval_mode: &'static str,
}

/// The servers of a launch, by their labels. One that is not there after so long is not waited for.
pub(super) fn of(launch: &Launch, start: Duration) -> BTreeMap<&str, Server<'_>> {
    let servers = launch.configuration.mcp_servers.iter();
    servers.map(|server| (server.label.as_str(), self::server(server, launch, start))).collect()
}

fn server<'a>(of: &'a McpServer, launch: &'a Launch, start: Duration) -> Server<'a> {
    let mut server = Server {
        url: None,
        http_headers: None,
        command: None,
        args: None,
        cwd: None,
        env: None,
        enabled_tools: of.allowed_tools.as_deref(),
        required: of.required,
        startup_timeout_sec: start.as_secs_f64(),
        tool_timeout_sec: TOOL_TIMEOUT.as_secs_f64(),
        default_tools_approval_mode: "approve",
    };
    match &of.transport {
        McpTransport::Http { url, headers, bearer } => {
            let mut all: BTreeMap<_, _> = headers.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
            // Held in memory and written to no file; a variable could be read by what the model runs.
            if let Some(bearer) = launch.mcp_bearers.get(&of.label).filter(|_| *bearer) {
                all.insert("Authorization", format!("Bearer {}", bearer.expose_secret()));
            }
            server.url = Some(url);
            server.http_headers = Some(all);
        }
        McpTransport::Stdio { command, args, cwd, env_vars } => {
            let variables = env_vars.iter().filter_map(|name| Some((name.as_str(), launch.mcp_variables.get(name)?)));
            let mut env: BTreeMap<_, _> = variables.map(|(name, value)| (name, value.expose_secret())).collect();
            // It is ours, whatever it is told (R-SEC-1, R-DUR-2).
            env.insert(MARK_VARIABLE, launch.mark.as_str());
            // What it starts is its own, and may outlive a Turn (R-CAN-2).
            env.insert(served::VARIABLE, &of.label);
            server.command = Some(command);
            server.args = Some(args);
            server.cwd = Some(cwd);
            server.env = Some(env);
        }
    }
    server
}

/// Whether a refusal of a thread is for a server that it requires.
pub(super) fn is_missing_one(refusal: &str) -> bool {
    refusal.contains(REQUIRED)
}

/// A label as Codex has it in the names of tools: labels that are the same there are merged, or hide each other.
fn native(label: &str) -> String {
    label.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '_' }).collect()
}

/// Finds a server of the machine's or the project's own configuration that would be merged with a declared one: it could add headers to it (R-MCP-2). The
/// layers of a project count where it is trusted.
pub(super) fn conflict(servers: &[McpServer], layers: &wire::servers::Layers, trusted: bool) -> Option<String> {
    if trusted && layers.layers.is_empty() {
        let text = "codex does not tell of what its configuration is made, so a project's own MCP servers could be merged with declared ones";
        return Some(text.to_owned());
    }
    let loaded = layers.layers.iter().filter(|layer| trusted || layer.name.kind != "project");
    let mut named = loaded.flat_map(|layer| layer.config.mcp_servers.keys().map(|name| (&layer.name, name)));
    named.find_map(|(layer, name)| {
        let declared = servers.iter().find(|server| native(&server.label) == native(name))?;
        let whose = if layer.kind == "project" { "the project's own configuration" } else { "Codex's configuration of this machine" };
        Some(format!(
            "{whose} has an MCP server `{name}`, which is to Codex the declared one `{}`; give one of them another name",
            declared.label
        ))
    })
}

/// Which of the declared servers are there.
#[derive(Debug, Default)]
pub(super) struct Standings {
    all: BTreeMap<String, Standing>,
    /// Of these it was told in this Turn that they are not there.
    told: BTreeSet<String>,
}

#[derive(Debug)]
enum Standing {
    Starting,
    Ready,
    /// With what Codex says of it.
    Absent(String),
}

impl Standings {
    /// None of them is, so far.
    pub(super) fn new(servers: &[McpServer]) -> Self {
        let all = servers.iter().map(|server| (server.label.clone(), Standing::Starting)).collect();
        Self { all, told: BTreeSet::new() }
    }

    /// A Turn begins.
    pub(super) fn begin(&mut self) {
        self.told.clear();
    }

    /// Takes what is told of a server; true when one that is declared is lost.
    pub(super) fn told(&mut self, notice: wire::servers::StatusNotice) -> bool {
        let Some(standing) = self.all.get_mut(&notice.name) else { return false };
        *standing = match notice.status.as_str() {
            "ready" => {
                self.told.remove(&notice.name);
                Standing::Ready
            }
            "failed" | "cancelled" => Standing::Absent(notice.error.unwrap_or_default()),
            // Of a status that is not known nothing can be said.
            _ => return false,
        };
        matches!(standing, Standing::Absent(_))
    }

    /// Whether it is known of each.
    pub(super) fn are_known(&self) -> bool {
        !self.all.values().any(|standing| matches!(standing, Standing::Starting))
    }

    /// A notice for each that is not there, once in a Turn (R-PRE-5).
    pub(super) fn notices(&mut self, cleaner: &Cleaner) -> Vec<Report> {
        let notices = self.all.iter().filter_map(|(label, standing)| {
            let message = match standing {
                Standing::Ready => return None,
                Standing::Starting => format!("the MCP server `{label}` is not there yet"),
                Standing::Absent(text) => format!("the MCP server `{label}` is not there: {}", cleaner.clean(text)),
            };
            self.told.insert(label.clone()).then_some(Report::Notice { code: "mcp_unavailable", message })
        });
        notices.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::McpOrigin;

    fn declared(label: &str) -> McpServer {
        McpServer {
            label: label.into(),
            transport: McpTransport::Http { url: "https://h".into(), headers: Vec::new(), bearer: false },
            origin: McpOrigin::Service,
            allowed_tools: None,
            required: false,
        }
    }

    #[test]
    fn an_entry_that_would_be_merged_is_found_where_it_is_loaded() {
        let layers = r#"{"config":{},"layers":[
            {"name":{"type":"project","dotCodexFolder":"/w/.codex"},"config":{"mcp_servers":{"a-b":{"url":"http://x"}},"model":"m"},"disabledReason":"x"},
            {"name":{"type":"user"},"config":{}},
            {"name":{"type":"system"},"config":{"mcp_servers":{"house":{}}}}]}"#;
        let layers: wire::servers::Layers = serde_json::from_str(layers).unwrap();
        for (label, trusted, want) in [
            ("a.b", true, Some("the project's own configuration has an MCP server `a-b`")),
            ("a.b", false, None),
            ("a", true, None),
            ("house", false, Some("Codex's configuration of this machine has an MCP server `house`")),
        ] {
            let found = conflict(&[declared(label)], &layers, trusted);
            assert_eq!(found.is_some(), want.is_some(), "{label} {found:?}");
            assert!(found.unwrap_or_default().starts_with(want.unwrap_or_default()));
        }
        let none: wire::servers::Layers = serde_json::from_str(r#"{"config":{},"layers":null}"#).unwrap();
        assert!(conflict(&[declared("a")], &none, true).is_some_and(|text| text.contains("does not tell")));
        assert_eq!(conflict(&[declared("a")], &none, false), None);
    }

    #[test]
    fn who_is_not_there_is_told() {
        let mut standings = Standings::new(&[declared("a"), declared("b"), declared("c")]);
        let notice = |name: &str, status: &str| wire::servers::StatusNotice {
            thread_id: None,
            name: name.into(),
            status: status.into(),
            error: Some("boom at http://h/x".into()),
        };
        assert!(!standings.told(notice("a", "ready")) && !standings.told(notice("c", "starting")));
        assert!(!standings.told(notice("undeclared", "failed")) && !standings.are_known());
        assert!(standings.told(notice("b", "failed")));
        let told = standings.notices(&Cleaner::default());
        let message = |text: &str| Report::Notice { code: "mcp_unavailable", message: text.into() };
        assert_eq!(
            told,
            [
                message("the MCP server `b` is not there: boom at [address]"),
                message("the MCP server `c` is not there yet")
            ]
        );
        assert!(standings.told(notice("c", "cancelled")) && standings.are_known());
        // Each is told once in a Turn, unless it was there meanwhile.
        assert_eq!(standings.notices(&Cleaner::default()), []);
        assert!(standings.told(notice("a", "failed")) && !standings.told(notice("c", "ready")));
        assert!(standings.told(notice("c", "failed")));
        assert_eq!(standings.notices(&Cleaner::default()).len(), 2);
        standings.begin();
        assert_eq!(standings.notices(&Cleaner::default()).len(), 3);
    }
}
