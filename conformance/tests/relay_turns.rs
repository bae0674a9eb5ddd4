//! A Core behind a relay: the daemon has dialled it, and everything is as on the socket, whatever becomes of the connection (R-ENR-2 to R-ENR-5).

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::fs;
use std::path::Path;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{
    CORE, Daemon, ENVIRONMENT, Harness, Link, OTHER_CORE, Observed, Place, Relay, Rig, Setup, function, refusal,
    scenario, text_result,
};
use proto::client::{Client, Error};
use proto::enrollment::{PRINCIPAL_HEADER, RELAY_REASON_TRAILER};
use proto::v1::{self, Reason, event::Kind, runtime_client::RuntimeClient};
use proto::version;
use tonic::Code;

/// Why one Harness is enough.
const OWN: &str = "how calls come to the bridge is the bridge's own";

for_each_harness!(a_core_drives_a_turn_through_a_relay);

fn setup() -> Setup {
    Setup::outer().bridge(OWN).over(Link::Relay)
}

fn a_core_drives_a_turn_through_a_relay(harness: Harness) {
    let rules = ["R-ENR-1", "R-ENR-2", "R-ENR-4", "R-ASG-5", "R-FN-5", "R-FN-6"];
    scenario("relay_turn", &rules, Setup::outer().of(harness).over(Link::Relay), async |rig| {
        let play = r#"[{"play": [{"text": {"chunks": ["Um", "bra"]}}, {"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
            {"after": "outputs", "play": [{"text": {"chunks": ["It is 42."]}}]}]"#;
        rig.provider.script(play)?;
        let session = rig.session().await?;
        let functions = vec![function("lookup", r#"{"type":"object"}"#)];
        let mut events = rig.start_turn(&session, rig.configuration(functions), "t-1", "hello").await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["Umbra", "It is 42."]);
        assert!(seen.kinds().any(|kind| matches!(kind, Kind::FunctionResultApplied(_))));
        let again = rig.observe(&session, "t-1", 0).await?;
        assert_eq!(again.events, seen.events);
        // The Session is the Core's whose name the relay handed on, and nobody else's.
        let get = || v1::GetTurnRequest { assignment: Some(session.assignment().clone()), turn_id: "t-1".into() };
        refusal(rig.local_client().await?.get_turn(get()).await, Reason::NotFound);
        let other = rig.relay()?.certificate(OTHER_CORE).await?;
        refusal(rig.relay()?.answering(&other).await?.get_turn(get()).await, Reason::NotFound);
        let all = v1::ListSessionsRequest { all_principals: true, ..Default::default() };
        let listed = rig.local_client().await?.list_sessions(all).await?.sessions;
        assert_eq!(listed.iter().map(|session| session.principal.as_str()).collect::<Vec<_>>(), [CORE]);
        Ok(())
    });
}

/// A Turn that waits for its gate, observed to the end while `meanwhile` does something to the connection; every event comes once.
async fn every_event_once(
    rig: &mut Rig,
    meanwhile: impl AsyncFnOnce(&mut Rig) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    rig.provider
        .script(r#"[{"play": [{"text": {"chunks": ["Um"]}}, {"gate": "go"}, {"text": {"chunks": ["bra"]}}]}]"#)?;
    let session = rig.session().await?;
    let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "hello").await?;
    let mut seen = Observed::default();
    loop {
        let event = events.next().await?.context("the Turn ended early")?;
        let is_text = matches!(event.kind, Some(Kind::MessageDelta(_)));
        seen.events.push(event);
        if is_text {
            break;
        }
    }
    meanwhile(rig).await?;
    rig.provider.open_gate("go");
    // The client observes again behind the last event that it has; it would tell of one that is missing or comes twice.
    let seen = seen.to_the_end(&mut events).await?;
    seen.completed()?;
    let sequences: Vec<u64> = seen.events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..=sequences.len() as u64).collect::<Vec<_>>());
    assert_eq!(rig.observe(&session, "t-1", 0).await?.events, seen.events);
    Ok(())
}

#[test]
fn a_turn_goes_on_when_the_relay_is_killed_and_started_again() {
    scenario("relay_killed", &["R-ENR-4", "R-EVT-1"], setup(), async |rig| {
        every_event_once(rig, async |rig| {
            rig.relay_mut()?.kill().await?;
            rig.daemon.wait_for_logs("the relay is not connected; it is dialled again", 1).await?;
            rig.relay_mut()?.start_again().await
        })
        .await
    });
}

#[test]
fn a_turn_goes_on_when_the_link_is_cut() {
    scenario("relay_cut", &["R-ENR-2", "R-EVT-1"], setup(), async |rig| {
        every_event_once(rig, async |rig| {
            let relay = rig.relay()?;
            let address = relay.address()?;
            relay.road.cut();
            // It dials again and again meanwhile, and gets nowhere.
            relay.road.taken().wait_for(|taken| *taken >= 3).await?;
            let core = relay.certificate(CORE).await?;
            away(relay, &core).await?;
            relay.road.lead(address);
            Ok(())
        })
        .await
    });
}

#[test]
fn a_turn_goes_on_when_the_path_dies_without_a_word() {
    scenario("relay_half_open", &["R-ENR-2", "R-EVT-1"], setup(), async |rig| {
        every_event_once(rig, async |rig| {
            let relay = rig.relay()?;
            let (address, mut taken) = (relay.address()?, relay.road.taken());
            let before = *taken.borrow_and_update();
            relay.road.hold();
            // Each end finds out by itself: nothing that it sends is answered, and a ping is due within 20 s and answered within 10.
            taken.wait_for(|taken| *taken > before).await?;
            let gone = relay.wait_for_logs("a bridge is gone", 1).await?;
            assert!(gone[0]["why"].as_str().is_some_and(|why| why.contains("keep-alive")), "{gone:?}");
            relay.road.lead(address);
            relay.wait_for_logs("a bridge is connected", 2).await?;
            Ok(())
        })
        .await
    });
}

/// A Core's call to an Environment that is not connected had no effect, and says so; the status is not taken for one of the bridge.
async fn away(relay: &Relay, core: &conformance::authority::Certificate) -> anyhow::Result<()> {
    relay.wait_for_logs("a bridge is gone", 1).await?;
    let asked = relay.client(ENVIRONMENT, core).await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await;
    assert!(matches!(&asked, Err(Error::Transport { .. })), "{asked:?}");
    let mut raw = raw(relay, ENVIRONMENT, core).await?;
    let status = raw.get_runtime_info(v1::GetRuntimeInfoRequest {}).await.unwrap_err();
    let reason = status.metadata().get(RELAY_REASON_TRAILER).context("no reason of the relay")?;
    assert_eq!((status.code(), reason.to_str()?), (Code::Unavailable, "NOT_CONNECTED"));
    assert!(!status.metadata().contains_key(proto::REASON_TRAILER));
    Ok(())
}

type Raw = RuntimeClient<tonic::service::interceptor::InterceptedService<tonic::transport::Channel, Named>>;

/// Adds what a Core must not be believed.
#[derive(Clone)]
struct Named;

impl tonic::service::Interceptor for Named {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        for name in [OTHER_CORE, "uid:0"] {
            request.metadata_mut().append(PRINCIPAL_HEADER, name.parse().unwrap());
        }
        request.metadata_mut().insert(version::HEADER, version::CURRENT.to_string().parse().unwrap());
        Ok(request)
    }
}

/// A Core that claims to be others.
async fn raw(relay: &Relay, environment: &str, core: &conformance::authority::Certificate) -> anyhow::Result<Raw> {
    let channel = relay.channel(&format!("{environment}.relay.internal"), Some(core)).await?;
    Ok(RuntimeClient::with_interceptor(channel, Named))
}

#[test]
fn what_a_core_says_of_its_own_name_is_replaced() {
    scenario("relay_principal", &["R-ENR-4", "R-ASG-5"], setup(), async |rig| {
        let session = rig.session().await?;
        let core = rig.relay()?.certificate(CORE).await?;
        let listed =
            raw(rig.relay()?, ENVIRONMENT, &core).await?.list_sessions(v1::ListSessionsRequest::default()).await?;
        let listed = listed.into_inner().sessions;
        let told: Vec<_> = listed.iter().map(|session| (&*session.session_id, &*session.principal)).collect();
        assert_eq!(told, [(&*session.assignment().session_id, CORE)]);
        // Who is no Core of this relay, and who names no Environment, gets nowhere.
        for (name, environment, code, reason) in [
            ("spiffe://conformance.example/stranger", ENVIRONMENT, Code::PermissionDenied, "NOT_AUTHORIZED"),
            (CORE, "other", Code::Unavailable, "NOT_CONNECTED"),
            (CORE, "a.b", Code::NotFound, "NOT_FOUND"),
        ] {
            let certificate = rig.relay()?.certificate(name).await?;
            let mut raw = raw(rig.relay()?, environment, &certificate).await?;
            let status = raw.list_sessions(v1::ListSessionsRequest::default()).await.unwrap_err();
            let told = status.metadata().get(RELAY_REASON_TRAILER).context("no reason")?.to_str()?;
            assert_eq!((status.code(), told), (code, reason), "{name} to {environment}");
        }
        Ok(())
    });
}

#[test]
fn presence_tells_who_is_connected_and_what_changes() {
    scenario("relay_presence", &["R-ENR-4"], setup(), async |rig| {
        // Connected by now.
        rig.client().await?;
        let relay = rig.relay()?;
        let core = relay.certificate(CORE).await?;
        let mut news = relay.presence(&core).await?;
        let first = news.message().await?.context("no news")?;
        assert!(first.complete && first.environments.len() == 1, "{first:?}");
        let told = &first.environments[0];
        let info = rig.local_client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        assert_eq!((&*told.environment_id, &*told.authority), (ENVIRONMENT, "env-1.relay.internal"));
        assert!(told.connected_since.is_some() && told.runtime_id == info.runtime_id);
        let address = relay.address()?;
        relay.road.cut();
        loop {
            let next = news.message().await?.context("no news")?;
            assert!(!next.complete);
            if next.environments.iter().any(|told| told.connected_since.is_none()) {
                break;
            }
        }
        relay.road.lead(address);
        let next = news.message().await?.context("no news")?;
        assert!(next.environments[0].connected_since.is_some());
        let stranger = relay.certificate("spiffe://conformance.example/stranger").await?;
        assert!(relay.presence(&stranger).await.unwrap_err().to_string().contains("not among the Cores"));
        Ok(())
    });
}

#[test]
fn a_revocation_closes_the_connection_and_parks_the_bridge() {
    scenario("relay_revoked", &["R-ENR-3"], setup(), async |rig| {
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        let state = rig.place().state();
        rig.relay()?.wait_for_status(&state, "connected since").await?;
        let told = rig.relay()?.operate(&["revoke", "--environment", ENVIRONMENT]).await?;
        assert!(told.contains("its enrollment is revoked, its connection is closed"), "{told}");
        let status = rig.relay()?.wait_for_status(&state, "parked").await?;
        assert!(status.contains("(REVOKED)"), "{status}");
        let taken = *rig.relay()?.road.taken().borrow();
        // Everything else goes on, and a restart asks once more and no more than that.
        rig.local_client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        rig.daemon.terminate().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        rig.relay()?.wait_for_status(&state, "parked").await?;
        assert_eq!(*rig.relay()?.road.taken().borrow(), taken + 1);
        // With a new token the machine is enrolled anew; the key is a new one.
        let output = rig.relay()?.command(&["unenroll", "--state", state.to_str().unwrap()]).await?;
        assert!(output.status.success(), "{output:?}");
        rig.relay()?.enroll(&state).await?;
        rig.daemon.terminate().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        rig.client().await?;
        Ok(())
    });
}

#[test]
fn a_revocation_ends_what_is_observed_and_parks_the_bridge() {
    scenario("relay_revoked_observed", &["R-ENR-3"], setup(), async |rig| {
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["Um"]}}, {"gate": "go"}]}]"#)?;
        let session = rig.session().await?;
        drop(rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "hello").await?);
        let core = rig.relay()?.certificate(CORE).await?;
        let request = v1::ObserveTurnRequest {
            assignment: Some(session.assignment().clone()),
            turn_id: "t-1".into(),
            after_sequence: 0,
        };
        let mut observed = raw(rig.relay()?, ENVIRONMENT, &core).await?.observe_turn(request).await?.into_inner();
        observed.message().await?.context("no event")?;
        rig.relay()?.operate(&["revoke", "--environment", ENVIRONMENT]).await?;
        // What came before is read; then it is over, though the Turn is not.
        let status = loop {
            match observed.message().await {
                Ok(event) => drop(event.context("the observation ended as if the Turn had")?),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(!status.metadata().contains_key(RELAY_REASON_TRAILER), "{status:?}");
        let state = rig.place().state();
        let status = rig.relay()?.wait_for_status(&state, "parked").await?;
        assert!(status.contains("(REVOKED)"), "{status}");
        rig.provider.open_gate("go");
        Ok(())
    });
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

#[test]
fn two_machines_with_one_identity_are_both_parked() {
    scenario("relay_duplicate", &["R-ENR-5"], setup(), async |rig| {
        rig.client().await?;
        let second = Place::make()?;
        copy(&rig.place().state().join("enrollment"), &second.state().join("enrollment"))?;
        let config = fs::read_to_string(rig.place().config())?;
        let [own, other] = [rig.place().root(), second.root()].map(|root| root.display().to_string());
        let [own_socket, other_socket] = [rig.place().socket(), second.socket()].map(|path| path.display().to_string());
        fs::write(second.config(), config.replace(&own_socket, &other_socket).replace(&own, &other))?;
        let mut daemon = Daemon::start(&second).await?;
        for state in [rig.place().state(), second.state()] {
            let status = rig.relay()?.wait_for_status(&state, "parked").await?;
            assert!(status.contains("(DUPLICATE_IDENTITY)"), "{status}");
        }
        // One of them stops, the other one is started anew, and all is well.
        daemon.terminate().await?;
        rig.daemon.terminate().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        rig.client().await?;
        Ok(())
    });
}

#[test]
fn a_certificate_is_renewed_in_the_middle_of_a_turn() {
    let setup = setup().relaying(&["--certificate-seconds", "15"]);
    scenario("relay_renewed", &["R-ENR-3", "R-EVT-1"], setup, async |rig| {
        every_event_once(rig, async |rig| {
            rig.relay()?.wait_for_logs("a certificate is renewed", 1).await?;
            rig.daemon.wait_for_logs("the certificate for the relay is renewed", 1).await?;
            // The connection is the first one still.
            assert_eq!(rig.relay()?.said("a bridge is connected").len(), 1);
            Ok(())
        })
        .await?;
        // The next connection has the new one: the first one, of 15 s, is over when it is renewed after 10 for the second time.
        let relay = rig.relay()?;
        relay.wait_for_logs("a certificate is renewed", 2).await?;
        let address = relay.address()?;
        relay.road.cut();
        relay.wait_for_logs("a bridge is gone", 1).await?;
        relay.road.lead(address);
        relay.wait_for_logs("a bridge is connected", 2).await?;
        Ok(())
    });
}

#[test]
fn a_session_is_the_same_whoever_dialled() {
    scenario("relay_takeover", &["R-ASG-2", "R-ENR-4"], setup(), async |rig| {
        let session = rig.session().await?;
        let core = rig.relay()?.certificate(CORE).await?;
        let client: Client = rig.relay()?.answering(&core).await?;
        let assignment = v1::AssignmentRef { epoch: 2, ..session.assignment().clone() };
        let directory = rig.workspace().to_string_lossy().into_owned();
        let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
        let placement = v1::bind_assignment_request::Placement::Workspace(workspace);
        let request = v1::BindAssignmentRequest { assignment: Some(assignment), placement: Some(placement) };
        assert!(client.bind_assignment(request).await?.took_over);
        Ok(())
    });
}
