//! Who may wait to be known: connections that have shown no good certificate yet, or none that needs much. They have few places, and whoever comes is given
//! one (R-ENR-1): a pure list of who was there when.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
};

use tokio_util::sync::CancellationToken;

/// Places. Whoever means it needs one for a moment.
pub(super) const PLACES: usize = 256;
/// Why one is let go that had one.
pub(super) const NO_PLACE: &str = "it made room for a newer one";

/// The connections that have one, oldest first, with the network that they come from.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<(IpAddr, CancellationToken)>);

impl Places {
    /// A place for a connection. It is given back by cancelling it, and is cancelled for somebody newer when there is no other: the oldest one of the network
    /// that has most of them goes, so that whoever takes all takes them from himself.
    pub(super) fn take(&mut self, from: IpAddr) -> CancellationToken {
        self.0.retain(|(_, place)| !place.is_cancelled());
        if self.0.len() >= PLACES
            && let Some(oldest) = self.oldest_of_most()
        {
            self.0.remove(oldest).1.cancel();
        }
        let place = CancellationToken::new();
        self.0.push((network(from), place.clone()));
        place
    }

    fn oldest_of_most(&self) -> Option<usize> {
        let mut counts = HashMap::new();
        for (network, _) in &self.0 {
            *counts.entry(*network).or_insert(0_usize) += 1;
        }
        let most = counts.values().max()?;
        self.0.iter().position(|(network, _)| counts.get(network) == Some(most))
    }
}

/// What one host has at least: an address, or with IPv6 the network of 64 bits.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn whoever_takes_all_places_takes_them_from_himself() {
        let mut places = Places::default();
        let honest = places.take(address("192.0.2.1"));
        let flood: Vec<_> = (0..PLACES * 2).map(|_| places.take(address("192.0.2.2"))).collect();
        let late = places.take(address("192.0.2.3"));
        assert!(!honest.is_cancelled() && !late.is_cancelled());
        let left = flood.iter().filter(|place| !place.is_cancelled()).count();
        assert_eq!((left, places.0.len()), (PLACES - 2, PLACES));
        assert!(flood[..PLACES].iter().all(CancellationToken::is_cancelled));
        // What is given back is free for the next one.
        late.cancel();
        let next = places.take(address("192.0.2.2"));
        assert!(!next.is_cancelled() && !honest.is_cancelled());
        assert_eq!(flood.iter().filter(|place| !place.is_cancelled()).count(), left);
    }

    #[test]
    fn where_all_come_from_elsewhere_the_oldest_goes() {
        let mut places = Places::default();
        let from = |number: u32| IpAddr::V4(number.into());
        let all: Vec<_> = (0..300).map(|number| places.take(from(number))).collect();
        assert!(all[..300 - PLACES].iter().all(CancellationToken::is_cancelled));
        assert!(all[300 - PLACES..].iter().all(|place| !place.is_cancelled()));
    }

    #[test]
    fn one_host_is_one_network() {
        assert_eq!(network(address("2001:db8::1")), network(address("2001:db8::ffff:0:0:2")));
        assert_ne!(network(address("2001:db8::1")), network(address("2001:db8:0:1::1")));
        assert_eq!(network(address("::ffff:192.0.2.1")), address("192.0.2.1"));
        assert_ne!(network(address("192.0.2.1")), network(address("192.0.2.2")));
    }
}
