//! The services of the enrollment protocol: what a bridge asks for its certificate, and what a Core asks of presence.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, stream};
use proto::{
    enrollment::{
        self,
        v1::{self, EnrollmentReason as Reason},
    },
    version::Version,
};
use tonic::{Request, Response, Status};

use super::{
    Caller, Relay,
    authority::{self, Asked, Term},
    names,
    presence::{self, Everyone, Present},
    refusal::Refusal,
};
use crate::{
    clock,
    enroll::token,
    journal::{Enrolled, Renewed, Standing},
};

/// Both services, over the relay's one port.
#[derive(Clone, Debug)]
pub(super) struct Service(pub(super) Arc<Relay>);

/// Judges the version of a call (R-API-1).
pub(super) fn check_version<T>(request: &Request<T>) -> Result<(), Refusal> {
    let header = enrollment::HEADER;
    let invalid = |text: String| Refusal::new(Reason::InvalidRequest, text).at(header);
    let mut told = request.metadata().get_all(header).iter();
    let (Some(told), None) = (told.next(), told.next()) else {
        return Err(invalid(format!("every call carries the metadata `{header}` once")));
    };
    let asked = told.to_str().ok().and_then(|text| text.parse::<Version>().ok());
    let asked = asked.ok_or_else(|| invalid("the version is not of the form MAJOR.MINOR".into()))?;
    if enrollment::is_accepted(asked) {
        return Ok(());
    }
    let (current, oldest) = (enrollment::CURRENT, enrollment::OLDEST_ACCEPTED);
    let text = format!(
        "the call is written in {asked}; this relay speaks {current} and accepts {oldest} and newer of its major"
    );
    Err(Refusal::new(Reason::IncompatibleVersion, text)
        .with("version", asked)
        .with("protocol_version", current)
        .with("oldest_accepted", oldest))
}

fn caller<T>(request: &Request<T>) -> Result<Caller, Refusal> {
    check_version(request)?;
    Ok(request.extensions().get::<Caller>().cloned().unwrap_or(Caller::Nobody))
}

/// The Environment that calls, and its key.
fn environment<T>(request: &Request<T>) -> Result<(String, [u8; 32]), Refusal> {
    match caller(request)? {
        Caller::Environment { id, key } => Ok((id, key)),
        Caller::Nobody | Caller::Core(_) | Caller::Stranger(_) => {
            Err(Refusal::new(Reason::NotAuthorized, "this is called with the certificate of an Environment"))
        }
    }
}

fn read(request: &[u8]) -> Result<Asked, Refusal> {
    authority::read_request(request)
        .map_err(|malformed| Refusal::new(Reason::RequestMalformed, malformed.to_string()).at("certificate_request"))
}

fn foreign() -> Refusal {
    let text = "the request for a certificate names another Environment than the token or the certificate is bound to";
    Refusal::new(Reason::ForeignEnvironment, text).at("certificate_request")
}

fn other_key() -> Refusal {
    let text = "the Environment is enrolled with another key: unenroll that machine, or have the Environment revoked";
    Refusal::new(Reason::EnvironmentEnrolled, text)
}

fn revoked() -> Refusal {
    Refusal::new(Reason::Revoked, "this key was revoked; enroll anew, with a new token and a new key")
}

fn not_enrolled() -> Refusal {
    Refusal::new(Reason::NotEnrolled, "the relay has no enrollment of this Environment with this key")
}

impl Relay {
    async fn enroll(&self, request: v1::EnrollRequest) -> Result<v1::EnrollResponse, Refusal> {
        let digest = token::digest(&request.token).ok_or_else(|| {
            Refusal::new(Reason::TokenMalformed, "the token is not `rbt_` and 64 hexadecimal digits").at("token")
        })?;
        let asked = read(&request.certificate_request)?;
        let term = Term::starting(clock::now(), self.certificate_life);
        let not_after = clock::millis(term.not_after);
        let now = clock::millis(clock::now());
        let outcome = self.records.enroll(digest, &asked.environment_id, asked.key, now, not_after).await?;
        let token = |reason, text: &str| Err(Refusal::new(reason, text).at("token"));
        match outcome {
            Enrolled::Now | Enrolled::Again => {}
            Enrolled::Foreign => {
                return token(Reason::TokenForeign, "this relay has no such token, or it was made void");
            }
            Enrolled::Expired => return token(Reason::TokenExpired, "the token's time is over"),
            Enrolled::Used => return token(Reason::TokenUsed, "the token was used already, with another key"),
            Enrolled::OtherEnvironment => return Err(foreign()),
            Enrolled::OtherKey => return Err(other_key()),
            Enrolled::Revoked => return Err(revoked()),
        }
        let again = outcome == Enrolled::Again;
        tracing::info!(environment_id = asked.environment_id, again, "an Environment is enrolled");
        let certificate = Some(self.certificate(&asked, term)?);
        Ok(v1::EnrollResponse { environment_id: asked.environment_id, certificate })
    }

    async fn renew(&self, of: (String, [u8; 32]), request: v1::RenewRequest) -> Result<v1::RenewResponse, Refusal> {
        let (environment_id, key) = of;
        let asked = read(&request.certificate_request)?;
        if asked.environment_id != environment_id {
            return Err(foreign());
        }
        if asked.key != key {
            return Err(other_key().at("certificate_request"));
        }
        let term = Term::starting(clock::now(), self.certificate_life);
        match self.records.renew(&environment_id, key, clock::millis(term.not_after)).await? {
            Renewed::Yes => {}
            Renewed::No(Standing::Revoked) => return Err(revoked()),
            Renewed::No(Standing::Unknown | Standing::Enrolled) => return Err(not_enrolled()),
        }
        tracing::info!(environment_id, "a certificate is renewed");
        Ok(v1::RenewResponse { certificate: Some(self.certificate(&asked, term)?) })
    }

    fn certificate(&self, asked: &Asked, term: Term) -> Result<v1::Certificate, Refusal> {
        let signed = self.authority.sign_environment(asked, term).map_err(|error| {
            tracing::error!(%error, "the authority does not sign");
            Refusal::new(Reason::Internal, "the authority does not sign; the relay's log has the details")
        })?;
        Ok(v1::Certificate {
            certificate: signed.to_vec(),
            authority: self.authority.certificate().to_vec(),
            not_before: Some(term.not_before.into()),
            not_after: Some(term.not_after.into()),
            renew_after: Some(term.renew_after.into()),
        })
    }

    async fn unenroll(&self, of: (String, [u8; 32])) -> Result<(), Refusal> {
        let (environment_id, key) = of;
        match self.records.standing(&environment_id, key).await? {
            Standing::Enrolled => {}
            // What was asked for is so.
            Standing::Revoked => return Ok(()),
            Standing::Unknown => return Err(not_enrolled()),
        }
        self.records.revoke(&environment_id).await?;
        self.links.close(&environment_id);
        tracing::info!(environment_id, "an Environment has given its enrollment up");
        Ok(())
    }

    /// What is told of an Environment's connection.
    fn told(&self, environment_id: String, present: Option<Present>) -> v1::EnvironmentPresence {
        v1::EnvironmentPresence {
            authority: self.authority_of(&environment_id),
            environment_id,
            connected_since: present.as_ref().map(|present| present.since.into()),
            runtime_id: present.map(|present| present.runtime_id).unwrap_or_default(),
        }
    }

    /// The host name under which Cores call an Environment.
    pub(super) fn authority_of(&self, environment_id: &str) -> String {
        format!("{}.{}", names::label(environment_id), self.domain)
    }
}

#[tonic::async_trait]
impl v1::enrollment_server::Enrollment for Service {
    async fn enroll(&self, request: Request<v1::EnrollRequest>) -> Result<Response<v1::EnrollResponse>, Status> {
        check_version(&request)?;
        // It goes on when the caller goes away (R-API-8): what is recorded and what was answered then differ in nothing but the answer.
        let relay = Arc::clone(&self.0);
        let answer = self.0.detached(async move { relay.enroll(request.into_inner()).await }).await?;
        Ok(Response::new(answer))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let of = environment(&request)?;
        let relay = Arc::clone(&self.0);
        let answer = self.0.detached(async move { relay.renew(of, request.into_inner()).await }).await?;
        Ok(Response::new(answer))
    }

    async fn unenroll(&self, request: Request<v1::UnenrollRequest>) -> Result<Response<v1::UnenrollResponse>, Status> {
        let of = environment(&request)?;
        let relay = Arc::clone(&self.0);
        self.0.detached(async move { relay.unenroll(of).await }).await?;
        Ok(Response::new(v1::UnenrollResponse {}))
    }
}

type News = Pin<Box<dyn Stream<Item = Result<v1::WatchPresenceResponse, Status>> + Send>>;

/// Changes that come close together are told together.
const TOGETHER: Duration = Duration::from_millis(20);

#[tonic::async_trait]
impl v1::presence_server::Presence for Service {
    type WatchPresenceStream = News;

    async fn watch_presence(&self, request: Request<v1::WatchPresenceRequest>) -> Result<Response<News>, Status> {
        match caller(&request)? {
            Caller::Core(_) => {}
            Caller::Stranger(name) => {
                let text = format!("{name:?} is not among the Cores that this relay takes");
                return Err(Refusal::new(Reason::NotAuthorized, text).into());
            }
            Caller::Nobody | Caller::Environment { .. } => {
                return Err(Refusal::new(Reason::NotAuthorized, "this is called with the certificate of a Core").into());
            }
        }
        let (relay, watch) = (Arc::clone(&self.0), self.0.presence.watch());
        let news = stream::unfold((watch, None::<Everyone>), move |(mut watch, before)| {
            let relay = Arc::clone(&relay);
            async move {
                if before.is_some() {
                    watch.changed().await.ok()?;
                    tokio::time::sleep(TOGETHER).await;
                }
                let now = watch.borrow_and_update().clone();
                let complete = before.is_none();
                let changed = presence::changes(&before.unwrap_or_default(), &now);
                let environments = changed.into_iter().map(|(id, present)| relay.told(id, present)).collect();
                Some((Ok(v1::WatchPresenceResponse { complete, environments }), (watch, Some(now))))
            }
        });
        Ok(Response::new(Box::pin(news)))
    }
}
