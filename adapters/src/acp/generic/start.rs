//! The home of a Session, or of a probe: the files and variables of the operator with what differs filled in. Nothing is started here.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use secrecy::{ExposeSecret as _, SecretString};

use super::admission::is_plain;
use crate::{
    acp::{
        configured::{Configured, Placeholder, filled},
        profile::SetUp,
    },
    harness::{Configuration, Launch, Placement, PrepareError, Settings, TokenLimits},
    native::{
        environment::Environment,
        user::{self, User},
    },
    owner::{start, unstarted},
    probe::Found,
};

/// The file of the instructions.
const INSTRUCTIONS: &str = "instructions.md";

/// What is filled in.
pub(super) struct Values<'a> {
    pub(super) base_url: &'a str,
    pub(super) model: &'a str,
    pub(super) limits: Option<TokenLimits>,
    pub(super) instructions: &'a str,
    /// An absolute path of UTF-8.
    pub(super) home: &'a str,
}

impl<'a> Values<'a> {
    fn of(configuration: &'a Configuration, home: &'a str) -> Self {
        Self {
            base_url: &configuration.provider.base_url,
            model: &configuration.model,
            limits: configuration.provider.token_limits,
            instructions: &configuration.instructions,
            home,
        }
    }

    fn fill(&self, text: &str, key: Option<&SecretString>) -> Result<String, String> {
        let number = |limit: Option<u64>| limit.map(|limit| limit.to_string()).unwrap_or_default();
        let value = |placeholder| match placeholder {
            Placeholder::BaseUrl => self.base_url.to_owned(),
            Placeholder::Key => key.map(|key| key.expose_secret().to_owned()).unwrap_or_default(),
            Placeholder::Model => self.model.to_owned(),
            Placeholder::Context => number(self.limits.map(TokenLimits::context)),
            Placeholder::Output => number(self.limits.map(TokenLimits::output)),
            Placeholder::Home => self.home.to_owned(),
            Placeholder::InstructionsFile => format!("{}/{INSTRUCTIONS}", self.home),
        };
        filled(text, value).map_err(|name| format!("there is no placeholder {{{name}}}"))
    }

    /// The files by their paths in the home. None has the key.
    fn files(&self, configured: &Configured) -> Result<Vec<(PathBuf, String)>, String> {
        let own = configured.files.iter().map(|(path, text)| Ok((PathBuf::from(path), self.fill(text, None)?)));
        let instructions = Ok((PathBuf::from(INSTRUCTIONS), self.instructions.to_owned()));
        own.chain([instructions]).collect()
    }

    /// All variables of the process (R-SEC-2).
    pub(super) fn environment(
        &self,
        configured: &Configured,
        temporary: &Path,
        key: Option<&SecretString>,
    ) -> Result<Environment, String> {
        let base = Environment::base(Path::new(self.home), temporary);
        configured
            .environment
            .iter()
            .try_fold(base, |environment, (name, text)| Ok(environment.set(name, self.fill(text, key)?)))
    }
}

/// Writes the files, and the folders that they are in.
pub(super) fn write(configured: &Configured, values: &Values<'_>, user: Option<&User>) -> Result<(), String> {
    let home = Path::new(values.home);
    let files = values.files(configured)?;
    let written = || -> io::Result<()> {
        user::make_own(home, user)?;
        files.iter().try_for_each(|(path, text)| user::write_below(home, path, text, user))
    };
    written().map_err(|error| format!("write its home: {error}"))
}

/// What stands behind the program.
pub(super) fn arguments(configured: &Configured) -> Vec<OsString> {
    configured.command.iter().skip(1).map(OsString::from).collect()
}

/// What it loads from the workspace is not known, and would have a key or a bearer that it holds (R-PLC-1).
pub(super) fn holds_none(name: &str) -> String {
    format!("{name} is not run on a workspace with a key or a bearer of its own; use the gateway")
}

/// Writes the home and says how the process is started.
pub(super) async fn set_up(
    configured: &Configured,
    settings: &Settings,
    found: &Found,
    launch: &Launch,
) -> Result<SetUp, PrepareError> {
    let wrong = |message: String| unstarted("configuration", message);
    let program = found.program.clone().ok_or_else(|| unstarted("spawn", "no program was found".to_owned()))?;
    let configuration = &*launch.configuration;
    if launch.holds_key || !launch.mcp_bearers.is_empty() {
        return Err(wrong(holds_none(&configured.shown())));
    }
    let Placement::Workspace { directory, .. } = &configuration.placement else {
        return Err(wrong("it runs on a workspace only".to_owned()));
    };
    let directory = launch.workspace.as_deref().unwrap_or(directory);
    start::still_there(directory, settings).await.map_err(|message| unstarted("workspace", message))?;
    let data = launch.home.join("agent");
    let home = data.to_str().filter(|home| is_plain(home));
    let home = home.ok_or_else(|| wrong("the path of the Session's home cannot stand in a file".to_owned()))?;
    let values = Values::of(configuration, home);
    start::make_folders([&*data], settings).await.map_err(|error| wrong(format!("make its home: {error}")))?;
    write(configured, &values, settings.user.as_ref()).map_err(wrong)?;
    let key = launch.model_key.as_ref();
    let environment = values.environment(configured, &launch.temporary, key).map_err(wrong)?;
    Ok(SetUp {
        package: program.parent().map_or_else(|| program.clone(), Path::to_owned),
        program,
        arguments: arguments(configured),
        environment,
        directory: directory.to_owned(),
        // What the operator wrote, before anything is filled in: no secret of the Session.
        settings: format!("{:?} {:?} {:?}", configured.command, configured.environment, configured.files),
        options: Vec::new(),
    })
}
