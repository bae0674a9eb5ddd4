//! Calls that are written in a version that the bridge does not take, or that do not say which (R-API-1).

use conformance::child::codex;
use conformance::rig::{Call, Rig, Setup, refusal, scenario};
use proto::v1::{self, Reason};
use proto::version::{CURRENT, HEADER, OLDEST_ACCEPTED, Version};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

/// Why one Harness is enough.
const OWN: &str = "the version of a call is judged before anything else";

fn setup() -> Setup {
    Setup::faulty(codex::healthy()).bridge(OWN)
}

/// A Session that was there before works as if nothing had happened.
async fn works(rig: &Rig) -> anyhow::Result<()> {
    rig.whole_turn(&rig.session().await?, "t-1", "still here").await?.completed()
}

#[test]
fn a_call_names_the_version_that_it_is_written_in() {
    scenario("bad_version_missing", &["R-API-1"], setup(), async |rig| {
        let target = rig.target(&rig.session().await?);
        let client = rig.client().await?.claiming_version(None);
        for call in Call::ALL {
            let refused = refusal(call.make(&client, &target).await, Reason::InvalidRequest);
            refused.at(HEADER).says(HEADER);
        }
        for text in ["", "0", "0.", ".1", "+0.1", "0.1.2", "a.b", "0.99999999999", "0,1"] {
            let client = rig.client().await?.claiming_version(Some(text));
            for call in Call::ALL {
                refusal(call.make(&client, &target).await, Reason::InvalidRequest).at(HEADER).says("MAJOR.MINOR");
            }
        }
        works(rig).await
    });
}

#[test]
fn another_version_is_refused_with_all_three_versions() {
    scenario("bad_version_incompatible", &["R-API-1"], setup(), async |rig| {
        let target = rig.target(&rig.session().await?);
        let mut others = vec![
            Version { minor: CURRENT.minor + 1, ..CURRENT },
            Version { major: CURRENT.major + 1, ..CURRENT },
            Version { major: CURRENT.major + 1, minor: 0 },
        ];
        others.extend(OLDEST_ACCEPTED.minor.checked_sub(1).map(|minor| Version { minor, ..OLDEST_ACCEPTED }));
        others.extend(OLDEST_ACCEPTED.major.checked_sub(1).map(|major| Version { major, ..OLDEST_ACCEPTED }));
        for other in others {
            let (asked, ours, oldest) = (other.to_string(), CURRENT.to_string(), OLDEST_ACCEPTED.to_string());
            let client = rig.client().await?.claiming_version(Some(&asked));
            for call in Call::ALL {
                refusal(call.make(&client, &target).await, Reason::IncompatibleVersion)
                    .nowhere()
                    .with("version", &asked)
                    .with("protocol_version", &ours)
                    .with("oldest_accepted", &oldest)
                    .says(&asked)
                    .says(&ours)
                    .says(&oldest);
            }
        }
        works(rig).await
    });
}

#[test]
fn who_does_not_know_the_version_can_ask_for_it() {
    scenario("version_exempt", &["R-API-1", "R-OBS-1"], setup(), async |rig| {
        for version in [None, Some("99.1"), Some("nonsense")] {
            let client = rig.client().await?.claiming_version(version);
            let info = client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
            assert_eq!(info.name, "runtime-bridge");
            assert_eq!(info.protocol_version, CURRENT.to_string());
            assert_eq!(info.oldest_accepted, OLDEST_ACCEPTED.to_string());
        }
        // The rig asks the health service without the header. Reflection has none either.
        let address = format!("unix:{}", rig.place().socket().display());
        let channel = tonic::transport::Endpoint::from_shared(address)?.connect().await?;
        let ask = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut answers =
            ServerReflectionClient::new(channel).server_reflection_info(tokio_stream::once(ask)).await?.into_inner();
        let answer = answers.message().await?.and_then(|answer| answer.message_response);
        let Some(MessageResponse::ListServicesResponse(list)) = answer else { anyhow::bail!("no list: {answer:?}") };
        let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
        assert!(names.contains(&"runtime_bridge.v1.Runtime"), "{names:?}");
        assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
        Ok(())
    });
}
