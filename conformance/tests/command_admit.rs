//! `runtime-bridge admit`: what a person and what a program read of a file, and how the command ends.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use conformance::rig::program;
use serde_json::{Value, json};

/// Claude Code has no such verbosity.
const FILE: &str = r#"{"tools":[{"type":"web_search"}],"text":{"verbosity":"low"}}"#;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("admit-{name}-{}", std::process::id()));
    fs::create_dir_all(folder.join("work")).unwrap();
    folder
}

/// The code, the standard output and the standard error of the command.
fn admit(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(program("runtime-bridge").unwrap());
    command.arg("admit").args(arguments).current_dir(folder).env_clear();
    command.env("PATH", env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_file_is_admitted_or_rejected_in_words_and_in_json() {
    let folder = folder("outcomes");
    fs::write(folder.join("agent.json"), FILE).unwrap();
    fs::write(folder.join("list.json"), "[]").unwrap();
    let has = |arguments: &[&str], code: i32, want: &[&str]| {
        let (ended, out, err) = admit(&folder, arguments);
        assert_eq!((ended, err.as_str()), (Some(code), ""), "{arguments:?}: {out}");
        assert!(want.iter().all(|line| out.lines().any(|one| one == *line)), "{arguments:?}: {out}");
    };
    let codex = ["agent.json", "--harness", "codex"];
    let defaulted = "  not given, so tools[0].mode is live";
    has(&codex, 0, &["Admitted for a Session of codex without an Environment.", defaulted]);
    has(&[&codex[..], &["--workspace", "work"]].concat(), 0, &["Admitted for a Session of codex on a workspace."]);
    has(&["agent.json", "--harness", "claude_code", "--purpose", "save"], 0, &["Admitted to be kept.", defaulted]);
    let rejected = "  HTTP 400, code unsupported_or_invalid_configuration, param text.verbosity";
    has(&["agent.json", "--harness", "claude_code"], 1, &[rejected]);
    has(&["list.json", "--harness", "codex"], 1, &["Rejected: $: must be an object"]);

    let json = |arguments: &[&str], code: i32| {
        let (ended, out, err) = admit(&folder, &[arguments, &["--json"]].concat());
        assert_eq!((ended, err.as_str()), (Some(code), ""), "{out}");
        assert_eq!(out.lines().count(), 1, "{out}");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let admitted = &json(&codex, 0)["admitted"];
    assert_eq!(admitted["projection"]["tools"][0]["mode"], "live", "{admitted}");
    assert!(admitted["defaulted"].as_array().is_some_and(|all| all.contains(&json!("tools[0].mode: live"))));
    let rejected = &json(&["agent.json", "--harness", "claude_code"], 1)["rejected"];
    assert_eq!((&rejected["http_status"], &rejected["param"]), (&json!(400), &json!("text.verbosity")), "{rejected}");
    assert_eq!(rejected["code"], "unsupported_or_invalid_configuration");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_judged_is_said_on_standard_error() {
    let folder = folder("errors");
    fs::write(folder.join("agent.json"), FILE).unwrap();
    for (arguments, code, want) in [
        (&["none.json", "--harness", "codex"][..], 1, "read none.json"),
        (&["agent.json", "--harness", "codex", "--workspace", "none"], 1, "find the workspace none"),
        (&["agent.json"], 2, "--harness"),
        (&["agent.json", "--harness", "other"], 2, "claude_code"),
        (&["agent.json", "--harness", "codex", "--purpose", "keep"], 2, "save"),
    ] {
        let (ended, out, err) = admit(&folder, arguments);
        assert_eq!((ended, out.as_str()), (Some(code), ""), "{arguments:?}: {err}");
        assert!(err.contains(want), "{want} is not in {err}");
    }
    fs::remove_dir_all(folder).unwrap();
}
