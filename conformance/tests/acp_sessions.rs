//! Sessions of agents behind ACP: without a workspace, after a restart of the daemon, after its death in the middle of a call, and at their end.

use std::fs;

use anyhow::Context;
use conformance::for_each_acp_agent;
use conformance::rig::{Daemon, Harness, Observed, Rig, Setup, function, nowhere, refusal, scenario, text_result};
use proto::client::text_input;
use proto::v1::event::Kind;
use proto::v1::{self, EndCause, Reason, ReleaseOutcome, TurnStatus};

for_each_acp_agent!(
    without_a_workspace_the_model_has_the_functions_and_nothing_else,
    the_session_goes_on_after_a_restart,
    the_session_goes_on_after_the_death_of_the_daemon_in_a_call,
    a_history_of_another_session_is_not_taken,
    the_home_goes_with_a_release_that_asks_for_it
);

const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}}}"#;

fn without_a_workspace_the_model_has_the_functions_and_nothing_else(harness: Harness) {
    let setup = Setup::outer().of(harness).needing_under(v1::Placement::None, v1::Capability::FunctionTools);
    let rules = ["R-CTL-2", "R-CTL-4", "R-FN-1", "R-FN-6", "R-PRE-4", "R-ASG-4"];
    scenario("acp_nowhere", &rules, setup, async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["I look."]}}, {"calls": [
                    {"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"},
                    {"name": "lookup", "call_id": "c2", "arguments": "{\"q\":\"b\"}"}]}]},
                {"play": [{"text": {"chunks": ["Found."]}}]},
                {"play": [{"shell": {"command": "touch was-here", "yield_ms": 30000}}]},
                {"always": true, "play": [{"text": {"chunks": ["There is no shell."]}}]}]"#,
        )?;
        let session = rig.session_nowhere().await?;
        let configuration = || nowhere(rig.configuration(vec![function("lookup", SCHEMA)]));
        let mut events = rig.start_turn(&session, configuration(), "t-1", "look it up").await?;
        let mut seen = Observed::default();
        // Side by side.
        let calls = [seen.call(&mut events).await?.call_id, seen.call(&mut events).await?.call_id];
        session.submit(calls.iter().map(|id| text_result("t-1", id, "42")).collect()).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["I look.", "Found."]);
        let applied = seen.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_))).count();
        assert_eq!(applied, 2);
        for request in rig.provider.model_requests() {
            let tools = request.tools();
            // MiniMax Code adds what asks for tasks of its own, which nothing can begin.
            let own: Vec<_> = tools.iter().filter(|tool| !tool.starts_with("task_")).collect();
            assert_eq!(own.len(), 1, "{tools:?}");
            assert!(own[0].ends_with("lookup"), "{tools:?}");
        }
        // Nor does a model that asks all the same reach this machine.
        let ready = rig.prepare(&session, configuration()).await?;
        rig.turn_with(&session, &ready, "t-2", "touch it").await?.completed()?;
        assert_eq!(named_so(rig.place().root(), "was-here")?, 0);
        // The history goes on in another process, and goes with the home.
        rig.daemon.terminate().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let configuration = nowhere(rig.configuration(vec![function("lookup", SCHEMA)]));
        let ready = rig.resume(&session, configuration, &seen.native_session()?).await?;
        rig.turn_with(&session, &ready, "t-3", "go on").await?.completed()?;
        let last = rig.provider.model_requests().pop().context("no request")?;
        assert!(last.body.contains("look it up"), "{}", last.body);
        let released = session.release(true).await?;
        assert_eq!((released.outcome(), released.home_removed), (ReleaseOutcome::Confirmed, true));
        assert_eq!(homes(rig)?, 0);
        Ok(())
    });
}

/// How many files below a folder have this name.
fn named_so(folder: &std::path::Path, name: &str) -> anyhow::Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        found += usize::from(entry.file_name() == name);
        if entry.file_type()?.is_dir() {
            found += named_so(&entry.path(), name)?;
        }
    }
    Ok(found)
}

fn the_session_goes_on_after_a_restart(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::SessionResume);
    scenario("acp_restart", &["R-PRE-2", "R-PRE-4", "R-DUR-1"], setup, async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "the word is heron").await?;
        seen.completed()?;
        let native = seen.native_session()?;
        rig.daemon.terminate().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        // Without its history it is not gone on with.
        refusal(session.prepare(rig.configuration(Vec::new()), Vec::new()).await, Reason::NativeHistoryUnavailable);
        let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
        let seen = rig.turn_with(&session, &ready, "t-2", "what was the word").await?;
        seen.completed()?;
        assert_eq!(seen.native_session()?, native);
        let body = rig.provider.model_requests().pop().context("no request")?.body;
        assert!(body.contains("heron") && body.contains("what was the word"), "{body}");
        // A replay is told to nobody.
        assert_eq!(seen.messages().len(), 1, "{:?}", seen.story());
        Ok(())
    });
}

fn the_session_goes_on_after_the_death_of_the_daemon_in_a_call(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::SessionResume);
    scenario("acp_daemon_killed", &["R-DUR-2", "R-FN-5", "R-PRE-4", "R-CAN-4"], setup, async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["Hello."]}}]},
                {"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"}]}]},
                {"always": true, "play": [{"text": {"chunks": ["I go on."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let configuration = || rig.configuration(vec![function("lookup", SCHEMA)]);
        let ready = rig.prepare(&session, configuration()).await?;
        let first = rig.turn_with(&session, &ready, "t-1", "hello").await?;
        let native = first.native_session()?;
        let ready = rig.prepare(&session, configuration()).await?;
        session.start(&ready, "t-2", text_input("look it up")).await?;
        let (mut events, mut seen) = (session.turn_events("t-2"), Observed::default());
        let call = seen.call(&mut events).await?;
        let family = rig.family()?;
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let now = rig.family()?;
        let left: Vec<_> = family.iter().filter(|one| one.runs_in(&now)).collect();
        assert!(left.is_empty(), "{left:#?}");
        let ended = session.turn("t-2").await?.ended.context("it goes on")?;
        assert_eq!((ended.status(), ended.cause()), (TurnStatus::Unknown, EndCause::ExecutionLost), "{ended:?}");
        let late = session.submit(vec![text_result("t-2", &call.call_id, "42")]).await;
        refusal(late, Reason::CallAbandoned);
        let ready = rig.resume(&session, rig.configuration(vec![function("lookup", SCHEMA)]), &native).await?;
        let seen = rig.turn_with(&session, &ready, "t-3", "go on").await?;
        seen.completed()?;
        assert_eq!((seen.native_session()?, seen.messages()), (native, vec!["I go on."]));
        // The call was made once.
        assert!(!seen.kinds().any(|kind| matches!(kind, Kind::FunctionCall(_))));
        Ok(())
    });
}

fn a_history_of_another_session_is_not_taken(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::SessionResume);
    scenario("acp_foreign_history", &["R-PRE-4"], setup, async |rig| {
        let one = rig.session().await?;
        rig.whole_turn(&one, "t-1", "hello").await?.completed()?;
        let native = one.turn("t-1").await?.native.context("it never began")?.session_id;
        rig.daemon.terminate().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let refused = rig.resume(&one, rig.configuration(Vec::new()), "ses_of_somebody_else").await;
        refusal(refused, Reason::NativeHistoryUnavailable).with("history", "foreign");
        // What the home itself says of its conversation: that of somebody else, of another Harness, nothing that can be read, nothing.
        let record = record(rig)?;
        let text = fs::read_to_string(&record)?;
        let cases = [
            (Some(text.replace(&native, "ses_of_somebody_else")), "foreign"),
            (Some(text.replace(harness.kind(), "another")), "missing"),
            (Some(text[..text.len() / 2].to_owned()), "corrupt"),
            (None, "missing"),
        ];
        for (case, why) in cases {
            match &case {
                Some(text) => fs::write(&record, text)?,
                None => fs::remove_file(&record)?,
            }
            let refused = rig.resume(&one, rig.configuration(Vec::new()), &native).await;
            refusal(refused, Reason::NativeHistoryUnavailable).with("history", why);
        }
        fs::write(&record, text)?;
        let ready = rig.resume(&one, rig.configuration(Vec::new()), &native).await?;
        rig.turn_with(&one, &ready, "t-2", "go on").await?.completed()
    });
}

fn the_home_goes_with_a_release_that_asks_for_it(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::HomeRemoval);
    scenario("acp_home", &["R-ASG-4"], setup, async |rig| {
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        fs::write(rig.workspace().join("kept"), "")?;
        let released = session.release(true).await?;
        assert_eq!((released.outcome(), released.home_removed), (ReleaseOutcome::Confirmed, true));
        assert_eq!(homes(rig)?, 0);
        assert!(rig.workspace().join("kept").exists());
        Ok(())
    });
}

/// Where the home of the one Session says which conversation it has.
fn record(rig: &Rig) -> anyhow::Result<std::path::PathBuf> {
    let sessions = fs::read_dir(rig.place().state().join("sessions"))?;
    let records = sessions.filter_map(Result::ok).map(|entry| entry.path().join("home/acp-session.json"));
    records.into_iter().find(|path| path.exists()).context("no home has a record")
}

/// How many Sessions have a folder in the state of the daemon.
fn homes(rig: &Rig) -> anyhow::Result<usize> {
    let sessions = fs::read_dir(rig.place().state().join("sessions"))?;
    let with_home = sessions.filter_map(Result::ok).filter(|entry| entry.path().join("home").exists());
    Ok(with_home.count())
}
