//! Execution controls as Codex takes them (contract section 9): settings of a thread, which a resumed one is given again, a check against what the
//! catalogue says of the model, and a look at what the machine's managed requirements leave of it. What is absent stays native.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{catalogue::Entry, wire};
use crate::harness::{ContextSize, Controls, Isolation, Placement, TextVerbosity, WebSearchMode};

/// The features by which models call tools from scripts; the last one makes the place ready in which the scripts run.
const SCRIPTS: [&str; 3] = ["code_mode", "code_mode_only", "code_mode_prewarm"];

/// The tier that is the provider's own choice: nothing is asked for, whatever the model.
const AUTO: &str = "auto";
/// A tier that Codex hands on for every model.
const FLEX: &str = "flex";

/// Settings of a thread; the names are those of the start-up file.
#[derive(Debug, Serialize)]
pub(super) struct Controlled<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    web_search: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Tools<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    features: BTreeMap<&'static str, bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_verbosity: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_reasoning_effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_reasoning_summary: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Tools<'a> {
    web_search: Search<'a>,
}

#[derive(Debug, Serialize)]
struct Search<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    context_size: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_domains: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<Location<'a>>,
}

#[derive(Debug, Serialize)]
struct Location<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    city: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    country: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<&'a str>,
}

/// What a thread is told.
pub(super) fn settings(controls: &Controls) -> Controlled<'_> {
    let tools = controls.web_search.as_ref().and_then(|search| {
        let location = search.location.as_ref().map(|place| Location {
            city: place.city.as_deref(),
            country: place.country.as_deref(),
            region: place.region.as_deref(),
            timezone: place.timezone.as_deref(),
        });
        let (size, domains) = (search.context_size.map(ContextSize::name), search.allowed_domains.as_deref());
        let said = size.is_some() || domains.is_some() || location.is_some();
        said.then_some(Tools { web_search: Search { context_size: size, allowed_domains: domains, location } })
    });
    Controlled {
        web_search: controls.web_search.as_ref().map(|search| search.mode.name()),
        tools,
        features: match controls.programmatic_tool_calling {
            None => BTreeMap::new(),
            Some(true) => BTreeMap::from([("code_mode", true)]),
            Some(false) => SCRIPTS.map(|feature| (feature, false)).into(),
        },
        model_verbosity: controls.text_verbosity.map(TextVerbosity::name),
        model_reasoning_effort: controls.reasoning_effort.as_deref(),
        model_reasoning_summary: controls.reasoning_summary.as_deref(),
        service_tier: controls.service_tier.as_deref(),
    }
}

/// With full access Codex takes a search of what the provider keeps for one of the web as it is. To the sandbox of somebody else, which is as open, it
/// does not; a thread is not started with that one, so each turn is.
pub(super) fn sandbox_policy(
    controls: &Controls,
    placement: &Placement,
    isolation: Isolation,
) -> Option<wire::SandboxPolicy> {
    let cached = controls.web_search.as_ref().is_some_and(|search| search.mode == WebSearchMode::Cached);
    let open = isolation == Isolation::Outer && *placement != Placement::None;
    (cached && open).then_some(wire::EXTERNAL_SANDBOX)
}

/// Whether the model's entry in the catalogue has a say.
pub(super) fn ask_the_catalogue(controls: &Controls) -> bool {
    controls.programmatic_tool_calling == Some(false)
        || is_verbosity(controls)
        || controls.reasoning_effort.is_some()
        || controls.service_tier.as_deref().is_some_and(|tier| tier != AUTO)
}

/// Whether more or less than usual is to be said: what the catalogue says of it is then what Codex must go by.
pub(super) fn is_verbosity(controls: &Controls) -> bool {
    matches!(controls.text_verbosity, Some(TextVerbosity::Low | TextVerbosity::High))
}

/// Checks the controls against the model's entry. For a model without one Codex hands on what it is told, but for what is refused here: it drops that
/// without a word.
///
/// # Errors
/// What does not fit, for a person.
pub(super) fn check(controls: &Controls, model: &str, entry: Option<&Entry>) -> Result<(), String> {
    let unknown = || format!("the catalogue of codex has no model {model}");
    if let Some(verbosity) = controls.text_verbosity.filter(|_| is_verbosity(controls)) {
        let asked = verbosity.name();
        let entry = entry.ok_or_else(|| {
            format!("text_verbosity cannot be {asked}: {}, and codex tells such a model nothing of it", unknown())
        })?;
        if !entry.takes_verbosity() {
            return Err(format!("text_verbosity cannot be {asked}: the model {model} does not take it"));
        }
    }
    if let Some((effort, entry)) = controls.reasoning_effort.as_deref().zip(entry) {
        among("reasoning_effort", effort, &entry.efforts(), model)?;
    }
    if let Some(tier) = controls.service_tier.as_deref().filter(|tier| *tier != AUTO) {
        match entry {
            Some(entry) => among("service_tier", tier, &entry.tiers(), model)?,
            None if tier != FLEX => {
                return Err(format!("service_tier cannot be {tier}: {}, and codex asks for no tier then", unknown()));
            }
            None => {}
        }
    }
    Ok(())
}

fn among(control: &str, asked: &str, listed: &[&str], model: &str) -> Result<(), String> {
    if listed.contains(&asked) {
        return Ok(());
    }
    let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
    Err(format!("{control} cannot be {asked}: for the model {model} the catalogue of codex lists {listed}"))
}

/// Whether a catalogue of the machine's would be another one than the bridge goes by: the one that a thread is told (`catalogue`), or that in which its
/// model was looked up.
fn goes_by_a_catalogue(controls: &Controls, catalogue: bool) -> bool {
    catalogue || ask_the_catalogue(controls)
}

/// Whether the managed requirements of the machine can change what a thread is told: they go before all else. `catalogue` says that it is told one.
pub(super) fn ask_the_requirements(controls: &Controls, catalogue: bool) -> bool {
    goes_by_a_catalogue(controls, catalogue)
        || controls.programmatic_tool_calling.is_some()
        || controls.web_search.is_some()
}

/// Checks that the managed requirements leave the controls alone.
///
/// # Errors
/// What they force, for a person.
pub(super) fn allowed(requirements: &wire::Requirements, controls: &Controls, catalogue: bool) -> Result<(), String> {
    let force = |what: String| Err(format!("the managed requirements of this machine {what}"));
    let features = requirements.feature_requirements.as_ref();
    let forced = |feature: &str| features.and_then(|features| features.get(feature)).copied();
    match controls.programmatic_tool_calling {
        Some(true) if forced("code_mode") == Some(false) => {
            return force(
                "keep the feature code_mode off, without which programmatic_tool_calling cannot be on".into(),
            );
        }
        Some(false) => {
            if let Some(feature) = SCRIPTS.into_iter().find(|feature| forced(feature) == Some(true)) {
                return force(format!(
                    "keep the feature {feature} on, with which programmatic_tool_calling cannot be off"
                ));
            }
        }
        Some(true) | None => {}
    }
    // Codex always allows to search nowhere.
    let mode = controls.web_search.as_ref().map(|search| search.mode).filter(|mode| *mode != WebSearchMode::Disabled);
    if let Some((mode, modes)) = mode.map(WebSearchMode::name).zip(requirements.allowed_web_search_modes.as_ref())
        && !modes.iter().any(|allowed| allowed == mode)
    {
        return force(format!("do not allow web_search to be {mode}"));
    }
    if goes_by_a_catalogue(controls, catalogue) && requirements.model_catalog_json.is_some() {
        return force("set a catalogue of models, which takes the place of what the Session needs".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
