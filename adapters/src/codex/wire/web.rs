//! `webSearch`: a search of the web that the provider made, or a look at a page. Codex begins it before it knows what is done, and ends it with a
//! result that it keeps to itself.

use serde::Deserialize;

use crate::harness::{Tool, WebAction};

/// `webSearch`.
#[derive(Debug, Deserialize)]
pub(in crate::codex) struct SearchItem {
    pub(in crate::codex) id: String,
    #[serde(default)]
    query: String,
    action: Option<Action>,
}

/// What is done. Which members are there depends on the type; an address or a text that the provider left out is null.
#[derive(Debug, Deserialize)]
struct Action {
    #[serde(rename = "type")]
    kind: String,
    query: Option<String>,
    queries: Option<Vec<String>>,
    url: Option<String>,
    pattern: Option<String>,
}

impl SearchItem {
    /// The tool that it is to an observer.
    pub(in crate::codex) fn into_tool(self) -> Tool {
        Tool::WebSearch { query: self.query, action: self.action.map(Action::into_neutral) }
    }
}

impl Action {
    fn into_neutral(self) -> WebAction {
        let Self { kind, query, queries, url, pattern } = self;
        match kind.as_str() {
            "search" => WebAction::Search {
                queries: queries.filter(|all| !all.is_empty()).unwrap_or_else(|| query.into_iter().collect()),
            },
            "openPage" => WebAction::OpenPage { url: url.unwrap_or_default() },
            "findInPage" => {
                WebAction::FindInPage { url: url.unwrap_or_default(), pattern: pattern.unwrap_or_default() }
            }
            _ => WebAction::Other { name: kind },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(action: &str, want: Option<WebAction>) {
        let item: SearchItem =
            serde_json::from_str(&format!(r#"{{"type":"webSearch","id":"w","query":"q","action":{action}}}"#)).unwrap();
        assert_eq!(item.into_tool(), Tool::WebSearch { query: "q".into(), action: want });
    }

    #[test]
    fn every_action_is_told_with_what_it_has() {
        let queries = |all: &[&str]| Some(WebAction::Search { queries: all.iter().map(|one| (*one).into()).collect() });
        check("null", None);
        check(r#"{"type":"search","query":"a","queries":["a","b"]}"#, queries(&["a", "b"]));
        check(r#"{"type":"search","query":"a","queries":null}"#, queries(&["a"]));
        check(r#"{"type":"search","query":"a","queries":[]}"#, queries(&["a"]));
        check(r#"{"type":"search","query":null,"queries":null}"#, queries(&[]));
        check(r#"{"type":"openPage","url":"https://h/x"}"#, Some(WebAction::OpenPage { url: "https://h/x".into() }));
        check(r#"{"type":"openPage","url":null}"#, Some(WebAction::OpenPage { url: String::new() }));
        let find = |url: &str, pattern: &str| Some(WebAction::FindInPage { url: url.into(), pattern: pattern.into() });
        check(r#"{"type":"findInPage","url":"https://h/x","pattern":"p"}"#, find("https://h/x", "p"));
        check(r#"{"type":"findInPage"}"#, find("", ""));
        check(r#"{"type":"teleport","to":7}"#, Some(WebAction::Other { name: "teleport".into() }));
    }
}
