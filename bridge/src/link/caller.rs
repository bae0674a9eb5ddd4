//! Who calls, as far as a call itself has to tell. The connection tells the rest.

use proto::enrollment::PRINCIPAL_HEADER;
use tonic::{Request, Status};

use super::{Peer, loopback};
use crate::{
    refusal::{Reason, Refusal},
    service,
};

/// Longest name of a principal that a relay hands on.
const MAX_NAME: usize = 2048;

/// Refuses a call without what its connection asks for, and one that names a principal where the connection is not a relay's; on the relay's the call's own name
/// is the principal (R-ENR-4). Health and reflection are calls like any other.
pub(super) fn check(mut request: Request<()>) -> Result<Request<()>, Status> {
    let refused = |text: String| service::status(Refusal::new(Reason::NotAuthorized, text));
    let peer = request.extensions().get::<Peer>();
    if let Some(bearer) = peer.and_then(|peer| peer.bearer.as_ref()) {
        loopback::carries(&request, bearer).map_err(|text| refused(text.to_owned()))?;
    }
    if let Some(mut peer) = peer.filter(|peer| peer.is_relay).cloned() {
        peer.principal = handed_on(&request).map_err(refused)?;
        request.extensions_mut().insert(peer);
    } else if request.metadata().contains_key(PRINCIPAL_HEADER) {
        return Err(refused(format!(
            "the metadata `{PRINCIPAL_HEADER}` is for a relay, and this connection is not one's"
        )));
    }
    Ok(request)
}

/// The name of the Core that the relay authenticated.
fn handed_on(request: &Request<()>) -> Result<String, String> {
    let mut names = request.metadata().get_all(PRINCIPAL_HEADER).iter();
    let (Some(name), None) = (names.next(), names.next()) else {
        return Err(format!("a call through the relay carries the metadata `{PRINCIPAL_HEADER}` once"));
    };
    let name = name.to_str().unwrap_or_default();
    let is_name =
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic()) && name.contains(':');
    // The relay is trusted with names of Cores, not with those of this machine's users.
    if !is_name || name.starts_with("uid:") {
        return Err(format!("the metadata `{PRINCIPAL_HEADER}` is not the URI name of a Core"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_names_a_principal() {
        for of in [vec![], vec!["spiffe://example.org/core"], vec!["", ""]] {
            let mut request = Request::new(());
            let peer = Peer { principal: "uid:0".into(), bearer: None, operator: true, is_relay: false };
            request.extensions_mut().insert(peer);
            for name in &of {
                request.metadata_mut().append(PRINCIPAL_HEADER, name.parse().unwrap());
            }
            let refused = check(request).map(drop).map_err(|status| status.message().to_owned());
            assert_eq!(refused.is_err(), !of.is_empty(), "{of:?}");
        }
    }

    #[test]
    fn on_a_relays_connection_the_call_names_the_principal() {
        let call = |names: &[&str]| {
            let mut request = Request::new(());
            let peer = Peer { principal: String::new(), bearer: None, operator: false, is_relay: true };
            request.extensions_mut().insert(peer);
            for name in names {
                request.metadata_mut().append(PRINCIPAL_HEADER, name.parse().unwrap());
            }
            check(request).map(|request| request.extensions().get::<Peer>().unwrap().principal.clone())
        };
        assert_eq!(call(&["spiffe://example.org/core"]).unwrap(), "spiffe://example.org/core");
        for wrong in [&[][..], &[""], &["core"], &["uid:0"], &["a:b", "a:b"], &["a: b"], &["a:".repeat(1025).as_str()]]
        {
            let refused = call(wrong).unwrap_err();
            assert!(refused.metadata().contains_key(proto::REASON_TRAILER), "{wrong:?}");
        }
    }
}
