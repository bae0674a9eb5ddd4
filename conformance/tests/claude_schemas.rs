//! Which parameters of functions Claude Code drops without a word (R-FN-1): those just inside of the rule reach the model as they came, those just
//! outside are refused with the function's name, and the real program does drop them.

use anyhow::Context;
use conformance::rig::{Harness, Rig, Setup, function, nowhere, refusal, scenario};
use proto::v1::{self, FailureCode, Reason};
use serde_json::Value;

/// Why only Claude Code.
const OWN: &str = "which schemas are dropped is Claude Code's own";

/// A schema that is taken, and the nearest one that is not, with what is said of it.
type Edge = (&'static str, &'static str, &'static str);

/// Edges of the rule, one of a kind. Each one outside makes Claude Code drop that function alone.
const EDGES: [Edge; 10] = [
    (
        r#"{"type":"object","properties":{"a.b-c_D":true}}"#,
        r#"{"type":"object","properties":{"a b":true}}"#,
        "^[a-zA-Z0-9_.-]{1,64}$",
    ),
    (
        r#"{"type":"object","properties":{"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn":{}}}"#,
        r#"{"type":"object","properties":{"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn":{}}}"#,
        "^[a-zA-Z0-9_.-]{1,64}$",
    ),
    (
        r#"{"type":"object","properties":{"a":{"minItems":0}}}"#,
        r#"{"type":"object","properties":{"a":{"minItems":-1}}}"#,
        "an integer that is not negative",
    ),
    (
        r#"{"type":"object","properties":{"a":{"multipleOf":0.5}}}"#,
        r#"{"type":"object","properties":{"a":{"multipleOf":0}}}"#,
        "a number above 0",
    ),
    (r#"{"type":"object","required":["a","b"]}"#, r#"{"type":"object","required":["a","a"]}"#, "different strings"),
    (
        r#"{"type":"object","properties":{"a":{"anyOf":[true]}}}"#,
        r#"{"type":"object","properties":{"a":{"anyOf":[]}}}"#,
        "an array of at least one schema",
    ),
    (
        r#"{"type":"object","properties":{"a":{"enum":[]}}}"#,
        r#"{"type":"object","properties":{"a":{"enum":{}}}}"#,
        "an array",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":["string","null"]}}}"#,
        r#"{"type":"object","properties":{"a":{"type":["string","text"]}}}"#,
        "an array of different types",
    ),
    (
        r#"{"type":"object","properties":{"a":{"$anchor":"a.b"}}}"#,
        r#"{"type":"object","properties":{"a":{"$anchor":"1a"}}}"#,
        "a name",
    ),
    // Of another dialect only the root is looked at.
    (
        r#"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"minItems":-1}}}"#,
        r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"a":{"minItems":-1}}}"#,
        "an integer that is not negative",
    ),
];

fn claude() -> Setup {
    Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only(OWN)
}

fn named(number: usize) -> String {
    format!("edge_{number}")
}

/// Functions of these names with the parameters of each edge.
fn functions(of: impl Fn(&Edge, usize) -> String) -> Vec<v1::FunctionTool> {
    EDGES.iter().enumerate().map(|(number, edge)| function(&named(number), &of(edge, number))).collect()
}

#[test]
fn what_is_just_inside_reaches_the_model_and_what_is_just_outside_is_refused() {
    scenario("claude_edge_schemas", &["R-FN-1", "R-API-3", "R-PRE-1"], claude(), async |rig| {
        let session = rig.session_nowhere().await?;
        for (number, (_, outside, must)) in EDGES.iter().enumerate() {
            let configuration =
                rig.configuration(functions(
                    |edge, at| {
                        if at == number { (*outside).to_owned() } else { edge.0.to_owned() }
                    },
                ));
            let refused = session.prepare(nowhere(configuration), Vec::new()).await;
            let refused = refusal(refused, Reason::UnsupportedConfiguration).says("claude_code drops it").says(must);
            refused
                .says(&format!("of the function {}", named(number)))
                .at(&format!("configuration.tools.functions[{number}].parameters"));
        }
        assert_eq!(rig.harnesses()?, []);
        let ready = rig.prepare(&session, nowhere(rig.configuration(functions(|edge, _| edge.0.to_owned())))).await?;
        rig.turn_with(&session, &ready, "t-1", "hello").await?.completed()?;
        let request = &rig.provider.model_requests()[0];
        for (number, (inside, _, _)) in EDGES.iter().enumerate() {
            let want: Value = serde_json::from_str(inside)?;
            assert_eq!(request.schema(&named(number)), Some(want), "{}: {}", named(number), request.body);
        }
        Ok(())
    });
}

/// A stand-in that is admitted and comes to the program as it is.
fn stand_in(number: usize) -> String {
    format!(r#"{{"type":"object","title":"edge {number}"}}"#)
}

/// Lines that put what is outside in the place of the stand-ins, on the way to the real program.
fn swapping() -> String {
    let swap = |(number, edge): (usize, &Edge)| {
        // In the pattern and in its replacement, some signs mean something else.
        let quoted = |text: &str, signs: &[char]| {
            text.chars()
                .flat_map(|one| signs.contains(&one).then_some('\\').into_iter().chain([one]))
                .collect::<String>()
        };
        let (from, to) = (quoted(&stand_in(number), &['.', '*', '[', '$', '^']), quoted(edge.1, &['&', '\\']));
        format!("-e 's|{from}|{to}|'")
    };
    let swaps: Vec<_> = EDGES.iter().enumerate().map(swap).collect();
    format!("[ \"$1\" = --version ] && exec \"$REAL\" \"$@\"\nsed -u {} | \"$REAL\" \"$@\"", swaps.join(" "))
}

#[test]
fn what_is_just_outside_is_dropped_by_the_real_program() {
    scenario("claude_dropped_schemas", &["R-FN-1", "R-CTL-5"], claude().behind(&swapping()), async |rig| {
        // The function that is sound stays, and no other; the text names eight.
        let names: Vec<_> = (0..8).map(|number| format!("mcp__functions__{}", named(number))).collect();
        assert_eq!(missing(rig).await?, format!("{} and {} more", names.join(", "), EDGES.len() - 8));
        Ok(())
    });
}

/// The tools that the first inventory lacks, as the failure of the Turn has them.
async fn missing(rig: &Rig) -> anyhow::Result<String> {
    let session = rig.session_nowhere().await?;
    let sound = function("sound", r#"{"type":"object"}"#);
    let configuration = rig.configuration([functions(|_, at| stand_in(at)), vec![sound]].concat());
    let ready = rig.prepare(&session, nowhere(configuration)).await?;
    let seen = rig.turn_with(&session, &ready, "t-1", "hello").await?;
    let failure = seen.end()?.failure.clone().context("the Turn did not fail")?;
    assert_eq!(failure.code(), FailureCode::HarnessProtocolError, "{failure:?}");
    let (_, missing) = failure.message.rsplit_once("missing: ").with_context(|| failure.message.clone())?;
    Ok(missing.to_owned())
}
