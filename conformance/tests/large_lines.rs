//! Long lines of many Harnesses at once (R-EVT-12): half of one takes no memory, and whole ones are looked at one after the other.

use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::child::fault::Place;
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, scenario};
use conformance::script::child::{Bytes, Step};
use proto::client::text_input;

for_each_harness!(long_lines_of_many_sessions_take_bounded_memory);

/// A figure of the daemon's memory, in MiB.
fn memory(rig: &Rig, figure: &str) -> anyhow::Result<usize> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", rig.daemon.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix(figure)).context("no such figure")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? >> 10)
}

/// How many lines of how many bytes. With `RUNTIME_BRIDGE_LONG` they are nearly as long as a line may be.
fn size() -> (usize, usize) {
    if std::env::var_os("RUNTIME_BRIDGE_LONG").is_some() { (8, 60 << 20) } else { (4, 12 << 20) }
}

fn bytes(text: String) -> Step {
    Step::Bytes(Bytes { text: Some(text), ..Bytes::default() })
}

fn long_lines_of_many_sessions_take_bounded_memory(harness: Harness) {
    let setup = Setup::child_of(harness);
    let rules = ["R-EVT-12", "R-EVT-8", "R-API-7"];
    scenario("large_lines", &rules, setup.with("max_executors = 40"), async |rig| {
        let (sessions, length) = size();
        let child = rig.child.clone().context("a child")?;
        rig.whole_turn(&rig.session().await?, "t-1", "hello").await?.completed()?;
        let before = memory(rig, "VmRSS:")?;
        let mut running = Vec::new();
        for number in 0..sessions {
            let (head, tail) = harness.cut_delta();
            let steps = [
                bytes(format!("{head}${{fill:{length}}}")),
                Step::Mark(format!("half-{number}")),
                Step::Gate("go".into()),
                bytes(tail + "\n"),
            ];
            child.play(harness.with_steps(Place::InMessage, &steps))?;
            let session = rig.session().await?;
            let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
            session.start(&ready, "t-1", text_input("talk")).await?;
            child.wait_for_mark(&format!("half-{number}")).await?;
            running.push(session);
        }
        let half = memory(rig, "VmRSS:")?.saturating_sub(before);
        // A line in the making has 1 MiB in memory and what a read adds to it.
        assert!(half < 4 * sessions + 16, "{half} MiB for {sessions} halves of {length} bytes");
        let begun = Instant::now();
        child.open_gate("go")?;
        for session in &running {
            let seen = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
            seen.completed()?;
            assert_eq!(seen.deltas().len(), "Let me look.All is well.".len() + length);
        }
        let most = memory(rig, "VmHWM:")?.saturating_sub(before);
        let took = begun.elapsed();
        assert!(most < 1024, "{most} MiB for {sessions} lines of {length} bytes");
        assert!(took < Duration::from_secs(50), "{took:?}");
        note(&format!("{sessions} lines of {length} bytes: halves {half} MiB, at most {most} MiB, {took:?}"));
        Ok(())
    });
}

/// For the figures in the documents.
fn note(text: &str) {
    eprintln!("{text}");
}
