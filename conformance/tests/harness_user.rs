//! Harnesses under a user of their own, where the daemon is root (R-SEC-1): what a model runs has that user, and reaches neither the daemon, the
//! keepers, the journal, events nor key files; everything else is as it is without. Where the tests may not switch users, the daemon says why it does
//! not start, and no more is looked at.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "what was left out is said")]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use anyhow::Context;
use conformance::rig::{
    Daemon, Ended, Harness, Observed, Place, Process, Rig, Setup, calling, function, nowhere, program, refusal,
    scenario, served_by, stdio_server,
};
use conformance::{for_each_harness, for_every_harness};
use proto::v1::{self, CancelOutcome, Reason, event::Kind};
use rustix::process::geteuid;
use serde_json::json;

for_every_harness!(
    the_harness_and_its_commands_have_the_user_and_reach_nothing_of_the_daemon,
    without_a_workspace_it_is_the_same,
    a_cancel_leaves_nothing_of_the_user,
    after_a_kill_of_the_daemon_the_session_goes_on_and_links_are_not_followed,
    homes_of_an_earlier_daemon_are_handed_over,
    what_the_user_cannot_reach_is_told
);

for_each_harness!(servers_that_are_processes_are_the_users);

/// MiniMax Code is given no server that it would have to start.
#[test]
fn servers_of_opencode_that_are_processes_are_the_users() {
    servers_that_are_processes_are_the_users(Harness::Opencode);
}

/// A user that hardly a machine has given to anybody, and that the user namespace of a container has.
const USER: u32 = 61_321;

/// How the daemon is told of it.
const CONFIGURED: &str = "harness_user = \"61321\"";

/// What the daemon asks for (docs/configuration.md), by its bit in `CapEff`.
const NEEDED: [(u32, &str); 7] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (19, "CAP_SYS_PTRACE"),
];

/// Whether these tests, and so a daemon of theirs, may run anything as another user; else what the daemon has to say of it.
fn may_switch() -> Result<(), String> {
    if !geteuid().is_root() {
        return Err("only root may run Harnesses under another user".to_owned());
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let effective = u64::from_str_radix(effective, 16).unwrap();
    let missing: Vec<_> = NEEDED.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("the daemon is root without {};", missing.join(", "))) }
}

/// Runs a scenario with a Harness of this user. Where that cannot be, the daemon must refuse to start.
fn under_the_user<F>(name: &str, rules: &[&str], harness: Harness, more: &str, run: F)
where
    F: AsyncFnOnce(&mut Rig) -> anyhow::Result<()>,
{
    let Err(why) = may_switch() else {
        let setup = Setup::outer().of(harness).reachable_for(USER).with(more);
        return scenario(name, rules, if name == "user_served" { setup.serving_processes() } else { setup }, run);
    };
    println!("LEFT OUT: {name}: {why}");
    let text = refused(&USER.to_string());
    assert!(text.contains(&why), "{why:?} is missing: {text}");
}

/// What a daemon says that may not start with this `harness_user`.
fn refused(user: &str) -> String {
    let place = Place::make().unwrap();
    let mut command = Command::new(program("runtime-bridge").unwrap());
    command.arg("serve").arg("--state").arg(place.state()).arg("--socket").arg(place.socket());
    command.env("HOME", place.home()).args(["--harness-user", user, "--codex", "/nonexistent/codex"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(10), "{text}");
    assert!(text.contains("could not use `harness_user`: "), "{text}");
    assert!(!place.state().join("journal.db").exists());
    text
}

/// Has the model run a command, and gives what it printed.
async fn shell(rig: &Rig, session: &proto::client::Session, turn: &str, command: &str) -> anyhow::Result<String> {
    let script = json!([
        {"play": [{"shell": {"command": command, "yield_ms": 30_000}}]},
        {"play": [{"text": {"chunks": ["Done."]}}]},
    ]);
    rig.provider.reset();
    rig.provider.script(&script.to_string())?;
    let seen = rig.whole_turn(session, turn, "run it").await?;
    seen.completed()?;
    seen.tool_output()
}

/// All four uids of a process.
fn uids(process: &Process) -> anyhow::Result<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).context("no uids")?;
    Ok(line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// Everything below a folder, without what lies behind links.
fn all_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        let Some(entries) = there(fs::read_dir(folder))? else { continue };
        for entry in entries {
            let entry = entry?;
            let Some(kind) = there(entry.file_type())? else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// None of what is gone by now: the Harness may be at work.
fn there<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The folder of the only Session that has one.
fn folder_of_the_session(rig: &Rig) -> anyhow::Result<PathBuf> {
    let mut sessions = fs::read_dir(rig.place().state().join("sessions"))?;
    let (first, second) = (sessions.next().context("no Session")??, sessions.next());
    anyhow::ensure!(second.is_none(), "there are several");
    Ok(first.path())
}

/// A history that will be gone on with stands on disk.
async fn wait_for_the_history(rig: &Rig) -> anyhow::Result<()> {
    rig.wait_for_history(match rig.kind() {
        Harness::Codex => "task_complete",
        Harness::ClaudeCode => r#""stop_reason":"end_turn""#,
        // What was said is enough to be gone on with.
        Harness::MinimaxCode | Harness::Opencode => "first",
    })
    .await
}

/// Where the Harness keeps its state within the home of a Session, and the file there that is written anew with each start.
fn own(harness: Harness) -> (&'static str, &'static str) {
    match harness {
        Harness::Codex => ("codex", "config.toml"),
        Harness::ClaudeCode => ("claude", "config.toml"),
        Harness::MinimaxCode => ("minimax", "config.yaml"),
        Harness::Opencode => ("opencode", ".config/opencode/opencode.json"),
    }
}

/// What the daemon has is its own, also where the user passes; what the Harness has is the user's.
fn everything_has_its_owner(state: &Path) -> anyhow::Result<()> {
    let owned = fs::metadata(state)?;
    anyhow::ensure!((owned.uid(), owned.gid(), owned.mode() & 0o777) == (0, USER, 0o710), "{owned:?}");
    for path in all_below(state)? {
        let Some(found) = there(fs::symlink_metadata(&path))? else { continue };
        let below: Vec<_> = path.strip_prefix(state)?.iter().map(|part| part.to_string_lossy()).collect();
        let below: Vec<&str> = below.iter().map(AsRef::as_ref).collect();
        let (uid, mode) = (found.uid(), found.mode() & 0o777);
        let is_right = match below[..] {
            ["sessions"] | ["sessions", _] | ["sessions", _, "home"] => uid == 0 && mode == 0o710,
            ["sessions", _, "tmp"]
            | ["sessions", _, "home", "codex" | "claude" | "minimax" | "opencode" | "user" | "empty"] => {
                uid == USER && mode == 0o700
            }
            ["sessions", _, "home", "codex.lock" | "claude.lock" | "acp.lock" | "acp-session.json"] => {
                uid == 0 && mode == 0o600
            }
            ["sessions", _, "home" | "tmp", ..] => uid == USER,
            _ => uid == 0 && mode & 0o077 == 0,
        };
        anyhow::ensure!(is_right, "{} is of {uid} with {mode:o}", path.display());
    }
    Ok(())
}

fn the_harness_and_its_commands_have_the_user_and_reach_nothing_of_the_daemon(harness: Harness) {
    let rules = ["R-SEC-1", "R-SEC-2"];
    under_the_user("user_reaches_nothing", &rules, harness, CONFIGURED, async |rig| {
        let other = rig.session().await?;
        rig.whole_turn(&other, "t-other", "hello").await?.completed()?;
        let events = rig.place().event_file()?;
        let state = rig.place().state();
        let key = rig.place().root().join("key");
        fs::write(&key, "sk-of-the-operator\n")?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let daemon = rig.daemon.pid();
        let reach = rig.place().reachable_own("runtime-bridge-conformance")?;
        // The folder of the socket keeps the user out as well, so that the socket itself is looked at.
        let socket = rig.place().socket().to_owned();
        fs::set_permissions(socket.parent().context("no folder")?, fs::Permissions::from_mode(0o755))?;

        let files = [&state.join("journal.db"), &state.join("lock"), &events, &key];
        let files: Vec<_> = files.into_iter().map(|file| file.display().to_string()).collect();
        for file in &files {
            anyhow::ensure!(Path::new(file).is_file(), "{file} is not there");
        }
        let command = format!(
            r#"echo "is $(id -u) $(id -g) $(id -G)"
for f in {files} /proc/{daemon}/environ /proc/{daemon}/mem; do head -c 1 "$f" >/dev/null 2>&1 && echo "read $f"; done
for d in {state} {state}/sessions {folder}; do ls "$d" >/dev/null 2>&1 && echo "listed $d"; echo x 2>/dev/null >"$d/x" && echo "wrote $d"; done
p=$$; while [ "$p" -gt 1 ]; do
  p=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$p/status); read -r name </proc/$p/comm
  case "$name" in runtime-bridge*)
    echo "met $name"
    kill -9 "$p" 2>/dev/null && echo "killed $name"
    head -c 1 /proc/$p/environ >/dev/null 2>&1 && echo "read $name";;
  esac
  [ "$p" = {daemon} ] && break
done
'{reach}' reach '{socket}'
echo over"#,
            files = files.join(" "),
            state = state.display(),
            folder = events.parent().and_then(Path::parent).context("no folder")?.display(),
            reach = reach.display(),
            socket = socket.display(),
        );
        let session = rig.session().await?;
        let said = shell(rig, &session, "t-1", &command).await?;
        for want in [
            &*format!("is {USER} {USER} {USER}\n"),
            "met runtime-bridge-\n",
            "met runtime-bridge\n",
            "refused: ",
            "Permission denied",
            "over",
        ] {
            assert!(said.contains(want), "{want:?} is missing: {said}");
        }
        for never in ["read ", "listed ", "wrote ", "killed ", "reached "] {
            assert!(!said.contains(never), "{never:?}: {said}");
        }
        // Where the socket's mode is no obstacle either, the daemon looks who it is.
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
        let said =
            shell(rig, &session, "t-open", &format!("'{}' reach '{}'", reach.display(), socket.display())).await?;
        assert!(said.contains("refused: ") && !said.contains("Permission denied"), "{said}");
        let log = rig.daemon.log_text();
        assert!(log.contains(&format!("uid {USER} is not on the list")), "{log}");

        // Both run under the user, their keepers do not.
        for process in rig.family()? {
            let want = if process.command.contains("runtime-bridge-keeper") { 0 } else { USER };
            assert_eq!(uids(&process)?, [want; 4], "{process:?}");
        }
        let status = fs::read_to_string(format!("/proc/{}/status", rig.harness()?.pid))?;
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("none").trim();
        assert_eq!((line("Groups:"), line("CapEff:")), ("", "0000000000000000"), "{status}");
        everything_has_its_owner(&state)?;
        // The keepers are there, and so is the daemon.
        rig.whole_turn(&session, "t-2", "go on").await?.completed()?;
        for session in [&session, &other] {
            let released = session.release(true).await?;
            assert_eq!((released.outcome(), released.home_removed), (v1::ReleaseOutcome::Confirmed, true));
        }
        let homes: Vec<_> = all_below(&state)?.into_iter().filter(|path| path.ends_with("home")).collect();
        assert!(homes.is_empty(), "{homes:?}");
        Ok(())
    });
}

fn without_a_workspace_it_is_the_same(harness: Harness) {
    let rules = ["R-SEC-1", "R-CTL-4", "R-FN-1"];
    under_the_user("user_nowhere", &rules, harness, CONFIGURED, async |rig| {
        let session = rig.session_nowhere().await?;
        let functions = vec![function("lookup", r#"{"type":"object","properties":{"z":{"type":"string"}}}"#)];
        let ready = rig.prepare(&session, nowhere(rig.configuration(functions))).await?;
        rig.turn_with(&session, &ready, "t-1", "hello").await?.completed()?;
        assert_eq!(uids(&rig.harness()?)?, [USER; 4]);
        everything_has_its_owner(&rig.place().state())
    });
}

fn a_cancel_leaves_nothing_of_the_user(harness: Harness) {
    let rules = ["R-SEC-1", "R-CAN-2", "R-CAN-4", "R-EVT-9"];
    // What is prepared again interrupts what was before (see `Setup::patient`).
    let more = format!("{CONFIGURED}\nlimits.interrupt_ms = 12000");
    under_the_user("user_cancelled", &rules, harness, &more, async |rig| {
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-first", "hello").await?.completed()?;
        let command = "(setsid sh -c \"trap '' TERM HUP; sleep 7401; :\" &); trap '' TERM; sleep 7400; :";
        let script = json!([{"play": [{"shell": {"command": command, "yield_ms": 30_000}}]}, {"play": ["hang"]}]);
        rig.provider.reset();
        rig.provider.script(&script.to_string())?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "run it").await?;
        for command in ["sleep 7400", "sleep 7401"] {
            let process = rig.wait_for_process(|process| process.command == command).await?;
            assert_eq!(uids(&process)?, [USER; 4], "{command}");
        }
        let answer = session.cancel("t-1", None).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled, "{answer:?}");
        let left: Vec<_> = rig.family()?.into_iter().filter(|process| process.command.contains("sleep 740")).collect();
        assert!(left.is_empty(), "{left:#?}");
        let seen = Observed::default().to_the_end(&mut events).await?;
        assert_eq!(seen.end()?.status(), v1::TurnStatus::Cancelled);
        rig.provider.reset();
        let ready = rig.prepare_again(&session, rig.configuration(Vec::new())).await?;
        rig.turn_with(&session, &ready, "t-2", "go on").await?.completed()?;
        // A keeper that is killed leaves what it had to the daemon, which sees and ends it although it is another user's.
        let is_keeper = |process: &&Process| process.command.contains("runtime-bridge-keeper");
        let family = rig.family()?;
        family.iter().find(is_keeper).context("no keeper")?.signal(rustix::process::Signal::KILL)?;
        rig.only(&[]).await
    });
}

fn after_a_kill_of_the_daemon_the_session_goes_on_and_links_are_not_followed(harness: Harness) {
    let rules = ["R-SEC-1", "R-DUR-2", "R-PRE-4", "R-ASG-4"];
    under_the_user("user_resumed", &rules, harness, CONFIGURED, async |rig| {
        let session = rig.session().await?;
        let first = rig.whole_turn(&session, "t-1", "first").await?;
        first.completed()?;
        wait_for_the_history(rig).await?;
        let native = first.native_session()?;
        let script = json!([{"play": [{"shell": {"command": "sleep 7410", "yield_ms": 30_000}}]}, {"play": ["hang"]}]);
        rig.provider.reset();
        rig.provider.script(&script.to_string())?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-2", "run it").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
        rig.wait_for_process(|process| process.command == "sleep 7410").await?;
        let family = rig.family()?;
        rig.daemon.kill().await?;
        rig.all_gone(&family).await?;

        // What the user could have left: links to what only root may write, read or remove.
        let kept = rig.place().root().join("kept");
        fs::create_dir(&kept)?;
        fs::write(kept.join("file"), "precious")?;
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o700))?;
        let home = folder_of_the_session(rig)?.join("home");
        let (own, written) = own(harness);
        let own = home.join(own);
        // Some have their `HOME` beside it.
        let user = Some(home.join("user")).filter(|user| user.exists()).unwrap_or_else(|| own.clone());
        for link in [own.join(format!("{written}.new")), own.join("file")] {
            symlink(kept.join("file"), link)?;
        }
        for link in [own.join("folder"), user.join("other")] {
            symlink(&kept, link)?;
        }
        rig.daemon = Daemon::start(rig.place()).await?;
        rig.provider.reset();
        let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
        let third = rig.turn_with(&session, &ready, "t-3", "go on").await?;
        third.completed()?;
        assert_eq!(third.native_session()?, native);
        let released = session.release(true).await?;
        assert_eq!((released.outcome(), released.home_removed), (v1::ReleaseOutcome::Confirmed, true), "{released:?}");
        assert!(!home.exists());
        assert_eq!(fs::read_to_string(kept.join("file"))?, "precious");
        let owners = [&kept, &kept.join("file")].map(|path| fs::metadata(path).map(|found| found.uid()));
        assert!(owners.iter().all(|owner| matches!(owner, Ok(0))), "{owners:?}");
        Ok(())
    });
}

fn homes_of_an_earlier_daemon_are_handed_over(harness: Harness) {
    let rules = ["R-SEC-1", "R-PRE-4"];
    under_the_user("user_handed_over", &rules, harness, "", async |rig| {
        let session = rig.session().await?;
        let first = rig.whole_turn(&session, "t-1", "first").await?;
        first.completed()?;
        wait_for_the_history(rig).await?;
        let native = first.native_session()?;
        assert_eq!(uids(&rig.harness()?)?, [0; 4]);
        rig.daemon.terminate().await?;
        // A link among what is handed over is handed over itself, and nothing behind it.
        let kept = rig.place().root().join("kept");
        fs::write(&kept, "precious")?;
        symlink(&kept, folder_of_the_session(rig)?.join("home").join(own(harness).0).join("link"))?;

        let configuration = fs::read_to_string(rig.place().config())?;
        fs::write(rig.place().config(), format!("{CONFIGURED}\n{configuration}"))?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
        assert!(!ready.settings_changed, "{ready:?}");
        let second = rig.turn_with(&session, &ready, "t-2", "second").await?;
        second.completed()?;
        assert_eq!(second.native_session()?, native);
        assert_eq!(uids(&rig.harness()?)?, [USER; 4]);
        everything_has_its_owner(&rig.place().state())?;
        assert_eq!(fs::metadata(&kept)?.uid(), 0);
        rig.daemon.terminate().await?;

        // And back again: the daemon closes its state, and the Harness and what it has are the daemon's as before. A third start of opencode would take its time.
        if harness == Harness::Opencode {
            return Ok(());
        }
        fs::write(rig.place().config(), configuration)?;
        rig.daemon = Daemon::start(rig.place()).await?;
        assert_eq!(fs::metadata(rig.place().state())?.mode() & 0o777, 0o700);
        let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
        rig.turn_with(&session, &ready, "t-3", "third").await?.completed()?;
        assert_eq!(uids(&rig.harness()?)?, [0; 4]);
        Ok(())
    });
}

fn what_the_user_cannot_reach_is_told(harness: Harness) {
    let rules = ["R-SEC-1", "R-PRE-7", "R-CAP-3"];
    under_the_user("user_kept_out", &rules, harness, CONFIGURED, async |rig| {
        let session = rig.session().await?;
        let workspace = rig.workspace().to_owned();
        chown(&workspace, Some(0), Some(0))?;
        fs::set_permissions(&workspace, fs::Permissions::from_mode(0o700))?;
        let answer = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
        let told = refusal(answer, Reason::PreparationFailed).with("step", "workspace");
        told.says(&format!("the harness_user (uid {USER}, gid {USER}) cannot enter {}", workspace.display()))
            .says("Permission denied");
        rig.only(&[]).await?;
        // A workspace that may be entered and not written is the model's affair.
        fs::set_permissions(&workspace, fs::Permissions::from_mode(0o755))?;
        let said = shell(rig, &rig.session().await?, "t-1", "echo x > file || echo no").await?;
        assert!(said.contains("no"), "{said}");

        // The same of the program: it is not declared as one that can be used.
        rig.daemon.terminate().await?;
        let folder = rig.place().root().join("programs");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let declared = rig.declaration().await?;
        let why = &declared.unavailable_reason;
        assert!(!declared.available && why.contains(&format!("as uid {USER}: Permission denied")), "{declared:?}");
        rig.daemon.terminate().await?;

        // And of the state, which the daemon cannot do without.
        fs::set_permissions(rig.place().root(), fs::Permissions::from_mode(0o700))?;
        rig.daemon = Daemon::spawn(rig.place())?;
        let ended = rig.daemon.wait(std::time::Duration::from_secs(40)).await?;
        assert_eq!(ended, Ended::Code(10));
        let said = rig.daemon.log_tail();
        for part in ["could not use `harness_user`", "cannot enter", "name another state directory"] {
            assert!(said.contains(part), "{said}");
        }
        fs::set_permissions(rig.place().root(), fs::Permissions::from_mode(0o755))?;
        Ok(())
    });
}

fn servers_that_are_processes_are_the_users(harness: Harness) {
    let rules = ["R-SEC-1", "R-MCP-4", "R-PRE-5"];
    under_the_user("user_served", &rules, harness, CONFIGURED, async |rig| {
        // Some start them by the keeper, which is with the daemon, where a user may have no way.
        rig.daemon.terminate().await?;
        let keeper = rig.place().reachable_own("runtime-bridge-keeper")?;
        let configuration = fs::read_to_string(rig.place().config())?;
        let configuration = format!("keeper = \"{}\"\n{configuration}", keeper.display());
        fs::write(rig.place().config(), configuration)?;
        rig.daemon = Daemon::start(rig.place()).await?;

        let program = rig.place().reachable_own("runtime-bridge-conformance")?;
        let (program, cwd) = (program.to_string_lossy(), rig.workspace().to_string_lossy());
        let mut server = stdio_server("local", &program, &["mcp-stdio"], &cwd, &[]);
        server.required = harness != Harness::Opencode;
        let configuration = served_by([server], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        if harness != Harness::Codex {
            // Its folder, as the file itself is what others have, too.
            let folder = keeper.parent().context("no folder")?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
            let answer = session.prepare(configuration.clone(), Vec::new()).await;
            let told = refusal(answer, Reason::PreparationFailed).with("step", "mcp");
            told.says(&format!("(uid {USER}, gid {USER}) cannot execute the keeper {}", keeper.display()))
                .says("Permission denied");
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
        rig.provider.script(&calling("local.environment", &json!({})))?;
        let ready = rig.prepare(&session, configuration).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "look").await?;
        seen.completed()?;
        let calls = seen.mcp_calls();
        assert!(calls.len() == 1 && calls[0].status == v1::ToolStatus::Completed, "{calls:#?}");
        let serving = rig.wait_for_process(|process| process.command.contains("mcp-stdio")).await?;
        assert_eq!(uids(&serving)?, [USER; 4]);
        Ok(())
    });
}

#[test]
fn a_user_that_may_not_be_stops_the_daemon() {
    for (user, want) in [
        ("root", "it is root"),
        ("0:5", "it is root"),
        ("no-such-user-anywhere", "there is no user `no-such-user-anywhere`"),
        ("4294967295", "there is no user"),
        ("nobody:nogroup", "neither a user nor `uid:gid`"),
    ] {
        let text = refused(user);
        assert!(text.contains(want), "{user}: {text}");
    }
    // Who is not root may name nobody.
    let own = geteuid();
    if !own.is_root() {
        assert!(refused(&own.as_raw().to_string()).contains("the daemon's own uid"));
    }
}

#[test]
fn doctor_tells_who_harnesses_are() {
    let place = Place::make().unwrap();
    let doctor = |user: &str| {
        let mut command = Command::new(program("runtime-bridge").unwrap());
        command.arg("doctor").arg("--state").arg(Path::new("/var/tmp/runtime-bridge-nobody")).arg("--socket");
        command.arg(place.socket()).env("HOME", place.home()).args(["--harness-user", user]);
        command.args(["--codex", "/nonexistent/codex", "--claude", "/nonexistent/claude"]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find_map(|line| line.strip_prefix("uid ")).unwrap_or("none").trim().to_owned()
    };
    let told = doctor("no-such-user-anywhere");
    assert!(told.contains("could not use `harness_user`: there is no user"), "{told}");
    let told = doctor(&USER.to_string());
    let want = may_switch().err().unwrap_or_else(|| format!("0, and Harnesses have uid {USER}, gid {USER}: "));
    assert!(told.contains(&want), "{want:?} is missing: {told}");
}

/// Without another user, what a daemon was started with and what it holds is still closed to processes of its own user who are not root.
#[tokio::test]
async fn the_daemons_memory_is_closed_to_its_own_user() -> anyhow::Result<()> {
    // Root reads everything, so where the tests are root another user has the daemon.
    if geteuid().is_root()
        && let Err(why) = may_switch()
    {
        println!("LEFT OUT: {why}");
        return Ok(());
    }
    let other = geteuid().is_root().then_some(USER);
    let place = other.map_or_else(Place::make, Place::make_for)?;
    let folder = place.workspace().to_owned();
    let name = "runtime-bridge";
    let daemon = other.map_or_else(|| program(name), |_| place.reachable_own(name))?;
    let under = |program: &Path| {
        let mut command = tokio::process::Command::new(program);
        if let Some(uid) = other {
            command.uid(uid).gid(uid);
        }
        command.current_dir(&folder).env_clear().env("PATH", "/usr/bin:/bin").env("CANARY", "of-the-daemon");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        command
    };
    fs::write(place.config(), "")?;
    let mut serve = under(&daemon);
    serve.arg("serve").arg("--state").arg(folder.join("state")).arg("--socket").arg(folder.join("s"));
    serve.args(["--codex", "/nonexistent/codex", "--claude", "/nonexistent/claude", "--config"]).arg(place.config());
    let mut daemon = serve.spawn()?;
    // It is set up before it listens.
    let mut looks = tokio::time::interval(std::time::Duration::from_millis(10));
    while !folder.join("s").exists() {
        looks.tick().await;
        anyhow::ensure!(daemon.try_wait()?.is_none(), "the daemon has ended");
    }
    // The control is a process of the same user that hides nothing.
    let mut open = under(Path::new("/bin/cat")).spawn()?;
    let seen = async |pid: Option<u32>| {
        let pid = pid.context("it has ended")?;
        let look = format!(
            "grep -c CANARY /proc/{pid}/environ; head -c 0 /proc/{pid}/mem && echo mem; readlink /proc/{pid}/exe"
        );
        let output = under(Path::new("/bin/sh")).args(["-c", &look]).stdout(Stdio::piped()).output().await?;
        anyhow::Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Its program is on the way for a moment. The system may keep its memory from others; its environment and its program it does not.
    while !is_open(&seen(open.id()).await?) {
        looks.tick().await;
        anyhow::ensure!(open.try_wait()?.is_none(), "the control has ended");
    }
    let told = seen(daemon.id()).await?;
    daemon.kill().await?;
    open.kill().await?;
    anyhow::ensure!(told.is_empty(), "a process of the same user reads of the daemon: {told}");
    Ok(())
}

/// What is told of a process whose environment and program can be read.
fn is_open(told: &str) -> bool {
    told.starts_with("1\n") && told.lines().last().is_some_and(|program| program.starts_with('/'))
}
