//! opencode, driven through `opencode acp`: one of the agents that an operator can configure. What is its own is here: how it is found and set up, what it takes, and how it
//! says things.

mod admission;
mod config;
mod declaration;
mod profile;
mod start;

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::{
    acp::profile::{Agent, Profile, SetUp},
    harness::{BoxFuture, Configuration, Declaration, Launch, NotAdmitted, PrepareError, Settings},
    probe::{Found, Looks, Run, Sought, beside},
};

pub(super) use admission::built;

/// The npm package that installs it.
const PACKAGE: &str = "opencode-ai";
/// What npm puts on `PATH` is a script of Node that starts the program beside it.
const SOUGHT: Sought = Sought { name: "opencode", package: PACKAGE, launchers: &["bin/opencode"], native };

/// opencode as an agent.
#[derive(Debug)]
pub(crate) struct Opencode {
    /// The program and its arguments, as the operator configured them.
    command: Vec<String>,
    settings: Settings,
    profile: Profile,
    /// What was found last.
    looks: Looks,
}

impl Opencode {
    /// opencode under this kind. Starts nothing.
    pub(crate) fn new(kind: &'static str, command: Vec<String>, settings: Settings) -> Self {
        Self { command, settings, profile: profile::profile(kind), looks: Looks::default() }
    }

    fn program(&self) -> Result<PathBuf, String> {
        let named = self.command.first().map(Path::new).filter(|program| program.is_absolute());
        match (named, self.command.first()) {
            (None, Some(name)) if name != SOUGHT.name => {
                SOUGHT.find(Some(&crate::probe::on_path(name).ok_or_else(|| {
                    format!("no program `{name}` on PATH; install {PACKAGE}, or name the program by its whole path")
                })?))
            }
            (named, _) => SOUGHT.find(named),
        }
    }

    /// What the operator wrote behind the program; `acp` where that is nothing.
    fn arguments(&self) -> Vec<OsString> {
        match self.command.get(1..) {
            None | Some([]) => vec!["acp".into()],
            Some(arguments) => arguments.iter().map(OsString::from).collect(),
        }
    }

    async fn probe(&self, program: PathBuf) -> Found {
        let Settings { keeper, user, limits, .. } = &self.settings;
        let run = Run { keeper, user: user.as_ref(), program: &program, home: "XDG_DATA_HOME", limit: limits.probe };
        match run.version().await {
            Ok(version) => Found { program: Some(program), version: Some(version), trouble: None },
            Err(trouble) => {
                let shown = program.display();
                let trouble = format!("{shown}: {trouble}; install {PACKAGE} again, or name another program");
                Found { program: Some(program), version: None, trouble: Some(trouble) }
            }
        }
    }
}

impl Agent for Opencode {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn built(&self) -> crate::admission::built::Built {
        built(self.profile.kind)
    }

    fn look(&self) -> BoxFuture<'_, Found> {
        Box::pin(self.looks.look(self.program(), |program| self.probe(program)))
    }

    fn declare(&self, settings: &Settings, found: &Found) -> Declaration {
        declaration::declare(self.profile.kind, settings, found)
    }

    fn admit(&self, declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
        admission::check(declaration, configuration)
    }

    fn set_up<'a>(
        &'a self,
        settings: &'a Settings,
        found: &'a Found,
        launch: &'a Launch,
    ) -> BoxFuture<'a, Result<SetUp, PrepareError>> {
        Box::pin(start::set_up(settings, found, launch, self.arguments()))
    }
}

/// The program behind the launcher: its own package, for this machine.
fn native(package: &Path) -> Option<PathBuf> {
    let machine = match env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        _ => return None,
    };
    let name = format!("opencode-linux-{machine}");
    let names = [name.clone(), format!("{name}-baseline"), format!("{name}-musl"), format!("{name}-baseline-musl")];
    let programs = names.iter().flat_map(|name| beside(package, name)).map(|folder| folder.join("bin/opencode"));
    let mut programs = programs.filter(|program| program.is_file());
    programs.next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Isolation;

    #[test]
    fn without_arguments_it_is_told_to_speak_acp() {
        let agent = |command: &[&str]| {
            let settings = Settings::new(PathBuf::from("/keeper"), Isolation::Outer);
            Opencode::new("opencode", command.iter().map(|word| (*word).to_owned()).collect(), settings)
        };
        assert_eq!(agent(&["opencode"]).arguments(), ["acp"]);
        assert_eq!(agent(&["/bin/opencode", "acp", "--print-logs"]).arguments(), ["acp", "--print-logs"]);
        assert!(agent(&["no-such-program-of-this-name"]).program().unwrap_err().contains("install opencode-ai"));
        assert!(agent(&["/nowhere/opencode"]).program().unwrap_err().contains("does not exist"));
    }
}
