//! What Claude Code makes of a function's parameters. Without a word it drops a function whose parameters are no JSON Schema, and with some
//! mistakes every function of the Session; so what it would drop is found before. It shows the model an object in any case.

use serde_json::value::RawValue;

use crate::json::{self, Path, Step};

/// What [`shown`] puts into a schema: Claude Code takes only one whose root says that it is an object (R-CTL-1).
pub(super) const REWRITES: &[(&str, &str)] = &[
    ("at the beginning of a function's parameters whose root has no type", r#""type":"object","#),
    ("in the place of a type of the root that is a list", r#""object""#),
    ("in the place of parameters that are true", r#"{"type":"object"}"#),
    ("in the place of parameters that are false", r#"{"type":"object","not":{}}"#),
];

/// The most bytes of a parameter's name, which providers set and Claude Code holds.
const PROPERTY_BYTES: usize = 64;

/// The dialect that Claude Code checks, and takes where none is named. Of others it looks at the root only.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A name that JavaScript loses from the schemas of an object.
const LOST: &str = "__proto__";
/// What a schema of that name must be.
const OTHERWISE: &str = "named otherwise";

/// Why Claude Code would drop a function, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("claude_code drops it: {path} must be {must}")]
pub(super) struct Dropped {
    path: String,
    must: &'static str,
}

/// What a keyword's value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Anchor,
    Array,
    Boolean,
    Booleans,
    Count,
    /// Schemas or lists of names, by name.
    Dependencies,
    Identifier,
    Number,
    Positive,
    Schema,
    /// At least one schema.
    Schemas,
    /// Schemas by name.
    SchemasByName,
    Text,
    /// Different texts.
    Texts,
    /// Different texts, by name.
    TextsByName,
    Type,
}

/// The keywords of the dialect, and those of older ones that it still knows.
const KEYWORDS: &[(&str, Rule)] = &[
    ("$anchor", Rule::Anchor),
    ("$comment", Rule::Text),
    ("$defs", Rule::SchemasByName),
    ("$dynamicAnchor", Rule::Anchor),
    ("$dynamicRef", Rule::Text),
    ("$id", Rule::Identifier),
    ("$recursiveAnchor", Rule::Anchor),
    ("$recursiveRef", Rule::Text),
    ("$ref", Rule::Text),
    ("$schema", Rule::Text),
    ("$vocabulary", Rule::Booleans),
    ("additionalProperties", Rule::Schema),
    ("allOf", Rule::Schemas),
    ("anyOf", Rule::Schemas),
    ("contains", Rule::Schema),
    ("contentEncoding", Rule::Text),
    ("contentMediaType", Rule::Text),
    ("contentSchema", Rule::Schema),
    ("definitions", Rule::SchemasByName),
    ("dependencies", Rule::Dependencies),
    ("dependentRequired", Rule::TextsByName),
    ("dependentSchemas", Rule::SchemasByName),
    ("deprecated", Rule::Boolean),
    ("description", Rule::Text),
    ("else", Rule::Schema),
    ("enum", Rule::Array),
    ("examples", Rule::Array),
    ("exclusiveMaximum", Rule::Number),
    ("exclusiveMinimum", Rule::Number),
    ("format", Rule::Text),
    ("if", Rule::Schema),
    ("items", Rule::Schema),
    ("maxContains", Rule::Count),
    ("maxItems", Rule::Count),
    ("maxLength", Rule::Count),
    ("maxProperties", Rule::Count),
    ("maximum", Rule::Number),
    ("minContains", Rule::Count),
    ("minItems", Rule::Count),
    ("minLength", Rule::Count),
    ("minProperties", Rule::Count),
    ("minimum", Rule::Number),
    ("multipleOf", Rule::Positive),
    ("not", Rule::Schema),
    ("oneOf", Rule::Schemas),
    ("pattern", Rule::Text),
    ("patternProperties", Rule::SchemasByName),
    ("prefixItems", Rule::Schemas),
    ("properties", Rule::SchemasByName),
    ("propertyNames", Rule::Schema),
    ("readOnly", Rule::Boolean),
    ("required", Rule::Texts),
    ("then", Rule::Schema),
    ("title", Rule::Text),
    ("type", Rule::Type),
    ("unevaluatedItems", Rule::Schema),
    ("unevaluatedProperties", Rule::Schema),
    ("uniqueItems", Rule::Boolean),
    ("writeOnly", Rule::Boolean),
];

/// The types that there are.
const TYPES: &[&str] = &["array", "boolean", "integer", "null", "number", "object", "string"];

/// Checks the parameters of a function, which are JSON without flaws, and with `object` where the type at the root is one text.
///
/// # Errors
/// When Claude Code would drop the function, or all of them.
pub(super) fn check(parameters: &RawValue) -> Result<(), Dropped> {
    let mut path = Path::default();
    let root = parameters.get();
    if !root.starts_with('{') {
        return schema(root, &mut path);
    }
    let members = members(root, &path)?;
    let find = |keyword: &str| members.iter().find(|(name, _)| name == keyword).map(|(_, value)| value.get());
    for (name, keyword) in [("properties", Rule::SchemasByName), ("required", Rule::Texts), ("type", Rule::Type)] {
        let Some(value) = find(name) else { continue };
        path.push(Step::Member(name.into()));
        match keyword {
            Rule::SchemasByName => properties(value, &mut path)?,
            keyword => rule(keyword, value, &mut path)?,
        }
        path.pop();
    }
    let dialect = find("$schema").and_then(text);
    if dialect.is_some_and(|dialect| dialect.trim_end_matches('#') != DIALECT) {
        Ok(())
    } else {
        schema(root, &mut path)
    }
}

/// The parameters at the root: their names must be those that a provider takes, and what they are is an object or a boolean.
fn properties(value: &str, path: &mut Path) -> Result<(), Dropped> {
    for (name, value) in members(value, path)? {
        let taken = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        let named = (1..=PROPERTY_BYTES).contains(&name.len()) && name.bytes().all(taken);
        let lost = name == LOST;
        path.push(Step::Member(name));
        if lost {
            return Err(dropped(path, OTHERWISE));
        }
        if !named {
            return Err(dropped(path, "named as ^[a-zA-Z0-9_.-]{1,64}$ says"));
        }
        if !value.get().starts_with(['{', 't', 'f']) {
            return Err(dropped(path, "a schema"));
        }
        path.pop();
    }
    Ok(())
}

fn schema(text: &str, path: &mut Path) -> Result<(), Dropped> {
    match text.as_bytes().first() {
        Some(b't' | b'f') => Ok(()),
        Some(b'{') => {
            for (name, value) in members(text, path)? {
                let Ok(at) = KEYWORDS.binary_search_by(|(keyword, _)| (*keyword).cmp(&name)) else { continue };
                path.push(Step::Member(name));
                rule(KEYWORDS[at].1, value.get(), path)?;
                path.pop();
            }
            Ok(())
        }
        Some(_) | None => Err(dropped(path, "a schema")),
    }
}

fn rule(rule: Rule, value: &str, path: &mut Path) -> Result<(), Dropped> {
    let first = value.as_bytes().first().copied().unwrap_or_default();
    let number = || value.parse::<f64>().ok().filter(|_| first == b'-' || first.is_ascii_digit());
    let (holds, must) = match rule {
        Rule::Schema => return schema(value, path),
        Rule::Schemas => return schemas(value, path),
        Rule::SchemasByName | Rule::Dependencies | Rule::TextsByName => return by_name(rule, value, path),
        Rule::Array => (first == b'[', "an array"),
        Rule::Boolean => (matches!(first, b't' | b'f'), "a boolean"),
        Rule::Booleans => {
            let flags = json::members(value).unwrap_or_default();
            let holds = first == b'{' && flags.iter().all(|(_, flag)| flag.get().starts_with(['t', 'f']));
            (holds, "an object of booleans")
        }
        Rule::Text => (first == b'"', "a string"),
        Rule::Anchor => (text(value).is_some_and(|text| is_anchor(&text)), "a name"),
        Rule::Identifier => {
            let whole = |text: String| !text.strip_suffix('#').unwrap_or(&text).contains('#');
            (text(value).is_some_and(whole), "a string without a fragment")
        }
        Rule::Number => (number().is_some(), "a number"),
        Rule::Positive => (number().is_some_and(|number| number > 0.0), "a number above 0"),
        Rule::Count => {
            (number().is_some_and(|number| number >= 0.0 && number.fract() == 0.0), "an integer that is not negative")
        }
        Rule::Texts => (texts(value).is_some(), "an array of different strings"),
        Rule::Type => {
            let known = |kind: &String| TYPES.contains(&kind.as_str());
            let several = || texts(value).is_some_and(|kinds| !kinds.is_empty() && kinds.iter().all(known));
            (text(value).as_ref().is_some_and(known) || several(), "a type or an array of different types")
        }
    };
    if holds { Ok(()) } else { Err(dropped(path, must)) }
}

fn schemas(value: &str, path: &mut Path) -> Result<(), Dropped> {
    let elements = Some(value).filter(|value| value.starts_with('[')).and_then(|value| json::elements(value).ok());
    let elements = elements.filter(|elements| !elements.is_empty());
    for (index, element) in elements.ok_or_else(|| dropped(path, "an array of at least one schema"))?.iter().enumerate()
    {
        path.push(Step::Element(index));
        schema(element.get(), path)?;
        path.pop();
    }
    Ok(())
}

fn by_name(kind: Rule, value: &str, path: &mut Path) -> Result<(), Dropped> {
    for (name, value) in members(value, path)? {
        let lost = name == LOST && kind == Rule::SchemasByName;
        path.push(Step::Member(name));
        if lost {
            return Err(dropped(path, OTHERWISE));
        }
        match kind {
            Rule::TextsByName => rule(Rule::Texts, value.get(), path)?,
            Rule::Dependencies if value.get().starts_with('[') => rule(Rule::Texts, value.get(), path)?,
            _ => schema(value.get(), path)?,
        }
        path.pop();
    }
    Ok(())
}

fn members<'a>(text: &'a str, path: &Path) -> Result<Vec<(String, &'a RawValue)>, Dropped> {
    let members = Some(text).filter(|text| text.starts_with('{')).and_then(|text| json::members(text).ok());
    members.ok_or_else(|| dropped(path, "an object"))
}

fn text(value: &str) -> Option<String> {
    serde_json::from_str(value).ok()
}

/// Different texts, in an array.
fn texts(value: &str) -> Option<Vec<String>> {
    let mut texts: Vec<String> = serde_json::from_str(value).ok()?;
    let all = texts.len();
    texts.sort_unstable();
    texts.dedup();
    (texts.len() == all).then_some(texts)
}

fn is_anchor(text: &str) -> bool {
    let taken = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') && text.bytes().all(taken)
}

fn dropped(path: &Path, must: &'static str) -> Dropped {
    Dropped { path: path.to_string(), must }
}

/// The parameters as Claude Code must be given them: with `"type":"object"` at the root, which is added where there is no type and takes the
/// place of several; every other byte is as it came. A boolean becomes the object that means the same.
///
/// # Errors
/// When the text is no JSON.
pub(super) fn shown(parameters: Box<RawValue>) -> Result<Box<RawValue>, serde_json::Error> {
    const TYPE: &str = r#""type":"object""#;
    let text = parameters.get();
    let Some(inside) = text.strip_prefix('{') else {
        let nothing = if text == "false" { r#","not":{}"# } else { "" };
        return RawValue::from_string(format!("{{{TYPE}{nothing}}}"));
    };
    let members = json::members(text)?;
    let Some((_, kind)) = members.iter().find(|(name, _)| name == "type") else {
        let comma = if members.is_empty() { "" } else { "," };
        return RawValue::from_string(format!("{{{TYPE}{comma}{inside}"));
    };
    if kind.get().starts_with('"') {
        return Ok(parameters);
    }
    // What was read borrows from the text, so this is its own place and no likeness of it.
    let at = kind.get().as_ptr() as usize - text.as_ptr() as usize;
    let (before, after) = (&text[..at], &text[at + kind.get().len()..]);
    RawValue::from_string(format!("{before}\"object\"{after}"))
}

#[cfg(test)]
mod tests;
