//! Compiles the protocol without `protoc`: protox parses and links in pure Rust, and the same descriptors serve reflection.

use std::{env, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 11] = [
    "admit",
    "assignment",
    "capability",
    "content",
    "error",
    "event",
    "execution",
    "function",
    "listing",
    "turn",
    "watch",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=runtime_bridge");
    let mut files: Vec<String> = FILES.iter().map(|name| format!("runtime_bridge/v1/{name}.proto")).collect();
    files.push("runtime_bridge/v1/runtime.proto".into());
    let descriptors = protox::compile(&files, ["."])?;

    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("runtime_bridge.v1.bin"), descriptors.encode_to_vec())?;

    tonic_prost_build::configure()
        .build_server(false)
        // The other outcome is small.
        .boxed(".runtime_bridge.v1.AdmitResponse.outcome.admitted")
        .compile_fds(descriptors.clone())?;

    // The server's own copy of the service: its observation answers carry events as bytes that are encoded already, so that an
    // event is encoded once, stored, and sent to every observer as it is (`raw::ObserveTurnResponse`).
    let server = out.join("server");
    fs::create_dir_all(&server)?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .extern_path(".runtime_bridge.v1.ObserveTurnResponse", "crate::raw::ObserveTurnResponse")
        .extern_path(".runtime_bridge.v1", "crate::v1")
        .out_dir(&server)
        .compile_fds(descriptors)?;

    // Enrollment has a version of its own, and is served by a relay, never by the bridge.
    let enrollment = protox::compile(["runtime_bridge/enrollment/v1/enrollment.proto"], ["."])?;
    fs::write(out.join("runtime_bridge.enrollment.v1.bin"), enrollment.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(enrollment)?;
    Ok(())
}
