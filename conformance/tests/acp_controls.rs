//! Execution controls of agents behind ACP: what each does to what the model provider is offered, and what is not declared is refused with its field
//! (R-CTL-2).

use conformance::for_each_acp_agent;
use conformance::rig::{Harness, Rig, Setup, nowhere, refusal, scenario};
use proto::v1::{self, Reason, TextVerbosity, WebSearchMode};

for_each_acp_agent!(
    without_a_workspace_the_controls_hold_at_the_provider,
    on_a_workspace_the_controls_hold_at_the_provider
);

fn with(mut configuration: v1::ExecutionConfiguration, controls: v1::ExecutionControls) -> v1::ExecutionConfiguration {
    configuration.tools.get_or_insert_default().controls = Some(controls);
    configuration
}

fn search(mode: WebSearchMode) -> v1::ExecutionControls {
    let web_search = v1::WebSearchControl { mode: mode.into(), ..Default::default() };
    v1::ExecutionControls { web_search: Some(web_search), ..Default::default() }
}

/// The tools that the provider is offered under these controls.
async fn offered(rig: &Rig, is_nowhere: bool, controls: v1::ExecutionControls) -> anyhow::Result<Vec<String>> {
    rig.provider.reset();
    let plain = with(rig.configuration(Vec::new()), controls);
    let (session, configuration) = match is_nowhere {
        true => (rig.session_nowhere().await?, nowhere(plain)),
        false => (rig.session().await?, plain),
    };
    let ready = rig.prepare(&session, configuration).await?;
    rig.turn_with(&session, &ready, "t-1", "hello").await?.completed()?;
    Ok(rig.provider.model_requests()[0].tools())
}

async fn hold(rig: &Rig, is_nowhere: bool) -> anyhow::Result<()> {
    let native = offered(rig, is_nowhere, v1::ExecutionControls::default()).await?;
    let web =
        |tools: &[String]| tools.iter().filter(|tool| tool.to_lowercase().replace('_', "").contains("web")).count();
    let disabled = offered(rig, is_nowhere, search(WebSearchMode::Disabled)).await?;
    assert_eq!(web(&disabled), 0, "{disabled:?}");
    let scripts = v1::ExecutionControls { programmatic_tool_calling: Some(false), ..Default::default() };
    assert_eq!(offered(rig, is_nowhere, scripts).await?, native);
    let medium = v1::ExecutionControls { text_verbosity: Some(TextVerbosity::Medium.into()), ..Default::default() };
    assert_eq!(offered(rig, is_nowhere, medium).await?, native);
    let refused = [
        (search(WebSearchMode::Live), "web_search"),
        (search(WebSearchMode::Cached), "web_search"),
        (
            v1::ExecutionControls { programmatic_tool_calling: Some(true), ..Default::default() },
            "programmatic_tool_calling",
        ),
        (
            v1::ExecutionControls { text_verbosity: Some(TextVerbosity::Low.into()), ..Default::default() },
            "text_verbosity",
        ),
        (v1::ExecutionControls { reasoning_effort: Some("high".into()), ..Default::default() }, "reasoning_effort"),
        (v1::ExecutionControls { service_tier: Some("auto".into()), ..Default::default() }, "service_tier"),
        (v1::ExecutionControls { strict_calls: true, ..Default::default() }, "strict_calls"),
    ];
    for (controls, field) in refused {
        let plain = with(rig.configuration(Vec::new()), controls);
        let (session, configuration) = match is_nowhere {
            true => (rig.session_nowhere().await?, nowhere(plain)),
            false => (rig.session().await?, plain),
        };
        let refused = session.prepare(configuration, Vec::new()).await;
        let refused = refusal(refused, Reason::UnsupportedConfiguration).into_inner();
        assert!(refused.fields[0].path.contains(field), "{field}: {refused:?}");
    }
    Ok(())
}

fn without_a_workspace_the_controls_hold_at_the_provider(harness: Harness) {
    let setup = Setup::outer().of(harness).needing_under(v1::Placement::None, v1::Capability::ExecutionControls);
    scenario("acp_controls_none", &["R-CTL-2", "R-CAP-1"], setup, async |rig| hold(rig, true).await);
}

fn on_a_workspace_the_controls_hold_at_the_provider(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::ExecutionControls);
    scenario("acp_controls_workspace", &["R-CTL-2", "R-CAP-1"], setup, async |rig| hold(rig, false).await);
}

#[test]
fn admission_judges_for_an_agent_that_the_operator_names() {
    let setup = Setup::outer().bridge("the declaration of a named agent is judged by like that of any other");
    let setup = Setup { harness: Harness::Opencode, ..setup };
    scenario("acp_admit", &["R-CAP-1", "R-PRE-6"], setup, async |rig| {
        let client = rig.client().await?;
        let admit = |harness: &str, tools: &str| v1::AdmitRequest {
            harness: harness.into(),
            purpose: v1::AdmitPurpose::Session.into(),
            tools: Some(tools.as_bytes().to_vec()),
            environment: Some(v1::AdmitEnvironment { r#type: "none".into(), ..Default::default() }),
            model_provider: Some(v1::AdmitProvider {
                protocol: Some("chat_completions".into()),
                token_limits: true,
                ..Default::default()
            }),
            ..Default::default()
        };
        let function = r#"[{"type":"function","name":"lookup","description":"d","parameters":{"type":"object"}}]"#;
        let admitted = client.admit(admit("opencode", function)).await?.outcome;
        assert!(matches!(admitted, Some(v1::admit_response::Outcome::Admitted(_))), "{admitted:?}");
        let search = r#"[{"type":"web_search","mode":"live"}]"#;
        let rejected = client.admit(admit("opencode", search)).await?.outcome;
        assert!(matches!(rejected, Some(v1::admit_response::Outcome::Rejected(_))), "{rejected:?}");
        refusal(client.admit(admit("somebody", function)).await, Reason::InvalidRequest).at("harness").says("opencode");
        Ok(())
    });
}
