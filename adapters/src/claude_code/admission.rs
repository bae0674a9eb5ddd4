//! Checks a configuration against what Claude Code takes, before any native effect (R-PRE-1). The first thing that does not fit is the answer.

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::value::RawValue;

use super::{declaration, mcp, schema};
use crate::{
    admission::{self, Native, Taker, built::Built, refused},
    harness::{Configuration, Declaration, FunctionTool, Isolation, NotAdmitted, Placement, Proved, Settings},
    json::{self, Flaw, Numbers, Taken},
    probe::Found,
};

/// What a schema may be. Claude Code reads any depth, and its numbers pass through binary64.
const SCHEMA: Taken = Taken { depth: 128, numbers: Numbers::Binary64 };

/// Native settings that a configuration may carry (R-PRE-6).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NativeSettings {
    /// Replaces Claude Code's own system prompt.
    pub(super) system_prompt: Option<String>,
}

/// What only this adapter minds.
const NATIVE: Native =
    Native { tools: native_tools, format: native_format, settings: |text| harness_config(text).map(drop) };

/// What `Admit` judges by, without Claude Code.
pub(crate) fn built() -> Built {
    let settings = Settings::new(PathBuf::new(), Isolation::Outer);
    Built {
        kind: super::KIND,
        limits: declaration::declare(&settings, Found { program: None, version: None, trouble: None }).limits,
        protocols: &["messages"],
        capabilities: |placement| Proved::ever(declaration::PROVED, placement),
        native: NATIVE,
    }
}

/// Checks a whole configuration against what is declared for its placement (R-CAP-6).
pub(super) fn check(declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
    if declaration.isolation == Isolation::Native && configuration.placement != Placement::None {
        return Err(refused(
            "placement",
            "claude_code has no sandbox of its own, so it is not run on a workspace; set isolation = \"outer\" where the container or \
             machine around the bridge isolates it",
        ));
    }
    let taker = Taker::declared(declaration, &configuration.placement);
    admission::declared(&taker, NATIVE, configuration)?;
    admission::selection(&taker, configuration)?;
    model(&configuration.model)
}

fn native_tools(configuration: &Configuration) -> Result<(), NotAdmitted> {
    mcp::labels(&configuration.mcp_servers)?;
    let mut names = BTreeMap::new();
    for (index, function) in configuration.functions.iter().enumerate() {
        name(index, &function.name, &mut names)?;
        let named = |refused: NotAdmitted| NotAdmitted {
            message: format!("{} (of the function {})", refused.message, function.name),
            ..refused
        };
        description(index, function).map_err(named)?;
        parameters(index, &function.parameters).map_err(named)?;
    }
    for (index, server) in configuration.mcp_servers.iter().enumerate() {
        let allowed = server.allowed_tools.iter().flatten().map(String::as_str);
        admission::alike(super::KIND, allowed, mcp::spelled, |which| {
            format!("tools.mcp_servers[{index}].allowed_tools[{which}]")
        })?;
    }
    Ok(())
}

fn native_format(configuration: &Configuration) -> Result<(), NotAdmitted> {
    configuration.controls.output_schema.as_deref().map_or(Ok(()), |schema| output_schema(schema).map(drop))
}

/// Names that Claude Code replaces by that of another model, whatever the provider has under them.
const ALIASES: [&str; 7] = ["best", "default", "fable", "haiku", "opus", "opusplan", "sonnet"];
/// What it cuts from the end of a name.
const LONG_CONTEXT: &str = "[1m]";

/// Checks the name of the model: no other one is asked for in its place.
fn model(name: &str) -> Result<(), NotAdmitted> {
    let name = name.trim().to_ascii_lowercase();
    if ALIASES.contains(&&*name) {
        return Err(refused(
            "model",
            "is a name that claude_code replaces by that of another model; give the model's own name",
        ));
    }
    if name.ends_with(LONG_CONTEXT) {
        return Err(refused("model", format!("ends with {LONG_CONTEXT}, which claude_code does not hand on")));
    }
    Ok(())
}

/// Checks the schema of final answers; it goes to Claude Code as it is. Whether it is a schema that Claude Code takes, only Claude Code can tell
/// (see [`super::config::schema_check`]).
pub(super) fn output_schema(text: &str) -> Result<Box<RawValue>, NotAdmitted> {
    let schema = admission::output_schema(text, SCHEMA)?;
    let kind = json::members(schema.get()).ok().and_then(|members| {
        let (_, kind) = members.into_iter().find(|(name, _)| name == "type")?;
        serde_json::from_str::<String>(kind.get()).ok()
    });
    match kind.as_deref() {
        Some("object") => Ok(schema),
        _ => Err(refused(admission::OUTPUT_SCHEMA, Flaw::NotAnObject.to_string())),
    }
}

/// Checks the name of a function. `taken` has the names before it.
fn name<'a>(index: usize, name: &'a str, taken: &mut BTreeMap<&'a str, usize>) -> Result<(), NotAdmitted> {
    let field = admission::name(index, name, declaration::NAME_BYTES, declaration::NAME_PATTERN)?;
    if declaration::RESERVED.binary_search(&name).is_ok() {
        return Err(refused(field, format!("is the name of a tool of claude_code ({name})")));
    }
    match taken.insert(name, index) {
        Some(other) => Err(refused(field, format!("is the same as tools.functions[{other}].name"))),
        None => Ok(()),
    }
}

/// Claude Code counts as JavaScript does, and cuts what is longer.
fn description(index: usize, function: &FunctionTool) -> Result<(), NotAdmitted> {
    if function.description.encode_utf16().count() <= declaration::DESCRIPTION {
        return Ok(());
    }
    let message =
        format!("is longer than the {} characters (in UTF-16) that claude_code keeps", declaration::DESCRIPTION);
    Err(refused(format!("tools.functions[{index}].description"), message))
}

/// Checks the parameters of a function, and gives them as Claude Code must be given them.
pub(super) fn parameters(index: usize, text: &str) -> Result<Box<RawValue>, NotAdmitted> {
    let parameters = admission::parameters(index, text, SCHEMA)?;
    let field = || admission::parameters_of(index);
    schema::check(&parameters).map_err(|dropped| refused(field(), dropped.to_string()))?;
    schema::shown(parameters).map_err(|_| refused(field(), "is not JSON"))
}

/// Reads `harness_config`.
pub(super) fn harness_config(text: &str) -> Result<NativeSettings, NotAdmitted> {
    Ok(NativeSettings { system_prompt: admission::harness_config(text, "system_prompt")? })
}

#[cfg(test)]
mod tests;
