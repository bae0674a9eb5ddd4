//! The one-time token and the file that brings it to a machine (R-ENR-1).

use std::{
    fmt::Write as _,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use http::Uri;
use secrecy::SecretString;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::private::{self, Unfit};

/// A token begins so; 64 hexadecimal digits follow.
const PREFIX: &str = "rbt_";
/// Bytes of chance in a token.
const BYTES: usize = 32;
/// Largest file that is read.
const MAX_FILE: u64 = 64 << 10;

/// Makes a token.
///
/// # Errors
/// The system gives no random bytes.
pub(crate) fn make() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while filled < BYTES {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(format!("{PREFIX}{}", hex(&bytes)))
}

/// The digest under which a token is recorded; none for a text that is none.
pub(crate) fn digest(token: &str) -> Option<[u8; 32]> {
    let digits = token.strip_prefix(PREFIX)?;
    let is_one = digits.len() == 2 * BYTES && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_one.then(|| Sha256::digest(token).into())
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A String takes whatever is written.
        _ = write!(text, "{byte:02x}");
        text
    })
}

/// What a token file says.
#[derive(Debug)]
pub(crate) struct TokenFile {
    /// Where the relay is.
    pub(crate) url: Uri,
    /// Which Environment the token is for.
    pub(crate) environment_id: String,
    /// The token.
    pub(crate) token: SecretString,
    /// SHA-256 of the authority's certificate.
    pub(crate) authority_sha256: [u8; 32],
}

/// The file as it is written, in TOML.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    url: String,
    environment: String,
    token: String,
    ca_sha256: String,
}

/// A token file is not one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It is not private, or cannot be read.
    #[error("use the token file: {} {unfit}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        unfit: Unfit,
    },
    /// It says something else. The text never repeats a value.
    #[error("understand the token file {}: {text}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        text: String,
    },
}

impl TokenFile {
    /// The text of a file.
    pub(crate) fn text(url: &str, environment_id: &str, token: &str, authority_sha256: &[u8]) -> String {
        let digest = hex(authority_sha256);
        format!(
            "# For `runtime-bridge enroll --token-file`. It can be used once; whoever has it can become this Environment.\n\
             url = \"{url}\"\nenvironment = \"{environment_id}\"\ntoken = \"{token}\"\nca_sha256 = \"{digest}\"\n"
        )
    }

    /// Reads a file that nobody else can read.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let unfit = |unfit| Error::Unfit { path: path.to_owned(), unfit };
        let mut text = String::new();
        let file = private::open(path).map_err(unfit)?;
        file.take(MAX_FILE).read_to_string(&mut text).map_err(|error| unfit(error.into()))?;
        Self::parse(&text).map_err(|text| Error::Content { path: path.to_owned(), text })
    }

    fn parse(text: &str) -> Result<Self, String> {
        // The parser's own texts can hold what stands there, and a token stands there.
        let written: Written = toml::from_str(text).map_err(|_| {
            "it has four lines, `url`, `environment`, `token` and `ca_sha256`, each with a text".to_owned()
        })?;
        let url = url(&written.url).map_err(|text| format!("`url`: {text}"))?;
        digest(&written.token).ok_or("`token` is not `rbt_` and 64 hexadecimal digits; copy the file again")?;
        let authority_sha256 = unhex(&written.ca_sha256).ok_or("`ca_sha256` is not 64 hexadecimal digits")?;
        let is_id = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
        if !(1..=128).contains(&written.environment.len()) || !written.environment.bytes().all(is_id) {
            return Err("`environment` is not an id: 1 to 128 bytes of [A-Za-z0-9._:-]".into());
        }
        Ok(Self { url, environment_id: written.environment, token: written.token.into(), authority_sha256 })
    }
}

/// Reads where a relay is.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn url(text: &str) -> Result<Uri, String> {
    let form = || "it is https://HOST:PORT".to_owned();
    let url: Uri = text.parse().map_err(|_| form())?;
    let is_bare = matches!(url.path(), "" | "/") && url.query().is_none();
    let authority = url.authority().ok_or_else(form)?;
    if url.scheme_str() != Some("https")
        || !is_bare
        || authority.as_str().contains('@')
        || authority.port_u16().is_none()
    {
        return Err(form());
    }
    Ok(url)
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    // A sign counts as a digit for the library.
    (hex(&bytes) == text.to_ascii_lowercase()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn a_token_has_one_form() {
        let token = make().unwrap();
        assert!(digest(&token).is_some() && digest(&token) != digest(&make().unwrap()));
        for wrong in
            ["", "rbt_", &token[..67], &format!("{token}0"), &token.to_uppercase(), &token.replacen('r', "x", 1)]
        {
            assert_eq!(digest(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_file_says_all_of_it_or_nothing_of_the_token() {
        let token = make().unwrap();
        let text = TokenFile::text("https://relay.test:7443", "env-1", &token, &[7; 32]);
        let file = TokenFile::parse(&text).unwrap();
        assert_eq!((file.url.host(), &*file.environment_id), (Some("relay.test"), "env-1"));
        assert_eq!((file.token.expose_secret(), file.authority_sha256), (&*token, [7; 32]));
        assert!(!format!("{file:?}").contains(&token));
        for (from, to, want) in [
            ("https://", "http://", "`url`"),
            (":7443", "", "`url`"),
            (":7443", ":7443/x", "`url`"),
            ("relay.test", "me@relay.test", "`url`"),
            ("env-1", "a/b", "`environment`"),
            ("rbt_", "rbt-", "`token`"),
            ("0707", "+7+7", "`ca_sha256`"),
            ("0707", "07", "`ca_sha256`"),
            ("url =", "uri =", "four lines"),
            ("token = ", "token = 3 #", "four lines"),
            ("ca_sha256", "#", "four lines"),
        ] {
            let error = TokenFile::parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(want) && !error.contains(&token[4..]), "{from}: {error}");
        }
    }
}
