//! What outlives the one that was to end it: the children of a keeper that a tool has killed, and those of an Executor that was retired for a
//! newer credential. They are ended all the same, and cannot call the daemon meanwhile (R-CAN-4, R-SEC-1).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Daemon, Harness, Isolation, Observed, Process, Rig, Setup, program, refusal, scenario};
use proto::client::{Error, Session, text_input};
use proto::v1::{self, Reason};
use rustix::process::Signal;

for_each_harness!(
    a_child_that_was_there_before_the_daemon_is_spared,
    what_an_executor_leaves_that_was_retired_for_a_newer_credential_is_ended,
);

/// Why one Harness is enough.
const OWN: &str = "the keeper is the bridge's own, and any tool may kill it";

/// The time between two looks at files and processes, which have no bell.
const LOOK: Duration = Duration::from_millis(20);

/// A tool that waits until the keeper is its parent, kills it, and calls the daemon when it has another parent. It stays behind.
fn plant(rig: &Rig) -> anyhow::Result<()> {
    let reach = program("runtime-bridge-conformance")?;
    let text = format!(
        r#"#!/bin/sh
cd '{folder}' || exit 1
parent() {{ while read -r name value; do [ "$name" = PPid: ] && echo "$value" && return; done < /proc/$$/status; }}
name=; until [ "$name" = runtime-bridge- ]; do read -r name < /proc/$(parent)/comm; done
keeper=$(parent)
echo $$ > pid.new && mv pid.new pid
kill -9 "$keeper"
while [ "$(parent)" = "$keeper" ]; do :; done
'{reach}' reach '{socket}' > said.new; mv said.new said
exec sleep 7777
"#,
        folder = rig.workspace().display(),
        reach = reach.display(),
        socket = rig.place().socket().display(),
    );
    let path = rig.workspace().join("tool");
    fs::write(&path, text)?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?)
}

fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_tool_that_kills_its_keeper_is_refused_and_ended() {
    let rules = ["R-CAN-4", "R-SEC-1", "R-CAN-6", "R-ASG-4"];
    scenario("keeper_killed_by_tool", &rules, Setup::outer().bridge(OWN), async |rig| {
        let bystander = rig.bystander().await?;
        plant(rig)?;
        for (turn, start) in [("empty", "env -i /usr/bin/setsid ./tool"), ("marked", "setsid ./tool")] {
            let command = format!("({start} > /dev/null 2>&1 &) ; sleep 7778");
            let shell = serde_json::json!([{"play": [{"shell": {"command": command, "yield_ms": 30_000}}]}]);
            rig.provider.script(&shell.to_string())?;
            let session = rig.session().await?;
            let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
            session.start(&ready, "t-1", text_input("go")).await?;
            let seen = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
            assert_ne!(seen.end()?.status(), v1::TurnStatus::Completed, "{turn}");
            // It is ended before it can say a word, or it says that it was refused.
            let (pid, said) = (rig.workspace().join("pid"), rig.workspace().join("said"));
            let pid = text_of(&pid).trim().to_owned();
            assert!(!pid.is_empty(), "{turn}: the tool has not killed its keeper: {:?}", seen.end()?);
            let mut looks = tokio::time::interval(LOOK);
            while runs(&pid) && !said.exists() {
                looks.tick().await;
            }
            let text = text_of(&said);
            assert!(text.is_empty() || text.contains("refused: "), "{turn}: {text}");
            let released = session.release(true).await?;
            assert_eq!(
                (released.outcome(), released.home_removed),
                (v1::ReleaseOutcome::Confirmed, true),
                "{turn}: {released:?}"
            );
            assert!(!runs(&pid), "{turn}: {pid} is still there");
            for file in ["pid", "said", "said.new"] {
                fs::remove_file(rig.workspace().join(file)).or_else(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
            }
        }
        rig.provider.reset();
        bystander.undisturbed(rig).await
    });
}

async fn keyed(rig: &Rig, session: &Session, key: &str) -> Result<v1::Ready, Error> {
    let key = v1::Credential { name: "model".into(), value: key.into() };
    session.prepare(rig.configuration(Vec::new()), vec![key]).await
}

/// A keeper that is stopped ends nothing, and neither does the Harness below it, so both outlive their Executor.
fn what_an_executor_leaves_that_was_retired_for_a_newer_credential_is_ended(harness: Harness) {
    let setup = Setup { isolation: Isolation::Outer, ..Setup::child_of(harness) };
    let rules = ["R-CAN-4", "R-PRE-6", "R-ASG-4"];
    scenario("retired_survivors", &rules, setup.with("limits.settlement_ms = 1000").without_gateway(), async |rig| {
        let session = rig.session().await?;
        let first = keyed(rig, &session, "sk-one").await?;
        let assignment = Some(session.assignment().clone());
        let client = rig.client().await?;
        client.release_preparation(v1::ReleasePreparationRequest { assignment, handle: first.handle.clone() }).await?;
        let family = rig.family()?;
        let is_keeper = |process: &&Process| process.command.contains("runtime-bridge-keeper");
        family.iter().find(is_keeper).context("no keeper")?.signal(Signal::STOP)?;
        for process in family.iter().filter(|process| !is_keeper(process)) {
            process.signal(Signal::STOP)?;
        }
        refusal(keyed(rig, &session, "sk-two").await, Reason::PreparationFailed);
        let next = keyed(rig, &session, "sk-two").await?;
        assert!(next.executor_id != first.executor_id && !next.reused, "{next:?}");
        let now = rig.family()?;
        let left: Vec<_> = family.iter().filter(|one| one.runs_in(&now)).collect();
        assert!(left.is_empty(), "{left:#?}");
        let released = session.release(true).await?;
        assert_eq!((released.outcome(), released.home_removed), (v1::ReleaseOutcome::Confirmed, true), "{released:?}");
        Ok(())
    });
}

/// Whoever started the daemon may have left it a child: that is nobody's Harness, whatever the daemon ends.
fn a_child_that_was_there_before_the_daemon_is_spared(harness: Harness) {
    scenario("spared_child", &["R-CAN-4", "R-DUR-2", "R-SEC-1"], Setup::outer().of(harness), async |rig| {
        rig.daemon.terminate().await?;
        rig.daemon = Daemon::spawn_with_child(rig.place(), "sleep 7500")?;
        // The start sweeps, and so does the end of an Executor.
        rig.daemon.wait_until_ready().await?;
        let child = rig.wait_for_process(|process| process.command == "sleep 7500").await?;
        assert_eq!((child.parent, &child.mark), (rig.daemon.pid(), &None));
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        let family = rig.family()?;
        let is_keeper = |process: &&Process| process.command.contains("runtime-bridge-keeper");
        family.iter().find(is_keeper).context("no keeper")?.signal(Signal::KILL)?;
        assert_eq!(session.release(true).await?.outcome(), v1::ReleaseOutcome::Confirmed);
        rig.only(std::slice::from_ref(&child)).await?;
        assert!(child.runs_in(&rig.family()?), "it was ended");
        rig.daemon.terminate().await?;
        // It is signalled only if it is there.
        child.signal(Signal::KILL)
    });
}
