//! A Harness that cannot be used, or that fails on its way to a ready Executor (R-PRE-1, R-CAP-1, R-CAN-4). No Turn is lost by it: as
//! soon as the Harness is well, the same Session is prepared.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::child::FaultChild;
use conformance::child::codex::{self, Fault, Place};
use conformance::rig::{Codex, MODEL_KEY, Rig, Setup, nowhere, program, refusal, scenario};
use conformance::script::child::{Command, Program, Step};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason};
use tokio::task::JoinSet;

fn setup(program: Program) -> Setup {
    Setup { codex: Codex::Faulty(Box::new(program)), ..Setup::default() }
}

async fn declared(rig: &Rig) -> anyhow::Result<v1::HarnessDeclaration> {
    let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
    info.harnesses.into_iter().find(|harness| harness.kind == "codex").context("codex is not declared")
}

/// The declaration and a preparation say the same about a Harness that is not usable.
async fn unavailable(rig: &Rig, session: &Session, wants: &[&str]) -> anyhow::Result<()> {
    let declared = declared(rig).await?;
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

#[test]
fn a_harness_that_is_not_there_is_unavailable_until_it_is() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("absent-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("codex");
    let setup = Setup { codex: Codex::At(path.clone()), ..Setup::default() };
    scenario("fault_absent", &["R-CAP-1", "R-PRE-1"], setup, async |rig| {
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
        FaultChild::install(&folder, &program("runtime-bridge-conformance")?, codex::healthy())?;
        let declared = declared(rig).await?;
        assert!(declared.available && declared.unavailable_reason.is_empty(), "{declared:?}");
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_harness_that_does_not_tell_its_version_is_given_up() {
    let hangs = Command { args: vec!["--version".into()], steps: vec![Step::IgnoreTerm, Step::Hang] };
    let program = Program { commands: vec![hangs], ..codex::healthy() };
    let setup = setup(program).with("limits.harness_probe_ms = 3000");
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
    let setup = setup(hangs).with("limits.harness_probe_ms = 3000");
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

#[test]
fn a_harness_that_hangs_at_its_start_is_ended() {
    const LIMIT: Duration = Duration::from_secs(6);
    let setup = Setup { more: "limits.harness_start_ms = 6000\nmax_executors = 4".into(), ..setup(codex::healthy()) };
    scenario("fault_start_hangs", &["R-PRE-1", "R-CAN-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let other = rig.session().await?;
        rig.whole_turn(&other, "t-1", "hello").await?.completed()?;
        let before = rig.family()?;
        // The limit leaves the healthy ones their time on a busy machine, so those that hang wait for it together.
        let mut hanging = JoinSet::new();
        for (place, step) in
            [(Place::Start, "initialize"), (Place::AtInitialize, "initialize"), (Place::AtThreadStart, "session")]
        {
            let reached = format!("{place:?}");
            let steps = [Step::Mark(reached.clone()), Step::IgnoreTerm, Step::Hang];
            child.play(codex::with_steps(place, &steps))?;
            let (session, request) = (rig.session().await?, rig.client().await?);
            let preparation = preparation(rig, &session, "p-hangs");
            hanging.spawn(async move {
                let begun = Instant::now();
                (session, step, request.prepare(preparation).await, begun.elapsed())
            });
            child.wait_for_mark(&reached).await?;
        }
        child.play(codex::healthy())?;
        let hanging = hanging.join_all().await;
        rig.only(&before).await?;
        for (session, step, refused, took) in hanging {
            assert!(took >= LIMIT, "{step} took {took:?}");
            refusal(refused, Reason::PreparationFailed).with("step", step).says("codex did not answer within 6000 ms");
            rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        }
        rig.whole_turn(&other, "t-2", "hello").await?.completed()
    });
}

#[test]
fn a_harness_that_ends_on_its_way_fails_the_preparation_with_its_step() {
    scenario("fault_start_ends", &["R-PRE-1", "R-PRE-7", "R-CAN-4"], setup(codex::healthy()), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let other = rig.session().await?;
        rig.whole_turn(&other, "t-1", "hello").await?.completed()?;
        let before = rig.family()?;
        let (session, client) = (rig.session().await?, rig.client().await?);
        let mut number = 0;
        for (place, step) in [
            (Place::Start, "initialize"),
            (Place::AtInitialize, "initialize"),
            (Place::AfterInitialize, "session"),
            (Place::AtThreadStart, "session"),
        ] {
            for (fault, wants) in [
                (Fault::ExitsWith0, &["codex ended with exit code 0 before it answered"] as &[_]),
                (Fault::ExitsWith1, &["exit code 1", "nothing works"]),
                (Fault::Segfaults, &["signal 11"]),
                (Fault::IsKilled, &["signal 9"]),
                (Fault::EndsInALine, &["exit code 0"]),
                (Fault::ClosesItsOutput, &["closed its output"]),
                (Fault::LeavesADescendant, &["codex"]),
            ] {
                number += 1;
                let id = format!("p-{number}");
                child.play(codex::with_fault(place, fault))?;
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
        for (place, step) in [(Place::AtInitialize, "initialize"), (Place::AtThreadStart, "session")] {
            child.play(codex::with_fault(place, Fault::Refuses))?;
            let refused = client.prepare(preparation(rig, &session, &format!("p-{step}"))).await;
            refusal(refused, Reason::PreparationFailed).with("step", step).says("codex refused: no");
        }
        rig.only(&before).await?;
        child.play(codex::healthy())?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        rig.whole_turn(&other, "t-2", "hello").await?.completed()
    });
}

#[test]
fn an_executor_that_ends_before_its_first_turn_loses_nothing() {
    let dies = codex::with_steps(Place::AfterThreadStart, &[Step::Gate("end".into()), Step::Exit(3)]);
    scenario("fault_idle_exit", &["R-PRE-2", "R-CAN-4"], setup(dies), async |rig| {
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
        child.play(codex::healthy())?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
}
