//! Public JSON through the daemon's own `Admit`: every case of the table has its outcome there too, and what is admitted is taken by a preparation of the
//! same daemon, or refused for what it lacks, and for nothing else.

use std::collections::BTreeMap;

use anyhow::Context as _;
use conformance::for_each_harness;
use conformance::rig::{Harness, Rig, Setup, nowhere, refusal, scenario};
use proto::v1::{self, Reason, admit_response::Outcome};
use serde::Deserialize;
use serde_json::value::RawValue;

for_each_harness!(
    every_case_has_its_outcome,
    what_is_admitted_is_prepared,
    what_is_admitted_without_a_workspace_is_prepared,
);

const CASES: &str = include_str!("admission/cases.json");
/// The workspace of the cases.
const DIRECTORY: &str = "/srv/space";
/// The server of the cases, and one that refuses at once.
const SERVER: (&str, &str) = ("https://mcp.example.com/mcp", "https://127.0.0.1:9/mcp");

/// Cases that are prepared where they are admitted.
const PREPARED: [&str; 17] = [
    "any function",
    "parameters root without type",
    "longest name of Codex (decision 10)",
    "tool_search with a deferred function",
    "mode disabled",
    "mode live, context_size medium, domains null, location null",
    "location with a city",
    "enabled false",
    "any json_schema",
    "schema root without type",
    "verbosity medium",
    "verbosity low",
    "effort high",
    "service_tier auto",
    "headers that are valid",
    "required true",
    "env_vars that the Environment may lack",
];

/// The step at which a preparation of a case fails; all others are ready. Section 8 of the admission leaves to the start what the machine and the model have.
fn lacks(harness: Harness, row: &str) -> Option<&'static str> {
    match (harness, row) {
        // Nobody is there, and there is no file of variables.
        (_, "required true") => Some("mcp"),
        (_, "env_vars that the Environment may lack") => Some("variables"),
        // The model of the rig takes no effort at all.
        (Harness::ClaudeCode, "effort high") => Some("effort"),
        _ => None,
    }
}

#[derive(Debug, Deserialize)]
struct Case {
    row: String,
    #[serde(rename = "in")]
    document: Option<Box<RawValue>>,
    raw: Option<String>,
    #[serde(default)]
    on: Vec<String>,
    save: String,
    session: String,
    codex: Option<String>,
    claude_code: Option<String>,
    none: Option<String>,
    workspace: Option<String>,
    #[serde(rename = "codex workspace")]
    codex_workspace: Option<String>,
    message: Option<String>,
    #[serde(default)]
    environment: Environment,
    #[serde(default)]
    provider: Provider,
    #[serde(default)]
    harness_config: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Environment {
    r#type: Option<String>,
    network: String,
    packages: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Provider {
    of_session: Option<bool>,
    protocol: Option<String>,
    token_limits: bool,
}

impl Case {
    fn expected(&self, harness: Harness, placement: &str) -> Option<&str> {
        let kind = harness.kind();
        let both = format!("{kind} {placement}");
        if !self.on.is_empty() && !self.on.iter().any(|on| [kind, placement, &both].contains(&on.as_str())) {
            return None;
        }
        let (of_both, of_kind) = match harness {
            Harness::Codex if placement == "workspace" => (&self.codex_workspace, &self.codex),
            Harness::Codex => (&None, &self.codex),
            Harness::ClaudeCode => (&None, &self.claude_code),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        let of_placement = if placement == "none" { &self.none } else { &self.workspace };
        Some([of_both, of_kind, of_placement].into_iter().flatten().next().unwrap_or(&self.session))
    }

    /// The request for a Session, of these texts.
    fn request(&self, harness: Harness, placement: &str, directory: &str) -> anyhow::Result<v1::AdmitRequest> {
        let text = self.document.as_deref().map_or("{}", RawValue::get);
        // An absent member and null are two things.
        let members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text)?;
        let of = |name: &str| {
            let text = members.get(name)?.get();
            Some(text.replace(DIRECTORY, directory).replace(SERVER.0, SERVER.1).into_bytes())
        };
        let usual = if placement == "none" { "none" } else { "self_hosted" };
        Ok(v1::AdmitRequest {
            harness: harness.kind().into(),
            purpose: v1::AdmitPurpose::Session.into(),
            tools: self.raw.clone().map(String::into_bytes).or_else(|| of("tools")),
            text: of("text"),
            reasoning: of("reasoning"),
            service_tier: of("service_tier"),
            multi_agent: of("multi_agent"),
            environment: Some(v1::AdmitEnvironment {
                r#type: self.environment.r#type.clone().unwrap_or_else(|| usual.into()),
                directory: directory.into(),
                network: self.environment.network.clone(),
                system_packages: self.environment.packages,
            }),
            model_provider: Some(v1::AdmitProvider {
                of_session: self.provider.of_session,
                protocol: self.provider.protocol.clone(),
                token_limits: self.provider.token_limits,
            }),
            harness_config: self.harness_config.clone(),
        })
    }
}

fn cases() -> anyhow::Result<Vec<Case>> {
    Ok(serde_json::from_str(CASES)?)
}

/// An outcome as the table writes it, and its words.
fn told(answer: v1::AdmitResponse) -> (String, String) {
    match answer.outcome {
        Some(Outcome::Admitted(_)) => ("ok".into(), String::new()),
        Some(Outcome::Rejected(rejection)) => {
            assert_eq!(rejection.http_status, 400);
            let code = match &*rejection.code {
                "invalid_request_error" => "PE",
                "unsupported_or_invalid_configuration" => "UC",
                "model_provider_required" => "MPR",
                other => panic!("{other}"),
            };
            (format!("{code} {}", rejection.param.as_deref().unwrap_or("∅")), rejection.message)
        }
        None => panic!("an answer without an outcome"),
    }
}

fn every_case_has_its_outcome(harness: Harness) {
    // The server that refuses is on this machine, where the service may reach it.
    let setup = Setup::outer().of(harness).with("allow_origins = [\"{origin}\", \"https://127.0.0.1:9\"]");
    scenario("admission_table", &["R-API-5", "R-MCP-1", "R-CAP-6"], setup, async |rig| {
        let client = rig.client().await?;
        let mut judged = 0;
        for case in cases()? {
            for placement in ["none", "workspace"] {
                let Some(expected) = case.expected(harness, placement) else { continue };
                let request = case.request(harness, placement, DIRECTORY)?;
                let save = v1::AdmitRequest {
                    purpose: v1::AdmitPurpose::Save.into(),
                    harness: String::new(),
                    environment: None,
                    ..request.clone()
                };
                for (request, expected) in [(request, expected), (save, case.save.as_str())] {
                    let (got, message) = told(client.admit(request).await?);
                    assert_eq!(got, expected, "{} under {placement}: {message}", case.row);
                    if let (Some(words), false) = (&case.message, got == "ok") {
                        assert_eq!(*words, message, "{}", case.row);
                    }
                    judged += 1;
                }
            }
        }
        assert!(judged > 500, "{judged}");
        let request = v1::AdmitRequest::default();
        refusal(client.admit(request.clone()).await, Reason::InvalidRequest).at("purpose");
        let session = v1::AdmitRequest { purpose: v1::AdmitPurpose::Session.into(), ..request };
        refusal(client.admit(session.clone()).await, Reason::InvalidRequest).at("harness").says("minimax_code");
        let session = v1::AdmitRequest { harness: "minimax_code".into(), ..session };
        refusal(client.admit(session).await, Reason::InvalidRequest).at("environment");
        // An answer that could not be sent is told before.
        let long = format!(r#"[{{"type":"custom","x":"{}"}}]"#, "x".repeat(4 << 20)).into_bytes();
        let save = v1::AdmitRequest { purpose: v1::AdmitPurpose::Save.into(), tools: Some(long), ..Default::default() };
        refusal(client.admit(save).await, Reason::PayloadTooLarge);
        Ok(())
    });
}

fn what_is_admitted_is_prepared(harness: Harness) {
    let setup = Setup::outer().of(harness);
    scenario("admission_prepared", &["R-CAP-6", "R-PRE-1", "R-PRE-6"], setup, async |rig| {
        prepare(rig, "workspace").await
    });
}

fn what_is_admitted_without_a_workspace_is_prepared(harness: Harness) {
    let setup = Setup::outer().of(harness);
    scenario("admission_prepared_nowhere", &["R-CAP-6", "R-PRE-1", "R-PRE-6"], setup, async |rig| {
        prepare(rig, "none").await
    });
}

/// Prepares each of the cases that is admitted here.
async fn prepare(rig: &Rig, placement: &str) -> anyhow::Result<()> {
    let (client, directory) = (rig.client().await?, rig.workspace().to_string_lossy().into_owned());
    let cases = cases()?;
    let mut ready = 0;
    for row in PREPARED {
        let case = cases.iter().find(|case| case.row == row).with_context(|| format!("no row {row}"))?;
        if case.expected(rig.kind(), placement) != Some("ok") {
            continue;
        }
        let answer = client.admit(case.request(rig.kind(), placement, &directory)?).await?;
        let Some(Outcome::Admitted(admitted)) = answer.outcome else { panic!("{row}: rejected") };
        let configuration = v1::ExecutionConfiguration { tools: admitted.tools, ..rig.configuration(Vec::new()) };
        let (session, configuration) = match placement {
            "none" => (rig.session_nowhere().await?, nowhere(configuration)),
            _ => (rig.session().await?, configuration),
        };
        let prepared = rig.prepare(&session, configuration).await;
        match lacks(rig.kind(), row) {
            Some(step) => _ = refusal(prepared, Reason::PreparationFailed).with("step", step),
            None => {
                prepared.with_context(|| format!("{row} under {placement}"))?;
                ready += 1;
            }
        }
        session.release(true).await?;
    }
    assert!(ready >= 9, "{ready}");
    Ok(())
}
