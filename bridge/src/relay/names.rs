//! Under which host name a Core calls an Environment.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Longest label of a host name.
const LONGEST: usize = 63;
/// Begins the label of an Environment whose id is none.
const HASHED: &str = "x-";

/// The first label of an Environment's host name: its id where that is a label in lower case, else `x-` and half of its SHA-256.
pub(super) fn label(environment_id: &str) -> String {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let edge = |b: Option<&u8>| b.is_some_and(|b| *b != b'-');
    let bytes = environment_id.as_bytes();
    let is_label =
        bytes.len() <= LONGEST && bytes.iter().copied().all(fits) && edge(bytes.first()) && edge(bytes.last());
    if is_label && !environment_id.starts_with(HASHED) {
        return environment_id.to_owned();
    }
    Sha256::digest(bytes)[..16].iter().fold(HASHED.to_owned(), |mut label, byte| {
        // A String takes whatever is written.
        _ = write!(label, "{byte:02x}");
        label
    })
}

/// The label in a host below the domain.
pub(super) fn label_of<'a>(host: &'a str, domain: &str) -> Option<&'a str> {
    let (label, rest) = host.split_once('.')?;
    (!label.is_empty() && rest.eq_ignore_ascii_case(domain)).then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_a_label_stays_and_others_are_hashed_apart() {
        for id in ["e", "env-1", "0", &"a".repeat(63)] {
            assert_eq!(label(id), id);
        }
        let hashed = ["Env", "env", "a.b", "a_b", "-a", "a-", "x-1", "a:b", &"a".repeat(64)].map(label);
        assert_eq!(hashed[1], "env");
        for label in hashed.iter().filter(|label| *label != "env") {
            assert!(label.len() == 34 && label.starts_with("x-") && super::label(label) != *label, "{label}");
        }
        assert_eq!(hashed.iter().collect::<std::collections::BTreeSet<_>>().len(), hashed.len());
    }

    #[test]
    fn a_host_is_below_the_domain_or_nobodys() {
        assert_eq!(label_of("env-1.relay.test", "relay.test"), Some("env-1"));
        assert_eq!(label_of("env-1.Relay.Test", "relay.test"), Some("env-1"));
        for host in
            ["relay.test", "", "env-1", ".relay.test", "a.b.relay.test", "env-1.relay.test.", "env-1.other.test"]
        {
            assert_eq!(label_of(host, "relay.test"), None, "{host}");
        }
    }
}
