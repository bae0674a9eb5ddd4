//! The dialler: keeps one connection to the relay up and hands each to the server, as a listener does with those that come (R-ENR-2, R-ENR-5). It knows
//! nothing of Sessions: what runs goes on while there is no connection.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    io,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use futures_util::{Stream, stream};
use proto::enrollment::{
    self,
    v1::{EnrollmentReason as Reason, LinkHello, LinkWelcome},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::oneshot,
    time::{self, Instant},
};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{Connection, Limits, Peer, greeting, tls};
use crate::{
    clock,
    enroll::{
        Enrollment, LOOK,
        calls::Error as CallError,
        standing::{Board, Standing},
    },
};

/// How long the relay may take to answer the first message.
const GREETING: Duration = Duration::from_secs(10);
/// The wait before the first new attempt, at most; half of it at least.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait between two attempts.
const LONGEST: Duration = Duration::from_secs(30);
/// A connection that was there for so long was one; a shorter one counts as a failed attempt.
const LIVED: Duration = Duration::from_secs(10);
/// The longest wait between two attempts to renew a certificate.
const LONGEST_RENEWAL: Duration = Duration::from_mins(5);

/// The wait between two looks at whether the enrollment is still there.
const WATCH: Duration = Duration::from_secs(2);
/// The shortest time between two renewals, whatever a relay says.
const SHORTEST_RENEWAL: Duration = Duration::from_secs(1);
/// The reason of one whose enrollment was given up.
const GIVEN_UP: &str = "UNENROLLED";
/// The reason of one whose certificate has ended.
const EXPIRED: &str = "CERTIFICATE_EXPIRED";

/// Waits that double up to a longest one, each shortened by chance by up to a half: many bridges whose relay was away do not come at once.
#[derive(Debug)]
struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    fn new(longest: Duration) -> Self {
        Self { next: FIRST, longest }
    }

    fn begin_anew(&mut self) {
        self.next = FIRST;
    }

    /// The next wait, for a number by chance.
    fn next(&mut self, chance: u64) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.longest);
        let thousandth = u32::try_from(chance % 1000).unwrap_or_default();
        wait / 2 + wait / 2 * thousandth / 1000
    }
}

/// A number by chance: what keys a hash map is no secret, and need not be.
fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Why there is no connection.
#[derive(Debug)]
struct Failed {
    why: String,
    /// Set where dialling again would change nothing: why, for programs.
    for_good: Option<&'static str>,
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self { why, for_good: None }
    }
}

/// The enrollment that dialler and renewal share.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Enrollment>>);

impl Shared {
    fn current(&self) -> Enrollment {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, enrollment: Enrollment) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = enrollment;
    }
}

/// A connection that was handed out.
#[derive(Debug)]
struct Last {
    since: Instant,
    gone: oneshot::Receiver<()>,
    end: CancellationToken,
}

/// Keeps the connection up.
#[derive(Debug)]
pub(crate) struct Dialler {
    enrollment: Shared,
    hello: LinkHello,
    limits: Limits,
    board: Board,
    told: Option<Standing>,
    backoff: Backoff,
    /// The connection that was handed out last.
    last: Option<Last>,
}

impl Dialler {
    /// Dials for this enrollment, as the Runtime with this identity.
    pub(crate) fn new(enrollment: Enrollment, state: &Path, runtime_id: &str, limits: Limits) -> Self {
        let hello = LinkHello {
            version: enrollment::CURRENT.to_string(),
            instance: uuid::Uuid::now_v7().to_string(),
            runtime_id: runtime_id.to_owned(),
        };
        Self {
            enrollment: Shared(Arc::new(Mutex::new(enrollment))),
            hello,
            limits,
            board: Board::of(state),
            told: None,
            backoff: Backoff::new(LONGEST),
            last: None,
        }
    }

    /// The enrollment, for who renews it.
    pub(crate) fn shared(&self) -> Shared {
        self.enrollment.clone()
    }

    /// The connections, for ever.
    pub(crate) fn connections(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        stream::unfold(self, |mut dialler| async move { Some((Ok(dialler.next().await), dialler)) })
    }

    async fn next(&mut self) -> Connection {
        if let Some(mut last) = self.last.take() {
            loop {
                tokio::select! {
                    // An error is what is waited for: the connection was dropped with the other end.
                    _gone = &mut last.gone => break,
                    () = time::sleep(WATCH) => if !self.is_enrolled().await {
                        last.end.cancel();
                        self.park(GIVEN_UP.to_owned(), given_up()).await;
                    }
                }
            }
            if last.since.elapsed() >= LIVED {
                self.backoff.begin_anew();
            }
            self.tell(Standing::Waiting { why: "the connection ended".into() });
            time::sleep(self.backoff.next(chance())).await;
        }
        loop {
            if self.told.is_none() {
                self.tell(Standing::Dialling);
            }
            if !self.is_enrolled().await {
                self.park(GIVEN_UP.to_owned(), given_up()).await;
            }
            match self.dial().await {
                Ok(stream) => {
                    self.tell(Standing::Connected);
                    let (alive, gone) = oneshot::channel();
                    let end = CancellationToken::new();
                    self.last = Some(Last { since: Instant::now(), gone, end: end.clone() });
                    let end = Box::pin(end.cancelled_owned());
                    // The calls themselves tell whom the relay calls for.
                    let peer = Peer { principal: String::new(), bearer: None, operator: false, is_relay: true };
                    return Connection::new(Alive { stream, end, _alive: alive }, peer, self.limits.opening);
                }
                Err(Failed { why, for_good: None }) => self.tell(Standing::Waiting { why }),
                Err(Failed { why, for_good: Some(reason) }) => {
                    self.park(reason.to_owned(), why).await;
                }
            }
            time::sleep(self.backoff.next(chance())).await;
        }
    }

    /// Whether there is still what it dials for. Asked now and then: whoever gives it up need not reach this process.
    async fn is_enrolled(&self) -> bool {
        let enrollment = self.enrollment.current();
        tokio::task::spawn_blocking(move || enrollment.is_there()).await.unwrap_or(true)
    }

    /// Dials no more.
    async fn park(&mut self, reason: String, why: String) {
        self.tell(Standing::Parked { reason, why });
        std::future::pending::<()>().await;
    }

    /// One attempt.
    async fn dial(&self) -> Result<TlsStream<TcpStream>, Failed> {
        let enrollment = self.enrollment.current();
        let reach = enrollment.link().map_err(|error| error.to_string())?;
        let mut stream = reach.connect().await.map_err(|error| error.to_string())?;
        let greeted = async {
            greeting::send(&mut stream, &self.hello).await?;
            greeting::receive::<LinkWelcome>(&mut stream).await
        };
        let welcome = time::timeout(GREETING, greeted).await;
        // With TLS 1.3 a certificate that is refused shows only here.
        let welcome = welcome.map_err(|_| "the relay did not answer the first message on the link".to_owned())?;
        let welcome = welcome.map_err(|error| {
            // Where the clocks differ they may yet be set, and it is dialled on.
            if tls::is_refused_as_expired(&error) && enrollment.is_expired() {
                return Failed { why: expired(), for_good: Some(EXPIRED) };
            }
            Failed::from(format!("be taken by the relay: {}", tls::why(&error)))
        })?;
        match welcome.refused() {
            Reason::Unspecified => Ok(stream),
            reason => {
                let for_good =
                    is_for_good(reason).then(|| reason.as_str_name().trim_start_matches("ENROLLMENT_REASON_"));
                Err(Failed { why: crate::refusal::excerpt(&welcome.text), for_good })
            }
        }
    }

    /// Tells how it stands, where that is news.
    fn tell(&mut self, standing: Standing) {
        if self.told.as_ref() == Some(&standing) {
            return;
        }
        match &standing {
            Standing::Dialling => tracing::info!("dialling the relay"),
            Standing::Connected => tracing::info!("the relay is connected"),
            Standing::Waiting { why } => tracing::warn!(why, "the relay is not connected; it is dialled again"),
            Standing::Parked { reason, why } => {
                tracing::error!(reason, why, "the relay refuses this bridge; it is not dialled again before a restart");
            }
        }
        self.board.tell(standing.clone());
        self.told = Some(standing);
    }
}

impl Drop for Dialler {
    fn drop(&mut self) {
        self.board.clear();
    }
}

/// Whether a refusal stays one whoever dials again.
fn is_for_good(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::IncompatibleVersion
            | Reason::Revoked
            | Reason::NotEnrolled
            | Reason::NotAuthorized
            | Reason::DuplicateIdentity
    )
}

/// Renews the certificate before it ends, until `stop`. Connections that are there are left alone: the next one has the new certificate (R-ENR-3).
pub(crate) async fn keep_renewed(shared: Shared, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = renew_when_due(shared) => {}
    }
}

/// How long a certificate that is to be renewed after `term` has time: its age by the wall clock counts, which goes on while the machine sleeps or the
/// daemon does not run, and the time since it was first looked at, which nobody sets.
fn time_left(term: Duration, age: Option<Duration>, seen: Duration) -> Duration {
    // A clock that was set back behind its coming says nothing of its age.
    age.map_or(Duration::ZERO, |age| term.saturating_sub(age.max(seen)))
}

async fn renew_when_due(shared: Shared) {
    let mut backoff = Backoff::new(LONGEST_RENEWAL);
    let (mut seen, mut age_then) = (Instant::now(), shared.current().age().unwrap_or_default());
    loop {
        let mut enrollment = shared.current();
        let left = time_left(enrollment.renew_in(), enrollment.age(), age_then + seen.elapsed());
        if !left.is_zero() {
            time::sleep(left.min(LOOK)).await;
            continue;
        }
        if !enrollment.is_there() {
            tracing::warn!("the enrollment was given up: its certificate is not renewed");
            return;
        }
        match enrollment.renew().await {
            Ok(()) => {
                backoff.begin_anew();
                tracing::info!(until = stamp(enrollment.not_after()), "the certificate for the relay is renewed");
                shared.replace(enrollment);
                (seen, age_then) = (Instant::now(), Duration::ZERO);
                time::sleep(SHORTEST_RENEWAL).await;
            }
            Err(error) => {
                let is_final = matches!(&error, CallError::Refused { reason, .. } if is_for_good(*reason));
                let wait = if is_final { LOOK } else { backoff.next(chance()) };
                tracing::warn!(%error, until = stamp(enrollment.not_after()), "the certificate for the relay was not renewed");
                time::sleep(wait).await;
            }
        }
    }
}

/// Seconds of Unix time, for a log.
fn stamp(at: SystemTime) -> i64 {
    clock::millis(at) / 1000
}

fn given_up() -> String {
    "the enrollment that this daemon dialled for was given up on this machine".into()
}

fn expired() -> String {
    "this machine's certificate has ended before it was renewed; enroll again with a new token of the relay's operator"
        .into()
}

/// A connection that tells its end, and that is ended when nobody may call any more.
#[derive(Debug)]
struct Alive {
    stream: TlsStream<TcpStream>,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Dropped with the connection.
    _alive: oneshot::Sender<()>,
}

impl Alive {
    /// Fails what is read or written once it is to end; a call that is open holds nothing open then.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.end.as_mut().poll(cx).is_ready() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Alive {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Alive {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_longest_and_chance_takes_up_to_a_half() {
        for (chance, part) in [(0, 500), (999, 1000)] {
            let mut backoff = Backoff::new(LONGEST);
            let mut due = FIRST;
            for _ in 0..12 {
                let wait = backoff.next(chance);
                assert!(wait >= due / 2 && wait <= due, "{wait:?} of {due:?}");
                assert!(wait.as_micros().abs_diff(due.as_micros() * part / 1000) <= due.as_micros() / 1000);
                due = (due * 2).min(LONGEST);
            }
            backoff.begin_anew();
            assert!(backoff.next(chance) <= FIRST);
        }
    }

    #[test]
    fn a_renewal_is_due_by_the_age_and_by_the_time_that_nobody_sets() {
        let [zero, one, two, ten] = [0, 1, 2, 10].map(Duration::from_secs);
        assert_eq!(time_left(ten, Some(two), one), ten - two);
        // The wall clock was set back by less, and by more, than its age.
        assert_eq!(time_left(ten, Some(zero), two), ten - two);
        assert_eq!(time_left(ten, None, zero), zero);
        // The machine slept, or the daemon did not run.
        assert_eq!(time_left(two, Some(ten), one), zero);
    }

    #[test]
    fn only_what_stays_so_parks() {
        use Reason as R;
        for reason in [R::Revoked, R::NotEnrolled, R::DuplicateIdentity, R::IncompatibleVersion, R::NotAuthorized] {
            assert!(is_for_good(reason), "{reason:?}");
        }
        for reason in [R::StorageUnavailable, R::Overloaded, R::Internal, R::InvalidRequest] {
            assert!(!is_for_good(reason), "{reason:?}");
        }
    }
}
