//! Enrolling, and everything that a relay and a bridge refuse of it, each with its reason (R-ENR-1, R-ENR-3).

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::fs;
use std::future::pending;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use conformance::authority::{Authority, Certificate, of_client};
use conformance::rig::{CORE, Daemon, ENVIRONMENT, Ended, Link, Relay, Rig, Setup, scenario, versioned};
use prost::Message as _;
use proto::REASON_TRAILER;
use proto::enrollment::{
    ENVIRONMENT_NAME, LINK_PROTOCOL,
    v1::{EnrollRequest, LinkHello, LinkWelcome, RenewRequest, UnenrollRequest, enrollment_client::EnrollmentClient},
};
use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::Channel;

/// Why one Harness is enough.
const OWN: &str = "who may belong to a relay is judged before a Harness is asked";

/// Longer than a relay waits for a handshake or a first message.
const PATIENCE: Duration = Duration::from_secs(30);

fn setup() -> Setup {
    Setup::outer().bridge(OWN).over(Link::Relay)
}

/// A request for the certificate of an Environment.
fn request(key: &KeyPair, name: &str) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
    params.serialize_request(key).unwrap().der().to_vec()
}

fn of(environment: &str) -> String {
    format!("{ENVIRONMENT_NAME}{environment}")
}

/// The token in a file.
fn token(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("token = ")).context("no token")?;
    Ok(line.trim_matches('"').to_owned())
}

/// Enrolls as a client of the protocol: the certificate, or the reason of the refusal.
async fn enroll(
    client: &mut EnrollmentClient<Channel>,
    token: &str,
    certificate_request: Vec<u8>,
) -> anyhow::Result<Result<Vec<u8>, String>> {
    let request = EnrollRequest { token: token.into(), certificate_request };
    match client.enroll(versioned(request)).await {
        Ok(answer) => {
            let certificate = answer.into_inner().certificate.context("no certificate")?;
            Ok(Ok(certificate.certificate))
        }
        Err(status) => {
            let said = status.message();
            assert!(token.len() < 60 || !said.contains(&token[4..60]), "{said}");
            Ok(Err(reason(&status)?))
        }
    }
}

fn reason(status: &tonic::Status) -> anyhow::Result<String> {
    let told = status.metadata().get(REASON_TRAILER).with_context(|| format!("no reason: {status:?}"))?;
    Ok(told.to_str()?.to_owned())
}

fn pem(der: &[u8], key: &KeyPair) -> Certificate {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    Certificate { pem, key: key.serialize_pem() }
}

#[test]
fn each_refusal_of_a_token_has_its_reason() {
    scenario("enroll_refusals", &["R-ENR-1"], setup(), async |rig| {
        let relay = rig.relay()?;
        // Whoever enrolls has no certificate yet.
        let client = &mut EnrollmentClient::new(relay.channel("127.0.0.1", None).await?);
        let (key, other) = (KeyPair::generate()?, KeyPair::generate()?);
        let fresh = relay.token("fresh").await?;
        let first = token(&fresh)?;
        let csr = request(&key, &of("fresh"));
        let refused = async |client: &mut EnrollmentClient<Channel>, token: &str, csr: &[u8]| {
            anyhow::Ok(enroll(client, token, csr.to_vec()).await?.unwrap_err())
        };
        for malformed in ["", "rbt_", "token", &first[1..], &format!("{first}0"), &first.to_uppercase()] {
            assert_eq!(refused(client, malformed, &csr).await?, "TOKEN_MALFORMED", "{malformed}");
        }
        let foreign = format!("rbt_{}", "0".repeat(64));
        assert_eq!(refused(client, &foreign, &csr).await?, "TOKEN_FOREIGN");
        for wrong in [&b""[..], b"x", &csr[..csr.len() - 1], &vec![0; 100 << 10]] {
            assert_eq!(refused(client, &first, wrong).await?, "REQUEST_MALFORMED");
        }
        assert_eq!(refused(client, &first, &request(&key, CORE)).await?, "REQUEST_MALFORMED");
        assert_eq!(refused(client, &first, &request(&key, &of("other"))).await?, "FOREIGN_ENVIRONMENT");
        // None of it has used the token up. The same key is answered again; another one is not.
        let certificate = enroll(client, &first, csr.clone()).await?.unwrap();
        enroll(client, &first, csr.clone()).await?.unwrap();
        let of_other = request(&other, &of("fresh"));
        assert_eq!(refused(client, &first, &of_other).await?, "TOKEN_USED");
        let second = token(&relay.token("fresh").await?)?;
        assert_eq!(refused(client, &second, &of_other).await?, "ENVIRONMENT_ENROLLED");
        // The certificate of one Environment gives nobody that of another, nor one for another key.
        let mine = pem(&certificate, &key);
        let proved = &mut EnrollmentClient::new(relay.channel("127.0.0.1", Some(&mine)).await?);
        let renew = async |client: &mut EnrollmentClient<Channel>, csr: Vec<u8>| {
            let answer = client.renew(versioned(RenewRequest { certificate_request: csr })).await;
            answer.map(drop).map_err(|status| reason(&status).unwrap())
        };
        assert_eq!(renew(proved, request(&key, &of("other"))).await, Err("FOREIGN_ENVIRONMENT".into()));
        assert_eq!(renew(proved, of_other.clone()).await, Err("ENVIRONMENT_ENROLLED".into()));
        assert_eq!(renew(proved, csr.clone()).await, Ok(()));
        assert_eq!(renew(client, csr.clone()).await, Err("NOT_AUTHORIZED".into()));
        // Who is revoked stays so, with whatever token; the Environment may enroll anew.
        relay.operate(&["revoke", "--environment", "fresh"]).await?;
        assert_eq!(renew(proved, csr.clone()).await, Err("REVOKED".into()));
        assert_eq!(refused(client, &second, &of_other).await?, "TOKEN_FOREIGN");
        let third = token(&relay.token("fresh").await?)?;
        assert_eq!(refused(client, &third, &csr).await?, "REVOKED");
        enroll(client, &third, of_other).await?.unwrap();
        // A token's time, which is the relay's.
        let late = relay.token_for("late", 1).await?;
        let _over = timeout(Duration::from_millis(1100), pending::<()>()).await;
        assert_eq!(refused(client, &token(&late)?, &request(&key, &of("late"))).await?, "TOKEN_EXPIRED");
        // A call that does not say which version it is written in, or one that nobody speaks.
        let unsaid = client.unenroll(tonic::Request::new(UnenrollRequest {})).await.unwrap_err();
        assert_eq!(reason(&unsaid)?, "INVALID_REQUEST");
        let mut newer = tonic::Request::new(UnenrollRequest {});
        newer.metadata_mut().insert(proto::enrollment::HEADER, "9.0".parse()?);
        assert_eq!(reason(&client.unenroll(newer).await.unwrap_err())?, "INCOMPATIBLE_VERSION");
        Ok(())
    });
}

/// What the bridge's command says.
async fn command(relay: &Relay, arguments: &[&str]) -> anyhow::Result<(bool, String)> {
    let output = relay.command(arguments).await?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok((output.status.success(), told))
}

#[test]
fn the_command_says_what_is_wrong_and_what_to_do() {
    scenario("enroll_command", &["R-ENR-1"], setup(), async |rig| {
        let relay = rig.relay()?;
        let root = rig.place().root().to_owned();
        let state = root.join("second").display().to_string();
        let good = relay.token("second").await?;
        let text = fs::read_to_string(&good)?;
        let put = |text: &str, mode: u32| -> anyhow::Result<PathBuf> {
            let path = root.join(uuid::Uuid::now_v7().simple().to_string());
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            Ok(path)
        };
        let refused = async |file: &Path, want: &str| {
            let file = file.to_str().context("no path")?;
            let (well, told) = command(relay, &["enroll", "--token-file", file, "--state", &state]).await?;
            anyhow::ensure!(!well && told.contains(want) && told.lines().count() == 1, "{want}: {told}");
            anyhow::ensure!(!told.contains(&text[text.len() - 20..]), "{told}");
            anyhow::Ok(())
        };
        refused(&put(&text, 0o644)?, "can be read by others; give it mode 0600").await?;
        refused(&put("nothing", 0o600)?, "it has four lines").await?;
        refused(&root.join("none"), "cannot be read").await?;
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        // The authority is another one: whoever sits in between is not believed.
        let pinned = text.replace(&line("ca_sha256"), &format!("ca_sha256 = \"{}\"", "00".repeat(32)));
        refused(&put(&pinned, 0o600)?, "authority that is not trusted here").await?;
        let nobody = text.replace(&line("url"), "url = \"https://127.0.0.1:1\"");
        refused(&put(&nobody, 0o600)?, "reach the relay: connect to 127.0.0.1:1").await?;
        let elsewhere = text.replace("127.0.0.1", "localhost");
        refused(&put(&elsewhere, 0o600)?, "another name").await?;
        let other = text.replace(&line("environment"), "environment = \"third\"");
        refused(&put(&other, 0o600)?, "FOREIGN_ENVIRONMENT").await?;
        // None of it used the token up, and the key of the first attempt is the one that is enrolled.
        let (well, told) =
            command(relay, &["enroll", "--token-file", good.to_str().unwrap(), "--state", &state]).await?;
        assert!(well && told.contains("enrolled as second"), "{told}");
        refused(&good, "enrolled already").await?;
        let third = relay.token("second").await?;
        let elsewhere = root.join("third").display().to_string();
        let (well, told) =
            command(relay, &["enroll", "--token-file", third.to_str().unwrap(), "--state", &elsewhere]).await?;
        assert!(!well && told.contains("ENVIRONMENT_ENROLLED") && told.contains("unenroll"), "{told}");
        // Everything that is there is for nobody else.
        for entry in fs::read_dir(Path::new(&state).join("enrollment"))? {
            let entry = entry?;
            assert_eq!(entry.metadata()?.permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        }
        let (well, told) = command(relay, &["unenroll", "--state", &state]).await?;
        assert!(well && told.contains("the relay has revoked second"), "{told}");
        let (well, told) = command(relay, &["unenroll", "--state", &state]).await?;
        assert!(!well && told.contains("is not enrolled"), "{told}");
        Ok(())
    });
}

#[test]
fn a_daemon_does_not_start_with_a_key_that_others_can_read() {
    scenario("enroll_key_shown", &["R-ENR-1"], setup(), async |rig| {
        rig.daemon.terminate().await?;
        let key = rig.place().state().join("enrollment/key.pem");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640))?;
        let mut daemon = Daemon::spawn(rig.place())?;
        assert_eq!(daemon.wait(PATIENCE).await?, Ended::Code(21));
        assert!(daemon.log_text().contains("can be read by others"), "{}", daemon.log_tail());
        let status = rig.relay()?.status(&rig.place().state()).await?;
        assert!(status.contains("can be read by others"), "{status}");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        rig.daemon = Daemon::start(rig.place()).await?;
        rig.client().await?;
        Ok(())
    });
}

/// What a relay answers to the first message of a bridge that shows this.
async fn links(relay: &Relay, certificate: &Certificate) -> anyhow::Result<LinkWelcome> {
    let mut config = relay.config(Some(certificate))?;
    config.alpn_protocols = vec![LINK_PROTOCOL.to_vec()];
    let mut stream = relay.connect("127.0.0.1", config).await?;
    let hello = LinkHello { version: "0.1".into(), instance: "i-1".into(), runtime_id: "r-1".into() }.encode_to_vec();
    stream.write_all(&[&u32::try_from(hello.len())?.to_be_bytes()[..], &hello].concat()).await?;
    let length = stream.read_u32().await?;
    let mut welcome = vec![0; usize::try_from(length)?];
    stream.read_exact(&mut welcome).await?;
    Ok(LinkWelcome::decode(welcome.as_slice())?)
}

#[test]
fn only_the_enrolled_key_of_the_relays_own_authority_links() {
    // An authority of Cores that the relay trusts: it can make itself no Environment.
    let cores = Authority::new("an authority of Cores").unwrap();
    let file = std::env::temp_dir().join(format!("rb-cores-{}.pem", uuid::Uuid::now_v7().simple()));
    fs::write(&file, cores.pem()).unwrap();
    let setup = setup().relaying(&["--core-authority", file.to_str().unwrap()]);
    scenario("enroll_links", &["R-ENR-1", "R-ENR-2"], setup, async |rig| {
        rig.client().await?;
        let relay = rig.relay()?;
        let refused = async |certificate: &Certificate| {
            let welcome = links(relay, certificate).await?;
            anyhow::Ok(welcome.refused().as_str_name().trim_start_matches("ENROLLMENT_REASON_").to_owned())
        };
        assert_eq!(refused(&cores.client(&of(ENVIRONMENT))?).await?, "NOT_ENROLLED");
        assert_eq!(refused(&cores.client(&of("nobody"))?).await?, "NOT_ENROLLED");
        // A Core is no bridge, and a bridge is no Core. One of them gets no answer at all.
        links(relay, &cores.client(CORE)?).await.unwrap_err();
        let state = rig.place().state().join("enrollment");
        let read = |name: &str| fs::read_to_string(state.join(name));
        let own = Certificate { pem: read("certificate.pem")?, key: read("key.pem")? };
        let presence = relay.presence(&own).await.unwrap_err().to_string();
        assert!(presence.contains("certificate of a Core"), "{presence}");
        let expired = cores.sign(|params| {
            params.not_after = date_time_ymd(2020, 1, 1);
            of_client(params, &of(ENVIRONMENT))
        })?;
        let error = format!("{:#}", links(relay, &expired).await.unwrap_err());
        assert!(error.contains("CertificateExpired"), "{error}");
        let foreign = Authority::new("somebody else")?.client(&of(ENVIRONMENT))?;
        links(relay, &foreign).await.unwrap_err();
        // The Core of the other authority is taken as one, and the bridge was not disturbed.
        relay.answering(&cores.client(CORE)?).await?;
        assert_eq!(relay.said("a bridge is connected").len(), 1);
        Ok(())
    });
    fs::remove_file(file).unwrap();
}

#[test]
fn peers_that_speak_something_else_are_let_go_and_disturb_nobody() {
    scenario("enroll_hostile", &["R-ENR-2"], setup(), async |rig| {
        rig.client().await?;
        let relay = rig.relay()?;
        let address = relay.address()?;
        let gone = async |mut stream: TcpStream| {
            let mut rest = Vec::new();
            // A reset is an end, too.
            timeout(PATIENCE, stream.read_to_end(&mut rest)).await.map(drop).context("the relay holds on to it")
        };
        let speaks = async |bytes: &[u8]| {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(bytes).await?;
            gone(stream).await
        };
        // HTTP/1 without TLS, HTTP/2 without TLS, nothing, and a first byte that nothing follows.
        let (http1, http2) =
            (speaks(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), speaks(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        let (nothing, byte) = (speaks(b""), speaks(b"\x16"));
        let plain = async { tokio::join!(http1, http2, nothing, byte) };
        // Inside of TLS: a first message of 1 GiB, one that is none, HTTP/1, and silence.
        let state = rig.place().state().join("enrollment");
        let read = |name: &str| fs::read_to_string(state.join(name));
        let own = Certificate { pem: read("certificate.pem")?, key: read("key.pem")? };
        let link = async |bytes: &[u8]| {
            let mut config = relay.config(Some(&own))?;
            config.alpn_protocols = vec![LINK_PROTOCOL.to_vec()];
            let mut stream = relay.connect("127.0.0.1", config).await?;
            stream.write_all(bytes).await?;
            let mut rest = Vec::new();
            drop(timeout(PATIENCE, stream.read_to_end(&mut rest)).await.context("the relay holds on to it")?);
            anyhow::ensure!(rest.is_empty(), "it answers {rest:?}");
            anyhow::Ok(())
        };
        let (large, rubbish) = (link(&[0x40, 0, 0, 0, 1]), link(&[0, 0, 0, 2, 0xff, 0xff]));
        let (http1, silent) = (link(b"GET / HTTP/1.1\r\n\r\n"), link(b""));
        let inside = async { tokio::join!(large, rubbish, http1, silent) };
        let (plain, inside) = tokio::join!(plain, inside);
        for ended in [plain.0, plain.1, plain.2, plain.3, inside.0, inside.1, inside.2, inside.3] {
            ended?;
        }
        // A frame of 16 MiB, which is the most that one can say it has: HTTP/2 of ours takes 16 KiB.
        let core = relay.certificate(CORE).await?;
        let mut stream = relay.connect("env-1.relay.internal", relay.config(Some(&core))?).await?;
        let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(&[&settings[..], b"\xff\xff\xff\0\0\0\0\0\x01"].concat()).await?;
        let mut rest = Vec::new();
        drop(timeout(PATIENCE, stream.read_to_end(&mut rest)).await.context("the relay holds on to it")?);
        assert_eq!(relay.said("a bridge is connected").len(), 1);
        relay.answering(&core).await?;
        Ok(())
    });
}

#[test]
fn what_an_earlier_enrollment_left_is_no_dead_end() {
    scenario("enroll_left_over", &["R-ENR-1", "R-ENR-3"], setup(), async |rig| {
        let relay = rig.relay()?;
        let state = rig.place().root().join("second");
        let folder = state.join("enrollment");
        let path = state.display().to_string();
        let enroll = async || {
            let token = relay.token("second").await?;
            command(relay, &["enroll", "--token-file", token.to_str().context("no path")?, "--state", &path]).await
        };
        let (well, told) = enroll().await?;
        assert!(well, "{told}");
        // A record that cannot be read: what is said to do is done, and works.
        fs::write(folder.join("enrollment.json"), "{")?;
        for arguments in [&["unenroll", "--state", &path][..], &["enrollment", "status", "--state", &path]] {
            let (well, told) = command(relay, arguments).await?;
            assert!(!well && told.contains("unenroll --offline") && told.contains("revoke"), "{told}");
        }
        fs::remove_file(folder.join("enrollment.json"))?;
        // The key alone is left, and it is revoked: another one is made, and the same token takes it.
        let before = fs::read(folder.join("key.pem"))?;
        relay.operate(&["revoke", "--environment", "second"]).await?;
        let (well, told) = enroll().await?;
        assert!(well && fs::read(folder.join("key.pem"))? != before, "{told}");
        Ok(())
    });
}

#[test]
fn a_daemon_whose_enrollment_is_removed_lets_the_relay_go() {
    scenario("enroll_removed", &["R-ENR-3"], setup(), async |rig| {
        rig.client().await?;
        let state = rig.place().state();
        // As `unenroll --offline` does: neither the relay nor the daemon is told.
        fs::remove_dir_all(state.join("enrollment"))?;
        let relay = rig.relay()?;
        let limit = tokio::time::Instant::now() + PATIENCE;
        loop {
            let listed = relay.operate(&["list"]).await?;
            if listed.contains("not connected") {
                break;
            }
            anyhow::ensure!(tokio::time::Instant::now() < limit, "{listed}");
        }
        assert!(rig.daemon.log_text().contains("UNENROLLED"), "{}", rig.daemon.log_tail());
        Ok(())
    });
}

/// A proxy that is asked with CONNECT; it counts who asked for what.
async fn proxy(taken: tokio::sync::mpsc::Sender<String>) -> anyhow::Result<std::net::SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let tasks = tokio_util::task::TaskTracker::new();
    tasks.clone().spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let taken = taken.clone();
            tasks.spawn(async move {
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    asked.push(near.read_u8().await?);
                }
                let asked = String::from_utf8_lossy(&asked).into_owned();
                let to = asked.split_whitespace().nth(1).unwrap_or_default().to_owned();
                let mut far = TcpStream::connect(&to).await?;
                near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
                // Nobody listens once the test is over.
                drop(taken.send(to).await);
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    Ok(address)
}

#[test]
fn a_bridge_behind_a_proxy_enrolls_and_dials_through_it() {
    scenario("enroll_proxy", &["R-ENR-1", "R-ENR-2"], setup(), async |rig| {
        let state = rig.place().state();
        let (told, mut taken) = tokio::sync::mpsc::channel(16);
        let proxy = format!("http://{}", proxy(told).await?);
        let relay = rig.relay()?;
        let (well, text) = command(relay, &["unenroll", "--state", state.to_str().unwrap()]).await?;
        assert!(well, "{text}");
        let token = relay.token(ENVIRONMENT).await?;
        let arguments = ["enroll", "--token-file", token.to_str().unwrap(), "--state", state.to_str().unwrap()];
        let (well, text) = command(relay, &[&arguments[..], &["--proxy", &proxy]].concat()).await?;
        assert!(well, "{text}");
        let to = relay.road.address().to_string();
        assert_eq!(taken.recv().await.context("nobody asked")?, to);
        restart(rig).await?;
        assert_eq!(taken.recv().await.context("nobody asked")?, to);
        rig.client().await?;
        let status = rig.relay()?.status(&state).await?;
        assert!(status.contains(&format!("through the proxy {proxy}")), "{status}");
        Ok(())
    });
}

async fn restart(rig: &mut Rig) -> anyhow::Result<()> {
    rig.daemon.terminate().await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    Ok(())
}
