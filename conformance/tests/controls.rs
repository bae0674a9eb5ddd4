//! What each execution control does (R-CTL-2), read in the request that the model provider received, for each Harness and placement. What was seen is
//! the page `docs/controls-report.md`; a test fails where it is another, or where a line is missing. Where the change is meant, write the page anew,
//! one test at a time: `RUNTIME_BRIDGE_WRITE_PAGES=1 cargo nextest run -j 1 -p conformance --test controls --locked`.

#[path = "controls/rows.rs"]
mod rows;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use conformance::provider::Recorded;
use conformance::rig::{Harness, MODEL_KEY, Rig, Setup, nowhere, scenario, under};
use conformance::{for_each_harness, for_every_harness};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use proto::client::Session;
use proto::v1::{self, Capability, Placement, Reason};
use rows::{Part, Row, Want, rows};
use serde_json::Value;

for_every_harness!(
    without_a_workspace_the_provider_sees_each_way_to_search,
    on_a_workspace_the_provider_sees_each_way_to_search,
    without_a_workspace_the_provider_sees_the_tools_of_each_control,
    on_a_workspace_the_provider_sees_the_tools_of_each_control,
    without_a_workspace_the_provider_sees_each_verbosity_and_summary,
    on_a_workspace_the_provider_sees_each_verbosity_and_summary,
);

// Agents behind ACP take neither.
for_each_harness!(
    without_a_workspace_the_provider_sees_each_effort_and_tier,
    on_a_workspace_the_provider_sees_each_effort_and_tier,
);

/// Sessions at a time: the machine may have room for no more.
const SIDE_BY_SIDE: usize = 2;

/// What a request says of tools and settings, by name: a tool has no value, or says that it has to be found; what runs at the provider has its
/// settings.
type View = BTreeMap<String, String>;

/// What came of a row.
enum Seen {
    Request(View),
    /// The preparation failed with this text.
    Failed(String),
}

fn without_a_workspace_the_provider_sees_each_way_to_search(harness: Harness) {
    scenario("search_none", &RULES, setup(harness, Placement::None), async |rig| {
        each_cell(rig, Placement::None, Part::Search).await
    });
}

fn on_a_workspace_the_provider_sees_each_way_to_search(harness: Harness) {
    scenario("search_workspace", &RULES, setup(harness, Placement::Workspace), async |rig| {
        each_cell(rig, Placement::Workspace, Part::Search).await
    });
}

fn without_a_workspace_the_provider_sees_the_tools_of_each_control(harness: Harness) {
    scenario("controls_none", &RULES, setup(harness, Placement::None), async |rig| {
        each_cell(rig, Placement::None, Part::Tools).await
    });
}

fn on_a_workspace_the_provider_sees_the_tools_of_each_control(harness: Harness) {
    scenario("controls_workspace", &RULES, setup(harness, Placement::Workspace), async |rig| {
        each_cell(rig, Placement::Workspace, Part::Tools).await
    });
}

fn without_a_workspace_the_provider_sees_each_verbosity_and_summary(harness: Harness) {
    scenario("settings_none", &RULES, setup(harness, Placement::None), async |rig| {
        each_cell(rig, Placement::None, Part::Settings).await
    });
}

fn on_a_workspace_the_provider_sees_each_verbosity_and_summary(harness: Harness) {
    scenario("settings_workspace", &RULES, setup(harness, Placement::Workspace), async |rig| {
        each_cell(rig, Placement::Workspace, Part::Settings).await
    });
}

fn without_a_workspace_the_provider_sees_each_effort_and_tier(harness: Harness) {
    scenario("efforts_none", &RULES, setup(harness, Placement::None), async |rig| {
        each_cell(rig, Placement::None, Part::Efforts).await
    });
}

fn on_a_workspace_the_provider_sees_each_effort_and_tier(harness: Harness) {
    scenario("efforts_workspace", &RULES, setup(harness, Placement::Workspace), async |rig| {
        each_cell(rig, Placement::Workspace, Part::Efforts).await
    });
}

const RULES: [&str; 6] = ["R-CTL-2", "R-CTL-4", "R-CTL-5", "R-CAP-1", "R-CAP-2", "R-PRE-4"];

fn setup(harness: Harness, placement: Placement) -> Setup {
    // With the gateway a newer key is no reason for a new Executor.
    Setup::outer().of(harness).needing_under(placement, Capability::ExecutionControls).without_gateway()
}

/// A section of the page.
async fn each_cell(rig: &Rig, placement: Placement, part: Part) -> anyhow::Result<()> {
    let rows = rows(rig.kind(), placement, part);
    let look = |row| look(rig, placement, row);
    let seen: Vec<_> = stream::iter(&rows).map(look).buffered(SIDE_BY_SIDE).try_collect().await?;
    let absent = |model: &str| {
        let at = rows.iter().position(|row| row.model == model && matches!(row.want, Want::Native(_)));
        match at.map(|at| &seen[at]) {
            Some(Seen::Request(view)) => Ok(view.clone()),
            _ => anyhow::bail!("{model} has no row without a control"),
        }
    };
    let mut section = format!(
        "{}\n\n| Control | Value | Model | Expected | Seen | Resumed | Differences |\n| --- | --- | --- | --- | --- | --- | --- |\n",
        heading(rig.kind(), placement, part)
    );
    let mut differences = 0;
    for (row, seen) in rows.iter().zip(&seen) {
        let native = match row.want {
            Want::Fails(_) => View::new(),
            Want::Native(_) | Want::Changes(_) => absent(row.model)?,
        };
        let (expected, seen) = (row.expected(&native), seen.told(&native, row));
        let differs = usize::from(expected != seen);
        let resumed = if row.resumed { "the same" } else { "" };
        let Row { control, value, model, .. } = row;
        section
            .push_str(&format!("| {control} | {value} | `{model}` | {expected} | {seen} | {resumed} | {differs} |\n"));
        differences += differs;
    }
    section.push_str(&format!("\n{} cells, {differences} differences.\n", rows.len()));
    anyhow::ensure!(differences == 0, "{section}");
    in_step(&section)
}

/// The heading of a section of the page.
fn heading(harness: Harness, placement: Placement, part: Part) -> String {
    let part = match part {
        Part::Search => "search of the web",
        Part::Tools => "tools",
        Part::Settings => "verbosity and summaries",
        Part::Efforts => "efforts and tiers",
    };
    format!("## {}, `{}`, {part}", harness.title(), under(placement))
}

/// Runs a row's Session, and looks at the first request of its Turn.
async fn look(rig: &Rig, placement: Placement, row: &Row) -> anyhow::Result<Seen> {
    let what = || format!("{} {} with {}", row.control, row.value, row.model);
    seen(rig, placement, row).await.with_context(what)
}

async fn seen(rig: &Rig, placement: Placement, row: &Row) -> anyhow::Result<Seen> {
    let configuration = v1::ExecutionConfiguration { model: row.model.into(), ..rig.configuration(Vec::new()) };
    let (session, mut configuration) = match placement {
        Placement::None => (rig.session_nowhere().await?, nowhere(configuration)),
        _ => (rig.session().await?, configuration),
    };
    (row.set)(configuration.tools.get_or_insert_default());
    let prompt = format!("hello from {}", session.assignment().session_id);
    let ready = match session.prepare(configuration.clone(), key(MODEL_KEY)).await {
        Ok(ready) => ready,
        Err(error) => {
            let refusal = error.refusal().filter(|refusal| refusal.reason == Some(Reason::PreparationFailed));
            let message = refusal.map(|refusal| refusal.message.clone());
            return Ok(Seen::Failed(message.with_context(|| format!("it was refused otherwise: {error}"))?));
        }
    };
    let first = turn(rig, &session, &ready, "t-1", &prompt).await?;
    if row.resumed {
        // Another key is another Executor, which goes on with the native history (R-PRE-4).
        let ready = session.prepare(configuration, key(&format!("{MODEL_KEY}-2"))).await?;
        anyhow::ensure!(!ready.reused, "the Executor was not replaced");
        let second = turn(rig, &session, &ready, "t-2", &format!("again {prompt}")).await?;
        anyhow::ensure!(first == second, "before: {first:#?}, resumed: {second:#?}");
    }
    session.release(true).await?;
    Ok(Seen::Request(first))
}

fn key(value: &str) -> Vec<v1::Credential> {
    vec![v1::Credential { name: "model".into(), value: value.into() }]
}

async fn turn(rig: &Rig, session: &Session, ready: &v1::Ready, id: &str, prompt: &str) -> anyhow::Result<View> {
    rig.turn_with(session, ready, id, prompt).await?.completed()?;
    let requests = rig.provider.model_requests();
    let first = requests.iter().find(|request| request.user_texts().iter().any(|text| text == prompt));
    Ok(view(first.context("nothing was asked")?))
}

/// Where the settings of a request stand.
const SETTINGS: [&str; 6] = [
    "/output_config/effort",
    "/reasoning/effort",
    "/reasoning/summary",
    "/service_tier",
    "/text/format/type",
    "/text/verbosity",
];

fn view(request: &Recorded) -> View {
    let body = request.json();
    let hosted = |name: &str| {
        let tool = body["tools"].as_array()?.iter().find(|tool| tool["type"] == name && tool.get("name").is_none())?;
        let mut settings = tool.as_object()?.clone();
        settings.remove("type");
        Some(Value::Object(settings).to_string())
    };
    let found = |name: &str| request.is_deferred(name).filter(|deferred| *deferred).map(|_| "to be found".to_owned());
    let offered = request.tools().into_iter().map(|name| {
        let value = hosted(&name).or_else(|| found(&name)).unwrap_or_default();
        (name, value)
    });
    // The same reminder lists skills, which have a text behind the name.
    let is_tool = |name: &String| !name.is_empty() && !name.contains([' ', ':']);
    let announced = request.announced().into_iter().filter(is_tool).map(|name| (name, "to be found".to_owned()));
    let setting = |at: &str| {
        let value = body.pointer(at).filter(|value| !value.is_null())?;
        Some((at[1..].replace('/', "."), value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
    };
    announced.chain(offered).chain(SETTINGS.into_iter().filter_map(setting)).collect()
}

/// What stands in a view and not, or otherwise, in the native one.
fn changes(native: &View, view: &View) -> String {
    let gone = native.keys().filter(|name| !view.contains_key(*name)).map(|name| format!("without `{name}`"));
    let other =
        view.iter().filter(|(name, value)| native.get(*name) != Some(value)).map(|(name, value)| said(name, value));
    let all: Vec<_> = other.chain(gone).collect();
    if all.is_empty() { "as without the control".to_owned() } else { all.join(", ") }
}

fn said(name: &str, value: &str) -> String {
    match value {
        "" => format!("`{name}`"),
        "to be found" => format!("`{name}` (to be found)"),
        value if value.starts_with('{') => format!("`{name}` `{value}`"),
        value => format!("`{name}` = {value}"),
    }
}

fn whole(view: &View) -> String {
    view.iter().map(|(name, value)| said(name, value)).collect::<Vec<_>>().join(", ")
}

impl Row {
    fn expected(&self, native: &View) -> String {
        let pairs = |of: &[(&str, &str)]| of.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        match &self.want {
            Want::Native(all) => whole(&pairs(all)),
            Want::Fails(text) => format!("the preparation fails: {text}"),
            Want::Changes(some) => {
                let mut view = native.clone();
                for (name, value) in some {
                    match value {
                        Some(value) => drop(view.insert((*name).into(), (*value).into())),
                        None => drop(view.remove(*name)),
                    }
                }
                changes(native, &view)
            }
        }
    }
}

impl Seen {
    fn told(&self, native: &View, row: &Row) -> String {
        match self {
            Self::Request(view) if matches!(row.want, Want::Native(_)) => whole(view),
            Self::Request(view) => changes(native, view),
            Self::Failed(text) => format!("the preparation fails: {text}"),
        }
    }
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/controls-report.md")
}

/// Compares a section with the page's, or writes it there.
fn in_step(section: &str) -> anyhow::Result<()> {
    let text = fs::read_to_string(page()).context("docs/controls-report.md")?;
    let heading = section.lines().next().unwrap_or_default();
    let begin =
        text.find(&format!("\n{heading}\n")).map(|at| at + 1).with_context(|| format!("the page has no {heading}"))?;
    let end = text[begin + 1..].find("\n## ").map_or(text.len(), |at| begin + 1 + at);
    if std::env::var_os("RUNTIME_BRIDGE_WRITE_PAGES").is_some() {
        return Ok(fs::write(page(), format!("{}{section}{}", &text[..begin], &text[end..]))?);
    }
    anyhow::ensure!(&text[begin..end] == section, "docs/controls-report.md is stale; it has to say:\n{section}");
    Ok(())
}

#[test]
fn every_cell_has_its_line() {
    let text = fs::read_to_string(page()).unwrap();
    for harness in Harness::EVERY {
        for placement in [Placement::None, Placement::Workspace] {
            for part in Part::ALL.into_iter().filter(|part| !rows(harness, placement, *part).is_empty()) {
                let heading = heading(harness, placement, part);
                let (_, section) = text.split_once(&format!("\n{heading}\n")).unwrap();
                let section = section.split("\n## ").next().unwrap();
                for Row { control, value, model, .. } in rows(harness, placement, part) {
                    let line = format!("\n| {control} | {value} | `{model}` | ");
                    assert!(section.contains(&line), "{heading} {line}");
                }
                assert!(section.contains(" 0 differences."), "{heading}");
            }
        }
    }
}
