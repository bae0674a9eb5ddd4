//! The tools, and all that is said to the SDK.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use hyper::{Request, Response};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientResult, ContentBlock, ElicitRequest,
    ElicitRequestParams, JsonObject, ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities,
    ServerConfig, ServerRequest, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::Script;
use crate::provider::Signals;
use crate::rig::RED_PNG_URL;

/// The tools that every server has, in their order.
const TOOLS: [(&str, &str); 13] = [
    ("echo", "Gives the text."),
    ("environment", "Tells how the server was started."),
    ("headers", "Tells the headers of the request."),
    ("picture", "Gives an image."),
    ("structured", "Gives a structured result."),
    ("failing", "Fails."),
    ("broken", "Breaks the protocol off."),
    ("slow", "Waits."),
    ("large", "Gives a long text."),
    ("grow", "Adds a tool."),
    ("ask", "Asks the user."),
    ("erase", "Destroys something."),
    ("die", "Ends the server."),
];

/// Where a call of `slow` waits.
#[derive(Debug, Clone)]
enum Slow {
    Signals(Arc<Signals>),
    Socket(Option<PathBuf>),
}

/// One server, as one client sees it.
#[derive(Debug, Clone)]
struct Tools {
    more: Arc<Mutex<Vec<String>>>,
    page: usize,
    sessions: bool,
    slow: Slow,
}

/// The SDK's side of HTTP.
pub(super) struct Http(StreamableHttpService<Tools, LocalSessionManager>);

/// The body of one of its answers.
pub(super) type Answer = BoxBody<Bytes, Infallible>;

impl Http {
    pub(super) fn new(script: &Script, signals: Arc<Signals>, stop: CancellationToken) -> Self {
        let mut sessions = LocalSessionManager::default();
        // A silent client is no reason to end a session, and neither is a slow one.
        sessions.session_config.keep_alive = None;
        sessions.session_config.init_timeout = None;
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stop)
            .with_legacy_session_mode(!script.json)
            .with_json_response(script.json);
        let tools = Tools {
            more: Arc::new(Mutex::new(script.more.clone())),
            page: script.page.unwrap_or(usize::MAX),
            sessions: script.sessions,
            slow: Slow::Signals(signals),
        };
        Self(StreamableHttpService::new(move || Ok(tools.clone()), Arc::new(sessions), config))
    }

    pub(super) async fn handle(&self, request: Request<Full<Bytes>>) -> Response<Answer> {
        self.0.handle(request).await
    }
}

/// Serves over standard input and output until the former ends.
pub(super) async fn serve_stdio(more: Vec<String>, gate: Option<PathBuf>) -> anyhow::Result<()> {
    let slow = Slow::Socket(gate);
    let tools = Tools { more: Arc::new(Mutex::new(more)), page: usize::MAX, sessions: false, slow };
    let running = tools.serve((tokio::io::stdin(), tokio::io::stdout())).await.context("greet the client")?;
    running.waiting().await.context("serve the client")?;
    Ok(())
}

/// How this process was started.
pub(super) fn environment() -> Value {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let env: BTreeMap<_, _> = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
    json!({
        "argv": std::env::args_os().map(text).collect::<Vec<_>>(),
        "cwd": std::env::current_dir().unwrap_or_default(),
        "env": env,
        "pid": std::process::id(),
    })
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
    }

    fn supported_protocol_versions(&self) -> std::borrow::Cow<'static, [ProtocolVersion]> {
        if self.sessions {
            ProtocolVersion::known_up_to(&ProtocolVersion::V_2025_11_25).into()
        } else {
            ProtocolVersion::KNOWN_VERSIONS.into()
        }
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let from = request.and_then(|request| request.cursor).map_or(Ok(0), |cursor| cursor.parse::<usize>());
        let from = from.map_err(|_| ErrorData::invalid_params("no such page", None))?;
        let all = self.all();
        let to = from.saturating_add(self.page).min(all.len());
        let page = all.get(from..to).unwrap_or_default().to_vec();
        let next_cursor = (to < all.len()).then(|| to.to_string());
        Ok(ListToolsResult { next_cursor, ..ListToolsResult::with_all_items(page) })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let argument = || arguments["text"].as_str().unwrap_or_default().to_owned();
        let text = match &*request.name {
            "environment" => environment().to_string(),
            "headers" => headers(&context),
            "picture" => {
                let data = RED_PNG_URL.rsplit(',').next().unwrap_or_default();
                return Ok(CallToolResult::success(vec![ContentBlock::image(data, "image/png")]).into());
            }
            "structured" => {
                return Ok(
                    CallToolResult::structured(json!({"city": "Bern", "degrees": -3.5, "text": argument()})).into()
                );
            }
            "failing" => return Ok(CallToolResult::error(vec![ContentBlock::text("it does not work")]).into()),
            "broken" => return Err(ErrorData::internal_error("it breaks the protocol off", None)),
            "slow" => {
                self.wait(&context).await?;
                "released".into()
            }
            "large" => {
                "x".repeat(arguments["bytes"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or_default())
            }
            "grow" => {
                self.more.lock().unwrap_or_else(PoisonError::into_inner).push("late".into());
                match context.peer.notify_tool_list_changed().await {
                    Ok(()) => "grown".into(),
                    Err(error) => format!("grown, and nobody was told: {error}"),
                }
            }
            "ask" => ask(&context).await,
            "erase" => "erased".into(),
            // Over HTTP it would end the test.
            "die" if matches!(self.slow, Slow::Socket(_)) => std::process::exit(1),
            name if self.all().iter().any(|tool| tool.name == name) => argument(),
            name => return Err(ErrorData::invalid_params(format!("no tool {name}"), None)),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

impl Tools {
    fn all(&self) -> Vec<Tool> {
        let more = self.more.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let own = TOOLS.iter().map(|(name, description)| tool((*name).into(), description));
        own.chain(more.into_iter().map(|name| tool(name, "Gives the text."))).collect()
    }

    /// Waits until a test lets a call go on, or the client takes it back.
    async fn wait(&self, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let released = async {
            match &self.slow {
                Slow::Signals(signals) => {
                    signals.mark("slow");
                    signals.opened("slow").await;
                }
                Slow::Socket(None) => std::future::pending().await,
                Slow::Socket(Some(path)) => {
                    let mut stream = UnixStream::connect(path).await?;
                    // Nobody writes: what comes is the end.
                    stream.read_to_end(&mut Vec::new()).await?;
                }
            }
            std::io::Result::Ok(())
        };
        tokio::select! {
            released = released => released.map_err(|error| ErrorData::internal_error(error.to_string(), None)),
            () = context.ct.cancelled() => {
                if let Slow::Signals(signals) = &self.slow {
                    signals.mark("cancelled");
                }
                Err(ErrorData::internal_error("it was cancelled", None))
            }
        }
    }
}

fn tool(name: String, description: &'static str) -> Tool {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}, "bytes": {"type": "integer"}}});
    let schema: JsonObject = if let Value::Object(schema) = schema { schema } else { JsonObject::new() };
    let erases = name == "erase";
    Tool::new(name, description, schema).with_annotations(ToolAnnotations::new().read_only(!erases).destructive(erases))
}

/// The headers of the request that carries a call.
fn headers(context: &RequestContext<RoleServer>) -> String {
    let parts = context.extensions.get::<hyper::http::request::Parts>();
    let headers = parts.iter().flat_map(|parts| &parts.headers);
    let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: BTreeMap<_, _> = headers.map(|(name, value)| (name.as_str(), text(value))).collect();
    json!(headers).to_string()
}

/// Asks the user of a client for a name, and tells what came of it.
async fn ask(context: &RequestContext<RoleServer>) -> String {
    let asked = json!({
        "mode": "form",
        "message": "What is your name?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    });
    let params: ElicitRequestParams = match serde_json::from_value(asked) {
        Ok(params) => params,
        Err(error) => return error.to_string(),
    };
    match context.peer.send_request(ServerRequest::ElicitRequest(ElicitRequest::new(params))).await {
        Ok(ClientResult::ElicitResult(result)) => {
            json!(result.action).as_str().unwrap_or("an unknown action").to_owned()
        }
        Ok(other) => format!("another answer: {other:?}"),
        Err(error) => format!("no answer: {error}"),
    }
}
