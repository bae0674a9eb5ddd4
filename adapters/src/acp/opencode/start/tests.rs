use std::{env, fs, os::unix::fs::PermissionsExt as _, sync::Arc};

use secrecy::SecretString;

use super::*;
use crate::{
    harness::{Configuration, Controls, Isolation, ModelProtocol, ModelProvider, Secrets, TokenLimits},
    native::environment::Mark,
};

/// A folder with a workspace and room for a Session.
struct Place(PathBuf);

impl Place {
    fn make(name: &str) -> Self {
        let folder = env::current_exe().unwrap().with_file_name(format!("opencode-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        for part in ["project/.git", "project/workspace", "home", "tmp"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        Self(folder.canonicalize().unwrap())
    }

    fn launch(&self, placement: Placement) -> Launch {
        Launch {
            executor_id: "ex".into(),
            home: self.0.join("home"),
            temporary: self.0.join("tmp"),
            workspace: None,
            configuration: Arc::new(Configuration {
                harness: "opencode".into(),
                placement,
                model: "m".into(),
                instructions: "Be brief.".into(),
                provider: ModelProvider {
                    protocol: ModelProtocol::ChatCompletions,
                    base_url: "https://models.example/v1".into(),
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
        Placement::Workspace { environment_id: "e".into(), directory: self.0.join("project/workspace") }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn settings(trust_workspace: bool) -> Settings {
    Settings { trust_workspace, ..Settings::new(PathBuf::from("/keeper"), Isolation::Outer) }
}

async fn up(launch: &Launch, trust_workspace: bool) -> Result<SetUp, String> {
    let found = Found { program: Some(PathBuf::from("/bin/opencode")), version: None, trouble: None };
    let set_up = set_up(&settings(trust_workspace), &found, launch, vec!["acp".into()]).await;
    set_up.map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_home_is_written_anew_and_has_no_secret() {
    let place = Place::make("home");
    let launch = place.launch(place.workspace());
    let folder = place.0.join("home/opencode/.config/opencode");
    for _ in 0..2 {
        let set_up = up(&launch, false).await.unwrap();
        assert_eq!((set_up.directory, set_up.arguments), (place.0.join("project/workspace"), vec!["acp".into()]));
        assert_eq!(set_up.options, [("model".to_owned(), "bridge/m".to_owned())]);
        assert_eq!(set_up.environment.value("HOME").unwrap(), place.0.join("home/opencode").as_os_str());
        assert_eq!(fs::read_to_string(folder.join("instructions.md")).unwrap(), "Be brief.");
        assert!(folder.join("node_modules").is_dir() && folder.join("package-lock.json").is_file());
        for name in ["opencode.json", "instructions.md", "package-lock.json"] {
            assert_eq!(fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(!fs::read_to_string(folder.join(name)).unwrap().contains("canary"));
            fs::write(folder.join(name), "spoiled").unwrap();
        }
    }
}

#[tokio::test]
async fn without_a_workspace_it_starts_in_an_empty_folder() {
    let place = Place::make("none");
    let set_up = up(&place.launch(Placement::None), false).await.unwrap();
    assert_eq!(set_up.directory, place.0.join("home/empty"));
    assert_eq!(fs::read_dir(set_up.directory).unwrap().count(), 0);
}

#[tokio::test]
async fn a_project_that_has_plugins_is_refused_unless_it_is_trusted() {
    let place = Place::make("project");
    let mut launch = place.launch(place.workspace());
    // What is above the root of the project is not looked at.
    fs::write(place.0.join("opencode.json"), "{}").unwrap();
    assert!(up(&launch, false).await.is_ok());
    for there in ["project/opencode.jsonc", "project/workspace/opencode.json", "project/workspace/.opencode"] {
        fs::write(place.0.join(there), "{}").unwrap();
        let refused = up(&launch, false).await.unwrap_err();
        assert!(refused.contains(there) && refused.contains("trust_workspace is false"), "{refused}");
        assert!(up(&launch, true).await.is_ok());
        launch.holds_key = true;
        let refused = up(&launch, true).await.unwrap_err();
        assert!(refused.contains("beside a key or a bearer"), "{refused}");
        launch.holds_key = false;
        fs::remove_file(place.0.join(there)).unwrap();
    }
}
