//! What the relay's operator does: tokens, revocations, a look at what is recorded. Served on a Unix socket of the relay's own.

use std::{sync::Arc, time::Duration};

use proto::enrollment::v1::{self, EnrollmentReason as Reason};
use tonic::{Request, Response, Status};

use super::{Relay, authority, refusal::Refusal, service::check_version};
use crate::{clock, enroll::token};

/// Longest life of a token.
const MAX_LIFE: u32 = 30 * 24 * 3600;

/// The service.
#[derive(Debug)]
pub(super) struct Operator(pub(super) Arc<Relay>);

fn id(environment_id: &str) -> Result<(), Refusal> {
    if authority::is_id(environment_id) {
        return Ok(());
    }
    let text = "an Environment's id has 1 to 128 bytes of [A-Za-z0-9._:-]";
    Err(Refusal::new(Reason::InvalidRequest, text).at("environment_id"))
}

impl Relay {
    async fn create_token(&self, request: v1::CreateTokenRequest) -> Result<v1::CreateTokenResponse, Refusal> {
        id(&request.environment_id)?;
        if !(1..=MAX_LIFE).contains(&request.life_seconds) {
            let text = format!("a token lives 1 to {MAX_LIFE} seconds");
            return Err(Refusal::new(Reason::InvalidRequest, text).at("life_seconds"));
        }
        let token = token::make().map_err(|error| {
            tracing::error!(%error, "the system gives no random bytes");
            Refusal::new(Reason::Internal, "the system gives no random bytes")
        })?;
        let digest = token::digest(&token).unwrap_or_default();
        let expires = clock::now() + Duration::from_secs(request.life_seconds.into());
        self.records.put_token(digest, &request.environment_id, clock::millis(expires)).await?;
        tracing::info!(environment_id = request.environment_id, "a token is made");
        let authority_sha256 = self.authority.digest().to_vec();
        Ok(v1::CreateTokenResponse { token, expires: Some(expires.into()), url: self.url.clone(), authority_sha256 })
    }

    async fn revoke(&self, request: v1::RevokeRequest) -> Result<v1::RevokeResponse, Refusal> {
        id(&request.environment_id)?;
        let revoked = self.records.revoke(&request.environment_id).await?;
        if !revoked.is_known {
            let text = format!("nothing is recorded of the Environment {:?}", request.environment_id);
            return Err(Refusal::new(Reason::NotFound, text).at("environment_id"));
        }
        let was_connected = self.links.close(&request.environment_id);
        tracing::warn!(environment_id = request.environment_id, was_connected, "an enrollment is revoked");
        Ok(v1::RevokeResponse { was_enrolled: revoked.was_enrolled, was_connected, tokens: revoked.tokens })
    }

    async fn environments(&self) -> Result<v1::ListEnvironmentsResponse, Refusal> {
        let records = self.records.environments(clock::millis(clock::now())).await?;
        let connected = self.presence.watch().borrow().clone();
        let environments = records.into_iter().map(|record| {
            let state = match (record.is_enrolled, record.is_invited) {
                (true, _) => v1::EnvironmentState::Enrolled,
                (false, true) => v1::EnvironmentState::Invited,
                (false, false) => v1::EnvironmentState::Revoked,
            };
            v1::Environment {
                state: state.into(),
                not_after: record.not_after_ms.map(|millis| clock::from_millis(millis).into()),
                connected_since: connected.get(&record.environment_id).map(|present| present.since.into()),
                authority: self.authority_of(&record.environment_id),
                environment_id: record.environment_id,
            }
        });
        Ok(v1::ListEnvironmentsResponse { environments: environments.collect() })
    }
}

#[tonic::async_trait]
impl v1::operator_server::Operator for Operator {
    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        check_version(&request)?;
        Ok(Response::new(self.0.create_token(request.into_inner()).await?))
    }

    async fn revoke(&self, request: Request<v1::RevokeRequest>) -> Result<Response<v1::RevokeResponse>, Status> {
        check_version(&request)?;
        let relay = Arc::clone(&self.0);
        Ok(Response::new(self.0.detached(async move { relay.revoke(request.into_inner()).await }).await?))
    }

    async fn list_environments(
        &self,
        request: Request<v1::ListEnvironmentsRequest>,
    ) -> Result<Response<v1::ListEnvironmentsResponse>, Status> {
        check_version(&request)?;
        Ok(Response::new(self.0.environments().await?))
    }
}
