//! The shape of public JSON: which members there are and of which type. All of it is read, and the finding that comes first in the order of
//! [`Stage`], then in that of the document, is the answer.

use adapters::json;

use super::{Rejection, json::member};

/// The order of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// A type outside of a union.
    Union,
    /// A member that is not known.
    Unknown,
    /// A value of another type, or outside of those that are named.
    Value,
    /// A member that is not there.
    Missing,
    /// A schema whose root is of another type.
    Root,
    /// What there may be once is there twice.
    Twice,
}

/// The finding that is the answer so far.
#[derive(Debug, Default)]
pub(super) struct Findings(Option<(Stage, Rejection)>);

impl Findings {
    /// Something does not fit.
    pub(super) fn find(&mut self, stage: Stage, path: &str, message: impl FnOnce() -> String) {
        if self.0.as_ref().is_none_or(|(found, _)| stage < *found) {
            self.0 = Some((stage, Rejection::request(path, &message())));
        }
    }

    /// Something does not fit whose answer names no param.
    pub(super) fn find_whole(&mut self, stage: Stage, path: &str, message: impl FnOnce() -> String) {
        if self.0.as_ref().is_none_or(|(found, _)| stage < *found) {
            self.0 = Some((stage, Rejection { param: None, ..Rejection::request(path, &message()) }));
        }
    }

    /// The answer, where there is one.
    pub(super) fn answer(self) -> Result<(), Rejection> {
        self.0.map_or(Ok(()), |(_, rejection)| Err(rejection))
    }
}

/// An object of public JSON that was checked to be JSON.
#[derive(Debug)]
pub(super) struct Object<'a> {
    /// Its path.
    pub(super) at: String,
    members: Vec<(String, &'a str)>,
}

impl<'a> Object<'a> {
    /// Reads one; what is none is an object without members from here on.
    pub(super) fn read(at: String, text: &'a str, findings: &mut Findings) -> Self {
        let members = if text.trim_start().starts_with('{') { json::members(text).ok() } else { None };
        if members.is_none() {
            findings.find(Stage::Value, &at, || "must be an object".into());
        }
        let members = members.unwrap_or_default();
        Self { at, members: members.into_iter().map(|(name, value)| (name, value.get())).collect() }
    }

    /// The path of a member.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}.{name}", self.at)
    }

    /// Finds members that are not among these.
    pub(super) fn only(&self, known: &[&str], findings: &mut Findings) {
        if let Some((name, _)) = self.members.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            let path = format!("{}{}", self.at, member(name));
            findings.find(Stage::Unknown, &path, || format!("is no member here; known are {}", known.join(", ")));
        }
    }

    /// The text of a member.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.members.iter().find(|(found, _)| found == name).map(|(_, text)| *text)
    }

    /// The text of a member that is not null.
    pub(super) fn given(&self, name: &str) -> Option<&'a str> {
        self.get(name).filter(|text| *text != "null")
    }

    /// All members, in order.
    pub(super) fn members(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.members.iter().map(|(name, text)| (name.as_str(), *text))
    }

    /// The text of a member that must be there.
    pub(super) fn required(&self, name: &str, findings: &mut Findings) -> Option<&'a str> {
        let found = self.get(name);
        if found.is_none() {
            findings.find(Stage::Missing, &self.path(name), || "must be there".into());
        }
        found
    }

    /// A string that must be there; empty where it is not.
    pub(super) fn required_string(&self, name: &str, findings: &mut Findings) -> String {
        let text = self.required(name, findings);
        text.and_then(|text| string(&self.path(name), text, findings)).unwrap_or_default()
    }

    /// A string, or nothing where there is none or null.
    pub(super) fn string(&self, name: &str, findings: &mut Findings) -> Option<String> {
        self.given(name).and_then(|text| string(&self.path(name), text, findings))
    }

    /// A boolean that is not null where it is there.
    pub(super) fn boolean(&self, name: &str, findings: &mut Findings) -> Option<bool> {
        match self.get(name)? {
            "true" => Some(true),
            "false" => Some(false),
            _ => {
                findings.find(Stage::Value, &self.path(name), || "must be true or false".into());
                None
            }
        }
    }

    /// One of these words, or nothing where there is none or null.
    pub(super) fn word(&self, name: &str, words: &[&'static str], findings: &mut Findings) -> Option<&'static str> {
        word(&self.path(name), self.given(name)?, words, findings)
    }

    /// Strings, or nothing where there is no list or null.
    pub(super) fn strings(&self, name: &str, findings: &mut Findings) -> Option<Vec<String>> {
        let (path, text) = (self.path(name), self.given(name)?);
        let elements = elements(&path, text, findings)?;
        let one = |(index, text): (usize, &str)| string(&format!("{path}[{index}]"), text, findings);
        Some(elements.into_iter().enumerate().filter_map(one).collect())
    }
}

/// The elements of an array.
pub(super) fn elements<'a>(path: &str, text: &'a str, findings: &mut Findings) -> Option<Vec<&'a str>> {
    let elements = if text.trim_start().starts_with('[') { json::elements(text).ok() } else { None };
    if elements.is_none() {
        findings.find(Stage::Value, path, || "must be an array".into());
    }
    Some(elements?.into_iter().map(|element| element.get()).collect())
}

/// A string.
pub(super) fn string(path: &str, text: &str, findings: &mut Findings) -> Option<String> {
    let read = serde_json::from_str(text).ok();
    if read.is_none() {
        findings.find(Stage::Value, path, || "must be a string".into());
    }
    read
}

/// One of these words.
pub(super) fn word(path: &str, text: &str, words: &[&'static str], findings: &mut Findings) -> Option<&'static str> {
    let read: Option<String> = serde_json::from_str(text).ok();
    let found = read.and_then(|read| words.iter().copied().find(|word| *word == read));
    if found.is_none() {
        findings.find(Stage::Value, path, || format!("must be one of {}", words.join(", ")));
    }
    found
}
