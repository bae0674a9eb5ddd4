//! Directories that are no workspace: each is refused with what is wrong with it (R-ASG-3).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Context;
use conformance::child::codex;
use conformance::rig::{Rig, Roots, Setup, Stands, refusal, scenario};
use proto::client::{Error, Session};
use proto::v1::{self, Reason, bind_assignment_request::Placement};

/// Why one Harness is enough.
const OWN: &str = "a directory is judged before a Harness is asked";

fn setup(roots: Roots) -> Setup {
    Setup { stands: Stands::Faulty(Box::new(codex::healthy())), roots, ..Setup::default().bridge(OWN) }
}

/// Binds a Session on this directory.
async fn bind(rig: &Rig, id: &str, directory: &Path, epoch: u64) -> anyhow::Result<Result<Session, Error>> {
    let fence = v1::AssignmentRef { session_id: id.into(), assignment_id: "a-1".into(), epoch };
    let directory = directory.to_str().context("a path that is not UTF-8")?.to_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    Ok(Session::bind(rig.client().await?, fence, Placement::Workspace(workspace)).await)
}

#[test]
fn a_directory_that_is_not_below_a_root_is_refused() {
    scenario("bad_workspaces", &["R-ASG-3"], setup(Roots::Workspaces), async |rig| {
        let root = rig.place().workspace_root();
        let (file, outside) = (root.join("file"), rig.place().home());
        fs::write(&file, "")?;
        symlink(&outside, root.join("out"))?;
        symlink(root.join("nowhere"), root.join("dangling"))?;
        let long = root.join("d".repeat(5000));
        for (directory, want) in [
            (Path::new("workspaces/w"), "absolute"),
            (Path::new(""), "absolute"),
            (Path::new("~/w"), "absolute"),
            (&root.join("missing"), "does not exist"),
            (&root.join("dangling"), "does not exist"),
            (&file, "not a directory"),
            (&file.join("below"), "cannot be reached"),
            (&outside, "workspace_roots"),
            (&root.join(".."), "workspace_roots"),
            (&root.join("out"), "workspace_roots"),
            (&rig.workspace().join("../../home"), "workspace_roots"),
            (Path::new("/"), "workspace_roots"),
            (Path::new("/\0"), "NUL"),
            (&long, "4096"),
        ] {
            let refused = refusal(bind(rig, "s-1", directory, 1).await?, Reason::InvalidRequest);
            refused.at("workspace.directory").says(want);
        }
        // None of it began a Session; the root itself is a workspace, and so is what is below.
        let good = bind(rig, "s-1", &root, 1).await??;
        assert_eq!(Path::new(good.directory()), root.canonicalize()?);
        rig.whole_turn(&good, "t-1", "hello").await?.completed()?;
        rig.whole_turn(&rig.session().await?, "t-1", "hello").await?.completed()
    });
}

#[test]
fn without_roots_no_workspace_can_be_bound_and_the_key_is_named() {
    scenario("bad_workspace_rootless", &["R-ASG-3"], setup(Roots::None), async |rig| {
        let refused = refusal(bind(rig, "s-1", rig.workspace(), 1).await?, Reason::InvalidRequest);
        refused.at("workspace.directory").says("workspace_roots");
        // The placement without a workspace needs no root.
        let fence = v1::AssignmentRef { session_id: "s-1".into(), assignment_id: "a-1".into(), epoch: 1 };
        let bound = Session::bind(rig.client().await?, fence, Placement::None(v1::NoPlacement {})).await?;
        assert_eq!(bound.directory(), "");
        Ok(())
    });
}

#[test]
fn a_workspace_neither_contains_nor_lies_in_the_state() {
    scenario("bad_workspace_state", &["R-ASG-3"], setup(Roots::Everything), async |rig| {
        let (root, state) = (rig.place().root().to_owned(), rig.place().state());
        symlink(&state, root.join("link"))?;
        let below = state.join("sessions");
        fs::create_dir_all(&below)?;
        for directory in [&root, &state, &below, &root.join("link"), &root.join("link/sessions")] {
            let refused = refusal(bind(rig, "s-1", directory, 1).await?, Reason::InvalidRequest);
            refused.at("workspace.directory").says("state");
        }
        let beside = root.join("state-of-mine");
        fs::create_dir(&beside)?;
        let good = bind(rig, "s-1", &beside, 1).await??;
        rig.whole_turn(&good, "t-1", "hello").await?.completed()
    });
}

#[test]
fn a_link_is_resolved_once() {
    scenario("workspace_link", &["R-ASG-2", "R-ASG-3"], setup(Roots::Workspaces), async |rig| {
        let root = rig.place().workspace_root().canonicalize()?;
        let (first, second, link) = (root.join("first"), root.join("second"), root.join("link"));
        fs::create_dir(&first)?;
        fs::create_dir(&second)?;
        symlink(&first, &link)?;
        let bound = bind(rig, "s-1", &link, 1).await??;
        assert_eq!(Path::new(bound.directory()), first);
        assert_eq!(Path::new(bind(rig, "s-1", &link, 1).await??.directory()), first, "the same Bind again");
        // Where the link points later does not move the Session.
        fs::remove_file(&link)?;
        symlink(&second, &link)?;
        let refused = refusal(bind(rig, "s-1", &link, 1).await?, Reason::AssignmentConflict);
        refused.at("placement").with("epoch", "1");
        let taken = bind(rig, "s-1", &first, 2).await??;
        rig.whole_turn(&taken, "t-1", "hello").await?.completed()?;
        let child = rig.child.as_ref().context("a fault child")?;
        let starts = child.starts()?;
        let start = starts.iter().find(|start| start.args[0] == "app-server").context("no app-server")?;
        assert_eq!(start.cwd, first);
        let told = String::from_utf8(child.received(start.pid)?)?;
        assert!(told.contains(&format!("\"cwd\":\"{}\"", first.display())), "{told}");
        // Two Sessions may share a workspace.
        bind(rig, "s-2", &first, 1).await??;
        Ok(())
    });
}
