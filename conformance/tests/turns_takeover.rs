//! A Core that takes a Session over by a higher epoch: the old one is fenced at once, the Turn goes on under the new one.

use anyhow::Context;
use conformance::rig::{Harness, Observed, Rig, Setup, function, name, refused, scenario, text_result};
use conformance::{for_each_harness, for_every_harness};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason};

for_every_harness!(a_handle_of_the_lower_epoch_is_void, an_epoch_that_was_never_bound_is_refused);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(a_running_turn_goes_on_under_the_higher_epoch);

fn a_running_turn_goes_on_under_the_higher_epoch(harness: Harness) {
    let rules = ["R-ASG-1", "R-ASG-2", "R-FN-3", "R-EVT-11"];
    scenario("takeover_running", &rules, Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["I ask."]}}, {"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}]"#,
        )?;
        let old = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut old_events = rig.start_turn(&old, configuration.clone(), "t-1", "go").await?;
        let mut old_seen = Observed::default();
        old_seen.call(&mut old_events).await?;
        if harness == Harness::ClaudeCode {
            // The end of the answer follows its call.
            old_seen.until(&mut old_events, |kind| (name(kind) == "usage").then_some(())).await?;
        }

        let (new, bound) = take_over(rig, &old, 7).await?;
        assert_eq!((bound.epoch, bound.took_over), (7, true));
        assert_eq!(bound.directory, rig.workspace().to_str().unwrap_or_default());
        let refusal = refused(old_events.next().await, Reason::AssignmentStale)?;
        assert_eq!(refusal.metadata.get("epoch").map(String::as_str), Some("7"));
        // Everything of the old epoch is refused.
        let late = vec![text_result("t-1", "c1", "from the old one")];
        refused(old.submit(late).await, Reason::AssignmentStale)?;
        let refusal = refused(old.turn("t-1").await, Reason::AssignmentStale)?;
        assert_eq!(refusal.metadata.get("epoch").map(String::as_str), Some("7"));
        assert_eq!(refusal.metadata.get("state").map(String::as_str), Some("bound"));
        refused(old.cancel("t-1", None).await, Reason::AssignmentStale)?;
        refused(old.acknowledge("t-1", 1).await, Reason::AssignmentStale)?;
        refused(old.turn_events("t-1").next().await, Reason::AssignmentStale)?;

        let turn = new.turn("t-1").await?;
        assert_eq!((turn.phase(), turn.required_actions.len()), (v1::TurnPhase::RequiresAction, 1));
        let mut events = new.turn_events("t-1");
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        if harness == Harness::ClaudeCode {
            seen.until(&mut events, |kind| (name(kind) == "usage").then_some(())).await?;
        }
        assert_eq!(seen.events, old_seen.events, "the new one sees what the old one saw");
        new.submit(vec![text_result("t-1", "c1", "from the new one")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(rig.provider.model_requests()[1].output("c1"), Some("from the new one".into()));
        let mut events = rig.start_turn(&new, configuration, "t-2", "go on").await?;
        Observed::default().to_the_end(&mut events).await?.completed()
    });
}

fn a_handle_of_the_lower_epoch_is_void(harness: Harness) {
    scenario("takeover_handle", &["R-ASG-2", "R-PRE-2", "R-PRE-7"], Setup::outer().of(harness), async |rig| {
        let old = rig.session().await?;
        let ready = rig.prepare(&old, rig.configuration(Vec::new())).await?;
        let (new, _) = take_over(rig, &old, 2).await?;
        refused(old.start(&ready, "t-1", text_input("hello")).await, Reason::AssignmentStale)?;
        refused(new.start(&ready, "t-1", text_input("hello")).await, Reason::HandleUnknown)?;
        assert_eq!(rig.provider.requests().len(), 0, "nothing was submitted");
        let again = rig.prepare(&new, rig.configuration(Vec::new())).await?;
        assert!(again.reused, "the Executor lives on");
        new.start(&again, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut new.turn_events("t-1")).await?.completed()
    });
}

fn an_epoch_that_was_never_bound_is_refused(harness: Harness) {
    scenario("takeover_unbound", &["R-ASG-1"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        let higher = v1::AssignmentRef { epoch: 9, ..session.assignment().clone() };
        let request = v1::GetTurnRequest { assignment: Some(higher), turn_id: "t-1".into() };
        let refusal = refused(rig.client().await?.get_turn(request).await, Reason::AssignmentConflict)?;
        assert_eq!(refusal.metadata.get("epoch").map(String::as_str), Some("1"));
        let other = v1::AssignmentRef { assignment_id: "a-2".into(), ..session.assignment().clone() };
        let request = v1::GetTurnRequest { assignment: Some(other), turn_id: "t-1".into() };
        refused(rig.client().await?.get_turn(request).await, Reason::AssignmentConflict)?;
        // The same bind again changes nothing.
        let (_, bound) = take_over(rig, &session, 1).await?;
        assert_eq!((bound.epoch, bound.took_over), (1, false));
        Ok(())
    });
}

/// Binds the same assignment under this epoch, from a connection of its own.
async fn take_over(rig: &Rig, session: &Session, epoch: u64) -> anyhow::Result<(Session, v1::BindAssignmentResponse)> {
    let assignment = v1::AssignmentRef { epoch, ..session.assignment().clone() };
    let directory = rig.workspace().to_str().context("the workspace's path is not UTF-8")?.to_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    let placement = v1::bind_assignment_request::Placement::Workspace(workspace);
    let client = rig.client().await?;
    let request =
        v1::BindAssignmentRequest { assignment: Some(assignment.clone()), placement: Some(placement.clone()) };
    let bound = client.bind_assignment(request).await?;
    Ok((Session::bind(client, assignment, placement).await?, bound))
}
