//! What the Harnesses declare, as a page: `docs/capabilities.md` (R-CAP-1). Where a declaration has changed, write it anew:
//! `RUNTIME_BRIDGE_WRITE_PAGES=1 cargo nextest run -p conformance --test capabilities --locked`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use conformance::rig::{Harness, Setup, scenario, under, word};
use proto::v1::{self, Capability, HarnessDeclaration, HarnessLimits, Placement};

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/capabilities.md")
}

#[test]
fn the_page_says_what_every_harness_declares() {
    scenario("capabilities", &["R-CAP-1", "R-CAP-2", "R-CAP-3"], Setup::outer().with_all(), async |rig| {
        let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        let told = Harness::EVERY.map(|harness| info.harnesses.iter().find(|told| told.kind == harness.kind()));
        let told: Vec<_> = told.into_iter().collect::<Option<_>>().context("a Harness is not hosted")?;
        let text = rendered(&told)?;
        if std::env::var_os("RUNTIME_BRIDGE_WRITE_PAGES").is_some() {
            return Ok(fs::write(page(), text)?);
        }
        anyhow::ensure!(fs::read_to_string(page())? == text, "docs/capabilities.md is stale; it has to say:\n{text}");
        Ok(())
    });
}

/// The features of adapters for workspaces, by their capability.
const FEATURES: [(Capability, &str); 4] = [
    (Capability::FunctionTools, "workspace_functions"),
    (Capability::StructuredOutput, "workspace_structured_output"),
    (Capability::ToolSearch, "workspace_tool_search"),
    (Capability::McpHttpTools, "workspace_mcp_http"),
];

fn rendered(told: &[&HarnessDeclaration]) -> anyhow::Result<String> {
    let mut out = String::from(
        "# Capabilities\n\n\
         What each Harness declares on this page's machine, under the isolation `outer` and with the credential gateway ([contract](contract.md), R-CAP-1 to R-CAP-3).\n\
         `conformance/tests/capabilities.rs` writes this page from `GetRuntimeInfo`, and fails where a declaration says something else.\n\
         A cell has the scenario that showed the capability with the real program; an empty one is not declared.\n\
         MiniMax Code cannot be installed where this page is written: its cells have what ran with the [double](../conformance/MCODE.md) of it.\n\
         `opencode` is an agent that the operator names in `[harness.acp.opencode]` ([harnesses/acp.md](harnesses/acp.md)).\n\n",
    );
    for one in told {
        let fake = Harness::of_kind(&one.kind).is_some_and(|harness| !harness.is_real());
        let fake = if fake { " (fake)" } else { "" };
        writeln!(out, "- `{}` {}{fake}, qualified: {}.", one.kind, one.version, one.qualified)?;
    }
    out.push_str("\n## By placement\n\n| Capability |");
    let columns: Vec<_> = told
        .iter()
        .flat_map(|one| [Placement::None, Placement::Workspace].map(|placement| (*one, placement)))
        .collect();
    for (one, placement) in &columns {
        write!(out, " `{}`, `{}` |", one.kind, under(*placement))?;
    }
    writeln!(out, "\n| --- |{}", " --- |".repeat(columns.len()))?;
    let all = (1..1000).filter_map(|number| Capability::try_from(number).ok());
    for capability in all {
        let feature = FEATURES.iter().find(|(of, _)| *of == capability).map(|(_, feature)| *feature);
        write!(out, "| `{}`", word(capability))?;
        if let Some(feature) = feature {
            write!(out, " (on a workspace: `{feature}`)")?;
        }
        out.push_str(" |");
        for (one, placement) in &columns {
            let proved =
                |one: &&v1::CapabilityEvidence| one.capability() == capability && one.placement == under(*placement);
            match one.evidence.iter().find(proved) {
                Some(proved) => write!(out, " `{}` |", proved.scenario)?,
                None => out.push_str("  |"),
            }
        }
        out.push('\n');
    }
    out.push_str("\n## Limits and values\n\n| |");
    let limits: Vec<_> = told.iter().map(|one| one.limits.as_ref().context("no limits")).collect::<Result<_, _>>()?;
    for one in told {
        write!(out, " `{}` |", one.kind)?;
    }
    writeln!(out, "\n| --- |{}", " --- |".repeat(told.len()))?;
    let limits: Vec<BTreeMap<_, _>> = limits.into_iter().map(|limits| values(limits).into_iter().collect()).collect();
    let names: Vec<_> = limits
        .iter()
        .flat_map(BTreeMap::keys)
        .copied()
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    for name in names {
        write!(out, "| `{name}` |")?;
        for limits in &limits {
            write!(out, " {} |", limits.get(name).map_or("", String::as_str))?;
        }
        out.push('\n');
    }
    Ok(out)
}

/// The limits by the names that they have in the protocol.
fn values(of: &HarnessLimits) -> Vec<(&'static str, String)> {
    // One that is new does not compile until it is named here; its row is below.
    let HarnessLimits {
        argument_fidelity: _,
        binary64: _,
        failed_result_images: _,
        function_description_characters: _,
        function_name_bytes: _,
        function_name_pattern: _,
        function_result_characters: _,
        input_rewrites: _,
        integer_64: _,
        mcp_allowed_tools: _,
        mcp_label_pattern: _,
        mcp_origins: _,
        mcp_refuses_expansions: _,
        mcp_stdio_in_workspace: _,
        mcp_transports: _,
        model_protocols: _,
        native_call_timeout_seconds: _,
        needs_token_limits: _,
        programmatic_tool_calling: _,
        reasoning_efforts: _,
        reasoning_summaries: _,
        refuses_blank_messages: _,
        reserved_function_names: _,
        reserved_function_prefixes: _,
        reserved_mcp_labels: _,
        schema_fidelity: _,
        service_tiers: _,
        text_verbosities: _,
        web_search_context_sizes: _,
        web_search_domains: _,
        web_search_location: _,
        web_search_modes: _,
    } = of;
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) };
    let list = |all: Vec<String>| all.iter().map(|one| code(one)).collect::<Vec<_>>().join(", ");
    let short = |name: &str, prefix: &str| name.trim_start_matches(prefix).to_lowercase();
    let accepted = |of: &Option<v1::AcceptedValues>| {
        let of = of.clone().unwrap_or_default();
        let also = if of.by_model { "; the model decides too" } else { "" };
        format!("{}{also}", list(of.values))
    };
    let most = |limit: Option<u32>| limit.map(|limit| limit.to_string()).unwrap_or_default();
    let transports = |all: &mut dyn Iterator<Item = v1::McpTransport>| {
        list(all.map(|one| short(one.as_str_name(), "MCP_TRANSPORT_")).collect())
    };
    // A line break would end the row, and a space of no width is not seen.
    let shown = |text: &str| code(&text.replace('\n', "\\n").replace('\u{200b}', "\\u{200b}"));
    let rewrites = of.input_rewrites.iter().map(|one| format!("{}: {}", one.place, shown(&one.text)));
    vec![
        ("argument_fidelity", short(of.argument_fidelity().as_str_name(), "JSON_FIDELITY_")),
        ("binary64", yes(of.binary64)),
        ("failed_result_images", yes(of.failed_result_images)),
        ("function_description_characters", most(of.function_description_characters)),
        ("function_name_bytes", of.function_name_bytes.to_string()),
        ("function_name_pattern", code(&of.function_name_pattern)),
        ("function_result_characters", most(of.function_result_characters)),
        ("input_rewrites", rewrites.collect::<Vec<_>>().join("; ")),
        ("integer_64", yes(of.integer_64)),
        ("mcp_allowed_tools", transports(&mut of.mcp_allowed_tools())),
        ("mcp_label_pattern", code(&of.mcp_label_pattern)),
        ("mcp_origins", list(of.mcp_origins().map(|one| short(one.as_str_name(), "MCP_ORIGIN_")).collect())),
        ("mcp_refuses_expansions", yes(of.mcp_refuses_expansions)),
        ("mcp_stdio_in_workspace", yes(of.mcp_stdio_in_workspace)),
        ("mcp_transports", transports(&mut of.mcp_transports())),
        (
            "model_protocols",
            list(of.model_protocols().map(|one| short(one.as_str_name(), "MODEL_PROTOCOL_")).collect()),
        ),
        ("native_call_timeout_seconds", of.native_call_timeout_seconds.to_string()),
        ("needs_token_limits", yes(of.needs_token_limits)),
        ("programmatic_tool_calling", list(of.programmatic_tool_calling.iter().map(bool::to_string).collect())),
        ("reasoning_efforts", accepted(&of.reasoning_efforts)),
        ("reasoning_summaries", accepted(&of.reasoning_summaries)),
        ("refuses_blank_messages", yes(of.refuses_blank_messages)),
        ("reserved_function_names", list(of.reserved_function_names.clone())),
        ("reserved_function_prefixes", list(of.reserved_function_prefixes.clone())),
        ("reserved_mcp_labels", list(of.reserved_mcp_labels.clone())),
        ("schema_fidelity", short(of.schema_fidelity().as_str_name(), "JSON_FIDELITY_")),
        ("service_tiers", accepted(&of.service_tiers)),
        (
            "text_verbosities",
            list(of.text_verbosities().map(|one| short(one.as_str_name(), "TEXT_VERBOSITY_")).collect()),
        ),
        (
            "web_search_context_sizes",
            list(
                of.web_search_context_sizes().map(|one| short(one.as_str_name(), "WEB_SEARCH_CONTEXT_SIZE_")).collect(),
            ),
        ),
        ("web_search_domains", yes(of.web_search_domains)),
        ("web_search_location", yes(of.web_search_location)),
        (
            "web_search_modes",
            list(of.web_search_modes().map(|one| short(one.as_str_name(), "WEB_SEARCH_MODE_")).collect()),
        ),
    ]
}
