//! Checks of a configuration that are the same for every Harness: what is declared for its placement, and what no Harness takes (R-PRE-1, R-CAP-6).

use serde_json::value::RawValue;

use crate::{
    harness::{Capability, Configuration, Declaration, ModelProtocol, NotAdmitted, Placement, WebSearchMode},
    json::{self, Numbers, Taken},
};

/// The most bytes of `harness_config` (R-PRE-6).
const HARNESS_CONFIG: usize = 16 << 10;
/// The most levels of `harness_config` (R-PRE-6).
const HARNESS_CONFIG_DEPTH: usize = 32;

/// Checks a configuration against what is declared for its placement.
pub(crate) fn declared(declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
    let kind = declaration.kind;
    let has = |capability| declaration.has(&configuration.placement, capability);
    let (placement, called) = match configuration.placement {
        Placement::None => (Capability::EnvironmentNone, "none"),
        Placement::Workspace { .. } => (Capability::LocalEnvironment, "workspace"),
    };
    if !has(placement) {
        return Err(refused("placement", format!("{kind} does not support the placement `{called}` here")));
    }
    if !configuration.functions.is_empty() && !has(Capability::FunctionTools) {
        return Err(refused("tools.functions", format!("{kind} takes no functions under the placement `{called}`")));
    }
    if configuration.controls.output_schema.is_some() && !has(Capability::StructuredOutput) {
        let message = format!("{kind} does not support it under the placement `{called}`");
        return Err(refused("tools.controls.output_format", message));
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
    if configuration.controls.strict_calls && !has(Capability::StrictCalls) {
        let message = format!(
            "{kind} does not support it here; it needs the credential gateway (the operator's `gateway = true`)"
        );
        return Err(refused("tools.controls.strict_calls", message));
    }
    if let Some(search) = &configuration.controls.web_search {
        web_search(kind, declaration.limits.web_search.modes, search.mode)?;
    }
    let protocols = &declaration.limits.model_protocols;
    if !protocols.contains(&configuration.provider.protocol) {
        let spoken: Vec<_> = protocols.iter().map(|protocol| called_protocol(*protocol)).collect();
        return Err(refused("provider.protocol", format!("{kind} speaks the {} only", spoken.join(" and the "))));
    }
    if configuration.model.trim().is_empty() {
        return Err(refused("model", "must not be blank"));
    }
    Ok(())
}

fn web_search(kind: &str, taken: &[WebSearchMode], mode: WebSearchMode) -> Result<(), NotAdmitted> {
    const FIELD: &str = "tools.controls.web_search";
    if taken.is_empty() {
        return Err(refused(FIELD, format!("{kind} takes no mode yet")));
    }
    if !taken.contains(&mode) {
        let names: Vec<_> = taken.iter().map(|mode| called_mode(*mode)).collect();
        let (asked, names) = (called_mode(mode), names.join(" and "));
        return Err(refused(FIELD, format!("{kind} does not take the mode {asked}; it takes {names}")));
    }
    Ok(())
}

fn called_mode(mode: WebSearchMode) -> &'static str {
    match mode {
        WebSearchMode::Disabled => "disabled",
        WebSearchMode::Cached => "cached",
        WebSearchMode::Live => "live",
    }
}

fn called_protocol(protocol: ModelProtocol) -> &'static str {
    match protocol {
        ModelProtocol::Responses => "Responses API",
        ModelProtocol::Messages => "Messages API",
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
    if name.trim().is_empty() {
        return Err(refused(field, "must not be blank"));
    }
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

    #[test]
    fn a_mode_that_is_not_declared_names_those_that_are() {
        let told = |taken: &[WebSearchMode], mode| web_search("x", taken, mode).map_err(|refused| refused.message);
        let both = [WebSearchMode::Disabled, WebSearchMode::Live];
        assert_eq!(told(&both, WebSearchMode::Live), Ok(()));
        assert_eq!(
            told(&both, WebSearchMode::Cached),
            Err("x does not take the mode cached; it takes disabled and live".into())
        );
        assert_eq!(told(&[], WebSearchMode::Live), Err("x takes no mode yet".into()));
    }
}
