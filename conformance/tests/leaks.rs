//! Nothing is left over: after many Turns one after the other, after many Sessions at once, and after streams that nobody reads, the daemon has
//! the descriptors, threads, memory and children that it had before (R-CAN-4, R-EVT-8, R-API-8).

#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Footprint, Harness, Observed, Rig, Setup, is_long, scenario};
use futures_util::future::try_join_all;
use proto::client::text_input;
use proto::v1::{self, ReleaseOutcome, event::Kind};
use tokio::time;

for_each_harness!(
    two_hundred_turns_on_one_session_leave_nothing,
    turns_of_the_real_harness_leave_nothing,
    thirty_two_sessions_at_once_leave_nothing,
    sessions_of_the_real_harness_at_once_leave_nothing,
);

/// Why one Harness is enough for streams.
const OWN: &str = "observers read the bridge and not the Harness";

/// How long what ended may take to be gone.
const SETTLES: Duration = Duration::from_secs(15);
/// Growth of memory that is none: pages of the journal's cache and of the allocator, which come once.
const NOISE_KIB: u64 = 8 << 10;
/// Threads for blocking work end when they had none for ten seconds; so many more are no leak.
const IDLE_THREADS: u64 = 12;
/// An idle Session in the daemon (contract, section 15).
const SESSION_KIB: u64 = 100;

/// Waits until the daemon has no more descriptors than this, and gives what it has.
async fn settled(rig: &Rig, descriptors: usize) -> anyhow::Result<Footprint> {
    let limit = Instant::now() + SETTLES;
    let mut looks = time::interval(Duration::from_millis(20));
    loop {
        let now = rig.footprint()?;
        if now.descriptors <= descriptors {
            return Ok(now);
        }
        anyhow::ensure!(Instant::now() < limit, "{now}, and there should be {descriptors} descriptors");
        looks.tick().await;
    }
}

/// 200 Turns of one Session; what they have at the fiftieth is compared with the end.
async fn turns(rig: &Rig, prompt: &str) -> anyhow::Result<()> {
    let session = rig.session().await?;
    let mut early = None;
    let mut children = Vec::new();
    for number in 1..=200 {
        let seen = rig.whole_turn(&session, &format!("t-{number}"), prompt).await?;
        seen.completed().with_context(|| format!("Turn {number}"))?;
        session.acknowledge(&format!("t-{number}"), seen.events.len() as u64).await?;
        if number == 50 {
            children = rig.family()?;
            early = Some(rig.footprint()?);
        }
    }
    let early = early.context("no Turn")?;
    let late = settled(rig, early.descriptors).await?;
    println!("Turn  50: {early}\nTurn 200: {late}");
    anyhow::ensure!(late.threads <= early.threads + IDLE_THREADS, "threads grow from {early} to {late}");
    anyhow::ensure!(late.memory_kib <= early.memory_kib + NOISE_KIB, "memory grows from {early} to {late}");
    rig.only(&children).await?;
    session.release(true).await?;
    rig.only(&[]).await
}

fn two_hundred_turns_on_one_session_leave_nothing(harness: Harness) {
    scenario("leak_turns", &["R-CAN-4", "R-EVT-8"], Setup::child_of(harness), async |rig| turns(rig, "hello").await);
}

/// The same with the real Harness, where there is time; else a few, so that the way is walked.
fn turns_of_the_real_harness_leave_nothing(harness: Harness) {
    scenario("leak_turns_real", &["R-CAN-4", "R-EVT-8"], Setup::outer().of(harness), async |rig| {
        if is_long() {
            return turns(rig, "hello").await;
        }
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-0", "hello").await?.completed()?;
        let (base, children) = (rig.footprint()?, rig.family()?);
        for number in 1..=10 {
            rig.whole_turn(&session, &format!("t-{number}"), "hello").await?.completed()?;
        }
        settled(rig, base.descriptors).await?;
        rig.only(&children).await
    });
}

/// So many Sessions prepare, do a Turn with a command, and are released, all at once.
async fn wave(rig: &Rig, count: usize) -> anyhow::Result<()> {
    let one = async |number: usize| -> anyhow::Result<()> {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "run it").await.with_context(|| format!("Session {number}"))?;
        seen.completed()?;
        let released = session.release(true).await?;
        anyhow::ensure!(released.outcome() == ReleaseOutcome::Confirmed, "{released:?}");
        Ok(())
    };
    try_join_all((0..count).map(one)).await.map(drop)
}

async fn waves(rig: &Rig, count: usize) -> anyhow::Result<()> {
    // Connections of our own end with their Sessions.
    rig.whole_turn(&rig.session().await?, "t-1", "hello").await?.completed()?;
    let (base, children) = (rig.footprint()?, rig.family()?);
    wave(rig, count).await?;
    let first = settled(rig, base.descriptors).await?;
    rig.only(&children).await?;
    wave(rig, count).await?;
    let second = settled(rig, base.descriptors).await?;
    rig.only(&children).await?;
    println!("before:   {base}\nonce {count:>2}:  {first}\ntwice {count:>2}: {second}");
    let grown = second.memory_kib.saturating_sub(first.memory_kib);
    let allowed = NOISE_KIB + SESSION_KIB * count as u64;
    anyhow::ensure!(grown <= allowed, "memory grows by {grown} KiB with {count} Sessions: {first}, {second}");
    Ok(())
}

fn thirty_two_sessions_at_once_leave_nothing(harness: Harness) {
    let setup = Setup::child_of(harness).with("max_executors = 40\nlimits.harness_start_ms = 50000");
    scenario("leak_sessions", &["R-CAN-4", "R-ASG-4", "R-PRE-3"], setup, async |rig| waves(rig, 32).await);
}

fn sessions_of_the_real_harness_at_once_leave_nothing(harness: Harness) {
    let setup = Setup::outer().of(harness).with("max_executors = 40\nlimits.harness_start_ms = 50000");
    scenario("leak_sessions_real", &["R-CAN-4", "R-ASG-4", "R-PRE-3"], setup, async |rig| {
        let shell = r#"[{"always": true, "match": "run it", "play": ["mock"]}]"#;
        rig.provider.script(shell)?;
        waves(rig, if is_long() { 32 } else { 8 }).await
    });
}

/// A Core that opens streams and drops them costs nothing and disturbs nobody.
#[test]
fn a_thousand_streams_that_are_dropped_leave_nothing() {
    scenario("leak_streams", &["R-API-8", "R-EVT-1", "R-EVT-8", "R-EVT-11"], Setup::outer().bridge(OWN), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["one ", "two "]}}, {"gate": "go"}, {"text": {"chunks": ["three"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "count").await?;
        let mut seen = Observed::default();
        for _ in 0..2 {
            seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        }
        let base = rig.footprint()?;
        let request = v1::ObserveTurnRequest {
            assignment: Some(session.assignment().clone()),
            turn_id: "t-1".into(),
            after_sequence: 0,
        };
        let client = rig.client().await?;
        for round in 0..1000 {
            let mut stream = client.observe_turn(request.clone()).await?;
            // One in four reads something, the others do not even look.
            if round % 4 == 0 {
                stream.next().await?.context("no answer")?;
            }
        }
        // And many that are held open and never read, and all go at once.
        let held = try_join_all((0..32).map(|_| client.observe_turn(request.clone()))).await?;
        let turn = session.turn("t-1").await?;
        anyhow::ensure!(turn.ended.is_none(), "{turn:?}");
        drop((held, client));
        let after = settled(rig, base.descriptors).await?;
        println!("before: {base}\nafter:  {after}");
        anyhow::ensure!(after.memory_kib <= base.memory_kib + NOISE_KIB, "memory grows from {base} to {after}");
        rig.provider.open_gate("go");
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        session.start(&ready, "t-2", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-2")).await?.completed()
    });
}
