//! A Harness that says far more than anybody keeps, and a Core that comes back late (R-EVT-8): the daemon's memory stays where it was, and Core is
//! told what it does not get.

use std::fs;

use anyhow::Context;
use conformance::child::codex::{self, Place};
use conformance::rig::{Codex, Observed, Rig, Setup, scenario};
use conformance::script::child::{Repeat, Step};
use proto::client::text_input;
use proto::v1::{self, event::Kind};
use serde_json::json;
use serde_json::value::to_raw_value;

/// Deltas of 64 KiB: 128 MiB together.
const DELTAS: u64 = 2048;
/// Bytes of one.
const DELTA: u64 = 64 << 10;
/// Bytes of the file before deltas are omitted.
const KEPT: u64 = 16 << 20;
/// What the daemon may have more in memory than before: far below what went through it.
const MEMORY: u64 = 48 << 20;

/// The most memory that the daemon ever had, in bytes.
fn peak(rig: &Rig) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", rig.daemon.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no peak")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

#[test]
fn a_core_that_comes_back_after_a_flood_gets_what_the_bounds_promise() {
    let setup = Setup {
        codex: Codex::Faulty(Box::new(codex::healthy())),
        more: format!("limits.turn_log_bytes = {KEPT}"),
        ..Setup::default()
    };
    scenario("flood", &["R-EVT-8", "R-EVT-1", "R-EVT-2"], setup, async |rig| {
        let delta = json!({"method": "item/agentMessage/delta", "params": {
            "threadId": "${thread}", "turnId": "${turn}", "itemId": "msg_1", "delta": format!("${{fill:{DELTA}}}")}});
        let flood = Step::Repeat(Repeat { times: DELTAS, steps: vec![Step::Line(to_raw_value(&delta)?)] });
        let child = rig.child.clone().context("a child")?;
        child.play(codex::with_steps(Place::InMessage, &[flood]))?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        let before = peak(rig)?;
        session.start(&ready, "t-1", text_input("flood")).await?;
        // Nobody observes until it is over.
        let mut interval = tokio::time::interval(std::time::Duration::from_millis(20));
        while session.turn("t-1").await?.ended.is_none() {
            interval.tick().await;
        }
        let grown = peak(rig)?.saturating_sub(before);
        assert!(grown < MEMORY, "the daemon has {grown} bytes more");

        let seen = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["Let me look.", "All is well."], "completed messages are kept");
        let (mut kept, mut omitted) = (0, 0);
        for kind in seen.kinds() {
            match kind {
                Kind::MessageDelta(delta) => kept += u64::from(delta.text.len() as u64 == DELTA),
                Kind::EventsOmitted(range) => {
                    assert_eq!(range.reason(), v1::OmissionReason::LogLimit);
                    omitted += range.last - range.first + 1;
                }
                _ => {}
            }
        }
        assert!((KEPT / DELTA - 8..=KEPT / DELTA + 8).contains(&kept), "{kept} deltas were kept");
        // The rest of the Turn has deltas of its own, which are omitted too.
        assert!((DELTAS..DELTAS + 8).contains(&(kept + omitted)), "{kept} kept, {omitted} omitted");
        let grown = peak(rig)?.saturating_sub(before);
        assert!(grown < MEMORY, "the daemon has {grown} bytes more");
        Ok(())
    });
}
