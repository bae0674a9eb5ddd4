//! How long a text is, without the text.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// Bytes of a JSON string; of anything else, none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Length(pub(super) u64);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(Measure)
    }
}

struct Measure;

impl<'de> Visitor<'de> for Measure {
    type Value = Length;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_str<E>(self, text: &str) -> Result<Length, E> {
        Ok(Length(u64::try_from(text.len()).unwrap_or(u64::MAX)))
    }

    fn visit_unit<E>(self) -> Result<Length, E> {
        Ok(Length(0))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Length, E> {
        Ok(Length(0))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Length, E> {
        Ok(Length(0))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Length, E> {
        Ok(Length(0))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Length, E> {
        Ok(Length(0))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut of: A) -> Result<Length, A::Error> {
        while of.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Length(0))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut of: A) -> Result<Length, A::Error> {
        while of.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Length(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_text_has_a_length() {
        for (text, want) in [
            (r#""a\u00e9\n""#, 4),
            ("null", 0),
            ("7", 0),
            ("-7.5", 0),
            ("true", 0),
            (r#"[1,"a"]"#, 0),
            (r#"{"a":["b"]}"#, 0),
        ] {
            assert_eq!(serde_json::from_str::<Length>(text).unwrap(), Length(want), "{text}");
        }
    }
}
