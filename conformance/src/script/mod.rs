//! The one script format, for the model provider and for fault children (`SCRIPTS.md` explains it with examples).
//! It only describes; `provider` and `child` perform.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

pub mod child;
pub mod provider;

/// The version of the format that this crate reads and writes.
pub const VERSION: u32 = 1;

/// One script file. A file may hold a part for the provider, a part for a fault child, or both.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Must be [`VERSION`].
    pub version: u32,
    /// What the script is for, in a sentence; nothing reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The queue of answers of the model provider, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provider: Vec<provider::Step>,
    /// The program of a fault child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<child::Program>,
}

impl Script {
    /// A script with a part for the provider only.
    #[must_use]
    pub fn for_provider(steps: Vec<provider::Step>) -> Self {
        Self { version: VERSION, description: None, provider: steps, child: None }
    }

    /// A script with a part for a fault child only.
    #[must_use]
    pub fn for_child(program: child::Program) -> Self {
        Self { version: VERSION, description: None, provider: Vec::new(), child: Some(program) }
    }

    /// Reads a script from its text.
    ///
    /// # Errors
    /// When the text is not a script of this version; the message names the line, the column and the member.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let script: Self = serde_json::from_str(text).context("not a script")?;
        anyhow::ensure!(script.version == VERSION, "script version {} is not {VERSION}", script.version);
        for (index, step) in script.provider.iter().enumerate() {
            step.check().with_context(|| format!("provider step {index}"))?;
        }
        if let Some(program) = &script.child {
            program.check().context("child")?;
        }
        Ok(script)
    }

    /// Reads a script file.
    ///
    /// # Errors
    /// When the file cannot be read, or as [`Script::parse`].
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read script {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("script {}", path.display()))
    }

    /// The script as a file's text.
    ///
    /// # Errors
    /// Never in practice: every part of a script has a JSON form.
    pub fn text(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_of_the_document_is_a_script() {
        let document = include_str!("../../SCRIPTS.md");
        let mut examples = 0;
        for block in document.split("```json\n").skip(1) {
            let text = block.split("```").next().unwrap();
            Script::parse(text).unwrap_or_else(|error| panic!("{error:#}\n{text}"));
            examples += 1;
        }
        assert!(examples >= 6, "only {examples} examples found");
    }

    #[test]
    fn refuses_unknown_members_and_versions() {
        for (text, want) in [
            (r#"{"version":2}"#, "script version 2 is not 1"),
            (r#"{"version":1,"more":true}"#, "unknown field `more`"),
            (
                r#"{"version":1,"provider":[{"play":[{"text":{"chunks":[],"colour":"red"}}]}]}"#,
                "unknown field `colour`",
            ),
            (r#"{"version":1,"provider":[{"play":["fly"]}]}"#, "unknown variant `fly`"),
            (r#"{"version":1,"provider":[{"play":[{"http":{"status":400}},{"gate":"x"}]}]}"#, "ends the answer"),
            (r#"{"version":1,"provider":[{"times":2,"always":true,"play":[]}]}"#, "times and always"),
            (r#"{"version":1,"child":{"steps":[{"bytes":{"text":"a","hex":"61"}}]}}"#, "text or hex"),
            (r#"{"version":1,"child":{"steps":[{"die":"LAUGHING"}]}}"#, "unknown variant"),
        ] {
            let error = format!("{:#}", Script::parse(text).unwrap_err());
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
