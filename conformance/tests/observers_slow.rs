//! Observers that do not read, that read a byte now and then, and that come and go: they lose nothing, and nobody else notices (R-EVT-8,
//! R-EVT-11).

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use conformance::rig::{Link, Observed, Rig, Setup, refusal, scenario};
use proto::client::{Client, Endpoint, Messages, Session};
use proto::v1::{self, Reason};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time;

/// Why one Harness is enough.
const OWN: &str = "observers read the log, no Harness waits for them";

const DELTAS: usize = 10_000;
/// What the daemon says when it ends a stream that is not read.
const ENDED: &str = "an observer that does not read is ended";

/// A model's answer of so many pieces, behind a gate.
fn answer() -> String {
    let chunks: Vec<_> = (0..DELTAS).map(|number| format!("{number:05} {}", "x".repeat(100))).collect();
    json!([{"play": [{"text": {"chunks": ["begin "], "id": "first"}}, {"gate": "go"}, {"text": {"chunks": chunks}}]}])
        .to_string()
}

async fn raw(client: &Client, session: &Session, after: u64) -> anyhow::Result<Messages<v1::ObserveTurnResponse>> {
    let assignment = Some(session.assignment().clone());
    let request = v1::ObserveTurnRequest { assignment, turn_id: "t-1".into(), after_sequence: after };
    Ok(client.observe_turn(request).await?)
}

/// Resident memory of the daemon, in bytes.
fn memory(rig: &Rig) -> anyhow::Result<usize> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", rig.daemon.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? << 10)
}

/// A path to the daemon that is open one way, and lets a byte through now and then the other.
async fn narrow(socket: &Path, work: &mut JoinSet<()>) -> anyhow::Result<PathBuf> {
    let path = socket.with_file_name("narrow");
    let listener = UnixListener::bind(&path)?;
    let daemon = UnixStream::connect(socket).await?;
    work.spawn(async move {
        let Ok((client, _)) = listener.accept().await else { return };
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_daemon, mut to_daemon) = daemon.into_split();
        let requests = async { tokio::io::copy(&mut from_client, &mut to_daemon).await };
        let answers = async {
            let mut ticks = time::interval(Duration::from_millis(50));
            while let Ok(byte) = from_daemon.read_u8().await {
                if to_client.write_u8(byte).await.is_err() {
                    return;
                }
                ticks.tick().await;
            }
        };
        // One way that breaks ends the other.
        tokio::select! {
            _ = requests => {}
            () = answers => {}
        }
    });
    Ok(path)
}

#[test]
fn an_observer_that_does_not_read_loses_its_stream_and_nothing_else() {
    // Long enough that nobody who reads is ended for a pause of this process: the log would be of another stream.
    let setup = Setup::outer().bridge(OWN).with("limits.observer_ms = 5000");
    let rules = ["R-EVT-1", "R-EVT-8", "R-EVT-11"];
    scenario("observe_slow", &rules, setup, async |rig| {
        rig.provider.script(&answer())?;
        let session = rig.session().await?;
        let mut whole = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "go").await?;
        // One that never reads, and one on the same connection that does.
        let client = rig.client().await?;
        let mut unread = raw(&client, &session, 0).await?;
        let mut beside = client.observe(session.assignment().clone(), "t-1", 0);
        let before = memory(rig)?;
        rig.provider.open_gate("go");
        let (whole, beside) =
            tokio::join!(Observed::default().to_the_end(&mut whole), Observed::default().to_the_end(&mut beside));
        let whole = whole?;
        whole.completed()?;
        assert!(whole.events.len() > DELTAS, "{} events", whole.events.len());
        assert!(whole.events == beside?.events, "an observer on the same connection saw something else");
        rig.daemon.wait_for_logs(ENDED, 1).await?;
        let grown = memory(rig)?.saturating_sub(before);
        assert!(grown < 64 << 20, "{grown} bytes more");
        // What had been sent is read, and then the reason.
        let mut events = Vec::new();
        let ended = loop {
            match unread.next().await {
                Ok(Some(message)) => events.extend(message.events),
                Ok(None) => anyhow::bail!("the stream ended in order after {} events", events.len()),
                Err(error) => break error,
            }
        };
        refusal(Err::<(), _>(ended), Reason::ObserverTooSlow);
        assert!(!events.is_empty() && events.len() < whole.events.len(), "{} events", events.len());
        assert!(events == whole.events[..events.len()], "what it had read is something else");
        let mut rest = client.observe(session.assignment().clone(), "t-1", events.len() as u64);
        while let Some(event) = rest.next().await? {
            events.push(event);
        }
        assert!(events == whole.events, "something is lost or came twice");
        Ok(())
    });
}

#[test]
fn a_connection_that_hardly_moves_holds_up_nobody() {
    let setup = Setup::outer().bridge(OWN).over(Link::Unix).with("limits.observer_ms = 1500");
    scenario("observe_narrow", &["R-EVT-8", "R-EVT-11"], setup, async |rig| {
        rig.provider.script(&answer())?;
        let session = rig.session().await?;
        let mut whole = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "go").await?;
        let mut work = JoinSet::new();
        let narrow = narrow(rig.place().socket(), &mut work).await?;
        let fence = session.assignment().clone();
        work.spawn(async move {
            let Ok(client) = Client::connect(Endpoint::Unix(narrow)).await else { return };
            let mut events = client.observe(fence, "t-1", 0);
            while let Ok(Some(_)) = events.next().await {}
        });
        rig.provider.open_gate("go");
        let whole = Observed::default().to_the_end(&mut whole).await?;
        whole.completed()?;
        rig.daemon.wait_for_logs(ENDED, 1).await?;
        rig.whole_turn(&session, "t-2", "and now").await?.completed()
    });
}

#[test]
fn ten_disconnects_in_a_turn_of_ten_thousand_deltas_lose_nothing() {
    scenario("observe_disconnects", &["R-EVT-1", "R-EVT-11"], Setup::outer().bridge(OWN), async |rig| {
        rig.provider.script(&answer())?;
        let session = rig.session().await?;
        let mut whole = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "go").await?;
        rig.provider.open_gate("go");
        let coming_and_going = async {
            let mut seen = Observed::default();
            for part in 1..=11 {
                let client = rig.client().await?;
                let mut events = client.observe(session.assignment().clone(), "t-1", seen.events.len() as u64);
                while part == 11 || seen.events.len() < part * DELTAS / 11 {
                    match events.next().await? {
                        Some(event) => seen.events.push(event),
                        None => break,
                    }
                }
                // Whatever is on its way to this client is lost with it.
            }
            anyhow::Ok(seen)
        };
        let (whole, seen) = tokio::join!(Observed::default().to_the_end(&mut whole), coming_and_going);
        let (whole, seen) = (whole?, seen?);
        whole.completed()?;
        seen.check_order()?;
        assert!(whole.events.len() > DELTAS && seen.events == whole.events, "something is lost or came twice");
        Ok(())
    });
}
