//! `runtime-bridge doctor`: says which Harness is usable, why not, and what to do (R-OBS-2).

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fs};

use conformance::authority::Authority;
use conformance::rig::{claude, codex, program};

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{name}-{}", std::process::id()));
    // An earlier process may have had the same id.
    _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn doctor(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("runtime-bridge").unwrap());
    command.arg("doctor").args(arguments).current_dir(folder).env_clear();
    command.env("HOME", folder).env("PATH", env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
    let (state, socket) = (folder.join("state"), folder.join("s"));
    command.arg("--state").arg(state).arg("--socket").arg(socket).output().unwrap()
}

#[track_caller]
fn check(output: &Output, code: i32, wants: &[&str]) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    for want in wants {
        assert!(out.contains(want), "{want:?} is not in {out}{err}");
    }
    assert!((1..=32).contains(&out.lines().count()), "{out}");
}

#[test]
fn a_listener_with_tls_is_told_with_its_callers_and_what_is_wrong_with_its_files() {
    let folder = folder("listen");
    let authority = Authority::new("an authority").unwrap();
    let put = |name: &str, text: &str, mode: u32| {
        fs::write(folder.join(name), text).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    let good = authority.server(&["localhost"]).unwrap();
    put("ca.pem", authority.pem(), 0o644);
    put("s.pem", &good.pem, 0o644);
    put("s.key", &good.key, 0o600);
    let listen = "[[listen]]\naddress = '192.0.2.1:7443'\ncertificate = 's.pem'\nkey = 's.key'\nclient_ca = 'ca.pem'\n\
        allow = ['spiffe://example.org/core', 'urn:ops']";
    put("config.toml", listen, 0o644);
    let codex = codex().unwrap();
    let arguments = ["--config", "config.toml", "--codex", codex.to_str().unwrap(), "--isolation", "outer"];
    let told = "192.0.2.1:7443 with mutual TLS for spiffe://example.org/core, urn:ops";
    check(&doctor(&folder, &arguments), 0, &[told, "the certificate is good for another", "ready"]);
    let expired = authority.sign(|params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        Ok(())
    });
    let expired = expired.unwrap();
    put("s.pem", &expired.pem, 0o644);
    check(&doctor(&folder, &arguments), 1, &[told, "is not the one of the certificate in", "not ready"]);
    put("s.key", &expired.key, 0o600);
    check(&doctor(&folder, &arguments), 1, &[told, "expired since", "renew it", "not ready"]);
    put("s.key", &expired.key, 0o640);
    check(&doctor(&folder, &arguments), 1, &[told, "can be read by others; give it mode 0600", "not ready"]);
    fs::remove_file(folder.join("ca.pem")).unwrap();
    put("s.key", &expired.key, 0o600);
    check(&doctor(&folder, &arguments), 1, &[told, "ca.pem", "not ready"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_usable_harness_is_told_with_its_path_and_version() {
    let folder = folder("good");
    let codex = codex().unwrap();
    let path = codex.to_str().unwrap();
    let output = doctor(&folder, &["--codex", path, "--isolation", "outer"]);
    // What holds of who may connect, and what the same uid leaves open (R-SEC-1).
    let holds = ["a process below a keeper is refused", "which Harnesses have too", "can read the state, key files"];
    check(&output, 0, &[&["codex", path, "0.171.0", "outer", "usable"], &holds[..]].concat());
    // A listener that tools can call is said to be one.
    let bearer = folder.join("bearer");
    fs::write(&bearer, "CANARY\n").unwrap();
    fs::set_permissions(&bearer, fs::Permissions::from_mode(0o600)).unwrap();
    let arguments =
        ["--codex", path, "--isolation", "outer", "--insecure-loopback", "127.0.0.1:7480", "--yes-tools-can-call"];
    let output = doctor(&folder, &[&arguments[..], &["--bearer-file", "bearer"]].concat());
    check(&output, 0, &["loopback", "127.0.0.1:7480", "tools that a model runs included"]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("CANARY"));
    // It looked, and made nothing.
    assert!(!folder.join("state").exists() && !folder.join("s").exists());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn claude_code_is_told_with_what_its_user_has_to_know() {
    let folder = folder("claude");
    let claude = claude().unwrap().canonicalize().unwrap();
    let path = claude.to_str().unwrap();
    let key = "the model key stands in the environment of its process";
    let arguments = ["--codex", "/nonexistent/codex", "--claude", path, "--isolation", "outer"];
    let output = doctor(&folder, &[&arguments[..], &["--no-gateway"]].concat());
    check(&output, 0, &["claude_code", path, "2.1.332", key, "gateway     off", "tool_search", "local_environment"]);
    let output = doctor(&folder, &arguments);
    check(&output, 0, &["claude_code", "gateway     on"]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains(key));
    // Without a sandbox of its own it has no workspace, and that is said.
    let output = doctor(&folder, &["--codex", "/nonexistent/codex", "--claude", path, "--isolation", "native"]);
    check(&output, 0, &["workspace nothing", "no sandbox of its own", "set isolation to outer"]);
    // Another version is usable, and not proved.
    let program = folder.join("claude");
    fs::write(&program, "#!/bin/sh\necho '9.9.9 (Claude Code)'\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = doctor(
        &folder,
        &["--codex", "/nonexistent/codex", "--claude", program.to_str().unwrap(), "--isolation", "outer"],
    );
    check(&output, 0, &["9.9.9 (not proved; the nearest proved version is taken as its like)"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_unusable_harness_is_told_with_what_to_do() {
    let folder = folder("bad");
    let missing = ["--codex", "/nonexistent/codex", "--claude", "/nonexistent/claude", "--isolation", "outer"];
    let output = doctor(&folder, &missing);
    let wants =
        ["/nonexistent/codex", "/nonexistent/claude", "does not exist", "@openai/codex", "@anthropic-ai/claude-code"];
    check(&output, 1, &wants);
    for name in ["codex", "claude"] {
        fs::write(folder.join(name), "").unwrap();
    }
    let output = doctor(&folder, &["--codex", "codex", "--claude", "claude", "--isolation", "outer"]);
    check(&output, 1, &["not executable"]);
    let codex = codex().unwrap();
    let output = doctor(
        &folder,
        &["--codex", codex.to_str().unwrap(), "--isolation", "outer", "--keeper", "/nonexistent/keeper"],
    );
    check(&output, 1, &["/nonexistent/keeper", "keeper"]);
    fs::remove_dir_all(folder).unwrap();
}

/// A program of this name that says this of its version.
fn saying(folder: &Path, name: &str, script: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn claude_code_is_told_with_its_version_its_isolation_and_where_its_key_is() {
    let folder = folder("claude-alone");
    // Only Claude Code is looked at.
    fs::write(folder.join("config.toml"), "gateway = false\ncodex.program = \"/nonexistent/codex\"\n").unwrap();
    let told = |program: &Path, isolation: &str| {
        let arguments = ["--config", "config.toml", "--isolation", isolation, "--claude", program.to_str().unwrap()];
        doctor(&folder, &arguments)
    };
    let claude = claude().unwrap();
    let path = claude.canonicalize().unwrap();
    let path = path.to_str().unwrap();
    let key = "the model key stands in the environment of its process";
    check(&told(&claude, "outer"), 0, &["claude_code", path, "2.1.332\n", key, "local_environment"]);
    // Who has no key is told what a Session needs: nobody is there for a login.
    let login = "without a key it would ask for a login, so a Session of it needs the credential `model`";
    check(&told(&claude, "outer"), 0, &[login, "a login of this machine's user is not looked at"]);
    // Without an isolation around the bridge it has no workspace, and it is said why and what to do. Root is told what is its own.
    let native = told(&claude, "native");
    check(&native, 0, &["no sandbox of its own", "set isolation to outer", "workspace nothing"]);
    let (in_sandbox, without) = ("(IS_SANDBOX=1), on the word of isolation = outer", "runs as root without a sandbox");
    let is_root = rustix::process::geteuid().is_root();
    for (isolation, text) in [("outer", in_sandbox), ("native", without)] {
        let output = told(&claude, isolation);
        assert_eq!(String::from_utf8_lossy(&output.stdout).contains(text), is_root, "{isolation}: {output:?}");
    }

    // A version that nobody has proved is used, and said to be one.
    let newer = saying(&folder, "newer", "echo '9.9.9 (Claude Code)'");
    check(&told(&newer, "outer"), 0, &["9.9.9 (not proved;", "usable    yes"]);
    let silent = saying(&folder, "silent", "exit 0");
    check(&told(&silent, "outer"), 1, &["printed no version", "install @anthropic-ai/claude-code again"]);
    let broken = saying(&folder, "broken", "echo 'Please run /login' >&2; exit 1");
    check(&told(&broken, "outer"), 1, &["--version ended with", "Please run /login", "or name another program"]);
    check(&told(&folder.join("none"), "outer"), 1, &["does not exist; install @anthropic-ai/claude-code"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn wrong_settings_are_told_as_at_the_start_of_the_daemon() {
    let folder = folder("settings");
    fs::write(folder.join("config.toml"), "stat = \"x\"\n").unwrap();
    let output = doctor(&folder, &["--config", "config.toml"]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(10), "{err}");
    assert!(err.contains("line 1") && err.contains("stat"), "{err}");
    fs::remove_dir_all(folder).unwrap();
}
