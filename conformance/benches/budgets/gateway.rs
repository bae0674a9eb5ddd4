//! What the gateway costs: a stream of stamped events from a provider on loopback, directly and by the route of an Executor.

use anyhow::Context as _;
use conformance::rig::{Rig, configuration, strict};
use hdrhistogram::Histogram;
use proto::{client::Session, v1};
use std::time::Duration;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{self, MissedTickBehavior},
};

use crate::{child, histogram, print, row};

/// Requests of each way, in turns with the other one, so that both meet the same machine.
const REQUESTS: usize = 100;
/// Events of an answer, one a millisecond.
const EVENTS: usize = 50;
/// Bytes of a request: a question, and a conversation.
const SHORT: usize = 2_000;
const LONG: usize = 100_000;

/// A provider that stamps what it sends.
pub(crate) struct Provider {
    listener: TcpListener,
}

impl Provider {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        Ok(Self { listener: TcpListener::bind("127.0.0.1:0").await? })
    }

    /// What the daemon is told of it.
    pub(crate) fn origin(&self) -> anyhow::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }
}

/// Measures both ways, and what the gateway adds.
pub(crate) async fn measure(rig: &Rig, provider: Provider) -> anyhow::Result<()> {
    let origin = provider.origin()?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((tcp, _)) = provider.listener.accept().await {
            connections.spawn(serve(tcp));
        }
    });
    let plain = Route::of(rig, configuration(rig.kind(), &origin, Vec::new())).await?;
    let strict = Route::of(rig, strict(None, configuration(rig.kind(), &origin, Vec::new()))).await?;
    for (what, route, length) in
        [("2 kB asked", &plain, SHORT), ("100 kB asked", &plain, LONG), ("100 kB asked, strict_calls", &strict, LONG)]
    {
        let mut ways = [Way::open(&origin, length).await?, Way::open(&route.base_url, length).await?];
        for _ in 0..REQUESTS {
            for way in &mut ways {
                way.ask().await.with_context(|| format!("ask {}", way.host))?;
            }
        }
        let [direct, gateway] = ways;
        for (name, direct, gateway, budget) in
            [("first byte", direct.first, gateway.first, "1 ms"), ("event", direct.each, gateway.each, "100 us")]
        {
            print(&format!("{name} directly, {what}"), &direct, "");
            print(&format!("{name} by the gateway, {what}"), &gateway, "");
            let less = |quantile| {
                let at = |times: &Histogram<u64>| times.value_at_quantile(quantile) as f64 / 1000.0;
                format!("{:.0} us", at(&gateway) - at(&direct))
            };
            row("  the gateway less directly", &less(0.5), &less(0.99), budget);
        }
    }
    tasks.abort_all();
    plain.session.release(true).await?;
    strict.session.release(true).await?;
    Ok(())
}

/// The address that an Executor has for its provider, for as long as its Session is there.
struct Route {
    session: Session,
    base_url: String,
}

impl Route {
    async fn of(rig: &Rig, configuration: v1::ExecutionConfiguration) -> anyhow::Result<Self> {
        let session = rig.session().await?;
        let ready = rig.prepare(&session, configuration).await?;
        session.start(&ready, "route", proto::client::text_input("route")).await?;
        let (mut events, mut base_url) = (session.turn_events("route"), String::new());
        while let Some(event) = events.next().await? {
            if let Some(v1::event::Kind::MessageDelta(delta)) = event.kind {
                base_url.push_str(&delta.text);
            }
        }
        Ok(Self { session, base_url })
    }
}

/// A connection to the provider or to the gateway, and what was measured on it.
struct Way {
    host: String,
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    /// From the request to the first event.
    first: Histogram<u64>,
    /// From each later event to its reader.
    each: Histogram<u64>,
}

impl Way {
    async fn open(base_url: &str, length: usize) -> anyhow::Result<Self> {
        let rest = base_url.strip_prefix("http://").context("no http")?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        let head = format!(
            "POST {path}/responses HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer x\r\ncontent-length: {length}\r\n\r\n"
        );
        let request = [head.as_bytes(), &vec![b'x'; length]].concat();
        let stream = BufReader::new(stream);
        Ok(Self { host: host.to_owned(), stream, request, first: histogram(), each: histogram() })
    }

    async fn ask(&mut self) -> anyhow::Result<()> {
        let asked = child::now();
        self.stream.write_all(&self.request).await?;
        let (mut line, mut seen) = (String::new(), 0);
        loop {
            line.clear();
            anyhow::ensure!(self.stream.read_line(&mut line).await? > 0, "the answer broke off");
            if line.starts_with("data: ") {
                let now = child::now();
                let stamp = line.split_once(DELTA).and_then(|(_, rest)| rest.split('"').next()).context("no stamp")?;
                if seen == 0 {
                    self.first.record(now.saturating_sub(asked).max(1))?;
                } else {
                    self.each.record(now.saturating_sub(stamp.parse()?).max(1))?;
                }
                seen += 1;
            }
            // The chunk that ends an answer.
            if line == "0\r\n" && seen == EVENTS {
                self.stream.read_line(&mut line).await?;
                return Ok(());
            }
        }
    }
}

/// What stands before the stamp in an event of the Responses API.
const DELTA: &str = "\"delta\":\"";

async fn serve(tcp: TcpStream) -> anyhow::Result<()> {
    tcp.set_nodelay(true)?;
    let mut stream = BufReader::new(tcp);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            anyhow::ensure!(stream.read_line(&mut line).await? > 0, "the client is gone");
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse()?;
            }
        }
        stream.read_exact(&mut vec![0; length]).await?;
        let mut head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
        let mut pace = time::interval(Duration::from_millis(1));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for _ in 0..EVENTS {
            pace.tick().await;
            let about = r#""type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0"#;
            let event = format!("event: response.output_text.delta\ndata: {{{about},{DELTA}{}\"}}\n\n", child::now());
            let chunk = format!("{head}{:x}\r\n{event}\r\n", event.len());
            head.clear();
            stream.write_all(chunk.as_bytes()).await?;
        }
        stream.write_all(b"0\r\n\r\n").await?;
    }
}
