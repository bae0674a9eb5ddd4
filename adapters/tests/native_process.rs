//! Native processes through the real keeper: how they start, how they end, and that nothing of them is left.

#![expect(clippy::unwrap_used, reason = "the functions that tests share fail like the tests themselves")]

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use adapters::native::{
    environment::{Environment, MARK_VARIABLE, Mark},
    lines::LineReader,
    process::{Exit, ExitStatus, Launch, Process, SpawnError, spawn},
    rpc::Writer,
    tree,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{interval, timeout},
};
use tokio_util::task::TaskTracker;

/// What everything here is sure to be over within.
const LIMIT: Duration = Duration::from_secs(10);

/// A number of seconds for `sleep` that no other process on the machine has, by which processes are found again.
fn token(test: u32) -> String {
    format!("{}.{test}", 100_000 + u64::from(std::process::id()))
}

fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("native_process");
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn launch(script: &str) -> Launch {
    let folder = folder();
    Launch {
        user: None,
        keeper: env!("CARGO_BIN_EXE_runtime-bridge-keeper").into(),
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        environment: Environment::base(&folder, &folder),
        directory: folder,
        mark: Mark::new(&format!("st_{}", std::process::id()), &format!("ex_{:x}", hash(script))),
        grace: Duration::from_millis(300),
    }
}

fn hash(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The processes whose command line has the word; zombies have none.
fn running(word: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok() && name != own))
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(word))
        .collect()
}

async fn until_running(word: &str, count: usize) {
    let begin = Instant::now();
    let mut looks = interval(Duration::from_millis(2));
    while running(word).len() != count {
        assert!(begin.elapsed() < LIMIT, "{:?}", running(word));
        looks.tick().await;
    }
}

async fn first_line(process: &mut Process) -> String {
    let line = timeout(LIMIT, LineReader::new(&mut process.stdout, 1 << 20).next()).await.unwrap().unwrap().unwrap();
    String::from_utf8(line.to_vec()).unwrap()
}

async fn exited(process: &mut Process) -> Exit {
    timeout(LIMIT, process.control.exited()).await.unwrap()
}

/// A tree that resists: it ignores TERM and the end of its stdin, and has a child, one in a session of its own, one that
/// daemonised, and one without our mark.
fn stubborn(word: &str) -> String {
    format!(
        "trap '' TERM HUP INT
         sleep {word} &
         setsid sleep {word} &
         (setsid sh -c 'sleep {word} & exit 0' &)
         env -i setsid /bin/sh -c 'trap \"\" TERM; sleep {word}; :' &
         echo ready
         while :; do sleep 1; done"
    )
}

/// How many processes of a stubborn tree have the word in their command line: the keeper, the agent, three that sleep, and
/// a shell with one more.
const STUBBORN: usize = 7;

/// Waits until a stubborn tree stands: all four sleep, and no shell is on its way to a program any more.
async fn until_stubborn(word: &str) {
    let begin = Instant::now();
    let sleeper = format!("sleep {word} ");
    let mut looks = interval(Duration::from_millis(2));
    loop {
        let found = running(word);
        if found.len() == STUBBORN && found.iter().filter(|line| **line == sleeper).count() == 4 {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "{found:?}");
        looks.tick().await;
    }
}

#[tokio::test]
async fn the_exit_code_is_the_agents_own() {
    for code in [0, 3, 126, 127, 255] {
        let mut process = spawn(launch(&format!("exit {code}"))).unwrap();
        let want = Exit { status: ExitStatus::Code(code), asked: false };
        assert_eq!(exited(&mut process).await, want);
        // Again, and after an order that came too late.
        process.control.end();
        assert_eq!(exited(&mut process).await, want);
        assert_eq!(process.control.retire(Duration::ZERO).await, want);
    }
}

#[tokio::test]
async fn the_signal_that_killed_the_agent_is_reported_and_is_not_ours() {
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("ABRT", 6), ("PIPE", 13), ("HUP", 1), ("BUS", 7)] {
        let mut process = spawn(launch(&format!("kill -s {name} $$; exit 9"))).unwrap();
        let exit = exited(&mut process).await;
        assert_eq!(exit, Exit { status: ExitStatus::Signal(number), asked: false }, "{name}");
        assert!(exit.is_foreign_signal());
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_why_before_or_after_the_start() {
    let folder = folder();
    let plain = folder.join("plain");
    fs::write(&plain, "no program").unwrap();
    let broken = folder.join("broken");
    fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let foreign = folder.join("foreign");
    fs::write(&foreign, [0x7f, b'E', b'L', b'F', 0, 0]).unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o755)).unwrap();

    let of = |program: PathBuf| Launch { program, ..launch("") };
    assert!(matches!(spawn(of(folder.join("none"))), Err(SpawnError::ProgramMissing { .. })));
    assert!(matches!(spawn(of("no-such-program-anywhere".into())), Err(SpawnError::ProgramMissing { .. })));
    assert!(matches!(spawn(of(plain)), Err(SpawnError::NotExecutable { .. })));
    assert!(matches!(spawn(of(folder.clone())), Err(SpawnError::NotExecutable { .. })));
    let nowhere = Launch { directory: folder.join("none"), ..launch("") };
    assert!(matches!(spawn(nowhere), Err(SpawnError::DirectoryMissing { .. })));
    let unkept = Launch { keeper: folder.join("none"), ..launch("") };
    assert!(matches!(spawn(unkept), Err(SpawnError::KeeperMissing { .. })));
    let odd = launch("");
    let odd = Launch { environment: odd.environment.clone().set("A=B", ""), ..odd };
    let error = spawn(odd).unwrap_err();
    assert!(matches!(&error, SpawnError::Io { .. }), "{error}");

    for (program, code, said) in [(broken, 127, "could not start"), (foreign, 126, "could not start")] {
        let mut process = spawn(of(program)).unwrap();
        assert_eq!(exited(&mut process).await.status, ExitStatus::Code(code));
        let tail = process.control.stderr_tail();
        assert!(tail.contains(said) && tail.lines().count() == 1, "{tail}");
    }
}

#[tokio::test]
async fn the_environment_is_built_from_nothing_and_a_bare_name_is_found_in_its_path() {
    let mut launch = launch("");
    launch.program = "env".into();
    launch.args.clear();
    launch.environment = launch.environment.set("GIVEN", "1");
    let mark = launch.mark.clone();
    let mut process = spawn(launch).unwrap();
    let mut text = String::new();
    process.stdout.read_to_string(&mut text).await.unwrap();
    let mut names: Vec<_> = text.lines().map(|line| line.split_once('=').unwrap().0).collect();
    names.sort_unstable();
    assert_eq!(names, ["GIVEN", "HOME", "LANG", "LC_ALL", "PATH", MARK_VARIABLE, "TMPDIR"]);
    assert!(text.lines().any(|line| line == format!("{MARK_VARIABLE}={mark}")));
}

#[tokio::test]
async fn keeper_and_agent_each_lead_a_group_of_their_own() {
    let mut process = spawn(launch("echo $$ $PPID $(cut -d' ' -f5 /proc/$$/stat /proc/$PPID/stat)")).unwrap();
    let line = first_line(&mut process).await;
    let numbers: Vec<u32> = line.split(' ').map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers[0], numbers[2], "{line}");
    assert_eq!((numbers[1], numbers[3]), (process.control.keeper_pid(), process.control.keeper_pid()), "{line}");
    assert_ne!(numbers[2], numbers[3]);
}

#[tokio::test]
async fn the_end_takes_a_stubborn_tree_with_it() {
    let word = token(1);
    let mut process = spawn(launch(&stubborn(&word))).unwrap();
    assert_eq!(first_line(&mut process).await, "ready");
    until_stubborn(&word).await;
    let keepers = BTreeSet::from([process.control.keeper_pid()]);
    let tree = tree::descendants(process.control.keeper_pid());
    assert!(tree.len() >= STUBBORN - 1, "{tree:?}");
    for one in &tree {
        // Those that sleep for a second come and go.
        let found = tree::is_descendant_or_marked(one.pid, &keepers, "st_none.");
        assert!(found == Ok(true) || !tree::alive(one), "{found:?}");
    }
    let begin = Instant::now();
    process.control.end();
    let exit = exited(&mut process).await;
    let took = begin.elapsed();
    assert_eq!(exit, Exit { status: ExitStatus::Signal(9), asked: true });
    assert!(!exit.is_foreign_signal());
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
    assert_eq!(running(&word), [""; 0]);
}

#[tokio::test]
async fn an_agent_that_obeys_term_ends_without_the_grace() {
    let mut slow = launch("echo ready; while :; do sleep 1; done");
    slow.grace = Duration::from_secs(60);
    let mut process = spawn(slow).unwrap();
    first_line(&mut process).await;
    process.control.end();
    assert_eq!(exited(&mut process).await, Exit { status: ExitStatus::Signal(15), asked: true });
}

#[tokio::test]
async fn an_agent_that_ends_by_itself_takes_its_leftovers_with_it_at_once() {
    let word = token(2);
    let mut left = launch(&stubborn(&word).replace("while :; do sleep 1; done", "read go; exit 7"));
    left.grace = Duration::from_secs(60);
    let mut process = spawn(left).unwrap();
    first_line(&mut process).await;
    until_stubborn(&word).await;
    let begin = Instant::now();
    drop(process.stdin);
    let exit = timeout(LIMIT, process.control.exited()).await.unwrap();
    assert_eq!(exit, Exit { status: ExitStatus::Code(7), asked: false });
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(running(&word), [""; 0]);
}

#[tokio::test]
async fn an_agent_that_ends_when_its_stdin_does_is_not_asked() {
    let Process { stdin, mut control, stdout: _stdout } = spawn(launch("cat; exit 4")).unwrap();
    drop(stdin);
    assert_eq!(control.retire(LIMIT).await, Exit { status: ExitStatus::Code(4), asked: false });
}

#[tokio::test]
async fn an_agent_that_ignores_the_end_of_its_stdin_is_asked_after_the_wait() {
    let Process { stdin, mut control, stdout: _stdout } = spawn(launch("sleep 600; exit 4")).unwrap();
    drop(stdin);
    assert_eq!(control.retire(Duration::from_millis(50)).await, Exit { status: ExitStatus::Signal(15), asked: true });
}

#[tokio::test]
async fn a_wait_that_is_given_up_loses_nothing() {
    let mut process = spawn(launch("read go; exit 5")).unwrap();
    for _ in 0..20 {
        assert!(timeout(Duration::from_millis(1), process.control.exited()).await.is_err());
    }
    drop(process.stdin);
    assert_eq!(process.control.exited().await.status, ExitStatus::Code(5));
}

#[tokio::test]
async fn the_end_of_stdout_is_seen_while_the_agent_lives() {
    let mut process = spawn(launch("exec >&-; read go; exit 6")).unwrap();
    let mut text = String::new();
    timeout(LIMIT, process.stdout.read_to_string(&mut text)).await.unwrap().unwrap();
    assert!(!tree::descendants(process.control.keeper_pid()).is_empty());
    drop(process.stdin);
    assert_eq!(process.control.exited().await.status, ExitStatus::Code(6));
}

#[tokio::test]
async fn a_dropped_control_ends_everything_and_leaves_no_zombie() {
    let word = token(3);
    let mut process = spawn(launch(&stubborn(&word))).unwrap();
    first_line(&mut process).await;
    until_stubborn(&word).await;
    let keeper = process.control.keeper_pid();
    drop(process);
    until_running(&word, 0).await;
    let begin = Instant::now();
    let mut looks = interval(Duration::from_millis(2));
    while fs::exists(format!("/proc/{keeper}")).unwrap() {
        assert!(begin.elapsed() < LIMIT);
        looks.tick().await;
    }
}

#[tokio::test]
async fn what_a_killed_keeper_leaves_is_ended_by_its_mark() {
    let word = token(4);
    let mut process = spawn(launch(&stubborn(&word))).unwrap();
    first_line(&mut process).await;
    until_stubborn(&word).await;
    let keeper = process.control.keeper_pid();
    Command::new("/bin/sh").args(["-c", &format!("kill -s KILL {keeper}")]).status().unwrap();
    let exit = exited(&mut process).await;
    assert_eq!(exit, Exit { status: ExitStatus::Signal(9), asked: false });
    // Also the one that has shed the mark: it descends from one that has it.
    assert_eq!(running(&word), [""; 0]);
}

#[tokio::test]
async fn what_a_killed_daemon_leaves_is_swept_without_its_grace() {
    let word = token(6);
    let mut slow = launch(&stubborn(&word));
    slow.grace = Duration::from_secs(60);
    let mark = slow.mark.clone();
    let mut process = spawn(slow).unwrap();
    first_line(&mut process).await;
    until_stubborn(&word).await;
    drop(process);
    let swept = tree::sweep(mark.as_str(), LIMIT);
    assert!(swept.ended >= 6 && swept.left == 0, "{swept:?}");
    until_running(&word, 0).await;
}

#[tokio::test]
async fn surplus_is_found_also_where_it_has_daemonised() {
    let word = token(7);
    let script = format!("sleep {word} & echo ready; read go; {}", stubborn(&word));
    let script = script.replace("while :; do sleep 1; done", "while read more; do :; done");
    let mut process = spawn(launch(&script)).unwrap();
    first_line(&mut process).await;
    // The keeper, the agent, and one that sleeps.
    until_running(&word, 3).await;
    let keeper = process.control.keeper_pid();
    let before = tree::descendants(keeper);
    process.stdin.write_all(b"go\n").await.unwrap();
    until_running(&word, STUBBORN + 1).await;
    let surplus = tree::end_surplus(keeper, &before, |_, _| tree::Kind::Surplus, LIMIT).await;
    assert!(surplus.ended >= 5 && surplus.left == 0, "{surplus:?}");
    assert_eq!(running(&word).len(), 3);
    process.control.end();
    exited(&mut process).await;
}

/// A chain of processes, each of which starts the next one and ends: a single look at the tree may meet none of them.
#[tokio::test]
async fn a_chain_of_processes_is_ended_and_not_overlooked() {
    let folder = folder().join(format!("chain-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (program, number) = (folder.join("link"), folder.join("number"));
    // It gives up by itself one day, so that a failing test leaves nothing for ever.
    let link = "#!/bin/sh\n[ $2 -gt 20000 ] && exit 0\necho $2 > $1\nsetsid $0 $1 $(($2 + 1)) &\n";
    fs::write(&program, link).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let script = format!("echo ready; while read go; do setsid {} {} 0 & done", program.display(), number.display());
    let mut process = spawn(launch(&script)).unwrap();
    first_line(&mut process).await;
    let keeper = process.control.keeper_pid();
    let before = tree::descendants(keeper);
    for round in 0..20 {
        process.stdin.write_all(b"go\n").await.unwrap();
        let mut looks = interval(Duration::from_millis(2));
        while fs::read_to_string(&number).unwrap_or_default().trim().parse::<u32>().unwrap_or(0) < 5 {
            looks.tick().await;
        }
        let surplus = tree::end_surplus(keeper, &before, |_, _| tree::Kind::Surplus, LIMIT).await;
        assert_eq!(surplus.left, 0, "round {round}");
        fs::remove_file(&number).unwrap();
        for _ in 0..10 {
            looks.tick().await;
        }
        assert!(!number.exists(), "the chain of round {round} goes on");
    }
    process.control.end();
    exited(&mut process).await;
    fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn ten_mib_on_stderr_before_the_first_line_hold_nothing_up() {
    let script = "head -c 10485760 /dev/zero | tr '\\0' x >&2; printf '\\n\\033[31mlast words\\033[0m\\n' >&2; \
                  echo ready; read go; exit 1";
    let mut process = spawn(launch(script)).unwrap();
    assert_eq!(first_line(&mut process).await, "ready");
    drop(process.stdin);
    assert_eq!(timeout(LIMIT, process.control.exited()).await.unwrap().status, ExitStatus::Code(1));
    let tail = process.control.stderr_tail();
    assert!(tail.len() <= 4096 && tail.ends_with("x\nlast words"), "{tail}");
}

#[tokio::test]
async fn lines_go_through_a_process_and_back_whole() {
    let tasks = TaskTracker::new();
    let Process { stdin, stdout, mut control } = spawn(launch("cat")).unwrap();
    let writer = Writer::start(stdin, &tasks);
    let big = format!("{{\"method\":\"{}\"}}\n", "é✓🦀".repeat(200_000));
    let sending = writer.clone();
    let sent = big.clone();
    tasks.spawn(async move {
        for _ in 0..3 {
            sending.send(sent.clone().into()).await.unwrap();
            sending.send("{\"method\":\"small\"}\n".into()).await.unwrap();
        }
        sending.close();
    });
    let mut lines = LineReader::new(stdout, 64 << 20);
    for _ in 0..3 {
        assert!(*lines.next().await.unwrap().unwrap() == big.as_bytes()[..big.len() - 1]);
        assert_eq!(&lines.next().await.unwrap().unwrap()[..], b"{\"method\":\"small\"}");
    }
    assert!(lines.next().await.unwrap().is_none());
    assert_eq!(control.retire(LIMIT).await, Exit { status: ExitStatus::Code(0), asked: false });
    tasks.close();
    tasks.wait().await;
}

#[tokio::test]
async fn a_process_that_does_not_read_blocks_its_writer_only_and_is_retired() {
    let tasks = TaskTracker::new();
    let Process { stdin, stdout, mut control } = spawn(launch("trap '' TERM; sleep 600; exit 1")).unwrap();
    let writer = Writer::start(stdin, &tasks);
    let mut notice = writer.send_noticed(vec![b'x'; 1 << 20].into());
    assert!(timeout(Duration::from_millis(50), &mut notice).await.is_err());
    writer.close();
    tasks.close();
    timeout(LIMIT, tasks.wait()).await.unwrap();
    assert!(notice.await.is_err());
    assert_eq!(control.retire(Duration::ZERO).await, Exit { status: ExitStatus::Signal(9), asked: true });
    drop(stdout);
}

/// The other half of the next test: a daemon that starts a stubborn agent and is killed. By itself it does nothing.
#[tokio::test]
async fn stand_in_for_a_daemon() {
    let Ok(word) = env::var("NATIVE_PROCESS_STAND_IN") else { return };
    let mut process = spawn(launch(&stubborn(&word))).unwrap();
    first_line(&mut process).await;
    until_stubborn(&word).await;
    eprintln!("stand-in is set up");
    process.control.exited().await;
}

#[tokio::test]
async fn when_the_daemon_is_killed_everything_goes_with_it() {
    let word = token(5);
    let mut daemon = Command::new(env::current_exe().unwrap())
        .args(["--exact", "stand_in_for_a_daemon", "--nocapture"])
        .env("NATIVE_PROCESS_STAND_IN", &word)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(daemon.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "stand-in is set up"));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    until_running(&word, 0).await;
}
