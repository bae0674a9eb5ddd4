//! The home of a Session, and how its process is started. Nothing is started here.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::config;
use crate::{
    acp::profile::SetUp,
    harness::{Launch, Placement, PrepareError, Settings},
    native::user,
    owner::{start, unstarted},
    probe::Found,
};

/// What a project has for opencode. Plugins that it names or has there are loaded into the process of the agent, and nothing keeps opencode from that.
const PROJECT: [&str; 3] = [".opencode", "opencode.json", "opencode.jsonc"];

/// Where opencode keeps its state within the home of a Session.
pub(super) fn data(home: &Path) -> PathBuf {
    home.join("opencode")
}

/// Writes the home and says how the process is started.
pub(super) async fn set_up(
    settings: &Settings,
    found: &Found,
    launch: &Launch,
    arguments: Vec<OsString>,
) -> Result<SetUp, PrepareError> {
    let missing = || unstarted("spawn", "no program was found".to_owned());
    let program = found.program.clone().ok_or_else(missing)?;
    let configuration = &*launch.configuration;
    let (data, empty) = (data(&launch.home), launch.home.join("empty"));
    let folder = Path::new(config::FOLDER);
    let files = config::files(configuration, &data.join(folder), launch.model_key.is_some())
        .map_err(|why| unstarted("configuration", why))?;
    let directory = match &configuration.placement {
        Placement::Workspace { directory, .. } => {
            let directory = launch.workspace.as_deref().unwrap_or(directory);
            start::still_there(directory, settings).await.map_err(|message| unstarted("workspace", message))?;
            project(directory, settings, launch).map_err(|message| unstarted("workspace", message))?;
            directory
        }
        Placement::None => &*empty,
    };
    let written = async {
        start::make_folders([&*data, &*empty], settings).await?;
        let user = settings.user.as_ref();
        user::make_below(&data, &folder.join(config::MODULES), user)?;
        files.iter().try_for_each(|(name, text)| user::write_below(&data, &folder.join(name), text, user))
    };
    written.await.map_err(|error| unstarted("spawn", format!("write the home of opencode: {error}")))?;
    Ok(SetUp {
        package: program.parent().map_or_else(|| program.clone(), Path::to_owned),
        program,
        arguments,
        environment: config::environment(&data, &launch.temporary, launch.model_key.as_ref()),
        directory: directory.to_owned(),
        settings: config::settings(),
        options: vec![("model".to_owned(), config::model_option(&configuration.model))],
    })
}

/// Checks that the project has nothing for opencode where it must not: beside a key or a bearer that opencode holds itself, and where the operator does not trust it
/// (R-PLC-1). It looks from the workspace up to the root of the project, and where there is none, up to the root of all.
fn project(workspace: &Path, settings: &Settings, launch: &Launch) -> Result<(), String> {
    let holds = launch.holds_key || !launch.mcp_bearers.is_empty();
    if settings.trust_workspace && !holds {
        return Ok(());
    }
    let Some(there) = of_project(workspace) else { return Ok(()) };
    let why = if holds { "beside a key or a bearer that opencode holds" } else { "where trust_workspace is false" };
    Err(format!(
        "there is {}, and opencode loads the plugins that it names into its own process; this is refused {why}; remove it, or use the \
         gateway and trust_workspace = true",
        there.display()
    ))
}

/// The first thing for opencode that is in the workspace or above it within its project.
fn of_project(workspace: &Path) -> Option<PathBuf> {
    for folder in workspace.ancestors() {
        let there = PROJECT.iter().map(|name| folder.join(name)).find(|path| path.symlink_metadata().is_ok());
        if there.is_some() || folder.join(".git").symlink_metadata().is_ok() {
            return there;
        }
    }
    None
}

#[cfg(test)]
mod tests;
