//! Checks a configuration against what Codex takes, before any native effect (R-PRE-1). The first thing that does not fit is the answer.

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::value::RawValue;

use super::declaration;
pub(super) use crate::admission::refused;
use crate::{
    admission::{self, Native, Taker, built::Built},
    harness::{Configuration, Declaration, Isolation, NotAdmitted, Proved, Settings},
    json::{Numbers, Taken},
    probe::Found,
};

/// The most levels of objects and arrays in a schema. Codex reads a line with at most 127 and puts four around the schema; it drops a deeper
/// line without an answer.
const SCHEMA_DEPTH: usize = 123;

/// What a schema may be.
const SCHEMA: Taken = Taken { depth: SCHEMA_DEPTH, numbers: Numbers::Integer64 };

/// Native settings that a configuration may carry (R-PRE-6).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NativeSettings {
    /// Replaces Codex's own instructions.
    pub(super) base_instructions: Option<String>,
}

/// What only this adapter minds.
const NATIVE: Native =
    Native { tools: native_tools, format: native_format, settings: |text| harness_config(text).map(drop) };

/// What `Admit` judges by, without Codex.
pub(crate) fn built() -> Built {
    let settings = Settings::new(PathBuf::new(), Isolation::Outer);
    Built {
        kind: super::KIND,
        limits: declaration::declare(&settings, Found { program: None, version: None, trouble: None }).limits,
        protocols: &["responses"],
        capabilities: |placement| Proved::ever(declaration::PROVED, placement),
        native: NATIVE,
    }
}

/// Checks a whole configuration against what is declared for its placement (R-CAP-6).
pub(super) fn check(declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
    let taker = Taker::declared(declaration, &configuration.placement);
    admission::declared(&taker, NATIVE, configuration)?;
    admission::selection(&taker, configuration)
}

fn native_tools(configuration: &Configuration) -> Result<(), NotAdmitted> {
    let mut names = BTreeMap::new();
    for (index, function) in configuration.functions.iter().enumerate() {
        name(index, &function.name, &mut names)?;
        parameters(index, &function.parameters)?;
    }
    let labels = configuration.mcp_servers.iter().map(|server| &*server.label);
    // What the model reads of a label has neither.
    admission::alike(
        super::KIND,
        labels,
        |label| label.replace(['-', '.'], "_"),
        |index| format!("tools.mcp_servers[{index}].label"),
    )
}

fn native_format(configuration: &Configuration) -> Result<(), NotAdmitted> {
    configuration.controls.output_schema.as_deref().map_or(Ok(()), |schema| output_schema(schema).map(drop))
}

/// Checks the schema of final answers; it goes to Codex as it is.
pub(super) fn output_schema(text: &str) -> Result<Box<RawValue>, NotAdmitted> {
    admission::output_schema(text, SCHEMA)
}

/// Checks the name of a function. `taken` has the names before it, spelled as Codex spells them in code mode.
fn name(index: usize, name: &str, taken: &mut BTreeMap<String, usize>) -> Result<(), NotAdmitted> {
    let field = admission::name(index, name, declaration::NAME_BYTES, declaration::NAME_PATTERN)?;
    let spelled = code_mode_name(name);
    if let Some(prefix) = declaration::RESERVED_PREFIXES.iter().find(|prefix| spelled.starts_with(**prefix)) {
        return Err(refused(field, format!("begins with {prefix}, which codex keeps for its own tools")));
    }
    if declaration::RESERVED.binary_search(&spelled.as_str()).is_ok() {
        return Err(refused(field, format!("is the name of a tool of codex ({spelled})")));
    }
    match taken.insert(spelled, index) {
        Some(other) => Err(refused(
            field,
            format!("is the same to codex as tools.functions[{other}].name, which does not tell - from _"),
        )),
        None => Ok(()),
    }
}

/// A name as Codex spells it for scripts: whatever is no identifier becomes `_`. Functions whose names collide then vanish without a word.
fn code_mode_name(name: &str) -> String {
    let mut out: String = name.chars().map(|one| if one == '-' { '_' } else { one }).collect();
    if out.starts_with(|first: char| first.is_ascii_digit()) {
        out.replace_range(..1, "_");
    }
    out
}

/// Checks the parameters of a function; they go to Codex as they are.
pub(super) fn parameters(index: usize, text: &str) -> Result<Box<RawValue>, NotAdmitted> {
    admission::parameters(index, text, SCHEMA)
}

/// Reads `harness_config`.
pub(super) fn harness_config(text: &str) -> Result<NativeSettings, NotAdmitted> {
    Ok(NativeSettings { base_instructions: admission::harness_config(text, "base_instructions")? })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        codex::Settings,
        harness::{Capability, Controls, FunctionTool, ModelProtocol, ModelProvider, Placement},
        probe::Found,
    };

    #[test]
    fn calls_are_held_back_where_there_is_a_gateway() {
        let controls = Controls { strict_calls: true, ..Controls::default() };
        let asked = Configuration { controls, ..configuration() };
        for gateway in [false, true] {
            let settings = Settings { gateway, ..Settings::new(PathBuf::from("/keeper"), Isolation::Outer) };
            let declared = declaration::declare(&settings, Found { program: None, version: None, trouble: None });
            let refused = super::check(&declared, &asked).err().map(|refused| refused.field);
            assert_eq!(refused.as_deref(), (!gateway).then_some("tools.controls.strict_calls"));
        }
    }

    fn configuration() -> Configuration {
        Configuration {
            harness: "codex".into(),
            placement: Placement::Workspace { environment_id: "e".into(), directory: PathBuf::from("/w") },
            model: "gpt-5.5".into(),
            instructions: String::new(),
            provider: ModelProvider {
                protocol: ModelProtocol::Responses,
                base_url: "https://h/v1".into(),
                token_limits: None,
            },
            harness_config: String::new(),
            functions: Vec::new(),
            tool_search: false,
            mcp_servers: Vec::new(),
            controls: Controls::default(),
        }
    }

    fn functions(names: &[&str]) -> Configuration {
        let function = |name: &&str| FunctionTool {
            name: (*name).into(),
            description: String::new(),
            parameters: "{}".into(),
            defer_loading: false,
            silence_timeout: None,
            max_duration: None,
        };
        Configuration { functions: names.iter().map(function).collect(), ..configuration() }
    }

    fn declaration() -> Declaration {
        let settings = Settings::new(PathBuf::from("/keeper"), Isolation::Outer);
        declaration::declare(&settings, Found { program: None, version: None, trouble: None })
    }

    #[track_caller]
    fn check(configuration: &Configuration, want: &str) {
        let got = super::check(&declaration(), configuration)
            .map_or_else(|refused| refused.to_string(), |()| "admitted".into());
        assert_eq!(got, want);
    }

    #[test]
    fn a_plain_configuration_is_admitted() {
        check(&configuration(), "admitted");
        let every_kind = ["lookup", "a-b", "A_1", "mcp_x", "MCP__x", &"x".repeat(128)];
        check(&functions(&every_kind), "admitted");
    }

    #[test]
    fn the_first_thing_that_does_not_fit_is_the_answer() {
        let none = Configuration { placement: Placement::None, model: " ".into(), ..configuration() };
        check(&none, "model: must not be blank");
        check(&Configuration { placement: Placement::None, ..configuration() }, "admitted");
        check(&Configuration { model: " ".into(), ..functions(&[""]) }, "tools.functions[0].name: must not be blank");
    }

    #[test]
    fn what_is_not_declared_for_the_placement_is_refused() {
        let none = Configuration { placement: Placement::None, ..functions(&["a"]) };
        let check = |none_has: &[Proved], want: &str| {
            let declaration = Declaration { none: none_has.to_vec(), ..declaration() };
            let got =
                super::check(&declaration, &none).map_or_else(|refused| refused.to_string(), |()| "admitted".into());
            assert_eq!(got, want);
        };
        let [environment, tools] =
            [Capability::EnvironmentNone, Capability::FunctionTools].map(|capability| Proved::by(capability, "a::b"));
        check(&[], "placement: codex does not support the placement `none` here");
        check(&[environment], "tools.functions: codex takes no functions under the placement `none`");
        check(&[environment, tools], "admitted");

        let controls = Controls { output_schema: Some("{}".into()), ..Controls::default() };
        let asking = Configuration { controls, ..configuration() };
        let local = vec![Proved::by(Capability::LocalEnvironment, "a::b")];
        let cleared = Declaration { workspace: local, ..declaration() };
        let refused = super::check(&cleared, &asking).unwrap_err();
        assert_eq!(refused.field, "tools.controls.output_format");
        assert_eq!(super::check(&cleared, &configuration()), Ok(()));
    }

    #[test]
    fn names_that_codex_refuses_or_loses_are_refused() {
        for (name, want) in [
            ("", "must not be blank"),
            (" ", "must not be blank"),
            ("a.b", "must match ^[a-zA-Z0-9_-]+$"),
            ("é", "must match ^[a-zA-Z0-9_-]+$"),
            ("a\n", "must match ^[a-zA-Z0-9_-]+$"),
            ("mcp__x", "begins with mcp__, which codex keeps for its own tools"),
            ("mcp--x", "begins with mcp__, which codex keeps for its own tools"),
            ("exec", "is the name of a tool of codex (exec)"),
            ("exec-command", "is the name of a tool of codex (exec_command)"),
            ("shell_command", "is the name of a tool of codex (shell_command)"),
        ] {
            check(&functions(&["ok", name]), &format!("tools.functions[1].name: {want}"));
        }
        check(&functions(&[&"x".repeat(129)]), "tools.functions[0].name: is longer than 128 bytes");
    }

    #[test]
    fn names_that_are_one_to_codex_are_refused() {
        let twice = |at: usize| {
            format!(
                "tools.functions[{at}].name: is the same to codex as tools.functions[0].name, which does not tell - from _"
            )
        };
        check(&functions(&["a", "b", "a"]), &twice(2));
        check(&functions(&["a-b", "a_b"]), &twice(1));
        check(&functions(&["1a", "_a"]), &twice(1));
        check(&functions(&["a", "A"]), "admitted");
    }

    #[test]
    fn parameters_are_refused_with_their_field() {
        let mut bad = functions(&["a", "b"]);
        bad.functions[1].parameters = r#"{"x":99999999999999999999}"#.into();
        check(&bad, "tools.functions[1].parameters: has an integer outside of -2^63 to 2^64-1 at $.x");
        bad.functions[0].parameters = "nope".into();
        check(&bad, "tools.functions[0].parameters: is not JSON: line 1, column 2");
    }

    #[test]
    fn native_settings_are_strict() {
        for (text, want) in [
            ("", "admitted"),
            ("{}", "admitted"),
            (r#"{"base_instructions":"Be brief."}"#, "admitted"),
            ("[]", "harness_config: must be a JSON object"),
            ("{", "harness_config: is not JSON: line 1, column 1"),
            (r#"{"base_instructions":7}"#, "harness_config.base_instructions: must be a string"),
            (r#"{"base_instructions":null}"#, "harness_config.base_instructions: must be a string"),
            (
                r#"{"system_prompt":"x"}"#,
                "harness_config: has the unknown member system_prompt; known is base_instructions",
            ),
            (
                r#"{"base_instructions":"a","base_instructions":"b"}"#,
                "harness_config: has a member twice at $.base_instructions",
            ),
        ] {
            check(&Configuration { harness_config: text.into(), ..configuration() }, want);
        }
        let long = format!("{{\"base_instructions\":\"{}\"}}", "x".repeat(16 << 10));
        check(&Configuration { harness_config: long, ..configuration() }, "harness_config: is longer than 16384 bytes");
        let deep = format!("{{\"x\":{}{}}}", "[".repeat(32), "]".repeat(32));
        let deep = Configuration { harness_config: deep, ..configuration() };
        let refused = super::check(&declaration(), &deep).unwrap_err();
        assert!(refused.message.starts_with("is nested deeper than 32 levels"), "{refused}");
        let set = harness_config(r#"{"base_instructions":"é"}"#).unwrap();
        assert_eq!(set.base_instructions.as_deref(), Some("é"));
    }
}
