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
    /// What is the same number as a double that is written as short as it can be.
    Binary64,
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
    #[error("has a number that binary64 would change at {path}")]
    Number { path: String },
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
///
/// # Errors
/// The text is no object.
pub fn members(text: &str) -> Result<Vec<(String, &RawValue)>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer.deserialize_map(Members)
}

/// The elements of an array.
///
/// # Errors
/// The text is no array.
pub fn elements(text: &str) -> Result<Vec<&RawValue>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer.deserialize_seq(Elements)
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
            let elements = elements(text).map_err(|error| Flaw::NotJson(error.to_string()))?;
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
            let integer = !text.contains(['.', 'e', 'E']);
            match taken.numbers {
                Numbers::Integer64 if integer && text.parse::<i64>().is_err() && text.parse::<u64>().is_err() => {
                    return Err(Flaw::Integer { path: path.to_string() });
                }
                Numbers::Binary64 if !survives_binary64(text) => {
                    return Err(Flaw::Number { path: path.to_string() });
                }
                Numbers::Integer64 | Numbers::Binary64 => {}
            }
        }
        Some(_) | None => {}
    }
    Ok(())
}

/// Whether a number is mathematically the same once it was read as a double and written as short as that can be.
fn survives_binary64(text: &str) -> bool {
    let Ok(double) = text.parse::<f64>() else { return false };
    let Some(meant) = Decimal::of(text) else { return false };
    double.is_finite() && Decimal::of(&format!("{double:e}")) == Some(meant)
}

/// A decimal number without its sign, which no double changes: its digits without zeros at either end, and the power of ten of the last one.
#[derive(PartialEq, Eq)]
struct Decimal {
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// None where the exponent is beyond all doubles.
    fn of(text: &str) -> Option<Self> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{}{fraction}", whole.trim_start_matches('-'));
        let digits = all.trim_start_matches('0').trim_end_matches('0').to_owned();
        if digits.is_empty() {
            return Some(Self { digits, exponent: 0 });
        }
        let zeros = all.len() - all.trim_end_matches('0').len();
        let shift = i64::try_from(zeros).ok()?.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        let exponent = exponent.parse::<i64>().ok()?.checked_add(shift)?;
        Some(Self { digits, exponent })
    }
}

/// Where in a JSON text something is.
#[derive(Default)]
pub(crate) struct Path(Vec<Step>);

/// One step from a value to one in it.
pub(crate) enum Step {
    /// A member of an object.
    Member(String),
    /// An element of an array.
    Element(usize),
}

impl Path {
    /// Goes into a value.
    pub(crate) fn push(&mut self, step: Step) {
        self.0.push(step);
    }

    /// Goes back to the value that holds it.
    pub(crate) fn pop(&mut self) {
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
    fn numbers_that_a_double_does_not_hold_are_found() {
        for (number, survives) in [
            ("0", true),
            ("-0", true),
            ("-0.0", true),
            ("0e99999999999999999999", true),
            ("1.50", true),
            ("100e-2", true),
            ("1e2", true),
            ("0.1", true),
            ("123456789012345678", false),
            ("12345678901234567890", false),
            ("9007199254740992", true),
            ("9007199254740993", false),
            ("1e22", true),
            ("1e23", true),
            ("10000000000000000000000000", true),
            ("0.1000000000000000055511151231257827", false),
            ("5e-324", true),
            ("4e-324", false),
            ("1e-400", false),
            ("1e400", false),
            ("-1.7976931348623157e308", true),
            ("1e99999999999999999999", false),
            ("1e-99999999999999999999", false),
            ("18446744073709551616", false),
            ("18446744073709552000", true),
        ] {
            assert_eq!(survives_binary64(number), survives, "{number}");
        }
        let taken = Taken { depth: 8, numbers: Numbers::Binary64 };
        let flaw = super::check_parameters(r#"{"properties":{"a":{"enum":[1,1e400]}}}"#, taken).unwrap_err();
        assert_eq!(flaw.to_string(), "has a number that binary64 would change at $.properties.a.enum[1]");
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
