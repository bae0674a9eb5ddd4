use std::{env, fs, os::unix::fs::PermissionsExt as _, sync::Arc};

use secrecy::SecretString;

use super::*;
use crate::{
    harness::{Configuration, Controls, Isolation, ModelProtocol, ModelProvider, Secrets, TokenLimits},
    native::environment::Mark,
};

/// A folder with a program, a workspace and room for a Session.
struct Place(PathBuf);

impl Place {
    fn make(name: &str) -> Self {
        let folder = env::current_exe().unwrap().with_file_name(format!("mcode-start-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        for part in ["bin", "workspace", "home", "tmp"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        let place = Self(folder.canonicalize().unwrap());
        let program = place.0.join("bin/mcode");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        place
    }

    fn settings(&self) -> Settings {
        let program = Some(self.0.join("bin/mcode"));
        Settings { program, trust_workspace: true, ..Settings::new(PathBuf::from("/keeper"), Isolation::Outer) }
    }

    fn launch(&self, placement: Placement) -> Launch {
        Launch {
            executor_id: "ex".into(),
            home: self.0.join("home"),
            temporary: self.0.join("tmp"),
            workspace: None,
            configuration: Arc::new(Configuration {
                harness: "minimax_code".into(),
                placement,
                model: "m/1".into(),
                instructions: "Be brief.".into(),
                provider: ModelProvider {
                    protocol: ModelProtocol::Messages,
                    base_url: "https://models.example".into(),
                    token_limits: TokenLimits::of(10, 2),
                },
                harness_config: String::new(),
                functions: Vec::new(),
                tool_search: false,
                mcp_servers: Vec::new(),
                controls: Controls::default(),
            }),
            model_key: Some(SecretString::from("sk-canary")),
            holds_key: false,
            mcp_bearers: [].into(),
            mcp_variables: [].into(),
            secrets: Secrets::default(),
            mark: Mark::new("st", "ex"),
            resume: None,
        }
    }

    fn workspace(&self) -> Placement {
        Placement::Workspace { environment_id: "e".into(), directory: self.0.join("workspace") }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn the_home_is_written_anew_and_has_no_secret() {
    let place = Place::make("home");
    let data = place.0.join("home/minimax");
    let launch = place.launch(place.workspace());
    for _ in 0..2 {
        let told = set_up(&place.settings(), &launch).await.unwrap();
        assert_eq!((told.program, told.arguments), (place.0.join("bin/mcode"), vec!["acp".into()]));
        assert_eq!((told.directory, told.package), (place.0.join("workspace"), place.0.join("bin")));
        assert_eq!(told.options, [("model".to_owned(), "m:custom_provider%3Abridge:m%2F1:v:".to_owned())]);
        assert!(told.environment.value("MINIMAX_DATA_DIR").is_some_and(|value| value == data.as_os_str()));
        for name in ["config.yaml", "AGENTS.md", "mcp.json"] {
            let file = data.join(name);
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
            assert!(!fs::read_to_string(&file).unwrap().contains("sk-canary"), "{name}");
            fs::write(&file, "what a tool has put there").unwrap();
        }
    }
    assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    set_up(&place.settings(), &launch).await.unwrap();
    assert_eq!(fs::read_to_string(data.join("AGENTS.md")).unwrap(), "Be brief.");
    let nowhere = set_up(&place.settings(), &place.launch(Placement::None)).await.unwrap();
    assert_eq!(nowhere.directory, place.0.join("home/empty"));
}

#[tokio::test]
async fn a_script_is_given_to_its_node() {
    let place = Place::make("script");
    let package = place.0.join("node_modules/@minimax-ai/code");
    fs::create_dir_all(&package).unwrap();
    let (script, node) = (package.join("cli.js"), package.join("node"));
    for file in [&script, &node] {
        fs::write(file, "").unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let settings = Settings { program: Some(script.clone()), ..place.settings() };
    let told = set_up(&settings, &place.launch(Placement::None)).await.unwrap();
    assert_eq!((told.program, told.arguments), (node, vec![script.into_os_string(), "acp".into()]));
    assert_eq!(told.package, package);
}

#[tokio::test]
async fn without_a_key_nothing_is_prepared() {
    let place = Place::make("key");
    let launch = Launch { model_key: None, ..place.launch(Placement::None) };
    let refused = set_up(&place.settings(), &launch).await.unwrap_err();
    assert_eq!((refused.step, refused.message.contains("credential `model`")), ("configuration", true));
    assert!(!place.0.join("home/minimax").exists());
}

#[tokio::test]
async fn servers_of_the_project_are_refused_beside_a_key() {
    let place = Place::make("project");
    let launch = |holds_key| Launch { holds_key, ..place.launch(place.workspace()) };
    set_up(&place.settings(), &launch(true)).await.unwrap();
    fs::write(place.0.join("workspace/.mcp.json"), r#"{"mcpServers":{}}"#).unwrap();
    set_up(&place.settings(), &launch(false)).await.unwrap();
    let refused = set_up(&place.settings(), &launch(true)).await.unwrap_err();
    assert_eq!((refused.step, refused.clean), ("mcp", true));
    // Where there is no workspace, there is no project either.
    set_up(&place.settings(), &Launch { holds_key: true, ..place.launch(Placement::None) }).await.unwrap();
}

#[test]
fn servers_of_the_project_are_judged() {
    let file = r#"{"mcpServers":{"my tickets":{"command":"x"}}}"#;
    let judged = |text: &str, holds, trusted, labels: &[&str]| judge(text, holds, trusted, labels.iter().copied());
    assert_eq!(judged(file, false, true, &[]), Ok(()));
    assert_eq!(judged(file, false, true, &["tickets"]), Ok(()));
    for (text, holds, trusted, labels, want) in [
        (file, true, true, &[] as &[&str], "beside a key or a bearer that mcode holds itself"),
        (file, false, false, &[], "where trust_workspace is false"),
        (file, false, true, &["my_tickets"], "has a server of the label my_tickets, which is a declared one"),
        ("{", false, true, &["tickets"], "cannot be read"),
    ] {
        let refused = judged(text, holds, trusted, labels).unwrap_err();
        assert!(refused.contains(want), "{refused}");
    }
    assert_eq!(judged("{", false, true, &[]), Ok(()));
}
