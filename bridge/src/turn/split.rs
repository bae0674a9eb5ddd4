//! Large texts are split into several events, so that no message grows beyond its limit (R-API-7).

use super::event::Event;

/// Longest text of a delta in bytes: an answer of an observation holds at most 256 KiB.
const PIECE: usize = 128 * 1024;

/// The event, or several of its kind that together say the same.
pub(crate) fn split(event: Event, mut give: impl FnMut(Event)) {
    match event {
        Event::MessageDelta { item, text } if text.len() > PIECE => {
            pieces(&text, |text| give(Event::MessageDelta { item: item.clone(), text: text.to_owned() }));
        }
        Event::ReasoningDelta { item, kind, index, text } if text.len() > PIECE => pieces(&text, |text| {
            give(Event::ReasoningDelta { item: item.clone(), kind, index, text: text.to_owned() });
        }),
        Event::ToolOutput { item, text } if text.len() > PIECE => {
            pieces(&text, |text| give(Event::ToolOutput { item: item.clone(), text: text.to_owned() }));
        }
        other => give(other),
    }
}

fn pieces(mut text: &str, mut give: impl FnMut(&str)) {
    while text.len() > PIECE {
        let at = text.floor_char_boundary(PIECE);
        give(&text[..at]);
        text = &text[at..];
    }
    give(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_characters_and_together_the_text() {
        let text = "€".repeat(PIECE);
        let mut seen = Vec::new();
        split(Event::MessageDelta { item: "m".into(), text: text.clone() }, |event| match event {
            Event::MessageDelta { item, text } => {
                assert_eq!(item, "m");
                assert!(text.len() <= PIECE);
                seen.push(text);
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(seen.len(), 4);
        assert_eq!(seen.concat(), text);
    }
}
