//! Whether a final answer is JSON that the schema of the Session describes (R-CTL-3). A judgement changes nothing: it is told beside the end.
//!
//! Schema and answer are strangers, so what could take for ever is not judged: each has a bound, patterns take linear time, and nothing is fetched.

use std::{
    collections::HashMap,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use jsonschema::{PatternOptions, Validator};
use serde_json::{Value, value::RawValue};

/// Longest answer that is judged, in bytes.
const ANSWER_BYTES: usize = 1 << 20;
/// Most values of a schema that is judged by, where each reference counts as what it refers to.
const SCHEMA_VALUES: usize = 10_000;
/// Most levels of such a schema, counted in the same way.
const SCHEMA_LEVELS: usize = 128;

/// Judges the answers of one Executor. The schema is compiled with the first of them.
#[derive(Debug)]
pub(crate) struct Judge {
    schema: String,
    /// None within when nothing can be judged by the schema.
    compiled: OnceLock<Option<Validator>>,
    /// A judgement took too long, and may still be at work.
    is_over: AtomicBool,
}

impl Judge {
    /// A judge for answers to this schema.
    pub(crate) fn new(schema: &str) -> Self {
        Self { schema: schema.to_owned(), compiled: OnceLock::new(), is_over: AtomicBool::new(false) }
    }

    /// Judges one answer; none when that is beyond what can be judged. It may take seconds: not for a task that others wait for.
    pub(crate) fn judge(&self, answer: &str) -> Option<bool> {
        if self.is_over.load(Ordering::Relaxed) || answer.len() > ANSWER_BYTES {
            return None;
        }
        let validator = self.compiled.get_or_init(|| compile(&self.schema)).as_ref()?;
        match serde_json::from_str::<Value>(answer) {
            Ok(answer) => Some(validator.is_valid(&answer)),
            // Numbers beyond binary64 and deep nesting are JSON, but are not read.
            Err(_) if serde_json::from_str::<&RawValue>(answer).is_ok() => None,
            Err(_) => Some(false),
        }
    }

    /// Says that a judgement took too long: there is no other one, so that at most one is at work that nobody waits for.
    pub(crate) fn give_up(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn compile(schema: &str) -> Option<Validator> {
    let schema: Value = serde_json::from_str(schema).ok()?;
    Measure { root: &schema, known: HashMap::from([("#", None)]) }.measure(&schema, 0)?;
    jsonschema::options().offline().with_pattern_options(PatternOptions::regex()).build(&schema).ok()
}

/// Measures a schema as the validator unfolds it, before it does so.
struct Measure<'a> {
    root: &'a Value,
    /// Targets of references, with their size; none while it is being measured.
    known: HashMap<&'a str, Option<Size>>,
}

#[derive(Clone, Copy)]
struct Size {
    values: usize,
    levels: usize,
}

impl<'a> Measure<'a> {
    /// The size of a part of the schema at a level; none when it is too large, or refers to something by other means than a place in itself.
    fn measure(&mut self, part: &'a Value, level: usize) -> Option<Size> {
        let mut size = Size { values: 1, levels: 1 };
        if level >= SCHEMA_LEVELS {
            return None;
        }
        match part {
            Value::Object(members) => {
                for (name, value) in members {
                    let inner = match (name.as_str(), value) {
                        ("$ref", Value::String(target)) => self.refer(target, level + 1)?,
                        ("$dynamicRef" | "$recursiveRef", Value::String(_)) => return None,
                        // Their work grows with a power of how deep they stand in each other.
                        ("unevaluatedItems" | "unevaluatedProperties", _) => return None,
                        _ => self.measure(value, level + 1)?,
                    };
                    size.add(inner);
                }
            }
            Value::Array(elements) => {
                for element in elements {
                    let inner = self.measure(element, level + 1)?;
                    size.add(inner);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        (size.values <= SCHEMA_VALUES).then_some(size)
    }

    fn refer(&mut self, target: &'a str, level: usize) -> Option<Size> {
        match self.known.get(target) {
            Some(Some(size)) => return (level + size.levels <= SCHEMA_LEVELS).then_some(*size),
            // A cycle is not unfolded.
            Some(None) => return Some(Size { values: 1, levels: 1 }),
            None => {}
        }
        let place = self.root.pointer(target.strip_prefix('#')?)?;
        self.known.insert(target, None);
        let size = self.measure(place, level)?;
        self.known.insert(target, Some(size));
        Some(size)
    }
}

impl Size {
    fn add(&mut self, inner: Self) {
        self.values = self.values.saturating_add(inner.values);
        self.levels = self.levels.max(inner.levels + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schema: &str, answers: &[(&str, Option<bool>)]) {
        let judge = Judge::new(schema);
        for (answer, want) in answers {
            let shown: String = answer.chars().take(100).collect();
            assert_eq!(judge.judge(answer), *want, "{shown}");
        }
    }

    #[test]
    fn an_answer_is_judged_as_it_stands() {
        let schema =
            r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}"#;
        check(
            schema,
            &[
                (r#"{"n":1}"#, Some(true)),
                (" {\n\"n\" : 1.0 } ", Some(true)),
                (r#"{"n":"1"}"#, Some(false)),
                (r#"{"n":1,"m":2}"#, Some(false)),
                ("{}", Some(false)),
                ("", Some(false)),
                (r#"{"n":1"#, Some(false)),
                (r#"Here it is: {"n":1}"#, Some(false)),
                ("```json\n{\"n\":1}\n```", Some(false)),
                (r#"{"n":1}{"n":1}"#, Some(false)),
            ],
        );
    }

    #[test]
    fn references_within_the_schema_are_followed_and_a_cycle_ends() {
        let tree = r##"{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","required":["v"],
            "properties":{"v":{"type":"integer"},"next":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/node"}]}}}}}"##;
        check(
            tree,
            &[(r#"{"v":1,"next":{"v":2,"next":null}}"#, Some(true)), (r#"{"v":1,"next":{"v":"2"}}"#, Some(false))],
        );
        check(r##"{"$ref":"#"}"##, &[("1", Some(true))]);
        check(r##"{"not":{"$ref":"#"}}"##, &[("1", Some(false))]);
        check(r#"{"properties":{"$ref":{"type":"string"}}}"#, &[(r#"{"$ref":1}"#, Some(false))]);
    }

    #[test]
    fn by_what_cannot_be_compiled_nothing_is_judged() {
        for schema in [
            r#"{"type":"nonsense"}"#,
            r#"{"$ref":"https://schemas.example/x.json"}"#,
            r#"{"$ref":"file:///x.json"}"#,
            r##"{"$ref":"#/nowhere"}"##,
            r##"{"$ref":"#named","$defs":{"x":{"$anchor":"named"}}}"##,
            r##"{"$dynamicRef":"#x","$dynamicAnchor":"x"}"##,
            r#"{"unevaluatedProperties":false}"#,
            r#"{"$schema":"https://schemas.example/dialect"}"#,
            r#"{"maximum":1e400}"#,
            r#"{"pattern":"(?=a)a"}"#,
            r#"{"pattern":"(((a{1,1000}){1,1000}){1,1000}){1,1000}"}"#,
        ] {
            check(schema, &[("{}", None), ("nope", None)]);
        }
    }

    #[test]
    fn what_could_take_for_ever_is_not_judged() {
        // Each of these doubles what the one before it unfolds to.
        let double = |at: usize| {
            format!(r##""a{at}":{{"anyOf":[{{"$ref":"#/$defs/a{0}"}},{{"$ref":"#/$defs/a{0}"}}]}}"##, at + 1)
        };
        let doubled = |times: usize| {
            let all: Vec<_> = (0..times).map(double).collect();
            format!(r##"{{"$ref":"#/$defs/a0","$defs":{{{},"a{times}":{{"type":"string"}}}}}}"##, all.join(","))
        };
        check(&doubled(8), &[("1", Some(false)), (r#""x""#, Some(true))]);
        check(&doubled(30), &[("1", None)]);
        let long = format!(r#"{{"enum":[{}]}}"#, vec!["1"; SCHEMA_VALUES].join(","));
        check(&long, &[("1", None)]);
        let chain: Vec<_> = (0..5000).map(|at| format!(r##""a{at}":{{"$ref":"#/$defs/a{}"}}"##, at + 1)).collect();
        let chain = format!(r##"{{"$ref":"#/$defs/a0","$defs":{{{},"a5000":true}}}}"##, chain.join(","));
        check(&chain, &[("1", None)]);
        // A pattern that others try in exponentially many ways.
        let answer = format!(r#""{}b""#, "a".repeat(100_000));
        check(r#"{"pattern":"^(a+)+$"}"#, &[(&answer, Some(false))]);
    }

    #[test]
    fn answers_beyond_what_is_read_are_not_judged() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        check(
            "{}",
            &[
                (&nested(120), Some(true)),
                (&nested(100_000), None),
                ("1e400", None),
                (&text(ANSWER_BYTES), Some(true)),
                (&text(ANSWER_BYTES + 1), None),
            ],
        );
    }

    /// The deepest recursion that the bounds allow, on a quarter of the stack that a judgement has.
    #[test]
    fn the_deepest_schema_and_answer_fit_on_the_stack() {
        let answer = format!("{}{{}}{}", r#"{"c":"#.repeat(120), "}".repeat(120));
        for (open, close, levels) in [
            (r#"{"not":"#, "}", 1),
            (r#"{"if":"#, "}", 1),
            (r#"{"allOf":["#, "]}", 2),
            (r#"{"oneOf":[false,"#, "]}", 2),
        ] {
            let times = (SCHEMA_LEVELS - 8) / levels;
            let inner = r##"{"properties":{"c":{"$ref":"#"}}}"##;
            let judge = Judge::new(&format!("{}{inner}{}", open.repeat(times), close.repeat(times)));
            let answer = answer.clone();
            let judged = std::thread::Builder::new().stack_size(4 << 20).spawn(move || judge.judge(&answer)).unwrap();
            assert!(judged.join().unwrap().is_some(), "{open}");
        }
    }

    #[test]
    fn a_judge_that_took_too_long_judges_no_more() {
        let judge = Judge::new("{}");
        assert_eq!(judge.judge("1"), Some(true));
        judge.give_up();
        assert_eq!(judge.judge("1"), None);
    }
}
