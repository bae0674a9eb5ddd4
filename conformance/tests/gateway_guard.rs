//! The outbound guard: where a model provider that Core names may be (R-SEC-4).

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Setup, configuration, refusal, scenario};
use proto::v1::{FailureCode, Reason, TurnStatus, execution_configuration::Provider};

for_each_harness!(
    a_name_is_judged_by_the_address_that_it_stands_for,
    a_redirect_is_not_followed,
    a_provider_of_the_operator_needs_no_other_leave
);

#[test]
fn what_the_text_of_an_address_tells_is_refused_before_anything_happens() {
    let setup = Setup::outer()
        .with("allow_origins = [\"http://127.0.0.1:9\", \"https://10.9.8.7:8443\"]")
        .bridge("the bridge refuses an address before any Harness is asked");
    scenario("guard_text", &["R-SEC-4", "R-PRE-1", "R-API-4"], setup, async |rig| {
        let session = rig.session().await?;
        for (base_url, says) in [
            ("http://api.example.com/CANARY", "only https"),
            ("http://127.0.0.1:10/CANARY", "only https"),
            ("http://localhost:9/CANARY", "only https"),
            ("https://127.0.0.1:9/CANARY", "a loopback address"),
            ("https://127.0.0.1/CANARY", "a loopback address"),
            ("https://localhost/CANARY", "a loopback address"),
            ("https://10.9.8.7/CANARY", "a private address"),
            ("https://192.168.0.1/CANARY", "a private address"),
            ("https://169.254.169.254/CANARY", "a link-local address"),
            ("https://100.100.100.200/CANARY", "a shared (carrier-grade NAT) address"),
            ("https://[fd00:ec2::254]/CANARY", "a unique-local address"),
            ("https://[::ffff:169.254.169.254]/CANARY", "a link-local address"),
            ("https://2130706433/CANARY", "a number and no IPv4 address"),
            ("https://0x7f.1/CANARY", "a number and no IPv4 address"),
            ("https://0177.0.0.1/CANARY", "a number and no IPv4 address"),
            ("https://CANARY:secret@api.example.com/", "credentials"),
        ] {
            let refused = session.prepare(configuration(rig.kind(), base_url, Vec::new()), Vec::new()).await;
            let refused = refusal(refused, Reason::InvalidRequest).at("configuration.model_provider.base_url");
            refused.says(says).hides("CANARY");
        }
        assert_eq!(rig.harnesses()?, []);
        // What the operator names is taken as it stands.
        session.prepare(configuration(rig.kind(), "https://10.9.8.7:8443/v1", Vec::new()), Vec::new()).await?;
        Ok(())
    });
}

/// A name of the system's own table that stands for an address of this machine, or of a network around it, and does not look like it.
fn name_inside() -> anyhow::Result<String> {
    let table = std::fs::read_to_string("/etc/hosts").context("read the table of names")?;
    let lines = table.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut names = lines.flat_map(|line| line.split_whitespace().skip(1).map(move |name| (line, name)));
    let inside =
        |line: &str| ["127.", "::1", "10.", "172.", "192.168."].iter().any(|start| line.trim().starts_with(start));
    let found = names.find(|(line, name)| {
        inside(line)
            && *name != "localhost"
            && name.contains(|one: char| one.is_ascii_alphabetic())
            && name.chars().all(|one| one.is_ascii_alphanumeric() || "-.".contains(one))
            && !name.ends_with(".localhost")
    });
    let (_, name) = found.context("/etc/hosts has no other name of this machine than localhost")?;
    Ok(name.to_owned())
}

fn a_name_is_judged_by_the_address_that_it_stands_for(harness: Harness) {
    scenario("guard_address", &["R-SEC-4", "R-EVT-5"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let port = rig.provider.address().port();
        let base_url = format!("https://{}:{port}", name_inside()?);
        let ready = rig.prepare(&session, configuration(rig.kind(), &base_url, Vec::new())).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "hello").await?;
        let end = seen.end()?;
        assert_eq!(end.status(), TurnStatus::Failed, "{end:?}");
        let failure = end.failure.clone().unwrap_or_default();
        assert_eq!(failure.code(), FailureCode::InvalidRequest, "{failure:?}");
        assert!(failure.message.contains("the bridge's outbound guard refused the model provider"), "{failure:?}");
        assert!(!failure.message.contains(&name_inside()?), "{failure:?}");
        assert_eq!(rig.provider.requests().len(), 0);
        rig.daemon.wait_for_logs("the outbound guard refused an address", 1).await?;
        Ok(())
    });
}

fn a_redirect_is_not_followed(harness: Harness) {
    scenario("guard_redirect", &["R-SEC-4", "R-EVT-5"], Setup::outer().of(harness), async |rig| {
        let target = format!("http://{}/elsewhere", rig.provider.address());
        let step = serde_json::json!({"match": "hello", "times": 20, "play": [
            {"http": {"status": 307, "headers": {"location": target}, "body": "CANARY"}},
        ]});
        rig.provider.script(&serde_json::json!([step]).to_string())?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        let end = seen.end()?;
        assert_eq!(end.status(), TurnStatus::Failed, "{end:?}");
        let failure = end.failure.clone().unwrap_or_default();
        assert_eq!(failure.code(), FailureCode::ServerError, "{failure:?}");
        assert!(failure.message.contains("a redirect (307), which is not followed"), "{failure:?}");
        assert!(rig.provider.requests().iter().all(|request| request.path != "/elsewhere"), "it was followed");
        let told = format!("{:?}", seen.events);
        assert!(!told.contains("elsewhere") && !told.contains("CANARY"), "{told}");
        rig.whole_turn(&rig.session().await?, "t-1", "and again").await?.completed()
    });
}

fn a_provider_of_the_operator_needs_no_other_leave(harness: Harness) {
    let protocol = match harness {
        Harness::Codex => "responses",
        Harness::ClaudeCode | Harness::MinimaxCode => "messages",
        Harness::Opencode => "chat_completions",
    };
    let more = format!("allow_origins = []\n[providers.house]\nprotocol = \"{protocol}\"\nbase_url = \"{{provider}}\"");
    let setup = Setup::outer().of(harness).with(&more);
    scenario("guard_operator", &["R-SEC-4", "R-PRE-6"], setup, async |rig| {
        let session = rig.session().await?;
        let mut configuration = rig.configuration(Vec::new());
        configuration.provider = Some(Provider::ProviderName("house".into()));
        let ready = rig.prepare(&session, configuration).await?;
        session.start(&ready, "t-1", proto::client::text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()
    });
}
