use super::*;

fn told(text: &str) -> String {
    let raw = RawValue::from_string(text.to_owned()).unwrap();
    check(&raw).map_or_else(|dropped| dropped.to_string(), |()| "kept".into())
}

#[test]
fn keywords_are_sorted_for_look_up() {
    assert!(KEYWORDS.is_sorted_by(|one, other| one.0 < other.0));
}

/// Each was kept by the real program.
#[test]
fn schemas_that_claude_keeps_pass() {
    for schema in [
        "true",
        "false",
        "{}",
        r#"{"type":"object","properties":{"a":true,"b":false}}"#,
        r#"{"type":"object","properties":{"q":{"anyOf":[{"type":"string"},{"type":"null"}]}}}"#,
        r##"{"type":"object","$ref":"#/$defs/x","$defs":{"x":{"type":"object"},"d e":{}}}"##,
        r#"{"type":"object","not":{"required":["a"]},"if":{"required":["a"]},"then":{"required":["b"]}}"#,
        r#"{"type":"object","enum":[{}],"const":{},"patternProperties":{"^a":{},"[":{}},"propertyNames":{"pattern":"^[a"}}"#,
        r#"{"type":"object","dependentRequired":{"a":["b"]},"dependencies":{"a":["b"],"c":{}},"$vocabulary":{}}"#,
        r#"{"type":"object","title":"T","default":null,"examples":[1],"x-foo":{"y":1},"$id":"https://e/x#","$comment":"c"}"#,
        r#"{"type":"object","properties":{"a":{"enum":[]},"b":{"enum":[1,1]},"c":{"unknown":5},"d":{"const":null}}}"#,
        r#"{"type":"object","properties":{"a":{"prefixItems":[{}]},"b":{"maxLength":1.50e1},"c":{"type":["string","null"]}}}"#,
        r#"{"type":"object","properties":{"a":{"properties":{"b c":{}}},"constructor":{},"toString":{}},"required":["a b"]}"#,
        r#"{"type":"object","properties":{"a":{"default":{"properties":5},"nullable":true,"additionalItems":5}}}"#,
        r#"{"type":"object","$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"items":[{}]}},"title":5}"#,
        r#"{"type":"object","$schema":"http://json-schema.org/draft-04/schema#","properties":{"a":{"exclusiveMinimum":true}}}"#,
        r#"{"type":"object","$schema":"https://json-schema.org/draft/2020-12/schema#","required":[]}"#,
    ] {
        assert_eq!(told(schema), "kept", "{schema}");
    }
    let longest = format!(r#"{{"type":"object","properties":{{"{}":{{}}}}}}"#, "x".repeat(64));
    assert_eq!(told(&longest), "kept");
}

/// Each made the real program drop the function, or every function.
#[test]
fn schemas_that_claude_drops_are_found_with_their_place() {
    for (schema, path, must) in [
        (r#"{"properties":{"b":1}}"#, "$.properties.b", "a schema"),
        (r#"{"properties":[]}"#, "$.properties", "an object"),
        (r#"{"properties":null}"#, "$.properties", "an object"),
        (r#"{"required":"a"}"#, "$.required", "an array of different strings"),
        (r#"{"required":[1]}"#, "$.required", "an array of different strings"),
        (r#"{"required":["a","a"]}"#, "$.required", "an array of different strings"),
        (r#"{"properties":{"a b":{}}}"#, "$.properties.a b", "named as ^[a-zA-Z0-9_.-]{1,64}$ says"),
        (r#"{"properties":{"":{}}}"#, "$.properties.", "named as ^[a-zA-Z0-9_.-]{1,64}$ says"),
        (r#"{"properties":{"a$":{}}}"#, "$.properties.a$", "named as ^[a-zA-Z0-9_.-]{1,64}$ says"),
        (r#"{"properties":{"__proto__":{}}}"#, "$.properties.__proto__", "named otherwise"),
        (r#"{"$defs":{"__proto__":{}}}"#, "$.$defs.__proto__", "named otherwise"),
        (r#"{"type":[]}"#, "$.type", "a type or an array of different types"),
        (r#"{"type":5}"#, "$.type", "a type or an array of different types"),
        (r#"{"properties":{"a":{"type":"strin"}}}"#, "$.properties.a.type", "a type or an array of different types"),
        (
            r#"{"properties":{"a":{"type":["null","null"]}}}"#,
            "$.properties.a.type",
            "a type or an array of different types",
        ),
        (r#"{"properties":{"a":{"minimum":"x"}}}"#, "$.properties.a.minimum", "a number"),
        (r#"{"properties":{"a":{"exclusiveMinimum":true}}}"#, "$.properties.a.exclusiveMinimum", "a number"),
        (r#"{"properties":{"a":{"multipleOf":0}}}"#, "$.properties.a.multipleOf", "a number above 0"),
        (r#"{"properties":{"a":{"minItems":-1}}}"#, "$.properties.a.minItems", "an integer that is not negative"),
        (r#"{"properties":{"a":{"minItems":1.5}}}"#, "$.properties.a.minItems", "an integer that is not negative"),
        (r#"{"properties":{"a":{"enum":5}}}"#, "$.properties.a.enum", "an array"),
        (r#"{"properties":{"a":{"items":[{}]}}}"#, "$.properties.a.items", "a schema"),
        (r#"{"properties":{"a":{"anyOf":[]}}}"#, "$.properties.a.anyOf", "an array of at least one schema"),
        (r#"{"properties":{"a":{"anyOf":[{},5]}}}"#, "$.properties.a.anyOf[1]", "a schema"),
        (r#"{"properties":{"a":{"$ref":5}}}"#, "$.properties.a.$ref", "a string"),
        (r#"{"properties":{"a":{"description":null}}}"#, "$.properties.a.description", "a string"),
        (r#"{"properties":{"a":{"uniqueItems":1}}}"#, "$.properties.a.uniqueItems", "a boolean"),
        (r#"{"definitions":{"x":5}}"#, "$.definitions.x", "a schema"),
        (r#"{"$id":"x#y"}"#, "$.$id", "a string without a fragment"),
        (r#"{"$anchor":"1a"}"#, "$.$anchor", "a name"),
        (r#"{"properties":{"a":{"$vocabulary":{"x":1}}}}"#, "$.properties.a.$vocabulary", "an object of booleans"),
        (r#"{"dependencies":{"a":5}}"#, "$.dependencies.a", "a schema"),
        (r#"{"dependentRequired":{"a":["b","b"]}}"#, "$.dependentRequired.a", "an array of different strings"),
        (
            r#"{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a b":{}}}"#,
            "$.properties.a b",
            "named as ^[a-zA-Z0-9_.-]{1,64}$ says",
        ),
    ] {
        assert_eq!(told(schema), format!("claude_code drops it: {path} must be {must}"), "{schema}");
    }
    let long = format!(r#"{{"properties":{{"{}":{{}}}}}}"#, "x".repeat(65));
    assert!(told(&long).ends_with("must be named as ^[a-zA-Z0-9_.-]{1,64}$ says"));
}

#[test]
fn the_model_is_shown_an_object() {
    for (given, want) in [
        (r#"{ "type" : "object", "z":1.50 }"#, r#"{ "type" : "object", "z":1.50 }"#),
        ("{}", r#"{"type":"object"}"#),
        ("{ }", r#"{"type":"object" }"#),
        ("true", r#"{"type":"object"}"#),
        ("false", r#"{"type":"object","not":{}}"#),
        (r#"{ "z":1.50, "a":{"type":"string"} }"#, r#"{"type":"object", "z":1.50, "a":{"type":"string"} }"#),
        (r#"{"z":1.50,"type" : [ "object", "null" ] ,"a":1}"#, r#"{"z":1.50,"type" : "object" ,"a":1}"#),
        (r#"{"\u0074ype":["object"],"a":["object"]}"#, r#"{"\u0074ype":"object","a":["object"]}"#),
    ] {
        let raw = RawValue::from_string(given.to_owned()).unwrap();
        assert_eq!(shown(raw).unwrap().get(), want, "{given}");
    }
}
