//! What each kind of link costs: the smallest call and a burst of events, over the socket, over mutual TLS, and through a relay that the daemon dialled.

use std::time::Instant;

use conformance::rig::{Link, Rig, Setup};
use proto::{client::Client, v1};

use crate::{burst, histogram, nanos, print};

/// Rounds of a hundred calls over each link.
const ROUNDS: usize = 30;

/// Measures daemons that are set up so: one that listens with TLS, and one that has dialled a relay.
pub(crate) async fn measure(setup: Setup) -> anyhow::Result<()> {
    let tls = Rig::start(setup.clone().over(Link::Mtls)).await?;
    let relay = Rig::start(setup.over(Link::Relay)).await?;
    let links = [
        ("the socket", tls.local_client().await?),
        ("mutual TLS", tls.client().await?),
        ("mutual TLS through a relay", relay.client().await?),
    ];
    let mut times = links.each_ref().map(|_| histogram());
    // In turn, so that what else the machine does meets all of them.
    for _ in 0..ROUNDS {
        for ((_, client), times) in links.iter().zip(&mut times) {
            for _ in 0..100 {
                times.record(round_trip(client).await?)?;
            }
        }
    }
    for ((name, _), times) in links.iter().zip(&times) {
        print(&format!("a call and its answer over {name}"), times, "");
    }
    burst(&tls, "burst of 50,000 events over mutual TLS").await?;
    burst(&relay, "burst of 50,000 events through a relay").await?;
    tls.finish().await?;
    relay.finish().await
}

/// A call that finds nothing.
async fn round_trip(client: &Client) -> anyhow::Result<u64> {
    let request = v1::ListSessionsRequest { session_id: Some("none".into()), ..Default::default() };
    let begun = Instant::now();
    client.list_sessions(request).await?;
    Ok(nanos(begun.elapsed()))
}
