//! What a declaration says that its Harness does not take is refused before the Harness sees it, and what it says that is taken is taken.

use anyhow::Context as _;
use conformance::for_each_harness;
use conformance::rig::{Harness, MODEL_KEY, Observed, RED_PNG, Rig, Setup, function, refusal, scenario, text_result};
use proto::client::text_input;
use proto::v1::{self, Reason};

for_each_harness!(
    a_search_and_what_it_finds_are_asked_for_together,
    a_message_of_white_space_is_for_those_who_take_it,
    a_result_is_what_the_harness_takes
);

const SCHEMA: &str = r#"{"type":"object"}"#;

fn a_search_and_what_it_finds_are_asked_for_together(harness: Harness) {
    let rules = ["R-CAP-6", "R-PRE-1", "R-PRE-6"];
    scenario("tool_search_together", &rules, Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let deferred = |name: &str| v1::FunctionTool { defer_loading: true, ..function(name, SCHEMA) };
        let prepare = async |functions, tool_search: bool| {
            let mut configuration = rig.configuration(Vec::new());
            let tool_search = tool_search.then_some(v1::ToolSearch {});
            configuration.tools = Some(v1::AdmittedTools { functions, tool_search, ..Default::default() });
            let key = v1::Credential { name: "model".into(), value: MODEL_KEY.into() };
            session.prepare(configuration, vec![key]).await
        };
        for (functions, tool_search, at) in [
            (vec![], true, "configuration.tools.tool_search"),
            (vec![function("plain", SCHEMA)], true, "configuration.tools.tool_search"),
            (
                vec![function("plain", SCHEMA), deferred("found")],
                false,
                "configuration.tools.functions[1].defer_loading",
            ),
        ] {
            let refused = refusal(prepare(functions, tool_search).await, Reason::UnsupportedConfiguration);
            refused.at(at).public(400, "unsupported_or_invalid_configuration");
        }
        let both = prepare(vec![function("plain", SCHEMA), deferred("found")], true).await;
        let (capability, placement) = (v1::Capability::ToolSearch, v1::Placement::Workspace);
        match &*rig.undeclared(&[(placement, capability)]).await? {
            [] => drop(both?),
            _ => drop(refusal(both, Reason::UnsupportedConfiguration).at("configuration.tools.tool_search")),
        }
        Ok(())
    });
}

fn a_message_of_white_space_is_for_those_who_take_it(harness: Harness) {
    scenario("message_blank", &["R-STA-1", "R-CAP-4"], Setup::outer().of(harness), async |rig| {
        let limits = limits(rig).await?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        let started = session.start(&ready, "t-1", text_input(" \t\u{a0}\n")).await;
        if limits.refuses_blank_messages {
            refusal(started, Reason::InvalidRequest).at("input").public(400, "invalid_request_error");
            // Neither the handle nor the id of the Turn is used up.
            session.start(&ready, "t-1", text_input("hello")).await?;
        } else {
            started?;
        }
        let mut events = session.turn_events("t-1");
        Observed::default().to_the_end(&mut events).await?.completed()
    });
}

fn a_result_is_what_the_harness_takes(harness: Harness) {
    let needs = v1::Capability::FunctionResultImages;
    let setup = Setup::outer().of(harness).needing(needs);
    scenario("result_limits", &["R-FN-5", "R-CAP-1"], setup, async |rig| {
        let limits = limits(rig).await?;
        let functions = vec![function("lookup", SCHEMA)];
        let (session, mut events, seen) = rig.waiting_turn(functions, &[("lookup", "c0"), ("lookup", "c1")]).await?;
        let image = v1::Image { media_type: "image/png".into(), data: RED_PNG.into() };
        let parts = vec![v1::OutputPart { part: Some(v1::output_part::Part::Image(image)) }];
        let output = v1::function_output::Value::Parts(v1::OutputParts { parts });
        let failed = v1::FunctionResult {
            success: Some(false),
            output: Some(v1::FunctionOutput { value: Some(output) }),
            ..text_result("t-1", "c0", "")
        };
        if limits.failed_result_images {
            session.submit(vec![failed]).await?;
        } else {
            let refused = refusal(session.submit(vec![failed]).await, Reason::InvalidResult);
            refused.at("results[0].output.parts[0].image").public(400, "invalid_request_error");
            session.submit(vec![text_result("t-1", "c0", "seen")]).await?;
        }
        if let Some(most) = limits.function_result_characters {
            let most = usize::try_from(most)?;
            let long = session.submit(vec![text_result("t-1", "c1", &"x".repeat(most + 1))]).await;
            let refused = refusal(long, Reason::InvalidResult).at("results[0].output");
            refused.public(400, "invalid_request_error");
            // The longest one is taken over, with its receipt.
            session.submit(vec![text_result("t-1", "c1", &"x".repeat(most))]).await?;
        } else {
            session.submit(vec![text_result("t-1", "c1", "seen")]).await?;
        }
        let seen = seen.to_the_end(&mut events).await?;
        let is_applied = |kind: &&v1::event::Kind| matches!(kind, v1::event::Kind::FunctionResultApplied(_));
        assert_eq!(seen.kinds().filter(is_applied).count(), 2);
        seen.completed()
    });
}

/// What the Harness declares of what it takes.
async fn limits(rig: &Rig) -> anyhow::Result<v1::HarnessLimits> {
    let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
    let declared = info.harnesses.into_iter().find(|one| one.kind == rig.kind().kind());
    declared.and_then(|declared| declared.limits).context("the daemon declares no limits of the Harness")
}
