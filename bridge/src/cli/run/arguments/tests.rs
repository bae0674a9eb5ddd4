//! Command lines, and the plans that they make.

use clap::Parser;
use secrecy::ExposeSecret as _;

use super::*;
use crate::cli::run::folders::tests::scratch;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    run: RunArgs,
}

fn parse(line: &[&str]) -> Result<RunArgs, clap::Error> {
    Line::try_parse_from([&["run"], line].concat()).map(|line| line.run)
}

/// The key's variable for Codex, and for Claude Code.
const OPENAI_KEY: &str = "OPENAI_API_KEY";
const ANTHROPIC_KEY: &str = "ANTHROPIC_API_KEY";

fn surroundings(key: Option<&'static str>) -> Surroundings {
    Surroundings::of(move |name| if name == OPENAI_KEY { key.map(OsString::from) } else { None })
}

fn plan(line: &[&str], key: Option<&'static str>) -> Result<Plan, String> {
    Plan::check(parse(line).unwrap(), &surroundings(key)).map_err(|error| error.0)
}

fn folder(name: &str) -> String {
    scratch(name).to_str().unwrap().to_owned()
}

#[test]
fn defaults_are_the_public_provider_and_a_model_of_the_catalogue() {
    let workspace = folder("defaults");
    let plan = plan(&["--harness", "codex", "--workspace", &workspace, "hi"], Some("sk-1")).unwrap();
    assert_eq!((plan.provider.as_str(), plan.model.as_str()), ("https://api.openai.com/v1", "gpt-5.5"));
    assert_eq!(plan.key.expose_secret(), "sk-1");
    let configuration = plan.configuration();
    assert_eq!(configuration.harness, "codex");
    assert_eq!(configuration.placement(), v1::Placement::Workspace);
    assert_eq!(plan.isolation, None);
    let nowhere = self::plan(&["--harness", "codex", "hi"], Some("sk-1")).unwrap();
    assert_eq!(nowhere.configuration().placement(), v1::Placement::None);
    assert_eq!(self::plan(&["hi"], Some("sk-1")).unwrap().harness, Harness::Codex);
    let refused = parse(&["--harness", "codex", "--trust-workspace", "hi"]).unwrap_err();
    assert!(refused.to_string().contains("--workspace"), "{refused}");
}

#[test]
fn claude_code_has_a_provider_a_model_and_a_key_of_its_own() {
    let plan = |more: &[&str]| {
        let line = parse(&[&["--harness=claude_code"], more, &["hi"]].concat()).unwrap();
        let variable = |name: &str| (name == ANTHROPIC_KEY).then(|| "sk-ant".into());
        Plan::check(line, &Surroundings::of(variable)).map_err(|error| error.0)
    };
    let usual = plan(&[]).unwrap();
    assert_eq!(usual.key.expose_secret(), "sk-ant");
    let configuration = usual.configuration();
    assert_eq!((configuration.harness.as_str(), configuration.model.as_str()), ("claude_code", "claude-opus-5-5"));
    let provider = v1::ModelProvider {
        protocol: v1::ModelProtocol::Messages.into(),
        base_url: "https://api.anthropic.com".into(),
        token_limits: None,
    };
    assert_eq!(configuration.provider, Some(v1::execution_configuration::Provider::ModelProvider(provider)));
    for good in ["https://gateway.example.com/anthropic", "https://p/v1/x"] {
        assert_eq!(plan(&["--provider", good]).unwrap().provider, good);
    }
    for doubled in ["https://p/v1", "https://p/v1/"] {
        assert!(plan(&["--provider", doubled]).unwrap_err().ends_with("leave its /v1 out"));
    }
    // The key of another provider is none.
    let keyless = self::plan(&["--harness=claude_code", "hi"], Some("sk")).unwrap_err();
    assert!(keyless.starts_with("no model key: set ANTHROPIC_API_KEY, "), "{keyless}");
}

#[test]
fn minimax_code_is_told_how_many_tokens_its_model_takes() {
    let provider = |more: &[&str]| {
        let plan = plan(&[&["--harness=minimax_code", "--mock"], more, &["hi"]].concat(), None).unwrap();
        assert_eq!(plan.kept().token_limits, plan.token_limits);
        let configuration = plan.configuration();
        assert_eq!((configuration.harness.as_str(), configuration.model.as_str()), ("minimax_code", "MiniMax-M3"));
        match configuration.provider {
            Some(v1::execution_configuration::Provider::ModelProvider(provider)) => provider,
            other => panic!("{other:?}"),
        }
    };
    let usual = provider(&[]);
    assert_eq!((usual.protocol(), &*usual.base_url), (v1::ModelProtocol::ChatCompletions, "https://api.minimax.io/v1"));
    let of = |limits: Option<v1::TokenLimits>| limits.map(|limits| (limits.context, limits.output));
    assert_eq!(of(usual.token_limits), Some((128_000, 16_000)));
    assert_eq!(of(provider(&["--token-limits=64000,4096"]).token_limits), Some((64_000, 4096)));
    let keyless = plan(&["--harness=minimax_code", "hi"], Some("sk")).unwrap_err();
    assert!(keyless.starts_with("no model key: set MINIMAX_API_KEY, "), "{keyless}");
}

#[test]
fn searches_stand_where_the_protocol_has_them() {
    let schema = Path::new(&folder("searches")).join("s.json");
    std::fs::write(&schema, "{}").unwrap();
    let function = |name: &str| format!("{name}={}:./answer", schema.display());
    let (find, weather) = (function("find"), function("weather"));
    let line = ["--mock", "--tool-search", "--deferred-function", &find, "--function", &weather];
    let tools = plan(&[&line as &[_], &["--web-search", "live", "hi"]].concat(), None).unwrap().configuration().tools;
    let v1::AdmittedTools { functions, controls, tool_search, .. } = tools.unwrap();
    let deferred: Vec<_> = functions.iter().map(|one| (one.name.as_str(), one.defer_loading)).collect();
    assert_eq!(deferred, [("weather", false), ("find", true)]);
    assert_eq!(tool_search, Some(v1::ToolSearch {}));
    assert_eq!(controls.unwrap().web_search.unwrap().mode(), v1::WebSearchMode::Live);
    let tools = plan(&["--mock", "--web-search=disabled", "hi"], None).unwrap().configuration().tools.unwrap();
    assert_eq!(tools.controls.unwrap().web_search.unwrap().mode(), v1::WebSearchMode::Disabled);
    assert_eq!(tools.tool_search, None);
}

#[test]
fn controls_stand_where_the_protocol_has_them() {
    let line = [
        "--mock",
        "--effort=low",
        "--reasoning-summary=none",
        "--service-tier=flex",
        "--verbosity=high",
        "--scripts=false",
        "hi",
    ];
    let controls = plan(&line, None).unwrap().configuration().tools.unwrap().controls.unwrap();
    let want = v1::ExecutionControls {
        programmatic_tool_calling: Some(false),
        text_verbosity: Some(v1::TextVerbosity::High.into()),
        reasoning_effort: Some("low".into()),
        reasoning_summary: Some("none".into()),
        service_tier: Some("flex".into()),
        ..Default::default()
    };
    assert_eq!(controls, want);
}

#[test]
fn every_option_has_its_place() {
    let workspace = folder("options");
    let line = [
        "--harness=codex",
        "--provider=http://127.0.0.1:9/v1",
        "--model=m",
        "--instructions=be brief",
        "--isolation=native",
        "--trust-workspace",
        "--codex=/opt/codex",
        "--claude=/opt/claude",
        "--json",
        "--workspace",
        &workspace,
        "do it",
    ];
    let arguments = parse(&line).unwrap();
    assert!(arguments.json);
    let plan = plan(&line, Some("k")).unwrap();
    assert_eq!(plan.isolation, Some(Isolation::Native));
    assert!(plan.trust_workspace);
    assert_eq!(plan.codex.as_deref(), Some(Path::new("/opt/codex")));
    assert_eq!(plan.claude_code.as_deref(), Some(Path::new("/opt/claude")));
    assert_eq!(plan.configuration().instructions, "be brief");
    assert_eq!(plan.prompt, "do it");
}

#[test]
fn a_schema_and_images_stand_where_the_protocol_has_them() {
    let workspace = folder("attached");
    let file = |name: &str, bytes: &[u8]| {
        let path = Path::new(&workspace).join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (schema, png, jpeg) =
        (file("s.json", b"{ }\n"), file("a", b"\x89PNG\r\n\x1a\n"), file("b", b"\xff\xd8\xff\xe0"));
    let line = ["--harness=codex", "--mock", "--workspace", &workspace];
    let more = ["--schema", &schema, "--image", &png, "--image", &jpeg, "look"];
    let plan = plan(&[&line as &[_], &more].concat(), None).unwrap();
    let controls = plan.configuration().tools.unwrap().controls.unwrap();
    let format = v1::output_format::Format::JsonSchema(v1::JsonSchemaFormat { schema: "{ }\n".into() });
    assert_eq!(controls.output_format.unwrap().format, Some(format));
    let kinds: Vec<_> = plan
        .input()
        .into_iter()
        .map(|part| match part.part.unwrap() {
            v1::input_part::Part::Text(text) => text,
            v1::input_part::Part::Image(image) => image.media_type,
        })
        .collect();
    assert_eq!(kinds, ["look", "image/png", "image/jpeg"]);
    let without = super::Plan::check(parse(&[&line as &[_], &["hi"]].concat()).unwrap(), &surroundings(None));
    assert_eq!(without.unwrap().configuration().tools.unwrap().controls, None);
}

#[test]
fn stdin_is_read_for_one_purpose() {
    let workspace = folder("stdin");
    let line = ["--harness=codex", "--mock", "--workspace", &workspace];
    let steering = |more: &[&str]| plan(&[&line as &[_], more].concat(), None).map(|plan| plan.steering);
    assert_eq!(steering(&["hi"]), Ok(Steering::Typed));
    assert_eq!(steering(&["--steer", "hi"]), Ok(Steering::Always));
    assert_eq!(steering(&["--steer", "-"]), Err("--steer: stdin has the prompt already".into()));
}

#[test]
fn a_later_run_has_what_the_earlier_one_had() {
    let home = folder("resume");
    let id = kept::new_session_id();
    let state = Path::new(&home).join("runtime-bridge/run").join(&id);
    std::fs::create_dir_all(&state).unwrap();
    let kept = Kept {
        version: kept::VERSION,
        harness: Harness::Codex,
        workspace: Some(Path::new(&home).canonicalize().unwrap()),
        provider: "http://127.0.0.1:9/v1".into(),
        model: "m".into(),
        mock: true,
        token_limits: None,
    };
    kept.write(&state).unwrap();
    let check = |more: &[&'static str]| {
        let arguments = parse(&[&["--resume", &id], more].concat()).unwrap();
        let home = home.clone();
        let variable = move |name: &str| match name {
            "XDG_STATE_HOME" => Some(home.clone().into()),
            OPENAI_KEY => Some("sk".into()),
            _ => None,
        };
        Plan::check(arguments, &Surroundings::of(variable)).map_err(|error| error.0)
    };
    let line = |more: &[&'static str]| check(more).unwrap();
    let plan = line(&["--harness=codex", "go on"]);
    assert_eq!(plan.harness, Harness::Codex);
    let other = check(&["--harness=claude_code", "go on"]).unwrap_err();
    assert_eq!(other, format!("--harness claude_code: the Session of --resume {id} is one of codex; leave it out"));
    let plan = line(&["go on"]);
    assert_eq!(plan.kept(), kept);
    assert_eq!(plan.earlier.unwrap().session_id, id);
    let plan = line(&["--provider=https://p/v1", "--model=n", "go on"]);
    assert_eq!((plan.provider.as_str(), plan.model.as_str(), plan.mock), ("https://p/v1", "n", false));
}

#[test]
fn a_run_without_a_key_offers_the_bundled_provider() {
    let workspace = folder("keyless");
    let line = ["--harness", "codex", "--workspace", &workspace, "hi"];
    for key in [None, Some(""), Some(" ")] {
        let refused = plan(&line, key).unwrap_err();
        assert!(refused.contains(OPENAI_KEY), "{refused}");
    }
    assert!(plan(&line, None).unwrap_err().ends_with("or use the bundled provider with --mock"));
    assert!(plan(&[&["--mock"], &line[..]].concat(), None).unwrap().mock);
}

#[test]
fn a_folder_that_is_not_there_is_told() {
    let refused = plan(&["--harness", "codex", "--mock", "--workspace", "/none", "hi"], None).unwrap_err();
    assert!(refused.starts_with("--workspace /none: No such file"), "{refused}");
}

#[test]
fn what_cannot_be_is_refused() {
    let workspace = folder("refused");
    assert_eq!(
        plan(&["--harness", "codex", "--mock", "--workspace", &workspace, " "], None).unwrap_err(),
        "the prompt is empty"
    );
    for line in [
        &["--harness", "codex"] as &[_],
        &["--harness", "claude-code", "hi"],
        &["--harness", "minimax-code", "hi"],
        &["--token-limits", "8", "hi"],
        &["--harness", "codex", "--endpoint", "unix:/b", "--minimax-code", "/m", "hi"],
        &["--web-search", "indexed", "hi"],
        &["--scripts", "maybe", "hi"],
        &["--verbosity", "xhigh", "hi"],
        &["--tool-search", "hi"],
        &["--deferred-function", "a=b:c", "hi"],
        &["--harness", "codex", "--mock", "--provider", "http://x", "hi"],
        &["--harness", "codex", "--mock", "--key-file", "k", "hi"],
        &["--harness", "codex", "--isolation", "none", "hi"],
        &["--harness", "codex", "--endpoint", "/run/b.sock", "hi"],
        &["--harness", "codex", "--endpoint", "unix:/b", "--isolation", "outer", "hi"],
        &["--harness", "codex", "--endpoint", "unix:/b", "--resume", "run-1", "hi"],
        &["--harness", "codex", "two", "prompts"],
    ] {
        assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
    }
}

#[test]
fn a_hosted_daemon_heeds_the_environment_of_a_daemon() {
    let workspace = folder("environment");
    let check = |line: &[&str], isolation: &'static str| {
        let line = [&["--harness=codex", "--mock", "--workspace", &workspace], line, &["hi"]].concat();
        let variable = move |name: &str| match name {
            CODEX_VARIABLE => Some("/env/codex".into()),
            CLAUDE_VARIABLE => Some("/env/claude".into()),
            MINIMAX_VARIABLE => Some("/env/mcode".into()),
            ISOLATION_VARIABLE => Some(isolation.into()),
            _ => None,
        };
        Plan::check(parse(&line).unwrap(), &Surroundings::of(variable)).map_err(|error| error.0)
    };
    let plan = check(&[], "native").unwrap();
    assert_eq!((plan.isolation, plan.codex), (Some(Isolation::Native), Some("/env/codex".into())));
    assert_eq!(plan.claude_code, Some("/env/claude".into()));
    assert_eq!(plan.minimax_code, Some("/env/mcode".into()));
    let plan = check(&["--codex=/opt/codex", "--isolation=outer"], "native").unwrap();
    assert_eq!((plan.isolation, plan.codex), (Some(Isolation::Outer), Some("/opt/codex".into())));
    assert_eq!(check(&[], "none").unwrap_err(), "RUNTIME_BRIDGE_ISOLATION is neither outer nor native");
}

#[test]
fn colours_can_be_switched_off() {
    let with =
        |name: &'static str, value: &'static str| Surroundings::of(move |asked| (asked == name).then(|| value.into()));
    assert!(with("TERM", "xterm").allow_colour());
    assert!(with("NO_COLOR", "").allow_colour());
    assert!(!with("NO_COLOR", "1").allow_colour());
    assert!(!with("TERM", "dumb").allow_colour());
}
