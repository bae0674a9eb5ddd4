//! The table of routes: what a path of the gateway stands for, and for how long.

use std::{
    collections::{HashMap, VecDeque},
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use adapters::harness::ModelProtocol;
use http::{
    HeaderName, HeaderValue, Uri,
    header::AUTHORIZATION,
    uri::{Authority, PathAndQuery, Scheme},
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::Notify;

use super::{
    origin::Origin,
    relay::Upstream,
    stream::{Batch, Breach, Judge, Limits, Protocol},
};

/// Random bytes in a route's name: nobody guesses it.
const NAME_BYTES: usize = 24;

/// Batches that wait for somebody to take them; those that came first are lost. They are taken before anything that the Harness makes of them.
const BATCHES: usize = 256;

/// The header in which providers of the Messages API take a key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// All routes, by their names.
#[derive(Debug, Default)]
pub(super) struct Routes(Mutex<HashMap<Name, Arc<Route>>>);

/// The name of a route, a path segment. Who knows it may use the route, so it is shown to nobody.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Name(String);

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Name(…)")
    }
}

/// Where the requests of one Executor go, and with which key.
pub(super) struct Route {
    protocol: ModelProtocol,
    origin: Origin,
    scheme: Scheme,
    authority: Authority,
    /// The path of the base address, without a slash at its end.
    prefix: String,
    key: Mutex<Option<SecretString>>,
    upstream: Upstream,
    /// Of each answer.
    limits: Limits,
    /// Whether calls are held back until they may run (R-FN-10).
    strict_calls: bool,
    batches: Mutex<VecDeque<Batch>>,
    /// Why the gateway itself did not pass the last request on.
    trouble: Mutex<Option<String>>,
    /// What an answer did that it may not, until somebody takes it.
    breach: Mutex<Option<Breach>>,
    breached: Notify,
}

/// How the answers of a route are judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Judging {
    pub(super) limits: Limits,
    /// Whether calls are held back until they may run (R-FN-10).
    pub(super) strict_calls: bool,
}

/// Its base address may hold a secret in its path, so only the origin is shown.
impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("protocol", &self.protocol).field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Routes {
    /// Adds a route under a name of its own.
    pub(super) fn add(&self, route: Arc<Route>) -> io::Result<Name> {
        let name = Name::make()?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), route);
        Ok(name)
    }

    pub(super) fn remove(&self, name: &Name) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// The route of a path, and what stands behind its name.
    pub(super) fn find<'a>(&self, path: &'a str) -> Option<(Arc<Route>, &'a str)> {
        let path = path.strip_prefix('/')?;
        let (name, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
        let route = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&Name(name.to_owned())).cloned()?;
        Some((route, rest))
    }
}

impl Name {
    fn make() -> io::Result<Self> {
        use fmt::Write as _;
        let mut bytes = [0u8; NAME_BYTES];
        let mut filled = 0;
        while filled < NAME_BYTES {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        let mut name = String::with_capacity(2 * NAME_BYTES);
        for byte in bytes {
            // A String can always be written to.
            _ = write!(name, "{byte:02x}");
        }
        Ok(Self(name))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Route {
    /// A route to a base address; none where the address has no origin.
    pub(super) fn new(
        protocol: ModelProtocol,
        base: &Uri,
        key: Option<SecretString>,
        upstream: Upstream,
        judging: Judging,
    ) -> Option<Self> {
        let Judging { limits, strict_calls } = judging;
        Some(Self {
            protocol,
            origin: Origin::of(base)?,
            scheme: base.scheme()?.clone(),
            authority: base.authority()?.clone(),
            prefix: base.path().trim_end_matches('/').to_owned(),
            key: Mutex::new(key),
            upstream,
            limits,
            strict_calls,
            batches: Mutex::default(),
            trouble: Mutex::default(),
            breach: Mutex::default(),
            breached: Notify::new(),
        })
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Judges an answer of this protocol, if it is of one.
    pub(super) fn judge(&self, protocol: Option<Protocol>, is_stream: bool) -> Judge {
        let judge = if self.strict_calls { Judge::strict } else { Judge::new };
        judge(protocol, is_stream, self.limits)
    }

    pub(super) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The address of what stands behind the route's name; none where it leaves the base address.
    pub(super) fn target(&self, rest: &str, query: Option<&str>) -> Option<Uri> {
        if rest.split('/').any(leaves) {
            return None;
        }
        let path = match (format!("{}{rest}", self.prefix), query) {
            (path, None) => path,
            (path, Some(query)) => format!("{path}?{query}"),
        };
        let path = if path.starts_with('/') { path } else { format!("/{path}") };
        let path: PathAndQuery = path.try_into().ok()?;
        Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query(path).build().ok()
    }

    /// The header with the key, as a Harness that has the key would send it; none where there is no key.
    pub(super) fn credential(&self) -> Option<(HeaderName, HeaderValue)> {
        let key = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key.as_ref()?.expose_secret();
        let (name, value) = match self.protocol {
            ModelProtocol::Responses => (AUTHORIZATION, HeaderValue::try_from(format!("Bearer {key}").into_bytes())),
            ModelProtocol::Messages => (API_KEY, HeaderValue::from_bytes(key.as_bytes())),
        };
        let mut value = value.ok()?;
        value.set_sensitive(true);
        Some((name, value))
    }

    /// Takes another key for the requests that come from now on.
    pub(super) fn swap(&self, key: Option<SecretString>) {
        *self.key.lock().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// Notes why a request was not passed on, or that one was.
    pub(super) fn note(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Notes that an answer is cut off for this.
    pub(super) fn breach(&self, breach: Breach) {
        tracing::warn!(provider = %self.origin, %breach, "an answer of the model provider is cut off");
        self.breach.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(breach);
        self.breached.notify_one();
    }

    /// What was noted and not taken yet.
    pub(super) fn take_breach(&self) -> Option<Breach> {
        self.breach.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Notes the calls of an answer, which go on now.
    pub(super) fn batch(&self, batch: Batch) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        if batches.len() == BATCHES {
            batches.pop_front();
        }
        batches.push_back(batch);
    }

    /// Those that were noted and not taken yet.
    pub(super) fn take_batches(&self) -> VecDeque<Batch> {
        std::mem::take(&mut *self.batches.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something may have been noted. Cancel safe; one may wait.
    pub(super) async fn breached(&self) {
        self.breached.notified().await;
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether a provider might take a segment of a path for a step upwards. Nothing that a Harness asks for has one.
fn leaves(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    let plain = plain.split("%2f").flat_map(|part| part.split("%5c")).flat_map(|part| part.split('\\'));
    plain.map(|part| part.split(';').next().unwrap_or_default()).any(|part| matches!(part, "." | ".."))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper_util::{client::legacy::Client, rt::TokioExecutor};

    use super::{
        super::{
            connect::{Connector, Limits as ConnectLimits},
            guard::Guard,
        },
        *,
    };

    fn made(protocol: ModelProtocol, base: &str, key: Option<&str>) -> Route {
        let second = Duration::from_secs(1);
        let connector = Connector::new(Guard::default(), ConnectLimits { address: second, whole: second });
        let upstream = Client::builder(TokioExecutor::new()).build(connector);
        Route::new(protocol, &base.parse().unwrap(), key.map(SecretString::from), upstream, Judging::default()).unwrap()
    }

    fn route(base: &str) -> Route {
        made(ModelProtocol::Responses, base, None)
    }

    #[test]
    fn a_request_goes_below_the_base_address_and_nowhere_else() {
        let target = |base: &str, rest: &str, query| route(base).target(rest, query).map(|uri| uri.to_string());
        for (base, rest, query, want) in [
            ("https://h/v1", "/responses", None, Some("https://h/v1/responses")),
            ("https://h/v1/", "/responses", None, Some("https://h/v1/responses")),
            ("https://h", "/v1/messages", Some("beta=true"), Some("https://h/v1/messages?beta=true")),
            ("http://h:8080/a", "", None, Some("http://h:8080/a")),
            ("https://h", "", Some("x"), Some("https://h/?x")),
            ("https://h/v1", "/a%20b/..c/.d", None, Some("https://h/v1/a%20b/..c/.d")),
            ("https://h/v1", "/../admin", None, None),
            ("https://h/v1", "/a/%2E%2e/admin", None, None),
            ("https://h/v1", "/a%2f../admin", None, None),
            ("https://h/v1", "/..;x/admin", None, None),
            ("https://h/v1", "/./a", None, None),
        ] {
            assert_eq!(target(base, rest, query).as_deref(), want, "{base} {rest}");
        }
    }

    #[test]
    fn a_key_goes_in_the_way_of_the_protocol_and_can_be_swapped() {
        let sent = |route: &Route| {
            route.credential().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
        };
        let responses = made(ModelProtocol::Responses, "https://h", Some("k-1"));
        assert_eq!(sent(&responses).as_deref(), Some("authorization: Bearer k-1"));
        let messages = made(ModelProtocol::Messages, "https://h", Some("k-1"));
        assert_eq!(sent(&messages).as_deref(), Some("x-api-key: k-1"));
        messages.swap(Some("schlüssel".into()));
        assert_eq!(sent(&messages).as_deref(), Some("x-api-key: schlüssel"));
        messages.swap(None);
        assert_eq!(sent(&messages), None);
    }

    #[test]
    fn batches_that_nobody_takes_are_bounded() {
        let route = route("https://h");
        let batch = |n: usize| Batch { id: Some(n.to_string()), calls: Vec::new() };
        (0..=BATCHES).for_each(|n| route.batch(batch(n)));
        let taken = route.take_batches();
        assert_eq!((taken.len(), taken.front(), taken.back()), (BATCHES, Some(&batch(1)), Some(&batch(BATCHES))));
        assert!(route.take_batches().is_empty());
    }

    #[test]
    fn names_and_keys_are_shown_to_nobody() {
        let routes = Routes::default();
        let name = routes.add(Arc::new(made(ModelProtocol::Messages, "https://h/canary", Some("canary")))).unwrap();
        let other = routes.add(Arc::new(self::route("https://h"))).unwrap();
        let shown = format!("{routes:?} {name:?}");
        assert!(!shown.contains("canary") && !shown.contains(name.as_str()), "{shown}");
        assert!(name.as_str().len() == 48 && name != other);
        let path = format!("/{}/v1/x", name.as_str());
        assert_eq!(routes.find(&path).map(|(_, rest)| rest), Some("/v1/x"));
        for unknown in ["/", "", "/x", "//", &path[1..], &path[..20]] {
            assert!(routes.find(unknown).is_none(), "{unknown}");
        }
        routes.remove(&name);
        assert!(routes.find(&path).is_none());
    }
}
