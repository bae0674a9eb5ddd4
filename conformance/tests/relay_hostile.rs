//! Relays that are no relay: the bridge finds out within its stated times, dials again without a storm, and its own socket and its Turns do not notice (R-ENR-2,
//! R-ENR-5).

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use conformance::authority::{Authority, of_client};
use conformance::rig::{Daemon, Rig, Setup, scenario};
use prost::Message as _;
use proto::enrollment::v1::{EnrollmentReason as Reason, LinkHello, LinkWelcome};
use proto::enrollment::{ENVIRONMENT_NAME, LINK_PROTOCOL};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Why one Harness is enough.
const OWN: &str = "how calls come to the bridge is the bridge's own";

/// A relay that does what a test wants.
struct Fake {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    authority: Authority,
}

impl Fake {
    async fn open() -> anyhow::Result<Self> {
        let authority = Authority::new("a relay of a test")?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
        let (chain, key) = authority.server(&["127.0.0.1"])?.der()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![LINK_PROTOCOL.to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        Ok(Self { listener, acceptor: Arc::new(config).into(), authority })
    }

    fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// What `enroll` leaves behind, for a state directory.
    fn enroll(&self, state: &Path) -> anyhow::Result<()> {
        let folder = state.join("enrollment");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let name = format!("{ENVIRONMENT_NAME}env-1");
        let own = self.authority.sign(|params| of_client(params, &name))?;
        let record = serde_json::json!({
            "form": 1, "url": format!("https://{}", self.address()?), "environment_id": "env-1", "proxy": null,
            "received_ms": 1_700_000_000_000_i64, "renew_in_ms": 9_000_000_000_000_i64, "not_after_ms": 9_999_999_999_999_i64,
        });
        for (name, text) in [
            ("key.pem", &*own.key),
            ("certificate.pem", &own.pem),
            ("authority.pem", self.authority.pem()),
            ("enrollment.json", &record.to_string()),
        ] {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(folder.join(name));
            std::io::Write::write_all(&mut file?, text.as_bytes())?;
        }
        Ok(())
    }

    /// The next connection, as it comes.
    async fn dialled(&self) -> anyhow::Result<TcpStream> {
        Ok(self.listener.accept().await?.0)
    }

    /// The next connection, once the handshake is done and the bridge has said who it is.
    async fn greeted(&self) -> anyhow::Result<(TlsStream<TcpStream>, LinkHello)> {
        let mut stream = self.acceptor.accept(self.dialled().await?).await?;
        let length = stream.read_u32().await?;
        let mut hello = vec![0; usize::try_from(length)?];
        stream.read_exact(&mut hello).await?;
        Ok((stream, LinkHello::decode(hello.as_slice())?))
    }
}

fn message(welcome: &LinkWelcome) -> Vec<u8> {
    let bytes = welcome.encode_to_vec();
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], &bytes].concat()
}

/// The daemon of the rig is started anew as one that belongs to this relay.
async fn restart(rig: &mut Rig, relay: &Fake) -> anyhow::Result<()> {
    relay.enroll(&rig.place().state())?;
    rig.daemon.terminate().await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    Ok(())
}

/// Waits until the daemon says this of why it is not connected.
async fn says(rig: &Rig, why: &str) -> anyhow::Result<()> {
    let mut count = 1;
    loop {
        let lines = rig.daemon.wait_for_logs("the relay is not connected", count).await?;
        if lines.iter().any(|line| line["why"].as_str().is_some_and(|text| text.contains(why))) {
            return Ok(());
        }
        count = lines.len() + 1;
    }
}

#[test]
fn a_relay_that_does_not_shake_hands_is_left_in_its_time() {
    let setup = Setup::outer().bridge(OWN).over(conformance::rig::Link::Unix);
    scenario("relay_without_handshake", &["R-ENR-2"], setup, async |rig| {
        let relay = Fake::open().await?;
        restart(rig, &relay).await?;
        let mute = relay.dialled().await?;
        says(rig, "there was no answer within 10 s").await?;
        drop(mute);
        relay.greeted().await?;
        Ok(())
    });
}

#[test]
fn a_relay_that_says_nothing_is_left_in_its_time() {
    let setup = Setup::outer().bridge(OWN).over(conformance::rig::Link::Unix).with("limits.opening_ms = 500");
    scenario("relay_mute", &["R-ENR-2"], setup, async |rig| {
        let relay = Fake::open().await?;
        restart(rig, &relay).await?;
        // The handshake, and no answer to the first message.
        let (mute, hello) = relay.greeted().await?;
        let info = rig.local_client().await?.get_runtime_info(proto::v1::GetRuntimeInfoRequest {}).await?;
        assert_eq!((&*hello.version, &hello.runtime_id), ("0.1", &info.runtime_id));
        says(rig, "did not answer the first message").await?;
        drop(mute);
        // Taken, and then no HTTP/2.
        let (mut mute, again) = relay.greeted().await?;
        assert_eq!(again.instance, hello.instance);
        mute.write_all(&message(&LinkWelcome::default())).await?;
        rig.daemon.wait_for_logs("the relay is connected", 1).await?;
        says(rig, "the connection ended").await?;
        relay.greeted().await?;
        Ok(())
    });
}

#[test]
fn a_relay_that_speaks_something_else_is_left_at_once() {
    let setup = Setup::outer().bridge(OWN).over(conformance::rig::Link::Unix);
    scenario("relay_rubbish", &["R-ENR-2"], setup, async |rig| {
        let relay = Fake::open().await?;
        restart(rig, &relay).await?;
        // No TLS.
        let mut plain = relay.dialled().await?;
        plain.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await?;
        says(rig, "does not speak TLS").await?;
        // A first message of 1 GiB, and one that is none.
        for (wire, why) in [(&[0x40, 0, 0, 0][..], "4096 is the most"), (&[0, 0, 0, 2, 0xff, 0xff], "cannot be read")] {
            let (mut stream, _) = relay.greeted().await?;
            stream.write_all(wire).await?;
            says(rig, why).await?;
        }
        // Taken, and then a frame of 16 MiB of a stream that is none.
        let (mut stream, _) = relay.greeted().await?;
        let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\xff\xff\xff\0\0\0\0\0\x01";
        stream.write_all(&[&message(&LinkWelcome::default())[..], http2].concat()).await?;
        rig.daemon.wait_for_logs("the relay is connected", 1).await?;
        says(rig, "the connection ended").await?;
        // A refusal that may pass is one to try again; one that stays parks.
        let refused = |reason: Reason| message(&LinkWelcome { refused: reason.into(), text: "not now".into() });
        let (mut stream, _) = relay.greeted().await?;
        stream.write_all(&refused(Reason::Overloaded)).await?;
        says(rig, "not now").await?;
        let (mut stream, _) = relay.greeted().await?;
        stream.write_all(&refused(Reason::NotEnrolled)).await?;
        let parked = rig.daemon.wait_for_logs("the relay refuses this bridge", 1).await?;
        assert_eq!(parked[0]["reason"], "NOT_ENROLLED");
        // Its own socket did not notice.
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        Ok(())
    });
}

#[test]
fn a_relay_of_another_authority_is_told_nothing() {
    let setup = Setup::outer().bridge(OWN).over(conformance::rig::Link::Unix);
    scenario("relay_foreign", &["R-ENR-1", "R-ENR-2"], setup, async |rig| {
        let relay = Fake::open().await?;
        // The machine is enrolled at a relay of this address, and another one has taken its place.
        let mut other = Fake::open().await?;
        other.listener = relay.listener;
        let enrolled = Fake { listener: other.listener, acceptor: other.acceptor, authority: relay.authority };
        restart(rig, &enrolled).await?;
        enrolled.greeted().await.map(drop).unwrap_err();
        says(rig, "authority").await.context("it does not say why")
    });
}
