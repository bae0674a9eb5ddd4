//! The items of a Turn: ids that are unique, and what is open (R-EVT-2). Pure.

use std::collections::{HashMap, HashSet};

use adapters::harness::{Tool, ToolEnd, ToolStatus};

use super::event::{Discard, Event};

/// Ids and open items of one Turn.
#[derive(Debug, Default)]
pub(super) struct Items {
    open: Vec<Open>,
    given: HashSet<String>,
    uses: HashMap<String, u32>,
}

#[derive(Debug)]
struct Open {
    native: String,
    item: String,
    kind: Kind,
}

/// What an item is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Message,
    Reasoning,
    Tool(Tool),
}

impl Kind {
    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Items {
    /// Opens an item and gives its id: the native one where it is new in the Turn, else the native one with a number.
    pub(super) fn open(&mut self, native: &str, kind: Kind) -> String {
        let uses = self.uses.entry(native.to_owned()).or_insert(0);
        let item = loop {
            *uses += 1;
            let candidate = if *uses == 1 { native.to_owned() } else { format!("{native}#{uses}") };
            if self.given.insert(candidate.clone()) {
                break candidate;
            }
        };
        self.open.push(Open { native: native.to_owned(), item: item.clone(), kind });
        item
    }

    /// Whether no item is open.
    pub(super) fn are_closed(&self) -> bool {
        self.open.is_empty()
    }

    /// The id of an open item.
    pub(super) fn find(&self, native: &str, kind: &Kind) -> Option<&str> {
        self.open.iter().rev().find(|o| o.native == native && o.kind.is_like(kind)).map(|o| o.item.as_str())
    }

    /// Whether a tool runs.
    pub(super) fn has_open_tool(&self) -> bool {
        self.open.iter().any(|o| matches!(o.kind, Kind::Tool(_)))
    }

    /// Closes an item and gives its id.
    pub(super) fn close(&mut self, native: &str, kind: &Kind) -> Option<String> {
        let at = self.open.iter().rposition(|o| o.native == native && o.kind.is_like(kind))?;
        Some(self.open.remove(at).item)
    }

    /// Closes what a provider's broken answer leaves: messages, reasoning, and searches, which the provider makes itself. Other tools run on.
    pub(super) fn break_answer(&mut self, why: Discard) -> Vec<Event> {
        let is_of_answer = |kind: &Kind| match kind {
            Kind::Message | Kind::Reasoning | Kind::Tool(Tool::WebSearch { .. }) => true,
            Kind::Tool(Tool::Command { .. } | Tool::FileChange { .. } | Tool::Mcp(_) | Tool::Other { .. }) => false,
        };
        let (broken, rest) = std::mem::take(&mut self.open).into_iter().partition(|o| is_of_answer(&o.kind));
        self.open = rest;
        close_all(broken, why)
    }

    /// Closes everything, in the order in which it was opened.
    pub(super) fn close_all(&mut self, why: Discard) -> Vec<Event> {
        close_all(std::mem::take(&mut self.open), why)
    }
}

fn close_all(open: Vec<Open>, why: Discard) -> Vec<Event> {
    open.into_iter().map(|Open { item, kind, .. }| closing(item, kind, why)).collect()
}

/// The event that closes an item which the Harness left open.
pub(super) fn closing(item: String, kind: Kind, why: Discard) -> Event {
    match kind {
        Kind::Message => Event::MessageDiscarded { item, reason: why },
        Kind::Reasoning => Event::ReasoningCompleted { item, summary: Vec::new(), raw: Vec::new(), incomplete: true },
        Kind::Tool(tool) => Event::ToolCompleted { item, end: incomplete(tool) },
    }
}

/// The end of a tool for which the Harness told none.
pub(crate) fn incomplete(tool: Tool) -> ToolEnd {
    ToolEnd { status: ToolStatus::Incomplete, tool, output: None, exit_code: None, duration: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_native_id_that_comes_again_gets_an_id_of_its_own() {
        let mut items = Items::default();
        assert_eq!(items.open("a", Kind::Message), "a");
        assert_eq!(items.open("a#2", Kind::Message), "a#2");
        assert_eq!(items.open("a", Kind::Reasoning), "a#3");
        assert_eq!(items.find("a", &Kind::Message), Some("a"));
        assert_eq!(items.close("a", &Kind::Reasoning).as_deref(), Some("a#3"));
        assert_eq!(items.close("a", &Kind::Reasoning), None);
    }

    #[test]
    fn a_broken_answer_leaves_tools_open() {
        let mut items = Items::default();
        items.open("m", Kind::Message);
        items.open("t", Kind::Tool(Tool::Other { name: "x".into() }));
        items.open("w", Kind::Tool(Tool::WebSearch { query: String::new(), action: None }));
        items.open("r", Kind::Reasoning);
        let events = items.break_answer(Discard::Retried);
        assert_eq!(events.len(), 3);
        assert!(
            matches!(&events[1], Event::ToolCompleted { item, end } if item == "w" && end.status == ToolStatus::Incomplete)
        );
        assert!(matches!(&events[0], Event::MessageDiscarded { item, reason: Discard::Retried } if item == "m"));
        let rest = items.close_all(Discard::TurnEnded);
        assert!(
            matches!(&rest[..], [Event::ToolCompleted { item, end }] if item == "t" && end.status == ToolStatus::Incomplete)
        );
    }
}
