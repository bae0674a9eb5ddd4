//! `runtime-bridge run`: a whole Turn of the real Codex from one command line, with the bundled provider; what it shows, and the codes
//! with which it ends.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::{env, fs};

use anyhow::Context;
use conformance::provider::Provider;
use conformance::rig::{RED_PNG, RED_PNG_URL, Setup, claude, codex, processes, program, scenario};
use proto::v1::{self, Reason};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;

/// The Session of a run that nobody made.
const GONE: &str = "run-01a22b35-740e-7410-a26d-a85005413973";
/// A stream that breaks off for an input, and the answer to it.
const STEERED: &str = r#"[
    {"match": "turn left", "play": [{"text": {"chunks": ["Left it is."]}}]},
    {"play": [{"text": {"chunks": ["half ", "a thought"], "open": true}}, {"gate": "never"}]}]"#;

/// Folders of one command line, below the build's own.
struct Desk {
    root: PathBuf,
}

impl Desk {
    fn new(name: &str) -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{name}-{}", std::process::id()));
        for folder in ["home", "work"] {
            fs::create_dir_all(root.join(folder))?;
        }
        Ok(Self { root })
    }

    /// `runtime-bridge` with these arguments, in an environment of its own.
    fn command(&self, arguments: &[&str]) -> anyhow::Result<Command> {
        let mut command = self.isolated(program("runtime-bridge")?);
        command.args(arguments).stdin(Stdio::null());
        Ok(command)
    }

    fn isolated(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).env_clear().env("HOME", self.root.join("home")).kill_on_drop(true);
        command.env("PATH", env::var_os("PATH").unwrap_or_default());
        command
    }

    /// The same for `run` on the folder `work`, with the real Codex.
    fn run(&self, arguments: &[&str]) -> anyhow::Result<Command> {
        let codex = codex()?;
        let codex = codex.to_str().context("a path that is not UTF-8")?;
        let always = ["run", "--harness", "codex", "--workspace", "work", "--isolation", "outer", "--codex", codex];
        self.command(&[&always, arguments].concat())
    }

    /// The same by way of another program, with this standard input.
    fn run_by(&self, by: &[&str], stdin: impl Into<Stdio>) -> anyhow::Result<Command> {
        let run = self.run(&[])?;
        let mut command = self.isolated(by.first().context("no program")?);
        command.args(&by[1..]).arg(run.as_std().get_program()).args(run.as_std().get_args()).stdin(stdin);
        Ok(command)
    }

    fn script(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.root.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
    }

    /// Nothing that works in these folders is left.
    fn is_empty(&self) -> anyhow::Result<()> {
        let ours = self.root.to_string_lossy().into_owned();
        let mut left = processes()?;
        left.retain(|process| !process.zombie && process.pid != std::process::id() && process.shows(&ours));
        anyhow::ensure!(left.is_empty(), "processes are left: {left:#?}");
        Ok(())
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // In the build's own folder it hurts nobody.
            _ = fs::remove_dir_all(&self.root);
        }
    }
}

fn block_on(test: impl Future<Output = anyhow::Result<()>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limit = std::time::Duration::from_secs(50);
    runtime.block_on(async { tokio::time::timeout(limit, test).await }).unwrap().unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn ends_with(output: &Output, code: i32) -> (String, String) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "stdout: {out}\nstderr: {err}");
    (out, err)
}

#[test]
fn a_text_is_answered() {
    block_on(async {
        let desk = Desk::new("text")?;
        let output = desk.run(&["--mock", "hello from the desk"])?.output().await?;
        let (out, _) = ends_with(&output, 0);
        assert!(out.contains("hello from the desk"), "{out}");
        assert!(!out.contains('\u{1b}'), "colours in a pipe: {out:?}");
        desk.is_empty()
    });
}

#[test]
fn claude_code_calls_a_function_and_answers_by_a_schema() {
    block_on(async {
        let desk = Desk::new("claude")?;
        desk.script("weather", "cat >/dev/null; echo snow")?;
        fs::write(desk.root.join("weather.json"), r#"{"type":"object"}"#)?;
        let schema = r#"{"type":"object","properties":{"answer":{"type":"string"}},"required":["answer"]}"#;
        fs::write(desk.root.join("answer.json"), schema)?;
        let claude = claude()?;
        let claude = claude.to_str().context("a path that is not UTF-8")?;
        let harness = ["run", "--harness", "claude_code", "--claude", claude, "--workspace", "work", "--isolation"];
        let turn = ["outer", "--function", "weather=weather.json:./weather", "--schema", "answer.json", "--json"];
        let mut command = desk.command(&[&harness[..], &turn, &["--mock", "call weather"]].concat())?;
        let (out, _) = ends_with(&command.output().await?, 0);
        let told: Vec<Value> = out.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let all = Value::from(told).to_string();
        for part in ["function_result_applied", "final_answer", r#""output_matches_schema":true"#] {
            assert!(all.contains(part), "{part} is not in {out}");
        }
        desk.is_empty()
    });
}

#[test]
fn a_prompt_comes_from_standard_input_too() {
    block_on(async {
        let desk = Desk::new("stdin")?;
        let mut child = desk.run(&["--mock", "-"])?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        tokio::io::AsyncWriteExt::write_all(&mut stdin, b"hello from a pipe\n").await?;
        drop(stdin);
        let (out, _) = ends_with(&child.wait_with_output().await?, 0);
        assert!(out.contains("hello from a pipe"), "{out}");
        Ok(())
    });
}

#[test]
fn a_function_is_a_program() {
    block_on(async {
        let desk = Desk::new("function")?;
        let schema = r#"{"type":"object","required":["city"],"properties":{"city":{"type":"string"}}}"#;
        fs::write(desk.root.join("schema.json"), schema)?;
        desk.script("weather", "read arguments; echo \"sunny, given $arguments\"")?;
        desk.script("broken", "echo half; echo 'no weather today' >&2; exit 3")?;
        let functions = ["--function", "weather=schema.json:./weather", "--function", "storm=schema.json:./broken"];
        let output = desk.run(&[&functions as &[_], &["--mock", "call weather"]].concat())?.output().await?;
        let (out, _) = ends_with(&output, 0);
        assert!(out.contains(r#"The answer was: sunny, given {"city":"text"}"#), "{out}");
        // One that fails says so to the model, with its last words.
        let output = desk.run(&[&functions as &[_], &["--mock", "call storm"]].concat())?.output().await?;
        let (out, _) = ends_with(&output, 0);
        assert!(out.contains("The function failed.") && out.contains("no weather today"), "{out}");
        desk.is_empty()
    });
}

#[test]
fn events_are_lines_of_json() {
    block_on(async {
        let desk = Desk::new("json")?;
        let output = desk.run(&["--mock", "--json", "hello"])?.output().await?;
        let (out, _) = ends_with(&output, 0);
        let events = out.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
        let sequences: Vec<_> = events.iter().map(|event| event["sequence"].as_u64()).collect();
        assert_eq!(sequences, (1..=events.len() as u64).map(Some).collect::<Vec<_>>());
        assert!(events[0]["turn_started"]["native"]["session_id"].is_string(), "{}", events[0]);
        assert_eq!(events[events.len() - 1]["turn_ended"]["status"], "completed");
        let said = events.iter().filter_map(|event| event["message_completed"]["text"]["text"].as_str());
        assert_eq!(said.collect::<Vec<_>>(), ["hello"]);
        Ok(())
    });
}

#[test]
fn an_interrupt_cancels_and_waits() {
    block_on(async {
        let desk = Desk::new("interrupt")?;
        let mut child = desk.run(&["--mock", "--json", "sleep"])?.stdout(Stdio::piped()).spawn()?;
        let pid =
            child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw).context("no process id")?;
        let mut lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        loop {
            let line = lines.next_line().await?.context("it ended before the command began")?;
            if line.contains("\"tool_started\"") {
                break;
            }
        }
        kill_process(pid, Signal::INT)?;
        let mut rest = String::new();
        lines.into_inner().read_to_string(&mut rest).await?;
        let status: ExitStatus = child.wait().await?;
        assert_eq!(status.code(), Some(3), "{rest}");
        let last: Value = serde_json::from_str(rest.lines().last().context("nothing more")?)?;
        assert_eq!(
            (&last["turn_ended"]["status"], &last["turn_ended"]["cause"]),
            (&"cancelled".into(), &"requested".into())
        );
        // It waited: the command is gone, and so are the daemon's Harness and the provider.
        desk.is_empty()
    });
}

#[test]
fn a_failed_turn_has_a_code_and_says_why() {
    block_on(async {
        let desk = Desk::new("failed")?;
        let provider = Provider::start(Vec::new()).await?;
        provider.script(r#"[{"always": true, "play": [{"http": {"status": 401, "message": "no such key"}}]}]"#)?;
        let key = desk.root.join("key");
        fs::write(&key, "sk-canary-of-a-file\n")?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let url = provider.base_url();
        let output = desk.run(&["--provider", &url, "--key-file", "key", "hello"])?.output().await?;
        let (out, err) = ends_with(&output, 1);
        assert!(format!("{out}{err}").contains("authentication"), "{out}\n{err}");
        assert!(!format!("{out}{err}").contains("canary"), "{out}\n{err}");
        let used = provider.model_requests();
        assert_eq!(used[0].header("authorization"), Some("Bearer sk-canary-of-a-file"));
        // A key file that others may read is refused before anything starts.
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644))?;
        let output = desk.run(&["--provider", &url, "--key-file", "key", "hello"])?.output().await?;
        let (_, err) = ends_with(&output, 2);
        assert!(err.contains("0600") || err.contains("others"), "{err}");
        desk.is_empty()
    });
}

/// The Session that the end of a run names.
fn session_of(err: &str) -> anyhow::Result<String> {
    let line = err.lines().last().and_then(|line| line.strip_prefix("session "));
    let (id, rest) = line.and_then(|line| line.split_once(';')).with_context(|| format!("no Session: {err}"))?;
    assert_eq!(rest, format!(" --resume {id} goes on with it"));
    Ok(id.to_owned())
}

#[test]
fn a_later_run_goes_on_with_the_session_of_an_earlier_one() {
    block_on(async {
        let desk = Desk::new("resume")?;
        let provider = Provider::start(Vec::new()).await?;
        let url = provider.base_url();
        let mut first = desk.run(&["--provider", &url, "--json", "remember the number 41"])?;
        let (out, err) = ends_with(&first.env("OPENAI_API_KEY", "sk-1").output().await?, 0);
        let session = session_of(&err)?;
        let native = |out: &str| -> anyhow::Result<Value> {
            let started: Value = serde_json::from_str(out.lines().next().context("no event")?)?;
            Ok(started["turn_started"]["native"]["session_id"].clone())
        };
        assert!(native(&out)?.is_string());

        // Neither the folder nor the provider is named again, and the key may be another one.
        let codex = codex()?;
        let codex = codex.to_str().context("a path that is not UTF-8")?;
        let again = ["run", "--harness", "codex", "--isolation", "outer", "--codex", codex, "--resume", &session];
        let later = async |more: &[&str]| {
            let mut command = desk.command(&[&again, more].concat())?;
            anyhow::Ok(command.env("OPENAI_API_KEY", "sk-2").output().await?)
        };
        let (later_out, err) = ends_with(&later(&["--json", "and which was it?"]).await?, 0);
        assert_eq!(session_of(&err)?, session);
        assert_eq!(native(&later_out)?, native(&out)?);
        assert!(later_out.starts_with(r#"{"turn_id":"turn-2","sequence":1,"#), "{later_out}");
        let requests = provider.model_requests();
        assert_eq!(requests[1].header("authorization"), Some("Bearer sk-2"));
        let place = |text: &str| requests[1].body.find(text);
        assert!(
            place("remember the number 41").is_some() && place("remember the number 41") < place("and which was it?")
        );

        // What is frozen with the Session stays.
        let (_, err) = ends_with(&later(&["--model", "another", "hm"]).await?, 1);
        assert!(err.contains("CONFIGURATION_CONFLICT") && err.contains("model"), "{err}");
        assert_eq!(provider.model_requests().len(), 2);
        // A run that was refused has changed nothing for the next one.
        let (out, _) = ends_with(&later(&["--json", "and now?"]).await?, 0);
        assert!(out.starts_with(r#"{"turn_id":"turn-3","sequence":1,"#), "{out}");
        desk.is_empty()
    });
}

/// The placement is `none` then, and the same prompt that runs a command on a folder finds nothing to run.
#[test]
fn without_a_folder_no_tool_touches_the_machine() {
    block_on(async {
        let desk = Desk::new("nowhere")?;
        let codex = codex()?;
        let codex = codex.to_str().context("a path that is not UTF-8")?;
        let always = ["run", "--harness", "codex", "--isolation", "outer", "--codex", codex, "--mock", "--json"];
        let output = desk.command(&[&always[..], &["sleep"]].concat())?.output().await?;
        let (out, _) = ends_with(&output, 0);
        assert!(out.contains("turn_ended") && !out.contains("tool_started"), "{out}");
        desk.is_empty()
    });
}

#[test]
fn a_session_of_the_bundled_provider_and_of_no_folder_goes_on_with_both() {
    block_on(async {
        let desk = Desk::new("resume-mock")?;
        let codex = codex()?;
        let codex = codex.to_str().context("a path that is not UTF-8")?;
        let always = ["run", "--harness", "codex", "--isolation", "outer", "--codex", codex];
        let run = async |more: &[&str]| anyhow::Ok(desk.command(&[&always, more].concat())?.output().await?);
        let (_, err) = ends_with(&run(&["--mock", "hello once"]).await?, 0);
        let session = session_of(&err)?;
        let (_, err) = ends_with(&run(&["--resume", &session, "--workspace", "work", "hello"]).await?, 1);
        assert!(err.contains("ASSIGNMENT_CONFLICT"), "{err}");
        let (out, _) = ends_with(&run(&["--resume", &session, "hello twice"]).await?, 0);
        assert!(out.contains("hello twice"), "{out}");
        desk.is_empty()
    });
}

/// Follows a run whose answer is half said until `write` has given it a line, and checks that the model read that.
async fn steered(
    desk: &Desk,
    mut command: Command,
    write: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let provider = Provider::start(Vec::new()).await?;
    provider.script(STEERED)?;
    command.args(["--provider", &provider.base_url(), "--json", "think"]).env("OPENAI_API_KEY", "sk-1");
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
    let mut seen = Vec::new();
    let mut write = Some(write);
    while let Some(line) = lines.next_line().await? {
        if line.contains("a thought")
            && let Some(write) = write.take()
        {
            write().await?;
        }
        seen.push(serde_json::from_str::<Value>(&line)?);
    }
    assert_eq!(child.wait().await?.code(), Some(0), "{seen:#?}");
    let find = |kind: &str, member: &str| {
        let mut found = seen.iter().filter_map(|event| event[kind][member].as_str());
        found.next().map(str::to_owned)
    };
    assert_eq!(find("input_written", "input_id").as_deref(), Some("input-1"));
    assert_eq!(find("input_accepted", "evidence").as_deref(), Some("consumed"));
    assert_eq!(find("message_discarded", "reason").as_deref(), Some("steered"));
    let said = seen.iter().filter_map(|event| event["message_completed"]["text"]["text"].as_str());
    assert_eq!(said.collect::<Vec<_>>(), ["Left it is."]);
    let requests = provider.model_requests();
    assert_eq!(requests.len(), 2, "an empty line is no input");
    assert_eq!(requests[1].body.matches("turn left").count(), 1);
    desk.is_empty()
}

#[test]
fn a_line_that_is_typed_on_a_terminal_is_an_input() {
    block_on(async {
        let desk = Desk::new("terminal")?;
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let name = ptsname(&ours, Vec::new())?;
        let theirs = fs::File::options().read(true).write(true).open(name.to_str()?)?;
        // The terminal has to be the run's own, in whose foreground it is.
        let on_terminal = desk.run_by(&["setsid", "--ctty"], theirs)?;
        steered(&desk, on_terminal, async || {
            fs::File::from(ours.try_clone()?).write_all(b"\nturn left\n")?;
            Ok(())
        })
        .await
    });
}

#[test]
fn lines_of_a_pipe_are_inputs_where_they_are_asked_for() {
    block_on(async {
        let desk = Desk::new("pipe")?;
        let (read, mut write) = std::io::pipe()?;
        let mut command = desk.run(&["--steer"])?;
        command.stdin(read);
        steered(&desk, command, async || Ok(write.write_all(b"\nturn left\n")?)).await?;

        // Without it, what stands in a pipe is somebody else's.
        let (read, mut write) = std::io::pipe()?;
        write.write_all(b"turn left\n")?;
        drop(write);
        let mut command = desk.run(&["--mock", "--json", "hello"])?;
        let rest = read.try_clone()?;
        let (out, _) = ends_with(&command.stdin(read).output().await?, 0);
        assert!(!out.contains("input_written"), "{out}");
        assert_eq!(std::io::read_to_string(rest)?, "turn left\n");
        Ok(())
    });
}

#[test]
fn an_answer_is_asked_for_in_a_form_and_judged() {
    block_on(async {
        let desk = Desk::new("schema")?;
        let provider = Provider::start(Vec::new()).await?;
        provider.script(
            r#"[{"play": [{"text": {"chunks": ["{\"a\":", "\"x\"}"]}}]}, {"play": [{"text": {"chunks": ["prose"]}}]}]"#,
        )?;
        let schema =
            r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}"#;
        fs::write(desk.root.join("s.json"), schema)?;
        let url = provider.base_url();
        for (said, told) in
            [("{\"a\":\"x\"}\n", "the answer fits the schema"), ("prose\n", "the answer does not fit the schema")]
        {
            let mut command = desk.run(&["--provider", &url, "--schema", "s.json", "answer"])?;
            let (out, err) = ends_with(&command.env("OPENAI_API_KEY", "sk-1").output().await?, 0);
            assert_eq!(out, said);
            assert!(err.lines().any(|line| line == told), "{err}");
        }
        let body: Value = serde_json::from_str(&provider.model_requests()[0].body)?;
        assert_eq!(body["text"]["format"]["schema"], serde_json::from_str::<Value>(schema)?);
        desk.is_empty()
    });
}

#[test]
fn an_image_stands_behind_the_prompt() {
    block_on(async {
        let desk = Desk::new("image")?;
        let provider = Provider::start(Vec::new()).await?;
        fs::write(desk.root.join("red"), RED_PNG)?;
        let url = provider.base_url();
        let mut command = desk.run(&["--provider", &url, "--image", "red", "what is it?"])?;
        ends_with(&command.env("OPENAI_API_KEY", "sk-1").output().await?, 0);
        let body = &provider.model_requests()[0].body;
        let place = |text: &str| body.find(text);
        assert!(place("what is it?").is_some() && place("what is it?") < place(RED_PNG_URL), "{body}");
        desk.is_empty()
    });
}

#[test]
fn a_wrong_command_line_is_told_in_one_line() {
    block_on(async {
        let desk = Desk::new("usage")?;
        fs::write(desk.root.join("list.json"), "[]")?;
        let one_line = |err: &str| assert_eq!(err.trim_end().lines().count(), 1, "{err}");
        let output = desk.run(&["hello"])?.output().await?;
        let (out, err) = ends_with(&output, 2);
        assert!(err.contains("OPENAI_API_KEY") && err.contains("--mock") && out.is_empty(), "{err}");
        one_line(&err);
        for (arguments, want) in [
            (&["--workspace", "missing", "--mock", "hi"] as &[_], "missing"),
            (&["--workspace", "work", "--mock", " "], "empty"),
            (&["--workspace", "work", "--mock", "--function", "f=nowhere.json:./x", "hi"], "nowhere.json"),
            (&["--workspace", "work", "--mock", "--function", "f", "hi"], "f"),
            (&["--workspace", "work", "--mock", "--schema", "nowhere.json", "hi"], "--schema nowhere.json: "),
            (
                &["--workspace", "work", "--mock", "--schema", "list.json", "hi"],
                "--schema list.json: is not a JSON object",
            ),
            (
                &["--workspace", "work", "--mock", "--image", "list.json", "hi"],
                "--image list.json: is neither PNG nor JPEG",
            ),
            (&["--mock", "--resume", "../work", "hi"], "--resume ../work: is not the Session of a run"),
            (&["--mock", "--resume", GONE, "hi"], "runs are kept for 7 days"),
            (&["--workspace", "work", "--mock", "--steer", "-"], "--steer: stdin has the prompt already"),
        ] {
            let arguments = [&["run", "--harness", "codex"], arguments].concat();
            let (out, err) = ends_with(&desk.command(&arguments)?.output().await?, 2);
            assert!(err.contains(want) && out.is_empty(), "{err}");
            one_line(&err);
        }
        // A Harness that is not there is a failure, not a usage error.
        let arguments =
            ["run", "--harness", "codex", "--workspace", "work", "--codex", "/nonexistent/codex", "--mock", "hi"];
        let (_, err) = ends_with(&desk.command(&arguments)?.output().await?, 1);
        assert!(err.contains("/nonexistent/codex") && err.contains("install"), "{err}");
        one_line(&err);
        desk.is_empty()
    });
}

#[test]
fn a_running_daemon_is_used_and_left_as_it_was() {
    let setup = Setup::outer().bridge("the command is a client of the protocol");
    scenario("run_endpoint", &["R-ASG-4"], setup, async |rig| {
        let desk = Desk::new("endpoint")?;
        let endpoint = format!("unix:{}", rig.place().socket().display());
        let (workspace, url) = (rig.workspace().to_string_lossy().into_owned(), rig.provider.base_url());
        let arguments = [
            "run",
            "--harness",
            "codex",
            "--workspace",
            &workspace,
            "--endpoint",
            &endpoint,
            "--provider",
            &url,
            "--json",
            "hello",
        ];
        let mut command = desk.command(&arguments)?;
        let output = command.env("OPENAI_API_KEY", "sk-of-the-environment").output().await?;
        let (out, _) = ends_with(&output, 0);
        assert!(out.lines().last().is_some_and(|line| line.contains("\"completed\"")), "{out}");
        let bearer = Some("Bearer sk-of-the-environment");
        assert_eq!(rig.provider.model_requests()[0].header("authorization"), bearer);
        // Its Session is released: no Executor is left, and no state of a daemon of its own was made.
        rig.only(&[]).await?;
        assert!(!desk.root.join("home/.local").exists());
        // A daemon that is not there.
        let arguments =
            ["run", "--harness", "codex", "--workspace", "work", "--endpoint", "unix:/nonexistent/s", "--mock", "hi"];
        let (_, err) = ends_with(&desk.command(&arguments)?.output().await?, 1);
        assert!(err.contains("connect"), "{err}");
        // One that refuses, with its reason.
        let arguments = ["run", "--harness", "codex", "--workspace", "work", "--endpoint", &endpoint, "--mock", "hi"];
        let (_, err) = ends_with(&desk.command(&arguments)?.output().await?, 1);
        assert!(err.contains(Reason::InvalidRequest.as_str_name().trim_start_matches("REASON_")), "{err}");
        assert!(err.contains("workspace_roots"), "{err}");
        rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        Ok(())
    });
}
