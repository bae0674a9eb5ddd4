//! The view of a terminal: messages as they are written, everything else as dim lines between them.

use std::collections::HashMap;

use proto::v1::{self, event::Kind};

use super::{Shown, progress};

const DIM: &str = "\x1b[2m";
const NORMAL: &str = "\x1b[0m";
/// Stands before reasoning where it cannot be dim.
const REASONING: &str = "(reasoning) ";

/// What stands on the terminal so far, as far as the next event depends on it.
#[derive(Debug)]
pub(super) struct Live {
    colour: bool,
    /// The item whose text the last line belongs to; none at the beginning of a line.
    open: Option<String>,
    /// Deltas of the messages and of the reasoning that are not complete yet.
    written: HashMap<String, String>,
}

impl Live {
    pub(super) fn new(colour: bool) -> Self {
        Self { colour, open: None, written: HashMap::new() }
    }

    pub(super) fn show(&mut self, event: &v1::Event) -> Shown {
        let mut shown = Shown::default();
        match &event.kind {
            Some(Kind::MessageDelta(delta)) => self.message(&delta.item_id, &delta.text, &mut shown.out),
            Some(Kind::MessageCompleted(message)) => {
                let text = progress::text_of(message.text.as_ref());
                self.completed(&message.item_id, &text, &mut shown.out);
            }
            Some(Kind::MessageDiscarded(discarded)) => {
                if self.written.remove(&discarded.item_id).is_some() {
                    let why = progress::name(discarded.reason().as_str_name(), "DISCARD_REASON_");
                    self.line(&format!("the last text is void ({why})"), &mut shown.out);
                }
            }
            Some(Kind::ReasoningDelta(delta)) => self.reasoning(&delta.item_id, &delta.text, &mut shown.out),
            Some(Kind::ReasoningCompleted(reasoning)) => self.reasoned(reasoning, &mut shown.out),
            _ => {
                for line in progress::lines(event) {
                    self.line(&line, &mut shown.out);
                }
                if let Some(end) = progress::end(event) {
                    self.end_line(&mut shown.out);
                    shown.err = format!("{end}\n");
                }
            }
        }
        shown
    }

    pub(super) fn remark(&mut self, text: &str) -> Shown {
        let mut shown = Shown::default();
        self.line(&progress::one_line(text), &mut shown.out);
        shown
    }

    /// Makes room for a line of another hand.
    pub(super) fn break_line(&mut self) -> Shown {
        let mut shown = Shown::default();
        self.end_line(&mut shown.out);
        shown
    }

    fn message(&mut self, item: &str, text: &str, out: &mut String) {
        self.begin(item, out);
        out.push_str(&harmless(text));
        self.written.entry(item.into()).or_default().push_str(text);
    }

    /// The complete text replaces the deltas: where it only goes on, the rest is added, else it is written anew.
    fn completed(&mut self, item: &str, text: &str, out: &mut String) {
        let written = self.written.remove(item).unwrap_or_default();
        let rest = match text.strip_prefix(written.as_str()) {
            Some(rest) if written.is_empty() || self.open.as_deref() == Some(item) => rest,
            // It stands there in full, further up.
            Some("") => return,
            _ => {
                self.end_line(out);
                text
            }
        };
        if !rest.is_empty() {
            self.begin(item, out);
            out.push_str(&harmless(rest));
        }
        self.close(text, out);
    }

    fn reasoning(&mut self, item: &str, text: &str, out: &mut String) {
        if self.begin(item, out) && !self.colour {
            out.push_str(REASONING);
        }
        self.dim(&harmless(text), out);
        self.written.entry(item.into()).or_default().push_str(text);
    }

    fn reasoned(&mut self, reasoning: &v1::ReasoningCompleted, out: &mut String) {
        if let Some(written) = self.written.remove(&reasoning.item_id) {
            if self.open.as_deref() == Some(&reasoning.item_id) {
                self.close(&written, out);
            }
            return;
        }
        let parts = if reasoning.summary.is_empty() { &reasoning.raw } else { &reasoning.summary };
        for part in parts {
            let text = progress::text_of(Some(part));
            if !text.is_empty() {
                self.end_line(out);
                self.reasoning(&reasoning.item_id, &text, out);
                self.close(&text, out);
            }
        }
        self.written.remove(&reasoning.item_id);
    }

    /// A dim line of its own.
    fn line(&mut self, text: &str, out: &mut String) {
        self.end_line(out);
        self.dim(text, out);
        out.push('\n');
    }

    /// Goes on with the text of an item; true when a line begins with it.
    fn begin(&mut self, item: &str, out: &mut String) -> bool {
        if self.open.as_deref() == Some(item) {
            return false;
        }
        self.end_line(out);
        self.open = Some(item.into());
        true
    }

    fn end_line(&mut self, out: &mut String) {
        if self.open.take().is_some() {
            out.push('\n');
        }
    }

    /// Ends the item whose whole text is `text`.
    fn close(&mut self, text: &str, out: &mut String) {
        if text.ends_with('\n') {
            self.open = None;
        } else {
            self.end_line(out);
        }
    }

    fn dim(&self, text: &str, out: &mut String) {
        if self.colour && !text.is_empty() {
            out.push_str(DIM);
            out.push_str(text);
            out.push_str(NORMAL);
        } else {
            out.push_str(text);
        }
    }
}

/// A text without what could steer the terminal.
fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}
