//! The plain listener on loopback: whoever has the bearer is its caller, and nobody else is heard (R-SEC-1, R-ASG-5).

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::Context;
use conformance::rig::{MODEL_KEY, Observed, Rig, Setup, program, refusal, scenario};
use proto::client::{Client, Endpoint, Session, text_input};
use proto::v1::{self, Reason};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

/// Why one Harness is enough.
const OWN: &str = "who may call is judged before a Harness is asked";

const BEARER: &str = "bearer-canary-77f0a1";

/// The file with the bearer, in a folder of its own.
struct Bearer(PathBuf);

impl Bearer {
    fn write() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("rb-loopback-{}", uuid::Uuid::now_v7().simple()));
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        std::io::Write::write_all(&mut file, format!("{BEARER}\n").as_bytes())?;
        Ok(Self(path))
    }

    fn setup(&self) -> Setup {
        let environment = [
            ("RUNTIME_BRIDGE_INSECURE_LOOPBACK", "127.0.0.1:0".to_owned()),
            ("RUNTIME_BRIDGE_BEARER_FILE", self.0.to_string_lossy().into_owned()),
        ];
        Setup {
            environment: environment.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Setup::outer().bridge(OWN).with("loopback = { name = \"core-1\", yes_tools_can_call = true }")
        }
    }
}

impl Drop for Bearer {
    fn drop(&mut self) {
        // It is in the temporary folder, and means nothing without its daemon.
        _ = fs::remove_file(&self.0);
    }
}

/// Where the daemon listens; it says so, and what that means.
async fn address(rig: &Rig) -> anyhow::Result<SocketAddr> {
    let lines = rig.daemon.wait_for_logs("listening on plain TCP", 1).await?;
    assert_eq!((&lines[0]["level"], &lines[0]["principal"]), (&"WARN".into(), &"core-1".into()));
    Ok(lines[0]["address"].as_str().context("no address")?.parse()?)
}

async fn bind(rig: &Rig, client: &Client, session_id: &str) -> anyhow::Result<Session> {
    let assignment = v1::AssignmentRef { session_id: session_id.into(), assignment_id: "a-1".into(), epoch: 1 };
    let directory = rig.workspace().to_string_lossy().into_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    let placement = v1::bind_assignment_request::Placement::Workspace(workspace);
    Ok(Session::bind(client.clone(), assignment, placement).await?)
}

#[test]
fn a_turn_over_loopback_belongs_to_the_configured_name() {
    let bearer = Bearer::write().unwrap();
    scenario("loopback_turn", &["R-SEC-1", "R-ASG-5"], bearer.setup(), async |rig| {
        let client = Client::connect(Endpoint::Tcp(address(rig).await?)).await?.with_bearer(BEARER);
        let session = bind(rig, &client, "s-1").await?;
        let key = v1::Credential { name: "model".into(), value: MODEL_KEY.into() };
        let ready = session.prepare(rig.configuration(Vec::new()), vec![key]).await?;
        session.start(&ready, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
        // For the uid on the socket this Session does not exist, and its own of the same id is another one.
        let local = rig.client().await?;
        let assignment = Some(session.assignment().clone());
        let get = || v1::GetTurnRequest { assignment: assignment.clone(), turn_id: "t-1".into() };
        refusal(local.get_turn(get()).await, Reason::NotFound);
        bind(rig, &local, "s-1").await?;
        refusal(local.get_turn(get()).await, Reason::NotFound);
        client.get_turn(get()).await?;
        assert!(!rig.daemon.log_text().contains(BEARER), "the bearer is in the log");
        Ok(())
    });
}

#[test]
fn a_run_uses_a_daemon_over_loopback() {
    let bearer = Bearer::write().unwrap();
    scenario("loopback_run", &["R-SEC-1"], bearer.setup(), async |rig| {
        let endpoint = format!("http://{}", address(rig).await?);
        let run = async |more: &[&str]| {
            let mut command = tokio::process::Command::new(program("runtime-bridge")?);
            command.args(["run", "--harness", "codex", "--workspace"]).arg(rig.workspace());
            command
                .args(["--provider", &rig.provider.base_url(), "--endpoint", &endpoint])
                .args(more)
                .arg("hello there");
            command.env("OPENAI_API_KEY", MODEL_KEY).stdin(std::process::Stdio::null()).kill_on_drop(true);
            anyhow::Ok(command.output().await?)
        };
        let file = bearer.0.to_str().context("no path")?;
        let output = run(&["--bearer-file", file]).await?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("hello there"), "{out}{err}");
        let output = run(&[]).await?;
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && err.contains("bearer"), "{err}");
        Ok(())
    });
}

#[test]
fn nobody_is_heard_without_the_bearer() {
    let bearer = Bearer::write().unwrap();
    scenario("loopback_bearer", &["R-SEC-1", "R-API-4"], bearer.setup(), async |rig| {
        let address = address(rig).await?;
        let client = Client::connect(Endpoint::Tcp(address)).await?;
        let wrong = ["", "Bearer", "bearer-canary-77f0a", "bearer-canary-77f0a11", "BEARER-CANARY-77F0A1", MODEL_KEY];
        for client in wrong.map(|wrong| client.clone().with_bearer(wrong)).into_iter().chain([client]) {
            let refused = refusal(client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await, Reason::NotAuthorized);
            assert!(!refused.into_inner().message.contains("canary"));
            let target = rig.target(&bind(rig, &rig.client().await?, "s-1").await?);
            for call in conformance::rig::Call::ALL {
                refusal(call.make(&client, &target).await, Reason::NotAuthorized);
            }
        }
        // Nor do health and reflection answer.
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        let asked = HealthClient::new(channel.clone()).check(HealthCheckRequest { service: String::new() }).await;
        assert_eq!(asked.map(drop).map_err(|status| status.code()), Err(Code::PermissionDenied));
        let nothing = tokio_stream::once(ServerReflectionRequest::default());
        let asked = ServerReflectionClient::new(channel).server_reflection_info(nothing).await;
        assert_eq!(asked.map(drop).map_err(|status| status.code()), Err(Code::PermissionDenied));
        Ok(())
    });
}
