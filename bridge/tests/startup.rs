//! Starts of `runtime-bridge serve` that cannot succeed: each ends at once with one line that says what to do, and with a code of its
//! own; what was there before is left as it was.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Folders of one daemon: its own below the build's, its socket in a short one.
struct Place {
    root: PathBuf,
    sockets: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let id = std::process::id();
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("startup-{name}-{id}"));
        let sockets = std::env::temp_dir().join(format!("rb-start-{name}-{id}"));
        for folder in [&root, &sockets, &root.join("workspaces")] {
            fs::create_dir_all(folder).unwrap();
        }
        Self { root, sockets }
    }

    fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    fn socket(&self) -> PathBuf {
        self.sockets.join("s")
    }

    /// `serve` with a configuration of these lines, and these arguments over it.
    fn serve(&self, more: &str, arguments: &[&str]) -> Command {
        let config = self.root.join("config.toml");
        let mut text = String::new();
        for (key, value) in [("state", self.state()), ("socket", self.socket())] {
            if !more.starts_with(&format!("{key} =")) {
                text.push_str(&format!("{key} = {value:?}\n"));
            }
        }
        text.push_str(&format!("{more}\n"));
        fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_runtime-bridge"));
        command.arg("serve").arg("--config").arg(config).args(arguments);
        command.env_clear().env("HOME", &self.root).env("PATH", "/usr/bin:/bin").current_dir(&self.root);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a daemon and waits until it listens.
    fn running(&self, more: &str) -> Running {
        let mut child = self.serve(more, &[]).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("\"listening\"") {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "it did not start: {said}");
        }
        Running { child, stderr }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left is in the build's folder or empty, and hurts nobody.
        _ = fs::remove_dir_all(&self.sockets);
        if !std::thread::panicking() {
            _ = fs::remove_dir_all(&self.root);
        }
    }
}

struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    /// Signals it and gives the code with which it ends, if it ends with one.
    fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only where a test has failed it still runs.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The start ends with this code and one line that holds these texts.
#[track_caller]
fn fails(mut command: Command, code: i32, wants: &[&str]) -> String {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(code), "{err}");
    assert_eq!(out, "", "{err}");
    let told: Vec<_> = err.lines().filter(|line| !line.starts_with('{')).collect();
    assert_eq!(told.len(), 1, "{err}");
    assert!(told[0].starts_with("runtime-bridge: could not "), "{err}");
    for want in wants {
        assert!(told[0].contains(want), "{want:?} is not in {err}");
    }
    err
}

#[test]
fn a_wrong_configuration_names_its_line_and_key() {
    let place = Place::new("config");
    for (more, wants) in [
        ("stat = \"x\"", &["config.toml", "line 3", "stat", "state"] as &[_]),
        ("[limits]\nhandle_life = 5", &["line 4", "handle_life"]),
        ("isolation = \"maybe\"", &["isolation", "outer", "native"]),
        ("max_executors = 0", &["max_executors", "at least 1"]),
        ("max_executors = \"many\"", &["line 3", "max_executors"]),
        ("limits.keep_alive_ms = 0", &["limits.keep_alive_ms"]),
        ("= 5", &["line 3"]),
        ("log = \"bridge=loud\"", &["log"]),
        ("[providers.p]\nprotocol = \"chat\"\nbase_url = \"https://example.com\"", &["providers.p.protocol"]),
        ("[providers.p]\nprotocol = \"responses\"\nbase_url = \"example.com\"", &["providers.p.base_url"]),
        ("[providers.p]\nprotocol = \"responses\"\nbase_url = \"https://u:CANARY@example.com\"", &["credentials"]),
    ] {
        let said = fails(place.serve(more, &[]), 10, wants);
        assert!(!said.contains("CANARY"), "{said}");
    }
    let mut missing = Command::new(env!("CARGO_BIN_EXE_runtime-bridge"));
    missing.args(["serve", "--config", "/nonexistent/config.toml"]);
    fails(missing, 10, &["/nonexistent/config.toml", "No such file"]);
    fails(place.serve("", &["--isolation", "maybe"]), 10, &["isolation"]);
    assert!(!place.state().exists() && !place.socket().exists(), "a failed start made something");
}

#[test]
fn a_key_file_is_for_nobody_else() {
    let place = Place::new("key");
    let key = place.root.join("key");
    let more = "[providers.p]\nprotocol = \"responses\"\nbase_url = \"https://example.com\"\nkey_file = \"key\"";
    fails(place.serve(more, &[]), 10, &["key", "No such file"]);
    fs::write(&key, "CANARY\n").unwrap();
    for mode in [0o644, 0o640, 0o604] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let said = fails(place.serve(more, &[]), 10, &["providers.p.key_file", "0600"]);
        assert!(!said.contains("CANARY"), "{said}");
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    for text in ["", "\n", "CANARY\nCANARY\n", "CANARY\u{7}"] {
        fs::write(&key, text).unwrap();
        let said = fails(place.serve(more, &[]), 10, &["providers.p.key_file"]);
        assert!(!said.contains("CANARY"), "{said}");
    }
    fs::write(&key, "CANARY\n").unwrap();
    assert_eq!(place.running(more).end(Signal::TERM), Some(0));
}

#[test]
fn a_state_that_is_no_directory_is_left_alone() {
    let place = Place::new("state");
    fs::write(place.state(), "mine").unwrap();
    fails(place.serve("", &[]), 11, &["state directory", &place.state().to_string_lossy()]);
    assert_eq!(fs::read_to_string(place.state()).unwrap(), "mine");
    // Below a file no directory can be made, whoever we are.
    let below = format!("state = {:?}", place.state().join("below"));
    fails(place.serve(&below, &[]), 11, &["below"]);
    // A lock that cannot be had, without somebody who has it.
    fs::remove_file(place.state()).unwrap();
    fs::create_dir_all(place.state().join("lock")).unwrap();
    fails(place.serve("", &[]), 11, &["lock"]);
}

#[test]
fn a_second_daemon_on_the_same_state_is_told_who_has_it() {
    let place = Place::new("locked");
    let first = place.running("");
    let second = place.serve("", &["--socket", place.sockets.join("t").to_str().unwrap()]);
    fails(second, 12, &["lock", &format!("process {}", first.child.id())]);
    // The first one does not notice.
    UnixStream::connect(place.socket()).unwrap();
    assert_eq!(first.end(Signal::TERM), Some(0));
    assert!(!place.socket().exists());
    assert_eq!(place.running("").end(Signal::INT), Some(0), "the lock is free again");
}

#[test]
fn a_journal_that_is_none_or_newer_is_left_alone() {
    let place = Place::new("journal");
    assert_eq!(place.running("").end(Signal::TERM), Some(0));
    let journal = place.state().join("journal.db");
    let good = fs::read(&journal).unwrap();
    // The format of SQLite keeps the user's version as four bytes from byte 60 on.
    let mut newer = good.clone();
    newer[60..64].copy_from_slice(&99_u32.to_be_bytes());
    fs::write(&journal, &newer).unwrap();
    fails(place.serve("", &[]), 14, &["schema 99"]);
    assert_eq!(fs::read(&journal).unwrap()[60..64], newer[60..64]);
    // The application's number stands from byte 68 on: a database of another program.
    let mut foreign = good.clone();
    foreign[68..72].copy_from_slice(b"OTHR");
    let garbage = b"this is no journal, and long enough to be looked at".to_vec();
    let cut = good[..good.len() / 2].to_vec();
    let torn = [&good[..4096], &[0x5a; 4096], &good[8192..]].concat();
    for damaged in [foreign, garbage, cut, torn] {
        fs::write(&journal, &damaged).unwrap();
        fails(place.serve("", &[]), 13, &["journal"]);
        assert!(fs::read(&journal).unwrap() == damaged, "it was changed");
    }
    // Without a journal nobody knows what the Sessions' folders hold.
    fs::create_dir_all(place.state().join("sessions/0123456789abcdef0123456789abcdef")).unwrap();
    fs::write(&journal, "").unwrap();
    fails(place.serve("", &[]), 13, &["journal", "sessions"]);
    fs::remove_file(&journal).unwrap();
    fails(place.serve("", &[]), 13, &["journal", "sessions"]);
    assert!(!journal.exists());
    fs::remove_dir_all(place.state().join("sessions")).unwrap();
    fs::write(&journal, &good).unwrap();
    fs::remove_file(&journal).unwrap();
    fs::create_dir(&journal).unwrap();
    fails(place.serve("", &[]), 13, &["journal.db"]);
    fs::remove_dir(&journal).unwrap();
    fs::write(&journal, good).unwrap();
    assert_eq!(place.running("").end(Signal::TERM), Some(0));
}

#[test]
fn a_workspace_root_or_a_keeper_that_is_missing_is_named() {
    let place = Place::new("parts");
    fails(place.serve("workspace_roots = [\"workspaces\", \"/nonexistent/root\"]", &[]), 15, &["/nonexistent/root"]);
    fails(place.serve("keeper = \"/nonexistent/keeper\"", &[]), 16, &["/nonexistent/keeper", "`keeper`"]);
    let plain = place.root.join("keeper");
    fs::write(&plain, "").unwrap();
    fails(place.serve(&format!("keeper = {plain:?}"), &[]), 16, &[&plain.to_string_lossy()]);
    fails(place.serve(&format!("keeper = {:?}", place.root), &[]), 16, &["keeper"]);
    assert_eq!(place.running("workspace_roots = [\"workspaces\"]").end(Signal::TERM), Some(0));
}

#[test]
fn a_socket_that_cannot_be_made_is_told_with_its_reason() {
    let place = Place::new("socket");
    let long = place.sockets.join("s".repeat(108));
    let said = fails(place.serve(&format!("socket = {long:?}"), &[]), 17, &["107"]);
    assert!(said.contains(&long.as_os_str().len().to_string()), "{said}");
    // A file is left alone, and so is a directory.
    fs::write(place.socket(), "mine").unwrap();
    fails(place.serve("", &[]), 18, &["not a socket", &place.socket().to_string_lossy()]);
    assert_eq!(fs::read_to_string(place.socket()).unwrap(), "mine");
    fs::remove_file(place.socket()).unwrap();
    fs::create_dir(place.socket()).unwrap();
    fails(place.serve("", &[]), 18, &["not a socket"]);
    fs::remove_dir(place.socket()).unwrap();
    // Somebody listens there: another daemon, or anybody else.
    let stranger = UnixListener::bind(place.socket()).unwrap();
    fails(place.serve("", &[]), 18, &["listens there already"]);
    drop(stranger);
    fs::remove_file(place.socket()).unwrap();
    let other = place.running("");
    let elsewhere = place.serve(&format!("state = {:?}", place.root.join("other")), &[]);
    fails(elsewhere, 18, &["listens there already"]);
    UnixStream::connect(place.socket()).unwrap();
    assert_eq!(other.end(Signal::TERM), Some(0));
    fails(place.serve(&format!("socket = {:?}", place.root.join("config.toml/s")), &[]), 19, &["config.toml/s"]);
}

#[test]
fn a_socket_that_a_killed_daemon_left_is_replaced() {
    let place = Place::new("stale");
    assert_eq!(place.running("").end(Signal::KILL), None);
    assert!(place.socket().exists());
    UnixStream::connect(place.socket()).unwrap_err();
    let next = place.running("");
    UnixStream::connect(place.socket()).unwrap();
    assert_eq!(fs::metadata(place.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(next.end(Signal::TERM), Some(0));
    assert!(!place.socket().exists());
}

/// A state that others could read is closed, and a socket's folder that is not there is made.
#[test]
fn what_can_be_put_right_is_put_right() {
    let place = Place::new("right");
    fs::create_dir(place.state()).unwrap();
    fs::set_permissions(place.state(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = place.sockets.join("a/b/s");
    let running = place.running(&format!("socket = {socket:?}"));
    assert_eq!(fs::metadata(place.state()).unwrap().permissions().mode() & 0o777, 0o700);
    UnixStream::connect(&socket).unwrap();
    assert_eq!(running.end(Signal::TERM), Some(0));
}

#[test]
fn a_listener_on_loopback_is_loopback_private_and_meant() {
    let place = Place::new("loopback");
    let bearer = place.root.join("bearer");
    let file = bearer.to_str().unwrap();
    let native = ["--isolation", "native", "--bearer-file", file, "--insecure-loopback"];
    let with = |address| [&native[..], &[address]].concat();
    fails(place.serve("", &with("127.0.0.1:0")), 10, &["bearer", "No such file"]);
    fs::write(&bearer, "CANARY\n").unwrap();
    fs::set_permissions(&bearer, fs::Permissions::from_mode(0o644)).unwrap();
    fails(place.serve("", &with("127.0.0.1:0")), 10, &["loopback.bearer_file", "0600"]);
    fs::set_permissions(&bearer, fs::Permissions::from_mode(0o600)).unwrap();
    for address in ["0.0.0.0:0", "192.0.2.1:80", "[::]:0"] {
        fails(place.serve("", &with(address)), 10, &["loopback.address", "loopback only"]);
    }
    let outer = ["--isolation", "outer", "--bearer-file", file, "--insecure-loopback", "127.0.0.1:0"];
    fails(place.serve("", &outer), 10, &["--yes-tools-can-call"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = fails(place.serve("", &with(&address)), 18, &[&address]);
    assert!(!said.contains("CANARY"), "{said}");
    // The file's keys, with the bearer's path from its folder.
    let more =
        "isolation = \"outer\"\n[loopback]\naddress = \"[::1]:0\"\nbearer_file = \"bearer\"\nyes_tools_can_call = true";
    let v6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    let more = if v6 { more.to_owned() } else { more.replace("[::1]", "127.0.0.1") };
    assert_eq!(place.running(&more).end(Signal::TERM), Some(0));
}

#[test]
fn logs_are_for_programs_or_for_a_person() {
    let place = Place::new("logs");
    let first_line = |arguments: &[&str]| {
        let mut child = place.serve("", arguments).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
        line
    };
    let json = first_line(&[]);
    assert!(json.starts_with('{') && json.contains("\"message\":\"the gateway listens\""), "{json}");
    let text = first_line(&["--log-format", "text"]);
    assert!(
        text.contains(" INFO ") && text.contains("the gateway listens") && !text.contains(['{', '\u{1b}']),
        "{text}"
    );
    fails(place.serve("", &["--log-format", "xml"]), 10, &["log_format", "`json` or `text`"]);
}
