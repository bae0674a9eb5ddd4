//! One daemon hands its socket over to the next one (R-DUR-3): whoever started both listens on it all the time, so that no call is refused, and what
//! was bound goes on.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::Context;
use conformance::rig::{Daemon, Ended, Link, Setup, scenario};
use proto::client::{Client, Endpoint};
use proto::v1;
use tokio::sync::watch;

/// Why one Harness is enough.
const OWN: &str = "the socket is the bridge's, whatever it hosts";

fn setup() -> Setup {
    Setup { given_socket: true, ..Setup::outer().bridge(OWN).over(Link::Unix) }
}

#[test]
fn a_new_daemon_takes_the_socket_and_no_call_is_refused() {
    scenario("hand_over", &["R-DUR-3", "R-DUR-2"], setup(), async |rig| {
        let session = rig.session().await?;
        let first = rig.whole_turn(&session, "t-1", "hello").await?;
        first.completed()?;
        let socket = rig.place().socket().to_owned();
        // Each call has a connection of its own, and none is made again. Beside them, a Core with one connection asks again what was not answered.
        let core = rig.client().await?;
        let (stop, stopped) = watch::channel(false);
        let (made, mut count) = watch::channel(0_u32);
        let calls = tokio::task::JoinSet::from_iter([async move {
            while !*stopped.borrow() {
                let client = Client::connect(Endpoint::Unix(socket.clone())).await.context("connect")?;
                client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await.context("call")?;
                made.send_modify(|count| *count += 1);
            }
            anyhow::Ok(())
        }]);
        count.wait_for(|count| *count > 20).await.context("calls of the first daemon")?;
        let runtime = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        for _ in 0..3 {
            rig.client().await?.drain(v1::DrainRequest {}).await?;
            assert_eq!(rig.daemon.terminate().await?, Ended::Code(0));
            // Nobody serves, and nobody is refused.
            assert!(rig.place().socket().exists());
            let before = *count.borrow_and_update();
            rig.daemon = Daemon::start(rig.place()).await?;
            if core.get_runtime_info(v1::GetRuntimeInfoRequest {}).await.is_err() {
                core.get_runtime_info(v1::GetRuntimeInfoRequest {}).await.context("a Core from before")?;
            }
            count.wait_for(|count| *count > before + 20).await.context("calls of the next daemon")?;
        }
        stop.send(true)?;
        for done in calls.join_all().await {
            done?;
        }
        let after = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        assert_eq!(after.runtime_id, runtime.runtime_id);
        // The Session is the one that it was, for a client that was connected before, too.
        session.turn("t-1").await?;
        let resumed = rig.resume(&session, rig.configuration(Vec::new()), &first.native_session()?).await?;
        session.start(&resumed, "t-2", proto::client::text_input("and again")).await?;
        conformance::rig::Observed::default().to_the_end(&mut session.turn_events("t-2")).await?.completed()
    });
}

#[test]
fn a_socket_that_others_can_reach_is_not_taken() {
    scenario("hand_over_mode", &["R-SEC-1"], setup(), async |rig| {
        assert_eq!(rig.daemon.terminate().await?, Ended::Code(0));
        let socket = rig.place().socket().to_owned();
        std::fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
        let mut daemon = Daemon::spawn(rig.place())?;
        assert_eq!(daemon.wait(Duration::from_secs(40)).await?, Ended::Code(19));
        let tail = daemon.log_tail();
        assert!(tail.contains("SocketMode=0600"), "{tail}");
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        rig.daemon = Daemon::start(rig.place()).await?;
        Ok(())
    });
}
