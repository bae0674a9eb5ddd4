//! Images in the input of a Turn: what the model gets, and what no Harness ever sees.

use std::time::Duration;

use conformance::for_each_harness;
use conformance::rig::{
    GRAY_JPEG, GRAY_JPEG_URL, Harness, Observed, RED_PNG, RED_PNG_URL, Rig, Setup, refusal, scenario,
};
use proto::client::Session;
use proto::v1::{self, Reason};

for_each_harness!(
    images_reach_the_model_as_they_are_and_in_order,
    bytes_that_are_no_image_are_refused_with_their_field,
    the_largest_image_is_taken_and_no_larger_one
);

fn images_reach_the_model_as_they_are_and_in_order(harness: Harness) {
    let rules = ["R-STA-1", "R-API-6", "R-CAP-3", "R-PRE-4"];
    scenario(
        "message_images",
        &rules,
        Setup::outer().of(harness).needing(v1::Capability::MessageImages),
        async |rig| {
            let session = rig.session().await?;
            let input = || vec![text("What is"), png(RED_PNG), text("and what is"), jpeg(GRAY_JPEG), text("?")];
            let seen = turn(rig, &session, "t-1", input()).await?;
            seen.completed()?;
            let said = ["What is", RED_PNG_URL, "and what is", GRAY_JPEG_URL, "?"];
            assert_eq!(rig.provider.model_requests()[0].newest_input(), said);

            // An image is part of what the Turn's id stands for.
            let handle = rig.prepare(&session, rig.configuration(Vec::new())).await?;
            assert!(session.start(&handle, "t-1", input()).await?.duplicate);
            let mut other = input();
            other[1] = jpeg(GRAY_JPEG);
            refusal(session.start(&handle, "t-1", other).await, Reason::TurnConflict);

            // It may stand alone, and those of before stay in the conversation.
            session.start(&handle, "t-2", vec![png(RED_PNG)]).await?;
            Observed::default().to_the_end(&mut session.turn_events("t-2")).await?.completed()?;
            let request = &rig.provider.model_requests()[1];
            assert_eq!(request.newest_input(), [RED_PNG_URL]);
            let data = GRAY_JPEG_URL.rsplit(',').next().unwrap_or_default();
            assert_eq!(request.body.matches(data).count(), 1, "{}", request.body);
            Ok(())
        },
    );
}

fn bytes_that_are_no_image_are_refused_with_their_field(harness: Harness) {
    scenario(
        "message_image_bytes",
        &["R-STA-1", "R-API-4"],
        Setup::outer().of(harness).needing(v1::Capability::MessageImages),
        async |rig| {
            let session = rig.session().await?;
            let handle = rig.prepare(&session, rig.configuration(Vec::new())).await?;
            for (part, says) in [
                (png(b""), "PNG"),
                (png(&RED_PNG[..RED_PNG.len() - 1]), "PNG"),
                (png(GRAY_JPEG), "PNG"),
                (jpeg(RED_PNG), "JPEG"),
                (jpeg(&GRAY_JPEG[..40]), "JPEG"),
                (image("image/gif", b"GIF89a"), "image/png or image/jpeg"),
                (image("", RED_PNG), "image/png or image/jpeg"),
            ] {
                let refused = session.start(&handle, "t-1", vec![text("see"), part]).await;
                refusal(refused, Reason::InvalidRequest).at("input[1].image").says(says);
            }
            // None of it had an effect.
            refusal(session.turn("t-1").await, Reason::NotFound);
            session.start(&handle, "t-1", vec![text("see"), png(RED_PNG)]).await?;
            Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
            assert_eq!(rig.provider.model_requests().len(), 1);
            Ok(())
        },
    );
}

fn the_largest_image_is_taken_and_no_larger_one(harness: Harness) {
    scenario(
        "message_image_size",
        &["R-STA-1", "R-API-4", "R-API-7"],
        Setup::outer().of(harness).needing(v1::Capability::MessageImages),
        async |rig| {
            let session = rig.session().await?;
            let handle = rig.prepare(&session, rig.configuration(Vec::new())).await?;
            // Readers stop at the end of the picture.
            let of_size = |size: usize| [RED_PNG, &vec![7; size - RED_PNG.len()]].concat();
            let largest = of_size(8 << 20);
            let refused = session.start(&handle, "t-1", vec![png(&of_size((8 << 20) + 1))]).await;
            refusal(refused, Reason::InvalidRequest).at("input[0].image.data").says("8388608");
            let mut all = vec![png(&largest); 4];
            all.push(png(RED_PNG));
            refusal(session.start(&handle, "t-1", all).await, Reason::InvalidRequest).at("input").says("33554432");
            session.start_within(&handle, "t-1", vec![png(&largest)], Some(Duration::from_secs(40))).await?;
            Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
            let sent = rig.provider.model_requests()[0].newest_input().concat();
            if harness == Harness::ClaudeCode {
                // It makes a smaller picture of one that is as large as this.
                assert!(sent.starts_with("data:image/") && sent.len() < largest.len(), "{} bytes", sent.len());
                return Ok(());
            }
            // Base64 has four characters for three bytes.
            assert_eq!(sent.len(), "data:image/png;base64,".len() + largest.len().div_ceil(3) * 4);
            assert!(sent.starts_with(&RED_PNG_URL[..RED_PNG_URL.len() - 4]), "{}", &sent[..200]);
            Ok(())
        },
    );
}

async fn turn(rig: &Rig, session: &Session, id: &str, input: Vec<v1::InputPart>) -> anyhow::Result<Observed> {
    let handle = rig.prepare(session, rig.configuration(Vec::new())).await?;
    session.start(&handle, id, input).await?;
    Observed::default().to_the_end(&mut session.turn_events(id)).await
}

fn text(text: &str) -> v1::InputPart {
    v1::InputPart { part: Some(v1::input_part::Part::Text(text.into())) }
}

fn png(data: &[u8]) -> v1::InputPart {
    image("image/png", data)
}

fn jpeg(data: &[u8]) -> v1::InputPart {
    image("image/jpeg", data)
}

fn image(media_type: &str, data: &[u8]) -> v1::InputPart {
    let image = v1::Image { media_type: media_type.into(), data: data.to_vec() };
    v1::InputPart { part: Some(v1::input_part::Part::Image(image)) }
}
