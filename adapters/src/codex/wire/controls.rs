//! What controls need of `codex app-server` beside the settings of a thread.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The answer to `configRequirements/read`.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct RequirementsRead {
    /// None where the machine has none.
    pub(in crate::codex) requirements: Option<Requirements>,
}

/// What the machine's managed configuration forces, as far as it is needed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct Requirements {
    pub(in crate::codex) feature_requirements: Option<BTreeMap<String, bool>>,
    pub(in crate::codex) allowed_web_search_modes: Option<Vec<String>>,
    pub(in crate::codex) model_catalog_json: Option<String>,
}

/// A sandbox that a turn is given in the place of the thread's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::codex) struct SandboxPolicy {
    #[serde(rename = "type")]
    kind: &'static str,
    network_access: &'static str,
}

/// Somebody else isolates it: full access, in other words.
pub(in crate::codex) const EXTERNAL_SANDBOX: SandboxPolicy =
    SandboxPolicy { kind: "externalSandbox", network_access: "enabled" };
