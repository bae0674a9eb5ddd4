//! A Core that was away while a Turn made more events than any memory should hold: it gets all of them, or is told which it does not get, and
//! the daemon did not grow meanwhile (R-EVT-1, R-EVT-8, R-EVT-11).

#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::child::fault::Place;
use conformance::for_each_harness;
use conformance::rig::{Harness, Rig, Setup, is_long, scenario};
use conformance::script::child::{Repeat, Step};
use proto::client::{Session, text_input};
use proto::v1::{self, event::Kind};

for_each_harness!(a_core_that_was_away_gets_what_it_missed, what_a_core_does_not_get_is_said,);

/// The text of one delta; it stays one event. The reports between pipe and file are bounded by their number, so that they are 10 MiB at most.
const DELTA_BYTES: u64 = 8 << 10;
/// What the daemon may take for a Turn beside what it had: the newest events (1 MiB), what is between the pipe and the file, and noise.
const GROWS_KIB: u64 = 24 << 10;

/// What was seen of a Turn.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    deltas: u64,
    bytes: u64,
    /// Events that are said to be omitted.
    omitted: u64,
    last: u64,
}

impl Seen {
    /// Takes the next event: it has the next sequence, or says what stands before it.
    fn take(&mut self, event: &v1::Event) -> anyhow::Result<()> {
        if let Some(Kind::EventsOmitted(omitted)) = &event.kind {
            anyhow::ensure!(omitted.first == self.last + 1 && event.sequence == omitted.last, "a hole: {omitted:?}");
            self.omitted += omitted.last - omitted.first + 1;
        } else {
            anyhow::ensure!(event.sequence == self.last + 1, "{} follows {}", event.sequence, self.last);
        }
        if let Some(Kind::MessageDelta(delta)) = &event.kind {
            self.deltas += 1;
            self.bytes += delta.text.len() as u64;
        }
        self.last = event.sequence;
        Ok(())
    }
}

/// All events; the Core goes away once in the middle, and comes back.
async fn observed(rig: &Rig, session: &Session, middle: u64) -> anyhow::Result<(Seen, v1::TurnEnded)> {
    let client = rig.client().await?;
    let observe = |after| client.observe(session.assignment().clone(), "t-1", after);
    let (mut events, mut seen, mut end) = (observe(0), Seen::default(), None);
    while let Some(event) = events.next().await? {
        anyhow::ensure!(end.is_none(), "an event behind the end");
        seen.take(&event)?;
        if event.sequence == middle {
            events = observe(middle);
        }
        if let Some(Kind::TurnEnded(ended)) = event.kind {
            end = Some(ended);
        }
    }
    Ok((seen, end.context("no end")?))
}

async fn flood(rig: &Rig, mebibytes: u64) -> anyhow::Result<Seen> {
    let count = (mebibytes << 20) / DELTA_BYTES;
    let harness = rig.kind();
    let delta = harness.delta(&format!("${{fill:{DELTA_BYTES}}}"));
    let burst = Step::Repeat(Repeat { times: count, steps: vec![delta] });
    let child = rig.child.clone().context("a child")?;
    rig.whole_turn(&rig.session().await?, "t-0", "hello").await?.completed()?;
    child.play(harness.with_steps(Place::InMessage, &[burst]))?;
    let session = rig.session().await?;
    let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
    let base = rig.footprint()?;
    session.start(&ready, "t-1", text_input("hello")).await?;
    // Nobody observes.
    let begun = Instant::now();
    let mut most = base.memory_kib;
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    while session.turn("t-1").await?.ended.is_none() {
        most = most.max(rig.footprint()?.memory_kib);
        looks.tick().await;
    }
    let wrote = begun.elapsed();
    let begun = Instant::now();
    let (seen, end) = observed(rig, &session, count / 2).await?;
    let read = begun.elapsed();
    most = most.max(rig.footprint()?.memory_kib);
    println!(
        "{mebibytes} MiB of events: written in {wrote:?}, read in {read:?}; {base} before, {most} KiB at most; {seen:?}"
    );
    anyhow::ensure!(end.status() == v1::TurnStatus::Completed, "{end:?}");
    anyhow::ensure!(most <= base.memory_kib + GROWS_KIB, "memory grows from {base} to {most} KiB");
    anyhow::ensure!(seen.deltas + seen.omitted >= count + 2, "{seen:?} of {count} deltas");
    // Whoever asks again is told the same.
    anyhow::ensure!(observed(rig, &session, 1).await?.0 == seen, "the second time it is something else");
    Ok(seen)
}

fn a_core_that_was_away_gets_what_it_missed(harness: Harness) {
    let mebibytes = if is_long() { 512 } else { 32 };
    scenario("flood", &["R-EVT-1", "R-EVT-8", "R-EVT-11"], Setup::child_of(harness), async |rig| {
        let seen = flood(rig, mebibytes).await?;
        anyhow::ensure!(seen.omitted == 0, "{seen:?}");
        Ok(())
    });
}

/// Past the bound of the Turn's file, and below twice of it.
fn what_a_core_does_not_get_is_said(harness: Harness) {
    let mebibytes = if is_long() { 384 } else { 24 };
    let setup = Setup::child_of(harness).with(&format!("limits.turn_log_bytes = {}", (mebibytes << 20) * 2 / 3));
    scenario("flood_bounded", &["R-EVT-1", "R-EVT-8", "R-DUR-4"], setup, async |rig| {
        let seen = flood(rig, mebibytes).await?;
        anyhow::ensure!(seen.omitted > 0, "{seen:?}");
        let kept = (mebibytes << 20) / 2;
        anyhow::ensure!(seen.bytes > kept, "less is kept than the bound allows: {seen:?}");
        Ok(())
    });
}
