//! Replaces `${name}` in what a script sends.
//!
//! In JSON, a string that is nothing but `${name}` becomes the value with its own type; within a longer string the
//! value's text is inserted, escaped. `${name?}` is null where nothing has that name. Everything else stays byte for byte, so that a script can send `1e400`.

use anyhow::Context;
use serde_json::Value;

/// Where names come from.
pub(super) trait Names {
    fn value(&self, name: &str) -> Option<Value>;
}

/// Fills JSON, and takes out the line breaks between its tokens, since a message is one line.
pub(super) fn json(text: &str, names: &impl Names) -> anyhow::Result<String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, name, after)) = next(rest)? {
        let value = lookup(name, names)?;
        let alone = before.strip_suffix('"').zip(after.strip_prefix('"'));
        if let Some((before, after)) = alone {
            push_flat(&mut filled, before);
            filled.push_str(&value.to_string());
            rest = after;
        } else {
            push_flat(&mut filled, before);
            let quoted = Value::String(plain(&value)).to_string();
            filled.push_str(&quoted[1..quoted.len() - 1]);
            rest = after;
        }
    }
    push_flat(&mut filled, rest);
    Ok(filled)
}

/// Fills a text, without escaping.
pub(super) fn text(text: &str, names: &impl Names) -> anyhow::Result<String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, name, after)) = next(rest)? {
        filled.push_str(before);
        filled.push_str(&plain(&lookup(name, names)?));
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn next(text: &str) -> anyhow::Result<Option<(&str, &str, &str)>> {
    let Some((before, rest)) = text.split_once("${") else { return Ok(None) };
    let (name, after) = rest.split_once('}').context("${ without }")?;
    Ok(Some((before, name, after)))
}

fn lookup(name: &str, names: &impl Names) -> anyhow::Result<Value> {
    if let Some(count) = name.strip_prefix("fill:") {
        let count = count.parse().with_context(|| format!("${{{name}}} has no count"))?;
        return Ok(Value::String("x".repeat(count)));
    }
    if let Some(name) = name.strip_suffix('?') {
        return Ok(names.value(name).unwrap_or_default());
    }
    names.value(name).with_context(|| format!("nothing is known as ${{{name}}}"))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn push_flat(filled: &mut String, json: &str) {
    filled.extend(json.chars().filter(|c| !matches!(c, '\n' | '\r')));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Some3;

    impl Names for Some3 {
        fn value(&self, name: &str) -> Option<Value> {
            match name {
                "id" => Some(json!(7)),
                "params.x" => Some(json!({"a": [1]})),
                "text" => Some(json!("say \"hi\"")),
                _ => None,
            }
        }
    }

    #[test]
    fn a_value_keeps_its_type_where_it_stands_alone() {
        for (given, want) in [
            ("{\"id\":\n \"${id}\"}", r#"{"id": 7}"#),
            (r#"{"x":"${params.x}","n":1e400,"n":1.0}"#, r#"{"x":{"a":[1]},"n":1e400,"n":1.0}"#),
            (r#"["a ${id} ${text}"]"#, r#"["a 7 say \"hi\""]"#),
            (r#"["${text}"]"#, r#"["say \"hi\""]"#),
            (r#"["${fill:3}"]"#, r#"["xxx"]"#),
            (r#"["${nobody?}","${id?}"]"#, "[null,7]"),
        ] {
            assert_eq!(json(given, &Some3).unwrap(), want);
        }
        assert_eq!(text("a ${text}\n", &Some3).unwrap(), "a say \"hi\"\n");
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        for given in ["\"${nobody}\"", "\"${id\"", "\"${fill:many}\""] {
            assert!(json(given, &Some3).is_err(), "{given}");
        }
    }
}
