//! What is declared for configured agents: by their own answer to `initialize`, and for programs that are missing, broken, or newer than what was proved.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use adapters::{
    acp::{AcpHarness, Configured, Known},
    harness::{Availability, Capability, Declaration, Harness as _, Isolation, Proved, Settings},
};

/// A program in a folder of its own.
fn program(name: &str, text: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("acp-declaration-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("agent");
    fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn settings() -> Settings {
    let keeper = PathBuf::from(env!("CARGO_BIN_EXE_runtime-bridge-keeper"));
    Settings { trust_workspace: true, ..Settings::new(keeper, Isolation::Outer) }
}

fn configured(profile: Known, command: &[&str]) -> Configured {
    let generic = profile == Known::Generic;
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    Configured {
        name: "agent_x".into(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        profile,
        protocols: Vec::new(),
        environment: if generic { pairs(&[("AGENT_URL", "{base_url}"), ("AGENT_KEY", "{key}")]) } else { pairs(&[]) },
        files: if generic { pairs(&[(".agent/config", "model={model}\n")]) } else { pairs(&[]) },
    }
}

async fn declared(profile: Known, command: &[&str]) -> Declaration {
    let configured = configured(profile, command);
    configured.check().unwrap();
    AcpHarness::configured(configured, settings()).declare().await
}

fn reason(declaration: &Declaration) -> &str {
    match &declaration.availability {
        Availability::Unavailable { reason } => reason,
        Availability::Available => "available",
    }
}

fn has(of: &[Proved], capability: Capability) -> bool {
    of.iter().any(|proved| proved.capability() == capability)
}

/// It reads its question, has its files and its variables, and answers.
fn agent(http: bool) -> String {
    format!(
        r#"read -r question
case $question in *'"method":"initialize"'*) ;; *) exit 7;; esac
[ "$(cat "$HOME/.agent/config")" = model=none ] && [ "$1" = acp ] && [ "$AGENT_URL" = http://127.0.0.1:9 ] && [ -z "$AGENT_KEY" ] || exit 8
echo 'a line that is no message'
echo '{{"jsonrpc":"2.0","method":"x/notice","params":{{}}}}'
echo '{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":1,"agentCapabilities":{{"mcpCapabilities":{{"http":{http}}}}},"agentInfo":{{"name":"x","version":"7.1"}}}}}}'
cat > /dev/null"#
    )
}

#[tokio::test]
async fn a_generic_agent_is_what_it_says() {
    for http in [true, false] {
        let program = program(&format!("says-{http}"), &agent(http));
        let declaration = declared(Known::Generic, &[program.to_str().unwrap(), "acp"]).await;
        assert_eq!((reason(&declaration), declaration.kind), ("available", "agent_x"));
        assert_eq!((declaration.version.as_deref(), declaration.qualified), (Some("7.1"), false));
        assert!(has(&declaration.workspace, Capability::LocalEnvironment) && declaration.none.is_empty());
        assert_eq!(has(&declaration.workspace, Capability::FunctionTools), http);
    }
}

#[tokio::test]
async fn an_agent_that_cannot_be_asked_says_why() {
    let version =
        r#"read -r question; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":2}}'; cat > /dev/null"#;
    let refusal = r#"read -r question; echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"log in"}}'; cat > /dev/null"#;
    for (name, text, want) in [
        ("ends", "echo gone >&2; exit 3", "closed its output before it answered initialize"),
        ("version", version, "speaks version 2 of ACP, and the bridge version 1"),
        ("refuses", refusal, "it refused initialize: log in"),
    ] {
        let program = program(name, text);
        let declaration = declared(Known::Generic, &[program.to_str().unwrap(), "acp"]).await;
        let reason = reason(&declaration);
        assert!(reason.starts_with("harness.acp.agent_x: ") && reason.contains(want), "{reason}");
    }
    let missing = declared(Known::Generic, &["/nowhere/agent"]).await;
    assert!(reason(&missing).contains("/nowhere/agent cannot be read"), "{}", reason(&missing));
}

#[tokio::test]
async fn opencode_is_known_by_its_version() {
    for (version, qualified) in [("1.18.33", true), ("1.19.0", false)] {
        let program = program(version, &format!("echo {version}"));
        let declaration = declared(Known::Opencode, &[program.to_str().unwrap(), "acp"]).await;
        assert_eq!(reason(&declaration), "available");
        assert_eq!((declaration.version.as_deref(), declaration.qualified), (Some(version), qualified));
        assert!(
            has(&declaration.none, Capability::FunctionTools) && has(&declaration.workspace, Capability::SessionResume)
        );
    }
    let broken = program("broken", "echo no >&2; exit 1");
    let declaration = declared(Known::Opencode, &[broken.to_str().unwrap()]).await;
    assert!(reason(&declaration).contains("install opencode-ai again"), "{}", reason(&declaration));
}
