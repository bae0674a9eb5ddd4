//! Configurations that do not fit: what the Harness does not take, what is frozen, keys and providers (R-PRE-1, R-PRE-2, R-PRE-6, R-FN-1).

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use conformance::child::codex;
use conformance::for_each_harness;
use conformance::rig::{Harness, MODEL_KEY, Observed, Rig, Setup, function, refusal, scenario};
use proto::client::{Error, Session, text_input};
use proto::v1::{self, Reason, execution_configuration::Provider};

/// Why one Harness is enough.
const OWN: &str = "a configuration is judged before the Harness runs, the fault child only declares";

for_each_harness!(another_key_is_taken_and_the_history_goes_on_with_it, a_provider_of_the_operator_is_named);

fn setup() -> Setup {
    Setup::faulty(codex::healthy()).bridge(OWN)
}

fn key(value: &str) -> Vec<v1::Credential> {
    vec![v1::Credential { name: "model".into(), value: value.into() }]
}

/// A change of a configuration.
type Change<'a> = &'a dyn Fn(&mut v1::ExecutionConfiguration);

/// Prepares with a configuration that is changed in one thing.
async fn prepare(
    rig: &Rig,
    session: &Session,
    change: impl FnOnce(&mut v1::ExecutionConfiguration),
) -> Result<v1::Ready, Error> {
    let mut configuration = rig.configuration(Vec::new());
    change(&mut configuration);
    session.prepare(configuration, key(MODEL_KEY)).await
}

/// Nothing was started for what was refused, and the Session works.
async fn undisturbed(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let started = rig.child.iter().flat_map(|child| child.starts()).flatten().filter(|s| s.args[0] == "app-server");
    assert_eq!(started.count(), 0, "a refused configuration had a native effect");
    rig.whole_turn(session, "t-1", "hello").await?.completed()
}

#[test]
fn names_of_functions_are_checked() {
    scenario("bad_function_names", &["R-FN-1", "R-CAP-1", "R-PRE-1"], setup(), async |rig| {
        let session = rig.session().await?;
        let long = "f".repeat(129);
        for (names, place, want) in [
            (vec![""], 0, "blank"),
            (vec!["ok", "  "], 1, "blank"),
            (vec!["ok", "lookup", "ok"], 2, "tools.functions[0]"),
            (vec!["look-up", "look_up"], 1, "tools.functions[0]"),
            (vec!["look up"], 0, "must match"),
            (vec!["look.up"], 0, "must match"),
            (vec!["suche\u{f6}"], 0, "must match"),
            (vec![long.as_str()], 0, "128 bytes"),
            (vec!["shell"], 0, "tool of codex"),
            (vec!["exec_command"], 0, "tool of codex"),
            (vec!["apply-patch"], 0, "tool of codex"),
            (vec!["update_plan"], 0, "tool of codex"),
            (vec!["mcp__server__tool"], 0, "mcp__"),
            (vec!["mcp--tool"], 0, "mcp__"),
            (vec!["web__run"], 0, "web__"),
        ] {
            let functions = names.iter().map(|name| function(name, r#"{"type":"object"}"#)).collect();
            let answer =
                prepare(rig, &session, |c| c.tools = Some(v1::AdmittedTools { functions, ..Default::default() })).await;
            let refused = refusal(answer, Reason::UnsupportedConfiguration).says(want);
            refused
                .at(&format!("configuration.tools.functions[{place}].name"))
                .public(400, "unsupported_or_invalid_configuration");
        }
        undisturbed(rig, &session).await
    });
}

#[test]
fn schemas_of_functions_are_checked() {
    scenario("bad_schemas", &["R-FN-1", "R-API-3", "R-CAP-1"], setup(), async |rig| {
        let session = rig.session().await?;
        let deep = format!("{}{}", r#"{"a":"#.repeat(200), "1".to_owned() + &"}".repeat(200));
        for (schema, want) in [
            ("", "not JSON"),
            ("schema", "not JSON"),
            (r#"{"type":"object""#, "not JSON"),
            (r#"{"type":"object"} {}"#, "not JSON"),
            ("{'type':'object'}", "not JSON"),
            ("[]", "object or a boolean"),
            ("1", "object or a boolean"),
            ("null", "object or a boolean"),
            (r#""object""#, "object or a boolean"),
            (r#"{"type":"string"}"#, "type at the root"),
            (r#"{"type":"object","type":"object"}"#, "twice at $.type"),
            (r#"{"properties":{"a":{"b":1,"b":1}}}"#, "twice at $.properties.a.b"),
            (&deep, "deeper"),
            (r#"{"properties":{"a":{"maximum":18446744073709551616}}}"#, "$.properties.a.maximum"),
            (r#"{"enum":[1,-9223372036854775809]}"#, "$.enum[1]"),
            (r#"{"description":"\ud800"}"#, "no Unicode text at $.description"),
        ] {
            let functions = vec![function("good", r#"{"type":"object"}"#), function("bad", schema)];
            let answer =
                prepare(rig, &session, |c| c.tools = Some(v1::AdmittedTools { functions, ..Default::default() })).await;
            let refused = refusal(answer, Reason::UnsupportedConfiguration).says(want);
            refused
                .at("configuration.tools.functions[1].parameters")
                .public(400, "unsupported_or_invalid_configuration");
        }
        undisturbed(rig, &session).await
    });
}

/// Why the good ones are those of one Harness.
const GOOD: &str = "what is taken as it came is each Harness's own; claude_good_functions has that of Claude Code";

/// What is refused stands just beyond these, which the real Codex takes.
#[test]
fn what_is_just_good_enough_starts_the_real_codex() {
    scenario("good_functions", &["R-FN-1", "R-API-3"], Setup::default().only(GOOD), async |rig| {
        let session = rig.session().await?;
        // 123 levels are the most that Codex reads within its own.
        let deep = format!("{}{}{}", r#"{"a":"#.repeat(123), 1, "}".repeat(123));
        let functions = vec![
            function(&"f".repeat(128), "true"),
            function("A-9_z", r#"{"type":"object","properties":{}}"#),
            function(
                "numbers",
                r#"{"type":"object","properties":{"a":{"maximum":18446744073709551615,"minimum":-9223372036854775808,"multipleOf":1e400}}}"#,
            ),
            function("deep", &deep),
            function("shell2", "{}"),
        ];
        let answer = prepare(rig, &session, |c| {
            c.tools = Some(v1::AdmittedTools { functions, ..Default::default() });
            c.harness_config = r#"{"base_instructions":"Be brief."}"#.into();
        });
        let ready = answer.await?;
        session.start(&ready, "t-1", text_input("hello")).await?;
        let observed = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        observed.completed()?;
        let body = rig.provider.model_requests().remove(0).body;
        for name in [&"f".repeat(128), "A-9_z", "numbers", "deep", "shell2", "Be brief."] {
            assert!(body.contains(&format!("\"{name}\"")), "{name} is not in {body}");
        }
        Ok(())
    });
}

#[test]
fn native_settings_are_checked() {
    scenario("bad_harness_config", &["R-PRE-6", "R-PRE-1"], setup(), async |rig| {
        let session = rig.session().await?;
        let deep = format!(r#"{{"base_instructions":{}1{}}}"#, "[".repeat(40), "]".repeat(40));
        for (config, field, want) in [
            ("{", "configuration.harness_config", "not JSON"),
            ("[]", "configuration.harness_config", "object"),
            ("null", "configuration.harness_config", "object"),
            (r#"{"model":"x"}"#, "configuration.harness_config", "unknown member model"),
            (r#"{"system_prompt":"x"}"#, "configuration.harness_config", "base_instructions"),
            (r#"{"base_instructions":1}"#, "configuration.harness_config.base_instructions", "string"),
            (r#"{"base_instructions":null}"#, "configuration.harness_config.base_instructions", "string"),
            (r#"{"base_instructions":"a","base_instructions":"b"}"#, "configuration.harness_config", "twice"),
            (&deep, "configuration.harness_config", "deeper"),
        ] {
            let answer = prepare(rig, &session, |c| c.harness_config = config.into()).await;
            let refused = refusal(answer, Reason::UnsupportedConfiguration).at(field).says(want);
            refused.public(400, "unsupported_or_invalid_configuration");
        }
        let large = format!(r#"{{"base_instructions":"{}"}}"#, "x".repeat(16 << 10));
        let answer = prepare(rig, &session, |c| c.harness_config = large.clone()).await;
        let refused = refusal(answer, Reason::UnsupportedConfiguration).at("configuration.harness_config");
        refused.says("16384 bytes").public(400, "unsupported_or_invalid_configuration");
        undisturbed(rig, &session).await
    });
}

#[test]
fn credentials_are_checked_and_never_repeated() {
    scenario("bad_credentials", &["R-PRE-6", "R-SEC-6"], setup(), async |rig| {
        let session = rig.session().await?;
        let credential = |name: &str, value: &str| v1::Credential { name: name.into(), value: value.into() };
        let long = format!("CANARY{}", "x".repeat(16 << 10));
        for (credentials, field) in [
            (vec![credential("", "CANARY")], "credentials[0].name"),
            (vec![credential("mcp:docs", "CANARY")], "credentials[0].name"),
            (vec![credential("model", "")], "credentials[0].value"),
            (vec![credential("model", "CANARY\n")], "credentials[0].value"),
            (vec![credential("model", "CANARY\u{0}")], "credentials[0].value"),
            (vec![credential("model", &long)], "credentials[0].value"),
            (vec![credential("model", "CANARY"), credential("model", "CANARY")], "credentials[1].name"),
        ] {
            let answer = session.prepare(rig.configuration(Vec::new()), credentials).await;
            refusal(answer, Reason::InvalidRequest).at(field).hides("CANARY");
        }
        assert!(!rig.daemon.log_text().contains("CANARY"));
        undisturbed(rig, &session).await
    });
}

#[test]
fn the_configuration_of_a_live_executor_is_frozen() {
    scenario("configuration_frozen", &["R-PRE-2", "R-FN-1"], setup(), async |rig| {
        let session = rig.session().await?;
        for turn in [false, true] {
            if turn {
                rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
            } else {
                let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
                let assignment = Some(session.assignment().clone());
                let request = v1::ReleasePreparationRequest { assignment, handle: ready.handle };
                rig.client().await?.release_preparation(request).await?;
            }
            let provider =
                v1::ModelProvider { protocol: 1, base_url: "https://example.com/v1".into(), token_limits: None };
            let changes: [(&str, Change<'_>); 5] = [
                ("model", &|c| c.model = "gpt-5.4".into()),
                ("instructions", &|c| c.instructions = "Be brief.".into()),
                ("model_provider", &|c| c.provider = Some(Provider::ModelProvider(provider.clone()))),
                ("harness_config", &|c| c.harness_config = r#"{"base_instructions":""}"#.into()),
                ("tools.functions", &|c| {
                    c.tools =
                        Some(v1::AdmittedTools { functions: vec![function("lookup", "{}")], ..Default::default() });
                }),
            ];
            for (field, change) in changes {
                let refused = refusal(prepare(rig, &session, change).await, Reason::ConfigurationConflict);
                refused.at(&format!("configuration.{field}")).with("field", field);
            }
        }
        // An empty list of tools and none are the same content here: neither declares a function.
        let ready = prepare(rig, &session, |c| c.tools = None).await?;
        assert!(ready.reused);
        Ok(())
    });
}

fn another_key_is_taken_and_the_history_goes_on_with_it(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::SessionResume).without_gateway();
    scenario("other_credential", &["R-PRE-6", "R-PRE-4"], setup, async |rig| {
        let session = rig.session().await?;
        let client = rig.client().await?;
        let request = |id: &str, value: &str| v1::PrepareExecutionRequest {
            assignment: Some(session.assignment().clone()),
            preparation_id: id.into(),
            configuration: Some(rig.configuration(Vec::new())),
            credentials: key(value),
            resume: None,
        };
        // The same preparation takes the newer key while its handle is unused.
        let first = client.prepare(request("p-1", "sk-first")).await?;
        let second = client.prepare(request("p-1", "sk-second")).await?;
        assert_ne!(first.executor_id, second.executor_id);
        assert!(second.revision > first.revision);
        let refused = session.start(&first, "t-1", text_input("hello")).await;
        refusal(refused, Reason::HandleUnknown).at("handle");
        let release =
            v1::ReleasePreparationRequest { assignment: Some(session.assignment().clone()), handle: second.handle };
        client.release_preparation(release).await?;
        // Another preparation with another key retires the idle Executor.
        let third = client.prepare(request("p-2", "sk-third")).await?;
        assert!(!third.reused);
        session.start(&third, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
        // The same key finds the idle Executor; another one retires it, and the new one goes on with its history.
        let ready = client.prepare(request("p-3", "sk-third")).await?;
        assert!(ready.reused && !ready.settings_changed);
        let release =
            v1::ReleasePreparationRequest { assignment: Some(session.assignment().clone()), handle: ready.handle };
        client.release_preparation(release).await?;
        let fourth = client.prepare(request("p-4", "sk-fourth")).await?;
        assert!(!fourth.reused && !fourth.settings_changed);
        let fifth = client.prepare(request("p-4", "sk-fifth")).await?;
        assert_ne!(fourth.executor_id, fifth.executor_id);
        session.start(&fifth, "t-2", text_input("again")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-2")).await?.completed()?;
        let requests = rig.provider.model_requests();
        let used: Vec<_> = requests.iter().map(conformance::provider::Recorded::key).collect();
        assert_eq!(used, [Some("sk-third"), Some("sk-fifth")]);
        assert!(rig.provider.model_requests()[1].body.contains("hello"), "the history is gone");
        let native = async |turn_id| session.turn(turn_id).await.map(|turn| turn.native.unwrap_or_default().session_id);
        assert_eq!(native("t-1").await?, native("t-2").await?);
        Ok(())
    });
}

fn a_provider_of_the_operator_is_named(harness: Harness) {
    let file = format!("house-{}-{}.key", harness.kind(), std::process::id());
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file);
    fs::write(&file, "sk-of-the-house\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let protocol = match harness {
        Harness::Codex => "responses",
        Harness::ClaudeCode | Harness::MinimaxCode => "messages",
        Harness::Opencode => "chat_completions",
    };
    let more = format!(
        "[providers.house]\nprotocol = \"{protocol}\"\nbase_url = \"{{provider}}\"\nkey_file = {file:?}\n\
         [providers.keyless]\nprotocol = \"{protocol}\"\nbase_url = \"{{provider}}\""
    );
    let setup = Setup { more, ..Setup::outer().of(harness) };
    scenario("named_provider", &["R-PRE-6", "R-SEC-6"], setup, async |rig| {
        let named = |name: &str| {
            let mut configuration = rig.configuration(Vec::new());
            configuration.provider = Some(Provider::ProviderName(name.into()));
            configuration
        };
        let session = rig.session().await?;
        for unknown in ["", "House", "house ", "other"] {
            let refused = refusal(session.prepare(named(unknown), Vec::new()).await, Reason::InvalidRequest);
            refused.at("configuration.provider_name").says(unknown);
        }
        // The operator's key, then Core's over it, then none at all.
        for (name, credentials, want) in [
            ("house", Vec::new(), Some("sk-of-the-house")),
            ("house", key("sk-of-core"), Some("sk-of-core")),
            ("keyless", Vec::new(), None),
        ] {
            let session = rig.session().await?;
            let ready = session.prepare(named(name), credentials).await?;
            session.start(&ready, "t-1", text_input("hello")).await?;
            Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
            let requests = rig.provider.model_requests();
            assert_eq!(requests.last().and_then(|request| request.key()), want, "{name}");
        }
        Ok(())
    });
    fs::remove_file(file).unwrap();
}
