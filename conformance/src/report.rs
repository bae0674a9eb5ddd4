//! The page that says what a whole run of the scenarios showed: each scenario with each Harness under each placement. It has
//! no times and a fixed order, so that two runs of the same build give the same page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::evidence::Outcome;
use crate::rig::Harness;

/// The placements, in the order of the columns.
const PLACEMENTS: [&str; 2] = ["none", "workspace"];

/// The scenario bound no Session.
const NOTHING_BOUND: &str = "·";

/// The scenario is not written for the Harness.
const NOT_WRITTEN: &str = "-";

/// What is wrong with a run: scenarios that failed, scenarios for every Harness that ran with some of them only, and scenarios that do not say
/// why one is enough.
#[must_use]
pub fn complaints(outcomes: &[Outcome]) -> Vec<String> {
    let failed = outcomes.iter().filter(|outcome| !outcome.passed);
    let failed = failed.map(|outcome| {
        let why = outcome.error.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
        format!("failed: {} of {}: {why}", full_name(outcome), outcome.harness)
    });
    let absent = by_name(outcomes, |outcome| outcome.for_each).into_iter().flat_map(|(name, of)| {
        let ran: BTreeSet<_> = of.iter().map(|outcome| &*outcome.harness).collect();
        let missing = written_for(&of).iter().filter(move |harness| !ran.contains(harness.kind()));
        missing.map(move |harness| format!("not run: {name} of {}", harness.kind()))
    });
    let unreasoned = by_name(outcomes, |outcome| !outcome.for_each && why(outcome).is_none());
    let unreasoned = unreasoned.into_keys().map(|name| format!("without a reason for one Harness: {name}"));
    failed.chain(absent).chain(unreasoned).collect()
}

/// The Harnesses that a scenario of these outcomes is written for: those that speak ACP, those that do not, or every one.
fn written_for(outcomes: &[&Outcome]) -> &'static [Harness] {
    let ran_with = |these: &[Harness]| {
        outcomes.iter().any(|outcome| these.iter().any(|harness| harness.kind() == outcome.harness))
    };
    match (ran_with(&Harness::ALL), ran_with(&Harness::ACP)) {
        (true, true) => &Harness::EVERY,
        (false, true) => &Harness::ACP,
        (_, false) => &Harness::ALL,
    }
}

/// Why a scenario runs with one Harness, or with none of its own.
fn why(outcome: &Outcome) -> Option<&str> {
    let told = outcome.only.as_deref().or(outcome.bridge.as_deref());
    let together = outcome.all.then_some("they are there together");
    told.or(together)
}

/// The page.
#[must_use]
pub fn page(outcomes: &[Outcome]) -> String {
    let sections = [
        "# Conformance report\n\n\
         Written by `runtime-bridge-conformance report` from a whole run of `scripts/test`, with the real Harnesses that\n\
         `scripts/install-harnesses` brings and the bundled model provider. `scripts/test` says where it sees another one.\n"
            .to_owned()
            + told_of_acp(outcomes),
        for_each(outcomes),
        of_one(outcomes),
        of_the_bridge(outcomes),
    ];
    sections.join("\n")
}

fn full_name(outcome: &Outcome) -> String {
    format!("{}::{}", outcome.file, outcome.name)
}

fn by_name(outcomes: &[Outcome], of: impl Fn(&Outcome) -> bool) -> BTreeMap<String, Vec<&Outcome>> {
    let mut named: BTreeMap<String, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|outcome| of(outcome)) {
        named.entry(full_name(outcome)).or_default().push(outcome);
    }
    named
}

/// A scenario whose way is that of one Harness, although the real one runs.
fn is_of_one(outcome: &Outcome) -> bool {
    !outcome.for_each && outcome.only.is_some()
}

/// What a reader has to know of the columns that are not there without a scenario for every Harness.
fn told_of_acp(outcomes: &[Outcome]) -> &'static str {
    if !columns(outcomes).contains(&Harness::MinimaxCode) {
        return "";
    }
    "\nMiniMax Code cannot be installed here: what stands for it is a double, written from what is known of it, so its column\n\
     shows the bridge and not the Harness.\n"
}

/// The Harnesses that have columns: those for every scenario, and all where a scenario ran with one that speaks ACP.
fn columns(outcomes: &[Outcome]) -> &'static [Harness] {
    written_for(&outcomes.iter().filter(|outcome| outcome.for_each).collect::<Vec<_>>())
}

fn for_each(outcomes: &[Outcome]) -> String {
    let mut page = "## Every Harness\n\n\
        These are written once and run with each Harness. `not declared`: the scenario needs a capability that the Harness\n\
        does not have there, which is named below. A point: the scenario binds no Session under that placement.\n\n"
        .to_owned();
    let harnesses = columns(outcomes);
    if harnesses.len() > Harness::ALL.len() {
        page += "A dash: the scenario is not written for the Harness.\n\n";
    }
    let columns = || harnesses.iter().flat_map(|&harness| PLACEMENTS.map(|placement| (harness, placement)));
    let titles: Vec<_> = columns().map(|(harness, placement)| format!("{}, {placement}", harness.title())).collect();
    line(&mut page, &format!("| scenario | {} |", titles.join(" | ")));
    line(&mut page, &format!("| --- |{}", " --- |".repeat(titles.len())));
    let mut reasons = Vec::new();
    for (name, of) in by_name(outcomes, |outcome| outcome.for_each) {
        let find = |harness: Harness| of.iter().copied().find(|outcome| outcome.harness == harness.kind());
        let written = written_for(&of);
        let cell = |(harness, placement)| match written.contains(&harness) {
            true => cell(find(harness), placement),
            false => NOT_WRITTEN,
        };
        let cells: Vec<_> = columns().map(cell).collect();
        line(&mut page, &format!("| {name} | {} |", cells.join(" | ")));
        reasons.extend(of.iter().filter(|outcome| !outcome.not_declared.is_empty()).map(|outcome| {
            format!("- {name}, {}: {} is not declared", outcome.harness, outcome.not_declared.join(", "))
        }));
    }
    if !reasons.is_empty() {
        line(&mut page, "\nNot declared:\n");
        reasons.iter().for_each(|reason| line(&mut page, reason));
    }
    page
}

fn cell(outcome: Option<&Outcome>, placement: &str) -> &'static str {
    match outcome {
        None => "not run",
        Some(outcome) if !outcome.passed => "FAIL",
        Some(outcome) if !outcome.placements.iter().any(|one| one == placement) => NOTHING_BOUND,
        Some(outcome) if !outcome.not_declared.is_empty() => "not declared",
        Some(_) => "pass",
    }
}

fn of_one(outcomes: &[Outcome]) -> String {
    let mut page = "## One Harness\n\n\
        These look at what is one Harness's own, so the others have nothing to show.\n\n\
        | scenario | Harness | placements | result | why only this one |\n| --- | --- | --- | --- | --- |\n"
        .to_owned();
    for (name, of) in by_name(outcomes, is_of_one) {
        for outcome in of {
            let (placements, result) = (outcome.placements.join(", "), result(outcome));
            let why = why(outcome).unwrap_or_default();
            line(&mut page, &format!("| {name} | {} | {placements} | {result} | {why} |", outcome.harness));
        }
    }
    page
}

fn of_the_bridge(outcomes: &[Outcome]) -> String {
    let mut page = "## The bridge\n\n\
        These show rules that the bridge keeps by itself, before or beside the Harness, so one Harness is enough: the real one, or\n\
        a fault child in its place that misbehaves on purpose.\n\n\
        | scenario | with | result | why it is enough |\n| --- | --- | --- | --- |\n"
        .to_owned();
    for (name, of) in by_name(outcomes, |outcome| !outcome.for_each && !is_of_one(outcome)) {
        for outcome in of {
            let with = match (outcome.all, outcome.real) {
                (true, _) => &*Harness::EVERY.map(Harness::kind).join(", "),
                (false, true) => &*outcome.harness,
                (false, false) if outcome.double => &*outcome.harness,
                (false, false) => "a fault child",
            };
            let why = why(outcome).unwrap_or_default();
            line(&mut page, &format!("| {name} | {with} | {} | {why} |", result(outcome)));
        }
    }
    page
}

fn result(outcome: &Outcome) -> &'static str {
    match (outcome.passed, outcome.not_declared.is_empty()) {
        (false, _) => "FAIL",
        (true, true) => "pass",
        (true, false) => "not declared",
    }
}

fn line(page: &mut String, text: &str) {
    // Writing to a string cannot fail.
    _ = writeln!(page, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, harness: &str, placements: &[&str]) -> Outcome {
        Outcome {
            name: name.into(),
            file: "turns".into(),
            harness: harness.into(),
            for_each: true,
            real: true,
            placements: placements.iter().map(|&one| one.to_owned()).collect(),
            passed: true,
            ..Outcome::default()
        }
    }

    #[test]
    fn a_scenario_has_a_cell_for_each_harness_and_placement() {
        let undeclared =
            Outcome { not_declared: vec!["steering under none".into()], ..outcome("b", "codex", &["none"]) };
        let outcomes = [
            outcome("a", "codex", &["none", "workspace"]),
            outcome("a", "claude_code", &["workspace"]),
            undeclared,
            Outcome { passed: false, error: Some("x\ny".into()), ..outcome("b", "claude_code", &[]) },
        ];
        let page = page(&outcomes);
        assert!(page.contains("| turns::a | pass | pass | · | pass |"), "{page}");
        assert!(page.contains("| turns::b | not declared | · | FAIL | FAIL |"), "{page}");
        assert!(page.contains("- turns::b, codex: steering under none is not declared"), "{page}");
        assert_eq!(complaints(&outcomes), ["failed: turns::b of claude_code: x"]);
    }

    #[test]
    fn harnesses_that_speak_acp_have_columns_where_a_scenario_is_written_for_them() {
        let both = |name: &str| ["codex", "claude_code"].map(|harness| outcome(name, harness, &["workspace"]));
        let acp = ["minimax_code", "opencode"].map(|harness| outcome("a", harness, &["workspace"]));
        let outcomes = [&both("a")[..], &both("b"), &acp].concat();
        let page = super::page(&outcomes);
        assert!(
            page.contains("| MiniMax Code (fake), none | MiniMax Code (fake), workspace | opencode (ACP), none |"),
            "{page}"
        );
        assert!(page.contains("| turns::a | · | pass | · | pass | · | pass | · | pass |"), "{page}");
        assert!(page.contains("| turns::b | · | pass | · | pass | - | - | - | - |"), "{page}");
        assert!(page.contains("a double"), "{page}");
        assert_eq!(complaints(&outcomes), [""; 0]);
        assert_eq!(complaints(&outcomes[..5]), ["not run: turns::a of opencode"]);
        let page = super::page(&outcomes[2..]);
        assert!(page.contains("| turns::a | - | - | - | - | · | pass | · | pass |"), "{page}");
        assert_eq!(complaints(&outcomes[2..]), [""; 0]);
        assert_eq!(complaints(&outcomes[2..5]), ["not run: turns::a of opencode"]);
        let page = super::page(&both("a"));
        assert!(!page.contains("double") && !page.contains("opencode"), "{page}");
    }

    #[test]
    fn what_ran_with_one_harness_says_why_or_is_the_bridges_own() {
        let native =
            Outcome { for_each: false, only: Some("its wire".into()), ..outcome("c", "codex", &["workspace"]) };
        let bridge = Outcome { for_each: false, bridge: Some("a list".into()), ..outcome("d", "codex", &[]) };
        let fault = Outcome { real: false, ..Outcome { name: "e".into(), ..bridge.clone() } };
        let all = Outcome { all: true, bridge: None, ..Outcome { name: "f".into(), ..bridge.clone() } };
        let silent = Outcome { bridge: None, ..bridge.clone() };
        assert_eq!(complaints(&[native.clone(), fault.clone(), all.clone()]), [""; 0]);
        assert_eq!(complaints(&[silent]), ["without a reason for one Harness: turns::d"]);
        let page = page(&[native, bridge, fault, all]);
        assert!(page.contains("| turns::c | codex | workspace | pass | its wire |"), "{page}");
        assert!(page.contains("| turns::d | codex | pass | a list |"), "{page}");
        assert!(page.contains("| turns::e | a fault child | pass | a list |"), "{page}");
        assert!(
            page.contains("| turns::f | codex, claude_code, minimax_code, opencode | pass | they are there together |"),
            "{page}"
        );
        assert_eq!(complaints(&[outcome("a", "codex", &[])]), ["not run: turns::a of claude_code"]);
    }
}
