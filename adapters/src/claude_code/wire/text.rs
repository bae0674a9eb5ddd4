//! Texts of a program whose strings are UTF-16: half of a character may stand alone in them, which JSON can carry and a Rust string cannot.

use std::fmt;

use serde::{
    Deserialize as _, Deserializer,
    de::{Error, Visitor},
};

/// Reads a text; what is no character becomes U+FFFD, as JavaScript itself does it.
pub(super) fn lossy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_string<E: Error>(self, text: String) -> Result<String, E> {
            Ok(text)
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<String, E> {
            Ok(match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => replaced(bytes),
            })
        }
    }

    deserializer.deserialize_bytes(Bytes)
}

/// Reads what may be of another form than is known: it then counts as missing, and the rest of its line holds (R-CAP-5).
pub(super) fn lenient<'de, D: Deserializer<'de>, T: Default + serde::de::DeserializeOwned>(
    deserializer: D,
) -> Result<T, D::Error> {
    let raw = Box::<serde_json::value::RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(raw.get()).unwrap_or_default())
}

/// The same where the text may be missing or null.
pub(in crate::claude_code) fn lossy_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    struct Present;

    impl<'de> Visitor<'de> for Present {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string or null")
        }

        fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            lossy(deserializer).map(Some)
        }
    }

    deserializer.deserialize_option(Present)
}

/// A half of a character comes as three bytes, the first of which begins it.
fn replaced(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if chunk.invalid().first().is_some_and(|byte| !matches!(byte, 0x80..=0xbf)) {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Texts {
        #[serde(deserialize_with = "super::lossy")]
        text: String,
        #[serde(default, deserialize_with = "super::lossy_option")]
        maybe: Option<String>,
    }

    #[test]
    fn half_characters_are_replaced_and_all_others_stay() {
        for (given, want) in [
            (r#"{"text":"a\rb\u001b[1m\u0000\ufeff"}"#, "a\rb\u{1b}[1m\0\u{feff}"),
            (r#"{"text":"\ud83d\ude00 é"}"#, "😀 é"),
            (r#"{"text":"x\ud83dy"}"#, "x\u{fffd}y"),
            (r#"{"text":"\ude00\ud83d"}"#, "\u{fffd}\u{fffd}"),
            (r#"{"text":"","maybe":null}"#, ""),
        ] {
            let read: Texts = serde_json::from_str(given).unwrap();
            assert_eq!(read.text, want, "{given}");
            assert_eq!(read.maybe, None);
        }
        let read: Texts = serde_json::from_str(r#"{"text":"","maybe":"\udc00"}"#).unwrap();
        assert_eq!(read.maybe.as_deref(), Some("\u{fffd}"));
        assert!(serde_json::from_str::<Texts>(r#"{"text":7}"#).is_err());
        assert!(serde_json::from_str::<Texts>(r#"{"text":[65]}"#).is_err());
    }
}
