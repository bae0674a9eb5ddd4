//! The home of a Session, and how its process is started. Nothing is started here.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{config, names, probe};
use crate::{
    acp::profile::{FUNCTIONS, SetUp},
    harness::{Launch, Placement, PrepareError, Settings},
    native::{folder, user},
    owner::{start, unstarted},
};

/// Said of a process that has no key: it fails every request before it makes it.
const NO_KEY: &str = "mcode asks its model provider for nothing without a key; give it the credential `model`";
/// The file in which a project names MCP servers. MiniMax Code starts them by itself, and nothing keeps it from that.
const PROJECT: &str = ".mcp.json";
/// The most of that file that is read.
const PROJECT_BYTES: u64 = 1 << 20;

/// Where MiniMax Code keeps its state within the home of a Session.
pub(super) fn data(home: &Path) -> PathBuf {
    home.join("minimax")
}

/// Writes the home and says how the process is started.
pub(super) async fn set_up(settings: &Settings, launch: &Launch) -> Result<SetUp, PrepareError> {
    let found = probe::find(settings.program.as_deref()).map_err(|trouble| unstarted("spawn", trouble))?;
    let configuration = &*launch.configuration;
    let key = launch.model_key.as_ref().ok_or_else(|| unstarted("configuration", NO_KEY.to_owned()))?;
    let files = config::files(configuration, settings.isolation).map_err(|why| unstarted("configuration", why))?;
    let (data, empty) = (data(&launch.home), launch.home.join("empty"));
    let directory = match &configuration.placement {
        Placement::Workspace { directory, .. } => {
            let directory = launch.workspace.as_deref().unwrap_or(directory);
            project(directory, settings, launch).map_err(|message| unstarted("mcp", message))?;
            directory
        }
        Placement::None => &*empty,
    };
    let written = async {
        start::make_folders([&*data, &*empty], settings).await?;
        files.iter().try_for_each(|(name, text)| user::write_own(&data.join(name), text, settings.user.as_ref()))
    };
    written.await.map_err(|error| unstarted("spawn", format!("write the home of mcode: {error}")))?;
    let environment = config::environment(&data, &launch.temporary, key);
    let package = found.package();
    let (program, script) = match found.node {
        Some(node) => (node, Some(found.mcode.into_os_string())),
        None => (found.mcode, None),
    };
    Ok(SetUp {
        program,
        arguments: script.into_iter().chain(["acp".into()]).collect(),
        environment,
        directory: directory.to_owned(),
        package,
        settings: config::settings(settings.isolation),
        options: vec![("model".to_owned(), config::model_option(&configuration.model))],
    })
}

/// Checks what the project names as servers.
fn project(workspace: &Path, settings: &Settings, launch: &Launch) -> Result<(), String> {
    let text = match folder::small_text(&workspace.join(PROJECT), PROJECT_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("the {PROJECT} of the workspace cannot be read: {error}")),
    };
    let functions = (!launch.configuration.functions.is_empty()).then_some(FUNCTIONS);
    let labels = launch.configuration.mcp_servers.iter().map(|server| &*server.label).chain(functions);
    let holds = launch.holds_key || !launch.mcp_bearers.is_empty();
    judge(&text, holds, settings.trust_workspace, labels)
}

/// A project must not name servers beside a key or a bearer that MiniMax Code holds itself, nor where the operator does not trust it, nor in the place of a declared one
/// (R-PLC-1, R-MCP-2).
fn judge<'a>(text: &str, holds: bool, trusted: bool, labels: impl Iterator<Item = &'a str>) -> Result<(), String> {
    if holds || !trusted {
        let why =
            if holds { "beside a key or a bearer that mcode holds itself" } else { "where trust_workspace is false" };
        return Err(format!(
            "the workspace has a {PROJECT}, and mcode starts what it names; this is refused {why}: remove the file, or use the gateway and \
             trust_workspace = true"
        ));
    }
    let labels: Vec<_> = labels.collect();
    if labels.is_empty() {
        return Ok(());
    }
    let file = serde_json::from_str::<serde_json::Value>(text)
        .map_err(|error| format!("the {PROJECT} of the workspace cannot be read: column {}", error.column()))?;
    let named = file.get("mcpServers").and_then(serde_json::Value::as_object);
    let mut named = named.into_iter().flat_map(serde_json::Map::keys).map(|label| names::spelled(label));
    match named.find(|label| labels.contains(&&**label)) {
        Some(label) => {
            Err(format!("the {PROJECT} of the workspace has a server of the label {label}, which is a declared one"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
