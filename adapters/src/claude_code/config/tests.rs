use super::*;
use crate::harness::{Controls, FunctionTool, McpOrigin, McpServer, McpTransport, ModelProtocol, ModelProvider};

const MCP_START: Duration = Duration::from_secs(30);

fn configuration() -> Configuration {
    Configuration {
        harness: "claude_code".into(),
        placement: Placement::None,
        model: "claude-sonnet-4-5".into(),
        instructions: "Answer in one word.".into(),
        provider: ModelProvider {
            protocol: ModelProtocol::Messages,
            base_url: "https://models.example".into(),
            token_limits: None,
        },
        harness_config: r#"{"system_prompt":"You are a test."}"#.into(),
        functions: vec![
            FunctionTool {
                name: "lookup".into(),
                description: "Looks it up.".into(),
                parameters: r#"{ "z":1.50, "a":{"maximum":12} }"#.into(),
                defer_loading: false,
                silence_timeout: None,
                max_duration: None,
            },
            FunctionTool {
                name: "rare".into(),
                description: String::new(),
                parameters: r#"{"type" : "object"}"#.into(),
                defer_loading: true,
                silence_timeout: None,
                max_duration: None,
            },
        ],
        tool_search: true,
        mcp_servers: Vec::new(),
        controls: Controls { output_schema: Some(r#"{ "type":"object", "x":2.0 }"#.into()), ..Controls::default() },
    }
}

fn plain() -> Configuration {
    Configuration {
        instructions: String::new(),
        harness_config: String::new(),
        functions: Vec::new(),
        tool_search: false,
        mcp_servers: Vec::new(),
        controls: Controls::default(),
        ..configuration()
    }
}

fn shown(environment: &Environment) -> String {
    let entries = environment.entries().filter(|(name, _)| *name != "PATH");
    entries.map(|(name, value)| format!("{}={}\n", name.to_string_lossy(), value.to_string_lossy())).collect()
}

fn folders() -> Folders<'static> {
    let [user, state, temporary] = ["/s/user", "/s/claude", "/t"].map(Path::new);
    Folders { user, state, temporary }
}

#[test]
fn the_arguments_are_as_reviewed() {
    let configuration = configuration();
    let inventory = Inventory::of(&configuration);
    let told = |of| {
        let words = arguments(&configuration, &inventory, of);
        words.iter().map(|word| format!("{}\n", word.to_string_lossy())).collect::<String>()
    };
    insta::assert_snapshot!(told(Conversation::New("00000000-0000-4000-8000-000000000001")));
    assert!(told(Conversation::Resumed("id")).ends_with("\n--resume=id\n"));
}

/// On a workspace every offered tool is allowed, wherever it reaches (R-PLC-1).
#[test]
fn a_workspace_allows_every_tool_and_none_only_what_is_offered() {
    let told = |configuration: &Configuration| {
        let words = arguments(configuration, &Inventory::of(configuration), Conversation::New("id"));
        words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let has = |words: &[String], word: &str| words.iter().any(|one| one == word);
    let placement = Placement::Workspace { environment_id: "e".into(), directory: "/w".into() };
    let workspace = told(&Configuration { placement, ..plain() });
    assert!(has(&workspace, "--permission-mode=bypassPermissions"));
    assert!(has(&workspace, "--allow-dangerously-skip-permissions"));
    let none = told(&plain());
    assert!(has(&none, "--permission-mode=dontAsk") && has(&none, "--allowedTools=") && has(&none, "--tools="));
}

/// What the user writes and what is secret is in no argument (R-SEC-6).
#[test]
fn the_arguments_hold_nothing_of_the_user_but_the_model() {
    let configuration = configuration();
    let words = arguments(&configuration, &Inventory::of(&configuration), Conversation::New("id"));
    let all = format!("{words:?}");
    for part in ["one word", "a test", "lookup", "maximum", "1.50", "models.example"] {
        assert!(!all.contains(part), "{all}");
    }
}

#[test]
fn the_environment_is_as_reviewed() {
    let key = SecretString::from("sk-canary");
    let configuration = configuration();
    let environment = environment(&configuration, &Inventory::of(&configuration), folders(), MCP_START, Some(&key));
    insta::assert_snapshot!(shown(&environment));
    assert!(!format!("{environment:?}").contains("sk-canary"));
}

#[test]
fn the_environment_follows_the_configuration() {
    let value = |configuration: &Configuration, name: &str| {
        let environment = environment(configuration, &Inventory::of(configuration), folders(), MCP_START, None);
        environment.value(name).map(|value| value.to_string_lossy().into_owned())
    };
    assert_eq!(value(&plain(), "ANTHROPIC_API_KEY"), None);
    assert_eq!(value(&plain(), "ENABLE_TOOL_SEARCH").as_deref(), Some("false"));
    let placement = Placement::Workspace { environment_id: "e".into(), directory: "/w".into() };
    let workspace = Configuration { placement, ..plain() };
    assert_eq!(value(&workspace, "ENABLE_TOOL_SEARCH").as_deref(), Some("true"));
    assert_eq!(value(&workspace, "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS"), None);
    assert_eq!(value(&workspace, "IS_SANDBOX").as_deref(), Some("1"));
    assert_eq!(value(&plain(), "IS_SANDBOX"), None);
}

#[test]
fn the_request_initialize_is_as_reviewed() {
    let text = |configuration: &Configuration| serde_json::to_string(&initialize(configuration).unwrap()).unwrap();
    insta::assert_snapshot!(text(&configuration()).replace(",\"", ",\n\""));
    assert_eq!(text(&plain()), r#"{"subtype":"initialize"}"#);
}

/// No native timer ends a call within 24 days (R-FN-8).
#[test]
fn no_limit_of_a_call_is_below_24_days() {
    assert!(u64::from(CALL_TIMEOUT_MS) > 24 * 24 * 60 * 60 * 1000);
    let text = serde_json::to_string(&initialize(&configuration()).unwrap()).unwrap();
    assert!(text.contains(r#""sdkMcpServerConfigs":{"functions":{"timeout":2147483647}}"#), "{text}");
    let environment = environment(&plain(), &Inventory::of(&plain()), folders(), MCP_START, None);
    assert_eq!(environment.value("MCP_TOOL_TIMEOUT").unwrap(), "2147483647");
    assert_eq!(environment.value("CLAUDE_CODE_MCP_AUTO_BACKGROUND_MS").unwrap(), "0");
}

/// What concerns MCP servers is there only where there are some.
#[test]
fn servers_have_their_time_and_their_calls_are_asked_about() {
    let server = |label: &str| McpServer {
        label: label.into(),
        transport: McpTransport::Http { url: "https://a.example/mcp".into(), headers: Vec::new(), bearer: false },
        origin: McpOrigin::Service,
        allowed_tools: None,
        required: false,
    };
    let with = Configuration { mcp_servers: vec![server("a"), server("b-c")], ..plain() };
    let text = serde_json::to_string(&initialize(&with).unwrap()).unwrap();
    let hooks = r#""hooks":{"PreToolUse":[{"matcher":"mcp__(a|b-c)__.*","hookCallbackIds":["mcp"]}]}"#;
    assert_eq!(text, format!(r#"{{"subtype":"initialize",{hooks}}}"#));
    let of = |configuration: &Configuration| {
        environment(configuration, &Inventory::of(configuration), folders(), MCP_START, None)
    };
    assert_eq!(of(&plain()).value("MCP_TIMEOUT"), None);
    let environment = of(&with);
    assert_eq!(environment.value("MCP_TIMEOUT").unwrap(), "30000");
    assert_eq!(environment.value("MCP_SERVER_CONNECTION_BATCH_SIZE").unwrap(), "2");
    assert_eq!(environment.value("CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT").unwrap(), "2147483647");
}

#[test]
fn settings_name_what_the_bridge_sets_and_nothing_else() {
    let settings = settings(&Placement::None);
    assert!(settings.contains("dontAsk") && settings.contains("CLAUDE_CODE_MAX_RETRIES"));
    assert!(!settings.contains("/s/") && !settings.contains("claude-sonnet"));
}

#[test]
fn variables_are_sorted_for_readers() {
    assert!(VARIABLES.is_sorted());
}

#[test]
fn a_schema_is_checked_where_an_argument_can_hold_it() {
    let of = |schema: &str| RawValue::from_string(schema.to_owned()).unwrap();
    let last = schema_check(&of(r#"{"type":"object"}"#)).unwrap().pop().unwrap();
    assert_eq!(last, r#"--json-schema={"type":"object"}"#);
    let long = |length: usize| of(&format!("\"{}\"", "x".repeat(length - 2)));
    assert!(schema_check(&long(131_057)).is_some());
    assert!(schema_check(&long(131_058)).is_none());
}

#[test]
fn the_check_of_a_schema_is_judged_by_its_end() {
    let judged = |code, said: &str| match schema_checked(ExitStatus::Code(code), said) {
        Ok(()) => "sound".to_owned(),
        Err(Unchecked::Refused(refused)) => refused.to_string(),
        Err(Unchecked::Failed(status)) => format!("failed: {status}"),
    };
    assert_eq!(judged(0, ""), "sound");
    assert_eq!(judged(0, "strict mode: missing type \"string\" for keyword \"format\"\n"), "sound");
    assert_eq!(judged(1, "something else\n"), "failed: exit code 1");
    let field = "tools.controls.output_format.json_schema.schema";
    assert_eq!(
        judged(
            1,
            "strict mode: x\nError: --json-schema is not a valid JSON Schema: strict mode: unknown keyword: \"prefixItems\"\n"
        ),
        format!(
            "{field}: is refused by claude_code: it is not a valid JSON Schema: strict mode: unknown keyword: \"prefixItems\""
        )
    );
    let long = judged(1, &format!("Error: --json-schema {}\nmore\n", "x".repeat(100_000)));
    assert!(long.starts_with(field) && long.len() < 400, "{long}");
}
