//! The standard error of a native process: always read, its beginning and the last part kept for error messages.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// What is kept.
const KEPT: usize = 64 << 10;
/// What an error message gets.
const TAIL: usize = 4 << 10;

/// The last [`KEPT`] bytes and the first few, shared between the task that reads and whoever writes an error.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept(Arc<Mutex<Bytes>>);

#[derive(Debug, Default)]
struct Bytes {
    /// The first [`TAIL`] bytes, once they are no longer among the last.
    head: Vec<u8>,
    last: VecDeque<u8>,
}

impl Kept {
    /// Reads to the end. LIMIT: nothing above [`KEPT`] and [`TAIL`] is held, however much comes.
    pub(super) async fn drain(self, mut stderr: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; 4 << 10];
        while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
            self.add(&chunk[..read]);
        }
    }

    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Bytes { head, last } = &mut *kept;
        last.extend(bytes);
        let surplus = last.len().saturating_sub(KEPT);
        if surplus > 0 && head.is_empty() {
            head.extend(last.iter().take(TAIL));
        }
        last.drain(..surplus);
    }

    /// The last text, at most [`TAIL`] bytes, without escape sequences and control characters.
    pub(super) fn tail(&self) -> String {
        let text = self.last();
        let text = text.trim_end();
        let mut from = text.len().saturating_sub(TAIL);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text[from..].to_owned()
    }

    /// All that is kept: the whole text, or its first [`TAIL`] bytes and, in a line of their own, its last [`KEPT`].
    pub(super) fn all(&self) -> String {
        let head = self.0.lock().unwrap_or_else(PoisonError::into_inner).head.clone();
        let last = self.last();
        if head.is_empty() { last } else { format!("{}\n{last}", plain(&String::from_utf8_lossy(&head))) }
    }

    fn last(&self) -> String {
        let bytes: Vec<u8> = self.0.lock().unwrap_or_else(PoisonError::into_inner).last.iter().copied().collect();
        // The ring may begin in the middle of a character.
        let start = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        plain(&String::from_utf8_lossy(&bytes[start..]))
    }
}

/// The text without ANSI escape sequences; of the other control characters only newlines and tabs stay.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\u{1b}' => match rest.next() {
                // Control sequence: parameters, then one letter or sign.
                Some('[') => while rest.next().is_some_and(|one| !('\u{40}'..='\u{7e}').contains(&one)) {},
                // Operating system command and its like: up to BEL or ESC \.
                Some(']' | 'P' | '^' | '_' | 'X') => {
                    while let Some(one) = rest.next() {
                        if one == '\u{7}' || one == '\u{1b}' && rest.next_if_eq(&'\\').is_some() {
                            break;
                        }
                    }
                }
                // Choice of a character set: one more sign.
                Some('(' | ')' | '#') => {
                    rest.next();
                }
                Some(_) | None => {}
            },
            '\n' | '\t' => out.push(character),
            other if other.is_control() => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_control_characters_go_and_text_stays() {
        for (given, want) in [
            ("\u{1b}[1;31merror:\u{1b}[0m no\tkey\r\n", "error: no\tkey\n"),
            ("\u{1b}]0;title\u{7}a\u{1b}]8;;http://x\u{1b}\\b", "ab"),
            ("\u{1b}(Ba\u{1b}7b\u{7f}\u{9b}c", "abc"),
            ("a\u{1b}[", "a"),
            ("a\u{1b}", "a"),
            ("héllo ✓", "héllo ✓"),
        ] {
            assert_eq!(plain(given), want, "{given:?}");
        }
    }

    #[tokio::test]
    async fn the_tail_is_short_and_begins_with_a_whole_character() {
        for lead in 0..4 {
            let kept = Kept::default();
            let text = format!("{}{}\n\n", "x".repeat(lead), "é✓\u{1f980}".repeat(20_000));
            kept.clone().drain(text.as_bytes()).await;
            assert_eq!(kept.0.lock().unwrap().last.len(), KEPT);
            let tail = kept.tail();
            assert!(tail.len() <= TAIL && tail.len() > TAIL - 4, "{}", tail.len());
            assert!(text.trim_end().ends_with(&tail), "{}", &tail[..8]);
        }
    }

    #[tokio::test]
    async fn a_long_text_has_its_beginning_and_its_end() {
        for (length, want) in [(TAIL * 2, TAIL * 2 + 11), (KEPT * 3, TAIL + 1 + KEPT)] {
            let kept = Kept::default();
            let text = format!("begin {}\nend\n", "x".repeat(length));
            kept.clone().drain(text.as_bytes()).await;
            let all = kept.all();
            assert!(all.starts_with("begin xxx") && all.ends_with("xxx\nend\n"), "{}", all.len());
            assert_eq!(all.len(), want);
        }
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_are_shown_as_such() {
        let kept = Kept::default();
        kept.clone().drain(&b"bad \xff\xfe\n"[..]).await;
        assert_eq!(kept.tail(), "bad \u{fffd}\u{fffd}");
    }
}
