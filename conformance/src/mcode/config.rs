//! `config.yaml` of the data folder, as far as it changes what the double does. JSON is YAML, and only JSON is read here.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

/// The ids that `agents.default.tools` may have.
pub(super) const TOOL_IDS: [&str; 12] = [
    "read",
    "write",
    "edit",
    "bash",
    "task_query",
    "task_output",
    "task_stop",
    "grep",
    "glob",
    "todowrite",
    "web_fetch",
    "website_deploy",
];

/// The ids that come back where none of them is listed.
const TASK_CONTROL: [&str; 3] = ["task_query", "task_output", "task_stop"];

/// Stands for the media tools of `agents.default.builtinTools`, whose real names are not known.
pub(super) const MEDIA: &str = "media_stand_in";

/// The model that is current where nothing was set: one of MiniMax's own, which needs a login.
pub(super) const MANAGED: &str = "m:minimax:MiniMax-M3:v:thinking";

/// What the file says.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) customs: Vec<Custom>,
    /// Native tools, by id.
    pub(super) tools: Vec<&'static str>,
    pub(super) media: bool,
    pub(super) web_search: bool,
    pub(super) delegation: bool,
    pub(super) mavis: bool,
    pub(super) ask_user: bool,
    pub(super) goals: bool,
    pub(super) permission_mode: String,
}

/// A provider of the user's own.
#[derive(Debug, Clone)]
pub(super) struct Custom {
    pub(super) key: String,
    pub(super) api: Api,
    pub(super) base_url: String,
    key_text: String,
    /// Models with their limits.
    pub(super) models: BTreeMap<String, Limit>,
}

/// A dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Messages,
    ChatCompletions,
    Responses,
}

/// The limits of a model, in tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) context: u64,
    pub(super) output: u64,
}

impl Config {
    /// Reads the file in the data folder. Without one there is no provider.
    pub(super) fn read(data: &Path) -> anyhow::Result<Self> {
        let path = data.join("config.yaml");
        if !path.exists() {
            return Self::parse(&Value::Object(Default::default()));
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let json = serde_json::from_str(&text)
            .with_context(|| format!("{} is no JSON, and this double reads no other YAML", path.display()))?;
        Self::parse(&json).with_context(|| format!("in {}", path.display()))
    }

    fn parse(json: &Value) -> anyhow::Result<Self> {
        let mut customs = Vec::new();
        for (key, custom) in json["custom_provider"].as_object().into_iter().flatten() {
            if custom["enabled"] != false {
                customs.push(Custom::parse(key, custom).with_context(|| format!("custom_provider.{key}"))?);
            }
        }
        let agent = &json["agents"]["default"];
        let on = |value: &Value| value != false;
        let mode = json["permissionMode"].as_str().unwrap_or("default");
        anyhow::ensure!(["default", "auto", "bypassPermissions"].contains(&mode), "permissionMode: {mode}");
        Ok(Self {
            customs,
            tools: tools(&agent["tools"]),
            media: chosen(&agent["builtinTools"], &[MEDIA]).contains(&MEDIA),
            web_search: on(&agent["features"]["webSearch"]),
            delegation: on(&agent["features"]["delegation"]),
            mavis: on(&agent["features"]["mavis"]),
            ask_user: on(&json["askUser"]["enabled"]),
            goals: on(&json["beta"]["threadGoal"]),
            permission_mode: mode.to_owned(),
        })
    }

    /// The values of the model option, with the names of the models.
    pub(super) fn catalogue(&self) -> Vec<(String, String)> {
        let values = |custom: &Custom| -> Vec<_> {
            custom.models.keys().map(|model| (value(&custom.key, model), model.clone())).collect()
        };
        self.customs.iter().flat_map(values).collect()
    }

    /// What a value of the model option stands for.
    pub(super) fn find(&self, wanted: &str) -> Option<(&Custom, &str, Limit)> {
        let all = self.customs.iter().flat_map(|custom| custom.models.iter().map(move |model| (custom, model)));
        all.into_iter()
            .find(|(custom, (model, _))| value(&custom.key, model) == wanted)
            .map(|(custom, (model, limit))| (custom, &**model, *limit))
    }
}

impl Custom {
    fn parse(key: &str, json: &Value) -> anyhow::Result<Self> {
        const RESERVED: [&str; 4] = ["minimax", "minimax_api", "provider", "custom_provider"];
        anyhow::ensure!(!RESERVED.contains(&key), "the key is reserved");
        let api = match json["api"].as_str() {
            Some("anthropic-messages") => Api::Messages,
            Some("openai-completions") => Api::ChatCompletions,
            Some("openai-responses") => Api::Responses,
            other => anyhow::bail!("api: {other:?} is none of the three formats"),
        };
        let text = |value: &Value, name: &str| {
            value.as_str().map(str::to_owned).with_context(|| format!("options.{name} is missing"))
        };
        let mut models = BTreeMap::new();
        for (model, of) in json["models"].as_object().context("models is missing")? {
            let limit = |name: &str| {
                of["limit"][name].as_u64().with_context(|| format!("models.{model}.limit.{name} is missing"))
            };
            models.insert(model.clone(), Limit { context: limit("context")?, output: limit("output")? });
        }
        let base_url = text(&json["options"]["baseURL"], "baseURL")?.trim_end_matches('/').to_owned();
        Ok(Self { key: key.to_owned(), api, base_url, key_text: text(&json["options"]["apiKey"], "apiKey")?, models })
    }

    /// The key as it is now: a whole text `${NAME}` is a variable of the environment, and anything else is itself.
    pub(super) fn api_key(&self) -> anyhow::Result<String> {
        let name = self.key_text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let Some(name) = name.filter(|name| !name.contains('}')) else { return Ok(self.key_text.clone()) };
        let found = env::var(name).ok().filter(|key| !key.trim().is_empty());
        found.with_context(|| format!("the environment variable {name} with the key is missing"))
    }
}

/// The value of the model option for a model of a custom provider.
fn value(key: &str, model: &str) -> String {
    format!("m:{}:{}:v:", encoded(&format!("custom_provider:{key}")), encoded(model))
}

/// As `encodeURIComponent` does it.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The native tools of a list: one id that nobody knows makes the whole list void.
fn tools(list: &Value) -> Vec<&'static str> {
    let mut chosen = chosen(list, &TOOL_IDS);
    if !chosen.iter().any(|id| TASK_CONTROL.contains(id)) && !chosen.is_empty() {
        chosen.extend(TASK_CONTROL);
    }
    chosen
}

fn chosen(list: &Value, known: &[&'static str]) -> Vec<&'static str> {
    let Some(list) = list.as_array() else { return known.to_vec() };
    let ids: Option<Vec<_>> =
        list.iter().map(|id| known.iter().find(|known| id.as_str() == Some(known)).copied()).collect();
    ids.unwrap_or_else(|| known.to_vec())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_of_tools_is_obeyed_or_void() {
        assert_eq!(tools(&json!([])), Vec::<&str>::new());
        assert_eq!(tools(&json!(["bash"])), ["bash", "task_query", "task_output", "task_stop"]);
        assert_eq!(tools(&json!(["bash", "task_stop"])), ["bash", "task_stop"]);
        assert_eq!(tools(&json!(["bash", "skill"])), TOOL_IDS);
        assert_eq!(tools(&Value::Null), TOOL_IDS);
        assert_eq!(chosen(&json!(["web_search"]), &[MEDIA]), [MEDIA]);
    }

    #[test]
    fn a_model_has_a_value_that_names_its_provider() {
        assert_eq!(value("oac", "a/b:c"), "m:custom_provider%3Aoac:a%2Fb%3Ac:v:");
        let json = json!({"custom_provider": {"oac": {"api": "openai-responses", "options": {"baseURL": "http://a/v1/", "apiKey": "k${X}"},
            "models": {"M": {"limit": {"context": 10, "output": 2}}}}}});
        let config = Config::parse(&json).unwrap();
        let (custom, model, limit) = config.find("m:custom_provider%3Aoac:M:v:").unwrap();
        assert_eq!((custom.api, &*custom.base_url, model, limit.output), (Api::Responses, "http://a/v1", "M", 2));
        assert_eq!(custom.api_key().unwrap(), "k${X}");
        assert!(config.web_search && config.ask_user && config.permission_mode == "default");
        assert!(config.find("m:custom_provider%3Aoac:N:v:").is_none());
    }

    #[test]
    fn a_key_that_is_not_there_and_a_model_without_limits_are_refused() {
        let mut json = json!({"custom_provider": {"k": {"api": "anthropic-messages",
            "options": {"baseURL": "http://a", "apiKey": "${NO_SUCH_VARIABLE_OF_THE_DOUBLE}"}, "models": {}}}});
        let config = Config::parse(&json).unwrap();
        assert!(config.customs[0].api_key().unwrap_err().to_string().contains("NO_SUCH_VARIABLE_OF_THE_DOUBLE"));
        json["custom_provider"]["k"]["models"] = json!({"M": {}});
        assert!(format!("{:#}", Config::parse(&json).unwrap_err()).contains("models.M.limit.context"));
    }
}
