//! The page of a Harness says what the real one declares, and names what shows it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Setup, scenario};
use proto::v1::{Capability, GetRuntimeInfoRequest};

/// A row of the table of capabilities, without its name.
#[derive(Debug)]
struct Row {
    none: bool,
    workspace: bool,
    shown_by: Vec<String>,
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The rows below the heading `Capabilities`, by the capability's name.
fn rows(page: &str) -> anyhow::Result<BTreeMap<String, Row>> {
    let (_, table) = page.split_once("# Capabilities\n").context("no table of capabilities")?;
    let table = table.trim_start().split("\n\n").next().unwrap_or_default();
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, none, workspace, shown_by] = cells[..] else { anyhow::bail!("not four cells: {line}") };
        let flag = |cell: &str| match cell {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => anyhow::bail!("neither yes nor no: {line}"),
        };
        let shown_by = shown_by.split(',').map(|one| one.trim().trim_matches('`').to_owned());
        let shown_by = shown_by.filter(|one| !one.is_empty()).collect();
        Ok((name.trim_matches('`').to_owned(), Row { none: flag(none)?, workspace: flag(workspace)?, shown_by }))
    };
    table.lines().skip(2).map(row).collect()
}

fn name(capability: Capability) -> String {
    capability.as_str_name().trim_start_matches("CAPABILITY_").to_lowercase()
}

for_each_harness!(the_page_says_what_is_declared);

#[test]
fn the_page_of_minimax_code_says_what_is_declared_for_its_double() {
    the_page_says_what_is_declared(Harness::MinimaxCode);
}

#[test]
fn the_page_of_agents_says_what_is_declared_of_opencode() {
    the_page_says_what_is_declared(Harness::Opencode);
}

fn the_page_says_what_is_declared(harness: Harness) {
    scenario("page", &["R-CAP-1", "R-CAP-2"], Setup::outer().of(harness), async |rig| {
        let page = match harness {
            Harness::Opencode => "acp".to_owned(),
            other => other.kind().replace('_', "-"),
        };
        let file = format!("../docs/harnesses/{page}.md");
        let page = fs::read_to_string(here(&file)).context(file)?;
        let info = rig.client().await?.get_runtime_info(GetRuntimeInfoRequest {}).await?;
        let told = info.harnesses.iter().find(|told| told.kind == harness.kind()).context("it is not hosted")?;
        assert!(page.contains(&format!("{} {} ", harness.title(), told.version)), "{}", told.version);
        let paths = fs::read_dir(here("tests"))?.map(|file| Ok(file?.path())).collect::<anyhow::Result<Vec<_>>>()?;
        let files = paths.into_iter().filter(|path| path.is_file());
        let tests: String = files.map(fs::read_to_string).collect::<Result<_, _>>()?;
        let rows = rows(&page)?;
        let all = (0..100).filter_map(|number| Capability::try_from(number).ok());
        for capability in all.filter(|capability| *capability != Capability::Unspecified) {
            let name = name(capability);
            let row = rows.get(&name).with_context(|| format!("no row for {name}"))?;
            assert_eq!(row.none, told.none().any(|one| one == capability), "{name} under none");
            assert_eq!(row.workspace, told.workspace().any(|one| one == capability), "{name} under workspace");
            assert_eq!(row.shown_by.is_empty(), !row.none && !row.workspace, "{name}: {row:?}");
            for proved in told.evidence.iter().filter(|proved| proved.capability() == capability) {
                let (_, scenario) = proved.scenario.split_once("::").context("a scenario without its file")?;
                assert!(row.shown_by.iter().any(|one| one == scenario), "{name}: {scenario} proves it");
            }
            for scenario in &row.shown_by {
                assert!(tests.contains(&format!("\"{scenario}\"")), "{name}: there is no scenario {scenario}");
            }
        }
        Ok(())
    });
}
