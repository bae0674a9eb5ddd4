//! From what was read to what is admitted: each tool by itself, then together, then under the placement, then to the Harness.

use std::path::PathBuf;

use adapters::{
    admission::{self, STDIO_DIRECTORY, STDIO_NOWHERE},
    harness::{Configuration, Controls, McpServer, McpTransport, ModelProtocol, ModelProvider, NotAdmitted, Placement},
};

use super::{
    Admitted, Purpose, Rejection, Selection, Texts, Tools,
    body::{self, Body, Part, Tool},
    projection,
};
use crate::{
    gateway::{Guard, Guards},
    session::{combination, servers},
};

/// Judges public JSON. With no selection it is only kept ([`Purpose::Save`]). `guards` say where the operator lets servers be, and credentials go.
pub(crate) fn admit(texts: &Texts<'_>, selection: Option<&Selection>, guards: &Guards) -> Result<Admitted, Rejection> {
    let purpose = if selection.is_some() { Purpose::Session } else { Purpose::Save };
    let mut body = body::read(texts)?;
    let places = Places::of(&body);
    let tools = tools(&body);
    let public = |refused: NotAdmitted| places.public(&refused);
    alone(&body, &places, &guards.service)?;
    let Some(selection) = selection else {
        let projection = projection::write(&body, purpose);
        return Ok(Admitted { tools: None, projection, defaulted: body.defaulted });
    };

    executed(&body, &tools.mcp_servers, &places)?;
    let configuration = configuration(selection, tools);
    combination::together(&configuration).map_err(public)?;
    environment(selection)?;
    admission::placed(&configuration).map_err(public)?;
    servers::check(&configuration.mcp_servers, guards).map_err(public)?;
    selection.built.admit(&configuration).map_err(public)?;
    if let Some(protocol) = &selection.protocol {
        selection.built.provided(protocol, selection.token_limits).map_err(public)?;
    }
    let projection = projection::write(&body, purpose);
    let Configuration { functions, tool_search, mcp_servers, controls, .. } = configuration;
    let defaulted = std::mem::take(&mut body.defaulted);
    Ok(Admitted { tools: Some(Tools { functions, tool_search, mcp_servers, controls }), projection, defaulted })
}

/// What is judged as a preparation's is.
pub(super) fn configuration(selection: &Selection, tools: Tools) -> Configuration {
    Configuration {
        harness: selection.built.kind.to_owned(),
        placement: placement(selection),
        // Neither is admission's: the first is Core's, the second is judged where it is known in full.
        model: String::new(),
        provider: ModelProvider { protocol: ModelProtocol::Responses, base_url: String::new(), token_limits: None },
        instructions: String::new(),
        harness_config: selection.harness_config.clone(),
        functions: tools.functions,
        tool_search: tools.tool_search,
        mcp_servers: tools.mcp_servers,
        controls: tools.controls,
    }
}

/// What a preparation takes of it.
fn tools(body: &Body<'_>) -> Tools {
    let (mut functions, mut mcp_servers, mut tool_search) = (Vec::new(), Vec::new(), false);
    let mut controls = Controls {
        output_schema: body.format.map(str::to_owned),
        text_verbosity: body.verbosity,
        ..Controls::default()
    };
    for tool in &body.tools {
        match tool {
            Tool::Function(function) => functions.push(function.clone()),
            Tool::Inert(_) => {}
            Tool::Mcp(entry) => mcp_servers.push(entry.server.clone()),
            Tool::Programmatic(enabled) => controls.programmatic_tool_calling = Some(*enabled),
            Tool::Search => tool_search = true,
            Tool::WebSearch(search) => controls.web_search = Some(search.clone()),
        }
    }
    if let Part::Given(reasoning) = &body.reasoning {
        controls.reasoning_effort = reasoning.effort.map(str::to_owned);
        controls.reasoning_summary = reasoning.summary.map(str::to_owned);
    }
    if let Part::Given(tier) = body.service_tier {
        controls.service_tier = Some(tier.to_owned());
    }
    Tools { functions, tool_search, mcp_servers, controls }
}

/// What each tool is by itself, in their order.
fn alone(body: &Body<'_>, places: &Places, guard: &Guard) -> Result<(), Rejection> {
    let public = |refused: NotAdmitted| places.public(&refused);
    let (mut functions, mut servers) = (0, 0);
    for (index, tool) in body.tools.iter().enumerate() {
        match tool {
            Tool::Function(function) => {
                admission::function_name(functions, &function.name).map_err(public)?;
                functions += 1;
            }
            Tool::Mcp(entry) => {
                if let Some(rejection) = &entry.unsupported {
                    return Err(rejection.clone());
                }
                admission::mcp_server(servers, &entry.server).map_err(public)?;
                if let McpTransport::Http { url, bearer: true, .. } = &entry.server.transport
                    && url.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"))
                    && !guard.may_have_bearer(url)
                {
                    let path = format!("tools[{index}].transport.server_url");
                    let message = "must be https: a credential goes nowhere without TLS but to an origin of the operator's `allow_origins`";
                    return Err(Rejection::unsupported(&path, message));
                }
                servers += 1;
            }
            Tool::Inert(_) | Tool::Programmatic(_) | Tool::Search | Tool::WebSearch(_) => {}
        }
    }
    Ok(())
}

/// What of the tools cannot be run whatever each of them is, in their order.
fn executed(body: &Body<'_>, servers: &[McpServer], places: &Places) -> Result<(), Rejection> {
    let mut twin = admission::first_twin(servers);
    let (mut servers, mut scripts) = (0, 0);
    for (index, tool) in body.tools.iter().enumerate() {
        match tool {
            Tool::Inert(_) => {
                return Err(Rejection::unsupported(&format!("tools[{index}].type"), "is executed by no Harness"));
            }
            Tool::Mcp(_) => {
                if let Some((_, refused)) = twin.take_if(|(twin, _)| *twin == servers) {
                    return Err(places.public(&refused));
                }
                servers += 1;
            }
            Tool::Programmatic(_) => {
                scripts += 1;
                if scripts > 1 {
                    let message = "is the second of its type; there may be one";
                    return Err(Rejection::unsupported(&format!("tools[{index}]"), message));
                }
            }
            Tool::Function(_) | Tool::Search | Tool::WebSearch(_) => {}
        }
    }
    Ok(())
}

fn placement(selection: &Selection) -> Placement {
    match &*selection.environment {
        "none" => Placement::None,
        _ => Placement::Workspace { environment_id: String::new(), directory: PathBuf::from(&selection.directory) },
    }
}

/// The rows of the Environment, and who brings the provider.
fn environment(selection: &Selection) -> Result<(), Rejection> {
    if !["none", "openai_hosted", "self_hosted"].contains(&&*selection.environment) {
        return Err(Rejection::unsupported("environment.type", "must be none, openai_hosted or self_hosted"));
    }
    if !["", "enabled"].contains(&&*selection.network) {
        return Err(Rejection::unsupported("environment.network", "must be enabled; it cannot be narrowed here"));
    }
    if selection.system_packages {
        return Err(Rejection::unsupported("environment.packages.system", "must be empty; none is installed here"));
    }
    match (&*selection.environment, selection.own_provider) {
        ("self_hosted", Some(false)) => Err(Rejection {
            code: "model_provider_required",
            ..Rejection::request("model_provider", "must be there: a self-hosted Environment brings no provider")
        }),
        ("none", Some(true)) => Err(Rejection::unsupported(
            "model_provider",
            "must not be there: without an Environment the service has one",
        )),
        _ => Ok(()),
    }
}

/// Where in the document that is which a preparation knows by another name.
struct Places {
    functions: Vec<usize>,
    servers: Vec<(usize, String)>,
    tool_search: Option<usize>,
    web_search: Option<usize>,
    programmatic: Option<usize>,
}

impl Places {
    fn of(body: &Body<'_>) -> Self {
        let at = |wanted: fn(&Tool<'_>) -> bool| body.tools.iter().position(wanted);
        let all = || body.tools.iter().enumerate();
        Self {
            functions: all().filter(|(_, tool)| matches!(tool, Tool::Function(_))).map(|(index, _)| index).collect(),
            servers: all()
                .filter_map(|(index, tool)| match tool {
                    Tool::Mcp(entry) => Some((index, entry.headers_at.clone())),
                    _ => None,
                })
                .collect(),
            tool_search: at(|tool| matches!(tool, Tool::Search)),
            web_search: at(|tool| matches!(tool, Tool::WebSearch(_))),
            programmatic: at(|tool| matches!(tool, Tool::Programmatic(_))),
        }
    }

    /// What is not admitted, in the words of the document.
    fn public(&self, refused: &NotAdmitted) -> Rejection {
        let path = self.path(&refused.field);
        if [STDIO_DIRECTORY, STDIO_NOWHERE].contains(&&*refused.message) {
            return Rejection::exactly(&path, &refused.message);
        }
        let words: Vec<_> = refused
            .message
            .split(' ')
            .map(|word| {
                let bare = word.trim_end_matches([',', ';', ':', '.']);
                match bare.starts_with("tools.") {
                    true => format!("{}{}", self.path(bare), word.get(bare.len()..).unwrap_or_default()),
                    false => word.to_owned(),
                }
            })
            .collect();
        Rejection::unsupported(&path, &words.join(" "))
    }

    fn path(&self, field: &str) -> String {
        let tool = |index: Option<usize>| index.map_or_else(|| "tools".to_owned(), |index| format!("tools[{index}]"));
        if let Some((number, rest)) = numbered(field, "tools.functions[") {
            return format!("{}{rest}", tool(self.functions.get(number).copied()));
        }
        if let Some((number, rest)) = numbered(field, "tools.mcp_servers[") {
            let (index, headers) = self.servers.get(number).cloned().unzip();
            let member = match rest {
                ".label" => ".server_label",
                ".origin" => ".connection_origin",
                ".http" | ".stdio" => ".transport.type",
                ".http.url" => ".transport.server_url",
                ".http.bearer" => ".credential_id",
                rest if rest.starts_with(".http.headers") => return headers.unwrap_or_default(),
                rest => rest,
            };
            let member =
                member.strip_prefix(".stdio").map_or_else(|| member.into(), |rest| format!(".transport{rest}"));
            return format!("{}{member}", tool(index));
        }
        if let Some(rest) = field.strip_prefix("tools.controls.web_search") {
            let member = if rest.is_empty() { ".mode" } else { rest };
            return format!("{}{member}", tool(self.web_search));
        }
        match field {
            "placement" => "environment.type".into(),
            "tools.functions" => "tools".into(),
            "tools.tool_search" if self.tool_search.is_none() => "a tool of the type tool_search".into(),
            "tools.tool_search" => tool(self.tool_search),
            "tools.controls.programmatic_tool_calling" => format!("{}.enabled", tool(self.programmatic)),
            "tools.controls.output_format" => "text.format".into(),
            "tools.controls.output_format.json_schema.schema" => "text.format.schema".into(),
            "tools.controls.text_verbosity" => "text.verbosity".into(),
            "tools.controls.reasoning_effort" => "reasoning.effort".into(),
            "tools.controls.reasoning_summary" => "reasoning.summary".into(),
            "tools.controls.service_tier" => "service_tier".into(),
            field => field.into(),
        }
    }
}

/// The number in a field, and what follows it.
fn numbered<'a>(field: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (number, rest) = field.strip_prefix(prefix)?.split_once(']')?;
    Some((number.parse().ok()?, rest))
}
