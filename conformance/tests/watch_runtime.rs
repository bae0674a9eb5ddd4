//! `WatchRuntime`: heartbeats with the load, what the Harnesses support, and watchers that nobody minds.

use std::fs;

use anyhow::Context;
use conformance::child::codex;
use conformance::rig::{Observed, Rig, Setup, Stands, function, scenario, text_result};
use proto::client::Messages;
use proto::v1::{self, Load, event::Kind, watch_runtime_response::News};

/// Why one Harness is enough.
const OWN: &str = "the load and the declarations are told by the bridge";

const QUICK: &str = "max_executors = 7\n[limits]\nwatch_ms = 20";

#[test]
fn the_load_follows_what_runs() {
    scenario("watch_load", &["R-PRE-3"], Setup::outer().bridge(OWN).with(QUICK), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"},
                                     {"name": "lookup", "call_id": "c2", "arguments": "{}"}]}]}]"#,
        )?;
        let mut watch = watch(rig).await?;
        let nothing = Load { max_executors: 7, ..Default::default() };
        let first = watch.next().await?.and_then(|message| message.news);
        let Some(News::Heartbeat(first)) = first else { anyhow::bail!("no heartbeat at once: {first:?}") };
        assert_eq!((first.load, first.draining), (Some(nothing), false));
        assert!(first.time.is_some());

        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let ready = rig.prepare(&session, configuration.clone()).await?;
        load_becomes(&mut watch, Load { executors_idle: 1, ..nothing }).await?;
        session.start(&ready, "t-1", proto::client::text_input("go")).await?;
        let mut events = session.turn_events("t-1");
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        let busy = Load { executors_busy: 1, running_turns: 1, ..nothing };
        load_becomes(&mut watch, Load { waiting_actions: 2, ..busy }).await?;
        session.submit(vec![text_result("t-1", "c1", "1"), text_result("t-1", "c2", "2")]).await?;
        seen.to_the_end(&mut events).await?.completed()?;
        load_becomes(&mut watch, Load { executors_idle: 1, ..nothing }).await?;
        session.release(false).await?;
        load_becomes(&mut watch, nothing).await
    });
}

#[test]
fn declarations_come_and_come_again_when_they_have_changed() {
    let setup = Setup { stands: Stands::Faulty(Box::new(codex::healthy())), ..Setup::outer().bridge(OWN).with(QUICK) };
    scenario("watch_declarations", &["R-CAP-1", "R-CAP-3"], setup, async |rig| {
        let mut first = watch(rig).await?;
        let told = declarations(&mut first).await?;
        let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        assert_eq!(told, info.harnesses);
        assert!(of_codex(&told)?.available);
        // A later watcher is told too.
        let mut second = watch(rig).await?;
        assert_eq!(declarations(&mut second).await?, told);
        // The program goes away, and comes back.
        let program = rig.child.as_ref().context("a child")?.path();
        let aside = program.with_extension("aside");
        fs::rename(&program, &aside)?;
        for watch in [&mut first, &mut second] {
            let gone = declarations(watch).await?;
            let codex = of_codex(&gone)?;
            assert!(!codex.available && !codex.unavailable_reason.is_empty(), "{codex:?}");
        }
        fs::rename(&aside, &program)?;
        assert_eq!(declarations(&mut first).await?, told);
        Ok(())
    });
}

#[test]
fn watchers_that_do_not_read_hold_up_nobody() {
    let setup = Setup::outer().bridge(OWN).with("[limits]\nwatch_ms = 20");
    scenario("watch_unread", &["R-EVT-11", "R-API-8"], setup, async |rig| {
        let client = rig.client().await?;
        let mut unread = Vec::new();
        for _ in 0..20 {
            unread.push(client.watch_runtime(v1::WatchRuntimeRequest {}).await?);
        }
        // Controls and observers on the same connection go on.
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        session.start(&ready, "t-1", proto::client::text_input("hello")).await?;
        let mut events = client.observe(session.assignment().clone(), "t-1", 0);
        let seen = Observed::default().to_the_end(&mut events).await?;
        seen.completed()?;
        assert!(seen.kinds().any(|kind| matches!(kind, Kind::MessageCompleted(_))));
        // Another watcher is not disturbed, and those that begin to read are not too late.
        unread.push(watch(rig).await?);
        // The Executor may be busy for a moment behind the end of its Turn.
        let max_executors = load(rig).await?.max_executors;
        for mut late in unread.into_iter().step_by(10) {
            load_becomes(&mut late, Load { max_executors, executors_idle: 1, ..Default::default() }).await?;
        }
        Ok(())
    });
}

async fn watch(rig: &Rig) -> anyhow::Result<Messages<v1::WatchRuntimeResponse>> {
    Ok(rig.client().await?.watch_runtime(v1::WatchRuntimeRequest {}).await?)
}

/// The load at this moment.
async fn load(rig: &Rig) -> anyhow::Result<Load> {
    loop {
        if let Some(News::Heartbeat(heartbeat)) = next(&mut watch(rig).await?).await? {
            return heartbeat.load.context("a heartbeat without a load");
        }
    }
}

async fn next(watch: &mut Messages<v1::WatchRuntimeResponse>) -> anyhow::Result<Option<News>> {
    Ok(watch.next().await?.context("the bridge left")?.news)
}

/// Reads heartbeats until one has this load.
async fn load_becomes(watch: &mut Messages<v1::WatchRuntimeResponse>, want: Load) -> anyhow::Result<()> {
    loop {
        if let Some(News::Heartbeat(heartbeat)) = next(watch).await?
            && heartbeat.load == Some(want)
        {
            return Ok(());
        }
    }
}

/// That of Codex, which is changed here.
fn of_codex(told: &[v1::HarnessDeclaration]) -> anyhow::Result<&v1::HarnessDeclaration> {
    told.iter().find(|one| one.kind == "codex").context("no codex")
}

async fn declarations(watch: &mut Messages<v1::WatchRuntimeResponse>) -> anyhow::Result<Vec<v1::HarnessDeclaration>> {
    loop {
        if let Some(News::Declarations(declarations)) = next(watch).await? {
            return Ok(declarations.harnesses);
        }
    }
}
