//! What a person, a pipe or a program sees of the Turn.

mod json;
mod live;
mod progress;

use proto::v1::{self, event::Kind};
use tokio::io::{AsyncWrite, AsyncWriteExt as _, Stderr, Stdout};

use live::Live;

/// How the events are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// On a terminal, text as it comes.
    Live {
        /// Whether dim text may be made with escape sequences.
        colour: bool,
    },
    /// In a pipe: the text of completed messages on stdout and nothing else; the progress on stderr.
    Plain,
    /// One line of JSON for each event on stdout.
    Json,
}

/// Where a run is shown. Writes wait for their reader, never for the daemon in this process.
#[derive(Debug)]
pub(super) struct Screen<O = Stdout, E = Stderr> {
    view: View,
    out: O,
    err: E,
    closed: bool,
}

#[derive(Debug)]
enum View {
    Live(Live),
    Plain,
    Json,
}

/// Text for both streams.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    out: String,
    err: String,
}

impl<O: AsyncWrite + Unpin, E: AsyncWrite + Unpin> Screen<O, E> {
    pub(super) fn new(style: Style, out: O, err: E) -> Self {
        let view = match style {
            Style::Live { colour } => View::Live(Live::new(colour)),
            Style::Plain => View::Plain,
            Style::Json => View::Json,
        };
        Self { view, out, err, closed: false }
    }

    /// Whether stdout has no reader any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Shows one event.
    pub(super) async fn show(&mut self, event: &v1::Event) {
        let shown = match &mut self.view {
            View::Live(live) => live.show(event),
            View::Plain => plain(event),
            View::Json => Shown { out: json::line(event), err: String::new() },
        };
        self.write(shown).await;
    }

    /// A line on what happens, which is no event. JSON has none.
    pub(super) async fn remark(&mut self, text: &str) {
        let shown = match &mut self.view {
            View::Live(live) => live.remark(text),
            View::Plain => Shown { out: String::new(), err: format!("{text}\n") },
            View::Json => Shown::default(),
        };
        self.write(shown).await;
    }

    /// Tells how the Session can be gone on with, on stderr, so that no answer is longer for it.
    pub(super) async fn farewell(&mut self, session_id: &str) {
        let mut shown = self.beside();
        shown.err = format!("session {session_id}; --resume {session_id} goes on with it\n");
        self.write(shown).await;
    }

    /// A line on what went wrong.
    pub(super) async fn complain(&mut self, text: &str) {
        let mut shown = self.beside();
        shown.err = format!("runtime-bridge run: {text}\n");
        self.write(shown).await;
    }

    /// Ends the line that is open where stderr shows on the same screen.
    fn beside(&mut self) -> Shown {
        match &mut self.view {
            View::Live(live) => live.break_line(),
            View::Plain | View::Json => Shown::default(),
        }
    }

    async fn write(&mut self, shown: Shown) {
        if !shown.out.is_empty() && !self.closed {
            let written = async {
                self.out.write_all(shown.out.as_bytes()).await?;
                self.out.flush().await
            };
            self.closed = written.await.is_err();
        }
        if !shown.err.is_empty() {
            // A lost line of progress changes nothing.
            _ = self.err.write_all(shown.err.as_bytes()).await;
            _ = self.err.flush().await;
        }
    }
}

fn plain(event: &v1::Event) -> Shown {
    let mut shown = Shown::default();
    if let Some(Kind::MessageCompleted(message)) = &event.kind {
        shown.out = progress::text_of(message.text.as_ref()).into_owned();
        if !shown.out.ends_with('\n') {
            shown.out.push('\n');
        }
    }
    for line in progress::lines(event).into_iter().chain(progress::end(event)) {
        shown.err.push_str(&line);
        shown.err.push('\n');
    }
    shown
}

#[cfg(test)]
mod tests;
