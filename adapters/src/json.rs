//! Checks JSON texts that are handed to a Harness as they came: what it would drop a whole line for, refuse, or read differently is found
//! before. It looks at texts, not at parsed numbers, since a parsed number no longer tells whether it was an integer.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserializer as _,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// What a Harness takes of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The most levels of objects and arrays.
    pub(crate) depth: usize,
    /// Which numbers.
    pub(crate) numbers: Numbers,
}

/// Which numbers a Harness takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Integers of 64 bits, signed or not, and whatever has a point or an exponent.
    Integer64,
}

/// The most characters of a path in an error.
const PATH: usize = 200;

/// What is wrong with a JSON text, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Flaw {
    #[error("is not JSON: {0}")]
    NotJson(String),
    #[error("is nested deeper than {limit} levels at {path}")]
    TooDeep { limit: usize, path: String },
    #[error("has an integer outside of -2^63 to 2^64-1 at {path}")]
    Integer { path: String },
    #[error("has a member twice at {path}")]
    Duplicate { path: String },
    #[error("has a string that is no Unicode text at {path}")]
    NotText { path: String },
    #[error("must be a JSON object or a boolean")]
    NotASchema,
    #[error("must be a JSON object")]
    NoObject,
    #[error("must have \"object\" as its type at the root")]
    NotAnObject,
}

/// Checks the parameters of a function.
pub(crate) fn check_parameters(text: &str, taken: Taken) -> Result<Box<RawValue>, Flaw> {
    let raw = read(text)?;
    if !raw.get().starts_with(['{', 't', 'f']) {
        return Err(Flaw::NotASchema);
    }
    check_schema(raw, taken)
}

/// Checks the schema of final answers.
pub(crate) fn check_output(text: &str, taken: Taken) -> Result<Box<RawValue>, Flaw> {
    let raw = read(text)?;
    if !raw.get().starts_with('{') {
        return Err(Flaw::NoObject);
    }
    check_schema(raw, taken)
}

fn check_schema(raw: Box<RawValue>, taken: Taken) -> Result<Box<RawValue>, Flaw> {
    walk(&raw, taken)?;
    let root = raw.get();
    if root.starts_with('{') {
        let members = members(root).map_err(|_| Flaw::NotASchema)?;
        let kind = members.iter().find(|(name, _)| name == "type").map(|(_, value)| value.get());
        if kind.and_then(|kind| serde_json::from_str::<String>(kind).ok()).is_some_and(|kind| kind != "object") {
            return Err(Flaw::NotAnObject);
        }
    }
    Ok(raw)
}

/// Reads one JSON value and nothing else, without looking into it.
pub(crate) fn read(text: &str) -> Result<Box<RawValue>, Flaw> {
    // The error's position is enough: its text could repeat what was submitted.
    RawValue::from_string(text.to_owned())
        .map_err(|error| Flaw::NotJson(format!("line {}, column {}", error.line(), error.column())))
}

/// Looks at every value of a JSON text.
pub(crate) fn walk(raw: &RawValue, taken: Taken) -> Result<(), Flaw> {
    let mut path = Path::default();
    visit(raw.get(), taken.depth, taken, &mut path)
}

/// The members of an object, in order.
pub(crate) fn members(text: &str) -> Result<Vec<(String, &RawValue)>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer.deserialize_map(Members)
}

fn visit(text: &str, left: usize, taken: Taken, path: &mut Path) -> Result<(), Flaw> {
    match text.as_bytes().first() {
        Some(b'{') => {
            let left =
                left.checked_sub(1).ok_or_else(|| Flaw::TooDeep { limit: taken.depth, path: path.to_string() })?;
            // The text is JSON already, so what fails here is a name with a lone surrogate.
            let members = members(text).map_err(|_| Flaw::NotText { path: path.to_string() })?;
            let mut names = BTreeSet::new();
            for (name, value) in &members {
                path.push(Step::Member(name.clone()));
                if !names.insert(name) {
                    return Err(Flaw::Duplicate { path: path.to_string() });
                }
                visit(value.get(), left, taken, path)?;
                path.pop();
            }
        }
        Some(b'[') => {
            let left =
                left.checked_sub(1).ok_or_else(|| Flaw::TooDeep { limit: taken.depth, path: path.to_string() })?;
            let mut deserializer = serde_json::Deserializer::from_str(text);
            let elements = deserializer.deserialize_seq(Elements).map_err(|error| Flaw::NotJson(error.to_string()))?;
            for (index, value) in elements.into_iter().enumerate() {
                path.push(Step::Element(index));
                visit(value.get(), left, taken, path)?;
                path.pop();
            }
        }
        Some(b'"') => {
            serde_json::from_str::<String>(text).map_err(|_| Flaw::NotText { path: path.to_string() })?;
        }
        Some(b'-' | b'0'..=b'9') => {
            let Numbers::Integer64 = taken.numbers;
            let integer = !text.contains(['.', 'e', 'E']);
            if integer && text.parse::<i64>().is_err() && text.parse::<u64>().is_err() {
                return Err(Flaw::Integer { path: path.to_string() });
            }
        }
        Some(_) | None => {}
    }
    Ok(())
}

#[derive(Default)]
struct Path(Vec<Step>);

enum Step {
    Member(String),
    Element(usize),
}

impl Path {
    fn push(&mut self, step: Step) {
        self.0.push(step);
    }

    fn pop(&mut self) {
        self.0.pop();
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::from("$");
        for step in &self.0 {
            match step {
                Step::Member(name) => {
                    text.push('.');
                    text.extend(name.chars().flat_map(char::escape_debug));
                }
                Step::Element(index) => text.push_str(&format!("[{index}]")),
            }
        }
        let mut characters = text.chars();
        f.write_str(&characters.by_ref().take(PATH).collect::<String>())?;
        if characters.next().is_some() { f.write_str("…") } else { Ok(()) }
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

struct Elements;

impl<'de> Visitor<'de> for Elements {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            elements.push(element);
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: usize = 123;
    const TAKEN: Taken = Taken { depth: DEPTH, numbers: Numbers::Integer64 };

    fn check_parameters(text: &str) -> Result<Box<RawValue>, Flaw> {
        super::check_parameters(text, TAKEN)
    }

    #[track_caller]
    fn check(given: &str, want: &str) {
        let got = match check_parameters(given) {
            Ok(raw) => format!("ok {}", raw.get()),
            Err(flaw) => flaw.to_string(),
        };
        assert_eq!(got, want, "{given}");
    }

    #[test]
    fn schemas_that_are_taken_pass_as_they_are() {
        for schema in [
            "{}",
            "true",
            "false",
            r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}"#,
            r#"{"type":["object","null"]}"#,
            r#"{"anyOf":[{"type":"integer"},{"type":"object"}]}"#,
            r#"{"maximum":18446744073709551615,"minimum":-9223372036854775808,"x":1e400,"y":18446744073709551616.0,"z":-0}"#,
            r#"{ "b" : 1.50, "a" : "\u00e9\ud83d\ude00" }"#,
        ] {
            check(schema, &format!("ok {schema}"));
        }
        check(" {}\n", "ok {}");
    }

    #[test]
    fn what_is_not_taken_is_named_with_its_path() {
        check("", "is not JSON: line 1, column 0");
        check(r#"{"a":}"#, "is not JSON: line 1, column 6");
        check("{} {}", "is not JSON: line 1, column 4");
        check("[]", "must be a JSON object or a boolean");
        check("null", "must be a JSON object or a boolean");
        check("\"x\"", "must be a JSON object or a boolean");
        check(r#"{"type":"string"}"#, "must have \"object\" as its type at the root");
        check(
            r#"{"properties":{"a":{"maximum":18446744073709551616}}}"#,
            "has an integer outside of -2^63 to 2^64-1 at $.properties.a.maximum",
        );
        check(r#"{"x":[1,-9223372036854775809]}"#, "has an integer outside of -2^63 to 2^64-1 at $.x[1]");
        check(r#"{"type":"object","a":1,"\u0061":2}"#, "has a member twice at $.a");
        check(r#"{"d":"\ud800"}"#, "has a string that is no Unicode text at $.d");
        check(r#"{"d":{"\ud800":1}}"#, "has a string that is no Unicode text at $.d");
    }

    #[test]
    fn the_schema_of_answers_is_an_object_and_stays_as_it_is() {
        let told =
            |text: &str| check_output(text, TAKEN).map_or_else(|flaw| flaw.to_string(), |raw| raw.get().to_owned());
        for schema in ["{}", r#"{ "b":1.50, "a":1e400, "type":"object" }"#, r#"{"type":["object","null"]}"#] {
            assert_eq!(told(schema), schema);
        }
        for (schema, want) in [
            ("true", "must be a JSON object"),
            ("[{}]", "must be a JSON object"),
            (r#"{"type":"array"}"#, "must have \"object\" as its type at the root"),
            (r#"{"a":[1,18446744073709551616]}"#, "has an integer outside of -2^63 to 2^64-1 at $.a[1]"),
            (r#"{"a":1,"a":1}"#, "has a member twice at $.a"),
        ] {
            assert_eq!(told(schema), want);
        }
    }

    #[test]
    fn the_deepest_schema_is_the_one_that_is_still_read() {
        let nested = |levels: usize| format!("{}1{}", r#"{"x":"#.repeat(levels), "}".repeat(levels));
        assert!(check_parameters(&nested(DEPTH)).is_ok());
        assert!(matches!(check_parameters(&nested(DEPTH + 1)), Err(Flaw::TooDeep { limit: DEPTH, .. })));
        let array = |levels: usize| format!("{{\"x\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(check_parameters(&array(DEPTH - 1)).is_ok());
        assert!(check_parameters(&array(DEPTH)).is_err());
        // Much deeper ones neither overflow the stack nor take long.
        assert!(check_parameters(&array(100_000)).is_err());
    }

    #[test]
    fn paths_are_printable_and_bounded() {
        let long = format!("{{\"{}\\n\":99999999999999999999}}", "k".repeat(300));
        let Err(flaw) = check_parameters(&long) else { panic!("accepted") };
        assert!(flaw.to_string().ends_with('…'));
        assert!(flaw.to_string().chars().count() < 260);
        check("{\"a\\n\":99999999999999999999}", "has an integer outside of -2^63 to 2^64-1 at $.a\\n");
    }
}
