//! A Core in another language: the client in `conformance/clients/python` knows the `.proto` files and nothing else of this project, and runs
//! the main Turn with the real Codex.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use conformance::authority::Certificate;
use conformance::rig::{Link, MODEL_KEY, OTHER_CORE, Rig, Setup, python, scenario};
use tokio::process::Command;

/// Why one Harness is enough.
const OWN: &str = "it shows that the `.proto` files are enough, whatever is behind them";

/// Looks a city up, breaks its answer off for an input, and then runs a command.
const ANSWERS: &str = r#"[
    {"match": "turn left", "play": [{"text": {"chunks": ["Left it is, in the snow."]}}]},
    {"match": "It snows in Bern.", "play": [{"text": {"chunks": ["half ", "a thought"], "open": true}}, {"gate": "never"}]},
    {"match": "look up Bern", "play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"city\":\"Bern\"}"}]}]}]"#;

/// What the client tells, line by line.
const TOLD: &str = "\
bridge runtime-bridge harness codex
refused INCOMPATIBLE_VERSION
started False
started again True
function_call lookup {\"city\":\"Bern\"}
result accepted
result duplicate
receipt function_result_applied
steered i-1 False
message_discarded steered
input_accepted i-1 consumed
message Left it is, in the snow.
turn_ended completed
prepared the same Executor
cancel settled
turn_ended cancelled
release confirmed
";

/// Runs a Python of the pinned environment, and gives what it wrote.
async fn run(rig: &Rig, arguments: impl IntoIterator<Item = PathBuf>) -> anyhow::Result<String> {
    let mut command = Command::new(python()?);
    // `-I` would hide the generated messages, which lie in PYTHONPATH; `-B` leaves the checkout alone.
    command.arg("-B").args(arguments).env_clear().kill_on_drop(true);
    command.env("PYTHONPATH", generated(rig)).env("MODEL_KEY", MODEL_KEY);
    let output = command.output().await.context("run the Python client")?;
    let (told, trouble) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    anyhow::ensure!(output.status.success(), "{}\n{told}\n{trouble}", output.status);
    Ok(told)
}

fn generated(rig: &Rig) -> PathBuf {
    rig.place().root().join("python")
}

/// Makes the messages from the `.proto` files, as its own head says.
async fn generate(rig: &Rig) -> anyhow::Result<()> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto").canonicalize()?;
    let out = generated(rig);
    fs::create_dir_all(&out)?;
    let option = |name: &str, path: &Path| PathBuf::from(format!("{name}={}", path.display()));
    let mut arguments = vec!["-m".into(), "grpc_tools.protoc".into(), option("--proto_path", &protos)];
    arguments.extend([option("--python_out", &out), option("--grpc_python_out", &out)]);
    for file in fs::read_dir(protos.join("runtime_bridge/v1"))? {
        arguments.push(file?.path());
    }
    run(rig, arguments).await.map(drop)
}

const RULES: [&str; 8] = ["R-API-1", "R-API-6", "R-EVT-1", "R-FN-5", "R-FN-6", "R-STE-1", "R-CAN-1", "R-ASG-4"];

#[test]
fn a_core_in_python_runs_the_main_turn() {
    scenario("client_python", &RULES, Setup::outer().bridge(OWN), async |rig| {
        let socket = rig.place().socket().to_owned();
        main_turn(rig, ["--socket".into(), socket]).await
    });
}

#[test]
fn a_core_in_python_runs_the_main_turn_over_mutual_tls() {
    let rules = [&RULES[..], &["R-SEC-1"]].concat();
    scenario("client_python_tls", &rules, Setup::outer().bridge(OWN).over(Link::Mtls), async |rig| {
        let tls = rig.tls()?;
        let certificate = tls.authority().client(OTHER_CORE)?;
        let address = tls.address()?;
        let arguments = with_tls(rig, address, tls.authority().pem(), &certificate)?;
        main_turn(rig, arguments).await
    });
}

#[test]
fn a_core_in_python_runs_the_main_turn_through_a_relay() {
    let rules = [&RULES[..], &["R-ENR-2", "R-ENR-4"]].concat();
    scenario("client_python_relay", &rules, Setup::outer().bridge(OWN).over(Link::Relay), async |rig| {
        // Connected by now.
        rig.client().await?;
        let relay = rig.relay()?;
        let certificate = relay.certificate(OTHER_CORE).await?;
        let mut arguments = with_tls(rig, relay.address()?, &relay.authority()?, &certificate)?;
        arguments.extend(["--host".into(), "env-1.relay.internal".into()]);
        main_turn(rig, arguments).await
    });
}

/// The arguments of the client for a listener with TLS, whose files are written here.
fn with_tls(
    rig: &Rig,
    address: SocketAddr,
    authority: &str,
    certificate: &Certificate,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut arguments = vec!["--address".into(), address.to_string().into()];
    for (name, text) in [("authority", authority), ("certificate", &*certificate.pem), ("key", &*certificate.key)] {
        let path = rig.place().root().join(format!("python-{name}.pem"));
        fs::write(&path, text)?;
        arguments.extend([format!("--{name}").into(), path]);
    }
    Ok(arguments)
}

/// The main Turn of the client, with these arguments that tell it where the bridge is.
async fn main_turn(rig: &Rig, place: impl IntoIterator<Item = PathBuf>) -> anyhow::Result<()> {
    rig.provider.script(ANSWERS)?;
    generate(rig).await?;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/main_turn.py");
    let (workspace, provider) = (rig.workspace().to_owned(), rig.provider.base_url().into());
    let arguments = [program, "--workspace".into(), workspace, "--provider".into(), provider];
    assert_eq!(run(rig, arguments.into_iter().chain(place)).await?, TOLD);
    // What it handed in has reached the model: each once, and the key nobody else.
    let requests = rig.provider.model_requests();
    assert_eq!(requests.len(), 4);
    assert_eq!(requests[1].output("c1"), Some("It snows in Bern.".into()));
    assert_eq!(requests[2].body.matches("turn left").count(), 1);
    assert!(!requests[2].body.contains("half a thought"));
    Ok(())
}
