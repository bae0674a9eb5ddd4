//! The Harnesses that the daemon hosts, each as this machine's operator wants it.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use adapters::{
    codex::{self, Codex},
    harness::Harness,
};

use crate::config::Settings;

/// Every Harness that the daemon knows; whether it can be used here, its declaration tells.
#[derive(Clone, Debug)]
pub(crate) struct Harnesses {
    codex: Arc<Codex>,
}

impl Harnesses {
    /// All of them, as the operator wants them. Starts nothing.
    pub(crate) fn new(settings: &Settings, keeper: PathBuf) -> Self {
        Self { codex: Arc::new(Codex::new(codex(settings, keeper))) }
    }

    /// Each by its kind.
    pub(crate) fn by_kind(&self) -> BTreeMap<&'static str, Arc<dyn Harness>> {
        let all: [Arc<dyn Harness>; 1] = [Arc::clone(&self.codex) as _];
        all.into_iter().map(|harness| (harness.kind(), harness)).collect()
    }

    /// Waits until every Executor that was prepared is gone.
    pub(crate) async fn drained(&self) {
        self.codex.drained().await;
    }
}

/// How Codex is run on this machine.
fn codex(settings: &Settings, keeper: PathBuf) -> codex::Settings {
    let mut codex = codex::Settings::new(keeper, settings.isolation());
    codex.program.clone_from(&settings.codex);
    codex.trust_workspace = settings.trust_workspace;
    codex.max_line_bytes = settings.limits.max_line_bytes;
    codex.spool_bytes = settings.limits.spool_bytes;
    codex.limits.start = settings.limits.harness_start;
    codex.limits.settlement = settings.limits.settlement;
    codex
}
