//! Large parts of events and calls, put together and checked (R-API-7).

use sha2::{Digest as _, Sha256};

use super::{Error, Session, session::persist};
use crate::v1;

impl Session {
    /// Reads a part that was too large for its event, and checks its size and digest. A stream that is lost is read again.
    ///
    /// # Errors
    /// What the bridge refused, [`Error::Transport`], or [`Error::Payload`] for other bytes than the reference tells of.
    pub async fn payload(&self, turn_id: &str, reference: &v1::PayloadRef) -> Result<Vec<u8>, Error> {
        persist(&self.client, || self.read_payload(turn_id, reference)).await
    }

    async fn read_payload(&self, turn_id: &str, reference: &v1::PayloadRef) -> Result<Vec<u8>, Error> {
        let request = v1::ReadPayloadRequest {
            assignment: Some(self.assignment.clone()),
            turn_id: turn_id.into(),
            payload_id: reference.payload_id.clone(),
        };
        let differs = |bytes: usize| Error::Payload { payload_id: reference.payload_id.clone(), bytes };
        let mut bytes = Vec::new();
        let mut messages = self.client.read_payload(request).await?;
        while let Some(v1::ReadPayloadResponse { data, offset }) = messages.next().await? {
            let length = bytes.len() + data.len();
            if offset != bytes.len() as u64 || length as u64 > reference.size {
                return Err(differs(length));
            }
            bytes.extend_from_slice(&data);
        }
        let fits = bytes.len() as u64 == reference.size && Sha256::digest(&bytes).as_slice() == reference.sha256;
        if fits { Ok(bytes) } else { Err(differs(bytes.len())) }
    }
}
