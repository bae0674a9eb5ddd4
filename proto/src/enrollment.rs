//! The enrollment protocol: how a bridge on a machine of its own comes to be reached through a relay (R-ENR-1 to R-ENR-5).
//!
//! It has a version of its own, since a relay and its bridges are updated apart from Cores.

use crate::version::Version;

/// Messages and services of `runtime_bridge.enrollment.v1`, generated; the documentation is that of the `.proto` file.
pub mod v1 {
    tonic::include_proto!("runtime_bridge.enrollment.v1");
}

/// The descriptors of the protocol, an encoded `google.protobuf.FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/runtime_bridge.enrollment.v1.bin"));

/// Metadata key that every call of the enrollment protocol carries.
pub const HEADER: &str = "runtime-enrollment-version";

/// The version that this crate's messages are written in.
pub const CURRENT: Version = Version { major: 0, minor: 1 };

/// The oldest version whose messages this crate's server side still understands.
pub const OLDEST_ACCEPTED: Version = Version { major: 0, minor: 1 };

/// The protocol (ALPN) of a connection on which the side that dialled serves (R-ENR-2).
pub const LINK_PROTOCOL: &[u8] = b"runtime-bridge-link/1";

/// Longest message of the exchange before a link serves, in bytes.
pub const MAX_LINK_MESSAGE: usize = 4096;

/// Metadata with the name of the Core that a relay authenticated (R-ENR-4).
pub const PRINCIPAL_HEADER: &str = "runtime-bridge-principal";

/// Trailer with the reason of a status that the relay, and not the bridge behind it, gave.
pub const RELAY_REASON_TRAILER: &str = "runtime-relay-reason";

/// The URI name of an Environment's certificate begins so; its id follows.
pub const ENVIRONMENT_NAME: &str = "urn:runtime-bridge:environment:";

/// Whether a server of this crate takes a call that is written in this version.
pub fn is_accepted(version: Version) -> bool {
    version.major == CURRENT.major && (OLDEST_ACCEPTED.minor..=CURRENT.minor).contains(&version.minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_which_version_it_is() {
        let manual = include_str!("../runtime_bridge/enrollment/v1/enrollment.proto");
        assert!(manual.contains(&format!("// These files are version {CURRENT} of the enrollment protocol")));
        let is = |text: &str| is_accepted(text.parse().unwrap());
        assert!(is("0.1") && !is("0.0") && !is("0.2") && !is("1.1"));
    }
}
