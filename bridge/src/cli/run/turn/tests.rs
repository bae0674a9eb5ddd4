//! The loop of a Turn against a scripted one.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::atomic::{AtomicU32, Ordering},
};

use futures_util::stream;
use tokio::sync::mpsc;

use super::*;
use crate::cli::run::{folders::tests::scratch, show::Style};

/// A Turn whose events the test sends, and whose controls it sees.
#[derive(Clone)]
struct Scripted {
    results: mpsc::Sender<v1::FunctionResult>,
    cancels: mpsc::Sender<()>,
    /// Inputs, as the bridge would get them.
    inputs: mpsc::Sender<(String, String)>,
    /// How often a cancel answers that it is still pending.
    pending: Arc<AtomicU32>,
    /// How often there is no room for one of the inputs.
    busy: Arc<AtomicU32>,
}

impl Controls for Scripted {
    async fn submit(&self, result: v1::FunctionResult) -> Result<(), client::Error> {
        self.results.send(result).await.unwrap();
        Ok(())
    }

    async fn steer(&self, input_id: String, text: String) -> Result<v1::TurnInput, client::Error> {
        if text == "lost" {
            return Err(client::Error::Transport { message: "it is gone".into(), source: None });
        }
        if text == "one too many"
            && self.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        {
            return Err(client::Error::Refused(Box::new(client::Refusal {
                code: client::Code::ResourceExhausted,
                reason: Some(v1::Reason::InputBusy),
                reason_text: "INPUT_BUSY".into(),
                message: String::new(),
                fields: Vec::new(),
                metadata: Default::default(),
                retry_after: Some(Duration::from_millis(1)),
            })));
        }
        self.inputs.send((input_id, text)).await.unwrap();
        Ok(v1::TurnInput::default())
    }

    async fn cancel(&self) -> Result<bool, client::Error> {
        _ = self.cancels.send(()).await;
        Ok(self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err())
    }

    fn turn_id(&self) -> &str {
        "t"
    }
}

struct Sent(mpsc::Receiver<v1::Event>);

impl Events for Sent {
    async fn next(&mut self) -> Result<Option<v1::Event>, client::Error> {
        Ok(self.0.recv().await)
    }
}

/// The test's side of a Turn.
struct Stage {
    events: mpsc::Sender<v1::Event>,
    results: mpsc::Receiver<v1::FunctionResult>,
    cancels: mpsc::Receiver<()>,
    inputs: mpsc::Receiver<(String, String)>,
    lines: mpsc::Sender<io::Result<String>>,
    interrupts: mpsc::Sender<()>,
}

impl Stage {
    async fn send(&self, kind: Kind) {
        self.events.send(v1::Event { kind: Some(kind), ..Default::default() }).await.unwrap();
    }

    async fn call(&self, call_id: &str, name: &str, arguments: v1::content::Place) {
        let call = v1::FunctionCall {
            call_id: call_id.into(),
            name: name.into(),
            arguments: Some(v1::Content { place: Some(arguments) }),
            ..Default::default()
        };
        self.send(Kind::FunctionCall(call)).await;
    }

    async fn end(&self, status: v1::TurnStatus) {
        self.send(Kind::TurnEnded(v1::TurnEnded { status: status.into(), ..Default::default() })).await;
    }
}

fn received<T: 'static>(receiver: mpsc::Receiver<T>) -> impl Stream<Item = T> + Unpin {
    Box::pin(stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|item| (item, receiver))))
}

/// Follows a scripted Turn beside what the test does; the outcome, and what stood on stderr.
async fn play(functions: Functions, pending: u32, test: impl AsyncFnOnce(Stage)) -> (Outcome, String) {
    let (events, sent) = mpsc::channel(16);
    let (results, submitted) = mpsc::channel(16);
    let (cancel, cancels) = mpsc::channel(16);
    let (interrupts, interrupted) = mpsc::channel(16);
    let (input, inputs) = mpsc::channel(1);
    let (lines, typed) = mpsc::channel(16);
    let controls = Scripted {
        results,
        cancels: cancel,
        inputs: input,
        pending: Arc::new(pending.into()),
        busy: Arc::new(2.into()),
    };
    let wishes = Wishes { interrupts: received(interrupted), lines: received(typed) };
    let mut err = Vec::new();
    let mut screen = Screen::new(Style::Plain, tokio::io::sink(), &mut err);
    let stage = Stage { events, results: submitted, cancels, inputs, lines, interrupts };
    let (outcome, ()) = tokio::join!(follow(controls, Sent(sent), functions, wishes, &mut screen), test(stage));
    (outcome, String::from_utf8(err).unwrap())
}

fn functions(name: &str, programs: &[(&str, &str)]) -> Functions {
    let folder = scratch(name);
    let schema = folder.join("schema.json");
    fs::write(&schema, "{}").unwrap();
    let options: Vec<_> = programs
        .iter()
        .map(|(name, text)| {
            let program = folder.join(name);
            fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
            format!("{name}={}:{}", schema.display(), program.display())
        })
        .collect();
    Functions::read(&options, &[]).unwrap()
}

fn text(text: &str) -> v1::content::Place {
    v1::content::Place::Text(text.into())
}

fn error_of(result: &v1::FunctionResult) -> Option<&str> {
    match result.error.as_ref()?.value.as_ref()? {
        v1::nullable_text::Value::Text(text) => Some(text),
        v1::nullable_text::Value::Null(_) => None,
    }
}

#[tokio::test]
async fn the_end_of_the_turn_is_the_outcome() {
    for (status, wanted) in [
        (v1::TurnStatus::Completed, Outcome::Completed),
        (v1::TurnStatus::Failed, Outcome::Failed),
        (v1::TurnStatus::Cancelled, Outcome::Cancelled),
        (v1::TurnStatus::Unknown, Outcome::Unknown),
    ] {
        let (outcome, _) = play(Functions::default(), 0, async |stage| stage.end(status).await).await;
        assert_eq!(outcome, wanted);
    }
    let (outcome, _) = play(Functions::default(), 0, async |stage| drop(stage)).await;
    assert_eq!(outcome, Outcome::Unknown, "events that stop without an end");
}

#[tokio::test]
async fn calls_are_answered_side_by_side() {
    let folder = scratch("side");
    let fifo = folder.join("f");
    assert!(tokio::process::Command::new("mkfifo").arg(&fifo).status().await.unwrap().success());
    // The first ends only when the second has run.
    let wait = format!("cat '{}'", fifo.display());
    let tell = format!("cat > '{}'", fifo.display());
    let functions = functions("both", &[("wait", &wait), ("tell", &tell)]);
    let (outcome, _) = play(functions, 0, async |mut stage| {
        stage.call("c1", "wait", text("")).await;
        stage.call("c2", "tell", text("hello")).await;
        let mut results = [stage.results.recv().await.unwrap(), stage.results.recv().await.unwrap()];
        results.sort_by_key(|result| result.call_id.clone());
        let first = &results[0];
        assert_eq!((first.turn_id.as_str(), first.call_id.as_str(), first.success), ("t", "c1", Some(true)));
        let output = first.output.as_ref().unwrap().value.as_ref().unwrap();
        assert_eq!(output, &v1::function_output::Value::Text("hello".into()));
        assert_eq!(first.error, None);
        stage.end(v1::TurnStatus::Completed).await;
    })
    .await;
    assert_eq!(outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_call_that_no_program_can_answer_gets_a_failed_result() {
    let functions = functions("fails", &[("fails", "echo broken >&2; exit 1")]);
    play(functions, 0, async |mut stage| {
        let too_large = v1::content::Place::Payload(v1::PayloadRef { size: 5_000_000, ..Default::default() });
        for (name, arguments, error) in [
            ("fails", text("{}"), "broken\n"),
            ("none", text("{}"), "there is no such function"),
            ("fails", too_large, "the arguments are too large (5000000 bytes)"),
        ] {
            stage.call("c", name, arguments).await;
            let result = stage.results.recv().await.unwrap();
            assert_eq!((result.success, error_of(&result)), (Some(false), Some(error)));
            assert_eq!(result.output, None);
        }
        stage.end(v1::TurnStatus::Completed).await;
    })
    .await;
}

#[tokio::test]
async fn an_interrupt_cancels_and_waits() {
    let functions = functions("slow", &[("slow", "sleep 600")]);
    let (outcome, err) = play(functions, 2, async |mut stage| {
        stage.call("c1", "slow", text("{}")).await;
        stage.interrupts.send(()).await.unwrap();
        // Asked again until it is settled.
        for _ in 0..3 {
            stage.cancels.recv().await.unwrap();
        }
        // A call that still comes is not answered.
        stage.call("c2", "slow", text("{}")).await;
        stage.end(v1::TurnStatus::Cancelled).await;
        drop(stage.events);
        assert!(stage.results.recv().await.is_none());
    })
    .await;
    assert_eq!(outcome, Outcome::Cancelled);
    assert!(err.contains("cancelling; a second Ctrl-C stops waiting"), "{err}");
}

#[tokio::test]
async fn a_completion_may_win_over_an_interrupt() {
    let (outcome, _) = play(Functions::default(), 0, async |mut stage| {
        stage.interrupts.send(()).await.unwrap();
        stage.cancels.recv().await.unwrap();
        stage.end(v1::TurnStatus::Completed).await;
    })
    .await;
    assert_eq!(outcome, Outcome::Completed);
}

#[tokio::test]
async fn lines_are_inputs_in_their_order_until_a_cancel() {
    let (outcome, err) = play(Functions::default(), 0, async |mut stage| {
        for line in ["turn left", "lost", "then right"] {
            stage.lines.send(Ok(line.into())).await.unwrap();
        }
        let mut next = async || stage.inputs.recv().await.unwrap();
        assert_eq!(next().await, ("input-1".into(), "turn left".into()));
        // The second has no answer, and keeps its number.
        assert_eq!(next().await, ("input-3".into(), "then right".into()));
        stage.interrupts.send(()).await.unwrap();
        stage.cancels.recv().await.unwrap();
        stage.lines.send(Ok("never mind".into())).await.unwrap();
        stage.end(v1::TurnStatus::Cancelled).await;
        drop(stage.events);
        assert_eq!(stage.inputs.recv().await, None);
    })
    .await;
    assert_eq!(outcome, Outcome::Cancelled);
    assert!(err.contains("input-2 was not taken: ") && err.contains("it is gone"), "{err}");
}

#[tokio::test]
async fn a_line_that_finds_no_room_is_sent_again_before_the_next_one() {
    let (outcome, err) = play(Functions::default(), 0, async |mut stage| {
        for line in ["one too many", "the next"] {
            stage.lines.send(Ok(line.into())).await.unwrap();
        }
        assert_eq!(stage.inputs.recv().await, Some(("input-1".into(), "one too many".into())));
        assert_eq!(stage.inputs.recv().await, Some(("input-2".into(), "the next".into())));
        stage.end(v1::TurnStatus::Completed).await;
    })
    .await;
    assert_eq!((outcome, err), (Outcome::Completed, String::new()));
}

#[tokio::test]
async fn lines_that_cannot_be_read_end_nothing() {
    let (outcome, err) = play(Functions::default(), 0, async |mut stage| {
        stage.lines.send(Err(io::Error::other("a line is not UTF-8"))).await.unwrap();
        stage.lines.send(Ok("go on".into())).await.unwrap();
        assert_eq!(stage.inputs.recv().await, Some(("input-1".into(), "go on".into())));
        stage.end(v1::TurnStatus::Completed).await;
    })
    .await;
    assert_eq!(outcome, Outcome::Completed);
    assert_eq!(err, "runtime-bridge run: stdin: a line is not UTF-8\n");
}

#[tokio::test]
async fn a_second_interrupt_gives_up_waiting() {
    let (outcome, _) = play(Functions::default(), u32::MAX, async |mut stage| {
        stage.interrupts.send(()).await.unwrap();
        stage.cancels.recv().await.unwrap();
        stage.interrupts.send(()).await.unwrap();
        while stage.cancels.recv().await.is_some() {}
    })
    .await;
    assert_eq!(outcome, Outcome::GivenUp);
}

#[tokio::test]
async fn an_abandoned_call_ends_its_program() {
    let functions = functions("abandoned", &[("slow", "sleep 600")]);
    let (outcome, err) = play(functions, 0, async |mut stage| {
        stage.call("c1", "slow", text("{}")).await;
        let reason = v1::AbandonReason::NativeCancelled.into();
        stage.send(Kind::FunctionCallAbandoned(v1::FunctionCallAbandoned { call_id: "c1".into(), reason })).await;
        stage.end(v1::TurnStatus::Completed).await;
        drop(stage.events);
        assert!(stage.results.recv().await.is_none());
    })
    .await;
    assert_eq!(outcome, Outcome::Completed);
    assert!(err.contains("c1: abandoned (native_cancelled)"), "{err}");
}

#[tokio::test]
async fn a_reader_that_goes_away_cancels_the_turn() {
    let (reader, writer) = tokio::io::duplex(1);
    drop(reader);
    let (results, _submitted) = mpsc::channel(1);
    let (cancel, mut cancels) = mpsc::channel(1);
    let (events, sent) = mpsc::channel(1);
    let (inputs, _inputs) = mpsc::channel(1);
    let controls = Scripted { results, cancels: cancel, inputs, pending: Arc::default(), busy: Arc::default() };
    let mut screen = Screen::new(Style::Json, writer, Vec::new());
    let test = async {
        events.send(v1::Event::default()).await.unwrap();
        cancels.recv().await.unwrap();
        let ended = v1::TurnEnded { status: v1::TurnStatus::Cancelled.into(), ..Default::default() };
        events.send(v1::Event { kind: Some(Kind::TurnEnded(ended)), ..Default::default() }).await.unwrap();
    };
    let wishes = Wishes { interrupts: stream::pending(), lines: stream::pending() };
    let followed = follow(controls, Sent(sent), Functions::default(), wishes, &mut screen);
    assert_eq!(tokio::join!(followed, test).0, Outcome::Cancelled);
}
