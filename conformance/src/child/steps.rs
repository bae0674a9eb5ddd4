//! Parts of programs that every Harness's have.

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::script::child::{Program, Rule, Step};

pub(super) fn line(json: &Value) -> Step {
    Step::Line(raw(json))
}

pub(super) fn result(json: &Value) -> Step {
    Step::Result(raw(json))
}

pub(super) fn set(values: Value) -> Step {
    let Value::Object(values) = values else { return Step::Set(Default::default()) };
    Step::Set(values.into_iter().map(|(name, value)| (name, raw(&value))).collect())
}

/// The rule for a method, in the place of the one that it has.
pub(super) fn set_rule(program: &mut Program, method: &str, then: Vec<Step>) {
    program.rules.retain(|rule| rule.method != method);
    program.rules.push(Rule { method: method.into(), times: None, then });
}

/// A value as text. A `Value` always has one.
pub(super) fn raw(json: &Value) -> Box<RawValue> {
    to_raw_value(json).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
