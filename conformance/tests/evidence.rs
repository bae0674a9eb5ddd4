//! What is declared is proved (R-CAP-3): each capability names a scenario that is there. That it ran and passed is checked behind a whole run, by
//! `runtime-bridge-conformance evidence` in `scripts/test`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context;
use conformance::evidence::{flaws, named};
use conformance::rig::{Setup, scenario};
use proto::v1::{self, Capability};

/// Whether a test file runs a scenario of this name.
fn runs(text: &str, name: &str) -> bool {
    let calls = text.split("scenario(").skip(1).map(str::trim_start);
    calls
        .filter_map(|call| call.strip_prefix('"'))
        .any(|call| call.strip_prefix(name).is_some_and(|rest| rest.starts_with('"')))
}

#[test]
fn every_capability_names_a_scenario_that_is_there() {
    scenario("evidence", &["R-CAP-1", "R-CAP-2", "R-CAP-3"], Setup::outer().with_all(), async |rig| {
        let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        let mut declared = BTreeSet::new();
        for harness in &info.harnesses {
            assert_eq!(flaws(harness), [""; 0]);
            assert!(!harness.evidence.is_empty(), "{} declares nothing", harness.kind);
            for one in &harness.evidence {
                let (file, name) = named(&one.scenario).context("a scenario without a name")?;
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("{file}.rs"));
                let text = fs::read_to_string(&path).with_context(|| format!("{} is not there", path.display()))?;
                assert!(runs(&text, name), "{file} has no scenario {name}, which is to prove {:?}", one.capability());
                declared.insert(one.capability());
            }
        }
        // The protocol holds what works, so what is not declared is forgotten.
        let all = (1..1000).filter_map(|number| Capability::try_from(number).ok());
        let missing: Vec<_> = all.filter(|capability| !declared.contains(capability)).collect();
        assert_eq!(missing, []);
        Ok(())
    });
}

#[test]
fn a_scenario_is_known_by_its_whole_name() {
    let text = "scenario(\"text\", &[], …); scenario(\n    \"usage_kept\",";
    assert!(runs(text, "text") && runs(text, "usage_kept"));
    for other in ["tex", "usage", "text\"", ""] {
        assert!(!runs(text, other), "{other}");
    }
}
