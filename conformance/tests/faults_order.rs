//! Messages that are good, but come twice, late, out of order or with something else in them (R-EVT-6, R-FN-6, R-CAN-5).

use anyhow::Context;
use conformance::child::FaultChild;
use conformance::child::codex;
use conformance::child::fault::{FUNCTION, Fault, Place};
use conformance::rig::{Observed, Rig, Setup, function, refusal, scenario, text_result};
use conformance::script::child::{Program, Step};
use proto::client::{Session, TurnEvents, text_input};
use proto::v1::{self, Reason, event::Kind};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

fn setup() -> Setup {
    Setup::faulty(codex::healthy())
}

fn functions() -> Vec<v1::FunctionTool> {
    vec![function(FUNCTION, r#"{"type":"object"}"#)]
}

fn line(json: &Value) -> Step {
    Step::Line(to_raw_value(json).unwrap_or_default())
}

fn notify(method: &str, thread: &str, turn: &str, more: Value) -> Step {
    let mut params = json!({"threadId": thread, "turnId": turn});
    if let (Some(params), Value::Object(more)) = (params.as_object_mut(), more) {
        params.extend(more);
    }
    line(&json!({"method": method, "params": params}))
}

/// A Session whose Harness follows this program from its start on.
async fn prepared(rig: &Rig, child: &FaultChild, program: Program) -> anyhow::Result<(Session, v1::Ready)> {
    child.play(program)?;
    let session = rig.session().await?;
    let ready = rig.prepare(&session, rig.configuration(functions())).await?;
    Ok((session, ready))
}

/// A Turn up to its function call.
async fn called(
    rig: &Rig,
    child: &FaultChild,
    program: Program,
) -> anyhow::Result<(Session, TurnEvents, Observed, v1::FunctionCall)> {
    let (session, ready) = prepared(rig, child, program).await?;
    session.start(&ready, "t-1", text_input("hello")).await?;
    let (mut events, mut observed) = (session.turn_events("t-1"), Observed::default());
    let call = observed.call(&mut events).await?;
    Ok((session, events, observed, call))
}

fn unconfirmed(observed: &Observed) -> anyhow::Result<()> {
    let end = observed.end()?;
    let code = end.failure.as_ref().map(v1::Failure::code);
    let want = Some(v1::FailureCode::FunctionResultUnconfirmed);
    assert_eq!((end.status(), code), (v1::TurnStatus::Failed, want), "{end:?}");
    assert!(!observed.kinds().any(|kind| matches!(kind, Kind::FunctionResultApplied(_))), "{:?}", observed.story());
    Ok(())
}

/// The text of the input that the Harness got as answers to its calls.
fn answers(child: &FaultChild) -> anyhow::Result<Vec<Value>> {
    let start = child.starts()?.into_iter().rfind(|start| start.args[0] == "app-server").context("no start")?;
    let received = String::from_utf8(child.received(start.pid)?)?;
    let lines = received.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    Ok(lines.into_iter().filter(|line| line.get("method").is_none()).collect())
}

#[test]
fn late_and_foreign_messages_reach_no_turn() {
    // What belongs to the Turn before (none in the first one), to another thread, and to a turn that nobody knows.
    let mut strange = Vec::new();
    for (thread, turn, text) in [
        ("${thread}", "${old?}", "LATE"),
        ("foreign", "${turn?}", "FOREIGN"),
        ("foreign", "t-foreign", "FOREIGN"),
        ("${thread}", "t-unknown", "UNKNOWN"),
    ] {
        let message = json!({"type": "agentMessage", "id": "odd", "text": text, "phase": "final_answer"});
        strange.extend([
            notify("item/started", thread, turn, json!({ "item": message })),
            notify("item/agentMessage/delta", thread, turn, json!({"itemId": "msg_1", "delta": text})),
            notify("item/agentMessage/delta", thread, turn, json!({"itemId": "odd", "delta": text})),
            notify("item/completed", thread, turn, json!({ "item": message })),
            notify("error", thread, turn, json!({"willRetry": false, "error": {"message": text}})),
            notify(
                "item/tool/call",
                thread,
                turn,
                json!({"callId": "odd", "tool": FUNCTION, "arguments": {}, "namespace": null}),
            ),
            line(&json!({"id": 500, "method": "item/tool/call", "params": {"threadId": thread, "turnId": turn,
                "callId": "odd", "namespace": null, "tool": FUNCTION, "arguments": {}}})),
            line(&json!({"method": "turn/completed", "params": {"threadId": thread,
                "turn": {"id": turn, "status": "failed", "error": {"message": text}, "items": []}}})),
        ]);
    }
    strange.push(Step::Set([("old".to_owned(), to_raw_value("${turn}").unwrap())].into()));
    scenario("fault_late", &["R-EVT-6", "R-FN-2"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        for place in [Place::AtTurnStart, Place::AfterTurnStart, Place::InTurn, Place::InMessage, Place::BeforeEnd] {
            let mut steps = strange.clone();
            if place == Place::AtTurnStart {
                // Here the turn of this moment is still the one before, and any new one may be the one that begins.
                steps.retain(|step| matches!(step, Step::Line(line) if !line.get().contains("t-unknown")));
                steps.insert(0, Step::Set([("old".to_owned(), to_raw_value("${turn?}")?)].into()));
            }
            let (session, ready) = prepared(rig, &child, codex::with_steps(place, &steps)).await?;
            let mut ready = Some(ready);
            for turn in ["t-1", "t-2", "t-3"] {
                let ready = match ready.take() {
                    Some(ready) => ready,
                    None => rig.prepare(&session, rig.configuration(functions())).await?,
                };
                session.start(&ready, turn, text_input("hello")).await?;
                let observed = Observed::default().to_the_end(&mut session.turn_events(turn)).await?;
                observed.completed().with_context(|| format!("{place:?} {turn}"))?;
                assert_eq!(observed.messages(), ["Let me look.", "All is well."], "{place:?} {turn}");
                assert_eq!(observed.deltas(), "Let me look.All is well.", "{place:?} {turn}");
                assert!(!observed.story().contains(&"function_call"), "{place:?} {turn}");
            }
            // Calls that are nobody's are refused, and the Harness waits for none of them.
            let refused = answers(&child)?.into_iter().filter(|answer| answer["id"] == 500);
            assert!(refused.map(|answer| answer["error"]["code"].as_i64()).all(|code| code == Some(-32602)));
        }
        Ok(())
    });
}

#[test]
fn the_start_may_be_told_before_it_is_answered() {
    let mut program = codex::healthy();
    let start = program.rules.iter_mut().find(|rule| rule.method == "turn/start").unwrap();
    let answer = start.then.iter().position(|step| matches!(step, Step::Result(_))).unwrap();
    let answer = start.then.remove(answer);
    let told = |step: &Step| matches!(step, Step::Line(line) if line.get().contains("turn/started"));
    let place = start.then.iter().position(told).unwrap() + 1;
    // Behind `turn/started`, and once more behind the whole first message.
    let mut later = program.clone();
    program.rules.iter_mut().find(|rule| rule.method == "turn/start").unwrap().then.insert(place, answer.clone());
    later.rules.iter_mut().find(|rule| rule.method == "turn/start").unwrap().then.insert(place + 5, answer);
    scenario("fault_early_start", &["R-EVT-2", "R-EVT-6"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        for program in [program, later] {
            let (session, ready) = prepared(rig, &child, program).await?;
            session.start(&ready, "t-1", text_input("hello")).await?;
            let observed = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
            observed.completed()?;
            assert_eq!(observed.messages(), ["Let me look.", "All is well."]);
        }
        Ok(())
    });
}

#[test]
fn a_call_that_is_asked_twice_is_one_call() {
    let again = |id: u64, call: &str, tool: &str, arguments: Value| {
        line(&json!({"id": id, "method": "item/tool/call", "params": {"threadId": "${thread}", "turnId": "${turn}",
            "callId": call, "namespace": null, "tool": tool, "arguments": arguments}}))
    };
    let same = json!({"q": "life"});
    let steps = [
        again(41, "call_1", FUNCTION, same.clone()),
        again(42, "call_1", FUNCTION, json!({"q": "death"})),
        again(43, "call_1", "other", same),
        again(44, "call_2", "nobody_declared_this", json!({})),
    ];
    let program = codex::with_steps(Place::InCall, &steps);
    scenario("fault_call_twice", &["R-FN-2", "R-FN-3", "R-FN-6"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, mut events, observed, call) = called(rig, &child, program).await?;
        assert_eq!(session.turn("t-1").await?.required_actions.len(), 1);
        session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
        let observed = observed.to_the_end(&mut events).await?;
        observed.completed()?;
        let count = |name: &str| observed.kinds().filter(|kind| conformance::rig::name(kind) == name).count();
        assert_eq!((count("function_call"), count("function_result_applied")), (1, 1));
        let answers = answers(&child)?;
        let of = |id: u64| answers.iter().find(|answer| answer["id"] == id).cloned().unwrap_or_default();
        assert_eq!(of(0)["result"]["success"], true);
        assert_eq!(of(41)["result"], of(0)["result"], "the same question has the same answer");
        for refused in [42, 43, 44] {
            assert!(of(refused)["error"]["code"].is_i64(), "{refused}: {answers:?}");
        }
        Ok(())
    });
}

#[test]
fn an_answer_that_comes_back_as_something_else_is_unconfirmed() {
    let shown = |content: Value, success: Value, status: &str| {
        let item = json!({"type": "dynamicToolCall", "id": "call_1", "namespace": null, "tool": FUNCTION,
            "arguments": {"q": "life"}, "status": status, "contentItems": content, "success": success});
        vec![notify("item/completed", "${thread}", "${turn}", json!({ "item": item }))]
    };
    let part = |text: &str| json!([{"type": "inputText", "text": text}]);
    let cases = [
        shown(part("41"), json!(true), "completed"),
        shown(part("42"), json!(false), "failed"),
        shown(part("42 "), json!(true), "completed"),
        shown(json!([]), json!(true), "completed"),
        shown(json!([{"type": "inputImage", "imageUrl": "42"}]), json!(true), "completed"),
    ];
    scenario("fault_answer_differs", &["R-FN-5", "R-FN-6", "R-CAN-3"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        for steps in cases {
            let (session, mut events, observed, call) =
                called(rig, &child, codex::with_steps(Place::AfterCall, &steps)).await?;
            let result = text_result("t-1", &call.call_id, "42");
            session.submit(vec![result.clone()]).await?;
            let observed = observed.to_the_end(&mut events).await?;
            unconfirmed(&observed)?;
            // Never sent again, whoever asks for it.
            let again = session.submit(vec![result]).await?;
            assert_eq!(again[0].outcome(), v1::ResultOutcome::Duplicate);
            let sent = answers(&child)?.into_iter().filter(|answer| answer["id"] == 0);
            assert_eq!(sent.count(), 1);
            // The Harness ended the Turn in order, so its Executor is as good as before.
            assert!(rig.prepare(&session, rig.configuration(functions())).await?.reused);
            let fence = v1::AssignmentRef { epoch: 2, ..session.assignment().clone() };
            let release = v1::ReleaseAssignmentRequest { assignment: Some(fence), remove_home: true, principal: None };
            rig.client().await?.release_assignment(release).await?;
        }
        bystander.undisturbed(rig).await
    });
}

#[test]
fn a_result_without_evidence_is_unconfirmed_in_its_time() {
    let setup = Setup { more: "limits.result_evidence_ms = 400".into(), ..setup() };
    scenario("fault_no_evidence", &["R-FN-6", "R-PRE-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        // One that reads the answer and says nothing of it, and one that does not read at all.
        for (place, fault) in [(Place::AfterCall, Fault::Hangs), (Place::InCall, Fault::Hangs)] {
            let (session, mut events, observed, call) = called(rig, &child, codex::with_fault(place, fault)).await?;
            let accepted = session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
            assert_eq!(accepted[0].outcome(), v1::ResultOutcome::Accepted);
            let observed = observed.to_the_end(&mut events).await?;
            unconfirmed(&observed)?;
            let refused = session.prepare(rig.configuration(functions()), Vec::new()).await;
            refusal(refused, Reason::NativeHistoryUnavailable);
            bystander.undisturbed(rig).await?;
        }
        Ok(())
    });
}

#[test]
fn a_turn_that_ends_without_the_evidence_of_a_result_failed() {
    let mut program = codex::calling(r#"{"q":"life"}"#);
    let start = program.rules.iter_mut().find(|rule| rule.method == "turn/start").unwrap();
    start.then.retain(|step| {
        !matches!(step, Step::Line(line) if line.get().contains("item/completed") && line.get().contains("dynamicToolCall"))
    });
    scenario("fault_silent_result", &["R-FN-6"], setup(), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, mut events, observed, call) = called(rig, &child, program).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
        unconfirmed(&observed.to_the_end(&mut events).await?)
    });
}
