//! `kill -9` of the daemon at seeded moments of Turns of the real Codex (R-DUR-1, R-DUR-2): no process is left, what was acknowledged is known,
//! no result is applied twice, every Turn has one end, and the Session goes on. The campaign prints its table.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::rig::{Daemon, MODEL_KEY, Observed, Rig, Setup, function, is_long, scenario, text_result};
use proto::client::{Client, Error, Session, text_input};
use proto::v1::{self, EndCause, Reason, ResultOutcome, TurnStatus, bind_assignment_request::Placement, event::Kind};
use tokio::sync::Notify;
use tokio::time;

/// Why one Harness is enough.
const OWN: &str =
    "what is kept when the daemon is killed is the bridge's own; resume_seeded kills it with each Harness";

/// The first six moments; `crash_kill` has the others once.
const ROUNDS: usize = 6;
/// The same where there is more time (`RUNTIME_BRIDGE_LONG`).
const LONG: usize = 50;
/// The longest time between a moment and the kill.
const LATEST_MS: u64 = 30;
/// The latest moment of a kill while the daemon starts.
const LATEST_START_MS: u64 = 80;
/// How long a Turn may take to its moment.
const REACHED: Duration = Duration::from_secs(20);
const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}}}"#;

/// Where a Turn is when the daemon is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Text,
    CallPending,
    ResultStored,
    CommandRuns,
    CancelUnderWay,
    Preparation,
    Release,
    TakeOver,
    ResultApplied,
    Ended,
}

const MOMENTS: [Moment; 10] = [
    Moment::Text,
    Moment::ResultStored,
    Moment::CancelUnderWay,
    Moment::Preparation,
    Moment::Release,
    Moment::TakeOver,
    Moment::CallPending,
    Moment::CommandRuns,
    Moment::ResultApplied,
    Moment::Ended,
];

impl Moment {
    fn script(self) -> &'static str {
        match self {
            Self::Text => {
                r#"[{"play": [{"text": {"chunks": ["half ", "a thought"], "open": true}}, {"gate": "never"}]}]"#
            }
            Self::CommandRuns | Self::CancelUnderWay => {
                r#"[{"play": [{"shell": {"command": "setsid sleep 7201 & (trap '' TERM; sleep 7202) & sleep 7200", "yield_ms": 30000}}]}]"#
            }
            Self::ResultApplied | Self::ResultStored => {
                r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"}]}]}, {"play": ["hang"]}]"#
            }
            Self::CallPending | Self::Preparation | Self::Release | Self::TakeOver | Self::Ended => {
                r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"}]}]}, {"play": [{"text": {"chunks": ["done"]}}]}]"#
            }
        }
    }

    /// Whether the Turn can have completed before the kill.
    fn completes(self) -> bool {
        matches!(self, Self::Preparation | Self::TakeOver | Self::Ended)
    }
}

/// What a Core was told before the daemon was gone.
#[derive(Debug, Default)]
struct Told {
    bound: bool,
    epoch: u64,
    handle: Option<v1::Ready>,
    started: bool,
    sent: bool,
    accepted: bool,
    cancel_sent: bool,
    release_sent: bool,
    released: bool,
    events: Vec<v1::Event>,
}

impl Told {
    fn text(&self) -> String {
        let facts = [
            (self.bound, "bound"),
            (self.handle.is_some(), "prepared"),
            (self.started, "started"),
            (self.accepted, "result"),
            (self.epoch > 3, "take-over"),
            (self.released, "released"),
        ];
        let known: Vec<_> = facts.iter().filter(|(known, _)| *known).map(|(_, name)| *name).collect();
        format!("{}, {} events", known.join(" "), self.events.len())
    }
}

fn fence(id: &str, epoch: u64) -> v1::AssignmentRef {
    v1::AssignmentRef { session_id: id.into(), assignment_id: "a-1".into(), epoch }
}

fn output(id: &str) -> String {
    format!("the output of {id}.")
}

async fn bind(rig: &Rig, client: Client, fence: v1::AssignmentRef) -> Result<Session, Error> {
    let directory = rig.workspace().to_string_lossy().into_owned();
    let workspace = v1::Workspace { environment_id: "env-1".into(), directory };
    Session::bind(client, fence, Placement::Workspace(workspace)).await
}

/// Codex writes its history a little behind what it tells; the Session goes on with it.
async fn written(rig: &Rig, id: &str) -> anyhow::Result<()> {
    rig.wait_for_history(&format!(r#""text":"{id}""#)).await
}

/// A Core that does a Turn, says when the moment is reached, and remembers what it was told. It gives up at the first thing that is lost.
async fn core(
    rig: &Rig,
    client: Client,
    moment: Moment,
    id: &str,
    told: &mut Told,
    reached: &Notify,
) -> anyhow::Result<()> {
    let at = |here: Moment| {
        if here == moment {
            reached.notify_one();
        }
    };
    let mut session = bind(rig, client.clone(), fence(id, 3)).await?;
    (told.bound, told.epoch) = (true, 3);
    at(Moment::Preparation);
    let key = vec![v1::Credential { name: "model".into(), value: MODEL_KEY.into() }];
    let ready = session.prepare(rig.configuration(vec![function("lookup", SCHEMA)]), key).await?;
    told.handle = Some(ready.clone());
    session.start(&ready, "t-1", text_input(id)).await?;
    told.started = true;
    let mut events = session.turn_events("t-1");
    while let Some(event) = events.next().await? {
        told.events.push(event.clone());
        match event.kind {
            Some(Kind::MessageDelta(_)) => {
                written(rig, id).await?;
                at(Moment::Text);
            }
            Some(Kind::ToolStarted(_)) => {
                written(rig, id).await?;
                rig.wait_for_process(|process| process.command == "sleep 7202").await?;
                at(Moment::CommandRuns);
                if moment == Moment::CancelUnderWay {
                    told.cancel_sent = true;
                    at(moment);
                    session.cancel("t-1", None).await?;
                }
            }
            Some(Kind::FunctionCall(call)) => {
                written(rig, id).await?;
                at(Moment::CallPending);
                if moment == Moment::CallPending {
                    continue;
                }
                if moment == Moment::Release {
                    told.release_sent = true;
                    at(moment);
                    session.release(true).await?;
                    told.released = true;
                    return Ok(());
                }
                if moment == Moment::TakeOver {
                    at(moment);
                    session = bind(rig, client.clone(), fence(id, 4)).await?;
                    told.epoch = 4;
                    events = client.observe(session.assignment().clone(), "t-1", event.sequence);
                }
                told.sent = true;
                session.submit(vec![text_result("t-1", &call.call_id, &output(id))]).await?;
                told.accepted = true;
                at(Moment::ResultStored);
            }
            Some(Kind::FunctionResultApplied(_)) => at(Moment::ResultApplied),
            _ => {}
        }
    }
    at(Moment::Ended);
    Ok(())
}

/// The Session under a fence that stands above all that was asked for. A release that was asked for is asked for again, however far it came.
async fn rebound(rig: &Rig, id: &str, told: &Told) -> anyhow::Result<Session> {
    let client = rig.client().await?;
    if !told.release_sent {
        return Ok(bind(rig, client, fence(id, 4)).await?);
    }
    let request = v1::ReleaseAssignmentRequest { assignment: Some(fence(id, 4)), remove_home: true, principal: None };
    match client.release_assignment(request).await {
        Ok(released) => anyhow::ensure!(
            released.outcome() == v1::ReleaseOutcome::Confirmed && released.home_removed,
            "{released:?}"
        ),
        // Bound anew already.
        Err(error) => anyhow::ensure!(error.reason() == Some(Reason::AssignmentConflict), "{error}"),
    }
    let next = v1::AssignmentRef { session_id: id.into(), assignment_id: "a-2".into(), epoch: 1 };
    Ok(bind(rig, client, next).await?)
}

/// What was told is true, whatever was not. Gives the end of the Turn and the Session.
async fn holds(rig: &Rig, moment: Moment, id: &str, told: &Told) -> anyhow::Result<(String, Session)> {
    if told.bound {
        let request = v1::GetTurnRequest { assignment: Some(fence(id, told.epoch)), turn_id: "t-1".into() };
        if let Err(error) = rig.client().await?.get_turn(request).await {
            let refusal = error.refusal().with_context(|| format!("{error}"))?;
            let fields: Vec<_> = refusal.fields.iter().map(|field| field.path.as_str()).collect();
            let fenced = [Some(Reason::AssignmentStale), Some(Reason::AssignmentConflict)].contains(&refusal.reason);
            anyhow::ensure!(fields == ["turn_id"] || fenced, "the Session is lost: {refusal}");
        }
    }
    let session = rebound(rig, id, told).await?;
    let turn = match session.turn("t-1").await {
        Ok(turn) => turn,
        Err(error) if error.reason() == Some(Reason::NotFound) && !told.started => return Ok(("none".into(), session)),
        Err(error) => return Err(anyhow::Error::from(error).context("the Turn is lost")),
    };
    let ended = turn.ended.clone().context("it goes on")?;
    let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
    whole.check_order()?;
    anyhow::ensure!(whole.events.starts_with(&told.events), "events changed: {:?}\n{:?}", told.events, whole.events);
    anyhow::ensure!(whole.end()? == &ended && turn.last_sequence == whole.events.len() as u64, "{turn:?}");
    let fits = match (ended.status(), ended.cause.map(|_| ended.cause())) {
        (TurnStatus::Completed, None) => moment.completes(),
        (TurnStatus::Unknown, Some(EndCause::ExecutionLost)) => true,
        (TurnStatus::Cancelled, Some(EndCause::Requested)) => told.cancel_sent,
        (TurnStatus::Cancelled, Some(EndCause::Released)) => told.release_sent,
        _ => false,
    };
    anyhow::ensure!(fits, "it ended so: {ended:?}");
    // The start is known to whoever asks again, and so is a result.
    let ready = told.handle.clone().unwrap_or_default();
    anyhow::ensure!(session.start(&ready, "t-1", text_input(id)).await?.duplicate, "it was started twice");
    results_hold(&session, id, told, &whole).await?;
    Ok((format!("{:?}", ended.status()).to_lowercase(), session))
}

async fn results_hold(session: &Session, id: &str, told: &Told, whole: &Observed) -> anyhow::Result<()> {
    let call = whole.kinds().find_map(|kind| match kind {
        Kind::FunctionCall(call) => Some(call.call_id.clone()),
        _ => None,
    });
    let Some(call_id) = call else { return Ok(()) };
    let applied = whole.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_))).count();
    anyhow::ensure!(applied <= 1, "{applied} receipts of one result");
    let again = session.submit(vec![text_result("t-1", &call_id, &output(id))]).await;
    match again.as_ref().map(|outcomes| outcomes[0].outcome()).map_err(Error::reason) {
        Ok(ResultOutcome::Duplicate) => anyhow::ensure!(told.sent, "a result that nobody sent"),
        Err(Some(Reason::CallAbandoned)) => anyhow::ensure!(!told.accepted, "an acknowledged result is lost"),
        other => anyhow::bail!("{other:?}"),
    }
    if told.accepted {
        let other = session.submit(vec![text_result("t-1", &call_id, "another")]).await;
        let reason = other.as_ref().err().and_then(Error::reason);
        anyhow::ensure!(reason == Some(Reason::ResultConflict), "{other:?}");
    }
    Ok(())
}

/// How often an output reached the model as something new: requests that have it twice, or in two requests of one Turn, would show it.
fn times_applied(rig: &Rig, id: &str) -> anyhow::Result<usize> {
    let with = rig.provider.model_requests();
    let with: Vec<_> = with.iter().filter(|request| request.body.contains(&output(id))).collect();
    let twice = with.iter().find(|request| request.body.matches(&output(id)).count() > 1);
    anyhow::ensure!(twice.is_none(), "the model read it twice: {twice:?}");
    anyhow::ensure!(with.len() <= 1, "{} requests carry it", with.len());
    Ok(with.len())
}

/// The Session takes another Turn: with the history that it has, or from the beginning where it never had any or it was removed.
async fn goes_on(rig: &Rig, session: &Session, id: &str, told: &Told) -> anyhow::Result<&'static str> {
    rig.provider.reset();
    let configuration = || rig.configuration(vec![function("lookup", SCHEMA)]);
    let native = match session.turn("t-1").await {
        Ok(turn) => turn.native.map(|native| native.session_id),
        Err(_) => None,
    };
    let (ready, how) = match native {
        None => (rig.prepare(session, configuration()).await?, "begins"),
        // Released with its home.
        Some(native) if told.release_sent => {
            conformance::rig::refused(
                rig.resume(session, configuration(), &native).await,
                Reason::NativeHistoryUnavailable,
            )?;
            return Ok("has no home");
        }
        Some(native) => (rig.resume(session, configuration(), &native).await?, "resumes"),
    };
    let seen = rig.turn_with(session, &ready, "t-2", "go on").await?;
    seen.completed()?;
    let asked = rig.provider.model_requests();
    let asked = asked.last().context("the model was not asked")?;
    anyhow::ensure!(how == "begins" || asked.body.contains(&format!("{id}\"")), "its history is gone: {}", asked.body);
    anyhow::ensure!(asked.body.matches(&output(id)).count() <= 1, "a result is there twice: {}", asked.body);
    Ok(how)
}

/// The next number of a sequence that looks like chance and is the same in every run.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn the_daemon_is_killed_at_every_moment_of_a_turn() {
    let rounds = if is_long() { LONG } else { ROUNDS };
    let rules = ["R-DUR-1", "R-DUR-2", "R-API-6", "R-CAN-4", "R-EVT-1", "R-EVT-2", "R-FN-5", "R-ASG-2", "R-ASG-4"];
    scenario("crash_campaign", &rules, Setup::outer().bridge(OWN), async |rig| {
        let mut seed = 20_261_130;
        let (mut all, mut table) = (Vec::new(), Vec::new());
        for (round, moment) in (0..rounds).zip(MOMENTS.into_iter().cycle()) {
            let id = format!("s-{round}");
            let delay = next(&mut seed) % LATEST_MS;
            // Every third daemon is killed while it starts, which is when it settles what the one before left.
            let again = (round % 3 == 2).then(|| Duration::from_millis(next(&mut seed) % LATEST_START_MS));
            let (told, row) = Box::pin(killed(rig, moment, &id, Duration::from_millis(delay), again))
                .await
                .with_context(|| format!("round {round}, {delay} ms after {moment:?}, then {again:?}"))?;
            table.push(format!("{round:>5}  {delay:>5}  {:<15} {row}", format!("{moment:?}")));
            all.push((moment, id, told));
        }
        // Also many starts later.
        for (moment, id, told) in &all {
            holds(rig, *moment, id, told).await.with_context(|| format!("{id} at the end"))?;
        }
        println!("round  ms     moment          end        at model gone in  goes on       acknowledged");
        println!("{}", table.join("\n"));
        Ok(())
    });
}

async fn killed(
    rig: &mut Rig,
    moment: Moment,
    id: &str,
    delay: Duration,
    again: Option<Duration>,
) -> anyhow::Result<(Told, String)> {
    rig.provider.reset();
    rig.provider.script(moment.script())?;
    let client = rig.client().await?.with_patience(Duration::ZERO);
    let (mut told, reached) = (Told::default(), Notify::new());
    let family = {
        let shown: &Rig = rig;
        let mut work = pin!(core(shown, client, moment, id, &mut told, &reached));
        let to_the_moment = async {
            tokio::select! {
                () = reached.notified() => Ok(false),
                done = &mut work => done.map(|()| true),
            }
        };
        let done = time::timeout(REACHED, to_the_moment).await.context("the moment was not reached")??;
        let over = done || time::timeout(delay, &mut work).await.is_ok();
        let family = shown.family()?;
        kill(shown.daemon.pid())?;
        if !over {
            // What is lost ends it; what came in before counts.
            _ = work.await;
        }
        family
    };
    rig.daemon.wait(Duration::from_secs(10)).await?;
    let begun = Instant::now();
    rig.all_gone(&family).await?;
    let gone = begun.elapsed().as_millis();
    if let Some(moment) = again {
        let mut daemon = Daemon::spawn(rig.place())?;
        // It does not end by itself.
        let early = time::timeout(moment, daemon.wait(REACHED)).await;
        anyhow::ensure!(early.is_err(), "the daemon ended at its start: {early:?}");
        daemon.kill().await?;
    }
    rig.daemon = Daemon::start(rig.place()).await?;
    let (end, session) = holds(rig, moment, id, &told).await.with_context(|| format!("{told:?}"))?;
    let applied = times_applied(rig, id)?;
    let on = goes_on(rig, &session, id, &told).await?;
    let row = format!("{end:<10} {applied:>7}  {gone:>4} ms  {on:<12}  {}", told.text());
    Ok((told, row))
}

fn kill(pid: u32) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).context("no process id")?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::KILL)?)
}
