//! Calls that are open: as many as the model makes, for as long as they like.

use std::time::Duration;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Setup, function, is_long, scenario, text_result};
use proto::v1::{self, ResultOutcome, event::Kind};
use tokio::time::{Instant, timeout_at};

for_each_harness!(many_calls_are_open_at_once, a_result_after_a_long_silence_is_applied);

const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}}}"#;

/// How many calls are open at once.
const CALLS: usize = 24;
/// How long a call is silent.
const SILENCE: Duration = Duration::from_secs(2);
/// The same where there is more time (`RUNTIME_BRIDGE_LONG`).
const LONG_SILENCE: Duration = Duration::from_secs(610);

fn many_calls_are_open_at_once(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::ParallelFunctionCalls);
    scenario("function_many", &["R-FN-1", "R-FN-3", "R-FN-5", "R-FN-6"], setup, async |rig| {
        let ids: Vec<_> = (0..CALLS).map(|number| format!("c{number}")).collect();
        let calls: Vec<_> = ids.iter().map(|id| ("lookup", &**id)).collect();
        let (session, mut events, mut seen) = rig.waiting_turn(vec![function("lookup", SCHEMA)], &calls).await?;
        assert_eq!(session.turn("t-1").await?.required_actions.len(), CALLS);
        let result = |id: &String| text_result("t-1", id, &format!("result of {id}"));
        // The last one first, each on its own, but for the last half, which comes as one batch.
        let (batch, alone) = ids.split_at(CALLS / 2);
        for id in alone.iter().rev() {
            session.submit(vec![result(id)]).await?;
            let applied = |kind: &Kind| match kind {
                Kind::FunctionResultApplied(applied) => Some(applied.call_id.clone()),
                _ => None,
            };
            assert_eq!(seen.until(&mut events, applied).await?, *id);
        }
        let outcomes = session.submit(batch.iter().rev().map(result).collect()).await?;
        assert!(outcomes.iter().all(|one| one.outcome() == ResultOutcome::Accepted), "{outcomes:?}");
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let applied = seen.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_)));
        assert_eq!(applied.count(), CALLS);
        let requests = rig.provider.model_requests();
        let [_, last] = &requests[..] else { anyhow::bail!("{} requests", requests.len()) };
        for id in &ids {
            assert_eq!(last.output(id), Some(format!("result of {id}").into()));
        }
        Ok(())
    });
}

/// Ten minutes with `--long`, which is more than a Harness may be quiet for where nothing is open.
fn a_result_after_a_long_silence_is_applied(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::FunctionTools);
    scenario("function_silent", &["R-FN-8", "R-FN-6", "R-EVT-10"], setup, async |rig| {
        let silence = if is_long() { LONG_SILENCE } else { SILENCE };
        let (session, mut events, mut seen) =
            rig.waiting_turn(vec![function("lookup", SCHEMA)], &[("lookup", "c1")]).await?;
        // Nothing is said of it meanwhile, and nothing ends; what the answer so far has cost may come behind the call.
        let until = Instant::now() + silence;
        while let Ok(event) = timeout_at(until, events.next()).await {
            let event = event?.context("the stream has ended")?;
            anyhow::ensure!(matches!(event.kind, Some(Kind::Usage(_))), "something happened: {event:?}");
            seen.events.push(event);
        }
        assert_eq!(session.turn("t-1").await?.phase(), v1::TurnPhase::RequiresAction);
        session.submit(vec![text_result("t-1", "c1", "at last")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let applied = seen.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_)));
        assert_eq!(applied.count(), 1);
        let last = rig.provider.model_requests().pop().context("no request")?;
        assert_eq!(last.output("c1"), Some("at last".into()));
        Ok(())
    });
}
