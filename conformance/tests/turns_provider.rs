//! A model provider that refuses, fails, breaks off or dawdles: how the Turn ends, what is retried, and that the next
//! Turn works.

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, scenario};
use futures_util::future::try_join_all;
use proto::v1::event::Kind;
use proto::v1::{self, FailureCode, TurnStatus};

for_each_harness!(
    what_the_provider_refuses_for_good_fails_at_once,
    what_may_pass_is_tried_again_and_shown,
    an_answer_that_breaks_off_is_tried_again_and_its_message_is_void,
    a_try_that_works_ends_the_trouble,
    a_slow_answer_is_an_answer,
    a_provider_that_does_not_listen_fails_the_turn
);

/// Stands in every body of a failing provider, and must not come out anywhere.
const BODY: &str = "CANARY-OF-A-BODY";

/// How often a Harness is told to ask: once, and four times more (R-EVT-10).
const TRIES: u32 = 5;

/// In how many Sessions at once the ways to fail are played: retries wait for most of their time.
const SESSIONS: usize = 2;

/// One way to fail.
struct Case {
    /// Names it in the prompt, by which the provider knows the request.
    name: &'static str,
    /// What the provider does.
    play: String,
    /// How many requests it takes until the Turn fails.
    requests: u32,
    /// How many of them are shown as tries.
    shown: u32,
    code: FailureCode,
    status: Option<u32>,
}

fn what_the_provider_refuses_for_good_fails_at_once(harness: Harness) {
    let rules = ["R-EVT-3", "R-EVT-5", "R-EVT-10"];
    scenario("provider_refuses", &rules, Setup::outer().of(harness), async |rig| {
        let code = |status: u16, code: &str| http(status, &format!(r#", "code": "{code}""#));
        let of = |kind: &str| format!(r#", "type": "{kind}""#);
        all(
            rig,
            match harness {
                // It has no status where it has a class.
                Harness::Codex => vec![
                    case("case-400", http(400, ""), 1, FailureCode::InvalidRequest, None),
                    case(
                        "case-length",
                        code(400, "context_length_exceeded"),
                        1,
                        FailureCode::ContextLengthExceeded,
                        None,
                    ),
                    case("case-model", code(404, "model_not_found"), 1, FailureCode::ResourceNotFound, None),
                    case("case-429", http(429, ""), 1, FailureCode::RateLimitExceeded, Some(429)),
                    case("case-quota", http(429, &of("usage_limit_reached")), 1, FailureCode::UsageLimitExceeded, None),
                ],
                // Behind some of them it asks again in other words, of which it says nothing. The first two it gets over in a conversation that
                // has something to be left out, so that each begins one.
                Harness::ClaudeCode => vec![
                    case("case-413", http(413, ""), 1, FailureCode::InvalidRequest, Some(413)),
                    case(
                        "case-length",
                        r#"{"http": {"status": 400, "code": "context_length_exceeded"}}"#.into(),
                        1,
                        FailureCode::ContextLengthExceeded,
                        Some(400),
                    ),
                    Case { shown: 0, ..case("case-400", http(400, ""), 6, FailureCode::InvalidRequest, Some(400)) },
                    case("case-403", http(403, ""), 1, FailureCode::AuthenticationError, Some(403)),
                    Case { shown: 0, ..case("case-404", http(404, ""), 2, FailureCode::ResourceNotFound, Some(404)) },
                ],
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            },
        )
        .await
    });
}

fn what_may_pass_is_tried_again_and_shown(harness: Harness) {
    let rules = ["R-EVT-3", "R-EVT-5", "R-EVT-10"];
    scenario("provider_retried", &rules, Setup::outer().of(harness), async |rig| {
        let tried =
            |name, status, code, told: bool| case(name, http(status, ""), TRIES, code, told.then_some(status.into()));
        all(
            rig,
            match harness {
                Harness::Codex => vec![
                    tried("case-401", 401, FailureCode::AuthenticationError, true),
                    tried("case-404", 404, FailureCode::ResourceNotFound, true),
                    tried("case-500", 500, FailureCode::ServerError, false),
                    tried("case-503", 503, FailureCode::ServerError, true),
                ],
                Harness::ClaudeCode => vec![
                    tried("case-401", 401, FailureCode::AuthenticationError, true),
                    tried("case-429", 429, FailureCode::RateLimitExceeded, true),
                    tried("case-500", 500, FailureCode::ServerError, true),
                    tried("case-529", 529, FailureCode::ServerOverloaded, true),
                ],
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            },
        )
        .await
    });
}

fn an_answer_that_breaks_off_is_tried_again_and_its_message_is_void(harness: Harness) {
    let rules = ["R-EVT-2", "R-EVT-3", "R-EVT-5", "R-EVT-10"];
    scenario("provider_breaks", &rules, Setup::outer().of(harness), async |rig| {
        let half = |end: &str| format!(r#"{{"text": {{"chunks": ["half an ", "answer"], "open": true}}}}, "{end}""#);
        // Claude Code asks once more, for the answer in one piece.
        let more = u32::from(harness == Harness::ClaudeCode);
        let broken = |name, play| Case {
            shown: TRIES - 1,
            ..case(name, play, TRIES + more, FailureCode::ConnectionFailed, None)
        };
        let seen = all_seen(
            rig,
            vec![
                broken("case-drop", half("drop")),
                match harness {
                    Harness::Codex => broken("case-close", half("close")),
                    // It gives up streams earlier, and in one piece that answer has no body.
                    Harness::ClaudeCode => {
                        Case { shown: 1, ..case("case-close", half("close"), 3, FailureCode::ServerError, None) }
                    }
                    Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
                },
                broken("case-reset", half("reset")),
                Case { requests: TRIES, ..broken("case-refuse", r#""reset""#.into()) },
            ],
        )
        .await?;
        // Each half message is void. Of one that is over properly everything was read: Claude Code has two streams of it, and the third answer is
        // whole. Where the connection breaks, Claude Code drops what it has received and not looked at, so how many of its halves are seen varies;
        // `provider_recovers` has one that was seen before it breaks.
        let halves = match harness {
            Harness::Codex => [TRIES..=TRIES, TRIES..=TRIES, TRIES..=TRIES, 0..=0],
            Harness::ClaudeCode => [0..=TRIES, 2..=2, 0..=TRIES, 0..=0],
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        for (seen, halves) in seen.iter().zip(halves) {
            let discarded: Vec<_> = seen.kinds().filter_map(discarded).collect();
            assert!(halves.contains(&u32::try_from(discarded.len())?), "{halves:?}: {:?}", seen.story());
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
            r#"[{"play": [{"text": {"chunks": ["half an ", "answer"], "open": true}}, {"gate": "seen"}, "drop"]},
                {"play": [{"http": {"status": 503}}]},
                {"play": [{"http": {"status": 500}}]},
                {"play": [{"text": {"chunks": ["A whole ", "answer"]}},
                          {"complete": {"usage": {"input": 9, "cached": 0, "output": 4, "reasoning": 0}}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "hello").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        rig.provider.open_gate("seen");
        let seen = seen.to_the_end(&mut events).await?;
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
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        assert_eq!((retries[2].code(), retries[2].http_status), last);
        let total = seen.end()?.usage.and_then(|usage| usage.total_tokens);
        match harness {
            Harness::Codex => assert_eq!(total, Some(13)),
            // It counts what it saw of the answer that broke off, too.
            Harness::ClaudeCode => assert!(total > Some(13), "{total:?}"),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        }
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
        // A port of loopback that the daemon allows, that is ours, and on which nobody listens: one that is only free may be another test's by now.
        let port = rig.give_way().await?;
        let taken = tokio::net::TcpSocket::new_v4()?;
        taken.set_reuseaddr(true)?;
        taken.bind(([127, 0, 0, 1], port).into())?;
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
    Case { name, play, requests, shown: requests - 1, code, status }
}

/// The API's error object, with a text that names an address and a member that nobody should see.
fn http(status: u16, more: &str) -> String {
    let error = format!(r#"{{"message": "It is so, see https://provider.example/help", "param": "{BODY}"{more}}}"#);
    let body = serde_json::json!(format!(r#"{{"type": "error", "error": {error}}}"#));
    format!(r#"{{"http": {{"status": {status}, "body": {body}}}}}"#)
}

async fn all(rig: &Rig, cases: Vec<Case>) -> anyhow::Result<()> {
    all_seen(rig, cases).await.map(drop)
}

/// Plays the cases in a few Sessions, one after the other in each, and checks how the Turn failed and that the next one works.
async fn all_seen(rig: &Rig, cases: Vec<Case>) -> anyhow::Result<Vec<Observed>> {
    for case in &cases {
        rig.provider.script(&format!(
            r#"[{{"match": "{}", "times": {}, "play": [{}]}}]"#,
            case.name, case.requests, case.play
        ))?;
    }
    let cases = &cases;
    let mut seen: Vec<_> = try_join_all((0..SESSIONS).map(|first| async move {
        let session = rig.session().await?;
        let mut seen = Vec::new();
        for (n, case) in cases.iter().enumerate().skip(first).step_by(SESSIONS) {
            let observed = rig.whole_turn(&session, &format!("t-{n}"), case.name).await?;
            failed(rig, &observed, case).context(case.name)?;
            let next = rig.whole_turn(&session, &format!("t-{n}-next"), "and again").await?;
            next.completed().with_context(|| format!("the Turn after {}", case.name))?;
            anyhow::ensure!(next.messages() == ["and again"], "{}: {:?}", case.name, next.messages());
            seen.push((n, observed));
        }
        anyhow::Ok(seen)
    }))
    .await?
    .concat();
    seen.sort_by_key(|(n, _)| *n);
    Ok(seen.into_iter().map(|(_, observed)| observed).collect())
}

fn failed(rig: &Rig, seen: &Observed, case: &Case) -> anyhow::Result<()> {
    let end = seen.end()?;
    anyhow::ensure!(end.status() == TurnStatus::Failed && end.cause.is_none(), "it ended so: {end:?}");
    let failure = end.failure.clone().unwrap_or_default();
    let want = (case.code, case.status);
    anyhow::ensure!((failure.code(), failure.http_status) == want, "{failure:?}, not {want:?}");
    anyhow::ensure!(!failure.message.is_empty(), "a failure says something");
    let retries: Vec<_> = seen.kinds().filter_map(retry).collect();
    anyhow::ensure!(retries.len() == case.shown as usize, "{} retries are shown: {retries:?}", retries.len());
    for retry in retries {
        anyhow::ensure!(retry.http_status == case.status, "{retry:?}");
    }
    let requests = rig.provider.model_requests();
    let asked = requests.iter().filter(|request| request.body.contains(case.name)).count();
    anyhow::ensure!(asked == case.requests as usize, "{asked} requests");
    tells_nothing(seen)
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
