//! The provider as a program: its address on standard output, its end with standard input.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn serves_a_script_until_standard_input_ends() {
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("provider-{}.json", std::process::id()));
    std::fs::write(&script, r#"{"version":1,"provider":[{"play":[{"text":{"chunks":["scripted"]}}]}]}"#).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_runtime-bridge-conformance"))
        .args(["provider", "--port", "0", "--script"])
        .arg(&script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("http://").unwrap().strip_suffix("/v1").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("scripted"), "{answer}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_bad_script_is_refused_with_its_place() {
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-{}.json", std::process::id()));
    std::fs::write(&script, "{\"version\":1,\n\"providers\":[]}").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_runtime-bridge-conformance"))
        .args(["provider", "--script"])
        .arg(&script)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("unknown field `providers`") && text.contains("line 2"), "{text}");
}
