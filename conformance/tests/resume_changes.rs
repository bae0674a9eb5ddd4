//! What may change when a native history is gone on with: the instructions, the credential, the directory, the bridge's own settings (R-PRE-2,
//! R-PRE-6). The real Harness, and what the model provider receives.

use std::fs;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::provider::Recorded;
use conformance::rig::{Daemon, Harness, Rig, Setup, refusal, scenario};
use proto::client::Session;
use proto::v1::{self, Reason};

for_each_harness!(
    changed_instructions_hold_after_a_resume,
    a_resume_that_failed_leaves_the_instructions_as_they_were,
    instructions_may_begin_with_a_resume,
    the_history_outlives_a_release_and_goes_on_in_another_directory
);

fn instructed(rig: &Rig, instructions: &str) -> v1::ExecutionConfiguration {
    v1::ExecutionConfiguration { instructions: instructions.into(), ..rig.configuration(Vec::new()) }
}

async fn restart(rig: &mut Rig) -> anyhow::Result<()> {
    rig.daemon.terminate().await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    Ok(())
}

/// A Turn of a Session that goes on with its history, and the request that it made.
async fn turn(
    rig: &Rig,
    session: &Session,
    configuration: v1::ExecutionConfiguration,
    (native, turn_id): (&str, &str),
) -> anyhow::Result<Recorded> {
    let ready = rig.resume(session, configuration, native).await?;
    rig.turn_with(session, &ready, turn_id, turn_id).await?.completed()?;
    rig.provider.model_requests().pop().context("no request")
}

/// Our texts above the conversation, in order.
fn instructions(request: &Recorded) -> Vec<String> {
    let told = request.instructions();
    ["Instruction A.", "Instruction B."]
        .into_iter()
        .flat_map(|text| told.match_indices(text).map(|(place, text)| (place, text.to_owned())))
        .collect::<std::collections::BTreeMap<_, _>>()
        .into_values()
        .collect()
}

/// Codex keeps what it was told before in its history, Claude Code is told anew each time.
fn told<'a>(harness: Harness, all: &[&'a str]) -> Vec<&'a str> {
    match harness {
        Harness::Codex => all.to_vec(),
        Harness::ClaudeCode => all.last().copied().into_iter().collect(),
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    }
}

fn changed_instructions_hold_after_a_resume(harness: Harness) {
    scenario(
        "resume_instructions",
        &["R-PRE-6", "R-PRE-2", "R-CTL-1"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let session = rig.session().await?;
            let ready = rig.prepare(&session, instructed(rig, "Instruction A.")).await?;
            let seen = rig.turn_with(&session, &ready, "t-1", "first").await?;
            let native = &seen.native_session()?;
            // While the Executor lives nothing is switched.
            let refused = rig.resume(&session, instructed(rig, "Instruction B."), native).await;
            refusal(refused, Reason::ConfigurationConflict).with("field", "instructions");
            restart(rig).await?;

            let request = turn(rig, &session, instructed(rig, "Instruction B."), (native, "t-2")).await?;
            assert_eq!(instructions(&request), told(harness, &["Instruction A.", "Instruction B."]));
            // Said once: a resume with the same text does not repeat it, used or not.
            restart(rig).await?;
            rig.resume(&session, instructed(rig, "Instruction B."), native).await?;
            restart(rig).await?;
            let request = turn(rig, &session, instructed(rig, "Instruction B."), (native, "t-3")).await?;
            assert_eq!(instructions(&request), told(harness, &["Instruction A.", "Instruction B."]));
            // The first text again, prepared and not used, and then the second one: the last text is the one that holds.
            restart(rig).await?;
            rig.resume(&session, instructed(rig, "Instruction A."), native).await?;
            restart(rig).await?;
            let request = turn(rig, &session, instructed(rig, "Instruction B."), (native, "t-4")).await?;
            assert_eq!(instructions(&request).last().map(String::as_str), Some("Instruction B."));
            // What stands in the history cannot be taken back, and it is not pretended.
            restart(rig).await?;
            if harness == Harness::ClaudeCode {
                let request = turn(rig, &session, instructed(rig, ""), (native, "t-5")).await?;
                assert_eq!(instructions(&request), Vec::<String>::new());
                return Ok(());
            }
            let refused = rig.resume(&session, instructed(rig, ""), native).await;
            refusal(refused, Reason::ConfigurationConflict)
                .at("configuration.instructions")
                .with("field", "instructions");
            rig.only(&[]).await
        },
    );
}

fn a_resume_that_failed_leaves_the_instructions_as_they_were(harness: Harness) {
    scenario(
        "resume_instructions_failed",
        &["R-PRE-6"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let session = rig.session().await?;
            let native = &rig.whole_turn(&session, "t-1", "first").await?.native_session()?;
            let file = rig.place().config();
            let text = fs::read_to_string(&file)?;
            // A start that nothing comes in time for, in place of the rig's own limit.
            let key = text.lines().find(|line| line.starts_with("limits.harness_start_ms")).context("no limit")?;
            fs::write(&file, text.replace(key, "limits.harness_start_ms = 1"))?;
            restart(rig).await?;
            let refused = rig.resume(&session, instructed(rig, "Instruction A."), native).await;
            refusal(refused, Reason::PreparationFailed).with("step", "initialize");
            fs::write(&file, text)?;
            restart(rig).await?;
            let request = turn(rig, &session, instructed(rig, ""), (native, "t-2")).await?;
            assert_eq!(instructions(&request), Vec::<String>::new());
            Ok(())
        },
    );
}

fn instructions_may_begin_with_a_resume(harness: Harness) {
    scenario(
        "resume_first_instructions",
        &["R-PRE-6"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let session = rig.session().await?;
            let seen = rig.whole_turn(&session, "t-1", "first").await?;
            let native = &seen.native_session()?;
            restart(rig).await?;
            let request = turn(rig, &session, instructed(rig, "Instruction A."), (native, "t-2")).await?;
            assert_eq!(instructions(&request), ["Instruction A."]);
            Ok(())
        },
    );
}

#[test]
fn other_settings_of_the_bridge_are_said() {
    scenario(
        "resume_settings",
        &["R-PRE-2", "R-PLC-1"],
        Setup::outer().only("the request of Codex names its sandbox"),
        async |rig| {
            let session = rig.session().await?;
            let native = rig.whole_turn(&session, "t-1", "first").await?.native_session()?;
            let file = rig.place().config();
            let text = fs::read_to_string(&file)?;
            fs::write(&file, text.replace("isolation = \"outer\"", "isolation = \"native\""))?;
            restart(rig).await?;
            let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
            assert!(ready.settings_changed, "{ready:?}");
            rig.turn_with(&session, &ready, "t-2", "second").await?.completed()?;
            let request = rig.provider.model_requests().pop().context("no request")?;
            assert!(request.body.contains("workspace-write"), "the new sandbox is not told");
            // From the first Turn on they are the known ones.
            restart(rig).await?;
            assert!(!rig.resume(&session, rig.configuration(Vec::new()), &native).await?.settings_changed);
            Ok(())
        },
    );
}

fn the_history_outlives_a_release_and_goes_on_in_another_directory(harness: Harness) {
    scenario(
        "resume_release",
        &["R-PRE-4", "R-ASG-3", "R-ASG-4"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let session = rig.session().await?;
            let native = rig.whole_turn(&session, "t-1", "first").await?.native_session()?;
            session.release(false).await?;
            let directory = rig.place().workspace_root().join("elsewhere");
            fs::create_dir(&directory)?;
            let directory = directory.canonicalize()?.to_str().context("not UTF-8")?.to_owned();
            let workspace = v1::Workspace { environment_id: "env-1".into(), directory: directory.clone() };
            let placement = v1::bind_assignment_request::Placement::Workspace(workspace);
            let next = v1::AssignmentRef { assignment_id: "a-2".into(), epoch: 1, ..session.assignment().clone() };
            let next = Session::bind(rig.client().await?, next, placement).await?;
            let configuration = || rig.configuration(Vec::new());
            refusal(next.prepare(configuration(), Vec::new()).await, Reason::NativeHistoryUnavailable);
            let request = turn(rig, &next, configuration(), (&native, "t-2")).await?;
            assert!(request.body.contains("first") && request.body.contains(&directory));
            // With its home the history is gone, whether it is named or not.
            next.release(true).await?;
            let last = v1::AssignmentRef { assignment_id: "a-3".into(), epoch: 1, ..session.assignment().clone() };
            let placement = rig.target(&session).placement.context("no placement")?;
            let last = Session::bind(rig.client().await?, last, placement).await?;
            let refused = rig.resume(&last, configuration(), &native).await;
            refusal(refused, Reason::NativeHistoryUnavailable).with("history", "missing");
            refusal(last.prepare(configuration(), Vec::new()).await, Reason::NativeHistoryUnavailable);
            Ok(())
        },
    );
}
