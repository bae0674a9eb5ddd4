//! A workspace that is not what it was when it was bound: gone, a file, a link, another directory; before a preparation, between Turns and in
//! the middle of one (R-ASG-3, R-PRE-1). Nothing native begins outside of what was bound, and no Turn is without its end.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use conformance::child::codex;
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, refusal, scenario};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason, ReleaseOutcome, bind_assignment_request::Placement, event::Kind};
use serde_json::json;

for_each_harness!(a_workspace_that_disappears_takes_no_turn_with_it);

/// Why one Harness is enough.
const OWN: &str = "the bridge looks at the directory before it starts anything";

/// A Session on a fresh workspace of its own.
async fn bound(rig: &Rig, name: &str) -> anyhow::Result<(Session, PathBuf)> {
    let directory = rig.place().workspace_root().canonicalize()?.join(name);
    fs::create_dir_all(&directory)?;
    let fence = v1::AssignmentRef {
        session_id: format!("s-{}", name.replace('/', "-")),
        assignment_id: "a-1".into(),
        epoch: 1,
    };
    let workspace =
        v1::Workspace { environment_id: "env-1".into(), directory: directory.to_string_lossy().into_owned() };
    Ok((Session::bind(rig.client().await?, fence, Placement::Workspace(workspace)).await?, directory))
}

#[test]
fn what_has_taken_the_place_of_a_workspace_is_not_worked_in() {
    let setup = Setup::faulty(codex::healthy()).bridge(OWN);
    scenario("workspace_replaced", &["R-ASG-3", "R-PRE-1", "R-PRE-7"], setup, async |rig| {
        let (session, directory) = bound(rig, "deep/one").await?;
        let above = directory.parent().context("no parent")?.to_owned();
        let (aside, outside) = (rig.place().workspace_root().join("aside"), rig.place().home());
        let prepared = async || session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
        let starts = || {
            let starts = rig.child.as_ref().map(|child| child.starts()).transpose()?.unwrap_or_default();
            anyhow::Ok(starts.into_iter().filter(|start| start.args[0] == "app-server").collect::<Vec<_>>())
        };
        let check = async |what: &str, says: &str| -> anyhow::Result<()> {
            refusal(prepared().await, Reason::PreparationFailed).with("step", "workspace").says(says);
            anyhow::ensure!(starts()?.is_empty(), "{what}: a Harness was started");
            Ok(())
        };
        fs::rename(&directory, &aside)?;
        check("gone", "cannot be reached").await?;
        fs::write(&directory, "")?;
        check("a file", "not a directory").await?;
        fs::remove_file(&directory)?;
        for target in [&outside, &rig.place().state(), &aside, Path::new("/")] {
            symlink(target, &directory)?;
            check("a link", "link").await?;
            fs::remove_file(&directory)?;
        }
        // A link further up is the same.
        fs::rename(&above, above.with_file_name("elsewhere"))?;
        fs::create_dir(outside.join("one"))?;
        symlink(&outside, &above)?;
        check("a link above", "link").await?;
        fs::remove_file(&above)?;
        check("nothing above", "cannot be reached").await?;

        // Another directory at the same path is the workspace: what was bound is the path.
        fs::create_dir_all(&directory)?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        assert_eq!(starts()?.first().context("no start")?.cwd, directory);
        Ok(())
    });
}

fn a_workspace_that_disappears_takes_no_turn_with_it(harness: Harness) {
    let rules = ["R-ASG-3", "R-ASG-4", "R-EVT-2", "R-EVT-3"];
    scenario("workspace_disappears", &rules, Setup::outer().of(harness), async |rig| {
        let (session, directory) = bound(rig, "fleeting").await?;
        let (_, other) = bound(rig, "other").await?;
        // In the middle of a Turn: the command that runs sees it go, and so does the next one.
        let first = "echo here > made.txt; until [ ! -e \"$PWD\" ]; do sleep 0.02; done; echo gone";
        rig.provider.script(
            &json!([{"play": [{"shell": {"command": first, "yield_ms": 20_000}}]},
                    {"play": [{"shell": {"command": "echo again", "yield_ms": 5000}}]}])
            .to_string(),
        )?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "work").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
        let mut looks = tokio::time::interval(std::time::Duration::from_millis(5));
        while !directory.join("made.txt").exists() {
            looks.tick().await;
        }
        fs::remove_dir_all(&directory)?;
        let seen = seen.to_the_end(&mut events).await?;
        let end = seen.end()?;
        let ends = [v1::TurnStatus::Completed, v1::TurnStatus::Failed];
        assert!(ends.contains(&end.status()), "{end:?}");

        // Between two Turns of one Executor: a text needs no directory.
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        assert!(ready.reused, "{ready:?}");
        session.start(&ready, "t-2", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-2")).await?.completed()?;
        // It comes back, and is worked in again; whatever happened, the bridge made nothing and removed nothing.
        assert!(!directory.exists());
        fs::create_dir(&directory)?;
        let command = |command: &str| json!({"play": [{"shell": {"command": command}}]});
        rig.provider.script(&json!([command("pwd"), command("echo back > back.txt")]).to_string())?;
        let seen = rig.whole_turn(&session, "t-3", "again").await?;
        seen.completed()?;
        // Claude Code has gone to the home of the Session meanwhile, and comes back with the end of the next command.
        let (place, told) = match harness {
            Harness::Codex => (directory.clone(), seen.tool_output()?),
            Harness::ClaudeCode => (rig.place().state().canonicalize()?.join("sessions"), seen.tool_output()?),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        assert!(told.starts_with(&*place.to_string_lossy()), "{told}");
        assert_eq!(fs::read_to_string(directory.join("back.txt"))?, "back\n");
        fs::remove_dir_all(&directory)?;
        assert_eq!(session.release(true).await?.outcome(), ReleaseOutcome::Confirmed);
        assert!(!directory.exists() && other.exists());
        Ok(())
    });
}
