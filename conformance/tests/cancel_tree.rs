//! Cancelling to the end: whatever the model's commands do to outlive their Turn, nothing of them runs at its settlement, and the Executor
//! takes the next Turn (R-CAN-2, R-CAN-3, R-CAN-4, R-EVT-9).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Isolation, Observed, Process, Rig, Setup, program, scenario, served_by, stdio_server};
use proto::client::Session;
use proto::v1::event::Kind;
use proto::v1::{self, CancelOutcome, ToolStatus, TurnStatus};
use serde_json::json;

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(
    nothing_that_hides_outlives_the_cancel,
    nothing_that_a_command_started_outlives_the_cancel,
    nothing_that_a_command_left_outlives_its_turn,
    what_calls_itself_a_server_does_not_outlive_its_turn
);

/// A script that starts itself again in a session of its own and ends, for ever; each one notes its number. It gives up by itself one day,
/// so that a bridge that cannot end it does not leave it to the machine.
const CHAIN: &str =
    "#!/bin/sh\n[ \"$2\" -gt 30000 ] && exit 0\necho \"$2\" > \"$1\"\nsetsid \"$0\" \"$1\" $(($2 + 1)) &\n";

/// One way to outlive a Turn.
struct Way {
    name: &'static str,
    command: &'static str,
    /// The command lines that show that it is set up.
    shows: &'static [&'static str],
    /// The command is left in the background, and the model goes on; else the Turn waits for it.
    in_background: bool,
}

/// How many of them one scenario tries.
const HALF: usize = 4;

const WAYS: &[Way] = &[
    Way {
        name: "nohup",
        command: "nohup sleep 7101 >/dev/null 2>&1 & disown; sleep 7100",
        shows: &["sleep 7100", "sleep 7101"],
        in_background: false,
    },
    Way {
        name: "double fork",
        command: "(setsid sh -c 'sleep 7102 & exit 0' &) ; (env -i /usr/bin/setsid /bin/sh -c '/bin/sleep 7103 & exit 0' &) ; sleep 7100",
        shows: &["sleep 7100", "sleep 7102", "/bin/sleep 7103"],
        in_background: false,
    },
    Way {
        name: "deaf",
        command: "(trap '' TERM HUP INT QUIT PIPE; setsid sh -c 'while :; do sleep 7104; done' &) ; trap '' TERM HUP INT; sleep 7100; :",
        shows: &["sleep 7100", "sleep 7104"],
        in_background: false,
    },
    Way {
        name: "stopped",
        command: "sh -c 'kill -STOP $$; sleep 7105' & sleep 7100",
        shows: &["sleep 7100", "sh -c kill -STOP $$; sleep 7105"],
        in_background: false,
    },
    Way {
        name: "many",
        command: "for n in $(seq 100); do setsid sleep 7106 & done; sleep 7100",
        shows: &["sleep 7100", "sleep 7106"],
        in_background: false,
    },
    Way {
        name: "terminals",
        command: "setsid sleep 7107 & sleep 7108",
        shows: &["sleep 7107", "sleep 7108"],
        in_background: true,
    },
    Way {
        name: "chain",
        command: "setsid ./chain number 0 & sleep 7100",
        shows: &["sleep 7100"],
        in_background: false,
    },
    // The name of Codex's own helper, in the three places where a process has a name.
    Way {
        name: "disguised",
        command: "setsid ./codex-code-mode-host 7109 & (printf codex-code-mode > /proc/self/comm; exec -a codex-code-mode-host sleep 7110) & \
                  sh -c 'printf codex-code-mode > /proc/$$/comm; read never < pipe' & sleep 7100",
        shows: &["sleep 7100", "./codex-code-mode-host 7109", "codex-code-mode-host 7110"],
        in_background: false,
    },
];

const RULES: [&str; 5] = ["R-CAN-2", "R-CAN-3", "R-CAN-4", "R-EVT-2", "R-EVT-9"];

fn nothing_that_a_command_started_outlives_the_cancel(harness: Harness) {
    scenario("cancel_tree", &RULES, Setup::outer().of(harness).patient(), async |rig| {
        every_way(rig, &WAYS[..HALF]).await
    });
}

/// The other half: each cancel takes its seconds.
fn nothing_that_hides_outlives_the_cancel(harness: Harness) {
    scenario("cancel_tree_hidden", &RULES, Setup::outer().of(harness).patient(), async |rig| {
        every_way(rig, &WAYS[HALF..]).await
    });
}

/// The same inside of Codex's own sandbox, where the machine has what it needs.
#[test]
fn nothing_outlives_the_cancel_in_the_native_sandbox() {
    let setup = Setup { isolation: Isolation::Native, ..Setup::default() };
    let setup = setup.only("Claude Code has no sandbox of its own, so there is no workspace without one around it");
    scenario("cancel_tree_native", &RULES, setup, async |rig| {
        let codex = rig.declaration().await?;
        if codex.available {
            return every_way(rig, WAYS).await;
        }
        anyhow::ensure!(!codex.unavailable_reason.is_empty(), "{codex:?}");
        Ok(())
    });
}

/// The same without a cancel: the Turn ends well, and what its command left is gone when that is told.
fn nothing_that_a_command_left_outlives_its_turn(harness: Harness) {
    let rules = ["R-EVT-9", "R-CAN-2", "R-CAN-3"];
    scenario("settled_tree", &rules, Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-first", "hello").await?.completed()?;
        let base = rig.family()?;
        let quiet = ">/dev/null 2>&1 </dev/null";
        let command = format!(
            "nohup sleep 7121 {quiet} & setsid sleep 7122 {quiet} & (setsid sh -c 'sleep 7123 & exit 0' {quiet} &) ; \
             (trap '' TERM HUP; sleep 7124) {quiet} & echo left"
        );
        let script = json!([
            {"play": [{"shell": {"command": command, "yield_ms": 30_000}}]},
            {"play": [{"text": {"chunks": ["Left."]}}, {"gate": "go"}]},
        ]);
        rig.provider.script(&script.to_string())?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "leave it").await?;
        // They are there while the Turn runs; what stays in the group of its command, Codex may end with it.
        let stay: &[_] = match harness {
            Harness::Codex => &["sleep 7122", "sleep 7123"],
            Harness::ClaudeCode => &["sleep 7121", "sleep 7122", "sleep 7123", "sleep 7124"],
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        for command in stay {
            rig.wait_for_process(|process| process.command == *command).await?;
        }
        rig.provider.open_gate("go");
        let seen = Observed::default().to_the_end(&mut events).await?;
        let left = surplus(rig, &base)?;
        anyhow::ensure!(left.is_empty(), "processes are left: {left:#?}");
        seen.completed()?;
        let tools: Vec<_> = seen.kinds().filter_map(tool).map(|(status, _)| status).collect();
        anyhow::ensure!(tools == [ToolStatus::Completed], "{tools:?}");
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        anyhow::ensure!(ready.reused, "the Executor was replaced");
        rig.turn_with(&session, &ready, "t-2", "go on").await?.completed()
    });
}

/// A command that has the variable of a declared server, below its shell and in the shell's place: it goes, and the real server stays.
fn what_calls_itself_a_server_does_not_outlive_its_turn(harness: Harness) {
    let rules = ["R-CAN-2", "R-EVT-9", "R-MCP-4"];
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools);
    scenario("settled_false_server", &rules, setup, async |rig| {
        let program = program("runtime-bridge-conformance")?;
        let (program, cwd) = (program.to_string_lossy().into_owned(), rig.workspace().to_string_lossy().into_owned());
        let declared = stdio_server("local", &program, &["mcp-stdio"], &cwd, &[]);
        for servers in [vec![], vec![declared]] {
            let session = rig.session().await?;
            let configuration = served_by(servers.clone(), rig.configuration(Vec::new()));
            let ready = rig.prepare(&session, configuration.clone()).await?;
            rig.provider.reset();
            let first = format!("t-first-{}", servers.len());
            rig.turn_with(&session, &ready, &first, "hello").await?.completed()?;
            let base = rig.family()?;
            let quiet = ">/dev/null 2>&1 </dev/null";
            let command = format!(
                "RUNTIME_BRIDGE_MCP=local setsid sleep 7131 {quiet} & \
                 (RUNTIME_BRIDGE_MCP=local setsid sh -c 'sleep 7132 & exit 0' {quiet} &) ; \
                 RUNTIME_BRIDGE_MCP=local exec sleep 7133 {quiet}"
            );
            let shell = json!([{"play": [{"shell": {"command": command, "yield_ms": 30_000}}]}, {"play": ["hang"]}]);
            rig.provider.reset();
            rig.provider.script(&shell.to_string())?;
            let turn_id = format!("t-{}", servers.len());
            let mut events = rig.start_turn(&session, configuration.clone(), &turn_id, "leave it").await?;
            let mut seen = Observed::default();
            seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
            for command in ["sleep 7131", "sleep 7132", "sleep 7133"] {
                rig.wait_for_process(|process| process.command == command).await?;
            }
            let answer = session.cancel(&turn_id, None).await?;
            let left = surplus(rig, &base)?;
            anyhow::ensure!(answer.outcome() == CancelOutcome::Settled, "{answer:?}");
            anyhow::ensure!(left.is_empty(), "processes are left: {left:#?}");
            seen.to_the_end(&mut events).await?;
            let stays = |process: &&Process| process.command.contains("mcp-stdio");
            anyhow::ensure!(rig.family()?.iter().filter(stays).count() == servers.len(), "the server did not stay");
            session.release(true).await?;
        }
        Ok(())
    });
}

async fn every_way(rig: &Rig, ways: &[Way]) -> anyhow::Result<()> {
    let workspace = rig.workspace().to_owned();
    fs::write(workspace.join("chain"), CHAIN)?;
    fs::set_permissions(workspace.join("chain"), fs::Permissions::from_mode(0o755))?;
    fs::copy("/bin/sleep", workspace.join("codex-code-mode-host"))?;
    rustix::fs::mknodat(rustix::fs::CWD, workspace.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)?;
    let session = rig.session().await?;
    rig.whole_turn(&session, "t-first", "hello").await?.completed()?;
    let base = rig.family()?;
    // Claude Code waits for its commands, and has no helper of that name.
    let fits = |way: &&Way| rig.kind() == Harness::Codex || !(way.in_background || way.name == "disguised");
    for way in ways.iter().filter(fits) {
        cancelled_in_the_middle(rig, &session, &base, way).await.with_context(|| way.name)?;
    }
    Ok(())
}

async fn cancelled_in_the_middle(rig: &Rig, session: &Session, base: &[Process], way: &Way) -> anyhow::Result<()> {
    let turn_id = format!("t-{}", way.name.replace(' ', "-"));
    let yield_ms = if way.in_background { 250 } else { 30_000 };
    let shell = json!([{"play": [{"shell": {"command": way.command, "yield_ms": yield_ms}}]}, {"play": ["hang"]}]);
    rig.provider.reset();
    rig.provider.script(&shell.to_string())?;
    let ready = rig.prepare(session, rig.configuration(Vec::new())).await?;
    anyhow::ensure!(ready.reused, "the Executor was replaced");
    session.start(&ready, &turn_id, proto::client::text_input(way.name)).await?;
    let (mut events, mut seen) = (session.turn_events(&turn_id), Observed::default());
    seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
    for command in way.shows {
        rig.wait_for_process(|process| process.command == *command).await?;
    }
    let chain = rig.workspace().join("number");
    if way.name == "chain" {
        rig.wait_for_process(|process| process.command.contains("./chain")).await?;
    }
    if way.in_background {
        rig.provider.wait_for(|requests| requests.len() >= 2).await?;
    }
    let answer = session.cancel(&turn_id, None).await?;
    // Settled means gone, at this very moment; one look at a tree that changes may miss something.
    let left = surplus(rig, base)?;
    let number = fs::read_to_string(&chain).unwrap_or_default();
    anyhow::ensure!(answer.outcome() == CancelOutcome::Settled, "{answer:?}");
    anyhow::ensure!(left.is_empty(), "processes are left: {left:#?}");

    let seen = seen.to_the_end(&mut events).await?;
    let end = seen.end()?;
    let want = (TurnStatus::Cancelled, v1::EndCause::Requested);
    anyhow::ensure!((end.status(), end.cause()) == want && end.failure.is_none(), "it ended so: {end:?}");
    let tools: Vec<_> = seen.kinds().filter_map(tool).collect();
    anyhow::ensure!(tools == [(ToolStatus::Incomplete, None)], "{tools:?}");

    rig.provider.reset();
    let ready = rig.prepare_again(session, rig.configuration(Vec::new())).await?;
    rig.turn_with(session, &ready, &format!("{turn_id}-next"), "go on").await?.completed()?;
    rig.only(base).await?;
    anyhow::ensure!(fs::read_to_string(&chain).unwrap_or_default() == number, "the chain goes on");
    Ok(())
}

fn tool(kind: &Kind) -> Option<(ToolStatus, Option<i32>)> {
    if let Kind::ToolCompleted(end) = kind { Some((end.status(), end.exit_code)) } else { None }
}

/// What runs below the daemon beside these, the Harness's own helper excepted: that is known by its file and not by its name.
fn surplus(rig: &Rig, base: &[Process]) -> anyhow::Result<Vec<Process>> {
    let mut found: Vec<Process> = Vec::new();
    for _ in 0..5 {
        let family = rig.family()?.into_iter().filter(|process| {
            let known = base.iter().any(|one| one.pid == process.pid && one.started == process.started);
            !known && !process.zombie && !is_helper(process) && !found.contains(process)
        });
        found.extend(family.collect::<Vec<_>>());
    }
    Ok(found)
}

fn is_helper(process: &Process) -> bool {
    // Claude Code looks for what it has to end.
    if process.command.starts_with("ps -A -o pid=") {
        return true;
    }
    let package = conformance::rig::codex().ok().and_then(|codex| codex.canonicalize().ok());
    let program = fs::read_link(format!("/proc/{}/exe", process.pid)).ok();
    let inside = |program: &Path, codex: &Path| codex.parent().is_some_and(|bin| program.starts_with(bin));
    package.zip(program).is_some_and(|(codex, program)| program != codex && inside(&program, &codex))
}
