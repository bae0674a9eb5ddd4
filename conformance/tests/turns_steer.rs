//! Inputs that are added to a Turn that runs: what the model reads of them and when, what becomes of what it was saying, and the one outcome
//! that each has (R-STE-1 to R-STE-3).

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, RED_PNG, RED_PNG_URL, Rig, Setup, function, refused, scenario, text_result};
use proto::client::{Session, TurnEvents, text_input};
use proto::v1::event::Kind;
use proto::v1::{self, DiscardReason, InputEvidence, InputPhase, Reason};

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(
    an_input_comes_into_the_answer_and_the_model_reads_it,
    an_input_waits_for_the_call_that_is_open,
    inputs_are_read_in_their_order_also_those_that_come_with_the_start,
    an_image_may_be_added_too,
    a_cancel_refuses_what_was_not_read,
    a_cancel_in_the_middle_of_an_answer_withdraws_what_waits_for_its_end,
    sixteen_inputs_may_wait_and_no_more
);

/// A stream that breaks off for an input.
const STREAM: &str = r#"[
    {"match": "think", "play": [{"text": {"chunks": ["half ", "a thought"], "open": true}}, {"gate": "never"}]}]"#;

/// A stream that goes on for all of an input.
const WHOLE_STREAM: &str = r#"[
    {"match": "think", "play": [{"text": {"chunks": ["half ", "a thought"]}}, {"gate": "go"}, {"complete": {"usage": {"input": 70, "cached": 30, "output": 12, "reasoning": 0}}}]}]"#;

fn an_input_comes_into_the_answer_and_the_model_reads_it(harness: Harness) {
    let rules = ["R-STE-1", "R-STE-2", "R-EVT-2", "R-API-6"];
    scenario("steer_stream", &rules, steering(harness), async |rig| {
        // Codex breaks its answer off, Claude Code reads the input behind it, in the same Turn.
        let breaks_off = harness == Harness::Codex;
        rig.provider.script(if breaks_off { STREAM } else { WHOLE_STREAM })?;
        rig.provider.script(
            r#"[{"match": "turn left", "play": [{"text": {"chunks": ["Left it is."]}}, {"complete": {"usage": {"input": 90, "cached": 80, "output": 7, "reasoning": 0}}}]}]"#,
        )?;
        let session = rig.session().await?;
        let (mut events, mut seen) = streaming(rig, &session).await?;
        let answer = session.steer("t-1", "i-1", text_input("turn left")).await?;
        assert!(!answer.duplicate);
        let input = answer.input.context("no input")?;
        assert!(matches!(input.phase(), InputPhase::Written | InputPhase::Accepted), "{input:?}");
        rig.provider.open_gate("go");
        let accepted = seen.until(&mut events, accepted).await?;
        assert_eq!((&*accepted.input_id, accepted.evidence()), ("i-1", InputEvidence::Consumed));
        assert!(!accepted.native_id.is_empty());
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let (said, end): (&[_], _) = match harness {
            Harness::Codex => (&["Left it is."], "message_discarded"),
            Harness::ClaudeCode => (&["half a thought", "Left it is."], "message_completed"),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        assert_eq!(seen.messages(), said);
        assert_eq!(discards(&seen), [DiscardReason::Steered].repeat(usize::from(breaks_off)));
        let story = seen.story();
        let place = |name: &str| story.iter().position(|kind| *kind == name);
        assert!(!breaks_off || place("input_written") < place(end), "{story:?}");
        assert!(place(end) < place("input_accepted"), "{story:?}");

        let requests = rig.provider.model_requests();
        assert_eq!(requests.len(), 2, "one request more, in the same Turn");
        assert!(requests[1].body.contains("turn left"), "{}", requests[1].body);
        assert_eq!(requests[1].body.contains("half a thought"), !breaks_off);
        // What every request of the Turn took is counted, also where each was a native turn of its own.
        let total = if breaks_off { 90 + 7 } else { 70 + 12 + 90 + 7 };
        assert_eq!(seen.end()?.usage.and_then(|usage| usage.total_tokens), Some(total));
        let turn = session.turn("t-1").await?;
        assert_eq!(phases(&turn), [("i-1", InputPhase::Accepted)]);
        assert_eq!(turn.inputs[0].evidence(), InputEvidence::Consumed);
        // It is known for good, and its id stands for no other.
        let again = session.steer("t-1", "i-1", text_input("turn left")).await?;
        assert_eq!((again.duplicate, again.input), (true, Some(turn.inputs[0].clone())));
        refused(session.steer("t-1", "i-1", text_input("turn right")).await, Reason::InputConflict)?;
        refused(session.steer("t-1", "i-2", text_input("too late")).await, Reason::TurnEnded)?;
        refused(session.steer("t-2", "i-1", text_input("no such Turn")).await, Reason::NotFound)?;
        says_nothing_of(rig, &session, "too late").await
    });
}

fn an_input_waits_for_the_call_that_is_open(harness: Harness) {
    scenario("steer_call", &["R-STE-1", "R-STE-2", "R-FN-6"], steering(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
                {"match": "turn left", "play": [{"text": {"chunks": ["Left, and 42."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration, "t-1", "look it up").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        let answer = session.steer("t-1", "i-1", text_input("turn left")).await?;
        assert_eq!(answer.input.map(|input| input.phase()), Some(InputPhase::Written));
        // The call is still the one thing that the Turn waits for.
        assert_eq!(session.turn("t-1").await?.phase(), v1::TurnPhase::RequiresAction);
        session.submit(vec![text_result("t-1", "c1", "the answer is 42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["Left, and 42."]);
        let requests = rig.provider.model_requests();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[1].output("c1"), Some("the answer is 42".into()));
        assert!(requests[1].body.contains("turn left"));
        assert_eq!(outcomes(&seen), [("i-1", "accepted")]);
        assert_eq!(discards(&seen), []);
        Ok(())
    });
}

fn inputs_are_read_in_their_order_also_those_that_come_with_the_start(harness: Harness) {
    scenario("steer_order", &["R-STE-1", "R-STE-2", "R-EVT-2"], steering(harness), async |rig| {
        rig.provider.script(
            r#"[{"match": "take plums", "play": [{"text": {"chunks": ["All read."]}}]},
                {"match": "think", "always": true, "play": [{"text": {"chunks": ["hm"]}}, {"gate": "go"}]}]"#,
        )?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        session.start(&ready, "t-1", text_input("think")).await?;
        // Nothing of the Turn was seen yet.
        for (id, text) in [("i-1", "take apples"), ("i-2", "take pears"), ("i-3", "take plums")] {
            let answer = session.steer("t-1", id, text_input(text)).await?;
            assert_ne!(answer.input.map(|input| input.phase()), Some(InputPhase::Received));
        }
        if harness == Harness::ClaudeCode {
            rig.provider.open_gate("go");
        }
        let seen = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        seen.completed()?;
        assert_eq!(seen.messages().last(), Some(&"All read."));
        assert_eq!(outcomes(&seen), [("i-1", "accepted"), ("i-2", "accepted"), ("i-3", "accepted")]);
        let last = rig.provider.model_requests().pop().context("no request")?.body;
        let place = |text: &str| last.find(text);
        assert!(place("take apples").is_some() && place("take apples") < place("take pears"), "{last}");
        assert!(place("take pears") < place("take plums"), "{last}");
        Ok(())
    });
}

#[test]
fn a_message_that_is_finished_stays_when_an_input_comes() {
    let setup = Setup::outer().only("Codex breaks an answer off for an input, Claude Code ends it first");
    scenario("steer_finished_message", &["R-STE-2", "R-EVT-2"], setup, async |rig| {
        rig.provider.script(
            r#"[{"match": "turn left", "play": [{"text": {"chunks": ["Left."]}}]},
                {"play": [{"text": {"chunks": ["A whole thought."]}},
                          {"text": {"chunks": ["And an"], "open": true}}, {"gate": "never"}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "think").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageCompleted(_)).then_some(())).await?;
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        session.steer("t-1", "i-1", text_input("turn left")).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["A whole thought.", "Left."]);
        assert_eq!(discards(&seen), [DiscardReason::Steered]);
        let requests = rig.provider.model_requests();
        assert!(requests[1].body.contains("A whole thought.") && !requests[1].body.contains("And an"));
        Ok(())
    });
}

fn a_cancel_refuses_what_was_not_read(harness: Harness) {
    let rules = ["R-STE-1", "R-STE-2", "R-STE-3", "R-CAN-1"];
    scenario("steer_cancel", &rules, steering(harness).patient(), async |rig| {
        rig.provider.script(r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}]"#)?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration.clone(), "t-1", "look it up").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        session.steer("t-1", "i-1", text_input("turn left")).await?;
        let answer = session.cancel("t-1", None).await?;
        let turn = answer.turn.context("no Turn")?;
        assert_eq!(phases(&turn), [("i-1", InputPhase::Refused)]);
        assert_eq!(turn.inputs[0].refusal(), Reason::TurnEnded);
        let seen = seen.to_the_end(&mut events).await?;
        assert_eq!(seen.end()?.status(), v1::TurnStatus::Cancelled);
        assert_eq!(outcomes(&seen), [("i-1", "TURN_ENDED")]);
        refused(session.steer("t-1", "i-2", text_input("too late")).await, Reason::TurnCancelled)?;
        let again = session.steer("t-1", "i-1", text_input("turn left")).await?;
        assert_eq!((again.duplicate, again.input), (true, Some(turn.inputs[0].clone())));
        // Whatever the Harness had queued is gone with the Turn.
        let ready = rig.prepare_again(&session, configuration).await?;
        let next = rig.turn_with(&session, &ready, "t-2", "go on").await?;
        next.completed()?;
        assert!(rig.provider.model_requests().iter().all(|request| !request.body.contains("turn left")));
        Ok(())
    });
}

fn an_image_may_be_added_too(harness: Harness) {
    let setup = steering(harness).needing(v1::Capability::MessageImages);
    scenario("steer_image", &["R-STE-1", "R-STA-1"], setup, async |rig| {
        let (session, mut events, seen) =
            rig.waiting_turn(vec![function("lookup", r#"{"type":"object"}"#)], &[("lookup", "c1")]).await?;
        rig.provider
            .script(r#"[{"match": "turn where this points", "play": [{"text": {"chunks": ["Left it is."]}}]}]"#)?;
        let image = v1::Image { media_type: "image/png".into(), data: RED_PNG.to_vec() };
        let mut input = text_input("turn where this points");
        input.push(v1::InputPart { part: Some(v1::input_part::Part::Image(image)) });
        session.steer("t-1", "i-1", input).await?;
        session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!((seen.messages().last(), outcomes(&seen)), (Some(&"Left it is."), vec![("i-1", "accepted")]));
        let requests = rig.provider.model_requests();
        let data = RED_PNG_URL.rsplit(',').next().unwrap_or_default();
        assert_eq!((requests.len(), requests[1].body.matches(data).count()), (2, 1), "{}", requests[1].body);
        Ok(())
    });
}

fn a_cancel_in_the_middle_of_an_answer_withdraws_what_waits_for_its_end(harness: Harness) {
    let rules = ["R-STE-2", "R-STE-3", "R-CAN-1", "R-CAN-3"];
    scenario("steer_cancel_stream", &rules, steering(harness).patient(), async |rig| {
        rig.provider.script(STREAM)?;
        rig.provider.script(r#"[{"match": "turn left", "play": ["hang"]}]"#)?;
        let session = rig.session().await?;
        let (mut events, seen) = streaming(rig, &session).await?;
        session.steer("t-1", "i-1", text_input("turn left")).await?;
        session.cancel("t-1", None).await?;
        let seen = seen.to_the_end(&mut events).await?;
        assert_eq!(seen.end()?.status(), v1::TurnStatus::Cancelled);
        let [(_, outcome)] = outcomes(&seen)[..] else { anyhow::bail!("{:?}", seen.story()) };
        // Codex breaks its answer off and may have read it, Claude Code has not.
        let may_be: &[_] = match harness {
            Harness::Codex => &["accepted", "TURN_ENDED"],
            Harness::ClaudeCode => &["TURN_ENDED"],
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        assert!(may_be.contains(&outcome), "{outcome}");
        rig.provider.reset();
        let ready = rig.prepare_again(&session, rig.configuration(Vec::new())).await?;
        rig.turn_with(&session, &ready, "t-2", "go on").await?.completed()?;
        // What was on its way to the provider when its Turn was cancelled may come late.
        let mut requests = rig.provider.model_requests();
        requests.retain(|request| request.user_texts().iter().any(|text| text == "go on"));
        assert_eq!((requests.len(), requests[0].body.contains("turn left")), (1, outcome == "accepted"));
        Ok(())
    });
}

fn sixteen_inputs_may_wait_and_no_more(harness: Harness) {
    scenario("steer_bounds", &["R-STE-1", "R-API-4", "R-API-6"], steering(harness), async |rig| {
        rig.provider.script(r#"[{"match": "look it up", "play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}]"#)?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration, "t-1", "look it up").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        for n in 0..16 {
            session.steer("t-1", &format!("i-{n}"), text_input(format!("input {n}"))).await?;
        }
        let client = rig.client().await?;
        let request = |id: &str| v1::SteerTurnRequest {
            assignment: Some(session.assignment().clone()),
            turn_id: "t-1".into(),
            input_id: id.into(),
            input: text_input("one more"),
        };
        let busy = refused(client.steer_turn(request("i-16")).await, Reason::InputBusy)?;
        assert!(busy.retry_after.is_some(), "{busy:?}");
        // What is known is answered whatever waits.
        assert!(session.steer("t-1", "i-3", text_input("input 3")).await?.duplicate);
        refused(session.steer("t-1", "i-3", text_input("another")).await, Reason::InputConflict)?;
        session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(outcomes(&seen).len(), 16);
        assert!(outcomes(&seen).iter().all(|(_, outcome)| *outcome == "accepted"), "{:?}", outcomes(&seen));
        assert_eq!(rig.provider.model_requests().len(), 2, "all of them stand in one request");
        for (field, wrong) in [
            ("input_id", v1::SteerTurnRequest { input_id: "a/b".into(), ..request("x") }),
            ("turn_id", v1::SteerTurnRequest { turn_id: String::new(), ..request("x") }),
            ("input", v1::SteerTurnRequest { input: Vec::new(), ..request("x") }),
            ("input[0].text", v1::SteerTurnRequest { input: text_input(""), ..request("x") }),
        ] {
            let refusal = refused(client.steer_turn(wrong).await, Reason::InvalidRequest)?;
            assert_eq!(refusal.fields.first().map(|wrong| &*wrong.path), Some(field), "{refusal:?}");
        }
        Ok(())
    });
}

/// A Harness that reads inputs while it works.
fn steering(harness: Harness) -> Setup {
    Setup::outer().of(harness).needing(v1::Capability::Steering)
}

async fn streaming(rig: &Rig, session: &Session) -> anyhow::Result<(TurnEvents, Observed)> {
    let mut events = rig.start_turn(session, rig.configuration(Vec::new()), "t-1", "think").await?;
    let mut seen = Observed::default();
    seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
    Ok((events, seen))
}

/// The next Turn of the Session, whose request must not hold this text.
async fn says_nothing_of(rig: &Rig, session: &Session, text: &str) -> anyhow::Result<()> {
    let next = rig.whole_turn(session, "t-next", "go on").await?;
    next.completed()?;
    let request = rig.provider.model_requests().pop().context("no request")?;
    anyhow::ensure!(!request.body.contains(text), "{text:?} is in {}", request.body);
    Ok(())
}

fn accepted(kind: &Kind) -> Option<v1::InputAccepted> {
    if let Kind::InputAccepted(accepted) = kind { Some(accepted.clone()) } else { None }
}

fn discards(seen: &Observed) -> Vec<DiscardReason> {
    let discarded = |kind: &Kind| if let Kind::MessageDiscarded(e) = kind { Some(e.reason()) } else { None };
    seen.kinds().filter_map(discarded).collect()
}

/// What the events tell of each input's end, in order.
fn outcomes(seen: &Observed) -> Vec<(&str, &'static str)> {
    seen.kinds().filter_map(outcome).collect()
}

fn outcome(kind: &Kind) -> Option<(&str, &'static str)> {
    match kind {
        Kind::InputAccepted(e) => Some((&e.input_id, "accepted")),
        Kind::InputRefused(e) => Some((&e.input_id, e.reason().as_str_name().trim_start_matches("REASON_"))),
        Kind::InputOutcomeUnknown(e) => Some((&e.input_id, "unknown")),
        _ => None,
    }
}

fn phases(turn: &v1::Turn) -> Vec<(&str, InputPhase)> {
    turn.inputs.iter().map(|input| (&*input.input_id, input.phase())).collect()
}
