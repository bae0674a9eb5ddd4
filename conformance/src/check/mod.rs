//! Checks any bridge at its endpoint: a scripted Core does Turns with the bundled model provider, and each rule that can
//! be seen from there is judged. A rule is judged by what it asks for alone, so that one break is found under its number.
//!
//! What is started is released again. The endpoint must be on this machine: the Harness calls the provider on loopback, and
//! works in a folder below the workspace.

mod report;
mod scenarios;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use proto::client::{Client, Endpoint, Error, Session, text_input};
use proto::v1::{self, Reason, bind_assignment_request::Placement};
use tokio::time;
use uuid::Uuid;

pub use report::{Judgement, Report, Verdict};

use crate::provider::Provider;
use crate::rig::{Harness, Observed, configuration};

/// The longest that one scenario may take.
const LIMIT: Duration = Duration::from_secs(40);

/// What is checked.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Where the bridge listens.
    pub endpoint: Endpoint,
    /// A directory in which its Harness may work.
    pub workspace: PathBuf,
    /// The Harness.
    pub harness: String,
    /// A model that the Harness knows. Absent: one that speaks the same API.
    pub model: Option<String>,
    /// The port of the bundled provider on loopback, whose origin the bridge's operator allows; 0 lets the system choose.
    pub provider_port: u16,
}

/// Checks a bridge.
///
/// # Errors
/// When it cannot be reached at all, has no such Harness, or the provider cannot be started. What it does wrong is in the
/// report.
pub async fn check(subject: &Subject) -> anyhow::Result<Report> {
    let provider = Provider::start_on(subject.provider_port, Vec::new()).await.context("start the provider")?;
    let client = Client::connect(subject.endpoint.clone()).await.context("reach the bridge")?;
    let like = usable(&client, &subject.harness).await?;
    let mut report = Report::default();
    for (name, rule, run) in scenarios::ALL {
        provider.reset();
        let core = Core { subject, like, client: client.clone(), provider: &provider, sessions: Mutex::default() };
        let mut judge = report::Judge::new(&mut report, name);
        let done = time::timeout(LIMIT, run(&core, &mut judge)).await;
        let done = done.unwrap_or_else(|_| Err(anyhow::anyhow!("it is not done after {LIMIT:?}")));
        match done {
            Ok(()) => judge.found("R-ASG-4", "its Session is released for sure", core.leave().await),
            Err(error) => {
                // What a scenario could not come to is not as its rule has it.
                judge.found(rule, "the scenario can be played", Err(error));
                // The report has the reason why this may fail, too.
                _ = core.leave().await;
            }
        }
    }
    provider.stop().await;
    Ok(report)
}

/// The bridge has the Harness, for Sessions on a workspace, and it speaks an API of the provider: that of the Harness which
/// is given back.
async fn usable(client: &Client, harness: &str) -> anyhow::Result<Harness> {
    let info = client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await.context("ask the bridge who it is")?;
    let declared = info.harnesses.into_iter().find(|one| one.kind == harness);
    let declared = declared.with_context(|| format!("the bridge knows no Harness {harness:?}"))?;
    anyhow::ensure!(declared.available, "{harness} cannot be used: {}", declared.unavailable_reason);
    anyhow::ensure!(!declared.workspace.is_empty(), "{harness} does not run on a workspace");
    let spoken = declared.limits.unwrap_or_default().model_protocols;
    let like = Harness::EVERY.into_iter().find(|one| spoken.contains(&one.model_protocol().into()));
    like.with_context(|| format!("{harness} speaks no API that the bundled provider has"))
}

/// A Core in front of the bridge.
#[derive(Debug)]
struct Core<'a> {
    subject: &'a Subject,
    /// A Harness that speaks the same API.
    like: Harness,
    client: Client,
    provider: &'a Provider,
    /// The Sessions that were bound.
    sessions: Mutex<Vec<Session>>,
}

impl Core<'_> {
    /// Binds a fresh Session in a folder of its own.
    async fn session(&self) -> anyhow::Result<Session> {
        let id = Uuid::now_v7().simple().to_string();
        let directory = self.subject.workspace.join(format!("check-{id}"));
        std::fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
        let directory = directory.to_str().context("the workspace's path is not UTF-8")?.to_owned();
        let placement = Placement::Workspace(v1::Workspace { environment_id: "env-1".into(), directory });
        let fence = v1::AssignmentRef { session_id: format!("check-{id}"), assignment_id: "a-1".into(), epoch: 3 };
        let session = Session::bind(self.client.clone(), fence, placement).await?;
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(session.clone());
        Ok(session)
    }

    /// Prepares and starts a Turn.
    async fn start(&self, session: &Session, turn_id: &str, prompt: &str) -> anyhow::Result<v1::Ready> {
        let functions = vec![crate::rig::function("lookup", r#"{"type":"object","properties":{}}"#)];
        let Subject { harness, model, .. } = self.subject;
        let base_url = self.provider.base_url_for(self.like.protocol());
        let configuration = v1::ExecutionConfiguration {
            harness: harness.clone(),
            model: model.clone().unwrap_or_else(|| self.like.model().into()),
            ..configuration(self.like, &base_url, functions)
        };
        let key = v1::Credential { name: "model".into(), value: "sk-check".into() };
        let ready = session.prepare(configuration, vec![key]).await?;
        session.start(&ready, turn_id, text_input(prompt)).await?;
        Ok(ready)
    }

    /// The events of a Turn behind a sequence, to its end, as they come: nothing about them is checked.
    async fn events(&self, session: &Session, turn_id: &str, after: u64) -> anyhow::Result<Observed> {
        let mut observing = self.observe(session, turn_id, after).await?;
        observing.until(|_| None::<()>).await?;
        Ok(observing.seen)
    }

    async fn observe(&self, session: &Session, turn_id: &str, after: u64) -> anyhow::Result<Observing> {
        let assignment = Some(session.assignment().clone());
        let request = v1::ObserveTurnRequest { assignment, turn_id: turn_id.into(), after_sequence: after };
        Ok(Observing { stream: self.client.observe_turn(request).await?, seen: Observed::default() })
    }

    /// Releases the Sessions and removes their folders.
    async fn leave(&self) -> anyhow::Result<()> {
        let sessions = std::mem::take(&mut *self.sessions.lock().unwrap_or_else(PoisonError::into_inner));
        for session in sessions {
            let released = session.release(true).await;
            std::fs::remove_dir_all(session.directory()).context("remove the Session's folder")?;
            let released = released?;
            anyhow::ensure!(released.outcome() == v1::ReleaseOutcome::Confirmed, "{released:?}");
        }
        Ok(())
    }
}

/// One observation, as it comes.
struct Observing {
    stream: proto::client::Messages<v1::ObserveTurnResponse>,
    seen: Observed,
}

impl Observing {
    /// Reads until an event fits, or the stream ends.
    async fn until<T>(&mut self, fits: impl Fn(&v1::event::Kind) -> Option<T>) -> anyhow::Result<Option<T>> {
        loop {
            // CANCEL: a message that is lost with this future is one that nobody waits for any more.
            let Some(message) = self.stream.next().await? else { return Ok(None) };
            let found = message.events.iter().find_map(|event| fits(event.kind.as_ref()?));
            self.seen.events.extend(message.events);
            if found.is_some() {
                return Ok(found);
            }
        }
    }
}

/// Why a call was refused; `None` when it was not.
fn refusal<T>(answer: &Result<T, Error>) -> Option<Reason> {
    answer.as_ref().err().and_then(Error::reason)
}
