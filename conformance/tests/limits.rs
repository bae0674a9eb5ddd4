//! `docs/limits.md` tells the truth: each value is the one in the code or in the configuration's page, each key is there, and so is each test
//! that is named, here and in `docs/security.md`. Reads files, runs nothing.
#![expect(clippy::unwrap_used, reason = "a tree that cannot be read is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

/// One row of the page.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    limit: String,
    value: u64,
    name: Name,
    held_by: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Name {
    /// A key of the configuration.
    Key(String),
    /// A constant or the default of a member, in a file.
    Item { file: String, item: String },
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

#[test]
fn every_limit_has_the_value_that_it_is_said_to_have() {
    let rows = rows(&read("docs/limits.md").unwrap());
    assert!(rows.len() > 40, "{} rows", rows.len());
    let configuration = read("docs/configuration.md").unwrap();
    let defaults = read("bridge/src/config/mod.rs").unwrap();
    let of_streams = read("bridge/src/gateway/stream/mod.rs").unwrap();
    let wrong: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            let found = match &row.name {
                Name::Key(key) => default_in(&defaults, &of_streams, key)
                    .filter(|value| default_of(&configuration, key).is_none_or(|told| told == *value)),
                Name::Item { file, item } => read(file).and_then(|text| value_of(&text, item)),
            };
            (found != Some(row.value)).then(|| format!("{}: {:?} is {found:?}, not {}", row.limit, row.name, row.value))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_limit_of_the_configuration_is_on_the_page() {
    let rows = rows(&read("docs/limits.md").unwrap());
    let configuration = read("docs/configuration.md").unwrap();
    let keys: Vec<_> = keys(&configuration).map(|(key, _)| key).collect();
    assert!(keys.len() > 5, "{keys:?}");
    let missing: Vec<_> =
        keys.iter().filter(|key| !rows.iter().any(|row| row.name == Name::Key((**key).to_owned()))).collect();
    assert!(missing.is_empty(), "docs/limits.md does not have {missing:?}");
}

#[test]
fn every_test_that_holds_a_limit_is_there() {
    let rows = rows(&read("docs/limits.md").unwrap());
    let missing: Vec<_> = rows.iter().flat_map(|row| &row.held_by).filter(|test| !is_there(test)).collect();
    assert!(missing.is_empty(), "there are no such tests: {missing:#?}");
    let bare: Vec<_> = rows.iter().filter(|row| row.held_by.is_empty()).collect();
    assert!(bare.is_empty(), "nothing holds {bare:#?}");
}

#[test]
fn every_test_that_holds_against_a_threat_is_there() {
    let page = read("docs/security.md").unwrap();
    let table = page.split("## Threats").nth(1).unwrap().split("\n## ").next().unwrap();
    let threats: Vec<_> = table.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert!(threats.len() > 10, "{} threats", threats.len());
    let tests = |text: &str| quoted(text).into_iter().filter(|name| name.contains("::")).collect::<Vec<_>>();
    let bare: Vec<_> = threats.iter().filter(|line| tests(line).is_empty()).collect();
    assert!(bare.is_empty(), "nothing holds against {bare:#?}");
    let missing: Vec<_> = threats.iter().flat_map(|line| tests(line)).filter(|test| !is_there(test)).collect();
    assert!(missing.is_empty(), "there are no such tests: {missing:#?}");
    // Each rule of the contract's chapter has its place.
    let contract = read("docs/contract.md").unwrap();
    let rules = contract.lines().filter_map(|line| line.strip_prefix("### R-SEC-")?.split(' ').next());
    let forgotten: Vec<_> =
        rules.filter(|number| !threats.iter().any(|line| line.contains(&format!("R-SEC-{number}")))).collect();
    assert!(forgotten.is_empty(), "no threat names R-SEC-{forgotten:?}");
}

/// The rows of all tables with four columns, without their heads.
fn rows(page: &str) -> Vec<Row> {
    let cells = |line: &str| line.trim().trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    let lines = page.lines().filter(|line| line.starts_with("| "));
    let lines = lines.map(cells).filter(|cells: &Vec<String>| cells.len() == 4 && !cells[0].starts_with("---"));
    lines.filter(|cells| cells[0] != "Limit").map(|cells| row(&cells)).collect()
}

fn row(cells: &[String]) -> Row {
    let named = quoted(&cells[2]);
    let name = match &named[..] {
        [key] => Name::Key(key.strip_prefix("limits.").unwrap_or(key).to_owned()),
        [file, item] => Name::Item { file: file.clone(), item: item.clone() },
        other => panic!("{}: no name in {other:?}", cells[0]),
    };
    let value = quantity(&cells[1]).unwrap_or_else(|| panic!("{}: no value in {:?}", cells[0], cells[1]));
    Row { limit: cells[0].clone(), value, name, held_by: quoted(&cells[3]) }
}

/// What stands between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// `3.5 MiB` in bytes, `5 min` in milliseconds, a bare number as it is.
fn quantity(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor: u64 = match unit {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    match number.split_once('.') {
        Some((whole, "5")) => Some(whole.parse::<u64>().ok()? * factor + factor / 2),
        Some(_) => None,
        None => Some(number.parse::<u64>().ok()? * factor),
    }
}

/// Key and default of each row in the table of limits of the configuration's page.
fn keys(configuration: &str) -> impl Iterator<Item = (&str, u64)> {
    let table = configuration.split("### Limits").nth(1).unwrap_or_default().split("\n## ").next().unwrap_or_default();
    table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let key = cells.next()?.trim().strip_suffix('`')?;
        Some((key, cells.next()?.trim().parse().ok()?))
    })
}

fn default_of(configuration: &str, key: &str) -> Option<u64> {
    keys(configuration).find(|(name, _)| *name == key).map(|(_, value)| value)
}

/// The default of a key; those of the gateway are in a structure of their own.
fn default_in(defaults: &str, of_streams: &str, key: &str) -> Option<u64> {
    let member = key.trim_end_matches("_ms");
    match member.strip_prefix("stream_") {
        Some(member) => value_of(of_streams, member),
        None => value_of(defaults, member),
    }
}

/// The value of `const ITEM: … = …;`, or of the first `item: …,` that is a value.
fn value_of(text: &str, item: &str) -> Option<u64> {
    let constant = format!("const {item}: ");
    if let Some(line) = text.lines().find(|line| line.contains(&constant)) {
        return evaluated(line.split_once(" = ")?.1.trim_end_matches(';'));
    }
    let member = format!("{item}: ");
    let is_whole = |at: &usize| !text[..*at].ends_with(|c: char| c == '_' || c.is_ascii_alphanumeric());
    let places = text.match_indices(&member).map(|(at, _)| at).filter(is_whole).map(|at| at + member.len());
    let values = places.map(|at| text[at..].split([',', '}', '\n']).next().unwrap_or_default());
    values.filter_map(|value| evaluated(value.trim())).next()
}

/// A number, a product, a shift, or a duration in milliseconds.
fn evaluated(expression: &str) -> Option<u64> {
    let inside = |name: &str| expression.strip_prefix(name)?.strip_suffix(')').and_then(evaluated);
    for (name, millis) in [("hours", 3_600_000), ("mins", 60_000), ("secs", 1000), ("millis", 1)] {
        if let Some(number) = inside(&format!("Duration::from_{name}(")) {
            return Some(number * millis);
        }
    }
    if let Some((number, bits)) = expression.split_once(" << ") {
        return Some(evaluated(number)? << evaluated(bits)?);
    }
    if let Some((one, other)) = expression.split_once(" * ") {
        return Some(evaluated(one)? * evaluated(other)?);
    }
    expression.replace('_', "").parse().ok()
}

/// Whether a test `file::name` is there; a file without a folder is one of the scenarios.
fn is_there(test: &str) -> bool {
    let Some((file, name)) = test.split_once("::") else { return false };
    let path = if file.contains('/') { file.to_owned() } else { format!("conformance/tests/{file}.rs") };
    let Some(text) = read(&path) else { return false };
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let begins = |line: &str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('('))
    };
    let place = lines.iter().position(|line| begins(line));
    let above = place.map(|place| lines[..place].iter().rev().take_while(|line| line.starts_with("#[")));
    // A scenario that is written once for every Harness stands in a list of them.
    let macros = ["for_each_harness!(", "for_every_harness!(", "for_each_acp_agent!("];
    let lists = macros.iter().flat_map(|begins| text.split(begins).skip(1).filter_map(|rest| rest.split_once(");")));
    let is_listed = lists.into_iter().any(|(list, _)| list.split(',').any(|listed| listed.trim() == name));
    place.is_some() && is_listed
        || above
            .is_some_and(|mut above| above.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test")))
}

#[test]
fn quantities_and_expressions_are_read() {
    for (text, want) in [
        ("128", Some(128)),
        ("3.5 MiB", Some(7 << 19)),
        ("16 KiB", Some(16_384)),
        ("5 min", Some(300_000)),
        ("400 ms", Some(400)),
        ("7 weeks", None),
    ] {
        assert_eq!(quantity(text), want, "{text}");
    }
    let code = "const A: usize = 7 << 19;\npub(crate) const B: Duration = Duration::from_secs(7 * 24 * 60 * 60);\n\
                Self { memory: usize, c: 256 << 10 }\nconst E: usize = 3 * A;\n";
    for (item, want) in [
        ("A", Some(7 << 19)),
        ("B", Some(604_800_000)),
        ("c", Some(262_144)),
        ("d", None),
        ("E", None),
        ("memory", None),
    ] {
        assert_eq!(value_of(code, item), want, "{item}");
    }
    assert!(is_there("limits::quantities_and_expressions_are_read"));
    assert!(!is_there("limits::quantities") && !is_there("nowhere::quantities_and_expressions_are_read"));
    assert!(!is_there("limits::rows"), "it is no test");
}
