//! Codex, driven through `codex app-server`: one process and one thread for each Executor (kind `codex`).
//!
//! Everything is private but [`Codex`] and its settings; the daemon sees the Harness contract only.

mod admission;
mod catalogue;
mod config;
mod declaration;
mod events;
mod executor;
mod failure;
mod functions;
mod history;
mod probe;
mod servers;
mod start;
mod wire;

use std::{path::Path, sync::Arc};

use tokio_util::task::TaskTracker;

use crate::harness::{
    BoxFuture, Configuration, Declaration, Executor, Harness, HistoryFault, Launch, NotAdmitted, Placement,
    PrepareError, Proof, ProvedInputs, Resume,
};
use crate::probe::{Found, Looks, Seen};

pub use crate::harness::Settings;

/// The kind of this Harness.
pub const KIND: &str = "codex";

/// Gives the bundled catalogue of models, or says why there is none.
type Catalogue<'a> = BoxFuture<'a, Result<Arc<str>, String>>;

/// The Codex Harness of this machine.
#[derive(Debug)]
pub struct Codex {
    settings: Settings,
    /// What was found last.
    looks: Looks,
    /// The bundled catalogue of models of the program that was probed last, once a preparation has needed it.
    models: tokio::sync::Mutex<Option<(Seen, Arc<str>)>>,
    /// The owner tasks of all Executors. Each ends with its Executor.
    tasks: TaskTracker,
}

impl Codex {
    /// Codex with these settings. Starts nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, looks: Looks::default(), models: tokio::sync::Mutex::new(None), tasks: TaskTracker::new() }
    }

    /// Waits until every Executor that was prepared is gone. For the end of a daemon that has closed or dropped them.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// What there is of Codex on this machine.
    async fn look(&self) -> Found {
        let program = probe::find(self.settings.program.as_deref());
        self.looks.look(program, |program| probe::probe(&self.settings, program)).await
    }

    /// The bundled catalogue of models; printing it starts the program, so it is done once for each state of the file.
    async fn models(&self, program: &Path) -> Result<Arc<str>, String> {
        let seen = Seen::of(program).map_err(|error| format!("{} cannot be read: {error}", program.display()))?;
        let mut known = self.models.lock().await;
        if let Some((_, models)) = known.as_ref().filter(|(of, _)| *of == seen) {
            return Ok(Arc::clone(models));
        }
        let models: Arc<str> = probe::catalogue(&self.settings, program).await?.into();
        catalogue::check(&models)?;
        *known = Some((seen, Arc::clone(&models)));
        Ok(models)
    }
}

impl Harness for Codex {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn declare(&self) -> BoxFuture<'_, Declaration> {
        Box::pin(async { declaration::declare(&self.settings, self.look().await) })
    }

    fn admit(&self, declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted> {
        admission::check(declaration, configuration)
    }

    fn admit_key(&self, declaration: &Declaration, placement: &Placement) -> Result<(), NotAdmitted> {
        if declaration.trust_workspace && *placement != Placement::None {
            return Err(admission::refused(
                "trust_workspace",
                "the project's own configuration is not loaded beside a model key that codex holds; set trust_workspace = false",
            ));
        }
        Ok(())
    }

    fn function_of<'a>(&self, tool: &'a str) -> Option<&'a str> {
        let name = tool.strip_prefix("functions.").unwrap_or(tool);
        (!name.contains('.')).then_some(name)
    }

    fn check_history(&self, home: &Path, resume: &Resume) -> BoxFuture<'_, Result<(), HistoryFault>> {
        let (home, resume) = (start::codex_home(home), resume.clone());
        Box::pin(async move {
            let checked = tokio::task::spawn_blocking(move || history::check(&home, &resume)).await;
            checked.unwrap_or(Err(HistoryFault::Corrupt))
        })
    }

    fn reconcile(&self, home: &Path, native_session_id: &str, native_turn_id: &str) -> BoxFuture<'_, Option<Proof>> {
        let home = start::codex_home(home);
        let (thread, turn) = (native_session_id.to_owned(), native_turn_id.to_owned());
        Box::pin(async move {
            let found = tokio::task::spawn_blocking(move || history::ending(&home, &thread, &turn)).await.ok()??;
            Some(found.into_proof(&failure::Errors::unseen(), &crate::cleaner::Cleaner::default()))
        })
    }

    fn inputs_read(
        &self,
        home: &Path,
        native_session_id: &str,
        native_turn_id: &str,
    ) -> BoxFuture<'_, Option<ProvedInputs>> {
        let home = start::codex_home(home);
        let (thread, turn) = (native_session_id.to_owned(), native_turn_id.to_owned());
        Box::pin(async move {
            tokio::task::spawn_blocking(move || history::inputs(&home, &thread, &turn)).await.unwrap_or_default()
        })
    }

    fn prepare(&self, launch: Launch) -> BoxFuture<'_, Result<Executor, PrepareError>> {
        Box::pin(async {
            let found = self.look().await;
            let program = found.program.clone().unwrap_or_default();
            let bundled = Box::pin(self.models(&program));
            start::prepare(&self.settings, found, bundled, launch, &self.tasks).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_of_another_namespace_is_no_function() {
        let codex = Codex::new(Settings::new("/keeper".into(), crate::harness::Isolation::Outer));
        for (tool, want) in [("f", Some("f")), ("functions.f", Some("f")), ("mcp__s.f", None), ("functions.a.f", None)]
        {
            assert_eq!(codex.function_of(tool), want, "{tool}");
        }
    }
}
