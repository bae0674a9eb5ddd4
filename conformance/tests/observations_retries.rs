//! Native retries: each is shown, they wait as the provider asks, and they have a bound.

use std::time::{Duration, Instant};

use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Setup, scenario};
use proto::v1::event::Kind;
use proto::v1::{self, FailureCode, TurnStatus};

for_each_harness!(
    every_retry_that_the_provider_asks_to_wait_for_is_shown,
    retries_that_take_too_long_end_as_what_they_failed_of
);

fn every_retry_that_the_provider_asks_to_wait_for_is_shown(harness: Harness) {
    scenario("retry_after", &["R-EVT-10", "R-EVT-5"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"times": 4, "play": [{"http": {"status": 429, "headers": {"retry-after": "1"}}}]},
                {"play": [{"text": {"chunks": ["At last."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let begun = Instant::now();
        let seen = rig.whole_turn(&session, "t-1", "hurry").await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["At last."]);
        assert_eq!(retries(&seen), [(FailureCode::RateLimitExceeded, Some(429)); 4]);
        assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
        Ok(())
    });
}

fn retries_that_take_too_long_end_as_what_they_failed_of(harness: Harness) {
    let setup = Setup::outer().of(harness).with("limits.retry_ms = 5000\nlimits.interrupt_ms = 15000");
    scenario("retry_limit", &["R-EVT-10", "R-EVT-5", "R-CAN-3"], setup, async |rig| {
        // Claude Code does not try again at all where it is to wait for so long.
        let (times, headers) = match harness {
            Harness::Codex => (1, r#"{"retry-after": "3600"}"#),
            Harness::ClaudeCode => (5, "{}"),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        rig.provider.script(&format!(
            r#"[{{"match": "once", "play": [{{"http": {{"status": 503}}}}]}}, {{"match": "once", "play": [{{"text": {{"chunks": ["Fine."]}}}}]}},
                {{"match": "later", "times": {times}, "play": [{{"http": {{"status": 429, "headers": {headers}}}}}]}}]"#
        ))?;
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "once").await?.completed()?;
        let begun = Instant::now();
        let seen = rig.whole_turn(&session, "t-2", "later").await?;
        assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(seen.story(), ["turn_started", "provider_retry", "turn_ended"]);
        let end = seen.end()?;
        let failure = end.failure.clone().unwrap_or_default();
        assert_eq!((end.status(), end.cause), (TurnStatus::Failed, None));
        assert_eq!((failure.code(), failure.http_status), (FailureCode::RateLimitExceeded, Some(429)));
        // The Harness obeyed, so it goes on.
        rig.provider.reset();
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        assert!(ready.reused);
        rig.turn_with(&session, &ready, "t-3", "and now").await?.completed()
    });
}

fn retries(seen: &Observed) -> Vec<(FailureCode, Option<u32>)> {
    let retry = |kind: &Kind| if let Kind::ProviderRetry(retry) = kind { Some(retry.clone()) } else { None };
    seen.kinds().filter_map(retry).map(|retry: v1::ProviderRetry| (retry.code(), retry.http_status)).collect()
}
