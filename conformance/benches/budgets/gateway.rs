//! What the gateway costs: a stream of stamped events from a provider on loopback, directly and by the route of an Executor.

use anyhow::Context as _;
use conformance::rig::{Rig, configuration};
use hdrhistogram::Histogram;
use proto::v1;
use std::time::Duration;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{self, MissedTickBehavior},
};

use crate::{child, histogram, print};

/// Requests one after the other on one connection, each with a body like that of a conversation.
const REQUESTS: usize = 100;
const BODY: usize = 100_000;
/// Events of an answer, one a millisecond.
const EVENTS: usize = 50;

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

/// Measures both ways.
pub(crate) async fn measure(rig: &Rig, provider: Provider) -> anyhow::Result<()> {
    let origin = provider.origin()?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((tcp, _)) = provider.listener.accept().await {
            connections.spawn(serve(tcp));
        }
    });
    let session = rig.session().await?;
    let configuration = configuration(rig.kind(), &origin, Vec::new());
    let ready =
        session.prepare(configuration, vec![v1::Credential { name: "model".into(), value: "sk".into() }]).await?;
    session.start(&ready, "route", proto::client::text_input("route")).await?;
    let (mut events, mut route) = (session.turn_events("route"), String::new());
    while let Some(event) = events.next().await? {
        if let Some(v1::event::Kind::MessageDelta(delta)) = event.kind {
            route.push_str(&delta.text);
        }
    }
    for (way, base_url) in [("directly", &origin), ("by the gateway", &route)] {
        let (first, each) = ask(base_url).await.with_context(|| format!("ask {way}"))?;
        print(&format!("the first byte {way}"), &first, "1 ms*");
        print(&format!("an event {way}"), &each, "100 us*");
    }
    tasks.abort_all();
    session.release(true).await?;
    Ok(())
}

/// From the request to the first event, and from each event to its reader.
async fn ask(base_url: &str) -> anyhow::Result<(Histogram<u64>, Histogram<u64>)> {
    let (host, path) = base_url.strip_prefix("http://").context("no http")?.split_once('/').unwrap_or((base_url, ""));
    let host = host.strip_prefix("http://").unwrap_or(host);
    let path = if path.is_empty() { String::new() } else { format!("/{path}") };
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let (mut first, mut each) = (histogram(), histogram());
    let head = format!(
        "POST {path}/responses HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer x\r\ncontent-length: {BODY}\r\n\r\n"
    );
    let request = [head.as_bytes(), &vec![b'x'; BODY]].concat();
    for _ in 0..REQUESTS {
        let asked = child::now();
        stream.write_all(&request).await?;
        let (mut line, mut seen) = (String::new(), 0);
        loop {
            line.clear();
            anyhow::ensure!(stream.read_line(&mut line).await? > 0, "the answer broke off");
            if let Some(stamp) = line.strip_prefix("data: ") {
                let now = child::now();
                if seen == 0 {
                    first.record(now.saturating_sub(asked).max(1))?;
                } else {
                    each.record(now.saturating_sub(stamp.trim().parse()?).max(1))?;
                }
                seen += 1;
            }
            // The chunk that ends an answer.
            if line == "0\r\n" && seen == EVENTS {
                stream.read_line(&mut line).await?;
                break;
            }
        }
    }
    Ok((first, each))
}

async fn serve(tcp: TcpStream) -> anyhow::Result<()> {
    tcp.set_nodelay(true)?;
    let mut stream = BufReader::new(tcp);
    let mut body = vec![0; BODY];
    loop {
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            anyhow::ensure!(stream.read_line(&mut line).await? > 0, "the client is gone");
        }
        stream.read_exact(&mut body).await?;
        let mut head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
        let mut pace = time::interval(Duration::from_millis(1));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for _ in 0..EVENTS {
            pace.tick().await;
            let event = format!("data: {}\n\n", child::now());
            let chunk = format!("{head}{:x}\r\n{event}\r\n", event.len());
            head.clear();
            stream.write_all(chunk.as_bytes()).await?;
        }
        stream.write_all(b"0\r\n\r\n").await?;
    }
}
