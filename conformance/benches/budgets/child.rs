//! A stand-in for `codex app-server` that does nothing but stamp its lines, so that what is measured is the daemon.
//!
//! What a Turn does stands in its input: `deltas N MICROS`, `calls N`, `exit`, `route` (says where its model provider is).

use std::{
    io::{self, BufRead as _},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

/// Nanoseconds since 1970: both ends run on one machine.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Serves one conversation on stdin and stdout.
pub(crate) fn serve() -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut waiting = 0u64;
    let mut calls = 0u64;
    let mut route = String::new();
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        let id = message["id"].clone();
        match message["method"].as_str() {
            Some("initialize") => {
                let result = json!({"userAgent": "runtime-bridge/0.171.0 (bench)", "codexHome": "/", "platformFamily": "unix", "platformOs": "linux"});
                say(&mut out, &json!({"id": id, "result": result}))?;
            }
            Some("thread/start") => {
                let params = &message["params"];
                let providers = &params["config"]["model_providers"];
                providers["runtime-bridge"]["base_url"].as_str().unwrap_or_default().clone_into(&mut route);
                let sandbox = json!({"type": "dangerFullAccess"});
                let thread = json!({"id": "thread", "sessionId": "thread", "turns": []});
                let result = json!({"thread": thread, "model": params["model"], "modelProvider": params["modelProvider"],
                    "cwd": params["cwd"], "approvalPolicy": params["approvalPolicy"], "sandbox": sandbox});
                say(&mut out, &json!({"id": id, "result": result}))?;
            }
            Some("turn/start") => {
                let turn = json!({"id": "turn", "status": "inProgress", "items": []});
                say(&mut out, &json!({"id": id, "result": {"turn": turn}}))?;
                say(&mut out, &json!({"method": "turn/started", "params": {"threadId": "thread", "turn": turn}}))?;
                let text = message["params"]["input"][0]["text"].as_str().unwrap_or_default().to_owned();
                let words: Vec<&str> = text.split(' ').collect();
                let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
                match words[0] {
                    "deltas" => deltas(&mut out, number(1), Duration::from_micros(number(2)))?,
                    "calls" => {
                        (calls, waiting) = (0, number(1));
                        call(&mut out, calls)?;
                        continue;
                    }
                    "route" => delta(&mut out, &route)?,
                    "exit" => {
                        deltas(&mut out, 1, Duration::ZERO)?;
                        std::process::exit(3);
                    }
                    _ => {}
                }
                complete(&mut out)?;
            }
            Some("turn/interrupt") => {
                say(&mut out, &json!({"id": id, "result": {}}))?;
                end(&mut out, "interrupted")?;
            }
            Some("thread/backgroundTerminals/clean") => say(&mut out, &json!({"id": id, "result": {}}))?,
            Some(_) => {}
            // The answer to a call.
            None => {
                let result = &message["result"];
                let item = json!({"type": "dynamicToolCall", "id": format!("call-{calls}"), "namespace": null, "tool": "f", "arguments": {},
                    "status": "completed", "contentItems": result["contentItems"], "success": result["success"]});
                say(
                    &mut out,
                    &json!({"method": "item/completed", "params": {"threadId": "thread", "turnId": "turn", "item": item}}),
                )?;
                calls += 1;
                if calls < waiting {
                    call(&mut out, calls)?;
                } else {
                    complete(&mut out)?;
                }
            }
        }
    }
    Ok(())
}

/// A message of one piece that is this text.
fn delta(out: &mut impl io::Write, text: &str) -> anyhow::Result<()> {
    let item = json!({"type": "agentMessage", "id": "m", "text": "", "phase": null});
    say(out, &json!({"method": "item/started", "params": {"threadId": "thread", "turnId": "turn", "item": item}}))?;
    let delta = json!({"threadId": "thread", "turnId": "turn", "itemId": "m", "delta": text});
    say(out, &json!({"method": "item/agentMessage/delta", "params": delta}))
}

fn deltas(out: &mut impl io::Write, count: u64, pause: Duration) -> anyhow::Result<()> {
    let item = json!({"type": "agentMessage", "id": "m", "text": "", "phase": null});
    say(out, &json!({"method": "item/started", "params": {"threadId": "thread", "turnId": "turn", "item": item}}))?;
    for _ in 0..count {
        let delta = json!({"threadId": "thread", "turnId": "turn", "itemId": "m", "delta": now().to_string()});
        let line = json!({"method": "item/agentMessage/delta", "params": delta}).to_string();
        writeln!(out, "{line}")?;
        if !pause.is_zero() {
            out.flush()?;
            thread::park_timeout(pause);
        }
    }
    out.flush()?;
    Ok(())
}

fn call(out: &mut impl io::Write, number: u64) -> anyhow::Result<()> {
    let call_id = format!("call-{number}");
    let item = json!({"type": "dynamicToolCall", "id": call_id, "namespace": null, "tool": "f", "arguments": {}, "status": "inProgress",
        "contentItems": null, "success": null});
    say(out, &json!({"method": "item/started", "params": {"threadId": "thread", "turnId": "turn", "item": item}}))?;
    let params = json!({"threadId": "thread", "turnId": "turn", "callId": call_id, "namespace": null, "tool": "f", "arguments": {}});
    say(out, &json!({"method": "item/tool/call", "id": number, "params": params}))
}

fn complete(out: &mut impl io::Write) -> anyhow::Result<()> {
    end(out, "completed")
}

fn end(out: &mut impl io::Write, status: &str) -> anyhow::Result<()> {
    let turn = json!({"id": "turn", "status": status, "error": null, "items": []});
    say(out, &json!({"method": "turn/completed", "params": {"threadId": "thread", "turn": turn}}))
}

fn say(out: &mut impl io::Write, message: &Value) -> anyhow::Result<()> {
    writeln!(out, "{message}")?;
    out.flush()?;
    Ok(())
}
