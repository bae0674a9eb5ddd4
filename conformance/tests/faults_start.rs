//! A Harness that cannot be used, or that fails on its way to a ready Executor (R-PRE-1, R-CAP-1, R-CAN-4). No Turn is lost by it: as
//! soon as the Harness is well, the same Session is prepared.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::child::fault::{Fault, Place};
use conformance::child::{FaultChild, codex};
use conformance::for_each_harness;
use conformance::rig::{Harness, MODEL_KEY, Rig, Setup, Stands, nowhere, program, refusal, scenario};
use conformance::script::child::{Command, Program, Step};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason};
use serde_json::{Value, json};
use tokio::task::JoinSet;

for_each_harness!(
    a_wrong_answer_at_the_start_fails_the_preparation,
    a_harness_that_is_not_there_is_unavailable_until_it_is,
    a_harness_that_does_not_tell_its_version_is_given_up,
    a_harness_that_hangs_at_its_start_is_ended,
    a_harness_that_ends_on_its_way_fails_the_preparation_with_its_step,
    an_executor_that_ends_before_its_first_turn_loses_nothing,
);

/// The step in which a preparation fails whose conversation is not opened.
fn opens(harness: Harness) -> &'static str {
    match harness {
        Harness::Codex => "session",
        Harness::ClaudeCode => "initialize",
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    }
}

/// The declaration and a preparation say the same about a Harness that is not usable.
async fn unavailable(rig: &Rig, session: &Session, wants: &[&str]) -> anyhow::Result<()> {
    let declared = rig.declaration().await?;
    assert!(!declared.available && !declared.qualified, "{declared:?}");
    let refused = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
    let refused = refusal(refused, Reason::HarnessUnavailable).at("configuration.harness");
    let refused = refused.says(&declared.unavailable_reason).into_inner();
    for want in wants {
        assert!(refused.message.contains(want), "{want:?} is not in {refused}");
    }
    Ok(())
}

fn preparation(rig: &Rig, session: &Session, id: &str) -> v1::PrepareExecutionRequest {
    v1::PrepareExecutionRequest {
        assignment: Some(session.assignment().clone()),
        preparation_id: id.into(),
        configuration: Some(rig.configuration(Vec::new())),
        credentials: vec![v1::Credential { name: "model".into(), value: MODEL_KEY.into() }],
        resume: None,
    }
}

fn a_harness_that_is_not_there_is_unavailable_until_it_is(harness: Harness) {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "absent-{}-{}",
        harness.kind(),
        std::process::id()
    ));
    let path = folder.join(harness.executable());
    let setup = Setup { stands: Stands::At(path.clone()), ..Setup::default() }.of(harness);
    scenario("fault_absent", &["R-CAP-1", "R-PRE-1"], setup, async |rig| {
        fs::create_dir_all(&folder)?;
        let session = rig.session().await?;
        let shown = path.to_string_lossy().into_owned();
        unavailable(rig, &session, &[&shown, "does not exist", "install"]).await?;
        fs::create_dir(&path)?;
        unavailable(rig, &session, &[&shown, "not a file"]).await?;
        fs::remove_dir(&path)?;
        fs::write(&path, "#!/bin/sh\nexit 0\n")?;
        unavailable(rig, &session, &[&shown, "not executable"]).await?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        unavailable(rig, &session, &[&shown, "printed no version", "install"]).await?;
        fs::write(&path, "#!/bin/sh\necho 'cannot open libssl.so' >&2; exit 127\n")?;
        unavailable(rig, &session, &[&shown, "exit code 127", "libssl"]).await?;
        fs::write(&path, "#!/nonexistent/interpreter\n")?;
        unavailable(rig, &session, &[&shown]).await?;
        // Without a restart, as soon as there is one.
        let child = program("runtime-bridge-conformance")?;
        FaultChild::install(&folder, harness.executable(), &child, harness.healthy())?;
        let declared = rig.declaration().await?;
        assert!(declared.available && declared.unavailable_reason.is_empty(), "{declared:?}");
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        Ok(fs::remove_dir_all(&folder)?)
    });
}

fn a_harness_that_does_not_tell_its_version_is_given_up(harness: Harness) {
    let hangs = Command { args: vec!["--version".into()], steps: vec![Step::IgnoreTerm, Step::Hang] };
    let program = Program { commands: vec![hangs], ..harness.healthy() };
    let setup = Setup::faulty(program).of(harness).with("limits.harness_probe_ms = 3000");
    scenario("fault_version_hangs", &["R-CAP-1", "R-CAN-4"], setup, async |rig| {
        let session = rig.session().await?;
        unavailable(rig, &session, &["--version did not end within 3s"]).await?;
        rig.only(&[]).await
    });
}

/// What takes the tools away stands in it.
#[test]
fn without_the_catalogue_of_models_nothing_starts_under_none() {
    let prints = |steps| {
        let command = Command { args: vec!["debug".into(), "models".into()], steps };
        Program { commands: vec![command], ..codex::healthy() }
    };
    let hangs = prints(vec![Step::IgnoreTerm, Step::Hang]);
    let setup = Setup::faulty(hangs).with("limits.harness_probe_ms = 3000");
    let setup = setup.only("Claude Code is told by its arguments which tools it has");
    scenario("fault_models", &["R-CTL-4", "R-PRE-1", "R-CAN-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let session = rig.session_nowhere().await?;
        let refused = async |want: &str| -> anyhow::Result<()> {
            let refused = session.prepare(nowhere(rig.configuration(Vec::new())), Vec::new()).await;
            refusal(refused, Reason::PreparationFailed).with("step", "models").says(want);
            rig.only(&[]).await
        };
        refused("debug did not end within 3s").await?;
        child.play(prints(vec![Step::Exit(3)]))?;
        refused("debug ended with exit code 3").await?;
        child.play(prints(Vec::new()))?;
        refused("the catalogue of models cannot be read").await
    });
}

fn a_harness_that_hangs_at_its_start_is_ended(harness: Harness) {
    const LIMIT: Duration = Duration::from_secs(6);
    let setup = Setup::child_of(harness).with("limits.harness_start_ms = 6000\nmax_executors = 4");
    scenario("fault_start_hangs", &["R-PRE-1", "R-CAN-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let other = rig.session().await?;
        rig.whole_turn(&other, "t-1", "hello").await?.completed()?;
        let before = rig.family()?;
        // The limit leaves the healthy ones their time on a busy machine, so those that hang wait for it together.
        let mut hanging = JoinSet::new();
        for (place, step) in
            [(Place::Start, "initialize"), (Place::AtInitialize, "initialize"), (Place::AtThreadStart, opens(harness))]
        {
            let reached = format!("{place:?}");
            let steps = [Step::Mark(reached.clone()), Step::IgnoreTerm, Step::Hang];
            child.play(harness.with_steps(place, &steps))?;
            let (session, request) = (rig.session().await?, rig.client().await?);
            let preparation = preparation(rig, &session, "p-hangs");
            hanging.spawn(async move {
                let begun = Instant::now();
                (session, step, request.prepare(preparation).await, begun.elapsed())
            });
            child.wait_for_mark(&reached).await?;
        }
        child.play(harness.healthy())?;
        let hanging = hanging.join_all().await;
        rig.only(&before).await?;
        let late = format!("{} did not answer within 6000 ms", harness.executable());
        for (session, step, refused, took) in hanging {
            assert!(took >= LIMIT, "{step} took {took:?}");
            refusal(refused, Reason::PreparationFailed).with("step", step).says(&late);
            rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        }
        rig.whole_turn(&other, "t-2", "hello").await?.completed()
    });
}

fn a_harness_that_ends_on_its_way_fails_the_preparation_with_its_step(harness: Harness) {
    scenario("fault_start_ends", &["R-PRE-1", "R-PRE-7", "R-CAN-4"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let other = rig.session().await?;
        rig.whole_turn(&other, "t-1", "hello").await?.completed()?;
        let before = rig.family()?;
        let (session, client) = (rig.session().await?, rig.client().await?);
        let mut number = 0;
        // Claude Code's conversation is there with its answer to `initialize`.
        let open = [(Place::AfterInitialize, "session"), (Place::AtThreadStart, "session")];
        let open = open.into_iter().filter(|_| harness == Harness::Codex);
        for (place, step) in [(Place::Start, "initialize"), (Place::AtInitialize, "initialize")].into_iter().chain(open)
        {
            for (fault, wants) in [
                (Fault::ExitsWith0, &["ended with exit code 0 before it answered"] as &[_]),
                (Fault::ExitsWith1, &["exit code 1", "nothing works"]),
                (Fault::Segfaults, &["signal 11"]),
                (Fault::IsKilled, &["signal 9"]),
                (Fault::EndsInALine, &["exit code 0"]),
                (Fault::ClosesItsOutput, &["closed its output"]),
                (Fault::LeavesADescendant, &[harness.executable()]),
            ] {
                number += 1;
                let id = format!("p-{number}");
                child.play(harness.with_fault(place, fault))?;
                let refused = client.prepare(preparation(rig, &session, &id)).await;
                let mut refused = refusal(refused, Reason::PreparationFailed).with("step", step).hides(MODEL_KEY);
                for want in wants {
                    refused = refused.says(want);
                }
                // The preparation has failed for good; another id tries again.
                let again = client.prepare(preparation(rig, &session, &id)).await;
                assert_eq!(refusal(again, Reason::PreparationFailed).into_inner(), refused.into_inner());
                rig.only(&before).await.with_context(|| format!("{place:?} {fault:?}"))?;
            }
        }
        // A refusal in the Harness's own words.
        for (place, step) in [(Place::AtInitialize, "initialize"), (Place::AtThreadStart, opens(harness))] {
            child.play(harness.with_fault(place, Fault::Refuses))?;
            let refused = client.prepare(preparation(rig, &session, &format!("p-{place:?}"))).await;
            refusal(refused, Reason::PreparationFailed)
                .with("step", step)
                .says(&format!("{} refused: no", harness.executable()));
        }
        rig.only(&before).await?;
        child.play(harness.healthy())?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        rig.whole_turn(&other, "t-2", "hello").await?.completed()
    });
}

/// Answers to `initialize` that are none, each with what is said of it.
fn wrong_answers(harness: Harness) -> Vec<(Value, &'static str)> {
    match harness {
        Harness::Codex => {
            vec![(json!({"result": "text"}), "unexpected answer"), (json!({"result": null}), "unexpected answer")]
        }
        Harness::ClaudeCode => vec![
            (json!({"result": "text"}), "unexpected answer"),
            (json!({"result": {"claude_code_version": 7}}), "unexpected answer"),
            (json!({"result": {"account": {"tokenSource": "none"}}}), "it has no key for its model provider"),
            (json!({"error": "Not logged in"}), "claude refused: Not logged in"),
            (
                json!({"line": {"type": "result", "subtype": "error_during_execution", "is_error": true,
                "errors": ["No conversation found"]}}),
                "claude refused: No conversation found",
            ),
        ],
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    }
}

fn a_wrong_answer_at_the_start_fails_the_preparation(harness: Harness) {
    scenario("fault_start_answers", &["R-PRE-1", "R-PRE-2", "R-CAN-4"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let session = rig.session().await?;
        for (answer, says) in wrong_answers(harness) {
            // What the healthy program says behind it comes too late.
            let steps = [serde_json::from_value(answer.clone())?, Step::Drain];
            child.play(harness.with_steps(Place::AtInitialize, &steps))?;
            let refused = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
            let refused = refusal(refused, Reason::PreparationFailed).with("step", "initialize").hides(MODEL_KEY);
            anyhow::ensure!(refused.says(says).into_inner().message.len() < 2048, "{answer}");
            rig.only(&[]).await.with_context(|| answer.to_string())?;
        }
        child.play(harness.healthy())?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
}

fn an_executor_that_ends_before_its_first_turn_loses_nothing(harness: Harness) {
    let dies = harness.with_steps(Place::AfterThreadStart, &[Step::Gate("end".into()), Step::Exit(3)]);
    scenario("fault_idle_exit", &["R-PRE-2", "R-CAN-4"], Setup::faulty(dies).of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        child.open_gate("end")?;
        rig.only(&[]).await?;
        rig.executor_gone(&session).await?;
        let refused = session.start(&ready, "t-1", text_input("hello")).await;
        let refused = refusal(refused, Reason::HandleExpired).at("handle");
        refused.says("prepare again");
        refusal(session.turn("t-1").await, Reason::NotFound);
        child.play(harness.healthy())?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
}
