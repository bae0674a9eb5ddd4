//! What each kind of link costs: the smallest call and a burst of events, over the socket and over mutual TLS of one daemon, and through a relay that another one has dialled,
//! which is two connections one after the other.

use std::time::Instant;

use conformance::rig::{CORE, Link, Rig, Setup};
use proto::{client::Client, v1};

use crate::{burst, histogram, nanos, print};

/// Calls of each kind, a hundred of one after a hundred of the other.
const ROUNDS: usize = 30;

/// Measures a daemon that is set up so.
pub(crate) async fn measure(setup: impl Fn() -> Setup) -> anyhow::Result<()> {
    let (rig, relayed) = (Rig::start(setup().over(Link::Mtls)).await?, Rig::start(setup().over(Link::Relay)).await?);
    let links = [
        ("the socket", rig.local_client().await?),
        ("mutual TLS", rig.tls()?.client(CORE).await?),
        ("a relay", relayed.client().await?),
    ];
    let mut times = [histogram(), histogram(), histogram()];
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
    burst(&relayed, "burst of 50,000 events through a relay").await?;
    rig.finish().await?;
    relayed.finish().await
}

/// A call that finds nothing.
async fn round_trip(client: &Client) -> anyhow::Result<u64> {
    let request = v1::ListSessionsRequest { session_id: Some("none".into()), ..Default::default() };
    let begun = Instant::now();
    client.list_sessions(request).await?;
    Ok(nanos(begun.elapsed()))
}
