//! Lines of a file from its last to its first, so that the end of a long history is found without reading what is before it.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
};

/// LIMIT: bytes of a line. A longer one is left out.
const MAX_LINE: usize = 16 << 20;
/// Bytes of the first read; later ones are as long as what is held, so that a long line is not moved often.
const BLOCK: usize = 64 << 10;

/// The lines of a file, the last one first.
#[derive(Debug)]
pub(super) struct Backwards {
    file: File,
    /// Where what is held begins in the file.
    at: u64,
    /// Nothing before this place is read.
    floor: u64,
    held: Vec<u8>,
    /// So many bytes at the end of what is held have no newline.
    searched: usize,
    /// The line at the end of what is held goes on in what was given up for its length.
    over_long: bool,
}

impl Backwards {
    /// Looks at no more than `most` bytes.
    pub(super) fn new(mut file: File, most: u64) -> io::Result<Self> {
        let at = file.seek(SeekFrom::End(0))?;
        let floor = at.saturating_sub(most);
        Ok(Self { file, at, floor, held: Vec::new(), searched: 0, over_long: false })
    }

    /// The line before the one that was given last, without its newline; empty ones are left out, and what stands before the first newline
    /// behind the floor.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let unsearched = self.held.len() - self.searched;
            if let Some(newline) = memchr::memrchr(b'\n', &self.held[..unsearched]) {
                let line = self.held.split_off(newline + 1);
                self.held.truncate(newline);
                self.searched = 0;
                if !std::mem::take(&mut self.over_long) && (1..=MAX_LINE).contains(&line.len()) {
                    return Ok(Some(line));
                }
                continue;
            }
            self.searched = self.held.len();
            if self.at == self.floor {
                let first = std::mem::take(&mut self.held);
                self.searched = 0;
                let fits = !std::mem::take(&mut self.over_long) && (1..=MAX_LINE).contains(&first.len());
                let whole = self.floor == 0 && fits;
                return Ok(whole.then_some(first));
            }
            if self.held.len() > MAX_LINE {
                self.held = Vec::new();
                self.searched = 0;
                self.over_long = true;
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> io::Result<()> {
        let want = u64::try_from(self.held.len().max(BLOCK)).unwrap_or(u64::MAX).min(self.at - self.floor);
        self.at -= want;
        self.file.seek(SeekFrom::Start(self.at))?;
        let mut block = vec![0; usize::try_from(want).unwrap_or(BLOCK)];
        self.file.read_exact(&mut block)?;
        block.append(&mut self.held);
        self.held = block;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;

    #[track_caller]
    fn check(name: &str, content: &[u8], most: u64, want: &[&[u8]]) {
        let path = env::current_exe().unwrap().with_file_name(format!("backwards-{}-{name}", process::id()));
        fs::write(&path, content).unwrap();
        let mut lines = Backwards::new(File::open(&path).unwrap(), most).unwrap();
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push(line);
        }
        fs::remove_file(path).unwrap();
        assert!(found == want, "{name}: {} lines of {:?}", found.len(), found.iter().map(Vec::len).collect::<Vec<_>>());
    }

    #[test]
    fn lines_come_from_the_last_to_the_first() {
        check("none", b"", 1 << 20, &[]);
        check("one", b"a", 1 << 20, &[b"a"]);
        check("ended", b"a\nb\n", 1 << 20, &[b"b", b"a"]);
        check("torn", b"a\n\nb\n{\"to", 1 << 20, &[b"{\"to", b"b", b"a"]);
    }

    #[test]
    fn a_line_may_be_longer_than_a_block() {
        let long = vec![b'x'; 5 * BLOCK + 17];
        let content = [b"a\n", &long[..], b"\nb\n", &long[..], b"\n"].concat();
        check("long", &content, 1 << 30, &[&long, b"b", &long, b"a"]);
    }

    #[test]
    fn a_line_above_the_limit_is_left_out() {
        let long = vec![b'x'; MAX_LINE + 3 * BLOCK];
        check("over", &[b"a\n", &long[..], b"\nb\n"].concat(), 1 << 30, &[b"b", b"a"]);
        check("over-first", &[&long[..], b"\nb\n"].concat(), 1 << 30, &[b"b"]);
    }

    #[test]
    fn nothing_is_read_beyond_the_floor() {
        check("floor", b"aaaa\nbbbb\ncccc\n", 12, &[b"cccc", b"bbbb"]);
        check("in-a-line", b"aaaa\nbbbb\ncccc\n", 8, &[b"cccc"]);
    }
}
