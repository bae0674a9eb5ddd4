//! The gateway reaches providers over TLS: with HTTP/2 and with HTTP/1.1, through whole Turns, limits and withheld calls; it trusts no certificate that it
//! should not, and sends no request twice (R-SEC-3, R-SEC-4, R-SEC-5).

use conformance::for_each_harness;
use conformance::provider::{Shows, Speaks};
use conformance::rig::{
    Harness, MODEL_KEY, Observed, Rig, Setup, files_with, function, lookup, scenario, strict, text_result,
};
use proto::client::Session;
use proto::v1::event::Kind;
use proto::v1::{self, Capability, FailureCode, TurnStatus};
use serde_json::json;

for_each_harness!(
    a_whole_turn_over_http_2,
    a_whole_turn_over_http_1,
    a_certificate_of_an_unknown_authority_is_refused,
    a_certificate_for_another_name_is_refused,
    an_expired_certificate_is_refused,
    a_handshake_without_an_answer_fails_the_turn,
    a_breach_over_http_2_ends_its_stream_and_no_other,
    calls_wait_for_the_end_of_an_answer_over_http_2,
    a_connection_that_the_provider_ends_is_replaced_over_http_2,
    a_connection_that_the_provider_ends_is_replaced_over_http_1
);

fn configuration(rig: &Rig) -> v1::ExecutionConfiguration {
    rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)])
}

fn a_whole_turn_over_http_2(harness: Harness) {
    whole("tls_http_2", harness, Speaks::Http2, "HTTP/2.0");
}

fn a_whole_turn_over_http_1(harness: Harness) {
    whole("tls_http_1", harness, Speaks::Http1, "HTTP/1.1");
}

/// A text that comes while its answer is under way, a call, its result, and the rest; the key at the provider and nowhere else.
fn whole(name: &str, harness: Harness, speaks: Speaks, version: &str) {
    let setup = Setup::outer().of(harness).behind_tls(speaks).with("log = \"debug\"");
    scenario(name, &["R-SEC-3", "R-SEC-6", "R-EVT-2"], setup, async |rig| {
        let steps = json!([
            {"match": "first", "play": [
                {"text": {"chunks": ["Um", "bra"]}}, {"mark": "said"}, {"gate": "go"}, lookup("{}")]},
            {"after": "outputs", "play": [{"text": {"chunks": ["all of it"]}}]},
        ]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, configuration(rig), "t-1", "first").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        rig.provider.wait_for_mark("said").await?;
        is_nowhere(rig)?;
        rig.provider.open_gate("go");
        let call = seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["Umbra", "all of it"]);
        let requests = rig.provider.model_requests();
        assert_eq!(requests.iter().map(|request| request.key()).collect::<Vec<_>>(), [Some(MODEL_KEY); 2]);
        for request in &requests {
            assert_eq!(request.version, version);
            assert!(!format!("{request:?}").contains("runtime-bridge-placeholder"), "the placeholder went out");
        }
        assert_eq!(requests[1].output(&call.call_id), Some("42".into()));
        assert!(!format!("{:?}", seen.events).contains(MODEL_KEY));
        is_nowhere(rig)
    });
}

/// Nothing of the Harness, and no file or log of the daemon, has the key.
fn is_nowhere(rig: &Rig) -> anyhow::Result<()> {
    let family = rig.family()?;
    let shown: Vec<_> = family.iter().filter(|process| process.shows(MODEL_KEY)).collect();
    anyhow::ensure!(family.len() >= 2 && shown.is_empty(), "the key is in argv or environ of {shown:#?}");
    let held = files_with(rig.place().root(), MODEL_KEY)?;
    anyhow::ensure!(held.is_empty() && !rig.daemon.log_text().contains(MODEL_KEY), "the key is in {held:?} or the log");
    Ok(())
}

fn a_certificate_of_an_unknown_authority_is_refused(harness: Harness) {
    let says = ["an authority that this machine does not know", "`SSL_CERT_FILE`"];
    refused("tls_other_authority", harness, Speaks::Http2, Shows::OtherAuthority, &says);
}

fn a_certificate_for_another_name_is_refused(harness: Harness) {
    let says = ["its TLS certificate is for another name"];
    refused("tls_other_name", harness, Speaks::Http2, Shows::OtherName, &says);
}

fn an_expired_certificate_is_refused(harness: Harness) {
    let says = ["its TLS certificate is expired"];
    refused("tls_expired", harness, Speaks::Http1, Shows::Expired, &says);
}

const UNREACHABLE: [&str; 3] = ["R-SEC-3", "R-SEC-4", "R-EVT-5"];

fn refused(name: &str, harness: Harness, speaks: Speaks, shows: Shows, says: &[&str]) {
    let setup = Setup::outer().of(harness).behind_tls(speaks);
    scenario(name, &UNREACHABLE, setup, async |rig| {
        let session = unreachable(rig, shows, says).await?;
        rig.provider.show(Shows::Good);
        rig.whole_turn(&session, "t-2", "and again").await?.completed()
    });
}

fn a_handshake_without_an_answer_fails_the_turn(harness: Harness) {
    // Each try fails, so that a short limit ends them all sooner and changes nothing.
    let setup = Setup::outer().of(harness).behind_tls(Speaks::Http1).with("limits.connect_ms = 1000");
    scenario("tls_no_handshake", &UNREACHABLE, setup, async |rig| {
        unreachable(rig, Shows::Nothing, &["was not there within 1s (`connect_ms`)"]).await.map(drop)
    });
}

/// A Turn fails with what TLS says, and the provider has seen nothing of it.
async fn unreachable(rig: &Rig, shows: Shows, says: &[&str]) -> anyhow::Result<Session> {
    rig.provider.hang_up().await?;
    rig.provider.reset();
    rig.provider.show(shows);
    let session = rig.session().await?;
    let seen = rig.whole_turn(&session, "t-1", "hello").await?;
    let end = seen.end()?;
    let failure = end.failure.clone().unwrap_or_default();
    let is_so = (end.status(), failure.code()) == (TurnStatus::Failed, FailureCode::ConnectionFailed);
    anyhow::ensure!(is_so, "{shows:?} ended so: {end:?}");
    for part in says {
        anyhow::ensure!(failure.message.contains(part), "{shows:?} is told so: {}", failure.message);
    }
    anyhow::ensure!(!format!("{:?}", seen.events).contains(MODEL_KEY), "the key is told");
    anyhow::ensure!(rig.provider.requests().is_empty(), "a request came all the same");
    Ok(session)
}

fn a_breach_over_http_2_ends_its_stream_and_no_other(harness: Harness) {
    let setup = Setup::outer().of(harness).behind_tls(Speaks::Http2).with("limits.stream_events = 100");
    scenario("tls_breach", &["R-SEC-5", "R-SEC-3"], setup, async |rig| {
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-0", "before").await?.completed()?;
        rig.provider.reset();
        let before = rig.provider.connections();
        let pings = "data: {\"type\":\"ping\"}\n\n".repeat(120);
        let step =
            json!({"match": "too much", "always": true, "play": [{"text": {"chunks": ["a"]}}, {"raw": pings}, "hang"]});
        rig.provider.script(&json!([step]).to_string())?;
        let seen = rig.whole_turn(&session, "t-1", "too much").await?;
        let failure = seen.end()?.failure.clone().unwrap_or_default();
        assert_eq!(failure.code(), FailureCode::StreamLimitExceeded, "{failure:?}");
        assert!(failure.message.contains("`stream_events`"), "{failure:?}");
        // The provider hears of it while it would go on for good.
        rig.provider.wait_for(|requests| requests.iter().all(|request| request.ended_at_ms.is_some())).await?;
        rig.provider.reset();
        rig.whole_turn(&session, "t-2", "and again").await?.completed()?;
        assert_eq!(rig.provider.connections(), before, "the connection went with the stream");
        Ok(())
    });
}

fn calls_wait_for_the_end_of_an_answer_over_http_2(harness: Harness) {
    let setup = Setup::outer().of(harness).behind_tls(Speaks::Http2).needing(Capability::StrictCalls);
    scenario("tls_strict", &["R-FN-10", "R-SEC-3"], setup, async |rig| {
        let play = json!([{"text": {"chunks": ["before"]}}, lookup("{}"), {"mark": "sent"}, {"gate": "go"}]);
        let steps = json!([{"play": play}, {"after": "outputs", "play": [{"text": {"chunks": ["all of it"]}}]}]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, strict(None, configuration(rig)), "t-1", "look").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageCompleted(_)).then_some(())).await?;
        rig.provider.wait_for_mark("sent").await?;
        assert_eq!(session.turn("t-1").await?.required_actions.len(), 0, "the call was not held back");
        rig.provider.open_gate("go");
        let call = seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "found")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["before", "all of it"]);
        Ok(())
    });
}

fn a_connection_that_the_provider_ends_is_replaced_over_http_2(harness: Harness) {
    replaced("tls_replaced_2", harness, Speaks::Http2);
}

fn a_connection_that_the_provider_ends_is_replaced_over_http_1(harness: Harness) {
    replaced("tls_replaced_1", harness, Speaks::Http1);
}

/// Between two requests of a Turn the provider ends what it had kept open: each request comes once, the second one over another connection.
fn replaced(name: &str, harness: Harness, speaks: Speaks) {
    let setup = Setup::outer().of(harness).behind_tls(speaks);
    scenario(name, &["R-SEC-3", "R-EVT-10"], setup, async |rig| {
        let functions = vec![function("lookup", r#"{"type":"object"}"#)];
        let (session, mut events, seen) = rig.waiting_turn(functions, &[("lookup", "c1")]).await?;
        let before = rig.provider.connections();
        rig.provider.hang_up().await?;
        session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(rig.provider.model_requests().len(), 2);
        assert!(rig.provider.connections() > before);
        Ok(())
    });
}
