//! The connections that bridges dialled: taken or refused by their first message, replaced by newer ones, closed by a revocation (R-ENR-3 to R-ENR-5).
//! On each of them the relay is the client; who may call through it is not decided here.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::enrollment::v1::{EnrollmentReason as Reason, LinkHello, LinkWelcome};
use tokio::{net::TcpStream, time};
use tokio_rustls::server::TlsStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    names,
    presence::{Presence, Present},
    refusal,
    replaced::{Replacements, Verdict},
    socket::{Ending, Tracked},
};
use crate::{
    clock,
    journal::{Enrollments, Standing},
    link::{self, greeting},
};

/// How long a bridge may take for its first message, and for taking the answer.
const GREETING: Duration = Duration::from_secs(10);
/// Longest name of a process, and of a Runtime.
const MAX_NAME: usize = 64;

/// Where calls for an Environment go.
pub(super) type Sender = SendRequest<Incoming>;

/// The links of a relay.
#[derive(Debug)]
pub(crate) struct Links {
    records: Enrollments,
    presence: Arc<dyn Presence>,
    inner: Mutex<Inner>,
    begun: Instant,
    tracker: TaskTracker,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the label of the Environment's host name.
    links: HashMap<String, Link>,
    /// By Environment.
    replacements: HashMap<String, Replacements>,
    /// What ends all connections of an Environment, also those that take no more calls; by Environment.
    ends: HashMap<String, CancellationToken>,
    last: u64,
}

#[derive(Debug)]
struct Link {
    number: u64,
    process: String,
    sender: Sender,
    end: CancellationToken,
}

/// Why a link was not taken, for the bridge and for the log.
#[derive(Debug)]
struct Refused {
    reason: Reason,
    text: String,
}

impl Links {
    /// None yet; those that come have their tasks on this tracker, and end with `stop`.
    pub(super) fn new(
        records: Enrollments,
        presence: Arc<dyn Presence>,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self { records, presence, inner: Mutex::default(), begun: Instant::now(), tracker, stop }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What is in it fits together between any two statements that change it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where calls for an Environment go; none where it is not connected.
    pub(super) fn find(&self, label: &str) -> Option<Sender> {
        self.lock().links.get(label).map(|link| link.sender.clone())
    }

    /// Closes the connections of an Environment, with the calls on them; whether there was one.
    pub(super) fn close(&self, environment_id: &str) -> bool {
        let mut inner = self.lock();
        if let Some(end) = inner.ends.remove(environment_id) {
            end.cancel();
        }
        inner.links.remove(&names::label(environment_id)).is_some()
    }

    /// Takes a connection whose certificate is good, and drives it to its end.
    pub(super) async fn serve(&self, mut stream: TlsStream<TcpStream>, environment_id: &str, key: [u8; 32]) {
        let greeted = time::timeout(GREETING, self.greet(&mut stream, environment_id, key)).await;
        let hello = match greeted {
            Ok(Ok(Ok(hello))) => hello,
            Ok(Ok(Err(refused))) => {
                let reason = refusal::name(refused.reason);
                tracing::warn!(environment_id, reason, why = refused.text, "a bridge was refused");
                return;
            }
            Ok(Err(error)) => {
                tracing::warn!(environment_id, %error, "a bridge did not say who it is");
                return;
            }
            Err(_late) => {
                tracing::warn!(environment_id, "a bridge said nothing, or did not read the answer");
                return;
            }
        };
        let (end, gone) = (self.end(environment_id), CancellationToken::new());
        let stream = Ending::new(stream, end.clone(), gone.clone());
        let shaken = http2::Builder::new(Tracked(self.tracker.clone()))
            .timer(TokioTimer::new())
            .initial_stream_window_size(link::STREAM_WINDOW)
            .initial_connection_window_size(link::CONNECTION_WINDOW)
            .keep_alive_interval(link::PING.0)
            .keep_alive_timeout(link::PING.1)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream));
        let Ok((sender, connection)) = shaken.await else { return };
        let number = self.put(environment_id, hello, sender, end.clone());
        // ORDER: asked again now that a revocation would find the connection.
        if !matches!(self.records.standing(environment_id, key).await, Ok(Standing::Enrolled)) {
            end.cancel();
        }
        tracing::info!(environment_id, connection = number, "a bridge is connected");
        let why = tokio::select! {
            // What was closed on purpose has ended, too.
            biased;
            () = self.stop.cancelled() => "the relay stops".into(),
            () = end.cancelled() => "it was closed: replaced or revoked".into(),
            ended = connection => ended.map_or_else(|error| error.to_string(), |()| "it ended".into()),
        };
        self.remove(environment_id, number);
        tracing::info!(environment_id, connection = number, why, "a bridge is gone");
        // A bridge that stops takes nothing new and finishes what is under way.
        gone.cancelled().await;
    }

    /// What ends one more connection of an Environment: that one alone, or with all others.
    fn end(&self, environment_id: &str) -> CancellationToken {
        let mut inner = self.lock();
        inner.ends.entry(environment_id.to_owned()).or_insert_with(|| self.stop.child_token()).child_token()
    }

    /// The first exchange.
    async fn greet(
        &self,
        stream: &mut TlsStream<TcpStream>,
        environment_id: &str,
        key: [u8; 32],
    ) -> io::Result<Result<LinkHello, Refused>> {
        let hello: LinkHello = greeting::receive(stream).await?;
        let judged = self.judge(&hello, environment_id, key).await;
        let welcome = match &judged {
            Ok(()) => LinkWelcome::default(),
            Err(refused) => LinkWelcome { refused: refused.reason.into(), text: refused.text.clone() },
        };
        greeting::send(stream, &welcome).await?;
        if judged.is_err() {
            // Read to its end, so that the answer is not lost with a reset.
            drop(tokio::io::AsyncWriteExt::shutdown(stream).await);
            drop(tokio::io::AsyncReadExt::read_u8(stream).await);
        }
        Ok(judged.map(|()| hello))
    }

    async fn judge(&self, hello: &LinkHello, environment_id: &str, key: [u8; 32]) -> Result<(), Refused> {
        let refused = |reason, text: &str| Err(Refused { reason, text: text.into() });
        if !hello.version.parse().is_ok_and(proto::enrollment::is_accepted) {
            let text = format!(
                "the relay speaks {} of the enrollment protocol and the bridge another version",
                proto::enrollment::CURRENT
            );
            return refused(Reason::IncompatibleVersion, &text);
        }
        let fits = |name: &str| {
            (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        if !fits(&hello.instance) || !fits(&hello.runtime_id) {
            return refused(
                Reason::InvalidRequest,
                "the names of process and Runtime have 1 to 64 bytes of [A-Za-z0-9-]",
            );
        }
        match self.records.standing(environment_id, key).await {
            Ok(Standing::Enrolled) => {}
            Ok(Standing::Revoked) => return refused(Reason::Revoked, "the enrollment of this Environment was revoked"),
            Ok(Standing::Unknown) => {
                return refused(Reason::NotEnrolled, "the relay has no enrollment of this Environment with this key");
            }
            Err(error) => {
                tracing::error!(%error, "the relay's records do not answer");
                return refused(Reason::StorageUnavailable, "the relay's records cannot be read now");
            }
        }
        let mut inner = self.lock();
        let label = names::label(environment_id);
        let connected = inner.links.get(&label).map(|link| link.process.clone());
        let replacements = inner.replacements.entry(environment_id.to_owned()).or_default();
        let text = "another process connects with this identity; they replaced each other three times within a minute";
        match replacements.comes(self.begun.elapsed(), &hello.instance, connected.as_deref()) {
            Verdict::Take => Ok(()),
            Verdict::Refuse => refused(Reason::DuplicateIdentity, text),
            Verdict::RefuseBoth => {
                if let Some(other) = inner.links.remove(&label) {
                    other.end.cancel();
                }
                refused(Reason::DuplicateIdentity, text)
            }
        }
    }

    fn put(&self, environment_id: &str, hello: LinkHello, sender: Sender, end: CancellationToken) -> u64 {
        let mut inner = self.lock();
        inner.last += 1;
        let number = inner.last;
        let link = Link { number, process: hello.instance, sender, end };
        if let Some(older) = inner.links.insert(names::label(environment_id), link) {
            older.end.cancel();
        }
        // ORDER: under the lock, so that the newest connection is also told last.
        let present = Present { connection: number, since: clock::now(), runtime_id: hello.runtime_id };
        self.presence.came(environment_id, present);
        number
    }

    fn remove(&self, environment_id: &str, number: u64) {
        let mut inner = self.lock();
        let label = names::label(environment_id);
        if inner.links.get(&label).is_some_and(|link| link.number == number) {
            inner.links.remove(&label);
        }
        self.presence.went(environment_id, number);
    }
}
