//! The stated rendering of a result (R-FN-6, R-FN-9): what the `user` line must show of the parts that were written.
//!
//! A successful result is shown part by part; behind each image stands a text with the path of a copy. A failed one is shown as one text: its texts
//! joined by newlines, without blanks around them, cut in the middle when it is long; images in it are dropped.

use crate::{
    claude_code::wire::{SERVER, Shown, ShownPart},
    harness::OutputPart,
};

/// A failed result of more UTF-16 units is cut in the middle.
const CUT_ABOVE: usize = 11_024;
/// UTF-16 units that are left at each end of a text that is cut; one fewer where the last would be half of a character.
const CUT_TO: usize = 5_000;
/// Around the number of units that are left out.
const CUT: (&str, &str) = ("\n\n... [", " characters truncated] ...\n\n");

/// How the text behind an image begins.
const IMAGE_SOURCE: &str = "[Image: source: ";

/// The name of a function as the model has it.
pub(in crate::claude_code) fn tool_name(function: &str) -> String {
    format!("mcp__{SERVER}__{function}")
}

/// An answer as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) success: bool,
    /// Of the function.
    pub(super) name: String,
    pub(super) parts: Vec<OutputPart>,
}

impl Answer {
    /// Whether a native result is this answer.
    pub(super) fn is_shown(&self, is_error: bool, shown: &Shown) -> bool {
        match (is_error, shown) {
            (true, Shown::Text(shown)) if !self.success => is_failure(&self.failure(), shown),
            (false, Shown::Text(shown)) if self.success => {
                self.is_blank() && *shown == format!("({} completed with no output)", tool_name(&self.name))
            }
            (false, Shown::Parts(shown)) if self.success => !self.is_blank() && are_parts(&self.parts, shown),
            (_, Shown::Text(_) | Shown::Parts(_)) => false,
        }
    }

    /// Whether Claude takes a successful result for none.
    fn is_blank(&self) -> bool {
        self.parts.iter().all(|part| match part {
            OutputPart::Text(text) => trim(text).is_empty(),
            OutputPart::Image(_) => false,
        })
    }

    /// The text of a failed result, before it is cut.
    fn failure(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            OutputPart::Text(text) => Some(text.as_str()),
            OutputPart::Image(_) => None,
        });
        let texts: Vec<&str> = texts.collect();
        if texts.is_empty() {
            return "Unknown error".to_owned();
        }
        let text = texts.join("\n");
        match trim(&text) {
            "" => "Command failed with no output".to_owned(),
            text => text.to_owned(),
        }
    }
}

/// An image stands as it was written, or smaller: Claude makes a smaller one of it when it has more than 2000 pixels on a side or 500 kB.
/// What cannot be read as an image is a text in its place.
fn are_parts(parts: &[OutputPart], shown: &[ShownPart]) -> bool {
    let mut shown = shown.iter();
    let all = parts.iter().all(|part| match part {
        OutputPart::Text(text) => {
            shown.next().is_some_and(|shown| matches!(shown, ShownPart::Text(shown) if shown == text))
        }
        OutputPart::Image(_) => {
            matches!(shown.next(), Some(ShownPart::Image { .. }))
                && matches!(shown.next(), Some(ShownPart::Text(text)) if text.starts_with(IMAGE_SOURCE))
        }
    });
    all && shown.next().is_none()
}

/// Whether a failed result shows the text: all of it, or both its ends.
fn is_failure(text: &str, shown: &str) -> bool {
    if text.encode_utf16().count() <= CUT_ABOVE {
        return text == shown;
    }
    let (head, tail) = (&text[..units(text.chars())], &text[text.len() - units(text.chars().rev())..]);
    let middle = shown.strip_prefix(head).and_then(|shown| shown.strip_suffix(tail));
    let number = middle.and_then(|middle| middle.strip_prefix(CUT.0)?.split_once(CUT.1));
    number.is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The bytes of the characters that [`CUT_TO`] units have room for.
fn units(characters: impl Iterator<Item = char>) -> usize {
    let mut left = CUT_TO;
    let fits = |character: &char| left.checked_sub(character.len_utf16()).map(|rest| left = rest).is_some();
    characters.take_while(fits).map(char::len_utf8).sum()
}

/// Without what JavaScript takes for blanks around it.
fn trim(text: &str) -> &str {
    text.trim_matches(|one: char| one == '\u{feff}' || (one.is_whitespace() && one != '\u{85}'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Image, MediaType};

    fn answer(success: bool, texts: &[&str]) -> Answer {
        let parts = texts.iter().map(|text| OutputPart::Text((*text).into())).collect();
        Answer { success, name: "lookup".into(), parts }
    }

    fn image() -> OutputPart {
        OutputPart::Image(Image { media_type: MediaType::Png, data: bytes::Bytes::from_static(b"bytes") })
    }

    fn shown_image(data: &str) -> ShownPart {
        ShownPart::Image { media_type: "image/png".into(), data: data.into() }
    }

    fn text(text: &str) -> ShownPart {
        ShownPart::Text(text.into())
    }

    /// Texts as the real binary shows them.
    #[test]
    fn failures_are_one_text() {
        let odd = "a\rb\r\nc\u{1b}[1md\0e\u{feff}\u{2028} é 😀\u{7}\u{7f}";
        for (given, want) in [
            (&[][..], "Unknown error"),
            (&[""], "Command failed with no output"),
            (&[" \n"], "Command failed with no output"),
            (&["a", "", "b"], "a\n\nb"),
            (&["  a", "b  ", "\n"], "a\nb"),
            (&["", "a", ""], "a"),
            (&["a\r\n"], "a"),
            (&["\u{a0}a\u{feff}\u{2003}\u{85}"], "a\u{feff}\u{2003}\u{85}"),
            (&["<tool_use_error>y</tool_use_error>"], "<tool_use_error>y</tool_use_error>"),
            (&[odd], odd),
        ] {
            let answer = answer(false, given);
            assert!(answer.is_shown(true, &Shown::Text(want.into())), "{given:?}");
            assert!(!answer.is_shown(true, &Shown::Text(format!("{want} "))), "{given:?}");
            assert!(!answer.is_shown(false, &Shown::Text(want.into())), "{given:?}");
        }
        let mut with_image = answer(false, &["x"]);
        with_image.parts.push(image());
        assert!(with_image.is_shown(true, &Shown::Text("x".into())));
    }

    #[test]
    fn a_long_failure_shows_both_its_ends() {
        let digits = |count: usize| "0123456789".repeat(count.div_ceil(10))[..count].to_owned();
        let whole = |count: usize| answer(false, &[&digits(count)]).is_shown(true, &Shown::Text(digits(count)));
        assert!(whole(11_024));
        assert!(!whole(11_025));
        let cut = |head: &str, number: &str, tail: &str| Shown::Text(format!("{head}{}{number}{}{tail}", CUT.0, CUT.1));
        let long = answer(false, &["  ", &digits(20_000)]);
        let (head, tail) = (&digits(5_000), &digits(5_000));
        assert!(long.is_shown(true, &cut(head, "10000", tail)));
        assert!(!long.is_shown(true, &cut(head, "", tail)));
        assert!(!long.is_shown(true, &cut(head, "1x", tail)));
        assert!(!long.is_shown(true, &cut(&digits(4_999), "10000", tail)));
        assert!(!long.is_shown(true, &cut(head, "10000", &tail[..4_999])));
        assert!(!long.is_shown(true, &Shown::Text(digits(10_000))));
        // No character is cut in two.
        let faces = answer(false, &[&format!("x{}", "😀".repeat(6_000))]);
        assert!(faces.is_shown(true, &cut(&format!("x{}", "😀".repeat(2_499)), "2002", &"😀".repeat(2_500))));
    }

    #[test]
    fn successes_are_their_parts() {
        let no_output = "(mcp__functions__lookup completed with no output)";
        for given in [&[][..], &[""], &[" \n"], &["", "\n"], &["\u{feff}"]] {
            let answer = answer(true, given);
            assert!(answer.is_shown(false, &Shown::Text(no_output.into())), "{given:?}");
            assert!(!answer.is_shown(true, &Shown::Text(no_output.into())), "{given:?}");
            assert!(!answer.is_shown(false, &Shown::Parts(given.iter().map(|one| text(one)).collect())), "{given:?}");
        }
        for given in [&["\u{85}"][..], &["a", "", "b"], &["<persisted-output>\r\u{1b}[31m"]] {
            let parts = || given.iter().map(|one| text(one)).collect();
            let answer = answer(true, given);
            assert!(answer.is_shown(false, &Shown::Parts(parts())), "{given:?}");
            assert!(!answer.is_shown(true, &Shown::Parts(parts())), "{given:?}");
            assert!(!answer.is_shown(false, &Shown::Text(no_output.into())), "{given:?}");
            let more = parts().into_iter().chain([text("more")]).collect();
            assert!(!answer.is_shown(false, &Shown::Parts(more)), "{given:?}");
        }
        assert!(!answer(true, &["a", "b"]).is_shown(false, &Shown::Parts(vec![text("a")])));
        let persisted = Shown::Text("<persisted-output>\nOutput too large".into());
        assert!(!answer(true, &["a"]).is_shown(false, &persisted));
    }

    #[test]
    fn an_image_is_shown_with_its_copy_behind_it() {
        let source = || text("[Image: source: /h/tool-results/mcp-functions-blob-1.png]");
        let mut given = answer(true, &["x"]);
        given.parts.extend([image(), image(), OutputPart::Text("y".into())]);
        let shown =
            vec![text("x"), shown_image("Ynl0ZXM="), source(), shown_image("c21hbGxlcg=="), source(), text("y")];
        assert!(given.is_shown(false, &Shown::Parts(shown)));
        let replaced = vec![text("x"), text("[no image]"), source(), shown_image("Ynl0ZXM="), source(), text("y")];
        assert!(!given.is_shown(false, &Shown::Parts(replaced)));
        let alone = vec![text("x"), shown_image("Ynl0ZXM="), shown_image("Ynl0ZXM="), text("y")];
        assert!(!given.is_shown(false, &Shown::Parts(alone)));
        // With an image a blank text stays.
        let mut blank = answer(true, &[" "]);
        blank.parts.push(image());
        assert!(blank.is_shown(false, &Shown::Parts(vec![text(" "), shown_image("Ynl0ZXM="), source()])));
    }
}
