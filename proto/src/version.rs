//! The protocol's version and the rule that says which versions a bridge takes (R-API-1).

use std::{fmt, str::FromStr};

/// Metadata key that every call carries, except `GetRuntimeInfo`, health and reflection.
pub const HEADER: &str = "runtime-protocol-version";

/// The version that this crate's messages are written in.
pub const CURRENT: Version = Version { major: 0, minor: 8 };

/// The oldest version whose messages this crate's server side still understands.
pub const OLDEST_ACCEPTED: Version = Version { major: 0, minor: 1 };

/// A protocol version, written `MAJOR.MINOR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Changes when older peers cannot be served any more.
    pub major: u32,
    /// Changes with every change of a message or an RPC.
    pub minor: u32,
}

impl Version {
    /// Whether a bridge of this crate takes a call that is written in this version.
    pub fn is_accepted(self) -> bool {
        self.major == CURRENT.major && (OLDEST_ACCEPTED.minor..=CURRENT.minor).contains(&self.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The text is not of the form `MAJOR.MINOR`.
#[derive(Debug, thiserror::Error)]
#[error("protocol version is not of the form MAJOR.MINOR")]
pub struct Malformed;

impl FromStr for Version {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let number = |part: &str| match part {
            "" => Err(Malformed),
            padded if padded.len() > 1 && padded.starts_with('0') => Err(Malformed),
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().map_err(|_| Malformed),
            _ => Err(Malformed),
        };
        let (major, minor) = text.split_once('.').ok_or(Malformed)?;
        Ok(Self { major: number(major)?, minor: number(minor)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_between_the_oldest_and_our_own_are_accepted() {
        let told = [
            ("0.1", true),
            ("0.2", true),
            ("0.3", true),
            ("0.4", true),
            ("0.5", true),
            ("0.6", true),
            ("0.7", true),
            ("0.8", true),
            ("0.0", false),
            ("0.9", false),
            ("1.1", false),
            ("0.4294967295", false),
        ];
        for (text, accepted) in told {
            assert_eq!(text.parse::<Version>().unwrap().is_accepted(), accepted, "{text}");
        }
        for text in ["", "0", "0.", ".1", "+0.1", "0.1.2", "00.1", "0.01", "a.b", "0.99999999999"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }
}
