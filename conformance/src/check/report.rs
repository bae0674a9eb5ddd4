//! What a check found out, rule by rule.

use std::collections::BTreeSet;
use std::fmt;

/// One thing that a rule asks for, and whether it was so.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// The scenario that looked.
    pub scenario: &'static str,
    /// The rule, such as `R-EVT-1`.
    pub rule: &'static str,
    /// What was looked at.
    pub what: String,
    /// Whether it was so.
    pub verdict: Verdict,
}

/// Whether something was as the rule has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was.
    Passed,
    /// It was not, and how.
    Failed(String),
    /// It could not be looked at from here, and why.
    Unjudged(String),
}

/// Everything that was judged.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// In the order in which it was judged.
    pub judgements: Vec<Judgement>,
}

impl Report {
    /// The rules that something was found against.
    #[must_use]
    pub fn failed(&self) -> BTreeSet<&'static str> {
        let failed = self.judgements.iter().filter(|one| matches!(one.verdict, Verdict::Failed(_)));
        failed.map(|one| one.rule).collect()
    }

    /// The rules that were looked at, and nothing was found against.
    #[must_use]
    pub fn passed(&self) -> BTreeSet<&'static str> {
        let passed = self.judgements.iter().filter(|one| one.verdict == Verdict::Passed);
        let failed = self.failed();
        passed.map(|one| one.rule).filter(|rule| !failed.contains(rule)).collect()
    }
}

impl fmt::Display for Report {
    /// One line for each judgement, then the numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Judgement { scenario, rule, what, verdict } in &self.judgements {
            match verdict {
                Verdict::Passed => writeln!(f, "passed    {rule:<9} {scenario}: {what}")?,
                Verdict::Failed(how) => writeln!(f, "FAILED    {rule:<9} {scenario}: {what}: {how}")?,
                Verdict::Unjudged(why) => writeln!(f, "unjudged  {rule:<9} {scenario}: {what}: {why}")?,
            }
        }
        let failed: Vec<_> = self.failed().into_iter().collect();
        write!(f, "{} rules passed, {} failed", self.passed().len(), failed.len())?;
        if failed.is_empty() { Ok(()) } else { write!(f, ": {}", failed.join(", ")) }
    }
}

/// The judgements of one scenario.
#[derive(Debug)]
pub(super) struct Judge<'a> {
    report: &'a mut Report,
    scenario: &'static str,
}

impl<'a> Judge<'a> {
    pub(super) fn new(report: &'a mut Report, scenario: &'static str) -> Self {
        Self { report, scenario }
    }

    /// Judges by what was found: nothing, or what is otherwise.
    pub(super) fn found(&mut self, rule: &'static str, what: &str, found: anyhow::Result<()>) {
        let verdict = found.map_or_else(|error| Verdict::Failed(format!("{error:#}")), |()| Verdict::Passed);
        self.note(rule, what, verdict);
    }

    /// Judges by a comparison.
    pub(super) fn equal<T: fmt::Debug + PartialEq>(&mut self, rule: &'static str, what: &str, found: &T, want: &T) {
        let problem = (found != want).then(|| anyhow::anyhow!("{found:?} instead of {want:?}"));
        self.found(rule, what, problem.map_or(Ok(()), Err));
    }

    /// Says that something could not be looked at.
    pub(super) fn unjudged(&mut self, rule: &'static str, what: &str, why: &str) {
        self.note(rule, what, Verdict::Unjudged(why.into()));
    }

    fn note(&mut self, rule: &'static str, what: &str, verdict: Verdict) {
        self.report.judgements.push(Judgement { scenario: self.scenario, rule, what: what.into(), verdict });
    }
}
