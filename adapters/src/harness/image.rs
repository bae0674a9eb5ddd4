//! Looks at the bytes of an image before a Harness sees them. A Harness replaces what it cannot read by a text of its own without a word, so
//! whatever shows itself as broken in the structure of a file is refused here; pixels are not decoded.

use bytes::Bytes;

use super::{Image, MediaType};

/// The first bytes of a PNG file.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The largest width and height that the PNG specification allows.
const MAX_PNG_SIDE: u32 = (1 << 31) - 1;

impl Image {
    /// Takes the bytes of a file for an image of the media type, once their structure is that of such a file and tells a size in pixels.
    ///
    /// # Errors
    /// What is wrong, for a person; nothing of the bytes is in it.
    pub fn check(media_type: &str, data: Bytes) -> Result<Self, &'static str> {
        let (media_type, is_whole) = match media_type {
            "image/png" => (MediaType::Png, png(&data)),
            "image/jpeg" => (MediaType::Jpeg, jpeg(&data)),
            _ => return Err("the media type of an image is image/png or image/jpeg"),
        };
        match is_whole {
            Some(()) => Ok(Self { media_type, data }),
            None => Err(match media_type {
                MediaType::Png => "the bytes are not those of a whole PNG file",
                MediaType::Jpeg => "the bytes are not those of a whole JPEG file",
            }),
        }
    }
}

/// The chunks of a PNG file, from the header with the size to the end, all whole and with their checksums, pixels among them.
fn png(data: &[u8]) -> Option<()> {
    let mut rest = data.strip_prefix(PNG)?;
    let (mut is_first, mut has_pixels) = (true, false);
    loop {
        let length = usize::try_from(number(rest.get(..4)?)).ok()?;
        let body = rest.get(4..)?.get(..length.checked_add(4)?)?;
        let (kind, content) = body.split_at(4);
        let after = rest.get(length.checked_add(8)?..)?;
        if crc32fast::hash(body) != number(after.get(..4)?) {
            return None;
        }
        if is_first != (kind == b"IHDR") || (is_first && !sides(content, length)) {
            return None;
        }
        match kind {
            b"IDAT" => has_pixels |= length > 0,
            b"IEND" => return (length == 0 && has_pixels).then_some(()),
            _ => {}
        }
        (is_first, rest) = (false, after.get(4..)?);
    }
}

/// Whether the header of a PNG file has a size.
fn sides(header: &[u8], length: usize) -> bool {
    let side = |at: usize| header.get(at..at + 4).is_some_and(|side| (1..=MAX_PNG_SIDE).contains(&number(side)));
    length == 13 && side(0) && side(4)
}

/// The segments of a JPEG file, from its start over the frame with the size to the pixels and the end. What cameras put behind the end is let
/// be.
fn jpeg(data: &[u8]) -> Option<()> {
    let mut rest = data.strip_prefix(b"\xff\xd8")?;
    let mut has_size = false;
    loop {
        // A marker may begin with more than one 0xFF.
        rest = rest.strip_prefix(b"\xff")?;
        let marker = loop {
            let (first, after) = rest.split_first()?;
            rest = after;
            if *first != 0xff {
                break *first;
            }
        };
        let length = usize::from(u16::from_be_bytes(rest.first_chunk().copied()?));
        let segment = rest.get(2..length)?;
        rest = rest.get(length..)?;
        match marker {
            // Start of a frame: precision, height, width. 0xC4, 0xC8 and 0xCC among them are something else.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                has_size = segment.get(1..3)? != [0, 0] && segment.get(3..5)? != [0, 0] && segment.get(5)? != &0;
                if !has_size {
                    return None;
                }
            }
            // Start of the pixels. In them a 0xFF that is no marker is followed by a zero.
            0xda => return (has_size && rest.windows(2).any(|pair| pair == b"\xff\xd9")).then_some(()),
            // Neither of these may stand before the pixels.
            0x00 | 0x01 | 0xd0..=0xd9 => return None,
            _ => {}
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum, byte| (sum << 8) | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One red pixel.
    const RED: &[u8] = include_bytes!("red.png");
    /// Eight times eight gray pixels.
    const GRAY: &[u8] = include_bytes!("gray.jpg");

    fn is_good(media_type: &str, data: &[u8]) -> bool {
        Image::check(media_type, Bytes::copy_from_slice(data)).is_ok()
    }

    #[test]
    fn files_are_taken_for_what_they_are() {
        for (media_type, data, want) in [
            ("image/png", RED, Ok(MediaType::Png)),
            ("image/jpeg", GRAY, Ok(MediaType::Jpeg)),
            ("image/png", GRAY, Err("the bytes are not those of a whole PNG file")),
            ("image/jpeg", RED, Err("the bytes are not those of a whole JPEG file")),
            ("image/jpg", GRAY, Err("the media type of an image is image/png or image/jpeg")),
            ("image/gif", b"GIF89a", Err("the media type of an image is image/png or image/jpeg")),
            ("image/png", b"", Err("the bytes are not those of a whole PNG file")),
            ("image/jpeg", b"", Err("the bytes are not those of a whole JPEG file")),
        ] {
            let got = Image::check(media_type, Bytes::from_static(data)).map(|image| image.media_type);
            assert_eq!(got, want, "{media_type}");
        }
    }

    #[test]
    fn no_beginning_of_a_file_is_a_file() {
        for length in 0..RED.len() {
            assert!(!is_good("image/png", &RED[..length]), "{length} bytes of a PNG file");
        }
        for length in 0..GRAY.len() {
            assert!(!is_good("image/jpeg", &GRAY[..length]), "{length} bytes of a JPEG file");
        }
    }

    #[test]
    fn a_byte_that_is_wrong_in_a_png_file_is_found() {
        for at in 0..RED.len() {
            let mut data = RED.to_vec();
            data[at] ^= 1;
            assert!(!is_good("image/png", &data), "byte {at}");
        }
    }

    #[test]
    fn a_size_is_needed() {
        let mut png = RED.to_vec();
        png[16..20].fill(0);
        let checksum = crc32fast::hash(&png[12..29]).to_be_bytes();
        png[29..33].copy_from_slice(&checksum);
        assert!(!is_good("image/png", &png));
        let frame = GRAY.windows(2).position(|pair| pair == b"\xff\xc0").unwrap();
        let mut jpeg = GRAY.to_vec();
        jpeg[frame + 5..frame + 7].fill(0);
        assert!(!is_good("image/jpeg", &jpeg));
        // A baseline frame that calls itself a table of Huffman codes tells no size.
        jpeg.copy_from_slice(GRAY);
        jpeg[frame + 1] = 0xc4;
        assert!(!is_good("image/jpeg", &jpeg));
    }

    #[test]
    fn what_stands_behind_the_end_is_let_be() {
        assert!(is_good("image/png", &[RED, b"more"].concat()));
        assert!(is_good("image/jpeg", &[GRAY, b"more"].concat()));
    }
}
