//! What proves a declaration (R-CAP-3): each capability names a scenario, which must exist, and must have passed with the real Harness, or with the double
//! of one that cannot be installed. Which rules were shown is told beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use proto::v1;
use serde::{Deserialize, Serialize};

/// What a scenario left behind, in `<target>/scenarios/<name>.<harness>.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// The test file that has it, without folder and ending.
    pub file: String,
    /// The Harness, as the protocol calls it.
    pub harness: String,
    /// Whether the scenario is written for every Harness.
    pub for_each: bool,
    /// Whether the daemon had all Harnesses at once.
    pub all: bool,
    /// Why it runs with this Harness only, where that is the Harness's own way.
    pub only: Option<String>,
    /// Why one Harness is enough, where the rule is the bridge's own.
    pub bridge: Option<String>,
    /// Whether the real Harness ran, and no fault child in its place.
    pub real: bool,
    /// Whether the double ran of a Harness that cannot be installed: the only proof that there can be of it.
    #[serde(default)]
    pub double: bool,
    /// The placements under which it bound Sessions.
    pub placements: Vec<String>,
    /// What it needs and the Harness does not declare: capabilities under placements. Then nothing else was checked.
    pub not_declared: Vec<String>,
    /// The rules that it shows.
    pub rules: Vec<String>,
    /// Whether it passed.
    pub passed: bool,
    /// How long it took.
    pub took_ms: u64,
    /// Why it failed.
    pub error: Option<String>,
}

impl Outcome {
    /// Whether the scenario ran with the real Harness of this kind, or with the double that there is instead, under this placement, and passed.
    fn proves(&self, kind: &str, placement: &str) -> bool {
        let ran = self.placements.iter().any(|bound| bound == placement);
        ran && self.harness == kind && (self.real || self.double) && self.passed && self.not_declared.is_empty()
    }
}

/// The scenarios that left something in a folder.
///
/// # Errors
/// When the folder or a file in it cannot be read.
pub fn outcomes(folder: &Path) -> anyhow::Result<Vec<Outcome>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut outcomes = Vec::new();
    for path in entries.map(|entry| entry.map(|entry| entry.path())) {
        let path = path?;
        let text = fs::read_to_string(&path)?;
        outcomes.push(serde_json::from_str(&text).with_context(|| format!("{} is no outcome", path.display()))?);
    }
    Ok(outcomes)
}

/// What is wrong with a declaration's evidence: an entry for each capability of each placement, in their order, each with the name of a scenario.
#[must_use]
pub fn flaws(of: &v1::HarnessDeclaration) -> Vec<String> {
    let declared = |placement: &'static str, of: &[i32]| of.iter().map(|&one| (one, placement)).collect::<Vec<_>>();
    let want = [declared("none", &of.none), declared("workspace", &of.workspace)].concat();
    let have: Vec<_> = of.evidence.iter().map(|one| (one.capability, one.placement.as_str())).collect();
    let mut flaws = Vec::new();
    if have != want {
        flaws.push(format!("{}: the evidence is of {have:?}, and {want:?} is declared", of.kind));
    }
    let unnamed = of.evidence.iter().filter(|one| named(&one.scenario).is_none());
    flaws.extend(
        unnamed.map(|one| format!("{}: {:?} names no scenario: {:?}", of.kind, one.capability(), one.scenario)),
    );
    flaws
}

/// The scenarios that a declaration names and that did not run and pass, each with what needs it.
#[must_use]
pub fn unproved(of: &v1::HarnessDeclaration, outcomes: &[Outcome]) -> Vec<String> {
    let passed = |one: &v1::CapabilityEvidence| {
        named(&one.scenario).is_some_and(|(file, name)| {
            let mut named = outcomes.iter().filter(|outcome| outcome.name == name && outcome.file == file);
            named.any(|outcome| outcome.proves(&of.kind, &one.placement))
        })
    };
    let missing = of.evidence.iter().filter(|one| !passed(one));
    let say = |one: &v1::CapabilityEvidence| {
        format!("{}: {:?} under {} needs {}", of.kind, one.capability(), one.placement, one.scenario)
    };
    missing.map(say).collect()
}

/// File and name of a scenario.
#[must_use]
pub fn named(scenario: &str) -> Option<(&str, &str)> {
    scenario.split_once("::").filter(|(file, name)| !file.is_empty() && !name.is_empty())
}

/// Each rule with the scenarios that passed and showed it.
#[must_use]
pub fn rules(outcomes: &[Outcome]) -> BTreeMap<&str, Vec<&str>> {
    let mut rules: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.passed) {
        for rule in &outcome.rules {
            rules.entry(rule).or_default().push(&outcome.name);
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declaration(evidence: &[(v1::Capability, &str, &str)]) -> v1::HarnessDeclaration {
        let entry = |&(capability, placement, scenario): &(v1::Capability, &str, &str)| v1::CapabilityEvidence {
            capability: capability.into(),
            placement: placement.into(),
            scenario: scenario.into(),
        };
        v1::HarnessDeclaration {
            kind: "codex".into(),
            none: vec![v1::Capability::Usage.into()],
            workspace: vec![v1::Capability::Usage.into()],
            evidence: evidence.iter().map(entry).collect(),
            ..Default::default()
        }
    }

    fn outcome(file: &str, name: &str, passed: bool) -> Outcome {
        let rules = vec!["R-EVT-4".into()];
        let placements = vec![if name == "x" { "none" } else { "workspace" }.to_owned()];
        let (name, file, harness) = (name.into(), file.into(), "codex".into());
        Outcome { name, file, harness, real: true, placements, rules, passed, ..Outcome::default() }
    }

    #[test]
    fn every_capability_of_every_placement_needs_a_scenario() {
        let usage = v1::Capability::Usage;
        let whole = declaration(&[(usage, "none", "a::x"), (usage, "workspace", "b::y")]);
        assert_eq!(flaws(&whole), [""; 0]);
        assert_eq!(flaws(&declaration(&[(usage, "workspace", "b::y")])).len(), 1);
        assert_eq!(flaws(&declaration(&[(usage, "none", "x"), (usage, "workspace", "::y")])).len(), 2);
    }

    #[test]
    fn a_scenario_counts_that_ran_in_its_file_and_passed() {
        let usage = v1::Capability::Usage;
        let of = declaration(&[(usage, "none", "a::x"), (usage, "workspace", "b::y")]);
        let ran = |outcomes: &[Outcome]| unproved(&of, outcomes).len();
        assert_eq!(ran(&[]), 2);
        assert_eq!(ran(&[outcome("a", "x", true), outcome("b", "y", true)]), 0);
        assert_eq!(ran(&[outcome("a", "x", false), outcome("b", "y", true)]), 1);
        assert_eq!(ran(&[outcome("b", "x", true), outcome("b", "y", true)]), 1);
        let faked = Outcome { real: false, ..outcome("b", "y", true) };
        assert_eq!(ran(&[outcome("a", "x", true), faked]), 1);
        let double = Outcome { real: false, double: true, ..outcome("b", "y", true) };
        assert_eq!(ran(&[outcome("a", "x", true), double]), 0);
        let of_another = Outcome { harness: "claude_code".into(), ..outcome("b", "y", true) };
        assert_eq!(ran(&[outcome("a", "x", true), of_another]), 1);
        let idle = Outcome { not_declared: vec!["usage under workspace".into()], ..outcome("b", "y", true) };
        assert_eq!(ran(&[outcome("a", "x", true), idle]), 1);
        let elsewhere = Outcome { placements: vec!["none".into()], ..outcome("b", "y", true) };
        assert_eq!(ran(&[outcome("a", "x", true), elsewhere]), 1);
        let outcomes = [outcome("a", "x", true), outcome("b", "y", false)];
        assert_eq!(rules(&outcomes), BTreeMap::from([("R-EVT-4", vec!["x"])]));
    }
}
