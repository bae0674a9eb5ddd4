//! What MiniMax Code is told before it starts: its variables and the files of its data folder. Everything global in that folder is of one Session, which has it to
//! itself. No file has a secret: the key is named there as a variable.

use std::{collections::BTreeMap, path::Path};

use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

use super::probe::DATA;
use crate::{
    harness::{Configuration, Isolation, ModelProtocol, Placement, WebSearchMode},
    native::environment::Environment,
};

/// The variable with the key of the model provider, or with what the gateway replaces.
const KEY: &str = "RUNTIME_BRIDGE_MODEL_KEY";
/// The name of the one provider; natively reserved are others.
const PROVIDER: &str = "bridge";
/// Variables that every process gets, beside the base, its folders and its key.
const VARIABLES: &[(&str, &str)] = &[("DO_NOT_TRACK", "1"), ("MCODE_DISABLE_TELEMETRY", "1")];

/// The native tools of a workspace, by their ids. One id that MiniMax Code does not know would make the list void, and all of them would be offered. Left out is
/// `website_deploy`, which leaves the workspace, and what controls tasks: `task_query`, `task_output` and `task_stop` come back natively, and none can begin a task.
const TOOLS: [&str; 7] = ["read", "write", "edit", "bash", "grep", "glob", "todowrite"];
/// And the one that reads from the web.
const WEB_FETCH: &str = "web_fetch";

/// A file of the data folder, and its text.
pub(super) type File = (&'static str, String);

/// The files of the data folder. Each is written anew with every start: a resumed conversation follows what they say now (R-PRE-6).
///
/// # Errors
/// What an admission would have refused.
pub(super) fn files(configuration: &Configuration, isolation: Isolation) -> Result<[File; 3], String> {
    let limits = configuration.provider.token_limits.ok_or("the token limits of the model are missing")?;
    let model = Model {
        name: &configuration.model,
        tool_call: true,
        limit: Limit { context: limits.context(), output: limits.output() },
    };
    let provider = Provider {
        name: "The bridge's provider",
        kind: "custom",
        enabled: true,
        api: api(configuration.provider.protocol),
        options: Options { base_url: &configuration.provider.base_url, api_key: format!("${{{KEY}}}") },
        models: BTreeMap::from([(&*configuration.model, model)]),
    };
    let file = Config {
        log_level: "error",
        custom_provider: BTreeMap::from([(PROVIDER, provider)]),
        skills: Skills { external: Switch { enabled: false } },
        ask_user: Switch { enabled: false },
        beta: Beta { browser_use_tooling: false, mcode_tools: false, thread_goal: false },
        agents: Agents {
            default: Agent {
                tools: tools(configuration),
                builtin_tools: [],
                skills: [],
                features: Features { mavis: false, delegation: false, web_search: false },
            },
        },
        permission_mode: permission_mode(isolation),
        sandbox: (isolation == Isolation::Outer).then_some(Switch { enabled: false }),
    };
    let text = serde_json::to_string_pretty(&file).map_err(|error| error.to_string())?;
    Ok([
        ("config.yaml", text + "\n"),
        ("AGENTS.md", configuration.instructions.clone()),
        ("mcp.json", "{\"mcpServers\":{}}\n".to_owned()),
    ])
}

/// The native tools that are offered (R-CTL-4, R-CTL-5). Without a workspace there is none: not even what reads from the web, since it would do so from this machine.
fn tools(configuration: &Configuration) -> Vec<&'static str> {
    if configuration.placement == Placement::None {
        return Vec::new();
    }
    let disabled =
        configuration.controls.web_search.as_ref().is_some_and(|search| search.mode == WebSearchMode::Disabled);
    TOOLS.into_iter().chain((!disabled).then_some(WEB_FETCH)).collect()
}

/// What may be done without a question; nobody is there to be asked (R-PLC-1).
fn permission_mode(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Outer => "bypassPermissions",
        Isolation::Native => "auto",
    }
}

/// The native name of a protocol. Each takes the same base address as a client of that protocol does.
fn api(protocol: ModelProtocol) -> &'static str {
    match protocol {
        ModelProtocol::Messages => "anthropic-messages",
        ModelProtocol::ChatCompletions => "openai-completions",
        ModelProtocol::Responses => "openai-responses",
    }
}

/// The value of the option that chooses the model: provider, model and a variant, which is empty for a provider of one's own.
pub(super) fn model_option(model: &str) -> String {
    format!("m:{}:{}:v:", encoded(&format!("custom_provider:{PROVIDER}")), encoded(model))
}

/// As JavaScript's `encodeURIComponent` does it.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => out.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'!' | b'~' | b'*' | b'\'' | b'(' | b')' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The variables of a process (R-SEC-2). Its home is the data folder, so nothing of the user's own is found.
pub(super) fn environment(data: &Path, temporary: &Path, key: &SecretString) -> Environment {
    let environment = Environment::base(data, temporary).set(DATA, data).set("USERPROFILE", data);
    let environment = VARIABLES.iter().fold(environment, |environment, (name, value)| environment.set(name, value));
    environment.set(KEY, key.expose_secret())
}

/// What the bridge sets beside the configuration, as a text that differs when one of it does.
pub(super) fn settings(isolation: Isolation) -> String {
    format!("{} tools={TOOLS:?} {VARIABLES:?}", permission_mode(isolation))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Config<'a> {
    log_level: &'static str,
    #[serde(rename = "custom_provider")]
    custom_provider: BTreeMap<&'static str, Provider<'a>>,
    skills: Skills,
    ask_user: Switch,
    beta: Beta,
    agents: Agents,
    permission_mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<Switch>,
}

#[derive(Serialize)]
struct Provider<'a> {
    name: &'static str,
    kind: &'static str,
    enabled: bool,
    api: &'static str,
    options: Options<'a>,
    models: BTreeMap<&'a str, Model<'a>>,
}

#[derive(Serialize)]
struct Options<'a> {
    #[serde(rename = "baseURL")]
    base_url: &'a str,
    #[serde(rename = "apiKey")]
    api_key: String,
}

#[derive(Serialize)]
struct Model<'a> {
    name: &'a str,
    tool_call: bool,
    limit: Limit,
}

#[derive(Serialize)]
struct Limit {
    context: u64,
    output: u64,
}

#[derive(Serialize)]
struct Skills {
    external: Switch,
}

#[derive(Serialize)]
struct Switch {
    enabled: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Beta {
    browser_use_tooling: bool,
    mcode_tools: bool,
    thread_goal: bool,
}

#[derive(Serialize)]
struct Agents {
    default: Agent,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Agent {
    tools: Vec<&'static str>,
    builtin_tools: [&'static str; 0],
    skills: [&'static str; 0],
    features: Features,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Features {
    mavis: bool,
    delegation: bool,
    web_search: bool,
}

#[cfg(test)]
mod tests;
