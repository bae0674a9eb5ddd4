use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, ReadBuf};

use super::*;
use crate::native::rpc;

/// Gives its pieces one by one and says "not yet" before each.
struct Pieces {
    left: VecDeque<Vec<u8>>,
    is_ready: bool,
}

impl Pieces {
    fn new<T: AsRef<[u8]>>(pieces: impl IntoIterator<Item = T>) -> Self {
        Self { left: pieces.into_iter().map(|piece| piece.as_ref().to_vec()).collect(), is_ready: false }
    }
}

impl AsyncRead for Pieces {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.is_ready = !self.is_ready;
        if self.is_ready {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(mut piece) = self.left.pop_front() {
            let rest = piece.split_off(piece.len().min(buffer.remaining()));
            buffer.put_slice(&piece);
            if !rest.is_empty() {
                self.left.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// All lines, a truncated one with `…` behind it, an error as its text in brackets. The only place that calls the reader.
async fn read(reader: impl AsyncRead + Unpin, limit: usize) -> Vec<Vec<u8>> {
    all_of(LineReader::new(reader, limit)).await
}

async fn all_of(mut lines: LineReader<impl AsyncRead + Unpin>) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        // CANCEL: each wait is given up once and begun again.
        let next = tokio::select! {
            biased;
            next = lines.next() => next,
            () = std::future::ready(()) => continue,
        };
        match next {
            Ok(Some(line)) if line.truncated => all.push([&line, "…".as_bytes()].concat()),
            Ok(Some(line)) => all.push(line.to_vec()),
            Ok(None) => return all,
            Err(error) => all.push(format!("[{error}]").into_bytes()),
        }
    }
}

#[track_caller]
fn check(text: &[u8], limit: usize, want: &[&str]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for split in 0..=text.len() {
        let read = runtime
            .block_on(read(Pieces::new([&text[..split], &text[split..]].iter().filter(|p| !p.is_empty())), limit));
        let shown: Vec<_> = read.iter().map(|line| String::from_utf8_lossy(line)).collect();
        assert_eq!(shown, want, "split at {split}");
    }
}

#[test]
fn lines_end_with_a_newline_and_one_carriage_return_at_most() {
    check(b"one\ntwo\r\nthree\r\r\n four \t\n", 64, &["one", "two", "three\r", " four \t"]);
}

#[test]
fn empty_lines_are_skipped_and_blank_ones_are_not() {
    check(b"\n\r\n\na\n\n \n\r\n", 64, &["a", " "]);
    check(b"", 64, &[]);
    check(b"\n", 64, &[]);
}

#[test]
fn an_unfinished_last_line_is_given_out_as_truncated() {
    check(b"whole\npart", 64, &["whole", "part…"]);
    check(b"part\r", 64, &["part…"]);
    check(b"\r", 64, &[]);
}

#[test]
fn a_character_may_be_split_anywhere() {
    check("{\"t\":\"é✓🦀\"}\n{\"t\":\"ok\"}\n".as_bytes(), 64, &["{\"t\":\"é✓🦀\"}", "{\"t\":\"ok\"}"]);
}

#[test]
fn the_limit_counts_the_line_without_its_end() {
    check(b"12345678\n12345678\r\n12345678", 8, &["12345678", "12345678", "12345678…"]);
    let long = "[line is longer than 8 bytes]";
    check(b"123456789\nnext\n123456789\r\nnext\n123456789", 8, &[long, "next", long, "next", long]);
    check(b"1234567890123456789012345678901234567890\n\nnext\n1234567890\n", 8, &[long, "next", long]);
}

#[tokio::test]
async fn blanks_at_the_seams_of_reads_and_pipes_stay() {
    for seam in [CHUNK, 2 * CHUNK, 64 << 10, 128 << 10] {
        for around in seam - 2..=seam + 2 {
            let text = format!("{}   \n  {}\n", "x".repeat(around - 3), "y".repeat(around));
            let lines = read(text.as_bytes(), 1 << 20).await;
            let want: Vec<_> = text.lines().map(|line| line.as_bytes().to_vec()).collect();
            assert!(lines == want, "{seam} {around}");
        }
    }
}

#[tokio::test]
async fn a_line_of_65_mib_is_too_long_and_the_next_one_is_read() {
    let limit = 64 << 20;
    let huge = tokio::io::repeat(b'x').take(65 << 20).chain(&b"\n{\"method\":\"next\"}\n"[..]);
    let lines = read(huge, limit).await;
    assert_eq!(lines, [format!("[line is longer than {limit} bytes]").as_bytes(), b"{\"method\":\"next\"}"]);
}

#[tokio::test]
async fn a_line_that_is_not_utf_8_does_no_harm_to_the_next() {
    let mut lines = LineReader::new(&b"{\"method\":\"\xc3\x28\"}\n{\"method\":\"next\"}\n"[..], 64);
    let bad = lines.next().await.unwrap().unwrap();
    assert!(matches!(rpc::parse(&bad), Err(rpc::Malformed::NotUtf8 { valid_up_to: 11, .. })));
    let good = lines.next().await.unwrap().unwrap();
    assert!(matches!(rpc::parse(&good), Ok(rpc::Message::Notification { .. })));
}

#[tokio::test]
async fn the_room_of_a_large_line_is_given_back() {
    let text = [vec![b'x'; 8 << 20], b"\nsmall\n".to_vec(), vec![b'y'; 3 * CHUNK], b"\nlast\n".to_vec()];
    let mut lines = LineReader::new(Pieces::new(text), 16 << 20);
    assert_eq!(lines.next().await.unwrap().unwrap().len(), 8 << 20);
    assert!(lines.is_large);
    assert_eq!(&lines.next().await.unwrap().unwrap()[..], b"small");
    // The next wait is where it is given back.
    tokio::select! {
        biased;
        line = lines.next() => panic!("{line:?}"),
        () = std::future::ready(()) => {}
    }
    assert!(!lines.is_large && lines.buffer.capacity() <= KEEP, "{}", lines.buffer.capacity());
    assert_eq!(lines.next().await.unwrap().unwrap().len(), 3 * CHUNK);
    assert_eq!(&lines.next().await.unwrap().unwrap()[..], b"last");
}

#[tokio::test]
async fn a_stream_that_cannot_be_read_is_an_error_and_not_an_end() {
    struct Broken;
    impl AsyncRead for Broken {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }
    let mut lines = LineReader::new(AsyncReadExt::chain(&b"whole\npart"[..], Broken), 64);
    assert_eq!(&lines.next().await.unwrap().unwrap()[..], b"whole");
    assert!(matches!(lines.next().await, Err(LineError::Io(_))));
}

/// A folder of its own for the spool; nothing is ever seen in it.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("rb-lines-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn spooling(&self, above: usize, room: Room) -> Spooling {
        Spooling { folder: self.0.clone(), above, room, is_read: |head| !head.starts_with(b"skip") }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        assert_eq!(std::fs::read_dir(&self.0).unwrap().count(), 0);
        std::fs::remove_dir(&self.0).unwrap();
    }
}

#[tokio::test]
async fn half_a_long_line_takes_no_memory() {
    let folder = Folder::new();
    let pieces = (0..64).map(|_| vec![b'x'; 1 << 20]).chain([b"\nnext\n".to_vec()]);
    let spooling = folder.spooling(1 << 20, Room::new(1 << 20));
    let mut lines = LineReader::new(Pieces::new(pieces), 64 << 20).spooling(spooling);
    let mut largest = 0;
    let long = loop {
        tokio::select! {
            biased;
            line = lines.next() => break line.unwrap().unwrap(),
            () = std::future::ready(()) => largest = largest.max(lines.buffer.capacity()),
        }
    };
    assert!(long.len() == 64 << 20 && long.iter().all(|byte| *byte == b'x'));
    assert!(largest <= 2 * KEEP + 2 * CHUNK, "{largest}");
    assert_eq!(&lines.next().await.unwrap().unwrap()[..], b"next");
}

#[tokio::test]
async fn long_lines_wait_for_each_other() {
    let folder = Folder::new();
    let room = Room::new(100_000);
    let text = [vec![b'x'; 80_000], b"\n".to_vec()].concat();
    let reader = || LineReader::new(&text[..], 1 << 20).spooling(folder.spooling(100, room.clone()));
    let (mut first, mut second, mut third) = (reader(), reader(), reader());
    let line = first.next().await.unwrap().unwrap();
    assert_eq!(line.len(), 80_000);
    for waiting in [&mut second, &mut third] {
        tokio::select! {
            biased;
            line = waiting.next() => panic!("there was no room for {} bytes", line.unwrap().unwrap().len()),
            () = std::future::ready(()) => {}
        }
    }
    // A short one needs no room.
    let mut short = LineReader::new(&b"short\n"[..], 1 << 20).spooling(folder.spooling(100, room.clone()));
    assert_eq!(&short.next().await.unwrap().unwrap()[..], b"short");
    drop(line);
    let line = second.next().await.unwrap().unwrap();
    drop(line);
    assert_eq!(third.next().await.unwrap().unwrap().len(), 80_000);
}

#[tokio::test]
async fn a_line_that_is_longer_than_the_room_takes_all_of_it() {
    let folder = Folder::new();
    let text = [vec![b'x'; 50_000], b"\n".to_vec()].concat();
    let mut lines = LineReader::new(&text[..], 1 << 20).spooling(folder.spooling(100, Room::new(1)));
    assert_eq!(lines.next().await.unwrap().unwrap().len(), 50_000);
}

#[tokio::test]
async fn a_long_line_that_nobody_reads_is_passed_over_and_still_has_a_limit() {
    let folder = Folder::new();
    let text =
        [b"skip".to_vec(), vec![b'x'; 90_000], b"\nnext\nskip".to_vec(), vec![b'x'; 200_000], b"\nlast\nskip".to_vec()];
    let text = [text.concat(), vec![b'x'; 90_000]].concat();
    let mut lines = LineReader::new(&text[..], 100_000).spooling(folder.spooling(1000, Room::new(1)));
    assert_eq!(&lines.next().await.unwrap().unwrap()[..], b"next");
    assert!(matches!(lines.next().await, Err(LineError::TooLong { limit: 100_000 })));
    assert_eq!(&lines.next().await.unwrap().unwrap()[..], b"last");
    assert!(lines.next().await.unwrap().is_none());
    assert_eq!(lines.passed_over(), 2);
}

#[tokio::test]
async fn a_folder_that_takes_no_file_fails_the_long_line_and_no_other() {
    let spooling = Spooling {
        folder: std::path::PathBuf::from("/nonexistent/folder"),
        above: 1000,
        room: Room::new(1 << 20),
        is_read: |_| true,
    };
    let text = [vec![b'x'; 90_000], b"\nnext\n".to_vec()].concat();
    let mut lines = LineReader::new(&text[..], 1 << 20).spooling(spooling);
    assert!(matches!(lines.next().await, Err(LineError::Spool(_))));
    assert_eq!(&lines.next().await.unwrap().unwrap()[..], b"next");
}

proptest! {
    #[test]
    fn any_split_of_a_stream_gives_the_same_lines(
        text in proptest::collection::vec(prop_oneof![3 => Just(b'\n'), 1 => Just(b'\r'), 8 => any::<u8>()], 0..200),
        cuts in proptest::collection::vec(0..200_usize, 0..12),
        limit in 1..40_usize,
        above in 0..40_usize,
    ) {
        let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut < text.len()).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            if cut > from {
                pieces.push(text[from..cut].to_vec());
            }
            from = cut;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let folder = Folder::new();
        let spooled = LineReader::new(Pieces::new(pieces.clone()), limit).spooling(Spooling {
            is_read: |_| true,
            ..folder.spooling(above, Room::new(1))
        });
        let spooled = runtime.block_on(all_of(spooled));
        let got = runtime.block_on(read(Pieces::new(pieces), limit));
        prop_assert_eq!(&spooled, &got);

        let mut want = Vec::new();
        let mut parts = text.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let line = part.strip_suffix(b"\r").unwrap_or(part);
            if line.len() > limit {
                want.push(format!("[line is longer than {limit} bytes]").into_bytes());
            } else if !line.is_empty() {
                let end = if parts.peek().is_none() { "…".as_bytes() } else { b"" };
                want.push([line, end].concat());
            }
        }
        prop_assert_eq!(got, want);
    }
}
