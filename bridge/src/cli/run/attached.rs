//! Files that a command line names and the bridge gets the bytes of: images, and the schema of the answer.

use std::{fs, path::Path};

use proto::v1::{self, input_part::Part};
use serde_json::value::RawValue;

use super::arguments::UsageError;

/// How files of either kind begin.
const KINDS: [(&[u8], &str); 2] = [(b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg")];

/// An image of a kind that the protocol has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    media_type: &'static str,
    data: Vec<u8>,
}

impl Image {
    /// Reads a file; what it is, its first bytes say.
    pub(super) fn read(path: &Path) -> Result<Self, UsageError> {
        let refuse = |why: &str| UsageError(format!("--image {}: {why}", path.display()));
        let data = fs::read(path).map_err(|error| refuse(&error.to_string()))?;
        let kind = KINDS.iter().find(|(head, _)| data.starts_with(head));
        let (_, media_type) = kind.ok_or_else(|| refuse("is neither PNG nor JPEG"))?;
        Ok(Self { media_type, data })
    }

    /// As a part of an input.
    pub(super) fn part(&self) -> Part {
        Part::Image(v1::Image { media_type: self.media_type.into(), data: self.data.clone() })
    }
}

/// Reads the file of `--schema`. Its text goes to the bridge as it is (R-API-3), so no more is read of it than that it is one JSON object.
pub(super) fn schema(path: &Path) -> Result<String, UsageError> {
    let refuse = |why: String| UsageError(format!("--schema {}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let value: &RawValue = serde_json::from_str(&text).map_err(|error| refuse(format!("is not JSON: {error}")))?;
    if !value.get().starts_with('{') {
        return Err(refuse("is not a JSON object".into()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run::folders::tests::scratch;

    #[test]
    fn an_image_is_what_its_bytes_say() {
        let folder = scratch("image");
        for (name, bytes, want) in [
            ("a.jpg", &b"\x89PNG\r\n\x1a\nrest"[..], Ok("image/png")),
            ("b.png", b"\xff\xd8\xff\xe0rest", Ok("image/jpeg")),
            ("c.png", b"GIF89a", Err("c.png: is neither PNG nor JPEG")),
            ("d.png", b"", Err("d.png: is neither PNG nor JPEG")),
        ] {
            fs::write(folder.join(name), bytes).unwrap();
            let image = Image::read(&folder.join(name));
            match want {
                Ok(kind) => {
                    let want = v1::Image { media_type: kind.into(), data: bytes.into() };
                    assert_eq!(image.unwrap().part(), Part::Image(want));
                }
                Err(why) => assert!(image.unwrap_err().0.ends_with(why)),
            }
        }
        let refused = Image::read(Path::new("/none.png")).unwrap_err().0;
        assert!(refused.starts_with("--image /none.png: No such file"), "{refused}");
    }

    #[test]
    fn a_schema_is_handed_on_as_it_is_written() {
        let folder = scratch("answer-schema");
        let file = folder.join("s.json");
        let text = " {\"type\":\"object\",\n \"maximum\": 1e400, \"type\":\"object\"}\n";
        fs::write(&file, text).unwrap();
        assert_eq!(schema(&file).unwrap(), text);
        for (text, why) in [("true", "is not a JSON object"), ("{", "is not JSON"), ("{} {}", "is not JSON")] {
            fs::write(&file, text).unwrap();
            let refused = schema(&file).unwrap_err().0;
            assert!(refused.starts_with("--schema ") && refused.contains(why), "{refused}");
        }
        assert!(schema(Path::new("/none.json")).unwrap_err().0.starts_with("--schema /none.json: No such file"));
    }
}
