//! What is declared for a Claude Code that is missing, broken, newer than what was proved, or without anybody who isolates it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use adapters::{
    claude_code::{ClaudeCode, Settings},
    harness::{Availability, Declaration, Harness as _, Isolation},
};

/// A program in a folder of its own.
fn program(name: &str, text: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("claude-declaration-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("claude");
    fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

async fn declared(program: PathBuf, isolation: Isolation) -> Declaration {
    let mut settings = Settings::new(PathBuf::from(env!("CARGO_BIN_EXE_runtime-bridge-keeper")), isolation);
    settings.program = Some(program);
    ClaudeCode::new(settings).declare().await
}

fn reason(declaration: &Declaration) -> &str {
    match &declaration.availability {
        Availability::Unavailable { reason } => reason,
        Availability::Available => "available",
    }
}

#[tokio::test]
async fn the_proved_version_is_qualified_and_another_is_not() {
    for (version, qualified) in [("2.1.332", true), ("2.2.0", false)] {
        let declaration =
            declared(program(version, &format!("echo '{version} (Claude Code)'")), Isolation::Outer).await;
        assert_eq!(reason(&declaration), "available");
        assert_eq!((declaration.version.as_deref(), declaration.qualified), (Some(version), qualified));
        assert!(!declaration.none.is_empty() && !declaration.workspace.is_empty());
    }
}

/// It has no sandbox of its own (R-PLC-1).
#[tokio::test]
async fn where_nobody_isolates_it_there_is_no_workspace() {
    let declaration = declared(program("native", "echo '2.1.332 (Claude Code)'"), Isolation::Native).await;
    assert_eq!(reason(&declaration), "available");
    assert!(declaration.workspace.is_empty() && !declaration.none.is_empty());
}

#[tokio::test]
async fn a_broken_program_is_unavailable_with_what_to_do() {
    let again = "; install @anthropic-ai/claude-code again, or name another program";
    for (name, text, want) in [
        ("fails", "echo no luck >&2; exit 7", "--version ended with exit code 7: no luck"),
        ("mute", "exit 0", "--version printed no version"),
        ("dumb", "echo hello", "--version printed no version"),
    ] {
        let declaration = declared(program(name, text), Isolation::Outer).await;
        assert!(reason(&declaration).ends_with(&format!(": {want}{again}")), "{}", reason(&declaration));
        assert!(!declaration.qualified);
    }
    let declaration = declared(PathBuf::from("/nowhere/claude"), Isolation::Outer).await;
    assert_eq!(
        reason(&declaration),
        "/nowhere/claude does not exist; install @anthropic-ai/claude-code, or correct the path"
    );
}
