//! Fault children as programs: started through the executable that stands in for a Harness.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use conformance::child::codex;
use conformance::child::fault::{Fault, MARK, Place};
use conformance::child::{FaultChild, VERSION_LINE};
use conformance::script::Script;
use conformance::script::child::Program;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime-bridge-conformance");

/// A folder of its own for a test.
fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("child-{name}-{}", std::process::id()));
    // An earlier process may have had the same id, and its marks are still there.
    _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    files: FaultChild,
}

fn start(name: &str, program: Program) -> Running {
    let files = FaultChild::install(&folder(name), "codex", Path::new(PROGRAM), program).unwrap();
    let mut child = Command::new(files.path())
        .args(["app-server", "--strict-config"])
        .env("MARKER", "here")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    Running { child, stdin, stdout, files }
}

fn scripted(name: &str, text: &str) -> Running {
    start(name, Script::parse(&format!(r#"{{"version":1,"child":{text}}}"#)).unwrap().child.unwrap())
}

impl Running {
    fn send(&mut self, line: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a line of JSON: {line:?}"))
    }

    /// Reads up to the line with this method or this id.
    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut lines = Vec::new();
        loop {
            lines.push(self.line());
            if wanted(&lines[lines.len() - 1]) {
                return lines;
            }
        }
    }

    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.stdout.read_to_end(&mut rest).unwrap();
        rest
    }

    fn end(mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.child.wait().unwrap()
    }
}

/// Starts a thread and a Turn, and gives what came before the answer to the last of them.
fn begin_turn(running: &mut Running) {
    running.send(&json!({"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "bridge"}}}));
    running.send(&json!({"method": "initialized"}));
    running.send(&json!({"id": 2, "method": "thread/start", "params": {"cwd": "/w"}}));
    let lines = running.until(|line| line["method"] == "thread/started");
    let thread = &lines[lines.len() - 1]["params"]["thread"]["id"];
    let input = json!([{"type": "text", "text": "hi"}]);
    running.send(&json!({"id": 3, "method": "turn/start", "params": {"threadId": thread, "input": input}}));
}

#[test]
fn tells_its_version() {
    let files = FaultChild::install(&folder("version"), "codex", Path::new(PROGRAM), codex::healthy()).unwrap();
    let output = Command::new(files.path()).arg("--version").output().unwrap();
    assert_eq!(output.stdout, VERSION_LINE.as_bytes());
    assert!(output.status.success());
}

#[test]
fn the_healthy_program_plays_turns_and_keeps_what_it_received() {
    let mut running = start("healthy", codex::healthy());
    for _ in 0..2 {
        begin_turn(&mut running);
        let lines = running.until(|line| line["method"] == "turn/completed");
        let items = |method: &str| lines.iter().filter(|line| line["method"] == method).count();
        assert_eq!((items("item/started"), items("item/completed")), (4, 4));
        assert_eq!(lines[lines.len() - 1]["params"]["turn"]["status"], "completed");
        assert_eq!(lines[0]["result"]["turn"]["id"], lines[lines.len() - 1]["params"]["turn"]["id"]);
    }
    running.send(&json!({"id": 9, "method": "no/such"}));
    assert_eq!(running.line()["error"]["message"], "unknown method no/such");
    let files = running.files.clone();
    assert_eq!(running.end().code(), Some(0));
    let [start] = &files.starts().unwrap()[..] else { panic!("one start") };
    assert_eq!(start.args, ["app-server", "--strict-config"]);
    assert_eq!(start.env["MARKER"], "here");
    let received = String::from_utf8(files.received(start.pid).unwrap()).unwrap();
    assert_eq!(received.lines().count(), 9);
    assert!(received.ends_with("{\"id\":9,\"method\":\"no/such\"}\n"));
}

#[test]
fn a_call_shows_its_arguments_byte_for_byte_and_confirms_the_answer() {
    let mut running = start("call", codex::calling(r#"{"z":1e400,"z":1.0}"#));
    begin_turn(&mut running);
    loop {
        let mut line = String::new();
        running.stdout.read_line(&mut line).unwrap();
        if line.contains("item/tool/call") {
            assert!(line.contains(r#""arguments":{"z":1e400,"z":1.0}"#), "{line}");
            break;
        }
    }
    let parts = json!([{"type": "inputText", "text": "42"}]);
    running.send(&json!({"id": 0, "result": {"success": true, "contentItems": parts}}));
    let mut line = String::new();
    running.stdout.read_line(&mut line).unwrap();
    assert!(line.contains(r#""contentItems":[{"text":"42","type":"inputText"}],"success":true"#), "{line}");
}

#[test]
fn an_interrupt_ends_the_turn_that_waits_for_it() {
    let mut running = start("interrupt", codex::with_steps(Place::AtInterrupt, &[]));
    begin_turn(&mut running);
    running.until(|line| line["method"] == "item/agentMessage/delta");
    running.send(&json!({"id": 4, "method": "turn/interrupt", "params": {}}));
    let lines = running.until(|line| line["method"] == "turn/completed");
    assert_eq!(lines[0], json!({"id": 4, "result": {}}));
    assert_eq!(lines[2]["params"]["turn"]["status"], "interrupted");
}

#[test]
fn faults_end_the_child_as_they_say() {
    for (fault, code, signal) in [
        (Fault::ExitsWith0, Some(0), None),
        (Fault::ExitsWith1, Some(1), None),
        (Fault::Segfaults, None, Some(11)),
        (Fault::IsKilled, None, Some(9)),
        (Fault::EndsInALine, Some(0), None),
    ] {
        for place in [Place::Start, Place::InMessage] {
            let mut running = start(&format!("{fault:?}-{place:?}"), codex::with_fault(place, fault));
            if place == Place::InMessage {
                begin_turn(&mut running);
            }
            let rest = running.rest();
            assert_eq!(rest.ends_with(b"\"turn/comp"), fault == Fault::EndsInALine, "{fault:?}");
            // Standard input is still open: the child ends by itself.
            let status = running.child.wait().unwrap();
            assert_eq!((status.code(), status.signal()), (code, signal), "{fault:?} {place:?}");
        }
    }
}

#[test]
fn a_disturbance_is_followed_by_the_healthy_program() {
    for fault in Fault::ALL.into_iter().filter(|fault| fault.goes_on()) {
        let mut running = start(&format!("{fault:?}"), codex::with_fault(Place::InMessage, fault));
        // Somebody has to read standard error while it is flooded.
        let mut stderr = running.child.stderr.take().unwrap();
        let drained = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).unwrap();
            bytes.len()
        });
        begin_turn(&mut running);
        let mut longest = 0;
        let mut invalid = 0;
        loop {
            let mut line = Vec::new();
            running.stdout.read_until(b'\n', &mut line).unwrap();
            longest = longest.max(line.len());
            invalid += usize::from(serde_json::from_slice::<Value>(&line).is_err());
            if line.starts_with(br#"{"emittedAtMs":0,"method":"turn/completed""#) {
                break;
            }
        }
        let broken = matches!(fault, Fault::WritesInvalidUtf8 | Fault::WritesNoJson);
        assert_eq!(invalid, usize::from(broken), "{fault:?}");
        assert_eq!(longest > 65 << 20, fault == Fault::WritesALineOf65MiB, "{fault:?}");
        assert_eq!(running.end().code(), Some(0));
        assert_eq!(drained.join().unwrap() >= 1 << 20, fault == Fault::FloodsStderr, "{fault:?}");
    }
}

#[test]
fn a_deaf_child_outlives_a_termination_and_the_end_of_its_input() {
    let mut running = start("deaf", codex::with_fault(Place::AtInitialize, Fault::Hangs));
    running.send(&json!({"id": 1, "method": "initialize"}));
    let pid = Pid::from_child(&running.child);
    let files = running.files.clone();
    block_on(files.wait_for_mark(MARK));
    drop(running.stdin.take());
    // The mark stands just before the deafness, so the signal may be early; a second fault child knows when it is deaf.
    let mut sure = scripted("deaf-sure", r#"{"steps":["ignore_term",{"mark":"deaf"},{"gate":"go"},{"exit":7}]}"#);
    block_on(sure.files.wait_for_mark("deaf"));
    kill_process(Pid::from_child(&sure.child), Signal::TERM).unwrap();
    sure.files.open_gate("go").unwrap();
    assert_eq!(sure.child.wait().unwrap().code(), Some(7));
    test_kill_process(pid).unwrap();
    running.child.kill().unwrap();
    assert_eq!(running.end().signal(), Some(9));
}

#[test]
fn descendants_hold_the_output_and_survive_the_child() {
    let mut running = start("descendant", codex::with_fault(Place::Start, Fault::LeavesADescendant));
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    let [pid] = running.files.descendants(running.child.id()).unwrap()[..] else { panic!("one descendant") };
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    test_kill_process(pid).unwrap();
    let environment = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap();
    assert!(String::from_utf8_lossy(&environment).contains("MARKER=here"));
    kill_process(pid, Signal::KILL).unwrap();
    // Only now the pipe ends.
    assert_eq!(running.rest(), b"");
}

#[test]
fn writes_have_the_sizes_that_were_asked_for() {
    let mut running = scripted(
        "sizes",
        r#"{"steps":[{"bytes":{"text":"abcdef${pid?}\n","write_sizes":[1,2],"delay_ms":1}},{"bytes":{"hex":"ff00"}},"close_stdout",{"read":{}},{"exit":3}]}"#,
    );
    let pid = running.child.id();
    assert_eq!(running.rest(), [format!("abcdef{pid}\n").as_bytes(), &[0xff, 0]].concat());
    running.send(&json!({}));
    assert_eq!(running.end().code(), Some(3));
}

#[test]
fn rules_are_used_up_and_the_end_of_input_has_steps() {
    let mut running = scripted(
        "rules",
        r#"{"rules":[{"method":"a","times":1,"then":[{"result":"first"}]},{"method":"*","then":[{"result":["${method}","${params.x?}"]}]}],
            "on_eof":[{"bytes":{"text":"bye"}},{"exit":5}]}"#,
    );
    for (id, want) in [(1, json!("first")), (2, json!(["a", null]))] {
        running.send(&json!({"id": id, "method": "a"}));
        assert_eq!(running.line(), json!({"id": id, "result": want}));
    }
    drop(running.stdin.take());
    assert_eq!(running.rest(), b"bye");
    assert_eq!(running.end().code(), Some(5));
}

#[test]
fn a_closed_input_breaks_the_writers_pipe() {
    let mut running = scripted("closed", r#"{"steps":["close_stdin",{"mark":"closed"},{"gate":"never"}]}"#);
    block_on(running.files.wait_for_mark("closed"));
    let error = running.stdin.as_mut().unwrap().write_all(b"x\n").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
}

#[test]
fn a_script_that_cannot_be_performed_is_told_on_stderr() {
    let running = scripted("wrong", r#"{"steps":[{"line":"${nobody}"}]}"#);
    let output = running.child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("nothing is known as ${nobody}"));
}

fn block_on(wait: impl Future<Output = anyhow::Result<()>>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(wait).unwrap();
}
