//! Reads JSON strictly: no member twice, nothing but Unicode, 128 levels at most, every flaw with its place. One pass over the text; numbers are looked at
//! and left as they are (R-API-3).

use std::{borrow::Cow, collections::HashSet, fmt};

/// The most levels of objects and arrays.
pub(super) const DEPTH: usize = 128;
/// The most characters of a path, and of a name in it.
const PATH: usize = 200;
const NAME: usize = 64;

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    /// Path of the value, from that of the text on.
    pub(super) path: String,
    /// What is wrong with it, with line and column.
    pub(super) message: String,
}

/// Checks a text, and gives it as what it is. `root` is its own path.
pub(super) fn check<'a>(root: &str, bytes: &'a [u8]) -> Result<&'a str, Flaw> {
    check_to(DEPTH, root, bytes)
}

/// Checks an object whose members are texts, which have their levels each and begin their paths.
pub(super) fn check_texts(bytes: &[u8]) -> Result<&str, Flaw> {
    check_to(DEPTH + 1, "", bytes).map_err(|Flaw { path, message }| match path.strip_prefix('.') {
        Some(inner) => Flaw { path: inner.to_owned(), message },
        None => Flaw { path: format!("${path}"), message },
    })
}

fn check_to<'a>(levels: usize, root: &str, bytes: &'a [u8]) -> Result<&'a str, Flaw> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default()).into_owned();
        let place = place(&before, before.len());
        Flaw { path: root.to_owned(), message: format!("is not UTF-8 at {place}") }
    })?;
    let mut scanner = Scanner { text, at: 0, steps: Vec::new(), deep: 0, levels };
    let scanned = scanner.whole();
    scanned.map_err(|wrong| {
        let mut path = root.to_owned();
        for step in &scanner.steps {
            match step {
                Step::Member(name) => path.push_str(&member(name)),
                Step::Element(index) => path.push_str(&format!("[{index}]")),
            }
        }
        Flaw { path: cut(&path), message: format!("{} at {}", wrong.0, place(text, scanner.at)) }
    })?;
    Ok(text)
}

/// A member as a step of a path: printable, and not too long.
pub(super) fn member(name: &str) -> String {
    let mut shown: String = name.chars().take(NAME).flat_map(char::escape_debug).collect();
    if name.chars().nth(NAME).is_some() {
        shown.push('…');
    }
    format!(".{shown}")
}

fn cut(path: &str) -> String {
    match path.char_indices().nth(PATH) {
        Some((end, _)) => format!("{}…", path.get(..end).unwrap_or_default()),
        None => path.to_owned(),
    }
}

fn place(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}")
}

enum Step<'a> {
    Member(Cow<'a, str>),
    Element(usize),
}

/// What is wrong, without where.
struct Wrong(&'static str);

impl fmt::Debug for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

const NOT_JSON: Wrong = Wrong("is not JSON");

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    steps: Vec<Step<'a>>,
    deep: usize,
    levels: usize,
}

impl<'a> Scanner<'a> {
    fn whole(&mut self) -> Result<(), Wrong> {
        self.value()?;
        self.white();
        if self.at == self.text.len() { Ok(()) } else { Err(NOT_JSON) }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn white(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Result<(), Wrong> {
        self.white();
        if self.peek() != Some(byte) {
            return Err(NOT_JSON);
        }
        self.at += 1;
        Ok(())
    }

    fn takes(&mut self, byte: u8) -> bool {
        self.take(byte).is_ok()
    }

    fn value(&mut self) -> Result<(), Wrong> {
        self.white();
        match self.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                let word = ["true", "false", "null"].into_iter().find(|word| self.rest().starts_with(word));
                self.at += word.ok_or(NOT_JSON)?.len();
                Ok(())
            }
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn nested(&mut self, inner: fn(&mut Self) -> Result<(), Wrong>) -> Result<(), Wrong> {
        if self.deep == self.levels {
            return Err(Wrong("is nested deeper than 128 levels"));
        }
        self.deep += 1;
        self.at += 1;
        inner(self)?;
        self.deep -= 1;
        Ok(())
    }

    fn object(&mut self) -> Result<(), Wrong> {
        if self.takes(b'}') {
            return Ok(());
        }
        let mut names = HashSet::new();
        loop {
            self.white();
            let start = self.at;
            let name = self.string()?;
            self.steps.push(Step::Member(name.clone()));
            if !names.insert(name) {
                self.at = start;
                return Err(Wrong("is there twice"));
            }
            self.take(b':')?;
            self.value()?;
            self.steps.pop();
            if !self.takes(b',') {
                return self.take(b'}');
            }
        }
    }

    fn array(&mut self) -> Result<(), Wrong> {
        if self.takes(b']') {
            return Ok(());
        }
        for index in 0.. {
            self.steps.push(Step::Element(index));
            self.value()?;
            self.steps.pop();
            if !self.takes(b',') {
                break;
            }
        }
        self.take(b']')
    }

    fn number(&mut self) -> Result<(), Wrong> {
        let digits = |scanner: &mut Self| {
            let start = scanner.at;
            while matches!(scanner.peek(), Some(b'0'..=b'9')) {
                scanner.at += 1;
            }
            if scanner.at == start { Err(NOT_JSON) } else { Ok(()) }
        };
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            digits(self)?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            digits(self)?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            digits(self)?;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Wrong> {
        if self.peek() != Some(b'"') {
            return Err(NOT_JSON);
        }
        let opened = self.at;
        self.at += 1;
        let mut decoded = Cow::Borrowed("");
        loop {
            let start = self.at;
            while !matches!(self.peek(), None | Some(b'"' | b'\\' | 0..=0x1f)) {
                self.at += 1;
            }
            let plain = self.text.get(start..self.at).unwrap_or_default();
            if decoded.is_empty() {
                decoded = Cow::Borrowed(plain);
            } else {
                decoded.to_mut().push_str(plain);
            }
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(decoded);
                }
                Some(b'\\') => {
                    let escaped = self.escape().inspect_err(|wrong| {
                        if wrong.0 != NOT_JSON.0 {
                            self.at = opened;
                        }
                    })?;
                    decoded.to_mut().push(escaped);
                }
                _ => return Err(NOT_JSON),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Wrong> {
        const LONE: Wrong = Wrong("has a lone surrogate, which is no Unicode text,");
        self.at += 1;
        let kind = self.peek().ok_or(NOT_JSON)?;
        self.at += 1;
        Ok(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = self.unit()?;
                if let Some(found) = char::from_u32(unit) {
                    return Ok(found);
                }
                if unit >= 0xdc00 || !self.rest().starts_with("\\u") {
                    return Err(LONE);
                }
                self.at += 2;
                let low = self.unit()?;
                if !(0xdc00..0xe000).contains(&low) {
                    return Err(LONE);
                }
                char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)).ok_or(LONE)?
            }
            _ => {
                self.at -= 1;
                return Err(NOT_JSON);
            }
        })
    }

    fn unit(&mut self) -> Result<u32, Wrong> {
        let digits = self.text.get(self.at..self.at + 4).ok_or(NOT_JSON)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NOT_JSON);
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).map_err(|_| NOT_JSON)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    #[track_caller]
    fn check(given: &[u8], want: &str) {
        let got =
            super::check("tools", given).map_or_else(|flaw| format!("{}: {}", flaw.path, flaw.message), str::to_owned);
        assert_eq!(got, want);
    }

    #[test]
    fn what_is_strict_json_stays_as_it_is() {
        for text in [
            "null",
            " [ ] ",
            "[1e400,-0,0.10,123456789012345678901234567890]",
            r#"{"a":{"a":1},"\u0062":"\ud83d\ude00\n","é":"\/"}"#,
            "\t{\n}\r",
        ] {
            check(text.as_bytes(), text);
        }
    }

    #[test]
    fn what_is_not_is_told_with_its_place() {
        check(b"", "tools: is not JSON at line 1, column 1");
        check(b"[1,]", "tools[1]: is not JSON at line 1, column 4");
        check(b"{} {}", "tools: is not JSON at line 1, column 4");
        check(b"[01]", "tools: is not JSON at line 1, column 3");
        check(b"[1.]", "tools[0]: is not JSON at line 1, column 4");
        check(b"\"a\nb\"", "tools: is not JSON at line 1, column 3");
        check(br#"["\x"]"#, "tools[0]: is not JSON at line 1, column 4");
        check(b"\xef\xbb\xbf[]", "tools: is not JSON at line 1, column 1");
        check(b"[\n  \"\xc3\xa4\xff\"]", "tools: is not UTF-8 at line 2, column 5");
        check(br#"[{"a":1,"\u0061":2}]"#, "tools[0].a: is there twice at line 1, column 9");
        let lone = "has a lone surrogate, which is no Unicode text,";
        check(br#"[{"a":"x\ud800"}]"#, &format!("tools[0].a: {lone} at line 1, column 7"));
        check(br#"[{"\udc00":1}]"#, &format!("tools[0]: {lone} at line 1, column 3"));
        check(br#"["\ud800\ud800"]"#, &format!("tools[0]: {lone} at line 1, column 2"));
    }

    #[test]
    fn the_deepest_text_has_128_levels() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(super::check("x", nested(128).as_bytes()).is_ok());
        let flaw = super::check("x", nested(129).as_bytes()).unwrap_err();
        assert!(flaw.message.starts_with("is nested deeper than 128 levels at line 1, column 129"), "{flaw:?}");
        assert!(super::check("x", "[".repeat(1_000_000).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn it_takes_what_serde_takes_and_nothing_else(text in r#"[\[\]{}:,"a0-2.eEtrulns\\ -]{0,24}"#) {
            let ours = super::check("x", text.as_bytes());
            let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text);
            match (&ours, theirs.is_ok()) {
                // A member that is there twice is JSON to others.
                (Err(flaw), true) => prop_assert!(flaw.message.starts_with("is there twice"), "{:?}", flaw),
                (given, good) => prop_assert_eq!(given.is_ok(), good),
            }
        }

        #[test]
        fn whole_values_are_taken(text in any_json()) {
            prop_assert_eq!(super::check("x", text.as_bytes()), Ok(text.as_str()));
        }
    }

    fn any_json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        let whole = leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        });
        whole.prop_map(|value| value.to_string())
    }
}
