//! A Harness that answers a resume wrongly (R-PRE-4): with another conversation, another policy, or a refusal in any of its words. It is never
//! given an input, and never asked for a new conversation instead.

use std::fs;

use anyhow::Context;
use conformance::child::FaultChild;
use conformance::child::codex;
use conformance::child::fault::{Fault, Place};
use conformance::for_each_harness;
use conformance::rig::{Harness, Rig, Setup, function, refusal, scenario};
use conformance::script::child::{Program, Rule, Step};
use proto::client::Session;
use proto::v1::{self, Reason};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

for_each_harness!(
    a_resume_that_is_refused_or_goes_elsewhere_loses_nothing,
    after_many_resumes_each_event_comes_once,
    a_turn_that_ran_without_a_word_has_left_a_history,
    a_turn_that_never_ran_has_left_none,
    the_history_is_part_of_what_a_preparation_asks_for,
);

/// A Session with a Turn, and its native history.
async fn past_session(rig: &Rig, child: &FaultChild) -> anyhow::Result<(Session, String)> {
    child.play(rig.kind().healthy())?;
    let session = rig.session().await?;
    rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
    let native = write_history(rig, &session, "t-1").await?;
    Ok((session, native))
}

/// The child writes no history, so it is written here, as the Harness would have: a Turn that completed.
async fn write_history(rig: &Rig, session: &Session, turn_id: &str) -> anyhow::Result<String> {
    let native = session.turn(turn_id).await?.native.context("no native id")?;
    let turn = &native.turn_id;
    let end = match rig.kind() {
        Harness::Codex => vec![json!({"type": "event_msg", "payload": {"type": "task_complete", "turn_id": turn}})],
        Harness::ClaudeCode => {
            let message =
                json!({"id": "m1", "content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"});
            vec![
                json!({"type": "user", "uuid": turn, "message": {"role": "user", "content": "hi"}}),
                json!({"type": "assistant", "message": message}),
            ]
        }
        Harness::MinimaxCode | Harness::Opencode => rig.kind().has_nothing_here(),
    };
    add_history(rig, &native.session_id, &end)?;
    Ok(native.session_id)
}

/// Adds rows to the history of a conversation, which has a head by then.
fn add_history(rig: &Rig, conversation: &str, rows: &[Value]) -> anyhow::Result<()> {
    let mut sessions = fs::read_dir(rig.place().state().join("sessions"))?.flatten();
    let home = sessions.next().context("no Session")?.path().join("home").join(rig.kind().executable());
    let (folder, name, head) = match rig.kind() {
        Harness::Codex => (
            home.join("sessions"),
            format!("rollout-x-{conversation}.jsonl"),
            json!({"type": "session_meta", "payload": {"id": conversation}}),
        ),
        Harness::ClaudeCode => (
            home.join("projects/-w"),
            format!("{conversation}.jsonl"),
            json!({"type": "queue-operation", "operation": "enqueue", "sessionId": conversation}),
        ),
        Harness::MinimaxCode | Harness::Opencode => rig.kind().has_nothing_here(),
    };
    fs::create_dir_all(&folder)?;
    let before = fs::read_to_string(folder.join(&name)).unwrap_or_else(|_| format!("{head}\n"));
    let rows: String = rows.iter().map(|row| format!("{row}\n")).collect();
    Ok(fs::write(folder.join(name), before + &rows)?)
}

/// Another key retires the idle Executor; the preparation that it is for fails with the first program, which hears of no resume.
async fn retire(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let child = rig.child.as_ref().context("a child")?;
    let error = match rig.kind() {
        Harness::Codex => json!({"code": -32600, "message": "not now"}),
        Harness::ClaudeCode => json!("not now"),
        Harness::MinimaxCode | Harness::Opencode => rig.kind().has_nothing_here(),
    };
    child.play(refusing(rig.kind(), error)?)?;
    refusal(session.prepare(rig.configuration(Vec::new()), Vec::new()).await, Reason::PreparationFailed);
    rig.only(&[]).await
}

/// A program with another answer to what resumes a conversation.
fn answering(harness: Harness, step: Step) -> Program {
    let method = if harness == Harness::Codex { "thread/resume" } else { "initialize" };
    let mut program = harness.healthy();
    program.rules.retain(|rule| rule.method != method);
    program.rules.push(Rule { method: method.into(), times: None, then: vec![step] });
    program
}

fn refusing(harness: Harness, error: Value) -> anyhow::Result<Program> {
    Ok(answering(harness, Step::Error(to_raw_value(&error)?)))
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
    Ok(answering(Harness::Codex, Step::Result(to_raw_value(&answer)?)))
}

/// What the child that was started last was told, but for its version.
fn told(child: &FaultChild, before: &[u32]) -> anyhow::Result<String> {
    let new = child.starts()?.into_iter().filter(|start| !before.contains(&start.pid));
    let texts = new.map(|start| child.received(start.pid).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
    texts.collect()
}

#[test]
fn what_a_resume_answers_is_compared_and_nothing_is_begun_instead() {
    let setup = Setup::faulty(codex::healthy())
        .without_gateway()
        .only("Codex answers a resume with what it took; Claude Code says yes or no");
    scenario("resume_answers", &["R-PRE-4", "R-PLC-1"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, native) = past_session(rig, &child).await?;
        retire(rig, &session).await?;
        let says = |code: i32, message: &str| refusing(Harness::Codex, json!({"code": code, "message": message}));
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

fn a_resume_that_is_refused_or_goes_elsewhere_loses_nothing(harness: Harness) {
    scenario(
        "resume_goes_wrong",
        &["R-PRE-4", "R-PRE-1", "R-CAN-4"],
        Setup::child_of(harness).without_gateway(),
        async |rig| {
            let child = rig.child.clone().context("a child")?;
            let (session, native) = past_session(rig, &child).await?;
            retire(rig, &session).await?;
            let error = match harness {
                Harness::Codex => json!({"code": -32600, "message": "failed to load configuration: no"}),
                Harness::ClaudeCode => json!("No conversation found with that session ID"),
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            };
            let opens = if harness == Harness::Codex { "session" } else { "initialize" };
            let step = |value: Value| serde_json::from_value::<Step>(value);
            for program in [
                refusing(harness, error)?,
                answering(harness, step(json!({"exit": 1}))?),
                answering(harness, step(json!({"die": "SEGV"}))?),
                answering(harness, step(json!({"result": "text"}))?),
            ] {
                child.play(program)?;
                let refused = rig.resume(&session, rig.configuration(Vec::new()), &native).await;
                refusal(refused, Reason::PreparationFailed).with("step", opens);
                rig.only(&[]).await?;
                let received = String::from_utf8(child.received(child.last(harness)?.pid)?)?;
                assert!(!received.contains("turn/start") && !received.contains(r#""type":"user""#), "{received}");
            }
            if harness == Harness::ClaudeCode {
                // Which conversation it runs it tells with the first Turn only.
                let other =
                    json!({"line": {"type": "system", "subtype": "init", "session_id": "another", "tools": []}});
                child.play(harness.with_steps(Place::InTurn, &[step(other)?]))?;
                let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
                let seen = rig.turn_with(&session, &ready, "t-2", "again").await?;
                let code = seen.end()?.failure.as_ref().map(v1::Failure::code);
                assert_eq!(code, Some(v1::FailureCode::HarnessProtocolError), "{:?}", seen.end());
                rig.only(&[]).await?;
                write_history(rig, &session, "t-2").await?;
            }
            child.play(harness.healthy())?;
            let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
            let seen = rig.turn_with(&session, &ready, "t-3", "again").await?;
            seen.completed()?;
            assert_eq!(seen.native_session()?, native);
            Ok(())
        },
    );
}

fn after_many_resumes_each_event_comes_once(harness: Harness) {
    scenario(
        "resume_many",
        &["R-PRE-4", "R-EVT-1", "R-EVT-4"],
        Setup::child_of(harness).without_gateway(),
        async |rig| {
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
        },
    );
}

fn a_turn_that_ran_without_a_word_has_left_a_history(harness: Harness) {
    scenario("resume_unseen", &["R-PRE-4", "R-STA-2", "R-FN-1"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        // The input was taken, and nothing was told of it.
        let mut program = harness.with_fault(Place::AfterTurnStart, Fault::ExitsWith0);
        if harness == Harness::Codex {
            // A conversation whose name is known here; that of Claude Code is in its arguments.
            let text = serde_json::to_string(&program)?;
            program = serde_json::from_str(&text.replace("${thread}", "thread-unseen"))?;
        }
        child.play(program)?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        assert_eq!(seen.story(), ["turn_ended"]);
        rig.only(&[]).await?;
        let native = match harness {
            Harness::Codex => "thread-unseen".to_owned(),
            Harness::ClaudeCode => {
                let args = child.last(harness)?.args;
                let id = args.iter().find_map(|arg| arg.strip_prefix("--session-id=")).context("no conversation")?;
                id.to_owned()
            }
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        add_history(rig, &native, &[])?;
        // It is there, so it is not replaced; what it was made with is known.
        child.play(harness.healthy())?;
        let other = rig.configuration(vec![function("lookup", "{}")]);
        let refused = session.prepare(other, Vec::new()).await;
        refusal(refused, Reason::ConfigurationConflict).at("configuration").with("field", "configuration");
        let refused = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
        let refused = refusal(refused, Reason::NativeHistoryUnavailable).with("history", "not_named");
        refused.with("native_session_id", &native);
        let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
        let seen = rig.turn_with(&session, &ready, "t-2", "again").await?;
        seen.completed()?;
        assert_eq!(seen.native_session()?, native);
        Ok(())
    });
}

fn a_turn_that_never_ran_has_left_none(harness: Harness) {
    scenario("resume_never_ran", &["R-PRE-4", "R-STA-2"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        child.play(harness.with_fault(Place::AtTurnStart, Fault::ExitsWith0))?;
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.end()?;
        rig.only(&[]).await?;
        child.play(harness.healthy())?;
        rig.whole_turn(&session, "t-2", "hello").await?.completed()
    });
}

fn the_history_is_part_of_what_a_preparation_asks_for(harness: Harness) {
    scenario("resume_content", &["R-PRE-7", "R-API-6"], Setup::child_of(harness), async |rig| {
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
