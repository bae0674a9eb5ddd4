//! What is declared for a MiniMax Code that is missing, broken, newer than what was read, or whose Node is none that it takes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use adapters::{
    harness::{Availability, Declaration, Harness as _, Isolation, Settings},
    minimax_code,
};

/// A folder with a script of Node and, where it has a text, a Node beside it.
fn place(name: &str, script: &str, node: Option<&str>) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("minimax-declaration-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    if let Some(node) = node {
        program(&folder.join("node"), node);
    }
    program(&folder.join("mcode"), script)
}

fn program(path: &Path, text: &str) -> PathBuf {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

/// The same, as a script of Node, which stands in its own first line.
fn scripted(name: &str, node: &str) -> PathBuf {
    let mcode = place(name, "", Some(node));
    fs::write(&mcode, "#!/usr/bin/env node\n").unwrap();
    mcode
}

async fn declared(program: PathBuf, isolation: Isolation) -> Declaration {
    let mut settings = Settings::new(PathBuf::from(env!("CARGO_BIN_EXE_runtime-bridge-keeper")), isolation);
    settings.program = Some(program);
    minimax_code::harness(settings).declare().await
}

fn reason(declaration: &Declaration) -> &str {
    match &declaration.availability {
        Availability::Unavailable { reason } => reason,
        Availability::Available => "available",
    }
}

#[tokio::test]
async fn the_version_that_was_read_is_qualified_and_another_is_not() {
    for (version, qualified) in [("0.4.12", true), ("0.5.4", false)] {
        let declaration = declared(place(version, &format!("echo {version}"), None), Isolation::Outer).await;
        assert_eq!(reason(&declaration), "available");
        assert_eq!((declaration.version.as_deref(), declaration.qualified), (Some(version), qualified));
        assert!(!declaration.none.is_empty() && !declaration.workspace.is_empty());
    }
}

/// Its own sandbox was never shown to hold (R-PLC-1).
#[tokio::test]
async fn where_nobody_isolates_it_there_is_no_workspace() {
    let declaration = declared(place("native", "echo 0.4.12", None), Isolation::Native).await;
    assert_eq!(reason(&declaration), "available");
    assert!(declaration.workspace.is_empty() && !declaration.none.is_empty());
}

#[tokio::test]
async fn a_script_is_asked_by_a_node_that_it_takes() {
    let both = r#"case "$1" in --version) echo v22.19.0;; */mcode) echo "0.4.12";; esac"#;
    let declaration = declared(scripted("node", both), Isolation::Outer).await;
    assert_eq!((reason(&declaration), declaration.version.as_deref()), ("available", Some("0.4.12")));
    let again = "; install Node of version >=22.19 <23 || >=24.2 <27";
    for (name, node, want) in [
        ("old", "echo v20.11.1", "is Node 20.11.1, which is not a version that mcode takes"),
        ("mute", "exit 0", "--version printed no version"),
        ("broken", "echo no luck >&2; exit 7", "--version ended with exit code 7: no luck"),
    ] {
        let declaration = declared(scripted(name, node), Isolation::Outer).await;
        assert!(reason(&declaration).ends_with(&format!("/node: {want}{again}")), "{}", reason(&declaration));
        assert_eq!((declaration.version, declaration.qualified), (None, false));
    }
}

#[tokio::test]
async fn a_broken_program_is_unavailable_with_what_to_do() {
    let again = "; install @minimax-ai/code again, or name another program";
    for (name, text, want) in [
        ("fails", "echo no luck >&2; exit 7", "--version ended with exit code 7: no luck"),
        ("dumb", "echo hello", "--version printed no version"),
    ] {
        let declaration = declared(place(name, text, None), Isolation::Outer).await;
        assert!(reason(&declaration).ends_with(&format!(": {want}{again}")), "{}", reason(&declaration));
    }
    let declaration = declared(PathBuf::from("/nowhere/mcode"), Isolation::Outer).await;
    assert_eq!(reason(&declaration), "/nowhere/mcode does not exist; install @minimax-ai/code, or correct the path");
}

#[tokio::test]
async fn a_program_that_does_not_end_is_given_up() {
    let mut settings = Settings::new(PathBuf::from(env!("CARGO_BIN_EXE_runtime-bridge-keeper")), Isolation::Outer);
    settings.program = Some(place("hangs", "trap '' TERM; while :; do sleep 60; done", None));
    settings.limits.probe = Duration::from_millis(200);
    let declaration = minimax_code::harness(settings).declare().await;
    assert!(reason(&declaration).contains("--version did not end within 200ms"), "{}", reason(&declaration));
}
