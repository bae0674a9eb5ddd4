use std::path::PathBuf;

use super::*;
use crate::{
    claude_code::Settings,
    harness::{Controls, ModelProtocol, ModelProvider, WebSearch, WebSearchMode},
    probe::Found,
};

fn configuration() -> Configuration {
    Configuration {
        harness: "claude_code".into(),
        placement: Placement::Workspace { environment_id: "e".into(), directory: PathBuf::from("/w") },
        model: "claude-sonnet-4-5".into(),
        instructions: String::new(),
        provider: ModelProvider { protocol: ModelProtocol::Messages, base_url: "https://h".into(), token_limits: None },
        harness_config: String::new(),
        functions: Vec::new(),
        tool_search: false,
        mcp_servers: Vec::new(),
        controls: Controls::default(),
    }
}

fn function(name: &str) -> FunctionTool {
    FunctionTool {
        name: name.into(),
        description: String::new(),
        parameters: "{}".into(),
        defer_loading: false,
        silence_timeout: None,
        max_duration: None,
    }
}

fn functions(names: &[&str]) -> Configuration {
    Configuration { functions: names.iter().copied().map(function).collect(), ..configuration() }
}

fn declaration(isolation: Isolation) -> Declaration {
    let settings = Settings::new(PathBuf::from("/keeper"), isolation);
    declaration::declare(&settings, Found { program: None, version: None, trouble: None })
}

#[track_caller]
fn check(configuration: &Configuration, want: &str) {
    let got = super::check(&declaration(Isolation::Outer), configuration);
    assert_eq!(got.map_or_else(|refused| refused.to_string(), |()| "admitted".into()), want);
}

#[test]
fn a_plain_configuration_is_admitted() {
    check(&configuration(), "admitted");
    check(&Configuration { placement: Placement::None, ..configuration() }, "admitted");
    check(&functions(&["lookup", "a-b", "a_b", "A_1", "mcp__x", "bash", &"x".repeat(112)]), "admitted");
}

#[test]
fn without_a_sandbox_of_its_own_a_workspace_is_refused_and_the_key_named() {
    let native = declaration(Isolation::Native);
    let refused = super::check(&native, &configuration()).unwrap_err().to_string();
    assert!(refused.starts_with("placement: claude_code has no sandbox of its own"), "{refused}");
    assert!(refused.contains("set isolation = \"outer\""), "{refused}");
    let none = Configuration { placement: Placement::None, ..functions(&["a"]) };
    assert_eq!(super::check(&native, &none), Ok(()));
}

#[test]
fn only_declared_controls_are_taken() {
    let searching = |mode| Configuration {
        controls: Controls { web_search: Some(WebSearch::of(mode)), ..Controls::default() },
        ..configuration()
    };
    check(&searching(WebSearchMode::Disabled), "admitted");
    check(&searching(WebSearchMode::Live), "admitted");
    check(
        &searching(WebSearchMode::Cached),
        "tools.controls.web_search: claude_code does not take the mode cached; it takes disabled and live",
    );
    let provider =
        ModelProvider { protocol: ModelProtocol::Responses, base_url: "https://h".into(), token_limits: None };
    check(
        &Configuration { provider, ..configuration() },
        "provider.protocol: claude_code speaks the Messages API only",
    );
    check(&Configuration { model: " ".into(), ..functions(&[""]) }, "tools.functions[0].name: must not be blank");
    let mut deferred = functions(&["a"]);
    deferred.functions[0].defer_loading = true;
    deferred.tool_search = true;
    check(&deferred, "admitted");
}

#[test]
fn names_that_claude_refuses_or_loses_are_refused() {
    for (name, want) in [
        ("", "must not be blank"),
        (" ", "must not be blank"),
        ("a.b", "must match ^[a-zA-Z0-9_-]+$"),
        ("é", "must match ^[a-zA-Z0-9_-]+$"),
        ("Bash", "is the name of a tool of claude_code (Bash)"),
        ("StructuredOutput", "is the name of a tool of claude_code (StructuredOutput)"),
        ("ToolSearch", "is the name of a tool of claude_code (ToolSearch)"),
        ("ok", "is the same as tools.functions[0].name"),
    ] {
        check(&functions(&["ok", name]), &format!("tools.functions[1].name: {want}"));
    }
    check(&functions(&[&"x".repeat(113)]), "tools.functions[0].name: is longer than 112 bytes");
}

#[test]
fn a_description_that_would_be_cut_is_refused() {
    let described = |text: String| {
        let mut configuration = functions(&["a", "b"]);
        configuration.functions[1].description = text;
        configuration
    };
    let want = "tools.functions[1].description: is longer than the 4096 characters (in UTF-16) that claude_code keeps (of the function b)";
    check(&described("é".repeat(4096)), "admitted");
    check(&described("😀".repeat(2048)), "admitted");
    check(&described("d".repeat(4097)), want);
    check(&described("😀".repeat(2049)), want);
}

#[test]
fn parameters_are_refused_with_their_function() {
    let with = |parameters: &str| {
        let mut configuration = functions(&["a", "b"]);
        configuration.functions[1].parameters = parameters.into();
        configuration
    };
    for taken in ["true", "false", r#"{"type":["object","null"]}"#, r#"{"oneOf":[{}],"maximum":1e25}"#] {
        check(&with(taken), "admitted");
    }
    for (parameters, want) in [
        ("nope", "is not JSON: line 1, column 2"),
        ("null", "must be a JSON object or a boolean"),
        (r#"{"type":"string"}"#, "must have \"object\" as its type at the root"),
        (r#"{"maximum":9007199254740993}"#, "has a number that binary64 would change at $.maximum"),
        (r#"{"a":1,"a":1}"#, "has a member twice at $.a"),
        (r#"{"d":"\ud800"}"#, "has a string that is no Unicode text at $.d"),
        (r#"{"properties":{"a":1}}"#, "claude_code drops it: $.properties.a must be a schema"),
    ] {
        check(&with(parameters), &format!("tools.functions[1].parameters: {want} (of the function b)"));
    }
    let deep = |levels: usize| with(&format!("{}{{}}{}", r#"{"not":"#.repeat(levels), "}".repeat(levels)));
    check(&deep(127), "admitted");
    let refused = super::check(&declaration(Isolation::Outer), &deep(128)).unwrap_err();
    assert!(refused.message.starts_with("is nested deeper than 128 levels at $.not.not"), "{refused}");
}

#[test]
fn the_schema_of_answers_says_that_it_is_an_object() {
    let asking = |schema: &str| Configuration {
        controls: Controls { output_schema: Some(schema.into()), ..Controls::default() },
        ..configuration()
    };
    check(&asking(r#"{ "x":1.50, "type":"object" }"#), "admitted");
    for (schema, want) in [
        ("true", "must be a JSON object"),
        ("{}", "must have \"object\" as its type at the root"),
        (r#"{"type":["object"]}"#, "must have \"object\" as its type at the root"),
        (r#"{"type":"array"}"#, "must have \"object\" as its type at the root"),
        (r#"{"type":"object","maximum":1e400}"#, "has a number that binary64 would change at $.maximum"),
    ] {
        check(&asking(schema), &format!("tools.controls.output_format.json_schema.schema: {want}"));
    }
}

#[test]
fn the_system_prompt_can_be_replaced() {
    let set = harness_config(r#"{"system_prompt":"é"}"#).unwrap();
    assert_eq!(set.system_prompt.as_deref(), Some("é"));
    assert_eq!(harness_config("").unwrap(), NativeSettings::default());
    let foreign = Configuration { harness_config: r#"{"base_instructions":"x"}"#.into(), ..configuration() };
    check(&foreign, "harness_config: has the unknown member base_instructions; known is system_prompt");
}

#[test]
fn names_that_stand_for_other_models_are_refused() {
    let named = |model: &str| Configuration { model: model.into(), ..configuration() };
    for alias in ["sonnet", "OPUS", "default", "best", " haiku ", "opusplan", "fable"] {
        let refused = super::check(&declaration(Isolation::Outer), &named(alias)).unwrap_err();
        assert_eq!((&*refused.field, refused.message.contains("another model")), ("model", true), "{alias}");
    }
    let refused = super::check(&declaration(Isolation::Outer), &named("claude-sonnet-4-5[1m]")).unwrap_err();
    assert!(refused.message.starts_with("ends with [1m]"), "{refused}");
    for own in ["claude-sonnet-4-5", "sonnet-of-the-house", "best-1"] {
        assert_eq!(super::check(&declaration(Isolation::Outer), &named(own)), Ok(()), "{own}");
    }
}
