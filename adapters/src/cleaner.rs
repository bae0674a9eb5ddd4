//! Native texts on their way out (R-EVT-5, R-SEC-6).

use secrecy::{ExposeSecret as _, SecretString};

use crate::harness::Secrets;

/// The most characters of a native text that leave.
const TEXT: usize = 300;

/// Codex says so at each start where it uses its own copy; it explains no failure.
const BUBBLEWRAP_NOTICE: &str = "could not find bubblewrap on PATH";

/// What stands for an answer of the provider that is not repeated.
const BODY: &str = "[answer of the provider]";

/// What stands for a secret.
const HIDDEN: &str = "[key]";

/// What stands for an address.
const ADDRESS: &str = "[address]";

/// Cuts native texts before they leave: no addresses, no bodies, no secrets, at most [`TEXT`] characters on one line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cleaner {
    secrets: Secrets,
    /// Secrets that the adapter itself has made.
    own: Vec<SecretString>,
    /// Host and port of the model provider, which a Harness also names without a scheme; empty where it is not known.
    provider: String,
}

impl Cleaner {
    pub(crate) fn new(secrets: Secrets, provider: &str) -> Self {
        Self { secrets, own: Vec::new(), provider: authority(provider).to_owned() }
    }

    /// Cuts out one more secret from now on.
    pub(crate) fn hide(&mut self, secret: SecretString) {
        self.own.push(secret);
    }

    fn without_secrets(&self, text: &str) -> String {
        let hidden = |text: String, secret: &SecretString| text.replace(secret.expose_secret(), HIDDEN);
        self.own.iter().fold(self.secrets.cut(text), hidden)
    }

    pub(crate) fn clean(&self, text: &str) -> String {
        bounded(&self.without_addresses(&without_body(self.without_secrets(text).trim())))
    }

    /// The text without secrets, whatever it is.
    pub(crate) fn cut(&self, text: &str) -> String {
        self.without_secrets(text)
    }

    /// The text without secrets and addresses, as long as it is.
    pub(crate) fn cut_addresses(&self, text: &str) -> String {
        self.without_addresses(&self.without_secrets(text))
    }

    /// The same for what a process wrote to standard error: the last lines matter, and there is no body to cut.
    pub(crate) fn clean_tail(&self, text: &str) -> String {
        let text = self.without_secrets(text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains(BUBBLEWRAP_NOTICE)).collect();
        let text = self.without_addresses(lines.join("\n").trim());
        let skipped = text.chars().count().saturating_sub(2 * TEXT);
        let tail: String = text.chars().skip(skipped).map(|one| if one.is_control() { ' ' } else { one }).collect();
        if skipped > 0 { format!("…{tail}") } else { tail }
    }

    fn without_addresses(&self, text: &str) -> String {
        let text = without_urls(text);
        if self.provider.is_empty() { text } else { text.replace(&self.provider, ADDRESS) }
    }
}

/// Host and port of a URL.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// Cuts what a provider wrote: behind a status line, or from where JSON or markup begins.
fn without_body(text: &str) -> String {
    let text = match text.strip_prefix("unexpected status ") {
        Some(rest) => &text[..text.len() - rest.len() + rest.find(": ").unwrap_or(rest.len())],
        None => text,
    };
    match text.find(['{', '<']) {
        // "<unknown status code>" is Codex's own.
        Some(at) if !text[at..].starts_with("<unknown status code>") => format!("{}{BODY}", &text[..at]),
        Some(_) | None => text.to_owned(),
    }
}

fn without_urls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let scheme =
            rest[..at].bytes().rev().take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte)).count();
        out.push_str(&rest[..at - scheme]);
        out.push_str(ADDRESS);
        let end = rest[at..].find(|one: char| one.is_whitespace() || "\"'<>)]},;".contains(one));
        rest = end.map_or("", |end| &rest[at + end..]);
    }
    out.push_str(rest);
    out
}

fn bounded(text: &str) -> String {
    let mut out: String = text.chars().take(TEXT).map(|one| if one.is_control() { ' ' } else { one }).collect();
    if text.chars().nth(TEXT).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_leave_without_addresses_bodies_and_key() {
        let secrets = Some(&"sk-canary".into()).into_iter().collect();
        let cleaner = Cleaner::new(secrets, "http://127.0.0.1:4180/v1");
        for (given, want) in [
            (
                "unexpected status 401 Unauthorized: bad key sk-canary, url: http://127.0.0.1:1/v1/responses",
                "unexpected status 401 Unauthorized",
            ),
            (
                "unexpected status 529 <unknown status code>: boom, url: http://h/r",
                "unexpected status 529 <unknown status code>",
            ),
            (r#"{"error":{"message":"bad"}}"#, BODY),
            ("failed: <html><body>", "failed: [answer of the provider]"),
            (
                "see https://h.example/a?b=c, then (wss://x/y) and sk-canary",
                "see [address], then ([address]) and [key]",
            ),
            ("://x", "[address]"),
            ("check your gateway (127.0.0.1:4180).", "check your gateway ([address])."),
            ("stream disconnected before completion: boom\n", "stream disconnected before completion: boom"),
        ] {
            assert_eq!(cleaner.clean(given), want, "{given}");
        }
        assert_eq!(cleaner.clean(&"ü".repeat(TEXT + 1)).chars().count(), TEXT + 1);
        assert_eq!(Cleaner::default().clean("on 127.0.0.1:4180"), "on 127.0.0.1:4180");
        let said = "ERROR Codex could not find bubblewrap on PATH. Install\na\nsee http://h/x sk-canary";
        assert_eq!(cleaner.clean_tail(said), "a see [address] [key]");
    }
}
