//! What becomes of messages when an answer breaks off or is cut, and what the end of a Turn says of its answer.

use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Setup, scenario};
use proto::v1::event::Kind;
use proto::v1::{self, DiscardReason, FailureCode, Finish, TurnStatus};

for_each_harness!(
    a_message_that_was_complete_before_its_answer_broke_off_stays,
    a_message_that_is_open_when_the_turn_fails_is_void
);

/// Why an end is looked at for one Harness alone.
const ENDING: &str = "what a provider's end of an answer leads to is each Harness's own";

fn a_message_that_was_complete_before_its_answer_broke_off_stays(harness: Harness) {
    scenario("message_kept", &["R-EVT-2", "R-EVT-10"], Setup::outer().of(harness), async |rig| {
        let step = |said: &str| {
            format!(
                r#"{{"play": [{{"text": {{"chunks": ["{said}"], "id": "msg_1"}}}}, {{"gate": "{said}"}}, "drop"]}}"#
            )
        };
        // Claude Code has one try less where there was something to go on from.
        let said = match harness {
            Harness::Codex => &["one", "two", "three", "four", "five"][..],
            Harness::ClaudeCode => &["one", "two", "three", "four"],
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        let steps: Vec<_> = said.iter().copied().map(step).collect();
        rig.provider.script(&format!("[{}]", steps.join(",")))?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "talk").await?;
        let mut seen = Observed::default();
        for said in said {
            // It breaks off once the message is there.
            seen.until(&mut events, |kind| matches!(kind, Kind::MessageCompleted(_)).then_some(())).await?;
            rig.provider.open_gate(said);
        }
        let seen = seen.to_the_end(&mut events).await?;
        // Each try says its own, and the next one is told what was said: nothing is taken back.
        assert_eq!(seen.messages(), said);
        assert_eq!(discarded(&seen), []);
        assert_eq!(seen.kinds().filter(|kind| matches!(kind, Kind::ProviderRetry(_))).count(), said.len() - 1);
        let end = seen.end()?;
        assert_eq!((end.status(), failure(end)), (TurnStatus::Failed, Some(FailureCode::ConnectionFailed)));
        let last = &rig.provider.model_requests()[said.len() - 1].body;
        for said in &said[..said.len() - 1] {
            assert!(last.contains(&format!(r#""text":"{said}""#)), "{said} is not in {last}");
        }
        let items: std::collections::BTreeSet<_> = seen.kinds().filter_map(started).collect();
        assert_eq!(items.len(), said.len(), "one id for each, although the provider may have one for all: {items:?}");
        Ok(())
    });
}

fn a_message_that_is_open_when_the_turn_fails_is_void(harness: Harness) {
    scenario("message_void", &["R-EVT-2", "R-EVT-3", "R-EVT-5"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(&format!(
            r#"[{{"times": {}, "play": [{{"text": {{"chunks": ["half-4d1f ", "thought"], "open": true}}}}, {{"failed": {{"code": "invalid_prompt", "message": "No."}}}}]}}]"#,
            // Claude Code asks three times more, for the answer in one piece.
            match harness {
                Harness::Codex => 1,
                Harness::ClaudeCode => 4,
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
},
        ))?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "think").await?;
        let end = seen.end()?;
        assert_eq!((seen.messages(), seen.deltas().as_str()), (vec![], "half-4d1f thought"));
        assert_eq!(discarded(&seen).len(), 1);
        assert_eq!((end.status(), failure(end)), (TurnStatus::Failed, Some(FailureCode::InvalidRequest)));
        // It is in no history either. (Claude Code shows the model the subjects of commits: a plain word may stand there.)
        rig.whole_turn(&session, "t-2", "again").await?.completed()?;
        let next = rig.provider.model_requests().pop().map(|request| request.body).unwrap_or_default();
        assert!(next.contains("again") && !next.contains("half-4d1f"), "{next}");
        Ok(())
    });
}

#[test]
fn an_answer_without_any_output_is_no_output() {
    scenario("finish_no_output", &["R-EVT-3"], Setup::outer().only(ENDING), async |rig| {
        let refusal = r#"{"item": {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}}"#;
        let cases = [
            ("refusal", refusal, Some(Finish::NoOutput)),
            ("nothing", "\"headers\"", Some(Finish::NoOutput)),
            ("thought", r#"{"reasoning": {"summary": ["Hm."]}}"#, Some(Finish::NoOutput)),
            // How an answer ended that is there is told by no field.
            ("text", r#"{"text": {"chunks": ["Yes."]}}"#, None),
            ("empty", r#"{"text": {"chunks": []}}"#, None),
        ];
        let session = rig.session().await?;
        for (name, play, want) in cases {
            rig.provider.script(&format!(r#"[{{"match": "case {name}", "play": [{play}]}}]"#))?;
            let seen = rig.whole_turn(&session, name, &format!("case {name}")).await?;
            seen.completed()?;
            let end = seen.end()?;
            assert_eq!(end.finish.map(|_| end.finish()), want, "{name}");
            assert_eq!(want.is_some(), seen.messages().is_empty(), "{name}");
            assert!(end.usage.is_some(), "{name}: the tokens are counted all the same");
        }
        Ok(())
    });
}

#[test]
fn a_turn_whose_tools_ran_has_an_output() {
    scenario("finish_tools", &["R-EVT-3"], Setup::outer().only(ENDING), async |rig| {
        rig.provider
            .script(r#"[{"play": [{"shell": {"command": "echo done", "yield_ms": 30000}}]}, {"play": ["headers"]}]"#)?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "run").await?;
        seen.completed()?;
        assert_eq!((seen.messages(), seen.end()?.finish), (vec![], None));
        Ok(())
    });
}

#[test]
fn an_answer_that_is_cut_is_a_failure_without_a_word_how() {
    scenario("finish_cut", &["R-EVT-3", "R-EVT-5"], Setup::outer().only(ENDING), async |rig| {
        let cut = |reason: &str| {
            format!(
                r#"{{"play": [{{"text": {{"chunks": ["as far as "]}}}}, {{"incomplete": {{"reason": "{reason}"}}}}]}}"#
            )
        };
        rig.provider.script(&format!("[{}]", cut("max_output_tokens")))?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "talk").await?;
        let end = seen.end()?;
        assert_eq!((end.status(), failure(end)), (TurnStatus::Failed, Some(FailureCode::InvalidRequest)));
        assert_eq!(end.finish, None, "only prose tells it");
        assert_eq!(seen.messages(), ["as far as "], "what was complete stays");
        assert_eq!(rig.provider.model_requests().len(), 1);
        // A filter is tried again by Codex, with a warning of its own to the model.
        rig.provider
            .script(&format!(r#"[{}, {{"play": [{{"text": {{"chunks": ["Better."]}}}}]}}]"#, cut("content_filter")))?;
        let seen = rig.whole_turn(&session, "t-2", "go on").await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["as far as ", "Better."]);
        assert_eq!((seen.end()?.finish, discarded(&seen)), (None, vec![]));
        assert!(rig.provider.model_requests()[2].body.contains("content_filter_guidance"));
        Ok(())
    });
}

fn failure(end: &v1::TurnEnded) -> Option<FailureCode> {
    end.failure.as_ref().map(v1::Failure::code)
}

fn discarded(seen: &Observed) -> Vec<DiscardReason> {
    let reason = |kind: &Kind| if let Kind::MessageDiscarded(of) = kind { Some(of.reason()) } else { None };
    seen.kinds().filter_map(reason).collect()
}

fn started(kind: &Kind) -> Option<&str> {
    if let Kind::MessageStarted(message) = kind { Some(&message.item_id) } else { None }
}
