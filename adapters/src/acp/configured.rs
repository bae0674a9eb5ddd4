//! Agents that the operator names in the configuration: `[harness.acp.NAME]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path},
    sync::Arc,
};

use super::{
    generic::{self, Generic},
    opencode::{self, Opencode},
    profile::Agent,
};
use crate::{
    admission::built::Built,
    harness::{ModelProtocol, Settings},
};

/// The longest name.
const NAME_BYTES: usize = 32;
/// Kinds that are built in.
const BUILT: [&str; 3] = ["claude_code", "codex", "minimax_code"];

/// An agent as the operator configures it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// The kind of the Harness: `[a-z][a-z0-9_]{0,31}`, and no kind that is built in.
    pub name: String,
    /// The program, absolute or on `PATH`, and its arguments.
    pub command: Vec<String>,
    /// What is known of it.
    pub profile: Known,
    /// The protocols in which it asks a model provider. Only [`Known::Generic`] is told them; empty is Chat Completions.
    pub protocols: Vec<ModelProtocol>,
    /// Variables of its process, over those that the bridge gives; values with [placeholders](Placeholder). Only for [`Known::Generic`].
    pub environment: BTreeMap<String, String>,
    /// Files of a Session's home by their path in it; texts with placeholders but `{key}`. Only for [`Known::Generic`].
    pub files: BTreeMap<String, String>,
}

/// What is known of a configured agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing but what it says of itself.
    Generic,
    /// It is opencode.
    Opencode,
}

impl Known {
    /// The profile of a name in the configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "generic" => Some(Self::Generic),
            "opencode" => Some(Self::Opencode),
            _ => None,
        }
    }

    /// Its name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::Opencode => "opencode",
        }
    }
}

/// A configured agent that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Misconfigured {
    /// The key below `[harness.acp.NAME]`.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

fn wrong(field: impl Into<String>, message: impl Into<String>) -> Misconfigured {
    Misconfigured { field: field.into(), message: message.into() }
}

/// What the operator may write for what differs between Sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::acp) enum Placeholder {
    /// The base address of the model provider, as a client of its protocol takes it.
    BaseUrl,
    /// The key, or what a gateway replaces. In variables only: no file has a secret.
    Key,
    /// The model.
    Model,
    /// How many tokens it takes; empty where the request does not say.
    Context,
    /// How many of them are its answer; empty where the request does not say.
    Output,
    /// The private folder of the Session's home.
    Home,
    /// The file with the instructions of the Session.
    InstructionsFile,
}

impl Placeholder {
    const NAMES: [(&'static str, Self); 7] = [
        ("base_url", Self::BaseUrl),
        ("key", Self::Key),
        ("model", Self::Model),
        ("context", Self::Context),
        ("output", Self::Output),
        ("home", Self::Home),
        ("instructions_file", Self::InstructionsFile),
    ];

    fn of(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, placeholder)| *placeholder)
    }
}

/// A text with its placeholders filled in. `{name}` is one where the name is lower-case letters and `_`; every other brace stands for itself, so JSON needs no quoting.
///
/// # Errors
/// The name of a placeholder that there is not.
pub(super) fn filled(text: &str, value: impl Fn(Placeholder) -> String) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let name = after
            .split_once('}')
            .filter(|(name, _)| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        rest = match name {
            Some((name, behind)) => {
                out.push_str(&value(Placeholder::of(name).ok_or_else(|| name.to_owned())?));
                behind
            }
            None => {
                out.push('{');
                after
            }
        };
    }
    out.push_str(rest);
    Ok(out)
}

impl Configured {
    /// Checks what can be checked without the program.
    ///
    /// # Errors
    /// The first that does not fit.
    pub fn check(&self) -> Result<(), Misconfigured> {
        let name = self.name.as_bytes();
        let is_name = name.first().is_some_and(u8::is_ascii_lowercase)
            && name.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_')
            && name.len() <= NAME_BYTES;
        if !is_name {
            let message = format!(
                "is not the name of an agent: a small letter, then small letters, digits and _, {NAME_BYTES} at most"
            );
            return Err(wrong("", message));
        }
        if BUILT.contains(&&*self.name) {
            return Err(wrong("", "is the name of a Harness that is built in"));
        }
        let program = self.command.first().filter(|program| !program.is_empty());
        let Some(program) = program else {
            return Err(wrong("command", "must name a program, and then its arguments"));
        };
        if program.contains('/') && !program.starts_with('/') {
            return Err(wrong("command[0]", "must be an absolute path, or a name on PATH"));
        }
        if let Some(index) = self.command.iter().position(|word| word.contains('\0')) {
            return Err(wrong(format!("command[{index}]"), "must not have NUL"));
        }
        if self.profile != Known::Generic {
            let own = format!("is set by the profile `{}`; leave it out", self.profile.name());
            for (field, is_there) in [
                ("protocols", !self.protocols.is_empty()),
                ("environment", !self.environment.is_empty()),
                ("files", !self.files.is_empty()),
            ] {
                if is_there {
                    return Err(wrong(field, own));
                }
            }
        }
        self.environment.iter().try_for_each(|(name, text)| variable(name, text))?;
        let mut taken = BTreeSet::new();
        self.files.iter().try_for_each(|(path, text)| file(path, text, &mut taken))?;
        if self.profile == Known::Generic {
            // Without them it would ask another provider, or another model, than the one that is meant.
            for (name, placeholder) in [("base_url", Placeholder::BaseUrl), ("model", Placeholder::Model)] {
                if !self.uses(placeholder) {
                    return Err(wrong("environment", format!("must have {{{name}}} in a variable or a file")));
                }
            }
        }
        Ok(())
    }

    /// Whether a placeholder stands in a variable or a file.
    pub(super) fn uses(&self, sought: Placeholder) -> bool {
        let is_used = std::cell::Cell::new(false);
        for text in self.environment.values().chain(self.files.values()) {
            let _ = filled(text, |placeholder| {
                is_used.set(is_used.get() || placeholder == sought);
                String::new()
            });
        }
        is_used.get()
    }

    /// The agent, for a person.
    pub(super) fn shown(&self) -> String {
        format!("harness.acp.{}", self.name)
    }

    /// What `Admit` judges by, under the kind that its Harness has.
    #[must_use]
    pub fn built(&self, kind: &'static str) -> Built {
        match self.profile {
            Known::Generic => generic::built(kind, self),
            Known::Opencode => opencode::built(kind),
        }
    }

    /// The kind of the Harness. It is leaked: there are as many as the operator names, they are made once, at the start, and they are named as long as the daemon lives.
    fn kind(&self) -> &'static str {
        Box::leak(self.name.clone().into_boxed_str())
    }

    /// The agent. Starts nothing.
    pub(crate) fn agent(self, settings: Settings) -> Arc<dyn Agent> {
        let kind = self.kind();
        match self.profile {
            Known::Generic => Arc::new(Generic::new(kind, self, settings)),
            Known::Opencode => Arc::new(Opencode::new(kind, self.command, settings)),
        }
    }
}

fn variable(name: &str, text: &str) -> Result<(), Misconfigured> {
    let field = || format!("environment.{name}");
    if name.is_empty() || name.bytes().any(|byte| matches!(byte, 0 | b'=')) || text.contains('\0') {
        return Err(wrong(field(), "is no variable that a process can have"));
    }
    if matches!(name, "HOME" | "TMPDIR") || name.starts_with("RUNTIME_BRIDGE_") {
        return Err(wrong(field(), "is set by the bridge"));
    }
    placed(text, true).map_err(|message| wrong(field(), message))
}

fn file<'a>(path: &'a str, text: &str, taken: &mut BTreeSet<&'a Path>) -> Result<(), Misconfigured> {
    let field = || format!("files.{path}");
    let below = Path::new(path);
    let is_plain = !path.is_empty()
        && !path.contains('\0')
        && below.components().all(|part| matches!(part, Component::Normal(_)))
        && below.components().map(|part| part.as_os_str()).collect::<std::path::PathBuf>().as_os_str() == path;
    if !is_plain {
        return Err(wrong(field(), "must be a path below the home, without `.`, `..` and empty parts"));
    }
    if taken.iter().any(|other| below.starts_with(other) || other.starts_with(below)) {
        return Err(wrong(field(), "is below another file, which cannot be a folder"));
    }
    taken.insert(below);
    placed(text, false).map_err(|message| wrong(field(), message))
}

fn placed(text: &str, takes_key: bool) -> Result<(), String> {
    let has_key = std::cell::Cell::new(false);
    filled(text, |placeholder| {
        has_key.set(has_key.get() || placeholder == Placeholder::Key);
        String::new()
    })
    .map_err(|name| {
        let known: Vec<_> = Placeholder::NAMES.iter().map(|(name, _)| format!("{{{name}}}")).collect();
        format!("has the placeholder {{{name}}}, which there is not; there are {}", known.join(", "))
    })?;
    match has_key.get() && !takes_key {
        true => Err("must not have {key}, which is for variables only: no file has a secret".to_owned()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
