//! When a certificate is good. Nothing else is read of it here, and it need not be one that anybody trusts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// From when, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    /// The first moment.
    pub(crate) not_before: SystemTime,
    /// The last one.
    pub(crate) not_after: SystemTime,
}

// Tags of DER.
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The version, which the first one leaves out.
const VERSION: u8 = 0xa0;

impl Validity {
    /// The validity of a certificate in DER form; none where it is not one.
    pub(crate) fn of(certificate: &[u8]) -> Option<Self> {
        let (certificate, _) = element(certificate, SEQUENCE)?;
        let (mut rest, _) = element(certificate, SEQUENCE)?;
        if rest.first() == Some(&VERSION) {
            (_, rest) = element(rest, VERSION)?;
        }
        // Its number, the algorithm of its signature, its issuer.
        for _ in 0..3 {
            (_, rest) = element(rest, *rest.first()?)?;
        }
        let (validity, _) = element(rest, SEQUENCE)?;
        let (not_before, rest) = time(validity)?;
        let (not_after, _) = time(rest)?;
        Some(Self { not_before, not_after })
    }
}

impl Validity {
    /// How long it is good at this moment, for a person.
    ///
    /// # Errors
    /// Why it is not.
    pub(crate) fn told(&self, now: SystemTime) -> Result<String, String> {
        let long = |time: Duration| match time.as_secs() {
            hours @ 0..172_800 => format!("{} hours", hours / 3600),
            days => format!("{} days", days / 86_400),
        };
        if let Ok(early) = self.not_before.duration_since(now)
            && !early.is_zero()
        {
            let text = "the certificate is not good for another";
            return Err(format!("{text} {}, as this machine's clock says; set the clock", long(early)));
        }
        match self.not_after.duration_since(now) {
            Ok(left) => Ok(format!("the certificate is good for another {}", long(left))),
            Err(late) => {
                Err(format!("the certificate is expired since {}; renew it, or set the clock", long(late.duration())))
            }
        }
    }
}

/// The content of the element in front, which has this tag, and what is behind it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    if found == tag { rest.split_at_checked(length) } else { None }
}

/// `YYMMDDHHMMSSZ`, or the same with all digits of the year.
fn time(bytes: &[u8]) -> Option<(SystemTime, &[u8])> {
    let tag = *bytes.first()?;
    let (text, rest) = element(bytes, tag)?;
    let digits =
        std::str::from_utf8(text).ok()?.strip_suffix('Z').filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    let (year, digits) = match tag {
        UTC_TIME => {
            let (year, digits) = digits.split_at_checked(2)?;
            let year: i64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, digits)
        }
        GENERALIZED_TIME => {
            let (year, digits) = digits.split_at_checked(4)?;
            (year.parse().ok()?, digits)
        }
        _ => return None,
    };
    let pair = |at: usize| digits.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day) = (pair(0)?, pair(2)?);
    if digits.len() != 10 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = ((days(year, month, day) * 24 + pair(4)?) * 60 + pair(6)?) * 60 + pair(8)?;
    let since = Duration::from_secs(seconds.unsigned_abs());
    let at = if seconds < 0 { UNIX_EPOCH.checked_sub(since)? } else { UNIX_EPOCH.checked_add(since)? };
    Some((at, rest))
}

/// Days since 1970 of a day of the Gregorian calendar: years begin with March, so that a leap day is the last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[track_caller]
    fn check(from: (i32, u8, u8), to: (i32, u8, u8), want: (i64, i64)) {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(to.0, to.1, to.2);
        let key = KeyPair::generate().unwrap();
        let read = Validity::of(params.self_signed(&key).unwrap().der()).unwrap();
        let days = |at: SystemTime| match at.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_secs()).unwrap() / 86_400,
            Err(before) => -i64::try_from(before.duration().as_secs()).unwrap() / 86_400,
        };
        assert_eq!((days(read.not_before), days(read.not_after)), want);
    }

    #[test]
    fn both_forms_of_a_time_are_read() {
        check((1970, 1, 1), (2000, 2, 29), (0, 11_016));
        check((1969, 12, 31), (2000, 3, 1), (-1, 11_017));
        check((2026, 12, 1), (2049, 12, 31), (20_788, 29_219));
        check((2050, 1, 1), (4096, 1, 1), (29_220, 776_506));
    }

    #[test]
    fn what_is_no_certificate_has_none() {
        let key = KeyPair::generate().unwrap();
        let whole = CertificateParams::default().self_signed(&key).unwrap().der().to_vec();
        for length in 0..whole.len() {
            assert_eq!(Validity::of(&whole[..length]), None, "{length}");
        }
        for rubbish in [&b"\x30"[..], b"\x30\x80", b"\x30\x84\xff\xff\xff\xff", b"-----BEGIN CERTIFICATE-----"] {
            assert_eq!(Validity::of(rubbish), None);
        }
        for at in 0..whole.len() {
            // Whatever is wrong in it is no panic.
            let mut wrong = whole.clone();
            wrong[at] ^= 0xff;
            _ = Validity::of(&wrong);
        }
    }
}
