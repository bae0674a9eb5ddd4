//! What a message, or the result of a function, consists of.

use bytes::Bytes;

/// One part of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputPart {
    /// A text, not empty.
    Text(String),
    /// An image that was looked at.
    Image(Image),
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// What its bytes are.
    pub media_type: MediaType,
    /// The bytes of the file.
    pub data: Bytes,
}

/// The kind of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaType {
    /// `image/png`
    Png,
    /// `image/jpeg`
    Jpeg,
}

impl MediaType {
    /// The name by RFC 2046.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
        }
    }
}

impl From<&str> for InputPart {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}
