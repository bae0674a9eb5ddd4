//! The mechanical part of the house rules, as tests over the source tree: who may name what, how long a file may be,
//! which calls do not exist, what every message of the protocol must explain. Reads files, runs nothing.
#![expect(clippy::unwrap_used, reason = "a tree that cannot be read is a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

// --- rooms -----------------------------------------------------------------------------------------------------------

#[test]
fn session_and_turn_name_neither_the_wire_nor_the_database() {
    let room = |path: &str| in_room(path, "bridge/src/session") || in_room(path, "bridge/src/turn");
    report(names(
        &sources(room),
        &["tonic*", "hyper*", "rusqlite", "prost*", "proto::"],
        "session and turn name no wire",
    ));
}

#[test]
fn only_the_edges_name_tonic() {
    const EDGES: &[&str] = &[
        "bridge/src/cli",
        "bridge/src/enroll",
        "bridge/src/link",
        "bridge/src/relay",
        "bridge/src/service",
        "bridge/src/telemetry",
        "conformance",
        "proto",
    ];
    let room = |path: &str| !EDGES.iter().any(|edge| in_room(path, edge));
    report(names(
        &sources(room),
        &["tonic*"],
        "only link, service, relay, enroll, telemetry, cli, proto and conformance know gRPC",
    ));
}

#[test]
fn only_the_journal_names_the_database() {
    let room = |path: &str| !in_room(path, "bridge/src/journal");
    report(names(&sources(room), &["rusqlite"], "only bridge/src/journal knows the database"));
}

#[test]
fn adapters_know_no_grpc_no_journal_and_no_command_line() {
    let banned = ["tonic*", "prost*", "clap*", "rusqlite"];
    report(names(&sources(|path| in_room(path, "adapters")), &banned, "adapters know only the Harness"));
    report(dependencies("adapters", &["tonic", "prost", "clap", "rusqlite", "proto", "bridge", "conformance"]));
}

#[test]
fn conformance_knows_nothing_but_the_protocol() {
    let banned = ["bridge::", "adapters::"];
    report(names(&sources(|path| in_room(path, "conformance")), &banned, "conformance judges any bridge"));
    report(dependencies("conformance", &["bridge", "adapters"]));
}

#[test]
fn proto_knows_none_of_ours() {
    report(dependencies("proto", &["bridge", "adapters", "conformance"]));
}

// --- files and code --------------------------------------------------------------------------------------------------

#[test]
fn a_file_is_one_idea() {
    report(sources(|_| true).iter().flat_map(|file| shape(&file.path, &file.text)).collect());
}

#[test]
fn a_pure_state_machine_has_no_runtime_and_no_clock() {
    report(sources(|_| true).iter().flat_map(|file| purity(&file.path, &file.text)).collect());
}

#[test]
fn calls_that_do_not_exist_here() {
    report(sources(|_| true).iter().flat_map(|file| banned_calls(&file.path, &file.text)).collect());
}

#[test]
fn tests_wait_for_events_and_not_for_time() {
    report(sources(|_| true).iter().flat_map(|file| sleeps(&file.path, &file.text)).collect());
}

#[test]
fn the_wall_clock_is_read_in_one_place() {
    let room = |path: &str| ["bridge/src", "adapters/src"].iter().any(|room| in_room(path, room));
    report(sources(room).iter().flat_map(|file| clocks(&file.path, &file.text)).collect());
}

#[test]
fn no_file_names_a_place_of_one_machine_or_a_registry() {
    report(tree().iter().flat_map(|file| places(&file.path, &file.text)).collect());
}

// --- protocol and contract -------------------------------------------------------------------------------------------

#[test]
fn every_part_of_the_protocol_is_explained() {
    let files: Vec<File> =
        tree().into_iter().filter(|file| file.path.starts_with("proto/") && file.path.ends_with(".proto")).collect();
    assert!(!files.is_empty(), "proto/ holds no .proto file");
    report(files.iter().flat_map(|file| unexplained(&file.path, &file.text)).collect());
}

#[test]
fn every_rule_of_the_contract_has_its_number() {
    let files: Vec<File> = tree().into_iter().filter(|file| file.path == "docs/contract.md").collect();
    assert!(!files.is_empty(), "docs/contract.md is missing");
    report(files.iter().flat_map(|file| rule_numbers(&file.path, &file.text)).collect());
}

// --- checks ----------------------------------------------------------------------------------------------------------

/// One file of the tree: its path from the root with `/`, and its text.
#[derive(Debug)]
struct File {
    path: String,
    text: String,
}

#[track_caller]
fn report(found: Vec<String>) {
    assert!(found.is_empty(), "{} finding(s)\n{}", found.len(), found.join("\n"));
}

/// A room is a folder, or the file of the same name.
fn in_room(path: &str, room: &str) -> bool {
    path.strip_prefix(room).is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
}

/// Places where code (not comments, not strings) names one of `banned`. `x*` is any name that begins with `x`; `x::` is
/// the path root `x`.
fn names(files: &[File], banned: &[&str], why: &str) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for (number, line) in (1..).zip(code(&file.text).lines()) {
            found.extend(
                banned
                    .iter()
                    .filter(|name| has_name(line, name))
                    .map(|name| format!("{}:{number}: names `{name}`: {why}", file.path)),
            );
        }
    }
    found
}

fn has_name(line: &str, name: &str) -> bool {
    let stem = name.trim_end_matches('*').trim_end_matches("::");
    line.match_indices(stem).any(|(at, _)| {
        let after = &line[at + stem.len()..];
        // A field, a method or a module inside of another path is not the crate.
        let root = !line[..at].ends_with(|c: char| is_word(c) || c == '.' || c == ':');
        let whole = !after.starts_with(is_word);
        root && match name {
            name if name.ends_with('*') => after.trim_start_matches(is_word).starts_with("::") || whole,
            name if name.ends_with("::") => whole && (after.starts_with("::") || line.trim_start().starts_with("use ")),
            _ => whole,
        }
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Dependencies of one crate that its place in the picture rules out.
fn dependencies(package: &str, banned: &[&str]) -> Vec<String> {
    let path = format!("{package}/Cargo.toml");
    banned_dependencies(&path, &fs::read_to_string(root().join(&path)).unwrap(), banned)
}

fn banned_dependencies(path: &str, text: &str, banned: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut among_dependencies = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.starts_with('[') {
            among_dependencies = line.contains("dependencies");
        }
        let key = line.split(['.', '=', ' ']).next().unwrap_or_default();
        let table = line.trim_matches(['[', ']']).rsplit('.').next().unwrap_or_default();
        if among_dependencies && banned.iter().any(|name| *name == key || (line.starts_with('[') && *name == table)) {
            found.push(format!("{path}:{number}: depends on what its room may not know: {}", line.trim()));
        }
    }
    found
}

const LONGEST: usize = 600;

fn shape(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines = text.lines().count();
    if lines > LONGEST {
        found.push(format!("{path}:{lines}: longer than {LONGEST} lines: split it by subject"));
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    if ["utils.rs", "util.rs", "helpers.rs", "common.rs", "types.rs"].contains(&name) {
        found.push(format!("{path}:1: a file is named after its subject, not after a kind of code"));
    }
    found
}

/// A file that calls itself a pure state machine in its first doc comment is held to it.
fn purity(path: &str, text: &str) -> Vec<String> {
    let head: Vec<&str> =
        text.lines().take_while(|line| line.starts_with("//!")).map(|line| line[3..].trim()).collect();
    if !head.join(" ").to_lowercase().contains("pure state machine") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in (1..).zip(code(text).lines()) {
        if has_name(line, "tokio*") || line.contains("Instant::now") || line.contains("SystemTime::now") {
            found.push(format!("{path}:{number}: a pure state machine has no runtime; time comes in with the event"));
        }
    }
    found
}

/// The one module that may spawn on the runtime itself: it ties every task to a tracker.
const SPAWNER: &str = "bridge/src/tasks.rs";

fn banned_calls(path: &str, text: &str) -> Vec<String> {
    const BANNED: &[(&str, &str)] = &[
        ("tokio::spawn(", "spawn on a TaskTracker or a JoinSet that somebody waits for"),
        ("tokio::task::spawn(", "spawn on a TaskTracker or a JoinSet that somebody waits for"),
        ("unbounded_channel", "every channel has a bound with a reason"),
        ("mpsc::unbounded", "every channel has a bound with a reason"),
        ("mpsc::channel()", "every channel has a bound with a reason"),
        ("#[allow(", "use #[expect(…, reason = \"…\")]"),
        ("#![allow(", "use #![expect(…, reason = \"…\")]"),
        ("#[ignore", "assert what happens today, with a note"),
        ("todo!(", "ship what works"),
        ("unimplemented!(", "ship what works"),
    ];
    let mut found = Vec::new();
    for (number, line) in (1..).zip(code(text).lines()) {
        let line = line.replace(char::is_whitespace, "");
        found.extend(
            BANNED
                .iter()
                .filter(|(call, _)| line.contains(call) && !(path == SPAWNER && call.ends_with("spawn(")))
                .map(|(call, instead)| format!("{path}:{number}: `{call}`: {instead}")),
        );
    }
    found
}

fn sleeps(path: &str, text: &str) -> Vec<String> {
    let all = path.contains("/tests/") || path.ends_with("/tests.rs");
    let mut inside = all;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(code(text).lines()) {
        // Test modules stand last in their file.
        inside |= line.trim_start().starts_with("#[cfg(test)]");
        let sleeps = line
            .match_indices("sleep(")
            .any(|(at, _)| !line[..at].ends_with(|c: char| is_word(c) || c == '.') && !line[..at].ends_with("fn "));
        if inside && sleeps {
            found.push(format!("{path}:{number}: a test waits for the event, not for some time"));
        }
    }
    found
}

/// The one module of the daemon that reads the wall clock. It may jump, so nothing but a stamp may depend on it.
const CLOCK: &str = "bridge/src/clock.rs";

fn clocks(path: &str, text: &str) -> Vec<String> {
    let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
    let code = code(text);
    // Test modules stand last in their file.
    let lines = (1..).zip(code.lines()).take_while(|(_, line)| !line.trim_start().starts_with("#[cfg(test)]"));
    lines
        .filter(|(_, line)| {
            path != CLOCK && !is_test && (line.contains("SystemTime::now") || line.contains("Utc::now"))
        })
        .map(|(number, _)| format!("{path}:{number}: the wall clock is read in {CLOCK} only; a limit is tokio's time"))
        .collect()
}

/// Absolute paths of one machine, and addresses of package registries. The words are put together here so that this
/// file does not hold them.
fn places(path: &str, text: &str) -> Vec<String> {
    let folders = ["home", "root", "work", "Users"].map(|folder| format!("/{folder}/"));
    let mut hosts = vec![concat!("npm", "js").to_owned(), concat!("://", "registry.").to_owned()];
    if path != "Cargo.lock" {
        hosts.push(concat!("crates", ".io").to_owned());
    }
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for folder in &folders {
            let absolute = |at: usize| !line[..at].ends_with(|c: char| is_word(c) || ".-}>)]~*/:".contains(c));
            if line.match_indices(folder.as_str()).any(|(at, _)| absolute(at)) {
                found.push(format!("{path}:{number}: names a folder of one machine (`{folder}`)"));
            }
        }
        for host in hosts.iter().filter(|host| line.contains(host.as_str())) {
            found.push(format!("{path}:{number}: names a package registry (`{host}`)"));
        }
        if path.ends_with("package-lock.json") && line.trim_start().starts_with("\"resolved\"") {
            found.push(format!("{path}:{number}: the lock holds an address"));
        }
    }
    found
}

/// Declarations of a `.proto` file without a comment directly above or beside them.
fn unexplained(path: &str, text: &str) -> Vec<String> {
    const SILENT: &[&str] = &["syntax", "package", "import", "option", "reserved", "}", "{", ")"];
    let mut found = Vec::new();
    let mut commented = false;
    let mut within = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with("//") {
            commented = !line.is_empty();
            continue;
        }
        let (statement, beside) =
            line.split_once("//").map_or((line, false), |(statement, _)| (statement.trim(), true));
        let silent = SILENT.iter().any(|word| statement.starts_with(word));
        if !within && !silent && !commented && !beside {
            found.push(format!("{path}:{number}: no comment explains `{statement}`"));
        }
        within = !statement.ends_with([';', '{', '}']);
        commented = false;
    }
    found
}

/// Every level-three heading of the contract names one rule, `R-ABC-1`, once.
fn rule_numbers(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some(heading) = line.strip_prefix("### ") else { continue };
        let rule = heading.split_whitespace().next().unwrap_or_default();
        let well_formed = match rule.split('-').collect::<Vec<_>>()[..] {
            ["R", area, index] => {
                (2..=3).contains(&area.len())
                    && area.bytes().all(|byte| byte.is_ascii_uppercase())
                    && !index.is_empty()
                    && index.bytes().all(|byte| byte.is_ascii_digit())
            }
            _ => false,
        };
        if !well_formed {
            found.push(format!("{path}:{number}: a rule's heading begins with its number (R-ABC-1), not `{heading}`"));
        } else if !seen.insert(rule.to_owned()) {
            found.push(format!("{path}:{number}: {rule} stands twice"));
        }
    }
    if seen.is_empty() {
        found.push(format!("{path}:1: no rule found"));
    }
    found
}

// --- reading ---------------------------------------------------------------------------------------------------------

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Rust sources whose path passes `room`.
fn sources(room: impl Fn(&str) -> bool) -> Vec<File> {
    tree().into_iter().filter(|file| file.path.ends_with(".rs") && room(&file.path)).collect()
}

/// Every text file of the tree, but for what is built or fetched. Names that begin with a dot are passed over too, except
/// the few that belong to the project.
fn tree() -> Vec<File> {
    const PASSED_OVER: &[&str] = &["target", "node_modules", "__pycache__"];
    const DOTTED: &[&str] = &[".ci", ".config", ".gitignore", ".npmrc"];
    let root = root();
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().unwrap();
            if PASSED_OVER.contains(&name.as_str()) || (name.starts_with('.') && !DOTTED.contains(&name.as_str())) {
                continue;
            } else if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                let path = entry.path().strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                files.push(File { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(files.iter().any(|file| file.path == "conformance/tests/tidy.rs"), "the tree was not found");
    files
}

/// The text without comments and without the insides of literals, line for line.
fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = match (at(i), at(i + 1)) {
            ('/', '/') => (i..chars.len()).find(|&k| at(k) == '\n').unwrap_or(chars.len()),
            ('/', '*') => {
                (i + 2..chars.len()).find(|&k| at(k) == '*' && at(k + 1) == '/').map_or(chars.len(), |k| k + 2)
            }
            ('r', '"' | '#')
                if i == 0 || !is_word(at(i - 1)) || (at(i - 1) == 'b' && (i == 1 || !is_word(at(i - 2)))) =>
            {
                raw_string_end(&chars, i)
            }
            ('"', _) => quoted_end(&chars, i),
            ('\'', '\\') => (i + 3..chars.len()).find(|&k| at(k) == '\'').map_or(chars.len(), |k| k + 1),
            ('\'', _) if at(i + 2) == '\'' => i + 3,
            _ => i,
        };
        if end > i {
            out.extend(chars[i..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            i = end;
        } else {
            out.push(at(i));
            i += 1;
        }
    }
    out
}

fn quoted_end(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

/// The end of `r#"…"#`, or `start` where it is a raw identifier.
fn raw_string_end(chars: &[char], start: usize) -> usize {
    let hashes = chars[start + 1..].iter().take_while(|&&c| c == '#').count();
    let open = start + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return start;
    }
    let closes =
        |k: usize| chars[k] == '"' && chars[k + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes;
    (open + 1..chars.len()).find(|&k| closes(k)).map_or(chars.len(), |k| k + 1 + hashes)
}

// --- each check can fail ---------------------------------------------------------------------------------------------

#[track_caller]
fn finds(found: &[String], want: &[&str]) {
    assert_eq!(found.len(), want.len(), "{found:?}");
    for (found, want) in found.iter().zip(want) {
        assert!(found.starts_with(want), "{found} does not begin with {want}");
    }
}

fn file(text: &str) -> File {
    File { path: "x.rs".into(), text: text.into() }
}

#[test]
fn names_are_found_in_code_only() {
    let bad =
        file("// tonic::Status\nuse tonic::Status;\nlet s = \"tonic::Status\";\nuse tonic_types::ErrorDetails;\n");
    finds(&names(&[bad], &["tonic*"], "why"), &["x.rs:2: names `tonic*`", "x.rs:4"]);
    let bad = file("use proto::v1;\nuse crate::service::from_proto::turn;\nfn f(proto: u8) {}\nuse proto;\n");
    finds(&names(&[bad], &["proto::"], "why"), &["x.rs:1", "x.rs:4"]);
    let good = file("let rusqlite_like = 1;\nself.rusqlite();\nhyperbolic();\n/* use rusqlite; */\n");
    finds(&names(&[good], &["rusqlite"], "why"), &[]);
    assert!(in_room("bridge/src/turn.rs", "bridge/src/turn") && in_room("bridge/src/turn/log.rs", "bridge/src/turn"));
    assert!(!in_room("bridge/src/turning.rs", "bridge/src/turn"));
}

#[test]
fn dependencies_are_found_in_every_table() {
    let text =
        "[package]\nname = \"bridge\"\n[dependencies]\nbridge.workspace = true\n[dev-dependencies]\nproto = \"1\"\n";
    finds(&banned_dependencies("a", text, &["bridge", "proto"]), &["a:4", "a:6"]);
    finds(&banned_dependencies("a", "[dependencies.tonic]\nversion = \"1\"\n", &["tonic"]), &["a:1"]);
}

#[test]
fn long_and_nameless_files_are_found() {
    finds(&shape("a/link.rs", &"x\n".repeat(LONGEST)), &[]);
    finds(&shape("a/link.rs", &"x\n".repeat(LONGEST + 1)), &["a/link.rs:601"]);
    finds(&shape("a/utils.rs", ""), &["a/utils.rs:1"]);
}

#[test]
fn an_impure_machine_is_found() {
    let body = "use tokio::sync::mpsc;\nfn f() { Instant::now(); }\n// tokio\n";
    finds(&purity("m.rs", &format!("//! A pure state\n//! machine.\n{body}")), &["m.rs:3", "m.rs:4"]);
    finds(&purity("m.rs", &format!("//! A task.\n{body}")), &[]);
}

#[test]
fn banned_calls_are_found() {
    let bad = "tokio::spawn(f());\n#[allow(dead_code)]\n#[ignore]\ntodo!();\nlet (a, b) = mpsc::channel();\nmpsc::channel(8);\n";
    finds(&banned_calls("x.rs", bad), &["x.rs:1", "x.rs:2", "x.rs:3", "x.rs:4", "x.rs:5"]);
    finds(
        &banned_calls("x.rs", "tracker.spawn(f()); // tokio::spawn(\nlet s = r#\"todo!(\"#; let q = '\"'; // todo!(\n"),
        &[],
    );
}

#[test]
fn sleeps_are_found_in_tests_only() {
    finds(&sleeps("a/src/x.rs", "sleep(d);\n#[cfg(test)]\nmod tests {\ntime::sleep(d);\n"), &["a/src/x.rs:4"]);
    finds(&sleeps("a/tests/x.rs", "std::thread::sleep(d);\ncontrol.sleep(d);\n"), &["a/tests/x.rs:1"]);
}

#[test]
fn readings_of_the_wall_clock_are_found() {
    let text = "// SystemTime::now\nlet at = SystemTime::now();\n#[cfg(test)]\nmod tests { SystemTime::now(); }\n";
    finds(&clocks("bridge/src/x.rs", text), &["bridge/src/x.rs:2"]);
    finds(&clocks(CLOCK, text), &[]);
    finds(&clocks("bridge/src/x/tests.rs", text), &[]);
}

#[test]
fn places_and_registries_are_found() {
    let folder = ["", "home", "me"].join("/");
    let bad = format!("see {folder}/x\nhttps://host.test{folder}/x\n{}.org\n", concat!("npm", "js"));
    finds(&places("README.md", &bad), &["README.md:1", "README.md:3"]);
    finds(&places("h/package-lock.json", "  \"resolved\": \"x\"\n"), &["h/package-lock.json:1"]);
}

#[test]
fn unexplained_parts_of_the_protocol_are_found() {
    let bad = "syntax = \"proto3\";\n\n// A.\nmessage A {\n  // One.\n  string one = 1;\n  string two = 2;\n  string three = 3; // Three.\n\n  \
               oneof kind {\n    // Four.\n    string\n      four = 4;\n  }\n}\n// S.\nservice S {\n  rpc Do(A) returns (A);\n}\n";
    finds(&unexplained("a.proto", bad), &["a.proto:7", "a.proto:10", "a.proto:18"]);
}

#[test]
fn rules_without_or_with_a_doubled_number_are_found() {
    let bad = "## 1. Surface\n### R-API-1 Version\n### Versions\n### R-API-1 Again\n### R-API-x\n";
    finds(&rule_numbers("c.md", bad), &["c.md:3", "c.md:4", "c.md:5"]);
    finds(&rule_numbers("c.md", "## 1. Surface\n"), &["c.md:1"]);
}
