//! The outbound guard (R-SEC-4): where a request may go. Pure; whoever connects asks it about each address that a name stands for, and connects to
//! no other, so that a name that changes its mind meanwhile changes nothing.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use adapters::harness::McpOrigin;
use http::Uri;

use super::origin::Origin;

/// Where requests may go beside the public internet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    allowed: BTreeSet<Origin>,
    /// Nothing is judged.
    is_open: bool,
}

/// Who judges what is dialled from where (R-MCP-7).
#[derive(Clone, Debug, Default)]
pub(crate) struct Guards {
    /// Model providers, and MCP servers that the service reaches.
    pub(crate) service: Guard,
    /// MCP servers that the Environment reaches.
    pub(crate) environment: Guard,
}

impl Guards {
    /// A guard with the operator's exceptions for the service, and for the Environment as well or none at all.
    pub(crate) fn new(service: Guard, guard_environment: bool) -> Self {
        let environment = if guard_environment { service.clone() } else { Guard { is_open: true, ..service.clone() } };
        Self { service, environment }
    }

    /// Who judges servers of this origin.
    pub(crate) fn of(&self, origin: McpOrigin) -> &Guard {
        match origin {
            McpOrigin::Service => &self.service,
            McpOrigin::Environment => &self.environment,
        }
    }
}

/// A request may not go there. The text names neither host nor address: it goes to Core.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(super) String);

impl Guard {
    /// A guard with the operator's exceptions.
    pub(crate) fn new(allowed: impl IntoIterator<Item = Origin>) -> Self {
        Self { allowed: allowed.into_iter().collect(), is_open: false }
    }

    /// Whether the operator named exactly this origin.
    pub(super) fn is_allowed(&self, origin: &Origin) -> bool {
        self.allowed.contains(origin)
    }

    /// What can be said of a URL by its text. Nothing of it is repeated: it may hold a secret.
    pub(crate) fn check(&self, url: &str) -> Result<(), Refused> {
        let refused = |text: &str| Err(Refused(text.to_owned()));
        let Ok(uri) = url.parse::<Uri>() else { return refused("this is not a URL") };
        let Some(origin) = Origin::of(&uri) else { return refused("the URL has no plain host and port") };
        if self.is_open || self.is_allowed(&origin) {
            return Ok(());
        }
        if !origin.is_https() {
            return refused(
                "only https is taken; a plain http provider needs its exact origin in the operator's `allow_origins`",
            );
        }
        match literal(origin.host()) {
            Ok(None) => Ok(()),
            Ok(Some(address)) => match forbidden(address) {
                None => Ok(()),
                Some(kind) => refused(&format!(
                    "the host is {kind} address; such a provider needs its exact origin in the operator's `allow_origins`"
                )),
            },
            Err(refusal) => Err(refusal),
        }
    }

    /// Whether a bearer may go there, by the text of a URL: not in the clear, unless the operator named exactly this origin (R-MCP-3).
    pub(crate) fn check_bearer(&self, url: &str) -> Result<(), Refused> {
        let origin = url.parse::<Uri>().ok().and_then(|uri| Origin::of(&uri));
        match origin {
            Some(origin) if origin.is_https() || self.is_allowed(&origin) => Ok(()),
            Some(_) | None => Err(Refused(
                "a bearer goes over https only; a plain http server needs its exact origin in the operator's `allow_origins`".into(),
            )),
        }
    }

    /// Whether this address of an origin may be connected to.
    pub(super) fn admits(&self, origin: &Origin, address: IpAddr) -> Result<(), Refused> {
        if self.is_open || self.is_allowed(origin) {
            return Ok(());
        }
        match forbidden(address) {
            None => Ok(()),
            Some(kind) => Err(Refused(format!("its host stands for {kind} address"))),
        }
    }
}

/// The address that a host spells out; none where it is a name. A host that a resolver would read as an address in some other spelling is refused.
fn literal(host: &str) -> Result<Option<IpAddr>, Refused> {
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        let address = inner.parse::<Ipv6Addr>();
        return address.map(|address| Some(address.into())).map_err(|_| Refused("the host is no IPv6 address".into()));
    }
    if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        return Err(Refused("the host has characters that no host has".into()));
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost") {
        return Ok(Some(Ipv4Addr::LOCALHOST.into()));
    }
    let last = host.rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = (!last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()))
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if !is_number {
        return Ok(None);
    }
    let address = host.parse::<Ipv4Addr>();
    address.map(|address| Some(address.into())).map_err(|_| Refused("the host is a number and no IPv4 address".into()))
}

/// What kind of address this is that no request may go to; none for one of the public internet.
fn forbidden(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => forbidden_v4(address),
        IpAddr::V6(address) => forbidden_v6(address),
    }
}

fn forbidden_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        (0, ..) => "an unspecified",
        (127, ..) => "a loopback",
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => "a private",
        // The addresses of the metadata services are among them.
        (169, 254, _) => "a link-local",
        (100, 64..=127, _) => "a shared (carrier-grade NAT)",
        (224..=239, ..) => "a multicast",
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18 | 19, _) | (198, 51, 100) | (203, 0, 113) | (240.., ..) => {
            "a reserved"
        }
        _ => return None,
    })
}

/// Only what is handed out as global unicast passes. Forms that carry an IPv4 address are judged by it.
fn forbidden_v6(address: Ipv6Addr) -> Option<&'static str> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let carried = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    Some(match (a, b) {
        _ if address.is_unspecified() => "an unspecified",
        _ if address.is_loopback() => "a loopback",
        (0, 0) if [c, d, e, f] == [0, 0, 0, 0xffff] => return forbidden_v4(carried(g, h)),
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => return forbidden_v4(carried(g, h)),
        (0x2002, _) => return forbidden_v4(carried(b, c)),
        (0xfc00..=0xfdff, _) => "a unique-local",
        (0xfe80..=0xfebf, _) => "a link-local",
        (0xff00.., _) => "a multicast",
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => "a reserved",
        (0x2000..=0x3fff, _) => return None,
        _ => "a reserved",
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn servers_of_the_environment_are_judged_where_the_operator_wants_it() {
        let service = Guard::new(["http://10.0.0.1:8080".parse().unwrap()]);
        for (is_guarded, url, origin, goes, carries) in [
            (false, "http://127.0.0.1:9/mcp", McpOrigin::Environment, true, false),
            (false, "http://127.0.0.1:9/mcp", McpOrigin::Service, false, false),
            (true, "http://127.0.0.1:9/mcp", McpOrigin::Environment, false, false),
            (true, "http://10.0.0.1:8080/mcp?a=b", McpOrigin::Environment, true, true),
            (false, "https://h/mcp", McpOrigin::Service, true, true),
            (false, "https://127.0.0.1/mcp", McpOrigin::Service, false, true),
            (false, "not a url", McpOrigin::Environment, false, false),
        ] {
            let guards = Guards::new(service.clone(), is_guarded);
            let guard = guards.of(origin);
            assert_eq!(
                (guard.check(url).is_ok(), guard.check_bearer(url).is_ok()),
                (goes, carries),
                "{url} {origin:?}"
            );
        }
        let open = Guards::new(service, false).environment;
        let here = "http://h".parse().unwrap();
        assert_eq!(open.admits(&here, [127, 0, 0, 1].into()), Ok(()));
    }

    #[test]
    fn what_no_request_goes_to() {
        for (address, want) in [
            ("0.0.0.0", "an unspecified"),
            ("0.1.2.3", "an unspecified"),
            ("127.0.0.1", "a loopback"),
            ("127.255.255.254", "a loopback"),
            ("10.0.0.1", "a private"),
            ("172.16.0.1", "a private"),
            ("172.31.255.255", "a private"),
            ("192.168.1.1", "a private"),
            ("169.254.0.1", "a link-local"),
            ("169.254.169.254", "a link-local"),
            ("100.64.0.1", "a shared (carrier-grade NAT)"),
            ("100.100.100.200", "a shared (carrier-grade NAT)"),
            ("224.0.0.1", "a multicast"),
            ("239.255.255.255", "a multicast"),
            ("240.0.0.1", "a reserved"),
            ("255.255.255.255", "a reserved"),
            ("192.0.0.8", "a reserved"),
            ("192.0.2.1", "a reserved"),
            ("192.88.99.1", "a reserved"),
            ("198.18.0.1", "a reserved"),
            ("198.51.100.1", "a reserved"),
            ("203.0.113.1", "a reserved"),
            ("::", "an unspecified"),
            ("::1", "a loopback"),
            ("fc00::1", "a unique-local"),
            ("fd00:ec2::254", "a unique-local"),
            ("fe80::1", "a link-local"),
            ("febf::1", "a link-local"),
            ("fec0::1", "a reserved"),
            ("ff02::1", "a multicast"),
            ("2001:db8::1", "a reserved"),
            ("2001::1", "a reserved"),
            ("3fff::1", "a reserved"),
            ("100::1", "a reserved"),
            ("5f00::1", "a reserved"),
            // IPv4 in other clothes: mapped, compatible, NAT64, local NAT64, 6to4.
            ("::ffff:127.0.0.1", "a loopback"),
            ("::ffff:169.254.169.254", "a link-local"),
            ("::ffff:10.0.0.1", "a private"),
            ("::127.0.0.1", "a reserved"),
            ("::8.8.8.8", "a reserved"),
            ("64:ff9b::127.0.0.1", "a loopback"),
            ("64:ff9b::a9fe:a9fe", "a link-local"),
            ("64:ff9b:1::1", "a reserved"),
            ("2002:7f00:1::", "a loopback"),
            ("2002:a9fe:a9fe::1", "a link-local"),
            ("2002:c0a8:101::1", "a private"),
        ] {
            assert_eq!(forbidden(address.parse().unwrap()), Some(want), "{address}");
        }
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert_eq!(forbidden(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn what_the_text_of_a_url_tells() {
        let guard = Guard::new(["http://127.0.0.1:8080", "https://10.0.0.1"].map(|origin| origin.parse().unwrap()));
        for (url, good) in [
            ("https://api.example.com/v1", true),
            ("https://api.example.com:8443/v1", true),
            ("https://8.8.8.8/v1", true),
            ("https://[2606:4700::1111]/v1", true),
            // Allowed, exactly.
            ("http://127.0.0.1:8080/v1", true),
            ("http://127.0.0.1:8080", true),
            ("https://10.0.0.1:443/x", true),
            ("http://127.0.0.1:8081/v1", false),
            ("https://127.0.0.1:8080/v1", false),
            ("http://localhost:8080/v1", false),
            ("http://10.0.0.1/x", false),
            // Plain, credentials, no host.
            ("http://api.example.com/v1", false),
            ("https://a:b@api.example.com/v1", false),
            ("https://a@127.0.0.1:8080/", false),
            ("https:///v1", false),
            ("/v1", false),
            // Addresses in any spelling.
            ("https://127.0.0.1/v1", false),
            ("https://127.0.0.1./v1", false),
            ("https://2130706433/v1", false),
            ("https://0x7f000001/v1", false),
            ("https://0X7F.1/v1", false),
            ("https://0177.0.0.1/v1", false),
            ("https://127.1/v1", false),
            ("https://134744072/v1", false),
            ("https://example.0x/v1", false),
            ("https://[::1]/v1", false),
            ("https://[::ffff:127.0.0.1]/v1", false),
            ("https://[::ffff:7f00:1]/v1", false),
            ("https://[fe80::1%25eth0]/v1", false),
            ("https://localhost/v1", false),
            ("https://LOCALHOST./v1", false),
            ("https://api.localhost/v1", false),
            ("https://169.254.169.254/latest/meta-data", false),
            ("https://100.100.100.200/", false),
            ("https://exa%6dple.com/", false),
        ] {
            let checked = guard.check(url);
            assert_eq!(checked.is_ok(), good, "{url}: {checked:?}");
        }
    }

    #[test]
    fn an_address_is_judged_for_its_origin() {
        let inside: Origin = "http://models.internal:8000".parse().unwrap();
        let guard = Guard::new([inside.clone()]);
        let private: IpAddr = "10.1.2.3".parse().unwrap();
        assert_eq!(guard.admits(&inside, private), Ok(()));
        let other: Origin = "https://models.internal:8000".parse().unwrap();
        let refused = guard.admits(&other, private).unwrap_err().to_string();
        assert_eq!(refused, "its host stands for a private address");
        assert_eq!(guard.admits(&other, "8.8.8.8".parse().unwrap()), Ok(()));
    }

    proptest! {
        /// However an IPv4 address is dressed as an IPv6 one that a system may route back to it, it is judged alike, or refused.
        #[test]
        fn no_clothes_make_a_private_address_public(bits: u32, low: u64) {
            let bare = Ipv4Addr::from(bits);
            let naked = forbidden_v4(bare);
            let [a, b, c, d] = bare.octets();
            let (high, rest) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            let [.., w, x, y, z] = Ipv6Addr::from(u128::from(low)).segments();
            for dressed in [
                bare.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, rest),
                Ipv6Addr::new(0x2002, high, rest, 0, w, x, y, z),
            ] {
                prop_assert_eq!(forbidden_v6(dressed), naked);
            }
            prop_assert!(forbidden_v6(bare.to_ipv6_compatible()).is_some());
        }

        /// What the standard library knows to be no public address is never let through.
        #[test]
        fn the_standard_library_agrees(bits: u32, wide: u128) {
            let four = Ipv4Addr::from(bits);
            let known = four.is_private() || four.is_loopback() || four.is_link_local() || four.is_unspecified() || four.is_multicast()
                || four.is_broadcast() || four.is_documentation();
            prop_assert!(!known || forbidden_v4(four).is_some());
            let six = Ipv6Addr::from(wide);
            let known = six.is_loopback() || six.is_unspecified() || six.is_multicast() || six.is_unique_local() || six.is_unicast_link_local();
            prop_assert!(!known || forbidden_v6(six).is_some());
        }

        /// A host that is a number in any base never counts as a name.
        #[test]
        fn a_number_is_never_a_name(number: u32, dotted: bool) {
            let spellings = [format!("{number}"), format!("0x{number:x}"), format!("0{number:o}")];
            for spelling in spellings {
                let host = if dotted { format!("1.{spelling}") } else { spelling };
                let checked = Guard::default().check(&format!("https://{host}/"));
                prop_assert!(checked.is_err(), "{}", host);
            }
        }
    }
}
