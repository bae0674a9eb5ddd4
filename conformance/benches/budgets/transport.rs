//! The transport's own figure, so that the daemon's can be read above it: an empty server of the same kind on a socket of its own.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use tokio::{net::UnixListener, task::JoinSet, time};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
    server::health_reporter,
};

use crate::{child, histogram};

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
