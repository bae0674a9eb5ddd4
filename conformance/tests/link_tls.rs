//! The listener with mutual TLS: a Core is who its certificate says, whoever is not taken learns nothing, and the log tells why (R-SEC-1,
//! R-ASG-5, R-ENR-4).

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use conformance::authority::{Authority, Certificate, of_client};
use conformance::for_each_harness;
use conformance::rig::{
    CORE, Daemon, Ended, Harness, Link, OTHER_CORE, Observed, Rig, Setup, Tls, client_config, function, refusal,
    scenario, text_result,
};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::client::{Client, Session};
use proto::enrollment::PRINCIPAL_HEADER;
use proto::v1::{self, Reason, event::Kind};
use proto::{REASON_TRAILER, version};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Why one Harness is enough.
const OWN: &str = "who may call is judged before a Harness is asked";

/// What HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Its first frame, which asks for nothing.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

for_each_harness!(a_core_drives_a_turn_over_mutual_tls);

fn setup() -> Setup {
    Setup::outer().bridge(OWN).over(Link::Mtls)
}

/// The same with short limits for whoever connects.
fn hurried() -> Setup {
    setup().with("limits.handshake_ms = 300\nlimits.opening_ms = 300")
}

fn a_core_drives_a_turn_over_mutual_tls(harness: Harness) {
    let rules = ["R-SEC-1", "R-ASG-5", "R-FN-5", "R-FN-6", "R-EVT-2"];
    scenario("tls_link_turn", &rules, Setup::outer().of(harness).over(Link::Mtls), async |rig| {
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
        // Another connection of the same Core sees the same; on the socket there is no such Session.
        let again = rig.observe(&session, "t-1", 0).await?;
        assert_eq!(again.events, seen.events);
        let request = || v1::GetTurnRequest { assignment: Some(session.assignment().clone()), turn_id: "t-1".into() };
        rig.client().await?.get_turn(request()).await?;
        refusal(rig.local_client().await?.get_turn(request()).await, Reason::NotFound);
        Ok(())
    });
}

async fn bind(rig: &Rig, client: &Client) -> anyhow::Result<Session> {
    let assignment = v1::AssignmentRef { session_id: "s-1".into(), assignment_id: "a-1".into(), epoch: 1 };
    let directory = rig.workspace().to_string_lossy().into_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    let placement = v1::bind_assignment_request::Placement::Workspace(workspace);
    Ok(Session::bind(client.clone(), assignment, placement).await?)
}

#[test]
fn each_core_has_its_own_sessions() {
    scenario("tls_two_cores", &["R-ASG-5", "R-SEC-1"], setup(), async |rig| {
        let (core, other) = (rig.tls()?.client(CORE).await?, rig.tls()?.client(OTHER_CORE).await?);
        // Of one id, and three Sessions: the third one is of the uid on the socket.
        let mut sessions = Vec::new();
        for client in [&core, &other, &rig.local_client().await?] {
            sessions.push(bind(rig, client).await?);
        }
        let whole = rig.whole_turn(&sessions[0], "t-1", "hello").await?;
        whole.completed()?;
        let get = || v1::GetTurnRequest { assignment: Some(sessions[0].assignment().clone()), turn_id: "t-1".into() };
        core.get_turn(get()).await?;
        refusal(other.get_turn(get()).await, Reason::NotFound);
        let target = rig.target(&sessions[1]);
        for call in conformance::rig::Call::ALL {
            // Each of them is one of its own Session.
            let made = call.make(&other, &target).await;
            assert!(!made.is_err_and(|error| error.reason() == Some(Reason::NotAuthorized)));
        }
        // Who is an operator is said for each.
        let all = || v1::ListSessionsRequest { all_principals: true, ..Default::default() };
        let listed = core.list_sessions(all()).await?.sessions;
        let mut principals: Vec<_> = listed.iter().map(|session| session.principal.clone()).collect();
        principals.sort();
        let uid = format!("uid:{}", rustix::process::getuid().as_raw());
        assert_eq!(principals, [CORE, OTHER_CORE, &uid]);
        refusal(other.list_sessions(all()).await, Reason::NotAuthorized).says("operator");
        Ok(())
    });
}

/// What a client that shows this hears at its first read; a good one would hear the settings of HTTP/2.
async fn shows(tls: &Tls, certificate: Option<&Certificate>) -> anyhow::Result<()> {
    let mut stream = tls.connect(client_config(tls.authority(), certificate)?).await?;
    stream.write_all(&[PREFACE, SETTINGS].concat()).await?;
    stream.read_u8().await?;
    Ok(())
}

/// The newest reason for which a handshake was refused, once there are so many.
async fn refused(rig: &Rig, count: usize) -> anyhow::Result<String> {
    let lines = rig.daemon.wait_for_logs("a TLS connection was refused", count).await?;
    assert_eq!(lines.len(), count, "{lines:#?}");
    assert!(lines.iter().all(|line| line["from"].as_str().is_some_and(|from| from.starts_with("127.0.0.1:"))));
    Ok(lines[count - 1]["why"].as_str().context("no reason")?.to_owned())
}

#[test]
fn who_has_no_certificate_that_is_taken_is_refused_and_the_log_says_why() {
    scenario("tls_refused", &["R-SEC-1", "R-ASG-5"], setup(), async |rig| {
        let tls = rig.tls()?;
        let foreign = Authority::new("another authority")?.client(CORE)?;
        let same_name = Authority::new("the authority of both ends")?.client(CORE)?;
        let made = |change: &dyn Fn(&mut rcgen::CertificateParams)| {
            tls.authority().sign(|params| {
                of_client(params, CORE)?;
                change(params);
                Ok(())
            })
        };
        let day = std::time::Duration::from_secs(24 * 60 * 60);
        let cases = [
            (None, "shows no certificate"),
            (Some(foreign), "an authority that is not trusted here"),
            (Some(same_name), "not signed by the authority that it names"),
            (Some(made(&|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1))?), "expired since"),
            // The clock of whoever signed it is two days ahead, or this one's two behind.
            (
                Some(made(&|params| {
                    params.not_before = params.not_before.max((std::time::SystemTime::now() + 2 * day).into())
                })?),
                "set the clocks",
            ),
            (Some(tls.authority().client("spiffe://conformance.example/else")?), "is not on the list `allow`"),
            (Some(made(&|params| params.subject_alt_names.clear())?), "no URI name"),
            (Some(tls.authority().server(&["localhost"])?), "for another purpose"),
        ];
        shows(tls, Some(&tls.authority().client(OTHER_CORE)?)).await.context("a good one")?;
        for (number, (certificate, why)) in (1..).zip(&cases) {
            shows(tls, certificate.as_ref()).await.expect_err(why);
            let told = refused(rig, number).await?;
            assert!(told.contains(why), "{why:?} is not in {told:?}");
        }
        // A client of an older TLS, and one that is none.
        let mut plain = TcpStream::connect(tls.address()?).await?;
        plain.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
        let mut answer = Vec::new();
        _ = plain.read_to_end(&mut answer).await;
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
        assert!(refused(rig, cases.len() + 1).await?.contains("does not speak TLS"));
        rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        Ok(())
    });
}

#[test]
fn only_a_relay_may_say_for_whom_it_calls() {
    scenario("tls_principal", &["R-ENR-4"], setup(), async |rig| {
        let tls = rig.tls()?;
        let check = "/grpc.health.v1.Health/Check";
        assert_eq!(post(tls, check, &[], Bytes::from_static(&[0; 5])).await?, None);
        for path in [check, "/runtime_bridge.v1.Runtime/GetRuntimeInfo"] {
            for name in [OTHER_CORE, CORE, ""] {
                let refused = post(tls, path, &[(PRINCIPAL_HEADER, name)], Bytes::from_static(&[0; 5])).await?;
                assert_eq!(refused.as_deref(), Some("NOT_AUTHORIZED"), "{path} {name}");
            }
        }
        Ok(())
    });
}

/// Sends this body to a path as gRPC, and gives the reason of the refusal.
async fn post(tls: &Tls, path: &str, headers: &[(&str, &str)], body: Bytes) -> anyhow::Result<Option<String>> {
    let certificate = tls.authority().client(CORE)?;
    let stream = tls.connect(client_config(tls.authority(), Some(&certificate))?).await?;
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let mut request = Request::post(format!("https://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header(version::HEADER, version::CURRENT.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut driven = JoinSet::new();
    driven.spawn(connection);
    let answer = send.send_request(request.body(Full::new(body))?).await?;
    let (head, body) = answer.into_parts();
    let trailers = body.collect().await?.trailers().cloned().unwrap_or_default();
    let reason = head.headers.get(REASON_TRAILER).or(trailers.get(REASON_TRAILER));
    Ok(reason.map(|reason| reason.to_str().unwrap().to_owned()))
}

#[test]
fn who_speaks_something_else_or_nothing_is_ended_and_nobody_else_is_held_up() {
    scenario("tls_peers", &["R-SEC-1", "R-API-7"], hurried(), async |rig| {
        let tls = rig.tls()?;
        let core = rig.client().await?;
        let certificate = tls.authority().client(CORE)?;
        // It speaks TLS and HTTP/1, and says so; or it keeps that for later.
        let mut config = client_config(tls.authority(), Some(&certificate))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        tls.connect(config.clone()).await.expect_err("HTTP/1 by ALPN");
        assert!(refused(rig, 1).await?.contains("do not agree on what to speak"));
        config.alpn_protocols = Vec::new();
        let mut stream = tls.connect(config).await?;
        assert_eq!(ended(&mut stream).await, b"");
        assert!(refused(rig, 2).await?.contains("does not offer HTTP/2"));
        let good = || client_config(tls.authority(), Some(&certificate));
        let mut http_1 = tls.connect(good()?).await?;
        http_1.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
        assert!(!String::from_utf8_lossy(&ended(&mut http_1).await).contains("HTTP/1"));
        // It says nothing, before TLS or behind it, or begins and does not go on.
        let mut mute = TcpStream::connect(tls.address()?).await?;
        ended(&mut mute).await;
        assert!(refused(rig, 3).await?.contains("`limits.handshake_ms`"));
        let mut half = TcpStream::connect(tls.address()?).await?;
        half.write_all(b"\x16\x03\x01\x02\0\x01").await?;
        ended(&mut half).await;
        assert!(refused(rig, 4).await?.contains("`limits.handshake_ms`"));
        for said in [&b""[..], b"P", &PREFACE[..23]] {
            let mut slow = tls.connect(good()?).await?;
            slow.write_all(said).await?;
            ended(&mut slow).await;
        }
        rig.daemon.wait_for_logs("does not begin to speak HTTP/2", 3).await?;
        // A frame that is as large as one can say, where 16 KiB are allowed: the connection ends. A message of 1 GiB: the call ends.
        let mut large = tls.connect(good()?).await?;
        let frame = [PREFACE, SETTINGS, b"\xff\xff\xff\0\0\0\0\0\x01"].concat();
        large.write_all(&frame).await?;
        ended(&mut large).await;
        let message = [&b"\0\x40\0\0\0"[..], &[0; 64]].concat();
        let refused = post(tls, "/runtime_bridge.v1.Runtime/GetTurn", &[], message.into()).await?;
        assert_eq!(refused.as_deref(), Some("PAYLOAD_TOO_LARGE"));
        // Whoever was there all the time has noticed nothing of it.
        core.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        Ok(())
    });
}

/// What comes until the other side ends the connection, in whichever way.
async fn ended(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut all = Vec::new();
    // A connection that is cut is ended, too.
    _ = stream.read_to_end(&mut all).await;
    all
}

#[test]
fn slow_handshakes_hold_up_nobody_nor_the_stop() {
    // Longer than the scenario, so that nothing is over because its time is.
    let setup = setup().with("limits.handshake_ms = 600000\nlimits.opening_ms = 600000");
    scenario("tls_slow", &["R-SEC-1", "R-DUR-3"], setup, async |rig| {
        let tls = rig.tls()?;
        let mut slow = Vec::new();
        // More than may be under way.
        for _ in 0..300 {
            let mut stream = TcpStream::connect(tls.address()?).await?;
            stream.write_all(b"\x16").await?;
            slow.push(stream);
        }
        let mute = tls.connect(client_config(tls.authority(), Some(&tls.authority().client(CORE)?))?).await?;
        for _ in 0..3 {
            rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        }
        assert_eq!(rig.daemon.terminate().await?, Ended::Code(0));
        drop((slow, mute));
        Ok(())
    });
}

#[test]
fn renewed_certificates_hold_from_the_next_connection_on() {
    scenario("tls_renewed", &["R-SEC-1"], setup(), async |rig| {
        let tls = rig.tls()?;
        let before = rig.client().await?;
        let ask = async |client: &Client| client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await;
        ask(&before).await?;
        // What cannot be used changes nothing, and the log says so.
        let good = fs::read_to_string(tls.file("server.pem"))?;
        tls.replace("server.pem", "-----BEGIN CERTIFICATE-----\n")?;
        ask(&rig.client().await?).await?;
        let lines = rig.daemon.wait_for_logs("the files of TLS changed and cannot be used", 1).await?;
        assert!(lines[0]["error"].as_str().context("no error")?.contains("server.pem"), "{lines:?}");
        tls.replace("server.pem", &good)?;
        // Another authority for both ends.
        let next = Arc::new(Authority::new("the authority of the next year")?);
        tls.put(&next)?;
        let old = tls.authority().client(CORE)?;
        tls.connect(client_config(tls.authority(), Some(&old))?).await.expect_err("the server has another authority");
        let new = next.client(CORE)?;
        let mut stream = tls.connect(client_config(&next, Some(&new))?).await?;
        stream.write_all(&[PREFACE, SETTINGS].concat()).await?;
        stream.read_u8().await?;
        let mut stream = tls.connect(client_config(&next, Some(&old))?).await?;
        stream.read_u8().await.expect_err("the client's authority is none any more");
        // Whoever was connected before still is.
        ask(&before).await?;
        Ok(())
    });
}

#[test]
fn a_key_that_others_can_read_is_not_used() {
    scenario("tls_key_file", &["R-SEC-1"], setup(), async |rig| {
        let key = rig.tls()?.file("server.key");
        rig.daemon.kill().await?;
        for mode in [0o640, 0o604, 0o644] {
            fs::set_permissions(&key, fs::Permissions::from_mode(mode))?;
            let mut daemon = Daemon::spawn(rig.place())?;
            assert_eq!(daemon.wait(std::time::Duration::from_secs(40)).await?, Ended::Code(10));
            let tail = daemon.log_tail();
            let says = "server.key can be read by others; give it mode 0600";
            assert!(tail.lines().last().is_some_and(|line| line.contains(says)), "{tail}");
        }
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        rig.daemon = Daemon::start(rig.place()).await?;
        rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        Ok(())
    });
}
