//! Preparations of a Session (R-PRE-1, -2, -6, -7).

use std::{collections::VecDeque, os::unix::fs::DirBuilderExt as _, path::Path, sync::Arc, time::SystemTime};

use adapters::{
    harness::{Availability, Configuration, Harness, Launch, Placement, PrepareError, Resume},
    native::{environment::Mark, user},
};
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Answer, Fence, PrepareRequest, Progress, combination,
    credential::{Access, Credentials},
    digest, drain,
    executor::{Live, Prepared, Preparing, Slot},
    history, idle,
    owner::Owner,
    preparation::{Grant, ReadyKind, State},
    servers,
    supports::Supports,
    variables::{self, Variables},
};
use crate::{
    clock,
    journal::{self, ExecutorRecord},
    refusal::{Reason, Refusal},
    tasks,
    turn::{calls::Digest, judge::Judge},
};
use work::{Before, Work};

mod work;

/// The step of a Harness that is about MCP servers.
const MCP: &str = "mcp";

/// What a new Executor is asked to be.
struct Wanted {
    id: String,
    content: Digest,
    configuration: Configuration,
    credentials: Credentials,
    variables: Variables,
    resume: Option<Resume>,
    supports: Supports,
}

impl Owner {
    /// Prepares, or attaches to a preparation.
    pub(super) async fn prepare(&mut self, fence: &Fence, request: PrepareRequest) -> Answer<Progress> {
        self.admit(fence)?;
        let PrepareRequest { preparation_id, mut configuration, on_workspace, credentials, resume: asked } = request;
        configuration.placement = self.bound_placement(on_workspace)?;
        let content = digest::preparation(&configuration, asked.as_deref());

        self.preparations.expire(Instant::now());
        if let Some(found) = self.preparations.find(&preparation_id, content)? {
            match &found.state {
                State::Failed { refusal, .. } => return Err(refusal.clone()),
                State::Started { grant } => return Ok(Progress::Ready(grant.clone())),
                State::Released { .. } | State::Expired { .. } => {
                    return Err(Refusal::new(
                        Reason::HandleExpired,
                        "the handle of this preparation is over; prepare again under another id",
                    )
                    .at("preparation_id"));
                }
                State::Ready { grant, .. } => {
                    let grant = grant.clone();
                    if self.takes(&credentials) {
                        return Ok(Progress::Ready(grant));
                    }
                }
                State::Preparing => {
                    let (executor_id, revision) = (found.executor_id.clone(), found.revision);
                    if self.takes(&credentials) {
                        return Ok(self.attach(preparation_id, executor_id, revision));
                    }
                }
            }
            let harness = self.shared.harnesses.get(configuration.harness.as_str()).cloned();
            let harness = harness.ok_or_else(|| internal("the Harness of a preparation is gone"))?;
            let resume = self.history_for(&configuration, asked.as_deref(), &harness).await?;
            let supports = Supports::of(&harness.declare().await, &configuration.placement);
            // A newer credential came for a preparation whose handle is unused (R-PRE-6).
            let variables = self.variables(&configuration)?;
            let wanted =
                Wanted { id: preparation_id, content, configuration, credentials, variables, resume, supports };
            return self.retire_for(wanted, &harness).await;
        }

        if self.is_draining() {
            return Err(drain::draining());
        }
        let (harness, supports) = self.admitted(&configuration, &credentials).await?;
        self.free()?;
        self.check_storage().await?;
        self.clean_up_again().await;
        match &self.slot {
            Slot::Preparing(preparing) => {
                let executor_id = preparing.executor_id.clone();
                same_configuration(&preparing.configuration, &configuration)?;
                self.is_named(asked.as_deref())?;
                if !self.takes(&credentials) {
                    return Err(busy("an Executor is being prepared with another credential"));
                }
                self.preparations.begin(preparation_id.clone(), content, executor_id.clone());
                Ok(self.attach(preparation_id, executor_id, 1))
            }
            // The end of its last Turn is seen already, so the next one waits for nothing that Core could see (R-EVT-9).
            Slot::Live(live) if live.closing => {
                let resume = self.history_for(&configuration, asked.as_deref(), &harness).await?;
                let variables = self.variables(&configuration)?;
                let wanted =
                    Wanted { id: preparation_id, content, configuration, credentials, variables, resume, supports };
                self.retire_for(wanted, &harness).await
            }
            Slot::Live(live) => {
                same_configuration(&live.configuration, &configuration)?;
                self.is_named(asked.as_deref())?;
                let (executor_id, version) = (live.executor_id.clone(), live.executor.version.clone());
                if self.takes(&credentials) {
                    self.preparations.begin(preparation_id, content, executor_id.clone());
                    let life = self.life();
                    let granted = self.preparations.ready(&executor_id, &version, ReadyKind::Reused, life).pop();
                    let (_, grant) = granted.ok_or_else(|| internal("a preparation is lost"))?;
                    return Ok(Progress::Ready(grant));
                }
                let resume = self.history_for(&configuration, asked.as_deref(), &harness).await?;
                let variables = self.variables(&configuration)?;
                let wanted =
                    Wanted { id: preparation_id, content, configuration, credentials, variables, resume, supports };
                self.retire_for(wanted, &harness).await
            }
            Slot::Unconfirmed(_) => Err(Refusal::new(
                Reason::CleanupUnconfirmed,
                "earlier native work of the Session could not be ended for sure",
            )),
            Slot::Empty => {
                let resume = self.history_for(&configuration, asked.as_deref(), &harness).await?;
                let before = match Arc::clone(&self.shared.capacity).try_acquire_owned() {
                    Ok(permit) => Before::Nothing(permit),
                    Err(_full) if self.shared.idle.are_there() => Before::MakeRoom,
                    Err(_full) => return Err(idle::no_room(self.shared.limits.max_executors)),
                };
                let variables = self.variables(&configuration)?;
                let wanted =
                    Wanted { id: preparation_id, content, configuration, credentials, variables, resume, supports };
                self.launch(wanted, &harness, before).await
            }
        }
    }

    fn bound_placement(&self, on_workspace: bool) -> Answer<Placement> {
        let wrong = |bound: &str| {
            Err(Refusal::invalid("configuration.placement", format!("the Session is bound to the placement `{bound}`")))
        };
        match (&self.recorded()?.record.placement, on_workspace) {
            (journal::Placement::None, false) => Ok(Placement::None),
            (journal::Placement::None, true) => wrong("none"),
            (journal::Placement::Workspace { .. }, false) => wrong("workspace"),
            (journal::Placement::Workspace { environment_id, directory }, true) => {
                Ok(Placement::Workspace { environment_id: environment_id.clone(), directory: directory.into() })
            }
        }
    }

    /// The variables of the Environment that MCP servers name (R-MCP-3).
    fn variables(&self, configuration: &Configuration) -> Answer<Variables> {
        variables::of(configuration, &self.shared.state)
    }

    /// The Harness, when it is there and admits the configuration; and what Turns may be given then.
    async fn admitted(
        &self,
        configuration: &Configuration,
        credentials: &Credentials,
    ) -> Answer<(Arc<dyn Harness>, Supports)> {
        let unavailable = |text: String| Refusal::new(Reason::HarnessUnavailable, text).at("configuration.harness");
        let harness = self.shared.harnesses.get(configuration.harness.as_str()).ok_or_else(|| {
            let known: Vec<_> = self.shared.harnesses.keys().copied().collect();
            unavailable(format!("no such Harness; this bridge knows: {}", known.join(", ")))
        })?;
        let declaration = harness.declare().await;
        if let Availability::Unavailable { reason } = &declaration.availability {
            return Err(unavailable(reason.clone()));
        }
        // R-MCP-2: a bearer is like a key to whoever would send it elsewhere.
        let holds_key = self.shared.gateway.is_none() && (credentials.model.is_some() || !credentials.mcp.is_empty());
        let key = || if holds_key { harness.admit_key(&declaration, &configuration.placement) } else { Ok(()) };
        let admitted = combination::check(configuration).and_then(|()| harness.admit(&declaration, configuration));
        let admitted = admitted.and_then(|()| servers::check(&configuration.mcp_servers, &self.shared.guards));
        admitted.and_then(|()| key()).map_err(|refused| {
            Refusal::new(Reason::UnsupportedConfiguration, refused.message)
                .at(format!("configuration.{}", refused.field))
                .with("http_status", 400)
                .with("public_code", "unsupported_or_invalid_configuration")
        })?;
        Ok((Arc::clone(harness), Supports::of(&declaration, &configuration.placement)))
    }

    fn free(&self) -> Answer<()> {
        if self.turn.is_some() {
            return Err(busy("a Turn of the Session runs"));
        }
        if let Some(pending) = self.preparations.pending() {
            return Err(busy("another preparation is not used yet").with("preparation_id", pending));
        }
        match &self.slot {
            // Its room is promised to another Session.
            Slot::Live(live) if live.closing && self.room_wanted.is_some() => Err(busy("the Executor is closing")),
            Slot::Live(_) | Slot::Preparing(_) | Slot::Empty | Slot::Unconfirmed(_) => Ok(()),
        }
    }

    async fn retire_for(&mut self, wanted: Wanted, harness: &Arc<dyn Harness>) -> Answer<Progress> {
        if self.is_draining() {
            return Err(drain::draining());
        }
        // ORDER: before the Executor that is there is given up for one that could not be recorded (R-DUR-4).
        self.check_storage().await?;
        let before = match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::Live(live) => Before::Retire(live),
            Slot::Preparing(preparing) => {
                // ORDER: before its room is promised, so that it cannot go on with another one.
                preparing.give_up.cancel();
                let (reply, room) = oneshot::channel();
                self.room_wanted = Some(reply);
                Before::Inherit { task: preparing.task, room }
            }
            slot @ (Slot::Empty | Slot::Unconfirmed(_)) => {
                self.slot = slot;
                return Err(internal("there is no Executor to retire"));
            }
        };
        self.launch(wanted, harness, before).await
    }

    async fn launch(&mut self, wanted: Wanted, harness: &Arc<dyn Harness>, before: Before) -> Answer<Progress> {
        let Wanted { id, content, configuration, credentials, variables, resume, supports } = wanted;
        let executor_id = format!("exe_{}", uuid::Uuid::now_v7().simple());
        let folder = self.folder();
        let (home, temporary) = (self.home(), folder.join("tmp"));
        self.make_folders(&folder).await?;
        let workspace = match &configuration.placement {
            Placement::None => None,
            Placement::Workspace { directory, .. } => Some(directory.clone()),
        };
        let given = self.given_instructions();
        if resume.as_ref().is_some_and(|resume| resume.instructions_changed) {
            self.note_instructions(None).await?;
        }
        let gateway = self.shared.gateway.as_deref();
        let access = Access::open(gateway, &configuration, credentials, &variables).map_err(|error| {
            tracing::error!(%error, "there is no route to a model provider or MCP server");
            internal("the gateway could not make a way to the model provider and the MCP servers")
        })?;
        let configuration = Arc::new(configuration);
        let launch = Launch {
            executor_id: executor_id.clone(),
            home,
            temporary,
            workspace,
            configuration: access.told(&configuration),
            model_key: access.given(),
            holds_key: access.is_held(),
            mcp_bearers: access.given_bearers(),
            mcp_variables: variables,
            secrets: access.secrets(),
            mark: Mark::new(self.shared.journal.state_id(), &executor_id),
            resume: resume.clone(),
        };
        let give_up = CancellationToken::new();
        let work = Work {
            executor_id: executor_id.clone(),
            harness: Arc::clone(harness),
            launch,
            before,
            give_up: give_up.clone(),
            capacity: Arc::clone(&self.shared.capacity),
            idle: Arc::clone(&self.shared.idle),
            internal: self.internal.clone(),
        };
        let task = tasks::spawn(&self.shared.tracker, tasks::Kind::Preparation, work.run());
        self.slot = Slot::Preparing(Box::new(Preparing {
            executor_id: executor_id.clone(),
            configuration,
            access,
            resume: resume.map(|resume| (resume, given)),
            supports,
            give_up,
            task,
        }));
        let revision = match self.preparations.find(&id, content)? {
            Some(found) => {
                let revision = found.revision + 1;
                self.preparations.again(&id, executor_id.clone());
                revision
            }
            None => {
                self.preparations.begin(id.clone(), content, executor_id.clone());
                1
            }
        };
        Ok(self.attach(id, executor_id, revision))
    }

    /// Makes the folders of the Session: the user of the Harnesses passes those of the daemon to its own (R-SEC-1).
    async fn make_folders(&self, folder: &Path) -> Answer<()> {
        let (state, folder) = (self.shared.state.clone(), folder.to_owned());
        let user = self.shared.harness_user.clone();
        let work = move || {
            make_private(&folder.join("turns"))?;
            for path in [&state.join("sessions"), &folder, &folder.join("home")] {
                user::make_passable(path, user.as_ref())?;
            }
            user::make_own(&folder.join("tmp"), user.as_ref())
        };
        // What is handed over may hold much.
        let made = tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.into()));
        made.map_err(|error| {
            tracing::error!(%error, "the folders of a Session could not be made");
            Refusal::new(Reason::StorageUnavailable, "the bridge's state directory does not take writes")
        })
    }

    fn attach(&mut self, id: String, executor_id: String, revision: u32) -> Progress {
        let (done, wait) = oneshot::channel();
        self.waiting.retain(|(_, waiting)| !waiting.is_closed());
        self.waiting.push((id, done));
        Progress::Preparing { executor_id, revision, done: wait }
    }

    /// The work of a preparation is over.
    pub(super) async fn prepared(&mut self, prepared: Prepared) {
        let Prepared { executor_id, permit, result, retired } = prepared;
        if let Some(retired) = &retired {
            self.gone(retired).await;
        }
        let Slot::Preparing(preparing) = &mut self.slot else { return };
        if preparing.executor_id != executor_id {
            // It was replaced while it was at work; dropping its Executor ends it.
            if let Err(PrepareError { clean: false, .. }) = result {
                if let Some(retired) = &retired {
                    self.sweep(&retired.executor_id).await;
                }
                self.sweep(&executor_id).await;
            }
            self.give_room(permit);
            return;
        }
        let (configuration, access) = (Arc::clone(&preparing.configuration), std::mem::take(&mut preparing.access));
        let supports = preparing.supports;
        let resume = preparing.resume.take();
        match result {
            Ok(executor) => {
                let version = executor.version.clone();
                let live = Live {
                    executor_id: executor_id.clone(),
                    history: history::of_executor(&executor, &configuration),
                    judge: configuration.controls.output_schema.as_deref().map(|schema| Arc::new(Judge::new(schema))),
                    configuration,
                    access,
                    executor,
                    supports,
                    closing: false,
                    outbox: VecDeque::new(),
                    permit,
                };
                let recorded = match self.record_executor(&live).await {
                    Ok(()) if resume.is_some() => self.note_instructions(live.history.instructions.clone()).await,
                    recorded => recorded,
                };
                match recorded {
                    Ok(()) => {
                        tracing::info!(executor_id, version, "Executor is ready");
                        self.shared.keepers.add(live.executor.keeper.pid);
                        let kind = self.ready_kind(&live);
                        self.slot = Slot::Live(Box::new(live));
                        let life = self.life();
                        for (id, grant) in self.preparations.ready(&executor_id, &version, kind, life) {
                            self.tell(&id, &Ok(grant));
                        }
                    }
                    Err(refusal) => {
                        self.slot = Slot::Empty;
                        self.fail(&executor_id, &refusal);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(executor_id, %error, clean = error.clean, "a preparation failed");
                self.slot = Slot::Empty;
                // What an Executor left that was closed before this one began carries the mark of that one.
                let left = retired.as_ref().filter(|retired| retired.survivors > 0);
                let left = left.map_or(&executor_id, |retired| &retired.executor_id);
                if !error.clean && !self.sweep(left).await {
                    self.leave_unconfirmed(left, permit);
                }
                let refusal = match (error.history, &resume, error.step) {
                    (Some(fault), Some((resume, _)), _) => history::refused(fault, resume),
                    (_, _, idle::NO_ROOM) => idle::no_room(self.shared.limits.max_executors),
                    (_, _, step) => {
                        // The Harness knows a status at most.
                        let troubles = access
                            .server_troubles()
                            .filter(|_| step == MCP)
                            .map(|text| format!("; the gateway says of {text}"));
                        let message = error.message + &troubles.unwrap_or_default();
                        Refusal::new(Reason::PreparationFailed, message).with("step", step)
                    }
                };
                if let Some((Resume { instructions_changed: true, .. }, given)) = resume
                    && !error.changed_history
                    && let Err(refusal) = self.note_instructions(given).await
                {
                    tracing::error!(%refusal, "which instructions the history has is not recorded");
                }
                self.fail(&executor_id, &refusal);
                if refusal.reason == Reason::PreparationCapacity {
                    self.preparations.forget_failed(&executor_id);
                }
            }
        }
    }

    fn ready_kind(&self, live: &Live) -> ReadyKind {
        match self.recorded() {
            Ok(recorded) if recorded.record.history.is_some() => {
                ReadyKind::Resumed { settings_changed: self.has_other_settings(live) }
            }
            Ok(_) | Err(_) => ReadyKind::Begun,
        }
    }

    async fn record_executor(&self, live: &Live) -> Answer<()> {
        let record = ExecutorRecord {
            executor_id: live.executor_id.clone(),
            fingerprint: digest::configuration(&live.configuration),
            native_session_id: Some(live.executor.native_session_id.clone()),
            keeper_pid: live.executor.keeper.pid,
            keeper_start: live.executor.keeper.start,
            closed: false,
        };
        let row = self.recorded()?.row;
        self.shared.journal.put_executor(row, record).await.map_err(|error| super::storage(&error))
    }

    /// What is being prepared, or was prepared and is not used yet, fails.
    pub(super) fn fail_pending(&mut self, refusal: &Refusal) {
        let executor_id = match &self.slot {
            Slot::Live(live) => live.executor_id.clone(),
            Slot::Preparing(preparing) => preparing.executor_id.clone(),
            Slot::Empty | Slot::Unconfirmed(_) => return,
        };
        self.fail(&executor_id, refusal);
    }

    fn fail(&mut self, executor_id: &str, refusal: &Refusal) {
        let failed = self.preparations.waiting_for(executor_id);
        self.preparations.fail(executor_id, refusal);
        for id in failed {
            self.tell(&id, &Err(refusal.clone()));
        }
    }

    fn tell(&mut self, id: &str, answer: &Answer<Grant>) {
        self.tell_standing();
        for (_, waiting) in self.waiting.extract_if(.., |(waits, _)| waits == id) {
            drop(waiting.send(answer.clone()));
        }
    }

    /// Voids preparations and handles, and tells who waits.
    pub(super) fn void_preparations(&mut self, refusal: &Refusal) {
        self.preparations.clear();
        for (_, waiting) in self.waiting.drain(..) {
            drop(waiting.send(Err(refusal.clone())));
        }
    }

    fn life(&self) -> (Instant, SystemTime) {
        let life = self.shared.limits.handle_life;
        (Instant::now() + life, clock::now() + life)
    }
}

fn same_configuration(frozen: &Configuration, asked: &Configuration) -> Answer<()> {
    let field = if frozen.harness != asked.harness {
        "harness"
    } else if frozen.placement != asked.placement {
        "placement"
    } else if frozen.model != asked.model {
        "model"
    } else if frozen.instructions != asked.instructions {
        "instructions"
    } else if frozen.provider != asked.provider {
        "model_provider"
    } else if frozen.harness_config != asked.harness_config {
        "harness_config"
    } else if frozen.functions != asked.functions {
        "tools.functions"
    } else if frozen.controls != asked.controls {
        "tools.controls"
    } else if frozen.tool_search != asked.tool_search {
        "tools.tool_search"
    } else if frozen.mcp_servers != asked.mcp_servers {
        "tools.mcp_servers"
    } else {
        return Ok(());
    };
    Err(history::frozen(field))
}

fn busy(text: &str) -> Refusal {
    Refusal::new(Reason::SessionBusy, text)
}

fn internal(text: &str) -> Refusal {
    Refusal::new(Reason::Internal, text)
}

/// Makes a folder that nobody else may read, and those above it.
pub(super) fn make_private(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
