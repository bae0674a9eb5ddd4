//! Values of controls against those that a Harness takes (contract 9). Each refusal names its field, and what is allowed.

use std::fmt::Display;

use super::{Taker, needs, refused};
use crate::harness::{AcceptedValues, Capability, Controls, NotAdmitted, SearchLimits, TextVerbosity, WebSearch};

const SEARCH: &str = "tools.controls.web_search";

/// Checks the controls that public JSON has among its tools.
pub(super) fn tools(taker: &Taker<'_>, controls: &Controls) -> Result<(), NotAdmitted> {
    let (kind, limits) = (taker.kind, taker.limits);
    if let Some(search) = &controls.web_search {
        web_search(kind, &limits.web_search, search)?;
        executed(taker, SEARCH)?;
    }
    if let Some(value) = controls.programmatic_tool_calling {
        let field = "tools.controls.programmatic_tool_calling";
        one_of(kind, field, &value, limits.programmatic_tool_calling)?;
        executed(taker, field)?;
    }
    Ok(())
}

/// Checks the controls of how answers come about.
pub(super) fn answers(taker: &Taker<'_>, controls: &Controls) -> Result<(), NotAdmitted> {
    let (kind, limits) = (taker.kind, taker.limits);
    if let Some(level) = controls.text_verbosity {
        let field = "tools.controls.text_verbosity";
        let names: Vec<_> = limits.text_verbosities.iter().map(|level| level.name()).collect();
        one_of(kind, field, &level.name(), &names)?;
        if level != TextVerbosity::Medium && !taker.has(Capability::TextVerbosity) {
            return Err(needs(field, kind, "CAPABILITY_TEXT_VERBOSITY"));
        }
    }
    for (field, value, accepted) in [
        ("tools.controls.reasoning_effort", &controls.reasoning_effort, &limits.reasoning_efforts),
        ("tools.controls.reasoning_summary", &controls.reasoning_summary, &limits.reasoning_summaries),
        ("tools.controls.service_tier", &controls.service_tier, &limits.service_tiers),
    ] {
        if let Some(value) = value {
            named(kind, field, value, accepted)?;
            executed(taker, field)?;
        }
    }
    Ok(())
}

fn executed(taker: &Taker<'_>, field: &str) -> Result<(), NotAdmitted> {
    match taker.has(Capability::ExecutionControls) {
        true => Ok(()),
        false => Err(needs(field, taker.kind, "CAPABILITY_EXECUTION_CONTROLS")),
    }
}

fn web_search(kind: &str, taken: &SearchLimits, search: &WebSearch) -> Result<(), NotAdmitted> {
    if taken.modes.is_empty() {
        return Err(refused(SEARCH, format!("{kind} takes no mode yet")));
    }
    if !taken.modes.contains(&search.mode) {
        let names: Vec<_> = taken.modes.iter().map(|mode| mode.name()).collect();
        let (asked, names) = (search.mode.name(), names.join(" and "));
        return Err(refused(SEARCH, format!("{kind} does not take the mode {asked}; it takes {names}")));
    }
    if let Some(size) = search.context_size {
        let names: Vec<_> = taken.context_sizes.iter().map(|size| size.name()).collect();
        one_of(kind, &format!("{SEARCH}.context_size"), &size.name(), &names)?;
    }
    if search.allowed_domains.is_some() && !taken.domains {
        return Err(refused(
            format!("{SEARCH}.allowed_domains"),
            format!("{kind} takes no list of domains, not even an empty one; leave it out"),
        ));
    }
    if search.location.is_some() && !taken.location {
        return Err(refused(format!("{SEARCH}.location"), format!("{kind} takes no location; leave it out")));
    }
    Ok(())
}

fn one_of<T: PartialEq + Display>(kind: &str, field: &str, value: &T, taken: &[T]) -> Result<(), NotAdmitted> {
    if taken.contains(value) {
        return Ok(());
    }
    let names: Vec<_> = taken.iter().map(ToString::to_string).collect();
    Err(not_taken(kind, field, &value.to_string(), &names.join(", ")))
}

/// The value may be anything of Core's, so little of it is repeated.
fn named(kind: &str, field: &str, value: &str, accepted: &AcceptedValues) -> Result<(), NotAdmitted> {
    if accepted.values.contains(&value) {
        return Ok(());
    }
    let shown: String = value.chars().take(32).flat_map(char::escape_debug).collect();
    Err(not_taken(kind, field, &shown, &accepted.values.join(", ")))
}

fn not_taken(kind: &str, field: &str, value: &str, taken: &str) -> NotAdmitted {
    match taken {
        "" => refused(field, format!("{kind} does not take it; leave it out")),
        taken => refused(field, format!("{kind} does not take {value}; it takes {taken}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::WebSearchMode;

    #[test]
    fn a_mode_that_is_not_declared_names_those_that_are() {
        let told = |modes: &'static [WebSearchMode], mode| {
            let limits = SearchLimits { modes, context_sizes: &[], domains: false, location: false };
            web_search("x", &limits, &WebSearch::of(mode)).map_err(|refused| refused.message)
        };
        let both: &[WebSearchMode] = &[WebSearchMode::Disabled, WebSearchMode::Live];
        assert_eq!(told(both, WebSearchMode::Live), Ok(()));
        assert_eq!(
            told(both, WebSearchMode::Cached),
            Err("x does not take the mode cached; it takes disabled and live".into())
        );
        assert_eq!(told(&[], WebSearchMode::Live), Err("x takes no mode yet".into()));
    }

    #[test]
    fn a_value_that_is_not_taken_is_cut_and_answered_with_those_that_are() {
        let accepted = AcceptedValues { values: &["high", "low"], by_model: true };
        let told = |value: &str| named("x", "f", value, &accepted).map_err(|refused| refused.message);
        assert_eq!(told("low"), Ok(()));
        assert_eq!(told("Low"), Err("x does not take Low; it takes high, low".into()));
        assert!(told(&"\u{7}".repeat(9999)).unwrap_err().len() < 400);
        let none = AcceptedValues { values: &[], by_model: false };
        let refused = named("x", "f", "low", &none).unwrap_err();
        assert_eq!(refused.message, "x does not take it; leave it out");
    }
}
