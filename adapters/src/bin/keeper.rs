//! The keeper: stands between the daemon and one native process so that nothing the process started survives it
//! (R-CAN-4). It knows nothing of Harnesses, lines or Sessions.
//!
//! `runtime-bridge-keeper <life-fd> <grace-ms> <program> [args…]`, with the agent's stdin, stdout and stderr as its
//! own. `life-fd` is the read end of the life line, a pipe whose write end only the daemon holds: a byte or
//! end-of-file there, by choice or because the daemon died, is the order to stop.
//!
//! The keeper is a child subreaper, so descendants that daemonise come back to it. On a stop it sends TERM to the
//! agent's group, waits for the grace, then sends KILL to every descendant again and again until it has no child
//! left. When the agent ends by itself what it left behind gets TERM and at most 300 ms. Then the keeper takes the
//! agent's end for its own: the same exit code, or the same signal. 127 and 126 say that the program was not found
//! or could not be run, 125 that the keeper itself could not work.
//!
//! `runtime-bridge-keeper as <uid>:<gid>[:<group>,…] <folder> [<program> [args…]]` gives up root for this user, enters the
//! folder and becomes the program; without one it ends with 0, so that it can be asked whether the user may enter. A keeper
//! starts itself so to have its agent under another user, who can then neither signal nor read the keeper (R-SEC-1).
//!
//! `runtime-bridge-keeper --serve` keeps nothing: it becomes an MCP server, which gets the variables that are meant for it in
//! place of those of the Harness that starts it (R-MCP-4). With `--nothing` it ends with 0, so that it can be asked whether a user may execute it.
//!
//! LIMIT: a signal that kills the keeper itself cannot be caught without unsafe code. The daemon therefore gives it
//! a process group of its own (a Ctrl-C in a terminal does not reach it) and ends what is left by the mark in the
//! environment when a keeper dies of a signal. The inherited number of the life line stays open in the agent; a
//! copy of a read end holds nothing up.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt::Display,
    fs::{self, File},
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use adapters::native::served::{MODE, NOTHING, Server};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
        pidfd_open, set_child_subreaper, set_dumpable_behavior, wait,
    },
    stdio::{dup2_stdin, dup2_stdout},
    thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// What the leftovers of an agent that ended by itself get between TERM and KILL.
const LEFTOVER_GRACE: Duration = Duration::from_millis(300);
/// How often orphans that ended are reaped while the agent runs.
const REAP_EVERY: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    if args.next_if(|first| first == "as").is_some() {
        return go_on_as(args);
    }
    if args.next_if(|first| first == MODE).is_some() {
        return serve();
    }
    if args.next_if(|first| first == NOTHING).is_some() {
        return ExitCode::SUCCESS;
    }
    let Some(order) = Order::read(args) else {
        return refuse(FAILED, "usage: runtime-bridge-keeper <life-fd> <grace-ms> <program> [args…]");
    };
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        return refuse(FAILED, format_args!("could not become a subreaper: {error}"));
    }
    // Opening it anew gives a close-on-exec handle without unsafe code.
    let life = match File::open(format!("/proc/self/fd/{}", order.life)) {
        Ok(life) => life,
        Err(error) => return refuse(FAILED, format_args!("could not open the life line: {error}")),
    };
    let agent = match Command::new(&order.program).args(&order.args).process_group(0).spawn() {
        Ok(child) => child.id(),
        Err(error) => {
            let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            return refuse(code, format_args!("could not start {}: {error}", order.program.display()));
        }
    };
    let Some(agent) = i32::try_from(agent).ok().and_then(Pid::from_raw) else { return ExitCode::from(FAILED) };
    // The pipes belong to the agent alone, so that the daemon sees it close them. Standard error stays for our own use.
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }

    let mut kept = Kept { agent, status: None };
    kept.wait_for_the_end(&life);
    kept.end(order.grace);
    leave_as(kept.status)
}

/// Becomes the server; comes back only where it cannot.
fn serve() -> ExitCode {
    let Some(Server { command, arguments, environment }) = Server::read(std::env::vars_os()) else {
        return refuse(FAILED, format_args!("{MODE}: no server is named"));
    };
    let error = Command::new(&command).args(arguments).env_clear().envs(environment).exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    refuse(code, format_args!("could not start {}: {error}", command.display()))
}

fn refuse(code: u8, why: impl Display) -> ExitCode {
    eprintln!("runtime-bridge-keeper: {why}");
    ExitCode::from(code)
}

/// Goes on as another user. There is one thread, so what is set for it is set for the process.
fn go_on_as(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let user = args.next().and_then(|text| User::read(text.to_str()?));
    let (Some(User { uid, gid, groups }), Some(folder)) = (user, args.next()) else {
        return refuse(FAILED, "usage: runtime-bridge-keeper as <uid>:<gid>[:<group>,…] <folder> [<program> [args…]]");
    };
    // ORDER: who is no root any more can change no groups.
    let switched = set_thread_groups(&groups)
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    if let Err(error) = switched {
        return refuse(NOT_EXECUTABLE, format_args!("could not become uid {uid}, gid {gid}: {error}"));
    }
    if let Err(error) = std::env::set_current_dir(&folder) {
        return refuse(NOT_EXECUTABLE, format_args!("could not enter {} as uid {uid}: {error}", folder.display()));
    }
    let Some(program) = args.next() else { return ExitCode::SUCCESS };
    let error = Command::new(&program).args(args).exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    refuse(code, format_args!("could not start {} as uid {uid}: {error}", program.display()))
}

struct User {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl User {
    fn read(text: &str) -> Option<Self> {
        // The highest number stands for "as it was", and root for nothing that would be given up.
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number != u32::MAX);
        let mut parts = text.splitn(3, ':');
        let uid = Uid::from_raw(parts.next().and_then(number).filter(|uid| *uid != 0)?);
        let gid = Gid::from_raw(parts.next().and_then(number)?);
        let groups = parts.next().map(|groups| groups.split(',').map(|group| number(group).map(Gid::from_raw)));
        Some(Self { uid, gid, groups: groups.into_iter().flatten().collect::<Option<_>>()? })
    }
}

struct Order {
    life: u32,
    grace: Duration,
    program: OsString,
    args: Vec<OsString>,
}

impl Order {
    fn read(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let life = args.next()?.to_str()?.parse().ok()?;
        let grace = Duration::from_millis(args.next()?.to_str()?.parse().ok()?);
        Some(Self { life, grace, program: args.next()?, args: args.collect() })
    }
}

struct Kept {
    agent: Pid,
    /// Set once the agent was reaped; from then on its number may belong to somebody else.
    status: Option<WaitStatus>,
}

impl Kept {
    /// Returns when the daemon wants the end, when the agent has ended, or when neither can be watched any more.
    fn wait_for_the_end(&mut self, life: &File) {
        let Ok(exit) = pidfd_open(self.agent, PidfdFlags::empty()) else { return };
        let mut watched = [PollFd::new(life, PollFlags::IN), PollFd::from_borrowed_fd(exit.as_fd(), PollFlags::IN)];
        loop {
            match poll(&mut watched, Some(&REAP_EVERY)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            self.reap();
            if self.status.is_some() || watched.iter().any(|one| !one.revents().is_empty()) {
                return;
            }
        }
    }

    /// Ends every descendant and reaps it.
    fn end(&mut self, grace: Duration) {
        let mut deadline = Instant::now() + grace;
        if self.status.is_none() {
            let _ = kill_process_group(self.agent, Signal::TERM);
        }
        let mut agent_ran = true;
        while self.reap() {
            if agent_ran && self.status.is_some() {
                agent_ran = false;
                signal_descendants(Signal::TERM);
                deadline = deadline.min(Instant::now() + LEFTOVER_GRACE);
            }
            if Instant::now() >= deadline {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        // What may not be killed (another uid, uninterruptible) is waited for, ever more slowly.
        let mut pause = Duration::from_millis(1);
        while self.reap() {
            signal_descendants(Signal::KILL);
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// Reaps whatever has ended; false when there is no child left, and so no descendant either: we are the subreaper.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid == self.agent && self.status.is_none() {
                        self.status = Some(status);
                    }
                }
                Ok(None) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

fn signal_descendants(signal: Signal) {
    for pid in descendants() {
        let _ = kill_process(pid, signal);
    }
}

/// Every descendant that runs, by one pass over the parents in `/proc`. A pass can miss one whose parent ends
/// meanwhile; the caller looks again.
fn descendants() -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = BTreeSet::new();
    let mut open = vec![getpid().as_raw_nonzero().get()];
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if found.insert(*child) {
                open.push(*child);
            }
        }
    }
    found.into_iter().filter_map(Pid::from_raw).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold any byte; state and parent follow the last one.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = stat[name_end + 1..].split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    if matches!(fields.next()?, b"X" | b"x") {
        return None;
    }
    std::str::from_utf8(fields.next()?).ok()?.parse().ok()
}

/// Ends as the agent ended, so that the daemon sees the true status (R-CAN-6).
fn leave_as(status: Option<WaitStatus>) -> ExitCode {
    let Some(status) = status else { return ExitCode::from(FAILED) };
    if let Some(code) = status.exit_status() {
        return ExitCode::from(u8::try_from(code).unwrap_or(FAILED));
    }
    let number = status.terminating_signal().unwrap_or(0);
    // The memory of the keeper explains nothing; the agent's own core, if any, was written already.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    match Signal::from_named_raw(number) {
        // Rust programs ignore SIGPIPE; only an exec by std gives it its default action back.
        Some(Signal::PIPE) => {
            let _ = Command::new("/bin/sh").args(["-c", "kill -s PIPE $$"]).exec();
        }
        Some(signal) => {
            // Twice, since the runtime's own handler for SEGV and BUS takes the first one away.
            for _ in 0..2 {
                let _ = kill_process(getpid(), signal);
            }
        }
        None => {}
    }
    ExitCode::from(u8::try_from(128 + number).unwrap_or(FAILED))
}
