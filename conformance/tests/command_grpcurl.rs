//! The call of the README, made as grpcurl makes it: nothing is known but the name of the method; service and messages come from server
//! reflection, and the request is written in JSON (R-OBS-1).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context;
use conformance::child::codex;
use conformance::rig::{Rig, Setup, scenario};
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MethodDescriptor, ReflectMessage, Value};
use prost_types::FileDescriptorProto;
use proto::version;
use serde_json::json;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// Why one Harness is enough.
const OWN: &str = "the call asks no Harness";

/// Messages as bytes: their types are in the descriptors.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// A connection as `grpcurl -plaintext -authority localhost -unix SOCKET` makes it.
async fn connect(rig: &Rig) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", rig.place().socket().display()))?;
    Ok(endpoint.origin("http://localhost".parse()?).connect().await?)
}

/// Asks the reflection service for files until every import is there.
async fn descriptors(channel: &Channel, service: &str) -> anyhow::Result<DescriptorPool> {
    let mut client = ServerReflectionClient::new(channel.clone());
    let (mut files, mut known) = (Vec::new(), BTreeSet::new());
    let mut open = vec![MessageRequest::FileContainingSymbol(service.to_owned())];
    while let Some(ask) = open.pop() {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(ask.clone()) };
        let mut answers = client.server_reflection_info(tokio_stream::once(request)).await?.into_inner();
        let answer = answers.message().await?.and_then(|answer| answer.message_response);
        let Some(MessageResponse::FileDescriptorResponse(found)) = answer else {
            anyhow::bail!("{ask:?} is not answered: {answer:?}")
        };
        for bytes in found.file_descriptor_proto {
            let file = FileDescriptorProto::decode(&*bytes)?;
            if known.insert(file.name().to_owned()) {
                open.extend(file.dependency.iter().cloned().map(MessageRequest::FileByFilename));
                files.push(file);
            }
        }
        open.retain(|ask| !matches!(ask, MessageRequest::FileByFilename(name) if known.contains(name)));
    }
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_protos(files)?;
    Ok(pool)
}

/// A message from JSON, as far as the requests here need it.
fn message(method: &MethodDescriptor, body: &serde_json::Value) -> anyhow::Result<DynamicMessage> {
    fill(DynamicMessage::new(method.input()), body)
}

fn fill(mut message: DynamicMessage, body: &serde_json::Value) -> anyhow::Result<DynamicMessage> {
    for (name, value) in body.as_object().context("not an object")? {
        let field = message.descriptor().get_field_by_json_name(name);
        let field = field.with_context(|| format!("{} has no field {name}", message.descriptor().full_name()))?;
        let value = match (field.kind(), value) {
            (Kind::Message(inner), value) => Value::Message(fill(DynamicMessage::new(inner), value)?),
            (Kind::String, serde_json::Value::String(text)) => Value::String(text.clone()),
            (Kind::Uint64, value) => Value::U64(value.as_u64().context("not a number")?),
            (kind, value) => anyhow::bail!("{name} is a {kind:?}, not {value}"),
        };
        message.set_field(&field, value);
    }
    Ok(message)
}

/// Calls `SERVICE/METHOD` with a body in JSON.
async fn call(
    channel: &Channel,
    name: &str,
    headers: &[(&'static str, String)],
    body: &serde_json::Value,
) -> anyhow::Result<Result<DynamicMessage, Status>> {
    let (service, method) = name.split_once('/').context("a method is named SERVICE/METHOD")?;
    let pool = descriptors(channel, service).await?;
    let service = pool.get_service_by_name(service).context("no such service")?;
    let method = service.methods().find(|one| one.name() == method).context("no such method")?;
    let mut request = Request::new(message(&method, body)?.encode_to_vec());
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse()?);
    }
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await?;
    Ok(match grpc.unary(request, format!("/{name}").parse()?, Raw).await {
        Ok(answer) => Ok(DynamicMessage::decode(method.output(), answer.into_inner())?),
        Err(status) => Err(status),
    })
}

fn text(message: &DynamicMessage, field: &str) -> String {
    message.get_field_by_name(field).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The method that the README's command names.
fn of_the_readme() -> anyhow::Result<String> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md"))?;
    let (_, command) = readme.split_once("\ngrpcurl ").context("the README has no grpcurl call")?;
    let (command, _) = command.split_once("```").context("the command has no end")?;
    for part in ["-plaintext", "-authority localhost", "-unix "] {
        assert!(command.contains(part), "{command}");
    }
    Ok(command.split_whitespace().last().context("an empty command")?.to_owned())
}

#[test]
fn the_call_of_the_readme_is_answered() {
    let setup = Setup::faulty(codex::healthy()).bridge(OWN);
    scenario("grpcurl", &["R-API-1", "R-OBS-1"], setup, async |rig| {
        let channel = connect(rig).await?;
        let info = call(&channel, &of_the_readme()?, &[], &json!({})).await??;
        assert_eq!(text(&info, "name"), "runtime-bridge");
        assert_eq!(text(&info, "protocol_version"), version::CURRENT.to_string());
        let harnesses = info.get_field_by_name("harnesses").context("no harnesses")?.into_owned();
        let harnesses = harnesses.as_list().context("no list")?.iter().filter_map(Value::as_message);
        assert_eq!(
            harnesses.map(|harness| text(harness, "kind")).collect::<Vec<_>>(),
            ["claude_code", "codex", "minimax_code"]
        );
        // Health is listed and answers too.
        let health = call(&channel, "grpc.health.v1.Health/Check", &[], &json!({})).await??;
        assert_eq!(health.get_field_by_name("status").and_then(|status| status.as_enum_number()), Some(1));
        // Any other call with its header and a body.
        let directory = rig.workspace().to_string_lossy().into_owned();
        let bind = json!({"assignment": {"sessionId": "s-1", "assignmentId": "a-1", "epoch": 1},
            "workspace": {"environmentId": "env-1", "directory": directory}});
        let name = "runtime_bridge.v1.Runtime/BindAssignment";
        let header = [(version::HEADER, version::CURRENT.to_string())];
        let bound = call(&channel, name, &header, &bind).await??;
        assert_eq!(text(&bound, "directory"), directory);
        let refused = call(&channel, name, &[], &bind).await?.err().context("taken without a version")?;
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert_eq!(
            refused.metadata().get(proto::REASON_TRAILER).and_then(|r| r.to_str().ok()),
            Some("INVALID_REQUEST")
        );
        Ok(())
    });
}
