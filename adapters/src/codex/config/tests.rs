use std::fs;

use super::*;
use crate::harness::{Controls, FunctionTool, ModelProtocol, ModelProvider, Placement};

fn configuration(workspace: &Path) -> Configuration {
    Configuration {
        harness: "codex".into(),
        placement: Placement::Workspace { environment_id: "e".into(), directory: workspace.to_owned() },
        model: "gpt-5.5".into(),
        instructions: "Answer in one word.".into(),
        provider: ModelProvider {
            protocol: ModelProtocol::Responses,
            base_url: "https://models.example/v1".into(),
            token_limits: None,
        },
        harness_config: r#"{"base_instructions":"You are a test."}"#.into(),
        functions: vec![FunctionTool {
            name: "lookup".into(),
            description: "Looks it up.".into(),
            parameters: r#"{ "type":"object", "z":1.50, "a":{"maximum":12345678901234567890} }"#.into(),
            defer_loading: false,
            silence_timeout: None,
            max_duration: None,
        }],
        tool_search: false,
        mcp_servers: Vec::new(),
        controls: Controls::default(),
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::current_exe().unwrap().with_file_name(format!("codex-config-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder.canonicalize().unwrap()
}

/// A workspace of a machine that isolates it, without a key.
fn outer(workspace: &Path) -> Surroundings<'_> {
    Surroundings {
        place: Place::Workspace(workspace),
        catalogue: None,
        isolation: Isolation::Outer,
        trust_workspace: false,
        model_key: None,
        servers: BTreeMap::new(),
        resume: None,
    }
}

fn params(workspace: &Path, surroundings: Surroundings<'_>) -> String {
    let configuration = configuration(workspace);
    serde_json::to_string(&thread_start(&configuration, surroundings).unwrap()).unwrap()
}

#[test]
fn the_start_up_file_is_as_reviewed() {
    insta::assert_snapshot!(start_up_file(&Mark::new("st", "ex"), false));
}

#[test]
fn the_mark_is_quoted() {
    assert_eq!(quoted("a\"b\\c\n\u{7f}é"), r#""a\"b\\c\u000A\u007Fé""#);
}

#[test]
fn the_parameters_of_a_thread_are_as_reviewed() {
    let key = SecretString::from("sk-canary");
    let workspace = Path::new("/nowhere/w");
    let outer = Surroundings { model_key: Some(&key), ..outer(workspace) };
    insta::assert_snapshot!(params(workspace, outer).replace(",\"", ",\n\""));
}

/// A resumed thread is given all that a started one is, but for what it cannot take.
#[test]
fn the_parameters_of_a_resumed_thread_are_as_reviewed() {
    let key = SecretString::from("sk-canary");
    let workspace = Path::new("/nowhere/w");
    let (isolation, trust_workspace) = (Isolation::Outer, false);
    let outer = Surroundings {
        place: Place::Workspace(workspace),
        catalogue: None,
        isolation,
        trust_workspace,
        model_key: Some(&key),
        servers: BTreeMap::new(),
        resume: Some("thread-1"),
    };
    insta::assert_snapshot!(params(workspace, outer).replace(",\"", ",\n\""));
    let injected = serde_json::to_string(&instructions("thread-1", "Be \"brief\".")).unwrap();
    assert_eq!(
        injected,
        r#"{"threadId":"thread-1","items":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"Be \"brief\"."}]}]}"#
    );
}

#[test]
fn settings_differ_with_what_the_operator_chose_and_hold_nothing_of_a_session() {
    let all = [Isolation::Outer, Isolation::Native]
        .map(|isolation| [true, false].map(|trust| [true, false].map(|nowhere| settings(isolation, trust, nowhere))));
    let different: std::collections::BTreeSet<_> = all.iter().flatten().flatten().collect();
    // What the operator chose of workspaces changes nothing where there is none.
    assert_eq!(different.len(), 4 + 1);
}

/// No environment, no tool of its own, no trust, the narrowest sandbox; a resumed thread takes the first of these with its Turns (R-CTL-4).
#[test]
fn nowhere_codex_has_no_tools_of_its_own() {
    let file = start_up_file(&Mark::new("st", "ex"), true);
    let features = "\nshell_tool = false\nsleep_tool = false\nview_image = false\n\n[features.tool_registry]";
    assert!(file.contains(features), "{file}");
    let (directory, catalogue) = (Path::new("/nowhere/empty"), Some(Path::new("/nowhere/models.json")));
    for resume in [None, Some("thread-1")] {
        let nowhere = Surroundings {
            place: Place::Nowhere(directory),
            catalogue,
            isolation: Isolation::Outer,
            trust_workspace: true,
            model_key: None,
            servers: BTreeMap::new(),
            resume,
        };
        let text = params(directory, nowhere);
        assert_eq!(text.contains(r#""environments":[]"#), resume.is_none(), "{text}");
        for part in [
            r#""cwd":"/nowhere/empty""#,
            r#""sandbox":"read-only""#,
            r#""/nowhere/empty":{"trust_level":"untrusted"}"#,
            r#""model_catalog_json":"/nowhere/models.json""#,
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}

#[test]
fn without_a_key_and_with_the_native_sandbox() {
    let workspace = Path::new("/nowhere/w");
    let native = Surroundings {
        place: Place::Workspace(workspace),
        catalogue: None,
        isolation: Isolation::Native,
        trust_workspace: true,
        model_key: None,
        servers: BTreeMap::new(),
        resume: None,
    };
    let text = params(workspace, native);
    assert!(!text.contains("experimental_bearer_token"), "{text}");
    assert!(text.contains(r#""sandbox":"workspace-write""#), "{text}");
    assert!(text.contains(r#""/nowhere/w":{"trust_level":"trusted"}"#), "{text}");
}

#[test]
fn schemas_keep_their_text() {
    let workspace = Path::new("/nowhere/w");
    let outer = outer(workspace);
    let schema = configuration(workspace).functions.remove(0).parameters;
    assert!(params(workspace, outer).contains(&schema));
}

#[test]
fn empty_instructions_replace_and_add_nothing() {
    let workspace = Path::new("/nowhere/w");
    let outer = outer(workspace);
    let plain =
        Configuration { instructions: String::new(), harness_config: String::new(), ..configuration(workspace) };
    let text = serde_json::to_string(&thread_start(&plain, outer).unwrap()).unwrap();
    assert!(!text.contains("Instructions"), "{text}");
}

#[test]
fn every_repository_above_the_workspace_is_named() {
    let top = folder("trust");
    let workspace = top.join("outer/inner/deep");
    fs::create_dir_all(&workspace).unwrap();
    fs::create_dir_all(top.join("outer/.git")).unwrap();
    fs::create_dir_all(top.join("main/.git/worktrees/wt")).unwrap();
    let gitdir = format!("gitdir: {}\n", top.join("main/.git/worktrees/wt").display());
    fs::write(top.join("outer/inner/.git"), gitdir).unwrap();
    let keys: Vec<_> = trust_keys(&workspace).into_iter().filter(|key| key.starts_with(&top)).collect();
    assert_eq!(keys, [top.join("main"), top.join("outer"), top.join("outer/inner"), workspace]);
    fs::remove_dir_all(top).unwrap();
}
