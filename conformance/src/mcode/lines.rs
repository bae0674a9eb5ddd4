//! Lines out of pieces. What was looked at once is not looked at again, however long a line gets.

/// What has come and is no whole line yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// How many lines' bytes at the front were given out already.
    given: usize,
    /// Up to here there is no further end of a line.
    looked: usize,
}

impl Lines {
    /// Adds a piece.
    pub(super) fn add(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.given);
        self.looked -= self.given;
        self.given = 0;
        self.bytes.extend_from_slice(piece);
    }

    /// The next whole line, with its end.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        let rest = self.bytes.get(self.looked..).unwrap_or_default();
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            self.looked = self.bytes.len();
            return None;
        };
        let (from, to) = (self.given, self.looked + end + 1);
        (self.given, self.looked) = (to, to);
        self.bytes.get(from..to).map(<[u8]>::to_vec)
    }

    /// What no end of a line follows.
    pub(super) fn rest(self) -> Vec<u8> {
        self.bytes.get(self.given..).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole() {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        for piece in ["a", "b\nc\n", "\nd", "", "e\nf"] {
            lines.add(piece.as_bytes());
            out.extend(std::iter::from_fn(|| lines.next()).map(|line| String::from_utf8(line).unwrap()));
        }
        assert_eq!(out, ["ab\n", "c\n", "\n", "de\n"]);
        assert_eq!(lines.rest(), b"f");
    }
}
