//! What opencode is told before it starts: its variables and the files of its home, which one Session has to itself. No file has a secret: the key is named there as a
//! variable.

use std::{collections::BTreeMap, path::Path};

use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

use super::declaration::{CALL_TIMEOUT, QUALIFIED};
use crate::{
    acp::profile::FUNCTIONS,
    harness::{Configuration, Placement, WebSearchMode},
    native::environment::Environment,
};

/// The variable with the key of the model provider, or with what the gateway replaces.
const KEY: &str = "RUNTIME_BRIDGE_MODEL_KEY";
/// The name of the one provider.
const PROVIDER: &str = "bridge";
/// What it would fill in by itself in a text of its configuration: variables and files.
const EXPANSIONS: [&str; 3] = ["{env:", "{file:", "${"];
/// Below the home: where it looks for its configuration.
pub(super) const FOLDER: &str = ".config/opencode";
/// In that folder: the packages of plugins. It is there and empty, which together with [`LOCK`] keeps opencode from installing one from the network at each start.
pub(super) const MODULES: &str = "node_modules";
/// In that folder: that everything is installed.
const LOCK: &str = "package-lock.json";
/// In that folder: the instructions of the Session, which are no secret.
const INSTRUCTIONS: &str = "instructions.md";
/// The most bytes of a tool's output that the model reads: opencode cuts what is longer, also the results of functions. For [`super::declaration::RESULT_CHARACTERS`].
const OUTPUT_BYTES: usize = 300_000;
/// A limit of lines is none: there are fewer bytes.
const OUTPUT_LINES: usize = OUTPUT_BYTES;

/// Variables that every process gets, beside the base and its key. They are what keeps it from the network and from what a project would have it load.
const VARIABLES: [(&str, &str); 12] = [
    ("NO_PROXY", "*"),
    ("OPENCODE_DISABLE_AUTOCOMPACT", "1"),
    ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
    ("OPENCODE_DISABLE_CLAUDE_CODE", "1"),
    ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1"),
    ("OPENCODE_DISABLE_EXTERNAL_SKILLS", "1"),
    ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
    ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
    ("OPENCODE_DISABLE_PROJECT_CONFIG", "1"),
    ("OPENCODE_DISABLE_PRUNE", "1"),
    ("OPENCODE_DISABLE_SHARE", "1"),
    ("OPENCODE_PURE", "1"),
];

/// Native tools that are not offered on a workspace: what runs agents, asks a person, or searches by a service of somebody else.
const DENIED: [&str; 7] = ["codesearch", "plan_enter", "plan_exit", "question", "skill", "task", "websearch"];
/// And the one that reads from the web.
const WEB_FETCH: &str = "webfetch";

/// A file of the configuration's folder, and its text.
pub(super) type File = (&'static str, String);

/// A name as opencode spells it in the name of a tool.
pub(super) fn spelled(name: &str) -> String {
    let plain = |one: char| one.is_ascii_alphanumeric() || matches!(one, '_' | '-');
    name.chars().flat_map(|one| std::iter::repeat_n(if plain(one) { one } else { '_' }, one.len_utf16())).collect()
}

/// Whether opencode would put something else in the place of a part of this text.
pub(super) fn is_expanded(text: &str) -> bool {
    EXPANSIONS.iter().any(|expansion| text.contains(expansion))
}

/// The files of the folder. Each is written anew with every start: a resumed conversation follows what they say now (R-PRE-6).
///
/// # Errors
/// What an admission would have refused.
pub(super) fn files(configuration: &Configuration, folder: &Path, has_key: bool) -> Result<[File; 3], String> {
    let limits = configuration.provider.token_limits.ok_or("the token limits of the model are missing")?;
    let instructions = folder.join(INSTRUCTIONS);
    let instructions = instructions.to_str().ok_or("the path of the Session's home is not UTF-8")?;
    for (what, text) in [
        ("the model", &*configuration.model),
        ("the address of the model provider", &configuration.provider.base_url),
        ("the path of the Session's home", instructions),
    ] {
        if is_expanded(text) {
            return Err(format!("{what} has a part that opencode would replace"));
        }
    }
    let model = model_option(&configuration.model);
    let entry = Model {
        name: &configuration.model,
        tool_call: true,
        limit: Limit { context: limits.context(), output: limits.output() },
    };
    let provider = Provider {
        npm: "@ai-sdk/openai-compatible",
        name: "The bridge's provider",
        options: Options {
            base_url: &configuration.provider.base_url,
            api_key: has_key.then(|| format!("{{env:{KEY}}}")),
        },
        models: BTreeMap::from([(&*configuration.model, entry)]),
    };
    let file = Config {
        schema: "https://opencode.ai/config.json",
        autoupdate: false,
        share: "disabled",
        snapshot: false,
        model: &model,
        small_model: &model,
        enabled_providers: [PROVIDER],
        provider: BTreeMap::from([(PROVIDER, provider)]),
        permission: Permissions(permissions(configuration)),
        agent: BTreeMap::from([("title", Agent { disable: true })]),
        instructions: (!configuration.instructions.is_empty()).then_some([instructions]),
        experimental: Experimental { mcp_timeout: CALL_TIMEOUT.as_millis() },
        tool_output: ToolOutput { max_lines: OUTPUT_LINES, max_bytes: OUTPUT_BYTES },
    };
    let text = serde_json::to_string_pretty(&file).map_err(|error| error.to_string())?;
    Ok([("opencode.json", text + "\n"), (INSTRUCTIONS, configuration.instructions.clone()), (LOCK, lock())])
}

/// Says that what opencode would install is there.
fn lock() -> String {
    format!(
        r#"{{"name":"opencode","lockfileVersion":3,"packages":{{"":{{"dependencies":{{"@opencode-ai/plugin":"{QUALIFIED}"}}}}}}}}"#
    ) + "\n"
}

/// What may be used: the last rule that fits a tool counts, and a tool that is denied is not offered (R-CTL-4, R-CTL-5). Nobody is there to be asked, so nothing is a
/// question (R-PLC-1).
fn permissions(configuration: &Configuration) -> Vec<(String, &'static str)> {
    let allow = |label: &str| (format!("{}_*", spelled(label)), "allow");
    let servers = configuration.mcp_servers.iter().map(|server| allow(&server.label));
    let functions = (!configuration.functions.is_empty()).then(|| allow(FUNCTIONS));
    if configuration.placement == Placement::None {
        return [("*".to_owned(), "deny")].into_iter().chain(functions).chain(servers).collect();
    }
    let disabled =
        configuration.controls.web_search.as_ref().is_some_and(|search| search.mode == WebSearchMode::Disabled);
    let denied = DENIED.into_iter().chain(disabled.then_some(WEB_FETCH)).map(|tool| (tool.to_owned(), "deny"));
    // What is declared comes last: a server whose label begins as a tool that is denied keeps its tools.
    [("*".to_owned(), "allow")].into_iter().chain(denied).chain(functions).chain(servers).collect()
}

/// The value of the option that chooses the model.
pub(super) fn model_option(model: &str) -> String {
    format!("{PROVIDER}/{model}")
}

/// The variables of a process (R-SEC-2). All of its folders are below its home, so nothing of the user's own is found.
pub(super) fn environment(home: &Path, temporary: &Path, key: Option<&SecretString>) -> Environment {
    let environment = VARIABLES
        .iter()
        .fold(Environment::base(home, temporary), |environment, (name, value)| environment.set(name, value));
    match key {
        Some(key) => environment.set(KEY, key.expose_secret()),
        None => environment,
    }
}

/// What the bridge sets beside the configuration, as a text that differs when one of it does.
pub(super) fn settings() -> String {
    format!("denied={DENIED:?} output={OUTPUT_BYTES} {VARIABLES:?}")
}

#[derive(Serialize)]
struct Config<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    autoupdate: bool,
    share: &'static str,
    snapshot: bool,
    model: &'a str,
    small_model: &'a str,
    enabled_providers: [&'static str; 1],
    provider: BTreeMap<&'static str, Provider<'a>>,
    permission: Permissions,
    agent: BTreeMap<&'static str, Agent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<[&'a str; 1]>,
    experimental: Experimental,
    tool_output: ToolOutput,
}

/// An object whose members keep their order.
struct Permissions(Vec<(String, &'static str)>);

impl Serialize for Permissions {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(tool, rule)| (tool, rule)))
    }
}

#[derive(Serialize)]
struct Provider<'a> {
    npm: &'static str,
    name: &'static str,
    options: Options<'a>,
    models: BTreeMap<&'a str, Model<'a>>,
}

#[derive(Serialize)]
struct Options<'a> {
    #[serde(rename = "baseURL")]
    base_url: &'a str,
    #[serde(rename = "apiKey", skip_serializing_if = "Option::is_none")]
    api_key: Option<String>,
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
struct Agent {
    disable: bool,
}

#[derive(Serialize)]
struct Experimental {
    mcp_timeout: u128,
}

#[derive(Serialize)]
struct ToolOutput {
    max_lines: usize,
    max_bytes: usize,
}

#[cfg(test)]
mod tests;
