//! Cuts server-sent events out of a body as it comes (HTML standard, section 9.2.6): lines end with LF, CR or CRLF, an event with
//! an empty line, and what stands behind `data:` is its data. Names, ids and comments are of no use here.

use super::Breach;

/// What of an event is not whole yet.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// A line without its end.
    line: Vec<u8>,
    /// The data lines of the event so far, with LF between.
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was CR, so an LF that comes first belongs to it.
    after_cr: bool,
    /// The last line was empty: what comes begins an event.
    is_between: bool,
    /// A byte order mark stands before the first line only.
    begun: bool,
}

impl Events {
    /// Takes the next bytes and gives the data of each event that they complete to `each`, with how many of the bytes belong to it and what
    /// is before it. There is no data where only comments are over.
    ///
    /// # Errors
    /// That of `each`, and an event above `max_bytes`.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        max_bytes: u64,
        mut each: impl FnMut(Option<&[u8]>, usize) -> Result<(), Breach>,
    ) -> Result<(), Breach> {
        let count = bytes.len();
        if !bytes.is_empty() && std::mem::take(&mut self.after_cr) {
            let rest = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            if rest.len() < count && self.is_between {
                each(None, 1)?;
            }
            bytes = rest;
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (piece, rest) = (&bytes[..end], &bytes[end + 1..]);
            let is_cr = bytes[end] == b'\r';
            self.after_cr = is_cr && rest.is_empty();
            bytes = if is_cr { rest.strip_prefix(b"\n").unwrap_or(rest) } else { rest };
            let end = count - bytes.len();
            let mut each = |data: Option<&[u8]>| each(data, end);
            if self.line.is_empty() {
                self.line(piece, &mut each)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(piece);
                self.line(&line, &mut each)?;
                line.clear();
                self.line = line;
            }
            self.fits(max_bytes)?;
        }
        self.line.extend_from_slice(bytes);
        self.fits(max_bytes)
    }

    fn fits(&self, max_bytes: u64) -> Result<(), Breach> {
        let held = u64::try_from(self.line.len() + self.data.len()).unwrap_or(u64::MAX);
        if held > max_bytes { Err(Breach::EventBytes(max_bytes)) } else { Ok(()) }
    }

    fn line(&mut self, line: &[u8], each: &mut impl FnMut(Option<&[u8]>) -> Result<(), Breach>) -> Result<(), Breach> {
        let first = !std::mem::replace(&mut self.begun, true);
        let line = if first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        self.is_between = line.is_empty();
        if line.is_empty() {
            let whole = std::mem::take(&mut self.has_data);
            let done = each(whole.then_some(&self.data));
            self.data.clear();
            return done;
        }
        let data = match line.strip_prefix(b"data") {
            Some([]) => &[][..],
            Some([b':', data @ ..]) => data.strip_prefix(b" ").unwrap_or(data),
            _ => return Ok(()),
        };
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(data);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let (mut events, mut found) = (Events::default(), Vec::new());
        for piece in pieces {
            events
                .feed(piece, 1000, |data, _| {
                    found.extend(data.map(|data| String::from_utf8(data.to_vec()).unwrap()));
                    Ok(())
                })
                .unwrap();
        }
        found
    }

    const TEXT: &[u8] = b"\xef\xbb\xbfevent: a\ndata: {\"x\":1}\n\n: ping\n\ndata:one\r\ndata: two\r\n\r\ndata\rid: 7\r\rdata:  lead\n\ndata: cut";

    #[test]
    fn the_data_of_whole_events_is_found() {
        assert_eq!(cut([TEXT]), ["{\"x\":1}", "one\ntwo", "", " lead"]);
        assert_eq!(cut([&b"database: x\n\nfield\n\n"[..]]), Vec::<String>::new());
    }

    #[test]
    fn an_event_has_a_bound_however_it_comes() {
        let refused = |pieces: &[&[u8]]| {
            let mut events = Events::default();
            pieces.iter().try_for_each(|piece| events.feed(piece, 8, |_, _| Ok(())))
        };
        assert_eq!(refused(&[b"data: 12\n", b"\n"]), Ok(()));
        assert_eq!(refused(&[b"123456789"]), Err(Breach::EventBytes(8)), "a line that does not end");
        assert_eq!(refused(&[b"data:1234\n", b"data:5678\n"]), Err(Breach::EventBytes(8)));
        assert_eq!(refused(&[b"data:1\n\n", b"data:1\n\n", b"data:1\n\n"]), Ok(()));
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_cut_does_not_matter(cuts in prop::collection::vec(0..TEXT.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut rest = TEXT;
            let mut pieces = Vec::new();
            let mut at = 0;
            for cut in cuts {
                let (piece, after) = rest.split_at(cut - at);
                pieces.push(piece);
                (rest, at) = (after, cut);
            }
            pieces.push(rest);
            prop_assert_eq!(cut(pieces), cut([TEXT]));
        }
    }
}
