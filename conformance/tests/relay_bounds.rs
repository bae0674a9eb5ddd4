//! What one peer of a relay may take of it: strangers shut nobody out, and no Core takes what is another one's (R-ENR-1, R-ENR-4).

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::convert::Infallible;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use base64::Engine as _;
use bytes::Bytes;
use conformance::authority::Certificate;
use conformance::rig::{CORE, Link, OTHER_CORE, Relay, Setup, scenario, versioned};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use proto::enrollment::{
    ENVIRONMENT_NAME, LINK_PROTOCOL, RELAY_REASON_TRAILER,
    v1::{EnrollRequest, LinkHello, LinkWelcome, enrollment_client::EnrollmentClient},
};
use rcgen::{CertificateParams, KeyPair, SanType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// Why one Harness is enough.
const OWN: &str = "what a peer of the relay may take is the relay's own";
/// Longer than a relay keeps whoever is neither a Core nor a bridge.
const PATIENCE: Duration = Duration::from_secs(45);
/// Places for those who have not said who they are.
const PLACES: usize = 256;
/// Calls of one Core to one Environment at once.
const CALLS: usize = 256;

fn setup() -> Setup {
    Setup::outer().bridge(OWN).over(Link::Relay)
}

async fn mute(address: SocketAddr, from: Ipv4Addr) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    Ok(socket.connect(address).await?)
}

#[test]
fn strangers_shut_nobody_out_and_the_log_names_them() {
    scenario("relay_strangers", &["R-ENR-1"], setup(), async |rig| {
        rig.client().await?;
        let relay = rig.relay()?;
        let address = relay.address()?;
        let (honest, flood) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
        let core = relay.certificate(CORE).await?;
        let mut held = vec![mute(address, honest).await?];
        for _ in 0..PLACES + 44 {
            held.push(mute(address, flood).await?);
        }
        let let_go = |from: Ipv4Addr| {
            let told = relay.said("a connection was not taken").into_iter();
            told.filter(|line| line["why"].as_str().is_some_and(|why| why.contains("made room")))
                .filter(|line| {
                    line["from"].as_str().and_then(|from| from.parse().ok()).map(|from: SocketAddr| from.ip())
                        == Some(IpAddr::V4(from))
                })
                .count()
        };
        relay.wait_for_logs("a connection was not taken", 44).await?;
        // Whoever flooded has lost its own, and the one that was there before it is there.
        relay.answering(&core).await?;
        assert!(let_go(flood) >= 44, "{}", relay.log_text());
        assert_eq!(let_go(honest), 0);
        Ok(())
    });
}

#[test]
fn who_is_no_core_is_not_kept() {
    scenario("relay_not_kept", &["R-ENR-1"], setup(), async |rig| {
        let relay = rig.relay()?;
        let (core, stranger) =
            (relay.certificate(CORE).await?, relay.certificate("spiffe://conformance.example/stranger").await?);
        // A certificate, and not a word.
        let silent = async |certificate: &Certificate| {
            let mut stream = relay.connect("env-1.relay.internal", relay.config(Some(certificate))?).await?;
            let mut rest = Vec::new();
            drop(timeout(PATIENCE, stream.read_to_end(&mut rest)).await.context("the relay holds on to silence")?);
            anyhow::Ok(())
        };
        // Everything that HTTP/2 asks for, and no call that is taken.
        let speaks = async {
            let stream = relay.connect("env-1.relay.internal", relay.config(Some(&stranger))?).await?;
            let (sender, connection) =
                hyper::client::conn::http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), TokioIo::new(stream))
                    .await?;
            drop(timeout(PATIENCE, connection).await.context("the relay holds on to a stranger")?);
            drop(sender);
            anyhow::Ok(())
        };
        let (first, second, third) = tokio::join!(silent(&core), silent(&stranger), speaks);
        first.and(second).and(third)
    });
}

#[test]
fn who_shows_no_certificate_has_few_streams() {
    scenario("relay_few_streams", &["R-ENR-1"], setup(), async |rig| {
        let relay = rig.relay()?;
        let mut stream = relay.connect("127.0.0.1", relay.config(None)?).await?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        assert_eq!(head[3], 4, "the first frame has the settings: {head:?}");
        let mut settings = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        stream.read_exact(&mut settings).await?;
        let told = |id: u16| {
            let setting = settings.chunks(6).find(|setting| setting[..2] == id.to_be_bytes())?;
            Some(u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]))
        };
        // Streams at once, and the window of each; that of all together is what HTTP/2 begins with.
        assert_eq!((told(3), told(4)), (Some(4), Some(64 << 10)));
        Ok(())
    });
}

/// What was asked of the Environment of the test's own.
#[derive(Debug, Default)]
struct Taken {
    /// Frames of answers without an end.
    frames: watch::Sender<usize>,
    /// Calls that are never answered.
    waiting: watch::Sender<usize>,
}

/// An Environment of the test's own, which is enrolled and connected; it answers by the path of a call.
async fn bridge(relay: &Relay, id: &str, taken: Arc<Taken>, tasks: &TaskTracker) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(format!("{ENVIRONMENT_NAME}{id}").try_into()?)];
    let certificate_request = params.serialize_request(&key)?.der().to_vec();
    let text = fs::read_to_string(relay.token(id).await?)?;
    let token = text.lines().find_map(|line| line.strip_prefix("token = ")).context("no token")?;
    let request = EnrollRequest { token: token.trim_matches('"').into(), certificate_request };
    let mut client = EnrollmentClient::new(relay.channel("127.0.0.1", None).await?);
    let certificate = client.enroll(versioned(request)).await?.into_inner().certificate.context("no certificate")?;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate.certificate);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    let mut config = relay.config(Some(&Certificate { pem, key: key.serialize_pem() }))?;
    config.alpn_protocols = vec![LINK_PROTOCOL.to_vec()];
    let mut stream = relay.connect("127.0.0.1", config).await?;
    let version = proto::enrollment::CURRENT.to_string();
    let hello = LinkHello { version, instance: "i-1".into(), runtime_id: "r-1".into() }.encode_to_vec();
    stream.write_all(&[&u32::try_from(hello.len())?.to_be_bytes()[..], &hello].concat()).await?;
    let mut welcome = vec![0; usize::try_from(stream.read_u32().await?)?];
    stream.read_exact(&mut welcome).await?;
    assert_eq!(LinkWelcome::decode(welcome.as_slice())?, LinkWelcome::default());
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(1024)
        .serve_connection(TokioIo::new(stream), service_fn(move |request| answer(request, Arc::clone(&taken))));
    tasks.spawn(async move { drop(server.await) });
    Ok(())
}

/// One frame of an answer.
const FRAME: Bytes = Bytes::from_static(&[7; 16 << 10]);

async fn answer(
    request: Request<Incoming>,
    taken: Arc<Taken>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let body = match request.uri().path() {
        "/endless" => {
            let frames = futures_util::stream::repeat_with(move || {
                taken.frames.send_modify(|sent| *sent += 1);
                Ok(Frame::data(FRAME))
            });
            StreamBody::new(frames).boxed()
        }
        "/never" => {
            taken.waiting.send_modify(|waiting| *waiting += 1);
            std::future::pending().await
        }
        _ => Full::new(Bytes::from(vec![7; 1 << 20])).boxed(),
    };
    Ok(Response::new(body))
}

/// A connection of a Core, which takes little and knows nothing of gRPC.
async fn core(relay: &Relay, name: &str, tasks: &TaskTracker) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
    let certificate = relay.certificate(name).await?;
    let stream = relay.connect("fair.relay.internal", relay.config(Some(&certificate))?).await?;
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(16 << 10)
        .handshake(TokioIo::new(stream))
        .await?;
    tasks.spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn call(path: &str) -> Request<Empty<Bytes>> {
    Request::post(format!("https://fair.relay.internal{path}")).body(Empty::new()).unwrap()
}

async fn whole(core: &mut SendRequest<Empty<Bytes>>) -> anyhow::Result<usize> {
    let answer = timeout(PATIENCE, async { core.send_request(call("/whole")).await?.collect().await });
    Ok(answer.await.context("the call waits for those of another Core")??.to_bytes().len())
}

#[test]
fn a_core_that_reads_nothing_holds_up_no_other_one() {
    scenario("relay_unread", &["R-ENR-4"], setup(), async |rig| {
        let (relay, tasks) = (rig.relay()?, TaskTracker::new());
        let taken = Arc::new(Taken::default());
        bridge(relay, "fair", Arc::clone(&taken), &tasks).await?;
        let mut idle = core(relay, CORE, &tasks).await?;
        let mut other = core(relay, OTHER_CORE, &tasks).await?;
        // More than the link's window would hold if it were one for all.
        let mut unread = Vec::new();
        for _ in 0..128 {
            unread.push(idle.send_request(call("/endless")).await?);
        }
        // Each of them has its own window's worth under way.
        let frames = 128 * (256 << 10) / FRAME.len() * 4 / 5;
        let mut sent = taken.frames.subscribe();
        let full = timeout(PATIENCE, sent.wait_for(|sent| *sent >= frames)).await.is_ok();
        assert!(full, "the link took {} frames", *taken.frames.borrow());
        for _ in 0..8 {
            assert_eq!(whole(&mut other).await?, 1 << 20);
        }
        drop(unread);
        Ok(())
    });
}

#[test]
fn a_core_has_its_part_of_a_link_and_is_told_when_it_is_taken() {
    scenario("relay_share", &["R-ENR-4"], setup(), async |rig| {
        let (relay, tasks) = (rig.relay()?, TaskTracker::new());
        let taken = Arc::new(Taken::default());
        bridge(relay, "fair", Arc::clone(&taken), &tasks).await?;
        let mut busy = core(relay, CORE, &tasks).await?;
        let mut other = core(relay, OTHER_CORE, &tasks).await?;
        let mut waiting: Vec<_> = (0..CALLS).map(|_| busy.send_request(call("/never"))).collect();
        timeout(PATIENCE, taken.waiting.subscribe().wait_for(|waiting| *waiting >= CALLS))
            .await
            .context("too few")??;
        let reason = |answer: &Response<Incoming>| {
            let told = answer.headers().get(RELAY_REASON_TRAILER);
            told.map(|told| told.to_str().unwrap().to_owned())
        };
        let refused = busy.send_request(call("/whole")).await?;
        assert_eq!(reason(&refused), Some("OVERLOADED".into()), "{refused:?}");
        assert_eq!(refused.headers()["grpc-status"], "14");
        assert_eq!(whole(&mut other).await?, 1 << 20);
        // One that ends makes room.
        drop(waiting.pop());
        let again = timeout(PATIENCE, async {
            loop {
                let answer = busy.send_request(call("/whole")).await?;
                if reason(&answer).is_none() {
                    return anyhow::Ok(answer.collect().await?.to_bytes().len());
                }
            }
        });
        assert_eq!(again.await.context("no room came back")??, 1 << 20);
        drop(waiting);
        Ok(())
    });
}
