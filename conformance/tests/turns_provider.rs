//! A model provider that refuses, fails, breaks off or dawdles: how the Turn ends, what is retried, and that the next
//! Turn works.

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, scenario};
use futures_util::future::try_join_all;
use proto::client::Session;
use proto::v1::event::Kind;
use proto::v1::{self, FailureCode, TurnStatus};

for_each_harness!(
    a_try_that_works_ends_the_trouble,
    a_slow_answer_is_an_answer,
    a_provider_that_does_not_listen_fails_the_turn
);

/// Stands in every body of a failing provider, and must not come out anywhere.
const BODY: &str = "CANARY-OF-A-BODY";

/// How often Codex is told to ask: once, and four times more (R-EVT-10).
const TRIES: u32 = 5;

/// Why what is tried again is looked at for one Harness alone.
const TRYING: &str = "which answers are asked for again, and how often, is each Harness's own";

/// One way to fail.
struct Case {
    /// Names it in the prompt, by which the provider knows the request.
    name: &'static str,
    /// What the provider does.
    play: String,
    /// How many requests it takes until the Turn fails.
    requests: u32,
    code: FailureCode,
    status: Option<u32>,
}

#[test]
fn what_the_provider_refuses_for_good_fails_at_once() {
    let rules = ["R-EVT-3", "R-EVT-5", "R-EVT-10"];
    scenario("provider_refuses", &rules, Setup::outer().only(TRYING), async |rig| {
        let code = |status: u16, code: &str| http(status, &format!(r#", "code": "{code}""#));
        all(
            rig,
            vec![
                case("case-400", http(400, ""), 1, FailureCode::InvalidRequest, None),
                case("case-length", code(400, "context_length_exceeded"), 1, FailureCode::ContextLengthExceeded, None),
                case("case-model", code(404, "model_not_found"), 1, FailureCode::ResourceNotFound, None),
                case("case-429", http(429, ""), 1, FailureCode::RateLimitExceeded, Some(429)),
                case(
                    "case-quota",
                    http(429, r#", "type": "usage_limit_reached""#),
                    1,
                    FailureCode::UsageLimitExceeded,
                    None,
                ),
            ],
        )
        .await
    });
}

#[test]
fn what_may_pass_is_tried_again_and_shown() {
    let rules = ["R-EVT-3", "R-EVT-5", "R-EVT-10"];
    scenario("provider_retried", &rules, Setup::outer().only(TRYING), async |rig| {
        all(
            rig,
            vec![
                case("case-401", http(401, ""), TRIES, FailureCode::AuthenticationError, Some(401)),
                case("case-404", http(404, ""), TRIES, FailureCode::ResourceNotFound, Some(404)),
                case("case-500", http(500, ""), TRIES, FailureCode::ServerError, None),
                case("case-503", http(503, ""), TRIES, FailureCode::ServerError, Some(503)),
            ],
        )
        .await
    });
}

#[test]
fn an_answer_that_breaks_off_is_tried_again_and_its_message_is_void() {
    let rules = ["R-EVT-2", "R-EVT-3", "R-EVT-5", "R-EVT-10"];
    scenario("provider_breaks", &rules, Setup::outer().only(TRYING), async |rig| {
        let half = |end: &str| format!(r#"{{"text": {{"chunks": ["half an ", "answer"], "open": true}}}}, "{end}""#);
        let failed = FailureCode::ConnectionFailed;
        let seen = all_seen(
            rig,
            vec![
                case("case-drop", half("drop"), TRIES, failed, None),
                case("case-close", half("close"), TRIES, failed, None),
                case("case-reset", half("reset"), TRIES, failed, None),
                case("case-refuse", r#""reset""#.into(), TRIES, failed, None),
            ],
        )
        .await?;
        for (seen, messages) in seen.iter().zip([TRIES, TRIES, TRIES, 0]) {
            let discarded: Vec<_> = seen.kinds().filter_map(discarded).collect();
            assert_eq!(discarded.len(), messages as usize, "{:?}", seen.story());
            let retried = discarded.iter().filter(|reason| **reason == v1::DiscardReason::Retried).count();
            assert!(retried + 1 >= discarded.len(), "{discarded:?}");
            assert_eq!(seen.messages(), [""; 0], "no half message is ever completed");
        }
        Ok(())
    });
}

fn a_try_that_works_ends_the_trouble(harness: Harness) {
    scenario("provider_recovers", &["R-EVT-2", "R-EVT-10"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["half an ", "answer"], "open": true}}, "drop"]},
                {"play": [{"http": {"status": 503}}]},
                {"play": [{"http": {"status": 500}}]},
                {"play": [{"text": {"chunks": ["A whole ", "answer"]}},
                          {"complete": {"usage": {"input": 9, "cached": 0, "output": 4, "reasoning": 0}}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["A whole answer"]);
        assert_eq!(seen.kinds().filter_map(discarded).collect::<Vec<_>>(), [v1::DiscardReason::Retried]);
        let retries: Vec<_> = seen.kinds().filter_map(retry).collect();
        assert_eq!(retries.len(), 3, "{retries:?}");
        assert_eq!((retries[0].code(), retries[0].http_status), (FailureCode::ConnectionFailed, None));
        assert_eq!((retries[1].code(), retries[1].http_status), (FailureCode::ServerError, Some(503)));
        // Codex tells no status of a 500 that it tries again, only that the stream broke.
        let last = match harness {
            Harness::Codex => (FailureCode::ConnectionFailed, None),
            Harness::ClaudeCode => (FailureCode::ServerError, Some(500)),
        };
        assert_eq!((retries[2].code(), retries[2].http_status), last);
        assert_eq!(seen.end()?.usage.and_then(|usage| usage.total_tokens), Some(13));
        Ok(())
    });
}

fn a_slow_answer_is_an_answer(harness: Harness) {
    scenario("provider_slow", &["R-EVT-2", "R-EVT-11"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"event_delay_ms": 150, "play": [{"text": {"chunks": ["slow", "ly ", "but ", "surely"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!((seen.messages(), seen.deltas().as_str()), (vec!["slowly but surely"], "slowly but surely"));
        assert_eq!(rig.provider.model_requests().len(), 1);
        Ok(())
    });
}

fn a_provider_that_does_not_listen_fails_the_turn(harness: Harness) {
    scenario("provider_absent", &["R-EVT-5", "R-EVT-10"], Setup::outer().of(harness), async |rig| {
        // A port of loopback that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let session = rig.session().await?;
        let configuration =
            conformance::rig::configuration(rig.kind(), &format!("http://127.0.0.1:{port}/v1"), Vec::new());
        let mut events = rig.start_turn(&session, configuration, "t-1", "hello").await?;
        let seen = Observed::default().to_the_end(&mut events).await?;
        let end = seen.end()?;
        assert_eq!(end.status(), TurnStatus::Failed, "{end:?}");
        let failure = end.failure.clone().unwrap_or_default();
        assert_eq!((failure.code(), failure.http_status), (FailureCode::ConnectionFailed, None), "{failure:?}");
        let retries: Vec<_> = seen.kinds().filter_map(retry).map(v1::ProviderRetry::code).collect();
        assert_eq!(retries, [FailureCode::ConnectionFailed; 4]);
        tells_nothing(&seen)
    });
}

fn case(name: &'static str, play: String, requests: u32, code: FailureCode, status: Option<u32>) -> Case {
    Case { name, play, requests, code, status }
}

/// The API's error object, with a text that names an address and a member that nobody should see.
fn http(status: u16, more: &str) -> String {
    let error = format!(r#"{{"message": "It is so, see https://provider.example/help", "param": "{BODY}"{more}}}"#);
    let body = serde_json::json!(format!(r#"{{"error": {error}}}"#));
    format!(r#"{{"http": {{"status": {status}, "body": {body}}}}}"#)
}

async fn all(rig: &Rig, cases: Vec<Case>) -> anyhow::Result<()> {
    all_seen(rig, cases).await.map(drop)
}

/// Plays each case in a Session of its own, all at once, and checks how the Turn failed and that the next one works.
async fn all_seen(rig: &Rig, cases: Vec<Case>) -> anyhow::Result<Vec<Observed>> {
    for case in &cases {
        rig.provider.script(&format!(
            r#"[{{"match": "{}", "times": {}, "play": [{}]}}]"#,
            case.name, case.requests, case.play
        ))?;
    }
    try_join_all(cases.iter().map(|case| async {
        let session = rig.session().await?;
        let seen = failed(rig, &session, case).await.context(case.name)?;
        let next = rig.whole_turn(&session, "t-2", "and again").await?;
        next.completed().with_context(|| format!("the Turn after {}", case.name))?;
        anyhow::ensure!(next.messages() == ["and again"], "{}: {:?}", case.name, next.messages());
        Ok(seen)
    }))
    .await
}

async fn failed(rig: &Rig, session: &Session, case: &Case) -> anyhow::Result<Observed> {
    let seen = rig.whole_turn(session, "t-1", case.name).await?;
    let end = seen.end()?;
    anyhow::ensure!(end.status() == TurnStatus::Failed && end.cause.is_none(), "it ended so: {end:?}");
    let failure = end.failure.clone().unwrap_or_default();
    let want = (case.code, case.status);
    anyhow::ensure!((failure.code(), failure.http_status) == want, "{failure:?}, not {want:?}");
    anyhow::ensure!(!failure.message.is_empty(), "a failure says something");
    let retries: Vec<_> = seen.kinds().filter_map(retry).collect();
    anyhow::ensure!(retries.len() + 1 == case.requests as usize, "{} retries are shown: {retries:?}", retries.len());
    for retry in retries {
        anyhow::ensure!(retry.http_status == case.status, "{retry:?}");
    }
    let requests = rig.provider.model_requests();
    let asked = requests.iter().filter(|request| request.body.contains(case.name)).count();
    anyhow::ensure!(asked == case.requests as usize, "{asked} requests");
    tells_nothing(&seen)?;
    Ok(seen)
}

/// No address, no body and no key in what is told of a failure (R-EVT-5).
fn tells_nothing(seen: &Observed) -> anyhow::Result<()> {
    let failure = seen.end()?.failure.clone().unwrap_or_default().message;
    let retries = seen.kinds().filter_map(retry).map(|retry| retry.message.clone());
    for text in retries.chain([failure]) {
        for secret in [BODY, "://", "127.0.0.1", "provider.example", conformance::rig::MODEL_KEY] {
            anyhow::ensure!(!text.contains(secret), "{secret:?} is in {text:?}");
        }
    }
    Ok(())
}

fn retry(kind: &Kind) -> Option<&v1::ProviderRetry> {
    if let Kind::ProviderRetry(retry) = kind { Some(retry) } else { None }
}

fn discarded(kind: &Kind) -> Option<v1::DiscardReason> {
    if let Kind::MessageDiscarded(discarded) = kind { Some(discarded.reason()) } else { None }
}
