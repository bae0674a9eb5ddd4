//! Calls of declared functions within one Turn: which are open, what was written for them, and what Codex showed of it (R-FN-2 to R-FN-7).
//! Pure: it takes messages and gives reports and lines to write.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::value::RawValue;

use super::wire::calls::{CallAnswer, CallItem, CallParams, ContentItem, RAW_IMAGE, RawItem, RawPart};
use crate::{
    call::{Phase, Told},
    harness::{FunctionResult, Report, render},
    native::rpc,
};

/// The native message that shows a result as taken over (R-FN-6).
pub(super) const EVIDENCE: &str = "item/completed";

/// JSON-RPC: parameters are wrong. Codex tells the model only that the request failed.
const INVALID_PARAMS: i64 = -32602;

/// The calls of one Turn.
#[derive(Debug)]
pub(super) struct Calls {
    declared: BTreeSet<String>,
    calls: BTreeMap<String, Call>,
    told: Told,
}

#[derive(Debug)]
struct Call {
    name: String,
    arguments: String,
    /// Native requests that wait for the result. Codex may ask again under the same call id; that is still one call.
    waiting: Vec<Box<RawValue>>,
    /// Native requests whose items have not ended. Where a model gives one id to two calls, Codex hands the result to one of them and cancels
    /// the other.
    open: u32,
    /// Requests under this id that were refused: each makes Codex complete an item of the same id, which tells nothing of this call.
    refused: u32,
    phase: Phase<CallAnswer>,
}

/// What to do about a native request.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) reports: Vec<Report>,
    /// To be written as they are.
    pub(super) lines: Vec<Bytes>,
}

impl Calls {
    pub(super) fn new(declared: impl IntoIterator<Item = String>) -> Self {
        Self { declared: declared.into_iter().collect(), calls: BTreeMap::new(), told: Told::default() }
    }

    /// Forgets everything of the last Turn.
    pub(super) fn begin(&mut self) {
        self.calls.clear();
        self.told.clear();
    }

    /// `rawResponseItem/completed` of a call or of its result.
    pub(super) fn told(&mut self, RawItem { call_id, name, arguments, output }: RawItem) -> Option<Report> {
        if let Some(parts) = output {
            return self.entered(call_id, &parts);
        }
        let (name, arguments) = name.zip(arguments)?;
        // What is no JSON is never asked for, and a native tool's call is none of ours.
        let is_ours = self.declared.contains(&name) && serde_json::from_str::<&RawValue>(&arguments).is_ok();
        if is_ours && !self.calls.contains_key(&call_id) {
            self.told.tell(call_id, arguments);
        }
        None
    }

    /// What the model reads of a result. `item/completed` shows an image as it was written also where Codex could not read it and gives the model a
    /// text in its place (R-FN-6).
    fn entered(&mut self, call_id: String, parts: &[RawPart]) -> Option<Report> {
        let call = self.calls.get_mut(&call_id)?;
        let (Phase::Answered { answer, .. } | Phase::Applied { answer }) = &call.phase else { return None };
        let written = answer.content_items.iter().filter(|item| item.image_url.is_some()).count();
        let entered = parts.iter().filter(|part| part.kind == RAW_IMAGE).count();
        (entered < written).then(|| {
            call.phase = Phase::Abandoned;
            Report::AnswerDiffers { call_id }
        })
    }

    /// `item/tool/call` of the running Turn.
    pub(super) fn requested(&mut self, id: &RawValue, params: CallParams) -> Step {
        let arguments = params.arguments.map_or_else(|| "null".to_owned(), |raw| raw.get().to_owned());
        if params.namespace.is_some() || !self.declared.contains(&params.tool) {
            return refuse(id, "no such function", Some("call_refused"));
        }
        let Some(call) = self.calls.get_mut(&params.call_id) else {
            let (call_id, name) = (params.call_id, params.tool);
            let told = self.told.take(&call_id);
            let (exact, shown) = (told.is_some(), told.unwrap_or_else(|| arguments.clone()));
            let report = Report::Call {
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: shown,
                exact,
                named_by_bridge: false,
            };
            let call =
                Call { name, arguments, waiting: vec![id.to_owned()], open: 1, refused: 0, phase: Phase::Pending };
            self.calls.insert(call_id, call);
            return Step { reports: vec![report], lines: Vec::new() };
        };
        if call.name != params.tool || call.arguments != arguments {
            call.refused += 1;
            return refuse(id, "another call has this id", Some("call_id_reused"));
        }
        match &call.phase {
            Phase::Pending => {
                call.open += 1;
                call.waiting.push(id.to_owned());
                Step::default()
            }
            Phase::Answered { answer, .. } | Phase::Applied { answer } => {
                Step { reports: Vec::new(), lines: answer_line(id, answer).into_iter().collect() }
            }
            Phase::Abandoned => {
                call.refused += 1;
                refuse(id, "the call was abandoned", None)
            }
        }
    }

    /// The result of the application; gives the lines to write. The first one tells that the result was written.
    pub(super) fn answered(&mut self, call_id: &str, result: &FunctionResult) -> Vec<Bytes> {
        let Some(call) = self.calls.get_mut(call_id) else { return Vec::new() };
        if !matches!(call.phase, Phase::Pending) {
            return Vec::new();
        }
        let answer = answer(result);
        let lines = call.waiting.drain(..).filter_map(|id| answer_line(&id, &answer)).collect();
        call.phase = Phase::Answered { answer, written: false };
        lines
    }

    /// The result was written to the end.
    pub(super) fn written(&mut self, call_id: &str) -> Option<Report> {
        self.calls.get_mut(call_id)?.phase.written(call_id)
    }

    /// `item/completed` of a call: the evidence (R-FN-6).
    pub(super) fn completed(&mut self, item: CallItem) -> Vec<Report> {
        let Some(call) = self.calls.get_mut(&item.id) else { return Vec::new() };
        let call_id = item.id;
        let content = item.content_items.unwrap_or_default();
        // An interrupt and an ended script cancel a call: failed, without any content. A failed result of ours never is without content.
        let cancelled = item.status == "failed" && item.success != Some(true) && content.is_empty();
        match &call.phase {
            Phase::Pending | Phase::Answered { .. } if cancelled && call.open > 1 => {
                call.open -= 1;
                return Vec::new();
            }
            Phase::Pending | Phase::Answered { .. } if cancelled => {
                return call.phase.cancelled(&call_id).into_iter().collect();
            }
            Phase::Pending if call.refused > 0 => {
                call.refused -= 1;
                return Vec::new();
            }
            Phase::Answered { answer, .. } if call.refused > 0 && !shows(answer, item.success, &content) => {
                call.refused -= 1;
                return Vec::new();
            }
            Phase::Pending | Phase::Answered { .. } | Phase::Applied { .. } | Phase::Abandoned => {}
        }
        call.phase.seen(&call_id, EVIDENCE, item.success == Some(true), |answer| shows(answer, item.success, &content))
    }
}

/// Whether a native result is what was written.
fn shows(answer: &CallAnswer, success: Option<bool>, content: &[ContentItem]) -> bool {
    success == Some(answer.success) && content == answer.content_items
}

/// The refusal of a call that is none of a running Turn: another thread's, an earlier turn's.
pub(super) fn foreign(id: &RawValue) -> Bytes {
    rpc::refusal(id, INVALID_PARAMS, "no Turn of this thread is running")
}

fn refuse(id: &RawValue, why: &str, notice: Option<&'static str>) -> Step {
    let reports = notice.map(|code| Report::Notice { code, message: format!("a call was refused: {why}") });
    Step { reports: reports.into_iter().collect(), lines: vec![rpc::refusal(id, INVALID_PARAMS, why)] }
}

/// The stated rendering (R-FN-9): Codex does not show the flag to the model.
fn answer(result: &FunctionResult) -> CallAnswer {
    let content_items = render(result, false).into_iter().map(ContentItem::of).collect();
    CallAnswer { success: result.success, content_items }
}

fn answer_line(id: &RawValue, answer: &CallAnswer) -> Option<Bytes> {
    match rpc::answer(id, answer) {
        Ok(line) => Some(line),
        Err(error) => {
            tracing::error!(%error, "a result could not be written as JSON");
            None
        }
    }
}

#[cfg(test)]
mod tests;
