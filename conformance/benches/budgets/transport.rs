//! The transport's own figures, so that the daemon's can be read above them: an empty server of the same kind on a socket of its own, and a call
//! of the daemon that does nothing.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use conformance::rig::Rig;
use hdrhistogram::Histogram;
use tokio::{net::UnixListener, task::JoinSet, time};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
    server::health_reporter,
};

use crate::{child, histogram, nanos};

/// Messages of the stream, one a millisecond.
const MESSAGES: usize = 3000;

/// From a message handed to a bare gRPC stream over a Unix socket to its reader.
pub(crate) async fn stream(folder: &Path) -> anyhow::Result<Histogram<u64>> {
    let socket = folder.join("bare");
    let listener = UnixListener::bind(&socket)?;
    let (reporter, service) = health_reporter();
    let mut tasks = JoinSet::new();
    tasks.spawn(Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)));
    let address = format!("unix:{}", socket.to_str().context("the socket's path is not UTF-8")?);
    let mut client = HealthClient::new(Endpoint::from_shared(address)?.connect().await?);
    let request = HealthCheckRequest { service: "bare".into() };
    reporter.set_service_status("bare", ServingStatus::Serving).await;
    let mut messages = client.watch(request).await?.into_inner();
    messages.message().await?.context("no first message")?;

    let mut times = histogram();
    let mut pace = time::interval(Duration::from_millis(1));
    pace.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    for number in 0..MESSAGES {
        pace.tick().await;
        let status = if number % 2 == 0 { ServingStatus::NotServing } else { ServingStatus::Serving };
        let written = child::now();
        reporter.set_service_status("bare", status).await;
        messages.message().await?.context("the stream ended")?;
        times.record(child::now().saturating_sub(written).max(1))?;
    }
    tasks.abort_all();
    Ok(times)
}

/// So many Sessions ask at once for the state of a Turn that is over, again and again: a call that writes nothing.
pub(crate) async fn calls(rig: &Rig, callers: usize, rounds: usize) -> anyhow::Result<Histogram<u64>> {
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let session = rig.session().await?;
        tasks.spawn(async move {
            let mut times = histogram();
            for _ in 0..rounds {
                let begun = Instant::now();
                // There is no such Turn, which the Session's owner says.
                let answer = session.turn("t-none").await;
                anyhow::ensure!(answer.is_err(), "{answer:?}");
                times.record(nanos(begun.elapsed()))?;
            }
            anyhow::Ok(times)
        });
    }
    let mut times = histogram();
    while let Some(done) = tasks.join_next().await {
        times.add(done??)?;
    }
    Ok(times)
}
