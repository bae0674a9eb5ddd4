//! The configuration file, in TOML. Unknown keys are refused.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use adapters::{
    acp::{Configured, Known},
    harness::{ModelProtocol, ModelProvider, TokenLimits},
};
use serde::Deserialize;

use super::{
    AskedLoopback, Error, Limits, LogFormat, Provider, Settings, isolation_of, listen, origins, places, secret, value,
};
use crate::gateway::StreamLimits;

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    state: Option<PathBuf>,
    socket: Option<PathBuf>,
    allowed_uids: Option<Vec<u32>>,
    operator_uids: Option<Vec<u32>>,
    refuse_tools: Option<bool>,
    harness_user: Option<String>,
    #[serde(default)]
    workspace_roots: Vec<PathBuf>,
    isolation: Option<String>,
    trust_workspace: Option<bool>,
    keeper: Option<PathBuf>,
    log: Option<String>,
    log_format: Option<String>,
    #[serde(default)]
    loopback: AskedLoopback,
    #[serde(default)]
    listen: Vec<listen::Asked>,
    max_executors: Option<u32>,
    gateway: Option<bool>,
    #[serde(default)]
    allow_origins: Vec<String>,
    guard_environment: Option<bool>,
    #[serde(default)]
    codex: Program,
    #[serde(default)]
    claude_code: Program,
    #[serde(default)]
    minimax_code: Program,
    #[serde(default)]
    harness: HarnessEntries,
    #[serde(default)]
    providers: BTreeMap<String, ProviderEntry>,
    #[serde(default)]
    limits: LimitEntries,
}

/// What is said of one Harness.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    program: Option<PathBuf>,
}

/// Harnesses that the operator names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HarnessEntries {
    /// Agents that speak the Agent Client Protocol, by the kinds that they are to have.
    #[serde(default)]
    acp: BTreeMap<String, AgentEntry>,
}

/// What is said of one agent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentEntry {
    command: Vec<String>,
    profile: Option<String>,
    #[serde(default)]
    protocols: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
}

impl AgentEntry {
    fn settle(self, name: String) -> Result<Configured, Error> {
        let key = |field: &str| match field {
            "" => format!("harness.acp.{name}"),
            field => format!("harness.acp.{name}.{field}"),
        };
        let profile = match self.profile.as_deref() {
            None => Known::Generic,
            Some(profile) => Known::named(profile)
                .ok_or_else(|| value(&key("profile"), "it is `generic` or `opencode`; without it, `generic`"))?,
        };
        let protocol = |(index, text): (usize, &String)| {
            protocol_of(text).ok_or_else(|| value(&key(&format!("protocols[{index}]")), PROTOCOLS))
        };
        let protocols = self.protocols.iter().enumerate().map(protocol).collect::<Result<_, _>>()?;
        let AgentEntry { command, environment, files, .. } = self;
        let agent = Configured { name: name.clone(), command, profile, protocols, environment, files };
        agent.check().map_err(|error| value(&key(&error.field), error.message))?;
        Ok(agent)
    }
}

/// Which protocols of model providers there are, for a person.
const PROTOCOLS: &str = "it is `responses`, `messages` or `chat_completions`";

fn protocol_of(text: &str) -> Option<ModelProtocol> {
    match text {
        "responses" => Some(ModelProtocol::Responses),
        "messages" => Some(ModelProtocol::Messages),
        "chat_completions" => Some(ModelProtocol::ChatCompletions),
        _ => None,
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderEntry {
    protocol: String,
    base_url: String,
    token_limits: Option<TokenEntry>,
    key_file: Option<PathBuf>,
}

/// How many tokens a model takes and gives.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    context: u64,
    output: u64,
}

impl TokenEntry {
    fn settle(self, key: &str) -> Result<TokenLimits, Error> {
        TokenLimits::of(self.context, self.output).ok_or_else(|| value(key, TokenLimits::RANGE))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitEntries {
    handle_life_ms: Option<u64>,
    result_evidence_ms: Option<u64>,
    input_write_ms: Option<u64>,
    keep_alive_ms: Option<u64>,
    harness_probe_ms: Option<u64>,
    harness_start_ms: Option<u64>,
    interrupt_ms: Option<u64>,
    settlement_ms: Option<u64>,
    drain_timeout_ms: Option<u64>,
    idle_ms: Option<u64>,
    watch_ms: Option<u64>,
    max_line_bytes: Option<usize>,
    spool_bytes: Option<usize>,
    quiet_ms: Option<u64>,
    retry_ms: Option<u64>,
    observer_ms: Option<u64>,
    turn_memory_bytes: Option<usize>,
    turn_log_bytes: Option<usize>,
    turn_held_bytes: Option<usize>,
    unstored_call_ms: Option<u64>,
    retention_ms: Option<u64>,
    retention_check_ms: Option<u64>,
    state_bytes: Option<usize>,
    connect_address_ms: Option<u64>,
    connect_ms: Option<u64>,
    stream_bytes: Option<usize>,
    stream_events: Option<u64>,
    stream_event_bytes: Option<usize>,
    stream_blocks: Option<u64>,
    stream_calls: Option<u64>,
    stream_argument_bytes: Option<usize>,
    stream_first_byte_ms: Option<u64>,
    mcp_bytes: Option<usize>,
    mcp_start_ms: Option<u64>,
    functions_listed_ms: Option<u64>,
    handshake_ms: Option<u64>,
    opening_ms: Option<u64>,
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<File, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<File, Error> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| {
            1 + text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count()
        });
        // An error of a type tells what it found and not where; the key stands on the line, and a value is never repeated from there.
        let key = text.lines().nth(line - 1).and_then(|line| line.split_once('=')).map_or("", |(key, _)| key.trim());
        let at = if key.is_empty() || error.message().contains(key) { String::new() } else { format!(", `{key}`") };
        Error::Parse { path: path.to_owned(), text: format!("line {line}{at}: {}", error.message()) }
    })
}

impl File {
    /// The settings that the file and the defaults make.
    pub(super) fn settle(self, path: &Path) -> Result<Settings, Error> {
        if self.max_executors == Some(0) {
            return Err(value("max_executors", "it is at least 1"));
        }
        let beside = |other: PathBuf| path.parent().map_or_else(|| other.clone(), |folder| folder.join(&other));
        let mut providers = BTreeMap::new();
        for (name, entry) in self.providers {
            let key = |member: &str| format!("providers.{name}.{member}");
            let protocol = protocol_of(&entry.protocol).ok_or_else(|| value(&key("protocol"), PROTOCOLS))?;
            crate::service::base_url(&entry.base_url).map_err(|text| value(&key("base_url"), text))?;
            let secret = entry.key_file.map(|file| secret(&beside(file), &key("key_file"))).transpose()?;
            let token_limits = entry.token_limits.map(|limits| limits.settle(&key("token_limits"))).transpose()?;
            let provider = ModelProvider { protocol, base_url: entry.base_url, token_limits };
            providers.insert(name, Provider { provider, key: secret });
        }
        let agents = self.harness.acp.into_iter().map(|(name, entry)| entry.settle(name)).collect::<Result<_, _>>()?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let listen = self.listen.into_iter().enumerate();
        let listen = listen.map(|(index, asked)| asked.settle(index, folder)).collect::<Result<_, _>>()?;
        Ok(Settings {
            state: self.state.unwrap_or_else(places::state),
            socket: self.socket.unwrap_or_else(places::socket),
            allowed_uids: self.allowed_uids.unwrap_or_else(|| vec![places::uid()]),
            operator_uids: self.operator_uids.unwrap_or_else(|| vec![places::uid()]),
            refuse_tools: self.refuse_tools.unwrap_or(true),
            harness_user: self.harness_user,
            workspace_roots: self.workspace_roots,
            isolation: self.isolation.as_deref().map(isolation_of).transpose()?,
            trust_workspace: self.trust_workspace,
            keeper: self.keeper,
            log: self.log.unwrap_or_else(|| "info".into()),
            log_format: self.log_format.as_deref().map(LogFormat::parse).transpose()?,
            loopback: self.loopback.beside(folder),
            listen,
            max_executors: self.max_executors,
            codex: self.codex.program,
            claude_code: self.claude_code.program,
            minimax_code: self.minimax_code.program,
            agents,
            providers,
            gateway: self.gateway.unwrap_or(true),
            allow_origins: origins(&self.allow_origins)?,
            guard_environment: self.guard_environment.unwrap_or(false),
            limits: self.limits.settle()?,
        })
    }
}

impl LimitEntries {
    fn settle(self) -> Result<Limits, Error> {
        let usual = Limits::default();
        let time = |key: &str, given: Option<u64>, usual: Duration| match given {
            Some(0) => Err(value(&format!("limits.{key}"), "it is at least 1")),
            Some(millis) => Ok(Duration::from_millis(millis)),
            None => Ok(usual),
        };
        let size = |key: &str, given: Option<usize>, usual: usize| match given {
            Some(bytes) if bytes < 1024 => Err(value(&format!("limits.{key}"), "it is at least 1024")),
            Some(bytes) => Ok(bytes),
            None => Ok(usual),
        };
        let wide = |key: &str, given: Option<usize>, usual: u64| match given {
            Some(_) => size(key, given, 0).map(|bytes| bytes as u64),
            None => Ok(usual),
        };
        let count = |key: &str, given: Option<u64>, usual: u64| match given {
            Some(0) => Err(value(&format!("limits.{key}"), "it is at least 1")),
            Some(number) => Ok(number),
            None => Ok(usual),
        };
        Ok(Limits {
            handle_life: time("handle_life_ms", self.handle_life_ms, usual.handle_life)?,
            result_evidence: time("result_evidence_ms", self.result_evidence_ms, usual.result_evidence)?,
            input_write: time("input_write_ms", self.input_write_ms, usual.input_write)?,
            keep_alive: time("keep_alive_ms", self.keep_alive_ms, usual.keep_alive)?,
            harness_probe: time("harness_probe_ms", self.harness_probe_ms, usual.harness_probe)?,
            interrupt: time("interrupt_ms", self.interrupt_ms, usual.interrupt)?,
            harness_start: time("harness_start_ms", self.harness_start_ms, usual.harness_start)?,
            settlement: time("settlement_ms", self.settlement_ms, usual.settlement)?,
            drain_timeout: time("drain_timeout_ms", self.drain_timeout_ms, usual.drain_timeout)?,
            idle: time("idle_ms", self.idle_ms, usual.idle)?,
            watch: time("watch_ms", self.watch_ms, usual.watch)?,
            max_line_bytes: size("max_line_bytes", self.max_line_bytes, usual.max_line_bytes)?,
            spool_bytes: size("spool_bytes", self.spool_bytes, usual.spool_bytes)?,
            quiet: time("quiet_ms", self.quiet_ms, usual.quiet)?,
            retry: time("retry_ms", self.retry_ms, usual.retry)?,
            observer: time("observer_ms", self.observer_ms, usual.observer)?,
            turn_memory_bytes: size("turn_memory_bytes", self.turn_memory_bytes, usual.turn_memory_bytes)?,
            turn_log_bytes: size("turn_log_bytes", self.turn_log_bytes, usual.turn_log_bytes)?,
            turn_held_bytes: size("turn_held_bytes", self.turn_held_bytes, usual.turn_held_bytes)?,
            unstored_call: time("unstored_call_ms", self.unstored_call_ms, usual.unstored_call)?,
            retention: time("retention_ms", self.retention_ms, usual.retention)?,
            retention_check: time("retention_check_ms", self.retention_check_ms, usual.retention_check)?,
            state_bytes: size("state_bytes", self.state_bytes, usual.state_bytes)?,
            connect_address: time("connect_address_ms", self.connect_address_ms, usual.connect_address)?,
            connect: time("connect_ms", self.connect_ms, usual.connect)?,
            stream: StreamLimits {
                bytes: wide("stream_bytes", self.stream_bytes, usual.stream.bytes)?,
                events: count("stream_events", self.stream_events, usual.stream.events)?,
                event_bytes: wide("stream_event_bytes", self.stream_event_bytes, usual.stream.event_bytes)?,
                blocks: count("stream_blocks", self.stream_blocks, usual.stream.blocks)?,
                calls: count("stream_calls", self.stream_calls, usual.stream.calls)?,
                argument_bytes: wide("stream_argument_bytes", self.stream_argument_bytes, usual.stream.argument_bytes)?,
                first_byte: time("stream_first_byte_ms", self.stream_first_byte_ms, usual.stream.first_byte)?,
            },
            mcp_bytes: wide("mcp_bytes", self.mcp_bytes, usual.mcp_bytes)?,
            mcp_start: time("mcp_start_ms", self.mcp_start_ms, usual.mcp_start)?,
            functions_listed: time("functions_listed_ms", self.functions_listed_ms, usual.functions_listed)?,
            handshake: time("handshake_ms", self.handshake_ms, usual.handshake)?,
            opening: time("opening_ms", self.opening_ms, usual.opening)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, want: &[&str]) {
        let path = Path::new("config.toml");
        let error = parse(path, text).and_then(|file| file.settle(path)).unwrap_err().to_string();
        for part in want {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_wrong_key_or_value_is_named() {
        refused("stat = 'x'", &["line 1", "stat", "expected one of", "socket"]);
        refused("isolation = 'maybe'", &["isolation", "`outer` or `native`"]);
        refused("max_executors = 0", &["max_executors", "at least 1"]);
        refused("log_format = 'xml'", &["log_format", "`json` or `text`"]);
        refused("[loopback]\nport = 1", &["line 2", "port", "bearer_file"]);
        refused("[[listen]]\naddress = '0.0.0.0:1'", &["line 1", "certificate"]);
        refused("allow_origins = ['https://h', 'https://h/v1']", &["allow_origins[1]", "without a path"]);
        refused("[limits]\nkeep_alive_ms = 0", &["limits.keep_alive_ms"]);
        refused("[limits]\nkeep_alive = 1", &["line 2", "keep_alive"]);
        refused("[providers.p]\nprotocol='chat'\nbase_url='http://x'", &["providers.p.protocol", "`messages`"]);
        for limits in ["{context=8,output=9}", "{context=8,output=0}"] {
            let text = format!("[providers.p]\nprotocol='messages'\nbase_url='http://x'\ntoken_limits={limits}");
            refused(&text, &["providers.p.token_limits", TokenLimits::RANGE]);
        }
        refused(
            "[providers.p]\nprotocol='messages'\nbase_url='http://x'\ntoken_limits={context=8}",
            &["line 4", "token_limits", "output"],
        );
        for (agent, want) in [
            ("[harness.acp.Big]\ncommand = ['a']", "harness.acp.Big"),
            ("[harness.acp.codex]\ncommand = ['a']", "built in"),
            ("[harness.acp.a]\ncommand = []", "harness.acp.a.command"),
            ("[harness.acp.a]\ncommand = ['a']\nprofile = 'x'", "`generic` or `opencode`"),
            ("[harness.acp.a]\ncommand = ['a']\nprotocols = ['chat']", "harness.acp.a.protocols[0]"),
            ("[harness.acp.a]\ncommand = ['a']\nenvironment.K = '{kei}'", "harness.acp.a.environment.K"),
            ("[harness.acp.a]\nprogram = 'a'", "line 2"),
            ("[harness.a]\ncommand = ['a']", "line 1"),
        ] {
            refused(agent, &[want]);
        }
        refused("[minimax_code]\ncommand = 'x'", &["line 2", "command", "program"]);
        refused(
            "[providers.p]\nprotocol='responses'\nbase_url='http://a:b@x'",
            &["providers.p.base_url", "credentials"],
        );
        refused("= 3", &["config.toml", "line 1"]);
    }

    #[test]
    fn a_file_stands_over_the_defaults_and_an_empty_one_changes_nothing() {
        let path = Path::new("config.toml");
        let file = parse(
            path,
            "state = '/s'\ncodex.program = '/c'\nclaude_code.program = '/d'\nminimax_code.program = '/e'\n[limits]\nhandle_life_ms = 5\n\
             [providers.p]\nprotocol = 'messages'\nbase_url = 'https://p'\n\
             [harness.acp.opencode]\ncommand = ['opencode', 'acp']\nprofile = 'opencode'\n\
             [providers.q]\nprotocol = 'chat_completions'\nbase_url = 'https://q/v1'\n\
             token_limits = { context = 64000, output = 4096 }",
        )
        .unwrap();
        let settings = file.settle(path).unwrap();
        assert_eq!(settings.state, Path::new("/s"));
        assert_eq!(settings.codex.as_deref(), Some(Path::new("/c")));
        assert_eq!(settings.claude_code.as_deref(), Some(Path::new("/d")));
        assert_eq!(settings.minimax_code.as_deref(), Some(Path::new("/e")));
        let agents: Vec<_> = settings.agents.iter().map(|agent| (&*agent.name, agent.profile)).collect();
        assert_eq!(agents, [("opencode", Known::Opencode)]);
        let of = |name: &str| &settings.providers[name].provider;
        assert_eq!((of("p").protocol, of("p").token_limits), (ModelProtocol::Messages, None));
        let limits = TokenLimits::of(64_000, 4096);
        assert_eq!((of("q").protocol, of("q").token_limits), (ModelProtocol::ChatCompletions, limits));
        assert_eq!(settings.limits, Limits { handle_life: Duration::from_millis(5), ..Limits::default() });
        assert!(settings.refuse_tools && settings.gateway && settings.trust_workspace.is_none());
        let settings = parse(path, "").unwrap().settle(path).unwrap();
        assert_eq!(settings.limits, Limits::default());
    }
}
