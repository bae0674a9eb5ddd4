//! The connections that bridges dialled: taken or refused by their first message, replaced by newer ones, closed by a revocation (R-ENR-3 to R-ENR-5).
//! On each of them the relay is the client; who may call through it is not decided here.

use std::{
    collections::HashMap,
    error::Error,
    io, iter,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::enrollment::v1::{EnrollmentReason as Reason, LinkHello, LinkWelcome};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time,
};
use tokio_rustls::server::TlsStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    names,
    places::NO_PLACE,
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
/// Calls of one Core on one link at once; fewer where there are so many Cores that a link would not take that many of each.
const CALLS: u32 = 256;

/// Calls of one of so many Cores on one link at once: what one of them takes, it takes from no other one.
fn share(cores: usize) -> u32 {
    let cores = u32::try_from(cores).unwrap_or(u32::MAX).max(1);
    (link::MAX_STREAMS / cores).clamp(1, CALLS)
}

/// The window of a link, which has room for all calls of all Cores, read or not.
fn window(cores: usize) -> u32 {
    let calls = share(cores).saturating_mul(u32::try_from(cores).unwrap_or(u32::MAX).max(1));
    calls.min(link::MAX_STREAMS) * link::STREAM_WINDOW
}

/// A bridge that comes, by its certificate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bridge<'a> {
    /// Its Environment.
    pub(super) id: &'a str,
    /// Digest of its key.
    pub(super) key: [u8; 32],
    pub(super) from: SocketAddr,
}

/// Where calls for an Environment go.
pub(super) type Sender = SendRequest<Incoming>;

/// Why a call goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoWay {
    /// The Environment is not connected.
    Away,
    /// The Core has so many calls on its link, and no more may be.
    Taken {
        /// How many.
        calls: u32,
    },
}

/// The links of a relay.
#[derive(Debug)]
pub(crate) struct Links {
    records: Enrollments,
    presence: Arc<dyn Presence>,
    inner: Mutex<Inner>,
    begun: Instant,
    /// How many Cores there may be.
    cores: usize,
    /// For connections that last, of Cores and of bridges.
    seats: Arc<Semaphore>,
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
    /// Room for calls, by the name of the Core.
    calls: HashMap<String, Arc<Semaphore>>,
}

/// An error with what caused it: HTTP/2 tells no more than that it failed.
fn chain(error: &(dyn Error + 'static)) -> String {
    let all: Vec<_> = iter::successors(Some(error), |error| (*error).source()).map(ToString::to_string).collect();
    all.join(": ")
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
        cores: usize,
        seats: Arc<Semaphore>,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self { records, presence, inner: Mutex::default(), begun: Instant::now(), cores, seats, tracker, stop }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What is in it fits together between any two statements that change it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a call of a Core for an Environment goes, and its seat there while it lasts.
    pub(super) fn find(&self, label: &str, core: &str) -> Result<(Sender, OwnedSemaphorePermit), NoWay> {
        let mut inner = self.lock();
        let link = inner.links.get_mut(label).ok_or(NoWay::Away)?;
        let calls = share(self.cores);
        let room = usize::try_from(calls).unwrap_or(Semaphore::MAX_PERMITS);
        let room = link.calls.entry(core.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(room)));
        let seat = Arc::clone(room).try_acquire_owned().map_err(|_full| NoWay::Taken { calls })?;
        Ok((link.sender.clone(), seat))
    }

    /// Closes the connections of an Environment, with the calls on them; whether there was one.
    pub(super) fn close(&self, environment_id: &str) -> bool {
        let mut inner = self.lock();
        if let Some(end) = inner.ends.remove(environment_id) {
            end.cancel();
        }
        inner.links.remove(&names::label(environment_id)).is_some()
    }

    /// Takes a connection whose certificate is good, and drives it to its end. It keeps its place until it is taken.
    pub(super) async fn serve(&self, mut stream: TlsStream<TcpStream>, bridge: Bridge<'_>, place: CancellationToken) {
        let Bridge { id: environment_id, from, .. } = bridge;
        let greeted = tokio::select! {
            () = place.cancelled() => {
                tracing::warn!(%from, environment_id, why = NO_PLACE, "a bridge was let go");
                return;
            }
            greeted = time::timeout(GREETING, self.greet(&mut stream, bridge)) => greeted,
        };
        let (hello, _seat) = match greeted {
            Ok(Ok(Ok(taken))) => taken,
            Ok(Ok(Err(refused))) => {
                let reason = refusal::name(refused.reason);
                tracing::warn!(%from, environment_id, reason, why = refused.text, "a bridge was refused");
                return;
            }
            Ok(Err(error)) => {
                tracing::warn!(%from, environment_id, %error, "a bridge did not say who it is");
                return;
            }
            Err(_late) => {
                tracing::warn!(%from, environment_id, "a bridge said nothing, or did not read the answer");
                return;
            }
        };
        place.cancel();
        let (end, gone) = (self.end(environment_id), CancellationToken::new());
        let stream = Ending::new(stream, end.clone(), gone.clone());
        let shaken = http2::Builder::new(Tracked(self.tracker.clone()))
            .timer(TokioTimer::new())
            .initial_stream_window_size(link::STREAM_WINDOW)
            .initial_connection_window_size(window(self.cores))
            .keep_alive_interval(link::PING.0)
            .keep_alive_timeout(link::PING.1)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream));
        let Ok((sender, connection)) = shaken.await else { return };
        let number = self.put(environment_id, hello, sender, end.clone());
        // ORDER: asked again now that a revocation would find the connection.
        if !matches!(self.records.standing(environment_id, bridge.key).await, Ok(Standing::Enrolled)) {
            end.cancel();
        }
        tracing::info!(%from, environment_id, connection = number, "a bridge is connected");
        let why = tokio::select! {
            // What was closed on purpose has ended, too.
            biased;
            () = self.stop.cancelled() => "the relay stops".into(),
            () = end.cancelled() => "it was closed: replaced or revoked".into(),
            ended = connection => ended.map_or_else(|error| chain(&error), |()| "it ended".into()),
        };
        self.remove(environment_id, number);
        tracing::info!(%from, environment_id, connection = number, why, "a bridge is gone");
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
        bridge: Bridge<'_>,
    ) -> io::Result<Result<(LinkHello, OwnedSemaphorePermit), Refused>> {
        let hello: LinkHello = greeting::receive(stream).await?;
        let judged = self.judge(&hello, bridge.id, bridge.key).await;
        let welcome = match &judged {
            Ok(_seat) => LinkWelcome::default(),
            Err(refused) => LinkWelcome { refused: refused.reason.into(), text: refused.text.clone() },
        };
        greeting::send(stream, &welcome).await?;
        if judged.is_err() {
            // Read to its end, so that the answer is not lost with a reset.
            drop(tokio::io::AsyncWriteExt::shutdown(stream).await);
            drop(tokio::io::AsyncReadExt::read_u8(stream).await);
        }
        Ok(judged.map(|seat| (hello, seat)))
    }

    /// Gives a bridge that is taken its seat.
    async fn judge(
        &self,
        hello: &LinkHello,
        environment_id: &str,
        key: [u8; 32],
    ) -> Result<OwnedSemaphorePermit, Refused> {
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
        let Ok(seat) = Arc::clone(&self.seats).try_acquire_owned() else {
            return refused(Reason::Overloaded, "the relay has as many connections as it may have");
        };
        let mut inner = self.lock();
        let label = names::label(environment_id);
        let connected = inner.links.get(&label).map(|link| link.process.clone());
        let replacements = inner.replacements.entry(environment_id.to_owned()).or_default();
        let text = "another process connects with this identity; they replaced each other three times within a minute";
        match replacements.comes(self.begun.elapsed(), &hello.instance, connected.as_deref()) {
            Verdict::Take => Ok(seat),
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
        let link = Link { number, process: hello.instance, sender, end, calls: HashMap::new() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_has_its_part_of_a_link_and_the_window_holds_all_of_them() {
        for (cores, want) in [(0, 256), (1, 256), (4, 256), (5, 204), (100, 10), (1024, 1), (5000, 1)] {
            assert_eq!(share(cores), want, "{cores}");
            let most = u64::from(want) * u64::try_from(cores.clamp(1, 1024)).unwrap();
            assert!(most <= u64::from(link::MAX_STREAMS));
            assert_eq!(u64::from(window(cores)), most * u64::from(link::STREAM_WINDOW));
            // The most that HTTP/2 has.
            assert!(window(cores) < 1 << 31);
        }
    }
}
