//! Lines that carry what the model and the tools say.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Envelope, lossy, lossy_option, typed};

/// The model that Claude names for messages of its own.
const SYNTHETIC: &str = "<synthetic>";

/// `stream_event`.
#[derive(Debug)]
pub(in crate::claude_code) struct Stream {
    /// The call of the subagent that it belongs to.
    pub(in crate::claude_code) parent: Option<String>,
    pub(in crate::claude_code) event: Event,
}

/// An event of the provider's stream.
#[derive(Debug)]
pub(in crate::claude_code) enum Event {
    /// `message_start`.
    MessageStart {
        /// The provider's id.
        id: String,
    },
    /// `content_block_start`.
    BlockStart { index: u32, block: Block },
    /// `content_block_delta`.
    BlockDelta { index: u32, delta: Delta },
    /// `content_block_stop`.
    BlockStop { index: u32 },
    /// `message_delta`: the end of the answer, with what it took.
    MessageDelta { stop_reason: Option<String>, usage: Option<Tokens> },
    /// `message_stop`. Blocks from `abandoned_from` on are void: the stream broke off in them.
    MessageStop { abandoned_from: Option<u32> },
}

/// More of a block.
#[derive(Debug)]
pub(in crate::claude_code) enum Delta {
    Text(String),
    Thinking(String),
    /// More of the text of a tool's input.
    Input(String),
    Other,
}

/// Counts of tokens of one request.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(in crate::claude_code) struct Tokens {
    pub(in crate::claude_code) input_tokens: Option<u64>,
    pub(in crate::claude_code) output_tokens: Option<u64>,
    pub(in crate::claude_code) cache_read_input_tokens: Option<u64>,
    pub(in crate::claude_code) cache_creation_input_tokens: Option<u64>,
}

/// A block of a message.
#[derive(Debug, Deserialize)]
#[serde(from = "AnyBlock")]
pub(in crate::claude_code) enum Block {
    Text(String),
    Thinking(String),
    ToolUse {
        id: String,
        name: String,
        /// `{}` while it is streamed.
        input: Option<Box<RawValue>>,
    },
    Other,
}

#[derive(Deserialize)]
struct AnyBlock {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "lossy_option")]
    text: Option<String>,
    #[serde(default, deserialize_with = "lossy_option")]
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Box<RawValue>>,
}

impl From<AnyBlock> for Block {
    fn from(AnyBlock { kind, text, thinking, id, name, input }: AnyBlock) -> Self {
        match kind.as_str() {
            "text" => Self::Text(text.unwrap_or_default()),
            "thinking" => Self::Thinking(thinking.unwrap_or_default()),
            "tool_use" => match (id, name) {
                (Some(id), Some(name)) => Self::ToolUse { id, name, input },
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }
}

/// `assistant`: a block that is whole, or what Claude itself says in the model's place.
#[derive(Debug)]
pub(in crate::claude_code) struct Assistant {
    /// The call of the subagent that it belongs to.
    pub(in crate::claude_code) parent: Option<String>,
    /// The provider's id of the message.
    pub(in crate::claude_code) id: String,
    /// Not of the model.
    pub(in crate::claude_code) is_synthetic: bool,
    pub(in crate::claude_code) blocks: Vec<Block>,
    /// The class of an error that it tells.
    pub(in crate::claude_code) error: Option<String>,
    /// Why the provider refused to answer, where the error is that it did.
    pub(in crate::claude_code) refusal: Option<String>,
    /// Which limit cut the answer, where the error is that one did.
    pub(in crate::claude_code) cut: Option<String>,
    /// Cut short by an interrupt.
    pub(in crate::claude_code) aborted: bool,
}

/// `user`: what the model reads next.
#[derive(Debug)]
pub(in crate::claude_code) struct User {
    /// The call of the subagent that it belongs to.
    pub(in crate::claude_code) parent: Option<String>,
    /// An input that is repeated as it is read.
    pub(in crate::claude_code) is_replay: bool,
    pub(in crate::claude_code) results: Vec<ToolResult>,
    /// What the tool itself returned, where the line has one result.
    pub(in crate::claude_code) raw: Option<Box<RawValue>>,
}

/// A result of a tool.
#[derive(Debug)]
pub(in crate::claude_code) struct ToolResult {
    pub(in crate::claude_code) tool_use_id: String,
    pub(in crate::claude_code) is_error: bool,
    /// Why the tool did not run at all.
    pub(in crate::claude_code) not_run: Option<String>,
    content: Option<Box<RawValue>>,
}

/// The content of a result: what the model reads.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::claude_code) enum Shown {
    /// One text.
    Text(String),
    /// Ordered parts.
    Parts(Vec<ShownPart>),
}

/// A part of a result.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::claude_code) enum ShownPart {
    Text(String),
    /// An image, in base64.
    Image {
        media_type: String,
        data: String,
    },
    Other,
}

impl ToolResult {
    /// The content as it came.
    pub(in crate::claude_code) fn content(&self) -> Option<&RawValue> {
        self.content.as_deref()
    }

    /// The content; read only where somebody looks at it, since it may be large.
    ///
    /// # Errors
    /// When it is none.
    pub(in crate::claude_code) fn shown(&self) -> Result<Shown, serde_json::Error> {
        #[derive(Deserialize)]
        struct Part {
            #[serde(default, rename = "type")]
            kind: String,
            #[serde(default, deserialize_with = "lossy_option")]
            text: Option<String>,
            source: Option<Source>,
        }
        #[derive(Deserialize)]
        struct Source {
            media_type: Option<String>,
            data: Option<String>,
        }
        let Some(content) = &self.content else { return Ok(Shown::Parts(Vec::new())) };
        if content.get().starts_with('"') {
            return lossy(&mut serde_json::Deserializer::from_str(content.get())).map(Shown::Text);
        }
        let parts: Vec<Part> = serde_json::from_str(content.get())?;
        let part = |part: Part| match (part.kind.as_str(), part.text, part.source) {
            ("text", Some(text), _) => ShownPart::Text(text),
            ("image", _, Some(Source { media_type: Some(media_type), data: Some(data) })) => {
                ShownPart::Image { media_type, data }
            }
            _ => ShownPart::Other,
        };
        Ok(Shown::Parts(parts.into_iter().map(part).collect()))
    }
}

/// Reads `stream_event`; `None` for an event that nobody acts upon.
pub(super) fn stream(envelope: &Envelope<'_>) -> Result<Option<Stream>, serde_json::Error> {
    #[derive(Deserialize)]
    struct AnyEvent<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
        #[serde(default)]
        index: u32,
        message: Option<MessageId>,
        content_block: Option<Block>,
        #[serde(borrow)]
        delta: Option<&'a RawValue>,
        usage: Option<Tokens>,
    }
    #[derive(Deserialize)]
    struct MessageId {
        id: String,
    }
    #[derive(Deserialize)]
    struct Stop {
        stop_reason: Option<String>,
    }
    #[derive(Deserialize)]
    struct Abandoned {
        #[serde(default)]
        from_block_index: u32,
    }
    let AnyEvent { kind, index, message, content_block, delta, usage } =
        serde_json::from_str(envelope.event.map_or("null", RawValue::get))?;
    let event = match &*kind {
        "message_start" => match message {
            Some(MessageId { id }) => Event::MessageStart { id },
            None => return Ok(None),
        },
        "content_block_start" => Event::BlockStart { index, block: content_block.unwrap_or(Block::Other) },
        "content_block_delta" => Event::BlockDelta { index, delta: self::delta(delta)? },
        "content_block_stop" => Event::BlockStop { index },
        "message_delta" => {
            let Stop { stop_reason } = typed(delta)?;
            Event::MessageDelta { stop_reason, usage }
        }
        "message_stop" => {
            let abandoned = envelope.abandoned_blocks.map(|raw| serde_json::from_str::<Abandoned>(raw.get()));
            Event::MessageStop { abandoned_from: abandoned.transpose()?.map(|abandoned| abandoned.from_block_index) }
        }
        _ => return Ok(None),
    };
    Ok(Some(Stream { parent: parent(envelope), event }))
}

fn delta(raw: Option<&RawValue>) -> Result<Delta, serde_json::Error> {
    #[derive(Deserialize)]
    struct AnyDelta {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default, deserialize_with = "lossy_option")]
        text: Option<String>,
        #[serde(default, deserialize_with = "lossy_option")]
        thinking: Option<String>,
        #[serde(default, deserialize_with = "lossy_option")]
        partial_json: Option<String>,
    }
    let AnyDelta { kind, text, thinking, partial_json } = typed(raw)?;
    Ok(match kind.as_str() {
        "text_delta" => Delta::Text(text.unwrap_or_default()),
        "thinking_delta" => Delta::Thinking(thinking.unwrap_or_default()),
        "input_json_delta" => Delta::Input(partial_json.unwrap_or_default()),
        _ => Delta::Other,
    })
}

pub(super) fn assistant(envelope: &Envelope<'_>) -> Result<Assistant, serde_json::Error> {
    #[derive(Deserialize)]
    struct Message {
        id: String,
        #[serde(default)]
        model: String,
        #[serde(default)]
        content: Vec<Block>,
        stop_details: Option<Details>,
    }
    #[derive(Deserialize)]
    struct Details {
        category: Option<String>,
    }
    #[derive(Deserialize)]
    struct Params {
        cut: Option<String>,
    }
    let Message { id, model, content, stop_details } = typed(envelope.message)?;
    let params = envelope.api_error_params.and_then(|params| serde_json::from_str::<Params>(params.get()).ok());
    Ok(Assistant {
        parent: parent(envelope),
        id,
        is_synthetic: model == SYNTHETIC,
        blocks: content,
        error: envelope.error.and_then(|error| serde_json::from_str(error.get()).ok()),
        refusal: stop_details.and_then(|details| details.category),
        cut: params.and_then(|params| params.cut),
        aborted: envelope.aborted,
    })
}

pub(super) fn user(envelope: &Envelope<'_>) -> Result<User, serde_json::Error> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        content: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Part {
        #[serde(default, rename = "type")]
        kind: String,
        tool_use_id: Option<String>,
        is_error: Option<bool>,
        content: Option<Box<RawValue>>,
    }
    #[derive(Deserialize)]
    struct Meta {
        id: Option<String>,
        non_execution_kind: Option<String>,
    }
    let Message { content } = serde_json::from_str(envelope.message.map_or("null", RawValue::get))?;
    // A text of its own is no result.
    let parts: Vec<Part> = match content {
        Some(content) if content.get().starts_with('[') => serde_json::from_str(content.get())?,
        _ => Vec::new(),
    };
    let meta: Vec<Meta> =
        envelope.tool_result_meta.and_then(|meta| serde_json::from_str(meta.get()).ok()).unwrap_or_default();
    let not_run = |id: &str| {
        let meta = meta.iter().find(|meta| meta.id.as_deref() == Some(id));
        meta.and_then(|meta| meta.non_execution_kind.clone())
    };
    let result = |part: Part| {
        let tool_use_id = part.tool_use_id.filter(|_| part.kind == "tool_result")?;
        let not_run = not_run(&tool_use_id);
        Some(ToolResult { tool_use_id, is_error: part.is_error.unwrap_or(false), not_run, content: part.content })
    };
    let results: Vec<ToolResult> = parts.into_iter().filter_map(result).collect();
    let raw = envelope.tool_use_result.filter(|_| results.len() == 1).map(ToOwned::to_owned);
    Ok(User { parent: parent(envelope), is_replay: envelope.is_replay, results, raw })
}

fn parent(envelope: &Envelope<'_>) -> Option<String> {
    envelope.parent_tool_use_id.as_deref().map(ToOwned::to_owned)
}
