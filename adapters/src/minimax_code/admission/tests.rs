use std::path::PathBuf;

use super::*;
use crate::{
    admission::STDIO_NOWHERE,
    harness::{
        Controls, FunctionTool, McpOrigin, McpServer, McpTransport, ModelProtocol, ModelProvider, Settings,
        TextVerbosity, TokenLimits, WebSearch, WebSearchMode,
    },
    probe::Found,
};

fn workspace() -> Placement {
    Placement::Workspace { environment_id: "e".into(), directory: "/w".into() }
}

fn configuration() -> Configuration {
    Configuration {
        harness: KIND.into(),
        placement: workspace(),
        model: "MiniMax-M3".into(),
        instructions: String::new(),
        provider: ModelProvider {
            protocol: ModelProtocol::Messages,
            base_url: "https://models.example".into(),
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

fn checked(isolation: Isolation, configuration: &Configuration) -> Result<(), String> {
    let settings = Settings::new(PathBuf::from("/keeper"), isolation);
    let declaration = declaration::declare(&settings, &Found { program: None, version: None, trouble: None });
    check(&declaration, configuration).map_err(|refused| refused.to_string())
}

#[track_caller]
fn refused(configuration: &Configuration, want: &str) {
    let refused = checked(Isolation::Outer, configuration).unwrap_err();
    assert!(refused.starts_with(want), "{refused}");
}

#[test]
fn what_is_usual_is_admitted() {
    let functions = vec![function("lookup"), function("mcp__x")];
    let whole = Configuration { functions, mcp_servers: vec![server("tickets")], ..configuration() };
    assert_eq!(checked(Isolation::Outer, &whole), Ok(()));
    let none = Configuration { placement: Placement::None, mcp_servers: Vec::new(), ..whole };
    assert_eq!(checked(Isolation::Outer, &none), Ok(()));
    assert_eq!(checked(Isolation::Native, &none), Ok(()));
}

#[test]
fn a_workspace_needs_outer_isolation() {
    let refused = checked(Isolation::Native, &configuration()).unwrap_err();
    assert!(refused.starts_with("placement: the sandbox of minimax_code") && refused.contains("isolation = \"outer\""));
}

#[test]
fn names_that_are_cut_or_are_one_are_refused() {
    let of = |names: &[&str]| Configuration {
        functions: names.iter().map(|name| function(name)).collect(),
        ..configuration()
    };
    let longest = "x".repeat(64);
    assert_eq!(checked(Isolation::Outer, &of(&[&longest])), Ok(()));
    refused(&of(&[&format!("{longest}x")]), "tools.functions[0].name: is longer than 64 bytes");
    refused(&of(&["a.b"]), "tools.functions[0].name: must match ^[a-zA-Z0-9_-]+$");
    refused(&of(&["a_b", "a__b"]), "tools.functions[1].name: is the same to minimax_code as tools.functions[0].name");
}

#[test]
fn labels_that_are_spelled_in_another_way_are_refused() {
    let of = |label: &str, functions| Configuration { mcp_servers: vec![server(label)], functions, ..configuration() };
    for label in ["a__b", "_a", "a_", &"x".repeat(49)] {
        refused(&of(label, Vec::new()), "tools.mcp_servers[0].label: is spelled in another way by minimax_code");
    }
    refused(&of("a.b", Vec::new()), "tools.mcp_servers[0].label: must match ^[a-zA-Z0-9_-]+$");
    refused(&of("oac_workspace", Vec::new()), "tools.mcp_servers[0].label: is a label that minimax_code keeps");
    assert_eq!(checked(Isolation::Outer, &of("functions", Vec::new())), Ok(()));
    let with = of("functions", vec![function("f")]);
    refused(&with, "tools.mcp_servers[0].label: is the label under which minimax_code is served the functions");
}

#[test]
fn servers_that_it_cannot_have_are_refused() {
    let of = |server| Configuration { mcp_servers: vec![server], ..configuration() };
    let stdio = McpTransport::Stdio { command: "c".into(), args: Vec::new(), cwd: "/w".into(), env_vars: Vec::new() };
    let stdio = of(McpServer { transport: stdio, ..server("s") });
    assert_eq!(checked(Isolation::Outer, &stdio), Err(format!("tools.mcp_servers[0].stdio: {STDIO_NOWHERE}")));
    refused(&of(McpServer { required: true, ..server("s") }), "tools.mcp_servers[0].required: ");
    refused(&of(McpServer { allowed_tools: Some(Vec::new()), ..server("s") }), "tools.mcp_servers[0].allowed_tools: ");
    let nowhere = of(McpServer { origin: McpOrigin::Service, ..server("s") });
    refused(&Configuration { placement: Placement::None, ..nowhere }, "tools.mcp_servers[0].origin: ");
}

#[test]
fn what_it_has_not_is_refused_by_its_field() {
    let with = |controls| Configuration { controls, ..configuration() };
    let usual = Controls::default;
    let search = |mode| with(Controls { web_search: Some(WebSearch::of(mode)), ..usual() });
    assert_eq!(checked(Isolation::Outer, &search(WebSearchMode::Disabled)), Ok(()));
    refused(
        &search(WebSearchMode::Live),
        "tools.controls.web_search: minimax_code does not take the mode live; it takes disabled",
    );
    refused(&with(Controls { output_schema: Some("{}".into()), ..usual() }), "tools.controls.output_format: ");
    refused(&with(Controls { text_verbosity: Some(TextVerbosity::Low), ..usual() }), "tools.controls.text_verbosity: ");
    refused(&with(Controls { reasoning_effort: Some("low".into()), ..usual() }), "tools.controls.reasoning_effort: ");
    refused(
        &with(Controls { programmatic_tool_calling: Some(true), ..usual() }),
        "tools.controls.programmatic_tool_calling: ",
    );
    refused(&with(Controls { strict_calls: true, ..usual() }), "tools.controls.strict_calls: ");
    let deferred = FunctionTool { defer_loading: true, ..function("f") };
    refused(&Configuration { functions: vec![deferred], tool_search: true, ..configuration() }, "tools.tool_search: ");
    refused(&Configuration { harness_config: r#"{"a":1}"#.into(), ..configuration() }, "harness_config: ");
}

#[test]
fn what_it_needs_is_asked_for() {
    let provider = ModelProvider { token_limits: None, ..configuration().provider };
    refused(
        &Configuration { provider, ..configuration() },
        "provider.token_limits: minimax_code needs the token limits",
    );
    let longest = "x".repeat(32 << 10);
    let with = |instructions: String| Configuration { instructions, ..configuration() };
    assert_eq!(checked(Isolation::Outer, &with(longest.clone())), Ok(()));
    refused(&with(longest + "x"), "instructions: is longer than the 32768 bytes");
}
