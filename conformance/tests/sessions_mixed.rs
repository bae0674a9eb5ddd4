//! Sessions of every Harness at once on one daemon: each sees its own and nothing of another.

use conformance::rig::{Harness, Observed, Rig, Setup, is_long, scenario};
use futures_util::future::try_join_all;
use proto::client::text_input;

/// How many Sessions each Harness has.
const SESSIONS: usize = 2;
/// How many Turns each Session has.
const TURNS: usize = 10;
/// The same where there is more time (`RUNTIME_BRIDGE_LONG`).
const LONG_TURNS: usize = 50;

#[test]
fn no_text_carries_the_marker_of_another_session() {
    let rules = ["R-EVT-1", "R-EVT-6", "R-ASG-1", "R-PRE-2"];
    scenario("sessions_mixed", &rules, Setup::outer().with_all(), async |rig| {
        let all = || Harness::ALL.into_iter().flat_map(|harness| (0..SESSIONS).map(move |number| (harness, number)));
        let markers: Vec<_> = all().map(|(harness, number)| marker(harness, number)).collect();
        let rig = &*rig;
        try_join_all(all().map(|(harness, number)| turns(rig, harness, number, &markers))).await?;
        // What a model reads is of one Session, too.
        for request in rig.provider.model_requests() {
            let told: Vec<_> = markers.iter().filter(|marker| request.body.contains(*marker)).collect();
            anyhow::ensure!(told.len() == 1, "{told:?} in one request");
        }
        Ok(())
    });
}

fn marker(harness: Harness, number: usize) -> String {
    format!("marker-of-{}-{number}-end", harness.kind())
}

async fn turns(rig: &Rig, harness: Harness, number: usize, markers: &[String]) -> anyhow::Result<()> {
    let own = marker(harness, number);
    let session = rig.session().await?;
    let mut executor = None;
    let turns = if is_long() { LONG_TURNS } else { TURNS };
    for turn in 0..turns {
        let ready = rig.prepare(&session, rig.configuration_of(harness, Vec::new())).await?;
        let first = executor.get_or_insert_with(|| ready.executor_id.clone()).clone();
        anyhow::ensure!(first == ready.executor_id, "the Executor of {own} was replaced");
        let (turn_id, said) = (format!("t-{turn}"), format!("{own} {turn}"));
        session.start(&ready, &turn_id, text_input(&*said)).await?;
        let seen = Observed::default().to_the_end(&mut session.turn_events(&turn_id)).await?;
        seen.completed()?;
        anyhow::ensure!(seen.messages() == [&*said], "{own}: {:?}", seen.messages());
        let text = format!("{:?}", seen.events);
        let foreign: Vec<_> = markers.iter().filter(|marker| **marker != own && text.contains(*marker)).collect();
        anyhow::ensure!(foreign.is_empty(), "{foreign:?} in a Turn of {own}");
    }
    Ok(())
}
