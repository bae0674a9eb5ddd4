use std::{env, fs, os::unix::fs::PermissionsExt as _, sync::Arc};

use secrecy::SecretString;

use super::*;
use crate::{
    acp::configured::Known,
    harness::{
        Availability, Capability, Controls, FunctionTool, Isolation, ModelProvider, Placement, Secrets, TokenLimits,
    },
    native::environment::Mark,
};

fn configured(files: &[(&str, &str)]) -> Configured {
    let own = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    Configured {
        name: "kimi".into(),
        command: vec!["/nowhere/kimi".into(), "acp".into()],
        profile: Known::Generic,
        protocols: Vec::new(),
        environment: own(&[("KIMI_KEY", "{key}"), ("KIMI_URL", "{base_url}"), ("KIMI_HOME", "{home}/.kimi")]),
        files: own(files),
    }
}

const FILE: (&str, &str) = (
    ".kimi/config.toml",
    "model = \"{model}\"\nlimits = {context}/{output}\nprompt = \"{instructions_file}\"\nother = { a = 1 }\n",
);

fn settings(isolation: Isolation, trust_workspace: bool) -> Settings {
    Settings { trust_workspace, ..Settings::new(PathBuf::from("/keeper"), isolation) }
}

fn configuration(placement: Placement) -> Configuration {
    Configuration {
        harness: "kimi".into(),
        placement,
        model: "m-1".into(),
        instructions: "Be {brief}.".into(),
        provider: ModelProvider {
            protocol: ModelProtocol::ChatCompletions,
            base_url: "http://127.0.0.1:1/v1".into(),
            token_limits: TokenLimits::of(10, 2),
        },
        harness_config: String::new(),
        functions: Vec::new(),
        tool_search: false,
        mcp_servers: Vec::new(),
        controls: Controls::default(),
    }
}

fn workspace(directory: &Path) -> Placement {
    Placement::Workspace { environment_id: "e".into(), directory: directory.to_owned() }
}

/// What is declared where the agent has said this.
fn declared(settings: &Settings, said: Said, trouble: Option<&str>) -> Declaration {
    let found = Found { program: None, version: None, trouble: trouble.map(Into::into) };
    declaration::declare("kimi", &configured(&[FILE]), said, settings, &found)
}

#[test]
fn what_it_supports_is_what_it_says() {
    let outer = settings(Isolation::Outer, true);
    let place = workspace(Path::new("/w"));
    let with = declared(&outer, Said { mcp_http: true }, None);
    let without = declared(&outer, Said::default(), None);
    for capability in [Capability::FunctionTools, Capability::McpHttpTools, Capability::McpHttpBearerAuth] {
        assert!(with.has(&place, capability) && !without.has(&place, capability));
    }
    assert!(without.has(&place, Capability::MessageObservation) && without.none.is_empty() && !with.qualified);
    for never in [Capability::SessionResume, Capability::Steering, Capability::Usage, Capability::ParallelFunctionCalls]
    {
        assert!(!with.has(&place, never), "{never:?}");
    }
    for closed in [settings(Isolation::Native, true), settings(Isolation::Outer, false)] {
        assert!(declared(&closed, Said { mcp_http: true }, None).workspace.is_empty());
    }
    let gone = declared(&outer, Said::default(), Some("no luck"));
    assert_eq!(gone.availability, Availability::Unavailable { reason: "no luck".into() });
    assert!(with.limits.needs_token_limits);
    assert!(!declaration::limits(&configured(&[])).needs_token_limits);
}

#[test]
fn what_it_does_not_take_is_refused() {
    let outer = settings(Isolation::Outer, true);
    let checked = |of: &Configured, settings: &Settings, change: &dyn Fn(&mut Configuration)| {
        let mut configuration = configuration(workspace(Path::new("/w")));
        change(&mut configuration);
        let declaration = declared(settings, Said { mcp_http: true }, None);
        admission::check(of, &declaration, &configuration).map_or_else(|it| it.to_string(), |()| "taken".to_owned())
    };
    let with_file = configured(&[FILE]);
    assert_eq!(checked(&with_file, &outer, &|_| {}), "taken");
    let function = FunctionTool {
        name: "x".repeat(declaration::FUNCTION_BYTES + 1),
        description: String::new(),
        parameters: "{}".into(),
        defer_loading: false,
        silence_timeout: None,
        max_duration: None,
    };
    for (change, want) in [
        (
            &(|it: &mut Configuration| it.placement = Placement::None) as &dyn Fn(&mut Configuration),
            "placement: that kimi",
        ),
        (&|it| it.model = "a\"b".into(), "model: has quotes"),
        (&|it| it.provider.base_url = "http://a\\b".into(), "provider.base_url: has quotes"),
        (&|it| it.provider.token_limits = None, "provider.token_limits: kimi needs"),
        (&|it| it.provider.protocol = ModelProtocol::Messages, "provider.protocol: kimi speaks the Chat"),
        (&|it| it.functions = vec![function.clone()], "tools.functions[0].name: is longer than 48 bytes"),
        (&|it| it.harness_config = r#"{"a":1}"#.into(), "harness_config: an agent of the profile generic has no"),
    ] {
        let refused = checked(&with_file, &outer, change);
        assert!(refused.starts_with(want), "{refused}");
    }
    let untold = checked(&configured(&[]), &outer, &|_| {});
    assert!(untold.starts_with("instructions: kimi is told none"), "{untold}");
    assert_eq!(checked(&configured(&[]), &outer, &|it| it.instructions.clear()), "taken");
    for closed in [settings(Isolation::Native, true), settings(Isolation::Outer, false)] {
        assert!(checked(&with_file, &closed, &|_| {}).starts_with("placement: what kimi does with a workspace"));
    }
}

#[test]
fn a_missing_program_says_what_to_do() {
    let of = |command: &str| find(&Configured { command: vec![command.to_owned()], ..configured(&[]) }).unwrap_err();
    assert!(of("/nowhere/kimi").starts_with("harness.acp.kimi: /nowhere/kimi cannot be read"));
    assert!(of("no-such-program-of-this-name").contains("on PATH; install it"));
    assert!(of("/").contains("is not a file"));
}

#[tokio::test]
async fn files_and_variables_are_filled_and_no_file_has_the_key() {
    let folder = env::current_exe().unwrap().with_file_name(format!("generic-start-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    for part in ["workspace", "home", "tmp"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    let folder = folder.canonicalize().unwrap();
    let mut launch = Launch {
        executor_id: "ex".into(),
        home: folder.join("home"),
        temporary: folder.join("tmp"),
        workspace: None,
        configuration: Arc::new(configuration(workspace(&folder.join("workspace")))),
        model_key: Some(SecretString::from("sk-canary")),
        holds_key: false,
        mcp_bearers: [].into(),
        mcp_variables: [].into(),
        secrets: Secrets::default(),
        mark: Mark::new("st", "ex"),
        resume: None,
    };
    let (configured, settings) = (configured(&[FILE]), settings(Isolation::Outer, true));
    let found = Found { program: Some(PathBuf::from("/bin/kimi")), version: None, trouble: None };
    let set_up = start::set_up(&configured, &settings, &found, &launch).await.unwrap();
    let home = folder.join("home/agent");
    assert_eq!((set_up.directory, set_up.arguments), (folder.join("workspace"), vec!["acp".into()]));
    for (name, want) in [
        ("KIMI_KEY", "sk-canary".to_owned()),
        ("KIMI_URL", "http://127.0.0.1:1/v1".to_owned()),
        ("KIMI_HOME", format!("{}/.kimi", home.display())),
        ("HOME", home.display().to_string()),
    ] {
        assert_eq!(set_up.environment.value(name).unwrap(), &*want);
    }
    let instructions = home.join("instructions.md");
    let want =
        format!("model = \"m-1\"\nlimits = 10/2\nprompt = \"{}\"\nother = {{ a = 1 }}\n", instructions.display());
    assert_eq!(fs::read_to_string(home.join(".kimi/config.toml")).unwrap(), want);
    // What Core gave is not filled in again.
    assert_eq!(fs::read_to_string(&instructions).unwrap(), "Be {brief}.");
    for file in [instructions, home.join(".kimi/config.toml")] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert!(!set_up.settings.contains("canary"));
    launch.holds_key = true;
    let refused = start::set_up(&configured, &settings, &found, &launch).await.unwrap_err().to_string();
    assert!(refused.contains("use the gateway"), "{refused}");
    fs::remove_dir_all(&folder).unwrap();
}
