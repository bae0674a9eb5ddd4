//! The wall clock is for stamps only: one that jumps by ten years in the middle of a Session ends nothing early and
//! keeps nothing alive (R-EVT-1, R-PRE-2). The daemon is one that was built with failpoints.

use std::time::Duration;

use conformance::ledger::{Ledger, SCRIPT};
use conformance::rig::{Daemon, Setup, refusal, scenario};
use proto::client::text_input;
use proto::v1::Reason;
use tokio::time::{self, Instant};

/// Why one Harness is enough.
const OWN: &str = "the clock of the daemon is meant, no Harness reads it";

const TEN_YEARS_S: i64 = 315_360_000;

fn now() -> i64 {
    prost_types::Timestamp::from(std::time::SystemTime::now()).seconds
}

/// A clock that is wrong from this reading on.
fn jumps(seconds: i64, reading: u32) -> Setup {
    Setup { failpoints: Some(format!("clock=jump:{seconds}@{reading}")), ..Setup::outer().bridge(OWN) }
}

#[test]
fn a_session_does_not_notice_a_clock_that_jumps() {
    // The first readings are of the start and of the preparation, the later ones of events.
    for (seconds, reading) in [(TEN_YEARS_S, 3), (-TEN_YEARS_S, 6)] {
        let name = format!("clock_jumps_{reading}");
        scenario(&name, &["R-EVT-1", "R-DUR-2", "R-PRE-2"], jumps(seconds, reading), async |rig| {
            rig.provider.script(SCRIPT)?;
            let mut ledger = Ledger::new("s-1");
            ledger.work(rig).await?;
            let stamps: Vec<_> = ledger.events().iter().filter_map(|event| Some(event.time?.seconds)).collect();
            let jumped = stamps.windows(2).any(|pair| (pair[1] - pair[0]).abs() > TEN_YEARS_S / 2);
            let off = stamps.iter().all(|stamp| (stamp - now()).abs() > TEN_YEARS_S / 2);
            anyhow::ensure!(jumped || off, "the clock did not jump: {stamps:?}");
            // A daemon that starts goes by the wall clock to tell how old events are (R-DUR-4), so the right time is not
            // later than the wrong one here.
            if seconds < 0 {
                return Ok(());
            }
            rig.disarm();
            let family = rig.family()?;
            rig.daemon.kill().await?;
            rig.all_gone(&family).await?;
            rig.daemon = Daemon::start(rig.place()).await?;
            ledger.holds(rig).await.map(drop)
        });
    }
}

#[test]
fn a_handle_lives_as_long_as_it_should_by_a_clock_that_jumps() {
    const LIFE: Duration = Duration::from_secs(4);
    for (seconds, reading) in [(-TEN_YEARS_S, 2), (TEN_YEARS_S, 2)] {
        let setup = jumps(seconds, reading).with("limits.handle_life_ms = 4000");
        let name = format!("clock_handle_{}", if seconds < 0 { "back" } else { "ahead" });
        scenario(&name, &["R-PRE-2"], setup, async |rig| {
            let session = rig.session().await?;
            let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
            let until = Instant::now() + LIFE;
            time::sleep_until(until).await;
            let late = session.start(&ready, "t-1", text_input("hello")).await;
            refusal(late, Reason::HandleExpired).at("handle").says("expired");
            // The Executor is used again, by a handle of the same life.
            rig.whole_turn(&session, "t-1", "hello").await?.completed()
        });
    }
}
