//! As `failpoints`, for the writes that an ordinary Turn does not come to: a Turn that outgrows its block of sequences, another boot of the machine,
//! what is old and goes, a native history that is gone on with, a Turn that leaves something behind or goes silent.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use conformance::fault::{Fault, OWN, faults, table};
use conformance::mcp::Script;
use conformance::rig::{Daemon, Ended, Harness, Observed, Rig, Setup, http_server, served_by, until_refused};
use proto::client::{Session, TurnEvents, text_input};
use proto::v1::{self, EndCause, Reason, event::Kind};
use serde_json::json;

/// More deltas than a block of sequences of this build has, in two parts of which neither fills one alone.
const DELTAS: usize = 40;

/// Everything is old at once.
const SHORT: &str = "limits.retention_ms = 1\nlimits.retention_check_ms = 20";

#[test]
fn the_journal_fails_to_reserve_more_sequences() {
    let mut rows = vec![vec![Fault::at("journal.reserve.after", "delay:1", 1)]];
    // Each of them has a row of its own: what is asked for is another thing each time.
    rows.extend(faults("journal.reserve", 1, "ENOSPC").into_iter().map(|fault| vec![fault]));
    table("reserve", &["R-DUR-2", "R-EVT-1", "R-CAN-4"], &rows, Fault::setup, beyond_a_block);
}

#[test]
fn the_journal_fails_to_note_another_boot() {
    let rows = faults("journal.note_boot_id", 1, "ENOSPC").into_iter().map(|fault| vec![fault.beside("boot=another")]);
    let rules = ["R-DUR-2", "R-EVT-1", "R-EVT-2", "R-CAN-4", "R-PRE-4"];
    table("boot", &rules, &rows.collect::<Vec<_>>(), |_| Setup::outer().bridge(OWN), another_boot);
}

#[test]
fn the_journal_fails_to_let_go_of_what_is_old() {
    let rows = [("journal.note_released", 1), ("journal.events_gone", 1), ("journal.forget", 1), ("journal.forget", 2)];
    let rows = rows.map(|(point, pass)| faults(point, pass, "ENOSPC"));
    table(
        "old",
        &["R-DUR-4", "R-DUR-2", "R-ASG-4", "R-PRE-4"],
        &rows,
        |_| Setup::outer().bridge(OWN),
        what_is_old_goes,
    );
}

#[test]
fn a_resume_fails() {
    let rows = [
        faults("native.thread/resume", 1, "EIO"),
        faults("journal.put_history", 1, "ENOSPC"),
        faults("native.thread/inject_items", 1, "EIO"),
        faults("journal.put_history", 2, "ENOSPC"),
    ];
    let setup = Setup::outer().only("a resume is asked of Codex by these lines");
    table("resume", &["R-PRE-4", "R-PRE-6", "R-CAN-4", "R-DUR-2"], &rows, |_| setup.clone(), resumed);
}

#[test]
fn the_pipe_fails_in_a_start_with_servers_and_controls() {
    let rules = ["R-PRE-1", "R-PRE-5", "R-CTL-2", "R-CAN-4"];
    let rows = ["native.config/read", "native.configRequirements/read"].map(|point| faults(point, 1, "EIO"));
    let codex = Setup::outer().only("the lines are Codex's").beside(Script::default());
    table("start", &rules, &rows, |fault| fault.arm(codex.clone()), declared);

    let rows = [
        faults("native.get_settings", 1, "EIO"),
        faults("native.mcp_set_servers", 1, "EIO"),
        faults("native.mcp_status", 1, "EIO"),
        faults("native.apply_flag_settings", 1, "EIO"),
    ];
    let claude = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only("the lines are Claude Code's");
    let claude = claude.beside(Script::default());
    table("start", &rules, &rows, |fault| fault.arm(claude.clone()), declared);
}

#[test]
fn the_pipe_fails_at_the_end_of_a_turn() {
    let left = r#"[{"play": [{"shell": {"command": "setsid sleep 61 & sleep 62", "yield_ms": 300}}]},
        {"play": [{"text": {"chunks": ["It runs on."]}}]}]"#;
    let rows = [faults("native.thread/backgroundTerminals/clean", 1, "EIO")];
    let rules = ["R-EVT-9", "R-EVT-2", "R-CAN-4", "R-DUR-2", "R-PRE-4"];
    let setup = |fault: &Fault| {
        fault.arm(Setup::outer().only("the line that asks for the end of background terminals is one of Codex"))
    };
    table("end", &rules, &rows, setup, async |rig, fault| one_turn(rig, fault, left).await);
}

#[test]
fn the_pipe_fails_when_a_silent_harness_is_asked() {
    let silent = r#"[{"play": ["headers", "hang"]}]"#;
    let rows = [faults("native.thread/turns/list", 1, "EIO")];
    let rules = ["R-EVT-10", "R-EVT-2", "R-CAN-4", "R-DUR-2", "R-PRE-4"];
    let setup =
        |fault: &Fault| fault.arm(Setup::outer().only("the question is Codex's")).with("limits.quiet_ms = 4000");
    table("quiet", &rules, &rows, setup, async |rig, fault| one_turn(rig, fault, silent).await);

    // Claude Code is asked by the request with which it began.
    let rows = [faults("native.initialize", 2, "EIO")];
    let claude = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only("the question is Claude Code's");
    let setup = |fault: &Fault| fault.arm(claude.clone()).with("limits.quiet_ms = 4000");
    table("quiet", &rules, &rows, setup, async |rig, fault| one_turn(rig, fault, silent).await);
}

/// A Turn with more events than a block of sequences, whose file is lost: no sequence is given a second time.
async fn beyond_a_block(rig: &mut Rig, fault: &Fault) -> anyhow::Result<()> {
    let deltas = json!({"text": {"chunks": vec!["word "; DELTAS], "open": true}});
    rig.provider.script(&json!([{"play": [deltas, {"gate": "go"}, deltas, "hang"]}]).to_string())?;
    let session = rig.session().await?;
    rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "count").await?;
    let client = rig.client().await?.with_patience(Duration::ZERO);
    let mut events = client.observe(session.assignment().clone(), "t-1", 0);
    let mut seen = Observed::default();
    let mut counted = count(&mut seen, &mut events, DELTAS).await;
    if counted.is_ok() {
        rig.provider.open_gate("go");
        counted = count(&mut seen, &mut events, DELTAS).await;
    }
    anyhow::ensure!(counted.is_err() == fault.dies, "{counted:?} of {} events", seen.events.len());
    fault.ended(rig).await?;

    fs::remove_file(rig.place().event_file()?)?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let last = seen.events.last().map_or(0, |event| event.sequence);
    anyhow::ensure!(fault.dies || last > 64, "it did not outgrow its block: {last}");
    let rest = rig.observe(&session, "t-1", last).await?;
    let first = rest.events.first().context("the end has a sequence that was given out")?;
    anyhow::ensure!(first.sequence > last, "{first:?} behind {last}");
    anyhow::ensure!(rest.story() == ["events_omitted", "turn_ended"], "{:?}", rest.story());
    anyhow::ensure!(rest.end()?.cause() == EndCause::ExecutionLost, "{:?}", rest.end());
    Ok(())
}

/// Reads so many deltas.
async fn count(seen: &mut Observed, events: &mut TurnEvents, deltas: usize) -> anyhow::Result<()> {
    for _ in 0..deltas {
        seen.until(events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
    }
    Ok(())
}

/// The machine was started anew under a running Turn, and the start after it does not come to its end: the next one ends the Turn all the same.
async fn another_boot(rig: &mut Rig, fault: &Fault) -> anyhow::Result<()> {
    rig.provider
        .script(&json!([{"play": [{"text": {"chunks": ["one ", "two "], "open": true}}, "hang"]}]).to_string())?;
    let session = rig.session().await?;
    let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "count").await?;
    let mut seen = Observed::default();
    count(&mut seen, &mut events, 2).await?;
    // Codex writes its history a little behind what it tells; the Session goes on with it.
    rig.wait_for_history(r#""text":"count""#).await?;
    let family = rig.family()?;
    rig.daemon.kill().await?;
    rig.all_gone(&family).await?;

    rig.arm(&fault.armed)?;
    rig.daemon = Daemon::spawn(rig.place())?;
    if fault.dies {
        fault.ended(rig).await?;
    } else {
        let ended = rig.daemon.wait(Duration::from_secs(20)).await?;
        anyhow::ensure!(ended == Ended::Code(20), "a full disk under a start: {ended:?}");
        fault.was_met(rig)?;
    }
    rig.arm("boot=another")?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let last = seen.events.last().map_or(0, |event| event.sequence);
    let rest = rig.observe(&session, "t-1", last).await?;
    let [omitted, .., end] = &rest.events[..] else { anyhow::bail!("{:?}", rest.story()) };
    // What was given out may have been lost with the machine.
    anyhow::ensure!(
        matches!(omitted.kind, Some(Kind::EventsOmitted(_))) && omitted.sequence > last,
        "{:?}",
        rest.story()
    );
    anyhow::ensure!(rest.end()?.cause() == EndCause::ExecutionLost, "{end:?}");
    let whole = rig.observe(&session, "t-1", 0).await?;
    anyhow::ensure!(whole.events.starts_with(&seen.events), "{:?}", whole.story());
    goes_on(rig, &session, &seen.native_session()?, rig.configuration(Vec::new())).await?;

    // Nothing of it changes by yet another boot.
    rig.disarm();
    rig.daemon.kill().await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    anyhow::ensure!(rig.observe(&session, "t-1", 0).await?.events == whole.events, "the Turn changed");
    Ok(())
}

/// The events of one Session and the whole of a released one become old, and the daemon that removes them fails: they are there or gone, and in the
/// end they are gone.
async fn what_is_old_goes(rig: &mut Rig, fault: &Fault) -> anyhow::Result<()> {
    let (kept, released) = (rig.session().await?, rig.session().await?);
    let whole = rig.whole_turn(&kept, "t-1", "hello").await?;
    whole.completed()?;
    rig.whole_turn(&released, "t-1", "hello").await?.completed()?;
    released.release(true).await?;
    rig.daemon.terminate().await?;

    let file = rig.place().config();
    let config = fs::read_to_string(&file)?;
    fs::write(&file, format!("{config}\n{SHORT}\n"))?;
    rig.arm(&fault.armed)?;
    rig.daemon = Daemon::spawn(rig.place())?;
    if !fault.dies {
        rig.daemon.wait_until_ready().await?;
        rig.daemon.wait_for_logs("failpoint", 1).await?;
    }
    fault.ended(rig).await?;

    // One that removes nothing shows what stands.
    fs::write(&file, &config)?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let last = whole.events.len() as u64;
    match rig.observe(&kept, "t-1", 0).await {
        Ok(seen) => anyhow::ensure!(seen.events == whole.events, "{:?}", seen.story()),
        Err(error) => anyhow::ensure!(error.reason() == Some(Reason::EventsGone), "{error:?}"),
    }
    let end = rig.observe(&kept, "t-1", last - 1).await?;
    anyhow::ensure!(end.end()? == whole.end()?, "the end changed: {:?}", end.end());
    match released.release(true).await {
        Ok(again) => anyhow::ensure!(again.outcome() == v1::ReleaseOutcome::Confirmed, "{again:?}"),
        Err(error) => anyhow::ensure!(error.reason() == Some(Reason::NotFound), "{error:?}"),
    }
    rig.daemon.terminate().await?;

    fs::write(&file, format!("{config}\n{SHORT}\n"))?;
    rig.daemon = Daemon::start(rig.place()).await?;
    until_refused(Reason::EventsGone, async || rig.observe(&kept, "t-1", 0).await).await;
    until_refused(Reason::NotFound, async || released.turn("t-1").await).await;
    let folders = fs::read_dir(rig.place().state().join("sessions"))?.count();
    anyhow::ensure!(folders == 1, "{folders} folders");
    anyhow::ensure!(kept.turn("t-1").await?.ended.as_ref() == Some(whole.end()?), "the end is forgotten");

    // The events of another Turn would be old before they are read.
    rig.daemon.terminate().await?;
    fs::write(&file, &config)?;
    rig.daemon = Daemon::start(rig.place()).await?;
    goes_on(rig, &kept, &whole.native_session()?, rig.configuration(Vec::new())).await
}

/// A Session goes on with its history and other instructions, and that fails: the next try does it.
async fn resumed(rig: &mut Rig, fault: &Fault) -> anyhow::Result<()> {
    let instructed =
        |text: &str| v1::ExecutionConfiguration { instructions: text.into(), ..rig.configuration(Vec::new()) };
    let (first, second) = (instructed("Instruction A."), instructed("Instruction B."));
    let session = rig.session().await?;
    let ready = rig.prepare(&session, first).await?;
    let native = rig.turn_with(&session, &ready, "t-1", "first words").await?.native_session()?;
    rig.daemon.terminate().await?;
    rig.arm(&fault.armed)?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let placement = rig.target(&session).placement.context("no placement")?;
    let client = rig.client().await?.with_patience(Duration::ZERO);
    let once = Session::bind(client, session.assignment().clone(), placement).await?;
    let failed = rig.resume(&once, second.clone(), &native).await;
    anyhow::ensure!(failed.is_err(), "{failed:?}");
    fault.ended(rig).await?;

    rig.daemon = Daemon::start(rig.place()).await?;
    goes_on(rig, &session, &native, second).await?;
    let request = rig.provider.model_requests().pop().context("no request")?;
    for text in ["first words", "Instruction A.", "Instruction B."] {
        anyhow::ensure!(request.body.contains(text), "the model does not read {text:?}: {}", request.body);
    }
    Ok(())
}

/// A start with a server and controls fails: nothing of it is left, and the next try does it.
async fn declared(rig: &mut Rig, fault: &Fault) -> anyhow::Result<()> {
    let mut configuration = served_by([http_server("tickets", &rig.mcp().url())], rig.configuration(Vec::new()));
    if rig.kind() == Harness::ClaudeCode {
        // One that has efforts.
        configuration.model = "claude-opus-5-5".into();
    }
    let mode = v1::WebSearchMode::Disabled.into();
    let controls = configuration.tools.get_or_insert_default().controls.get_or_insert_default();
    controls.web_search = Some(v1::WebSearchControl { mode, ..Default::default() });
    controls.reasoning_effort = Some("high".into());
    let session = rig.session().await?;
    let placement = rig.target(&session).placement.context("no placement")?;
    let client = rig.client().await?.with_patience(Duration::ZERO);
    let once = Session::bind(client, session.assignment().clone(), placement).await?;
    let failed = rig.prepare(&once, configuration.clone()).await;
    anyhow::ensure!(failed.is_err(), "{failed:?}");
    fault.ended(rig).await?;

    rig.daemon = Daemon::start(rig.place()).await?;
    let ready = rig.prepare(&session, configuration).await?;
    rig.turn_with(&session, &ready, "t-1", "hello").await?.completed()
}

/// A Turn in which the pipe to the Harness fails has one end, and its Session goes on.
async fn one_turn(rig: &mut Rig, fault: &Fault, script: &str) -> anyhow::Result<()> {
    rig.provider.script(script)?;
    let session = rig.session().await?;
    rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "begin").await?;
    let seen = rig.observe(&session, "t-1", 0).await;
    anyhow::ensure!(seen.is_err() == fault.dies, "{seen:?}");
    fault.ended(rig).await?;

    rig.daemon = Daemon::start(rig.place()).await?;
    let whole = rig.observe(&session, "t-1", 0).await?;
    whole.check_order()?;
    anyhow::ensure!(seen.is_err() || seen.is_ok_and(|seen| seen.events == whole.events), "{:?}", whole.story());
    anyhow::ensure!(session.turn("t-1").await?.ended.as_ref() == Some(whole.end()?), "two ends");
    goes_on(rig, &session, &whole.native_session()?, rig.configuration(Vec::new())).await
}

/// Another Turn of a Session, with its native history.
async fn goes_on(
    rig: &Rig,
    session: &Session,
    native: &str,
    configuration: v1::ExecutionConfiguration,
) -> anyhow::Result<()> {
    // The history has the words that a script waits for.
    rig.provider.reset();
    let ready = rig.resume(session, configuration, native).await?;
    session.start(&ready, "t-2", text_input("go on")).await?;
    let seen = Observed::default().to_the_end(&mut session.turn_events("t-2")).await?;
    anyhow::ensure!(seen.native_session()? == native, "another history");
    seen.completed()
}
