//! What an owner does with a line of Claude Code: answers go to what was asked, what the model says and does goes to the Turn that runs
//! (R-EVT-6), requests are always answered (R-PLC-1).

use std::sync::Arc;

use serde::Deserialize;

use super::{Asked, Conversation};
use crate::{
    claude_code::{
        failure::{self, Surroundings},
        functions::{self, Step},
        mcp::{self, Absent},
        structured,
        wire::{
            self, ControlRequest, ControlResponse, Heard, Init, InputState, Lifecycle, Line, McpContent, SessionState,
            write,
        },
    },
    harness::{Failure, FailureCode, Report, Standing},
    owner::{Answer, Event, Owner, Turn},
};

impl Owner<Conversation> {
    pub(super) async fn told(&mut self, line: &[u8]) {
        match wire::hear(line, &self.native.id) {
            Ok(Heard::Line(line)) => self.take(line).await,
            Ok(Heard::Foreign) => self.skipped.foreign += 1,
            Ok(Heard::Unknown) => self.skipped.unknown += 1,
            Err(error) => {
                self.unread();
                self.native.items.unread();
                tracing::debug!(column = error.column(), "skipped a line that does not fit");
            }
        }
    }

    async fn take(&mut self, line: Line) {
        let mut reports = Vec::new();
        match line {
            Line::Lifecycle(lifecycle) => return self.lifecycle(lifecycle).await,
            Line::State(SessionState::Idle) => return self.idle().await,
            Line::State(_) | Line::Heartbeat | Line::Compacted | Line::Withdrawn => return,
            Line::Request(request) => return self.requested(request).await,
            Line::Response(response) => return self.answered(response).await,
            _ if !self.turn.as_ref().is_some_and(Turn::is_told) => {
                self.skipped.late += 1;
                return;
            }
            Line::Init(init) => {
                // Another native turn of the Turn: what ended is not its end.
                self.native.end = None;
                return self.inventory(&init).await;
            }
            Line::Retry(retry) => self.native.items.retried(failure::retried(&retry), &mut reports),
            Line::Denied(denied) => self.native.items.denied(&denied.tool_use_id),
            Line::Stream(stream) => {
                if stream.parent.is_none() {
                    self.native.calls.streamed(&stream.event);
                }
                if !self.native.items.streamed(stream, &mut reports) {
                    self.skipped.foreign += 1;
                }
            }
            Line::Assistant(assistant) => {
                self.native.calls.told(&assistant);
                self.native.errors.told(&assistant);
                if let Some(structured) = &mut self.native.structured {
                    structured.called(&assistant);
                }
                if !self.native.items.told(assistant, &mut reports) {
                    self.skipped.foreign += 1;
                }
            }
            Line::User(user) => {
                if user.parent.is_none() && !user.is_replay {
                    reports.extend(user.results.iter().flat_map(|result| self.native.calls.seen(result)));
                }
                if let Some(structured) = &mut self.native.structured {
                    structured.seen(&user);
                }
                if !self.native.items.ended(&user, &mut reports) {
                    self.skipped.foreign += 1;
                }
                reports.iter_mut().for_each(|report| mcp::clean(report, &self.cleaner));
            }
            Line::Result(result) => {
                self.native.items.turn_ended(&result, &mut reports);
                if let Some(structured) = &mut self.native.structured {
                    structured.turn_ended(&result);
                }
                let of = Surroundings { interrupted: self.native.interrupted, bare: self.native.items.are_bare() };
                self.native.end = Some(self.native.errors.end(&result, of, &self.cleaner));
            }
        }
        for report in reports {
            self.emit(report).await;
        }
    }

    /// How an input stands: that of the Turn, or one that was added to it.
    async fn lifecycle(&mut self, Lifecycle { command_uuid, state }: Lifecycle) {
        let is_first = match (&self.turn, &self.input) {
            (Some(turn), Some(input)) => !turn.has_started() && input.client_id == command_uuid,
            _ => false,
        };
        if is_first {
            return match state {
                InputState::Queued => self.feed(Event::Accepted { native: Some(command_uuid) }).await,
                InputState::Started => {
                    self.input = None;
                    self.feed(Event::Started { native: command_uuid }).await;
                }
                InputState::Completed | InputState::Cancelled | InputState::Other => {}
            };
        }
        if !self.turn.as_ref().is_some_and(Turn::is_told) {
            self.skipped.late += 1;
            return;
        }
        let reports = match state {
            InputState::Queued => self.inputs.answered(Answer::Queued),
            InputState::Started => {
                self.native.end = None;
                self.inputs.read(&command_uuid, command_uuid.clone())
            }
            InputState::Cancelled => self.inputs.withdrawn(&command_uuid),
            InputState::Completed | InputState::Other => Vec::new(),
        };
        for report in reports {
            self.emit(report).await;
        }
        <Conversation as crate::owner::Native>::write_input(self);
    }

    /// Nothing runs and nothing waits: the Turn is over, unless an input is on its way to it.
    async fn idle(&mut self) {
        match (self.inputs.are_unread(), self.inputs.are_lost()) {
            (false, _) => {}
            // The interrupt has withdrawn it, whatever was said of that.
            (true, true) if self.native.interrupted => {}
            // Nothing more may come of it, and nothing may be read once the Turn is over (R-STE-2).
            (true, true) => {
                return self.fault("it is idle, and what it said of an input cannot be read".to_owned()).await;
            }
            (true, false) => return,
        }
        let told = self.turn.as_ref().filter(|turn| turn.is_told()).and_then(Turn::native).map(str::to_owned);
        let (native, end) = match (told, self.native.end.take()) {
            (Some(native), Some(end)) => (native, end),
            // Nothing more would come of the Turn.
            (Some(_), None) => return self.fault("it is idle and told no end".to_owned()).await,
            (None, _) => return,
        };
        let mut reports = self.inputs.ended();
        let (end, answer) = self.native.answered_with(end);
        if let Some(answer) = answer {
            structured::publish(answer, &mut reports);
        }
        for report in reports {
            self.emit(report).await;
        }
        let open_work = self.native.items.open_work();
        self.feed(Event::Completed { native, end, open_work }).await;
    }

    /// What Claude offers its model must be what was asked for (R-CTL-4, R-CTL-5); it is told before the request to the provider.
    async fn inventory(&mut self, init: &Init) {
        if init.session_id != self.native.id {
            return self.fault("it runs another conversation than it was asked for".to_owned()).await;
        }
        let (of_servers, own): (Vec<_>, Vec<_>) =
            init.tools.iter().cloned().partition(|tool| self.native.mcp.tools.has(tool));
        if let Err(difference) = self.native.inventory.check(&own) {
            return self.fault(difference.to_string()).await;
        }
        if !std::mem::replace(&mut self.native.told_absent, true) {
            for Absent { label, why } in self.native.mcp.absent.clone() {
                let message = format!("the MCP server `{label}` is not there: {}", self.cleaner.clean(&why));
                self.emit(Report::Notice { code: "mcp_unavailable", message }).await;
            }
        }
        self.servers_grew(&of_servers).await;
    }

    /// A server has tools that it did not have when the process got ready (R-MCP-5): they are taken from the model. Until it is told so, its calls
    /// of them are refused.
    async fn servers_grew(&mut self, told: &[String]) {
        let news = self.native.mcp.tools.news(told);
        if news.is_empty() {
            return;
        }
        Arc::make_mut(&mut self.native.mcp.tools).grow(news);
        let tools = Arc::clone(&self.native.mcp.tools);
        self.ask_for(Asked::Rules, |id| write::request(id, &tools.rules()));
        let message = "an MCP server has other tools than when the session began; the new ones are not used".to_owned();
        self.emit(Report::Notice { code: "mcp_tools_changed", message }).await;
    }

    /// The Turn cannot go on as it was asked for: it is interrupted at once, and the process goes.
    async fn fault(&mut self, what: String) {
        self.native.interrupted = true;
        self.ask_for(Asked::Interrupt, write::interrupt);
        let message = format!("claude broke its protocol: {what}");
        let failure = Failure { code: FailureCode::HarnessProtocolError, message, http_status: None, exit: None };
        self.feed(Event::Fault(failure)).await;
    }

    async fn answered(&mut self, response: ControlResponse) {
        match self.native.asked.remove(&response.request_id) {
            Some(Asked::Interrupt) if !response.success => self.feed(Event::InterruptRefused).await,
            // Whether they hold is seen in the next inventory, and calls are asked about.
            Some(Asked::Interrupt | Asked::Rules) => {}
            Some(Asked::Standing) => self.stands(&response).await,
            None => self.skipped.late += 1,
        }
    }

    /// How the session stands, by the answer to a second `initialize`.
    async fn stands(&mut self, response: &ControlResponse) {
        #[derive(Deserialize)]
        struct Initialized {
            session_state: String,
        }
        if !self.quiet.answered() {
            return;
        }
        let told = response.response.as_ref().and_then(|told| serde_json::from_str::<Initialized>(told.get()).ok());
        let standing = match told.as_ref().map(|told| &*told.session_state) {
            Some("idle") if self.native.end.is_some() && !self.inputs.are_unread() => Standing::Over,
            Some("running" | "requires_action") => Standing::Active,
            Some(_) | None => Standing::Silent,
        };
        self.emit(Report::Standing(standing)).await;
        if standing == Standing::Over {
            self.idle().await;
        }
    }

    async fn requested(&mut self, request: ControlRequest) {
        let ControlRequest { request_id, kind } = request;
        let message = match kind {
            wire::Asked::Mcp(message) if message.server == wire::SERVER => message,
            wire::Asked::Hook(tool) if self.native.mcp.tools.has(&tool) => {
                return self.decided(&request_id, tool).await;
            }
            kind => return self.declined(&ControlRequest { request_id, kind }).await,
        };
        let takes_calls = self.turn.as_ref().is_some_and(|turn| turn.is_open() && turn.has_started());
        match (message.content, message.id) {
            (McpContent::Call(call), Some(id)) if takes_calls => {
                let Step { reports, lines } = self.native.calls.requested(request_id, id, call);
                for line in lines {
                    self.write(line, None);
                }
                for report in reports {
                    self.emit(report).await;
                }
            }
            (McpContent::Call(_), Some(id)) => {
                self.skipped.foreign += 1;
                if let Some(line) = functions::foreign(&request_id, &id) {
                    self.write(line, None);
                }
            }
            (McpContent::Cancelled(id), None) => {
                self.put(write::mcp_noted(&request_id), None);
                if let Some(report) = self.native.calls.cancelled(&id) {
                    self.emit(report).await;
                }
            }
            (_, None) => self.put(write::mcp_noted(&request_id), None),
            (_, Some(id)) => self.put(write::mcp_unknown(&request_id, &id), None),
        }
    }

    /// A tool of a declared server is to be called.
    async fn decided(&mut self, request_id: &str, tool: String) {
        if self.native.mcp.tools.allows(&tool) {
            return self.put(write::let_call(request_id), None);
        }
        self.put(write::refuse_call(request_id, "the tool is not one that was declared"), None);
        self.servers_grew(&[tool]).await;
    }

    async fn declined(&mut self, request: &ControlRequest) {
        self.put(write::decline(request), None);
        let what = match &request.kind {
            wire::Asked::Permission => "a permission",
            wire::Asked::Elicitation => "an answer of a person",
            wire::Asked::Hook(_) => "a hook",
            wire::Asked::Mcp(_) => "a server that is not there",
            wire::Asked::Other(name) => name,
        };
        tracing::warn!(what, "claude asked for something that nobody answers");
        if self.turn.as_ref().is_some_and(|turn| turn.is_open() && turn.has_started()) {
            let message = "claude asked for something that nobody is there to answer; it was declined".to_owned();
            self.emit(Report::Notice { code: "request_declined", message }).await;
        }
    }
}
