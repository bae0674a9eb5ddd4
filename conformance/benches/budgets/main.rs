//! Measures the daemon against its budgets (contract, section 15): `cargo build --release --workspace --bins && cargo bench -p conformance`.
//!
//! It prints figures and judges nothing: a machine that does something else at the time would fail for no fault of the daemon.

#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use conformance::rig::{Rig, Setup, Stands, function, program, text_result};
use hdrhistogram::Histogram;
use proto::{client::Session, v1};
use tokio::task::JoinSet;

mod child;
mod gateway;
mod links;
mod transport;

/// Argument under which this program is the Harness.
const CHILD: &str = "--as-harness";

fn main() -> anyhow::Result<()> {
    if std::env::args().any(|argument| argument == CHILD) {
        return if std::env::args().any(|argument| argument == "--version") {
            println!("codex-cli 0.171.0");
            Ok(())
        } else {
            child::serve()
        };
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measure())
}

async fn measure() -> anyhow::Result<()> {
    let folder = tempdir()?;
    let harness = folder.join("codex");
    let this = std::env::current_exe()?;
    fs::write(&harness, format!("#!/bin/sh\nexec '{}' {CHILD} \"$@\"\n", this.display()))?;
    fs::set_permissions(&harness, fs::Permissions::from_mode(0o755))?;

    println!("{:<52} {:>10} {:>10} {:>12}", "what", "p50", "p99", "budget");
    let daemon = program("runtime-bridge")?.metadata()?.len();
    row("daemon binary, not stripped", &format!("{} MB", daemon >> 20), "", "15 MB stripped");

    let provider = gateway::Provider::start().await?;
    let more = format!("max_executors = 100\nallow_origins = [{:?}, \"{{origin}}\"]\n", provider.origin()?);
    let setup = Setup { stands: Stands::At(harness.clone()), more, ..Setup::outer() };
    let rig = Rig::start(setup).await?;
    row("idle daemon", &format!("{} KB", memory(rig.daemon.pid())?), "", "10 MB");
    sessions(&rig).await?;
    print("a message of a bare gRPC stream, 1 a ms", &transport::stream(&folder).await?, "");
    first_call(&rig).await?;
    latency(&rig).await?;
    burst(&rig, "burst of 50,000 events, none lost").await?;
    exit(&rig).await?;
    receipts(&rig).await?;
    gateway::measure(&rig, provider).await?;
    println!("* above the transport's own figure");
    rig.finish().await?;
    links::measure(Setup { stands: Stands::At(harness), ..Setup::outer() }).await?;
    fs::remove_dir_all(folder)?;
    Ok(())
}

/// Memory of a bound Session without an Executor.
async fn sessions(rig: &Rig) -> anyhow::Result<()> {
    const COUNT: u64 = 200;
    let before = memory(rig.daemon.pid())?;
    let mut all = Vec::new();
    for _ in 0..COUNT {
        all.push(rig.session().await?);
    }
    let each = memory(rig.daemon.pid())?.saturating_sub(before) / COUNT;
    row("idle Session in the daemon", &format!("{each} KB"), "", "100 KB");
    Ok(())
}

/// From the request to prepare, process start included, to the receipt of the first answered call.
async fn first_call(rig: &Rig) -> anyhow::Result<()> {
    let mut times = histogram();
    for round in 0..30 {
        let session = rig.session().await?;
        let begun = Instant::now();
        let ready = session.prepare(rig.configuration(vec![function("f", r#"{"type":"object"}"#)]), Vec::new()).await?;
        let turn_id = format!("first-{round}");
        session.start(&ready, &turn_id, proto::client::text_input("calls 1")).await?;
        let mut events = session.turn_events(&turn_id);
        while let Some(event) = events.next().await? {
            match event.kind {
                Some(v1::event::Kind::FunctionCall(call)) => {
                    session.submit(vec![text_result(&turn_id, &call.call_id, "42")]).await?;
                }
                Some(v1::event::Kind::FunctionResultApplied(_)) => times.record(nanos(begun.elapsed()))?,
                _ => {}
            }
        }
        session.release(true).await?;
    }
    print("spawn to first answered call", &times, "15 ms");
    Ok(())
}

/// From the Harness's write to the event at Core.
async fn latency(rig: &Rig) -> anyhow::Result<()> {
    let mut times = histogram();
    deltas(rig, "deltas 3000 1000", &mut times).await?;
    print("line in the pipe -> event at Core, 1 a ms", &times, "150 us/1 ms*");
    Ok(())
}

/// 50,000 events as fast as they come.
async fn burst(rig: &Rig, what: &str) -> anyhow::Result<()> {
    let mut times = histogram();
    let begun = Instant::now();
    let seen = deltas(rig, "deltas 50000 0", &mut times).await?;
    let took = begun.elapsed();
    anyhow::ensure!(seen == 50_000, "{seen} of 50000 events came");
    let rate = 50_000.0 / took.as_secs_f64();
    row(what, &format!("{rate:.0}/s"), "", "100,000/s");
    Ok(())
}

async fn deltas(rig: &Rig, input: &str, times: &mut Histogram<u64>) -> anyhow::Result<usize> {
    let (session, turn_id) = begin(rig, "deltas", input).await?;
    let mut events = session.turn_events(&turn_id);
    let mut seen = 0;
    while let Some(event) = events.next().await? {
        if let Some(v1::event::Kind::MessageDelta(delta)) = event.kind {
            seen += 1;
            times.record(child::now().saturating_sub(delta.text.parse()?).max(1))?;
        }
    }
    session.release(true).await?;
    Ok(seen)
}

/// From the last write of a Harness that exits to the end of the Turn at Core.
async fn exit(rig: &Rig) -> anyhow::Result<()> {
    let mut times = histogram();
    for _ in 0..20 {
        let (session, turn_id) = begin(rig, "exit", "exit").await?;
        let mut events = session.turn_events(&turn_id);
        let mut stamp = 0;
        while let Some(event) = events.next().await? {
            match event.kind {
                Some(v1::event::Kind::MessageDelta(delta)) => stamp = delta.text.parse()?,
                Some(v1::event::Kind::TurnEnded(_)) => times.record(child::now().saturating_sub(stamp))?,
                _ => {}
            }
        }
        session.release(true).await?;
    }
    print("exit of a Harness -> turn_ended", &times, "1 s, 50 ms");
    Ok(())
}

/// 64 Sessions ask at once for what is stored: events that are acknowledged while nothing else happens, and results that their Harnesses wait for.
async fn receipts(rig: &Rig) -> anyhow::Result<()> {
    const WRITERS: usize = 64;
    const ROUNDS: u64 = 40;
    let configuration = rig.configuration(vec![function("f", r#"{"type":"object"}"#)]);
    let mut sessions = Vec::new();
    for _ in 0..WRITERS {
        let session = rig.session().await?;
        let ready = session.prepare(configuration.clone(), Vec::new()).await?;
        session.start(&ready, "said", proto::client::text_input(format!("deltas {ROUNDS} 0"))).await?;
        let mut events = session.turn_events("said");
        while events.next().await?.is_some() {}
        sessions.push(Arc::new(session));
    }
    let nothing = at_once(&sessions, |session| async move {
        let mut times = histogram();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            session.turn("said").await?;
            times.record(nanos(begun.elapsed()))?;
        }
        Ok(times)
    });
    print("a call that writes nothing, 64 Sessions", &nothing.await?, "");
    let acknowledged = at_once(&sessions, |session| async move {
        let mut times = histogram();
        for sequence in 1..=ROUNDS {
            let begun = Instant::now();
            session.acknowledge("said", sequence).await?;
            times.record(nanos(begun.elapsed()))?;
        }
        Ok(times)
    });
    print("durable receipt, 64 Sessions", &acknowledged.await?, "0.5/10 ms*");
    let answered = at_once(&sessions, |session| {
        let configuration = configuration.clone();
        async move {
            let mut times = histogram();
            let ready = session.prepare(configuration, Vec::new()).await?;
            session.start(&ready, "calls", proto::client::text_input(format!("calls {ROUNDS}"))).await?;
            let mut events = session.turn_events("calls");
            while let Some(event) = events.next().await? {
                if let Some(v1::event::Kind::FunctionCall(call)) = event.kind {
                    let begun = Instant::now();
                    session.submit(vec![text_result("calls", &call.call_id, "42")]).await?;
                    times.record(nanos(begun.elapsed()))?;
                }
            }
            Ok(times)
        }
    });
    print("result of a call, 64 Harnesses at work", &answered.await?, "");
    Ok(())
}

/// Does the same on all Sessions at once, and puts their times together.
async fn at_once<F>(sessions: &[Arc<Session>], each: impl Fn(Arc<Session>) -> F) -> anyhow::Result<Histogram<u64>>
where
    F: Future<Output = anyhow::Result<Histogram<u64>>> + Send + 'static,
{
    let mut tasks: JoinSet<_> = sessions.iter().map(|session| each(Arc::clone(session))).collect();
    let mut times = histogram();
    while let Some(done) = tasks.join_next().await {
        times.add(done??)?;
    }
    Ok(times)
}

async fn begin(rig: &Rig, turn_id: &str, input: &str) -> anyhow::Result<(Session, String)> {
    let session = rig.session().await?;
    let ready = session.prepare(rig.configuration(Vec::new()), Vec::new()).await?;
    session.start(&ready, turn_id, proto::client::text_input(input)).await?;
    Ok((session, turn_id.to_owned()))
}

fn histogram() -> Histogram<u64> {
    // 1 ns to 100 s with three digits always fit.
    Histogram::new_with_bounds(1, 100_000_000_000, 3)
        .unwrap_or_else(|_| Histogram::new(3).unwrap_or_else(|_| unreachable!()))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn print(what: &str, times: &Histogram<u64>, budget: &str) {
    let at = |quantile| format!("{:.0} us", times.value_at_quantile(quantile) as f64 / 1000.0);
    row(what, &at(0.5), &at(0.99), budget);
}

fn row(what: &str, p50: &str, p99: &str, budget: &str) {
    println!("{what:<52} {p50:>10} {p99:>10} {budget:>12}");
}

/// Resident memory of a process in KB.
fn memory(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.split_whitespace().next().unwrap_or_default().parse()?)
}

fn tempdir() -> anyhow::Result<std::path::PathBuf> {
    let target = std::env::current_exe()?;
    let folder = target.parent().unwrap_or(Path::new(".")).join(format!("bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
