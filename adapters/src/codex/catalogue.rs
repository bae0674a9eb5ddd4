//! Codex's catalogue of models. It decides by the model's name which tools a model is offered, and how. The bundled one holds as it is, but for
//! the placement `none`, where no tool of Codex's own may touch this machine (R-CTL-4): what the features do not switch off, the model's entry
//! does.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// What an entry says of native tools, and what it says when there shall be none: functions are called one by one and not from a script, no
/// command, no patch, nothing under trial.
const WITHOUT_TOOLS: &str =
    r#"{"tool_mode":null,"shell_type":"disabled","apply_patch_tool_type":null,"experimental_supported_tools":[]}"#;

#[derive(Deserialize)]
struct Catalogue<'a> {
    #[serde(borrow)]
    models: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Named {
    slug: String,
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

/// The catalogue with no native tools for this model, and every other byte as it was; none where it does not name the model, whose metadata are
/// then Codex's fallback, without native tools beyond what features switch off.
///
/// Codex takes the entry whose name the model's begins with, also behind the name of a provider (`openai/gpt-5.5`), so each entry whose name is in
/// the model's counts.
///
/// # Errors
/// When the text is no catalogue.
pub(super) fn without_tools(catalogue: &str, model: &str) -> Result<Option<String>, serde_json::Error> {
    let Catalogue { models } = serde_json::from_str(catalogue)?;
    let mut out = String::with_capacity(catalogue.len());
    let mut rest = catalogue;
    for entry in models {
        let Named { slug } = serde_json::from_str(entry.get())?;
        if slug.is_empty() || !model.contains(&slug) {
            continue;
        }
        let mut members: serde_json::Map<String, Value> = serde_json::from_str(entry.get())?;
        members.extend(serde_json::from_str::<serde_json::Map<_, _>>(WITHOUT_TOOLS)?);
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
            let text = without_tools(BUNDLED, model).unwrap().unwrap();
            let want = serde_json::json!({"slug": "m-5", "tool_mode": null, "shell_type": "disabled", "apply_patch_tool_type": null,
                "experimental_supported_tools": [], "context_window": 9});
            assert_eq!(models(&text)[0], want, "{model}");
            let (_, behind) = BUNDLED.split_once("\"context_window\":9}").unwrap();
            assert!(text.starts_with("{ \"models\" : [\n  {") && text.ends_with(behind), "{text}");
        }
    }

    #[test]
    fn every_entry_that_codex_may_take_is_changed() {
        let text = without_tools(BUNDLED, "m-5-mini").unwrap().unwrap();
        let modes: Vec<_> = models(&text).iter().map(|model| model["tool_mode"].clone()).collect();
        assert_eq!(modes, [Value::Null, Value::Null, Value::Null]);
        assert!(text.ends_with(&BUNDLED[BUNDLED.find(",\n  {\"slug\":\"other\"").unwrap()..]), "{text}");
    }

    #[test]
    fn a_model_without_an_entry_needs_no_catalogue() {
        assert_eq!(without_tools(BUNDLED, "unknown").unwrap(), None);
        assert_eq!(check(BUNDLED), Ok(()));
        for broken in ["", "{}", "[]", r#"{"models":[{"name":"x"}]}"#] {
            assert!(without_tools(broken, "m-5").is_err() && check(broken).is_err(), "{broken}");
        }
    }
}
