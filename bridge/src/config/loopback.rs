//! The plain listener on loopback: what the operator asks for, and what of it may be (R-SEC-1).

use std::{
    io::{self, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use adapters::harness::Isolation;
use secrecy::SecretString;
use serde::Deserialize;

use super::{Error, value};
use crate::private::{self, Unfit};

/// The name of a caller where the operator gives none.
const NAME: &str = "loopback";
/// Longest bearer in bytes: a header has to hold it.
const MAX_BEARER: u64 = 4096;

/// `[loopback]`, as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    pub(super) address: Option<String>,
    pub(super) bearer_file: Option<PathBuf>,
    name: Option<String>,
    #[serde(default)]
    pub(super) yes_tools_can_call: bool,
}

/// A listener that may be.
#[derive(Clone, Debug)]
pub(crate) struct Loopback {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// What every call carries.
    pub(crate) bearer: SecretString,
    /// The principal of its callers (R-ASG-5).
    pub(crate) name: String,
}

impl Asked {
    /// Files are named from the folder of the configuration file.
    pub(super) fn beside(mut self, folder: &Path) -> Self {
        self.bearer_file = self.bearer_file.map(|file| folder.join(file));
        self
    }

    /// The listener, where an address is named.
    pub(super) fn settle(&self, isolation: Isolation) -> Result<Option<Loopback>, Error> {
        let Some(address) = &self.address else { return Ok(None) };
        let key = "loopback.address";
        let address: SocketAddr =
            address.parse().map_err(|_| value(key, "it is an address and a port, such as 127.0.0.1:7480"))?;
        if !address.ip().is_loopback() {
            return Err(value(key, "plain TCP is served on loopback only: 127.0.0.1 or [::1]"));
        }
        let name = self.name.clone().unwrap_or_else(|| NAME.into());
        // Without a colon it is never the name of a uid.
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if !(1..=128).contains(&name.len()) || !name.bytes().all(fits) {
            return Err(value("loopback.name", "a name has 1 to 128 bytes of [A-Za-z0-9._-]"));
        }
        if isolation == Isolation::Outer && !self.yes_tools_can_call {
            let text = "a tool that a model runs under `isolation = \"outer\"` has the daemon's own uid, can read the bearer file and call this listener; \
                        say --yes-tools-can-call (or set it to true) where that is meant";
            return Err(value("loopback.yes_tools_can_call", text));
        }
        let Some(file) = &self.bearer_file else {
            return Err(value("loopback.bearer_file", "a listener on loopback needs a file with the bearer"));
        };
        Ok(Some(Loopback { address, bearer: bearer(file)?, name }))
    }
}

/// Reads the bearer from a file that is what it seems: no link, ours, and for nobody else to read.
fn bearer(path: &Path) -> Result<SecretString, Error> {
    let key = "loopback.bearer_file";
    let read = |source: io::Error| Error::Read { path: path.to_owned(), source };
    let file = private::open(path).map_err(|unfit| match unfit {
        Unfit::Io(error) => read(error),
        unfit => value(key, format!("{} {unfit}", path.display())),
    })?;
    let mut text = String::new();
    file.take(MAX_BEARER + 1).read_to_string(&mut text).map_err(read)?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() || text.len() as u64 > MAX_BEARER || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(value(
            key,
            format!("{} holds no bearer: one line of visible ASCII without blanks", path.display()),
        ));
    }
    Ok(SecretString::from(text))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("rb-bearer-{}", uuid::Uuid::now_v7().simple()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self, text: &str, mode: u32) -> PathBuf {
            let path = self.0.join(uuid::Uuid::now_v7().simple().to_string());
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn asked(address: &str, bearer_file: Option<PathBuf>) -> Asked {
        Asked { address: Some(address.into()), bearer_file, name: None, yes_tools_can_call: false }
    }

    #[track_caller]
    fn refused(asked: &Asked, isolation: Isolation, want: &str) {
        let error = asked.settle(isolation).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }

    #[test]
    fn only_loopback_is_listened_on() {
        let folder = Folder::new();
        let good = Some(folder.file("secret-1\n", 0o600));
        for address in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "192.0.2.1:80"] {
            refused(&asked(address, good.clone()), Isolation::Native, "loopback only");
        }
        for address in ["localhost:1", "127.0.0.1", "", "unix:/x"] {
            refused(&asked(address, good.clone()), Isolation::Native, "address and a port");
        }
        for address in ["127.0.0.1:0", "127.8.8.8:1", "[::1]:7480"] {
            assert_eq!(asked(address, good.clone()).settle(Isolation::Native).unwrap().unwrap().name, "loopback");
        }
        assert!(Asked::default().settle(Isolation::Outer).unwrap().is_none());
    }

    #[test]
    fn a_bearer_file_is_private_and_no_link() {
        use secrecy::ExposeSecret as _;
        let folder = Folder::new();
        let native = |file: PathBuf| asked("127.0.0.1:0", Some(file)).settle(Isolation::Native);
        for mode in [0o640, 0o604, 0o660, 0o644, 0o610] {
            let error = native(folder.file("secret-1", mode)).unwrap_err().to_string();
            assert!(error.contains("0600") && !error.contains("secret-1"), "{error}");
        }
        for text in ["", "\n", "two\nlines", "a b", "tab\t", "é", &"x".repeat(4097)] {
            let error = native(folder.file(text, 0o600)).unwrap_err().to_string();
            assert!(error.contains("holds no bearer"), "{error}");
        }
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(folder.file("secret-1", 0o600), &link).unwrap();
        assert!(native(link).unwrap_err().to_string().contains("symbolic link"));
        assert!(native(folder.0.clone()).unwrap_err().to_string().contains("not a file"));
        assert!(native(folder.0.join("none")).unwrap_err().to_string().contains("read"));
        refused(&asked("127.0.0.1:0", None), Isolation::Native, "bearer_file");
        let loopback = native(folder.file("secret-1\r\n", 0o400)).unwrap().unwrap();
        assert_eq!(loopback.bearer.expose_secret(), "secret-1");
    }

    #[test]
    fn beside_an_outer_isolation_it_must_be_meant() {
        let folder = Folder::new();
        let mut asked = asked("127.0.0.1:0", Some(folder.file("secret-1", 0o600)));
        refused(&asked, Isolation::Outer, "--yes-tools-can-call");
        asked.yes_tools_can_call = true;
        asked.settle(Isolation::Outer).unwrap().unwrap();
        for name in ["", "uid:0", "a b", &"x".repeat(129)] {
            asked.name = Some(name.into());
            refused(&asked, Isolation::Outer, "loopback.name");
        }
    }
}
