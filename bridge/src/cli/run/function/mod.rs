//! The functions that a run offers to the model, each answered by a program.

mod command;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use proto::v1;
use serde_json::value::RawValue;

use super::arguments::UsageError;
pub(super) use command::{Answer, answer};

/// When the model learns of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loading {
    /// From the beginning.
    Usual,
    /// When it searches for it.
    Deferred,
}

/// Functions by name, in the order of the command line: those that are deferred stand behind the others.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions(Arc<[Function]>);

#[derive(Debug)]
struct Function {
    declared: v1::FunctionTool,
    program: PathBuf,
}

impl Functions {
    /// Reads every `NAME=SCHEMA.json:PROGRAM`, those that the model knows from the beginning and those that it has to search for.
    pub(super) fn read(usual: &[String], deferred: &[String]) -> Result<Self, UsageError> {
        let usual = usual.iter().map(|option| (option, Loading::Usual));
        let deferred = deferred.iter().map(|option| (option, Loading::Deferred));
        let mut functions: Vec<Function> = Vec::new();
        for (option, loading) in usual.chain(deferred) {
            let refuse = |why: String| UsageError(format!("{} {option}: {why}", loading.flag()));
            let function = Function::read(option, loading).map_err(refuse)?;
            if functions.iter().any(|other| other.declared.name == function.declared.name) {
                return Err(refuse("this name is given twice".into()));
            }
            functions.push(function);
        }
        Ok(Self(functions.into()))
    }

    /// What the bridge is told of them.
    pub(super) fn declared(&self) -> Vec<v1::FunctionTool> {
        self.0.iter().map(|function| function.declared.clone()).collect()
    }

    /// The program that answers a function.
    pub(super) fn program(&self, name: &str) -> Option<&Path> {
        self.0.iter().find(|function| function.declared.name == name).map(|function| function.program.as_path())
    }
}

impl Loading {
    fn flag(self) -> &'static str {
        match self {
            Self::Usual => "--function",
            Self::Deferred => "--deferred-function",
        }
    }
}

impl Function {
    fn read(option: &str, loading: Loading) -> Result<Self, String> {
        let parts = option.split_once('=').and_then(|(name, rest)| Some((name, rest.split_once(':')?)));
        let Some((name, (schema, program))) = parts else {
            return Err("is not of the form NAME=SCHEMA.json:PROGRAM".into());
        };
        if name.trim().is_empty() || schema.is_empty() || program.is_empty() {
            return Err("is not of the form NAME=SCHEMA.json:PROGRAM".into());
        }
        let parameters = fs::read_to_string(schema).map_err(|error| format!("{schema}: {error}"))?;
        let description = description(&parameters).map_err(|error| format!("{schema}: is not JSON: {error}"))?;
        let declared = v1::FunctionTool {
            name: name.into(),
            description,
            parameters,
            defer_loading: loading == Loading::Deferred,
            ..Default::default()
        };
        Ok(Self { declared, program: program.into() })
    }
}

/// The `description` member of a schema, empty where there is none. The text itself goes to the bridge as it is (R-API-3), so nothing
/// else of it is read, and no number of it can be too large.
fn description(schema: &str) -> Result<String, serde_json::Error> {
    let schema: &RawValue = serde_json::from_str(schema)?;
    // A schema may also be a truth value; whether it is a good one is for the bridge to judge.
    let Ok(members) = serde_json::from_str::<HashMap<String, &RawValue>>(schema.get()) else {
        return Ok(String::new());
    };
    let text = members.get("description").and_then(|text| serde_json::from_str(text.get()).ok());
    Ok(text.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run::folders::tests::scratch;

    #[test]
    fn a_schema_is_handed_on_as_it_is_written() {
        let text = "{ \"type\":\"object\",\n  \"description\": \"Finds a ticket.\", \"maximum\": 1e400 }\n";
        let schema = scratch("schema").join("find.json");
        fs::write(&schema, text).unwrap();
        let bare = schema.with_file_name("bare.json");
        fs::write(&bare, "true").unwrap();
        let option = |name: &str, schema: &Path| format!("{name}={}:./answer:1", schema.display());
        let functions = Functions::read(&[option("find", &schema)], &[option("bare", &bare)]).unwrap();
        let [find, other] = functions.declared().try_into().unwrap();
        assert_eq!((find.defer_loading, other.defer_loading), (false, true));
        assert_eq!((find.name.as_str(), find.description.as_str()), ("find", "Finds a ticket."));
        assert_eq!(find.parameters, text);
        assert_eq!((other.description.as_str(), other.parameters.as_str()), ("", "true"));
        assert_eq!(functions.program("find"), Some(Path::new("./answer:1")));
        assert_eq!(functions.program("lose"), None);
    }

    #[test]
    fn a_function_that_cannot_be_declared_is_refused() {
        let folder = scratch("bad-schema");
        let (good, bad) = (folder.join("good.json"), folder.join("bad.json"));
        fs::write(&good, "{}").unwrap();
        fs::write(&bad, "{").unwrap();
        let (good, bad) = (good.display(), bad.display());
        for (options, why) in [
            (vec!["find".into()], "is not of the form NAME=SCHEMA.json:PROGRAM"),
            (vec![format!("find={good}")], "is not of the form NAME=SCHEMA.json:PROGRAM"),
            (vec![format!("={good}:./a")], "is not of the form NAME=SCHEMA.json:PROGRAM"),
            (vec![format!("find={good}:")], "is not of the form NAME=SCHEMA.json:PROGRAM"),
            (vec!["find=/none.json:./a".into()], "/none.json: No such file"),
            (vec![format!("find={bad}:./a")], "is not JSON"),
            (vec![format!("find={good}:./a"), format!("find={good}:./b")], "this name is given twice"),
        ] {
            let refused =
                [Functions::read(&options, &[]), Functions::read(&[], &options)].map(|read| read.unwrap_err().0);
            assert!(refused[0].starts_with("--function ") && refused[0].contains(why), "{refused:?}");
            assert!(refused[1].starts_with("--deferred-function ") && refused[1].contains(why), "{refused:?}");
        }
        let both = Functions::read(&[format!("find={good}:./a")], &[format!("find={good}:./b")]);
        assert!(both.unwrap_err().0.ends_with("this name is given twice"));
    }
}
