//! `runtime-bridge run` with a Claude Code that cannot be run here, or not as it was proved: each reason has a text of its own that says what to
//! do (R-OBS-2). The real program stands behind all but the one that is missing.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use conformance::rig::{claude, program};

/// Answers as another version, and is the real program otherwise.
const NEWER: &str = r#"[ "$1" = --version ] && { echo '9.9.9 (Claude Code)'; exit; }
exec "$REAL" "$@""#;

/// Root is refused where nothing says that there is a sandbox. Who is not root sees it in these words.
const AS_ROOT: &str = r#"unset IS_SANDBOX
[ "$1" = --version ] || [ "$(id -u)" = 0 ] || {
    echo '--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons' >&2
    exit 1
}
exec "$REAL" "$@""#;

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reasons-{}", std::process::id()));
    fs::create_dir_all(folder.join("work")).unwrap();
    folder
}

/// A program of these lines, which find the real one at `$REAL`.
fn script(folder: &Path, name: &str, lines: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\nREAL='{}'\n{lines}\n", claude().unwrap().display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The code and the standard error of a run with this program.
fn run(folder: &Path, program_of_claude: &str, isolation: &str, rest: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program("runtime-bridge").unwrap());
    command.args(["run", "--harness", "claude_code", "--workspace", "work", "--isolation", isolation]);
    command.args(["--claude", program_of_claude]).args(rest).current_dir(folder).env_clear();
    command.env("HOME", folder).env("PATH", env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn each_reason_not_to_run_claude_code_is_told_with_what_to_do() {
    let folder = folder();
    let real = claude().unwrap().display().to_string();
    let (newer, as_root) = (script(&folder, "newer", NEWER), script(&folder, "as-root", AS_ROOT));
    let silent = script(&folder, "silent", "exit 0");
    let mock = ["--mock", "hi"];
    for (program, isolation, rest, code, want) in [
        // Without a variable and without a file there is no key, and nobody is there for a login.
        (&*real, "outer", &["hi"] as &[_], 2, "no model key: set ANTHROPIC_API_KEY, name a file with --key-file"),
        (
            "/nonexistent/claude",
            "outer",
            &mock,
            1,
            "/nonexistent/claude does not exist; install @anthropic-ai/claude-code",
        ),
        (&silent, "outer", &mock, 1, "printed no version; install @anthropic-ai/claude-code again"),
        (&newer, "outer", &mock, 0, "claude_code 9.9.9 is not proved; the nearest proved version is taken as its like"),
        (
            &real,
            "native",
            &mock,
            1,
            "has no sandbox of its own, so it is not run on a workspace; set isolation = \"outer\"",
        ),
        (&as_root, "outer", &mock, 1, "run the bridge as another user, or install the proved version 2.1.332"),
    ] {
        let (ended, said) = run(&folder, program, isolation, rest);
        assert_eq!(ended, Some(code), "{program}: {said}");
        assert!(said.contains(want), "{want} is not in {said}");
    }
    fs::remove_dir_all(folder).unwrap();
}
