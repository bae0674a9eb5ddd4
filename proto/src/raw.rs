//! Wire twins of messages whose parts are encoded already.

use bytes::Bytes;

/// [`crate::v1::ObserveTurnResponse`] with its events encoded: an embedded message and a bytes field look the same on the wire, so an
/// event that was encoded for the Turn's file is sent without being parsed or copied (R-EVT-11).
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObserveTurnResponse {
    /// Encoded [`crate::v1::Event`]s in order.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub events: Vec<Bytes>,
    /// The sequence that the stream has reached with this message.
    #[prost(uint64, tag = "2")]
    pub last_sequence: u64,
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::v1;

    #[test]
    fn encoded_events_look_like_events_on_the_wire() {
        let event = v1::Event { turn_id: "t".into(), sequence: 7, ..Default::default() };
        let raw = ObserveTurnResponse { events: vec![Bytes::from(event.encode_to_vec())], last_sequence: 9 };
        let typed = v1::ObserveTurnResponse { events: vec![event], last_sequence: 9 };
        assert_eq!(raw.encode_to_vec(), typed.encode_to_vec());
    }
}
