//! Requests with a field that is missing, unknown or malformed: each is refused with its path and has no effect (R-API-2, R-API-9).

use conformance::child::codex;
use conformance::rig::{Call, Rig, Setup, Target, configuration, refusal, scenario};
use proto::client::{Client, Error, text_input};
use proto::v1::{self, Reason};

/// Why one Harness is enough.
const OWN: &str = "a field is judged before a Harness is asked";

/// What no id of Core may look like.
const BAD_IDS: [&str; 9] = ["", " ", "a b", "a/b", "../a", "ä", "a\n", "a\u{0}b", "{a}"];

fn setup() -> Setup {
    Setup::faulty(codex::healthy()).bridge(OWN)
}

/// Nothing was started for what was refused, and a Session works.
async fn undisturbed(rig: &Rig) -> anyhow::Result<()> {
    let started = rig.child.iter().flat_map(|child| child.starts()).flatten().filter(|s| s.args[0] == "app-server");
    assert_eq!(started.count(), 0, "a refused request had a native effect");
    rig.whole_turn(&rig.session().await?, "t-1", "still here").await?.completed()
}

#[track_caller]
fn invalid(answer: Result<(), Error>, path: &str) {
    refusal(answer, Reason::InvalidRequest).at(path);
}

#[test]
fn ids_of_core_are_checked_in_every_call() {
    scenario("bad_ids", &["R-API-9"], setup(), async |rig| {
        let target = rig.target(&rig.session().await?);
        let client = rig.client().await?;
        let long = "x".repeat(129);
        for bad in BAD_IDS.into_iter().chain([long.as_str()]) {
            let session = target.under(|a| a.session_id = bad.into());
            let assignment = target.under(|a| a.assignment_id = bad.into());
            for call in Call::ALL {
                invalid(call.make(&client, &session).await, "assignment.session_id");
                invalid(call.make(&client, &assignment).await, "assignment.assignment_id");
            }
            let turn = Target { turn_id: bad.into(), ..target.clone() };
            for call in Call::ABOUT_A_TURN.into_iter().chain([Call::Start]) {
                invalid(call.make(&client, &turn).await, "turn_id");
            }
            invalid(Call::Submit.make(&client, &turn).await, "results[0].turn_id");
            let preparation = Target { preparation_id: bad.into(), ..target.clone() };
            invalid(Call::Prepare.make(&client, &preparation).await, "preparation_id");
            let mut environment = target.clone();
            if let Some(v1::bind_assignment_request::Placement::Workspace(workspace)) = &mut environment.placement {
                workspace.environment_id = bad.into();
            }
            invalid(Call::Bind.make(&client, &environment).await, "workspace.environment_id");
        }
        // The longest and the strangest that is one: known to nobody, but an id.
        let longest = format!("{}.A_:-9", "x".repeat(122));
        let odd = target.under(|a| a.session_id = longest.clone());
        refusal(Call::Get.make(&client, &odd).await, Reason::NotFound).at("assignment.session_id");
        undisturbed(rig).await
    });
}

#[test]
fn the_fence_is_checked_in_every_call() {
    scenario("bad_fence", &["R-API-2", "R-ASG-1"], setup(), async |rig| {
        let target = rig.target(&rig.session().await?);
        let client = rig.client().await?;
        for call in Call::ALL {
            invalid(call.make(&client, &Target { assignment: None, ..target.clone() }).await, "assignment");
            invalid(call.make(&client, &target.under(|a| a.epoch = 0)).await, "assignment.epoch");
            invalid(call.make(&client, &target.under(|a| a.epoch = u64::MAX)).await, "assignment.epoch");
        }
        undisturbed(rig).await
    });
}

#[test]
fn unknown_enums_and_unset_choices_are_refused() {
    scenario("bad_enums", &["R-API-2"], setup(), async |rig| {
        let session = rig.session().await?;
        let target = rig.target(&session);
        let client = rig.client().await?;
        let prepare = async |change: &dyn Fn(&mut v1::ExecutionConfiguration)| {
            let mut target = target.clone();
            change(&mut target.configuration);
            Call::Prepare.make(&client, &target).await
        };
        for placement in [0, 3, -1, i32::MAX] {
            let refused = refusal(prepare(&|c| c.placement = placement).await, Reason::InvalidRequest);
            refused.at("configuration.placement").says("WORKSPACE");
        }
        for protocol in [0, 4, -1] {
            let provider =
                v1::ModelProvider { protocol, base_url: "https://example.com/v1".into(), token_limits: None };
            let provider = v1::execution_configuration::Provider::ModelProvider(provider);
            let refused = refusal(prepare(&|c| c.provider = Some(provider.clone())).await, Reason::InvalidRequest);
            refused.at("configuration.model_provider.protocol").says("RESPONSES");
        }
        invalid(prepare(&|c| c.provider = None).await, "configuration.provider");
        invalid(prepare(&|c| c.harness.clear()).await, "configuration.harness");
        invalid(prepare(&|c| c.model = " \t".into()).await, "configuration.model");
        invalid(Call::Bind.make(&client, &Target { placement: None, ..target.clone() }).await, "placement");
        let without = v1::PrepareExecutionRequest {
            assignment: target.assignment.clone(),
            preparation_id: "p-1".into(),
            configuration: None,
            credentials: Vec::new(),
            resume: None,
        };
        invalid(client.prepare(without).await.map(drop), "configuration");
        undisturbed(rig).await
    });
}

#[test]
fn the_input_of_a_turn_is_checked_before_the_handle() {
    scenario("bad_input", &["R-API-2", "R-STA-1"], setup(), async |rig| {
        let session = rig.session().await?;
        let client = rig.client().await?;
        let start = async |input: Vec<v1::InputPart>| {
            let assignment = Some(session.assignment().clone());
            let (handle, turn_id, max_duration) = ("hdl-none".into(), "t-1".into(), None);
            let request = v1::StartTurnRequest { assignment, handle, turn_id, input, max_duration };
            client.start_turn(request).await.map(drop)
        };
        let text = |text: &str| text_input(text).remove(0);
        invalid(start(Vec::new()).await, "input");
        invalid(start(vec![text("a"), v1::InputPart { part: None }]).await, "input[1].part");
        invalid(start(vec![text("a"), text("b"), text("")]).await, "input[2].text");
        let refused = refusal(start(vec![text(&"ä".repeat(1 << 20)), text("b")]).await, Reason::InvalidRequest);
        refused.at("input").says("1048576");
        // Exactly as much is taken; now the handle is looked at.
        refusal(start(vec![text(&"ä".repeat(1 << 20))]).await, Reason::HandleUnknown).at("handle");
        undisturbed(rig).await
    });
}

#[test]
fn numbers_beyond_what_there_is_are_refused() {
    scenario("bad_numbers", &["R-CAN-1", "R-EVT-1", "R-DUR-4"], setup(), async |rig| {
        let session = rig.session().await?;
        let (client, assignment) = (rig.client().await?, Some(session.assignment().clone()));
        let observed = rig.whole_turn(&session, "t-1", "hello").await?;
        let last = observed.events.last().map_or(0, |event| event.sequence);
        for (seconds, nanos) in [(61, 0), (60, 1), (-1, 0), (0, -1), (i64::MAX, 0)] {
            let wait = Some(prost_types::Duration { seconds, nanos });
            let request = v1::CancelTurnRequest { assignment: assignment.clone(), turn_id: "t-1".into(), wait };
            invalid(client.cancel_turn(request).await.map(drop), "wait");
        }
        for beyond in [last + 1, u64::MAX] {
            let assignment = assignment.clone();
            let request = v1::AcknowledgeEventsRequest {
                assignment: assignment.clone(),
                turn_id: "t-1".into(),
                through_sequence: beyond,
            };
            let refused = refusal(client.acknowledge_events(request).await, Reason::InvalidRequest);
            refused.at("through_sequence").with("last_sequence", &last.to_string());
            let request = v1::ObserveTurnRequest { assignment, turn_id: "t-1".into(), after_sequence: beyond };
            let refused = refusal(client.observe_turn(request).await, Reason::InvalidRequest);
            refused.at("after_sequence").with("last_sequence", &last.to_string());
        }
        // None of it acknowledged anything.
        assert_eq!(session.turn("t-1").await?.acknowledged_sequence, 0);
        rig.whole_turn(&session, "t-2", "again").await?.completed()
    });
}

/// R-API-4: what was submitted is not repeated at length, and a secret not at all.
#[test]
fn a_refusal_repeats_little_of_what_was_submitted() {
    scenario("bad_texts", &["R-API-4", "R-SEC-6"], setup(), async |rig| {
        let target = rig.target(&rig.session().await?);
        let client: Client = rig.client().await?;
        let prepare = async |change: &dyn Fn(&mut v1::ExecutionConfiguration)| {
            let mut target = target.clone();
            change(&mut target.configuration);
            Call::Prepare.make(&client, &target).await
        };
        let long = format!("{}CANARY", "n\u{7}".repeat(5000));
        let named = v1::execution_configuration::Provider::ProviderName(long.clone());
        let refused = refusal(prepare(&|c| c.provider = Some(named.clone())).await, Reason::InvalidRequest);
        refused.at("configuration.provider_name").hides("CANARY").hides("\u{7}");
        let refused = refusal(prepare(&|c| c.harness = long.clone()).await, Reason::HarnessUnavailable);
        refused.at("configuration.harness").hides("CANARY").says("codex");
        for secret in ["https://user:CANARY@example.com/v1", "https://example.com/v1?key=CANARY", "CANARY"] {
            let refused = prepare(&|c| *c = configuration(rig.kind(), secret, Vec::new())).await;
            refusal(refused, Reason::InvalidRequest).at("configuration.model_provider.base_url").hides("CANARY");
        }
        let mut directory = target.under(|a| a.session_id = "s-other".into());
        if let Some(v1::bind_assignment_request::Placement::Workspace(workspace)) = &mut directory.placement {
            workspace.directory = format!("/{}CANARY", "d".repeat(3000));
        }
        refusal(Call::Bind.make(&client, &directory).await, Reason::InvalidRequest)
            .at("workspace.directory")
            .hides("CANARY");
        undisturbed(rig).await
    });
}
