use std::path::PathBuf;

use super::*;
use crate::{
    harness::{
        Controls, FunctionTool, McpOrigin, McpServer, McpTransport, ModelProtocol, ModelProvider, Settings,
        TokenLimits, WebSearch, WebSearchMode,
    },
    probe::Found,
};

fn configuration() -> Configuration {
    Configuration {
        harness: "oc".into(),
        placement: Placement::Workspace { environment_id: "e".into(), directory: "/w".into() },
        model: "m".into(),
        instructions: String::new(),
        provider: ModelProvider {
            protocol: ModelProtocol::ChatCompletions,
            base_url: "https://models.example/v1".into(),
            token_limits: TokenLimits::of(64_000, 4_096),
        },
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

fn server(label: &str) -> McpServer {
    McpServer {
        label: label.into(),
        transport: McpTransport::Http { url: "https://h/mcp".into(), headers: Vec::new(), bearer: true },
        origin: McpOrigin::Environment,
        allowed_tools: None,
        required: false,
    }
}

fn checked(isolation: Isolation, change: impl FnOnce(&mut Configuration)) -> Result<(), String> {
    let settings = Settings::new(PathBuf::from("/keeper"), isolation);
    let found = Found { program: None, version: None, trouble: None };
    let declaration = declaration::declare("oc", &settings, &found);
    let mut configuration = configuration();
    change(&mut configuration);
    check(&declaration, &configuration).map_err(|refused| refused.to_string())
}

#[track_caller]
fn refuses(change: impl FnOnce(&mut Configuration), want: &str) {
    let refused = checked(Isolation::Outer, change).unwrap_err();
    assert!(refused.starts_with(want), "{refused}");
}

#[test]
fn what_it_takes_is_admitted() {
    assert_eq!(checked(Isolation::Outer, |_| {}), Ok(()));
    let long = "x".repeat(declaration::FUNCTION_BYTES);
    let all = |it: &mut Configuration| {
        it.functions = vec![function("look-up_1"), function(&long)];
        it.mcp_servers = vec![server("tickets"), server("tick"), server("a-B")];
        it.controls.web_search = Some(WebSearch::of(WebSearchMode::Disabled));
    };
    assert_eq!(checked(Isolation::Outer, all), Ok(()));
    let none = |it: &mut Configuration| it.placement = Placement::None;
    assert_eq!(checked(Isolation::Native, none), Ok(()));
}

#[test]
fn what_it_does_not_take_is_refused() {
    let native = checked(Isolation::Native, |_| {}).unwrap_err();
    assert!(native.starts_with("placement: opencode has no sandbox"), "{native}");
    let long = "x".repeat(declaration::FUNCTION_BYTES + 1);
    refuses(|it| it.functions = vec![function(&long)], "tools.functions[0].name: is longer than 54 bytes");
    refuses(|it| it.functions = vec![function("a.b")], "tools.functions[0].name: must match");
    refuses(|it| it.model = "{env:HOME}".into(), "model: has {env:");
    refuses(|it| it.provider.base_url = "http://${A}".into(), "provider.base_url: has {env:");
    refuses(|it| it.provider.protocol = ModelProtocol::Messages, "provider.protocol: oc speaks the Chat");
    refuses(|it| it.provider.token_limits = None, "provider.token_limits: oc needs");
    refuses(|it| it.controls.output_schema = Some("{}".into()), "tools.controls.output_format");
    refuses(|it| it.harness_config = r#"{"a":1}"#.into(), "harness_config: opencode has no native settings");
    refuses(|it| it.tool_search = true, "tools.tool_search");
    refuses(|it| it.controls.web_search = Some(WebSearch::of(WebSearchMode::Live)), "tools.controls.web_search");
}

#[test]
fn labels_can_be_told_apart_in_the_names_of_tools() {
    refuses(|it| it.mcp_servers = vec![server("a.b")], "tools.mcp_servers[0].label: must match");
    refuses(|it| it.mcp_servers = vec![server("apply")], "tools.mcp_servers[0].label: is a label that oc keeps");
    refuses(
        |it| it.mcp_servers = vec![server("a_b"), server("a")],
        "tools.mcp_servers[1].label: cannot be told from the label a_b",
    );
    refuses(
        |it| it.mcp_servers = vec![server("a"), server("a__b")],
        "tools.mcp_servers[1].label: cannot be told from the label a",
    );
    let served = |label: &'static str| {
        move |it: &mut Configuration| {
            it.functions = vec![function("f")];
            it.mcp_servers = vec![server(label)];
        }
    };
    refuses(served("functions"), "tools.mcp_servers[0].label: cannot be told from the label functions");
    refuses(served("functions_x"), "tools.mcp_servers[0].label: cannot be told from the label functions");
    // Without functions there is no server of them.
    assert_eq!(checked(Isolation::Outer, |it| it.mcp_servers = vec![server("functions_x")]), Ok(()));
}

#[test]
fn admit_judges_by_the_same() {
    let built = built("oc");
    assert_eq!(built.admit(&configuration()), Ok(()));
    assert_eq!(built.provided("chat_completions", true), Ok(()));
    assert!(built.provided("chat_completions", false).is_err() && built.provided("messages", true).is_err());
    let long = Configuration { functions: vec![function(&"x".repeat(55))], ..configuration() };
    assert!(built.admit(&long).is_err());
}
