//! Content identity: SHA-256 over decoded fields, texts byte by byte; absent, null and empty differ (R-API-6).

use std::time::Duration;

use adapters::harness::{
    Configuration, ContextSize, Controls, Disposition, FunctionOutput, FunctionResult, FunctionTool, Image, InputPart,
    Location, McpOrigin, McpServer, McpTransport, ModelProtocol, ModelProvider, OutputPart, Placement, Presence,
    TextVerbosity, WebSearch, WebSearchMode,
};
use sha2::{Digest as _, Sha256};

use crate::turn::calls::Digest;

/// Digest of a Session's configuration.
pub(crate) fn configuration(of: &Configuration) -> Digest {
    let mut sum = Sum::new("configuration");
    sum.text(&of.harness);
    match &of.placement {
        Placement::None => sum.tag(0),
        Placement::Workspace { environment_id, directory } => {
            sum.tag(1);
            sum.text(environment_id);
            sum.bytes(directory.as_os_str().as_encoded_bytes());
        }
    }
    sum.text(&of.model);
    sum.text(&of.instructions);
    provider(&of.provider, &mut sum);
    sum.text(&of.harness_config);
    functions(&of.functions, &mut sum);
    tool_search(of, &mut sum);
    controls(&of.controls, &mut sum);
    mcp_servers(&of.mcp_servers, &mut sum);
    sum.end()
}

/// A configuration without controls has the digest that it had before there were any.
fn controls(of: &Controls, sum: &mut Sum) {
    if let Some(schema) = &of.output_schema {
        sum.tag(1);
        sum.text(schema);
    }
    if let Some(search) = &of.web_search {
        web_search(search, sum);
    }
    if of.strict_calls {
        sum.tag(3);
    }
    if let Some(most) = of.max_function_calls {
        sum.tag(4);
        sum.bytes(&most.to_le_bytes());
    }
    if let Some(enabled) = of.programmatic_tool_calling {
        sum.tag(5);
        sum.tag(u8::from(enabled));
    }
    if let Some(verbosity) = of.text_verbosity {
        sum.tag(6);
        sum.tag(match verbosity {
            TextVerbosity::Low => 1,
            TextVerbosity::Medium => 2,
            TextVerbosity::High => 3,
        });
    }
    for (kind, value) in [(7, &of.reasoning_effort), (8, &of.reasoning_summary), (9, &of.service_tier)] {
        if let Some(value) = value {
            sum.tag(kind);
            sum.text(value);
        }
    }
}

/// A mode without settings has the digest that it had before there were any.
fn web_search(of: &WebSearch, sum: &mut Sum) {
    let WebSearch { mode, context_size, allowed_domains, location } = of;
    sum.tag(2);
    sum.tag(match mode {
        WebSearchMode::Disabled => 1,
        WebSearchMode::Cached => 2,
        WebSearchMode::Live => 3,
    });
    if let Some(size) = context_size {
        sum.tag(10);
        sum.tag(match size {
            ContextSize::Low => 1,
            ContextSize::Medium => 2,
            ContextSize::High => 3,
        });
    }
    if let Some(domains) = allowed_domains {
        sum.tag(11);
        sum.texts(domains);
    }
    if let Some(Location { city, country, region, timezone }) = location {
        sum.tag(12);
        for part in [city, country, region, timezone] {
            sum.optional(part.as_deref());
        }
    }
}

/// A configuration without MCP servers has the digest that it had before there were any.
fn mcp_servers(of: &[McpServer], sum: &mut Sum) {
    for McpServer { label, transport, origin, allowed_tools, required } in of {
        sum.tag(20);
        sum.text(label);
        match transport {
            McpTransport::Http { url, headers, bearer } => {
                sum.tag(1);
                sum.text(url);
                sum.count(headers.len());
                for (name, value) in headers {
                    sum.text(name);
                    sum.text(value);
                }
                sum.tag(u8::from(*bearer));
            }
            McpTransport::Stdio { command, args, cwd, env_vars } => {
                sum.tag(2);
                sum.text(command);
                sum.texts(args);
                sum.text(cwd);
                sum.texts(env_vars);
            }
        }
        sum.tag(match origin {
            McpOrigin::Service => 1,
            McpOrigin::Environment => 2,
        });
        match allowed_tools {
            None => sum.tag(0),
            Some(names) => {
                sum.tag(1);
                sum.texts(names);
            }
        }
        sum.tag(u8::from(*required));
    }
}

/// A configuration without a search for functions has the digest that it had before there was one.
fn tool_search(of: &Configuration, sum: &mut Sum) {
    for (index, _) in of.functions.iter().enumerate().filter(|(_, function)| function.defer_loading) {
        sum.tag(3);
        sum.count(index);
    }
    if of.tool_search {
        sum.tag(4);
    }
}

fn provider(of: &ModelProvider, sum: &mut Sum) {
    sum.tag(match of.protocol {
        ModelProtocol::Responses => 1,
        ModelProtocol::Messages => 2,
        ModelProtocol::ChatCompletions => 3,
    });
    sum.text(&of.base_url);
    // A provider without them has the digest that it had before there were token limits.
    if let Some(limits) = of.token_limits {
        sum.tag(5);
        sum.wide(limits.context());
        sum.wide(limits.output());
    }
}

fn functions(of: &[FunctionTool], sum: &mut Sum) {
    sum.count(of.len());
    for function in of {
        sum.text(&function.name);
        sum.text(&function.description);
        sum.text(&function.parameters);
    }
    // Functions without limits have the digest that they had before there were limits.
    for (index, function) in of.iter().enumerate() {
        for (kind, limit) in [(1, function.silence_timeout), (2, function.max_duration)] {
            if let Some(limit) = limit {
                sum.tag(kind);
                sum.count(index);
                sum.bytes(&limit.as_nanos().to_le_bytes());
            }
        }
    }
}

/// What of a configuration is frozen also on cold resume, by the names that a conflict tells. The instructions may change there (R-PRE-6), and the
/// directory is fixed by the binding.
const FROZEN: [&str; 8] = [
    "harness",
    "placement",
    "model",
    "model_provider",
    "harness_config",
    "tools.functions",
    "tools.controls",
    "tools.mcp_servers",
];

/// Digests of what is frozen, one after the other in the order of [`FROZEN`]; a later version may append others.
pub(crate) fn frozen(of: &Configuration) -> Vec<u8> {
    let one = |name: &str, fill: &dyn Fn(&mut Sum)| {
        let mut sum = Sum::new(name);
        fill(&mut sum);
        sum.end()
    };
    let digests: [Digest; FROZEN.len()] = [
        one("harness", &|sum| sum.text(&of.harness)),
        one("placement", &|sum| sum.tag(u8::from(of.placement != Placement::None))),
        one("model", &|sum| sum.text(&of.model)),
        one("model_provider", &|sum| provider(&of.provider, sum)),
        one("harness_config", &|sum| sum.text(&of.harness_config)),
        one("tools.functions", &|sum| {
            functions(&of.functions, sum);
            tool_search(of, sum);
        }),
        one("tools.controls", &|sum| controls(&of.controls, sum)),
        one("tools.mcp_servers", &|sum| mcp_servers(&of.mcp_servers, sum)),
    ];
    digests.concat()
}

/// The name of the first frozen part that differs.
pub(crate) fn conflict(frozen: &[u8], asked: &[u8]) -> Option<&'static str> {
    let parts = frozen.chunks(size_of::<Digest>()).zip(asked.chunks(size_of::<Digest>()));
    parts.zip(FROZEN).find(|((frozen, asked), _)| frozen != asked).map(|(_, name)| name)
}

/// Digest of a text of one kind.
pub(crate) fn text(kind: &str, text: &str) -> Digest {
    let mut sum = Sum::new(kind);
    sum.text(text);
    sum.end()
}

/// Digest of what a preparation asks for: the configuration, and the history that it names.
pub(crate) fn preparation(configuration: &Configuration, resume: Option<&str>) -> Digest {
    let mut sum = Sum::new("preparation");
    sum.bytes(&self::configuration(configuration));
    match resume {
        None => sum.tag(0),
        Some(native) => {
            sum.tag(1);
            sum.text(native);
        }
    }
    sum.end()
}

/// Digest of a Turn: its input and how long it may take.
pub(crate) fn turn(input: &[InputPart], max_duration: Option<Duration>) -> Digest {
    let mut sum = Sum::new("input");
    parts(input, &mut sum);
    // A Turn without a limit has the digest that it had before there were limits.
    if let Some(most) = max_duration {
        sum.tag(2);
        sum.bytes(&most.as_nanos().to_le_bytes());
    }
    sum.end()
}

/// Digest of an input that is added to a Turn.
pub(crate) fn steer(input: &[InputPart]) -> Digest {
    let mut sum = Sum::new("steer");
    parts(input, &mut sum);
    sum.end()
}

fn parts(input: &[InputPart], sum: &mut Sum) {
    sum.count(input.len());
    for part in input {
        match part {
            InputPart::Text(text) => {
                sum.tag(1);
                sum.text(text);
            }
            InputPart::Image(of) => image(of, sum),
        }
    }
}

fn image(of: &Image, sum: &mut Sum) {
    sum.tag(2);
    sum.text(of.media_type.name());
    sum.bytes(&of.data);
}

/// Digest of a function's result.
pub(crate) fn result(of: &FunctionResult) -> Digest {
    let mut sum = Sum::new("result");
    sum.tag(u8::from(of.success));
    match &of.error {
        Presence::Absent => sum.tag(0),
        Presence::Null => sum.tag(1),
        Presence::Value(text) => {
            sum.tag(2);
            sum.text(text);
        }
    }
    match &of.output {
        Presence::Absent => sum.tag(0),
        Presence::Null => sum.tag(1),
        Presence::Value(FunctionOutput::Text(text)) => {
            sum.tag(2);
            sum.text(text);
        }
        Presence::Value(FunctionOutput::Parts(parts)) => {
            sum.tag(3);
            sum.count(parts.len());
            for part in parts {
                match part {
                    OutputPart::Text(text) => {
                        sum.tag(1);
                        sum.text(text);
                    }
                    OutputPart::Image(of) => image(of, &mut sum),
                }
            }
        }
    }
    // A result without one has the digest that it had before there were dispositions.
    if let Some(disposition) = of.disposition {
        sum.tag(match disposition {
            Disposition::NotExecuted => 1,
            Disposition::OutcomeUnknown => 2,
            Disposition::ConnectionLost => 3,
            Disposition::NotConnected => 4,
            Disposition::LimitExceeded => 5,
        });
    }
    sum.end()
}

/// Name of a Session's folder: ids of Core never become path parts (R-API-9).
pub(crate) fn directory(principal: &str, session_id: &str) -> String {
    let mut sum = Sum::new("session");
    sum.text(principal);
    sum.text(session_id);
    hex(&sum.end()[..16])
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _written = write!(text, "{byte:02x}");
        text
    })
}

/// Fields with their lengths, so that no two contents look the same.
struct Sum(Sha256);

impl Sum {
    fn new(kind: &str) -> Self {
        let mut sum = Self(Sha256::new());
        sum.text(kind);
        sum
    }

    fn tag(&mut self, tag: u8) {
        self.0.update([tag]);
    }

    fn count(&mut self, count: usize) {
        self.wide(count as u64);
    }

    fn wide(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn texts(&mut self, texts: &[String]) {
        self.count(texts.len());
        texts.iter().for_each(|text| self.text(text));
    }

    fn optional(&mut self, text: Option<&str>) {
        self.tag(u8::from(text.is_some()));
        self.text(text.unwrap_or_default());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }

    fn end(self) -> Digest {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn absent_null_and_empty_are_three_contents() {
        let mut seen = HashSet::new();
        let texts = || {
            let text = |text: &str| Presence::Value(FunctionOutput::Text(text.into()));
            let parts = |texts: &[&str]| {
                Presence::Value(FunctionOutput::Parts(texts.iter().map(|t| OutputPart::Text((*t).into())).collect()))
            };
            [Presence::Absent, Presence::Null, text(""), text("a"), parts(&[]), parts(&["a"]), parts(&["", "a"])]
        };
        for success in [false, true] {
            for error in [Presence::Absent, Presence::Null, Presence::Value(String::new())] {
                for output in texts() {
                    let error = error.clone();
                    assert!(seen.insert(result(&FunctionResult { success, error, output, disposition: None })));
                }
            }
        }
        use Disposition::{ConnectionLost, NotConnected, NotExecuted, OutcomeUnknown};
        for disposition in [NotExecuted, OutcomeUnknown, ConnectionLost, NotConnected] {
            let (error, output) = (Presence::Absent, Presence::Absent);
            let given = FunctionResult { success: false, error, output, disposition: Some(disposition) };
            assert!(seen.insert(result(&given)));
        }
        assert_eq!(seen.len(), 46);
    }

    #[test]
    fn a_limit_is_content() {
        let texts = [InputPart::Text("a".to_owned())];
        let limits = [None, Some(Duration::from_secs(1)), Some(Duration::from_nanos(1_000_000_001))];
        let seen: HashSet<_> = limits.into_iter().map(|limit| turn(&texts, limit)).collect();
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn the_border_between_parts_counts() {
        let input = |texts: &[&str]| {
            turn(&texts.iter().map(|text| InputPart::Text((*text).to_owned())).collect::<Vec<_>>(), None)
        };
        assert_ne!(input(&["ab", "c"]), input(&["a", "bc"]));
        assert_ne!(directory("uid:1", "0:s"), directory("uid:10", ":s"));
        assert_eq!(directory("uid:0", "s").len(), 32);
    }

    fn configuration() -> Configuration {
        Configuration {
            harness: "codex".into(),
            placement: Placement::Workspace { environment_id: "e".into(), directory: "/w".into() },
            model: "m".into(),
            instructions: "i".into(),
            provider: ModelProvider {
                protocol: ModelProtocol::Responses,
                base_url: "https://p".into(),
                token_limits: None,
            },
            harness_config: String::new(),
            functions: vec![FunctionTool {
                name: "f".into(),
                description: "d".into(),
                parameters: "{}".into(),
                defer_loading: false,
                silence_timeout: None,
                max_duration: None,
            }],
            tool_search: false,
            mcp_servers: Vec::new(),
            controls: Controls::default(),
        }
    }

    #[track_caller]
    fn check(want: Option<&str>, change: impl FnOnce(&mut Configuration)) {
        let mut changed = configuration();
        change(&mut changed);
        assert_eq!(conflict(&frozen(&configuration()), &frozen(&changed)), want);
        assert_ne!(super::configuration(&configuration()), super::configuration(&changed));
    }

    #[test]
    fn the_first_frozen_part_that_differs_is_named() {
        check(Some("harness"), |c| c.harness.push('x'));
        check(Some("placement"), |c| c.placement = Placement::None);
        check(Some("model"), |c| c.model.push('x'));
        check(Some("model_provider"), |c| c.provider.base_url.push('x'));
        check(Some("model_provider"), |c| c.provider.protocol = ModelProtocol::Messages);
        check(Some("harness_config"), |c| c.harness_config.push_str("{}"));
        check(Some("tools.functions"), |c| c.functions.clear());
        check(Some("tools.functions"), |c| c.functions[0].parameters.push(' '));
        check(Some("tools.functions"), |c| c.functions[0].silence_timeout = Some(Duration::from_secs(1)));
        check(Some("tools.functions"), |c| c.functions[0].max_duration = Some(Duration::from_secs(1)));
        check(Some("tools.functions"), |c| c.functions[0].defer_loading = true);
        check(Some("tools.functions"), |c| c.tool_search = true);
        check(Some("tools.controls"), |c| c.controls.web_search = Some(WebSearch::of(WebSearchMode::Disabled)));
        check(Some("tools.controls"), |c| c.controls.output_schema = Some("{}".into()));
        check(Some("tools.controls"), |c| c.controls.strict_calls = true);
        check(Some("tools.controls"), |c| c.controls.max_function_calls = Some(0));
        check(Some("model"), |c| {
            c.functions.clear();
            c.model.clear();
        });
        check(None, |c| c.instructions.clear());
        check(None, |c| c.placement = Placement::Workspace { environment_id: "e".into(), directory: "/other".into() });
        assert_eq!(conflict(&frozen(&configuration()), &frozen(&configuration())), None);
    }

    #[test]
    fn what_a_later_version_freezes_is_no_conflict() {
        let (known, mut later) = (frozen(&configuration()), frozen(&configuration()));
        later.extend([7; 32]);
        assert_eq!((conflict(&known, &later), conflict(&later, &known)), (None, None));
    }

    #[test]
    fn every_mode_of_a_search_is_content() {
        let modes = [None, Some(WebSearchMode::Disabled), Some(WebSearchMode::Cached), Some(WebSearchMode::Live)];
        let digests = modes.map(|web_search| {
            let controls = Controls { web_search: web_search.map(WebSearch::of), ..Controls::default() };
            super::configuration(&Configuration { controls, ..configuration() })
        });
        assert_eq!(HashSet::from(digests).len(), modes.len());
    }

    /// Digests of an earlier version stand in journals, and are compared with those of today.
    #[test]
    fn without_controls_a_configuration_has_the_digest_that_it_had_before_there_were_any() {
        assert_eq!(
            hex(&super::configuration(&configuration())),
            "ff40f8329e6244a32c0aa09401d73ef3e6d4768b4bf312e8738c5e356c4e8903"
        );
        let (earlier, mut asked) = (frozen(&configuration()), configuration());
        asked.model.push('x');
        assert_eq!(conflict(&earlier[..6 * size_of::<Digest>()], &frozen(&asked)), Some("model"));
        assert_eq!(conflict(&earlier[..6 * size_of::<Digest>()], &earlier), None);
    }

    #[test]
    fn the_history_that_is_named_is_part_of_what_is_asked() {
        let asked = |resume| preparation(&configuration(), resume);
        assert_eq!(HashSet::from([asked(None), asked(Some("")), asked(Some("a")), asked(Some("b"))]).len(), 4);
    }
}
