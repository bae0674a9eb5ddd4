//! Messages that are good, but come twice, late, out of order or with something else in them (R-EVT-6, R-FN-6, R-CAN-5).

#![expect(clippy::unwrap_used, reason = "what is made before a scenario fails by panicking")]

use anyhow::Context;
use conformance::child::fault::{FUNCTION, Fault, Place};
use conformance::child::{FaultChild, claude};
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, function, refusal, scenario, text_result};
use conformance::script::child::{Program, Step};
use proto::client::{Session, TurnEvents, text_input};
use proto::v1::{self, Reason, event::Kind};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

for_each_harness!(
    an_interrupt_that_nobody_asked_for_is_a_broken_protocol,
    late_and_foreign_messages_reach_no_turn,
    the_start_may_be_told_before_it_is_answered,
    a_call_that_is_asked_twice_is_one_call,
    every_line_may_come_twice,
    what_was_done_may_be_told_again,
    an_answer_that_comes_back_as_something_else_is_unconfirmed,
    a_result_without_evidence_is_unconfirmed_in_its_time,
    a_turn_that_ends_without_the_evidence_of_a_result_failed,
);

fn functions() -> Vec<v1::FunctionTool> {
    vec![function(FUNCTION, r#"{"type":"object"}"#)]
}

fn line(json: &Value) -> Step {
    Step::Line(to_raw_value(json).unwrap_or_default())
}

/// A notification of Codex.
fn notify(method: &str, thread: &str, turn: &str, more: Value) -> Step {
    let mut params = json!({"threadId": thread, "turnId": turn});
    if let (Some(params), Value::Object(more)) = (params.as_object_mut(), more) {
        params.extend(more);
    }
    line(&json!({"method": method, "params": params}))
}

/// A line of Claude Code, of this conversation and of a subagent or of none.
fn said(session: &str, parent: Value, kind: &str, more: Value) -> Step {
    let mut said = json!({"type": kind, "session_id": session, "parent_tool_use_id": parent});
    if let (Some(said), Value::Object(more)) = (said.as_object_mut(), more) {
        said.extend(more);
    }
    line(&said)
}

/// The steps of a Turn.
fn turn_of(harness: Harness, program: &mut Program) -> anyhow::Result<&mut Vec<Step>> {
    let method = if harness == Harness::Codex { "turn/start" } else { "user" };
    let rule = program.rules.iter_mut().find(|rule| rule.method == method).context("no Turn")?;
    Ok(&mut rule.then)
}

/// Whether a line has all of these texts in it.
fn has(step: &Step, texts: &[&str]) -> bool {
    matches!(step, Step::Line(line) if texts.iter().all(|text| line.get().contains(text)))
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

/// What the Harness got as answers to its calls, as JSON-RPC.
fn answers(child: &FaultChild, harness: Harness) -> anyhow::Result<Vec<Value>> {
    let received = String::from_utf8(child.received(child.last(harness)?.pid)?)?;
    let lines = received.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    Ok(match harness {
        Harness::Codex => lines.into_iter().filter(|line| line.get("method").is_none()).collect(),
        Harness::ClaudeCode => {
            let answer = |line: Value| line.pointer("/response/response/mcp_response").cloned();
            lines.into_iter().filter_map(answer).collect()
        }
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    })
}

/// What belongs to the Turn before (none in the first one), to another thread, and to a turn that nobody knows.
fn strange_of_codex(place: Place) -> Vec<Step> {
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
    if place == Place::AtTurnStart {
        // Here the turn of this moment is still the one before, and any new one may be the one that begins.
        strange.retain(|step| has(step, &[]) && !has(step, &["t-unknown"]));
        strange.insert(0, Step::Set([("old".to_owned(), to_raw_value("${turn?}").unwrap_or_default())].into()));
    } else {
        strange.push(Step::Set([("old".to_owned(), to_raw_value("${turn}").unwrap_or_default())].into()));
    }
    strange
}

/// What belongs to another conversation and to a subagent, and, where no native turn runs, to the one before.
fn strange_of_claude(place: Place) -> Vec<Step> {
    let late = matches!(place, Place::AtTurnStart | Place::AfterTurnStart | Place::AfterEnd);
    let mut strange = Vec::new();
    let subagent = || json!("toolu_subagent");
    for (session, parent, text) in [
        ("foreign", Value::Null, "FOREIGN"),
        ("foreign", subagent(), "FOREIGN"),
        ("${session}", subagent(), "SUBAGENT"),
        ("${session}", Value::Null, "LATE"),
    ] {
        let is_late = text == "LATE";
        if is_late && !late {
            continue;
        }
        let said = |kind: &str, more: Value| said(session, parent.clone(), kind, more);
        let block = json!({"type": "text", "text": text});
        let delta = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}});
        let message = |block: Value| json!({"id": "msg_odd", "model": "claude-sonnet-4-5", "content": [block]});
        let used = json!({"type": "tool_use", "id": "toolu_odd", "name": "Bash", "input": {"command": text}});
        let results =
            ["toolu_1", "call_1"].map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": text}));
        strange.extend([
            said("stream_event", json!({"event": {"type": "message_start", "message": {"id": "msg_odd"}}})),
            said("stream_event", json!({"event": delta})),
            said("assistant", json!({"message": message(block)})),
            said("assistant", json!({"message": message(used)})),
            said("user", json!({"message": {"role": "user", "content": results}})),
        ]);
        if session == "foreign" || is_late {
            strange.extend([
                said("system", json!({"subtype": "api_retry", "attempt": 1, "max_retries": 4, "error": text})),
                said("result", json!({"subtype": "error_during_execution", "is_error": true, "errors": [text]})),
                said("command_lifecycle", json!({"command_uuid": "odd", "state": "started"})),
                said("command_lifecycle", json!({"command_uuid": "odd", "state": "cancelled"})),
                said("system", json!({"subtype": "session_state_changed", "state": "idle"})),
            ]);
        }
        if is_late {
            strange.push(claude::call(500, "odd", FUNCTION, "{}"));
        }
    }
    strange
}

fn late_and_foreign_messages_reach_no_turn(harness: Harness) {
    scenario("fault_late", &["R-EVT-6", "R-FN-2"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let places = [Place::AtTurnStart, Place::AfterTurnStart, Place::InTurn, Place::InMessage, Place::BeforeEnd];
        for place in places.into_iter().chain([Place::AfterEnd]) {
            let steps = match harness {
                Harness::Codex => strange_of_codex(place),
                Harness::ClaudeCode => strange_of_claude(place),
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            };
            let (session, ready) = prepared(rig, &child, harness.with_steps(place, &steps)).await?;
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
                let odd = ["function_call", "provider_retry", "notice"];
                assert!(!observed.story().iter().any(|name| odd.contains(name)), "{place:?} {:?}", observed.story());
            }
            // Calls that are nobody's are refused, and the Harness waits for none of them.
            // For Claude Code only one that comes late is nobody's.
            let is_late = matches!(place, Place::AtTurnStart | Place::AfterTurnStart | Place::AfterEnd);
            if harness == Harness::Codex || is_late {
                child.wait_for_received(child.last(harness)?.pid, "\"id\":500,").await?;
                let refused = answers(&child, harness)?.into_iter().filter(|answer| answer["id"] == 500);
                let codes: Vec<_> = refused.map(|answer| answer["error"]["code"].as_i64()).collect();
                assert!(!codes.is_empty() && codes.iter().all(|code| *code == Some(-32602)), "{place:?} {codes:?}");
            }
        }
        Ok(())
    });
}

fn the_start_may_be_told_before_it_is_answered(harness: Harness) {
    let (answer, start): (fn(&Step) -> bool, &[&str]) = match harness {
        Harness::Codex => (|step| matches!(step, Step::Result(_)), &["turn/started"]),
        Harness::ClaudeCode => (|step| has(step, &["command_lifecycle", "queued"]), &["command_lifecycle", "started"]),
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let mut program = harness.healthy();
    let turn = turn_of(harness, &mut program).unwrap();
    let answer = turn.remove(turn.iter().position(answer).unwrap());
    let place = turn.iter().position(|step| has(step, start)).unwrap() + 1;
    // Behind the start, and once more behind the whole first message.
    let mut later = program.clone();
    turn_of(harness, &mut program).unwrap().insert(place, answer.clone());
    turn_of(harness, &mut later).unwrap().insert(place + 5, answer);
    scenario("fault_early_start", &["R-EVT-2", "R-EVT-6"], Setup::child_of(harness), async |rig| {
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

fn a_call_that_is_asked_twice_is_one_call(harness: Harness) {
    let again = |id: u64, call: &str, tool: &str, arguments: Value| match harness {
        Harness::Codex => line(&json!({"id": id, "method": "item/tool/call", "params": {"threadId": "${thread}",
                "turnId": "${turn}", "callId": call, "namespace": null, "tool": tool, "arguments": arguments}})),
        Harness::ClaudeCode => claude::call(id, call, tool, &arguments.to_string()),
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let same = json!({"q": "life"});
    let steps = [
        again(41, "call_1", FUNCTION, same.clone()),
        again(42, "call_1", FUNCTION, json!({"q": "death"})),
        again(43, "call_1", "other", same),
        again(44, "call_2", "nobody_declared_this", json!({})),
    ];
    let program = harness.with_steps(Place::InCall, &steps);
    scenario("fault_call_twice", &["R-FN-2", "R-FN-3", "R-FN-6"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, mut events, observed, call) = called(rig, &child, program).await?;
        assert_eq!(session.turn("t-1").await?.required_actions.len(), 1);
        session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
        let observed = observed.to_the_end(&mut events).await?;
        observed.completed()?;
        let count = |name: &str| observed.kinds().filter(|kind| conformance::rig::name(kind) == name).count();
        assert_eq!((count("function_call"), count("function_result_applied")), (1, 1));
        // It reads them when it has told its Turn.
        let pid = child.last(harness)?.pid;
        for id in [41, 42, 43, 44] {
            child.wait_for_received(pid, &format!("\"id\":{id},")).await?;
        }
        let answers = answers(&child, harness)?;
        let of = |id: u64| answers.iter().find(|answer| answer["id"] == id).cloned().unwrap_or_default();
        match harness {
            Harness::Codex => assert_eq!(of(0)["result"]["success"], true),
            Harness::ClaudeCode => assert_eq!(of(0)["result"]["isError"], false),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        }
        assert_eq!(of(41)["result"], of(0)["result"], "the same question has the same answer");
        for refused in [42, 43, 44] {
            assert!(of(refused)["error"]["code"].is_i64(), "{refused}: {answers:?}");
        }
        Ok(())
    });
}

/// What comes twice may be shown twice, but never out of order, and ends nothing twice.
fn every_line_may_come_twice(harness: Harness) {
    let mut program = harness.calling(r#"{"q":"life"}"#);
    let turn = turn_of(harness, &mut program).unwrap();
    *turn =
        turn.drain(..).flat_map(|step| if has(&step, &[]) { vec![step.clone(), step] } else { vec![step] }).collect();
    scenario("fault_stutter", &["R-EVT-2", "R-EVT-6", "R-FN-3", "R-FN-6"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let (session, mut events, observed, call) = called(rig, &child, program).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
        let observed = observed.to_the_end(&mut events).await?;
        observed.completed()?;
        let count = |name: &str| observed.kinds().filter(|kind| conformance::rig::name(kind) == name).count();
        assert_eq!((count("function_call"), count("function_result_applied")), (1, 1));
        assert_eq!(observed.messages().last(), Some(&"All is well."));
        let ready = rig.prepare(&session, rig.configuration(functions())).await?;
        assert!(ready.reused);
        session.start(&ready, "t-2", text_input("again")).await?;
        let (mut events, mut observed) = (session.turn_events("t-2"), Observed::default());
        let call = observed.call(&mut events).await?;
        session.submit(vec![text_result("t-2", &call.call_id, "42")]).await?;
        observed.to_the_end(&mut events).await?.completed()?;
        session.release(true).await?;
        bystander.undisturbed(rig).await
    });
}

/// A tool and a message under ids that are taken: the bridge's own ids are unique in the Turn all the same.
fn what_was_done_may_be_told_again(harness: Harness) {
    let mut program = harness.healthy();
    let turn = turn_of(harness, &mut program).unwrap();
    let id = if harness == Harness::Codex { "\"e1\"" } else { "toolu_1" };
    let again = turn.iter().filter(|step| has(step, &[id]) || has(step, &["msg_1"])).cloned().collect::<Vec<_>>();
    scenario("fault_told_again", &["R-EVT-2"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, ready) = prepared(rig, &child, harness.with_steps(Place::BeforeEnd, &again)).await?;
        session.start(&ready, "t-1", text_input("hello")).await?;
        let observed = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        observed.completed()?;
        let count = |name: &str| observed.kinds().filter(|kind| conformance::rig::name(kind) == name).count();
        assert_eq!(count("tool_started"), count("tool_completed"), "{:?}", observed.story());
        assert_eq!(count("tool_started"), 2, "{:?}", observed.story());
        Ok(())
    });
}

fn an_answer_that_comes_back_as_something_else_is_unconfirmed(harness: Harness) {
    let shown = |content: Value, success: bool| match harness {
        Harness::Codex => {
            let status = if success { "completed" } else { "failed" };
            let item = json!({"type": "dynamicToolCall", "id": "call_1", "namespace": null, "tool": FUNCTION,
                "arguments": {"q": "life"}, "status": status, "contentItems": content, "success": success});
            vec![notify("item/completed", "${thread}", "${turn}", json!({ "item": item }))]
        }
        Harness::ClaudeCode => {
            let result =
                json!({"type": "tool_result", "tool_use_id": "call_1", "content": content, "is_error": !success});
            vec![said("${session}", Value::Null, "user", json!({"message": {"role": "user", "content": [result]}}))]
        }
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let (part, image): (fn(&str) -> Value, Value) = match harness {
        Harness::Codex => {
            (|text| json!([{"type": "inputText", "text": text}]), json!([{"type": "inputImage", "imageUrl": "42"}]))
        }
        Harness::ClaudeCode => (
            |text| json!([{"type": "text", "text": text}]),
            json!([{"type": "image", "source": {"media_type": "image/png", "data": "42"}}]),
        ),
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let cases = [
        shown(part("41"), true),
        shown(part("42"), false),
        shown(part("42 "), true),
        shown(json!([]), true),
        shown(image, true),
    ];
    scenario("fault_answer_differs", &["R-FN-5", "R-FN-6", "R-CAN-3"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        for steps in cases {
            let (session, mut events, observed, call) =
                called(rig, &child, harness.with_steps(Place::AfterCall, &steps)).await?;
            let result = text_result("t-1", &call.call_id, "42");
            session.submit(vec![result.clone()]).await?;
            let observed = observed.to_the_end(&mut events).await?;
            unconfirmed(&observed)?;
            // Never sent again, whoever asks for it.
            let again = session.submit(vec![result]).await?;
            assert_eq!(again[0].outcome(), v1::ResultOutcome::Duplicate);
            let sent = answers(&child, harness)?.into_iter().filter(|answer| answer["id"] == 0);
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

fn a_result_without_evidence_is_unconfirmed_in_its_time(harness: Harness) {
    let setup = Setup { more: "limits.result_evidence_ms = 400".into(), ..Setup::child_of(harness) };
    scenario("fault_no_evidence", &["R-FN-6", "R-PRE-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        // One that reads the answer and says nothing of it, and one that does not read at all.
        for (place, fault) in [(Place::AfterCall, Fault::Hangs), (Place::InCall, Fault::Hangs)] {
            let (session, mut events, observed, call) = called(rig, &child, harness.with_fault(place, fault)).await?;
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

fn a_turn_that_ends_without_the_evidence_of_a_result_failed(harness: Harness) {
    let mut program = harness.calling(r#"{"q":"life"}"#);
    let evidence: &[&str] = match harness {
        Harness::Codex => &["item/completed", "dynamicToolCall"],
        Harness::ClaudeCode => &["tool_result", "call_1"],
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    turn_of(harness, &mut program).unwrap().retain(|step| !has(step, evidence));
    scenario("fault_silent_result", &["R-FN-6"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, mut events, observed, call) = called(rig, &child, program).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
        unconfirmed(&observed.to_the_end(&mut events).await?)
    });
}

/// R-CAN-6: only who asked for a cancel is told of one.
fn an_interrupt_that_nobody_asked_for_is_a_broken_protocol(harness: Harness) {
    let steps = match harness {
        Harness::Codex => {
            let turn = json!({"id": "${turn}", "status": "interrupted", "error": null, "items": []});
            vec![line(&json!({"method": "turn/completed", "params": {"threadId": "${thread}", "turn": turn}}))]
        }
        Harness::ClaudeCode => vec![
            said(
                "${session}",
                Value::Null,
                "result",
                json!({"subtype": "error_during_execution", "is_error": true,
                "terminal_reason": "aborted_streaming"}),
            ),
            said("${session}", Value::Null, "system", json!({"subtype": "session_state_changed", "state": "idle"})),
        ],
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    scenario("fault_self_interrupt", &["R-CAN-6", "R-EVT-2", "R-EVT-3"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let (session, ready) = prepared(rig, &child, harness.with_steps(Place::InMessage, &steps)).await?;
        session.start(&ready, "t-1", text_input("hello")).await?;
        let observed = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        let failure = observed.end()?.failure.as_ref().context("no failure")?;
        let want = (v1::TurnStatus::Failed, v1::FailureCode::HarnessProtocolError);
        assert_eq!((observed.end()?.status(), failure.code()), want, "{failure:?}");
        assert!(failure.message.contains("by itself"), "{failure:?}");
        Ok(())
    });
}

/// Claude Code ends a native turn with a `result` and is idle then; what came last counts, and neither of them is an end without the other.
#[test]
fn an_idle_state_ends_a_turn_with_its_last_result_only() {
    let harness = Harness::ClaudeCode;
    let result = |more: Value| said("${session}", Value::Null, "result", more);
    let failed = || result(json!({"subtype": "error_during_execution", "is_error": true, "errors": ["not this one"]}));
    let idle =
        || said("${session}", Value::Null, "system", json!({"subtype": "session_state_changed", "state": "idle"}));
    let setup =
        Setup { for_each: false, ..Setup::child_of(harness) }.only("only Claude Code ends a native turn by two lines");
    scenario("fault_two_ends", &["R-EVT-2", "R-EVT-3", "R-CAN-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let twice = harness.with_steps(Place::BeforeEnd, &[failed(), failed()]);
        let (session, ready) = prepared(rig, &child, twice).await?;
        session.start(&ready, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
        assert!(rig.prepare(&session, rig.configuration(functions())).await?.reused);
        session.release(true).await?;
        // Idle in the middle: nothing more would come of it.
        let (session, ready) = prepared(rig, &child, harness.with_steps(Place::InMessage, &[idle()])).await?;
        session.start(&ready, "t-1", text_input("hello")).await?;
        let observed = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        let failure = observed.end()?.failure.as_ref().context("no failure")?;
        assert_eq!(failure.code(), v1::FailureCode::HarnessProtocolError, "{failure:?}");
        assert!(failure.message.contains("told no end"), "{failure:?}");
        // Another conversation than the one that was asked for (R-PRE-4).
        let other = said("foreign", Value::Null, "system", json!({"subtype": "init", "tools": []}));
        let (session, ready) = prepared(rig, &child, harness.with_steps(Place::InTurn, &[other])).await?;
        session.start(&ready, "t-1", text_input("hello")).await?;
        let observed = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        let failure = observed.end()?.failure.as_ref().context("no failure")?;
        assert_eq!(failure.code(), v1::FailureCode::HarnessProtocolError, "{failure:?}");
        assert!(failure.message.contains("another conversation"), "{failure:?}");
        bystander.undisturbed(rig).await
    });
}
