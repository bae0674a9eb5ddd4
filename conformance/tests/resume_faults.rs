//! A Harness that answers a resume wrongly (R-PRE-4): with another conversation, another policy, or a refusal in any of its words. It is never
//! given an input, and never asked for a new conversation instead.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use conformance::child::FaultChild;
use conformance::child::codex;
use conformance::child::fault::{Fault, Place};
use conformance::rig::{Rig, Setup, function, refusal, scenario};
use conformance::script::child::{Program, Rule, Step};
use proto::client::Session;
use proto::v1::{self, Reason};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

fn setup() -> Setup {
    Setup::faulty(codex::healthy())
}

/// A Session with a Turn, and its native history.
async fn past_session(rig: &Rig, child: &FaultChild) -> anyhow::Result<(Session, String)> {
    child.play(codex::healthy())?;
    let session = rig.session().await?;
    rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
    let native = write_history(rig, &session, "t-1").await?;
    Ok((session, native))
}

/// The child writes no history, so it is written here, as Codex would have: a Turn that completed.
async fn write_history(rig: &Rig, session: &Session, turn_id: &str) -> anyhow::Result<String> {
    let native = session.turn(turn_id).await?.native.context("no native id")?;
    let home = home(rig)?;
    fs::create_dir_all(home.join("sessions"))?;
    let (thread, turn) = (&native.session_id, &native.turn_id);
    let file = home.join(format!("sessions/rollout-x-{thread}.jsonl"));
    let head = json!({"type": "session_meta", "payload": {"id": thread}});
    let before = fs::read_to_string(&file).unwrap_or_else(|_| format!("{head}\n"));
    let end = json!({"type": "event_msg", "payload": {"type": "task_complete", "turn_id": turn}});
    fs::write(file, format!("{before}{end}\n"))?;
    Ok(native.session_id)
}

/// The folder that the child of the only Session has as its own.
fn home(rig: &Rig) -> anyhow::Result<PathBuf> {
    let mut sessions = fs::read_dir(rig.place().state().join("sessions"))?.flatten();
    Ok(sessions.next().context("no Session")?.path().join("home/codex"))
}

/// Another key retires the idle Executor; the preparation that it is for fails with the first program, which hears of no resume.
async fn retire(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let child = rig.child.as_ref().context("a child")?;
    child.play(refusing(json!({"code": -32600, "message": "not now"}))?)?;
    refusal(session.prepare(rig.configuration(Vec::new()), Vec::new()).await, Reason::PreparationFailed);
    rig.only(&[]).await
}

fn answering(step: Step) -> Program {
    let mut program = codex::healthy();
    program.rules.retain(|rule| rule.method != "thread/resume");
    program.rules.push(Rule { method: "thread/resume".into(), times: None, then: vec![step] });
    program
}

fn refusing(error: Value) -> anyhow::Result<Program> {
    Ok(answering(Step::Error(to_raw_value(&error)?)))
}

/// The answer to `thread/resume` with one thing changed.
fn resumed(change: Value) -> anyhow::Result<Program> {
    let mut answer = json!({
        "thread": {"id": "${params.threadId}"}, "model": "${params.model?}", "modelProvider": "${params.modelProvider?}",
        "cwd": "${params.cwd?}", "approvalPolicy": "never", "sandbox": {"type": "dangerFullAccess"},
    });
    for (name, value) in change.as_object().into_iter().flatten() {
        answer[name] = value.clone();
    }
    Ok(answering(Step::Result(to_raw_value(&answer)?)))
}

/// What the child that was started last was told, but for its version.
fn told(child: &FaultChild, before: &[u32]) -> anyhow::Result<String> {
    let new = child.starts()?.into_iter().filter(|start| !before.contains(&start.pid));
    let texts = new.map(|start| child.received(start.pid).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
    texts.collect()
}

#[test]
fn what_a_resume_answers_is_compared_and_nothing_is_begun_instead() {
    scenario("resume_answers", &["R-PRE-4", "R-PLC-1"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, native) = past_session(rig, &child).await?;
        retire(rig, &session).await?;
        let says = |code: i32, message: &str| refusing(json!({"code": code, "message": message}));
        let history = Reason::NativeHistoryUnavailable;
        for (program, reason, why) in [
            (resumed(json!({"thread": {"id": "another"}})), history, "foreign"),
            (says(-32600, "no rollout found for thread id x"), history, "missing"),
            (says(-32600, "session x is archived. Run `codex unarchive x` to unarchive it first."), history, "missing"),
            (says(-32600, "thread x already has an active writer"), history, "locked"),
            (
                says(-32603, "failed to read thread: session metadata p belongs to thread y, expected x"),
                history,
                "foreign",
            ),
            (says(-32603, "failed to read thread: thread-store internal error"), history, "corrupt"),
            (says(-32600, "failed to load configuration: no"), Reason::PreparationFailed, ""),
            (resumed(json!({"sandbox": {"type": "readOnly"}})), Reason::PreparationFailed, ""),
            (resumed(json!({"approvalPolicy": "on-request"})), Reason::PreparationFailed, ""),
            (resumed(json!({"model": "another"})), Reason::PreparationFailed, ""),
            (resumed(json!({"modelProvider": "openai"})), Reason::PreparationFailed, ""),
            (resumed(json!({"cwd": "/"})), Reason::PreparationFailed, ""),
        ] {
            let before: Vec<_> = child.starts()?.iter().map(|start| start.pid).collect();
            child.play(program?)?;
            let refused = refusal(rig.resume(&session, rig.configuration(Vec::new()), &native).await, reason);
            if reason == history {
                refused.with("history", why).with("native_session_id", &native);
            } else {
                refused.with("step", "session");
            }
            let told = told(&child, &before)?;
            assert!(told.contains("thread/resume") && told.contains(&native), "{told}");
            assert!(!told.contains("thread/start") && !told.contains("turn/start"), "{told}");
            rig.only(&[]).await?;
        }
        child.play(codex::healthy())?;
        let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
        rig.turn_with(&session, &ready, "t-2", "again").await?.completed()
    });
}

#[test]
fn after_many_resumes_each_event_comes_once() {
    scenario("resume_many", &["R-PRE-4", "R-EVT-1", "R-EVT-4"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, native) = past_session(rig, &child).await?;
        for round in 0..4 {
            // Another key, another Executor.
            let key = vec![v1::Credential { name: "model".into(), value: format!("sk-{round}") }];
            let ready = session.resume(rig.configuration(Vec::new()), key, &native).await?;
            assert!(!ready.reused);
            let turn_id = format!("t-{}", round + 2);
            let seen = rig.turn_with(&session, &ready, &turn_id, "again").await?;
            seen.completed()?;
            assert_eq!(seen.native_session()?, native);
            assert_eq!(seen.deltas(), "Let me look.All is well.");
            assert_eq!(seen.end()?.usage.and_then(|usage| usage.total_tokens), Some(120));
            write_history(rig, &session, &turn_id).await?;
        }
        Ok(())
    });
}

/// A program whose conversation has this name, with a fault at a place.
fn named(thread: &str, place: Place, fault: Fault) -> anyhow::Result<Program> {
    let text = serde_json::to_string(&codex::with_fault(place, fault))?;
    Ok(serde_json::from_str(&text.replace("${thread}", thread))?)
}

#[test]
fn a_turn_that_ran_without_a_word_has_left_a_history() {
    scenario("resume_unseen", &["R-PRE-4", "R-STA-2", "R-FN-1"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        // The input was taken, and nothing was told of it.
        child.play(named("thread-unseen", Place::AfterTurnStart, Fault::ExitsWith0)?)?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        assert_eq!(seen.story(), ["turn_ended"]);
        rig.only(&[]).await?;
        let home = home(rig)?;
        fs::create_dir_all(home.join("sessions"))?;
        let file = home.join("sessions/rollout-x-thread-unseen.jsonl");
        fs::write(&file, "{\"type\":\"session_meta\",\"payload\":{\"id\":\"thread-unseen\"}}\n")?;
        // It is there, so it is not replaced; what it was made with is known.
        child.play(codex::healthy())?;
        let other = rig.configuration(vec![function("lookup", "{}")]);
        let refused = session.prepare(other, Vec::new()).await;
        refusal(refused, Reason::ConfigurationConflict).at("configuration").with("field", "configuration");
        let refused = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
        let refused = refusal(refused, Reason::NativeHistoryUnavailable).with("history", "not_named");
        refused.with("native_session_id", "thread-unseen");
        let ready = rig.resume(&session, rig.configuration(Vec::new()), "thread-unseen").await?;
        let seen = rig.turn_with(&session, &ready, "t-2", "again").await?;
        seen.completed()?;
        assert_eq!(seen.native_session()?, "thread-unseen");
        Ok(())
    });
}

#[test]
fn a_turn_that_never_ran_has_left_none() {
    scenario("resume_never_ran", &["R-PRE-4", "R-STA-2"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        child.play(codex::with_fault(Place::AtTurnStart, Fault::ExitsWith0))?;
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.end()?;
        rig.only(&[]).await?;
        child.play(codex::healthy())?;
        rig.whole_turn(&session, "t-2", "hello").await?.completed()
    });
}

#[test]
fn the_history_is_part_of_what_a_preparation_asks_for() {
    scenario("resume_content", &["R-PRE-7", "R-API-6"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, native) = past_session(rig, &child).await?;
        let client = rig.client().await?;
        let request = |resume: Option<&str>| v1::PrepareExecutionRequest {
            assignment: Some(session.assignment().clone()),
            preparation_id: "p-1".into(),
            configuration: Some(rig.configuration(Vec::new())),
            credentials: vec![v1::Credential { name: "model".into(), value: "sk-one".into() }],
            resume: resume.map(|native| v1::Resume { native_session_id: native.into() }),
        };
        let ready = client.prepare(request(Some(&native))).await?;
        assert_eq!(client.prepare(request(Some(&native))).await?, ready);
        for other in [None, Some("another")] {
            refusal(client.prepare(request(other)).await, Reason::PreparationConflict).at("preparation_id");
        }
        rig.turn_with(&session, &ready, "t-2", "again").await?.completed()
    });
}
