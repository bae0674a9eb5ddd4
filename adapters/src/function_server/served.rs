//! The functions, and all that is said to the SDK. A request for one is followed by a task of its own, which outlives whatever the SDK drops.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelledNotificationParam, ContentBlock,
        Implementation, JsonObject, ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities,
        ServerConfig, Tool,
    },
    service::{NotificationContext, RequestContext},
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time,
};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::{
    Answer, Gone, Happening, Open,
    door::{Exchange, session},
    sessions::Sessions,
};
use crate::harness::{FunctionTool, OutputPart};

/// What the model reads where it asks for a function that is not declared.
const UNDECLARED: &str = "No function of this name is declared; nothing was run.";

/// How long the reason of a request that was cancelled may take behind the word that it was.
const REASON: Duration = Duration::from_secs(1);

/// The functions of one server, as each of its clients sees them.
#[derive(Clone, Debug)]
pub(super) struct Served {
    shared: Arc<Shared>,
    /// The requests of one MCP session that are open: where the reason of a cancel goes.
    open: Arc<Mutex<HashMap<rmcp::model::RequestId, oneshot::Sender<Option<String>>>>>,
    /// The SDK starts tasks of its own, each of which holds one of these: who waits for the tracker waits for them.
    _running: TaskTrackerToken,
}

struct Shared {
    tools: Vec<Tool>,
    names: BTreeSet<String>,
    sessions: Sessions,
    happenings: mpsc::Sender<Happening>,
    open: Arc<Open>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Served {
    pub(super) fn new(
        functions: &[FunctionTool],
        sessions: Sessions,
        happenings: mpsc::Sender<Happening>,
        open: Arc<Open>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> io::Result<Self> {
        let tools = functions.iter().map(tool).collect::<io::Result<_>>()?;
        let names = functions.iter().map(|function| function.name.clone()).collect();
        let _running = tasks.token();
        let shared = Arc::new(Shared { tools, names, sessions, happenings, open, tasks, stop });
        Ok(Self { shared, open: Arc::default(), _running })
    }

    /// The same for another MCP session, whose ids are its own.
    pub(super) fn of_session(&self) -> Self {
        Self { open: Arc::default(), ..self.clone() }
    }

    /// A client is there that has listed the functions.
    pub(super) async fn are_listed(&self) {
        self.shared.happened(Happening::Listed).await;
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<rmcp::model::RequestId, oneshot::Sender<Option<String>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerHandler for Served {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("runtime-bridge", env!("CARGO_PKG_VERSION")))
    }

    /// The versions with sessions. There the head of an answer comes at once and comments follow until the answer does; in a later one nothing is sent before the
    /// answer, so that a client's limit for heads would end a call (R-FN-8).
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        ProtocolVersion::known_up_to(&ProtocolVersion::V_2025_11_25).into()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let parts = context.extensions.get::<http::request::Parts>();
        if let Some(id) = parts.and_then(|parts| session(&parts.headers)) {
            self.shared.sessions.listed(id);
        }
        self.shared.happened(Happening::Listed).await;
        Ok(ListToolsResult::with_all_items(self.shared.tools.clone()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !self.shared.names.contains(&*call.name) {
            return Ok(CallToolResult::error(vec![ContentBlock::text(UNDECLARED)]).into());
        }
        let parts = context.extensions.get::<http::request::Parts>();
        let Some(exchange) = parts.and_then(|parts| parts.extensions.get::<Exchange>()).cloned() else {
            return Err(ErrorData::internal_error("the request came by no connection", None));
        };
        let arguments = Value::Object(call.arguments.unwrap_or_default()).to_string();
        let (give, answer) = oneshot::channel();
        let (tell, why) = oneshot::channel();
        self.requests().insert(context.id.clone(), tell);
        let cancelled = Cancelled { token: context.ct, why };
        let asked = Asked { name: call.name.into_owned(), arguments, cancelled, exchange, give };
        let (followed, served) = (follow(Arc::clone(&self.shared), asked), self.clone());
        self.shared.tasks.spawn(async move {
            followed.await;
            served.requests().remove(&context.id);
        });
        // Nobody reads this error but a client that has given up, or one of a server that ends.
        let answer = answer.await.map_err(|_| ErrorData::internal_error("the request was ended", None))?;
        Ok(result(answer).into())
    }

    async fn on_cancelled(&self, cancelled: CancelledNotificationParam, _: NotificationContext<RoleServer>) {
        let told = cancelled.request_id.and_then(|id| self.requests().remove(&id));
        if let Some(tell) = told {
            // One that is over needs no reason.
            _ = tell.send(cancelled.reason);
        }
    }
}

impl Shared {
    /// Tells the owner, as soon as he has room. A server that ends tells nothing.
    async fn happened(&self, happening: Happening) {
        // CANCEL: what is not sent here is sent to nobody.
        let sent = self.stop.run_until_cancelled(self.happenings.send(happening)).await;
        if let Some(Err(_)) = sent {
            tracing::debug!("nobody hears what happens at a server of functions");
        }
    }
}

/// A function that a client asks for.
struct Asked {
    name: String,
    arguments: String,
    cancelled: Cancelled,
    exchange: Exchange,
    give: oneshot::Sender<Answer>,
}

/// What tells that a client has given a request up.
struct Cancelled {
    /// By its word, or because the SDK has answered.
    token: CancellationToken,
    why: oneshot::Receiver<Option<String>>,
}

impl Cancelled {
    /// Waits until the client has given up. Cancel safe.
    async fn gone(&mut self, exchange: &Exchange) -> Gone {
        tokio::select! {
            biased;
            () = self.token.cancelled() => {}
            () = exchange.dropped.cancelled() => return Gone::Dropped,
        }
        let why = time::timeout(REASON, &mut self.why).await;
        Gone::Told(why.ok().and_then(Result::ok).flatten())
    }
}

/// Sees a request through, from the question to the end of its answer.
async fn follow(shared: Arc<Shared>, asked: Asked) {
    let Asked { name, arguments, mut cancelled, exchange, give } = asked;
    // CANCEL: a place that is not taken is given back.
    let place = tokio::select! {
        biased;
        () = shared.stop.cancelled() => return,
        _ = cancelled.gone(&exchange) => return,
        place = shared.happenings.reserve() => place,
    };
    // An owner that hears nothing any more answers nothing.
    let Ok(place) = place else { return };
    let (request, answer) = shared.open.add();
    place.send(Happening::Asked { request, name, arguments });
    // ORDER: an answer that is there is given, though the request be cancelled at the same time.
    let answer = tokio::select! {
        biased;
        answer = answer => answer.map_err(|_| Gone::Dropped),
        () = shared.stop.cancelled() => Err(Gone::Dropped),
        gone = cancelled.gone(&exchange) => Err(gone),
    };
    shared.open.remove(request);
    let (given, how) = match answer {
        Ok(answer) => (give.send(answer).is_ok(), Gone::Dropped),
        Err(gone) => (false, gone),
    };
    // ORDER: what has ended was written, though it be dropped thereafter. The SDK cancels each request that it answers, so that says nothing here.
    let written = given
        && tokio::select! {
            biased;
            () = exchange.ended.cancelled() => true,
            () = shared.stop.cancelled() => false,
            () = exchange.dropped.cancelled() => false,
        };
    let happening = if written { Happening::Written { request } } else { Happening::GivenUp { request, how } };
    shared.happened(happening).await;
}

/// What a client is told of an answer. A failure is a result, so that the model reads it.
fn result(answer: Answer) -> CallToolResult {
    let content = answer.parts.into_iter().map(|part| match part {
        OutputPart::Text(text) => ContentBlock::text(text),
        OutputPart::Image(image) => ContentBlock::image(STANDARD.encode(&image.data), image.media_type.name()),
    });
    if answer.success { CallToolResult::success(content.collect()) } else { CallToolResult::error(content.collect()) }
}

/// A function as a client lists it. The SDK writes its schema with sorted keys; a number that is no 64-bit integer becomes a float.
fn tool(function: &FunctionTool) -> io::Result<Tool> {
    let schema = schema(&function.parameters).ok_or_else(|| {
        let text = format!("the parameters of the function `{}` are no schema of an object", function.name);
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })?;
    Ok(Tool::new(function.name.clone(), function.description.clone(), schema))
}

/// A schema as MCP takes it: that of an object, which says so. One that leaves the type open is narrowed to objects, which arguments are.
fn schema(parameters: &str) -> Option<JsonObject> {
    let mut schema = match serde_json::from_str(parameters).ok()? {
        Value::Object(schema) => schema,
        Value::Bool(true) => JsonObject::new(),
        Value::Bool(false) => JsonObject::from_iter([("not".to_owned(), json!({}))]),
        _ => return None,
    };
    let takes_objects = match schema.get("type") {
        None => true,
        Some(Value::String(one)) => one == "object",
        Some(Value::Array(several)) => several.iter().any(|one| one == "object"),
        Some(_) => false,
    };
    takes_objects.then(|| {
        schema.insert("type".into(), "object".into());
        schema
    })
}
