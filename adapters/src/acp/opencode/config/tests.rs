use serde_json::{Value, json};

use super::*;
use crate::harness::{Controls, FunctionTool, ModelProtocol, ModelProvider, TokenLimits, WebSearch};

fn configuration() -> Configuration {
    Configuration {
        harness: "opencode".into(),
        placement: Placement::Workspace { environment_id: "e".into(), directory: "/w".into() },
        model: "vendor/m:1".into(),
        instructions: "Answer in one word.".into(),
        provider: ModelProvider {
            protocol: ModelProtocol::ChatCompletions,
            base_url: "http://127.0.0.1:1/v1".into(),
            token_limits: TokenLimits::of(64_000, 4_096),
        },
        harness_config: String::new(),
        functions: vec![FunctionTool {
            name: "lookup".into(),
            description: String::new(),
            parameters: "{}".into(),
            defer_loading: false,
            silence_timeout: None,
            max_duration: None,
        }],
        tool_search: false,
        mcp_servers: Vec::new(),
        controls: Controls::default(),
    }
}

fn text(configuration: &Configuration, has_key: bool) -> String {
    files(configuration, Path::new("/h"), has_key).unwrap()[0].1.clone()
}

fn value(configuration: &Configuration) -> Value {
    serde_json::from_str(&text(configuration, true)).unwrap()
}

/// What opencode 1.18.33 was run with.
#[test]
fn the_configuration_of_a_workspace_is_as_it_was_run() {
    let want = json!({
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": false,
        "share": "disabled",
        "snapshot": false,
        "model": "bridge/vendor/m:1",
        "small_model": "bridge/vendor/m:1",
        "enabled_providers": ["bridge"],
        "provider": {"bridge": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "The bridge's provider",
            "options": {"baseURL": "http://127.0.0.1:1/v1", "apiKey": "{env:RUNTIME_BRIDGE_MODEL_KEY}"},
            "models": {"vendor/m:1": {"name": "vendor/m:1", "tool_call": true, "limit": {"context": 64000, "output": 4096}}},
        }},
        "permission": {
            "*": "allow", "codesearch": "deny", "plan_enter": "deny", "plan_exit": "deny", "question": "deny", "skill": "deny",
            "task": "deny", "websearch": "deny", "functions_*": "allow",
        },
        "agent": {"title": {"disable": true}},
        "instructions": ["/h/instructions.md"],
        "experimental": {"mcp_timeout": 2_147_483_647_u32},
        "tool_output": {"max_lines": 300_000, "max_bytes": 300_000},
    });
    assert_eq!(value(&configuration()), want);
}

/// The last rule that fits counts.
#[test]
fn what_is_declared_comes_behind_what_is_denied() {
    let text = text(&configuration(), true);
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in {text}"));
    assert!(at("\"*\"") < at("\"task\"") && at("\"task\"") < at("\"functions_*\""));
}

#[test]
fn without_a_workspace_there_are_functions_only() {
    let none = Configuration { placement: Placement::None, ..configuration() };
    assert_eq!(value(&none)["permission"], json!({"*": "deny", "functions_*": "allow"}));
    let bare = Configuration { functions: Vec::new(), instructions: String::new(), ..none };
    assert_eq!(value(&bare)["permission"], json!({"*": "deny"}));
    assert_eq!(value(&bare).get("instructions"), None);
}

#[test]
fn a_search_that_is_off_takes_what_reads_from_the_web_too() {
    let controls = Controls { web_search: Some(WebSearch::of(WebSearchMode::Disabled)), ..Controls::default() };
    assert_eq!(value(&Configuration { controls, ..configuration() })["permission"]["webfetch"], "deny");
    assert_eq!(value(&configuration())["permission"].get("webfetch"), None);
}

#[test]
fn no_key_is_named_where_there_is_none() {
    assert!(!text(&configuration(), false).contains("apiKey"));
    let (home, tmp) = (Path::new("/h"), Path::new("/t"));
    assert_eq!(environment(home, tmp, None).value(KEY), None);
    let key = SecretString::from("sk-canary");
    let environment = environment(home, tmp, Some(&key));
    assert_eq!(environment.value(KEY).unwrap(), "sk-canary");
    assert_eq!(environment.value("OPENCODE_DISABLE_PROJECT_CONFIG").unwrap(), "1");
    assert!(!settings().contains("canary"));
}

#[test]
fn what_would_be_replaced_and_what_is_missing_is_refused() {
    let of = |change: fn(&mut Configuration)| {
        let mut configuration = configuration();
        change(&mut configuration);
        files(&configuration, Path::new("/h"), true).unwrap_err()
    };
    assert!(of(|it| it.model = "a{env:HOME}".into()).starts_with("the model has"));
    assert!(of(|it| it.provider.base_url = "http://${HOST}/v1".into()).starts_with("the address of"));
    assert!(of(|it| it.provider.token_limits = None).contains("token limits"));
    // The text of the instructions is a file of its own, which is taken as it is.
    let configuration = Configuration { instructions: "{env:HOME}".into(), ..configuration() };
    let [_, instructions, _] = files(&configuration, Path::new("/h"), true).unwrap();
    assert_eq!(instructions, ("instructions.md", "{env:HOME}".to_owned()));
}

#[test]
fn nothing_is_left_to_be_installed() {
    let lock: Value = serde_json::from_str(&lock()).unwrap();
    assert_eq!(lock["packages"][""]["dependencies"]["@opencode-ai/plugin"], QUALIFIED);
}
