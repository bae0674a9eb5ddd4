//! What an owner does with a line of an agent, and with what comes by the server of the functions: answers go to what was asked, updates of the prompt that runs go to its
//! Turn (R-EVT-6), requests are always answered (R-PLC-1).

use serde_json::value::RawValue;

use super::{Asked, Conversation, Prompt};
use crate::{
    acp::{
        failure::{self, failure as failure_of},
        wire::{self, INVALID_PARAMS, METHOD_NOT_FOUND, Prompted, Receipt, Update, Updated},
    },
    function_server::{Gone, Happening},
    harness::{FailureCode, InputRefusal, NativeEnd, Report, Standing},
    native::rpc::{self, Message, RpcError},
    owner::{Answer, Event, Native as _, Owner},
};

impl Owner<Conversation> {
    pub(super) async fn told(&mut self, line: &[u8]) {
        match rpc::parse(line) {
            Ok(Message::Notification { method, params }) if method == "session/update" => {
                let Some(Ok(updated)) = params.map(|params| serde_json::from_str::<Updated<'_>>(params.get())) else {
                    return self.missed_one();
                };
                self.updated(updated).await;
            }
            Ok(Message::Notification { .. }) => self.skipped.unknown += 1,
            Ok(Message::Request { id, method, .. }) => self.requested(id, &method).await,
            Ok(Message::Response { id, outcome }) => match self.native.asked.remove(&id) {
                Some(asked) => self.answered(asked, outcome).await,
                None => self.skipped.late += 1,
            },
            Err(malformed) => {
                tracing::debug!(%malformed, "skipped a line");
                // Agents also print what is no message: it takes nothing but a certainty.
                self.unread();
                self.native.items.unread();
            }
        }
    }

    /// Something could not be read: it may have been a message, or the receipt of an input (R-STE-3).
    fn missed_one(&mut self) {
        self.unread();
        self.native.items.unread();
        // Nobody can say what it was about, so no other prompt goes to this process.
        self.native.spent = true;
    }

    async fn updated(&mut self, Updated { session_id, update }: Updated<'_>) {
        if session_id != self.native.id {
            self.skipped.foreign += 1;
            return;
        }
        let is_told = self.turn.as_ref().is_some_and(|turn| turn.is_open() || turn.is_told());
        if self.native.prompt != Prompt::Running || !is_told {
            self.skipped.late += 1;
            return;
        }
        let update = match Update::read(update) {
            Ok(Update::Beside) => return,
            Ok(Update::Unknown) => {
                self.skipped.unknown += 1;
                return;
            }
            Ok(update) => update,
            Err(error) => {
                tracing::debug!(column = error.column(), "skipped an update that does not fit");
                return self.missed_one();
            }
        };
        let native = self.native.turn.clone();
        self.begun(&native).await;
        // The model has begun, without the functions: none of them can be called.
        if self.are_functions_missing().await {
            return self.unlisted().await;
        }
        let stopped = self.native.cancelled;
        let mut reports = Vec::new();
        match update {
            Update::Message(chunk) => self.native.items.message(&chunk, &mut reports),
            Update::Thought(chunk) => self.native.items.thought(&chunk, &mut reports),
            Update::Tool(call) => {
                let Conversation { items, calls, .. } = &mut self.native;
                items.tool(&call, calls, stopped, &mut reports);
            }
            Update::Beside | Update::Unknown => {}
        }
        for report in reports {
            self.emit(self.native_cut(report)).await;
        }
        Conversation::write_input(self);
    }

    /// A report without secrets in what an agent says of its own.
    fn native_cut(&self, mut report: Report) -> Report {
        use crate::harness::Tool;
        let (Report::ToolStarted { tool, .. }
        | Report::ToolCompleted { end: crate::harness::ToolEnd { tool, .. }, .. }) = &mut report
        else {
            return report;
        };
        if let Tool::Mcp(call) = tool {
            call.error = self.cleaner.clean(&call.error);
        }
        report
    }

    async fn answered(&mut self, asked: Asked, outcome: Result<&RawValue, RpcError>) {
        match asked {
            Asked::Barrier if self.native.prompt == Prompt::Behind => self.passed(outcome).await,
            Asked::Barrier => {}
            Asked::Prompt => self.ended(outcome).await,
            Asked::Steer => self.steered(outcome).await,
            Asked::Lives(request) => {
                if let Some(report) = self.native.calls.given_up(request, None, self.native.cancelled) {
                    self.emit(report).await;
                }
            }
            Asked::Standing => {
                if self.quiet.answered() {
                    self.emit(Report::Standing(Standing::Active)).await;
                }
            }
        }
    }

    /// Everything that an earlier prompt has left is read: what comes from here on is of this one.
    async fn passed(&mut self, outcome: Result<&RawValue, RpcError>) {
        // One that has no list says so in its order as well.
        if let Err(error) = outcome
            && self.native.model.is_some()
        {
            self.native.spent = true;
            self.native.prompt = Prompt::None;
            let message = format!(
                "{} refused a request that changes nothing: {}",
                self.native.profile().name,
                self.cleaner.clean(&error.message)
            );
            let failure = failure_of(FailureCode::HarnessProtocolError, message);
            self.feed(Event::Refused { failure, overloaded: false }).await;
            return self.feed(Event::Close).await;
        }
        // A Turn that is on its way to its end never reaches the agent (R-CAN-1).
        let Some(turn) = self.turn.as_ref().filter(|turn| turn.is_open()) else { return };
        if turn.is_interrupted() {
            self.native.prompt = Prompt::None;
            return self.feed(Event::Prepared).await;
        }
        self.write_prompt();
        let native = self.native.turn.clone();
        self.feed(Event::Accepted { native: Some(native.clone()) }).await;
        self.feed(Event::Started { native }).await;
    }

    /// The answer to the prompt: the end of the Turn.
    async fn ended(&mut self, outcome: Result<&RawValue, RpcError>) {
        if self.native.prompt != Prompt::Running {
            self.skipped.late += 1;
            return;
        }
        self.native.prompt = Prompt::None;
        self.native.listed_by = None;
        let native = self.native.turn.clone();
        self.begun(&native).await;
        let profile = self.native.agent.profile();
        let end = match outcome {
            Ok(answer) => match serde_json::from_str::<Prompted<'_>>(answer.get()) {
                Ok(Prompted { stop_reason }) => failure::end(profile, &stop_reason, self.native.items.are_bare()),
                Err(_) => {
                    let message = format!("{} ended the prompt and did not say how", profile.name);
                    let failure = failure_of(FailureCode::HarnessProtocolError, message);
                    NativeEnd::Failed { failure, finish: None, at: None }
                }
            },
            // Some agents answer a prompt so that they were told to cancel; an error of the provider would say so.
            Err(error) if self.native.cancelled && !failure::is_classified(&error) => {
                NativeEnd::Interrupted { at: None }
            }
            Err(error) => failure::error(profile, &error, &self.cleaner),
        };
        let mut reports = Vec::new();
        if matches!(end, NativeEnd::Completed { .. }) {
            self.native.items.end(&mut reports);
        }
        // An agent that has ended the prompt and still waits for a call would wait for ever: no result reaches it any more.
        self.native.dismiss_all();
        // What has no receipt by now may have been read all the same.
        if self.native.asked.values().any(|asked| *asked == Asked::Steer) {
            self.inputs.doubt();
            self.native.spent = true;
        }
        reports.extend(self.inputs.ended());
        for report in reports {
            self.emit(report).await;
        }
        let retires = self.native.spent
            || self.native.items.are_unended()
            || (self.native.cancelled && !self.native.profile().reusable_after_cancel);
        // Of a tool whose end it has not shown it shows none any more, and it goes with the process.
        self.feed(Event::Completed { native, end, open_work: 0 }).await;
        if retires {
            // Nothing else proves that nothing of the prompt runs any more (R-CAN-2, R-CAN-3).
            self.feed(Event::Close).await;
        }
    }

    /// The receipt of an input, or why there is none.
    async fn steered(&mut self, outcome: Result<&RawValue, RpcError>) {
        let reports = match outcome.map(|answer| serde_json::from_str::<Receipt>(answer.get())) {
            Ok(Ok(receipt)) if self.native.prompt == Prompt::Running && self.native.took(&receipt.turn_id) => {
                self.inputs.admitted(&receipt.turn_id)
            }
            // It may be read, and nobody can say by whom.
            Ok(_) => self.lost_input(),
            Err(error) if error.code == METHOD_NOT_FOUND => {
                let message = format!("{} takes no input while it works", self.native.profile().name);
                self.inputs.answered(Answer::Refused(InputRefusal::NotTaken { message }))
            }
            Err(error) if error.code == INVALID_PARAMS => {
                self.inputs.answered(Answer::Refused(InputRefusal::TurnEnded))
            }
            Err(_) => self.lost_input(),
        };
        for report in reports {
            self.emit(report).await;
        }
        Conversation::write_input(self);
    }

    fn lost_input(&mut self) -> Vec<Report> {
        self.native.spent = true;
        self.inputs.doubt();
        self.inputs.answered(Answer::Queued)
    }

    /// Whether the functions were not listed, by all that is known: a line may be read before what came to the server ahead of it.
    pub(super) async fn are_functions_missing(&mut self) -> bool {
        while self.native.is_unlisted() {
            let next = self.native.functions.as_mut().and_then(|functions| functions.happenings.try_recv().ok());
            let Some(what) = next else { return true };
            self.served(what).await;
        }
        false
    }

    /// The functions were not listed: the Turn ends before one could have been called.
    pub(super) async fn unlisted(&mut self) {
        self.native.listed_by = None;
        let name = self.native.profile().name;
        let message = format!("{name} did not ask for the functions, so that its model would not have them");
        self.feed(Event::Fault(failure_of(FailureCode::HarnessProtocolError, message))).await;
    }

    /// Something happened at the server of the functions.
    pub(super) async fn served(&mut self, what: Happening) {
        match what {
            Happening::Listed => {
                if let Some(functions) = &mut self.native.functions {
                    functions.listed = true;
                }
                self.native.listed_by = None;
            }
            Happening::Asked { request, name, arguments } => {
                let is_open = self.turn.as_ref().is_some_and(crate::owner::Turn::is_open);
                if !is_open || self.native.prompt != Prompt::Running || self.native.cancelled {
                    self.skipped.foreign += 1;
                    return self.native.dismiss(request);
                }
                let native = self.native.turn.clone();
                self.begun(&native).await;
                let mut reports = Vec::new();
                self.native.items.called(&mut reports);
                reports.push(self.native.calls.asked(request, name, arguments));
                for report in reports {
                    self.emit(report).await;
                }
            }
            Happening::Written { request } => {
                if let Some(report) = self.native.calls.written(request) {
                    self.emit(report).await;
                }
            }
            // One that is dropped may be so because the agent is gone, which its exit tells (R-FN-7).
            Happening::GivenUp { request, how: Gone::Dropped } if !self.native.cancelled => {
                if self.native.calls.is_pending(request) {
                    self.ask_harmless(Asked::Lives(request));
                }
            }
            Happening::GivenUp { request, how } => {
                let said = if let Gone::Told(Some(why)) = &how { Some(&**why) } else { None };
                if let Some(report) = self.native.calls.given_up(request, said, self.native.cancelled) {
                    self.emit(report).await;
                }
            }
        }
    }

    /// An agent asks a person, or for something that only an editor has: nobody is there (R-PLC-1).
    async fn requested(&mut self, id: &RawValue, method: &str) {
        let line = wire::decline(id, method);
        self.put(line, None);
        tracing::warn!(%method, "an agent asked for something that nobody answers");
        if self.turn.as_ref().is_some_and(|turn| turn.is_open() && turn.has_started()) {
            let what = match method {
                "session/request_permission" => "a permission",
                "elicitation/create" => "an answer of a person",
                _ => "something that nobody is there to answer",
            };
            let message = format!("{} asked for {what}; it was declined", self.native.profile().name);
            self.emit(Report::Notice { code: "request_declined", message }).await;
        }
    }
}
