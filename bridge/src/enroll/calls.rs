//! What a bridge asks of a relay. One connection for one call.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::{
    REASON_TRAILER,
    enrollment::{
        self,
        v1::{self, EnrollmentReason as Reason, enrollment_client::EnrollmentClient},
    },
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time;
use tonic::{Request, Response, Status, body::Body};
use tower_service::Service;

use super::Reach;

/// How long a relay may take to answer.
const ANSWER: Duration = Duration::from_secs(30);

/// A call had no answer, or a refusal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// This machine is not ready for it.
    #[error(transparent)]
    Own(#[from] super::Error),
    /// The relay was not reached.
    #[error("reach the relay: {0}")]
    Reach(#[from] super::reach::Error),
    /// The relay refused.
    #[error("{call}: {text} ({name})", name = reason.as_str_name().trim_start_matches("ENROLLMENT_REASON_"))]
    Refused {
        /// What was asked.
        call: &'static str,
        /// Why not, for programs.
        reason: Reason,
        /// Why not, for people.
        text: String,
    },
    /// There was no answer.
    #[error("{call}: {text}; the same command may be given again")]
    Lost {
        /// What was asked.
        call: &'static str,
        /// What was seen.
        text: String,
    },
}

/// Trades a token for a certificate.
pub(crate) async fn enroll(
    reach: &Reach,
    token: &SecretString,
    certificate_request: Vec<u8>,
) -> Result<(String, v1::Certificate), Error> {
    let request = v1::EnrollRequest { token: token.expose_secret().to_owned(), certificate_request };
    let answer = call(reach, "enroll", async |mut client| client.enroll(told(request)).await).await?;
    Ok((answer.environment_id, certificate("enroll", answer.certificate)?))
}

/// Asks for a fresh certificate.
pub(crate) async fn renew(reach: &Reach, certificate_request: Vec<u8>) -> Result<v1::Certificate, Error> {
    let request = v1::RenewRequest { certificate_request };
    let answer = call(reach, "renew the certificate", async |mut client| client.renew(told(request)).await).await?;
    certificate("renew the certificate", answer.certificate)
}

/// Gives the enrollment up.
pub(crate) async fn unenroll(reach: &Reach) -> Result<(), Error> {
    let request = v1::UnenrollRequest {};
    call(reach, "unenroll", async |mut client| client.unenroll(told(request)).await).await.map(drop)
}

fn certificate(call: &'static str, answered: Option<v1::Certificate>) -> Result<v1::Certificate, Error> {
    answered.ok_or_else(|| Error::Lost { call, text: "the answer has no certificate".into() })
}

fn told<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Ok(version) = enrollment::CURRENT.to_string().parse() {
        request.metadata_mut().insert(enrollment::HEADER, version);
    }
    request
}

type Client = EnrollmentClient<Direct>;

async fn call<T>(
    reach: &Reach,
    call: &'static str,
    ask: impl AsyncFnOnce(Client) -> Result<Response<T>, Status>,
) -> Result<T, Error> {
    let lost = |text: String| Error::Lost { call, text };
    let stream = TokioIo::new(reach.connect().await?);
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), stream).await.map_err(|error| lost(error.to_string()))?;
    let client = EnrollmentClient::with_origin(Direct(sender), reach.url().clone());
    let answered = async {
        tokio::select! {
            answered = ask(client) => answered.map(Response::into_inner).map_err(|status| refused(call, &status)),
            ended = connection => {
                // With TLS 1.3 a certificate that is refused shows only here.
                let text = ended.err().map_or("the relay ended the connection".into(), |error| chain(&error));
                Err(Error::Lost { call, text })
            }
        }
    };
    time::timeout(ANSWER, answered).await.unwrap_or_else(|_late| Err(lost("the relay did not answer in time".into())))
}

fn refused(call: &'static str, status: &Status) -> Error {
    let name = status.metadata().get(REASON_TRAILER).and_then(|name| name.to_str().ok());
    match name.and_then(|name| Reason::from_str_name(&format!("ENROLLMENT_REASON_{name}"))) {
        Some(reason) => Error::Refused { call, reason, text: crate::refusal::excerpt(status.message()) },
        None => Error::Lost { call, text: chain(status) },
    }
}

/// The texts of an error and of its causes; what TLS says of a certificate stands at the end.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut next = Some(error);
    let mut text = String::new();
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<std::io::Error>() {
            return crate::link::tls::why(tls);
        }
        text = error.to_string();
        next = error.source();
    }
    text
}

/// Calls over one connection.
#[derive(Debug, Clone)]
pub(crate) struct Direct(SendRequest<Body>);

impl Service<http::Request<Body>> for Direct {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
