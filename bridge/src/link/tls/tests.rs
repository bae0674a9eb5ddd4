use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

const CORE: &str = "spiffe://example.org/core";

/// A folder of its own with files in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("rb-tls-{}", uuid::Uuid::now_v7().simple()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        // As a renewal does it: the file is never half there.
        let beside = self.0.join(format!("{name}.new"));
        fs::write(&beside, text).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(mode)).unwrap();
        fs::rename(&beside, &path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        // All of the same name, so that only the key tells one from the other.
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate and its key, as PEM.
    fn leaf(&self, change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn authority(&self) -> Authority {
        Authority::of([self.der()]).unwrap()
    }

    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()
    }
}

fn named(uri: &str) -> impl FnOnce(&mut CertificateParams) {
    let uri = uri.to_owned();
    move |params| params.subject_alt_names.push(SanType::URI(uri.as_str().try_into().unwrap()))
}

fn identity(folder: &Folder, (certificate, key): (String, String)) -> Identity {
    let stem = uuid::Uuid::now_v7().simple().to_string();
    let certificate = folder.file(&format!("{stem}.pem"), &certificate, 0o644);
    let key = folder.file(&format!("{stem}.key"), &key, 0o600);
    Identity::read(&certificate, &key).unwrap()
}

fn takes(name: &'static str) -> Judge {
    Arc::new(move |shown: Shown<'_>| match shown.name == name {
        true => Ok(()),
        false => Err(Refused::Because("is not on the list".into())),
    })
}

/// What both ends make of a connection: the holder that the server sees, or why there is none; and what the client says after its first read.
async fn meet(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
) -> (Result<Option<String>, String>, Result<(), String>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let accepting = async {
        let mut stream = TlsAcceptor::from(server).accept(near).await.map_err(|error| why(&error))?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(HTTP_2));
        stream.write_all(b"x").await.unwrap();
        drop(stream.shutdown().await);
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        shown.map(holder).transpose()
    };
    let connecting = async {
        let name = "localhost".try_into().unwrap();
        let mut stream = TlsConnector::from(client).connect(name, far).await.map_err(|error| why(&error))?;
        stream.read_u8().await.map(drop).map_err(|error| why(&error))
    };
    tokio::join!(accepting, connecting)
}

/// A server of this authority that takes Core only.
fn serving(folder: &Folder, ca: &Ca) -> Arc<ServerConfig> {
    let clients = Clients { authority: ca.authority(), judge: takes(CORE), anonymous: false };
    server(&identity(folder, ca.leaf(|_| ())), &clients, &[HTTP_2]).unwrap()
}

#[tokio::test]
async fn both_ends_know_each_other() {
    let (folder, ca) = (Folder::new(), Ca::new());
    let core =
        client(Some(&identity(&folder, ca.leaf(named(CORE)))), &Trust::Authority(ca.authority()), HTTP_2).unwrap();
    let seen = meet(serving(&folder, &ca), core).await;
    assert_eq!(seen, (Ok(Some(CORE.to_owned())), Ok(())));
}

#[tokio::test]
async fn a_client_that_is_not_taken_is_told_and_the_server_knows_why() {
    let (folder, ca, other) = (Folder::new(), Ca::new(), Ca::new());
    let check = async |leaf: Option<(String, String)>, at_server: &str, at_client: &str| {
        let shown = leaf.map(|leaf| identity(&folder, leaf));
        let client = client(shown.as_ref(), &Trust::Authority(ca.authority()), HTTP_2).unwrap();
        let (server, client) = meet(serving(&folder, &ca), client).await;
        let (server, client) = (server.unwrap_err(), client.unwrap_err());
        assert!(server.contains(at_server), "{server}");
        assert!(client.contains(at_client), "{client}");
    };
    check(None, "shows no certificate", "asks for a certificate").await;
    let unknown = "authority that is not trusted here";
    let (foreign, own) = (other.leaf(named(CORE)), ca.leaf(named("spiffe://example.org/else")));
    // Of the same name, so that it is the signature that is wrong.
    check(Some(foreign), "not signed by the authority", "refuses: DecryptError").await;
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    named(CORE)(&mut params);
    let alone = (params.self_signed(&key).unwrap().pem(), key.serialize_pem());
    check(Some(alone), unknown, "does not know the authority").await;
    check(Some(own), "\"spiffe://example.org/else\" is not on the list", "refuses: CertificateUnknown").await;
    check(Some(ca.leaf(|_| ())), "no URI name", "CertificateUnknown").await;
    let two = ca.leaf(|params| {
        named(CORE)(params);
        named("spiffe://example.org/else")(params);
    });
    check(Some(two), "more than one URI name", "CertificateUnknown").await;
    let expired = ca.leaf(|params| {
        named(CORE)(params);
        params.not_after = date_time_ymd(2020, 1, 1);
    });
    check(Some(expired), "expired since", "not valid now").await;
    let early = ca.leaf(|params| {
        named(CORE)(params);
        params.not_before = date_time_ymd(4000, 1, 1);
    });
    check(Some(early), "not valid for another", "not valid now").await;
    let of_servers = ca.leaf(|params| {
        named(CORE)(params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    check(Some(of_servers), "for another purpose", "refuses: UnsupportedCertificate").await;
}

#[tokio::test]
async fn both_ends_agree_on_what_is_spoken() {
    let (folder, ca) = (Folder::new(), Ca::new());
    let core = identity(&folder, ca.leaf(named(CORE)));
    let other = client(Some(&core), &Trust::Authority(ca.authority()), b"http/1.1").unwrap();
    let (server, client) = meet(serving(&folder, &ca), other).await;
    for told in [server.unwrap_err(), client.unwrap_err()] {
        assert!(told.contains("do not agree on what to speak"), "{told}");
    }
}

#[tokio::test]
async fn who_is_revoked_is_told_so_at_the_next_connection() {
    let (folder, ca) = (Folder::new(), Ca::new());
    let revoked = Arc::new(AtomicBool::new(false));
    let judge = Arc::clone(&revoked);
    let judge: Judge = Arc::new(move |shown: Shown<'_>| {
        assert!(!shown.serial.is_empty());
        if judge.load(Ordering::SeqCst) { Err(Refused::Revoked) } else { Ok(()) }
    });
    let clients = Clients { authority: ca.authority(), judge, anonymous: false };
    let server = server(&identity(&folder, ca.leaf(|_| ())), &clients, &[HTTP_2]).unwrap();
    let client =
        client(Some(&identity(&folder, ca.leaf(named(CORE)))), &Trust::Authority(ca.authority()), HTTP_2).unwrap();
    let (taken, told) = meet(Arc::clone(&server), Arc::clone(&client)).await;
    assert_eq!((taken, told), (Ok(Some(CORE.to_owned())), Ok(())));
    revoked.store(true, Ordering::SeqCst);
    // The same two configurations: nothing of the connection before is resumed.
    let (refused, told) = meet(server, client).await;
    assert_eq!(refused.unwrap_err(), "its certificate was revoked");
    assert!(told.unwrap_err().contains("this side's certificate was revoked"));
}

#[tokio::test]
async fn a_server_may_take_who_shows_nothing() {
    let (folder, ca) = (Folder::new(), Ca::new());
    let clients = Clients { authority: ca.authority(), judge: takes(CORE), anonymous: true };
    let server = server(&identity(&folder, ca.leaf(|_| ())), &clients, &[HTTP_2]).unwrap();
    let trust = Trust::Authority(ca.authority());
    let seen = meet(Arc::clone(&server), client(None, &trust, HTTP_2).unwrap()).await;
    assert_eq!(seen, (Ok(None), Ok(())));
    // Whoever shows something is judged by it.
    let other = identity(&folder, ca.leaf(named("spiffe://example.org/else")));
    let (seen, _) = meet(server, client(Some(&other), &trust, HTTP_2).unwrap()).await;
    assert!(seen.unwrap_err().contains("is not on the list"));
}

#[tokio::test]
async fn a_client_trusts_the_authority_that_it_was_given_or_the_digest_of_one_that_is_shown() {
    let (folder, ca, other) = (Folder::new(), Ca::new(), Ca::new());
    let core = identity(&folder, ca.leaf(named(CORE)));
    let digest = |of: &Ca| Trust::Digest(Sha256::digest(of.der()).into());
    let at = |server: Arc<ServerConfig>, trust: Trust| meet(server, client(Some(&core), &trust, HTTP_2).unwrap());
    let (_, told) = at(serving(&folder, &ca), Trust::Authority(other.authority())).await;
    assert!(told.unwrap_err().contains("not signed by the authority"));
    // The server shows its certificate alone.
    let (_, told) = at(serving(&folder, &ca), digest(&ca)).await;
    assert!(told.unwrap_err().contains("authority that is not trusted here"));
    let clients = || Clients { authority: ca.authority(), judge: takes(CORE), anonymous: false };
    let chained = |leaf: (String, String)| {
        let whole = identity(&folder, (leaf.0 + &ca.pem, leaf.1));
        server(&whole, &clients(), &[HTTP_2]).unwrap()
    };
    assert_eq!(at(chained(ca.leaf(|_| ())), digest(&ca)).await.1, Ok(()));
    let (_, told) = at(chained(ca.leaf(|_| ())), digest(&other)).await;
    assert!(told.unwrap_err().contains("authority that is not trusted here"));
    // Whoever shows the right authority beside a certificate that it did not sign is not taken.
    let (_, told) = at(chained(other.leaf(|_| ())), digest(&ca)).await;
    assert!(told.unwrap_err().contains("not signed by the authority"));
    let elsewhere = ca.leaf(|params| params.subject_alt_names = vec![SanType::DnsName("else".try_into().unwrap())]);
    let (_, told) = at(chained(elsewhere), digest(&ca)).await;
    assert!(told.unwrap_err().contains("for another name"));
}

#[test]
fn what_is_wrong_with_a_file_is_said_and_nothing_of_a_key() {
    let (folder, ca) = (Folder::new(), Ca::new());
    let (pem, key_pem) = ca.leaf(named(CORE));
    let certificate = folder.file("good.pem", &pem, 0o644);
    let key = folder.file("good.key", &key_pem, 0o600);
    let secret = key_pem.lines().nth(1).unwrap();
    let check = |certificate: &Path, key: &Path, want: &str| {
        let error = Identity::read(certificate, key).unwrap_err().to_string();
        assert!(error.contains(want) && !error.contains(secret), "{error}");
    };
    for mode in [0o640, 0o604, 0o644, 0o610] {
        check(&certificate, &folder.file("shown.key", &key_pem, mode), "shown.key can be read by others");
    }
    let link = folder.0.join("link.key");
    std::os::unix::fs::symlink(&key, &link).unwrap();
    check(&certificate, &link, "symbolic link");
    check(&certificate, &folder.0.join("none.key"), "none.key cannot be read");
    check(&folder.0.join("none.pem"), &key, "read ");
    check(&key, &key, "holds no `CERTIFICATE`");
    check(&certificate, &folder.file("a.key", &pem, 0o600), "holds no private key");
    check(&certificate, &folder.file("b.key", "", 0o600), "holds no private key");
    let cut = &key_pem[..key_pem.len() - 30];
    check(&certificate, &folder.file("c.key", cut, 0o600), "is not PEM");
    check(&folder.file("c.pem", &pem[..pem.len() - 30], 0o644), &key, "breaks off");
    let (_, other) = ca.leaf(|_| ());
    check(&certificate, &folder.file("d.key", &other, 0o600), "is not the one of the certificate in");
    let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    check(&certificate, &folder.file("e.key", nonsense, 0o600), "no key that can be used");
    check(&folder.file("large.pem", &"x".repeat(2 << 20), 0o644), &key, "larger than 1 MiB");
    let read = Identity::read(&certificate, &key).unwrap();
    assert_eq!(holder(read.certificate().unwrap()), Ok(CORE.to_owned()));
    assert!(read.validity().unwrap().not_after > std::time::UNIX_EPOCH);
    let empty = Authority::read(&folder.file("empty.pem", "", 0o644)).unwrap_err().to_string();
    assert!(empty.contains("holds no `CERTIFICATE`"), "{empty}");
    Authority::read(&folder.file("ca.pem", &ca.pem, 0o644)).unwrap();
}

#[tokio::test]
async fn files_that_change_are_read_anew_and_broken_ones_leave_what_there_was() {
    let (folder, old, new) = (Folder::new(), Ca::new(), Ca::new());
    let put = |name: &str, text: &str| folder.file(name, text, 0o600);
    let (pem, key) = old.leaf(|_| ());
    let files = Files { certificate: put("s.pem", &pem), key: put("s.key", &key), clients: put("ca.pem", &old.pem) };
    let kept = Kept::open(files.clone(), takes(CORE)).unwrap();
    let core = |ca: &Ca| {
        client(Some(&identity(&folder, ca.leaf(named(CORE)))), &Trust::Authority(ca.authority()), HTTP_2).unwrap()
    };
    let works = async |ca: &Ca| meet(kept.current(), core(ca)).await == (Ok(Some(CORE.to_owned())), Ok(()));
    let first = kept.current();
    assert!(Arc::ptr_eq(&first, &kept.current()));
    assert!(works(&old).await && !works(&new).await);
    // In the middle of a renewal the key does not belong to the certificate.
    let (pem, key) = new.leaf(|_| ());
    put("s.pem", &pem);
    assert!(Arc::ptr_eq(&first, &kept.current()));
    put("s.key", &key);
    put("ca.pem", "rubbish");
    assert!(Arc::ptr_eq(&first, &kept.current()) && works(&old).await);
    fs::remove_file(&files.clients).unwrap();
    assert!(Arc::ptr_eq(&first, &kept.current()));
    put("ca.pem", &new.pem);
    assert!(works(&new).await && !works(&old).await);
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(works(&new).await);
    let error = Kept::open(files, takes(CORE)).unwrap_err().to_string();
    assert!(error.contains("can be read by others"), "{error}");
}
