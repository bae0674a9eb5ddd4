use super::*;
use crate::harness::{Controls, ModelProvider, TokenLimits, WebSearch};

fn configuration() -> Configuration {
    Configuration {
        harness: "minimax_code".into(),
        placement: Placement::Workspace { environment_id: "e".into(), directory: "/w".into() },
        model: "MiniMax-M3".into(),
        instructions: "Answer in one word.".into(),
        provider: ModelProvider {
            protocol: ModelProtocol::Messages,
            base_url: "http://127.0.0.1:1/placeholder".into(),
            token_limits: TokenLimits::of(64_000, 4_096),
        },
        harness_config: String::new(),
        functions: Vec::new(),
        tool_search: false,
        mcp_servers: Vec::new(),
        controls: Controls::default(),
    }
}

fn config(configuration: &Configuration, isolation: Isolation) -> String {
    files(configuration, isolation).unwrap()[0].1.clone()
}

fn value(configuration: &Configuration, isolation: Isolation) -> serde_json::Value {
    serde_json::from_str(&config(configuration, isolation)).unwrap()
}

#[test]
fn the_configuration_of_a_workspace_is_as_reviewed() {
    insta::assert_snapshot!(config(&configuration(), Isolation::Outer));
}

#[test]
fn without_a_workspace_there_is_no_native_tool() {
    let none = Configuration { placement: Placement::None, ..configuration() };
    insta::assert_snapshot!(config(&none, Isolation::Native));
    assert_eq!(value(&none, Isolation::Outer)["permissionMode"], "bypassPermissions");
}

#[test]
fn the_other_files_have_the_instructions_and_no_server() {
    let [_, agents, mcp] = files(&configuration(), Isolation::Outer).unwrap();
    assert_eq!(agents, ("AGENTS.md", "Answer in one word.".to_owned()));
    assert_eq!(mcp, ("mcp.json", "{\"mcpServers\":{}}\n".to_owned()));
}

#[test]
fn a_search_that_is_off_takes_what_reads_from_the_web_too() {
    let of = |web_search| {
        let controls = Controls { web_search, ..Controls::default() };
        let value = value(&Configuration { controls, ..configuration() }, Isolation::Outer);
        let agent = &value["agents"]["default"];
        assert_eq!(agent["features"]["webSearch"], false);
        agent["tools"].as_array().unwrap().iter().any(|tool| tool == "web_fetch")
    };
    assert!(of(None));
    assert!(!of(Some(WebSearch::of(WebSearchMode::Disabled))));
}

#[test]
fn each_protocol_has_its_native_name() {
    for (protocol, want) in [
        (ModelProtocol::Messages, "anthropic-messages"),
        (ModelProtocol::ChatCompletions, "openai-completions"),
        (ModelProtocol::Responses, "openai-responses"),
    ] {
        let provider = ModelProvider { protocol, ..configuration().provider };
        let value = value(&Configuration { provider, ..configuration() }, Isolation::Outer);
        assert_eq!(value["custom_provider"]["bridge"]["api"], want);
    }
}

#[test]
fn without_token_limits_there_is_no_configuration() {
    let provider = ModelProvider { token_limits: None, ..configuration().provider };
    assert!(files(&Configuration { provider, ..configuration() }, Isolation::Outer).is_err());
}

#[test]
fn the_model_is_chosen_by_its_parts() {
    for (model, want) in [
        ("MiniMax-M3", "m:custom_provider%3Abridge:MiniMax-M3:v:"),
        ("a/b:c d\u{e9}", "m:custom_provider%3Abridge:a%2Fb%3Ac%20d%C3%A9:v:"),
        ("-_.!~*'()", "m:custom_provider%3Abridge:-_.!~*'():v:"),
    ] {
        assert_eq!(model_option(model), want);
    }
}

/// The key is in a variable and in no file (R-SEC-6).
#[test]
fn the_environment_is_as_reviewed() {
    let key = SecretString::from("sk-canary");
    let environment = environment(Path::new("/s/minimax"), Path::new("/t"), &key);
    let entries = environment.entries().filter(|(name, _)| *name != "PATH");
    let shown: String =
        entries.map(|(name, value)| format!("{}={}\n", name.to_string_lossy(), value.to_string_lossy())).collect();
    insta::assert_snapshot!(shown);
    assert!(!format!("{environment:?}").contains("sk-canary"));
}
