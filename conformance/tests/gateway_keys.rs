//! The gateway holds the model key: the provider sees it, the Harness a placeholder, and a fresh one holds at once (R-SEC-3, R-PRE-6).

use std::fs;

use anyhow::Context;
use conformance::provider::Recorded;
use conformance::rig::{
    Daemon, Harness, MODEL_KEY, Observed, Rig, Setup, files_with, function, refusal, scenario, text_result,
};
use conformance::{for_each_harness, for_every_harness};
use proto::client::{Session, text_input};
use proto::v1::{self, CredentialOutcome, Reason};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

for_every_harness!(
    the_provider_has_the_key_and_the_harness_a_placeholder,
    another_key_leaves_the_executor_as_it_is,
    without_a_key_nothing_is_added,
    without_the_gateway_the_harness_holds_the_key
);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(a_fresh_key_holds_from_the_next_request_on, a_route_ends_with_its_executor_and_is_never_guessed);

/// What a Harness has for a key.
const PLACEHOLDER: &str = "runtime-bridge-placeholder";

const FRESH: &str = "sk-fresh-canary-7d20";

/// Keeps what the bridge writes to a process of the Harness in a file below the daemon's own temp folder.
const LISTENING: &str = r#"case "$*" in
*app-server*|*stream-json*) tee "$0.told" | "$REAL" "$@" ;;
*) exec "$REAL" "$@" ;;
esac"#;

fn key(value: &str) -> v1::Credential {
    v1::Credential { name: "model".into(), value: value.into() }
}

fn used(requests: &[Recorded]) -> Vec<&str> {
    requests.iter().map(|request| request.key().unwrap_or("none")).collect()
}

/// Nothing of the Harness, and no file of the daemon, has the key.
fn is_nowhere(rig: &Rig, key: &str) -> anyhow::Result<()> {
    let family = rig.family()?;
    anyhow::ensure!(family.len() >= 2, "{family:#?}");
    let shown: Vec<_> = family.iter().filter(|process| process.shows(key)).collect();
    anyhow::ensure!(shown.is_empty(), "the key is in argv or environ of {shown:#?}");
    let held = files_with(rig.place().root(), key)?;
    anyhow::ensure!(held.is_empty(), "the key is in {held:?}");
    Ok(())
}

fn the_provider_has_the_key_and_the_harness_a_placeholder(harness: Harness) {
    let setup = Setup::outer().of(harness).with("log = \"debug\"").needing(v1::Capability::SessionResume);
    scenario("gateway_placeholder", &["R-SEC-3", "R-SEC-6", "R-SEC-2", "R-PRE-4"], setup, async |rig| {
        rig.provider.script(
            r#"[{"match": "first", "play": [{"text": {"chunks": ["Umbra"]}}, {"mark": "asked"}, {"gate": "go"}, {"text": {"chunks": ["Penumbra"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "first").await?;
        rig.provider.wait_for_mark("asked").await?;
        is_nowhere(rig, MODEL_KEY)?;
        if harness == Harness::ClaudeCode {
            let process = rig.harness()?;
            assert_eq!(process.variable("ANTHROPIC_API_KEY"), Some(PLACEHOLDER));
            let gateway = format!("http://{}/", rig.gateway()?);
            let base_url = process.variable("ANTHROPIC_BASE_URL").context("no base address")?;
            assert!(base_url.starts_with(&gateway), "{base_url}");
        }
        rig.provider.open_gate("go");
        let seen = Observed::default().to_the_end(&mut events).await?;
        seen.completed()?;
        let native = session.turn("t-1").await?.native.unwrap_or_default().session_id;
        rig.wait_for_history("Penumbra").await?;
        assert!(!format!("{:?}", seen.events).contains(MODEL_KEY));

        // The same for a history that is gone on with, by another daemon with another gateway.
        let family = rig.family()?;
        rig.daemon.terminate().await?;
        rig.all_gone(&family).await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
        is_nowhere(rig, MODEL_KEY)?;
        rig.turn_with(&session, &ready, "t-2", "again").await?.completed()?;
        let requests = rig.provider.model_requests();
        assert_eq!(used(&requests), [MODEL_KEY; 2]);
        assert!(requests[1].body.contains("first"), "the history is gone");
        for request in &requests {
            assert!(!format!("{request:?}").contains(PLACEHOLDER), "{request:#?}");
            let host = request.header("host").unwrap_or_default();
            assert_eq!(host, rig.provider.address().to_string());
        }
        Ok(())
    });
}

fn a_fresh_key_holds_from_the_next_request_on(harness: Harness) {
    let setup = Setup::outer().of(harness).with("log = \"debug\"");
    scenario("gateway_fresh_key", &["R-PRE-6", "R-SEC-3", "R-ASG-1", "R-SEC-6"], setup, async |rig| {
        // Nobody has a key yet, and nobody keeps one for later.
        let idle = rig.session().await?;
        assert_eq!(idle.update_credential(key(FRESH)).await?, CredentialOutcome::NothingHeld);

        let functions = vec![function("lookup", r#"{"type":"object"}"#)];
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
                {"after": "outputs", "play": [{"text": {"chunks": ["Done."]}}]},
                {"match": "once more", "times": 6, "play": [{"http": {"status": 403, "message": "sk-fresh-canary-7d20 is not a key"}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(functions.clone()), "t-1", "look it up").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        let process = rig.harness()?.pid;
        // In the middle of a Turn, twice.
        for _ in 0..2 {
            assert_eq!(session.update_credential(key(FRESH)).await?, CredentialOutcome::InUse);
        }
        session.submit(vec![text_result("t-1", seen.call_id()?, "42")]).await?;
        seen.to_the_end(&mut events).await?.completed()?;
        assert_eq!(used(&rig.provider.model_requests()), [MODEL_KEY, FRESH]);
        assert_eq!(rig.harness()?.pid, process, "there is another process");
        is_nowhere(rig, FRESH)?;

        // Whom it is not for.
        refused_credentials(rig, &session).await?;

        // A preparation with the same key finds the Executor; what the provider repeats of it is told to nobody.
        let ready = session.prepare(rig.configuration(functions), vec![key(FRESH)]).await?;
        assert!(ready.reused);
        let seen = rig.turn_with(&session, &ready, "t-2", "once more").await?;
        assert_eq!(seen.end()?.status(), v1::TurnStatus::Failed);
        assert!(!format!("{:?} {:?}", seen.events, session.turn("t-2").await?).contains(FRESH));
        assert!(!rig.daemon.log_text().contains(FRESH), "the key is in the logs");
        Ok(())
    });
}

async fn refused_credentials(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let client = rig.client().await?;
    let own = session.assignment().clone();
    let update = async |assignment: v1::AssignmentRef, credential: Option<v1::Credential>| {
        let assignment = Some(assignment);
        client.update_credential(v1::UpdateCredentialRequest { assignment, credential }).await
    };
    let of = |epoch| v1::AssignmentRef { epoch, ..own.clone() };
    refusal(update(of(2), Some(key(FRESH))).await, Reason::AssignmentConflict).hides(FRESH);
    let other = v1::AssignmentRef { session_id: "another".into(), ..own.clone() };
    refusal(update(other, Some(key(FRESH))).await, Reason::NotFound).hides(FRESH);
    refusal(update(own.clone(), None).await, Reason::InvalidRequest).at("credential");
    let named = v1::Credential { name: "mcp:x".into(), value: FRESH.into() };
    refusal(update(own.clone(), Some(named)).await, Reason::InvalidRequest).at("credential.name").hides(FRESH);
    for value in ["", "two\nlines"] {
        refusal(update(own.clone(), Some(key(value))).await, Reason::InvalidRequest).at("credential.value");
    }
    Ok(())
}

fn another_key_leaves_the_executor_as_it_is(harness: Harness) {
    scenario("gateway_other_key", &["R-PRE-6", "R-PRE-2", "R-SEC-3"], Setup::outer().of(harness), async |rig| {
        let (session, client) = (rig.session().await?, rig.client().await?);
        let request = |id: &str, value: &str| v1::PrepareExecutionRequest {
            assignment: Some(session.assignment().clone()),
            preparation_id: id.into(),
            configuration: Some(rig.configuration(Vec::new())),
            credentials: vec![key(value)],
            resume: None,
        };
        // The same preparation takes the newer key while its handle is unused, and is the same.
        let first = client.prepare(request("p-1", "sk-first")).await?;
        let process = rig.harness()?.pid;
        assert_eq!(client.prepare(request("p-1", "sk-second")).await?, first);
        session.start(&first, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
        // Another one as well.
        let second = client.prepare(request("p-2", "sk-third")).await?;
        assert!(second.reused);
        assert_eq!(second.executor_id, first.executor_id);
        session.start(&second, "t-2", text_input("again")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-2")).await?.completed()?;
        assert_eq!(used(&rig.provider.model_requests()), ["sk-second", "sk-third"]);
        assert_eq!(rig.harness()?.pid, process);
        Ok(())
    });
}

fn a_route_ends_with_its_executor_and_is_never_guessed(harness: Harness) {
    let setup = Setup::outer().of(harness).behind(LISTENING);
    scenario("gateway_route", &["R-SEC-3"], setup, async |rig| {
        let (first, second) = (rig.session().await?, rig.session().await?);
        rig.whole_turn(&first, "t-1", "hello").await?.completed()?;
        let route = route(rig)?;
        let asked = || rig.provider.requests().len();
        let before = asked();
        // It is good for whoever knows it, at its provider and nowhere else.
        assert_ne!(post(rig, &format!("{route}/nothing-like-this")).await?, (404, 0));
        assert_eq!(asked(), before + 1);
        let (base, name) = route.split_at(1);
        let mut guessed = name.to_owned();
        let last = if guessed.pop() == Some('0') { '1' } else { '0' };
        guessed.push(last);
        for path in ["/", "/v1/responses", "/v1/messages", &format!("{base}{guessed}/x"), &format!("{route}/../x")] {
            assert_eq!(post(rig, path).await?, (404, 0), "{path}");
        }
        // Another Session has another one, and the end of the first leaves it alone.
        rig.whole_turn(&second, "t-1", "hello").await?.completed()?;
        let before = asked();
        first.release(true).await?;
        assert_eq!(post(rig, &format!("{route}/nothing-like-this")).await?, (404, 0));
        assert_eq!(asked(), before);
        rig.whole_turn(&second, "t-2", "hello again").await?.completed()
    });
}

/// The path of the route of the Harness that runs, as it was told it.
fn route(rig: &Rig) -> anyhow::Result<String> {
    let process = rig.harness()?;
    let address = format!("http://{}", rig.gateway()?);
    let told = match process.variable("ANTHROPIC_BASE_URL") {
        Some(url) => url.to_owned(),
        None => fs::read_to_string(rig.place().root().join("before.told"))?,
    };
    let at = told.find(&address).context("the Harness was not told of the gateway")?;
    let path = &told[at + address.len()..];
    Ok(path[..path.find('"').unwrap_or(path.len())].to_owned())
}

/// Status, and length of the body, of an empty request to the gateway.
async fn post(rig: &Rig, path: &str) -> anyhow::Result<(u16, usize)> {
    let mut stream = TcpStream::connect(rig.gateway()?).await?;
    let head = format!("POST {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.len()))
}

fn without_a_key_nothing_is_added(harness: Harness) {
    scenario("gateway_no_key", &["R-SEC-3", "R-PRE-6"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let ready = session.prepare(rig.configuration(Vec::new()), Vec::new()).await?;
        rig.turn_with(&session, &ready, "t-1", "hello").await?.completed()?;
        // A key may come later.
        assert_eq!(session.update_credential(key(FRESH)).await?, CredentialOutcome::InUse);
        let ready = session.prepare(rig.configuration(Vec::new()), vec![key(FRESH)]).await?;
        assert!(ready.reused);
        rig.turn_with(&session, &ready, "t-2", "again").await?.completed()?;
        let requests = rig.provider.model_requests();
        assert_eq!(used(&requests), ["none", FRESH]);
        for name in ["authorization", "x-api-key"] {
            assert_eq!(requests[0].header(name), None);
        }
        Ok(())
    });
}

fn without_the_gateway_the_harness_holds_the_key(harness: Harness) {
    let setup = Setup::outer().of(harness).without_gateway();
    scenario("gateway_off", &["R-SEC-3", "R-PLC-1", "R-PRE-6"], setup, async |rig| {
        assert!(rig.gateway().is_err());
        rig.daemon.wait_for_logs("without the credential gateway", 1).await?;
        assert!(!rig.declaration().await?.trust_workspace);
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        refusal(session.update_credential(key(FRESH)).await, Reason::Unsupported).hides(FRESH);
        rig.whole_turn(&session, "t-2", "again").await?.completed()?;
        let requests = rig.provider.model_requests();
        assert_eq!(used(&requests), [MODEL_KEY; 2]);
        if harness == Harness::ClaudeCode {
            assert_eq!(rig.harness()?.variable("ANTHROPIC_API_KEY"), Some(MODEL_KEY));
        }
        Ok(())
    });
}
