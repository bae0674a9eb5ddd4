//! Who calls, as far as a call itself has to tell. The connection tells the rest.

use proto::enrollment::PRINCIPAL_HEADER;
use tonic::{Request, Status};

use super::{Peer, loopback};
use crate::{
    refusal::{Reason, Refusal},
    service,
};

/// Refuses a call without the bearer that its connection asks for, and one that names a principal; health and reflection are calls like any other.
pub(super) fn check(request: Request<()>) -> Result<Request<()>, Status> {
    let refused = |text: String| service::status(Refusal::new(Reason::NotAuthorized, text));
    if let Some(bearer) = request.extensions().get::<Peer>().and_then(|peer| peer.bearer.as_ref()) {
        loopback::carries(&request, bearer).map_err(|text| refused(text.to_owned()))?;
    }
    // Only a relay may say for whom it calls (R-ENR-4).
    if request.metadata().contains_key(PRINCIPAL_HEADER) {
        return Err(refused(format!(
            "the metadata `{PRINCIPAL_HEADER}` is for a relay, and this connection is not one's"
        )));
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_names_a_principal() {
        for of in [vec![], vec!["spiffe://example.org/core"], vec!["", ""]] {
            let mut request = Request::new(());
            let peer = Peer { principal: "uid:0".into(), bearer: None, operator: true };
            request.extensions_mut().insert(peer);
            for name in &of {
                request.metadata_mut().append(PRINCIPAL_HEADER, name.parse().unwrap());
            }
            let refused = check(request).map(drop).map_err(|status| status.message().to_owned());
            assert_eq!(refused.is_err(), !of.is_empty(), "{of:?}");
        }
    }
}
