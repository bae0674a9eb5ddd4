//! Checks of a configuration that are the same for every Harness: what is declared for its placement, and what no Harness takes (R-PRE-1, R-CAP-6).
//!
//! A preparation is checked against a declaration, and `Admit` against what an adapter is built for ([`built`]): by the same code.

use serde_json::value::RawValue;

use crate::{
    harness::{Capability, Configuration, Controls, Declaration, Limits, ModelProtocol, NotAdmitted, Placement},
    json::{self, Numbers, Taken},
};

pub mod built;
mod controls;
mod mcp;

pub use mcp::{STDIO_DIRECTORY, STDIO_NOWHERE, first_twin, is_alone as mcp_server};
pub(crate) use mcp::{alike, native as mcp_servers};

/// The most bytes of `harness_config` (R-PRE-6).
const HARNESS_CONFIG: usize = 16 << 10;
/// The most levels of `harness_config` (R-PRE-6).
const HARNESS_CONFIG_DEPTH: usize = 32;

/// What a Harness takes under one placement: what is declared for it here, or what its adapter is built for.
#[derive(Debug)]
pub(crate) struct Taker<'a> {
    pub(crate) kind: &'static str,
    pub(crate) limits: &'a Limits,
    pub(crate) capabilities: Vec<Capability>,
}

impl<'a> Taker<'a> {
    /// What is declared for a placement.
    pub(crate) fn declared(declaration: &'a Declaration, placement: &Placement) -> Self {
        let declared = match placement {
            Placement::None => &declaration.none,
            Placement::Workspace { .. } => &declaration.workspace,
        };
        let capabilities = declared.iter().map(|proved| proved.capability()).collect();
        Self { kind: declaration.kind, limits: &declaration.limits, capabilities }
    }

    fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}

/// Checks what parts of a configuration are by themselves, whatever the Harness and the placement.
///
/// # Errors
/// The first that does not fit.
pub fn alone(configuration: &Configuration) -> Result<(), NotAdmitted> {
    for (index, function) in configuration.functions.iter().enumerate() {
        function_name(index, &function.name)?;
    }
    for (index, server) in configuration.mcp_servers.iter().enumerate() {
        mcp_server(index, server)?;
    }
    first_twin(&configuration.mcp_servers).map_or(Ok(()), |(_, refused)| Err(refused))
}

/// Checks what the placement decides, whatever the Harness.
///
/// # Errors
/// The first that does not fit.
pub fn placed(configuration: &Configuration) -> Result<(), NotAdmitted> {
    let mut servers = configuration.mcp_servers.iter().enumerate();
    servers.try_for_each(|(index, server)| mcp::is_placed(index, server, &configuration.placement))
}

/// Checks that a function has a name at all.
///
/// # Errors
/// It is blank.
pub fn function_name(index: usize, name: &str) -> Result<(), NotAdmitted> {
    if name.trim().is_empty() {
        return Err(refused(format!("tools.functions[{index}].name"), "must not be blank"));
    }
    Ok(())
}

/// What only one kind of Harness minds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Native {
    /// Of tools.
    pub(crate) tools: fn(&Configuration) -> Result<(), NotAdmitted>,
    /// Of the format of final answers.
    pub(crate) format: fn(&Configuration) -> Result<(), NotAdmitted>,
    /// Of native settings.
    pub(crate) settings: fn(&str) -> Result<(), NotAdmitted>,
}

/// Checks all but the provider and the model against what is taken under the placement of the configuration: tools, then the format of answers and what
/// else is said of them, then native settings. The order is that of admission.
pub(crate) fn declared(taker: &Taker<'_>, native: Native, configuration: &Configuration) -> Result<(), NotAdmitted> {
    tools(taker, configuration)?;
    (native.tools)(configuration)?;
    format(taker, configuration)?;
    (native.format)(configuration)?;
    answers(taker, &configuration.controls)?;
    (native.settings)(&configuration.harness_config)
}

fn tools(taker: &Taker<'_>, configuration: &Configuration) -> Result<(), NotAdmitted> {
    let kind = taker.kind;
    let has = |capability| taker.has(capability);
    let called = called(&configuration.placement);
    let placement = match configuration.placement {
        Placement::None => Capability::EnvironmentNone,
        Placement::Workspace { .. } => Capability::LocalEnvironment,
    };
    if !has(placement) {
        return Err(refused("placement", format!("{kind} does not support the placement `{called}` here")));
    }
    if !configuration.functions.is_empty() && !has(Capability::FunctionTools) {
        return Err(refused("tools.functions", format!("{kind} takes no functions under the placement `{called}`")));
    }
    if !has(Capability::ToolSearch) {
        let message = || format!("{kind} has no search for functions");
        if configuration.tool_search {
            return Err(refused("tools.tool_search", message()));
        }
        if let Some(index) = configuration.functions.iter().position(|function| function.defer_loading) {
            return Err(refused(format!("tools.functions[{index}].defer_loading"), message()));
        }
    }
    controls::tools(taker, &configuration.controls)?;
    mcp_servers(taker, configuration)
}

fn format(taker: &Taker<'_>, configuration: &Configuration) -> Result<(), NotAdmitted> {
    let kind = taker.kind;
    if configuration.controls.output_schema.is_some() && !taker.has(Capability::StructuredOutput) {
        let message = format!("{kind} does not support it under the placement `{}`", called(&configuration.placement));
        return Err(refused("tools.controls.output_format", message));
    }
    Ok(())
}

fn answers(taker: &Taker<'_>, controls: &Controls) -> Result<(), NotAdmitted> {
    let kind = taker.kind;
    if controls.strict_calls && !taker.has(Capability::StrictCalls) {
        let message = format!(
            "{kind} does not support it here; it needs the credential gateway (the operator's `gateway = true`)"
        );
        return Err(refused("tools.controls.strict_calls", message));
    }
    controls::answers(taker, controls)
}

fn called(placement: &Placement) -> &'static str {
    match placement {
        Placement::None => "none",
        Placement::Workspace { .. } => "workspace",
    }
}

/// Checks the provider and the model.
pub(crate) fn selection(taker: &Taker<'_>, configuration: &Configuration) -> Result<(), NotAdmitted> {
    let protocols = &taker.limits.model_protocols;
    if !protocols.contains(&configuration.provider.protocol) {
        let spoken: Vec<_> = protocols.iter().map(|protocol| called_protocol(*protocol)).collect();
        let message = format!("{} speaks the {} only", taker.kind, spoken.join(" and the "));
        return Err(refused("provider.protocol", message));
    }
    if taker.limits.needs_token_limits && configuration.provider.token_limits.is_none() {
        return Err(needs_token_limits("provider.token_limits", taker.kind));
    }
    if configuration.model.trim().is_empty() {
        return Err(refused("model", "must not be blank"));
    }
    Ok(())
}

/// That a Harness must be told how many tokens its model takes and gives.
fn needs_token_limits(field: &str, kind: &str) -> NotAdmitted {
    refused(field, format!("{kind} needs the token limits of its model"))
}

/// That something needs a capability which is not there.
fn needs(field: impl Into<String>, kind: &str, capability: &str) -> NotAdmitted {
    refused(field, format!("{kind} does not support it here; it needs {capability}"))
}

fn called_protocol(protocol: ModelProtocol) -> &'static str {
    match protocol {
        ModelProtocol::Responses => "Responses API",
        ModelProtocol::Messages => "Messages API",
        ModelProtocol::ChatCompletions => "Chat Completions API",
    }
}

/// Reads `harness_config`, in which a Harness knows one member: a text that takes the place of its own instructions (R-PRE-6).
pub(crate) fn harness_config(text: &str, known: &str) -> Result<Option<String>, NotAdmitted> {
    const FIELD: &str = "harness_config";
    if text.trim().is_empty() {
        return Ok(None);
    }
    if text.len() > HARNESS_CONFIG {
        return Err(refused(FIELD, format!("is longer than {HARNESS_CONFIG} bytes")));
    }
    let flaw = |flaw: json::Flaw| refused(FIELD, flaw.to_string());
    let raw = json::read(text).map_err(flaw)?;
    if !raw.get().starts_with('{') {
        return Err(refused(FIELD, "must be a JSON object"));
    }
    json::walk(&raw, Taken { depth: HARNESS_CONFIG_DEPTH, numbers: Numbers::Integer64 }).map_err(flaw)?;
    let members = json::members(raw.get()).map_err(|_| refused(FIELD, "must be a JSON object"))?;
    let mut replacement = None;
    for (name, value) in members {
        if name != known {
            let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
            return Err(refused(FIELD, format!("has the unknown member {shown}; known is {known}")));
        }
        let text = serde_json::from_str(value.get());
        replacement = Some(text.map_err(|_| refused(format!("{FIELD}.{known}"), "must be a string"))?);
    }
    Ok(replacement)
}

/// Reads `harness_config` for a Harness that knows no member.
pub(crate) fn no_harness_config(kind: &str, text: &str) -> Result<(), NotAdmitted> {
    let field = "harness_config";
    if text.trim().is_empty() {
        return Ok(());
    }
    let raw = json::read(text).map_err(|flaw| refused(field, flaw.to_string()))?;
    match json::members(raw.get()) {
        Ok(members) if members.is_empty() => Ok(()),
        Ok(_) => Err(refused(field, format!("{kind} has no native settings"))),
        Err(_) => Err(refused(field, "must be a JSON object")),
    }
}

/// Checks the parameters of a function.
pub(crate) fn parameters(index: usize, text: &str, taken: Taken) -> Result<Box<RawValue>, NotAdmitted> {
    json::check_parameters(text, taken).map_err(|flaw| refused(parameters_of(index), flaw.to_string()))
}

/// The field of the parameters of a function.
pub(crate) fn parameters_of(index: usize) -> String {
    format!("tools.functions[{index}].parameters")
}

/// The field of the schema of final answers.
pub(crate) const OUTPUT_SCHEMA: &str = "tools.controls.output_format.json_schema.schema";

/// Checks the schema of final answers.
pub(crate) fn output_schema(text: &str, taken: Taken) -> Result<Box<RawValue>, NotAdmitted> {
    json::check_output(text, taken).map_err(|flaw| refused(OUTPUT_SCHEMA, flaw.to_string()))
}

/// Checks what every name of a function must be; gives its field.
pub(crate) fn name(index: usize, name: &str, bytes: usize, pattern: &str) -> Result<String, NotAdmitted> {
    let field = format!("tools.functions[{index}].name");
    function_name(index, name)?;
    if name.len() > bytes {
        return Err(refused(field, format!("is longer than {bytes} bytes")));
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
        return Err(refused(field, format!("must match {pattern}")));
    }
    Ok(field)
}

/// The native rule for names of functions of the Harnesses so far; what [`name`] checks.
pub(crate) const NAME_PATTERN: &str = "^[a-zA-Z0-9_-]+$";

pub(crate) fn refused(field: impl Into<String>, message: impl Into<String>) -> NotAdmitted {
    NotAdmitted { field: field.into(), message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_known_member_is_read_and_nothing_else() {
        let read = |text: &str| harness_config(text, "system_prompt").map_err(|refused| refused.to_string());
        for empty in ["", " \n", "{}"] {
            assert_eq!(read(empty), Ok(None));
        }
        assert_eq!(read(r#"{"system_prompt":"é"}"#), Ok(Some("é".into())));
        for (text, want) in [
            (
                r#"{"base_instructions":"x"}"#,
                "harness_config: has the unknown member base_instructions; known is system_prompt",
            ),
            (r#"{"system_prompt":["x"]}"#, "harness_config.system_prompt: must be a string"),
            ("7", "harness_config: must be a JSON object"),
        ] {
            assert_eq!(read(text), Err(want.into()));
        }
    }
}
