//! The fence of a Session on every call: other assignments, other epochs, released Sessions, unknown Sessions and Turns.

use conformance::child::codex;
use conformance::rig::{Call, Rig, Setup, refusal, scenario};
use proto::client::{Client, Session, text_input};
use proto::v1::{self, Reason, bind_assignment_request::Placement};

/// Why one Harness is enough.
const OWN: &str = "a fence is judged before a Harness is asked";

fn setup() -> Setup {
    Setup::faulty(codex::healthy()).bridge(OWN)
}

/// A Session with this assignment and epoch, on the rig's workspace.
async fn bound(rig: &Rig, id: &str, assignment: &str, epoch: u64) -> anyhow::Result<Session> {
    let fence = v1::AssignmentRef { session_id: id.into(), assignment_id: assignment.into(), epoch };
    let directory = rig.workspace().to_string_lossy().into_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    Ok(Session::bind(rig.client().await?, fence, Placement::Workspace(workspace)).await?)
}

async fn release(client: &Client, fence: v1::AssignmentRef) -> anyhow::Result<v1::ReleaseAssignmentResponse> {
    let request = v1::ReleaseAssignmentRequest { assignment: Some(fence), remove_home: false, principal: None };
    Ok(client.release_assignment(request).await?)
}

#[test]
fn another_fence_than_the_recorded_one_is_refused_by_every_call() {
    scenario("bad_fences", &["R-ASG-1", "R-ASG-2", "R-ASG-4"], setup(), async |rig| {
        let session = bound(rig, "s-1", "a-1", 7).await?;
        let client = rig.client().await?;
        let target = rig.target(&session);
        for call in Call::ALL {
            let other = target.under(|a| a.assignment_id = "a-2".into());
            for epoch in [6, 7, 8] {
                let refused = call.make(&client, &other.under(|a| a.epoch = epoch)).await;
                refusal(refused, Reason::AssignmentConflict).at("assignment").with("epoch", "7").with("state", "bound");
            }
            let lower = call.make(&client, &target.under(|a| a.epoch = 6)).await;
            refusal(lower, Reason::AssignmentStale).at("assignment").with("epoch", "7").with("state", "bound");
            if !matches!(call, Call::Bind | Call::Release) {
                let higher = call.make(&client, &target.under(|a| a.epoch = 8)).await;
                let refused = refusal(higher, Reason::AssignmentConflict).at("assignment");
                refused.with("epoch", "7").with("state", "bound").says("bind it first");
            }
        }
        let same = Call::Release.make(&client, &target).await;
        refusal(same, Reason::AssignmentConflict).at("assignment").with("epoch", "7").says("higher epoch");
        // Nothing of all this moved the fence.
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        rig.whole_turn(&rig.session().await?, "t-1", "hello").await?.completed()
    });
}

#[test]
fn a_take_over_fences_the_lower_epoch_at_once() {
    scenario("fence_take_over", &["R-ASG-1", "R-ASG-2"], setup(), async |rig| {
        let before = bound(rig, "s-1", "a-1", 1).await?;
        let ready = rig.prepare(&before, rig.configuration(Vec::new())).await?;
        let after = bound(rig, "s-1", "a-1", 3).await?;
        let client = rig.client().await?;
        let fenced = rig.target(&before);
        for call in Call::ALL {
            let refused = refusal(call.make(&client, &fenced).await, Reason::AssignmentStale);
            refused.at("assignment").with("epoch", "3").with("state", "bound");
        }
        // A handle of the lower epoch is void, also for the higher one.
        let refused = after.start(&ready, "t-1", text_input("hello")).await;
        refusal(refused, Reason::HandleUnknown).at("handle");
        rig.whole_turn(&after, "t-1", "hello").await?.completed()?;
        // The same Bind again is no take-over.
        let assignment = Some(after.assignment().clone());
        let request = v1::BindAssignmentRequest { assignment, placement: rig.target(&after).placement };
        let again = client.bind_assignment(request).await?;
        assert_eq!((again.epoch, again.took_over), (3, false));
        Ok(())
    });
}

#[test]
fn a_released_session_refuses_everything_but_another_assignment() {
    scenario("fence_released", &["R-ASG-1", "R-ASG-4", "R-FN-5"], setup(), async |rig| {
        let session = bound(rig, "s-1", "a-1", 1).await?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        let client = rig.client().await?;
        let fence = v1::AssignmentRef { epoch: 2, ..session.assignment().clone() };
        let done = release(&client, fence.clone()).await?;
        assert_eq!(done.outcome(), v1::ReleaseOutcome::Confirmed, "{done:?}");
        let released = rig.target(&session).under(|a| a.epoch = 2);
        for call in Call::ALL {
            if call == Call::Release {
                continue;
            }
            let refused = refusal(call.make(&client, &released).await, Reason::AssignmentStale);
            refused.at("assignment").with("epoch", "2").with("state", "released");
        }
        // The release repeats its answer, and is not undone by a Bind of the same assignment with a higher epoch.
        assert_eq!(release(&client, fence).await?, done);
        let refused = Call::Bind.make(&client, &released.under(|a| a.epoch = 3)).await;
        refusal(refused, Reason::AssignmentStale).with("state", "released");
        // Another assignment is taken, and earlier Turns are readable under it.
        let next = bound(rig, "s-1", "a-2", 1).await?;
        assert_eq!(next.turn("t-1").await?.phase(), v1::TurnPhase::Ended);
        let refused = Call::Get.make(&client, &released).await;
        refusal(refused, Reason::AssignmentConflict).with("epoch", "1").with("state", "bound");
        Ok(())
    });
}

#[test]
fn an_unknown_session_or_turn_is_not_found() {
    scenario("bad_unknown", &["R-ASG-5", "R-FN-5"], setup(), async |rig| {
        let session = rig.session().await?;
        let client = rig.client().await?;
        let target = rig.target(&session);
        for call in Call::ALL {
            if call == Call::Bind {
                continue;
            }
            let unknown = target.under(|a| a.session_id = "s-unknown".into());
            let refused = refusal(call.make(&client, &unknown).await, Reason::NotFound);
            refused.at("assignment.session_id").with("http_status", "404");
        }
        for call in Call::ABOUT_A_TURN {
            refusal(call.make(&client, &target).await, Reason::NotFound).at("turn_id").with("http_status", "404");
        }
        let refused = refusal(Call::Submit.make(&client, &target).await, Reason::UnknownCall);
        refused.public(400, "invalid_request_error").at("results[0]").with("index", "0");
        let refused = refusal(Call::ReleasePreparation.make(&client, &target).await, Reason::HandleUnknown);
        refused.at("handle");
        // What was asked about did not begin to exist.
        let unknown = target.under(|a| a.session_id = "s-unknown".into());
        refusal(Call::Get.make(&client, &unknown).await, Reason::NotFound);
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        // A Turn of one Session is unknown to another.
        let other = rig.target(&rig.session().await?);
        let other = conformance::rig::Target { turn_id: "t-1".into(), ..other };
        for call in Call::ABOUT_A_TURN {
            refusal(call.make(&client, &other).await, Reason::NotFound).at("turn_id");
        }
        Ok(())
    });
}

#[test]
fn a_placement_is_fixed_by_the_first_bind() {
    scenario("bad_placement", &["R-ASG-3"], setup(), async |rig| {
        let session = rig.session().await?;
        let client = rig.client().await?;
        let target = rig.target(&session);
        for epoch in [1, 2] {
            let mut none = target.under(|a| a.epoch = epoch);
            none.placement = Some(Placement::None(v1::NoPlacement {}));
            let refused = refusal(Call::Bind.make(&client, &none).await, Reason::AssignmentConflict);
            refused.at("placement").with("epoch", "1").with("state", "bound");
        }
        // The configuration names the placement too, and it must be the one that was bound.
        let mut none = target.clone();
        none.configuration.placement = v1::Placement::None.into();
        let refused = refusal(Call::Prepare.make(&client, &none).await, Reason::InvalidRequest);
        refused.at("configuration.placement").says("workspace");
        let mut bare = target.under(|a| a.session_id = "s-none".into());
        bare.placement = Some(Placement::None(v1::NoPlacement {}));
        Call::Bind.make(&client, &bare).await?;
        let refused = refusal(Call::Prepare.make(&client, &bare).await, Reason::InvalidRequest);
        refused.at("configuration.placement").says("none");
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
}
