//! A file with public JSON: one object whose members are the texts.

use adapters::json::members;

use super::{Rejection, Texts, json};

/// The members that a file may have.
const KNOWN: [&str; 5] = ["tools", "text", "reasoning", "service_tier", "multi_agent"];

/// Reads a file.
pub(crate) fn texts(bytes: &[u8]) -> Result<Texts<'_>, Rejection> {
    let text = json::check_texts(bytes).map_err(|flaw| Rejection::request(&flaw.path, &flaw.message))?.trim();
    let members = if text.starts_with('{') { members(text).ok() } else { None };
    let members = members.ok_or_else(|| Rejection::request("$", "must be an object"))?;
    let mut texts = Texts::default();
    for (name, value) in members {
        let member = match &*name {
            "tools" => &mut texts.tools,
            "text" => &mut texts.text,
            "reasoning" => &mut texts.reasoning,
            "service_tier" => &mut texts.service_tier,
            "multi_agent" => &mut texts.multi_agent,
            name => {
                let path = format!("${}", json::member(name));
                let message = format!("is no member here; known are {}", KNOWN.join(", "));
                return Err(Rejection::request(&path, &message));
            }
        };
        *member = Some(value.get().as_bytes());
    }
    Ok(texts)
}
