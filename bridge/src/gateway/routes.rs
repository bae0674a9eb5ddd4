//! The table of routes: what a path of the gateway stands for, and for how long.

use std::{
    collections::{HashMap, VecDeque},
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use adapters::{harness::ModelProtocol, native::loopback};
use http::{
    HeaderName, HeaderValue, Uri,
    header::{self, AUTHORIZATION},
    uri::{Authority, PathAndQuery, Scheme},
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::{
    origin::Origin,
    relay::Upstream,
    stream::{Batch, Breach, Judge, Limits, Protocol},
};

/// Batches that wait for somebody to take them; those that came first are lost. They are taken before anything that the Harness makes of them.
const BATCHES: usize = 256;

/// LIMIT: requests of one route that are open at once, answers that stream included. A Harness has a few; whatever a model runs may know the route.
pub(super) const OPEN: usize = 64;

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

/// Headers of requests to a model provider that are the gateway's to set: the placeholder stands in one of them.
static OF_A_PROVIDER: [HeaderName; 5] = [
    header::HOST,
    header::EXPECT,
    AUTHORIZATION,
    API_KEY,
    // What is to be counted must not be packed.
    header::ACCEPT_ENCODING,
];

/// The same for an MCP server, whose other headers are the application's (R-MCP-1).
static OF_A_SERVER: [HeaderName; 4] = [header::HOST, header::EXPECT, AUTHORIZATION, header::ACCEPT_ENCODING];

/// Where the requests of one Executor go, and with which key.
pub(super) struct Route {
    behind: Behind,
    origin: Origin,
    scheme: Scheme,
    authority: Authority,
    key: Mutex<Option<SecretString>>,
    upstream: Upstream,
    room: Arc<Semaphore>,
    batches: Mutex<VecDeque<Batch>>,
    /// Why the gateway itself did not pass the last request on.
    trouble: Mutex<Option<String>>,
    /// What an answer did that it may not, until somebody takes it.
    breach: Mutex<Option<Breach>>,
    breached: Notify,
}

/// What stands behind a route.
#[derive(Debug)]
enum Behind {
    /// A model provider; requests go below its base address.
    Provider {
        protocol: ModelProtocol,
        /// The path of the base address, without a slash at its end.
        prefix: String,
        judging: Judging,
    },
    /// An MCP server; requests go to its address and nowhere else.
    Server {
        path: PathAndQuery,
        /// The most bytes of an answer, or of an event of one that is a stream.
        bytes: u64,
    },
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
        f.debug_struct("Route").field("origin", &self.origin).finish_non_exhaustive()
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
        Ok(Self(loopback::unguessable()?.expose_secret().to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Route {
    /// A route to the base address of a model provider; none where the address has no origin.
    pub(super) fn to_provider(
        protocol: ModelProtocol,
        base: &Uri,
        key: Option<SecretString>,
        upstream: Upstream,
        judging: Judging,
    ) -> Option<Self> {
        let prefix = base.path().trim_end_matches('/').to_owned();
        Self::new(Behind::Provider { protocol, prefix, judging }, base, key, upstream)
    }

    /// A route to an MCP server; none where its address has no origin. An answer has at most so many bytes, or an event of one that is a stream.
    pub(super) fn to_server(url: &Uri, key: Option<SecretString>, upstream: Upstream, bytes: u64) -> Option<Self> {
        let path = url.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        Self::new(Behind::Server { path, bytes }, url, key, upstream)
    }

    fn new(behind: Behind, url: &Uri, key: Option<SecretString>, upstream: Upstream) -> Option<Self> {
        Some(Self {
            behind,
            origin: Origin::of(url)?,
            scheme: url.scheme()?.clone(),
            authority: url.authority()?.clone(),
            key: Mutex::new(key),
            upstream,
            room: Arc::new(Semaphore::new(OPEN)),
            batches: Mutex::default(),
            trouble: Mutex::default(),
            breach: Mutex::default(),
            breached: Notify::new(),
        })
    }

    /// What stands behind it, for a person.
    pub(super) fn whom(&self) -> &'static str {
        match self.behind {
            Behind::Provider { .. } => "the model provider",
            Behind::Server { .. } => "the MCP server",
        }
    }

    /// Room for one request, until its answer is over; none where there are as many as there may be.
    pub(super) fn seat(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }

    /// Headers that a request does not keep.
    pub(super) fn stripped(&self) -> &'static [HeaderName] {
        match self.behind {
            Behind::Provider { .. } => &OF_A_PROVIDER,
            Behind::Server { .. } => &OF_A_SERVER,
        }
    }

    /// From a request to the first byte of its answer. A tool of an MCP server may take as long as it likes, and a stream of its events may be silent for
    /// hours: who asked gives up, or nobody does (R-FN-8).
    pub(super) fn first_byte(&self) -> Option<Duration> {
        match &self.behind {
            Behind::Provider { judging, .. } => Some(judging.limits.first_byte),
            Behind::Server { .. } => None,
        }
    }

    /// Judges the answer to a request for this path.
    pub(super) fn judge(&self, path: &str, is_stream: bool) -> Judge {
        match &self.behind {
            Behind::Provider { judging: Judging { limits, strict_calls }, .. } => {
                let judge = if *strict_calls { Judge::strict } else { Judge::new };
                judge(Protocol::of_path(path), is_stream, *limits)
            }
            Behind::Server { bytes, .. } => Judge::of_a_server(is_stream, *bytes),
        }
    }

    pub(super) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The address of what stands behind the route's name; none where it leaves the base address, or is another one than that of an MCP server.
    pub(super) fn target(&self, rest: &str, query: Option<&str>) -> Option<Uri> {
        let path = match &self.behind {
            Behind::Provider { prefix, .. } => below(prefix, rest, query)?,
            Behind::Server { path, .. } => (rest.is_empty() && query.is_none()).then(|| path.clone())?,
        };
        Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query(path).build().ok()
    }

    /// The header with the key, as a Harness that has the key would send it; none where there is no key.
    pub(super) fn credential(&self) -> Option<(HeaderName, HeaderValue)> {
        let key = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key.as_ref()?.expose_secret();
        let (name, value) = match self.behind {
            Behind::Provider { protocol: ModelProtocol::Messages, .. } => {
                (API_KEY, HeaderValue::from_bytes(key.as_bytes()))
            }
            Behind::Provider { protocol: ModelProtocol::Responses | ModelProtocol::ChatCompletions, .. }
            | Behind::Server { .. } => (AUTHORIZATION, HeaderValue::try_from(format!("Bearer {key}").into_bytes())),
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

    /// Notes that an answer is cut off for this. What an MCP server sends too much of fails a call and not the Turn.
    pub(super) fn breach(&self, breach: Breach) {
        tracing::warn!(of = self.whom(), origin = %self.origin, %breach, "an answer is cut off");
        if matches!(self.behind, Behind::Server { .. }) {
            return self.note(Some(breach.to_string()));
        }
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

/// The path of a request below a base address; none where it leaves that.
fn below(prefix: &str, rest: &str, query: Option<&str>) -> Option<PathAndQuery> {
    if rest.split('/').any(leaves) {
        return None;
    }
    let path = match (format!("{prefix}{rest}"), query) {
        (path, None) => path,
        (path, Some(query)) => format!("{path}?{query}"),
    };
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    path.try_into().ok()
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
        let (base, key) = (base.parse().unwrap(), key.map(SecretString::from));
        Route::to_provider(protocol, &base, key, upstream, Judging::default()).unwrap()
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
    fn a_server_is_asked_at_its_address_and_nowhere_else() {
        let second = Duration::from_secs(1);
        let connector = Connector::new(Guard::default(), ConnectLimits { address: second, whole: second });
        let upstream = || Client::builder(TokioExecutor::new()).build(connector.clone());
        for (url, want) in [
            ("https://h/mcp", "https://h/mcp"),
            ("https://h/mcp/", "https://h/mcp/"),
            ("http://h:8080/a%20b?tenant=1&x=", "http://h:8080/a%20b?tenant=1&x="),
            ("https://h", "https://h/"),
        ] {
            let route = Route::to_server(&url.parse().unwrap(), Some("b-1".into()), upstream(), 1024).unwrap();
            assert_eq!(route.target("", None).map(|uri| uri.to_string()).as_deref(), Some(want));
            for (rest, query) in [("/", None), ("/x", None), ("", Some("")), ("", Some("x=1"))] {
                assert_eq!(route.target(rest, query), None, "{rest} {query:?}");
            }
            let (name, value) = route.credential().unwrap();
            assert_eq!((name, value.to_str().unwrap(), value.is_sensitive()), (AUTHORIZATION, "Bearer b-1", true));
            assert_eq!(route.first_byte(), None);
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
