//! What a full disk does not stop, and what it must not leave: a cancel acts, a refused Bind leaves nothing, a refused newer credential leaves
//! the Executor that is there (R-DUR-4).

use std::fs;
use std::time::Duration;

use anyhow::Context;
use conformance::child::codex;
use conformance::rig::{Observed, Rig, Setup, Stands, refusal, refused, scenario};
use proto::client::text_input;
use proto::v1::{self, CancelOutcome, EndCause, Reason, TurnStatus};

/// Why one Harness is enough.
const OWN: &str = "the journal is the bridge's own";

/// Binds that are refused.
const BINDS: u32 = 400;
/// What the daemon may have more behind them, in KiB. An owner that stays takes more than 20 for each.
const GROWTH_KIB: u64 = 2 << 10;

fn small() -> Setup {
    Setup { stands: Stands::Faulty(Box::new(codex::healthy())), ..Setup::outer().bridge(OWN) }
}

#[test]
fn a_cancel_acts_on_a_full_disk() {
    scenario("storage_cancel", &["R-CAN-1", "R-CAN-2", "R-DUR-4"], Setup::outer().bridge(OWN), async |rig| {
        rig.provider
            .script(r#"[{"play": [{"shell": {"command": "sleep 7700", "yield_ms": 30000}}]}, {"play": ["hang"]}]"#)?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "go").await?;
        let tool = rig.wait_for_process(|process| process.command == "sleep 7700").await?;
        rig.daemon.fill_disk()?;
        let answer = session.cancel("t-1", Some(Duration::ZERO)).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Pending, "{answer:?}");
        // The end may wait for the disk; what the Turn had does not.
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        while tool.runs_in(&rig.family()?) {
            looks.tick().await;
        }
        rig.daemon.free_disk()?;
        let answer = session.cancel("t-1", Some(Duration::from_secs(20))).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled, "{answer:?}");
        let seen = Observed::default().to_the_end(&mut events).await?;
        let end = seen.end()?;
        assert_eq!((end.status(), end.cause()), (TurnStatus::Cancelled, EndCause::Requested), "{end:?}");
        Ok(())
    });
}

#[test]
fn refused_binds_leave_nothing() {
    scenario("storage_binds", &["R-ASG-4", "R-DUR-4"], small(), async |rig| {
        let session = rig.session().await?;
        let client = rig.client().await?;
        let placement = rig.target(&session).placement.context("no placement")?;
        let bind = |number: u32| {
            let assignment = v1::AssignmentRef { session_id: format!("f-{number}"), ..session.assignment().clone() };
            client.bind_assignment(v1::BindAssignmentRequest {
                assignment: Some(assignment),
                placement: Some(placement.clone()),
            })
        };
        rig.daemon.fill_disk()?;
        // The first ones warm up what stays.
        for number in 0..50 {
            refusal(bind(number).await, Reason::StorageUnavailable);
        }
        let before = rig.footprint()?;
        for number in 50..50 + BINDS {
            refusal(bind(number).await, Reason::StorageUnavailable);
        }
        let after = rig.footprint()?;
        let growth = after.memory_kib.saturating_sub(before.memory_kib);
        eprintln!("{BINDS} refused Binds: {growth} KiB");
        assert!(growth < GROWTH_KIB, "{before}, then {after}");
        // A connection of before that is closed meanwhile leaves fewer.
        assert!(after.descriptors <= before.descriptors, "{before}, then {after}");
        rig.daemon.free_disk()?;
        let listed = client.list_sessions(v1::ListSessionsRequest::default()).await?;
        assert_eq!(listed.sessions.len(), 1, "{:?}", listed.sessions);
        let folders = rig.place().state().join("sessions");
        assert_eq!(fs::read_dir(folders).map_or(0, Iterator::count), 0, "nothing was prepared, so nobody has a folder");
        // One that was refused is taken now, and is as good as any.
        bind(7).await?;
        let listed = client.list_sessions(v1::ListSessionsRequest::default()).await?;
        assert_eq!(listed.sessions.len(), 2, "{:?}", listed.sessions);
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
}

fn preparation(rig: &Rig, session: &proto::client::Session, key: &str) -> v1::PrepareExecutionRequest {
    v1::PrepareExecutionRequest {
        assignment: Some(session.assignment().clone()),
        preparation_id: "p-1".into(),
        configuration: Some(rig.configuration(Vec::new())),
        credentials: vec![v1::Credential { name: "model".into(), value: key.into() }],
        resume: None,
    }
}

#[test]
fn a_newer_credential_on_a_full_disk_leaves_the_executor_that_is_there() {
    scenario("storage_credential", &["R-DUR-4", "R-PRE-6"], small().without_gateway(), async |rig| {
        let session = rig.session().await?;
        let client = rig.client().await?;
        let first = client.prepare(preparation(rig, &session, "sk-one")).await?;
        let family = rig.family()?;
        rig.daemon.fill_disk()?;
        refused(client.prepare(preparation(rig, &session, "sk-two")).await, Reason::StorageUnavailable)?;
        let now = rig.family()?;
        let pids = |all: &[conformance::rig::Process]| all.iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!(pids(&now), pids(&family), "the Executor was touched");
        let again = client.prepare(preparation(rig, &session, "sk-one")).await?;
        assert_eq!(again, first);
        rig.daemon.free_disk()?;
        // Its handle is good as before.
        session.start(&first, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()
    });
}
