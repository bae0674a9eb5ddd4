//! Configurations with MCP servers, what is seen of their tools, and the variables of the rig's Environment.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _};

use anyhow::Context as _;
use proto::v1::{self, event::Kind, mcp_server::Transport};
use serde_json::{Value, json};

use super::{Observed, Place};
use crate::provider::Recorded;

/// A model that Codex knows nothing of, and offers the tools of servers one by one: those of its catalogue search for them first.
const UNLISTED: &str = "model-of-nobody";

/// A server over HTTP of the Environment, with all of its tools.
#[must_use]
pub fn http_server(label: &str, url: &str) -> v1::McpServer {
    let http = v1::McpHttp { url: url.into(), headers: Vec::new(), bearer: false };
    server(label, Transport::Http(http))
}

/// The same server with the credential `mcp:<label>` in its requests.
#[must_use]
pub fn bearer(mut server: v1::McpServer) -> v1::McpServer {
    if let Some(Transport::Http(http)) = &mut server.transport {
        http.bearer = true;
    }
    server
}

/// A server that is a process in this directory, with all of its tools.
#[must_use]
pub fn stdio_server(label: &str, command: &str, args: &[&str], cwd: &str, env_vars: &[&str]) -> v1::McpServer {
    let owned = |of: &[&str]| of.iter().map(|&one| one.to_owned()).collect();
    let stdio = v1::McpStdio { command: command.into(), args: owned(args), cwd: cwd.into(), env_vars: owned(env_vars) };
    server(label, Transport::Stdio(stdio))
}

fn server(label: &str, transport: Transport) -> v1::McpServer {
    v1::McpServer {
        label: label.into(),
        transport: Some(transport),
        origin: v1::McpOrigin::Environment.into(),
        allowed_tools: None,
        required: false,
    }
}

/// The same configuration with these MCP servers, for a model that is offered their tools one by one; from the service where it has no workspace.
#[must_use]
pub fn served_by(
    servers: impl IntoIterator<Item = v1::McpServer>,
    mut configuration: v1::ExecutionConfiguration,
) -> v1::ExecutionConfiguration {
    let origin = match configuration.placement() {
        v1::Placement::None => v1::McpOrigin::Service,
        v1::Placement::Workspace | v1::Placement::Unspecified => v1::McpOrigin::Environment,
    };
    if configuration.harness == "codex" {
        configuration.model = UNLISTED.into();
    }
    let servers = servers.into_iter().map(|server| v1::McpServer { origin: origin.into(), ..server });
    configuration.tools.get_or_insert_default().mcp_servers.extend(servers);
    configuration
}

/// Steps of the provider: the model calls this tool with these arguments and says one word.
#[must_use]
pub fn calling(tool: &str, arguments: &Value) -> String {
    let call = json!({"name": tool, "call_id": format!("c-{tool}"), "arguments": arguments.to_string()});
    let steps = json!([
        {"after": "user", "play": [{"calls": [call]}]},
        {"after": "outputs", "play": [{"text": {"chunks": ["Heard."]}}]},
    ]);
    steps.to_string()
}

/// The tools of a server that a request to the model offers, by the names that the server gives them, sorted.
#[must_use]
pub fn called_by(request: &Recorded, label: &str) -> Vec<String> {
    let plain = |text: &str| text.replace(|one: char| !one.is_ascii_alphanumeric(), "_");
    let (tools, label) = (request.tools(), plain(label));
    let of_server = tools.iter().filter_map(|tool| tool.rsplit_once('.'));
    let of_server = of_server.filter(|(namespace, _)| plain(namespace).trim_start_matches("mcp__") == label);
    let mut names: Vec<_> = of_server.map(|(_, name)| name.to_owned()).collect();
    names.sort();
    names
}

/// A call of a tool of an MCP server, as events show it.
#[derive(Debug, Clone)]
pub struct McpSeen {
    /// The call as it began.
    pub begun: v1::McpCall,
    /// The call as it ended.
    pub call: v1::McpCall,
    /// How.
    pub status: v1::ToolStatus,
}

impl McpSeen {
    /// The result as JSON; `null` where there is none.
    #[must_use]
    pub fn result(&self) -> Value {
        text(self.call.result.as_ref()).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// The arguments as JSON.
    #[must_use]
    pub fn arguments(&self) -> Value {
        text(self.begun.arguments.as_ref()).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

impl Observed {
    /// Every call of a tool of an MCP server that has begun and ended, in the order of the ends.
    #[must_use]
    pub fn mcp_calls(&self) -> Vec<McpSeen> {
        let mut begun = std::collections::BTreeMap::new();
        let mut seen = Vec::new();
        let mcp = |tool: &Option<v1::Tool>| match tool.as_ref().and_then(|tool| tool.kind.as_ref()) {
            Some(v1::tool::Kind::McpCall(call)) => Some(call.clone()),
            Some(_) | None => None,
        };
        for kind in self.kinds() {
            match kind {
                Kind::ToolStarted(started) => {
                    begun.extend(mcp(&started.tool).map(|call| (started.item_id.clone(), call)));
                }
                Kind::ToolCompleted(ended) => {
                    let both = begun.remove(&ended.item_id).zip(mcp(&ended.tool));
                    seen.extend(both.map(|(begun, call)| McpSeen { begun, call, status: ended.status() }));
                }
                _ => {}
            }
        }
        seen
    }

    /// The texts of notices with this code.
    #[must_use]
    pub fn notices(&self, code: &str) -> Vec<&str> {
        let notices = self.kinds().filter_map(|kind| match kind {
            Kind::Notice(notice) if notice.code == code => Some(notice.message.as_str()),
            _ => None,
        });
        notices.collect()
    }
}

fn text(of: Option<&v1::Content>) -> Option<&str> {
    match of?.place.as_ref()? {
        v1::content::Place::Text(text) => Some(text),
        v1::content::Place::Payload(_) => None,
    }
}

impl Place {
    /// Writes the file with the variables of an Environment, for nobody else to read.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_variables(&self, environment_id: &str, text: &str) -> anyhow::Result<()> {
        let folder = self.state().join("environments");
        fs::create_dir_all(&folder).context("make the folder of the Environments")?;
        let path = folder.join(format!("{environment_id}.env"));
        let file = fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).context("write the variables")
    }
}
