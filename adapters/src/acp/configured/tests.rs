use super::*;

fn configured() -> Configured {
    Configured {
        name: "kimi".into(),
        command: vec!["kimi".into(), "acp".into()],
        profile: Known::Generic,
        protocols: Vec::new(),
        environment: [("OWN".to_owned(), "{model} {base_url}".to_owned())].into(),
        files: BTreeMap::new(),
    }
}

fn refused(change: impl FnOnce(&mut Configured)) -> String {
    let mut configured = configured();
    change(&mut configured);
    configured.check().map_or_else(|error| error.to_string(), |()| "taken".to_owned())
}

fn one(name: &str, text: &str) -> BTreeMap<String, String> {
    [(name, text), ("OWN", "{model} {base_url}")].map(|(name, text)| (name.to_owned(), text.to_owned())).into()
}

#[test]
fn names_are_kinds_that_are_not_built_in() {
    assert_eq!(refused(|_| {}), "taken");
    for name in ["", "9a", "_a", "a-b", "A", &*"a".repeat(33), "\u{e9}"] {
        assert!(refused(|it| it.name = name.into()).contains("is not the name of an agent"), "{name}");
    }
    for name in BUILT {
        assert!(refused(|it| it.name = name.into()).contains("built in"), "{name}");
    }
    assert_eq!(BUILT, crate::admission::built::KINDS);
    assert_eq!(refused(|it| it.name = "a_9".into()), "taken");
}

#[test]
fn a_command_is_a_program_and_its_arguments() {
    assert!(refused(|it| it.command.clear()).starts_with("command: must name a program"));
    assert!(refused(|it| it.command[0].clear()).starts_with("command: must name a program"));
    assert!(refused(|it| it.command[0] = "bin/kimi".into()).starts_with("command[0]: must be an absolute path"));
    assert!(refused(|it| it.command[1] = "a\0".into()).starts_with("command[1]: "));
    assert_eq!(refused(|it| it.command = vec!["/bin/kimi".into()]), "taken");
}

#[test]
fn a_known_agent_is_told_nothing_more() {
    let known = |change: fn(&mut Configured)| {
        refused(|it| {
            it.profile = Known::Opencode;
            it.environment.clear();
            change(it);
        })
    };
    assert_eq!(known(|_| {}), "taken");
    assert!(known(|it| it.environment = one("A", "1")).starts_with("environment: is set by the profile `opencode`"));
    assert!(known(|it| it.files = one("a", "1")).starts_with("files: is set by"));
    assert!(known(|it| it.protocols = vec![ModelProtocol::Messages]).starts_with("protocols: is set by"));
    for known in [Known::Generic, Known::Opencode] {
        assert_eq!(Known::named(known.name()), Some(known));
    }
    assert_eq!(Known::named("other"), None);
}

#[test]
fn variables_may_have_the_key_and_files_not() {
    assert_eq!(refused(|it| it.environment = one("OPENAI_API_KEY", "{key}")), "taken");
    let of_file = refused(|it| it.files = one("a/b.toml", "key = \"{key}\""));
    assert!(of_file.starts_with("files.a/b.toml: must not have {key}"), "{of_file}");
    let unknown = refused(|it| it.files = one("a", "{\"x\": \"{modell}\"}"));
    assert!(unknown.contains("has the placeholder {modell}, which there is not; there are {base_url}"), "{unknown}");
    for name in ["HOME", "TMPDIR", "RUNTIME_BRIDGE_MARK", "", "A=B"] {
        assert!(refused(|it| it.environment = one(name, "1")).starts_with("environment."), "{name}");
    }
}

#[test]
fn an_agent_must_be_told_its_provider_and_its_model() {
    assert!(refused(|it| it.environment.clear()).starts_with("environment: must have {base_url} in a variable"));
    assert!(refused(|it| it.environment = [("A".into(), "{base_url}".into())].into()).contains("must have {model}"));
    let in_files = |it: &mut Configured| {
        it.environment.clear();
        it.files = [("a.json".into(), r#"{"url": "{base_url}", "model": "{model}"}"#.into())].into();
    };
    assert_eq!(refused(in_files), "taken");
}

#[test]
fn files_are_below_the_home() {
    for path in ["", "/etc/a", "../a", "a/../b", "./a", "a//b", "a/", "a\0"] {
        assert!(refused(|it| it.files = one(path, "")).contains("must be a path below the home"), "{path:?}");
    }
    let both = |it: &mut Configured| it.files = [("a", ""), ("a/b", "")].map(|(a, b)| (a.into(), b.into())).into();
    assert!(refused(both).contains("is below another file"));
    assert_eq!(refused(|it| it.files = one(".config/kimi/c.toml", "a = {}")), "taken");
}

#[test]
fn placeholders_are_filled_and_other_braces_stay() {
    let value = |placeholder| match placeholder {
        Placeholder::Model => "m{key}".to_owned(),
        Placeholder::BaseUrl => "http://h".to_owned(),
        _ => String::new(),
    };
    let fill = |text: &str| filled(text, value);
    assert_eq!(
        fill(r#"{"url": "{base_url}", "m": {"{model}": {}}}"#),
        Ok(r#"{"url": "http://h", "m": {"m{key}": {}}}"#.into())
    );
    assert_eq!(fill("{ key } {A} {}{"), Ok("{ key } {A} {}{".into()));
    assert_eq!(fill("{nothing}"), Err("nothing".into()));
}
