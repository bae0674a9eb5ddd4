//! What is declared for programs that are missing, broken, or newer than what was proved.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use adapters::{
    codex::{Codex, Settings},
    harness::{Availability, Capability, Declaration, Harness as _, Isolation, Placement, Proved},
};

/// A program in a folder of its own.
fn program(name: &str, text: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("codex-declaration-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("codex");
    fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn codex(program: PathBuf, isolation: Isolation) -> Codex {
    let mut settings = Settings::new(PathBuf::from(env!("CARGO_BIN_EXE_runtime-bridge-keeper")), isolation);
    settings.program = Some(program);
    Codex::new(settings)
}

fn reason(declaration: &Declaration) -> &str {
    match &declaration.availability {
        Availability::Unavailable { reason } => reason,
        Availability::Available => "available",
    }
}

#[tokio::test]
async fn the_proved_version_is_qualified_and_another_is_not() {
    for (version, qualified) in [("0.171.0", true), ("0.999.0-alpha.1", false)] {
        let codex = codex(program(version, &format!("echo codex-cli {version}")), Isolation::Outer);
        let declaration = codex.declare().await;
        assert_eq!(reason(&declaration), "available");
        assert_eq!((declaration.version.as_deref(), declaration.qualified), (Some(version), qualified));
        let has = |of: &[Proved], capability| of.iter().any(|proved| proved.capability() == capability);
        assert!(
            has(&declaration.workspace, Capability::FunctionTools) && has(&declaration.none, Capability::FunctionTools)
        );
        assert!(!has(&declaration.none, Capability::LocalEnvironment));
        let again = Instant::now();
        assert_eq!(codex.declare().await, declaration);
        assert!(again.elapsed() < Duration::from_millis(50), "it was probed again");
    }
}

/// Without a workspace there is no project that could send the key elsewhere (R-PLC-1).
#[tokio::test]
async fn a_key_and_a_trusted_project_exclude_each_other_on_a_workspace_only() {
    let mut settings = Settings::new(PathBuf::from(env!("CARGO_BIN_EXE_runtime-bridge-keeper")), Isolation::Outer);
    settings.program = Some(program("trusts", "echo codex-cli 0.171.0"));
    settings.trust_workspace = true;
    let codex = Codex::new(settings);
    let declaration = codex.declare().await;
    let workspace = Placement::Workspace { environment_id: "e".into(), directory: PathBuf::from("/w") };
    assert!(codex.admit_key(&declaration, &workspace).is_err());
    assert_eq!(codex.admit_key(&declaration, &Placement::None), Ok(()));
}

/// Whatever is found on the machine, nothing is declared that no scenario has proved (R-CAP-3).
#[tokio::test]
async fn looking_at_the_machine_never_adds_a_capability() {
    let proved = codex(program("whole", "echo codex-cli 0.171.0"), Isolation::Outer).declare().await;
    assert!(!proved.none.is_empty() && !proved.workspace.is_empty());
    for (name, text) in [
        ("newer-whole", "echo codex-cli 9.0.0 with every capability"),
        ("no-sandbox", "[ \"$1\" = --version ] && echo codex-cli 0.171.0 || exit 1"),
        ("dead", "exit 9"),
    ] {
        for isolation in [Isolation::Outer, Isolation::Native] {
            let found = codex(program(name, text), isolation).declare().await;
            assert!(found.none.iter().all(|one| proved.none.contains(one)), "{name}: {:?}", found.none);
            assert!(found.workspace.iter().all(|one| proved.workspace.contains(one)), "{name}: {:?}", found.workspace);
        }
    }
}

#[tokio::test]
async fn a_broken_program_is_unavailable_with_what_to_do() {
    for (name, text, want) in [
        ("fails", "echo no luck >&2; exit 7", "--version ended with exit code 7: no luck; install @openai/codex again"),
        ("mute", "exit 0", "--version printed no version; install @openai/codex again"),
    ] {
        let declaration = codex(program(name, text), Isolation::Outer).declare().await;
        assert!(reason(&declaration).contains(want), "{}", reason(&declaration));
        assert!(!declaration.qualified);
    }
    let declaration = codex(PathBuf::from("/nowhere/codex"), Isolation::Outer).declare().await;
    assert_eq!(reason(&declaration), "/nowhere/codex does not exist; install @openai/codex, or correct the path");
}

#[tokio::test]
async fn a_program_that_hangs_is_ended() {
    let declaration = codex(program("hangs", "while :; do sleep 1000; done"), Isolation::Outer).declare().await;
    assert!(reason(&declaration).contains("--version did not end within 10s"), "{}", reason(&declaration));
}

#[tokio::test]
async fn a_replaced_program_is_looked_at_again() {
    let path = program("replaced", "echo codex-cli 1.0.0");
    let codex = codex(path.clone(), Isolation::Outer);
    assert_eq!(codex.declare().await.version.as_deref(), Some("1.0.0"));
    fs::write(&path, "#!/bin/sh\necho codex-cli 2.0.0-beta\n").unwrap();
    assert_eq!(codex.declare().await.version.as_deref(), Some("2.0.0-beta"));
}

#[tokio::test]
async fn a_sandbox_that_does_not_work_names_the_key() {
    let text = r#"if [ "$1" = sandbox ]; then echo 'no namespaces' >&2; exit 1; fi; echo codex-cli 0.171.0"#;
    let path = program("sandbox", text);
    let native = codex(path.clone(), Isolation::Native).declare().await;
    assert!(reason(&native).contains("sandbox ended with exit code 1: no namespaces"), "{}", reason(&native));
    assert!(reason(&native).contains("isolation = \"outer\""), "{}", reason(&native));
    assert_eq!(reason(&codex(path, Isolation::Outer).declare().await), "available");
}
