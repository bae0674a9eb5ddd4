//! The one Turn while it runs: shows its events, has its function calls answered, cancels it when asked, and tells how it ended.

use std::{collections::HashMap, io, process::ExitCode, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt as _};
use proto::{
    client::{self, Session, TurnEvents},
    v1::{self, event::Kind},
};
use tokio::{io::AsyncWrite, sync::Semaphore, task::JoinSet, time};
use tokio_util::sync::CancellationToken;

use super::{
    function::{self, Answer, Functions},
    show::Screen,
};

/// How long one `CancelTurn` waits; it is asked again until the Turn is settled. The longest wait that the protocol has.
const CANCEL_WAIT: Duration = Duration::from_secs(60);
/// Most programs that answer calls at the same time; further calls wait.
const MAX_PROGRAMS: usize = 16;
/// How long the programs and the results on their way have behind the end of the Turn.
const FINISH: Duration = Duration::from_secs(5);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The Turn completed.
    Completed,
    /// The Turn failed, or there was none.
    Failed,
    /// The command line is wrong.
    Usage,
    /// The Turn was cancelled.
    Cancelled,
    /// Nobody knows how the Turn ended.
    Unknown,
    /// The person did not want to wait for the end of the cancel, so nobody knows either.
    GivenUp,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Completed => 0,
            Outcome::Failed => 1,
            Outcome::Usage => 2,
            Outcome::Cancelled => 3,
            Outcome::Unknown | Outcome::GivenUp => 4,
        })
    }
}

/// What is done with a running Turn.
pub(super) trait Controls: Clone + Send + 'static {
    /// Hands in one function result.
    fn submit(&self, result: v1::FunctionResult) -> impl Future<Output = Result<(), client::Error>> + Send;

    /// Adds a text to the Turn as an input.
    fn steer(
        &self,
        input_id: String,
        text: String,
    ) -> impl Future<Output = Result<v1::TurnInput, client::Error>> + Send;

    /// Cancels the Turn and tells whether it is over.
    fn cancel(&self) -> impl Future<Output = Result<bool, client::Error>> + Send;

    /// Id of the Turn.
    fn turn_id(&self) -> &str;
}

/// Its events in order. Dropping the future of the next one loses nothing.
pub(super) trait Events {
    /// The next event, `None` behind the last.
    fn next(&mut self) -> impl Future<Output = Result<Option<v1::Event>, client::Error>>;
}

/// The Turn of a bound Session.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) session: Session,
    pub(super) turn_id: Arc<str>,
}

impl Controls for Running {
    async fn submit(&self, result: v1::FunctionResult) -> Result<(), client::Error> {
        self.session.submit(vec![result]).await.map(drop)
    }

    async fn steer(&self, input_id: String, text: String) -> Result<v1::TurnInput, client::Error> {
        let answer = self.session.steer(&self.turn_id, &input_id, client::text_input(text)).await?;
        Ok(answer.input.unwrap_or_default())
    }

    async fn cancel(&self) -> Result<bool, client::Error> {
        let answer = self.session.cancel(&self.turn_id, Some(CANCEL_WAIT)).await?;
        Ok(answer.outcome() != v1::CancelOutcome::Pending)
    }

    fn turn_id(&self) -> &str {
        &self.turn_id
    }
}

impl Events for TurnEvents {
    async fn next(&mut self) -> Result<Option<v1::Event>, client::Error> {
        TurnEvents::next(self).await
    }
}

/// What the person in front of the run wants of the Turn.
#[derive(Debug)]
pub(super) struct Wishes<I, L> {
    /// Wishes to stop.
    pub(super) interrupts: I,
    /// Lines that become inputs of the Turn.
    pub(super) lines: L,
}

/// Follows a started Turn to its end.
///
/// Each line is one input; the next one is read when the bridge has answered the one before, so they keep their order. The first interrupt cancels it and waits for the settlement, the second gives up waiting. A screen that cannot be written to any more
/// counts as an interrupt.
pub(super) async fn follow<O, E>(
    controls: impl Controls,
    mut events: impl Events,
    functions: Functions,
    mut wishes: Wishes<impl Stream<Item = ()> + Unpin, impl Stream<Item = io::Result<String>> + Unpin>,
    screen: &mut Screen<O, E>,
) -> Outcome
where
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    let mut calls = Calls::new(controls.clone(), functions);
    let mut cancels = JoinSet::new();
    let mut inputs = Inputs::default();
    let outcome = loop {
        tokio::select! {
            event = events.next() => match event {
                Ok(Some(event)) => {
                    screen.show(&event).await;
                    match &event.kind {
                        Some(Kind::FunctionCall(call)) => calls.begin(call),
                        Some(Kind::FunctionCallAbandoned(abandoned)) => calls.stop(&abandoned.call_id),
                        Some(Kind::TurnEnded(ended)) => break outcome(ended.status()),
                        _ => {}
                    }
                }
                Ok(None) => break Outcome::Unknown,
                Err(error) => {
                    screen.complain(&format!("observe: {error}")).await;
                    break Outcome::Unknown;
                }
            },
            Some(failed) = calls.next() => {
                if let Err((name, error)) = failed {
                    screen.complain(&format!("{name}: the result was not taken: {error}")).await;
                }
            }
            Some(cancelled) = cancels.join_next(), if !cancels.is_empty() => {
                if let Ok(Err(error)) = cancelled {
                    screen.complain(&format!("cancel: {error}")).await;
                }
            }
            Some(line) = wishes.lines.next(), if inputs.is_ready() && !calls.stopped() => match line {
                Ok(text) => inputs.begin(&controls, text),
                Err(error) => screen.complain(&format!("stdin: {error}")).await,
            },
            Some(answer) = inputs.next() => {
                if let Some(trouble) = trouble(answer) {
                    screen.complain(&trouble).await;
                }
            }
            Some(()) = wishes.interrupts.next() => {
                if calls.stopped() {
                    break Outcome::GivenUp;
                }
                screen.remark("cancelling; a second Ctrl-C stops waiting").await;
                calls.stop_all();
                cancels.spawn(cancel(controls.clone()));
            }
        }
        if screen.is_closed() && !calls.stopped() {
            calls.stop_all();
            cancels.spawn(cancel(controls.clone()));
        }
    };
    calls.finish().await;
    if let Ok(Some(answer)) = time::timeout(FINISH, inputs.next()).await
        && let Some(trouble) = trouble(answer)
    {
        screen.complain(&trouble).await;
    }
    cancels.shutdown().await;
    outcome
}

/// Asks until the Turn is over.
async fn cancel(controls: impl Controls) -> Result<(), client::Error> {
    while !controls.cancel().await? {}
    Ok(())
}

fn outcome(status: v1::TurnStatus) -> Outcome {
    match status {
        v1::TurnStatus::Completed => Outcome::Completed,
        v1::TurnStatus::Failed => Outcome::Failed,
        v1::TurnStatus::Cancelled => Outcome::Cancelled,
        v1::TurnStatus::Unknown | v1::TurnStatus::Unspecified => Outcome::Unknown,
    }
}

/// What became of an input: its id and the bridge's answer.
type Steered = (String, Result<v1::TurnInput, client::Error>);

/// The inputs of the Turn, one on its way at a time.
#[derive(Debug, Default)]
struct Inputs {
    count: u64,
    on_its_way: JoinSet<Steered>,
}

impl Inputs {
    fn is_ready(&self) -> bool {
        self.on_its_way.is_empty()
    }

    fn begin(&mut self, controls: &impl Controls, text: String) {
        self.count += 1;
        let (controls, id) = (controls.clone(), format!("input-{}", self.count));
        self.on_its_way.spawn(async move {
            loop {
                let answer = controls.steer(id.clone(), text.clone()).await;
                match answer.as_ref().err().and_then(later) {
                    Some(after) => time::sleep(after).await,
                    None => return (id, answer),
                }
            }
        });
    }

    /// The answer that comes next, if one is due; a panic of its task is nothing to tell.
    async fn next(&mut self) -> Option<Steered> {
        self.on_its_way.join_next().await.and_then(Result::ok)
    }
}

/// After how long the bridge may have room for the input that it had none for: as many as may wait do, or the Session has too much to do.
fn later(error: &client::Error) -> Option<Duration> {
    let is_full = matches!(error.reason(), Some(v1::Reason::InputBusy | v1::Reason::Overloaded));
    error.refusal().filter(|_| is_full)?.retry_after
}

/// What the events of the Turn do not tell of an input: that there is none, since the bridge refused the call.
fn trouble((id, answer): Steered) -> Option<String> {
    answer.err().map(|error| format!("{id} was not taken: {error}"))
}

/// What a task of a call ends with: the function's name and why its result was not taken.
type Answered = Result<(), (String, client::Error)>;

/// The function calls of the Turn, each answered by a task.
struct Calls<C> {
    controls: C,
    functions: Functions,
    tasks: JoinSet<Answered>,
    room: Arc<Semaphore>,
    all: CancellationToken,
    each: HashMap<String, CancellationToken>,
}

impl<C: Controls> Calls<C> {
    fn new(controls: C, functions: Functions) -> Self {
        Self {
            controls,
            functions,
            tasks: JoinSet::new(),
            room: Arc::new(Semaphore::new(MAX_PROGRAMS)),
            all: CancellationToken::new(),
            each: HashMap::new(),
        }
    }

    fn begin(&mut self, call: &v1::FunctionCall) {
        let stop = self.all.child_token();
        self.each.insert(call.call_id.clone(), stop.clone());
        let (controls, functions, room) = (self.controls.clone(), self.functions.clone(), self.room.clone());
        let call = call.clone();
        self.tasks.spawn(async move {
            let answer = answer(&call, &functions, &room, &stop).await;
            let Some(result) = result(controls.turn_id(), &call.call_id, answer) else { return Ok(()) };
            controls.submit(result).await.map_err(|error| (call.name, error))
        });
    }

    fn stop(&mut self, call_id: &str) {
        if let Some(stop) = self.each.remove(call_id) {
            stop.cancel();
        }
    }

    fn stop_all(&self) {
        self.all.cancel();
    }

    /// Whether [`Calls::stop_all`] was called: the Turn is being cancelled.
    fn stopped(&self) -> bool {
        self.all.is_cancelled()
    }

    /// The next task that ends; a panic of one is nothing to tell.
    async fn next(&mut self) -> Option<Answered> {
        self.tasks.join_next().await.map(|joined| joined.unwrap_or(Ok(())))
    }

    /// Ends every program and waits until it has ended. A result that is still on its way has [`FINISH`].
    async fn finish(mut self) {
        self.stop_all();
        let ended = async { while self.next().await.is_some() {} };
        // What is left is dropped, which kills its program.
        _ = time::timeout(FINISH, ended).await;
    }
}

async fn answer(call: &v1::FunctionCall, functions: &Functions, room: &Semaphore, stop: &CancellationToken) -> Answer {
    let Some(program) = functions.program(&call.name) else {
        return Answer::failed("there is no such function");
    };
    let arguments = match call.arguments.as_ref().and_then(|content| content.place.as_ref()) {
        Some(v1::content::Place::Text(text)) => text,
        Some(v1::content::Place::Payload(part)) => {
            return Answer::failed(format!("the arguments are too large ({} bytes)", part.size));
        }
        None => "",
    };
    let _room = tokio::select! {
        biased;
        () = stop.cancelled() => return Answer::Stopped,
        room = room.acquire() => room,
    };
    function::answer(program, arguments, stop).await
}

/// The result of a call that was not stopped.
fn result(turn_id: &str, call_id: &str, answer: Answer) -> Option<v1::FunctionResult> {
    let Answer::Result { success, output, error } = answer else { return None };
    Some(v1::FunctionResult {
        turn_id: turn_id.into(),
        call_id: call_id.into(),
        success: Some(success),
        error: error.map(|text| v1::NullableText { value: Some(v1::nullable_text::Value::Text(text)) }),
        output: output.map(|text| v1::FunctionOutput { value: Some(v1::function_output::Value::Text(text)) }),
        disposition: None,
    })
}

#[cfg(test)]
mod tests;
