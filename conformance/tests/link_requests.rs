//! What the gRPC library itself refuses has a reason too (R-API-4, R-API-7).

use std::collections::BTreeMap;

use anyhow::Context;
use bytes::Bytes;
use conformance::rig::{Rig, Setup, scenario};
use prost::Message as _;
use proto::{REASON_TRAILER, v1, version};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Why one Harness is enough.
const OWN: &str = "what gRPC refuses never reaches a Harness";

/// Bytes as they are, on both sides.
#[derive(Debug, Default, Clone)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(buffer, item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes::Buf::copy_to_bytes(buffer, bytes::Buf::remaining(buffer))))
    }
}

async fn channel(rig: &Rig) -> anyhow::Result<Channel> {
    let address = format!("unix:{}", rig.place().socket().display());
    Ok(Endpoint::from_shared(address)?.connect().await?)
}

/// Sends these bytes as the message of a call.
async fn send(
    channel: &Channel,
    path: &'static str,
    message: Bytes,
    headers: &[(&'static str, &str)],
) -> anyhow::Result<Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone()).max_encoding_message_size(usize::MAX);
    let mut request = tonic::Request::new(message);
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse()?);
    }
    grpc.ready().await?;
    let answer = grpc.unary(request, http_path(path), Raw).await;
    answer.err().context("the call was taken")
}

fn http_path(path: &'static str) -> tonic::codegen::http::uri::PathAndQuery {
    tonic::codegen::http::uri::PathAndQuery::from_static(path)
}

fn has(status: &Status, code: Code, reason: &str) -> anyhow::Result<BTreeMap<String, String>> {
    assert_eq!(status.code(), code, "{status:?}");
    let trailer = status.metadata().get(REASON_TRAILER).and_then(|value| value.to_str().ok());
    assert_eq!(trailer, Some(reason), "{status:?}");
    let details = status.get_error_details();
    let info = details.error_info().context("no details")?;
    assert_eq!((&*info.reason, &*info.domain), (reason, proto::ERROR_DOMAIN));
    Ok(info.metadata.clone().into_iter().collect())
}

const GET_TURN: &str = "/runtime_bridge.v1.Runtime/GetTurn";

#[test]
fn what_cannot_be_read_or_is_not_there_has_a_reason() {
    scenario("link_requests", &["R-API-4", "R-API-7"], Setup::outer().bridge(OWN), async |rig| {
        let channel = channel(rig).await?;
        let version = version::CURRENT.to_string();
        let written = [(version::HEADER, &*version)];
        // Above the limit, by one byte of a field and by its framing.
        let long = v1::GetTurnRequest { turn_id: "x".repeat(64 << 20), ..Default::default() };
        let metadata = has(
            &send(&channel, GET_TURN, long.encode_to_vec().into(), &written).await?,
            Code::OutOfRange,
            "PAYLOAD_TOO_LARGE",
        )?;
        assert_eq!(metadata["max_request_bytes"], (64 << 20).to_string());
        assert_eq!(metadata["http_status"], "413");
        // Just below it is looked at.
        let fits = v1::GetTurnRequest { turn_id: "x".repeat((64 << 20) - 16), ..Default::default() };
        has(
            &send(&channel, GET_TURN, fits.encode_to_vec().into(), &written).await?,
            Code::InvalidArgument,
            "INVALID_REQUEST",
        )?;
        for garbage in [&b"\xff\xff\xff\xff"[..], b"\x0a\x7f", b"\x12\x02\xff\xfe"] {
            let status = send(&channel, GET_TURN, Bytes::copy_from_slice(garbage), &written).await?;
            has(&status, Code::InvalidArgument, "INVALID_REQUEST")?;
        }
        let compressed = [(version::HEADER, &*version), ("grpc-encoding", "gzip")];
        has(&send(&channel, GET_TURN, Bytes::new(), &compressed).await?, Code::Unimplemented, "UNSUPPORTED")?;
        let unknown = send(&channel, "/runtime_bridge.v1.Runtime/Teleport", Bytes::new(), &written).await?;
        has(&unknown, Code::Unimplemented, "UNSUPPORTED")?;
        // And the bridge is as well as before.
        rig.whole_turn(&rig.session().await?, "t-1", "hello").await.context("a Turn")?.completed()
    });
}
