//! Every unary call is reset at moments that a seed picks, then made again: what the journal has in the end is what it
//! has after a run that nobody disturbed (R-API-8, R-API-6).

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use conformance::ledger::SCRIPT;
use conformance::rig::{Daemon, MODEL_KEY, Observed, Rig, Setup, function, scenario, text_result};
use prost::Message;
use proto::client::{Client, Error, TurnEvents, text_input};
use proto::v1::bind_assignment_request::Placement;
use proto::v1::{self, event::Kind};
use tokio::time;

/// Why one Harness is enough.
const OWN: &str = "the requests and the journal are meant, not what the Turn does";

/// Disturbed runs in an ordinary run and in a long one.
const RUNS: [u64; 2] = [4, 40];
/// Attempts of one call that are reset, at most.
const ATTEMPTS: u64 = 6;
/// The latest moment of a reset: a call with a durable commit takes a few milliseconds.
const LATEST_US: u64 = 6000;

#[test]
fn the_journal_is_that_of_an_undisturbed_run() {
    let [short, long] = RUNS;
    let runs = if std::env::var_os("RUNTIME_BRIDGE_LONG").is_some() { long } else { short };
    let undisturbed = run("resets_none", None);
    for seed in 1..=runs {
        let disturbed = run(&format!("resets_{seed}"), Some(seed));
        assert!(disturbed.resets > 0, "nothing was reset with the seed {seed}");
        for (before, now) in undisturbed.journal.iter().zip(&disturbed.journal) {
            assert_eq!(before, now, "the seed {seed}, after {} resets", disturbed.resets);
        }
        assert_eq!(undisturbed.journal.len(), disturbed.journal.len(), "the seed {seed}");
    }
}

/// What a run left behind.
#[derive(Debug, Default)]
struct Left {
    resets: u64,
    /// Each fact that the daemon tells after a restart, without times and random ids.
    journal: Vec<String>,
}

fn run(name: &str, seed: Option<u64>) -> Left {
    let mut left = Left::default();
    scenario(name, &["R-API-8", "R-API-6", "R-DUR-1"], Setup::outer().bridge(OWN), async |rig| {
        rig.provider.script(SCRIPT)?;
        let mut core = Core { client: rig.client().await?, chance: seed.map(Chance), resets: 0, made: BTreeSet::new() };
        Box::pin(core.work(rig)).await.with_context(|| format!("after {} resets", core.resets))?;
        let unmade: Vec<_> = unary()?.into_iter().filter(|name| !core.made.contains(&**name)).collect();
        anyhow::ensure!(unmade.is_empty(), "calls that are never reset: {unmade:?}");
        left.resets = core.resets;
        let asked = rig.provider.model_requests().len();
        // From here on the journal alone knows.
        let family = rig.family()?;
        rig.daemon.kill().await?;
        rig.all_gone(&family).await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        left.journal = journal(rig).await?;
        left.journal.push(format!("the model was asked {asked} times"));
        Ok(())
    });
    left
}

/// A Core that makes each of its calls several times.
struct Core {
    client: Client,
    chance: Option<Chance>,
    resets: u64,
    made: BTreeSet<&'static str>,
}

impl Core {
    async fn work(&mut self, rig: &Rig) -> anyhow::Result<()> {
        self.call("GetRuntimeInfo", async |client| client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await).await?;
        let request = v1::AdmitRequest { purpose: v1::AdmitPurpose::Save.into(), ..Default::default() };
        self.call("Admit", async |client| client.admit(request.clone()).await).await?;
        self.bind(rig, 1).await?;
        let unused = self.prepare(rig, 1, "p-1").await?;
        let request = v1::ReleasePreparationRequest { assignment: Some(fence(1)), handle: unused.handle };
        self.call("ReleasePreparation", async |client| client.release_preparation(request.clone()).await).await?;

        let ready = self.prepare(rig, 1, "p-2").await?;
        self.start(1, &ready, "t-1", "look it up").await?;
        let (mut events, mut seen) = (self.events(1, "t-1"), Observed::default());
        seen.call(&mut events).await?;
        self.get(1, "t-1").await?;
        // The Session is taken over in the middle of its Turn.
        self.bind(rig, 2).await?;
        let credential = Some(v1::Credential { name: "model".into(), value: MODEL_KEY.into() });
        let request = v1::UpdateCredentialRequest { assignment: Some(fence(2)), credential };
        self.call("UpdateCredential", async |client| client.update_credential(request.clone()).await).await?;
        let request = steer(fence(2), "turn left");
        self.call("SteerTurn", async |client| client.steer_turn(request.clone()).await).await?;
        let request = progress(fence(2), 1);
        self.call("ReportFunctionProgress", async |client| client.report_function_progress(request.clone()).await)
            .await?;
        let results = vec![text_result("t-1", "c1", "42")];
        let request = v1::SubmitFunctionResultsRequest { assignment: Some(fence(2)), results };
        self.call("SubmitFunctionResults", async |client| client.submit_function_results(request.clone()).await)
            .await?;
        Observed::default().to_the_end(&mut self.events(2, "t-1")).await?.completed()?;
        let request =
            v1::AcknowledgeEventsRequest { assignment: Some(fence(2)), turn_id: "t-1".into(), through_sequence: 1 };
        self.call("AcknowledgeEvents", async |client| client.acknowledge_events(request.clone()).await).await?;

        let ready = self.prepare(rig, 2, "p-3").await?;
        self.start(2, &ready, "t-2", "hold on").await?;
        rig.provider.wait_for(|requests| requests.iter().filter(|one| one.asks_the_model()).count() == 3).await?;
        let mut events = self.events(2, "t-2");
        let started = |kind: &Kind| matches!(kind, Kind::TurnStarted(_)).then_some(());
        Observed::default().until(&mut events, started).await?;
        let request = v1::CancelTurnRequest { assignment: Some(fence(2)), turn_id: "t-2".into(), wait: None };
        let answer = self.call("CancelTurn", async |client| client.cancel_turn(request.clone()).await).await?;
        anyhow::ensure!(answer.outcome() == v1::CancelOutcome::Settled, "{answer:?}");
        self.get(2, "t-2").await?;
        let request = v1::ListTurnsRequest { assignment: Some(fence(2)), ..Default::default() };
        let answer = self.call("ListTurns", async |client| client.list_turns(request.clone()).await).await?;
        anyhow::ensure!(answer.turns.len() == 2, "{answer:?}");
        let request = v1::ListSessionsRequest::default();
        let answer = self.call("ListSessions", async |client| client.list_sessions(request.clone()).await).await?;
        anyhow::ensure!(answer.sessions.len() == 1, "{answer:?}");
        let bare = v1::ReleaseAssignmentRequest { assignment: Some(fence(3)), ..Default::default() };
        let request = v1::ReleaseAssignmentRequest { remove_home: true, ..bare };
        let answer =
            self.call("ReleaseAssignment", async |client| client.release_assignment(request.clone()).await).await?;
        anyhow::ensure!(answer.outcome() == v1::ReleaseOutcome::Confirmed && answer.home_removed, "{answer:?}");
        // The last call of all: nothing is taken behind it.
        self.call("Drain", async |client| client.drain(v1::DrainRequest {}).await).await?;
        Ok(())
    }

    async fn bind(&mut self, rig: &Rig, epoch: u64) -> Result<(), Error> {
        let request = v1::BindAssignmentRequest { assignment: Some(fence(epoch)), placement: Some(workspace(rig)) };
        self.call("BindAssignment", async |client| client.bind_assignment(request.clone()).await).await.map(drop)
    }

    async fn prepare(&mut self, rig: &Rig, epoch: u64, preparation_id: &str) -> Result<v1::Ready, Error> {
        let configuration = Some(rig.configuration(vec![function("lookup", "{}")]));
        let (assignment, preparation_id) = (Some(fence(epoch)), preparation_id.into());
        let bare = v1::PrepareExecutionRequest { assignment, preparation_id, configuration, ..Default::default() };
        let key = v1::Credential { name: "model".into(), value: MODEL_KEY.into() };
        let request = v1::PrepareExecutionRequest { credentials: vec![key], ..bare };
        self.call("PrepareExecution", async |client| client.prepare(request.clone()).await).await
    }

    async fn start(&mut self, epoch: u64, ready: &v1::Ready, turn_id: &str, prompt: &str) -> Result<(), Error> {
        let handle = ready.handle.clone();
        let request = v1::StartTurnRequest { handle, ..start(fence(epoch), turn_id, prompt) };
        self.call("StartTurn", async |client| client.start_turn(request.clone()).await).await.map(drop)
    }

    async fn get(&mut self, epoch: u64, turn_id: &str) -> Result<(), Error> {
        let request = v1::GetTurnRequest { assignment: Some(fence(epoch)), turn_id: turn_id.into() };
        self.call("GetTurn", async |client| client.get_turn(request.clone()).await).await.map(drop)
    }

    fn events(&self, epoch: u64, turn_id: &str) -> TurnEvents {
        self.client.observe(fence(epoch), turn_id, 0)
    }

    /// Makes a call that is reset some times before it is left alone.
    async fn call<T>(
        &mut self,
        name: &'static str,
        make: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.made.insert(name);
        let attempts = self.chance.as_mut().map_or(0, |chance| chance.below(ATTEMPTS));
        for _ in 0..attempts {
            let Some(chance) = &mut self.chance else { break };
            let (by_polls, polls) = (chance.below(2) == 0, chance.below(4));
            let moment = Duration::from_micros(chance.below(LATEST_US));
            let mut attempt = pin!(make(&self.client));
            // Dropping the call resets its stream: before anything is sent, on the way, or before the answer is read.
            let answered = if by_polls {
                let mut left = polls;
                poll_fn(|context| {
                    if left == 0 {
                        return Poll::Ready(false);
                    }
                    left -= 1;
                    match attempt.as_mut().poll(context) {
                        Poll::Ready(_) => Poll::Ready(true),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await
            } else {
                time::timeout(moment, attempt).await.is_ok()
            };
            self.resets += u64::from(!answered);
        }
        make(&self.client).await
    }
}

/// The unary calls of the protocol.
fn unary() -> anyhow::Result<Vec<String>> {
    let files = prost_types::FileDescriptorSet::decode(proto::DESCRIPTORS)?.file;
    let services = files.into_iter().filter(|file| file.package() == "runtime_bridge.v1").flat_map(|file| file.service);
    let methods = services.flat_map(|service| service.method).filter(|method| !method.server_streaming());
    let names: Vec<_> = methods.map(|method| method.name().to_owned()).collect();
    anyhow::ensure!(!names.is_empty(), "the descriptors have no service");
    Ok(names)
}

/// Numbers that look like chance and are the same in every run.
#[derive(Clone, Copy)]
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn fence(epoch: u64) -> v1::AssignmentRef {
    v1::AssignmentRef { session_id: "s-1".into(), assignment_id: "a-1".into(), epoch }
}

/// A start without a handle, which is enough for a Turn that is known.
fn start(fence: v1::AssignmentRef, turn_id: &str, prompt: &str) -> v1::StartTurnRequest {
    let (assignment, turn_id, input) = (Some(fence), turn_id.into(), text_input(prompt));
    v1::StartTurnRequest { assignment, turn_id, input, ..Default::default() }
}

fn steer(fence: v1::AssignmentRef, text: &str) -> v1::SteerTurnRequest {
    let (turn_id, input_id, input) = ("t-1".into(), "i-1".into(), text_input(text));
    v1::SteerTurnRequest { assignment: Some(fence), turn_id, input_id, input }
}

/// A report about the call of the first Turn.
fn progress(fence: v1::AssignmentRef, number: u64) -> v1::ReportFunctionProgressRequest {
    let (turn_id, call_id, message) = ("t-1".into(), "c1".into(), "still at it".into());
    v1::ReportFunctionProgressRequest { assignment: Some(fence), turn_id, call_id, number, message }
}

fn workspace(rig: &Rig) -> Placement {
    let directory = rig.workspace().to_string_lossy().into_owned();
    Placement::Workspace(v1::Workspace { environment_id: "env-1".into(), directory })
}

/// Everything that the daemon tells of the Session, and how it answers what it has had already.
async fn journal(rig: &Rig) -> anyhow::Result<Vec<String>> {
    let client = rig.client().await?;
    let mut told = Vec::new();
    let placement = Some(workspace(rig));
    // The fence: what it was is stale, and only what may follow is taken.
    for (assignment, epoch) in [("a-1", 1), ("a-1", 2), ("a-1", 3), ("a-1", 4)] {
        let assignment = v1::AssignmentRef { assignment_id: assignment.into(), ..fence(epoch) };
        let request = v1::BindAssignmentRequest { assignment: Some(assignment), placement: placement.clone() };
        told.push(format!("bind {epoch}: {:?}", client.bind_assignment(request).await.map_err(|e| e.to_string())));
    }
    let fence = v1::AssignmentRef { assignment_id: "a-2".into(), ..fence(1) };
    let request = v1::BindAssignmentRequest { assignment: Some(fence.clone()), placement };
    client.bind_assignment(request).await?;
    for (turn_id, prompt) in [("t-1", "look it up"), ("t-2", "hold on")] {
        let request = v1::GetTurnRequest { assignment: Some(fence.clone()), turn_id: turn_id.into() };
        let mut turn = client.get_turn(request).await?.turn.context("no Turn")?;
        turn.created_at = None;
        turn.ended.iter_mut().for_each(timeless);
        told.push(format!("{turn:?}"));
        let mut events = client.observe(fence.clone(), turn_id, 0);
        while let Some(mut event) = events.next().await? {
            event.time = None;
            if let Some(Kind::TurnEnded(end)) = &mut event.kind {
                timeless(end);
            }
            told.push(format!("{event:?}"));
        }
        for input in [prompt, "another"] {
            let answer = client.start_turn(start(fence.clone(), turn_id, input)).await;
            let answer = answer.map(|answer| answer.duplicate).map_err(|error| error.to_string());
            told.push(format!("start {turn_id} {input}: {answer:?}"));
        }
    }
    for (call_id, text) in [("c1", "42"), ("c1", "43"), ("c2", "42")] {
        let results = vec![text_result("t-1", call_id, text)];
        let request = v1::SubmitFunctionResultsRequest { assignment: Some(fence.clone()), results };
        let answer = client.submit_function_results(request).await.map_err(|e| e.to_string());
        told.push(format!("result {call_id} {text}: {answer:?}"));
    }
    for text in ["turn left", "turn right"] {
        let answer = client.steer_turn(steer(fence.clone(), text)).await.map_err(|error| error.to_string());
        told.push(format!("steer {text}: {answer:?}"));
    }
    for number in [1, 2] {
        let answer = client.report_function_progress(progress(fence.clone(), number)).await;
        told.push(format!("report {number}: {:?}", answer.map_err(|e| e.to_string())));
    }
    let request = v1::ListTurnsRequest { assignment: Some(fence.clone()), ..Default::default() };
    for turn in client.list_turns(request).await?.turns {
        told.push(format!("listed {} {:?}", turn.turn_id, turn.phase()));
    }
    for session in client.list_sessions(v1::ListSessionsRequest::default()).await?.sessions {
        told.push(format!("listed {} {} {}", session.session_id, session.assignment_id, session.epoch));
    }
    let mut ids = BTreeMap::new();
    Ok(told.into_iter().map(|text| without_ids(&text, &mut ids)).collect())
}

fn timeless(end: &mut v1::TurnEnded) {
    end.native_completed_at = None;
}

/// The text with a number in the place of each random id: a word with a dash that is as long as a UUID or longer.
fn without_ids(text: &str, ids: &mut BTreeMap<String, usize>) -> String {
    let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
    let mut out = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find(is_part) {
        let word = &rest[begin..];
        let word = &word[..word.find(|c| !is_part(c)).unwrap_or(word.len())];
        out.push_str(&rest[..begin]);
        if word.len() >= 32 {
            let next = ids.len();
            let number = *ids.entry(word.to_owned()).or_insert(next);
            out.push_str(&format!("#{number}"));
        } else {
            out.push_str(word);
        }
        rest = &rest[begin + word.len()..];
    }
    out + rest
}
