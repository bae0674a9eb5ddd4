//! What a model says: text, reasoning, usage, one Executor for several Turns, known and unknown models.

use conformance::rig::{Harness, MODEL_KEY, Observed, Rig, Setup, scenario};
use conformance::{for_each_harness, for_every_harness};
use proto::client::{Session, text_input};
use proto::v1;
use proto::v1::event::Kind;

for_every_harness!(a_model_that_nobody_knows_works);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(
    each_block_is_an_item_of_its_own,
    a_text_streams_completes_and_is_counted,
    the_next_turn_runs_on_the_same_executor_with_its_own_usage,
    reasoning_comes_as_summary_and_as_raw_text
);

fn a_text_streams_completes_and_is_counted(harness: Harness) {
    scenario("text_streams", &["R-EVT-1", "R-EVT-2", "R-EVT-3", "R-EVT-4"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [
                {"text": {"chunks": ["Hel", "lo ", "wörld"], "phase": "final_answer", "id": "msg_1"}},
                {"complete": {"usage": {"input": 70, "cached": 30, "output": 12, "reasoning": 2}}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(
            seen.story(),
            ["turn_started", "message_started", "message_delta", "message_completed", "usage", "turn_ended"]
        );
        let deltas: Vec<_> = seen.kinds().filter_map(delta).collect();
        assert_eq!(deltas, ["Hel", "lo ", "wörld"]);
        assert_eq!(seen.messages(), ["Hello wörld"]);
        for kind in seen.kinds() {
            match kind {
                // Blocks of the Messages API have neither an id of their own nor a phase.
                Kind::MessageStarted(message) if harness == Harness::Codex => assert_eq!(message.native_id, "msg_1"),
                Kind::MessageCompleted(message) if harness == Harness::Codex => {
                    assert_eq!(message.phase(), v1::MessagePhase::FinalAnswer);
                }
                _ => {}
            }
        }
        let want = usage(harness, 70, 30, 12, 2);
        assert_eq!(seen.end()?.usage, Some(want));
        // Claude Code does not say when.
        assert_eq!(seen.end()?.native_completed_at.is_some(), harness == Harness::Codex);

        let turn = session.turn("t-1").await?;
        assert_eq!(turn.phase(), v1::TurnPhase::Ended);
        assert_eq!((turn.ended.as_ref(), turn.usage), (Some(seen.end()?), Some(want)));
        assert_eq!(turn.last_sequence, seen.events.len() as u64);
        assert_eq!((turn.cancel_requested, turn.required_actions.len()), (false, 0));
        let Some(Kind::TurnStarted(started)) = seen.kinds().next() else { anyhow::bail!("no start") };
        assert_eq!(turn.native, started.native);

        let requests = rig.provider.model_requests();
        assert_eq!(requests.len(), 1);
        assert_eq!((requests[0].key(), &*requests[0].model()), (Some(MODEL_KEY), harness.model()));
        Ok(())
    });
}

fn the_next_turn_runs_on_the_same_executor_with_its_own_usage(harness: Harness) {
    scenario("text_next_turn", &["R-PRE-2", "R-EVT-4", "R-STA-1"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["first answer"]}}, {"complete": {"usage": {"input": 70, "cached": 30, "output": 12, "reasoning": 2}}}]},
                {"play": [{"text": {"chunks": ["second answer"]}}, {"complete": {"usage": {"input": 90, "cached": 80, "output": 7, "reasoning": 1}}}]}]"#,
        )?;
        let session = rig.session().await?;
        let (first, one) = turn(rig, &session, "t-1", "first question").await?;
        let (second, two) = turn(rig, &session, "t-2", "second question").await?;
        assert_eq!((first.reused, second.reused), (false, true));
        assert_eq!(first.executor_id, second.executor_id);
        assert_ne!(first.handle, second.handle);
        assert_eq!(one.end()?.usage, Some(usage(harness, 70, 30, 12, 2)));
        assert_eq!(two.end()?.usage, Some(usage(harness, 90, 80, 7, 1)));
        assert_eq!(two.messages(), ["second answer"]);
        let thread = |seen: &Observed| match seen.kinds().next() {
            Some(Kind::TurnStarted(started)) => started.native.clone().unwrap_or_default(),
            other => panic!("{other:?}"),
        };
        assert_eq!(thread(&one).session_id, thread(&two).session_id);
        assert_ne!(thread(&one).turn_id, thread(&two).turn_id);
        let body = &rig.provider.model_requests()[1].body;
        for text in ["first question", "first answer", "second question"] {
            assert!(body.contains(text), "{text} is not in the history: {body}");
        }
        // The one thread is one process.
        assert_eq!(rig.harnesses()?.len(), 1, "{:#?}", rig.family()?);
        Ok(())
    });
}

fn reasoning_comes_as_summary_and_as_raw_text(harness: Harness) {
    scenario("text_reasoning", &["R-EVT-2"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [
                {"reasoning": {"summary": ["They greet me.", "I greet them."], "raw": "A greeting it is."}},
                {"text": {"chunks": ["Hello"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(
            seen.story()[..5],
            ["turn_started", "reasoning_started", "reasoning_delta", "reasoning_completed", "message_started"]
        );
        if harness == Harness::ClaudeCode {
            // Its thinking is one text.
            let told: String = seen.kinds().filter_map(reasoning_delta).map(|delta| delta.text.as_str()).collect();
            assert_eq!(told, "They greet me.\n\nI greet them.");
            return Ok(());
        }
        let texts = |kind: v1::ReasoningText, index| -> String {
            let fits = |delta: &&v1::ReasoningDelta| delta.text_kind() == kind && delta.index == index;
            seen.kinds().filter_map(reasoning_delta).filter(fits).map(|delta| delta.text.as_str()).collect()
        };
        assert_eq!(texts(v1::ReasoningText::Summary, 0), "They greet me.");
        assert_eq!(texts(v1::ReasoningText::Summary, 1), "I greet them.");
        assert_eq!(texts(v1::ReasoningText::Raw, 0), "A greeting it is.");
        let completed = seen.kinds().find_map(|kind| match kind {
            Kind::ReasoningCompleted(reasoning) => Some(reasoning.clone()),
            _ => None,
        });
        let completed = completed.unwrap_or_default();
        assert_eq!(completed.summary, [content("They greet me."), content("I greet them.")]);
        assert_eq!(completed.raw, [content("A greeting it is.")]);
        assert!(!completed.incomplete);
        Ok(())
    });
}

fn each_block_is_an_item_of_its_own(harness: Harness) {
    scenario("text_blocks", &["R-EVT-2", "R-EVT-3"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [
                {"reasoning": {"summary": ["First thought."]}},
                {"text": {"chunks": ["One", "."]}},
                {"reasoning": {"summary": ["Second thought."]}},
                {"text": {"chunks": ["Two."]}}, {"text": {"chunks": [" Three. "]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["One.", "Two.", " Three. "]);
        let items: Vec<_> = seen.story().into_iter().filter(|kind| kind.ends_with("_completed")).collect();
        let (reasoning, message) = ("reasoning_completed", "message_completed");
        assert_eq!(items, [reasoning, message, reasoning, message, message]);
        let mut ids: Vec<_> = seen.kinds().filter_map(message_id).collect();
        ids.dedup();
        assert_eq!(ids.len(), 3, "{ids:?}");
        Ok(())
    });
}

#[test]
fn several_messages_keep_their_phases_and_their_order() {
    let setup = Setup::outer().only("the Messages API has no phases");
    scenario("text_phases", &["R-EVT-2"], setup, async |rig| {
        rig.provider.script(
            r#"[{"play": [
                {"text": {"chunks": ["I look."], "phase": "commentary"}},
                {"text": {"chunks": ["It is so."], "phase": "final_answer"}},
                {"text": {"chunks": ["No phase."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["I look.", "It is so.", "No phase."]);
        let phases: Vec<_> = seen.kinds().filter_map(message).map(|message| message.phase).collect();
        let phase = |phase: v1::MessagePhase| Some(i32::from(phase));
        assert_eq!(phases, [phase(v1::MessagePhase::Commentary), phase(v1::MessagePhase::FinalAnswer), None]);
        Ok(())
    });
}

#[test]
fn an_answer_without_usage_reports_none() {
    let setup = Setup::outer().only("Claude Code makes zeros of counters that are not there");
    scenario("text_without_usage", &["R-EVT-4"], setup, async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["Hello"]}}, {"complete": {"without_usage": true}}]},
                {"play": [{"text": {"chunks": ["Again"]}}, {"complete": {"usage": {"input": 5, "cached": 0, "output": 3, "reasoning": 0}}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(seen.end()?.usage, None, "unknown counters are absent, not zero");
        assert!(!seen.story().contains(&"usage"));
        let seen = rig.whole_turn(&session, "t-2", "hello again").await?;
        assert_eq!(seen.end()?.usage, Some(usage(Harness::Codex, 5, 0, 3, 0)));
        Ok(())
    });
}

fn a_model_that_nobody_knows_works(harness: Harness) {
    scenario("text_unknown_model", &["R-PRE-6", "R-EVT-2"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let mut configuration = rig.configuration(Vec::new());
        configuration.model = "house-model-7b".into();
        configuration.instructions = "Answer in rhyme, says the application.".into();
        let ready = rig.prepare(&session, configuration).await?;
        assert_eq!(rig.provider.requests().len(), 0, "a preparation sends nothing to the model");
        session.start(&ready, "t-1", text_input("hello stranger")).await?;
        let seen = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["hello stranger"]);
        let request = &rig.provider.model_requests()[0];
        assert_eq!(request.model(), "house-model-7b");
        assert!(request.body.contains("Answer in rhyme, says the application."));
        assert!(request.tools().contains(&harness.shell().into()), "{:?}", request.tools());
        Ok(())
    });
}

async fn turn(rig: &Rig, session: &Session, id: &str, prompt: &str) -> anyhow::Result<(v1::Ready, Observed)> {
    let ready = rig.prepare(session, rig.configuration(Vec::new())).await?;
    session.start(&ready, id, text_input(prompt)).await?;
    let seen = Observed::default().to_the_end(&mut session.turn_events(id)).await?;
    seen.completed()?;
    Ok((ready, seen))
}

/// Counters, of which Claude Code does not tell the reasoning apart.
fn usage(harness: Harness, input: u64, cached: u64, output: u64, reasoning: u64) -> v1::Usage {
    v1::Usage {
        input_tokens: Some(input),
        cached_input_tokens: Some(cached),
        output_tokens: Some(output),
        reasoning_output_tokens: Some(reasoning).filter(|_| harness == Harness::Codex),
        total_tokens: Some(input + output),
    }
}

fn content(text: &str) -> v1::Content {
    v1::Content { place: Some(v1::content::Place::Text(text.into())) }
}

fn delta(kind: &Kind) -> Option<&str> {
    if let Kind::MessageDelta(delta) = kind { Some(&delta.text) } else { None }
}

fn message_id(kind: &Kind) -> Option<&str> {
    if let Kind::MessageStarted(message) = kind { Some(&message.item_id) } else { None }
}

fn message(kind: &Kind) -> Option<&v1::MessageCompleted> {
    if let Kind::MessageCompleted(message) = kind { Some(message) } else { None }
}

fn reasoning_delta(kind: &Kind) -> Option<&v1::ReasoningDelta> {
    if let Kind::ReasoningDelta(delta) = kind { Some(delta) } else { None }
}
