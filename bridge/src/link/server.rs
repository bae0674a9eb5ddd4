//! The one gRPC server: the Runtime, health and reflection.

use std::{io, sync::Arc, time::Duration};

use futures_util::Stream;
use tokio_util::sync::CancellationToken;

use super::{Connection, caller};
use crate::{config::Providers, gateway::Guard, service, session::Registry};

/// Window of one stream: a stalled observer holds up nobody else on its connection.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// Window of a connection.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Streams of one connection at once.
pub(crate) const MAX_STREAMS: u32 = 1024;
/// How often a quiet connection is pinged, and how long the answer may take.
pub(crate) const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// The service's name, as health knows it.
const RUNTIME: &str = "runtime_bridge.v1.Runtime";

/// What is served.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) registry: Arc<Registry>,
    pub(crate) providers: Providers,
    pub(crate) guard: Guard,
    pub(crate) streams: service::Streams,
}

/// The server broke.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The transport broke.
    #[error("serve: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// The descriptors for reflection do not fit together.
    #[error("describe the protocol: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves connections until `stop`; then nothing new is taken and what is open goes on until it is done.
pub(crate) async fn serve(
    server: Server,
    connections: impl Stream<Item = io::Result<Connection>> + Send,
    stop: CancellationToken,
) -> Result<(), Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status(RUNTIME, tonic_health::ServingStatus::Serving).await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let Server { registry, providers, guard, streams } = server;
    let drain = registry.shared().drain.begun();
    let serving = tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(PING.0))
        .http2_keepalive_timeout(Some(PING.1))
        .layer(tonic::service::InterceptorLayer::new(caller::check))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?)
        .add_service(service::server(registry, providers, guard, streams))
        .serve_with_incoming_shutdown(connections, stop.cancelled_owned());
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return Ok(served?),
        () = drain.cancelled() => {}
    }
    // Nothing new is for this daemon any more; what is under way goes on (R-DUR-3).
    for name in ["", RUNTIME] {
        health.set_service_status(name, tonic_health::ServingStatus::NotServing).await;
    }
    Ok(serving.await?)
}
