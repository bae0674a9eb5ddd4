//! Performs a program: one thread, no buffers, no hurry.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, io, thread};

use anyhow::Context;
use rustix::process::{Resource, Rlimit, Signal as RawSignal, getpid, kill_process, setrlimit};
use serde_json::Value;
use tokio::signal::unix::SignalKind;

use super::keep::Keep;
use super::{claude, fill, pipes};
use crate::script::child::{Bytes, Read, Rule, Signal, Spawn, Stderr, Step, decode_hex};

/// Why a program ends.
#[derive(Debug)]
pub(super) enum Halt {
    Exit(u8),
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

type Done = Result<(), Halt>;

/// How much is read at once.
const READ: usize = 64 * 1024;

/// A program under way.
#[derive(Debug)]
pub(super) struct Player {
    rules: Vec<Rule>,
    on_eof: Option<Vec<Step>>,
    keep: Keep,
    /// Bytes that were read and are not a whole line yet.
    pending: Vec<u8>,
    /// The line that was read last.
    line: Value,
    set: BTreeMap<String, Value>,
    /// How this process was started.
    args: Vec<String>,
    deaf: Option<Deaf>,
}

/// While it lives, and after it, SIGTERM has no effect.
#[derive(Debug)]
pub(super) struct Deaf(#[expect(dead_code, reason = "held, never used")] tokio::runtime::Runtime);

/// Makes SIGTERM have no effect on this process.
pub(super) fn ignore_term() -> anyhow::Result<Deaf> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    {
        let _inside = runtime.enter();
        // The handler stays when the stream is dropped, and a caught signal that nobody reads is one without effect.
        drop(tokio::signal::unix::signal(SignalKind::terminate()).context("catch SIGTERM")?);
    }
    Ok(Deaf(runtime))
}

impl fill::Names for Player {
    fn value(&self, name: &str) -> Option<Value> {
        let of_line = |path: &str| self.line.pointer(&format!("/{}", path.replace('.', "/"))).cloned();
        match name {
            "uuid" => Some(uuid::Uuid::now_v7().to_string().into()),
            "pid" => Some(std::process::id().into()),
            "session" => claude::session(&self.args).map(Value::from),
            "offered" => Some(claude::offered(&self.args, &self.line)),
            _ => match name.strip_prefix('.') {
                Some(path) => of_line(path),
                None => self.set.get(name).cloned().or_else(|| of_line(name)),
            },
        }
    }
}

impl Player {
    pub(super) fn new(rules: Vec<Rule>, on_eof: Option<Vec<Step>>, args: &[String], keep: Keep) -> Self {
        let (line, set, args) = (Value::Null, BTreeMap::new(), args.to_vec());
        Self { rules, on_eof, keep, pending: Vec::new(), line, set, args, deaf: None }
    }

    /// Runs the steps of a command; then the end.
    pub(super) fn command(&mut self, steps: &[Step]) -> Halt {
        self.all(steps).err().unwrap_or(Halt::Exit(0))
    }

    /// Runs the main sequence, then answers by the rules until standard input ends.
    pub(super) fn main(&mut self, steps: &[Step]) -> Halt {
        let serve = Read { method: Some(String::new()), answer_to: None };
        self.all(steps).and_then(|()| self.read(&serve)).err().unwrap_or(Halt::Exit(0))
    }

    fn all(&mut self, steps: &[Step]) -> Done {
        steps.iter().try_for_each(|step| self.one(step))
    }

    fn one(&mut self, step: &Step) -> Done {
        match step {
            Step::Read(read) => self.read(read),
            Step::Result(result) if is_control(&self.line) => self.send(&claude::success(result.get())),
            Step::Result(result) => self.send(&format!(r#"{{"id":"${{id?}}","result":{}}}"#, result.get())),
            Step::Error(error) if is_control(&self.line) => self.send(&claude::error(error.get())),
            Step::Error(error) => self.send(&format!(r#"{{"id":"${{id?}}","error":{}}}"#, error.get())),
            Step::Line(line) => self.send(line.get()),
            Step::Bytes(bytes) => self.bytes(bytes),
            Step::Stderr(stderr) => Ok(write_stderr(stderr)?),
            Step::Set(values) => {
                for (name, value) in values {
                    let filled = fill::json(value.get(), self)?;
                    let value = serde_json::from_str(&filled).with_context(|| format!("set {name}"))?;
                    self.set.insert(name.clone(), value);
                }
                Ok(())
            }
            Step::Repeat(repeat) => {
                for round in 0..repeat.times {
                    self.set.insert("round".into(), round.into());
                    self.all(&repeat.steps)?;
                }
                Ok(())
            }
            Step::Spawn(spawn) => Ok(self.keep.descendant(start_descendant(spawn)?)?),
            Step::PauseMs(milliseconds) => {
                thread::sleep(Duration::from_millis(*milliseconds));
                Ok(())
            }
            Step::Gate(gate) => Ok(self.keep.pass(gate)?),
            Step::Mark(mark) => Ok(self.keep.mark(mark)?),
            Step::IgnoreTerm => {
                self.deaf = Some(ignore_term()?);
                Ok(())
            }
            Step::CloseStdout => Ok(pipes::close_stdout()?),
            Step::CloseStdin => Ok(pipes::close_stdin()?),
            Step::Hang => hang(),
            Step::Drain => {
                let mut buffer = vec![0; READ];
                loop {
                    match pipes::read_stdin(&mut buffer)? {
                        0 => hang(),
                        count => self.keep.received(&buffer[..count])?,
                    }
                }
            }
            Step::Exit(code) => Err(Halt::Exit(*code)),
            Step::Die(signal) => die(*signal),
        }
    }

    /// Reads lines until one fits. An empty method fits none: everything goes to the rules.
    fn read(&mut self, read: &Read) -> Done {
        loop {
            let Some(line) = self.next_line()? else {
                let steps = self.on_eof.take().unwrap_or_default();
                self.all(&steps)?;
                return Err(Halt::Exit(0));
            };
            self.line = match serde_json::from_slice(&line) {
                Ok(line) => line,
                Err(error) => {
                    write_stderr(&Stderr { text: Some(format!("a line is not JSON: {error}\n")), bytes: 0 })?;
                    continue;
                }
            };
            let method = method(&self.line);
            let fits = match (&read.method, read.answer_to) {
                (Some(wanted), _) => method == Some(wanted) && !wanted.is_empty(),
                (None, Some(id)) => {
                    let asked = id.to_string();
                    let control = self.line["response"]["request_id"].as_str() == Some(&asked);
                    method.is_none() && (self.line["id"] == id || control)
                }
                (None, None) => true,
            };
            if fits {
                return Ok(());
            }
            self.by_the_rules()?;
        }
    }

    fn by_the_rules(&mut self) -> Done {
        let Some(method) = method(&self.line) else { return Ok(()) };
        let applies = |rule: &Rule| (rule.method == method || rule.method == "*") && rule.times != Some(0);
        if let Some(place) = self.rules.iter().position(applies) {
            let rule = &mut self.rules[place];
            rule.times = rule.times.map(|times| times - 1);
            let then = rule.then.clone();
            return self.all(&then);
        }
        if is_control(&self.line) {
            return self.send(&claude::error(r#""unknown request ${request.subtype}""#));
        }
        if self.line.get("id").is_some() {
            return self.send(r#"{"id":"${id}","error":{"code":-32600,"message":"unknown method ${method}"}}"#);
        }
        Ok(())
    }

    fn next_line(&mut self) -> Result<Option<Vec<u8>>, Halt> {
        let mut looked_at = 0;
        loop {
            if let Some(end) = self.pending[looked_at..].iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(looked_at + end + 1);
                return Ok(Some(std::mem::replace(&mut self.pending, rest)));
            }
            looked_at = self.pending.len();
            self.pending.resize(looked_at + READ, 0);
            let count = pipes::read_stdin(&mut self.pending[looked_at..])?;
            self.pending.truncate(looked_at + count);
            self.keep.received(&self.pending[looked_at..])?;
            if count == 0 {
                return Ok(None);
            }
        }
    }

    fn send(&mut self, json: &str) -> Done {
        let mut line = fill::json(json, self)?;
        line.push('\n');
        Ok(pipes::write_stdout(line.as_bytes())?)
    }

    fn bytes(&mut self, bytes: &Bytes) -> Done {
        let all = match (&bytes.text, &bytes.hex) {
            (Some(text), _) => fill::text(text, self)?.into_bytes(),
            (None, hex) => decode_hex(hex.as_deref().unwrap_or_default())?,
        };
        let mut rest = &all[..];
        let mut sizes = bytes.write_sizes.iter().copied();
        let mut size = all.len();
        while !rest.is_empty() {
            size = sizes.next().unwrap_or(size).clamp(1, rest.len().max(1));
            thread::sleep(Duration::from_millis(bytes.delay_ms));
            pipes::write_stdout(&rest[..size])?;
            rest = &rest[size..];
        }
        Ok(())
    }
}

/// What a line asks for: its method, or of the lines of Claude Code the subtype of a control request, else the type. An answer asks for nothing.
fn method(line: &Value) -> Option<&str> {
    line["method"].as_str().or_else(|| match line["type"].as_str()? {
        "control_request" => line["request"]["subtype"].as_str(),
        "control_response" => None,
        kind => Some(kind),
    })
}

/// Whether a line is a request of Claude Code's protocol.
fn is_control(line: &Value) -> bool {
    line["type"] == "control_request"
}

fn write_stderr(stderr: &Stderr) -> io::Result<()> {
    const LINE: u64 = 100;
    pipes::write_stderr(stderr.text.as_deref().unwrap_or_default().as_bytes())?;
    let mut line = vec![b'e'; 99];
    line.push(b'\n');
    for _ in 0..stderr.bytes / LINE {
        pipes::write_stderr(&line)?;
    }
    let rest = usize::try_from(stderr.bytes % LINE).unwrap_or_default();
    pipes::write_stderr(&line[..rest])
}

/// Starts this program as a sleeping descendant and waits until it is ready.
fn start_descendant(spawn: &Spawn) -> anyhow::Result<u32> {
    let mut command = Command::new(env::current_exe().context("find this program")?);
    command.arg("descendant").args(["--seconds", &spawn.seconds.to_string()]);
    for (wanted, flag) in [(spawn.new_session, "--new-session"), (spawn.ignore_term, "--ignore-term")] {
        if wanted {
            command.arg(flag);
        }
    }
    if spawn.clear_env {
        command.env_clear();
    }
    let stdout = if spawn.hold_stdout { Stdio::inherit() } else { Stdio::null() };
    let mut child = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn().context("start it")?;
    let mut ready = [0; 6];
    let mut stderr = child.stderr.take().context("read from it")?;
    io::Read::read_exact(&mut stderr, &mut ready).context("wait until it is ready")?;
    Ok(child.id())
}

fn hang() -> ! {
    loop {
        thread::park();
    }
}

fn die(signal: Signal) -> ! {
    let signal = match signal {
        Signal::Abrt => RawSignal::ABORT,
        Signal::Hup => RawSignal::HUP,
        Signal::Int => RawSignal::INT,
        Signal::Kill => RawSignal::KILL,
        Signal::Segv => RawSignal::SEGV,
        Signal::Term => RawSignal::TERM,
    };
    // No core file for a death on purpose; where the limit cannot be set there may be one.
    _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    loop {
        // The first SIGSEGV may only take the runtime's own handler away, so it is sent until it works.
        _ = kill_process(getpid(), signal);
        thread::sleep(Duration::from_millis(10));
    }
}
