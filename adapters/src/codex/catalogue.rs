//! Codex's catalogue of models. It decides by the model's name which tools a model is offered, and how, and which controls it takes. The bundled one
//! holds as it is, but for the placement `none`, where no tool of Codex's own may touch this machine (R-CTL-4), and where a model that takes its tools
//! from scripts shall not: what the features do not switch off, the model's entry does.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// What an entry says when there shall be no native tools: functions are called one by one and not from a script, no command, no patch, nothing under
/// trial.
pub(super) const WITHOUT_TOOLS: &str =
    r#"{"tool_mode":null,"shell_type":"disabled","apply_patch_tool_type":null,"experimental_supported_tools":[]}"#;
/// What an entry says when tools shall be called one by one and not from a script.
pub(super) const WITHOUT_SCRIPTS: &str = r#"{"tool_mode":null}"#;

#[derive(Deserialize)]
struct Catalogue<'a> {
    #[serde(borrow)]
    models: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Named {
    slug: String,
}

/// What the controls depend on in a model's entry.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    /// How the model takes its tools, where not one by one.
    pub(super) tool_mode: Option<String>,
    support_verbosity: Option<bool>,
    supported_reasoning_levels: Option<Vec<Level>>,
    service_tiers: Option<Vec<Tier>>,
    additional_speed_tiers: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Level {
    effort: String,
}

#[derive(Debug, Deserialize)]
struct Tier {
    id: String,
}

impl Entry {
    /// Whether it can be told to say less or more.
    pub(super) fn takes_verbosity(&self) -> bool {
        self.support_verbosity == Some(true)
    }

    /// Its efforts.
    pub(super) fn efforts(&self) -> Vec<&str> {
        self.supported_reasoning_levels.iter().flatten().map(|level| &*level.effort).collect()
    }

    /// Its service tiers, with the other names that Codex has for them.
    pub(super) fn tiers(&self) -> Vec<&str> {
        let others = self.additional_speed_tiers.iter().flatten().map(|tier| &**tier);
        self.service_tiers.iter().flatten().map(|tier| &*tier.id).chain(others).collect()
    }
}

/// Checks that a text is a catalogue.
///
/// # Errors
/// When it is none.
pub(super) fn check(text: &str) -> Result<(), String> {
    let unread = |error| format!("the catalogue of models cannot be read: {error}");
    let Catalogue { models } = serde_json::from_str(text).map_err(unread)?;
    models.iter().try_for_each(|entry| serde_json::from_str::<Named>(entry.get()).map(drop).map_err(unread))
}

/// The entry that Codex takes for a model: the one with the longest name that the model's begins with, else the same behind the name of a provider
/// (`openai/gpt-5.5`). None where it has only its fallback.
///
/// # Errors
/// When the text is no catalogue.
pub(super) fn entry(catalogue: &str, model: &str) -> Result<Option<Entry>, serde_json::Error> {
    let Catalogue { models } = serde_json::from_str(catalogue)?;
    let named = models.into_iter().map(|entry| Ok((serde_json::from_str::<Named>(entry.get())?.slug, entry)));
    let named = named.collect::<Result<Vec<_>, serde_json::Error>>()?;
    let longest = |model: &str| {
        let fitting = named.iter().filter(|(slug, _)| !slug.is_empty() && model.starts_with(&**slug));
        fitting.max_by_key(|(slug, _)| slug.len()).map(|(_, entry)| *entry)
    };
    let provider = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    let behind = || model.split_once('/').filter(|(name, rest)| provider(name) && !rest.contains('/'));
    let found = longest(model).or_else(|| longest(behind()?.1));
    found.map(|entry| serde_json::from_str(entry.get())).transpose()
}

/// The catalogue with these members in this model's entry, and every other byte as it was; none where it does not name the model, whose metadata are
/// then Codex's fallback: tools one by one, and no native ones beyond what features switch off.
///
/// Each entry whose name is in the model's is changed, whichever of them Codex takes.
///
/// # Errors
/// When the text is no catalogue.
pub(super) fn changed(catalogue: &str, model: &str, change: &str) -> Result<Option<String>, serde_json::Error> {
    let Catalogue { models } = serde_json::from_str(catalogue)?;
    let mut out = String::with_capacity(catalogue.len());
    let mut rest = catalogue;
    for entry in models {
        let Named { slug } = serde_json::from_str(entry.get())?;
        if slug.is_empty() || !model.contains(&slug) {
            continue;
        }
        let mut members: serde_json::Map<String, Value> = serde_json::from_str(entry.get())?;
        members.extend(serde_json::from_str::<serde_json::Map<_, _>>(change)?);
        // What was read borrows from the text, so this is its own place and no likeness of it.
        let at = entry.get().as_ptr() as usize - rest.as_ptr() as usize;
        out.push_str(&rest[..at]);
        out.push_str(&serde_json::to_string(&members)?);
        rest = &rest[at + entry.get().len()..];
    }
    let changed = !out.is_empty();
    out.push_str(rest);
    Ok(changed.then_some(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUNDLED: &str = r#"{ "models" : [
  {"slug":"m-5","tool_mode":"code_mode_only","shell_type":"unified_exec","apply_patch_tool_type":"freeform","experimental_supported_tools":["clock"],"context_window":9},
  {"slug":"m-5-mini","tool_mode":"code_mode_only","price":1.50},
  {"slug":"other","shell_type":"unified_exec" ,"limit":18446744073709551615}
], "etag" : 7.0 }"#;

    #[track_caller]
    fn models(of: &str) -> Vec<Value> {
        let value: Value = serde_json::from_str(of).unwrap();
        value["models"].as_array().unwrap().clone()
    }

    #[test]
    fn only_the_asked_model_loses_its_tools() {
        for model in ["m-5", "m-5-2026-01-01", "house/m-5"] {
            let text = changed(BUNDLED, model, WITHOUT_TOOLS).unwrap().unwrap();
            let want = serde_json::json!({"slug": "m-5", "tool_mode": null, "shell_type": "disabled", "apply_patch_tool_type": null,
                "experimental_supported_tools": [], "context_window": 9});
            assert_eq!(models(&text)[0], want, "{model}");
            let (_, behind) = BUNDLED.split_once("\"context_window\":9}").unwrap();
            assert!(text.starts_with("{ \"models\" : [\n  {") && text.ends_with(behind), "{text}");
        }
    }

    #[test]
    fn every_entry_that_codex_may_take_is_changed() {
        let text = changed(BUNDLED, "m-5-mini", WITHOUT_TOOLS).unwrap().unwrap();
        let modes: Vec<_> = models(&text).iter().map(|model| model["tool_mode"].clone()).collect();
        assert_eq!(modes, [Value::Null, Value::Null, Value::Null]);
        assert!(text.ends_with(&BUNDLED[BUNDLED.find(",\n  {\"slug\":\"other\"").unwrap()..]), "{text}");
    }

    #[test]
    fn the_entry_is_that_of_the_longest_name() {
        let text = r#"{"models":[{"slug":"m-5","supported_reasoning_levels":[{"effort":"a","description":"x"}]},
            {"slug":"m-5-mini","supported_reasoning_levels":[{"effort":"b"}],"tool_mode":null,"service_tiers":[{"id":"t"}],"additional_speed_tiers":["u"]},
            {"slug":""}]}"#;
        let efforts = |model| entry(text, model).unwrap().map(|entry| entry.efforts().concat());
        for (model, want) in [
            ("m-5", Some("a")),
            ("m-5-2026", Some("a")),
            ("m-5-mini", Some("b")),
            ("m-5-mini-2", Some("b")),
            ("open-ai/m-5", Some("a")),
            ("a/b/m-5", None),
            ("a.b/m-5", None),
            ("xm-5", None),
            ("M-5", None),
        ] {
            assert_eq!(efforts(model).as_deref(), want, "{model}");
        }
        let mini = entry(text, "m-5-mini").unwrap().unwrap();
        assert_eq!((mini.tiers(), &mini.tool_mode, mini.takes_verbosity()), (vec!["t", "u"], &None, false));
    }

    #[test]
    fn a_model_without_an_entry_needs_no_catalogue() {
        assert_eq!(changed(BUNDLED, "unknown", WITHOUT_TOOLS).unwrap(), None);
        assert_eq!(check(BUNDLED), Ok(()));
        for broken in ["", "{}", "[]", r#"{"models":[{"name":"x"}]}"#] {
            assert!(changed(broken, "m-5", WITHOUT_TOOLS).is_err() && check(broken).is_err(), "{broken}");
        }
    }
}
