use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::*;

/// A shell whose script has said that it is set up, and that ends when its stdin does or when it is dropped.
struct Shell(Child);

impl Shell {
    fn start(script: &str, mark: Option<&str>) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env_clear().env("PATH", "/usr/bin:/bin");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(mark) = mark {
            command.env(super::super::environment::MARK_VARIABLE, mark);
        }
        let mut child = command.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until all that holds its stdout is gone.
    fn all_gone(&mut self) {
        let mut rest = String::new();
        self.0.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for process in descendants(self.pid()) {
            kill(&process);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn descendants_are_found_at_any_depth_and_named() {
    let shell = Shell::start("sleep 600 & sh -c 'sleep 601 & wait' & sh -c 'echo ready; sleep 602 & wait'; :", None);
    // The shells say ready one by one, so their own children may still be on the way.
    let found = loop {
        let found = descendants(shell.pid());
        let sleeping = found.iter().filter(|process| name(**process).as_deref() == Some("sleep")).count();
        if sleeping == 3 {
            break found;
        }
        std::thread::yield_now();
    };
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(found.iter().all(alive));
    assert!(!found.iter().any(|process| process.pid == shell.pid()));
    assert!(descendants(std::process::id()).is_superset(&found));
}

#[test]
fn a_child_of_a_thread_that_is_not_the_first_is_a_descendant() {
    let shell = std::thread::spawn(|| Shell::start("echo ready; read end", None)).join().unwrap();
    assert!(descendants(std::process::id()).iter().any(|process| process.pid == shell.pid()));
}

#[test]
fn a_zombie_is_not_alive_and_no_descendant() {
    let mut shell = Shell::start("echo ready; read end", None);
    let id = descendants(std::process::id()).into_iter().find(|process| process.pid == shell.pid()).unwrap();
    assert_eq!(kill(&id), Killed::Sent);
    shell.all_gone();
    // Its stdout closes a moment before it is a zombie; it stays one until the shell is dropped.
    while alive(&id) {
        std::thread::yield_now();
    }
    assert!(!descendants(std::process::id()).contains(&id));
}

fn unless(is_spared: bool) -> Kind {
    if is_spared { Kind::Spared } else { Kind::Surplus }
}

#[tokio::test]
async fn what_still_changes_is_neither_ended_nor_gone() {
    let shell = Shell::start("sleep 600 & echo ready; read end", None);
    let look = |kind: Kind| end_surplus(shell.pid(), &EMPTY, move |_, _| kind, Duration::from_millis(100));
    static EMPTY: BTreeSet<ProcessId> = BTreeSet::new();
    assert_eq!(look(Kind::Changing).await, Surplus { ended: 0, left: 1 });
    assert_eq!(descendants(shell.pid()).len(), 1);
    assert_eq!(look(Kind::Spared).await, Surplus::default());
}

#[tokio::test]
async fn surplus_is_ended_and_what_was_there_before_or_is_spared_stays() {
    let script = "sleep 600 & echo ready; read more; sleep 601 & setsid sleep 602 & tail -f /dev/null | grep -q nothing & \
                  echo ready; read end";
    let mut shell = Shell::start(script, None);
    let before = descendants(shell.pid());
    let stays = loop {
        // The first child is there, but may not have become `sleep` yet.
        if let Some(one) = before.iter().find(|process| name(**process).as_deref() == Some("sleep")) {
            break *one;
        }
        std::thread::yield_now();
    };
    assert_eq!(before.len(), 1);
    std::io::Write::write_all(shell.0.stdin.as_mut().unwrap(), b"more\n").unwrap();
    let mut ready = String::new();
    BufReader::new(shell.0.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    while descendants(shell.pid()).iter().filter(|process| name(**process).as_deref() == Some("grep")).count() != 1 {
        std::thread::yield_now();
    }
    let spared = end_surplus(
        shell.pid(),
        &before,
        |name, _| unless(["sleep", "tail", "grep", "sh", "setsid"].contains(&name)),
        Duration::from_secs(5),
    )
    .await;
    assert_eq!(spared, Surplus::default());
    let done = end_surplus(shell.pid(), &before, |name, _| unless(name == "tail"), Duration::from_secs(5)).await;
    assert!(done.ended >= 3 && done.left == 0, "{done:?}");
    assert!(alive(&stays));
    let again = end_surplus(shell.pid(), &before, |_, _| Kind::Surplus, Duration::from_secs(5)).await;
    assert_eq!(again.left, 0);
    assert_eq!(descendants(shell.pid()), before);
}

#[test]
fn a_sweep_ends_what_is_marked_and_what_descends_from_it() {
    let mark = format!("st_sweep{}.ex_1", std::process::id());
    let script = "env -i sleep 600 & setsid sleep 601 & (setsid sleep 602 &) ; echo ready; read end";
    let mut marked = Shell::start(script, Some(&mark));
    let other = Shell::start("echo ready; read end", Some("st_sweep.ex_1"));
    let swept = sweep(&format!("st_sweep{}.", std::process::id()), Duration::from_secs(5));
    assert!(swept.ended >= 3 && swept.left == 0, "{swept:?}");
    marked.all_gone();
    let survivor = descendants(std::process::id()).into_iter().find(|process| process.pid == other.pid()).unwrap();
    assert!(alive(&survivor));
}

#[test]
fn a_keeper_counts_for_itself_and_for_all_below_it() {
    let shell = Shell::start("sh -c 'echo ready; read end'; :", None);
    let inner = descendants(shell.pid()).into_iter().next().unwrap();
    for pid in [shell.pid(), inner.pid] {
        assert_eq!(is_descendant_or_marked(pid, &BTreeSet::from([shell.pid()]), "st_none."), Ok(true));
        assert_eq!(is_descendant_or_marked(pid, &BTreeSet::from([u32::MAX]), "st_none."), Ok(false));
    }
    assert_eq!(is_descendant_or_marked(std::process::id(), &BTreeSet::from([shell.pid()]), "st_none."), Ok(false));
}

#[test]
fn a_mark_counts_also_when_only_an_ancestor_carries_it() {
    let shell = Shell::start("env -i /bin/sh -c 'echo ready; read end'; :", Some("st_peer.ex_1"));
    let inner = loop {
        if let Some(inner) = descendants(shell.pid()).into_iter().next() {
            break inner;
        }
    };
    for pid in [shell.pid(), inner.pid] {
        for (prefix, want) in [("st_peer.", true), ("", true), ("st_other.", false)] {
            assert_eq!(is_descendant_or_marked(pid, &BTreeSet::new(), prefix), Ok(want), "{pid} {prefix}");
        }
    }
}

#[test]
fn a_process_that_is_gone_cannot_be_examined() {
    let shell = Shell::start("echo ready; read end", None);
    let pid = shell.pid();
    drop(shell);
    let error = is_descendant_or_marked(pid, &BTreeSet::new(), "").unwrap_err();
    assert_eq!((error.pid, error.at, error.what), (pid, pid, "status"));
}

#[test]
fn a_server_is_known_by_its_descent_and_not_by_its_variable_alone() {
    let variable = crate::native::served::VARIABLE;
    // The keeper; below it the agent; below that a server with a child, one of another label, and what has no label with a child that has one.
    let nested = format!("env {variable}=tickets sleep 603 & sleep 604; :");
    let agent = format!(
        "env {variable}=tickets sh -c 'sleep 601 & wait' & env {variable}=other sh -c 'sleep 602 & wait' & \
         sh -c '{nested}' & wait; :"
    );
    let keeper = Shell::start(&format!("sh -c \"{agent}\" & echo ready; wait"), None);
    let labels = BTreeSet::from(["tickets".to_owned()]);
    let shown = |process: &ProcessId| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned()
    };
    let sleeper = |number: u32| loop {
        let wanted = format!("sleep {number}");
        if let Some(found) = descendants(keeper.pid()).into_iter().find(|process| shown(process) == wanted) {
            break found;
        }
        std::thread::yield_now();
    };
    let all = [601, 602, 603, 604].map(sleeper);
    let before = descendants(keeper.pid());
    let kinds = |before: &BTreeSet<ProcessId>, labels: &BTreeSet<String>| {
        all.map(|process| of_server(process, keeper.pid(), before, labels) == Kind::Spared)
    };
    assert_eq!(kinds(&before, &labels), [true, false, false, false]);
    assert_eq!(kinds(&before, &BTreeSet::new()), [false; 4]);
    // A server is there before the Turn; what the model starts is not, whatever it calls itself.
    let server = stat::read(stat::read(all[0].pid).unwrap().parent).unwrap().id();
    let without = before.iter().copied().filter(|process| *process != server).collect();
    assert_eq!(kinds(&without, &labels), [false; 4]);
    assert_eq!(of_server(ProcessId { pid: u32::MAX, start: 1 }, keeper.pid(), &before, &labels), Kind::Changing);
}
