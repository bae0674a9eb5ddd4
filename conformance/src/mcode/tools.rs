//! The native tools. Those that work on the workspace are real; others are on offer and fail.

use std::path::{Component, Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::{fs, time};

use super::config::Config;
use super::faults::Leaves;
use super::history::{Call, Outcome, said};
use super::model::Offer;
use super::turn::Place;

/// The tool that asks the user.
pub(super) const ASK_USER: &str = "ask_user";

/// The question of [`Faults::question`](super::Faults::question).
pub(super) const QUESTION: &str = r#"{"questions":[{"question":"Which colour?","options":[{"label":"red","description":"warm"},{"label":"blue","description":"cold"}]}]}"#;

/// The longest output of a command, in bytes.
const OUTPUT: usize = 1024 * 1024;

/// Folders that a command may name without being asked for: what every command needs.
const HARMLESS: [&str; 5] = ["/dev/null", "/bin", "/usr", "/sbin", "/lib"];

/// The native tools on offer.
pub(super) fn offers(config: &Config) -> Vec<Offer> {
    let mut names = config.tools.clone();
    let more = [
        (config.web_search, &["web_search"][..]),
        (config.delegation, &["task", "task_append", "task_query", "task_output", "task_stop"]),
        // What these three switches really bring is not known by name.
        (config.mavis, &["mavis_stand_in"]),
        (config.media, &[super::config::MEDIA]),
        (config.ask_user, &[ASK_USER]),
    ];
    for (_, added) in more.iter().filter(|(on, _)| *on) {
        for name in added.iter().filter(|name| !names.contains(name)).collect::<Vec<_>>() {
            names.push(name);
        }
    }
    let offer = |name: &str| Offer {
        name: name.to_owned(),
        description: format!("The native tool {name}."),
        schema: schema(name),
    };
    names.into_iter().map(offer).collect()
}

fn schema(name: &str) -> Value {
    let text = json!({"type": "string"});
    let members: &[&str] = match name {
        "bash" => &["command"],
        "read" | "grep" | "glob" => &["path"],
        "write" => &["path", "content"],
        "edit" => &["path", "oldText", "newText"],
        "web_fetch" => &["url"],
        "web_search" => &["query"],
        _ => &[],
    };
    let properties: serde_json::Map<_, _> = members.iter().map(|name| ((*name).to_owned(), text.clone())).collect();
    json!({"type": "object", "properties": properties, "required": members})
}

/// What ACP calls the kind of a tool, guessed from its name.
pub(super) fn kind(name: &str) -> &'static str {
    match name {
        "bash" => "execute",
        "read" => "read",
        "write" | "edit" => "edit",
        "grep" | "glob" | "web_search" => "search",
        "web_fetch" => "fetch",
        _ => "other",
    }
}

/// The arguments as a value.
pub(super) fn input(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_default()
}

/// The file that a call names.
fn path(call: &Call, cwd: &Path) -> Option<PathBuf> {
    let named = input(&call.arguments)["path"].as_str().map(|path| cwd.join(path))?;
    let mut plain = PathBuf::new();
    for component in named.components() {
        match component {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            component => plain.push(component),
        }
    }
    Some(plain)
}

/// The places that an update tells of.
pub(super) fn locations(call: &Call, cwd: &Path) -> Option<Value> {
    let native = ["read", "write", "edit"].contains(&&*call.name);
    path(call, cwd).filter(|_| native).map(|path| json!([{ "path": path }]))
}

/// Whether a call reaches out of the workspace, as far as its text shows.
pub(super) fn outside(call: &Call, cwd: &Path) -> bool {
    match &*call.name {
        "write" | "edit" | "read" => path(call, cwd).is_some_and(|path| !path.starts_with(cwd)),
        "bash" => {
            let command = input(&call.arguments)["command"].as_str().unwrap_or_default().to_owned();
            let mut words = command.split(|c: char| c.is_whitespace() || "'\"<>;|&()=".contains(c));
            words.any(|word| {
                let harmless = HARMLESS.iter().any(|known| Path::new(word).starts_with(known));
                let away = word.starts_with('/') && !harmless && !Path::new(word).starts_with(cwd);
                away || word.starts_with("~") || word.starts_with("..")
            })
        }
        _ => false,
    }
}

/// What went well, with a text.
pub(super) fn completed(call: &Call, text: &str) -> Outcome {
    let content = said(text);
    let raw_output = json!({ "content": content }).to_string();
    let (id, name) = (call.id.clone(), call.name.clone());
    Outcome { id, name, status: "completed".into(), content, is_error: false, raw_output }
}

/// Runs a native tool.
pub(super) async fn run(place: &Place<'_>, call: &Call) -> Outcome {
    let given = input(&call.arguments);
    let text = |name: &str| given[name].as_str().unwrap_or_default();
    let file = path(call, place.cwd).unwrap_or_default();
    let done = match &*call.name {
        "bash" => return bash(place, call, text("command"), given["timeout"].as_f64()).await,
        "read" => fs::read_to_string(&file).await.map_err(|error| error.to_string()),
        "write" => write(&file, text("content")).await,
        "edit" => match fs::read_to_string(&file).await {
            Ok(old) if !text("oldText").is_empty() && old.contains(text("oldText")) => {
                write(&file, &old.replacen(text("oldText"), text("newText"), 1)).await
            }
            Ok(_) => Err("oldText was not found".into()),
            Err(error) => Err(error.to_string()),
        },
        "todowrite" => Ok("The list was updated.".into()),
        "task_query" | "task_output" | "task_stop" => Ok("There are no tasks.".into()),
        name => Err(format!("the double does not run {name}")),
    };
    match done {
        Ok(text) => completed(call, &text),
        Err(text) => Outcome::failed(call, &text),
    }
}

async fn write(file: &Path, text: &str) -> Result<String, String> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).await.map_err(|error| error.to_string())?;
    }
    fs::write(file, text).await.map_err(|error| error.to_string())?;
    Ok(format!("Wrote {} bytes to {}", text.len(), file.display()))
}

/// Ends a process group when the wait for it is over.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        // It may be gone already.
        _ = self.0.map(|group| kill_process_group(group, Signal::KILL));
    }
}

async fn bash(place: &Place<'_>, call: &Call, command: &str, timeout: Option<f64>) -> Outcome {
    let leaves = place.engine.faults.cancel_leaves;
    let mut process = match leaves {
        Some(Leaves::Session) => {
            let mut process = Command::new("setsid");
            process.args(["bash", "-c", command]);
            process
        }
        Some(Leaves::Group) | None => {
            let mut process = Command::new("bash");
            process.args(["-c", command]);
            process
        }
    };
    if leaves.is_none() {
        process.process_group(0);
    }
    process.current_dir(place.cwd).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let child = match process.spawn() {
        Ok(child) => child,
        Err(error) => return Outcome::failed(call, &format!("bash could not be started: {error}")),
    };
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let _group = Group(pid.filter(|_| leaves.is_none()));
    let limit = timeout.filter(|seconds| seconds.is_finite() && *seconds > 0.0).map(Duration::from_secs_f64);
    let limit = limit.unwrap_or(Duration::from_secs(60 * 60));
    let output = tokio::select! {
        output = time::timeout(limit, child.wait_with_output()) => output,
        () = place.cancel.cancelled() => return ended(call, "aborted", "cancelled", None, started),
    };
    match output {
        Err(_) => ended(call, "the command took too long", "timeout", None, started),
        Ok(Err(error)) => Outcome::failed(call, &error.to_string()),
        Ok(Ok(output)) => {
            let mut bytes = [output.stdout, output.stderr].concat();
            bytes.truncate(OUTPUT);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            ended(call, &text, "exit", output.status.code(), started)
        }
    }
}

/// What came of a command.
fn ended(call: &Call, text: &str, reason: &str, code: Option<i32>, started: Instant) -> Outcome {
    let went_well = code == Some(0);
    let status = if went_well { "completed" } else { "failed" };
    let told = match code {
        Some(code) if code != 0 => format!("{text}\nCommand exited with code {code}"),
        _ => text.to_owned(),
    };
    let timing = json!({ "durationMs": u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX) });
    let execution = json!({"status": status, "reason": reason, "exitCode": code, "timing": timing});
    let content = said(&told);
    let raw_output = json!({"content": content, "details": {"execution": execution}}).to_string();
    let (id, name) = (call.id.clone(), call.name.clone());
    Outcome { id, name, status: status.into(), content, is_error: !went_well, raw_output }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leaves_the_workspace_is_asked_for() {
        let cwd = Path::new("/space/w");
        for (name, arguments, want) in [
            ("write", json!({"path": "a/b"}), false),
            ("write", json!({"path": "/space/w/b"}), false),
            ("write", json!({"path": "../b"}), true),
            ("edit", json!({"path": "/space/b"}), true),
            ("bash", json!({"command": "ls -l a 2>/dev/null"}), false),
            ("bash", json!({"command": "cat /space/w/x"}), false),
            ("bash", json!({"command": "touch /elsewhere/x"}), true),
            ("bash", json!({"command": "cat ~/x"}), true),
            ("todowrite", json!({"path": "/x"}), false),
        ] {
            let call = Call { id: "c".into(), name: name.into(), arguments: arguments.to_string() };
            assert_eq!(outside(&call, cwd), want, "{name} {arguments}");
        }
    }
}
