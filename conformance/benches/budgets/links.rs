//! What each kind of link costs: the smallest call and a burst of events, over the socket and over mutual TLS of one daemon.

use std::time::Instant;

use conformance::rig::{CORE, Link, Rig, Setup};
use proto::{client::Client, v1};

use crate::{burst, histogram, nanos, print};

/// Calls of each kind, a hundred of one after a hundred of the other.
const ROUNDS: usize = 30;

/// Measures a daemon that is set up so.
pub(crate) async fn measure(setup: Setup) -> anyhow::Result<()> {
    let rig = Rig::start(setup.over(Link::Mtls)).await?;
    let links = [("the socket", rig.local_client().await?), ("mutual TLS", rig.tls()?.client(CORE).await?)];
    let mut times = [histogram(), histogram()];
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
    burst(&rig, "burst of 50,000 events over mutual TLS").await?;
    rig.finish().await
}

/// A call that finds nothing.
async fn round_trip(client: &Client) -> anyhow::Result<u64> {
    let request = v1::ListSessionsRequest { session_id: Some("none".into()), ..Default::default() };
    let begun = Instant::now();
    client.list_sessions(request).await?;
    Ok(nanos(begun.elapsed()))
}
