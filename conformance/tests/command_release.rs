//! `runtime-bridge release`: the operator's way out of a Session (R-ASG-4).

use std::process::{Output, Stdio};
use std::{env, fs};

use anyhow::Context;
use conformance::child::codex;
use conformance::child::fault::{Fault, Place};
use conformance::rig::{Link, Observed, Rig, Setup, Stands, program, refused, scenario};
use proto::v1::{self, Reason, event::Kind};
use tokio::process::Command;

/// Why one Harness is enough.
const OWN: &str = "the command is a client of the protocol";

#[test]
fn a_session_whose_core_is_gone_is_released() {
    let rules = ["R-ASG-4", "R-ASG-5", "R-CAN-4", "R-OBS-2"];
    scenario("command_release", &rules, Setup::outer().bridge(OWN).over(Link::Unix), async |rig| {
        rig.provider.script(
            r#"[{"match": "please-sleep", "play": [{"shell": {"command": "sleep 614", "yield_ms": 30000}}]}]"#,
        )?;
        let other = rig.bystander().await?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "please-sleep").await?;
        rig.wait_for_process(|process| process.command == "sleep 614").await?;
        let id = session.assignment().session_id.clone();

        let socket = rig.place().socket().to_string_lossy().into_owned();
        let output = release(rig, &["--session", &id, "--socket", &socket]).await?;
        says(&output, 0, &[&id, "uid:", "is released", "Turn t-1 was ended"]);
        assert!(rig.family()?.iter().all(|process| process.command != "sleep 614"), "confirmed means gone");
        other.undisturbed(rig).await?;
        refused(Observed::default().to_the_end(&mut events).await, Reason::AssignmentStale)?;
        refused(session.turn("t-1").await, Reason::AssignmentStale)?;

        // Again, and now with the home, over an endpoint and over the configuration.
        let endpoint = format!("unix:{socket}");
        let output = release(rig, &["--session", &id, "--remove-home", "--endpoint", &endpoint]).await?;
        says(&output, 0, &["is released", "home is removed"]);
        let config = rig.place().config().to_string_lossy().into_owned();
        let output = release(rig, &["--session", &id, "--config", &config]).await?;
        says(&output, 0, &["is released"]);
        let listed = rig.client().await?.list_sessions(v1::ListSessionsRequest::default()).await?.sessions;
        let told = listed.iter().find(|one| one.session_id == id).map(|one| (one.epoch, one.released));
        assert_eq!(told, Some((2, true)), "a repetition raises no epoch");
        let homes = fs::read_dir(rig.place().state().join("sessions"))?
            .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().join("home").exists()))
            .count();
        assert_eq!(homes, 1, "only the other Session has one");
        Ok(())
    });
}

#[test]
fn what_cannot_be_released_is_told_with_what_to_do() {
    scenario(
        "command_release_wrong",
        &["R-ASG-4", "R-ASG-5"],
        Setup::outer().bridge(OWN).over(Link::Unix),
        async |rig| {
            let session = rig.session().await?;
            let id = session.assignment().session_id.clone();
            let socket = rig.place().socket().to_string_lossy().into_owned();
            let output = release(rig, &["--session", "s-none", "--socket", &socket]).await?;
            fails(&output, 1, &["s-none", "no such Session"]);
            let output = release(rig, &["--session", &id, "--principal", "uid:4242", "--socket", &socket]).await?;
            fails(&output, 1, &[&id, "uid:4242", "no such Session"]);
            let output = release(rig, &["--session", "a/b", "--socket", &socket]).await?;
            fails(&output, 1, &["session_id"]);
            let output = release(rig, &["--session", &id, "--socket", "/nonexistent/s"]).await?;
            fails(&output, 1, &["/nonexistent/s", "--socket"]);
            for arguments in [&[][..], &["--session"], &["--session", "s", "--endpoint", "http://localhost"]] {
                assert_eq!(release(rig, arguments).await?.status.code(), Some(2), "{arguments:?}");
            }
            // Nothing of this has touched the Session.
            rig.whole_turn(&session, "t-1", "hello").await?.completed()
        },
    );
}

#[test]
fn what_is_not_proved_is_told_and_tried_again() {
    scenario(
        "command_release_unconfirmed",
        &["R-ASG-4", "R-API-5"],
        Setup::outer().bridge(OWN).over(Link::Unix),
        async |rig| {
            let session = rig.session().await?;
            rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
            let folder = fs::read_dir(rig.place().state().join("sessions"))?.next().context("no folder")??.path();
            // What stands in the place of the home is no directory and cannot be removed as one.
            let (home, aside) = (folder.join("home"), folder.join("aside"));
            fs::rename(&home, &aside)?;
            fs::write(&home, "mine")?;
            let socket = rig.place().socket().to_string_lossy().into_owned();
            let arguments = ["--session", &session.assignment().session_id, "--remove-home", "--socket", &socket];
            says(
                &release(rig, &arguments).await?,
                1,
                &["not proved", "home could not be removed", "same command again"],
            );
            refused(session.turn("t-1").await, Reason::AssignmentStale)?;
            fs::remove_file(&home)?;
            fs::rename(&aside, &home)?;
            says(&release(rig, &arguments).await?, 0, &["is released", "home is removed"]);
            assert!(!home.exists());
            Ok(())
        },
    );
}

#[test]
fn without_the_role_of_an_operator_one_releases_ones_own() {
    let setup = Setup::outer().bridge(OWN).over(Link::Unix).with("operator_uids = []");
    scenario("command_release_own", &["R-ASG-5"], setup, async |rig| {
        let session = rig.session().await?;
        let socket = rig.place().socket().to_string_lossy().into_owned();
        let output = release(rig, &["--session", &session.assignment().session_id, "--socket", &socket]).await?;
        says(&output, 0, &["is released"]);
        Ok(())
    });
}

#[test]
fn a_release_ends_a_harness_that_does_not_obey() {
    let setup =
        Setup { stands: Stands::Faulty(Box::new(codex::healthy())), ..Setup::outer().bridge(OWN).over(Link::Unix) };
    scenario("command_release_deaf", &["R-ASG-4", "R-CAN-4"], setup, async |rig| {
        let session = rig.session().await?;
        if let Some(child) = &rig.child {
            child.play(codex::with_fault(Place::InMessage, Fault::Hangs))?;
        }
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "hello").await?;
        Observed::default().until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        let socket = rig.place().socket().to_string_lossy().into_owned();
        let output = release(rig, &["--session", &session.assignment().session_id, "--socket", &socket]).await?;
        says(&output, 0, &["is released", "Turn t-1 was ended"]);
        rig.only(&[]).await
    });
}

async fn release(rig: &Rig, arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(program("runtime-bridge")?);
    command.arg("release").args(arguments).env_clear().env("HOME", rig.place().home());
    command.env("PATH", env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
    Ok(command.output().await?)
}

#[track_caller]
fn says(output: &Output, code: i32, wants: &[&str]) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), err.as_ref()), (Some(code), ""), "{out}");
    for want in wants {
        assert!(out.contains(want), "{want:?} is not in {out}");
    }
}

#[track_caller]
fn fails(output: &Output, code: i32, wants: &[&str]) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), out.as_ref(), err.lines().count()), (Some(code), "", 1), "{err}");
    for want in wants {
        assert!(err.contains(want), "{want:?} is not in {err}");
    }
}
