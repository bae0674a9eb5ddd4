//! The Runtime protocol: generated messages, the service for both sides, error reasons, and a client.
//!
//! The `.proto` files are the protocol's manual. This crate adds nothing to them but the protocol's version and [`client`].

#![forbid(unsafe_code)]

pub mod client;
pub mod enrollment;
pub mod raw;
pub mod version;

/// Messages and the client of `runtime_bridge.v1`, generated; the documentation is that of the `.proto` files.
pub mod v1 {
    tonic::include_proto!("runtime_bridge.v1");
}

/// The server half of `runtime_bridge.v1`, generated, with observation answers that carry encoded events.
pub mod server {
    include!(concat!(env!("OUT_DIR"), "/server/runtime_bridge.v1.rs"));
}

/// The descriptors of the protocol, an encoded `google.protobuf.FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/runtime_bridge.v1.bin"));

/// Domain of every `ErrorInfo` that a bridge sends (R-API-4).
pub const ERROR_DOMAIN: &str = "runtime-bridge";

/// Trailer that repeats the reason of an error as plain text (R-API-4).
pub const REASON_TRAILER: &str = "runtime-bridge-reason";
