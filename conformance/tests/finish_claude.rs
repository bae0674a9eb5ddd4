//! What the end of a Turn of Claude Code says of its answer (R-EVT-3): its `result` has the provider's own reason to stop. An answer that is cut or
//! refused it goes on with by itself, in the same Turn.

use conformance::rig::{Harness, Observed, Setup, scenario};
use proto::v1::{self, FailureCode, Finish, TurnStatus};

/// One way in which answers end.
struct Case {
    name: &'static str,
    /// What the provider does, request by request.
    plays: &'static [&'static str],
    finish: Option<Finish>,
    /// The class of the failure, where the Turn fails.
    failure: Option<FailureCode>,
    messages: &'static [&'static str],
}

const STOP: &str = r#"{"text": {"chunks": ["Yes."]}}"#;
const SEQUENCE: &str = r#"{"text": {"chunks": ["Yes."]}}, {"incomplete": {"reason": "stop_sequence"}}"#;
const CUT: &str = r#"{"text": {"chunks": ["as far as "]}}, {"incomplete": {"reason": "max_output_tokens"}}"#;
const FULL: &str =
    r#"{"text": {"chunks": ["as far as "]}}, {"incomplete": {"reason": "model_context_window_exceeded"}}"#;
const REFUSED: &str = r#"{"text": {"chunks": ["No."]}}, {"incomplete": {"reason": "content_filter"}}"#;
const NOTHING: &str = r#""headers""#;
const THOUGHT: &str = r#"{"reasoning": {"summary": ["Hm."]}}"#;
const TOOL: &str = r#"{"shell": {"command": "echo done"}}"#;

const CASES: &[Case] = &[
    Case { name: "stop", plays: &[STOP], finish: Some(Finish::Stop), failure: None, messages: &["Yes."] },
    Case { name: "sequence", plays: &[SEQUENCE], finish: Some(Finish::Stop), failure: None, messages: &["Yes."] },
    Case {
        name: "cut once",
        plays: &[CUT, STOP],
        finish: Some(Finish::Stop),
        failure: None,
        messages: &["as far as ", "Yes."],
    },
    Case {
        name: "cut always",
        plays: &[CUT; 4],
        finish: Some(Finish::Incomplete),
        failure: Some(FailureCode::InvalidRequest),
        messages: &["as far as "; 4],
    },
    Case {
        name: "full",
        plays: &[FULL; 4],
        finish: Some(Finish::Incomplete),
        failure: Some(FailureCode::ContextLengthExceeded),
        messages: &["as far as "; 4],
    },
    Case { name: "nothing", plays: &[NOTHING; 2], finish: Some(Finish::NoOutput), failure: None, messages: &[] },
    Case { name: "thought", plays: &[THOUGHT; 2], finish: Some(Finish::NoOutput), failure: None, messages: &[] },
    Case { name: "tool", plays: &[TOOL, NOTHING, NOTHING], finish: Some(Finish::Stop), failure: None, messages: &[] },
    Case {
        name: "refused once",
        plays: &[REFUSED, STOP],
        finish: Some(Finish::Stop),
        failure: None,
        messages: &["No.", "Yes."],
    },
    Case {
        name: "refused",
        plays: &[REFUSED; 2],
        finish: Some(Finish::Refused),
        failure: Some(FailureCode::InvalidRequest),
        messages: &["No."; 2],
    },
];

#[test]
fn the_end_of_an_answer_is_told_by_the_providers_own_reason() {
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() };
    let setup = setup.only("what a provider's end of an answer leads to is each Harness's own");
    scenario("finish_claude", &["R-EVT-3", "R-EVT-5"], setup, async |rig| {
        let mut wrong = Vec::new();
        let session = rig.session().await?;
        for (n, Case { name, plays, finish, failure, messages }) in CASES.iter().enumerate() {
            rig.provider.reset();
            let steps: Vec<_> = plays.iter().map(|play| format!(r#"{{"play": [{play}]}}"#)).collect();
            rig.provider.script(&format!("[{}]", steps.join(",")))?;
            let seen = rig.whole_turn(&session, &format!("t-{n}"), "answer").await?;
            let requests = rig.provider.model_requests().len();
            let told = told(&seen)?;
            if (told, &seen.messages()[..], requests) != ((*finish, *failure), messages, plays.len()) {
                wrong.push(format!("{name}: {told:?} {:?} in {requests} requests: {:?}", seen.messages(), seen.end()?));
            }
        }
        anyhow::ensure!(wrong.is_empty(), "{wrong:#?}");
        Ok(())
    });
}

fn told(seen: &Observed) -> anyhow::Result<(Option<Finish>, Option<FailureCode>)> {
    let end = seen.end()?;
    let failure = end.failure.as_ref().map(v1::Failure::code);
    let want = if failure.is_some() { TurnStatus::Failed } else { TurnStatus::Completed };
    anyhow::ensure!(end.status() == want, "{end:?}");
    Ok((end.finish.map(|_| end.finish()), failure))
}
