use super::*;
use crate::{
    codex::catalogue,
    harness::{self, WebSearch},
};

const CATALOGUE: &str = r#"{"models":[{"slug":"m-5","support_verbosity":true,"supported_reasoning_levels":[{"effort":"low"},{"effort":"high"}],
    "service_tiers":[{"id":"priority","name":"Fast"}],"additional_speed_tiers":["fast"],"tool_mode":"code_mode_only"},
    {"slug":"plain","supported_reasoning_levels":[]}]}"#;

#[track_caller]
fn told(controls: &Controls, want: &str) {
    assert_eq!(serde_json::to_string(&settings(controls)).unwrap(), want);
}

#[test]
fn what_is_absent_is_not_told() {
    told(&Controls::default(), "{}");
    let search = WebSearch::of(WebSearchMode::Live);
    told(&Controls { web_search: Some(search), ..Controls::default() }, r#"{"web_search":"live"}"#);
}

#[test]
fn everything_is_told_by_its_native_name() {
    let location = harness::Location { city: Some("Ulm".into()), country: Some("DE".into()), ..Default::default() };
    let search = WebSearch {
        context_size: Some(ContextSize::High),
        allowed_domains: Some(Vec::new()),
        location: Some(location),
        ..WebSearch::of(WebSearchMode::Cached)
    };
    let controls = Controls {
        web_search: Some(search),
        programmatic_tool_calling: Some(false),
        text_verbosity: Some(TextVerbosity::High),
        reasoning_effort: Some("low".into()),
        reasoning_summary: Some("none".into()),
        service_tier: Some("flex".into()),
        ..Controls::default()
    };
    told(
        &controls,
        r#"{"web_search":"cached","tools":{"web_search":{"context_size":"high","allowed_domains":[],"location":{"city":"Ulm","country":"DE"}}},"features":{"code_mode":false,"code_mode_only":false,"code_mode_prewarm":false},"model_verbosity":"high","model_reasoning_effort":"low","model_reasoning_summary":"none","service_tier":"flex"}"#,
    );
    told(
        &Controls { programmatic_tool_calling: Some(true), ..Controls::default() },
        r#"{"features":{"code_mode":true}}"#,
    );
}

#[test]
fn a_search_of_what_is_kept_needs_another_name_for_an_open_sandbox() {
    let workspace = Placement::Workspace { environment_id: "e".into(), directory: "/w".into() };
    let of = |mode, placement: &Placement, isolation| {
        let controls = Controls { web_search: Some(WebSearch::of(mode)), ..Controls::default() };
        sandbox_policy(&controls, placement, isolation).is_some()
    };
    assert!(of(WebSearchMode::Cached, &workspace, Isolation::Outer));
    assert!(!of(WebSearchMode::Live, &workspace, Isolation::Outer));
    assert!(!of(WebSearchMode::Cached, &workspace, Isolation::Native));
    assert!(!of(WebSearchMode::Cached, &Placement::None, Isolation::Outer));
}

#[track_caller]
fn checked(model: &str, controls: &Controls, want: &str) {
    let entry = catalogue::entry(CATALOGUE, model).unwrap();
    assert!(ask_the_catalogue(controls));
    let got = check(controls, model, entry.as_ref()).err().unwrap_or_default();
    assert_eq!(got, want);
}

#[test]
fn the_entry_of_the_model_decides() {
    let verbose = Controls { text_verbosity: Some(TextVerbosity::High), ..Controls::default() };
    checked("m-5", &verbose, "");
    checked("plain", &verbose, "text_verbosity cannot be high: the model plain does not take it");
    checked(
        "other",
        &verbose,
        "text_verbosity cannot be high: the catalogue of codex has no model other, and codex tells such a model nothing of it",
    );
    let effort = |effort: &str| Controls { reasoning_effort: Some(effort.into()), ..Controls::default() };
    checked("m-5", &effort("low"), "");
    checked(
        "m-5",
        &effort("max"),
        "reasoning_effort cannot be max: for the model m-5 the catalogue of codex lists low, high",
    );
    checked(
        "plain",
        &effort("low"),
        "reasoning_effort cannot be low: for the model plain the catalogue of codex lists none",
    );
    checked("other", &effort("max"), "");
    let tier = |tier: &str| Controls { service_tier: Some(tier.into()), ..Controls::default() };
    for taken in ["priority", "fast"] {
        checked("m-5", &tier(taken), "");
    }
    checked(
        "m-5",
        &tier("flex"),
        "service_tier cannot be flex: for the model m-5 the catalogue of codex lists priority, fast",
    );
    checked("other", &tier("flex"), "");
    checked(
        "other",
        &tier("priority"),
        "service_tier cannot be priority: the catalogue of codex has no model other, and codex asks for no tier then",
    );
}

#[test]
fn what_no_entry_decides_needs_no_catalogue() {
    let medium = Controls { text_verbosity: Some(TextVerbosity::Medium), ..Controls::default() };
    let auto = Controls { service_tier: Some(AUTO.into()), ..Controls::default() };
    let scripts = Controls { programmatic_tool_calling: Some(true), ..Controls::default() };
    for controls in [Controls::default(), medium, auto, scripts] {
        assert!(!ask_the_catalogue(&controls), "{controls:?}");
        assert_eq!(check(&controls, "other", None), Ok(()));
    }
}

#[track_caller]
fn required(text: &str, controls: &Controls, want: &str) {
    let requirements = serde_json::from_str(text).unwrap();
    let got = allowed(&requirements, controls, true).err().unwrap_or_default();
    assert_eq!(got, want);
}

#[test]
fn what_the_machine_forces_is_no_control() {
    let scripts = |on| Controls { programmatic_tool_calling: Some(on), ..Controls::default() };
    let search = |mode| Controls { web_search: Some(WebSearch::of(mode)), ..Controls::default() };
    let forced = r#"{"featureRequirements":{"code_mode_only":true,"code_mode":false},"allowedWebSearchModes":["cached"],"modelCatalogJson":null}"#;
    required(
        forced,
        &scripts(true),
        "the managed requirements of this machine keep the feature code_mode off, without which programmatic_tool_calling cannot be on",
    );
    required(
        forced,
        &scripts(false),
        "the managed requirements of this machine keep the feature code_mode_only on, with which programmatic_tool_calling cannot be off",
    );
    required(forced, &Controls::default(), "");
    for mode in [WebSearchMode::Disabled, WebSearchMode::Cached] {
        required(forced, &search(mode), "");
    }
    required(
        forced,
        &search(WebSearchMode::Live),
        "the managed requirements of this machine do not allow web_search to be live",
    );
    for open in ["{}", r#"{"featureRequirements":null,"allowedWebSearchModes":null}"#] {
        required(open, &scripts(false), "");
        required(open, &search(WebSearchMode::Live), "");
    }
    let catalogue = r#"{"modelCatalogJson":"file:///etc/models.json"}"#;
    required(
        catalogue,
        &Controls::default(),
        "the managed requirements of this machine set a catalogue of models, which takes the place of what the Session needs",
    );
    // Where the bridge gives none, it is another one than that in which the model was looked up.
    let effort = Controls { reasoning_effort: Some("low".into()), ..Controls::default() };
    let tier = |tier: &str| Controls { service_tier: Some(tier.into()), ..Controls::default() };
    for (controls, goes) in
        [(Controls::default(), true), (tier(AUTO), true), (effort, false), (tier(FLEX), false), (scripts(true), true)]
    {
        let is_allowed = allowed(&serde_json::from_str(catalogue).unwrap(), &controls, false).is_ok();
        assert_eq!(is_allowed, goes, "{controls:?}");
        assert!(goes || ask_the_requirements(&controls, false), "{controls:?}");
    }
}
